/*-------------------------------------------------------------------------
 *
 * cmd_status.c
 *	  dlock status: leases and requests.
 *
 * NOTES
 *	  With --watch the tables are shown again and again.  On a terminal they are
 *	  written over the ones before, from the top, as far as there are lines.  All
 *	  terminals obey the sequences that this needs.  The lock with the longest wait
 *	  comes first, so that it is always visible.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "options.h"
#include "conn.h"
#include "output.h"

#define WITHIN	(30 * CLI_SECOND)

static const char *const lease_titles[] = {"NAME", "OWNER", "MODE", "TOKEN", "STATE", "LEFT",[14] = "PAYLOAD"};
#define LEASES(from) \
	"SELECT l.name, owner, mode, token, state, " SECONDS("remaining") " AS remaining," \
	" permits, holds, bind, pid, role, " UTC("granted_at") " AS granted_at," \
	" " UTC("expires_at") " AS expires_at, " SECONDS("ttl") " AS ttl, payload" \
	" FROM " from " l LEFT JOIN (SELECT name, pg_catalog.max(waited) AS longest" \
	"  FROM @dlock_waiters GROUP BY name) w ON l.name OPERATOR(pg_catalog.=) w.name" \
	" ORDER BY longest DESC NULLS LAST, l.name COLLATE \"C\", token"
static const char leases_sql[] = LEASES("@dlock_leases");
static const char lease_sql[] = LEASES("@dlock_lease($1)");

static const char *const waiter_titles[11] = {"NAME", "POSITION", "WAITING", "MODE", "WAITED"};
static const char waiter_sql[] =
"SELECT name, position, owner, mode, " SECONDS("waited") " AS waited,"
" request, permits, role, " UTC("since") " AS since, pid, pg_catalog.to_json(blocked_by) AS blocked_by"
" FROM @dlock_waiters WHERE $1 IS NULL OR name OPERATOR(pg_catalog.=) $1"
" ORDER BY pg_catalog.max(waited) OVER (PARTITION BY name) DESC, name COLLATE \"C\", position";

static const char now_sql[] = "SELECT " UTC("pg_catalog.clock_timestamp()") " AS time";

/* Append the leases and the requests of a lock, or of all; false: see the connection's error. */
static bool
append_tables(PQExpBuffer to, Conn *conn, const char *name)
{
	const ConnParam params[] = {CONN_TEXT(name)};
	int			found;

	if (conn_ask(conn, WITHIN, (name != NULL) ? lease_sql : leases_sql, 1, params) == NULL)
		return false;
	found = PQntuples(conn->answer);
	rows_append(to, conn->answer, "lease", lease_titles);
	if (conn_ask(conn, WITHIN, waiter_sql, 1, params) == NULL)
		return false;
	if (!output_is_json() && found > 0 && PQntuples(conn->answer) > 0)
		appendPQExpBufferChar(to, '\n');
	rows_append(to, conn->answer, "waiter", waiter_titles);
	return true;
}

/* ---- again and again ---- */

/* Append the server's time, which separates the lines from those before. */
static bool
append_time(PQExpBuffer to, Conn *conn)
{
	if (conn_ask(conn, WITHIN, now_sql, 0, NULL) == NULL)
		return false;
	if (output_is_json())
		rows_append(to, conn->answer, "status", NULL);
	else
		appendPQExpBuffer(to, "%s\n\n", conn_value(conn, 0));
	return true;
}

/*
 * Write lines over what the terminal shows, as many as it has but one.  Lines do not
 * wrap meanwhile.
 */
static void
redraw(const char *lines)
{
	struct winsize size = {0};
	PQExpBufferData frame;

	(void) ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
	initPQExpBuffer(&frame);
	appendPQExpBufferStr(&frame, "\033[?7l\033[H");
	for (int left = (size.ws_row > 1) ? size.ws_row - 1 : 23; *lines != '\0' && left > 0; lines++)
	{
		left -= (*lines == '\n');
		if (*lines == '\n')
			appendPQExpBufferStr(&frame, "\033[K");
		appendPQExpBufferChar(&frame, *lines);
	}
	appendPQExpBufferStr(&frame, "\033[J\033[?7h");
	fputs(frame.data, stdout);
	termPQExpBuffer(&frame);
}

/* May the next attempt succeed?  A late cancel may have hit this statement. */
static bool
may_pass(const Conn *conn)
{
	return conn_may_pass(conn, true) ||
		conn->error.trouble == CONN_INTERRUPTED || conn->error.trouble == CONN_DEADLOCK;
}

/* Show the tables until that fails for good, or a signal ends it.  Returns an exit code. */
static int
watch(Conn *conn, const char *name, CliTime interval)
{
	bool		on_terminal = isatty(STDOUT_FILENO) && !output_is_json();
	bool		was_told = false;
	int			code = CLI_EXIT_OK;

	if (on_terminal)
		fputs("\033[2J", stdout);
	while (code == CLI_EXIT_OK)
	{
		PQExpBufferData tables;

		initPQExpBuffer(&tables);
		if (conn_open(conn) && append_time(&tables, conn) && append_tables(&tables, conn, name))
		{
			was_told = false;
			if (on_terminal)
				redraw(tables.data);
			else
				printf("%s%s", tables.data, output_is_json() ? "" : "\n");
			code = output_finish();
		}
		else if (!may_pass(conn))
			code = conn_report(conn);
		else if (!was_told)
		{
			output_warning("%s; trying again", conn->error.message);
			was_told = true;
		}
		termPQExpBuffer(&tables);
		output_flush();
		if (code == CLI_EXIT_OK)
			(void) clock_poll(NULL, 0, clock_now() + interval);
	}
	return code;
}

int
show_status(const Options *options, char **arguments)
{
	const char *name = arguments[0];
	int			code;
	Conn		conn;
	PQExpBufferData tables;

	conn_init(&conn, options->conninfo);
	initPQExpBuffer(&tables);
	if (!conn_open(&conn))
		code = conn_report(&conn);
	else if (options->watch > 0)
		code = watch(&conn, name, options->watch);
	else if (append_tables(&tables, &conn, name))
		code = output_print(&tables);
	else
		code = conn_report(&conn);
	termPQExpBuffer(&tables);
	conn_close(&conn);
	return code;
}
