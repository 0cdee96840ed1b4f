/*-------------------------------------------------------------------------
 *
 * tasksql.c
 *	  SQL on the tables of tasks and of groups.
 *
 * NOTES
 *	  Tasks, their queues, and groups are rows of ordinary tables, and SPI is how
 *	  they are worked on, as it is in the triggers of foreign keys.  Between open and close this
 *	  backend acts as the owner of the extension, finds nothing but in
 *	  pg_catalog and where a statement says so, and plans in one way only: by
 *	  the indexes that are there for it.  With statistics from when the table
 *	  was empty the planner would rather read or sort it as a whole.
 *
 *	  Under REPEATABLE READ and SERIALIZABLE the statements see what is
 *	  committed now, not what was when the transaction began.  Else a queue in
 *	  use would refuse nearly everything there: almost any row that can be
 *	  captured has changed since.
 *
 *	  Statements are prepared once in a session.  Their texts name the schema
 *	  of the extension, so they are made anew should it be renamed.
 *
 * IDENTIFICATION
 *	  src/session/tasksql.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/value.h"
#include "session/session.h"
#include "session/tasksql.h"

#define SWEEP_BATCH		CppAsString2(DLOCK_TASK_BATCH)

/* When a capture or a delay ends (dlock_task_until). */
#define UNTIL	"@.dlock_task_until(deadline, boot, ends)"

/*
 * What a sweep does to the rows that "due" selects: a capture that has expired
 * ends, one that was extended, or comes from another clock, gets to its turn at
 * its end by ours, and a task that was put off can be captured.
 */
#define SWEEP(due) \
	"UPDATE @.dlock_task" \
	"   SET state = CASE WHEN " UNTIL " <= $1 THEN timeout_state ELSE state END," \
	"       error = CASE WHEN " UNTIL " <= $1 AND owner IS NOT NULL THEN 'timed out' ELSE error END," \
	"       owner = CASE WHEN " UNTIL " <= $1 THEN NULL ELSE owner END," \
	"       changed_at = CASE WHEN " UNTIL " <= $1 THEN clock_timestamp() ELSE changed_at END," \
	"       due = CASE WHEN " UNTIL " <= $1 THEN NULL ELSE " UNTIL " END" \
	" WHERE ctid = ANY (ARRAY(" due "))"

/* The parameters of an end (dlock_tasksql_end). */
#define END_TYPES	TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID, INTERVALOID

/* A statement and its parameters.  "@." in its text stands for the schema. */
typedef struct DLockTaskStatement
{
	const char *text;
	int			count;
	Oid			types[DLOCK_TASK_PARAMS];
} DLockTaskStatement;

/* Those on queues and groups. */
static const DLockTaskStatement queue_statements[] =
{
	/* group */
	[DLOCK_TASK_FIND_GROUP] = {
		"SELECT role::oid, partitions FROM @.dlock_groups WHERE name = $1",
		1, {TEXTOID}
	},
	/* group, role, partitions */
	[DLOCK_TASK_CREATE_GROUP] = {
		"INSERT INTO @.dlock_groups (name, role, partitions) VALUES ($1, $2::regrole, $3)"
		"    ON CONFLICT (name) DO NOTHING",
		3, {TEXTOID, OIDOID, TEXTARRAYOID}
	},
	/* group, role, partitions; nothing if it has another role meanwhile */
	[DLOCK_TASK_ALTER_GROUP] = {
		"UPDATE @.dlock_groups SET partitions = $3 WHERE name = $1 AND role = $2::regrole",
		3, {TEXTOID, OIDOID, TEXTARRAYOID}
	},
	/* group, role; likewise */
	[DLOCK_TASK_DROP_GROUP] = {
		"DELETE FROM @.dlock_groups WHERE name = $1 AND role = $2::regrole",
		2, {TEXTOID, OIDOID}
	},
	/* queue */
	[DLOCK_TASK_FIND_QUEUE] = {
		"SELECT queue_id, role::oid, initial, done, parked, max_attempts, transitions"
		"  FROM @.dlock_task_queue WHERE queue = $1",
		1, {TEXTOID}
	},
	/* queue, role, initial, done, parked, max_attempts, transitions */
	[DLOCK_TASK_CREATE_QUEUE] = {
		"INSERT INTO @.dlock_task_queue"
		"       (queue, role, initial, done, parked, max_attempts, transitions)"
		"VALUES ($1, $2::regrole, $3, $4, $5, $6, $7)"
		"    ON CONFLICT (queue) DO NOTHING",
		7, {TEXTOID, OIDOID, TEXTOID, TEXTOID, TEXTOID, INT4OID, TEXTARRAYOID}
	},
	/* queue_id */
	[DLOCK_TASK_DROP_TASKS] = {
		"DELETE FROM @.dlock_task WHERE queue_id = $1",
		1, {INT4OID}
	},
	/* queue_id */
	[DLOCK_TASK_DROP_QUEUE] = {
		"DELETE FROM @.dlock_task_queue WHERE queue_id = $1",
		1, {INT4OID}
	},
};

/* Those on tasks, which come after them. */
static const DLockTaskStatement task_statements[] =
{
	/* queue_id, key, state, priority, payload, finished, delay; end */
	[DLOCK_TASK_PUT - DLOCK_TASK_PUT] = {
		"INSERT INTO @.dlock_task (queue_id, key, state, priority, payload, finished_at,"
		"       ttl, timeout_state, due, deadline, boot, ends)"
		"VALUES ($1, $2, $3, $4, $5, CASE WHEN $6 THEN clock_timestamp() END,"
		"       $7, CASE WHEN $7 IS NOT NULL THEN $3 END, $8, $9, $10, $11)"
		"    ON CONFLICT (queue_id, key) DO NOTHING",
		11, {INT4OID, TEXTOID, TEXTOID, INT4OID, JSONBOID, BOOLOID, INTERVALOID, END_TYPES}
	},
	/* queue_id, key */
	[DLOCK_TASK_LOCK - DLOCK_TASK_PUT] = {
		"SELECT ctid, state, attempts, token, due IS NOT NULL AND owner IS NOT NULL, " UNTIL ", ttl,"
		"       owner, from_state, timeout_state, finished_at IS NOT NULL"
		"  FROM @.dlock_task WHERE queue_id = $1 AND key = $2 FOR NO KEY UPDATE",
		2, {INT4OID, TEXTOID}
	},
	/* ctid, state, attempts, stays captured, finished, error, keep the owner, delay; end */
	[DLOCK_TASK_MOVE - DLOCK_TASK_PUT] = {
		"UPDATE @.dlock_task"
		"   SET state = $2, attempts = $3, due = CASE WHEN $4 THEN due ELSE $9 END,"
		"       deadline = coalesce($10, deadline), boot = coalesce($11, boot),"
		"       ends = coalesce($12, ends), ttl = coalesce($8, ttl),"
		"       timeout_state = CASE WHEN $8 IS NULL THEN timeout_state ELSE $2 END,"
		"       finished_at = CASE WHEN $5 THEN clock_timestamp() END,"
		"       error = $6, owner = CASE WHEN $7 THEN owner END,"
		"       changed_at = clock_timestamp()"
		" WHERE ctid = $1",
		12, {TIDOID, TEXTOID, INT4OID, BOOLOID, BOOLOID, TEXTOID, BOOLOID, INTERVALOID, END_TYPES}
	},
	/* ctid, ttl; end.  "due" stays unless it would be too late. */
	[DLOCK_TASK_EXTEND - DLOCK_TASK_PUT] = {
		"UPDATE @.dlock_task"
		"   SET ttl = $2, due = least(due, $3), deadline = $4, boot = $5, ends = $6"
		" WHERE ctid = $1",
		6, {TIDOID, INTERVALOID, END_TYPES}
	},
	/* queue_id, state; the caller limits it further */
	[DLOCK_TASK_PICK - DLOCK_TASK_PUT] = {
		"SELECT ctid, key, token, payload, priority, attempts"
		"  FROM @.dlock_task"
		" WHERE queue_id = $1 AND state = $2 AND due IS NULL AND finished_at IS NULL"
		" ORDER BY priority, id LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED",
		2, {INT4OID, TEXTOID}
	},
	/* ctids, tokens, state, owner, from, on timeout, max_attempts, parked, ttl; end */
	[DLOCK_TASK_CAPTURE - DLOCK_TASK_PUT] = {
		"UPDATE @.dlock_task t"
		"   SET state = $3, attempts = t.attempts + 1, token = u.token, owner = $4,"
		"       ttl = $9, due = $10, deadline = $11, boot = $12, ends = $13, from_state = $5,"
		"       timeout_state = CASE WHEN t.attempts + 1 >= $7 THEN $8 ELSE $6 END,"
		"       changed_at = clock_timestamp()"
		"  FROM unnest($1, $2) AS u(place, token)"
		" WHERE t.ctid = u.place",
		13, {TIDARRAYOID, INT8ARRAYOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT4OID, TEXTOID,
		INTERVALOID, END_TYPES}
	},
	/* queue_id, age, count */
	[DLOCK_TASK_PURGE - DLOCK_TASK_PUT] = {
		"DELETE FROM @.dlock_task WHERE ctid = ANY (ARRAY("
		"    SELECT ctid FROM @.dlock_task"
		"     WHERE queue_id = $1 AND finished_at < clock_timestamp() - $2"
		"     ORDER BY finished_at LIMIT $3 FOR UPDATE SKIP LOCKED))",
		3, {INT4OID, INTERVALOID, INT4OID}
	},
};

/* Those of sweeps, the last. */
static const DLockTaskStatement sweep_statements[] =
{
	/* now, queue_id */
	[DLOCK_TASK_SWEEP_QUEUE - DLOCK_TASK_SWEEP_QUEUE] = {
		SWEEP("SELECT ctid FROM @.dlock_task WHERE queue_id = $2 AND due <= $1"
			  " ORDER BY due LIMIT " SWEEP_BATCH " FOR NO KEY UPDATE SKIP LOCKED"),
		2, {TIMESTAMPTZOID, INT4OID}
	},
	/* now */
	[DLOCK_TASK_SWEEP_ALL - DLOCK_TASK_SWEEP_QUEUE] = {
		SWEEP("SELECT d.ctid FROM @.dlock_task_queue q CROSS JOIN LATERAL"
			  " (SELECT t.ctid FROM @.dlock_task t WHERE t.queue_id = q.queue_id AND t.due <= $1"
			  " ORDER BY t.due LIMIT " SWEEP_BATCH " FOR NO KEY UPDATE SKIP LOCKED) d"
			  " LIMIT " SWEEP_BATCH),
		1, {TIMESTAMPTZOID}
	},
	/*
	 * now, as an end is.  Nothing has more left than its ttl, or delay, or is looked at
	 * later than at its end.  Captures go on while this runs, and theirs may end a
	 * little later than what is "now" here.
	 */
	[DLOCK_TASK_CLAMP - DLOCK_TASK_SWEEP_QUEUE] = {
		"UPDATE @.dlock_task SET due = least(" UNTIL ", $1 + ttl),"
		"       deadline = CASE WHEN " UNTIL " > $1 + ttl THEN $2 + ttl ELSE deadline END,"
		"       boot = CASE WHEN " UNTIL " > $1 + ttl THEN $3 ELSE boot END,"
		"       ends = CASE WHEN " UNTIL " > $1 + ttl THEN $4 + ttl ELSE ends END"
		" WHERE ctid = ANY (ARRAY("
		"    SELECT ctid FROM @.dlock_task"
		"     WHERE due IS NOT NULL"
		"       AND (due > " UNTIL " + interval '1 s' OR " UNTIL " > $1 + ttl + interval '10 s')"
		"     LIMIT " SWEEP_BATCH " FOR NO KEY UPDATE SKIP LOCKED))",
		4, {END_TYPES}
	},
	[DLOCK_TASK_NEXT_DUE - DLOCK_TASK_SWEEP_QUEUE] = {
		"SELECT min(d.due), count(*) > 0 FROM @.dlock_task_queue q LEFT JOIN LATERAL"
		" (SELECT t.due FROM @.dlock_task t WHERE t.queue_id = q.queue_id AND t.due IS NOT NULL"
		"   ORDER BY t.due LIMIT 1) d ON true",
		0, {InvalidOid}
	},
};

StaticAssertDecl(lengthof(queue_statements) == DLOCK_TASK_PUT &&
				 lengthof(task_statements) == DLOCK_TASK_SWEEP_QUEUE - DLOCK_TASK_PUT &&
				 lengthof(sweep_statements) == DLOCK_TASK_PLANS - DLOCK_TASK_SWEEP_QUEUE,
				 "statements and plans differ");

/* The statements as prepared, and the schema that they name. */
static SPIPlanPtr plans[DLOCK_TASK_PLANS];
static char schema[NAMEDATALEN] = "";

/* Settings that hold while our statements are planned and run. */
static const struct
{
	const char *name;
	const char *value;
}			settings[] =
{
	{"search_path", "pg_catalog, pg_temp"},
	{"enable_seqscan", "off"},
	{"enable_bitmapscan", "off"},
	{"enable_sort", "off"},
	{"enable_indexscan", "on"},
	{"enable_tidscan", "on"},
	{"enable_nestloop", "on"},
	{"jit", "off"},
};

/* Statements that name another schema are of no use. */
static void
forget_other_schema(Oid namespace)
{
	char	   *name = get_namespace_name(namespace);

	if (name == NULL)
		dlock_error_no_extension();
	if (strcmp(name, schema) == 0)
		return;
	for (int i = 0; i < DLOCK_TASK_PLANS; i++)
	{
		if (plans[i] != NULL)
			SPI_freeplan(plans[i]);
		plans[i] = NULL;
	}
	strlcpy(schema, name, sizeof(schema));
}

/* Become the owner of the extension. */
static void
enter(DLockTaskSql *sql)
{
	forget_other_schema(RelationGetNamespace(sql->db.rel));
	GetUserIdAndSecContext(&sql->caller, &sql->caller_context);
	SetUserIdAndSecContext(sql->db.rel->rd_rel->relowner,
						   sql->caller_context | SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_NOFORCE_RLS);
	sql->nest_level = NewGUCNestLevel();
	for (size_t i = 0; i < lengthof(settings); i++)
		(void) set_config_option(settings[i].name, settings[i].value, PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
}

/*
 * Open the tables for one call; "function" is its name, for messages, or NULL
 * if it only looks.  Throws what dlock_session_open() does, and 25006.  An
 * error undoes the rest.
 */
void
dlock_tasksql_open(DLockTaskSql *sql, const char *function)
{
	if (function != NULL)
		dlock_session_check_writable(function);
	dlock_session_open(&sql->db);
	enter(sql);
}

/* A table of the extension's schema; InvalidOid if there is none. */
static Oid
find_table(DLockTaskSql *sql, const char *name)
{
	return get_relname_relid(name, RelationGetNamespace(sql->db.rel));
}

/*
 * The same for a worker, which must not be held up: false if the extension is
 * not there, or somebody locks its tables, or waits to.
 */
bool
dlock_tasksql_try_open(DLockTaskSql *sql)
{
	static const char *const tables[] = {"dlock_task_queue", "dlock_task"};

	if (dlock_session_try_open(&sql->db) != DLOCK_SESSION_OPENED)
		return false;
	for (size_t i = 0; i < lengthof(tables); i++)
	{
		Oid			table = find_table(sql, tables[i]);

		if (!OidIsValid(table) || !ConditionalLockRelationOid(table, RowExclusiveLock))
		{
			dlock_session_close(&sql->db);
			return false;
		}
	}
	enter(sql);
	return true;
}

/* Go back to what was before.  Results of statements are gone then. */
void
dlock_tasksql_close(DLockTaskSql *sql)
{
	if (SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "could not disconnect from SPI");
	AtEOXact_GUC(false, sql->nest_level);
	SetUserIdAndSecContext(sql->caller, sql->caller_context);
	dlock_session_close(&sql->db);
}

static const DLockTaskStatement *
statement_of(DLockTaskPlan plan)
{
	if (plan < DLOCK_TASK_PUT)
		return &queue_statements[plan];
	if (plan < DLOCK_TASK_SWEEP_QUEUE)
		return &task_statements[plan - DLOCK_TASK_PUT];
	return &sweep_statements[plan - DLOCK_TASK_SWEEP_QUEUE];
}

static void
prepare(DLockTaskPlan plan)
{
	const DLockTaskStatement *statement = statement_of(plan);
	const char *quoted = quote_identifier(schema);
	Oid			types[DLOCK_TASK_PARAMS];
	StringInfoData text;

	initStringInfo(&text);
	for (const char *c = statement->text; *c != '\0'; c++)
	{
		if (c[0] == '@' && c[1] == '.')
			appendStringInfoString(&text, quoted);
		else
			appendStringInfoChar(&text, *c);
	}
	memcpy(types, statement->types, sizeof(types));
	plans[plan] = SPI_prepare_cursor(text.data, statement->count, types,
									 CURSOR_OPT_GENERIC_PLAN);
	if (plans[plan] == NULL)
		elog(ERROR, "could not prepare statement %d on tasks: %s", (int) plan,
			 SPI_result_code_string(SPI_result));
	SPI_keepplan(plans[plan]);
}

/*
 * Run a statement; returns the number of rows.  It ends after "limit" rows, if
 * that is not zero.  "nulls" is as SPI has it, and may be NULL.
 */
uint64
dlock_tasksql_run(DLockTaskPlan plan, Datum *values, const char *nulls, long limit)
{
	Snapshot	snapshot = IsolationUsesXactSnapshot() ? GetLatestSnapshot() : InvalidSnapshot;
	int			result;

	if (plans[plan] == NULL)
		prepare(plan);
	result = SPI_execute_snapshot(plans[plan], values, nulls, snapshot, InvalidSnapshot,
								  false, true, limit);
	if (result < 0)
		elog(ERROR, "could not run statement %d on tasks: %s", (int) plan,
			 SPI_result_code_string(result));
	return SPI_processed;
}

/* A value that the last statement returned; rows from 0, columns from 1. */
Datum
dlock_tasksql_value(uint64 row, int column, bool *isnull)
{
	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column, isnull);
}

/* The same of a text, or NULL. */
char *
dlock_tasksql_cstring(uint64 row, int column)
{
	bool		isnull;
	Datum		value = dlock_tasksql_value(row, column, &isnull);

	return isnull ? NULL : TextDatumGetCString(value);
}

/*
 * What is to end "span" from now, as parameters of a statement: when to look at it,
 * the end by the wall clock, the boot, the end by the clock of that.  Returns the
 * last.
 */
DLockTime
dlock_tasksql_end(DLockTime span, Datum *values)
{
	DLockTime	ends = dlock_clock_now() + span;

	values[0] = TimestampTzGetDatum(ends + dlock_clock_steady_offset());
	values[1] = TimestampTzGetDatum(dlock_clock_wall() + span);
	values[2] = Int32GetDatum((int32) dlock_clock_boot());
	values[3] = dlock_value_interval(ends);
	return ends;
}

/* A string as bytes; of NULL there are none. */
DLockBytes
dlock_tasksql_bytes(char *value)
{
	return (DLockBytes) {value, (value != NULL) ? (int) strlen(value) : 0};
}

/* What stands for task queues among the classes of objects that can be locked. */
Oid
dlock_tasksql_lock_class(DLockTaskSql *sql)
{
	return find_table(sql, "dlock_task_queue");
}
