/*-------------------------------------------------------------------------
 *
 * childenv.c
 *	  The environment of the command that is run.
 *
 * NOTES
 *	  What tells of the lease comes from this process, whatever was inherited:
 *	  in a run inside another one the inner lease is to be seen.
 *
 * IDENTIFICATION
 *	  src/cli/childenv.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "childenv.h"
#include "text.h"
#include "tokens.h"

extern char **environ;

#define MOST_OWN	8

/* Does an entry set one of the same variables as ours do? */
static bool
is_replaced(const char *entry, char *const *own, int nown)
{
	size_t		length = strcspn(entry, "=");

	for (int i = 0; i < nown; i++)
	{
		if (strncmp(entry, own[i], length + 1) == 0)
			return true;
	}
	return false;
}

/* When the lease ends, by the wall clock and in UTC, if nobody renews it. */
static char *
print_end(CliTime expires_in)
{
	struct timespec now;
	struct tm	utc;
	CliTime		end;
	time_t		seconds;
	char		text[32];

	clock_gettime(CLOCK_REALTIME, &now);
	end = (CliTime) now.tv_sec * CLI_SECOND + now.tv_nsec / 1000 + expires_in;
	seconds = (time_t) (end / CLI_SECOND);
	gmtime_r(&seconds, &utc);
	strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &utc);
	return text_print("DLOCK_EXPIRES_AT=%s.%03dZ", text, (int) (end % CLI_SECOND / CLI_MS));
}

/*
 * Our environment with what tells of a lease, which ends in "expires_in" unless
 * it is renewed; with PGOPTIONS too, if "with_options".  To be freed by
 * childenv_free().
 */
char	  **
childenv_make(const char *name, const char *token, const char *owner,
			  CliTime expires_in, bool with_options)
{
	const char *outer = getenv("DLOCK_TOKENS");
	char	   *tokens = tokens_extend(outer, name, token);
	char	   *own[MOST_OWN];
	int			nown = 0;
	int			ninherited = 0;
	int			n = 0;
	char	  **made;

	own[nown++] = text_print("DLOCK_NAME=%s", name);
	own[nown++] = text_print("DLOCK_TOKEN=%s", token);
	own[nown++] = text_print("DLOCK_OWNER=%s", owner);
	own[nown++] = print_end(expires_in);
	own[nown++] = text_copy("DLOCK_HELD=1");
	own[nown++] = text_print("DLOCK_TOKENS=%s", tokens);
	if (with_options)
	{
		char	   *options = tokens_options(getenv("PGOPTIONS"), outer, tokens);

		own[nown++] = text_print("PGOPTIONS=%s", options);
		free(options);
	}
	free(tokens);

	while (environ[ninherited] != NULL)
		ninherited++;
	made = text_alloc((size_t) (ninherited + nown + 1) * sizeof(*made));
	for (int i = 0; i < ninherited; i++)
	{
		if (!is_replaced(environ[i], own, nown))
			made[n++] = text_copy(environ[i]);
	}
	for (int i = 0; i < nown; i++)
		made[n++] = own[i];
	return made;
}

void
childenv_free(char **environment)
{
	for (char **entry = environment; *entry != NULL; entry++)
		free(*entry);
	free(environment);
}
