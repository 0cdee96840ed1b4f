/*-------------------------------------------------------------------------
 *
 * conn.c
 *	  The connection to the server, which may come and go.
 *
 * NOTES
 *	  Only conn_open() and conn_ask() wait.  A caller with other things to do
 *	  waits for conn_events() until conn_wake(), and calls conn_step(), which
 *	  tells what has happened.  A connection that breaks, or
 *	  that does not answer in time, is given up and made anew, each attempt a
 *	  little later than the one before.  What was being asked is forgotten then:
 *	  whether the server has done it is not known.
 *
 *	  A statement that takes too long is cancelled before its connection is given
 *	  up.  The server would go on with it otherwise: what waits for a synchronous
 *	  standby does not look whether its client is still there.  If the cancel gets
 *	  through, that is CONN_LATE, and the connection is idle again.
 *
 *	  libpq tries several hosts in turn when they refuse, but in this mode it
 *	  stays with one that does not answer at all.  So after an attempt that ran
 *	  out of time the next one begins with another host (connparams.c).
 *
 *	  The name resolver blocks, which libpq does not offer a way around.
 *
 *	  A pooler may hand the session to somebody else after each transaction, so
 *	  nothing is left behind in it.  What a request needs to have set goes before
 *	  it, in libpq's pipeline mode: both are sent at once, with one Sync behind
 *	  them, and so are one transaction, with which the settings end.  An error of
 *	  the first keeps the server from the second, so whatever went wrong there is
 *	  one error, and nothing has been done.  The server looks at its timeouts
 *	  anew when it begins the second one.
 *
 *	  One timeout is of use only between transactions, so see "set_up".
 *
 * IDENTIFICATION
 *	  src/cli/conn.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "conn.h"
#include "connerror.h"
#include "connparams.h"
#include "output.h"
#include "process.h"
#include "text.h"

/* How long an attempt may take, and each step after it, at most and in a hurry. */
#define CONNECT_WITHIN	(10 * CLI_SECOND)
#define CONNECT_LEAST	(500 * CLI_MS)

/* How long the end of a statement that is cancelled may take. */
#define CANCEL_WITHIN	(2 * CLI_SECOND)

/* From one attempt to the next, at first and at most. */
#define RETRY_FIRST		(50 * CLI_MS)
#define RETRY_LONGEST	(2 * CLI_SECOND)

/* How long a server may be starting before a command that does not wait gives up. */
#define STARTING_WITHIN	(10 * CLI_SECOND)

static const char find_extension[] =
"SELECT pg_catalog.quote_ident(n.nspname) || '.',"
" pg_catalog.current_setting('dlock.tokens', true) IS NOT NULL"
" FROM pg_catalog.pg_extension e"
" JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) e.extnamespace"
" WHERE e.extname OPERATOR(pg_catalog.=) 'dlock'";

/*
 * Requests have limits of their own, so the timeouts that somebody has set for a
 * role or a database would do nothing but harm.
 *
 * A process that dies while its backend waits in a queue would be granted a
 * lease that nobody uses.  With client_connection_check_interval the backend notices
 * within seconds, and with keepalives that the machine of the process is gone.
 *
 * A statement that may wait must not compute anything with its answer, or it would
 * hold back vacuum.  So times are told in UTC.
 */
#define LOCALLY(name, value)	"pg_catalog.set_config('" name "', '" value "', true)"

static const char no_timeouts[] =
"SELECT " LOCALLY("statement_timeout", "0") ", " LOCALLY("lock_timeout", "0") ","
" " LOCALLY("tcp_keepalives_idle", "10") ", " LOCALLY("tcp_keepalives_interval", "5") ","
" " LOCALLY("tcp_keepalives_count", "3");
static const char plain_times[] =
", " LOCALLY("TimeZone", "UTC") ", " LOCALLY("DateStyle", "ISO");
static const char no_transaction_timeout[] = ", " LOCALLY("transaction_timeout", "0");
static const char check_client[] = ", " LOCALLY("client_connection_check_interval", "2s");

#define HAS_TRANSACTION_TIMEOUT		170000

/*
 * What is set once for a connection, and what is tried out.
 *
 * Between requests a connection may have to be idle for longer than an
 * idle_session_timeout allows, and that cannot be turned off for a transaction.
 * To be cut off again and again, and to connect again each time, would cost more
 * than it is worth, and every time something could go wrong.  So it is turned
 * off for the session; but only if the session is ours.  A pooler that hands
 * sessions from one client to the next has to tell each of them another key to
 * cancel with, or they could cancel what others do.  So if the process that
 * libpq has been told is the one that answers, there is none in between.  If
 * there is one, an idle session is its own business, and it gets another.
 *
 * Not every platform has client_connection_check_interval.  An error at the end
 * tells that; and what was tried has ended with its transaction.
 */
static const char set_up[] =
"BEGIN;"
" SELECT pg_catalog.set_config('idle_session_timeout', '0', false)"
" WHERE pg_catalog.current_setting('idle_session_timeout') OPERATOR(pg_catalog.<>) '0'"
" AND pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) %d;"
" COMMIT;"
" SELECT " LOCALLY("client_connection_check_interval", "2s");

void
conn_init(Conn *conn, const char *conninfo)
{
	memset(conn, 0, sizeof(*conn));
	conn->conninfo = conninfo;
	conn->state = CONN_DOWN;
}

static void
end_canceller(Conn *conn)
{
	if (conn->canceller == 0)
		return;
	kill(conn->canceller, SIGKILL);
	while (waitpid(conn->canceller, NULL, 0) < 0 && errno == EINTR)
		;
	conn->canceller = 0;
}

static void
clear_answer(Conn *conn)
{
	PQclear(conn->answer);
	conn->answer = NULL;
}

/* Give up the connection; the next attempt comes after a while. */
void
conn_drop(Conn *conn)
{
	CliTime		nap = RETRY_FIRST << CLI_MIN(conn->failures, 10);

	end_canceller(conn);
	clear_answer(conn);
	PQfinish(conn->pg);
	conn->pg = NULL;
	conn->state = CONN_DOWN;

	/* Many who have lost the same server must not come back as one. */
	nap = CLI_MIN(nap, RETRY_LONGEST);
	conn->at = clock_now() + nap / 2 + (CliTime) (process_random() % (uint64_t) nap);
	conn->failures++;
}

void
conn_close(Conn *conn)
{
	end_canceller(conn);
	clear_answer(conn);
	PQfinish(conn->pg);
	conn->pg = NULL;
	free(conn->schema);
	conn->schema = NULL;
	free(conn->settings);
	conn->settings = NULL;
	connerror_clear(&conn->error);
	conn->state = CONN_DOWN;
}

static ConnEvent
fail(Conn *conn)
{
	conn_drop(conn);
	return CONN_FAILED;
}

/*
 * How long an attempt, or a step of it, may take.  Who is in a hurry has more of
 * them, so that another host gets its turn, and each has more time than the one
 * before, should the network be slow.
 */
static CliTime
patience(const Conn *conn)
{
	if (conn->patience == 0)
		return CONNECT_WITHIN;
	return CLI_MIN(CLI_MAX(conn->patience, CONNECT_LEAST) << CLI_MIN(conn->timeouts, 10), CONNECT_WITHIN);
}

/* ---- sending ---- */

/* The statement with each "@" replaced by the extension's schema. */
static char *
qualify(const Conn *conn, const char *sql)
{
	Text		text;

	text_init(&text);
	for (; *sql != '\0'; sql++)
	{
		if (*sql == '@')
			text_add(&text, conn->schema);
		else
			text_add_char(&text, *sql);
	}
	return text.data;
}

static void
flush(Conn *conn)
{
	/* A failure shows when the answer is read. */
	conn->flushing = PQflush(conn->pg) > 0;
}

/* Send a statement; in a pipeline, after what is to be set for it. */
static void
send_with_settings(Conn *conn, const char *sql, int count, const Oid *types, const char *const *values)
{
	bool		in_pipeline = PQpipelineStatus(conn->pg) != PQ_PIPELINE_OFF;

	if (in_pipeline &&
		!PQsendQueryParams(conn->pg, conn->settings, 0, NULL, NULL, NULL, NULL, 0))
		return;

	/* Without a Sync there is no answer, so half of it is not taken for one. */
	if (PQsendQueryParams(conn->pg, sql, count, types, values, NULL, NULL, 0) && in_pipeline)
		(void) PQpipelineSync(conn->pg);
}

/*
 * Send a statement, in which "@" stands before the names of the extension's
 * objects, over an idle connection.  CONN_ANSWERED or CONN_FAILED will follow, or,
 * if there is no answer within that time, CONN_LATE or CONN_FAILED.
 */
void
conn_send(Conn *conn, CliTime within, const char *sql, int count, const ConnParam *params)
{
	Oid			types[CONN_MAX_PARAMS];
	const char *values[CONN_MAX_PARAMS];
	char	   *qualified = qualify(conn, sql);

	for (int i = 0; i < count; i++)
	{
		types[i] = params[i].type;
		values[i] = params[i].value;
	}
	clear_answer(conn);
	send_with_settings(conn, qualified, count, types, values);
	flush(conn);
	conn->state = CONN_BUSY;
	conn->is_late = false;
	conn->at = clock_add(clock_now(), within);
	free(qualified);
}

static void
send_setup(Conn *conn, ConnState state, const char *sql)
{
	(void) PQsendQuery(conn->pg, sql);
	flush(conn);
	conn->state = state;
	conn->at = clock_now() + patience(conn);
}

/*
 * Ask the server to cancel what it is doing for this connection.  That may
 * wait for the network, so it is left to a process of its own.
 */
void
conn_cancel(Conn *conn)
{
	PGcancel   *cancel;
	char		error[256];
	pid_t		pid;

	if (conn->state != CONN_BUSY || conn->canceller != 0)
		return;
	pid = fork();
	if (pid != 0)
	{
		conn->canceller = CLI_MAX(pid, 0);
		return;
	}

	process_detach(-1);
	cancel = PQgetCancel(conn->pg);
	if (cancel != NULL)
		(void) PQcancel(cancel, error, sizeof(error));
	PQfreeCancel(cancel);
	_exit(0);
}

/* ---- steps ---- */

static void
ignore_notice(void *arg, const PGresult *notice)
{
	const char *text = PQresultErrorField(notice, PG_DIAG_MESSAGE_PRIMARY);

	(void) arg;
	if (text != NULL)
		output_info("the server says: %s", text);
}

static ConnEvent
begin_attempt(Conn *conn)
{
	end_canceller(conn);
	conn->pg = connparams_start(conn->conninfo, conn->timeouts);
	conn->state = CONN_CONNECTING;
	conn->wants = PGRES_POLLING_WRITING;
	conn->at = clock_now() + patience(conn);
	if (conn->pg == NULL || PQstatus(conn->pg) == CONNECTION_BAD)
	{
		connerror_of_connection(&conn->error, conn->pg);
		return fail(conn);
	}
	PQsetErrorVerbosity(conn->pg, PQERRORS_VERBOSE);
	PQsetNoticeReceiver(conn->pg, ignore_notice, NULL);
	return CONN_NOTHING;
}

static ConnEvent
continue_attempt(Conn *conn)
{
	conn->wants = PQconnectPoll(conn->pg);
	switch (conn->wants)
	{
		case PGRES_POLLING_OK:
			PQsetnonblocking(conn->pg, 1);
			send_setup(conn, CONN_ASKING, find_extension);
			return CONN_NOTHING;
		case PGRES_POLLING_FAILED:
			connerror_of_connection(&conn->error, conn->pg);
			return fail(conn);
		default:
			return CONN_NOTHING;
	}
}

/* The connection is there: see whether the extension is. */
static ConnEvent
end_asking(Conn *conn)
{
	char	   *sql;

	if (conn->answer == NULL)
		return fail(conn);
	if (PQntuples(conn->answer) == 0)
	{
		connerror_no_extension(&conn->error, PQdb(conn->pg));
		return fail(conn);
	}
	free(conn->schema);
	conn->schema = text_copy(conn_value(conn, 0));
	conn->takes_tokens = conn_is_true(conn, 1);
	sql = text_print(set_up, PQbackendPID(conn->pg));
	send_setup(conn, CONN_SETTING, sql);
	free(sql);
	return CONN_NOTHING;
}

/* The connection is ready for requests: see what goes before each. */
static ConnEvent
end_setting(Conn *conn)
{
	Text		settings;

	text_init(&settings);
	text_add(&settings, no_timeouts);
	text_add(&settings, plain_times);
	if (PQserverVersion(conn->pg) >= HAS_TRANSACTION_TIMEOUT)
		text_add(&settings, no_transaction_timeout);
	if (conn->answer != NULL)
		text_add(&settings, check_client);
	free(conn->settings);
	conn->settings = settings.data;

	clear_answer(conn);
	(void) PQenterPipelineMode(conn->pg);
	return CONN_UP;
}

/* A request has been answered, in full. */
static ConnEvent
end_request(Conn *conn)
{
	ConnState	was = conn->state;

	conn->state = CONN_IDLE;
	if (conn->answer != NULL && connerror_of_result(&conn->error, conn->answer))
		clear_answer(conn);
	if (was == CONN_ASKING)
		return end_asking(conn);
	if (was == CONN_SETTING)
		return end_setting(conn);
	if (conn->is_late)
	{
		/* Another host may be faster. */
		conn->timeouts++;
		connerror_late(&conn->error);
		return CONN_LATE;
	}

	/*
	 * It goes down, or is a standby now: another one may be there, or will
	 * be.
	 */
	if (conn->answer == NULL && conn->error.trouble <= CONN_STARTING)
		return fail(conn);
	conn->failures = conn->timeouts = 0;
	return CONN_ANSWERED;
}

/* Has the server said what is wrong?  What comes after that tells less. */
static bool
is_error(const PGresult *result)
{
	return result != NULL && PQresultErrorField(result, PG_DIAG_SQLSTATE) != NULL;
}

/*
 * Take what can be read without waiting.  The answer is what was said last: of
 * several statements the last one's result, or an error.  True if that was all.
 */
static bool
take_results(Conn *conn)
{
	bool		in_pipeline = PQpipelineStatus(conn->pg) != PQ_PIPELINE_OFF;
	bool		was_end = false;

	while (!PQisBusy(conn->pg))
	{
		PGresult   *result = PQgetResult(conn->pg);
		ExecStatusType status = PQresultStatus(result);

		if (result == NULL)
		{
			/*
			 * In a pipeline that is the end of one statement; twice: of what
			 * there is.
			 */
			if (!in_pipeline || was_end)
				return !in_pipeline;
			was_end = true;
			continue;
		}
		was_end = false;
		if (status == PGRES_PIPELINE_ABORTED || status == PGRES_PIPELINE_SYNC || is_error(conn->answer))
			PQclear(result);
		else
		{
			PQclear(conn->answer);
			conn->answer = result;
		}
		if (status == PGRES_PIPELINE_SYNC)
			return true;
	}
	return false;
}

/* There is something to read, or to write. */
static ConnEvent
exchange(Conn *conn)
{
	bool		alive;
	bool		ended;

	if (conn->flushing)
		flush(conn);
	alive = PQconsumeInput(conn->pg) != 0;
	ended = take_results(conn);
	if (alive && PQstatus(conn->pg) == CONNECTION_OK)
		return (ended && conn->state != CONN_IDLE) ? end_request(conn) : CONN_NOTHING;

	/* The server's last words say more than that it is gone. */
	if (conn->answer == NULL || !connerror_of_result(&conn->error, conn->answer) ||
		conn->error.trouble > CONN_STARTING)
		connerror_of_connection(&conn->error, conn->pg);
	return fail(conn);
}

/*
 * Go on, with what poll() has said about the descriptor of conn_events().
 */
ConnEvent
conn_step(Conn *conn, short revents)
{
	CliTime		now = clock_now();

	if (conn->canceller != 0 && waitpid(conn->canceller, NULL, WNOHANG) == conn->canceller)
		conn->canceller = 0;

	if (conn->state == CONN_DOWN)
		return (now >= conn->at) ? begin_attempt(conn) : CONN_NOTHING;
	if (revents != 0)
		return (conn->state == CONN_CONNECTING) ? continue_attempt(conn) : exchange(conn);
	if (conn->state == CONN_BUSY && !conn->is_late && now >= conn->at)
	{
		conn_cancel(conn);
		conn->is_late = true;
		conn->at = now + CANCEL_WITHIN;
		return CONN_NOTHING;
	}
	if (conn->state != CONN_IDLE && now >= conn->at)
	{
		conn->timeouts += (conn->state != CONN_BUSY);
		connerror_timeout(&conn->error);
		return fail(conn);
	}
	return CONN_NOTHING;
}

/* What to wait for; returns how many descriptors that is, zero or one. */
int
conn_events(Conn *conn, struct pollfd *fd)
{
	bool		write;

	if (conn->pg == NULL || PQsocket(conn->pg) < 0)
		return 0;
	write = (conn->state == CONN_CONNECTING) ?
		conn->wants == PGRES_POLLING_WRITING : conn->flushing;
	fd->fd = PQsocket(conn->pg);
	fd->events = write ? POLLOUT : POLLIN;
	if (conn->flushing)
		fd->events |= POLLIN;
	fd->revents = 0;
	return 1;
}

/* When to call conn_step() though nothing has happened. */
CliTime
conn_wake(const Conn *conn)
{
	return (conn->state == CONN_IDLE) ? CLI_FOREVER : conn->at;
}

/* Whatever the connection is busy with has to be over by then. */
void
conn_hurry(Conn *conn, CliTime until)
{
	conn->at = CLI_MIN(conn->at, until);
}

/* ---- waiting ---- */

static ConnEvent
wait_for_event(Conn *conn)
{
	for (;;)
	{
		struct pollfd fd = {.fd = -1};
		int			count = conn_events(conn, &fd);
		ConnEvent	event;

		output_flush();
		(void) clock_poll(&fd, count, conn_wake(conn));
		event = conn_step(conn, fd.revents);
		if (event != CONN_NOTHING)
			return event;
	}
}

/*
 * Connect.  One attempt, on all hosts; but a server that says that it is just
 * starting is waited for.  False: see "error".
 */
bool
conn_open(Conn *conn)
{
	CliTime		end = clock_now() + STARTING_WITHIN;

	while (conn->state != CONN_IDLE)
	{
		if (wait_for_event(conn) == CONN_FAILED &&
			(conn->error.trouble != CONN_STARTING || clock_now() > end))
			return false;
	}
	return true;
}

/*
 * Send a statement and wait for the answer, which belongs to the connection.
 * NULL: see "error"; the connection is open still if its state is CONN_IDLE.
 */
PGresult *
conn_ask(Conn *conn, CliTime within, const char *sql, int count, const ConnParam *params)
{
	conn_send(conn, within, sql, count, params);
	if (wait_for_event(conn) != CONN_ANSWERED)
		clear_answer(conn);
	return conn->answer;
}

/* ---- answers ---- */

/* A column of the first row of the answer; NULL if it is null. */
const char *
conn_value(const Conn *conn, int column)
{
	if (PQntuples(conn->answer) == 0 || PQgetisnull(conn->answer, 0, column))
		return NULL;
	return PQgetvalue(conn->answer, 0, column);
}

bool
conn_is_true(const Conn *conn, int column)
{
	const char *value = conn_value(conn, column);

	return value != NULL && value[0] == 't';
}

/* Say what the last error was.  Returns an exit code. */
int
conn_report(const Conn *conn)
{
	return conn_report_as(conn, connerror_exit_code(&conn->error));
}

/* The same, with an exit code that the caller knows better. */
int
conn_report_as(const Conn *conn, int code)
{
	output_server_error(code, (conn->error.state[0] != '\0') ? conn->error.state : NULL,
						"%s", conn->error.message);
	if (conn->error.detail != NULL)
		output_detail("%s", conn->error.detail);
	if (conn->error.hint != NULL)
		output_hint("%s", conn->error.hint);
	return code;
}
