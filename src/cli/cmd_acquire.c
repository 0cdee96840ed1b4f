/*-------------------------------------------------------------------------
 *
 * cmd_acquire.c
 *	  dlock acquire: a lease that the caller keeps.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_acquire.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>

#include "hold.h"
#include "output.h"

/* A ttl, if none is given. */
#define ACQUIRE_TTL		(30 * CLI_SECOND)

static int
print_grant(const GrantRequest *request, const Grant *grant)
{
	Text		line;
	int			code;

	text_init(&line);
	if (output_is_json())
	{
		char		seconds[DURATION_SIZE];

		snprintf(seconds, sizeof(seconds), "%.3f", (double) request->ttl / (double) CLI_SECOND);
		output_json_begin(&line);
		output_json_text(&line, "name", request->name);
		output_json_raw(&line, "token", grant->token);
		output_json_text(&line, "owner", request->owner);
		output_json_raw(&line, "ttl", seconds);
		output_json_end(&line);
	}
	else
		text_addf(&line, "%s\n", grant->token);
	code = output_print(line.data);
	text_free(&line);
	return code;
}

int
acquire(const Options *options, char **arguments)
{
	char	   *owner = (options->owner != NULL) ? text_copy(options->owner) : process_owner(NULL);
	GrantRequest request = {
		.name = arguments[0],
		.owner = owner,
		.is_unique = options->owner == NULL,
		.ttl = (options->ttl > 0) ? options->ttl : ACQUIRE_TTL,
		.lock_delay = CLI_MAX(options->lock_delay, 0),
		.options = options
	};
	AskVerdict	verdict;
	Grant		grant = {0};
	Conn		conn;
	int			code;

	signals_catch();
	conn_init(&conn, options->conninfo);
	verdict = grant_acquire(&conn, &request, &grant);
	if (verdict != ASK_GRANTED)
		code = grant_explain(&conn, &request, &grant, verdict);
	else
	{
		bool		was_held;

		/* What nobody learns the token of must not stay locked. */
		code = print_grant(&request, &grant);
		if (code != CLI_EXIT_OK)
			(void) grant_release(&conn, request.name, grant.token, &was_held);
	}
	conn_close(&conn);
	free(owner);
	return code;
}
