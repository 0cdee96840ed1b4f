/*-------------------------------------------------------------------------
 *
 * target.c
 *	  A lease that is named by its token or its owner.
 *
 * IDENTIFICATION
 *	  src/cli/target.c
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "output.h"
#include "target.h"

#define WITHIN	(30 * CLI_SECOND)

static bool
is_token(const char *text)
{
	return *text != '\0' && strspn(text, "0123456789") == strlen(text);
}

/* Say what has been done, or that there was nothing to do it to. */
static int
tell(const TargetSql *sql, const char *name, bool done)
{
	int			code = CLI_EXIT_OK;

	if (output_is_json())
	{
		Text		line;

		text_init(&line);
		output_json_begin(&line);
		output_json_text(&line, "name", name);
		output_json_raw(&line, sql->done, done ? "true" : "false");
		output_json_end(&line);
		code = output_print(line.data);
		text_free(&line);
	}
	if (!done)
		output_refusal(CLI_EXIT_LOST, "the lease on \"%s\" is not held (any more)", name);
	return done ? code : CLI_EXIT_LOST;
}

/*
 * Do something to the lease that the arguments of a command name, NAME and
 * perhaps a token.  Returns an exit code.
 */
int
target_run(const TargetSql *sql, const char *command, const Options *options, int argc, char **argv)
{
	const char *token = (argc > 1) ? argv[1] : NULL;
	char		ttl[DURATION_SIZE];
	ConnParam	params[3];
	int			count = 2;
	int			code;
	Conn		conn;

	if ((token != NULL) == (options->owner != NULL))
	{
		output_error(CLI_EXIT_USAGE, "which lease on \"%s\" is meant has to be said by its token or by --owner", argv[0]);
		return options_usage(command);
	}
	if (token != NULL && !is_token(token))
	{
		output_error(CLI_EXIT_USAGE, "\"%s\" is not a token", token);
		return options_usage(command);
	}

	params[0] = CONN_TEXT(argv[0]);
	params[1] = (token != NULL) ? CONN_BIGINT(token) : CONN_TEXT(options->owner);
	if (sql->takes_ttl)
		params[count++] = CONN_INTERVAL((options->ttl >= 0) ? duration_sql(options->ttl, ttl) : NULL);

	conn_init(&conn, options->conninfo);
	if (conn_open(&conn) &&
		conn_ask(&conn, WITHIN, (token != NULL) ? sql->by_token : sql->by_owner, count, params) != NULL)
		code = tell(sql, argv[0], conn_is_true(&conn, 0));
	else
		code = conn_report(&conn);
	conn_close(&conn);
	return code;
}
