/*-------------------------------------------------------------------------
 *
 * view.c
 *	  The SQL functions behind the views and below the patterns: arguments in, results out.
 *
 * NOTES
 *	  On a primary the leases are read from memory, on a standby from the pages
 *	  as far as they have been replayed.  In both cases expires_at is the wall
 *	  clock at the time of reading plus the remaining time.  Leases that are bound
 *	  to a session or a transaction are not shown on a standby, since they end with
 *	  those of the primary.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/settings.h"
#include "base/stat.h"
#include "fence/fence.h"
#include "lock/process.h"
#include "session/session.h"
#include "space/holder.h"
#include "space/signal.h"
#include "space/space.h"
#include "sql/value.h"
#include "store/flush.h"
#include "store/store.h"

PG_FUNCTION_INFO_V1(dlock_sql_lease);
PG_FUNCTION_INFO_V1(dlock_sql_names_held);
PG_FUNCTION_INFO_V1(dlock_sql_owner_held);
PG_FUNCTION_INFO_V1(dlock_sql_waiter_list);
PG_FUNCTION_INFO_V1(dlock_sql_stats);
PG_FUNCTION_INFO_V1(dlock_sql_token);
PG_FUNCTION_INFO_V1(dlock_sql_clock);
PG_FUNCTION_INFO_V1(dlock_sql_session);
PG_FUNCTION_INFO_V1(dlock_sql_ttl);
PG_FUNCTION_INFO_V1(dlock_sql_signal);
PG_FUNCTION_INFO_V1(dlock_sql_signals);
PG_FUNCTION_INFO_V1(dlock_sql_signal_wait);

/*
 * The rows of a result.  They are made where leases and requests are found, under a partition
 * lock.  They are put into the result, which may write to a file, without it.
 */
typedef struct DLockViewRows
{
	const DLockBytes *name;		/* only leases on this lock; NULL for all */
	DLockTime	now;
	TimestampTz wall;
	ReturnSetInfo *result;
	MemoryContext values;		/* of the row that is being made */
	List	   *tuples;
} DLockViewRows;

static DLockViewRows
begin_rows(FunctionCallInfo fcinfo)
{
	DLockViewRows rows = {.result = (ReturnSetInfo *) fcinfo->resultinfo};

	InitMaterializedSRF(fcinfo, 0);
	rows.values = AllocSetContextCreate(CurrentMemoryContext, "dlock row", ALLOCSET_SMALL_SIZES);
	return rows;
}

/* Keep a row, and free its values. */
static void
keep_row(DLockViewRows *rows, DLockValueRow *row)
{
	rows->tuples = lappend(rows->tuples, dlock_value_form(row, rows->result->setDesc));
	MemoryContextReset(rows->values);
}

static Datum
put_rows(const DLockViewRows *rows)
{
	ListCell   *cell;

	foreach(cell, rows->tuples)
		tuplestore_puttuple(rows->result->setResult, lfirst(cell));
	return (Datum) 0;
}

/* ---- leases ---- */

static void
read_clocks(DLockViewRows *rows)
{
	rows->now = dlock_clock_now();
	rows->wall = dlock_clock_wall();
}

/*
 * Make a row of a lease, unless another lock is wanted.  Its deadline is the one that is
 * told.  "unconfirmed": if that has passed, the lease is live all the same.
 */
static void
add_lease(DLockViewRows *rows, const DLockLeaseValue *lease, DLockTime blocks_until,
		  bool unconfirmed, int pid)
{
	static const char *const binds[] = {"none", "session", "transaction"};
	bool		live = dlock_rule_is_live(lease->term.deadline, rows->now);
	const char *state = live ? "held" : unconfirmed ? "unconfirmed" : "closed";
	DLockTime	until = live ? lease->term.deadline : blocks_until;
	DLockTime	remaining = until - rows->now;
	bool		ends = (until != DLOCK_TIME_FOREVER);
	DLockValueRow row = {0};
	MemoryContext old;

	if (rows->name != NULL && !dlock_name_equal(rows->name, &lease->name))
		return;
	old = MemoryContextSwitchTo(rows->values);
	dlock_value_add(&row, true, dlock_name_to_text(lease->name));
	dlock_value_add(&row, true, dlock_name_to_text(lease->owner));
	dlock_value_add(&row, true, Int64GetDatum(lease->token));
	dlock_value_add(&row, true, CStringGetTextDatum(dlock_name_of_mode(lease->mode)));
	dlock_value_add(&row, lease->permits > 0, Int32GetDatum((int32) lease->permits));
	dlock_value_add(&row, true, Int64GetDatum((int64) lease->holds));
	dlock_value_add(&row, true, CStringGetTextDatum(state));
	dlock_value_add(&row, true, CStringGetTextDatum(binds[lease->bind]));
	dlock_value_add(&row, live && pid != 0, Int32GetDatum(pid));
	dlock_value_add(&row, true, ObjectIdGetDatum(lease->role));
	dlock_value_add(&row, true, TimestampTzGetDatum(lease->granted_at));
	dlock_value_add(&row, ends, TimestampTzGetDatum(ends ? rows->wall + remaining : 0));
	dlock_value_add(&row, ends, dlock_value_of_span(remaining));
	dlock_value_add(&row, live && lease->term.ttl > 0, dlock_value_of_span(lease->term.ttl));
	dlock_value_add(&row, lease->payload.len > 0, dlock_name_payload_to_jsonb(lease->payload));
	MemoryContextSwitchTo(old);
	keep_row(rows, &row);
}

/* A visitor of the space. */
static void
visit_memory(DLockSpaceEntry *entry, DLockSpaceLease *lease, void *arg)
{
	DLockViewRows *rows = arg;
	DLockHolderTexts texts;
	DLockLeaseValue value;
	DLockTime	blocks_until;
	DLockTime	deadline;

	if (lease->kind != DLOCK_SPACE_HELD)
		return;
	blocks_until = dlock_holder_blocks_until(lease);
	if (blocks_until <= rows->now)
		return;
	value = dlock_holder_value(lease, &texts);
	deadline = value.term.deadline;
	value.term.deadline = dlock_holder_told_until(lease);
	add_lease(rows, &value, blocks_until, dlock_rule_is_live(deadline, rows->now),
			  (lease->process >= 0) ? GetPGProcByNumber(lease->process)->pid : 0);
}

/* A visitor of the store.  The intents of a path are not on disk: they follow from it. */
static bool
visit_page_lease(const DLockLeaseValue *found, DLockSlot slot, XLogRecPtr lsn, void *arg)
{
	DLockViewRows *rows = arg;
	DLockLeaseValue lease = *found;
	DLockRuleOrigin origin = dlock_rule_origin(lease.origin, dlock_clock_origin());
	DLockTime	remaining = dlock_rule_remaining(&lease.term, origin, rows->now, rows->wall,
												 (DLockTime) dlock_settings_max_clock_skew_ms * 1000);
	DLockBytes	ancestors[DLOCK_PATH_MAX_PARTS];
	int			count = (lease.part == DLOCK_PART_PATH) ? dlock_name_ancestors(&lease.name, ancestors) : 0;
	DLockTime	blocks_until;

	/* It has ended, or is bound to a session of the primary. */
	if (lease.bind != DLOCK_BIND_NONE || remaining + lease.delay <= 0)
		return true;
	lease.term.deadline = rows->now + remaining;
	blocks_until = dlock_rule_blocks_until(lease.term.deadline, lease.delay);
	add_lease(rows, &lease, blocks_until, false, 0);
	for (int i = 0; i < count; i++)
	{
		DLockLeaseValue intent = dlock_rule_intent_of(&lease, ancestors[i]);

		add_lease(rows, &intent, blocks_until, false, 0);
	}
	return true;
}

static void
collect_from_pages(DLockViewRows *rows)
{
	Relation	rel = dlock_session_open_relation(DLOCK_RELATION_STORE, AccessShareLock, true);
	DLockPageHeadDisk meta;

	read_clocks(rows);
	/* A copied database has leases only once it has a meta page of its own. */
	if (dlock_store_read_meta(rel, &meta) && meta.database == MyDatabaseId)
		dlock_store_visit(rel, meta.incarnation, visit_page_lease, NULL, rows);
	table_close(rel, AccessShareLock);
}

/* Open the database to collect leases.  The clocks are read last, since to load takes time. */
static void
begin_collecting(DLockViewRows *rows, DLockDatabase *db)
{
	dlock_session_open(db);
	dlock_flush_confirm_reported();
	read_clocks(rows);
}

/* _dlock.lease_list() and dlock_lease(name) -> the leases of this database, or on a lock */
Datum
dlock_sql_lease(PG_FUNCTION_ARGS)
{
	DLockViewRows rows = begin_rows(fcinfo);
	DLockBytes	name;
	DLockDatabase db;

	if (PG_NARGS() > 0)
	{
		name = dlock_value_get_text(fcinfo, 0, "lock name");
		rows.name = &name;
	}
	if (RecoveryInProgress())
	{
		collect_from_pages(&rows);
		return put_rows(&rows);
	}
	begin_collecting(&rows, &db);
	if (rows.name == NULL)
		dlock_space_visit(db.shared->oid, visit_memory, &rows);
	else
		dlock_space_visit_lock(db.shared->oid, rows.name, visit_memory, &rows);
	dlock_session_close(&db);
	return put_rows(&rows);
}

/* _dlock.names_held(names) -> the leases on these locks; none on a standby */
Datum
dlock_sql_names_held(PG_FUNCTION_ARGS)
{
	DLockViewRows rows = begin_rows(fcinfo);
	DLockDatabase db;
	Datum	   *texts;
	int			count;

	if (RecoveryInProgress())
		return (Datum) 0;
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, -1, false, TYPALIGN_INT, &texts, NULL, &count);
	DLOCK_FAULT("names_held");
	begin_collecting(&rows, &db);
	for (int i = 0; i < count; i++)
	{
		DLockBytes	name = dlock_name_of_text(DatumGetTextPP(texts[i]), "lock name");

		CHECK_FOR_INTERRUPTS();
		rows.name = &name;
		dlock_space_visit_lock(db.shared->oid, &name, visit_memory, &rows);
	}
	dlock_session_close(&db);
	return put_rows(&rows);
}

/* _dlock.owner_held(owner) -> the leases of the owners of this name; none on a standby */
Datum
dlock_sql_owner_held(PG_FUNCTION_ARGS)
{
	DLockBytes	owner = dlock_value_get_owner(fcinfo, 0);
	DLockViewRows rows = begin_rows(fcinfo);
	DLockDatabase db;
	DLockSpaceRef *refs;
	int			count;

	if (RecoveryInProgress())
		return (Datum) 0;
	begin_collecting(&rows, &db);
	refs = dlock_holder_list(db.shared->oid, &owner, NULL, &count);
	for (int i = 0; i < count; i++)
	{
		DLockSpaceLease *lease;

		CHECK_FOR_INTERRUPTS();
		dlock_partition_lock(refs[i].hash, LW_SHARED);
		lease = dlock_space_find_token(db.shared->oid, refs[i].hash, refs[i].token);
		if (lease != NULL)
			visit_memory(dlock_space_entry_of(lease), lease, &rows);
		dlock_partition_unlock(refs[i].hash);
	}
	dlock_session_close(&db);
	return put_rows(&rows);
}

/* ---- what else patterns need beside leases ---- */

/*
 * _dlock.token(above) -> a new token, above one that a row has seen
 *
 * A row that was copied from another database may have seen a later token than
 * this one has granted.
 */
Datum
dlock_sql_token(PG_FUNCTION_ARGS)
{
	DLockToken	above = PG_ARGISNULL(0) ? DLOCK_TOKEN_NONE : PG_GETARG_INT64(0);
	DLockToken	token;

	dlock_session_check_writable("dlock_task_capture");
	token = dlock_fence_take_above(above);
	if (token <= above)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a task has seen token %lld, which is above those of this database",
						(long long) above),
				 errdetail("Its row was copied from another database."),
				 errhint("Call dlock_bump_epoch() with that number as \"above\".")));
	PG_RETURN_INT64(token);
}

/* _dlock.clock() -> the wall clock */
Datum
dlock_sql_clock(PG_FUNCTION_ARGS)
{
	PG_RETURN_TIMESTAMPTZ(dlock_clock_wall());
}

/* _dlock.session() -> the default owner */
Datum
dlock_sql_session(PG_FUNCTION_ARGS)
{
	PG_RETURN_DATUM(dlock_name_to_text(dlock_name_session()));
}

/* _dlock.ttl(ttl) -> the ttl, or the default one */
Datum
dlock_sql_ttl(PG_FUNCTION_ARGS)
{
	return dlock_value_of_span(dlock_value_get_ttl(fcinfo, 0, true));
}

/* _dlock.signal(queue_id) -> true */
Datum
dlock_sql_signal(PG_FUNCTION_ARGS)
{
	dlock_signal_at_commit(PG_GETARG_INT32(0));
	PG_RETURN_BOOL(true);
}

/* _dlock.signals(queue_id) -> how many so far */
Datum
dlock_sql_signals(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64((int64) dlock_signal_seen(PG_GETARG_INT32(0)));
}

/* _dlock.signal_wait(queue_id, seen, until) */
Datum
dlock_sql_signal_wait(PG_FUNCTION_ARGS)
{
	dlock_session_check_preloaded();
	dlock_signal_wait(PG_GETARG_INT32(0), (uint64) PG_GETARG_INT64(1),
					  TimestampDifferenceMilliseconds(dlock_clock_wall(), PG_GETARG_TIMESTAMPTZ(2)));
	PG_RETURN_VOID();
}

/* ---- requests that wait ---- */

/* The rows of requests, and what blocks the next ones in the same queue. */
typedef struct DLockViewQueue
{
	DLockViewRows rows;
	DLockSpaceEntry *entry;
	int			position;		/* of the last one */
	DLockProcessBlockers blockers[DLOCK_MODES];
	Datum		arrays[DLOCK_MODES];	/* of these; zero if that is to be
										 * made */
} DLockViewQueue;

static Datum
owner_array(const DLockProcessBlockers *owners)
{
	Datum	   *elements = palloc(owners->count * sizeof(Datum));

	/* The catalogs are not to be read under a partition lock. */
	for (int i = 0; i < owners->count; i++)
		elements[i] = dlock_name_to_text(dlock_bytes(owners->owners[i].data, owners->owners[i].len));
	return PointerGetDatum(construct_array(elements, owners->count, TEXTOID, -1, false, TYPALIGN_INT));
}

/* A lease or a request blocks those that follow, in some modes. */
static void
add_blocker(DLockViewQueue *queue, const DLockSpaceLease *blocker)
{
	for (int mode = 0; mode < DLOCK_MODES; mode++)
	{
		DLockProcessBlockers *owners = &queue->blockers[mode];
		int			before = owners->count;

		dlock_process_add_blocker(owners, (DLockMode) mode, blocker);
		if (owners->count != before)
			queue->arrays[mode] = 0;
	}
}

/* Is there room to name further holders that may block a request in the queue? */
static bool
names_more(const DLockViewQueue *queue)
{
	for (int mode = 0; mode < DLOCK_MODES; mode++)
	{
		if ((queue->entry->asked_modes & DLOCK_RULE_BIT(mode)) && !queue->blockers[mode].more &&
			dlock_rule_waits_behind((DLockMode) mode, queue->entry->held_modes))
			return true;
	}
	return false;
}

/* The first request of a queue follows: nothing blocks it but leases. */
static void
begin_queue(DLockViewQueue *queue, DLockSpaceEntry *entry, DLockTime now)
{
	queue->entry = entry;
	queue->position = 0;
	for (int mode = 0; mode < DLOCK_MODES; mode++)
	{
		queue->blockers[mode].count = 0;
		queue->blockers[mode].more = false;
		queue->arrays[mode] = 0;
	}
	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL && names_more(queue);
		 lease = dlock_space_next(lease))
	{
		if (dlock_holder_blocks_until(lease) > now)
			add_blocker(queue, lease);
	}
}

/* The owners that block a request, as an array. */
static Datum
blockers_of(DLockViewQueue *queue, DLockSpaceLease *request, DLockTime now)
{
	if (request->kind == DLOCK_SPACE_CONVERT)
	{
		DLockProcessBlockers *owners = palloc(sizeof(DLockProcessBlockers));

		dlock_process_find_blockers(request, now, owners);
		return owner_array(owners);
	}
	if (queue->arrays[request->mode] == 0)
		queue->arrays[request->mode] = owner_array(&queue->blockers[request->mode]);
	return queue->arrays[request->mode];
}

/* A visitor of the space: make rows of the requests. */
static void
visit_request(DLockSpaceEntry *entry, DLockSpaceLease *request, void *arg)
{
	DLockViewQueue *queue = arg;
	int			pid = (request->process >= 0) ? GetPGProcByNumber(request->process)->pid : 0;
	DLockTime	now;
	TimestampTz wall;
	DLockTime	since;
	DLockHolderTexts texts;
	DLockValueRow row = {0};
	Datum		blockers;
	MemoryContext old;

	if (request->kind == DLOCK_SPACE_HELD)
		return;
	now = dlock_clock_now();
	wall = dlock_clock_wall();
	if (entry != queue->entry || request == dlock_space_queue(entry))
		begin_queue(queue, entry, now);
	queue->position++;
	if (dlock_space_is_over(request, now))
		return;
	since = request->placed ? request->token : dlock_process_at(request->process)->since;
	blockers = blockers_of(queue, request, now);
	old = MemoryContextSwitchTo(queue->rows.values);
	dlock_value_add(&row, true, dlock_name_to_text(dlock_space_entry_name(entry, texts.name)));
	dlock_value_add(&row, true, dlock_name_to_text(dlock_space_lease_owner(request, texts.owner).name));
	dlock_value_add(&row, true, CStringGetTextDatum(dlock_name_of_mode((DLockMode) request->mode)));
	dlock_value_add(&row, entry->permits > 0, Int32GetDatum((int32) entry->permits));
	dlock_value_add(&row, true, CStringGetTextDatum((request->kind == DLOCK_SPACE_CONVERT) ? "convert" : "acquire"));
	dlock_value_add(&row, true, Int32GetDatum(queue->position));
	dlock_value_add(&row, true, TimestampTzGetDatum(wall - (now - since)));
	dlock_value_add(&row, true, dlock_value_of_span(now - since));
	dlock_value_add(&row, pid != 0, Int32GetDatum(pid));
	dlock_value_add(&row, true, ObjectIdGetDatum(request->role));
	dlock_value_add(&row, true, blockers);
	dlock_value_add(&row, request->process < 0, TimestampTzGetDatum(wall + (request->confirmed - now)));
	MemoryContextSwitchTo(old);
	keep_row(&queue->rows, &row);
	if (dlock_holder_is_waiting(entry, request, now))
		add_blocker(queue, request);
}

/* _dlock.waiter_list() -> the requests that wait for locks of this database, and the places */
Datum
dlock_sql_waiter_list(PG_FUNCTION_ARGS)
{
	DLockViewQueue *queue = palloc0(sizeof(DLockViewQueue));
	DLockDatabase db;

	queue->rows = begin_rows(fcinfo);
	if (RecoveryInProgress())
		return (Datum) 0;

	dlock_session_open(&db);
	dlock_space_visit(db.shared->oid, visit_request, queue);
	dlock_session_close(&db);
	return put_rows(&queue->rows);
}

/* ---- counters ---- */

StaticAssertDecl(DLOCK_STAT_COUNTERS == 24, "the view dlock_stats knows the counters by their numbers");

/* _dlock.stats() -> the counters (base/stat.h), cleanup_lag, and memory; NULL on a standby */
Datum
dlock_sql_stats(PG_FUNCTION_ARGS)
{
	Datum		counts[DLOCK_STAT_COUNTERS + 3];
	int			count = 0;
	DLockDatabase db;

	if (RecoveryInProgress())
		PG_RETURN_NULL();
	dlock_session_open(&db);
	for (int i = 0; i < DLOCK_STAT_COUNTERS; i++)
		counts[count++] = Int64GetDatum(dlock_stat_read(&db.shared->stats, i));
	counts[count++] = UInt64GetDatum(pg_atomic_read_u64(&db.shared->stats.cleanup_lag));
	counts[count++] = UInt64GetDatum(dlock_memory_used());
	counts[count++] = UInt64GetDatum(dlock_memory_limit());
	dlock_session_close(&db);
	PG_RETURN_ARRAYTYPE_P(construct_array(counts, count, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}
