/*-------------------------------------------------------------------------
 *
 * cmd_run.c
 *	  dlock acquire, and dlock run and elect, which run a command under a lease.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hold.h"
#include "output.h"

/* A ttl of acquire, if none is given. */
#define ACQUIRE_TTL		(30 * CLI_SECOND)

/* A command that fails at once must not be started over and over without a pause. */
#define PAUSE	CLI_SECOND

/* ---- acquire ---- */

static int
print_grant(const GrantRequest *request, const Grant *grant)
{
	PQExpBufferData line;

	initPQExpBuffer(&line);
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
		appendPQExpBuffer(&line, "%s\n", grant->token);
	return output_print(&line);
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

		/* A lock whose token is unknown must not stay locked. */
		code = print_grant(&request, &grant);
		if (code != CLI_EXIT_OK)
			(void) grant_release(&conn, request.name, grant.token, &was_held);
	}
	conn_close(&conn);
	free(owner);
	return code;
}

/* ---- run and elect ---- */

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

/* Would it wait for a run around it, which ends after it?  True with an exit code. */
static bool
waits_for_itself(Conn *conn, const char *name, const Options *options, int *code)
{
	char	   *outer = NULL;
	bool		is_held = false;

	free(lease_tokens(getenv("DLOCK_TOKENS"), name, "", &outer));
	if (outer != NULL && options->wait > 0 && options->permits == NULL && (options->mode == NULL || strcmp(options->mode, "exclusive") == 0))
	{
		const ConnParam params[] = {CONN_TEXT(name), CONN_BIGINT(outer)};

		is_held = conn_open(conn) && conn_ask(conn, GRANT_WITHIN, "SELECT @dlock_check($1, $2)", 2, params) != NULL &&
			conn_is_true(conn, 0);
	}
	free(outer);
	if (is_held)
		output_refusal(*code = options->refused_exit, "a run around this one holds \"%s\"", name);
	return is_held;
}

/* Acquire the lease and run the command, once or, as elect does, again and again. */
static int
campaign(Conn *conn, const GrantRequest *request, const HoldCommand *command)
{
	bool		once = request->options->once || request->options->command->bit == CMD_RUN;

	for (;;)
	{
		Grant		grant;
		AskVerdict	verdict = hold_acquire(conn, request, &grant, command);
		HoldEnd		end;
		int			signo;

		if (verdict != ASK_GRANTED)
			return grant_explain(conn, request, &grant, verdict);
		end = hold_run(conn, request, &grant, command);
		if (end.interrupted && !end.lost)
			return signals_interrupt();
		if (once || end.interrupted || end.signal != 0 ||
			end.code == CLI_EXIT_NOT_FOUND || end.code == CLI_EXIT_NOT_EXECUTABLE)
			return end.code;

		output_info("the command has ended with exit code %d; campaigning again", end.code);
		signo = loop_pause(conn, clock_now() + PAUSE, false);
		if (signo != 0)
			return signals_die(signo);
	}
}

int
run_command(const Options *options, char **arguments)
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

	/*
	 * Messages may have no reader.  Other signals end us as long as there is
	 * no lease.
	 */
	signals_ignore_unwanted();
	code = hold_prepare(&command, &request, arguments);
	if (code != CLI_EXIT_OK)
		return code;

	/* Two runs must never be one owner, even if they are given the same name. */
	request.owner = owner = process_owner(options->owner);
	conn_init(&conn, options->conninfo);
	if (!waits_for_itself(&conn, request.name, options, &code) &&
		(options->once_per < 0 || win_slot(&conn, request.name, options, &code)))
	{
		signals_catch();
		code = campaign(&conn, &request, &command);
	}
	conn_close(&conn);
	free(owner);
	return code;
}
