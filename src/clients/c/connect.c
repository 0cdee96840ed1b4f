/*-------------------------------------------------------------------------
 *
 * connect.c
 *	  A connection that is made for a line.
 *
 * NOTES
 *	  libpq's resolver of host names may hang, so a thread does it, which ends with that.  If
 *	  the line does not wait for it any more, the connection is closed as soon as it is there.
 *
 *	  Whoever polls has to see to connect_timeout, and cannot go on to the next host.  So when
 *	  that time is up, libpq does all of it once more.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* What is there, and where; and which backend, of which a pooler has told another number. */
const char	look_sql[] =
"SELECT s.schema, s.names, pg_catalog.current_database(), pg_catalog.pg_backend_pid(),"
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
} Attempt;

static void
ignore_notice(void *argument, const PGresult *result)
{
	(void) argument;
	(void) result;
}

/* Only the verbose form of the complaint about a failed attempt has the SQLSTATE. */
static void
fail_connection(const PGconn *conn, dlock_error *error)
{
	const char *message = PQerrorMessage(conn);
	char		code[6] = "";

	for (const char *at = strstr(message, ":  "); at != NULL; at = strstr(at + 1, ":  "))
		if (strspn(at + 3, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5 && strncmp(at + 8, ": ", 2) == 0)
		{
			memcpy(code, at + 3, 5);
			message = at + 10;
		}
	fail_by_state(error, (code[0] != '\0') ? code : NULL, message);
}

static PGconn *
make_connection(const char *conninfo)
{
	/* What comes before the user's own is a default. */
	const char *keys[] = {"target_session_attrs", "keepalives_idle", "keepalives_interval", "keepalives_count",
	"dbname", "client_encoding", NULL};
	const char *values[] = {"read-write", "10", "5", "3", conninfo, "UTF8", NULL};
	PostgresPollingStatusType want = PGRES_POLLING_WRITING;
	PGconn	   *conn = PQconnectStartParams(keys, values, 1);
	PQconninfoOption *options = PQconninfo(conn);
	int			within = ANSWER_WITHIN;

	for (PQconninfoOption *o = options; o != NULL && o->keyword != NULL; o++)
		if (strcmp(o->keyword, "connect_timeout") == 0 && o->val != NULL && atoi(o->val) > 0)
			within = MIN(atoi(o->val), ANSWER_WITHIN / 1000) * 1000;
	PQconninfoFree(options);
	PQsetErrorVerbosity(conn, PQERRORS_VERBOSE);
	PQsetNoticeReceiver(conn, ignore_notice, NULL);
	while (PQstatus(conn) != CONNECTION_BAD && want != PGRES_POLLING_OK && want != PGRES_POLLING_FAILED)
	{
		struct pollfd ready = {PQsocket(conn), (want == PGRES_POLLING_READING) ? POLLIN : POLLOUT, 0};

		if (poll(&ready, 1, within) <= 0)
		{
			if (within < ANSWER_WITHIN)
				PQreset(conn);
			break;
		}
		want = PQconnectPoll(conn);
	}
	return conn;
}

static void *
run_attempt(void *argument)
{
	Attempt    *a = argument;
	dlock_session *s = a->session;
	PGconn	   *conn = make_connection(s->conninfo);
	Line	   *l;

	lock(s);
	l = a->line;
	if (l != NULL)
	{
		l->attempt = NULL;
		if (PQstatus(conn) == CONNECTION_OK && PQsetnonblocking(conn, 1) == 0)
		{
			l->conn = conn;
			conn = NULL;
			line_query(s, l, LINE_LOOKING, look_sql);
		}
		else
		{
			l->state = LINE_BROKEN;
			fail_connection(conn, &l->error);
		}
		arm(s, 0);
	}
	unlock(s);
	PQfinish(conn);
	free(a);
	unref_session(s);
	return NULL;
}

/* Whoever waits for the line has to be answered by the one who does the work. */
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
	arm(s, 0);
}

/* The line does not wait for it any more. */
void
leave_attempt(Line *l)
{
	if (l->attempt != NULL)
		l->attempt->line = NULL;
	l->attempt = NULL;
}

/*
 * A connection has told what the server has.  Its version is not a matter of numbers, but of
 * functions.  If it is not good enough, the error of the line says why.
 */
bool
look(dlock_session *s, Line *l)
{
	const PGresult *result = l->result;
	const char *names;
	char	   *schema;

	if (PQresultStatus(result) != PGRES_TUPLES_OK)
	{
		fail_by_state(&l->error, PQresultErrorField(result, PG_DIAG_SQLSTATE), PQerrorMessage(l->conn));
		return false;
	}
	if (PQgetisnull(result, 0, 0))
	{
		fail(&l->error, DLOCK_UNSUPPORTED,
			 "the database has no dlock; a role with the right to do so has to run CREATE EXTENSION dlock in database \"%s\"",
			 PQgetvalue(result, 0, 2));
		return false;
	}
	names = PQgetvalue(result, 0, 1);
	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
		if (strstr(names, needed[i]) == NULL)
		{
			fail(&l->error, DLOCK_UNSUPPORTED, "dlock of the server is too old: %s() is missing;"
				 " a role with the right to do so has to run ALTER EXTENSION dlock UPDATE in database \"%s\"",
				 needed[i], PQgetvalue(result, 0, 2));
			return false;
		}
	schema = strdup(PQgetvalue(result, 0, 0));
	if (schema == NULL)
	{
		fail(&l->error, DLOCK_ERROR, "out of memory");
		return false;
	}
	free(s->schema);
	s->schema = schema;
	s->pooled |= atoi(PQgetvalue(result, 0, 3)) != PQbackendPID(l->conn);
	return true;
}
