/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  Tasks of a queue.
 *
 * NOTES
 *	  The caller of dlock_work() captures tasks, over a connection of its own, and hands
 *	  them to threads, so many as tasks may be worked on at a time.  A capture is a lease that
 *	  the session renews.  The session's mutex protects all.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

/* After errors. */
#define RETRY_EVERY		500
#define LONGEST_RETRY	10000

/* How long a capture waits for tasks; so long, it holds a snapshot, and the end waits for it. */
#define CAPTURE_FOR		1000

static const Kind capture_kind = {
	.sql = "SELECT key, token, payload, priority, attempts, from_state FROM @dlock_task_capture($1, count => $2::integer,"
	" from_states => $3::text[], to_state => $4, owner => $5, ttl => $6::interval, on_timeout => $7, wait => $8::interval)",
	.columns = 8,.alone = true
};

#define OF_TASKS	" FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[]) WITH ORDINALITY AS e(q, k, t, x, i) ORDER BY i"
static const Kind task_renew_kind = {.sql = "SELECT @dlock_task_renew(q, k, t)" OF_TASKS,.columns = 4,.urgent = true};
static const Kind task_finish_kind = {.sql = "SELECT @dlock_task_finish(q, k, t, state => x)" OF_TASKS,.columns = 4,.urgent = true};
static const Kind task_fail_kind = {.sql = "SELECT @dlock_task_fail(q, k, t, error => x)" OF_TASKS,.columns = 4,.urgent = true};
static const Kind task_release_kind = {.sql = "SELECT @dlock_task_release(q, k, t)" OF_TASKS,.columns = 4,.urgent = true};

/* In a transaction of the program's.  Names are UTF-8 on any connection. */
static const char finish_sql[] =
"SELECT @dlock_task_finish(convert_from($1, 'UTF8'), convert_from($2, 'UTF8'), $3::bigint, state => convert_from($4, 'UTF8'))";

/* A task that was captured. */
typedef struct Job
{
	struct Job *next;			/* of those that were handed over */
	struct Job *next_running;
	dlock_task	task;
	char	   *key;
	char	   *payload;
	char	   *from_state;
} Job;

typedef struct Work
{
	dlock_session *s;
	const char *queue;
	const dlock_work_options *o;
	const char *(*handler) (dlock_task *, void *);
	void	   *argument;
	pthread_cond_t changed;
	pthread_t  *threads;
	int			thread_count;
	Job		   *first;			/* handed over */
	Job		   *running;		/* those, too */
	int			count;			/* of these */
	bool		stopping;		/* tasks that were not begun are given back */
	bool		aborted;		/* the grace is over */
	bool		over;
	int			done[2];		/* readable when a task has ended */
	sigset_t	signals;		/* that the caller blocks, and so handlers */
} Work;

/* ---- a task ---- */

static void
free_job(Job *j)
{
	free(j->key);
	free(j->payload);
	free(j->from_state);
	free(j);
}

static char *
copy_value(const Answer *a, int column, bool *good)
{
	const char *value = answer_text(a, column);
	char	   *copy = (value != NULL) ? strdup(value) : NULL;

	*good &= copy != NULL || value == NULL;
	return copy;
}

/* Without memory it is left to its time-out. */
static void
hand_over(Work *w, const Answer *a)
{
	Job		   *j = calloc(1, sizeof(*j));
	dlock_options o = {.ttl_ms = w->o->ttl_ms,.payload = w->queue};
	bool		good = j != NULL;
	dlock_lease *lease = NULL;
	Job		  **at = &w->first;
	Request    *renewal;

	if (good)
	{
		j->key = copy_value(a, 0, &good);
		j->payload = copy_value(a, 2, &good);
		j->from_state = copy_value(a, 5, &good);
	}
	if (good)
		lease = new_lease(w->s, CALL_TASK, (const char *const *) &j->key, 1, &o);
	if (lease == NULL)
	{
		if (j != NULL)
			free_job(j);
		return;
	}
	j->task.queue = w->queue;
	j->task.key = j->key;
	j->task.token = strtoll(answer_text(a, 1), NULL, 10);
	j->task.payload = j->payload;
	j->task.priority = atoi(answer_text(a, 3));
	j->task.attempts = atoi(answer_text(a, 4));
	j->task.from_state = j->from_state;
	j->task.lease = lease;
	lease->of = &j->task;
	lease->answered = true;
	lease->error.status = DLOCK_OK;
	snprintf(lease->rows[0].token, TOKEN_SIZE, "%s", answer_text(a, 1));
	renewal = &lease->rows[0].renewal;
	renewal->kind = &task_renew_kind;
	/* It may be on its way still when the task has ended. */
	renewal->row[0] = lease->payload;
	renewal->row[1] = lease->rows[0].name;
	renewal->row[2] = lease->rows[0].token;
	renewal->row[3] = NULL;
	hold(lease, a->sent);
	j->next_running = w->running;
	w->running = j;
	w->count++;
	while (*at != NULL)
		at = &(*at)->next;
	*at = j;
	pthread_cond_signal(&w->changed);
}

/* Tell the server how it has ended; again, if that does not answer: that does no harm. */
static void
settle_task(Work *w, Job *j, const Kind *kind, const char *extra)
{
	dlock_lease *lease = j->task.lease;

	for (;;)
	{
		int64_t		left = MAX(lease->deadline - now_ms(), 0);
		Request		r = {
			.kind = kind,.row = {w->queue, j->key, lease->rows[0].token, extra},.until = now_ms() + left + CAPTURE_FOR
		};
		Answer		a;
		dlock_status status = ask(w->s, NULL, &r, &a);

		PQclear(a.result);
		if (status != DLOCK_UNREACHABLE || left == 0)
		{
			if (status != DLOCK_OK)
				tell_trouble(w->s, a.error.message);
			return;
		}
		pthread_mutex_unlock(&w->s->lock);
		(void) poll(NULL, 0, RETRY_EVERY);
		pthread_mutex_lock(&w->s->lock);
	}
}

PGresult *
finish_task(dlock_lease *lease, PGconn *conn)
{
	const dlock_task *task = lease->of;
	const char *params[] = {task->queue, task->key, lease->rows[0].token, task->state};
	int			lengths[] = {(int) strlen(task->queue), (int) strlen(task->key), 0, (task->state != NULL) ? (int) strlen(task->state) : 0};
	int			formats[] = {1, 1, 0, 1};
	char	   *statement;
	PGresult   *result;

	pthread_mutex_lock(&lease->session->lock);
	statement = statement_of(finish_sql, lease->session->schema);
	pthread_mutex_unlock(&lease->session->lock);
	result = (statement != NULL) ? PQexecParams(conn, statement, 4, NULL, params, lengths, formats, 0) : NULL;
	free(statement);
	return result;
}

static void
do_job(Work *w, Job *j)
{
	dlock_session *s = w->s;
	dlock_lease *lease = j->task.lease;
	const char *why;

	if (w->stopping)
	{
		settle_task(w, j, &task_release_kind, NULL);
		return;
	}
	pthread_mutex_unlock(&s->lock);
	why = w->handler(&j->task, w->argument);
	pthread_mutex_lock(&s->lock);
	if (lease->finished || (has_ended(lease) && lease->error.status != DLOCK_CANCELED))
		return;
	if (why != NULL && w->aborted)
		settle_task(w, j, &task_release_kind, NULL);
	else if (why != NULL)
		settle_task(w, j, &task_fail_kind, why);
	else
		settle_task(w, j, &task_finish_kind, j->task.state);
}

static void *
run_worker(void *argument)
{
	Work	   *w = argument;

	pthread_sigmask(SIG_SETMASK, &w->signals, NULL);
	pthread_mutex_lock(&w->s->lock);
	for (;;)
	{
		Job		   *j = w->first;
		Job		  **at = &w->running;

		if (j == NULL && w->over)
			break;
		if (j == NULL)
		{
			pthread_cond_wait(&w->changed, &w->s->lock);
			continue;
		}
		w->first = j->next;
		do_job(w, j);
		while (*at != j)
			at = &(*at)->next_running;
		*at = j->next_running;
		let_go(j->task.lease);
		unref_lease(j->task.lease);
		free_job(j);
		w->count--;
		(void) !write(w->done[1], ".", 1);
	}
	pthread_mutex_unlock(&w->s->lock);
	return NULL;
}

/* ---- the work ---- */

/* Capture tasks until it is time to stop; with the mutex, but for waits. */
static void
capture(Work *w, Line *l, dlock_error *error)
{
	dlock_session *s = w->s;
	const dlock_work_options *o = w->o;
	int			most = MAX(o->concurrency, 1);
	int64_t		ttl = (o->ttl_ms != 0) ? o->ttl_ms : DEFAULT_TTL;
	int64_t		retry = RETRY_EVERY;
	int			states = 0;
	char	   *from = NULL;
	char		owner[sizeof(s->client) + 300];
	char		spans[2][SPAN_SIZE];
	char		count[16];
	char		sink[64];
	bool		go_on;

	while (o->from_states != NULL && o->from_states[states] != NULL)
		states++;
	if (o->from_states != NULL)
	{
		from = array_text(o->from_states, states);
		if (from == NULL)
		{
			fail(error, DLOCK_ERROR, "out of memory");
			return;
		}
	}
	snprintf(owner, sizeof(owner), "%s#%s", s->client, w->queue);
	for (;;)
	{
		Request		r = {
			.kind = &capture_kind,.row = {
				w->queue, count, from, (o->to_state != NULL) ? o->to_state : "working", owner, span_text(ttl, spans[0]),
				o->on_timeout, span_text(MIN(CAPTURE_FOR, ttl / 6), spans[1])
			}
		};
		Answer		a;
		bool		full = w->count == most;

		pthread_mutex_unlock(&s->lock);
		go_on = nap(s, o->give_up_fd, full ? w->done[0] : -1, full ? NEVER : 0);
		(void) !read(w->done[0], sink, sizeof(sink));
		pthread_mutex_lock(&s->lock);
		if (!go_on)
			break;
		if (w->count == most)
			continue;
		snprintf(count, sizeof(count), "%d", most - w->count);
		if (ask(s, l, &r, &a) == DLOCK_OK)
		{
			retry = RETRY_EVERY;
			for (a.row = 0; a.row < PQntuples(a.result); a.row++)
				hand_over(w, &a);
		}
		else
		{
			tell_trouble(s, a.error.message);
			pthread_mutex_unlock(&s->lock);
			(void) nap(s, o->give_up_fd, -1, retry);
			pthread_mutex_lock(&s->lock);
			retry = MIN(2 * retry, LONGEST_RETRY);
		}
		PQclear(a.result);
	}
	free(from);
}

/* Wait for what is under way; after the grace its leases end. */
static void
wait_for_jobs(Work *w)
{
	int64_t		grace = w->o->grace_ms;
	int64_t		until = (grace > 0 && grace < NEVER - now_ms()) ? now_ms() + grace : NEVER;
	char		sink[64];

	w->stopping = true;
	while (w->count > 0)
	{
		struct pollfd done = {w->done[0], POLLIN, 0};
		int64_t		left = w->aborted ? 1000 : MAX(until - now_ms(), 0);

		pthread_mutex_unlock(&w->s->lock);
		(void) poll(&done, 1, (int) MIN(left, 1000));
		(void) !read(w->done[0], sink, sizeof(sink));
		pthread_mutex_lock(&w->s->lock);
		if (w->aborted || now_ms() < until)
			continue;
		w->aborted = true;
		for (Job *j = w->running; j != NULL; j = j->next_running)
			stop(j->task.lease, DLOCK_CANCELED, "the worker ends");
	}
}

dlock_status
dlock_work(dlock_session *session, const char *queue, const dlock_work_options *options,
		   const char *(*handler) (dlock_task *task, void *argument), void *argument, dlock_error *error)
{
	static const dlock_work_options defaults = {0};
	dlock_session *s = session;
	const dlock_work_options *o = (options != NULL) ? options : &defaults;
	int			most = MAX(o->concurrency, 1);
	Work		w = {.s = s,.queue = queue,.o = o,.handler = handler,.argument = argument};
	Line	   *l = calloc(1, sizeof(*l));
	Line	  **at;
	dlock_error own;

	error = (error != NULL) ? error : &own;
	w.threads = calloc((size_t) most, sizeof(pthread_t));
	if (l == NULL || w.threads == NULL || !make_pipe(w.done))
	{
		free(l);
		free(w.threads);
		return fail(error, DLOCK_ERROR, "could not begin to work");
	}
	pthread_cond_init(&w.changed, NULL);
	pthread_sigmask(SIG_SETMASK, NULL, &w.signals);
	if (enter(s, error))
	{
		while (w.thread_count < most && start_thread(&w.threads[w.thread_count], run_worker, &w))
			w.thread_count++;
		l->next = s->lines;
		s->lines = l;
		if (w.thread_count == most)
			capture(&w, l, error);
		else
			fail(error, DLOCK_ERROR, "could not create a thread");
		wait_for_jobs(&w);
		for (at = &s->lines; *at != l;)
			at = &(*at)->next;
		*at = l->next;
		line_drop(l);
		w.over = true;
		pthread_cond_broadcast(&w.changed);
		pthread_mutex_unlock(&s->lock);
		for (int i = 0; i < w.thread_count; i++)
			pthread_join(w.threads[i], NULL);
		pthread_mutex_lock(&s->lock);
		leave(s);
	}
	pthread_cond_destroy(&w.changed);
	close(w.done[0]);
	close(w.done[1]);
	free(w.threads);
	free(l);
	return error->status;
}
