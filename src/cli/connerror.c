/*-------------------------------------------------------------------------
 *
 * connerror.c
 *	  What an error of the server, or of the connection, means.
 *
 * NOTES
 *	  It is told by the SQLSTATE.  An attempt to connect that fails leaves no
 *	  more than a text behind, so that is asked for in the verbose form, which
 *	  has the SQLSTATE in it, and read; the rest of the text is in the language
 *	  of the server.
 *
 * IDENTIFICATION
 *	  src/cli/connerror.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "connerror.h"
#include "text.h"

#define STATE_LENGTH	5

/* The first that fits, by what the SQLSTATE begins with. */
static const struct
{
	const char *state;
	ConnTrouble trouble;
}			meanings[] =

{
	{"57P03", CONN_STARTING},
	{"08", CONN_UNREACHABLE},
	{"57P", CONN_UNREACHABLE},	/* shut down, crashed, idle for too long */
	{"25006", CONN_READ_ONLY},	/* a standby, or default_transaction_read_only */
	{"53300", CONN_UNREACHABLE},	/* too many connections */
	{"53", CONN_UNAVAILABLE},	/* the lock space or a disk is full */
	{"3D000", CONN_UNAVAILABLE},
	{"42883", CONN_UNAVAILABLE},	/* an extension of another version */
	{"42P01", CONN_UNAVAILABLE},	/* dropped meanwhile */
	{"42704", CONN_UNAVAILABLE},	/* no such queue */
	{"55000", CONN_UNAVAILABLE},	/* not preloaded, dropped meanwhile */
	{"28", CONN_FORBIDDEN},
	{"42501", CONN_FORBIDDEN},
	{"22", CONN_INVALID},
	{"42939", CONN_INVALID},	/* a name that is dlock's own */
	{"57014", CONN_INTERRUPTED},
	{"55P03", CONN_INTERRUPTED},
	{"40P01", CONN_DEADLOCK},
	{"LK002", CONN_LOST},
};

static ConnTrouble
meaning_of(const char *state)
{
	for (size_t i = 0; i < CLI_LENGTH(meanings); i++)
	{
		if (strncmp(state, meanings[i].state, strlen(meanings[i].state)) == 0)
			return meanings[i].trouble;
	}
	return CONN_UNEXPECTED;
}

void
connerror_clear(ConnError *error)
{
	free(error->message);
	free(error->detail);
	free(error->hint);
	memset(error, 0, sizeof(*error));
}

static void
set(ConnError *error, ConnTrouble trouble, const char *state, const char *message,
	const char *detail, const char *hint)
{
	connerror_clear(error);
	error->trouble = trouble;
	if (state != NULL)
		strncpy(error->state, state, STATE_LENGTH);
	error->message = text_copy(message);
	error->detail = text_copy(detail);
	error->hint = text_copy(hint);
}

/* If the result is an error, tell what it means; false if it is none. */
bool
connerror_of_result(ConnError *error, const PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

	if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK)
		return false;
	if (state == NULL)
	{
		/* libpq's own: the connection broke, or there is no memory. */
		message = PQresultErrorMessage(result);
		set(error, CONN_UNREACHABLE, NULL, (*message != '\0') ? message : "no answer from the server", NULL, NULL);
	}
	else
		set(error, meaning_of(state), state, (message != NULL) ? message : state,
			PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL),
			PQresultErrorField(result, PG_DIAG_MESSAGE_HINT));
	if (error->message[strcspn(error->message, "\n")] != '\0')
		error->message[strcspn(error->message, "\n")] = '\0';
	return true;
}

/* An SQLSTATE and a colon after two blanks, as the verbose form has it; or NULL. */
static const char *
find_state(const char *text)
{
	for (const char *p = strstr(text, ":  "); p != NULL; p = strstr(p + 1, ":  "))
	{
		size_t		length = strspn(p + 3, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ");

		if (length == STATE_LENGTH && strncmp(p + 3 + length, ": ", 2) == 0)
			return p + 3;
	}
	return NULL;
}

/* Is this line the place in the server's source that the verbose form tells? */
static bool
is_location(const char *line, size_t length)
{
	size_t		digits = 0;

	while (digits < length && line[length - digits - 1] >= '0' && line[length - digits - 1] <= '9')
		digits++;
	return digits > 0 && length > digits + 3 &&
		strncmp(line + length - digits - 3, ".c:", 3) == 0;
}

/*
 * The text of a failed attempt without SQLSTATE and location, in one line.
 */
static char *
tidy(const char *text)
{
	Text		tidied;

	text_init(&tidied);
	while (*text != '\0')
	{
		size_t		length = strcspn(text, "\n");
		const char *state = find_state(text);

		if (length > 0 && !is_location(text, length))
		{
			if (tidied.len > 0)
				text_add(&tidied, "; ");
			text += strspn(text, " \t");
			length = strcspn(text, "\n");
			if (state != NULL && state < text + length)
			{
				text_add_bytes(&tidied, text, (size_t) (state - text) - 1);
				length -= (size_t) (state - text) + STATE_LENGTH + 1;
				text = state + STATE_LENGTH + 1;
			}
			text_add_bytes(&tidied, text, length);
		}
		text += length + (text[length] == '\n');
	}
	return tidied.data;
}

/* The connection could not be made, or broke. */
void
connerror_of_connection(ConnError *error, const PGconn *pg)
{
	const char *text = (pg != NULL) ? PQerrorMessage(pg) : "out of memory";
	const char *state = find_state(text);
	char	   *message = tidy(text);
	ConnTrouble trouble = (state != NULL) ? meaning_of(state) : CONN_UNREACHABLE;

	if (pg != NULL && (PQconnectionNeedsPassword(pg) || PQconnectionUsedPassword(pg)) && state == NULL)
		trouble = PQconnectionNeedsPassword(pg) ? CONN_FORBIDDEN : trouble;
	set(error, trouble, state, (*message != '\0') ? message : "the connection was lost", NULL, NULL);
	free(message);
}

void
connerror_no_extension(ConnError *error, const char *database)
{
	char	   *message = text_print("database \"%s\" does not have the extension \"dlock\"", database);

	set(error, CONN_UNAVAILABLE, NULL, message, NULL,
		"Run CREATE EXTENSION dlock in it, or name another database with -d.");
	free(message);
}

void
connerror_timeout(ConnError *error)
{
	set(error, CONN_UNREACHABLE, NULL, "the server does not answer", NULL, NULL);
}

/* The server is there, and has not done what it was asked to. */
void
connerror_late(ConnError *error)
{
	set(error, CONN_UNREACHABLE, NULL, "the server did not finish the request in time", NULL,
		"If it has synchronous standbys, see whether they are connected.");
}

/* Is it worth while to connect again?  "was_up": there was such a server once. */
bool
connerror_may_pass(const ConnError *error, bool was_up)
{
	switch (error->trouble)
	{
		case CONN_STARTING:
			return true;
		case CONN_UNREACHABLE:
		case CONN_READ_ONLY:
			return was_up;
		default:
			return false;
	}
}

/*
 * An exit code.  That a lock was not acquired is not known here: only a command
 * that wanted one may say so.
 */
int
connerror_exit_code(const ConnError *error)
{
	switch (error->trouble)
	{
		case CONN_FINE:
			return CLI_EXIT_OK;
		case CONN_UNREACHABLE:
		case CONN_READ_ONLY:
		case CONN_STARTING:
		case CONN_UNAVAILABLE:
			return CLI_EXIT_UNREACHABLE;
		case CONN_FORBIDDEN:
			return CLI_EXIT_PERMISSION;
		case CONN_INVALID:
			return CLI_EXIT_USAGE;
		case CONN_LOST:
			return CLI_EXIT_LOST;
		case CONN_INTERRUPTED:
		case CONN_DEADLOCK:
		case CONN_UNEXPECTED:
			break;
	}
	return CLI_EXIT_SERVER;
}
