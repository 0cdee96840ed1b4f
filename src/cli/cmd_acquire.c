/*-------------------------------------------------------------------------
 *
 * cmd_acquire.c
 *	  dlock acquire: get a lease and leave it to the caller.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_acquire.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>

#include "commands.h"
#include "grant.h"
#include "output.h"
#include "loop.h"

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

/* What nobody learns the token of must not stay locked. */
static int
give_back(Conn *conn, const GrantRequest *request, const Grant *grant, int code)
{
	bool		was_held;

	if (code != CLI_EXIT_OK)
		(void) grant_release(conn, request->name, grant->token, &was_held);
	return code;
}

static int
run(const Options *options, int argc, char **argv)
{
	char	   *owner = (options->owner != NULL) ? text_copy(options->owner) : process_owner(NULL);
	GrantRequest request = {
		.name = argv[0],
		.owner = owner,
		.is_unique = options->owner == NULL,
		.ttl = (options->ttl > 0) ? options->ttl : ACQUIRE_TTL,
		.lock_delay = CLI_MAX(options->lock_delay, 0),
		.options = options
	};
	GrantVerdict verdict;
	Grant		grant = {0};
	Conn		conn;
	int			code;

	(void) argc;
	signals_catch();
	conn_init(&conn, options->conninfo);
	verdict = grant_acquire(&conn, &request, &grant);
	if (verdict == GRANT_OURS)
		code = give_back(&conn, &request, &grant, print_grant(&request, &grant));
	else
		code = grant_explain(&conn, &request, &grant, verdict);
	conn_close(&conn);
	free(owner);
	return code;
}

const Command cmd_acquire = {
	.name = "acquire",
	.bit = CMD_ACQUIRE,
	.arguments = "NAME",
	.summary = "get a lease and print its fencing token",
	.text =
	"Acquires a lease on lock NAME and prints its fencing token.  Nobody renews it:\n"
	"it ends after --ttl, unless \"dlock renew\" or \"dlock release\" is called in time.\n"
	"To hold a lock while a command runs, use \"dlock run\".\n",
	.least = 1,
	.most = 1,
	.run = run
};
