/*-------------------------------------------------------------------------
 *
 * bench_client.c
 *	  One of the clients of dlock bench, a process of its own.
 *
 * NOTES
 *	  A client asks one statement after the other, as an application does that
 *	  uses libpq and does not prepare statements.  It ends when its time is over
 *	  or it is told to; no statement waits for long, so it notices.
 *
 *	  What is set is set for the session, since nothing but the statement is to be
 *	  measured.  Behind a pooler in transaction mode that would stay there, and
 *	  might be set in another session than the one that is measured.
 *
 *	  For hand-offs two clients take turns.  A hand-off counts if whoever got
 *	  the lock had asked for it before the other began to release it: then it is
 *	  the time from there to the answer.
 *
 * IDENTIFICATION
 *	  src/cli/bench_client.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "bench_client.h"
#include "clock.h"
#include "process.h"
#include "signals.h"

#define WITHIN		(30 * CLI_SECOND)

/* Locks that a client takes in turn. */
#define NLOCKS		1000

/* How long a lock is held before it is handed off, so that the other one waits. */
#define HOLD		(2 * CLI_MS)

#define ACQUIRE(wait) \
	"SELECT @dlock_acquire($1, owner => $2, ttl => '" BENCH_TTL "', wait => '" wait "')"

static const char statement_sql[] = "SELECT $1, $2";
static const char acquire_sql[] = ACQUIRE("0");
static const char wait_sql[] = ACQUIRE("500 ms");
static const char release_sql[] = "SELECT @dlock_release($1, owner => $2)";
static const char renew_sql[] = "SELECT @dlock_renew($1, owner => $2)";

static const char settings_sql[] =
"SELECT pg_catalog.set_config('synchronous_commit', $1, false),"
" pg_catalog.set_config('statement_timeout', '0', false),"
" pg_catalog.set_config('lock_timeout', '0', false)";

typedef struct Me
{
	BenchTeam  *team;
	BenchClient *slot;
	Conn		conn;
	char		owner[80];
	char		name[100];
	unsigned	turn;
} Me;

/* The owner of a client, and the beginning of the names of its locks. */
void
bench_client_name(const BenchTeam *team, int number, char *owner, size_t size)
{
	snprintf(owner, size, "%s/%d", team->prefix, number);
}

/* Leave word of what went wrong.  False, for callers to return. */
static bool
fail(Me *me)
{
	const ConnError *error = &me->conn.error;

	me->slot->code = conn_exit_code(&me->conn);
	snprintf(me->slot->error, sizeof(me->slot->error), "%s",
			 (error->message != NULL) ? error->message : "unknown");
	if (error->hint != NULL)
		snprintf(me->slot->hint, sizeof(me->slot->hint), "%s", error->hint);
	return false;
}

/* Something that the server must not answer: it is told as an error. */
static bool
fail_with(Me *me, const char *message)
{
	me->slot->code = CLI_EXIT_SERVER;
	snprintf(me->slot->error, sizeof(me->slot->error), "%s", message);
	return false;
}

static bool
ask(Me *me, const char *sql)
{
	const ConnParam params[] = {CONN_TEXT(me->name), CONN_TEXT(me->owner)};

	return conn_ask(&me->conn, WITHIN, sql, 2, params) != NULL || fail(me);
}

static bool
is_over(const Me *me)
{
	return me->team->stop || clock_now() >= me->team->end;
}

/* ---- what is measured ---- */

static void
choose_lock(Me *me)
{
	snprintf(me->name, sizeof(me->name), "%s/%u", me->owner, me->turn++ % NLOCKS);
}

static bool
do_statement(Me *me)
{
	return ask(me, statement_sql);
}

static bool
do_pair(Me *me)
{
	choose_lock(me);
	if (!ask(me, acquire_sql))
		return false;
	if (conn_value(&me->conn, 0) == NULL)
		return fail_with(me, "a lock that nobody else uses was refused");
	return ask(me, release_sql);
}

static bool
do_renew(Me *me)
{
	if (!ask(me, renew_sql))
		return false;
	return conn_is_true(&me->conn, 0) || fail_with(me, "a lease was lost while it was being renewed");
}

static bool
do_refused(Me *me)
{
	if (!ask(me, acquire_sql))
		return false;
	return conn_value(&me->conn, 0) == NULL || fail_with(me, "a lock that is held was granted");
}

static bool
repeat(Me *me, bool (*act) (Me *me))
{
	while (!is_over(me))
	{
		CliTime		sent = clock_now();

		if (!act(me))
			return false;
		bench_histogram_add(&me->slot->latencies, clock_now() - sent);
	}
	return true;
}

static bool
hand_off(Me *me)
{
	BenchTeam  *team = me->team;
	struct pollfd nothing;

	while (!is_over(me))
	{
		CliTime		sent = clock_now();
		CliTime		granted;

		if (!ask(me, wait_sql))
			return false;
		granted = clock_now();
		if (conn_value(&me->conn, 0) == NULL)
			continue;

		/* From here to the release nobody else looks at these. */
		if (team->holder != 0 && team->holder != me->slot->number && sent < team->released)
			bench_histogram_add(&me->slot->latencies, granted - team->released);
		(void) clock_poll(&nothing, 0, granted + HOLD);
		team->holder = me->slot->number;
		team->released = clock_now();
		if (!ask(me, release_sql))
			return false;
	}
	return true;
}

static bool
measure(Me *me)
{
	switch (me->team->kind)
	{
		case BENCH_STATEMENT:
			choose_lock(me);
			return repeat(me, do_statement);
		case BENCH_PAIR:
			return repeat(me, do_pair);
		case BENCH_RENEW:
			choose_lock(me);
			return ask(me, acquire_sql) && repeat(me, do_renew) && ask(me, release_sql);
		case BENCH_REFUSED:
			snprintf(me->name, sizeof(me->name), "%s/held", me->team->prefix);
			return repeat(me, do_refused);
		case BENCH_HANDOFF:
			snprintf(me->name, sizeof(me->name), "%s/handoff", me->team->prefix);
			return hand_off(me);
	}
	return false;
}

/* ---- the process ---- */

static bool
prepare(Me *me)
{
	const ConnParam params[] = {CONN_TEXT(me->team->durable ? "on" : "off")};

	conn_init(&me->conn, me->team->conninfo);
	me->conn.plain = true;
	return (conn_open(&me->conn) && conn_ask(&me->conn, WITHIN, settings_sql, 1, params) != NULL) ||
		fail(me);
}

/*
 * What a client does.  It writes a byte to "ready" when it is, and begins when
 * "go" has reached its end.  Does not return.
 */
void
bench_client_main(BenchTeam *team, int number, int ready, int go)
{
	Me			me = {.team = team, .slot = &team->clients[number - 1]};
	char		byte = 0;
	bool		done;

	/* Signals of the terminal are for the one that leads us. */
	signals_reset();
	signal(SIGINT, SIG_IGN);
	signal(SIGQUIT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
#ifdef __linux__
	prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif

	bench_client_name(team, number, me.owner, sizeof(me.owner));
	done = prepare(&me);
	if (write(ready, &byte, 1) != 1)
		_exit(CLI_EXIT_SYSTEM);
	while (read(go, &byte, 1) < 0 && errno == EINTR)
		;
	if (done)
		done = measure(&me);
	conn_close(&me.conn);
	me.slot->is_done = done;
	_exit(0);
}
