/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  Tasks of a queue.
 *
 * NOTES
 *	  So many threads as tasks may be worked on at a time.  One that is idle captures tasks for
 *	  all that are, over a connection of the worker's own; the others take them.  A capture
 *	  is a lease that the session renews, and whose release tells the server how the task has
 *	  ended.  The session's mutex protects all.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define LONGEST_RETRY	10000

/* How long a capture waits for tasks; so long, it holds a snapshot, and the end waits for it. */
#define CAPTURE_FOR		1000

static const Kind capture_kind = {
	.sql = "SELECT key, token, payload, priority, attempts, from_state FROM @dlock_task_capture($1, count => $2::integer,"
	" from_states => $3::text[], to_state => $4, owner => $5, ttl => $6::interval, on_timeout => $7, wait => $8::interval)",
	.shared = 8
};

#define OF_TASKS	" FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[]) WITH ORDINALITY AS e(q, k, t, x, i) ORDER BY i"
const Kind	task_renew_kind = {.sql = "SELECT @dlock_task_renew(q, k, t)" OF_TASKS,.columns = 4,.urgent = true};
static const Kind task_finish_kind = {.sql = "SELECT @dlock_task_finish(q, k, t, state => x)" OF_TASKS,.columns = 4,.urgent = true};
static const Kind task_fail_kind = {.sql = "SELECT @dlock_task_fail(q, k, t, error => x)" OF_TASKS,.columns = 4,.urgent = true};
static const Kind task_release_kind = {.sql = "SELECT @dlock_task_release(q, k, t)" OF_TASKS,.columns = 4,.urgent = true};

/* In a transaction of the program's.  Names are UTF-8 on any connection. */
static const char finish_sql[] =
"SELECT @dlock_task_finish(convert_from($1, 'UTF8'), convert_from($2, 'UTF8'), $3::bigint, state => convert_from($4, 'UTF8'))";

/* Tasks that were captured together. */
typedef struct Catch
{
	PGresult   *result;
	int64_t		sent;
	int			next;			/* to be taken */
	int			refs;			/* tasks that are not over */
} Catch;

typedef struct Work
{
	dlock_session *s;
	const char *queue;
	const dlock_work_options *o;
	const char *(*handler) (dlock_task *, void *);
	void	   *argument;
	const char *params[8];		/* of a capture */
	Line		line;
	pthread_cond_t changed;
	Catch	   *caught;			/* with tasks that nobody has taken */
	bool		capturing;		/* one does */
	int			idle;
	int			running;		/* threads */
	bool		stopping;		/* tasks that were not begun are given back */
	bool		aborted;		/* the grace is over */
	int64_t		retry;			/* after an error */
	sigset_t	signals;		/* that the caller blocks, and so handlers */
} Work;

/* One of its threads. */
typedef struct Worker
{
	Work	   *w;
	pthread_t	thread;
	dlock_lease *lease;			/* of what it works on */
} Worker;

/* ---- a task ---- */

PGresult *
finish_task(dlock_lease *lease, PGconn *conn)
{
	const dlock_task *task = lease->of;
	const char *params[] = {task->queue, task->key, lease->tokens[0], task->state};
	int			lengths[] = {(int) strlen(task->queue), (int) strlen(task->key), 0, (task->state != NULL) ? (int) strlen(task->state) : 0};
	int			formats[] = {1, 1, 0, 1};
	char	   *statement;
	PGresult   *result;

	lock(lease->session);
	statement = statement_of(finish_sql, lease->session->schema);
	unlock(lease->session);
	result = (statement != NULL) ? PQexecParams(conn, statement, 4, NULL, params, lengths, formats, 0) : NULL;
	free(statement);
	return result;
}

/* How the task has ended, once the handler has returned; NULL: there is nothing to tell. */
static const Kind *
end_of(const Work *w, dlock_lease *lease, const char *why)
{
	if (lease->finished || (has_ended(lease) && lease->error.status != DLOCK_CANCELED))
		return NULL;
	return (why == NULL) ? &task_finish_kind : w->aborted ? &task_release_kind : &task_fail_kind;
}

/* Work on a task that is in this row.  Without memory it is left to its time-out. */
static void
do_task(Worker *me, Catch *c, int row)
{
	Work	   *w = me->w;
	dlock_session *s = w->s;
	Answer		a = {.result = c->result,.row = row};
	dlock_options o = {.ttl_ms = w->o->ttl_ms};
	const char *key = answer_text(&a, 0);
	dlock_lease *lease = new_lease(s, CALL_TASK, &key, 1, &o);
	dlock_task	task = {
		.queue = w->queue,.key = key,.token = strtoll(answer_text(&a, 1), NULL, 10),.payload = answer_text(&a, 2),
		.priority = atoi(answer_text(&a, 3)),.attempts = atoi(answer_text(&a, 4)),.from_state = answer_text(&a, 5),.lease = lease
	};
	const char *why = NULL;

	if (lease == NULL)
		return;
	me->lease = lease;
	lease->of = &task;
	lease->answered = true;
	lease->error.status = DLOCK_OK;
	lease->values[0] = w->queue;
	lease->values[1] = lease->names[0];
	snprintf(lease->tokens[0], TOKEN_SIZE, "%s", answer_text(&a, 1));
	hold(lease, c->sent);
	lease->ends_with = &task_release_kind;
	if (!w->stopping && !has_ended(lease))
	{
		unlock(s);
		why = w->handler(&task, w->argument);
		lock(s);
		lease->ends_with = end_of(w, lease, why);
		lease->values[3] = (why != NULL) ? why : task.state;
	}

	/* The answer to a renewal may be to come still. */
	let_go(lease);
	await(s, &lease->waiters, is_released, lease);
	me->lease = NULL;
	unref_lease(lease);
}

/* ---- the work ---- */

/* Capture tasks for those that are idle. */
static void
capture(Work *w)
{
	dlock_session *s = w->s;
	char		count[16];
	Request		r = {.kind = &capture_kind,.shared = w->params};
	Answer		a;
	Catch	   *c = calloc(1, sizeof(*c));

	snprintf(count, sizeof(count), "%d", w->idle);
	w->params[1] = count;
	if (ask(s, &w->line, &r, &a) == DLOCK_OK && c != NULL)
	{
		w->retry = RETRY_EVERY;
		*c = (Catch)
		{
			a.result, a.sent, 0, PQntuples(a.result)
		};
		w->caught = (c->refs > 0) ? c : NULL;
	}
	else
		tell_trouble(s, (c != NULL) ? a.error.message : "out of memory");
	if (w->caught != NULL)
		return;
	free(c);
	PQclear(a.result);
	if (a.error.status == DLOCK_OK || w->stopping)
		return;
	sleep_on(&w->changed, s, w->retry);
	w->retry = MIN(2 * w->retry, LONGEST_RETRY);
}

static void *
run_worker(void *argument)
{
	Worker	   *me = argument;
	Work	   *w = me->w;

	pthread_sigmask(SIG_SETMASK, &w->signals, NULL);
	lock(w->s);
	w->idle++;
	while (w->caught != NULL || !w->stopping)
	{
		Catch	   *c = w->caught;

		if (c != NULL)
		{
			int			row = c->next++;

			if (c->next == PQntuples(c->result))
				w->caught = NULL;
			w->idle--;
			do_task(me, c, row);
			w->idle++;
			if (--c->refs > 0)
				continue;
			PQclear(c->result);
			free(c);
		}
		else if (w->capturing)
			sleep_on(&w->changed, w->s, NEVER);
		else
		{
			w->capturing = true;
			capture(w);
			w->capturing = false;
			pthread_cond_broadcast(&w->changed);
		}
	}
	w->running--;
	pthread_cond_broadcast(&w->changed);
	unlock(w->s);
	return NULL;
}

/* Wait for what is under way; after the grace its leases end. */
static void
wait_for_end(Work *w, const Worker *workers, int count)
{
	int64_t		until = (w->o->grace_ms > 0 && w->o->grace_ms < NEVER - now_ms()) ? now_ms() + w->o->grace_ms : NEVER;

	w->stopping = true;
	pthread_cond_broadcast(&w->changed);
	while (w->running > 0)
	{
		if (!w->aborted && now_ms() >= until)
		{
			w->aborted = true;
			for (int i = 0; i < count; i++)
				if (workers[i].lease != NULL)
					stop(workers[i].lease, DLOCK_CANCELED, "the worker ends");
		}
		sleep_on(&w->changed, w->s, (w->aborted || until == NEVER) ? NEVER : MIN(until - now_ms(), 1000));
	}
}

/* What of a capture is always the same; false if there is no memory. */
static bool
set_params(Work *w, char owner[600], char spans[2][SPAN_SIZE])
{
	const dlock_work_options *o = w->o;
	int64_t		ttl = (o->ttl_ms != 0) ? o->ttl_ms : DEFAULT_TTL;
	int			states = 0;
	char	   *from = NULL;

	while (o->from_states != NULL && o->from_states[states] != NULL)
		states++;
	if (o->from_states != NULL)
		from = malloc(array_size(o->from_states, states));
	if (from != NULL)
		put_array(from, o->from_states, states);
	snprintf(owner, 600, "%s#%s", w->s->client, w->queue);
	w->params[0] = w->queue;
	w->params[2] = from;
	w->params[3] = (o->to_state != NULL) ? o->to_state : "working";
	w->params[4] = owner;
	w->params[5] = span_text(ttl, spans[0]);
	w->params[6] = o->on_timeout;
	w->params[7] = span_text(MIN(CAPTURE_FOR, ttl / 6), spans[1]);
	return from != NULL || o->from_states == NULL;
}

dlock_status
dlock_work(dlock_session *session, const char *queue, const dlock_work_options *options,
		   const char *(*handler) (dlock_task *task, void *argument), void *argument, dlock_error *error)
{
	static const dlock_work_options defaults = {0};
	dlock_session *s = session;
	const dlock_work_options *o = (options != NULL) ? options : &defaults;
	int			count = MAX(o->concurrency, 1);
	Work		w = {.s = s,.queue = queue,.o = o,.handler = handler,.argument = argument,.retry = RETRY_EVERY};
	Worker	   *workers;
	char		owner[600];
	char		spans[2][SPAN_SIZE];
	Line	  **at;
	int			i;

	if (queue == NULL || o->ttl_ms < 0 || o->grace_ms < 0)
		return fail(error, DLOCK_ERROR, "work wants a queue, and spans that are not negative");
	if (!enter(s, error))
		return DLOCK_CLOSED;
	workers = calloc((size_t) count, sizeof(Worker));
	make_cond(&w.changed);
	pthread_sigmask(SIG_SETMASK, NULL, &w.signals);
	w.line.next = s->lines;
	s->lines = &w.line;
	s->line_count++;
	if (workers != NULL && set_params(&w, owner, spans))
		for (; w.running < count; w.running++)
		{
			workers[w.running].w = &w;
			if (!start_thread(&workers[w.running].thread, run_worker, &workers[w.running]))
				break;
		}
	i = w.running;
	unlock(s);
	if (i == count)
		while (nap(s, o->give_up_fd, NEVER))
			;
	else
		fail(error, DLOCK_ERROR, "could not begin to work");
	lock(s);
	wait_for_end(&w, workers, i);
	for (at = &s->lines; *at != &w.line;)
		at = &(*at)->next;
	*at = w.line.next;
	s->line_count--;
	line_drop(&w.line);
	unlock(s);
	for (int j = 0; j < i; j++)
		pthread_join(workers[j].thread, NULL);
	lock(s);
	leave(s);
	pthread_cond_destroy(&w.changed);
	free((char *) w.params[2]);
	free(workers);
	return (i == count) ? DLOCK_OK : DLOCK_ERROR;
}
