/*-------------------------------------------------------------------------
 *
 * dlock.c
 *	  Leases of dlock for C, over libpq.
 *
 * NOTES
 *	  One thread, the keeper, talks with the server.  It does not wait long, but
 *	  libpq's resolver of host names may.  Another one watches the clock, and stops
 *	  the work in time whatever the keeper hangs in.  The connection is the caller's
 *	  before the keeper begins and after it has ended, so nothing protects it; "lock"
 *	  protects what both threads and the caller use.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "dlock.h"

#ifdef CLOCK_BOOTTIME
#define CLOCK_ID		CLOCK_BOOTTIME
#else
#define CLOCK_ID		CLOCK_MONOTONIC
#endif

/* The clock that pthread_cond_timedwait() goes by. */
#ifdef __linux__
#define COND_CLOCK_ID	CLOCK_MONOTONIC
#else
#define COND_CLOCK_ID	CLOCK_REALTIME
#endif

/*
 * How often to renew, which is how a loss is learned of, and how long before its end a
 * lease is given up that was not renewed; both a sixth of the ttl if that is less.
 * Times and spans are in milliseconds.
 */
#define RENEW_EVERY		2000
#define MARGIN			5000

/* How long a request, its connection included, may take; and what tidies up. */
#define ANSWER_WITHIN	10000
#define UNDO_WITHIN		3000
#define SHORT_NAP		100

/* Waits are made of pieces of this length, as poll() does not count a suspension. */
#define PIECE			1000

/* The most connections in transactions of a lease. */
#define MAX_CONNS		16

/* Bytes of a name for the owner, to which a random part is added. */
#define LONGEST_OWNER	200

static const char acquire_sql[] =
"SELECT dlock_acquire(name => $1, owner => $2, ttl => $3::interval, wait => $4::interval,"
" mode => $5, permits => $6::integer, reentry => 'return', lock_delay => $7::interval,"
" min_hold => $8::interval, payload => $9::jsonb)";
static const char renew_sql[] = "SELECT dlock_renew_token($1, $2)";
static const char release_sql[] = "SELECT dlock_release_token($1, $2)";

/* By the owner, which no other request has.  A wait under way ends first: NULL, to be asked again. */
static const char undo_sql[] =
"SELECT CASE WHEN (SELECT count(pg_cancel_backend(pid)) FROM dlock_waiters WHERE owner = $2) = 0"
" THEN dlock_release($1, $2) END";

/* Add a pair to the setting, for this transaction.  The name is UTF-8 on any connection. */
static const char present_sql[] =
"SELECT set_config('dlock.tokens', CASE WHEN position(p || ',' IN t || ',') > 0 THEN t"
" WHEN t = '' THEN p ELSE t || ',' || p END, true)"
" FROM (SELECT coalesce(current_setting('dlock.tokens', true), '') AS t,"
" '\"' || replace(convert_from($1, 'UTF8'), '\"', '\"\"') || '\"=' || $2 AS p) AS now";

typedef struct Complaint
{
	char		message[512];
	char		sqlstate[6];
} Complaint;

struct DlockLease
{
	char	   *conninfo;
	char	   *name;
	char	   *mode;
	char	   *payload;
	char	   *who;
	char		owner[256];		/* who, and a random part */
	DlockOptions options;
	int64_t		renew_every;
	int64_t		margin;
	char		token[24];

	PGconn	   *conn;
	bool		unheard;		/* the last request may have been done,
								 * without an answer */
	pthread_t	keeper;
	pthread_t	watcher;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	int64_t		deadline;
	DlockStatus status;			/* DLOCK_OK: there is a lease; the caller's
								 * while finishing */
	bool		running;		/* there are the two threads */
	bool		finishing;		/* there is no work, or it has ended */
	bool		telling;		/* on_lost is running, in this thread: */
	pthread_t	teller;
	PGconn	   *conns[MAX_CONNS];	/* in transactions */
	Complaint	trouble;		/* why there was no renewal, or empty */

	Complaint	complaint;		/* of the last request */
	Complaint	told;			/* what the caller is told */
};

typedef enum Answer
{
	ANSWER_VALUE,				/* in "value"; NULL is an empty string */
	ANSWER_ERROR,				/* of the server */
	ANSWER_OUTAGE,				/* none; the connection is dropped */
	ANSWER_UNWANTED				/* somebody has given up waiting for it */
} Answer;

static int64_t
now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_ID, &now);
	return (int64_t) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void
__attribute__((format(printf, 2, 3)))
complain(DlockLease *lease, const char *format,...)
{
	char	   *message = lease->complaint.message;
	va_list		args;
	size_t		length;

	va_start(args, format);
	vsnprintf(message, sizeof(lease->complaint.message), format, args);
	va_end(args);
	for (length = strlen(message); length > 0 && message[length - 1] == '\n';)
		message[--length] = '\0';
}

/* ---- the connection ---- */

/*
 * Wait until the descriptor is ready (ANSWER_VALUE), the waker is readable
 * (ANSWER_UNWANTED), or it is late (ANSWER_OUTAGE).  Either may be -1.
 */
static Answer
wait_for(int fd, short events, int waker, int64_t until)
{
	for (;;)
	{
		struct pollfd fds[2] = {{fd, events, 0}, {waker, POLLIN, 0}};
		int64_t		left = until - now_ms();

		if (left <= 0)
			return ANSWER_OUTAGE;
		if (poll(fds, 2, (int) MIN(left, PIECE)) <= 0)
			continue;
		return (fds[0].revents != 0) ? ANSWER_VALUE : ANSWER_UNWANTED;
	}
}

static Answer
drop(DlockLease *lease)
{
	PQfinish(lease->conn);
	lease->conn = NULL;
	return ANSWER_OUTAGE;
}

static Answer
connect_until(DlockLease *lease, int waker, int64_t until)
{
	/* What comes before the user's own is a default. */
	const char *keys[] = {"target_session_attrs", "keepalives_idle", "keepalives_interval", "keepalives_count",
	"dbname", "client_encoding", NULL};
	const char *values[] = {"read-write", "10", "5", "3", lease->conninfo, "UTF8", NULL};
	PostgresPollingStatusType want = PGRES_POLLING_WRITING;

	lease->conn = PQconnectStartParams(keys, values, 1);
	while (PQstatus(lease->conn) != CONNECTION_BAD && want != PGRES_POLLING_OK && want != PGRES_POLLING_FAILED)
	{
		Answer		answer = wait_for(PQsocket(lease->conn), (want == PGRES_POLLING_READING) ? POLLIN : POLLOUT, waker, until);

		if (answer != ANSWER_VALUE)
		{
			complain(lease, "the server does not answer");
			(void) drop(lease);
			return answer;
		}
		want = PQconnectPoll(lease->conn);
	}
	if (PQstatus(lease->conn) == CONNECTION_OK)
		return ANSWER_VALUE;
	complain(lease, "%s", PQerrorMessage(lease->conn));
	return drop(lease);
}

/* The answer to the request under way; "size" is that of "value". */
static Answer
take_answer(DlockLease *lease, int waker, int64_t until, char *value, size_t size)
{
	Answer		answer = ANSWER_VALUE;
	PGresult   *result;

	value[0] = '\0';
	lease->unheard = true;
	while (PQisBusy(lease->conn))
	{
		answer = wait_for(PQsocket(lease->conn), POLLIN, waker, until);
		if (answer == ANSWER_UNWANTED)
			return answer;
		if (answer == ANSWER_OUTAGE)
		{
			complain(lease, "the server does not answer");
			return drop(lease);
		}
		if (!PQconsumeInput(lease->conn))
			break;
	}
	result = PQgetResult(lease->conn);
	lease->unheard = false;
	if (PQresultStatus(result) == PGRES_TUPLES_OK)
		snprintf(value, size, "%s", PQgetvalue(result, 0, 0));
	else
	{
		const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);

		complain(lease, "%s", PQerrorMessage(lease->conn));
		snprintf(lease->complaint.sqlstate, sizeof(lease->complaint.sqlstate), "%s", (sqlstate != NULL) ? sqlstate : "");
		lease->unheard = sqlstate == NULL || strncmp(sqlstate, "08", 2) == 0 || strncmp(sqlstate, "57P", 3) == 0;
		/* A standby does nothing, and says nothing about the lease. */
		answer = (lease->unheard || strcmp(sqlstate, "25006") == 0) ? ANSWER_OUTAGE : ANSWER_ERROR;
	}
	PQclear(result);
	if (answer == ANSWER_OUTAGE)
		return drop(lease);
	/* The rest comes with the answer, or is not waited for. */
	while (!PQisBusy(lease->conn) && (result = PQgetResult(lease->conn)) != NULL)
		PQclear(result);
	if (PQtransactionStatus(lease->conn) == PQTRANS_ACTIVE)
		(void) drop(lease);
	return answer;
}

static Answer
ask(DlockLease *lease, int waker, int64_t until, const char *sql, int count, const char *const *params,
	char *value, size_t size)
{
	Answer		answer;

	value[0] = '\0';
	lease->complaint.sqlstate[0] = '\0';
	lease->unheard = false;
	if (lease->conn == NULL && (answer = connect_until(lease, waker, MIN(until, now_ms() + ANSWER_WITHIN))) != ANSWER_VALUE)
		return answer;
	if (!PQsendQueryParams(lease->conn, sql, count, NULL, params, NULL, NULL, 0))
	{
		lease->unheard = true;
		complain(lease, "%s", PQerrorMessage(lease->conn));
		return drop(lease);
	}
	return take_answer(lease, waker, until, value, size);
}

/* Ask something about the lease with this token that is answered by true or false. */
static Answer
ask_held(DlockLease *lease, int64_t until, const char *sql, bool *held)
{
	const char *params[] = {lease->name, lease->token};
	char		value[8];
	Answer		answer = ask(lease, -1, until, sql, 2, params, value, sizeof(value));

	*held = answer == ANSWER_VALUE && value[0] == 't';
	return answer;
}

/*
 * Release the lease with this token, without a complaint; false if the server does not
 * say.  A request that was sent, and not answered, may have released it.
 */
static bool
give_back(DlockLease *lease, bool *held)
{
	int64_t		until = now_ms() + UNDO_WITHIN;
	Complaint	complaint = lease->complaint;
	Answer		answer;
	bool		in_doubt = false;

	while ((answer = ask_held(lease, until, release_sql, held)) != ANSWER_VALUE && now_ms() < until)
	{
		in_doubt |= lease->unheard;
		(void) wait_for(-1, 0, -1, MIN(until, now_ms() + SHORT_NAP));
	}
	lease->complaint = complaint;
	return answer == ANSWER_VALUE && (*held || !in_doubt);
}

/* If there was no answer to the request: leave behind neither a lease nor a wait for one. */
static void
undo_unheard(DlockLease *lease)
{
	const char *params[] = {lease->name, lease->owner};
	int64_t		until = now_ms() + UNDO_WITHIN;
	Complaint	complaint = lease->complaint;
	char		done[8] = "";

	if (!lease->unheard)
		return;
	while ((ask(lease, -1, until, undo_sql, 2, params, done, sizeof(done)) != ANSWER_VALUE || done[0] == '\0') &&
		   now_ms() < until)
		(void) wait_for(-1, 0, -1, MIN(until, now_ms() + SHORT_NAP));
	lease->complaint = complaint;
}

/* ---- before ---- */

static char *
copy_of(const char *text)
{
	return (text != NULL) ? strdup(text) : NULL;
}

/* An owner of its own for each request: the server may get to the undoing of one after the next. */
static void
make_owner(DlockLease *lease)
{
	char		process[100] = "localhost";
	const char *who = (lease->who != NULL) ? lease->who : process;
	uint64_t	number = 0;
	size_t		length;

	if (getentropy(&number, sizeof(number)) != 0)
		number = (uint64_t) now_ms() ^ ((uint64_t) (uintptr_t) lease << 16);
	(void) gethostname(process, 63);
	snprintf(process + strlen(process), 20, "/%d", (int) getpid());
	length = MIN(strlen(who), LONGEST_OWNER);
	/* Not within a character of UTF-8. */
	while (length > 0 && ((unsigned char) who[length] & 0xC0) == 0x80)
		length--;
	snprintf(lease->owner, sizeof(lease->owner), "%.*s/%016" PRIx64, (int) length, who, number);
}

DlockLease *
dlock_lease_new(const char *conninfo, const char *name, const DlockOptions *options)
{
	DlockLease *lease = calloc(1, sizeof(DlockLease));
	pthread_condattr_t attributes;

	if (lease == NULL)
		return NULL;
	lease->options = *options;
	lease->conninfo = copy_of(conninfo);
	lease->name = copy_of(name);
	lease->mode = copy_of((options->mode != NULL) ? options->mode : "exclusive");
	lease->payload = copy_of(options->payload);
	lease->who = copy_of(options->owner);
	lease->renew_every = MIN(options->ttl_ms / 6, RENEW_EVERY);
	lease->margin = MIN(options->ttl_ms / 6, MARGIN);
	lease->finishing = true;
	pthread_mutex_init(&lease->lock, NULL);
	pthread_condattr_init(&attributes);
#ifdef __linux__
	pthread_condattr_setclock(&attributes, COND_CLOCK_ID);
#endif
	pthread_cond_init(&lease->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	if (lease->conninfo != NULL && lease->name != NULL && lease->mode != NULL &&
		(lease->payload != NULL || options->payload == NULL) && (lease->who != NULL || options->owner == NULL))
		return lease;
	dlock_lease_free(lease);
	return NULL;
}

void
dlock_lease_free(DlockLease *lease)
{
	if (lease == NULL)
		return;
	(void) dlock_lease_release(lease);
	PQfinish(lease->conn);
	pthread_mutex_destroy(&lease->lock);
	pthread_cond_destroy(&lease->changed);
	free(lease->conninfo);
	free(lease->name);
	free(lease->mode);
	free(lease->payload);
	free(lease->who);
	free(lease);
}

static const char *
span_sql(int64_t span, char text[40])
{
	snprintf(text, 40, "%" PRId64 " milliseconds", span);
	return text;
}

static void *
cancel_in_thread(void *cancel)
{
	char		error[256];

	(void) PQcancel(cancel, error, sizeof(error));
	PQfreeCancel(cancel);
	return NULL;
}

/*
 * Cancel the request under way, and give back what it was granted all the same.
 * PQcancel() may wait for a server that does not answer, so another thread calls it.
 */
static void
give_up(DlockLease *lease)
{
	PGcancel   *cancel = PQgetCancel(lease->conn);
	pthread_t	thread;
	bool		held;

	if (cancel != NULL && pthread_create(&thread, NULL, cancel_in_thread, cancel) == 0)
		pthread_detach(thread);
	if (take_answer(lease, -1, now_ms() + UNDO_WITHIN, lease->token, sizeof(lease->token)) == ANSWER_VALUE &&
		lease->token[0] != '\0')
		(void) give_back(lease, &held);
	else
		undo_unheard(lease);
	lease->token[0] = '\0';
}

/* Ask for the lease. */
static DlockStatus
request(DlockLease *lease)
{
	const DlockOptions *options = &lease->options;
	int			waker = (options->give_up_fd > 0) ? options->give_up_fd : -1;
	char		spans[4][40];
	char		permits[16];
	Answer		answer;
	const char *params[] = {
		lease->name, lease->owner, span_sql(options->ttl_ms, spans[0]),
		(options->wait_ms != DLOCK_FOREVER) ? span_sql(options->wait_ms, spans[1]) : NULL,
		lease->mode, (options->permits > 0) ? permits : NULL,
		span_sql(options->lock_delay_ms, spans[2]), span_sql(options->min_hold_ms, spans[3]), lease->payload
	};

	snprintf(permits, sizeof(permits), "%d", options->permits);
	answer = ask(lease, waker, now_ms() + ANSWER_WITHIN + MIN(options->wait_ms, DLOCK_FOREVER / 2), acquire_sql, 9, params,
				 lease->token, sizeof(lease->token));
	if (answer == ANSWER_UNWANTED)
	{
		if (lease->conn != NULL)
			give_up(lease);
		complain(lease, "given up waiting for lock \"%s\"", lease->name);
		return DLOCK_GIVEN_UP;
	}
	undo_unheard(lease);
	if (answer != ANSWER_VALUE)
		return (answer == ANSWER_ERROR) ? DLOCK_ERROR : DLOCK_UNREACHABLE;
	if (lease->token[0] != '\0')
		return DLOCK_OK;
	complain(lease, "lock \"%s\" was not acquired", lease->name);
	return DLOCK_REFUSED;
}

/*
 * A grant that was waited for may be old; a renewal tells when it was held.  If that
 * fails the lease is given back, and the message is that of the failure.
 */
static DlockStatus
renew_grant(DlockLease *lease, int64_t *sent)
{
	Answer		answer;
	bool		held;

	*sent = now_ms();
	answer = ask_held(lease, *sent + lease->margin, renew_sql, &held);
	if (answer == ANSWER_VALUE)
	{
		if (held)
			return DLOCK_OK;
		complain(lease, "the lease on \"%s\" was lost at once", lease->name);
		return DLOCK_LOST;
	}
	(void) give_back(lease, &held);
	return (answer == ANSWER_ERROR) ? DLOCK_ERROR : DLOCK_UNREACHABLE;
}

/* ---- during the work ---- */

/* Stop the work, once.  Called with the lock held, which is let go of while on_lost runs. */
static void
stop(DlockLease *lease, DlockStatus status)
{
	if (lease->finishing || lease->status != DLOCK_OK)
		return;
	lease->status = status;
	lease->telling = true;
	lease->teller = pthread_self();
	for (int i = 0; i < MAX_CONNS; i++)
		if (lease->conns[i] != NULL)
			(void) shutdown(PQsocket(lease->conns[i]), SHUT_RDWR);
	pthread_mutex_unlock(&lease->lock);
	if (lease->options.on_lost != NULL)
		lease->options.on_lost(lease, lease->options.argument);
	pthread_mutex_lock(&lease->lock);
	lease->telling = false;
	pthread_cond_broadcast(&lease->changed);
}

/* Wait, holding the lock, for a change; not longer than until then. */
static void
wait_changed(DlockLease *lease, int64_t until)
{
	int64_t		left = MAX(MIN(until - now_ms(), PIECE), 1);
	struct timespec end;

	clock_gettime(COND_CLOCK_ID, &end);
	left += end.tv_nsec / 1000000;
	end.tv_sec += left / 1000;
	end.tv_nsec = left % 1000 * 1000000;
	pthread_cond_timedwait(&lease->changed, &lease->lock, &end);
}

/* Renew until the work has ended, or there is nothing to be kept. */
static void *
keep(void *argument)
{
	DlockLease *lease = argument;
	int64_t		next;

	pthread_mutex_lock(&lease->lock);
	next = lease->deadline - lease->options.ttl_ms + lease->renew_every;
	while (!lease->finishing && lease->status == DLOCK_OK)
	{
		int64_t		sent = now_ms();
		bool		held;
		Answer		answer;

		if (sent < next)
		{
			wait_changed(lease, next);
			continue;
		}
		pthread_mutex_unlock(&lease->lock);
		answer = ask_held(lease, sent + lease->margin, renew_sql, &held);
		pthread_mutex_lock(&lease->lock);
		if (answer == ANSWER_VALUE && !held)
			stop(lease, DLOCK_LOST);
		else if (held)
		{
			lease->deadline = sent + lease->options.ttl_ms;
			lease->trouble.message[0] = '\0';
			next = sent + lease->renew_every;
		}
		else
		{
			lease->trouble = lease->complaint;
			next = now_ms() + lease->renew_every / 4;
		}
	}
	pthread_mutex_unlock(&lease->lock);
	return NULL;
}

/* Stop the work when it is time to. */
static void *
watch(void *argument)
{
	DlockLease *lease = argument;

	pthread_mutex_lock(&lease->lock);
	while (!lease->finishing && lease->status == DLOCK_OK)
	{
		if (now_ms() >= lease->deadline - lease->margin)
			stop(lease, DLOCK_UNREACHABLE);
		else
			wait_changed(lease, lease->deadline - lease->margin);
	}
	pthread_mutex_unlock(&lease->lock);
	return NULL;
}

DlockStatus
dlock_lease_acquire(DlockLease *lease)
{
	int64_t		sent = now_ms();
	DlockStatus status;
	bool		watched;
	bool		held;

	if (lease->running)
		return lease->status;
	memset(&lease->told, 0, sizeof(lease->told));
	make_owner(lease);
	status = request(lease);
	if (status == DLOCK_OK && now_ms() - sent > lease->renew_every / 2)
		status = renew_grant(lease, &sent);

	/* The threads begin when the lock is free. */
	pthread_mutex_lock(&lease->lock);
	watched = status == DLOCK_OK && pthread_create(&lease->watcher, NULL, watch, lease) == 0;
	lease->running = watched && pthread_create(&lease->keeper, NULL, keep, lease) == 0;
	lease->finishing = !lease->running;
	lease->deadline = lease->running ? sent + lease->options.ttl_ms : sent;
	lease->status = (status == DLOCK_OK && !lease->running) ? DLOCK_ERROR : status;
	lease->trouble.message[0] = '\0';
	pthread_mutex_unlock(&lease->lock);
	if (lease->running)
		return DLOCK_OK;

	if (watched)
		pthread_join(lease->watcher, NULL);
	if (status == DLOCK_OK)
	{
		(void) give_back(lease, &held);
		complain(lease, "could not create a thread");
	}

	/* A late cancel may arrive before the next request. */
	(void) drop(lease);
	lease->told = lease->complaint;
	return lease->status;
}

bool
dlock_lease_is_lost(DlockLease *lease)
{
	bool		lost;

	pthread_mutex_lock(&lease->lock);
	if (now_ms() >= lease->deadline - lease->margin)
		stop(lease, DLOCK_UNREACHABLE);
	lost = lease->finishing || lease->status != DLOCK_OK;
	pthread_mutex_unlock(&lease->lock);
	return lost;
}

int64_t
dlock_lease_remaining_ms(DlockLease *lease)
{
	int64_t		left;

	pthread_mutex_lock(&lease->lock);
	left = lease->deadline - now_ms();
	pthread_mutex_unlock(&lease->lock);
	return (left > 0) ? left : 0;
}

int64_t
dlock_lease_token(const DlockLease *lease)
{
	return strtoll(lease->token, NULL, 10);
}

const char *
dlock_lease_message(const DlockLease *lease)
{
	return lease->told.message;
}

const char *
dlock_lease_sqlstate(const DlockLease *lease)
{
	return lease->told.sqlstate;
}

/* ---- transactions ---- */

/* Replace one connection in the list by another; false if it is not there. */
static bool
replace_conn(DlockLease *lease, PGconn *old, PGconn *new)
{
	bool		found = false;

	pthread_mutex_lock(&lease->lock);
	for (int i = 0; i < MAX_CONNS && !found; i++)
	{
		found = lease->conns[i] == old;
		if (found)
			lease->conns[i] = new;
	}
	pthread_mutex_unlock(&lease->lock);
	return found;
}

static bool
execute(PGconn *conn, const char *sql)
{
	PGresult   *result = PQexec(conn, sql);

	/* The commit of a transaction that has failed is a rollback. */
	bool		done = PQresultStatus(result) == PGRES_COMMAND_OK && strcmp(PQcmdStatus(result), sql) == 0;

	PQclear(result);
	return done;
}

/* Present the token in the transaction. */
static bool
present(DlockLease *lease, PGconn *conn)
{
	const char *params[] = {lease->name, lease->token};
	int			lengths[] = {(int) strlen(lease->name), 0};
	int			formats[] = {1, 0};
	PGresult   *result = PQexecParams(conn, present_sql, 2, NULL, params, lengths, formats, 0);
	bool		done = PQresultStatus(result) == PGRES_TUPLES_OK;

	PQclear(result);
	return done;
}

bool
dlock_lease_begin(DlockLease *lease, PGconn *conn)
{
	if (!replace_conn(lease, NULL, conn))
		return false;
	if (!dlock_lease_is_lost(lease) && execute(conn, "BEGIN") && present(lease, conn))
		return true;
	dlock_lease_rollback(lease, conn);
	return false;
}

bool
dlock_lease_commit(DlockLease *lease, PGconn *conn)
{
	bool		done = !dlock_lease_is_lost(lease) && execute(conn, "COMMIT");

	/* After a commit there is nothing to roll back. */
	dlock_lease_rollback(lease, conn);
	return done;
}

void
dlock_lease_rollback(DlockLease *lease, PGconn *conn)
{
	if (PQtransactionStatus(conn) != PQTRANS_IDLE)
		(void) execute(conn, "ROLLBACK");
	(void) replace_conn(lease, conn, NULL);
}

/* ---- after ---- */

DlockStatus
dlock_lease_release(DlockLease *lease)
{
	DlockStatus status;
	bool		held = false;
	bool		told;
	bool		running;

	/* on_lost must not wait for its own thread; others wait for on_lost. */
	pthread_mutex_lock(&lease->lock);
	status = lease->status;
	running = lease->running && !(lease->telling && pthread_equal(lease->teller, pthread_self()));
	lease->running &= !running;
	lease->finishing |= running;
	pthread_cond_broadcast(&lease->changed);
	while (running && lease->telling)
		pthread_cond_wait(&lease->changed, &lease->lock);
	pthread_mutex_unlock(&lease->lock);
	if (!running)
		return status;
	pthread_join(lease->keeper, NULL);
	pthread_join(lease->watcher, NULL);

	told = give_back(lease, &held);
	(void) drop(lease);
	if (lease->status == DLOCK_LOST)
		complain(lease, "the lease on \"%s\" is lost", lease->name);
	else if (lease->status == DLOCK_UNREACHABLE)
		complain(lease, "the lease on \"%s\" could not be renewed in time: %.300s", lease->name,
				 (lease->trouble.message[0] != '\0') ? lease->trouble.message : "this process did not get to run");
	else if (told ? !held : now_ms() >= lease->deadline)
	{
		complain(lease, "the lease on \"%s\" was lost before the work had ended", lease->name);
		lease->status = DLOCK_LOST;
	}
	if (lease->status != DLOCK_OK)
		lease->told = lease->complaint;
	return lease->status;
}
