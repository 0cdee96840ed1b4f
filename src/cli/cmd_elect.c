/*-------------------------------------------------------------------------
 *
 * cmd_elect.c
 *	  dlock elect: run a command while being the leader.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_elect.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include "commands.h"
#include "hold.h"
#include "loop.h"
#include "observe.h"
#include "output.h"

/* A command that fails at once must not be started over and over without a pause. */
#define PAUSE	CLI_SECOND

/* Zero, or the signal that asked for an end meanwhile. */
static int
pause_between(Conn *conn)
{
	CliTime		until = clock_now() + PAUSE;

	while (clock_now() < until)
	{
		LoopEvent	event = loop_wait(conn, until);

		if (signals_is_fatal(event.signal))
			return event.signal;
	}
	return 0;
}

static int
campaign(Conn *conn, const GrantRequest *request, const HoldCommand *command)
{
	for (;;)
	{
		Grant		grant;
		GrantVerdict verdict = hold_acquire(conn, request, &grant, command);
		HoldEnd		end;
		int			signo;

		if (verdict != GRANT_OURS)
			return grant_explain(conn, request, &grant, verdict);
		end = hold_run(conn, request, &grant, command);
		if (end.interrupted)
			return signals_interrupt();
		if (request->options->once || end.signal != 0 ||
			end.code == CLI_EXIT_NOT_FOUND || end.code == CLI_EXIT_NOT_EXECUTABLE)
			return end.code;

		output_info("the command has ended with exit code %d; campaigning again", end.code);
		signo = pause_between(conn);
		if (signo != 0)
			return signals_die(signo);
	}
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
	Conn		conn;
	char	   *owner;
	int			code;

	if (options->observe)
		return observe_print(options, argv[0], "leader", "nobody");
	signals_catch();
	code = hold_prepare(&command, &request, cmd_elect.name, argc, argv);
	if (code != CLI_EXIT_OK)
		return code;

	request.owner = owner = process_owner(options->owner);
	conn_init(&conn, options->conninfo);
	code = campaign(&conn, &request, &command);
	conn_close(&conn);
	free(owner);
	return code;
}

const Command cmd_elect = {
	.name = "elect",
	.bit = CMD_ELECT,
	.arguments = "NAME [--] COMMAND [ARGUMENT]...",
	.summary = "run a command while being the leader",
	.text =
	"Campaigns to be the leader NAME, the holder of the lock of that name, and runs\n"
	"COMMAND while it leads.  When the command has ended, or the lease was lost and\n"
	"the command was stopped, it campaigns again.  A signal to end is passed on to\n"
	"the command, and is the end of it.\n\n"
	"dlock elect --observe NAME prints who leads, and each change.\n",
	.least = 1,
	.most = -1,
	.run = run
};
