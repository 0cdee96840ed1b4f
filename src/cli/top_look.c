/*-------------------------------------------------------------------------
 *
 * top_look.c
 *	  What dlock top knows of the server.
 *
 * NOTES
 *	  A look is three statements, one after the other; what is shown changes
 *	  when all have been answered.  Rates are differences of counters, by this
 *	  machine's clock.  The grants of a lock are counted only for some time, which
 *	  begins anew when it has to: two counts that began at different times have no
 *	  difference that means anything.
 *
 * IDENTIFICATION
 *	  src/cli/top_look.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "output.h"
#include "rows.h"
#include "top_look.h"

/* A server that does not answer in this time has gone. */
#define WITHIN	(30 * CLI_SECOND)

#define SECONDS(s) \
	"pg_catalog.round(extract(epoch FROM " s ")::pg_catalog.numeric, 3)"
#define UTC(t) \
	"pg_catalog.to_char(pg_catalog.timezone('UTC', " t "), 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')"

/*
 * A standby has leases to show, but it counts nothing, and refuses to be asked.
 * Only CASE keeps the view from being looked at there, whatever the plan; OFFSET
 * keeps the planner from copying it, once for each column.
 */
static const char totals_sql[] =
"SELECT " UTC("pg_catalog.clock_timestamp()") ", pg_catalog.current_setting('in_hot_standby')::pg_catalog.bool,"
" l.leases, l.closed, w.waiters, " SECONDS("w.longest") ", " SECONDS("s.cleanup_lag") ","
" s.grants, s.handoffs, s.releases, s.renewals, s.refusals, s.expiries, s.timeouts, s.deadlocks,"
" s.conversions, s.waits, " SECONDS("s.wait_time")
" FROM (SELECT pg_catalog.count(*) AS leases,"
"  pg_catalog.count(*) FILTER (WHERE state OPERATOR(pg_catalog.=) 'closed') AS closed"
"  FROM @dlock_leases) l"
" CROSS JOIN (SELECT pg_catalog.count(*) AS waiters, pg_catalog.max(waited) AS longest"
"  FROM @dlock_waiters) w"
" CROSS JOIN (SELECT (r.counts).* FROM (SELECT CASE"
"  WHEN pg_catalog.current_setting('in_hot_standby')::pg_catalog.bool THEN NULL"
"  ELSE (SELECT c FROM @dlock_stats c) END AS counts OFFSET 0) r) s";

/*
 * A count is asked for only where a lease is shown, hence the limit inside.  The
 * rate is computed here.
 */
#define ORDER_BY(order) \
	" ORDER BY " order "l.name COLLATE \"C\", l.token"
#define LEASES_BY(order) \
	"SELECT l.*, NULL AS rate, c.grants, extract(epoch FROM c.since)" \
	" FROM (SELECT l.name, l.owner, l.mode, l.permits, l.state, l.token," \
	"  " SECONDS("l.remaining") " AS remaining," \
	"  " SECONDS("pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) l.granted_at") " AS held," \
	"  coalesce(w.waiters, 0) AS waiters, l.role" \
	"  FROM @dlock_leases l" \
	"  LEFT JOIN (SELECT name, pg_catalog.count(*) AS waiters FROM @dlock_waiters GROUP BY name) w" \
	"   ON l.name OPERATOR(pg_catalog.=) w.name" \
	" " ORDER_BY(order) " LIMIT $1) l" \
	" CROSS JOIN LATERAL @dlock_grant_count(l.name) c" \
	ORDER_BY(order)

static const char *const lease_sql[TOP_NORDERS] = {
	LEASES_BY("waiters DESC, "), LEASES_BY("remaining, "), LEASES_BY("")
};

const char *const top_order_names[TOP_NORDERS] = {"waiters", "time left", "name"};

static const char waiter_sql[] =
"SELECT name, position, owner, mode, permits, request, " SECONDS("waited") ", role,"
" pg_catalog.to_json(blocked_by), pg_catalog.array_to_string(blocked_by, ', ')"
" FROM @dlock_waiters ORDER BY name COLLATE \"C\", position LIMIT $1";

static const RowsColumn lease_columns[] = {
	{"name", NULL, false}, {"owner", NULL, false}, {"mode", NULL, false}, {"permits", NULL, true},
	{"state", NULL, false}, {"token", NULL, true}, {"remaining", NULL, true},
	{"held", NULL, true}, {"waiters", NULL, true}, {"role", NULL, false},
	{"grants_per_second", NULL, true}
};
static const RowsColumn waiter_columns[] = {
	{"name", NULL, false}, {"position", NULL, true}, {"owner", NULL, false}, {"mode", NULL, false},
	{"permits", NULL, true}, {"request", NULL, false}, {"waited", NULL, true},
	{"role", NULL, false}, {"blocked_by", NULL, true}
};
static const char *const rate_keys[TOP_NRATES] = {
	"grants", "handoffs", "releases", "renewals", "refusals", "expiries", "timeouts", "deadlocks",
	"conversions", "waits", "mean_wait"
};

/* A lock that is shown, by its name, and one of its rows. */
typedef struct LockCount
{
	const char *name;
	int			row;
} LockCount;

static void
clear(PGresult **parts)
{
	for (int i = 0; i < TOP_NPARTS; i++)
	{
		PQclear(parts[i]);
		parts[i] = NULL;
	}
}

static void
ask(const TopLook *look, Conn *conn, TopOrder order, const char *limit)
{
	const ConnParam params[] = {CONN_BIGINT(limit)};

	if (look->part == TOP_TOTALS)
		conn_send(conn, WITHIN, totals_sql, 0, NULL);
	else
		conn_send(conn, WITHIN, (look->part == TOP_LEASES) ? lease_sql[order] : waiter_sql, 1, params);
}

/* Begin a look, at no more rows than "limit" (NULL: all), over an idle connection. */
void
top_look_begin(TopLook *look, Conn *conn, TopOrder order, const char *limit)
{
	clear(look->fresh);
	look->part = TOP_TOTALS;
	look->began = clock_now();
	ask(look, conn, order, limit);
}

static double
counter(const PGresult *totals, int rate)
{
	return strtod(PQgetvalue(totals, 0, TOP_COUNTERS + rate), NULL);
}

/* The rates between what is shown and what has come. */
static void
compute_rates(TopLook *look, CliTime now)
{
	const PGresult *before = look->shown[TOP_TOTALS];
	const PGresult *after = look->fresh[TOP_TOTALS];
	double		span = (double) (now - look->at) / CLI_SECOND;

	look->has_rates = false;
	if (before == NULL || span <= 0 ||
		PQgetisnull(before, 0, TOP_COUNTERS) || PQgetisnull(after, 0, TOP_COUNTERS))
		return;
	for (int i = 0; i < TOP_NRATES; i++)
	{
		double		more = counter(after, i) - counter(before, i);

		/* The server has started anew. */
		if (more < 0)
			return;
		if (i == TOP_WAIT_TIME)
			look->rates[i] = (look->rates[TOP_WAITS] > 0) ? more / (look->rates[TOP_WAITS] * span) : 0;
		else
			look->rates[i] = more / span;
	}
	look->has_rates = true;
}

static int
compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *) a, *(const char *const *) b);
}

/*
 * Fill in the rates of the locks that have come, as far as they are among those
 * that are shown and have been counted all the time between.
 */
static void
compute_lease_rates(TopLook *look, CliTime now)
{
	const PGresult *before = look->shown[TOP_LEASES];
	PGresult   *after = look->fresh[TOP_LEASES];
	double		span = (double) (now - look->leases_at) / CLI_SECOND;
	int			nbefore = (before != NULL) ? PQntuples(before) : 0;
	LockCount  *counts;

	if (nbefore == 0 || span <= 0)
		return;
	counts = text_alloc((size_t) nbefore * sizeof(*counts));
	for (int row = 0; row < nbefore; row++)
	{
		counts[row].name = PQgetvalue(before, row, LEASE_NAME);
		counts[row].row = row;
	}
	qsort(counts, (size_t) nbefore, sizeof(*counts), compare_names);
	for (int row = 0; row < PQntuples(after); row++)
	{
		LockCount	key = {PQgetvalue(after, row, LEASE_NAME), 0};
		LockCount  *count = bsearch(&key, counts, (size_t) nbefore, sizeof(*counts), compare_names);
		char		rate[40];

		if (count == NULL || PQgetisnull(after, row, LEASE_SINCE) ||
			strcmp(PQgetvalue(before, count->row, LEASE_SINCE), PQgetvalue(after, row, LEASE_SINCE)) != 0)
			continue;
		snprintf(rate, sizeof(rate), "%.3f",
				 (strtod(PQgetvalue(after, row, LEASE_GRANTS), NULL) -
				  strtod(PQgetvalue(before, count->row, LEASE_GRANTS), NULL)) / span);
		PQsetvalue(after, row, LEASE_RATE, rate, (int) strlen(rate));
	}
	free(counts);
}

/*
 * Take the answer that has come, and ask for what is next.  True if that was the
 * last one, so that the look may be shown.
 */
bool
top_look_continue(TopLook *look, Conn *conn, TopOrder order, const char *limit)
{
	CliTime		now = clock_now();

	look->fresh[look->part] = conn->answer;
	conn->answer = NULL;
	if (look->part == TOP_TOTALS)
	{
		compute_rates(look, now);
		look->at = now;
	}
	else if (look->part == TOP_LEASES)
	{
		compute_lease_rates(look, now);
		look->leases_at = now;
	}
	if (++look->part < TOP_NPARTS)
	{
		ask(look, conn, order, limit);
		return false;
	}
	clear(look->shown);
	memcpy(look->shown, look->fresh, sizeof(look->shown));
	memset(look->fresh, 0, sizeof(look->fresh));
	return true;
}

/* The connection is lost: rates over the gap would be wrong if the server is another. */
void
top_look_forget(TopLook *look)
{
	clear(look->fresh);
	look->has_rates = false;
	look->at = look->leases_at = CLI_FOREVER;
}

void
top_look_free(TopLook *look)
{
	clear(look->fresh);
	clear(look->shown);
}

/* A value that is shown; NULL if it is null, or there is none. */
const char *
top_look_value(const TopLook *look, TopPart part, int row, int column)
{
	const PGresult *result = look->shown[part];

	if (result == NULL || row >= PQntuples(result) || PQgetisnull(result, row, column))
		return NULL;
	return PQgetvalue(result, row, column);
}

int
top_look_rows(const TopLook *look, TopPart part)
{
	return (look->shown[part] != NULL) ? PQntuples(look->shown[part]) : 0;
}

static void
add_number(Text *line, const TopLook *look, const char *key, int column)
{
	output_json_raw(line, key, top_look_value(look, TOP_TOTALS, 0, column));
}

/* Print what is shown as JSON: an object for the totals, and one for each row. */
void
top_look_print_json(const TopLook *look)
{
	const char *standby = top_look_value(look, TOP_TOTALS, 0, TOP_STANDBY);
	Text		line;

	text_init(&line);
	output_json_begin(&line);
	output_json_text(&line, "kind", "totals");
	output_json_text(&line, "time", top_look_value(look, TOP_TOTALS, 0, TOP_TIME));
	output_json_raw(&line, "standby", (standby != NULL && *standby == 't') ? "true" : "false");
	add_number(&line, look, "leases", TOP_NLEASES);
	add_number(&line, look, "closed", TOP_NCLOSED);
	add_number(&line, look, "waiters", TOP_NWAITERS);
	add_number(&line, look, "longest_wait", TOP_LONGEST_WAIT);
	add_number(&line, look, "cleanup_lag", TOP_REAPER_LAG);
	for (int i = 0; i < TOP_NRATES; i++)
	{
		char		key[40];
		char		value[40];

		snprintf(key, sizeof(key), (i == TOP_WAIT_TIME) ? "%s" : "%s_per_second", rate_keys[i]);
		snprintf(value, sizeof(value), "%.3f", look->rates[i]);
		output_json_raw(&line, key, look->has_rates ? value : NULL);
	}
	output_json_end(&line);
	fputs(line.data, stdout);
	text_free(&line);

	rows_print(look->shown[TOP_LEASES], "lease", lease_columns, (int) CLI_LENGTH(lease_columns));
	rows_print(look->shown[TOP_WAITERS], "waiter", waiter_columns, (int) CLI_LENGTH(waiter_columns));
}
