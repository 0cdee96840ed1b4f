/*-------------------------------------------------------------------------
 *
 * hold.c
 *	  What is held for a time: a lease, or a task that was captured.
 *
 * NOTES
 *	  The deadline is counted from before a request was sent that the server has granted, so
 *	  it is never later than that of the server.  The work is told to stop when the server
 *	  says that the lease is lost, and at the latest "margin" before the deadline: it is
 *	  not held any more, on_lost is called or an event comes up, and connections in
 *	  transactions of the lease are shut down, so that libpq returns.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"

/* Add a pair to the setting, for this transaction.  The name is UTF-8 on any connection. */
static const char present_sql[] =
"SELECT set_config('dlock.tokens', CASE WHEN position(p || ',' IN t || ',') > 0 THEN t"
" WHEN t = '' THEN p ELSE t || ',' || p END, true)"
" FROM (SELECT coalesce(current_setting('dlock.tokens', true), '') AS t,"
" '\"' || replace(convert_from($1, 'UTF8'), '\"', '\"\"') || '\"=' || $2 AS p) AS now";

/* ---- what the program is told ---- */

/* A lease of a worker is none of the program's. */
void
add_event(dlock_lease *lease)
{
	dlock_session *s = lease->session;
	dlock_lease **at = &s->events;

	if (lease->is_event || lease->call == CALL_TASK)
		return;
	if (*at == NULL)
		(void) !write(s->event[1], ".", 1);
	while (*at != NULL)
		at = &(*at)->next_event;
	*at = lease;
	lease->next_event = NULL;
	lease->is_event = true;
}

void
remove_event(dlock_lease *lease)
{
	dlock_session *s = lease->session;
	dlock_lease **at = &s->events;
	char		sink[1];

	if (!lease->is_event)
		return;
	while (*at != lease)
		at = &(*at)->next_event;
	*at = lease->next_event;
	lease->is_event = false;
	if (s->events == NULL)
		(void) !read(s->event[0], sink, 1);
}

int
dlock_event_fd(const dlock_session *session)
{
	return session->event[0];
}

dlock_lease *
dlock_next_event(dlock_session *session)
{
	dlock_lease *lease;

	if (session->pid != getpid())
		return NULL;
	pthread_mutex_lock(&session->lock);
	lease = session->events;
	if (lease != NULL)
		remove_event(lease);
	pthread_mutex_unlock(&session->lock);
	return lease;
}

void
tell_trouble(dlock_session *s, const char *message)
{
	if (s->on_trouble == NULL || s->trouble != NULL)
		return;
	s->trouble = strdup(message);
	wake_thread(s);
}

/* Call the program's functions, without the mutex meanwhile. */
void
tell_program(dlock_session *s)
{
	char	   *trouble = s->trouble;

	s->trouble = NULL;
	if (trouble != NULL)
	{
		pthread_mutex_unlock(&s->lock);
		s->on_trouble(trouble, s->argument);
		free(trouble);
		pthread_mutex_lock(&s->lock);
	}
	while (s->told != NULL)
	{
		dlock_lease *lease = s->told;

		s->told = lease->next_told;
		pthread_mutex_unlock(&s->lock);
		lease->on_lost(lease, lease->argument);
		pthread_mutex_lock(&s->lock);
		lease->telling = false;
		pthread_cond_broadcast(&lease->changed);
		unref_lease(lease);
	}
}

/* ---- during the work ---- */

/* When something is to be done. */
static int64_t
next_of(const dlock_lease *lease)
{
	int64_t		stop_at = lease->deadline - lease->margin;

	return (lease->renewing == 0) ? MIN(lease->renew_at, stop_at) : stop_at;
}

/* Keep what was granted by a request that was sent then. */
void
hold(dlock_lease *lease, int64_t sent)
{
	dlock_session *s = lease->session;

	lease->phase = PHASE_HELD;
	lease->every = MIN(lease->ttl / 6, RENEW_EVERY);
	lease->margin = MIN(lease->ttl / 6, STOP_BEFORE);
	lease->deadline = sent + lease->ttl;
	lease->renew_at = sent + lease->every;
	s->margin = MIN(s->margin, lease->margin);
	for (int i = 0; i < lease->count; i++)
		table_put(&lease->rows[i], ROW_HELD);
	arm(s, next_of(lease));
}

/* Stop the work, once. */
void
stop(dlock_lease *lease, dlock_status status, const char *why)
{
	dlock_session *s = lease->session;

	if (lease->phase != PHASE_HELD || lease->error.status != DLOCK_OK)
		return;
	fail(&lease->error, status, "%s", why);
	for (Transaction *t = lease->transactions; t != NULL; t = t->next)
		(void) shutdown(PQsocket(t->conn), SHUT_RDWR);
	pthread_cond_broadcast(&lease->changed);
	if (lease->on_lost == NULL)
	{
		add_event(lease);
		return;
	}
	ref_lease(lease);
	lease->telling = true;
	lease->next_told = s->told;
	s->told = lease;
	wake_thread(s);
}

/* Is it lost, or late?  Then the error says why. */
bool
has_ended(dlock_lease *lease)
{
	char		why[500];

	if (lease->phase == PHASE_HELD && lease->error.status == DLOCK_OK && now_ms() >= lease->deadline - lease->margin)
	{
		snprintf(why, sizeof(why), "the lease on \"%.100s\" could not be renewed in time: %.300s", lease->label,
				 (lease->trouble.status != DLOCK_OK) ? lease->trouble.message : "this process did not get to run");
		stop(lease, DLOCK_UNREACHABLE, why);
	}
	return lease->error.status != DLOCK_OK;
}

static void
renewed(dlock_lease *lease)
{
	dlock_session *s = lease->session;
	bool		good = lease->trouble.status == DLOCK_OK;
	char		why[500];

	if (lease->phase != PHASE_HELD || lease->error.status != DLOCK_OK)
		return;
	if (lease->lost)
	{
		snprintf(why, sizeof(why), "the lease on \"%.400s\" is lost", lease->label);
		stop(lease, DLOCK_LOST, why);
		return;
	}
	if (good)
	{
		lease->renew_at = lease->oldest + lease->every;
		lease->deadline = MAX(lease->deadline, lease->oldest + lease->ttl);
	}
	else
		lease->renew_at = now_ms() + lease->every / 4;
	if (!good && !s->in_trouble)
		tell_trouble(s, lease->trouble.message);
	s->in_trouble = !good;
	arm(s, next_of(lease));
}

static void
then_renewed(Request *r, Answer *a)
{
	dlock_lease *lease = ((Row *) r->whose)->lease;
	bool		answered = a->error.status == DLOCK_OK;
	const char *value = answered ? answer_text(a, 0) : NULL;

	/* The release may have come before. */
	if (lease->phase != PHASE_HELD)
		;
	else if (!answered)
		lease->trouble = a->error;
	else
	{
		lease->oldest = MIN(lease->oldest, a->sent);
		lease->lost |= value == NULL || value[0] != 't';
	}
	if (--lease->renewing == 0)
		renewed(lease);
	unref_lease(lease);
}

/* Stop it if it is late, and renew it if that is due, or soon will be: with others. */
void
hold_tick(dlock_lease *lease, int64_t now)
{
	dlock_session *s = lease->session;

	if (has_ended(lease))
		return;
	s->margin = MIN(s->margin, lease->margin);
	if (lease->renewing == 0 && lease->renew_at <= now + lease->every / 2)
	{
		lease->renewing = lease->count;
		lease->oldest = NEVER;
		lease->lost = false;
		lease->trouble.status = DLOCK_OK;
		for (int i = 0; i < lease->count; i++)
			lease_submit(lease, &lease->rows[i].renewal, lease->rows[i].renewal.kind, ANSWER_WITHIN, then_renewed);
	}
	arm(s, next_of(lease));
}

/* ---- the end of the work ---- */

/* One of its locks: 't', 'f', or nothing if the server does not say. */
static void
row_released(Row *entry, char value)
{
	dlock_lease *lease = entry->lease;

	lease->lost |= value == 'f' || (value == '\0' && now_ms() >= lease->deadline);
	if (--lease->releasing > 0)
		return;
	if (lease->lost && !lease->late && lease->error.status == DLOCK_OK)
		fail(&lease->error, DLOCK_LOST, "the lease on \"%.400s\" was lost before the work had ended", lease->label);
	over(lease);
}

/*
 * A request that was not answered may have released it; if the task has entered the lock
 * twice, another one would end the other lease.
 */
static void
then_released(Request *r, Answer *a)
{
	Row		   *entry = r->whose;
	dlock_lease *lease = entry->lease;
	const char *value = (a->error.status == DLOCK_OK) ? answer_text(a, 0) : NULL;

	if (value != NULL && (value[0] == 't' || !entry->doubt))
		row_released(entry, value[0]);
	else if (value != NULL)
		row_released(entry, '\0');
	else
	{
		entry->doubt |= a->doubt;
		entry->retry_at = now_ms() + UNDO_EVERY;
		if (entry->retry_at >= lease->release_until ||
			(entry->doubt && held_by(lease->session, lease->owner, entry->name) > 0))
		{
			entry->retry_at = NEVER;
			row_released(entry, '\0');
		}
		else
			arm(lease->session, entry->retry_at);
	}
	unref_lease(lease);
}

void
release_tick(dlock_lease *lease, int64_t now)
{
	for (int i = 0; i < lease->count; i++)
	{
		Row		   *entry = &lease->rows[i];

		if (now < entry->retry_at)
			arm(lease->session, entry->retry_at);
		else
		{
			entry->retry_at = NEVER;
			lease_submit(lease, &entry->release, &release_kind, lease->release_until - now, then_released);
		}
	}
}

/* Give it back, if it is held or lost. */
void
let_go(dlock_lease *lease)
{
	if (lease->phase != PHASE_HELD)
		return;
	lease->late = has_ended(lease);
	lease->phase = PHASE_RELEASING;
	for (int i = 0; i < lease->count; i++)
		table_put(&lease->rows[i], ROW_RELEASING);
	if (lease->call == CALL_TASK)
	{
		over(lease);
		return;
	}
	lease->lost = false;
	lease->releasing = lease->count;
	lease->release_until = now_ms() + DOUBT_WITHIN;
	for (int i = 0; i < lease->count; i++)
		lease_submit(lease, &lease->rows[i].release, &release_kind, DOUBT_WITHIN, then_released);
}

dlock_status
dlock_lease_release(dlock_lease *lease, dlock_error *error)
{
	dlock_session *s = lease->session;
	dlock_status status;

	if (s->pid != getpid())
		return fail(error, DLOCK_CLOSED, "the lease is of the parent process");
	pthread_mutex_lock(&s->lock);
	if (!pthread_equal(pthread_self(), s->thread))
	{
		s->busy++;
		give_up(lease, DLOCK_CANCELED);
		let_go(lease);
		while (lease->phase == PHASE_RELEASING || lease->telling)
			pthread_cond_wait(&lease->changed, &s->lock);
		s->busy--;
		pthread_cond_broadcast(&s->changed);
	}
	status = tell(error, &lease->error);
	pthread_mutex_unlock(&s->lock);
	return status;
}

void
dlock_lease_free(dlock_lease *lease)
{
	dlock_session *s = (lease != NULL) ? lease->session : NULL;

	if (s == NULL || s->pid != getpid())
		return;
	pthread_mutex_lock(&s->lock);
	s->refs++;
	give_up(lease, DLOCK_CANCELED);
	let_go(lease);
	while (lease->telling && !pthread_equal(pthread_self(), s->thread))
		pthread_cond_wait(&lease->changed, &s->lock);
	remove_event(lease);
	unref_lease(lease);
	pthread_mutex_unlock(&s->lock);
	unref_session(s);
}

/* ---- questions ---- */

dlock_status
dlock_lease_status(dlock_lease *lease, dlock_error *error)
{
	dlock_session *s = lease->session;
	dlock_status status;

	if (s->pid != getpid())
		return fail(error, DLOCK_CLOSED, "the lease is of the parent process");
	pthread_mutex_lock(&s->lock);
	(void) has_ended(lease);
	status = tell(error, &lease->error);
	pthread_mutex_unlock(&s->lock);
	return status;
}

bool
dlock_lease_held(dlock_lease *lease)
{
	dlock_session *s = lease->session;
	bool		held;

	if (s->pid != getpid())
		return false;
	pthread_mutex_lock(&s->lock);
	held = !has_ended(lease) && lease->phase == PHASE_HELD;
	pthread_mutex_unlock(&s->lock);
	return held;
}

int64_t
dlock_lease_remaining(dlock_lease *lease)
{
	dlock_session *s = lease->session;
	int64_t		left;

	if (s->pid != getpid())
		return 0;
	pthread_mutex_lock(&s->lock);
	left = MAX(lease->deadline - now_ms(), 0);
	pthread_mutex_unlock(&s->lock);
	return left;
}

int64_t
dlock_lease_token(const dlock_lease *lease)
{
	return strtoll(lease->rows[0].token, NULL, 10);
}

int64_t
dlock_lease_token_of(const dlock_lease *lease, const char *name)
{
	for (int i = 0; i < lease->count; i++)
		if (strcmp(lease->rows[i].name, name) == 0)
			return strtoll(lease->rows[i].token, NULL, 10);
	return 0;
}

void *
dlock_lease_argument(const dlock_lease *lease)
{
	return lease->argument;
}

const char *
dlock_lease_name(const dlock_lease *lease)
{
	return lease->label;
}

const char *
dlock_lease_owner(const dlock_lease *lease)
{
	return lease->owner;
}

const char *
dlock_lease_task(const dlock_lease *lease)
{
	return lease->task;
}

/* ---- transactions ---- */

dlock_status
dlock_result_status(const PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_FATAL_ERROR && status != PGRES_BAD_RESPONSE)
		return DLOCK_OK;
	return fail_by_state(NULL, PQresultErrorField(result, PG_DIAG_SQLSTATE), "");
}

/* The error of a statement, which is cleared. */
static dlock_status
result_error(PGresult *result, PGconn *conn, dlock_error *error)
{
	dlock_status status = dlock_result_status(result);
	const char *primary = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

	if (status == DLOCK_OK)
		fail(error, DLOCK_OK, "%s", "");
	else
		fail_by_state(error, PQresultErrorField(result, PG_DIAG_SQLSTATE), (primary != NULL) ? primary : PQerrorMessage(conn));
	PQclear(result);
	return status;
}

static dlock_status
present(dlock_lease *lease, PGconn *conn, dlock_error *error)
{
	dlock_status status = DLOCK_OK;

	for (int i = 0; i < lease->count && status == DLOCK_OK; i++)
	{
		const char *params[] = {lease->rows[i].name, lease->rows[i].token};
		int			lengths[] = {(int) strlen(params[0]), 0};
		int			formats[] = {1, 0};

		status = result_error(PQexecParams(conn, present_sql, 2, NULL, params, lengths, formats, 0), conn, error);
	}
	return status;
}

/* Why the work is to end, or DLOCK_OK; in the error only if it is. */
static dlock_status
ended_status(dlock_lease *lease, dlock_error *error)
{
	dlock_error why;
	dlock_status status = dlock_lease_status(lease, &why);

	if (status == DLOCK_OK && !dlock_lease_held(lease))
		status = fail(&why, DLOCK_LOST, "the lease on \"%.400s\" is over, as the work has ended", lease->label);
	return (status != DLOCK_OK) ? tell(error, &why) : status;
}

dlock_status
dlock_present(PGconn *conn, dlock_lease *const *leases, int count, dlock_error *error)
{
	dlock_status status = fail(error, DLOCK_OK, "%s", "");

	for (int i = 0; i < count && status == DLOCK_OK; i++)
		status = ended_status(leases[i], error);
	for (int i = 0; i < count && status == DLOCK_OK; i++)
		status = present(leases[i], conn, error);
	return status;
}

/* Add the connection to those in transactions of the lease, or take it out. */
static bool
track(dlock_lease *lease, PGconn *conn, bool add)
{
	Transaction *t = add ? malloc(sizeof(*t)) : NULL;
	Transaction **at = &lease->transactions;

	if (add && t == NULL)
		return false;
	pthread_mutex_lock(&lease->session->lock);
	if (add)
	{
		t->next = *at;
		t->conn = conn;
		*at = t;
	}
	else
	{
		while (*at != NULL && (*at)->conn != conn)
			at = &(*at)->next;
		t = *at;
		if (t != NULL)
			*at = t->next;
		free(t);
	}
	pthread_mutex_unlock(&lease->session->lock);
	return true;
}

dlock_status
dlock_lease_begin(dlock_lease *lease, PGconn *conn, dlock_error *error)
{
	dlock_status status = ended_status(lease, error);

	if (status != DLOCK_OK)
		return status;
	if (!track(lease, conn, true))
		return fail(error, DLOCK_ERROR, "out of memory");
	status = result_error(PQexec(conn, "BEGIN"), conn, error);
	if (status == DLOCK_OK && lease->call != CALL_TASK)
		status = present(lease, conn, error);
	if (ended_status(lease, NULL) != DLOCK_OK)
		status = ended_status(lease, error);
	if (status != DLOCK_OK)
		dlock_lease_rollback(lease, conn);
	return status;
}

dlock_status
dlock_lease_commit(dlock_lease *lease, PGconn *conn, dlock_error *error)
{
	dlock_status status = ended_status(lease, error);
	PGresult   *result;
	bool		done;

	if (status == DLOCK_OK && lease->call == CALL_TASK)
		status = result_error(finish_task(lease, conn), conn, error);
	if (status == DLOCK_OK)
		status = ended_status(lease, error);
	if (status == DLOCK_OK)
	{
		result = PQexec(conn, "COMMIT");
		/* The commit of a transaction that has failed is a rollback. */
		done = result != NULL && strcmp(PQcmdStatus(result), "COMMIT") == 0;
		status = result_error(result, conn, error);
		if (status == DLOCK_OK && !done)
			status = fail(error, DLOCK_ERROR, "the transaction was rolled back, as a statement had failed");
	}
	if (status == DLOCK_OK)
	{
		pthread_mutex_lock(&lease->session->lock);
		lease->finished = true;
		pthread_mutex_unlock(&lease->session->lock);
	}
	else if (ended_status(lease, NULL) != DLOCK_OK)
		status = ended_status(lease, error);

	/* After a commit there is nothing to roll back. */
	dlock_lease_rollback(lease, conn);
	return status;
}

void
dlock_lease_rollback(dlock_lease *lease, PGconn *conn)
{
	if (lease->session->pid != getpid())
		return;
	if (PQtransactionStatus(conn) != PQTRANS_IDLE)
		PQclear(PQexec(conn, "ROLLBACK"));
	(void) track(lease, conn, false);
}
