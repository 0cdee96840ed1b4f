/*-------------------------------------------------------------------------
 *
 * cmd_watch.c
 *	  dlock watch and wait, and elect --observe: who holds a lock, and each change.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_watch.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "loop.h"
#include "options.h"
#include "output.h"

/* A statement that runs for long holds back vacuum. */
#define SLICE		(300 * CLI_SECOND)
#define WITHIN		(10 * CLI_SECOND)

static const char watch_sql[] =
"SELECT token, owner, mode, " UTC("granted_at") ", " UTC("expires_at") ", payload"
" FROM @dlock_watch($1, $2, $3)";

/* Its columns. */
enum
{
	HOLDER_TOKEN, HOLDER_OWNER, HOLDER_MODE, HOLDER_GRANTED_AT, HOLDER_EXPIRES_AT, HOLDER_PAYLOAD
};

typedef struct Watch
{
	Conn		conn;
	const char *name;
	CliTime		until;
	bool		was_told;		/* of the first holder, or that there is none */
	char	   *seen;			/* its token; NULL: nobody */
} Watch;

typedef enum WatchVerdict
{
	WATCH_CHANGED,				/* the connection's answer is the holder */
	WATCH_TIMED_OUT,
	WATCH_FAILED				/* see the connection's error */
} WatchVerdict;

static void
begin(Watch *watch, const Options *options, const char *name)
{
	memset(watch, 0, sizeof(*watch));
	conn_init(&watch->conn, options->conninfo);
	watch->name = name;
	watch->until = clock_add(clock_now(), options->wait);
}

/* Returns an exit code; "code", unless something has failed. */
static int
end(Watch *watch, WatchVerdict verdict, int code)
{
	if (verdict == WATCH_FAILED)
		code = conn_report(&watch->conn);
	conn_close(&watch->conn);
	free(watch->seen);
	return code;
}

/* A connection that is lost is made anew, but there has to be one at first. */
static bool
connect_again(Watch *watch)
{
	Conn	   *conn = &watch->conn;

	if (!watch->was_told && conn->schema == NULL && !conn_open(conn))
		return false;
	while (conn->state != CONN_IDLE && clock_now() < watch->until)
	{
		if (loop_wait(conn, watch->until).conn == CONN_FAILED && !conn_may_pass(conn, true))
			return false;
	}
	return conn->state == CONN_IDLE;
}

static bool
ask(Watch *watch)
{
	char		wait[DURATION_SIZE];
	CliTime		left = CLI_MAX(watch->until - clock_now(), 0);
	CliTime		slice = watch->was_told ? CLI_MIN(left, SLICE) : 0;
	const ConnParam params[] = {
		CONN_TEXT(watch->name), CONN_BIGINT(watch->seen), CONN_INTERVAL(duration_sql(slice, wait))
	};

	return conn_ask(&watch->conn, slice + WITHIN, watch_sql, 3, params) != NULL;
}

/*
 * Wait for the next holder, the first one at first.  If there is no connection when the
 * time has come, that is a failure.
 */
static WatchVerdict
next_holder(Watch *watch)
{
	Conn	   *conn = &watch->conn;
	const char *token;

	while (!watch->was_told || clock_now() < watch->until)
	{
		if (!connect_again(watch))
			return WATCH_FAILED;
		if (!ask(watch))
		{
			if (conn_may_pass(conn, true))
				output_warning("the server cannot be reached, trying again: %s", conn->error.message);
			else if (conn->error.trouble != CONN_INTERRUPTED)
				return WATCH_FAILED;
			continue;
		}
		token = conn_value(conn, HOLDER_TOKEN);
		if (watch->was_told &&
			((token == NULL || watch->seen == NULL) ? token == watch->seen : strcmp(token, watch->seen) == 0))
			continue;
		watch->was_told = true;
		free(watch->seen);
		watch->seen = text_copy(token);
		return WATCH_CHANGED;
	}
	return (conn->state == CONN_IDLE) ? WATCH_TIMED_OUT : WATCH_FAILED;
}

/* ---- wait ---- */

static int
run_wait(const Options *options, int argc, char **argv)
{
	Watch		watch;
	WatchVerdict verdict;
	int			code = CLI_EXIT_OK;

	(void) argc;
	begin(&watch, options, argv[0]);
	do
		verdict = next_holder(&watch);
	while (verdict == WATCH_CHANGED && watch.seen != NULL);
	if (verdict == WATCH_TIMED_OUT)
	{
		code = options->refused_exit;
		output_refusal(code, "lock \"%s\" is still held", argv[0]);
	}
	return end(&watch, verdict, code);
}

const Command cmd_wait = {
	.name = "wait",
	.bit = CMD_WAIT,
	.arguments = "NAME",
	.summary = "wait until nobody holds a lock",
	.text =
	"Waits until nobody holds lock NAME, without acquiring it or standing in its\n"
	"queue.  Exits with 75 if that has not come about within --wait.\n",
	.least = 1,
	.most = 1,
	.run = run_wait
};

/* ---- watch ---- */

/* Print the holder of the lock, as "held", or "nobody".  Returns an exit code. */
static int
print_holder(const Watch *watch, const char *held, const char *nobody)
{
	const Conn *conn = &watch->conn;
	const char *token = conn_value(conn, HOLDER_TOKEN);
	const char *payload = conn_value(conn, HOLDER_PAYLOAD);
	char		now[DURATION_SIZE];
	Text		line;
	int			code;

	clock_print_utc(0, now);
	text_init(&line);
	if (output_is_json())
	{
		output_json_begin(&line);
		output_json_text(&line, "time", now);
		output_json_text(&line, "name", watch->name);
		output_json_raw(&line, held, (token != NULL) ? "true" : "false");
		output_json_raw(&line, "token", token);
		output_json_text(&line, "owner", conn_value(conn, HOLDER_OWNER));
		output_json_text(&line, "mode", conn_value(conn, HOLDER_MODE));
		output_json_text(&line, "granted_at", conn_value(conn, HOLDER_GRANTED_AT));
		output_json_text(&line, "expires_at", conn_value(conn, HOLDER_EXPIRES_AT));
		output_json_raw(&line, "payload", payload);
		output_json_end(&line);
	}
	else if (token == NULL)
		text_addf(&line, "%s  %s\n", now, nobody);
	else
	{
		text_addf(&line, "%s  %s  %s  ", now, held, token);
		output_append_safe(&line, conn_value(conn, HOLDER_OWNER));
		text_add(&line, (payload != NULL) ? "  " : "");
		output_append_safe(&line, (payload != NULL) ? payload : "");
		text_add_char(&line, '\n');
	}
	code = output_print(line.data);
	text_free(&line);
	return code;
}

static int
run_watch(const Options *options, int argc, char **argv)
{
	Watch		watch;
	WatchVerdict verdict = WATCH_CHANGED;
	int			left = options->count;
	int			code = CLI_EXIT_OK;

	(void) argc;
	begin(&watch, options, argv[0]);
	while (left-- != 0 && code == CLI_EXIT_OK && (verdict = next_holder(&watch)) == WATCH_CHANGED)
		code = print_holder(&watch, "held", "free");
	return end(&watch, verdict, code);
}

/* dlock elect --observe: until --wait is over; a refusal if there is no leader then. */
int
watch_leader(const Options *options, const char *name)
{
	Watch		watch;
	WatchVerdict verdict = WATCH_CHANGED;
	int			code = CLI_EXIT_OK;

	begin(&watch, options, name);
	while (code == CLI_EXIT_OK && (verdict = next_holder(&watch)) == WATCH_CHANGED)
		code = print_holder(&watch, "leader", "nobody");
	if (verdict == WATCH_TIMED_OUT && watch.seen == NULL)
	{
		code = options->refused_exit;
		output_refusal(code, "nobody leads \"%s\"", name);
	}
	return end(&watch, verdict, code);
}

const Command cmd_watch = {
	.name = "watch",
	.bit = CMD_WATCH,
	.arguments = "NAME",
	.summary = "print each change of the holder of a lock",
	.text =
	"Prints who holds lock NAME, and a line more each time that this changes: the\n"
	"time, the token, the owner and the payload, or \"free\".  Of several holders it is\n"
	"the one that came last.\n",
	.least = 1,
	.most = 1,
	.run = run_watch
};
