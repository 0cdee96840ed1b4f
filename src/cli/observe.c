/*-------------------------------------------------------------------------
 *
 * observe.c
 *	  Watching who holds a lock.
 *
 * IDENTIFICATION
 *	  src/cli/observe.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "loop.h"
#include "observe.h"
#include "output.h"

/* A statement that runs for long holds back vacuum. */
#define SLICE		(300 * CLI_SECOND)
#define WITHIN		(10 * CLI_SECOND)

#define UTC(t) \
	"pg_catalog.to_char(pg_catalog.timezone('UTC', " t "), 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')"

static const char watch_sql[] =
"SELECT token, owner, mode, " UTC("granted_at") ", " UTC("expires_at") ", payload"
" FROM @dlock_watch($1, $2, $3)";

/* Wait for the connection to do something, or the end of the time. */
static ConnEvent
wait_for_event(Conn *conn, CliTime until)
{
	ConnEvent	event = CONN_NOTHING;

	while (event == CONN_NOTHING && clock_now() < until)
		event = loop_wait(conn, until).conn;
	return event;
}

/* A connection, made anew if it was lost; but there has to be one at first. */
static bool
connect_again(Conn *conn, CliTime until)
{
	while (conn->state != CONN_IDLE && clock_now() < until)
	{
		if (wait_for_event(conn, until) == CONN_FAILED && conn->error.trouble > CONN_STARTING)
			return false;
	}
	return true;
}

static void
send_watch(Conn *conn, const char *name, const char *seen, CliTime slice)
{
	char		wait[DURATION_SIZE];
	const ConnParam params[] = {
		CONN_TEXT(name), CONN_BIGINT(seen), CONN_INTERVAL(duration_sql(slice, wait))
	};

	conn_send(conn, slice + WITHIN, watch_sql, 3, params);
}

static bool
is_same(const char *a, const char *b)
{
	return (a == NULL || b == NULL) ? a == b : strcmp(a, b) == 0;
}

/*
 * Tell who holds a lock, and each change of that, until "tell" has had enough or
 * the time has come.  A connection that is lost is made anew; if there is none when
 * the time has come, that is a failure.
 */
ObserveVerdict
observe(Conn *conn, const char *name, CliTime until, ObserveTell tell, void *arg)
{
	char	   *seen = NULL;
	bool		first = true;
	ObserveVerdict verdict = OBSERVE_TIMED_OUT;

	if (!conn_open(conn))
		return OBSERVE_FAILED;
	while (first || clock_now() < until)
	{
		CliTime		left = CLI_MAX(until - clock_now(), 0);
		ConnEvent	event;
		ObserveHolder holder;
		bool		again;

		if (!connect_again(conn, until))
		{
			verdict = OBSERVE_FAILED;
			break;
		}
		if (conn->state != CONN_IDLE)
			break;				/* after a failure */
		send_watch(conn, name, seen, first ? 0 : CLI_MIN(left, SLICE));
		event = wait_for_event(conn, CLI_FOREVER);
		if (event == CONN_FAILED || event == CONN_LATE)
		{
			output_warning("the server cannot be reached, trying again: %s", conn->error.message);
			verdict = OBSERVE_FAILED;
			continue;
		}
		if (conn->answer == NULL)
		{
			if (conn->error.trouble == CONN_INTERRUPTED)
				continue;
			verdict = OBSERVE_FAILED;
			break;
		}

		verdict = OBSERVE_TIMED_OUT;
		holder.token = conn_value(conn, 0);
		holder.owner = conn_value(conn, 1);
		holder.mode = conn_value(conn, 2);
		holder.granted_at = conn_value(conn, 3);
		holder.expires_at = conn_value(conn, 4);
		holder.payload = conn_value(conn, 5);
		if (!first && is_same(holder.token, seen))
			continue;
		first = false;
		free(seen);
		seen = text_copy(holder.token);
		again = tell(&holder, arg);
		if (!again)
		{
			verdict = OBSERVE_ENOUGH;
			break;
		}
	}
	free(seen);
	return verdict;
}

/* ---- printing ---- */

typedef struct ObservePrinter
{
	const char *name;
	const char *held;			/* what a holder is called */
	const char *nobody;
	int			left;			/* lines; negative: no limit */
	int			code;
} ObservePrinter;

/* The time by the wall clock, in UTC. */
static void
print_now(char *text, size_t size)
{
	struct timespec now;
	struct tm	utc;
	char		seconds[32];

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &utc);
	strftime(seconds, sizeof(seconds), "%Y-%m-%dT%H:%M:%S", &utc);
	snprintf(text, size, "%s.%03dZ", seconds, (int) (now.tv_nsec / 1000000));
}

static bool
print_holder(const ObserveHolder *holder, void *arg)
{
	ObservePrinter *printer = arg;
	char		now[40];
	Text		line;

	print_now(now, sizeof(now));
	text_init(&line);
	if (output_is_json())
	{
		output_json_begin(&line);
		output_json_text(&line, "time", now);
		output_json_text(&line, "name", printer->name);
		output_json_raw(&line, printer->held, (holder->token != NULL) ? "true" : "false");
		output_json_raw(&line, "token", holder->token);
		output_json_text(&line, "owner", holder->owner);
		output_json_text(&line, "mode", holder->mode);
		output_json_text(&line, "granted_at", holder->granted_at);
		output_json_text(&line, "expires_at", holder->expires_at);
		output_json_raw(&line, "payload", holder->payload);
		output_json_end(&line);
	}
	else if (holder->token == NULL)
		text_addf(&line, "%s  %s\n", now, printer->nobody);
	else
	{
		text_addf(&line, "%s  %s  %s  ", now, printer->held, holder->token);
		output_append_safe(&line, holder->owner);
		if (holder->payload != NULL)
		{
			text_add(&line, "  ");
			output_append_safe(&line, holder->payload);
		}
		text_add_char(&line, '\n');
	}
	printer->code = output_print(line.data);
	text_free(&line);
	if (printer->left > 0)
		printer->left--;
	return printer->left != 0 && printer->code == CLI_EXIT_OK;
}

/*
 * Print who holds a lock, and each change of that, a line each, which says "held"
 * or "nobody".  Returns an exit code.
 */
int
observe_print(const Options *options, const char *name, const char *held, const char *nobody)
{
	ObservePrinter printer = {name, held, nobody, options->count, CLI_EXIT_OK};
	Conn		conn;

	conn_init(&conn, options->conninfo);
	if (observe(&conn, name, CLI_FOREVER, print_holder, &printer) == OBSERVE_FAILED)
		printer.code = conn_report(&conn);
	conn_close(&conn);
	return printer.code;
}
