/*-------------------------------------------------------------------------
 *
 * capture.c
 *	  Capturing tasks, and giving them back.
 *
 * NOTES
 *	  A wait is made in turns, a statement each.  Calls that wait for tasks have
 *	  no place in a queue that a new statement would lose.  Between two turns the
 *	  session is free for what a pooler or the server wants to do with it, and
 *	  nothing that lasts as long as a statement lasts for longer than a turn.
 *	  The first statement does not wait: it has to be answered soon, so a server
 *	  that confirms nothing is told from a queue without tasks.
 *
 *	  A connection may break between a capture and its answer.  Nobody knows the
 *	  token then, so the task comes back when its ttl is over.
 *
 * IDENTIFICATION
 *	  src/cli/capture.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "capture.h"
#include "loop.h"
#include "output.h"

/* How long a captured task is the worker's, if it does not say. */
#define CAPTURE_TTL		(30 * CLI_SECOND)

/* How long a turn waits at most, and how long it may take beside that. */
#define TURN			(10 * CLI_SECOND)
#define WITHIN			(30 * CLI_SECOND)

/* How long to try to undo what may have been captured, before leaving. */
#define UNDO_WITHIN		(3 * CLI_SECOND)

/* Columns and parameters only, so it waits without a snapshot. */
static const char capture_sql[] =
"SELECT key, token, payload, priority, attempts, from_state, expires_at"
" FROM @dlock_task_capture(queue => $1, count => $2,"
" from_states => CASE WHEN $3 IS NULL THEN NULL ELSE ARRAY[$3] END, owner => $4, ttl => $5, wait => $6)";
static const char release_sql[] = "SELECT @dlock_task_release($1, $2, $3, $4)";

/* A capture under way. */
typedef struct CaptureTry
{
	Conn	   *conn;
	const Options *options;
	const char *queue;
	CliTime		end;			/* when the time is up */
	bool		was_answered;	/* it was not always a standby */
} CaptureTry;

/* What a step came to; CAPTURE_OURS with no rows: go on. */
#define GO_ON	CAPTURE_OURS

/* Give back the tasks of the connection's answer, as if they had not been captured. */
void
capture_give_back(Conn *conn, const char *queue)
{
	PGresult   *tasks = conn->answer;
	CliTime		end = clock_now() + UNDO_WITHIN;

	conn->answer = NULL;
	for (int row = 0; row < PQntuples(tasks); row++)
	{
		const char *key = PQgetvalue(tasks, row, CAPTURED_KEY);
		bool		done = false;
		const ConnParam params[] = {
			CONN_TEXT(queue), CONN_TEXT(key),
			CONN_BIGINT(PQgetvalue(tasks, row, CAPTURED_TOKEN)),
			CONN_TEXT(PQgetvalue(tasks, row, CAPTURED_STATE))
		};

		/* A cancel that was late for another statement may hit this one. */
		for (int attempt = 0; attempt < 3 && !done; attempt++)
		{
			CliTime		left = end - clock_now();

			if (conn->state != CONN_IDLE || left <= 0)
				break;
			done = conn_ask(conn, left, release_sql, 4, params) != NULL;
			if (!done && conn->error.trouble != CONN_INTERRUPTED)
				break;
		}
		if (!done)
			output_warning("task \"%s\" could not be given back, and comes back by itself", key);
	}
	PQclear(tasks);
}

/* A signal has come: stop waiting, and give back what was captured at that moment. */
static CaptureVerdict
undo(CaptureTry *try)
{
	Conn	   *conn = try->conn;
	CliTime		end = clock_now() + UNDO_WITHIN;

	conn_cancel(conn);
	while ((conn->state == CONN_BUSY || conn->canceller != 0) && clock_now() < end)
		(void) loop_wait(conn, end);
	if (conn->state == CONN_IDLE)
		capture_give_back(conn, try->queue);
	return CAPTURE_SIGNALLED;
}

/* Wait for a connection.  There has been one before. */
static CaptureVerdict
connect_again(CaptureTry *try, int *signal)
{
	Conn	   *conn = try->conn;

	while (conn->state != CONN_IDLE)
	{
		LoopEvent	event = loop_wait(conn, CLI_FOREVER);

		if (signals_is_fatal(event.signal))
		{
			*signal = event.signal;
			return CAPTURE_SIGNALLED;
		}
		if (event.conn == CONN_FAILED)
		{
			if (!conn_may_pass(conn, true) || clock_now() >= try->end)
				return CAPTURE_FAILED;
			output_info("%s; trying again", conn->error.message);
		}
	}
	return GO_ON;
}

static void
send_capture(CaptureTry *try, CliTime span)
{
	const Options *options = try->options;
	char		ttl[DURATION_SIZE];
	char		wait[DURATION_SIZE];
	char		count[16];
	const ConnParam params[] = {
		CONN_TEXT(try->queue), CONN_INT(count), CONN_TEXT(options->state), CONN_TEXT(options->owner),
		CONN_INTERVAL(duration_sql((options->ttl >= 0) ? options->ttl : CAPTURE_TTL, ttl)),
		CONN_INTERVAL(duration_sql(span, wait))
	};

	snprintf(count, sizeof(count), "%d", CLI_MAX(options->count, 1));
	conn_send(try->conn, span + WITHIN, capture_sql, 6, params);
}

/*
 * Write times as other commands do.  They come as "2026-01-31 12:00:00.25+00", without
 * zeros at the end.
 */
static void
write_times(PGresult *tasks)
{
	for (int row = 0; row < PQntuples(tasks); row++)
	{
		const char *time = PQgetvalue(tasks, row, CAPTURED_EXPIRES_AT);
		char		text[] = "YYYY-MM-DDTHH:MM:SS.000Z";
		size_t		whole = strlen("YYYY-MM-DDTHH:MM:SS");

		if (strlen(time) < whole)
			continue;
		memcpy(text, time, whole);
		text[10] = 'T';
		if (time[whole] == '.')
			memcpy(text + whole + 1, time + whole + 1, CLI_MIN(strspn(time + whole + 1, "0123456789"), 3));
		(void) PQsetvalue(tasks, row, CAPTURED_EXPIRES_AT, text, (int) strlen(text));
	}
}

/* What the server has answered. */
static CaptureVerdict
look_at_answer(CaptureTry *try)
{
	Conn	   *conn = try->conn;
	bool		has_time = clock_now() < try->end;

	try->was_answered = true;
	if (conn->answer == NULL && conn->error.trouble != CONN_INTERRUPTED)
		return CAPTURE_FAILED;
	if (conn->answer == NULL && has_time)
		return GO_ON;
	if (conn->answer == NULL)
		return (try->options->wait > 0) ? CAPTURE_NONE : CAPTURE_FAILED;
	write_times(conn->answer);
	return (PQntuples(conn->answer) > 0 || has_time) ? CAPTURE_OURS : CAPTURE_NONE;
}

/* One turn. */
static CaptureVerdict
ask_once(CaptureTry *try, int *signal)
{
	Conn	   *conn = try->conn;
	CliTime		left = CLI_MAX(try->end - clock_now(), 0);

	send_capture(try, try->was_answered ? CLI_MIN(left, TURN) : 0);
	for (;;)
	{
		LoopEvent	event = loop_wait(conn, CLI_FOREVER);

		if (signals_is_fatal(event.signal))
		{
			*signal = event.signal;
			return undo(try);
		}
		switch (event.conn)
		{
			case CONN_ANSWERED:
				return look_at_answer(try);
			case CONN_LATE:

				/*
				 * It may wait for a standby that is to have the capture, too:
				 * that is none.
				 */
				capture_give_back(conn, try->queue);
				conn_set_late(conn);
				return CAPTURE_FAILED;
			case CONN_FAILED:
				if (!conn_may_pass(conn, try->was_answered) || clock_now() >= try->end)
					return CAPTURE_FAILED;
				output_info("%s; connecting again", conn->error.message);
				return GO_ON;
			default:
				break;
		}
	}
}

/*
 * Capture tasks of a queue, over an idle connection, waiting for them as long as the
 * options say.  A connection that is lost meanwhile is made anew.
 */
CaptureVerdict
capture_tasks(Conn *conn, const Options *options, const char *queue, int *signal)
{
	CaptureTry	try = {
		.conn = conn,
		.options = options,
		.queue = queue,
		.end = clock_add(clock_now(), options->wait)
	};
	CaptureVerdict verdict;

	do
	{
		verdict = connect_again(&try, signal);
		if (verdict == GO_ON)
			verdict = ask_once(&try, signal);
	} while (verdict == GO_ON && PQntuples(conn->answer) == 0);
	return verdict;
}
