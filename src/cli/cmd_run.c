/*-------------------------------------------------------------------------
 *
 * cmd_run.c
 *	  dlock run and elect: run a command while holding a lock.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_run.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include "hold.h"
#include "output.h"

/* A command that fails at once must not be started over and over without a pause. */
#define PAUSE	CLI_SECOND

/* ---- run ---- */

static HoldEnd
run_prepared(Conn *conn, const GrantRequest *request, const HoldCommand *command)
{
	HoldEnd		end = {0};
	Grant		grant;
	AskVerdict	verdict = hold_acquire(conn, request, &grant, command);

	if (verdict == ASK_GRANTED)
		end = hold_run(conn, request, &grant, command);
	else
		end.code = grant_explain(conn, request, &grant, verdict);
	return end;
}

/*
 * Win the slot of time that it is now; false with an exit code.  That comes before
 * the lock: after a wait for that it would be too late to learn that the slot is taken.
 */
static bool
win_slot(Conn *conn, const char *name, const Options *options, int *code)
{
	char		span[DURATION_SIZE];
	const ConnParam params[] = {CONN_TEXT(name), CONN_INTERVAL(duration_sql(options->once_per, span))};

	if (!conn_open(conn) ||
		conn_ask(conn, GRANT_WITHIN, "SELECT @dlock_once($1, $2)", 2, params) == NULL)
	{
		*code = conn_report(conn);
		return false;
	}
	if (conn_value(conn, 0) != NULL)
		return true;
	*code = options->refused_exit;
	output_refusal(*code, "\"%s\" has been run already in this slot of %s",
				   name, duration_print(options->once_per, span));
	return false;
}

int
run_once(const Options *options, char **arguments)
{
	GrantRequest request = {
		.name = arguments[0],
		.is_unique = true,
		.options = options
	};
	HoldCommand command;
	HoldEnd		end = {0};
	Conn		conn;
	char	   *owner;

	/*
	 * Messages may have no reader.  Other signals end us as long as there is
	 * no lease.
	 */
	signals_ignore_unwanted();
	end.code = hold_prepare(&command, &request, arguments);
	if (end.code != CLI_EXIT_OK)
		return end.code;

	/* Two runs must never be one owner, even if they are given the same name. */
	request.owner = owner = process_owner(options->owner);
	conn_init(&conn, options->conninfo);
	if (options->once_per < 0 || win_slot(&conn, request.name, options, &end.code))
	{
		signals_catch();
		end = run_prepared(&conn, &request, &command);
	}
	conn_close(&conn);
	free(owner);
	return (end.interrupted && !end.lost) ? signals_interrupt() : end.code;
}

/* ---- elect ---- */

/* Returns zero, or the signal that ended the pause. */
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
		AskVerdict	verdict = hold_acquire(conn, request, &grant, command);
		HoldEnd		end;
		int			signo;

		if (verdict != ASK_GRANTED)
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

int
run_again(const Options *options, char **arguments)
{
	GrantRequest request = {
		.name = arguments[0],
		.is_unique = true,
		.options = options
	};
	HoldCommand command;
	Conn		conn;
	char	   *owner;
	int			code;

	if (options->observe)
		return watch_leader(options, arguments);
	signals_catch();
	code = hold_prepare(&command, &request, arguments);
	if (code != CLI_EXIT_OK)
		return code;

	request.owner = owner = process_owner(options->owner);
	conn_init(&conn, options->conninfo);
	code = campaign(&conn, &request, &command);
	conn_close(&conn);
	free(owner);
	return code;
}
