/*-------------------------------------------------------------------------
 *
 * grant.c
 *	  Acquiring a lease, and giving it back.
 *
 * NOTES
 *	  A connection may break between the grant and its answer.  Then the request
 *	  is sent again.  For an owner that is this process's own it has reentry => 'return',
 *	  so the server answers with the token of a lease that it has granted.  For any
 *	  other owner it has 'deny': that lease may be another client's.
 *
 *	  A wait is one statement, however long it is, so it keeps its place in the
 *	  queue.
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "hold.h"
#include "output.h"

/* From one attempt to the next while the backend of a lost connection still waits. */
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

typedef struct GrantTry
{
	Ask			ask;
	const GrantRequest *request;
	Grant	   *grant;
} GrantTry;

/* Ask for the lease, and wait so long for the lock; CLI_FOREVER: no limit. */
static void
send_acquire(Ask *ask, CliTime span)
{
	GrantTry   *try = (GrantTry *) ask;
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
	conn_send(ask->conn, clock_add(span, GRANT_WITHIN), options->path ? acquire_path_sql : acquire_sql, 10, params);
}

static void
note_grant(Ask *ask)
{
	Grant	   *grant = ((GrantTry *) ask)->grant;
	const char *token = (ask->conn->answer != NULL) ? conn_value(ask->conn, 0) : NULL;

	if (token != NULL && grant->token[0] == '\0')
		strncpy(grant->token, token, sizeof(grant->token) - 1);
}

/*
 * Give back what has been granted, or may have been: without its token, what the
 * owner holds, if no other process uses that name.
 */
static void
give_back(Ask *ask, CliTime end)
{
	Conn	   *conn = ask->conn;
	const GrantRequest *request = ((GrantTry *) ask)->request;
	bool		by_owner = ask->in_doubt && request->is_unique;
	const char *token = ((GrantTry *) ask)->grant->token;
	const ConnParam params[] = {
		CONN_TEXT(request->name),
		by_owner ? CONN_TEXT(request->owner) : CONN_BIGINT(token)
	};

	if (*token == '\0' && !by_owner)
		return;
	if (loop_pause(conn, end, true) != 0 || conn->state != CONN_IDLE ||
		!loop_insist(conn, ASK_UNDO_WITHIN, by_owner ? release_sql : release_token_sql, 2, params))
		output_warning("the lease on \"%s\" could not be given back, and ends by itself", request->name);
}

static AskVerdict
take_answer(Ask *ask)
{
	const GrantTry *try = (GrantTry *) ask;
	bool		is_error = ask->conn->answer == NULL;

	if (try->grant->token[0] != '\0')
		return ASK_GRANTED;

	/* It waits for the lease that was granted to the lost connection. */
	if (is_error && ask->conn->error.trouble == CONN_DEADLOCK && ask->in_doubt && try->request->is_unique)
	{
		(void) clock_poll(NULL, 0, clock_now() + RETRY_NAP);
		return ASK_AGAIN;
	}

	/* A timeout of the server's may be shorter than ours. */
	if (is_error && ask->conn->error.trouble != CONN_INTERRUPTED)
		return ASK_FAILED;
	return (clock_now() < ask->end) ? ASK_AGAIN : ASK_REFUSED;
}

/* A wait keeps its place in the queue as long as its statement. */
static const AskKind lease_kind = {CLI_FOREVER, GRANT_WITHIN, send_acquire, note_grant, take_answer, give_back};

/*
 * There is no grant, but an answer was lost, and others use this owner: the server may
 * have granted a lease.  Whether it is held, it says itself; if not, it may be.
 */
static AskVerdict
check_doubt(Conn *conn, const GrantRequest *request, AskVerdict verdict)
{
	const ConnParam params[] = {CONN_TEXT(request->name), CONN_TEXT(request->owner)};
	bool		is_refused = verdict == ASK_REFUSED ||
		(verdict == ASK_FAILED && conn->error.trouble == CONN_DEADLOCK);

	if (verdict == ASK_FAILED && !is_refused && conn->state == CONN_IDLE)
		return verdict;
	if (conn->state == CONN_IDLE &&
		conn_ask(conn, GRANT_WITHIN, is_held_sql, 2, params) != NULL && !conn_is_true(conn, 0))
		return verdict;
	if (is_refused)
		return ASK_DOUBTFUL;
	output_warning("the server may have granted a lease on \"%s\" to owner \"%s\"", request->name, request->owner);
	return verdict;
}

/*
 * Acquire a lease, waiting for it as long as the options say.  A connection
 * that is lost meanwhile is made anew, but there has to have been one.  "grant"
 * is all zero, or what has been granted to the same owner before.
 */
AskVerdict
grant_acquire(Conn *conn, const GrantRequest *request, Grant *grant)
{
	GrantTry	try = {
		.ask = {
			.kind = &lease_kind,
			.conn = conn,
			.end = clock_add(clock_now(), request->options->wait),
			.was_up = conn->schema != NULL,
			.was_answered = conn->schema != NULL,
			.in_doubt = grant->token[0] != '\0'
		},
		.request = request,
		.grant = grant
	};
	AskVerdict	verdict;

	memset(grant, 0, sizeof(*grant));
	verdict = loop_ask(&try.ask);
	grant->signal = try.ask.signal;
	if (try.ask.in_doubt && !request->is_unique && grant->token[0] == '\0')
		verdict = check_doubt(conn, request, verdict);
	if (verdict == ASK_GRANTED)
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
	const ConnParam params[] = {CONN_TEXT(name), CONN_BIGINT(token)};
	bool		done = loop_insist(conn, ASK_UNDO_WITHIN, release_token_sql, 2, params);

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
grant_explain(Conn *conn, const GrantRequest *request, const Grant *grant, AskVerdict verdict)
{
	int			refused = request->options->refused_exit;

	switch (verdict)
	{
		case ASK_REFUSED:
			tell_refusal(conn, request);
			return refused;
		case ASK_DOUBTFUL:
			output_error(CLI_EXIT_UNREACHABLE, "the answer to the request for lock \"%s\" was lost", request->name);
			output_detail("The server may have granted a lease to owner \"%s\".", request->owner);
			return CLI_EXIT_UNREACHABLE;
		case ASK_SIGNALLED:
			return signals_die(grant->signal);
		case ASK_FAILED:
			/* The server ends a wait in a deadlock; no lock was acquired. */
			return conn_report_as(conn, (conn->error.trouble == CONN_DEADLOCK) ? refused : conn_exit_code(conn));
		default:
			return CLI_EXIT_OK;
	}
}
