/*-------------------------------------------------------------------------
 *
 * cmd_task.c
 *	  dlock task capture: take tasks from a queue.
 *
 * NOTES
 *	  A wait is made of short statements: a call that waits for tasks has no place in a
 *	  queue to lose, and between two calls no snapshot is held and a pooler is free.
 *
 *	  A connection may break between a capture and its answer.  Nobody knows the
 *	  token then, so the task comes back when its ttl is over.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "loop.h"
#include "options.h"
#include "output.h"

/* How long a captured task is the worker's, if it does not say. */
#define CAPTURE_TTL		(30 * CLI_SECOND)

/* How long a statement waits at most, and how long it may take beside that. */
#define STATEMENT_WAIT	(10 * CLI_SECOND)
#define WITHIN			(30 * CLI_SECOND)

static const char capture_sql[] =
"SELECT key, token, payload, priority, attempts, from_state AS state, expires_at"
" FROM @dlock_task_capture(queue => $1, count => $2,"
" from_states => CASE WHEN $3 IS NULL THEN NULL ELSE ARRAY[$3] END, owner => $4, ttl => $5, wait => $6)";
static const char release_sql[] = "SELECT @dlock_task_release($1, $2, $3, $4)";

/* Columns of the answer. */
enum
{
	CAPTURED_KEY, CAPTURED_TOKEN, CAPTURED_PAYLOAD, CAPTURED_STATE = 5, CAPTURED_EXPIRES_AT
};

typedef struct Capture
{
	Ask			ask;
	const Options *options;
	const char *queue;
} Capture;

/* Give back the tasks of the answer, as if they had not been captured. */
static void
give_back(Ask *ask, CliTime end)
{
	Conn	   *conn = ask->conn;
	PGresult   *tasks = conn->answer;

	if (conn->state != CONN_IDLE)
		return;
	conn->answer = NULL;
	for (int row = 0; row < PQntuples(tasks); row++)
	{
		const char *key = PQgetvalue(tasks, row, CAPTURED_KEY);
		const ConnParam params[] = {
			CONN_TEXT(((Capture *) ask)->queue), CONN_TEXT(key),
			CONN_BIGINT(PQgetvalue(tasks, row, CAPTURED_TOKEN)),
			CONN_TEXT(PQgetvalue(tasks, row, CAPTURED_STATE))
		};

		if (conn->state != CONN_IDLE || !loop_insist(conn, end - clock_now(), release_sql, 4, params))
			output_warning("task \"%s\" could not be given back, and comes back by itself", key);
	}
	PQclear(tasks);
}

static void
send_capture(Ask *ask, CliTime span)
{
	const Options *options = ((Capture *) ask)->options;
	char		ttl[DURATION_SIZE];
	char		wait[DURATION_SIZE];
	char		count[16];
	const ConnParam params[] = {
		CONN_TEXT(((Capture *) ask)->queue), CONN_INT(count), CONN_TEXT(options->state), CONN_TEXT(options->owner),
		CONN_INTERVAL(duration_sql((options->ttl >= 0) ? options->ttl : CAPTURE_TTL, ttl)),
		CONN_INTERVAL(duration_sql(span, wait))
	};

	snprintf(count, sizeof(count), "%d", CLI_MAX(options->count, 1));
	conn_send(ask->conn, span + WITHIN, capture_sql, 6, params);
}

static AskVerdict
take_answer(Ask *ask)
{
	bool		has_time = clock_now() < ask->end;
	bool		is_error = ask->conn->answer == NULL;

	if (is_error && ask->conn->error.trouble != CONN_INTERRUPTED)
		return ASK_FAILED;
	if (PQntuples(ask->conn->answer) > 0)
		return ASK_GRANTED;
	if (has_time)
		return ASK_AGAIN;
	return (is_error && ((Capture *) ask)->options->wait == 0) ? ASK_FAILED : ASK_REFUSED;
}

static const AskKind task_kind = {STATEMENT_WAIT, 0, send_capture, NULL, take_answer, give_back};

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

/* Print objects, or a line each: key, token and payload, with a tab between them. */
static int
print_tasks(PGresult *tasks)
{
	PQExpBufferData lines;

	write_times(tasks);
	if (output_is_json())
		return rows_print(tasks, NULL, NULL);
	initPQExpBuffer(&lines);
	for (int row = 0; row < PQntuples(tasks); row++)
	{
		output_append_safe(&lines, PQgetvalue(tasks, row, CAPTURED_KEY));
		appendPQExpBuffer(&lines, "\t%s\t", PQgetvalue(tasks, row, CAPTURED_TOKEN));
		output_append_json(&lines, PQgetvalue(tasks, row, CAPTURED_PAYLOAD));
		appendPQExpBufferChar(&lines, '\n');
	}
	return output_print(&lines);
}

int
capture(const Options *options, char **arguments)
{
	Conn		conn;
	Capture		this = {
		.ask = {.kind = &task_kind,.conn = &conn,.was_up = true},
		.options = options,
		.queue = arguments[0]
	};
	int			code = CLI_EXIT_OK;

	conn_init(&conn, options->conninfo);
	if (!conn_open(&conn))
		code = conn_report(&conn);
	else
	{
		signals_catch();
		this.ask.end = clock_add(clock_now(), options->wait);
		switch (loop_ask(&this.ask))
		{
			case ASK_GRANTED:
				code = print_tasks(conn.answer);

				/* A task whose token is unknown must not stay captured. */
				if (code != CLI_EXIT_OK)
					give_back(&this.ask, clock_now() + ASK_UNDO_WITHIN);
				break;
			case ASK_REFUSED:
				code = options->refused_exit;
				output_refusal(code, "queue \"%s\" has no task to capture", arguments[0]);
				break;
			case ASK_FAILED:
				code = conn_report(&conn);
				break;
			default:
				break;
		}
	}
	conn_close(&conn);
	return (this.ask.signal != 0) ? signals_die(this.ask.signal) : code;
}
