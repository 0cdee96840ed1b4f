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

#include <fcntl.h>
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
" '\"' || replace(convert_from($1, 'UTF8'), '\"', '\"\"') || '=' || $2 || '\"' AS p) AS now";

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
	lock(session);
	lease = session->events;
	if (lease != NULL)
		remove_event(lease);
	unlock(session);
	return lease;
}

/* The thread has something to tell, even if somebody else does its work. */
static void
call_thread(dlock_session *s)
{
	pthread_cond_signal(&s->idle);
	wake(s);
}

void
tell_trouble(dlock_session *s, const char *message)
{
	if (s->on_trouble == NULL || s->trouble != NULL)
		return;
	s->trouble = strdup(message);
	call_thread(s);
}

/* Call the program's functions, without the mutex meanwhile. */
void
tell_program(dlock_session *s)
{
	char	   *trouble = s->trouble;

	s->trouble = NULL;
	if (trouble != NULL)
	{
		unlock(s);
		s->on_trouble(trouble, s->argument);
		free(trouble);
		lock(s);
	}
	while (s->told != NULL)
	{
		dlock_lease *lease = s->told;
		void		(*on_lost) (dlock_lease *, void *) = lease->on_lost;

		s->told = lease->next_told;
		unlock(s);
		if (on_lost != NULL)
			on_lost(lease, lease->argument);
		lock(s);
		lease->telling = false;
		wake_waiters(s, &lease->waiters);
		wake(s);
		unref_lease(lease);
	}
}

/* ---- during the work ---- */

/* Look after it when something is to be done. */
static void
arm_held(dlock_lease *lease)
{
	int64_t		stop_at = lease->deadline - lease->margin;

	arm(lease->session, (lease->asked || lease->finished) ? stop_at : MIN(lease->renew_at, stop_at));
}

/* Keep what was granted by a request that was sent then. */
void
hold(dlock_lease *lease, int64_t sent)
{
	dlock_session *s = lease->session;

	lease->phase = PHASE_HELD;
	lease->deadline = sent + lease->ttl;
	lease->renew_at = sent + lease->every;
	s->margin = MIN(s->margin, lease->margin);
	arm_held(lease);
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
		(void) shutdown(t->socket, SHUT_RDWR);
	wake_waiters(s, &lease->waiters);
	if (lease->on_lost == NULL)
	{
		add_event(lease);
		return;
	}
	ref_lease(lease);
	lease->telling = true;
	lease->next_told = s->told;
	s->told = lease;
	call_thread(s);
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

/* Have all of its locks been renewed, or released?  So it is if the answer says nothing else. */
static bool
is_lost(const dlock_lease *lease, const Answer *a)
{
	bool		lost = false;

	for (int i = 0; a->error.status == DLOCK_OK && i < lease->request.rows; i++)
		lost |= PQgetvalue(a->result, a->row + i, 0)[0] != 't';
	return lost;
}

void
renewed(dlock_lease *lease, const Answer *a)
{
	dlock_session *s = lease->session;
	bool		good = a->error.status == DLOCK_OK;
	char		why[500];

	lease->trouble = a->error;
	if (lease->error.status != DLOCK_OK)
		return;
	if (is_lost(lease, a))
	{
		snprintf(why, sizeof(why), "the lease on \"%.400s\" is lost", lease->label);
		if (!lease->finished)
			stop(lease, DLOCK_LOST, why);
		return;
	}
	if (good)
		lease->deadline = MAX(lease->deadline, a->sent + lease->ttl);
	lease->renew_at = good ? a->sent + lease->every : now_ms() + lease->every / 4;
	if (!good && !s->in_trouble)
		tell_trouble(s, lease->trouble.message);
	s->in_trouble = !good;
	arm_held(lease);
}

/* Stop it if it is late, and renew it if that is due, or soon will be: with others. */
void
hold_tick(dlock_lease *lease, int64_t now)
{
	if (has_ended(lease))
		return;
	lease->session->margin = MIN(lease->session->margin, lease->margin);
	if (!lease->asked && !lease->finished && lease->renew_at <= now + lease->every / 2)
		lease_submit(lease, (lease->call == CALL_TASK) ? &task_renew_kind : &renew_kind);
	arm_held(lease);
}

/* ---- the end of the work ---- */

/*
 * A request that was not answered may have released it; if the task has entered the lock
 * twice, another one would end the other lease.  What is undone just ends.
 */
void
released(dlock_lease *lease, const Answer *a)
{
	bool		has_answer = a->error.status == DLOCK_OK;
	bool		lost = is_lost(lease, a);
	int64_t		now = now_ms();

	if (lease->request.kind != lease->ends_with)
	{
		go(lease);				/* the last renewal */
		return;
	}
	lease->unsure |= a->doubt;
	if (!has_answer && may_undo(lease, now + UNDO_EVERY) && (lease->call != CALL_TASK || a->error.status == DLOCK_UNREACHABLE) &&
		!(lease->unsure && shares_token(lease, lease->names[0], lease->tokens[0])))
	{
		undo_later(lease);
		return;
	}
	if (!has_answer && lease->call == CALL_TASK)
		tell_trouble(lease->session, a->error.message);
	if (!has_answer || (lost && lease->unsure))
		lost = now >= lease->deadline;
	if (lost && lease->error.status == DLOCK_OK)
		fail(&lease->error, DLOCK_LOST, "the lease on \"%.400s\" was lost before the work had ended", lease->label);
	over(lease);
}

/* Give it back, if it is held or lost. */
void
let_go(dlock_lease *lease)
{
	int64_t		now = now_ms();

	if (lease->phase != PHASE_HELD)
		return;
	(void) has_ended(lease);
	lease->phase = PHASE_RELEASING;
	lease->end_by = now + DOUBT_WITHIN;
	if (lease->call == CALL_TASK)
		lease->end_by = MAX(lease->deadline, now + UNDO_EVERY);
	go(lease);
}

/* Has it been given back, and is the program told what is to be told? */
bool
is_released(const void *it)
{
	const dlock_lease *lease = it;

	return (lease->phase != PHASE_RELEASING || (lease->call != CALL_TASK && now_ms() >= lease->end_by)) && !lease->telling;
}

dlock_status
dlock_lease_release(dlock_lease *lease, dlock_error *error)
{
	dlock_session *s = lease->session;
	dlock_status status;

	if (!begin_call(lease->session, error))
		return DLOCK_CLOSED;
	if (!pthread_equal(pthread_self(), s->thread))
	{
		give_up(lease, DLOCK_CANCELED);
		let_go(lease);
		await(s, &lease->waiters, is_released, lease);
	}
	status = tell(error, &lease->error);
	leave(s);
	return status;
}

static bool
is_told(const void *lease)
{
	return !((const dlock_lease *) lease)->telling;
}

void
dlock_lease_free(dlock_lease *lease)
{
	dlock_session *s;

	if (lease == NULL || !begin_call(lease->session, NULL))
		return;
	s = lease->session;
	s->refs++;
	/* The session's thread cannot wait for on_lost, so it does not call it. */
	if (pthread_equal(pthread_self(), s->thread))
		lease->on_lost = NULL;
	give_up(lease, DLOCK_CANCELED);
	let_go(lease);
	if (lease->on_lost != NULL)
		await(s, &lease->waiters, is_told, lease);
	remove_event(lease);
	unref_lease(lease);
	leave(s);
	unref_session(s);
}

/* ---- questions ---- */

dlock_status
dlock_lease_status(dlock_lease *lease, dlock_error *error)
{
	dlock_status status;

	if (!begin_call(lease->session, error))
		return DLOCK_CLOSED;
	(void) has_ended(lease);
	status = tell(error, &lease->error);
	leave(lease->session);
	return status;
}

/* Why the work is to end, or DLOCK_OK; in the error only if it is. */
static dlock_status
ended_status(dlock_lease *lease, dlock_error *error)
{
	dlock_status status = DLOCK_CLOSED;
	dlock_error why;

	if (begin_call(lease->session, &why))
	{
		status = has_ended(lease) ? tell(&why, &lease->error) : DLOCK_OK;
		if (status == DLOCK_OK && lease->phase != PHASE_HELD)
			status = fail(&why, DLOCK_LOST, "the lease on \"%.400s\" is over, as the work has ended", lease->label);
		leave(lease->session);
	}
	return (status != DLOCK_OK) ? tell(error, &why) : status;
}

bool
dlock_lease_held(dlock_lease *lease)
{
	return ended_status(lease, NULL) == DLOCK_OK;
}

int64_t
dlock_lease_remaining(dlock_lease *lease)
{
	int64_t		left;

	if (!begin_call(lease->session, NULL))
		return 0;
	left = MAX(lease->deadline - now_ms(), 0);
	leave(lease->session);
	return left;
}

int64_t
dlock_lease_token(const dlock_lease *lease)
{
	return strtoll(lease->tokens[0], NULL, 10);
}

int64_t
dlock_lease_token_of(const dlock_lease *lease, const char *name)
{
	for (int i = 0; i < lease->count; i++)
		if (strcmp(lease->names[i], name) == 0)
			return strtoll(lease->tokens[i], NULL, 10);
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
		const char *params[] = {lease->names[i], lease->tokens[i]};
		int			lengths[] = {(int) strlen(params[0]), 0};
		int			formats[] = {1, 0};

		status = result_error(PQexecParams(conn, present_sql, 2, NULL, params, lengths, formats, 0), conn, error);
	}
	return status;
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

/*
 * Add the connection to those in transactions of the lease, or take it out.  The program may
 * lose or finish it at any time, so its socket is shut down by a descriptor of the lease's.
 */
static bool
track(dlock_lease *lease, PGconn *conn, bool add)
{
	Transaction *t = add ? malloc(sizeof(*t)) : NULL;
	Transaction **at = &lease->transactions;

	if (add && t == NULL)
		return false;
	lock(lease->session);
	if (add)
	{
		t->next = *at;
		t->conn = conn;
		t->socket = fcntl(PQsocket(conn), F_DUPFD_CLOEXEC, 0);
		*at = t;
	}
	else
	{
		while (*at != NULL && (*at)->conn != conn)
			at = &(*at)->next;
		t = *at;
		if (t != NULL)
		{
			*at = t->next;
			close(t->socket);
			free(t);
		}
	}
	unlock(lease->session);
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

/*
 * Has a transaction finished the task, or is it about to?  A renewal would wait for it, and
 * then say that the task is not held any more, perhaps before the answer to the COMMIT.
 */
static void
set_finished(dlock_lease *lease, bool finished)
{
	lock(lease->session);
	lease->finished = finished;
	arm_held(lease);
	unlock(lease->session);
}

dlock_status
dlock_lease_commit(dlock_lease *lease, PGconn *conn, dlock_error *error)
{
	dlock_status status = ended_status(lease, error);
	bool		before = lease->finished;
	PGresult   *result;
	bool		done;

	if (status == DLOCK_OK && lease->call == CALL_TASK)
	{
		set_finished(lease, true);
		result = finish_task(lease, conn);
		before = PQresultStatus(result) == PGRES_TUPLES_OK && PQgetvalue(result, 0, 0)[0] != 't';
		status = result_error(result, conn, error);
		if (before)
			status = fail(error, DLOCK_LOST, "an earlier transaction has finished task \"%.400s\"", lease->label);
	}
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
	if (status != DLOCK_OK)
	{
		if (lease->finished != before)
			set_finished(lease, before);
		if (ended_status(lease, NULL) != DLOCK_OK)
			status = ended_status(lease, error);
	}

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
