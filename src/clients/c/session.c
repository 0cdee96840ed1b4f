/*-------------------------------------------------------------------------
 *
 * session.c
 *	  A session: its opening, its end, its thread and its timer.
 *
 * NOTES
 *	  Its work is to poll the connections and the descriptors of those who may give up, and to
 *	  look after all that is due.  A caller that waits does it, if nobody does it yet, and so
 *	  gets its answer without a switch of threads.  The session's thread does it while there is something
 *	  to do and no such caller, and calls the program's functions.  It wakes up once a second while
 *	  something may come due, as no wait counts a suspension.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#ifdef CLOCK_BOOTTIME
#define CLOCK_ID		CLOCK_BOOTTIME
#else
#define CLOCK_ID		CLOCK_MONOTONIC
#endif

/* The longest poll while something may come due. */
#define PIECE			1000

int64_t
now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_ID, &now);
	return (int64_t) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

const char *
span_text(int64_t span, char text[SPAN_SIZE])
{
	snprintf(text, SPAN_SIZE, "%" PRId64 " milliseconds", span);
	return text;
}

/* ---- errors ---- */

dlock_status
fail(dlock_error *error, dlock_status status, const char *format,...)
{
	if (error != NULL)
	{
		va_list		args;

		error->status = status;
		error->sqlstate[0] = error->holder[0] = '\0';
		va_start(args, format);
		vsnprintf(error->message, sizeof(error->message), format, args);
		va_end(args);
	}
	return status;
}

/* No SQLSTATE: the server did not answer. */
dlock_status
fail_by_state(dlock_error *error, const char *sqlstate, const char *message)
{
	static const struct
	{
		const char *prefix;
		dlock_status status;
	}			kinds[] = {
		{"LK001", DLOCK_TOKEN_STALE}, {"LK002", DLOCK_LOST}, {"LK003", DLOCK_TOKEN_MISSING}, {"40P01", DLOCK_DEADLOCK},

		/*
		 * Nothing but that this server cannot be asked now; a standby can do
		 * nothing.
		 */
		{"08", DLOCK_UNREACHABLE}, {"57P", DLOCK_UNREACHABLE}, {"25006", DLOCK_UNREACHABLE}, {"53300", DLOCK_UNREACHABLE},
	};
	dlock_status status = (sqlstate == NULL) ? DLOCK_UNREACHABLE : DLOCK_ERROR;

	for (size_t i = 0; sqlstate != NULL && i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (strncmp(sqlstate, kinds[i].prefix, strlen(kinds[i].prefix)) == 0)
			status = kinds[i].status;
	fail(error, status, "%.*s", (int) strcspn(message, "\n"), message);
	if (error != NULL && sqlstate != NULL)
		snprintf(error->sqlstate, sizeof(error->sqlstate), "%s", sqlstate);
	return status;
}

dlock_status
tell(dlock_error *error, const dlock_error *what)
{
	if (error != NULL)
		*error = *what;
	return what->status;
}

/* ---- the mutex, and those who wait ---- */

/* A call that waits, without the mutex: it is woken after that is free, and so does not block on it. */
struct Waiter
{
	Waiter	   *next;
	sem_t		wakeup;
};

void
lock(dlock_session *s)
{
	pthread_mutex_lock(&s->lock);
}

/* Have these woken, as soon as the mutex is free. */
void
wake_waiters(dlock_session *s, Waiter **waiters)
{
	*s->wakeups_end = *waiters;
	*waiters = NULL;
	while (*s->wakeups_end != NULL)
		s->wakeups_end = &(*s->wakeups_end)->next;
}

static Waiter *
take_wakeups(dlock_session *s)
{
	Waiter	   *waiters = s->wakeups;

	s->wakeups = NULL;
	s->wakeups_end = &s->wakeups;
	return waiters;
}

/* A waiter may be gone as soon as it is woken. */
static void
wake_each(Waiter *waiters)
{
	for (Waiter *next; waiters != NULL; waiters = next)
	{
		next = waiters->next;
		sem_post(&waiters->wakeup);
	}
}

/* The session may be gone after this. */
void
unlock(dlock_session *s)
{
	Waiter	   *waiters = take_wakeups(s);

	pthread_mutex_unlock(&s->lock);
	wake_each(waiters);
}

/* ---- who does the work ---- */

/* Is there an answer to come, or a descriptor to watch? */
static bool
is_flying(const dlock_session *s)
{
	bool		found = s->give_ups > 0;

	for (const Line *l = s->lines; l != NULL; l = l->next)
		found |= l->state != LINE_FREE;
	return found;
}

/* Whoever sleeps, because of nothing to do so far, is to look. */
void
wake(dlock_session *s)
{
	if (!s->driven)
		pthread_cond_signal(&s->idle);
	else if (s->asleep_until != 0 && !s->woken)
		s->woken = write(s->wake[1], ".", 1) == 1;
}

/* See to it that what is due then is looked after. */
void
arm(dlock_session *s, int64_t at)
{
	s->timer_at = MIN(s->timer_at, at);
	if (at < (s->driven ? s->asleep_until : s->idle_until))
		wake(s);
}

static void
tick(dlock_session *s)
{
	int64_t		now = now_ms();
	dlock_lease *next;

	if (now < s->timer_at)
		return;
	s->timer_at = NEVER;
	s->margin = NEVER;
	for (Line *l = s->lines; l != NULL; l = l->next)
		line_tick(s, l, now);
	for (dlock_lease *lease = s->leases; lease != NULL; lease = next)
	{
		next = lease->next;
		if (lease->phase == PHASE_HELD)
			hold_tick(lease, now);
		else if (now < lease->wake_at)
			arm(s, lease->wake_at);
		else
			go(lease);
	}
	take_tick(s, now);
}

static void
give_up_by(dlock_session *s, int fd)
{
	for (dlock_lease *lease = s->leases, *next; lease != NULL; lease = next)
	{
		next = lease->next;
		if (lease->give_up_fd == fd && !lease->answered)
			give_up(lease, DLOCK_CANCELED);
	}
}

/* Make room for so many descriptors to poll; false if there is no memory. */
static bool
make_room(dlock_session *s, int count)
{
	struct pollfd *fds = (count > s->room) ? realloc(s->fds, (size_t) count * sizeof(*fds)) : NULL;

	if (fds != NULL)
	{
		s->fds = fds;
		s->room = count;
	}
	return count <= s->room;
}

static void
poll_for(dlock_session *s, int *count, int fd, short events)
{
	struct pollfd what = {fd, events, 0};

	if (*count < s->room)
		s->fds[(*count)++] = what;
}

/*
 * Wait for something to happen; the mutex is let go of meanwhile.  Without memory, what has no
 * room is not watched for a second.
 */
static void
wait_for_events(dlock_session *s)
{
	bool		all = make_room(s, 1 + s->line_count + s->give_ups);
	char		sink[16];
	int			count = 0;
	int			lines;
	int64_t		left = MAX(s->timer_at - now_ms(), 0);
	int			timeout = (s->timer_at == NEVER && all) ? -1 : (int) MIN(left, PIECE);

	poll_for(s, &count, s->wake[0], POLLIN);
	for (Line *l = s->lines; l != NULL; l = l->next)
		poll_for(s, &count, (l->conn != NULL) ? PQsocket(l->conn) : -1, l->unflushed ? POLLIN | POLLOUT : POLLIN);
	lines = count;
	for (dlock_lease *lease = s->leases; s->give_ups > 0 && lease != NULL; lease = lease->next)
		if (lease->give_up_fd > 0 && !lease->answered)
			poll_for(s, &count, lease->give_up_fd, POLLIN);
	s->asleep_until = (timeout < 0) ? NEVER : now_ms() + timeout;
	unlock(s);
	if (poll(s->fds, (nfds_t) count, timeout) < 0)
		for (int i = 0; i < count; i++)
			s->fds[i].revents = 0;
	lock(s);
	s->asleep_until = 0;
	if (s->fds[0].revents != 0)
		(void) !read(s->wake[0], sink, sizeof(sink));
	s->woken = false;

	/* What is not ready after all does no harm. */
	for (Line *l = s->lines; l != NULL; l = l->next)
	{
		l->revents = 0;
		for (int i = 1; l->conn != NULL && i < lines; i++)
			if (s->fds[i].fd == PQsocket(l->conn))
				l->revents |= s->fds[i].revents;
	}
	for (int i = lines; i < count; i++)
		if (s->fds[i].revents != 0)
			give_up_by(s, s->fds[i].fd);
}

/* Do the work, up to something that happens. */
static void
drive(dlock_session *s)
{
	s->driven = true;
	wait_for_events(s);

	/* More is asked for by what comes of the answers, and goes together. */
	s->corked = true;
	for (Line *l = s->lines; l != NULL; l = l->next)
		line_work(s, l);
	tick(s);
	if (s->closed)
		wake_waiters(s, &s->waiters);
	pump(s);
	if (s->wakeups != NULL)
	{
		/* What they ask for next goes together, too. */
		unlock(s);
		lock(s);
		pump(s);
	}
	s->corked = false;
	s->driven = false;
}

/* A caller may have left something to do. */
static void
hand_on(dlock_session *s)
{
	if (!s->driven && (s->timer_at < s->idle_until || is_flying(s)))
		pthread_cond_signal(&s->idle);
}

static void *
run_session(void *argument)
{
	dlock_session *s = argument;

	lock(s);
	while (!s->ended)
	{
		tell_program(s);
		if (!s->driven && (is_flying(s) || now_ms() >= s->timer_at))
			drive(s);
		else
		{
			int64_t		left = s->driven ? NEVER : s->timer_at;

			left = (left == NEVER) ? NEVER : MIN(left - now_ms(), PIECE);
			s->idle_until = (left == NEVER) ? NEVER : now_ms() + left;
			sleep_on(&s->idle, s, left);
			s->idle_until = 0;
		}
	}
	tell_program(s);
	unlock(s);
	return NULL;
}

/* ---- calls ---- */

/* Begin a call, with the mutex, that dlock_close() waits for; false in a child. */
bool
begin_call(dlock_session *s, dlock_error *error)
{
	fail(error, DLOCK_OK, "%s", "");
	if (s->pid != getpid())
	{
		fail(error, DLOCK_CLOSED, "the session is of the parent process");
		return false;
	}
	lock(s);
	s->busy++;
	return true;
}

/* The same, of a session that is to be open; a lease outlives it. */
bool
enter(dlock_session *s, dlock_error *error)
{
	if (!begin_call(s, error))
		return false;
	if (!s->closed)
		return true;
	leave(s);
	fail(error, DLOCK_CLOSED, "the session is closed");
	return false;
}

void
leave(dlock_session *s)
{
	s->busy--;
	hand_on(s);
	if (s->closed)
	{
		wake_waiters(s, &s->waiters);
		wake(s);
	}
	unlock(s);
}

/* Wait, with the mutex held but for that, for something that these waiters are woken for. */
void
await(dlock_session *s, Waiter **waiters, bool (*done) (const void *), const void *what)
{
	while (!done(what))
		if (s->driven)
		{
			Waiter		me = {.next = *waiters};

			sem_init(&me.wakeup, 0, 0);
			*waiters = &me;
			unlock(s);
			while (sem_wait(&me.wakeup) != 0)
				;				/* a signal */
			sem_destroy(&me.wakeup);
			lock(s);
		}
		else
			drive(s);
	hand_on(s);
}

/* Its time does not step. */
void
make_cond(pthread_cond_t *cond)
{
	pthread_condattr_t attributes;

	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attributes);
	pthread_condattr_destroy(&attributes);
}

/* Wait so long, with the mutex. */
void
sleep_on(pthread_cond_t *cond, dlock_session *s, int64_t span)
{
	struct timespec until;

	wake_each(take_wakeups(s));
	if (span == NEVER)
	{
		pthread_cond_wait(cond, &s->lock);
		return;
	}
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += MAX(span, 0) % 1000 * 1000000;
	until.tv_sec += MAX(span, 0) / 1000 + until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	(void) pthread_cond_timedwait(cond, &s->lock, &until);
}

/* Without the mutex: sleep, or false if the session is closed or the caller gives up. */
bool
nap(dlock_session *s, int give_up_fd, int64_t span)
{
	int64_t		until = (span < NEVER - now_ms()) ? now_ms() + span : NEVER;

	for (;;)
	{
		struct pollfd fds[] = {{s->over[0], POLLIN, 0}, {(give_up_fd > 0) ? give_up_fd : -1, POLLIN, 0}};
		int64_t		left = until - now_ms();
		int			found = poll(fds, 2, (int) MAX(MIN(left, PIECE), 0));

		if (found > 0)
			return false;
		if (left <= 0 && (found == 0 || errno != EINTR))
			return true;
	}
}

/* A thread of the library takes no signals, so that the program's own threads do. */
bool
start_thread(pthread_t *thread, void *(*run) (void *), void *argument)
{
	sigset_t	all;
	sigset_t	old;
	int			error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	error = pthread_create(thread, NULL, run, argument);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return error == 0;
}

/* ---- opening and closing ---- */

/* Its ends do not block, and are not inherited. */
static bool
make_pipe(int fds[2])
{
	if (pipe(fds) != 0)
		return false;
	for (int i = 0; i < 2; i++)
	{
		fcntl(fds[i], F_SETFD, FD_CLOEXEC);
		fcntl(fds[i], F_SETFL, O_NONBLOCK);
	}
	return true;
}

static void
name_client(dlock_session *s)
{
	char		host[64] = "localhost";
	uint64_t	number = 0;

	if (getentropy(&number, sizeof(number)) != 0)
		number = (uint64_t) now_ms() ^ ((uint64_t) (uintptr_t) s << 16);
	(void) gethostname(host, sizeof(host) - 1);
	snprintf(s->client, sizeof(s->client), "%.50s/%d/%012" PRIx64, host, (int) s->pid, number & 0xffffffffffff);
}

dlock_session *
dlock_open(const char *conninfo, const dlock_session_options *options, dlock_error *error)
{
	static const dlock_session_options defaults = {0};
	const dlock_session_options *o = (options != NULL) ? options : &defaults;
	dlock_session *s;

	fail(error, DLOCK_OK, "%s", "");
	if (o->client != NULL &&
		(o->client[0] == '\0' || strchr(o->client, '#') != NULL || strlen(o->client) >= sizeof(s->client)))
	{
		fail(error, DLOCK_ERROR, "a client must be a text without #, of less than %zu bytes", sizeof(s->client));
		return NULL;
	}
	s = calloc(1, sizeof(*s));
	if (s == NULL)
	{
		fail(error, DLOCK_ERROR, "out of memory");
		return NULL;
	}
	s->pid = getpid();
	s->refs = 1;
	s->on_trouble = o->on_trouble;
	s->argument = o->argument;
	s->timer_at = s->margin = s->take_at = NEVER;
	s->wakeups_end = &s->wakeups;
	name_client(s);
	if (o->client != NULL)
		snprintf(s->client, sizeof(s->client), "%s", o->client);
	pthread_mutex_init(&s->lock, NULL);
	make_cond(&s->idle);
	s->lines = &s->shared[0];
	s->shared[0].next = &s->shared[1];
	s->shared[1].next = &s->taker;
	s->line_count = 3;
	for (int i = 0; i < 2; i++)
	{
		s->wake[i] = s->event[i] = s->over[i] = -1;
		s->queues[i].end = &s->queues[i].first;
		s->queues[i].most = MOST_IN_BATCH;
	}
	s->conninfo = strdup((conninfo != NULL) ? conninfo : "");
	if (s->conninfo != NULL && make_room(s, 1 + s->line_count) && make_pipe(s->wake) && make_pipe(s->event) && make_pipe(s->over) &&
		start_thread(&s->thread, run_session, s))
		return s;
	fail(error, DLOCK_ERROR, "could not create a session: %s", strerror(errno));
	unref_session(s);
	return NULL;
}

/* Without the mutex.  A child leaves what its parent uses alone. */
void
unref_session(dlock_session *s)
{
	bool		last;

	lock(s);
	last = --s->refs == 0;
	unlock(s);
	if (!last)
		return;
	for (int i = 0; i < 2; i++)
	{
		close(s->wake[i]);
		close(s->event[i]);
		close(s->over[i]);
	}
	pthread_mutex_destroy(&s->lock);
	pthread_cond_destroy(&s->idle);
	free(s->conninfo);
	free(s->fds);
	free(s->schema);
	free(s->trouble);
	free(s);
}

static bool
is_unused(const void *session)
{
	return ((const dlock_session *) session)->busy == 0;
}

/* Is nothing under way any more?  Places have been given up, so there is no turn to wait for. */
static bool
is_finished(const void *session)
{
	const dlock_session *s = session;

	return s->leases == NULL && s->queues[0].first == NULL && s->queues[1].first == NULL &&
		s->shared[0].batch == NULL && s->shared[1].batch == NULL;
}

void
dlock_close(dlock_session *session)
{
	dlock_session *s = session;

	if (s == NULL || s->pid != getpid())
		return;
	lock(s);
	s->closed = true;
	(void) !write(s->over[1], ".", 1);
	for (dlock_lease *lease = s->leases, *next; lease != NULL; lease = next)
	{
		next = lease->next;
		if (!lease->answered)
			give_up(lease, DLOCK_CLOSED);
		else if (lease->elected)
			stop(lease, DLOCK_CLOSED, "the session is closed");
	}
	await(s, &s->waiters, is_unused, s);
	for (dlock_lease *lease = s->leases, *next; lease != NULL; lease = next)
	{
		next = lease->next;
		let_go(lease);
	}
	await(s, &s->waiters, is_finished, s);
	s->ended = true;
	wake(s);
	unlock(s);
	pthread_join(s->thread, NULL);
	lock(s);
	for (Line *l = s->lines; l != NULL; l = l->next)
		line_drop(l);
	unlock(s);
	unref_session(s);
}

const char *
dlock_client(const dlock_session *session)
{
	return session->client;
}
