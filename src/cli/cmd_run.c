/*-------------------------------------------------------------------------
 *
 * cmd_run.c
 *	  dlock run: run a command while holding a lock.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_run.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include "commands.h"
#include "hold.h"
#include "process.h"
#include "signals.h"

static int
run_prepared(const GrantRequest *request, const HoldCommand *command)
{
	HoldEnd		end = {0};
	GrantVerdict verdict;
	Grant		grant;
	Conn		conn;

	conn_init(&conn, request->options->conninfo);
	verdict = hold_acquire(&conn, request, &grant, command);
	if (verdict == GRANT_OURS)
		end = hold_run(&conn, request, &grant, command);
	else
		end.code = grant_explain(&conn, request, &grant, verdict);
	conn_close(&conn);
	return (end.interrupted && !end.lost) ? signals_interrupt() : end.code;
}

static int
run(const Options *options, int argc, char **argv)
{
	GrantRequest request = {
		.name = argv[0],
		.is_unique = true,
		.options = options
	};
	HoldCommand command;
	char	   *owner;
	int			code;

	signals_catch();
	code = hold_prepare(&command, &request, cmd_run.name, argc, argv);
	if (code != CLI_EXIT_OK)
		return code;

	/* Two runs must never be one owner, even if they are given the same name. */
	request.owner = owner = process_owner(options->owner);
	code = run_prepared(&request, &command);
	free(owner);
	return code;
}

const Command cmd_run = {
	.name = "run",
	.bit = CMD_RUN,
	.arguments = "NAME [--] COMMAND [ARGUMENT]...",
	.summary = "run a command while holding a lock",
	.text =
	"Acquires a lease on lock NAME, runs COMMAND, and releases it.  The lease is renewed\n"
	"while the command runs.  If it is lost, the command is stopped, and the exit code is\n"
	"76; if the server cannot be reached, the command goes on as long as the lease\n"
	"lasts, and is stopped before it ends.  Otherwise the exit code is the command's.\n\n"
	"The command finds DLOCK_NAME, DLOCK_TOKEN, DLOCK_OWNER and DLOCK_EXPIRES_AT in its\n"
	"environment, and in PGOPTIONS what fences the sessions that it begins.\n",
	.least = 1,
	.most = -1,
	.run = run
};
