/*-------------------------------------------------------------------------
 *
 * session.c
 *	  Sessions of the server, and the clocks.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "probe.h"

/* No answer takes as long as this, in a benchmark that works. */
#define PATIENCE	(60 * SEC)

/* How many sessions connect at a time. */
#define AT_ONCE		64

/* End the program with a message. */
void
fail(const char *format,...)
{
	va_list		arguments;

	fputs("error: ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

/* ---- clocks ---- */

static Time
read_clock(clockid_t clock)
{
	struct timespec ts;

	if (clock_gettime(clock, &ts) != 0)
		fail("cannot read the clock: %s", strerror(errno));
	return (Time) ts.tv_sec * SEC + ts.tv_nsec / 1000;
}

Time
now_monotonic(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

/* The wall clock, since 1970. */
Time
now_wall(void)
{
	return read_clock(CLOCK_REALTIME);
}

void
nap(Time span)
{
	sessions_wait(NULL, 0, now_monotonic() + span);
}

/* The same sequence in each run. */
Time
random_span(Time from, Time to)
{
	return from + random() % (to - from + 1);
}

/* ---- sessions ---- */

static void
give_up(const Session *session)
{
	fail("%.*s", (int) strcspn(PQerrorMessage(session->conn), "\n"), PQerrorMessage(session->conn));
}

void
session_open(Session *session)
{
	memset(session, 0, sizeof(*session));
	session->conn = PQconnectdb("");
	if (PQstatus(session->conn) != CONNECTION_OK)
		give_up(session);
}

/* Open many at a time; the options are those of libpq. */
void
sessions_open(Session *sessions, int count, const char *conninfo)
{
	for (int first = 0; first < count; first += AT_ONCE)
	{
		int			last = first + AT_ONCE < count ? first + AT_ONCE : count;
		PostgresPollingStatusType state[AT_ONCE];
		int			pending;

		for (int i = first; i < last; i++)
		{
			memset(&sessions[i], 0, sizeof(sessions[i]));
			sessions[i].conn = PQconnectStart(conninfo);
			state[i - first] = PGRES_POLLING_WRITING;
		}
		do
		{
			struct pollfd fds[AT_ONCE];

			pending = 0;
			for (int i = first; i < last; i++)
			{
				bool		done = state[i - first] == PGRES_POLLING_OK;

				fds[i - first].fd = done ? -1 : PQsocket(sessions[i].conn);
				fds[i - first].events = state[i - first] == PGRES_POLLING_READING ? POLLIN : POLLOUT;
				pending += !done;
			}
			if (pending > 0 && poll(fds, last - first, (int) (PATIENCE / MSEC)) <= 0)
				fail("cannot connect");
			for (int i = first; i < last; i++)
			{
				if (state[i - first] == PGRES_POLLING_OK || fds[i - first].revents == 0)
					continue;
				state[i - first] = PQconnectPoll(sessions[i].conn);
				if (state[i - first] == PGRES_POLLING_FAILED)
					give_up(&sessions[i]);
			}
		} while (pending > 0);
	}
}

/* A statement whose answer does not matter. */
void
session_do(Session *session, const char *sql)
{
	PGresult   *result = PQexec(session->conn, sql);

	if (PQresultStatus(result) != PGRES_COMMAND_OK && PQresultStatus(result) != PGRES_TUPLES_OK)
		give_up(session);
	PQclear(result);
}

void
session_prepare(Session *session, const char *name, const char *sql)
{
	PGresult   *result = PQprepare(session->conn, name, sql, 0, NULL);

	if (PQresultStatus(result) != PGRES_COMMAND_OK)
		give_up(session);
	PQclear(result);
}

/* Send a prepared statement. */
void
session_send(Session *session, const char *name, int count, const char *const *values)
{
	session->busy = true;
	session->sent_at = now_monotonic();
	if (PQsendQueryPrepared(session->conn, name, count, values, NULL, NULL, 0) != 1)
		give_up(session);
}

/* Keep the first value. */
static void
keep(Session *session, const PGresult *result)
{
	if (PQresultStatus(result) != PGRES_TUPLES_OK && PQresultStatus(result) != PGRES_COMMAND_OK)
		give_up(session);
	session->is_null = PQntuples(result) == 0 || PQgetisnull(result, 0, 0);
	snprintf(session->value, sizeof(session->value), "%s",
			 session->is_null ? "" : PQgetvalue(result, 0, 0));
}

/* Take in what the server has sent; a whole answer ends the statement. */
void
session_take_in(Session *session)
{
	PGnotify   *notification;

	if (PQconsumeInput(session->conn) != 1)
		give_up(session);
	while ((notification = PQnotifies(session->conn)) != NULL)
	{
		session->notified++;
		PQfreemem(notification);
	}
	while (session->busy && PQisBusy(session->conn) == 0)
	{
		PGresult   *result = PQgetResult(session->conn);

		if (result != NULL)
			keep(session, result);
		else
		{
			session->busy = false;
			session->answered_at = now_monotonic();
		}
		PQclear(result);
	}
}

/*
 * Sleep until something has arrived in one of the sessions, or until a moment;
 * take in what has arrived.
 */
void
sessions_wait(Session *const *sessions, int count, Time until)
{
	struct pollfd fds[MAX_SESSIONS];
	Time		now = now_monotonic();
	Time		span = until > now ? until - now : 0;
	struct timespec timeout = {span / SEC, span % SEC * 1000};
	int			ready;

	for (int i = 0; i < count; i++)
	{
		fds[i].fd = PQsocket(sessions[i]->conn);
		fds[i].events = POLLIN;
	}
	ready = ppoll(fds, count, until == FOREVER ? NULL : &timeout, NULL);
	if (ready < 0 && errno != EINTR)
		fail("cannot wait: %s", strerror(errno));
	for (int i = 0; i < count && ready > 0; i++)
	{
		if (fds[i].revents != 0)
			session_take_in(sessions[i]);
	}
}

/* Wait for the answer to what was sent. */
void
session_answer(Session *session)
{
	Time		until = now_monotonic() + PATIENCE;

	while (session->busy)
	{
		sessions_wait(&session, 1, until);
		if (session->busy && now_monotonic() >= until)
			fail("no answer in %d s", (int) (PATIENCE / SEC));
	}
}

/* Send a prepared statement and wait for the answer. */
void
session_call(Session *session, const char *name, int count, const char *const *values)
{
	session_send(session, name, count, values);
	session_answer(session);
}

/* The value of the answer as a number. */
Time
session_number(const Session *session)
{
	return strtoll(session->value, NULL, 10);
}
