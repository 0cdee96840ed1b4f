/*-------------------------------------------------------------------------
 *
 * connect.c
 *	  A connection that is made for a line.
 *
 * NOTES
 *	  libpq's resolver of host names may hang, so a thread does it, which ends with that.  If
 *	  the line does not wait for it any more, the connection is closed as soon as it is there.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* What is there, and where. */
static const char look_sql[] =
"SELECT s.schema, s.names, pg_catalog.current_database(),"
" pg_catalog.set_config('application_name', coalesce(nullif(pg_catalog.current_setting('application_name'), ''), 'dlock'), false)"
" FROM (VALUES (1)) AS always LEFT JOIN ("
"  SELECT pg_catalog.format('%I.', n.nspname) AS schema, pg_catalog.string_agg(DISTINCT p.proname, ' ') AS names"
"  FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace"
"  LEFT JOIN pg_catalog.pg_extension e ON e.extname = 'dlock' AND e.extnamespace = n.oid"
"  WHERE p.proname LIKE 'dlock\\_%' GROUP BY n.nspname, e.extversion"
"  ORDER BY e.extversion IS NULL, max(pg_catalog.pg_function_is_visible(p.oid)::int) DESC LIMIT 1) AS s ON true";

static const char *const needed[] = {"dlock_acquire_each", "dlock_renew_each", "dlock_release_each", "dlock_take"};

/* A connection that is being made, by a thread of its own. */
typedef struct Attempt
{
	dlock_session *session;		/* it has a reference */
	Line	   *line;			/* waits for it as long as it knows it */
	int64_t		until;
	PGconn	   *conn;
	char	   *schema;
	dlock_error error;
} Attempt;

static void
ignore_notice(void *argument, const PGresult *result)
{
	(void) argument;
	(void) result;
}

/* Wait for the descriptor; false if that takes too long, or the session ends. */
static bool
wait_ready(Attempt *a, short events)
{
	for (;;)
	{
		struct pollfd fds[] = {{PQsocket(a->conn), events, 0}, {a->session->over[0], POLLIN, 0}};
		int64_t		left = a->until - now_ms();

		if (left <= 0)
		{
			fail(&a->error, DLOCK_UNREACHABLE, "the server does not answer");
			return false;
		}
		if (poll(fds, 2, (int) MIN(left, 1000)) > 0)
		{
			if (fds[0].revents != 0)
				return true;
			/* A session that is closed still gives back what it holds. */
			pthread_mutex_lock(&a->session->lock);
			if (a->line == NULL)
				a->until = 0;
			pthread_mutex_unlock(&a->session->lock);
			if (a->until != 0)
				poll(fds, 1, (int) MIN(left, 10));
		}
	}
}

/* Only the verbose form of the complaint about a failed attempt has the SQLSTATE. */
static void
fail_connection(Attempt *a)
{
	const char *message = PQerrorMessage(a->conn);
	char		code[6] = "";

	for (const char *at = strstr(message, ":  "); at != NULL; at = strstr(at + 1, ":  "))
		if (strspn(at + 3, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5 && strncmp(at + 8, ": ", 2) == 0)
		{
			memcpy(code, at + 3, 5);
			message = at + 10;
		}
	fail_by_state(&a->error, (code[0] != '\0') ? code : NULL, message);
}

/* The server's version is not a matter of numbers, but of functions. */
static bool
look(Attempt *a)
{
	PGresult   *result;
	const char *names;
	bool		done = false;

	if (!PQsendQuery(a->conn, look_sql))
	{
		fail_connection(a);
		return false;
	}
	while (PQisBusy(a->conn))
	{
		if (!wait_ready(a, POLLIN))
			return false;
		if (!PQconsumeInput(a->conn))
			break;
	}
	result = PQgetResult(a->conn);
	names = (PQresultStatus(result) == PGRES_TUPLES_OK) ? PQgetvalue(result, 0, 1) : NULL;
	if (names == NULL)
		fail_by_state(&a->error, PQresultErrorField(result, PG_DIAG_SQLSTATE), PQerrorMessage(a->conn));
	else if (PQgetisnull(result, 0, 0))
		fail(&a->error, DLOCK_UNSUPPORTED,
			 "the database has no dlock; a role with the right to do so has to run CREATE EXTENSION dlock in database \"%s\"",
			 PQgetvalue(result, 0, 2));
	else
	{
		done = true;
		for (size_t i = 0; done && i < sizeof(needed) / sizeof(needed[0]); i++)
		{
			const char *found = strstr(names, needed[i]);

			done = found != NULL;
			if (!done)
				fail(&a->error, DLOCK_UNSUPPORTED, "dlock of the server is too old: %s() is missing;"
					 " a role with the right to do so has to run ALTER EXTENSION dlock UPDATE in database \"%s\"",
					 needed[i], PQgetvalue(result, 0, 2));
		}
		a->schema = strdup(PQgetvalue(result, 0, 0));
	}
	PQclear(result);
	while ((result = PQgetResult(a->conn)) != NULL)
		PQclear(result);
	return done && a->schema != NULL;
}

static bool
make_connection(Attempt *a)
{
	/* What comes before the user's own is a default. */
	const char *keys[] = {"target_session_attrs", "keepalives_idle", "keepalives_interval", "keepalives_count",
	"dbname", "client_encoding", NULL};
	const char *values[] = {"read-write", "10", "5", "3", a->session->conninfo, "UTF8", NULL};
	PostgresPollingStatusType want = PGRES_POLLING_WRITING;

	a->conn = PQconnectStartParams(keys, values, 1);
	if (a->conn == NULL)
	{
		fail(&a->error, DLOCK_UNREACHABLE, "out of memory");
		return false;
	}
	PQsetErrorVerbosity(a->conn, PQERRORS_VERBOSE);
	PQsetNoticeReceiver(a->conn, ignore_notice, NULL);
	while (PQstatus(a->conn) != CONNECTION_BAD && want != PGRES_POLLING_OK && want != PGRES_POLLING_FAILED)
	{
		if (!wait_ready(a, (want == PGRES_POLLING_READING) ? POLLIN : POLLOUT))
			return false;
		want = PQconnectPoll(a->conn);
	}
	if (PQstatus(a->conn) != CONNECTION_OK)
	{
		fail_connection(a);
		return false;
	}
	return look(a) && PQsetnonblocking(a->conn, 1) == 0;
}

static void *
run_attempt(void *argument)
{
	Attempt    *a = argument;
	dlock_session *s = a->session;
	bool		made;
	Line	   *l;

	fail(&a->error, DLOCK_UNREACHABLE, "out of memory");
	made = make_connection(a);
	pthread_mutex_lock(&s->lock);
	l = a->line;
	if (l != NULL)
	{
		l->attempt = NULL;
		l->state = made ? LINE_READY : LINE_BROKEN;
		l->error = a->error;
		if (made)
		{
			l->conn = a->conn;
			free(s->schema);
			s->schema = a->schema;
			a->conn = NULL;
			a->schema = NULL;
		}
		wake_thread(s);
	}
	pthread_mutex_unlock(&s->lock);
	PQfinish(a->conn);
	free(a->schema);
	free(a);
	unref_session(s);
	return NULL;
}

/* Whoever waits for the line has to be answered by the session's thread. */
void
connect_line(dlock_session *s, Line *l)
{
	Attempt    *a = calloc(1, sizeof(*a));
	pthread_t	thread;

	l->state = LINE_CONNECTING;
	if (a != NULL)
	{
		a->session = s;
		a->line = l;
		a->until = l->until;
		l->attempt = a;
		s->refs++;
		if (start_thread(&thread, run_attempt, a))
		{
			pthread_detach(thread);
			return;
		}
		s->refs--;
		l->attempt = NULL;
		free(a);
	}
	l->state = LINE_BROKEN;
	fail(&l->error, DLOCK_UNREACHABLE, "could not create a thread");
	wake_thread(s);
}

/* The line does not wait for it any more. */
void
leave_attempt(Line *l)
{
	if (l->attempt != NULL)
		l->attempt->line = NULL;
	l->attempt = NULL;
}
