/*-------------------------------------------------------------------------
 *
 * cmd_watch.c
 *	  dlock watch and wait, and elect --observe: the holder of a lock, and each change.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "loop.h"
#include "options.h"
#include "output.h"

#define SLICE		(300 * CLI_SECOND)
#define WITHIN		(10 * CLI_SECOND)

#define WATCH(held) \
	"SELECT " UTC("pg_catalog.clock_timestamp()") " AS time, $1 AS name, token IS NOT NULL AS " held "," \
	" token, owner, mode, " UTC("granted_at") " AS granted_at, " UTC("expires_at") " AS expires_at, payload" \
	" FROM @dlock_watch($1, $2, $3)"

/* Its columns. */
enum
{
	HOLDER_TIME, HOLDER_TOKEN = 3, HOLDER_OWNER, HOLDER_PAYLOAD = 8
};

typedef struct Watch
{
	Ask			ask;
	Conn		conn;
	const char *sql;
	const char *name;
	bool		was_told;		/* of the first holder, or that there is none */
	char	   *seen;			/* its token; NULL: none */
} Watch;

static void
send_watch(Ask *ask, CliTime span)
{
	const Watch *watch = (Watch *) ask;
	char		wait[DURATION_SIZE];
	const ConnParam params[] = {
		CONN_TEXT(watch->name), CONN_BIGINT(watch->seen), CONN_INTERVAL(duration_sql(span, wait))
	};

	conn_send(ask->conn, span + WITHIN, watch->sql, 3, params);
}

/* Is it another holder? */
static AskVerdict
take_answer(Ask *ask)
{
	Watch	   *watch = (Watch *) ask;
	const char *token = (ask->conn->answer != NULL) ? conn_value(ask->conn, HOLDER_TOKEN) : NULL;
	bool		is_same = watch->was_told &&
		((token == NULL || watch->seen == NULL) ? token == watch->seen : strcmp(token, watch->seen) == 0);

	if (ask->conn->answer == NULL && ask->conn->error.trouble != CONN_INTERRUPTED)
		return ASK_FAILED;
	if (ask->conn->answer == NULL || is_same)
		return (clock_now() < ask->end) ? ASK_AGAIN : ASK_REFUSED;
	watch->was_told = true;
	free(watch->seen);
	watch->seen = text_copy(token);
	return ASK_GRANTED;
}

/* A statement that runs for long holds back vacuum, so there is one after another. */
static const AskKind holder_kind = {SLICE, 0, send_watch, NULL, take_answer, NULL};

static void
begin(Watch *watch, const char *sql, const Options *options, const char *name)
{
	memset(watch, 0, sizeof(*watch));
	conn_init(&watch->conn, options->conninfo);
	watch->sql = sql;
	watch->name = name;
	watch->ask.kind = &holder_kind;
	watch->ask.conn = &watch->conn;
	watch->ask.end = clock_add(clock_now(), options->wait);
}

/* Returns an exit code; "code", unless something has failed. */
static int
end(Watch *watch, AskVerdict verdict, int code)
{
	if (verdict == ASK_FAILED)
		code = conn_report(&watch->conn);
	conn_close(&watch->conn);
	free(watch->seen);
	return code;
}

/* ---- wait ---- */

int
wait_free(const Options *options, char **arguments)
{
	Watch		watch;
	AskVerdict	verdict;
	int			code = CLI_EXIT_OK;

	begin(&watch, WATCH("held"), options, arguments[0]);
	do
		verdict = loop_ask(&watch.ask);
	while (verdict == ASK_GRANTED && watch.seen != NULL);
	if (verdict == ASK_REFUSED)
	{
		code = options->refused_exit;
		output_refusal(code, "lock \"%s\" is still held", arguments[0]);
	}
	return end(&watch, verdict, code);
}

/* ---- watch ---- */

/* Print the holder of the lock, as "held", or "nobody".  Returns an exit code. */
static int
print_holder(const Watch *watch, const char *held, const char *nobody)
{
	const Conn *conn = &watch->conn;
	const char *now = conn_value(conn, HOLDER_TIME);
	const char *token = conn_value(conn, HOLDER_TOKEN);
	const char *payload = conn_value(conn, HOLDER_PAYLOAD);
	PQExpBufferData line;

	if (output_is_json())
		return rows_print(conn->answer, NULL, NULL);
	initPQExpBuffer(&line);
	if (token == NULL)
		appendPQExpBuffer(&line, "%s  %s\n", now, nobody);
	else
	{
		appendPQExpBuffer(&line, "%s  %s  %s  ", now, held, token);
		output_append_safe(&line, conn_value(conn, HOLDER_OWNER));
		appendPQExpBufferStr(&line, (payload != NULL) ? "  " : "");
		output_append_safe(&line, (payload != NULL) ? payload : "");
		appendPQExpBufferChar(&line, '\n');
	}
	return output_print(&line);
}

int
watch_holder(const Options *options, char **arguments)
{
	Watch		watch;
	AskVerdict	verdict = ASK_GRANTED;
	int			left = options->count;
	int			code = CLI_EXIT_OK;

	begin(&watch, WATCH("held"), options, arguments[0]);
	while (left-- != 0 && code == CLI_EXIT_OK && (verdict = loop_ask(&watch.ask)) == ASK_GRANTED)
		code = print_holder(&watch, "held", "free");
	return end(&watch, verdict, code);
}

/* dlock elect --observe: until --wait is over; a refusal if there is no leader then. */
int
watch_leader(const Options *options, char **arguments)
{
	Watch		watch;
	AskVerdict	verdict = ASK_GRANTED;
	int			code = CLI_EXIT_OK;

	begin(&watch, WATCH("leader"), options, arguments[0]);
	while (code == CLI_EXIT_OK && (verdict = loop_ask(&watch.ask)) == ASK_GRANTED)
		code = print_holder(&watch, "leader", "nobody");
	if (verdict == ASK_REFUSED && watch.seen == NULL)
	{
		code = options->refused_exit;
		output_refusal(code, "nobody leads \"%s\"", arguments[0]);
	}
	return end(&watch, verdict, code);
}
