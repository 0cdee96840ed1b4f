/*-------------------------------------------------------------------------
 *
 * connparams.c
 *	  What the command adds to the user's connection parameters.
 *
 * NOTES
 *	  Of several hosts one that can be written to is wanted, unless the user
 *	  says otherwise.  Of one host whatever it is: its leases can be looked at
 *	  on a standby, too.
 *
 *	  A request may wait for hours, so a server whose machine has gone without a
 *	  word has to be noticed by keepalives, and sooner than by default.
 *
 *	  Hosts that come from a service file are not seen here, so with those
 *	  target_session_attrs has to be said there, and an attempt that ran out of
 *	  time begins with the same one again.
 *
 * IDENTIFICATION
 *	  src/cli/connparams.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "connparams.h"
#include "text.h"

/* Parameters that are lists with an item for each host. */
static const struct
{
	const char *keyword;
	const char *variable;
}			lists[] =

{
	{"host", "PGHOST"},
	{"hostaddr", "PGHOSTADDR"},
	{"port", "PGPORT"},
};

#define NLISTS	((int) CLI_LENGTH(lists))

/*
 * A list that is separated by commas, so many items turned round; NULL if it
 * is NULL or has one item.  To be freed by the caller.
 */
static char *
rotate_list(const char *list, int by)
{
	int			items = 1;
	const char *start = list;
	Text		text;

	if (list == NULL || strchr(list, ',') == NULL)
		return NULL;
	for (const char *p = list; *p != '\0'; p++)
		items += (*p == ',');
	for (by %= items; by > 0; by--)
		start = strchr(start, ',') + 1;

	text_init(&text);
	text_add(&text, start);
	if (start > list)
	{
		text_add_char(&text, ',');
		text_add_bytes(&text, list, (size_t) (start - list) - 1);
	}
	return text.data;
}

static const char *
find(PQconninfoOption *options, const char *keyword, const char *variable)
{
	for (PQconninfoOption *option = options; option != NULL && option->keyword != NULL; option++)
	{
		if (strcmp(option->keyword, keyword) == 0 && option->val != NULL)
			return option->val;
	}
	return getenv(variable);
}

/*
 * Begin to connect, with the lists of hosts turned round.  "conninfo" is what
 * libpq takes for a database name, or NULL.
 */
PGconn *
connparams_start(const char *conninfo, int rotate)
{
	const char *keywords[NLISTS + 9];
	const char *values[NLISTS + 9];
	char	   *rotated[NLISTS];
	PQconninfoOption *given = NULL;
	PGconn	   *pg;
	int			n = 0;

	if (conninfo != NULL && (strchr(conninfo, '=') != NULL || strstr(conninfo, "://") != NULL))
		given = PQconninfoParse(conninfo, NULL);
	for (int i = 0; i < NLISTS; i++)
		rotated[i] = rotate_list(find(given, lists[i].keyword, lists[i].variable), rotate);

	/* A later one wins, so what comes before the user's is a default. */
	if ((rotated[0] != NULL || rotated[1] != NULL) && getenv("PGTARGETSESSIONATTRS") == NULL)
	{
		keywords[n] = "target_session_attrs";
		values[n++] = "read-write";
	}
	keywords[n] = "keepalives_idle";
	values[n++] = "10";
	keywords[n] = "keepalives_interval";
	values[n++] = "5";
	keywords[n] = "keepalives_count";
	values[n++] = "3";
	keywords[n] = "fallback_application_name";
	values[n++] = "dlock";
	if (conninfo != NULL)
	{
		keywords[n] = "dbname";
		values[n++] = conninfo;
	}
	for (int i = 0; i < NLISTS; i++)
	{
		if (rotated[i] == NULL)
			continue;
		keywords[n] = lists[i].keyword;
		values[n++] = rotated[i];
	}
	keywords[n] = "client_encoding";
	values[n++] = "UTF8";
	keywords[n] = NULL;
	values[n] = NULL;

	pg = PQconnectStartParams(keywords, values, 1);
	for (int i = 0; i < NLISTS; i++)
		free(rotated[i]);
	PQconninfoFree(given);
	return pg;
}
