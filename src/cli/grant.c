/*-------------------------------------------------------------------------
 *
 * grant.c
 *	  Acquiring a lease, and giving it back.
 *
 * NOTES
 *	  A connection may break between the grant and its answer.  Then the request
 *	  is sent again.  For an owner that nobody else uses it has reentry => 'return',
 *	  so the server answers with the token of a lease that it has granted.  For any
 *	  other owner it has 'deny': that lease may be somebody else's.
 *
 *	  A wait is one statement, however long it is, so it keeps its place in the
 *	  queue.  It comes after one that does not wait: that has to be answered soon,
 *	  so a server that confirms nothing is told from a lock that is held.
 *
 * IDENTIFICATION
 *	  src/cli/grant.c
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "hold.h"
#include "loop.h"
#include "output.h"

/* How long to try to undo what may have been granted, before leaving. */
#define UNDO_WITHIN		(3 * CLI_SECOND)

/* From one attempt to the next while the backend of a lost connection is in the way. */
#define RETRY_NAP		(200 * CLI_MS)

#define ACQUIRE_TAIL \
	" owner => $2, ttl => $3, wait => $4, mode => $5, reentry => $6," \
	" lock_delay => $7, min_hold => $8, payload => $9"

static const char acquire_sql[] =
"SELECT @dlock_acquire(name => $1," ACQUIRE_TAIL ", permits => $10)";
static const char acquire_path_sql[] =
"SELECT @dlock_acquire_path(path => $1," ACQUIRE_TAIL ")";
static const char release_sql[] = "SELECT @dlock_release($1, $2)";
static const char release_token_sql[] = "SELECT @dlock_release_token($1, $2)";
static const char is_held_sql[] =
"SELECT EXISTS (SELECT FROM @dlock_lease($1)"
" WHERE owner OPERATOR(pg_catalog.=) $2 AND state OPERATOR(pg_catalog.=) 'held')";

/* A request under way. */
typedef struct GrantTry
{
	Conn	   *conn;
	const GrantRequest *request;
	Grant	   *grant;
	CliTime		end;			/* when the time is up */
	bool		was_up;			/* there was a connection once */
	bool		was_answered;	/* it was not always a standby */
	bool		in_doubt;		/* something may have been granted unheard */
} GrantTry;

/* Ask for the lease, and wait so long for the lock; CLI_FOREVER: no limit. */
static void
send_acquire(GrantTry *try, CliTime span)
{
	const GrantRequest *request = try->request;
	const Options *options = request->options;
	const char *mode = (options->mode != NULL) ? options->mode : "exclusive";
	const char *reentry = request->is_unique ? "return" : "deny";
	char		ttl[DURATION_SIZE];
	char		wait[DURATION_SIZE];
	char		lock_delay[DURATION_SIZE];
	char		min_hold[DURATION_SIZE];

	const ConnParam params[] = {
		CONN_TEXT(request->name),
		CONN_TEXT(request->owner),
		CONN_INTERVAL(duration_sql(request->ttl, ttl)),
		CONN_INTERVAL((span < CLI_FOREVER) ? duration_sql(span, wait) : NULL),
		CONN_TEXT(mode),
		CONN_TEXT(reentry),
		CONN_INTERVAL(duration_sql(request->lock_delay, lock_delay)),
		CONN_INTERVAL(duration_sql(CLI_MAX(options->min_hold, 0), min_hold)),
		CONN_JSONB(options->payload),
		CONN_INT(options->permits)
	};

	try->grant->sent = clock_now();
	if (options->path)
		conn_send(try->conn, clock_add(span, GRANT_WITHIN), acquire_path_sql, 9, params);
	else
		conn_send(try->conn, clock_add(span, GRANT_WITHIN), acquire_sql, 10, params);
}

/* Release a lease by its token or owner, as "sql" says; false if that was not done. */
static bool
release(Conn *conn, const char *sql, const char *name, ConnParam whose)
{
	const ConnParam params[] = {CONN_TEXT(name), whose};

	/* A cancel that was late for another statement may hit this one. */
	for (int attempt = 0; attempt < 3; attempt++)
	{
		if (conn_ask(conn, UNDO_WITHIN, sql, 2, params) != NULL)
			return true;
		if (conn->state != CONN_IDLE || conn->error.trouble != CONN_INTERRUPTED)
			break;
	}
	return false;
}

/* What was answered, if that is a grant. */
static void
take_grant(GrantTry *try)
{
	const char *token = (try->conn->answer != NULL) ? conn_value(try->conn, 0) : NULL;

	if (token != NULL && try->grant->token[0] == '\0')
		strncpy(try->grant->token, token, sizeof(try->grant->token) - 1);
}

/*
 * Give back what has been granted, or may have been: without its token, what the
 * owner holds, if that is nobody else's name.
 */
static void
give_back(GrantTry *try, CliTime end)
{
	Conn	   *conn = try->conn;
	const GrantRequest *request = try->request;
	bool		by_owner = try->in_doubt && request->is_unique;
	const char *token = try->grant->token;

	if (*token == '\0' && !by_owner)
		return;
	if (loop_connect(conn, end) != 0 || conn->state != CONN_IDLE ||
		!release(conn, by_owner ? release_sql : release_token_sql, request->name,
				 by_owner ? CONN_TEXT(request->owner) : CONN_BIGINT(token)))
		output_warning("the lease on \"%s\" could not be given back, and ends by itself", request->name);
}

/*
 * A signal has come: give up the place in the queue, and what may have been
 * granted at that moment.  The answer may even have come together with the signal.
 */
static GrantVerdict
undo(GrantTry *try, LoopEvent event)
{
	Conn	   *conn = try->conn;
	CliTime		end = clock_now() + UNDO_WITHIN;

	try->grant->signal = event.signal;
	conn_cancel(conn);
	for (;;)
	{
		if (event.conn == CONN_ANSWERED || event.conn == CONN_LATE)
			take_grant(try);
		if (event.conn == CONN_FAILED && conn->schema != NULL)
			try->in_doubt = true;

		/*
		 * The canceller is waited for, too: a pooler may not like it to
		 * vanish.
		 */
		if ((conn->state != CONN_BUSY && conn->canceller == 0) || clock_now() >= end)
			break;
		event = loop_wait(conn, end);
	}
	if (conn->state == CONN_BUSY)
	{
		try->in_doubt = true;
		(void) conn_drop(conn);
	}
	give_back(try, clock_now() + UNDO_WITHIN);
	return GRANT_SIGNALLED;
}

/*
 * The server has not done in time what it was asked to.  It may have granted the
 * lease, and wait for a standby that is to have it, too: that is no grant.
 */
static GrantVerdict
give_up(GrantTry *try, ConnEvent event)
{
	if (event == CONN_LATE)
		take_grant(try);
	else
		try->in_doubt = true;
	give_back(try, clock_now() + UNDO_WITHIN);
	if (event == CONN_LATE)
		conn_set_late(try->conn);
	return GRANT_FAILED;
}

/* Wait for a connection; GRANT_OURS if there is one. */
static GrantVerdict
connect_for(GrantTry *try)
{
	Conn	   *conn = try->conn;

	while (conn->state != CONN_IDLE)
	{
		LoopEvent	event = loop_wait(conn, CLI_FOREVER);

		if (signals_is_fatal(event.signal))
			return undo(try, event);
		if (event.conn == CONN_FAILED)
		{
			if (!conn_may_pass(conn, try->was_up) || clock_now() >= try->end)
				return GRANT_FAILED;
			output_info("%s; trying again", conn->error.message);
		}
	}
	try->was_up = true;
	return GRANT_OURS;
}

/* The server has answered.  GRANT_OURS with no token: ask again. */
static GrantVerdict
look_at_answer(GrantTry *try)
{
	ConnTrouble trouble = try->conn->error.trouble;

	try->was_answered = true;
	take_grant(try);
	if (try->grant->token[0] != '\0')
		return GRANT_OURS;

	/* It waits for the lease that was granted to the lost connection. */
	if (try->conn->answer == NULL && trouble == CONN_DEADLOCK && try->in_doubt && try->request->is_unique)
	{
		(void) clock_poll(NULL, 0, clock_now() + RETRY_NAP);
		return GRANT_OURS;
	}

	/* A timeout of the server's may be shorter than ours. */
	if (try->conn->answer == NULL && trouble != CONN_INTERRUPTED)
		return GRANT_FAILED;
	return (clock_now() < try->end) ? GRANT_OURS : GRANT_REFUSED;
}

/* Ask once, and wait for the answer; GRANT_OURS with no token: ask again. */
static GrantVerdict
ask_once(GrantTry *try)
{
	Conn	   *conn = try->conn;
	CliTime		left = (try->end < CLI_FOREVER) ? CLI_MAX(try->end - clock_now(), 0) : CLI_FOREVER;
	LoopEvent	event;

	send_acquire(try, try->was_answered ? left : 0);
	do
	{
		event = loop_wait(conn, CLI_FOREVER);
		if (signals_is_fatal(event.signal))
			return undo(try, event);
	} while (event.conn == CONN_NOTHING);

	if (event.conn == CONN_ANSWERED)
		return look_at_answer(try);
	if (event.conn == CONN_LATE || clock_now() >= clock_add(try->end, GRANT_WITHIN))
		return give_up(try, event.conn);

	/* One that has become a standby may be replaced; one that was, is not. */
	if (conn->error.trouble == CONN_READ_ONLY && !try->in_doubt && !try->was_answered)
		return GRANT_FAILED;
	output_info("%s; connecting again", conn->error.message);
	try->in_doubt = true;
	return GRANT_OURS;
}

/*
 * There is no grant, but an answer was lost, and others use this owner: the server may
 * have granted a lease.  Whether it is held, it says itself; if not, it may be.
 */
static GrantVerdict
look_at_doubt(Conn *conn, const GrantRequest *request, GrantVerdict verdict)
{
	const ConnParam params[] = {CONN_TEXT(request->name), CONN_TEXT(request->owner)};
	bool		is_refused = verdict == GRANT_REFUSED ||
		(verdict == GRANT_FAILED && conn->error.trouble == CONN_DEADLOCK);

	if (verdict == GRANT_FAILED && !is_refused && conn->state == CONN_IDLE)
		return verdict;
	if (conn->state == CONN_IDLE &&
		conn_ask(conn, GRANT_WITHIN, is_held_sql, 2, params) != NULL && !conn_is_true(conn, 0))
		return verdict;
	if (is_refused)
		return GRANT_DOUBTFUL;
	output_warning("the server may have granted a lease on \"%s\" to owner \"%s\"", request->name, request->owner);
	return verdict;
}

/*
 * Acquire a lease, waiting for it as long as the options say.  A connection
 * that is lost meanwhile is made anew, but there has to have been one.  "grant"
 * is all zero, or what has been granted to the same owner before.
 */
GrantVerdict
grant_acquire(Conn *conn, const GrantRequest *request, Grant *grant)
{
	GrantTry	try = {
		.conn = conn,
		.request = request,
		.grant = grant,
		.end = clock_add(clock_now(), request->options->wait),
		.was_up = conn->schema != NULL,
		.was_answered = conn->schema != NULL,
		.in_doubt = grant->token[0] != '\0'
	};
	GrantVerdict verdict;

	memset(grant, 0, sizeof(*grant));
	do
	{
		verdict = connect_for(&try);
		if (verdict == GRANT_OURS)
			verdict = ask_once(&try);
	} while (verdict == GRANT_OURS && grant->token[0] == '\0');

	if (try.in_doubt && !request->is_unique && grant->token[0] == '\0')
		verdict = look_at_doubt(conn, request, verdict);
	if (verdict == GRANT_OURS)
		output_info("acquired \"%s\" with token %s", request->name, grant->token);
	return verdict;
}

/*
 * Give a lease back, over an idle connection.  False if that is not known to
 * have been done; see the connection's error.
 */
bool
grant_release(Conn *conn, const char *name, const char *token, bool *was_held)
{
	bool		done = release(conn, release_token_sql, name, CONN_BIGINT(token));

	*was_held = done && conn_is_true(conn, 0);
	return done;
}

/* The lock was not granted.  Print its holder. */
static void
tell_refusal(Conn *conn, const GrantRequest *request)
{
	const ConnParam params[] = {CONN_TEXT(request->name), CONN_INTERVAL("0")};
	bool		is_known = conn->state == CONN_IDLE &&
		conn_ask(conn, GRANT_WITHIN, "SELECT owner, token FROM @dlock_watch($1, NULL, $2)", 2, params) != NULL;

	output_refusal(request->options->refused_exit, "lock \"%s\" was not acquired", request->name);
	if (!is_known)
		return;
	if (conn_value(conn, 0) != NULL)
		output_detail("It is held by \"%s\" with token %s.", conn_value(conn, 0), conn_value(conn, 1));
	else
		output_detail("Nobody holds it: it is closed for a while after its last lease, or has just been released.");
}

/* Say why there is no lease.  Returns an exit code. */
int
grant_explain(Conn *conn, const GrantRequest *request, const Grant *grant, GrantVerdict verdict)
{
	int			refused = request->options->refused_exit;

	switch (verdict)
	{
		case GRANT_OURS:
			break;
		case GRANT_REFUSED:
			tell_refusal(conn, request);
			return refused;
		case GRANT_DOUBTFUL:
			output_error(CLI_EXIT_UNREACHABLE, "the answer to the request for lock \"%s\" was lost", request->name);
			output_detail("The server may have granted a lease to owner \"%s\".", request->owner);
			return CLI_EXIT_UNREACHABLE;
		case GRANT_SIGNALLED:
			return signals_die(grant->signal);
		case GRANT_FAILED:
			/* The server ends a wait in a deadlock; no lock was acquired. */
			return conn_report_as(conn, (conn->error.trouble == CONN_DEADLOCK) ? refused : conn_exit_code(conn));
	}
	return CLI_EXIT_OK;
}
