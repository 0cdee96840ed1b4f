/*-------------------------------------------------------------------------
 *
 * cmd_status.c
 *	  dlock status: who holds, and who waits.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_status.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>

#include "commands.h"
#include "conn.h"
#include "output.h"
#include "rows.h"

#define WITHIN	(30 * CLI_SECOND)

/* A time as programs read it, and a span in seconds. */
#define UTC(t) \
	"pg_catalog.to_char(pg_catalog.timezone('UTC', " t "), 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')"
#define SECONDS(s) \
	"pg_catalog.round(extract(epoch FROM " s ")::pg_catalog.numeric, 3)"

static const RowsColumn lease_columns[] = {
	{"name", "NAME", false}, {"owner", "OWNER", false}, {"mode", "MODE", false},
	{"token", "TOKEN", true}, {"state", "STATE", false}, {"remaining", "LEFT", true},
	{"permits", NULL, true}, {"holds", NULL, true}, {"bind", NULL, false}, {"pid", NULL, true},
	{"role", NULL, false}, {"granted_at", NULL, false}, {"expires_at", NULL, false},
	{"ttl", NULL, true}, {"payload", "PAYLOAD", true}
};
#define LEASES(from) \
	"SELECT name, owner, mode, token, state, " SECONDS("remaining") "," \
	" permits, holds, bind, pid, role, " UTC("granted_at") ", " UTC("expires_at") ", " SECONDS("ttl") ", payload" \
	" FROM " from " ORDER BY name COLLATE \"C\", token"
static const char leases_sql[] = LEASES("@dlock_leases");
static const char lease_sql[] = LEASES("@dlock_lease($1)");

static const RowsColumn waiter_columns[] = {
	{"name", "NAME", false}, {"position", "POSITION", true}, {"owner", "WAITING", false},
	{"mode", "MODE", false}, {"waited", "WAITED", true}, {"request", NULL, false},
	{"permits", NULL, true}, {"role", NULL, false}, {"since", NULL, false}, {"pid", NULL, true},
	{"blocked_by", NULL, true}
};
static const char waiter_sql[] =
"SELECT name, position, owner, mode, " SECONDS("waited") ","
" request, permits, role, " UTC("since") ", pid, pg_catalog.to_json(blocked_by)"
" FROM @dlock_waiters WHERE $1 IS NULL OR name OPERATOR(pg_catalog.=) $1"
" ORDER BY name COLLATE \"C\", position";

static int
run(const Options *options, int argc, char **argv)
{
	const ConnParam params[] = {CONN_TEXT((argc > 0) ? argv[0] : NULL)};
	int			code = CLI_EXIT_OK;
	int			found = 0;
	const char *sql = (argc > 0) ? lease_sql : leases_sql;
	Conn		conn;

	conn_init(&conn, options->conninfo);
	if (conn_open(&conn) && conn_ask(&conn, WITHIN, sql, (argc > 0) ? 1 : 0, params) != NULL)
	{
		found = PQntuples(conn.answer);
		rows_print(conn.answer, "lease", lease_columns, (int) CLI_LENGTH(lease_columns));
		if (conn_ask(&conn, WITHIN, waiter_sql, 1, params) != NULL)
		{
			if (!output_is_json() && found > 0 && PQntuples(conn.answer) > 0)
				putchar('\n');
			rows_print(conn.answer, "waiter", waiter_columns, (int) CLI_LENGTH(waiter_columns));
		}
	}
	if (conn.state == CONN_IDLE && conn.answer != NULL)
		code = output_finish();
	else
		code = conn_report(&conn);
	conn_close(&conn);
	return code;
}

const Command cmd_status = {
	.name = "status",
	.bit = CMD_STATUS,
	.arguments = "[NAME]",
	.summary = "show who holds locks, and who waits for them",
	.text =
	"Shows the leases of this database and the calls that wait, of all locks or of\n"
	"one.\n"
	"LEFT and WAITED are in seconds.\n",
	.least = 0,
	.most = 1,
	.run = run
};
