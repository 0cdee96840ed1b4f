/*-------------------------------------------------------------------------
 *
 * conn.c
 *	  The connection to the server, which may come and go.
 *
 * NOTES
 *	  Only conn_open() and conn_ask() wait.  Others wait for conn_events() until
 *	  conn_wake(), and call conn_step(), which tells what has happened.  A
 *	  connection that breaks, or does not answer in time, is given up and made
 *	  anew.  Whether the server has done what was being asked is not known then.
 *
 *	  A statement that takes too long is cancelled before its connection is given
 *	  up: a backend that waits for a synchronous standby does not see that its
 *	  client is gone.  If the cancel gets through, that is CONN_LATE, and the
 *	  connection is idle again.
 *
 *	  Of several hosts one that can be written to is wanted, unless the user
 *	  says otherwise.  libpq goes on to the next host when one refuses, but not,
 *	  in this mode, when one does not answer.  So after an attempt that ran out of
 *	  time the lists of hosts are turned round.  Those of a service file are not
 *	  seen here.  The name resolver blocks.
 *
 *	  A pooler may hand the session to another client after each transaction, so
 *	  what a request needs to have set goes before it, in libpq's pipeline mode.
 *	  With one Sync behind both they are one transaction, with which the settings
 *	  end, and an error of the first keeps the server from the second.
 *
 *	  What an error means is told by its SQLSTATE.  An attempt to connect that
 *	  fails leaves only a text, which has the SQLSTATE in its verbose form.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conn.h"
#include "output.h"

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

#define STATE_LENGTH	5

/*
 * Where the extension is, or, without it, the plain edition in search_path; whether it
 * knows a setting; and what is set once.
 *
 * libpq's pid is that of the answering process only if no pooler is between.  Then the
 * session is ours, and idle_session_timeout is turned off.
 */
static const char set_up[] =
"SELECT pg_catalog.quote_ident(n.nspname) || '.',"
" pg_catalog.current_setting('dlock.tokens', true) IS NOT NULL OR NOT EXISTS"
" (SELECT FROM pg_catalog.pg_extension e WHERE e.extname OPERATOR(pg_catalog.=) 'dlock'),"
" CASE WHEN pg_catalog.current_setting('idle_session_timeout') OPERATOR(pg_catalog.<>) '0'"
" AND pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) %d"
" THEN pg_catalog.set_config('idle_session_timeout', '0', false) END"
" FROM pg_catalog.pg_namespace n WHERE n.oid OPERATOR(pg_catalog.=) coalesce("
"(SELECT e.extnamespace FROM pg_catalog.pg_extension e WHERE e.extname OPERATOR(pg_catalog.=) 'dlock'), "
"(SELECT p.pronamespace FROM pg_catalog.pg_proc p WHERE p.oid OPERATOR(pg_catalog.=) pg_catalog.to_regproc('dlock_acquire')::pg_catalog.oid))";

/*
 * Requests have limits of their own, so timeouts of a role or a database would do harm.  A
 * waiting backend has to notice that its client is gone, if its platform can.  Times: in UTC.
 */
#define LOCALLY(name, value)	"pg_catalog.set_config('" name "', '" value "', true)"

static const char settings[] =
"SELECT " LOCALLY("statement_timeout", "0") ", " LOCALLY("lock_timeout", "0") ","
" " LOCALLY("tcp_keepalives_idle", "10") ", " LOCALLY("tcp_keepalives_interval", "5") ","
" " LOCALLY("tcp_keepalives_count", "3") ", " LOCALLY("TimeZone", "UTC") ", " LOCALLY("DateStyle", "ISO") ","
" CASE WHEN pg_catalog.version() OPERATOR(pg_catalog.~) 'linux|darwin|bsd'"
" THEN " LOCALLY("client_connection_check_interval", "2s") " END";
static const char no_transaction_timeout[] = ", " LOCALLY("transaction_timeout", "0");

#define HAS_TRANSACTION_TIMEOUT		170000

/* The first that fits, by what the SQLSTATE begins with. */
static const struct
{
	const char *state;
	ConnTrouble trouble;
}			meanings[] =

{
	{"57P03", CONN_STARTING},
	{"08", CONN_UNREACHABLE},
	{"57P", CONN_UNREACHABLE},	/* shut down, crashed, idle for too long */
	{"25006", CONN_READ_ONLY},	/* a standby, or default_transaction_read_only */
	{"53300", CONN_UNREACHABLE},	/* too many connections */
	{"53", CONN_UNAVAILABLE},	/* the lock space or a disk is full */
	{"3D000", CONN_UNAVAILABLE},
	{"42883", CONN_UNAVAILABLE},	/* an extension of another version */
	{"42P01", CONN_UNAVAILABLE},	/* dropped meanwhile */
	{"55000", CONN_UNAVAILABLE},	/* not preloaded, dropped meanwhile */
	{"42704", CONN_NO_QUEUE},
	{"28", CONN_FORBIDDEN},
	{"42501", CONN_FORBIDDEN},
	{"22", CONN_INVALID},
	{"57014", CONN_INTERRUPTED},
	{"55P03", CONN_INTERRUPTED},
	{"40P01", CONN_DEADLOCK},
	{"LK002", CONN_LOST},
};

/* ---- errors ---- */

static ConnTrouble
meaning_of(const char *state)
{
	for (size_t i = 0; i < CLI_LENGTH(meanings); i++)
	{
		if (strncmp(state, meanings[i].state, strlen(meanings[i].state)) == 0)
			return meanings[i].trouble;
	}
	return CONN_UNEXPECTED;
}

static void
clear_error(ConnError *error)
{
	free(error->message);
	free(error->detail);
	free(error->hint);
	memset(error, 0, sizeof(*error));
}

static void
set_error(ConnError *error, ConnTrouble trouble, const char *state, const char *message,
		  const char *detail, const char *hint)
{
	clear_error(error);
	error->trouble = trouble;
	if (state != NULL)
		strncpy(error->state, state, STATE_LENGTH);
	error->message = text_copy(message);
	error->message[strcspn(error->message, "\n")] = '\0';
	error->detail = text_copy(detail);
	error->hint = text_copy(hint);
}

/* If the result is an error, tell what it means; false if it is none. */
static bool
take_error(ConnError *error, const PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

	if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK)
		return false;
	if (state != NULL)
		set_error(error, meaning_of(state), state, (message != NULL) ? message : state,
				  PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL),
				  PQresultErrorField(result, PG_DIAG_MESSAGE_HINT));
	else
	{
		/* libpq's own: the connection broke, or there is no memory. */
		message = PQresultErrorMessage(result);
		set_error(error, CONN_UNREACHABLE, NULL, (*message != '\0') ? message : "no answer from the server", NULL, NULL);
	}
	return true;
}

/* An SQLSTATE and a colon after two blanks, as the verbose form has it; or NULL. */
static const char *
find_state(const char *text)
{
	for (const char *p = strstr(text, ":  "); p != NULL; p = strstr(p + 1, ":  "))
	{
		size_t		length = strspn(p + 3, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ");

		if (length == STATE_LENGTH && strncmp(p + 3 + length, ": ", 2) == 0)
			return p + 3;
	}
	return NULL;
}

/* The text of a failed attempt in one line, without SQLSTATEs and lines of the server's source. */
static char *
tidy(const char *text)
{
	char	   *copy = text_copy(text);
	char	   *rest;
	PQExpBufferData tidied;

	initPQExpBuffer(&tidied);
	for (char *line = strtok_r(copy, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
	{
		const char *state = find_state(line);

		if (strstr(line, ".c:") != NULL)
			continue;
		appendPQExpBufferStr(&tidied, (tidied.len > 0) ? "; " : "");
		line += strspn(line, " \t");
		if (state != NULL)
			appendPQExpBuffer(&tidied, "%.*s%s", (int) (state - line) - 1, line, state + STATE_LENGTH + 1);
		else
			appendPQExpBufferStr(&tidied, line);
	}
	free(copy);
	return text_take(&tidied);
}

/* The connection could not be made, or broke. */
static void
take_connection_error(ConnError *error, const PGconn *pg)
{
	const char *text = (pg != NULL) ? PQerrorMessage(pg) : "out of memory";
	const char *state = find_state(text);
	char	   *message = tidy(text);
	ConnTrouble trouble = (state != NULL) ? meaning_of(state) :
		(pg != NULL && PQconnectionNeedsPassword(pg)) ? CONN_FORBIDDEN : CONN_UNREACHABLE;

	set_error(error, trouble, state, (*message != '\0') ? message : "the connection was lost", NULL, NULL);
	free(message);
}

/* The server is there, and has not done what it was asked to. */
void
conn_set_late(Conn *conn)
{
	set_error(&conn->error, CONN_UNREACHABLE, NULL, "the server did not finish the request in time", NULL,
			  "If it has synchronous standbys, see whether they are connected.");
}

/* Is it worth while to connect again?  "was_up": there was such a server once. */
bool
conn_may_pass(const Conn *conn, bool was_up)
{
	ConnTrouble trouble = conn->error.trouble;

	return trouble == CONN_STARTING || (was_up && (trouble == CONN_UNREACHABLE || trouble == CONN_READ_ONLY));
}

/* The exit code of the last error.  That a lock was not acquired is not known here. */
int
conn_exit_code(const Conn *conn)
{
	static const CliExit codes[] = {
		[CONN_UNREACHABLE] = CLI_EXIT_UNREACHABLE,
		[CONN_READ_ONLY] = CLI_EXIT_UNREACHABLE,
		[CONN_STARTING] = CLI_EXIT_UNREACHABLE,
		[CONN_UNAVAILABLE] = CLI_EXIT_UNREACHABLE,
		[CONN_NO_QUEUE] = CLI_EXIT_NO_QUEUE,
		[CONN_FORBIDDEN] = CLI_EXIT_PERMISSION,
		[CONN_INVALID] = CLI_EXIT_USAGE,
		[CONN_LOST] = CLI_EXIT_LOST,
		[CONN_UNEXPECTED] = CLI_EXIT_SERVER
	};
	CliExit		code = codes[conn->error.trouble];

	return (code != CLI_EXIT_OK) ? code : CLI_EXIT_SERVER;
}

/* Say what the last error was, with an exit code, which is returned. */
int
conn_report_as(const Conn *conn, int code)
{
	output_message(OUTPUT_QUIET, "error", "%s", conn->error.message);
	output_codes(code, (conn->error.state[0] != '\0') ? conn->error.state : NULL);
	if (conn->error.detail != NULL)
		output_detail("%s", conn->error.detail);
	if (conn->error.hint != NULL)
		output_hint("%s", conn->error.hint);
	return code;
}

/* The same, with the exit code of the error. */
int
conn_report(const Conn *conn)
{
	return conn_report_as(conn, conn_exit_code(conn));
}

/* ---- the beginning and the end ---- */

void
conn_init(Conn *conn, const char *conninfo)
{
	memset(conn, 0, sizeof(*conn));
	conn->conninfo = conninfo;
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

static void
disconnect(Conn *conn)
{
	end_canceller(conn);
	clear_answer(conn);
	PQfinish(conn->pg);
	conn->pg = NULL;
	conn->state = CONN_DOWN;
}

/* Give up the connection; the next attempt comes after a while. */
ConnEvent
conn_drop(Conn *conn)
{
	CliTime		nap = CLI_MIN(RETRY_FIRST << CLI_MIN(conn->failures, 10), RETRY_LONGEST);

	/* Clients that have lost the same server must not come back all at once. */
	disconnect(conn);
	conn->at = clock_now() + nap / 2 + (CliTime) (process_random() % (uint64_t) nap);
	conn->failures++;
	return CONN_FAILED;
}

void
conn_close(Conn *conn)
{
	disconnect(conn);
	free(conn->schema);
	conn->schema = NULL;
	clear_error(&conn->error);
}

/*
 * How long an attempt, or a step of it, may take.  In a hurry other hosts get their
 * turn sooner; each attempt has more time than the one before, for slow networks.
 */
static CliTime
patience(const Conn *conn)
{
	if (conn->patience == 0)
		return CONNECT_WITHIN;
	return CLI_MIN(CLI_MAX(conn->patience, CONNECT_LEAST) << CLI_MIN(conn->timeouts, 10), CONNECT_WITHIN);
}

/* ---- connection parameters ---- */

/* A list that is separated by commas, turned round by so many items; NULL if it has but one. */
static char *
rotate_list(const char *list, int by)
{
	int			items = 1;
	const char *start = list;

	if (list == NULL || strchr(list, ',') == NULL)
		return NULL;
	for (const char *p = list; *p != '\0'; p++)
		items += (*p == ',');
	for (by %= items; by > 0; by--)
		start = strchr(start, ',') + 1;
	if (start == list)
		return text_copy(list);
	return text_print("%s,%.*s", start, (int) (start - list) - 1, list);
}

/* A parameter of a connection string, or of the environment; NULL if it is not given. */
static const char *
find_parameter(PQconninfoOption *options, const char *keyword, const char *variable)
{
	for (PQconninfoOption *option = options; option != NULL && option->keyword != NULL; option++)
	{
		if (strcmp(option->keyword, keyword) == 0 && option->val != NULL)
			return option->val;
	}
	return getenv(variable);
}

/* Begin to connect.  A server whose machine is gone is noticed by keepalives. */
static PGconn *
start(const char *conninfo, int rotate)
{
	/*
	 * A later one wins, so what comes before the user's, "dbname", is a
	 * default.
	 */
	const char *keywords[] = {
		"keepalives_idle", "keepalives_interval", "keepalives_count", "fallback_application_name",
		"target_session_attrs", "dbname", "client_encoding", "host", "hostaddr", "port", NULL
	};
	const char *values[CLI_LENGTH(keywords)] = {"10", "5", "3", "dlock", NULL, conninfo, "UTF8"};
	static const char *const variables[] = {"PGHOST", "PGHOSTADDR", "PGPORT"};
	char	   *rotated[CLI_LENGTH(variables)];
	PQconninfoOption *given = NULL;
	PGconn	   *pg;

	if (conninfo != NULL && (strchr(conninfo, '=') != NULL || strstr(conninfo, "://") != NULL))
		given = PQconninfoParse(conninfo, NULL);
	for (size_t i = 0; i < CLI_LENGTH(variables); i++)
	{
		rotated[i] = rotate_list(find_parameter(given, keywords[7 + i], variables[i]), rotate);
		values[7 + i] = rotated[i];
	}
	if ((rotated[0] != NULL || rotated[1] != NULL) && getenv("PGTARGETSESSIONATTRS") == NULL)
		values[4] = "read-write";
	pg = PQconnectStartParams(keywords, values, 1);
	for (size_t i = 0; i < CLI_LENGTH(variables); i++)
		free(rotated[i]);
	PQconninfoFree(given);
	return pg;
}

/* ---- sending ---- */

/* The statement with each "@" replaced by the extension's schema. */
static char *
qualify(const Conn *conn, const char *sql)
{
	PQExpBufferData text;

	initPQExpBuffer(&text);
	for (; *sql != '\0'; sql++)
	{
		if (*sql == '@')
			appendPQExpBufferStr(&text, conn->schema);
		else
			appendPQExpBufferChar(&text, *sql);
	}
	return text_take(&text);
}

/* A failure shows when the answer is read. */
static void
flush(Conn *conn)
{
	conn->flushing = PQflush(conn->pg) > 0;
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
	char	   *before = text_print("%s%s", settings, (PQserverVersion(conn->pg) >= HAS_TRANSACTION_TIMEOUT) ?
									no_transaction_timeout : "");

	for (int i = 0; i < count; i++)
	{
		types[i] = params[i].type;
		values[i] = params[i].value;
	}
	clear_answer(conn);

	/* Without a Sync there is no answer, so half of it is not taken for one. */
	if (!PQsendQueryParams(conn->pg, before, 0, NULL, NULL, NULL, NULL, 0) ||
		!PQsendQueryParams(conn->pg, qualified, count, types, values, NULL, NULL, 0) ||
		!PQpipelineSync(conn->pg))
		within = 0;				/* nothing will answer */
	flush(conn);
	conn->state = CONN_BUSY;
	conn->is_late = false;
	conn->at = clock_add(clock_now(), within);
	free(before);
	free(qualified);
}

/* Have the statement cancelled.  That may wait for the network, so a process of its own does it. */
void
conn_cancel(Conn *conn)
{
	PGcancel   *cancel;
	char		error[256];
	pid_t		pid;
	sigset_t	all;
	sigset_t	before;

	if (conn->state != CONN_BUSY || conn->canceller != 0)
		return;

	/* The other process must not take signals for this one. */
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &before);
	pid = fork();
	conn->canceller = CLI_MAX(pid, 0);
	if (pid != 0)
	{
		sigprocmask(SIG_SETMASK, &before, NULL);
		return;
	}

	/* Somebody may wait for the end of these. */
	close(STDOUT_FILENO);
	close(STDERR_FILENO);
	cancel = PQgetCancel(conn->pg);
	if (cancel != NULL)
		(void) PQcancel(cancel, error, sizeof(error));
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
	conn->pg = start(conn->conninfo, conn->timeouts);
	conn->state = CONN_CONNECTING;
	conn->wants = PGRES_POLLING_WRITING;
	conn->at = clock_now() + patience(conn);
	if (conn->pg == NULL || PQstatus(conn->pg) == CONNECTION_BAD)
	{
		take_connection_error(&conn->error, conn->pg);
		return conn_drop(conn);
	}
	PQsetErrorVerbosity(conn->pg, PQERRORS_VERBOSE);
	PQsetNoticeReceiver(conn->pg, ignore_notice, NULL);
	return CONN_NOTHING;
}

static ConnEvent
continue_attempt(Conn *conn)
{
	char	   *sql;

	conn->wants = PQconnectPoll(conn->pg);
	if (conn->wants == PGRES_POLLING_FAILED)
	{
		take_connection_error(&conn->error, conn->pg);
		return conn_drop(conn);
	}
	if (conn->wants == PGRES_POLLING_OK)
	{
		sql = text_print(set_up, PQbackendPID(conn->pg));
		(void) PQsetnonblocking(conn->pg, 1);
		(void) PQsendQuery(conn->pg, sql);
		flush(conn);
		free(sql);
		conn->state = CONN_SETTING;
		conn->at = clock_now() + patience(conn);
	}
	return CONN_NOTHING;
}

/* The connection is there: is the extension, too? */
static ConnEvent
end_setup(Conn *conn)
{
	char	   *message;

	if (conn->answer == NULL)
		return conn_drop(conn);
	if (PQntuples(conn->answer) == 0)
	{
		message = text_print("database \"%s\" does not have the extension \"dlock\"", PQdb(conn->pg));
		set_error(&conn->error, CONN_UNAVAILABLE, NULL, message, NULL,
				  "Run CREATE EXTENSION dlock in it, or name another database with -d.");
		free(message);
		return conn_drop(conn);
	}
	free(conn->schema);
	conn->schema = text_copy(conn_value(conn, 0));
	conn->takes_tokens = conn_is_true(conn, 1);
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
	if (conn->answer != NULL && take_error(&conn->error, conn->answer))
		clear_answer(conn);
	if (was == CONN_SETTING)
		return end_setup(conn);
	if (conn->is_late)
	{
		conn->timeouts++;		/* another host may be faster */
		conn_set_late(conn);
		return CONN_LATE;
	}

	/* It goes down, or is a standby now: another one may be there. */
	if (conn->answer == NULL && conn->error.trouble <= CONN_STARTING)
		return conn_drop(conn);
	conn->failures = conn->timeouts = 0;
	return CONN_ANSWERED;
}

/*
 * Take what can be read without waiting.  The answer is the result of the last
 * statement, or the first error of the server's.  True if that was all.
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
			/* In a pipeline: the end of a statement; twice: of what there is. */
			if (!in_pipeline || was_end)
				return !in_pipeline;
			was_end = true;
			continue;
		}
		was_end = false;
		if (status == PGRES_PIPELINE_ABORTED || status == PGRES_PIPELINE_SYNC ||
			PQresultErrorField(conn->answer, PG_DIAG_SQLSTATE) != NULL)
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
	bool		alive = PQconsumeInput(conn->pg) != 0;
	bool		ended = take_results(conn);

	if (conn->flushing)
		flush(conn);
	if (alive && PQstatus(conn->pg) == CONNECTION_OK)
		return (ended && conn->state != CONN_IDLE) ? end_request(conn) : CONN_NOTHING;

	/* The server's last words say more than that it is gone. */
	if (conn->answer == NULL || !take_error(&conn->error, conn->answer) ||
		conn->error.trouble > CONN_STARTING)
		take_connection_error(&conn->error, conn->pg);
	return conn_drop(conn);
}

/* Go on, with what poll() has said about the descriptor of conn_events(). */
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
		set_error(&conn->error, CONN_UNREACHABLE, NULL, "the server does not answer", NULL, NULL);
		return conn_drop(conn);
	}
	return CONN_NOTHING;
}

/* What to wait for; returns how many descriptors that is, zero or one. */
int
conn_events(Conn *conn, struct pollfd *fd)
{
	if (conn->pg == NULL || PQsocket(conn->pg) < 0)
		return 0;
	fd->fd = PQsocket(conn->pg);
	fd->events = conn->flushing ? POLLIN | POLLOUT : POLLIN;
	if (conn->state == CONN_CONNECTING)
		fd->events = (conn->wants == PGRES_POLLING_WRITING) ? POLLOUT : POLLIN;
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
	return conn_value(conn, column) != NULL && *conn_value(conn, column) == 't';
}
