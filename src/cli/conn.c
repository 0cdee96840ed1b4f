/*-------------------------------------------------------------------------
 *
 * conn.c
 *	  The connection to the server, which may come and go.
 *
 * NOTES
 *	  Nothing here waits but conn_open() and conn_ask().  Whoever has other
 *	  things to attend to waits for conn_events() until conn_wake(), calls
 *	  conn_step(), and is told what has happened.  A connection that breaks, or
 *	  that does not answer in time, is given up and made anew, each attempt a
 *	  little later than the one before.  What was being asked is forgotten then:
 *	  whether the server has done it is not known.
 *
 *	  libpq tries several hosts in turn when they refuse, but in this mode it
 *	  stays with one that does not answer at all.  So after an attempt that ran
 *	  out of time the next one begins with another host (connparams.c).
 *
 *	  The name resolver blocks, which libpq does not offer a way around.
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
 * Requests have limits of their own, and a connection may have to be idle, so the
 * timeouts that somebody has set for a role or a database would do nothing but harm.
 *
 * A process that dies while its backend waits in a queue would be granted a
 * lease that nobody uses.  With client_connection_check_interval the backend notices
 * within seconds.  Not every platform has it, so it comes last.
 */
static const char set_up[] =
"BEGIN;"
" SELECT pg_catalog.set_config(s.name, '0', false) FROM pg_catalog.pg_settings s"
" WHERE s.name OPERATOR(pg_catalog.=) ANY"
" ('{statement_timeout,lock_timeout,idle_session_timeout,transaction_timeout}');"
" COMMIT;"
" SET client_connection_check_interval = '2s'";

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

/*
 * Send a statement, in which "@" stands before the names of the extension's
 * objects, over an idle connection.  CONN_ANSWERED or CONN_FAILED will follow:
 * the latter, too, if there is no answer within that time.
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
	(void) PQsendQueryParams(conn->pg, qualified, count, types, values, NULL, NULL, 0);
	flush(conn);
	conn->state = CONN_BUSY;
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
	send_setup(conn, CONN_SETTING, set_up);
	return CONN_NOTHING;
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
	{
		clear_answer(conn);
		conn->failures = conn->timeouts = 0;
		return CONN_UP;
	}

	/* It goes down, or is a standby now: another one may be there, or will be. */
	if (conn->answer == NULL && conn->error.trouble <= CONN_STARTING)
		return fail(conn);
	return CONN_ANSWERED;
}

/* There is something to read, or to write. */
static ConnEvent
exchange(Conn *conn)
{
	bool		alive;

	if (conn->flushing)
		flush(conn);
	alive = PQconsumeInput(conn->pg) != 0;
	while (!PQisBusy(conn->pg))
	{
		PGresult   *result = PQgetResult(conn->pg);

		if (result == NULL)
		{
			if (alive && PQstatus(conn->pg) == CONNECTION_OK)
				return (conn->state == CONN_IDLE) ? CONN_NOTHING : end_request(conn);
			break;
		}
		PQclear(conn->answer);
		conn->answer = result;
	}
	if (alive && PQstatus(conn->pg) == CONNECTION_OK)
		return CONN_NOTHING;

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

/* ---- waiting ---- */

static ConnEvent
wait_for_event(Conn *conn)
{
	for (;;)
	{
		struct pollfd fd = {.fd = -1};
		int			count = conn_events(conn, &fd);
		ConnEvent	event;

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
	return (wait_for_event(conn) == CONN_ANSWERED) ? conn->answer : NULL;
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

/* How the command ends because of the last error. */
int
conn_exit_code(const Conn *conn)
{
	return connerror_exit_code(&conn->error);
}

/* Say what the last error was.  Returns an exit code. */
int
conn_report(const Conn *conn)
{
	output_error("%s", conn->error.message);
	if (conn->error.detail != NULL)
		output_detail("%s", conn->error.detail);
	if (conn->error.hint != NULL)
		output_hint("%s", conn->error.hint);
	return conn_exit_code(conn);
}
