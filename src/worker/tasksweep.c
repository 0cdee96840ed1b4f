/*-------------------------------------------------------------------------
 *
 * tasksweep.c
 *	  Ending captures of tasks that have timed out.
 *
 * NOTES
 *	  A capture is dead once its deadline has passed, and every function judges
 *	  it so.  The state that the task then goes to stands in its row since the
 *	  capture; what is left to do, writing it, falls to the first that comes: the
 *	  database's reaper, or a call that is about to capture from this queue.
 *	  Rows that are locked are left alone.  Their capturer may be finishing, and
 *	  its commit or rollback decides.
 *
 *	  The column "due" says when a capture is to be looked at.  It may be before
 *	  the deadline, since an extension does not change it: it is indexed, and
 *	  the deadline is not.  So a heartbeat costs no entry in an index, and a
 *	  sweep moves "due" up to the deadline once a ttl.  For the same reason it may be
 *	  by the clock of another server: it is moved to the end by ours.
 *
 *	  A sweep publishes when the next capture ends (task_at).  A capture lowers
 *	  that if it ends earlier, but not before it is committed, as a sweep in
 *	  between would not see it and would plan without it.  This must hold for a
 *	  time without a reaper: the launcher starts one at task_at.  While there is a
 *	  reaper, it also looks at times of its own, at least once in
 *	  dlock.reap_interval.
 *
 *	  Nothing tells of captures that were prepared and are committed after their
 *	  end, or that a restore of a dump has written.  If a database has queues, a
 *	  reaper looks for them once in UNTOLD_INTERVAL.
 *
 * IDENTIFICATION
 *	  src/worker/tasksweep.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/clock.h"
#include "base/settings.h"
#include "session/session.h"
#include "worker/launcher.h"
#include "worker/tasksweep.h"

/* When to come again if a table is locked: a reaper that stays, and the next one. */
#define LOCKED_NAP			USECS_PER_SEC
#define LOCKED_ABSENCE		(10 * USECS_PER_SEC)

/* How many rows one sweep changes at most; the script has it too. */
#define BATCH				1000

/* How often to look for captures that nobody has told of, if there are queues. */
#define UNTOLD_INTERVAL		(10 * 60 * USECS_PER_SEC)

/*
 * How often to look for ends that are too far off, or looked at too late: those from
 * before a start with another clock, but also what was locked then or prepared, or is restored.
 */
#define CLAMP_INTERVAL		(60 * USECS_PER_SEC)

/* Least distance of two sweeps in proportion to what the last one took, up to so much. */
#define SWEEP_DISTANCE_FACTOR	10
#define SWEEP_COST_MAX		USECS_PER_SEC

/* The earliest deadline of this transaction's captures; the database. */
static DLockTime noted = DLOCK_TIME_FOREVER;
static DLockDatabaseShared *noted_database = NULL;

/* When this worker looks for deadlines that its clock makes too long. */
static DLockTime clamp_at = 0;

/* It does not sweep before, and looks at this time whatever is published. */
static DLockTime earliest = 0;
static DLockTime look_at = 0;

/* A sweep has begun and has not published its result. */
static bool sweeping = false;

/* What a sweep found. */
typedef struct DLockTaskSweepPlan
{
	DLockTime	due;			/* when the next capture ends, if known */
	DLockTime	look_at;		/* when a reaper that stays looks again */
	DLockTime	clamp_at;		/* when it clamps again */
	bool		moved;			/* it changed something */
} DLockTaskSweepPlan;

static void
at_end_of_transaction(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
			if (noted != DLOCK_TIME_FOREVER)
				dlock_database_note_task(noted_database, noted);
			/* FALLTHROUGH */
		case XACT_EVENT_ABORT:
			noted = DLOCK_TIME_FOREVER;
			break;
		default:
			break;
	}
}

/* Once this transaction has committed, a capture ends at this time. */
void
dlock_tasksweep_note(DLockDatabaseShared *database, DLockTime ends)
{
	static bool registered = false;

	if (!registered)
	{
		RegisterXactCallback(at_end_of_transaction, NULL);
		registered = true;
	}
	noted_database = database;
	noted = Min(noted, ends);
}

/* Run the sweep of the extension's script, and plan when there is more to do. */
static void
run_sweep(DLockDatabase *db, DLockTime now, DLockTaskSweepPlan *plan)
{
	bool		clamp = now >= plan->clamp_at;
	Datum		values[4];
	bool		nulls[4];
	char	   *query = psprintf("SELECT * FROM %s.dlock_task_sweep(%s)",
								 quote_identifier(get_namespace_name(RelationGetNamespace(db->rel))),
								 clamp ? "true" : "false");

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	if (SPI_execute(query, false, 1) != SPI_OK_SELECT || SPI_processed != 1)
		elog(ERROR, "could not sweep over tasks");
	heap_deform_tuple(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, values, nulls);

	if (clamp)
		plan->clamp_at = (DatumGetInt64(values[0]) == BATCH) ? now : now + CLAMP_INTERVAL;
	plan->moved = DatumGetInt64(values[1]) > 0;
	plan->due = (DatumGetInt64(values[3]) > 0) ? now + UNTOLD_INTERVAL : DLOCK_TIME_FOREVER;
	if (!nulls[2])
	{
		DLockTime	next = DatumGetTimestampTz(values[2]) - dlock_clock_steady_offset();

		plan->due = Min(plan->due, next);
	}
	if (DatumGetInt64(values[1]) == BATCH)
		plan->due = now;

	/* What is due and was not moved is locked by somebody. */
	else if (plan->due <= now)
	{
		plan->due = now + LOCKED_ABSENCE;
		plan->look_at = now + LOCKED_NAP;
	}
	plan->look_at = Min(plan->look_at, plan->clamp_at);
	if (SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "could not disconnect from SPI");
}

/* Open the leases, unless the extension is not there, or its tables are locked. */
static bool
try_open(DLockDatabase *db)
{
	static const char *const tables[] = {"dlock_task_queue", "dlock_task"};

	if (dlock_session_try_open(db) != DLOCK_SESSION_OPENED)
		return false;
	for (size_t i = 0; i < lengthof(tables); i++)
	{
		Oid			table = get_relname_relid(tables[i], RelationGetNamespace(db->rel));

		if (!OidIsValid(table) || !ConditionalLockRelationOid(table, RowExclusiveLock))
		{
			dlock_session_close(db);
			return false;
		}
	}
	return true;
}

/* Sweep once over all queues, in a transaction of its own. */
static void
sweep(DLockTime now, DLockTaskSweepPlan *plan)
{
	DLockDatabase db;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (try_open(&db))
	{
		run_sweep(&db, now, plan);
		dlock_session_close(&db);
	}
	else
	{
		plan->due = now + LOCKED_ABSENCE;
		plan->look_at = now + LOCKED_NAP;
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/* When a reaper has to look at captures of tasks. */
static DLockTime
next_look(DLockDatabaseShared *database)
{
	DLockTime	told = (DLockTime) pg_atomic_read_u64(&database->reaper.task_at);
	DLockTime	next = Min(told, look_at);

	return Max(next, earliest);
}

/*
 * What a reaper does about tasks, if it is time; returns when to come again.
 * "moved" is set if it has changed anything.
 *
 * A failure, which can come from triggers on the table as well as from a full
 * disk, goes to the log, and nothing else of the worker suffers from it.
 */
DLockTime
dlock_tasksweep_all(DLockDatabaseShared *database, bool *moved)
{
	MemoryContext context = CurrentMemoryContext;
	DLockTime	now = dlock_clock_now();
	DLockTime	interval = (DLockTime) dlock_settings_reap_interval_ms * 1000;
	DLockTaskSweepPlan plan = {now, now + interval, clamp_at, false};
	DLockTaskSweepPlan failed = {now + interval, now + interval, clamp_at, false};
	DLockTime	spent;

	if (next_look(database) > now)
		return next_look(database);

	/* Captures that commit from now on lower it again. */
	sweeping = true;
	pg_atomic_exchange_u64(&database->reaper.task_at, (uint64) DLOCK_TIME_FOREVER);
	PG_TRY();
	{
		sweep(now, &plan);
	}
	PG_CATCH();
	{
		if (dlock_launcher_is_ending())
			PG_RE_THROW();
		HOLD_INTERRUPTS();
		EmitErrorReport();
		AbortCurrentTransaction();
		MemoryContextSwitchTo(context);
		FlushErrorState();
		RESUME_INTERRUPTS();
		plan = failed;
	}
	PG_END_TRY();

	/*
	 * With many queues a sweep is dear, and each capture may end at another
	 * time.
	 */
	spent = dlock_clock_now() - now;
	spent = Min(spent, SWEEP_COST_MAX);
	earliest = (plan.due > now) ? now + spent * (1 + SWEEP_DISTANCE_FACTOR) : now;
	look_at = plan.look_at;
	clamp_at = plan.clamp_at;
	*moved |= plan.moved;
	dlock_database_note_task(database, plan.due);
	sweeping = false;
	return next_look(database);
}

/* A reaper leaves: what it has not finished is for the next one. */
void
dlock_tasksweep_end(DLockDatabaseShared *database)
{
	if (sweeping)
		dlock_database_note_task(database, 0);
}
