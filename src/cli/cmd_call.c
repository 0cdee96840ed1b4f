/*-------------------------------------------------------------------------
 *
 * cmd_call.c
 *	  Commands that call one function: dlock renew, release, check and
 *	  force-release, and task put, finish, fail and list.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "conn.h"
#include "options.h"
#include "output.h"

#define WITHIN			(30 * CLI_SECOND)

/* Commands whose last argument is a token. */
#define TAKE_TOKEN		(CMD_RENEW | CMD_RELEASE | CMD_CHECK | CMD_FINISH | CMD_FAIL)

/* Those that name a lease by its token, or by --owner instead. */
#define NAME_LEASE		(CMD_RENEW | CMD_RELEASE | CMD_CHECK)

/* The parameters of all statements. */
#define NAME			"$1"
#define KEY				"$2"
#define TOKEN			"$3"
#define OWNER			"$4"
#define TTL				"$5"
#define STATE			"$6"
#define DELAY			"$7"
#define TEXT			"$8"	/* an error, or a reason */
#define PAYLOAD			"$9"
#define PRIORITY		"$10"

#define TASK			"SELECT " NAME " AS queue, " KEY " AS key, "

static const struct
{
	unsigned	command;
	const char *sql;
	const char *by_owner;		/* NULL: the same */
}			calls[] =

{
	{
		CMD_RENEW,
		"SELECT " NAME " AS name, @dlock_renew_token(" NAME ", " TOKEN ", " TTL ") AS renewed",
		"SELECT " NAME " AS name, @dlock_renew(" NAME ", " OWNER ", " TTL ") AS renewed"
	},
	{
		CMD_RELEASE,
		"SELECT " NAME " AS name, @dlock_release_token(" NAME ", " TOKEN ") AS released",
		"SELECT " NAME " AS name, @dlock_release(" NAME ", " OWNER ") AS released"
	},
	{CMD_CHECK, "SELECT " NAME " AS name, @dlock_check(" NAME ", " TOKEN ") AS held", NULL},
	{CMD_FORCE, "SELECT " NAME " AS name, @dlock_force_release(" NAME ", " TEXT ") AS released", NULL},
	{
		CMD_PUT,
		TASK "@dlock_task_put(" NAME ", " KEY ", " PAYLOAD ", " PRIORITY ", " STATE ", " DELAY ") AS put",
		NULL
	},
	{CMD_FINISH, TASK "@dlock_task_finish(" NAME ", " KEY ", " TOKEN ", " STATE ") AS finished", NULL},
	{
		CMD_FAIL,
		TASK "@dlock_task_fail(" NAME ", " KEY ", " TOKEN ", " STATE ", " TEXT ", " DELAY ") AS state",
		NULL
	},
	{
		CMD_LIST,
		"SELECT queue, key, state, priority, attempts, token, owner,"
		" " UTC("expires_at") " AS expires_at, " UTC("ready_at") " AS ready_at,"
		" " UTC("created_at") " AS created_at, " UTC("changed_at") " AS changed_at,"
		" " UTC("finished_at") " AS finished_at, error, payload FROM @dlock_tasks t"
		" WHERE (" NAME " IS NULL OR queue OPERATOR(pg_catalog.=) " NAME ")"
		" AND (" STATE " IS NULL OR state OPERATOR(pg_catalog.=) " STATE ")"
		" ORDER BY queue COLLATE \"C\", t.finished_at NULLS FIRST, priority, t.created_at, key COLLATE \"C\"",
		NULL
	},
};

static const char *const task_titles[] = {
	"QUEUE", "KEY", "STATE", "PRIORITY", "ATTEMPTS", "TOKEN", "OWNER",[12] = "ERROR", "PAYLOAD"
};

/* Is it said which lease, or for which reason?  False after a message. */
static bool
check_arguments(const Options *options, const char *name, const char *token)
{
	unsigned	bit = options->command->bit;

	if ((bit & NAME_LEASE) != 0 && (token != NULL) == (options->owner != NULL))
		output_error(CLI_EXIT_USAGE, "either a token or --owner has to tell which lease on \"%s\" to use", name);
	else if (token != NULL && (*token == '\0' || token[strspn(token, "0123456789")] != '\0'))
		output_error(CLI_EXIT_USAGE, "\"%s\" is not a token", token);
	else if (bit == CMD_FORCE && options->reason == NULL)
		output_error(CLI_EXIT_USAGE, "no --reason is given");
	else
		return true;
	return false;
}

/* Print the answer.  Without --json, whether something was done is told by the exit code alone. */
static int
print_answer(const Conn *conn, const Options *options, const char *name)
{
	unsigned	bit = options->command->bit;
	int			code = CLI_EXIT_OK;

	if (output_is_json() || bit == CMD_LIST)
		code = rows_print(conn->answer, NULL, task_titles);
	else if (bit == CMD_FORCE || bit == CMD_FAIL)
	{
		PQExpBufferData line;

		initPQExpBuffer(&line);
		output_append_safe(&line, conn_value(conn, PQnfields(conn->answer) - 1));
		appendPQExpBufferChar(&line, '\n');
		code = output_print(&line);
	}
	if ((bit & NAME_LEASE) != 0 && !conn_is_true(conn, 1))
	{
		code = CLI_EXIT_LOST;
		output_refusal(code, "the lease on \"%s\" is not held (any more)", name);
	}
	return code;
}

int
call_function(const Options *options, char **arguments)
{
	unsigned	bit = options->command->bit;
	const char *name = arguments[0];
	const char *second = (name != NULL) ? arguments[1] : NULL;
	const char *token = (bit & NAME_LEASE) != 0 ? second : (bit & TAKE_TOKEN) != 0 ? arguments[2] : NULL;
	char		ttl[DURATION_SIZE];
	char		delay[DURATION_SIZE];
	const ConnParam params[] = {
		CONN_TEXT(name), CONN_TEXT(second), CONN_BIGINT(token), CONN_TEXT(options->owner),
		CONN_INTERVAL((options->ttl >= 0) ? duration_sql(options->ttl, ttl) : NULL),
		CONN_TEXT(options->state),
		CONN_INTERVAL((options->delay >= 0) ? duration_sql(options->delay, delay) : NULL),
		CONN_TEXT((bit == CMD_FORCE) ? options->reason : options->error),
		CONN_JSONB(options->payload),
		CONN_INT((options->priority != NULL) ? options->priority : "0")
	};
	const char *sql = NULL;
	Conn		conn;
	int			code;

	if (!check_arguments(options, name, token))
		return options_usage(options->command);
	for (size_t i = 0; i < CLI_LENGTH(calls); i++)
	{
		if (calls[i].command == bit)
			sql = (options->owner != NULL) ? calls[i].by_owner : calls[i].sql;
	}
	conn_init(&conn, options->conninfo);
	if (conn_open(&conn) && conn_ask(&conn, WITHIN, sql, (int) CLI_LENGTH(params), params) != NULL)
		code = print_answer(&conn, options, name);
	else
		code = conn_report(&conn);
	conn_close(&conn);
	return code;
}
