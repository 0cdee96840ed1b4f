/*-------------------------------------------------------------------------
 *
 * dlock.c
 *	  Leases of dlock for C, over libpq.
 *
 * NOTES
 *	  One thread, the keeper, talks with the server, and never waits for it longer
 *	  than it means to.  (The name of a host is looked up by libpq, which may take its
 *	  time.)  Another one watches the clock, and stops the work in time whatever the
 *	  keeper hangs in.  The connection is the caller's before the keeper begins and
 *	  after it has ended, so nothing protects it; "lock" protects what both threads
 *	  and the caller use.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "dlock.h"

#ifdef CLOCK_BOOTTIME
#define CLOCK_ID		CLOCK_BOOTTIME
#else
#define CLOCK_ID		CLOCK_MONOTONIC
#endif

#define MIN(a, b)		((a) < (b) ? (a) : (b))

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

#define MESSAGE_SIZE	512

/* Bytes of a name for the owner, to which a random part is added. */
#define LONGEST_OWNER	200

static const char acquire_sql[] =
"SELECT dlock_acquire(name => $1, owner => $2, ttl => $3::interval, wait => $4::interval,"
" mode => $5, permits => $6::integer, reentry => 'return', lock_delay => $7::interval,"
" min_hold => $8::interval, payload => $9::jsonb)";
static const char renew_sql[] = "SELECT dlock_renew_token($1, $2)";
static const char release_sql[] = "SELECT dlock_release_token($1, $2)";

/* Add a pair to the setting, for this transaction. */
static const char present_sql[] =
"SELECT set_config('dlock.tokens', CASE WHEN position($1::text || ',' IN t || ',') > 0 THEN t"
" WHEN t = '' THEN $1::text ELSE t || ',' || $1::text END, true)"
" FROM (SELECT coalesce(current_setting('dlock.tokens', true), '') AS t) AS now";

struct DlockLease
{
	char	   *conninfo;
	char	   *name;
	char	   *mode;
	char	   *payload;
	char		owner[256];
	DlockOptions options;
	int64_t		renew_every;
	int64_t		margin;
	char		token[24];

	PGconn	   *conn;
	int			wake[2];		/* a pipe that ends the keeper's sleep */
	pthread_t	keeper;
	pthread_t	watcher;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	int64_t		deadline;
	DlockStatus status;			/* DLOCK_OK: there is a lease */
	bool		finishing;
	PGconn	   *conns[MAX_CONNS];	/* in transactions */
	char		trouble[MESSAGE_SIZE];	/* why there was no renewal, or empty */

	char		message[MESSAGE_SIZE];
	char		sqlstate[6];
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

/* The sum of a time and a span; either may be DLOCK_FOREVER. */
static int64_t
add(int64_t a, int64_t b)
{
	return (a > DLOCK_FOREVER - b) ? DLOCK_FOREVER : a + b;
}

static void complain(DlockLease *lease, const char *format,...)
			__attribute__((format(printf, 2, 3)));

static void
complain(DlockLease *lease, const char *format,...)
{
	va_list		args;
	size_t		length;

	va_start(args, format);
	vsnprintf(lease->message, sizeof(lease->message), format, args);
	va_end(args);
	for (length = strlen(lease->message); length > 0 && lease->message[length - 1] == '\n';)
		lease->message[--length] = '\0';
}

/* ---- the connection ---- */

typedef enum Event
{
	EVENT_READY,
	EVENT_LATE,
	EVENT_WOKEN
} Event;

/* Wait for a descriptor, or until the other one (either may be -1) is readable. */
static Event
wait_for(int fd, short events, int waker, int64_t until)
{
	for (;;)
	{
		struct pollfd fds[2] = {{fd, events, 0}, {waker, POLLIN, 0}};
		int64_t		left = until - now_ms();

		if (left <= 0)
			return EVENT_LATE;
		if (poll(fds, 2, (int) MIN(left, PIECE)) <= 0)
			continue;
		return (fds[0].revents != 0) ? EVENT_READY : EVENT_WOKEN;
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
connect_until(DlockLease *lease, int64_t until)
{
	const char *keys[] = {"target_session_attrs", "dbname", NULL};
	const char *values[] = {"read-write", lease->conninfo, NULL};
	PostgresPollingStatusType want = PGRES_POLLING_WRITING;

	lease->conn = PQconnectStartParams(keys, values, 1);
	while (lease->conn != NULL && PQstatus(lease->conn) != CONNECTION_BAD && want != PGRES_POLLING_OK &&
		   want != PGRES_POLLING_FAILED)
	{
		if (wait_for(PQsocket(lease->conn), (want == PGRES_POLLING_READING) ? POLLIN : POLLOUT, -1, until) != EVENT_READY)
		{
			complain(lease, "the server does not answer");
			return drop(lease);
		}
		want = PQconnectPoll(lease->conn);
	}
	if (PQstatus(lease->conn) == CONNECTION_OK)
		return ANSWER_VALUE;
	complain(lease, "%s", (lease->conn != NULL) ? PQerrorMessage(lease->conn) : "out of memory");
	return drop(lease);
}

/* Is this an error that says nothing about the lease? */
static bool
is_outage(const char *sqlstate)
{
	return sqlstate == NULL || strncmp(sqlstate, "08", 2) == 0 || strncmp(sqlstate, "57P", 3) == 0 ||
		strcmp(sqlstate, "25006") == 0;
}

/* The answer to the request under way; "size" is that of "value". */
static Answer
take_answer(DlockLease *lease, int waker, int64_t until, char *value, size_t size)
{
	Answer		answer = ANSWER_VALUE;
	PGresult   *result;
	PGresult   *rest;

	value[0] = '\0';
	while (PQisBusy(lease->conn))
	{
		Event		event = wait_for(PQsocket(lease->conn), POLLIN, waker, until);

		if (event == EVENT_WOKEN)
			return ANSWER_UNWANTED;
		if (event == EVENT_LATE)
		{
			complain(lease, "the server does not answer");
			return drop(lease);
		}
		if (!PQconsumeInput(lease->conn))
			break;
	}
	result = PQgetResult(lease->conn);
	if (PQresultStatus(result) == PGRES_TUPLES_OK)
		snprintf(value, size, "%s", PQgetvalue(result, 0, 0));
	else
	{
		const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);

		complain(lease, "%s", PQerrorMessage(lease->conn));
		snprintf(lease->sqlstate, sizeof(lease->sqlstate), "%s", (sqlstate != NULL) ? sqlstate : "");
		answer = is_outage(sqlstate) ? ANSWER_OUTAGE : ANSWER_ERROR;
	}
	PQclear(result);
	if (answer == ANSWER_OUTAGE)
		return drop(lease);
	while ((rest = PQgetResult(lease->conn)) != NULL)
		PQclear(rest);
	return answer;
}

static Answer
ask(DlockLease *lease, int waker, int64_t until, const char *sql, int count, const char *const *params,
	char *value, size_t size)
{
	value[0] = '\0';
	lease->sqlstate[0] = '\0';
	if (lease->conn == NULL && connect_until(lease, MIN(until, now_ms() + ANSWER_WITHIN)) != ANSWER_VALUE)
		return ANSWER_OUTAGE;
	if (!PQsendQueryParams(lease->conn, sql, count, NULL, params, NULL, NULL, 0))
	{
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

/* Release the lease with this token; false if the server does not say. */
static bool
give_back(DlockLease *lease, bool *held)
{
	int64_t		until = now_ms() + UNDO_WITHIN;

	while (now_ms() < until)
	{
		if (ask_held(lease, until, release_sql, held) == ANSWER_VALUE)
			return true;
		(void) wait_for(-1, 0, -1, MIN(until, now_ms() + SHORT_NAP));
	}
	return false;
}

/* ---- before ---- */

static char *
copy_of(const char *text)
{
	return (text != NULL) ? strdup(text) : NULL;
}

/* An owner of its own for each lease. */
static void
make_owner(DlockLease *lease)
{
	char		host[64] = "localhost";
	uint64_t	number = (uint64_t) now_ms() ^ ((uint64_t) (uintptr_t) lease << 16);
	int			random = open("/dev/urandom", O_RDONLY | O_CLOEXEC);

	if (random >= 0)
	{
		uint64_t	noise;

		if (read(random, &noise, sizeof(noise)) == sizeof(noise))
			number = noise;
		close(random);
	}
	(void) gethostname(host, sizeof(host) - 1);
	if (lease->options.owner != NULL)
	{
		size_t		length = strlen(lease->options.owner);

		/* Not within a character of UTF-8. */
		if (length > LONGEST_OWNER)
		{
			length = LONGEST_OWNER;
			while (length > 0 && ((unsigned char) lease->options.owner[length] & 0xC0) == 0x80)
				length--;
		}
		snprintf(lease->owner, sizeof(lease->owner), "%.*s/%016" PRIx64, (int) length, lease->options.owner, number);
	}
	else
		snprintf(lease->owner, sizeof(lease->owner), "%s/%d/%016" PRIx64, host, (int) getpid(), number);
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
	lease->renew_every = MIN(options->ttl_ms / 6, RENEW_EVERY);
	lease->margin = MIN(options->ttl_ms / 6, MARGIN);
	make_owner(lease);
	lease->options.owner = NULL;
	pthread_mutex_init(&lease->lock, NULL);
	pthread_condattr_init(&attributes);
#ifdef __linux__
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
#endif
	pthread_cond_init(&lease->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	if (pipe(lease->wake) != 0)
		lease->wake[0] = lease->wake[1] = -1;
	if (lease->conninfo == NULL || lease->name == NULL || lease->mode == NULL ||
		(options->payload != NULL && lease->payload == NULL) || lease->wake[0] < 0)
	{
		dlock_lease_free(lease);
		return NULL;
	}
	(void) fcntl(lease->wake[0], F_SETFD, FD_CLOEXEC);
	(void) fcntl(lease->wake[1], F_SETFD, FD_CLOEXEC);
	return lease;
}

void
dlock_lease_free(DlockLease *lease)
{
	if (lease == NULL)
		return;
	PQfinish(lease->conn);
	if (lease->wake[0] >= 0)
	{
		close(lease->wake[0]);
		close(lease->wake[1]);
	}
	pthread_mutex_destroy(&lease->lock);
	pthread_cond_destroy(&lease->changed);
	free(lease->conninfo);
	free(lease->name);
	free(lease->mode);
	free(lease->payload);
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
	lease->token[0] = '\0';
}

/* Ask for the lease. */
static DlockStatus
request(DlockLease *lease)
{
	const DlockOptions *options = &lease->options;
	int			waker = (options->give_up_fd > 0) ? options->give_up_fd : -1;
	char		ttl[40];
	char		wait[40];
	char		permits[16];
	char		lock_delay[40];
	char		min_hold[40];
	const char *params[] = {
		lease->name, lease->owner, span_sql(options->ttl_ms, ttl),
		(options->wait_ms != DLOCK_FOREVER) ? span_sql(options->wait_ms, wait) : NULL,
		lease->mode, (options->permits > 0) ? permits : NULL,
		span_sql(options->lock_delay_ms, lock_delay), span_sql(options->min_hold_ms, min_hold), lease->payload
	};

	snprintf(permits, sizeof(permits), "%d", options->permits);
	switch (ask(lease, waker, add(now_ms() + ANSWER_WITHIN, options->wait_ms), acquire_sql, 9, params,
				lease->token, sizeof(lease->token)))
	{
		case ANSWER_VALUE:
			break;
		case ANSWER_ERROR:
			return DLOCK_ERROR;
		case ANSWER_OUTAGE:
			return DLOCK_UNREACHABLE;
		case ANSWER_UNWANTED:
			give_up(lease);
			complain(lease, "given up waiting for lock \"%s\"", lease->name);
			return DLOCK_GIVEN_UP;
	}
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
	char		message[MESSAGE_SIZE];
	char		sqlstate[6];
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
	memcpy(message, lease->message, sizeof(message));
	memcpy(sqlstate, lease->sqlstate, sizeof(sqlstate));
	(void) give_back(lease, &held);
	memcpy(lease->message, message, sizeof(message));
	memcpy(lease->sqlstate, sqlstate, sizeof(sqlstate));
	return (answer == ANSWER_ERROR) ? DLOCK_ERROR : DLOCK_UNREACHABLE;
}

/* ---- during the work ---- */

/* Stop the work, once. */
static void
stop(DlockLease *lease, DlockStatus status)
{
	pthread_mutex_lock(&lease->lock);
	if (lease->status != DLOCK_OK || lease->finishing)
	{
		pthread_mutex_unlock(&lease->lock);
		return;
	}
	lease->status = status;
	for (int i = 0; i < MAX_CONNS; i++)
	{
		if (lease->conns[i] != NULL)
			(void) shutdown(PQsocket(lease->conns[i]), SHUT_RDWR);
	}
	pthread_cond_broadcast(&lease->changed);
	pthread_mutex_unlock(&lease->lock);
	if (lease->options.on_lost != NULL)
		lease->options.on_lost(lease, lease->options.argument);
}

/* Renew until the work has ended, or there is nothing to be kept. */
static void *
keep(void *argument)
{
	DlockLease *lease = argument;
	int64_t		next = lease->deadline - lease->options.ttl_ms + lease->renew_every;

	while (wait_for(-1, 0, lease->wake[0], next) == EVENT_LATE)
	{
		int64_t		sent = now_ms();
		bool		held;
		Answer		answer;

		pthread_mutex_lock(&lease->lock);
		if (lease->status != DLOCK_OK)
		{
			pthread_mutex_unlock(&lease->lock);
			break;
		}
		pthread_mutex_unlock(&lease->lock);

		answer = ask_held(lease, sent + lease->margin, renew_sql, &held);
		if (answer == ANSWER_VALUE && !held)
		{
			stop(lease, DLOCK_LOST);
			break;
		}
		pthread_mutex_lock(&lease->lock);
		if (answer == ANSWER_VALUE)
		{
			lease->deadline = sent + lease->options.ttl_ms;
			lease->trouble[0] = '\0';
			next = sent + lease->renew_every;
		}
		else
		{
			memcpy(lease->trouble, lease->message, sizeof(lease->trouble));
			next = now_ms() + lease->renew_every / 4;
		}
		pthread_mutex_unlock(&lease->lock);
	}
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
		int64_t		left = lease->deadline - lease->margin - now_ms();
		struct timespec until;

		if (left <= 0)
			break;
		left = MIN(left, PIECE);
#ifdef __linux__
		clock_gettime(CLOCK_MONOTONIC, &until);
#else
		clock_gettime(CLOCK_REALTIME, &until);
#endif
		until.tv_sec += (until.tv_nsec / 1000000 + left) / 1000;
		until.tv_nsec = (until.tv_nsec / 1000000 + left) % 1000 * 1000000;
		pthread_cond_timedwait(&lease->changed, &lease->lock, &until);
	}
	pthread_mutex_unlock(&lease->lock);
	stop(lease, DLOCK_UNREACHABLE);
	return NULL;
}

DlockStatus
dlock_lease_acquire(DlockLease *lease)
{
	int64_t		sent = now_ms();
	DlockStatus status = request(lease);
	bool		held;

	if (status == DLOCK_OK && now_ms() - sent > lease->renew_every / 2)
		status = renew_grant(lease, &sent);
	lease->deadline = (status == DLOCK_OK) ? sent + lease->options.ttl_ms : sent;
	lease->status = status;
	lease->finishing = false;
	lease->trouble[0] = '\0';
	if (status != DLOCK_OK)
		return status;

	if (pthread_create(&lease->watcher, NULL, watch, lease) == 0)
	{
		if (pthread_create(&lease->keeper, NULL, keep, lease) == 0)
			return DLOCK_OK;
		pthread_mutex_lock(&lease->lock);
		lease->finishing = true;
		pthread_cond_broadcast(&lease->changed);
		pthread_mutex_unlock(&lease->lock);
		pthread_join(lease->watcher, NULL);
	}
	(void) give_back(lease, &held);
	complain(lease, "could not create a thread");
	return lease->status = DLOCK_ERROR;
}

bool
dlock_lease_is_lost(DlockLease *lease)
{
	bool		late;
	bool		lost;

	pthread_mutex_lock(&lease->lock);
	late = now_ms() >= lease->deadline - lease->margin;
	lost = late || lease->status != DLOCK_OK;
	pthread_mutex_unlock(&lease->lock);
	if (late)
		stop(lease, DLOCK_UNREACHABLE);
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
	return lease->message;
}

const char *
dlock_lease_sqlstate(const DlockLease *lease)
{
	return lease->sqlstate;
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
	bool		done = PQresultStatus(result) == PGRES_COMMAND_OK;

	/* The commit of a transaction that has failed is a rollback. */
	if (strcmp(sql, "COMMIT") == 0)
		done = done && strcmp(PQcmdStatus(result), "COMMIT") == 0;
	PQclear(result);
	return done;
}

/* Present the token in the transaction. */
static bool
present(DlockLease *lease, PGconn *conn)
{
	char	   *pair = malloc(2 * strlen(lease->name) + sizeof(lease->token) + 4);
	const char *params[] = {pair};
	char	   *to = pair;
	PGresult   *result;
	bool		done;

	if (pair == NULL)
		return false;
	*to++ = '"';
	for (const char *from = lease->name; *from != '\0'; from++)
	{
		if (*from == '"')
			*to++ = '"';
		*to++ = *from;
	}
	sprintf(to, "\"=%s", lease->token);
	result = PQexecParams(conn, present_sql, 1, NULL, params, NULL, NULL, 0);
	done = PQresultStatus(result) == PGRES_TUPLES_OK;
	PQclear(result);
	free(pair);
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
	bool		done;

	if (dlock_lease_is_lost(lease))
	{
		dlock_lease_rollback(lease, conn);
		return false;
	}
	done = execute(conn, "COMMIT");
	(void) replace_conn(lease, conn, NULL);
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
	char		byte;
	bool		held = false;
	bool		told;

	pthread_mutex_lock(&lease->lock);
	lease->finishing = true;
	pthread_cond_broadcast(&lease->changed);
	pthread_mutex_unlock(&lease->lock);
	while (write(lease->wake[1], ".", 1) != 1)
		;
	pthread_join(lease->keeper, NULL);
	pthread_join(lease->watcher, NULL);
	if (read(lease->wake[0], &byte, 1) != 1)
		complain(lease, "the pipe is broken");

	told = give_back(lease, &held);
	if (lease->status == DLOCK_LOST)
		complain(lease, "the lease on \"%s\" is lost", lease->name);
	else if (lease->status == DLOCK_UNREACHABLE)
		complain(lease, "the lease on \"%s\" could not be renewed in time: %.300s", lease->name,
				 (lease->trouble[0] != '\0') ? lease->trouble : "this process did not get to run");
	else if (told ? !held : now_ms() >= lease->deadline)
	{
		complain(lease, "the lease on \"%s\" was lost before the work had ended", lease->name);
		lease->status = DLOCK_LOST;
	}
	return lease->status;
}
