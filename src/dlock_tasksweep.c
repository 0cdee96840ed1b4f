/*-------------------------------------------------------------------------
 *
 * dlock_tasksweep.c
 *	  Ending captures of tasks that have timed out.
 *
 * NOTES
 *	  A capture is dead once its deadline has passed, and every function judges
 *	  it so.  The state that the task then goes to stands in its row since the
 *	  capture; what is left to do, writing it, falls to whoever comes first: the
 *	  database's reaper, or a call that is about to capture from this queue.
 *	  Rows that are locked are left alone.  Their capturer may be finishing, and
 *	  his commit or rollback decides.
 *
 *	  The column "due" says when a capture is to be looked at.  It may be before
 *	  the deadline, since an extension does not change it: it is indexed, and
 *	  the deadline is not.  So a heartbeat costs no entry in an index, and a
 *	  sweep moves "due" up to the deadline once a ttl.
 *
 *	  The reaper publishes when it will look next (task_at).  A capture lowers
 *	  that if it ends earlier, but not before it is committed, as a sweep in
 *	  between would not see it and would plan without it.
 *
 * IDENTIFICATION
 *	  src/dlock_tasksweep.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "dlock_clock.h"
#include "dlock_guc.h"
#include "dlock_launcher.h"
#include "dlock_tasksql.h"
#include "dlock_tasksweep.h"

/* When to come again if a table is locked. */
#define LOCKED_NAP			USECS_PER_SEC

/*
 * How often to look for deadlines that are too far off: those from before a start
 * with another clock, but also what was locked then or prepared, or is restored.
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

/* It does not sweep before. */
static DLockTime earliest = 0;

static void
at_end_of_transaction(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			if (noted != DLOCK_TIME_FOREVER)
				dlock_database_note_task(noted_database, noted);
			/* FALLTHROUGH */
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			noted = DLOCK_TIME_FOREVER;
			break;
		default:
			break;
	}
}

/* Once this transaction has committed, a capture ends at this time. */
void
dlock_tasksweep_note(DLockDatabaseShared *database, TimestampTz deadline)
{
	static bool registered = false;

	if (!registered)
	{
		RegisterXactCallback(at_end_of_transaction, NULL);
		registered = true;
	}
	noted_database = database;
	noted = Min(noted, deadline - dlock_clock_steady_offset());
}

/* Write what has timed out in one queue; the tables are open. */
void
dlock_tasksweep_queue(int32 queue_id)
{
	Datum		values[] = {
		TimestampTzGetDatum(dlock_clock_steady()),
		Int32GetDatum(queue_id)
	};

	(void) dlock_tasksql_run(DLOCK_TASK_SWEEP_QUEUE, values, NULL, 0);
}

/* Cut off what is too long; returns when to do so again. */
static DLockTime
clamp(DLockTime now)
{
	Datum		steady = TimestampTzGetDatum(dlock_clock_steady());
	uint64		clamped = dlock_tasksql_run(DLOCK_TASK_CLAMP, &steady, NULL, 0);

	return (clamped == DLOCK_TASK_BATCH) ? now : now + CLAMP_INTERVAL;
}

/* Move what has timed out; returns when there is more to do, as far as is known. */
static DLockTime
move_due(DLockTime now)
{
	Datum		steady = TimestampTzGetDatum(dlock_clock_steady());
	DLockTime	next;
	Datum		due;
	bool		none;

	if (dlock_tasksql_run(DLOCK_TASK_SWEEP_ALL, &steady, NULL, 0) == DLOCK_TASK_BATCH)
		return now;
	(void) dlock_tasksql_run(DLOCK_TASK_NEXT_DUE, NULL, NULL, 0);
	due = dlock_tasksql_value(0, 1, &none);
	if (none)
		return DLOCK_TIME_FOREVER;
	next = DatumGetTimestampTz(due) - dlock_clock_steady_offset();

	/* What is due and was not moved is locked by somebody. */
	return (next > now) ? next : now + LOCKED_NAP;
}

/*
 * Sweep once over all queues, in a transaction of its own; returns when to come
 * again at the latest.
 */
static DLockTime
sweep(DLockTime now)
{
	DLockTime	next = now + (DLockTime) dlock_guc_reap_interval_ms * 1000;
	DLockTime	next_clamp = clamp_at;
	DLockTaskSql sql;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (dlock_tasksql_try_open(&sql))
	{
		DLockTime	next_due;

		if (now >= clamp_at)
			next_clamp = clamp(now);
		next_due = move_due(now);
		next = Min(next, next_due);
		next = Min(next, next_clamp);
		dlock_tasksql_close(&sql);
	}
	else
		next = now + LOCKED_NAP;
	PopActiveSnapshot();
	CommitTransactionCommand();

	/* Not before: an error undoes it. */
	clamp_at = next_clamp;
	return next;
}

/*
 * What a reaper does about tasks, if it is time; returns when to come again.
 *
 * A failure, which can come from triggers on the table as well as from a full
 * disk, goes to the log, and nothing else of the worker suffers from it.
 */
DLockTime
dlock_tasksweep_all(DLockDatabaseShared *database)
{
	pg_atomic_uint64 *task_at = &database->reaper.task_at;
	MemoryContext context = CurrentMemoryContext;
	DLockTime	now = dlock_clock_now();
	volatile DLockTime next = now + (DLockTime) dlock_guc_reap_interval_ms * 1000;
	DLockTime	planned = (DLockTime) pg_atomic_read_u64(task_at);
	DLockTime	spent;

	planned = Max(planned, earliest);
	if (planned > now)
		return planned;

	/* Captures that commit from now on lower it again. */
	pg_atomic_exchange_u64(task_at, (uint64) next);
	PG_TRY();
	{
		next = sweep(now);
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
	}
	PG_END_TRY();

	/* With many queues a sweep is dear, and each capture may end at another time. */
	spent = dlock_clock_now() - now;
	spent = Min(spent, SWEEP_COST_MAX);
	earliest = (next > now) ? now + spent * (1 + SWEEP_DISTANCE_FACTOR) : now;
	planned = dlock_database_plan_task(database, next);
	return Max(planned, earliest);
}

/* A reaper begins: it looks at once. */
void
dlock_tasksweep_begin(DLockDatabaseShared *database)
{
	clamp_at = 0;
	earliest = 0;
	pg_atomic_exchange_u64(&database->reaper.task_at, 0);
}
