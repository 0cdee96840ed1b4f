/*-------------------------------------------------------------------------
 *
 * session.c
 *	  A session: its opening, its end, its thread and its timer.
 *
 * NOTES
 *	  The thread polls the connections and the descriptors of those who may give up, and
 *	  looks after all that is due.  It wakes up once a second while something may come due,
 *	  as poll() does not count a suspension.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
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

char *
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

		memset(error, 0, sizeof(*error));
		error->status = status;
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

/* ---- calls ---- */

/* Begin a call, with the mutex, that dlock_close() waits for; false if there is no session any more. */
bool
enter(dlock_session *s, dlock_error *error)
{
	fail(error, DLOCK_OK, "%s", "");
	if (s->pid != getpid())
	{
		fail(error, DLOCK_CLOSED, "the session is of the parent process");
		return false;
	}
	pthread_mutex_lock(&s->lock);
	if (!s->closed)
	{
		s->busy++;
		return true;
	}
	pthread_mutex_unlock(&s->lock);
	fail(error, DLOCK_CLOSED, "the session is closed");
	return false;
}

void
leave(dlock_session *s)
{
	s->busy--;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

/* Without the mutex: sleep, or false if the session is closed or the caller gives up.  The other descriptor ends it, too. */
bool
nap(dlock_session *s, int give_up_fd, int other_fd, int64_t span)
{
	int64_t		until = (span < NEVER - now_ms()) ? now_ms() + span : NEVER;

	for (;;)
	{
		struct pollfd fds[] = {{s->over[0], POLLIN, 0}, {(give_up_fd > 0) ? give_up_fd : -1, POLLIN, 0}, {other_fd, POLLIN, 0}};
		int64_t		left = until - now_ms();
		int			found = poll(fds, 3, (int) MAX(MIN(left, PIECE), 0));

		if (found > 0 && (fds[0].revents != 0 || fds[1].revents != 0))
			return false;
		if (found > 0 || (left <= 0 && (found == 0 || errno != EINTR)))
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

/* ---- the thread ---- */

void
wake_thread(dlock_session *s)
{
	if (!s->woken)
		s->woken = write(s->wake[1], ".", 1) == 1;
}

/* See to it that the thread looks after what is due then. */
void
arm(dlock_session *s, int64_t at)
{
	if (at < s->timer_at)
		s->timer_at = at;
	if (at < s->polled_until)
		wake_thread(s);
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
	queue_tick(s, now);
	for (Line *l = s->lines; l != NULL; l = l->next)
		line_tick(s, l, now);
	for (dlock_lease *lease = s->leases; lease != NULL; lease = next)
	{
		next = lease->next;
		if (lease->phase == PHASE_HELD)
			hold_tick(lease, now);
		else if (lease->phase == PHASE_RELEASING)
			release_tick(lease, now);
		else
			request_tick(lease, now);
	}
	take_tick(s, now);
}

/* Wait for something to happen; the mutex is let go of meanwhile. */
static void
wait_for_events(dlock_session *s, struct pollfd *fds, int size)
{
	char		sink[16];
	int			count = 1;
	int			lines;
	int64_t		left = MAX(s->timer_at - now_ms(), 0);
	int			timeout = (s->timer_at == NEVER) ? -1 : (int) MIN(left, PIECE);

	memset(fds, 0, (size_t) size * sizeof(*fds));
	for (int i = 0; i < size; i++)
		fds[i].events = POLLIN;
	fds[0].fd = s->wake[0];
	for (Line *l = s->lines; l != NULL && count < size; l = l->next)
	{
		fds[count].fd = (l->conn != NULL) ? PQsocket(l->conn) : -1;
		fds[count++].events = l->unflushed ? POLLIN | POLLOUT : POLLIN;
	}
	lines = count;
	for (dlock_lease *lease = s->leases; s->give_ups > 0 && lease != NULL && count < size; lease = lease->next)
		if (lease->give_up_fd > 0 && !lease->answered)
			fds[count++].fd = lease->give_up_fd;
	s->polled_until = (timeout < 0) ? NEVER : now_ms() + timeout;
	pthread_mutex_unlock(&s->lock);
	if (poll(fds, (nfds_t) count, timeout) < 0)
		for (int i = 0; i < count; i++)
			fds[i].revents = 0;
	pthread_mutex_lock(&s->lock);
	s->polled_until = 0;
	if (fds[0].revents != 0)
		(void) !read(s->wake[0], sink, sizeof(sink));
	s->woken = false;

	/* What is not ready after all does no harm. */
	for (Line *l = s->lines; l != NULL; l = l->next)
	{
		l->revents = 0;
		for (int i = 1; i < lines; i++)
			if (l->conn != NULL && fds[i].fd == PQsocket(l->conn))
				l->revents |= fds[i].revents;
	}
	for (int i = lines; i < count; i++)
	{
		dlock_lease *next;

		for (dlock_lease *lease = s->leases; fds[i].revents != 0 && lease != NULL; lease = next)
		{
			next = lease->next;
			if (lease->give_up_fd == fds[i].fd && !lease->answered)
				give_up(lease, DLOCK_CANCELED);
		}
	}
}

static void *
run_session(void *argument)
{
	dlock_session *s = argument;
	struct pollfd *fds = NULL;
	int			size = 0;

	pthread_mutex_lock(&s->lock);
	while (!s->ended)
	{
		int			lines = 0;

		/* More is asked for by what comes of the answers, and goes together. */
		s->corked = true;
		for (Line *l = s->lines; l != NULL; l = l->next, lines++)
			line_work(s, l);
		tick(s);
		s->corked = false;
		pump(s);
		tell_program(s);
		if (s->closed)
			pthread_cond_broadcast(&s->changed);
		if (size < 1 + lines + s->give_ups)
		{
			int			wanted = 2 * (8 + lines + s->give_ups);
			struct pollfd *larger = realloc(fds, (size_t) wanted * sizeof(*fds));

			fds = (larger != NULL) ? larger : fds;
			size = (larger != NULL) ? wanted : size;
		}
		if (fds != NULL && !s->ended)
			wait_for_events(s, fds, size);
	}
	pthread_mutex_unlock(&s->lock);
	free(fds);
	return NULL;
}

/* ---- opening and closing ---- */

/* Its ends do not block, and are not inherited. */
bool
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
	name_client(s);
	if (o->client != NULL)
		snprintf(s->client, sizeof(s->client), "%s", o->client);
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->changed, NULL);
	s->lines = &s->shared[0];
	s->shared[0].next = &s->shared[1];
	s->shared[1].next = &s->taker;
	for (int i = 0; i < 2; i++)
		s->wake[i] = s->event[i] = s->over[i] = -1;
	s->conninfo = strdup((conninfo != NULL) ? conninfo : "");
	if (s->conninfo != NULL && make_pipe(s->wake) && make_pipe(s->event) && make_pipe(s->over) &&
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

	pthread_mutex_lock(&s->lock);
	last = --s->refs == 0;
	pthread_mutex_unlock(&s->lock);
	if (!last)
		return;
	for (int i = 0; i < 2; i++)
	{
		close(s->wake[i]);
		close(s->event[i]);
		close(s->over[i]);
	}
	pthread_mutex_destroy(&s->lock);
	pthread_cond_destroy(&s->changed);
	free(s->conninfo);
	free(s->schema);
	free(s->trouble);
	free(s);
}

/* Is something still under way? */
static bool
is_under_way(dlock_session *s)
{
	bool		found = s->leases != NULL || s->queues[0].first != NULL || s->queues[1].first != NULL;

	for (int i = 0; i < 2; i++)
		found |= s->shared[i].batch != NULL || s->shared[i].todo != NULL;
	return found;
}

void
dlock_close(dlock_session *session)
{
	dlock_session *s = session;
	dlock_lease *next;

	if (s == NULL || s->pid != getpid())
		return;
	pthread_mutex_lock(&s->lock);
	s->closed = true;
	(void) !write(s->over[1], ".", 1);
	for (dlock_lease *lease = s->leases; lease != NULL; lease = next)
	{
		next = lease->next;
		if (!lease->answered)
			give_up(lease, DLOCK_CLOSED);
		else if (lease->elected)
			stop(lease, DLOCK_CLOSED, "the session is closed");
	}
	while (s->busy > 0)
		pthread_cond_wait(&s->changed, &s->lock);
	for (dlock_lease *lease = s->leases; lease != NULL; lease = next)
	{
		next = lease->next;
		let_go(lease);
	}
	while (is_under_way(s))
		pthread_cond_wait(&s->changed, &s->lock);
	s->ended = true;
	wake_thread(s);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->thread, NULL);
	pthread_mutex_lock(&s->lock);
	for (Line *l = s->lines; l != NULL; l = l->next)
		line_drop(l);
	pthread_mutex_unlock(&s->lock);
	unref_session(s);
}

const char *
dlock_client(const dlock_session *session)
{
	return session->client;
}
