/*-------------------------------------------------------------------------
 *
 * cmd_task.c
 *	  dlock task put, capture, finish, fail and list: queues of work.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_task.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>

#include "capture.h"
#include "options.h"
#include "conn.h"
#include "output.h"
#include "loop.h"

#define WITHIN	(30 * CLI_SECOND)

/* What has been done to a task, in JSON: the key of the answer, which is JSON or text. */
typedef struct TaskAnswer
{
	const char *key;
	bool		raw;
} TaskAnswer;

/* Print what was answered, if "answer" is not NULL and --json was given. */
static int
tell(const Conn *conn, const TaskAnswer *answer, char **argv)
{
	const char *value = conn_value(conn, 0);
	Text		line;
	int			code;

	text_init(&line);
	if (output_is_json())
	{
		output_json_begin(&line);
		output_json_text(&line, "queue", argv[0]);
		output_json_text(&line, "key", argv[1]);
		if (answer->raw)
			output_json_raw(&line, answer->key, conn_is_true(conn, 0) ? "true" : "false");
		else
			output_json_text(&line, answer->key, value);
		output_json_end(&line);
	}
	else if (!answer->raw)
	{
		output_append_safe(&line, value);
		text_add_char(&line, '\n');
	}
	code = output_print(line.data);
	text_free(&line);
	return code;
}

/* Ask, and tell the answer.  Returns an exit code. */
static int
ask_and_tell(const Options *options, const char *sql, int count, const ConnParam *params,
			 const TaskAnswer *answer, char **argv)
{
	Conn		conn;
	int			code;

	conn_init(&conn, options->conninfo);
	if (conn_open(&conn) && conn_ask(&conn, WITHIN, sql, count, params) != NULL)
		code = tell(&conn, answer, argv);
	else
		code = conn_report(&conn);
	conn_close(&conn);
	return code;
}

/* The delay that was asked for; NULL: none. */
static const char *
delay_sql(const Options *options, char *buffer)
{
	return (options->delay >= 0) ? duration_sql(options->delay, buffer) : NULL;
}

/* ---- put ---- */

static int
put(const Options *options, int argc, char **argv)
{
	static const TaskAnswer answer = {"put", true};
	char		delay[DURATION_SIZE];
	const ConnParam params[] = {
		CONN_TEXT(argv[0]), CONN_TEXT(argv[1]), CONN_JSONB(options->payload),
		CONN_INT((options->priority != NULL) ? options->priority : "0"),
		CONN_TEXT(options->state), CONN_INTERVAL(delay_sql(options, delay))
	};

	(void) argc;
	return ask_and_tell(options, "SELECT @dlock_task_put($1, $2, $3, $4, $5, $6)", 6, params, &answer, argv);
}

const Command cmd_task_put = {
	.name = "task put",
	.bit = CMD_PUT,
	.arguments = "QUEUE KEY",
	.summary = "put a task into a queue",
	.text =
	"Puts task KEY into QUEUE, which \"SELECT dlock_queue_create('QUEUE')\" makes.\n"
	"If the key is there already nothing changes; --json tells.\n",
	.least = 2,
	.most = 2,
	.run = put
};

/* ---- capture ---- */

static const RowsColumn captured_columns[] = {
	{"key", NULL, false}, {"token", NULL, true}, {"payload", NULL, true},
	{"priority", NULL, true}, {"attempts", NULL, true}, {"state", NULL, false},
	{"expires_at", NULL, false}
};

/* A line each: key, token and payload, with a tab between them. */
static int
print_captured(const Conn *conn)
{
	Text		lines;
	int			code;

	text_init(&lines);
	for (int row = 0; row < PQntuples(conn->answer); row++)
	{
		for (int column = 0; column < 3; column++)
		{
			if (column > 0)
				text_add_char(&lines, '\t');
			if (column < 2)
				output_append_safe(&lines, PQgetvalue(conn->answer, row, column));
			else
				output_append_json(&lines, PQgetvalue(conn->answer, row, column));
		}
		text_add_char(&lines, '\n');
	}
	code = output_print(lines.data);
	text_free(&lines);
	return code;
}

static int
print_objects(const Conn *conn)
{
	rows_print(conn->answer, NULL, captured_columns, (int) CLI_LENGTH(captured_columns));
	return output_finish();
}

static int
capture(const Options *options, int argc, char **argv)
{
	Conn		conn;
	int			signal = 0;
	int			code = CLI_EXIT_OK;

	(void) argc;
	conn_init(&conn, options->conninfo);
	if (!conn_open(&conn))
		code = conn_report(&conn);
	else
	{
		signals_catch();
		switch (capture_tasks(&conn, options, argv[0], &signal))
		{
			case CAPTURE_OURS:
				code = output_is_json() ? print_objects(&conn) : print_captured(&conn);

				/* What nobody learns the token of must not stay captured. */
				if (code != CLI_EXIT_OK)
					capture_give_back(&conn, argv[0]);
				break;
			case CAPTURE_NONE:
				code = options->refused_exit;
				output_refusal(code, "queue \"%s\" has no task to capture", argv[0]);
				break;
			case CAPTURE_SIGNALLED:
				break;
			case CAPTURE_FAILED:
				code = conn_report(&conn);
				break;
		}
	}
	conn_close(&conn);
	return (signal != 0) ? signals_die(signal) : code;
}

const Command cmd_task_capture = {
	.name = "task capture",
	.bit = CMD_CAPTURE,
	.arguments = "QUEUE",
	.summary = "take tasks from a queue, to work on them",
	.text =
	"Captures the first task of QUEUE and prints its key, its token and its payload,\n"
	"with a tab between them.  It is this worker's until --ttl has passed; then it is\n"
	"put back, and its token counts no more.  Exits with 75 if there is no task, with\n"
	"--wait=SPAN if there is none in this time.\n",
	.least = 1,
	.most = 1,
	.run = capture
};

/* ---- finish and fail ---- */

static int
finish(const Options *options, int argc, char **argv)
{
	static const TaskAnswer answer = {"finished", true};
	const ConnParam params[] = {
		CONN_TEXT(argv[0]), CONN_TEXT(argv[1]), CONN_BIGINT(argv[2]), CONN_TEXT(options->state)
	};

	(void) argc;
	return ask_and_tell(options, "SELECT @dlock_task_finish($1, $2, $3, $4)", 4, params, &answer, argv);
}

const Command cmd_task_finish = {
	.name = "task finish",
	.bit = CMD_FINISH,
	.arguments = "QUEUE KEY TOKEN",
	.summary = "end a task that was captured",
	.text =
	"Says that the task that was captured with this token is done.  Exits with 76 if\n"
	"it is another worker's meanwhile, or nobody's.\n",
	.least = 3,
	.most = 3,
	.run = finish
};

static int
fail(const Options *options, int argc, char **argv)
{
	static const TaskAnswer answer = {"state", false};
	char		delay[DURATION_SIZE];
	const ConnParam params[] = {
		CONN_TEXT(argv[0]), CONN_TEXT(argv[1]), CONN_BIGINT(argv[2]), CONN_TEXT(options->state),
		CONN_TEXT(options->error), CONN_INTERVAL(delay_sql(options, delay))
	};

	(void) argc;
	return ask_and_tell(options, "SELECT @dlock_task_fail($1, $2, $3, $4, $5, $6)", 6, params, &answer, argv);
}

const Command cmd_task_fail = {
	.name = "task fail",
	.bit = CMD_FAIL,
	.arguments = "QUEUE KEY TOKEN",
	.summary = "give a captured task back, as failed",
	.text =
	"Says that the task that was captured with this token has failed, and prints its\n"
	"new state: that before, or that of parked tasks if the queue allows no more\n"
	"attempts.\n"
	"Exits with 76 if it is another worker's meanwhile, or nobody's.\n",
	.least = 3,
	.most = 3,
	.run = fail
};

/* ---- list ---- */

static const RowsColumn task_columns[] = {
	{"queue", "QUEUE", false}, {"key", "KEY", false}, {"state", "STATE", false},
	{"priority", "PRIORITY", true}, {"attempts", "ATTEMPTS", true}, {"token", "TOKEN", true},
	{"owner", "OWNER", false}, {"expires_at", NULL, false}, {"ready_at", NULL, false},
	{"created_at", NULL, false}, {"changed_at", NULL, false}, {"finished_at", NULL, false},
	{"error", "ERROR", false}, {"payload", "PAYLOAD", true}
};
static const char list_sql[] =
"SELECT queue, key, state, priority, attempts, token, owner,"
" " UTC("expires_at") ", " UTC("ready_at") ", " UTC("created_at") ", " UTC("changed_at") ", " UTC("finished_at") ","
" error, payload FROM @dlock_tasks"
" WHERE ($1 IS NULL OR queue OPERATOR(pg_catalog.=) $1) AND ($2 IS NULL OR state OPERATOR(pg_catalog.=) $2)"
" ORDER BY queue COLLATE \"C\", finished_at NULLS FIRST, priority, created_at, key COLLATE \"C\"";

static int
list(const Options *options, int argc, char **argv)
{
	const ConnParam params[] = {CONN_TEXT((argc > 0) ? argv[0] : NULL), CONN_TEXT(options->state)};
	Conn		conn;
	int			code;

	conn_init(&conn, options->conninfo);
	if (conn_open(&conn) && conn_ask(&conn, WITHIN, list_sql, 2, params) != NULL)
	{
		rows_print(conn.answer, NULL, task_columns, (int) CLI_LENGTH(task_columns));
		code = output_finish();
	}
	else
		code = conn_report(&conn);
	conn_close(&conn);
	return code;
}

const Command cmd_task_list = {
	.name = "task list",
	.bit = CMD_LIST,
	.arguments = "[QUEUE]",
	.summary = "show the tasks of queues",
	.text =
	"Shows the tasks of all queues that this role may use, or of one; those that are\n"
	"finished come last.\n",
	.least = 0,
	.most = 1,
	.run = list
};
