/*-------------------------------------------------------------------------
 *
 * tasksweep.c
 *	  Ending captures of tasks that have timed out.
 *
 * NOTES
 *	  A capture is dead once its deadline has passed, and every function judges
 *	  it so.  The state that the task then goes to stands in its row since the
 *	  capture; what is left to do, writing it, falls to whoever comes first: the
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

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/clock.h"
#include "base/settings.h"
#include "session/tasksql.h"
#include "worker/launcher.h"
#include "worker/tasksweep.h"

/* When to come again if a table is locked: a reaper that stays, and the next one. */
#define LOCKED_NAP			USECS_PER_SEC
#define LOCKED_ABSENCE		(10 * USECS_PER_SEC)

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
	DLockTime	due;			/* when the next capture ends, as far as is known */
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
	Datum		values[4];
	uint64		clamped;

	(void) dlock_tasksql_end(0, values);
	clamped = dlock_tasksql_run(DLOCK_TASK_CLAMP, values, NULL, 0);
	return (clamped == DLOCK_TASK_BATCH) ? now : now + CLAMP_INTERVAL;
}

/* Move what has timed out, and plan when there is more to do. */
static void
move_due(DLockTime now, DLockTaskSweepPlan *plan)
{
	Datum		steady = TimestampTzGetDatum(dlock_clock_steady());
	uint64		moved = dlock_tasksql_run(DLOCK_TASK_SWEEP_ALL, &steady, NULL, 0);
	Datum		due;
	bool		none;
	bool		has_queues;

	plan->moved = moved > 0;
	if (moved == DLOCK_TASK_BATCH)
	{
		plan->due = now;
		return;
	}
	(void) dlock_tasksql_run(DLOCK_TASK_NEXT_DUE, NULL, NULL, 0);
	has_queues = DatumGetBool(dlock_tasksql_value(0, 2, &none));
	plan->due = has_queues ? now + UNTOLD_INTERVAL : DLOCK_TIME_FOREVER;
	due = dlock_tasksql_value(0, 1, &none);
	if (!none)
	{
		DLockTime	next = DatumGetTimestampTz(due) - dlock_clock_steady_offset();

		plan->due = Min(plan->due, next);
	}

	/* What is due and was not moved is locked by somebody. */
	if (plan->due <= now)
	{
		plan->due = now + LOCKED_ABSENCE;
		plan->look_at = now + LOCKED_NAP;
	}
}

/* Sweep once over all queues, in a transaction of its own. */
static void
sweep(DLockTime now, DLockTaskSweepPlan *plan)
{
	DLockTaskSql sql;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (dlock_tasksql_try_open(&sql))
	{
		if (now >= plan->clamp_at)
			plan->clamp_at = clamp(now);
		move_due(now, plan);
		plan->look_at = Min(plan->look_at, plan->clamp_at);
		dlock_tasksql_close(&sql);
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

	/* With many queues a sweep is dear, and each capture may end at another time. */
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
