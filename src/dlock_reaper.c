/*-------------------------------------------------------------------------
 *
 * dlock_reaper.c
 *	  The background worker that removes a database's expired leases.
 *
 * NOTES
 *	  Nothing but tidiness depends on a reaper.  A lease is dead at its
 *	  deadline whether or not it has been removed.
 *
 *	  A reaper sweeps over the leases of its database and puts those that end
 *	  within dlock.reap_interval into a heap of its own.  It then sleeps until
 *	  the first deadline, removes what has expired, and sweeps again when the
 *	  interval is over.  It publishes when it means to wake (wake_at); a backend
 *	  that grants a lease with an earlier deadline lowers that and wakes it, and
 *	  it then sweeps at that time.  Most such leases have been released by then.
 *	  Sweeps keep a distance in proportion to what they cost, so that they take
 *	  a tenth of the worker's time at the most.
 *
 *	  It also ends captures of tasks that have timed out, at times of their own
 *	  (dlock_tasksweep.c).
 *
 * IDENTIFICATION
 *	  src/dlock_reaper.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "lib/binaryheap.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "dlock_clock.h"
#include "dlock_exit.h"
#include "dlock_grant.h"
#include "dlock_guc.h"
#include "dlock_holder.h"
#include "dlock_launcher.h"
#include "dlock_manager.h"
#include "dlock_reaper.h"
#include "dlock_session.h"
#include "dlock_space.h"
#include "dlock_tasksweep.h"

/* Least distance of two sweeps, and its proportion to what the last one took. */
#define SWEEP_DISTANCE			(10 * INT64CONST(1000))
#define SWEEP_DISTANCE_FACTOR	10

/* The most that a sweep is taken to have cost: the machine may have slept. */
#define SWEEP_COST_MAX			USECS_PER_SEC

/* How many leases are removed before others get at the store's lock. */
#define REAP_BATCH				1000

/* How long a worker sleeps when nothing calls for it. */
#define LONGEST_NAP				(60 * USECS_PER_SEC)

/* What a reaper knows of the time to come. */
typedef struct DLockReaper
{
	DLockDatabaseShared *shared;
	MemoryContext context;		/* of refs and due */
	DLockSpaceRef *refs;		/* leases found by the last sweep */
	int			count;
	int			room;
	binaryheap *due;			/* of those, by deadline; elements point to refs */
	DLockTime	horizon;		/* up to here all deadlines are in the heap */
	DLockTime	earliest_sweep;
	DLockTime	planned;		/* when to wake, as published */
} DLockReaper;

static int
compare_deadlines(Datum a, Datum b, void *arg)
{
	DLockTime	left = ((DLockSpaceRef *) DatumGetPointer(a))->deadline;
	DLockTime	right = ((DLockSpaceRef *) DatumGetPointer(b))->deadline;

	/* The server's heap has the largest on top. */
	if (left < right)
		return 1;
	return (left > right) ? -1 : 0;
}

static void
collect_due(DLockSpaceEntry *entry, DLockSpaceLease *lease, void *arg)
{
	DLockReaper *reaper = arg;
	DLockTime	until = lease->unwritten ? 0 : dlock_holder_blocks_until(lease);

	if (until > reaper->horizon)
		return;
	if (reaper->count == reaper->room)
	{
		reaper->room *= 2;
		reaper->refs = repalloc_huge(reaper->refs, reaper->room * sizeof(DLockSpaceRef));
	}
	reaper->refs[reaper->count++] =
		(DLockSpaceRef) {entry->hash, lease->role, lease->token, until};
}

/* Find all leases that end before the next horizon. */
static void
sweep(DLockReaper *reaper, DLockTime now)
{
	MemoryContext old;
	DLockTime	spent;

	reaper->horizon = now + (DLockTime) dlock_guc_reap_interval_ms * 1000;

	/*
	 * From here on whoever grants a lease that ends before the horizon says so,
	 * whether or not the walk meets it.
	 */
	pg_atomic_exchange_u64(&reaper->shared->reaper.wake_at, (uint64) reaper->horizon);

	MemoryContextReset(reaper->context);
	old = MemoryContextSwitchTo(reaper->context);
	reaper->count = 0;
	reaper->room = 64;
	reaper->refs = palloc(reaper->room * sizeof(DLockSpaceRef));
	dlock_space_visit(reaper->shared->oid, collect_due, reaper);

	reaper->due = binaryheap_allocate(Max(1, reaper->count), compare_deadlines, NULL);
	for (int i = 0; i < reaper->count; i++)
		binaryheap_add_unordered(reaper->due, PointerGetDatum(&reaper->refs[i]));
	binaryheap_build(reaper->due);
	MemoryContextSwitchTo(old);

	/* Min() reads its arguments twice, and the machine may sleep in between. */
	spent = dlock_clock_now() - now;
	spent = Min(spent, SWEEP_COST_MAX);
	reaper->earliest_sweep = now + spent +
		Max(SWEEP_DISTANCE, spent * SWEEP_DISTANCE_FACTOR);
}

/* When the next lease that is known of ends, or the next sweep is due. */
static DLockTime
next_event(DLockReaper *reaper)
{
	DLockTime	next_sweep = Max(reaper->horizon, reaper->earliest_sweep);
	DLockSpaceRef *first;

	if (reaper->due == NULL || binaryheap_empty(reaper->due))
		return next_sweep;
	first = (DLockSpaceRef *) DatumGetPointer(binaryheap_first(reaper->due));
	return Min(first->deadline, next_sweep);
}

/* Remove a batch of the leases whose deadline has passed. */
static void
remove_expired(DLockReaper *reaper, DLockDatabase *db)
{
	for (int i = 0; i < REAP_BATCH && !binaryheap_empty(reaper->due); i++)
	{
		DLockSpaceRef *ref = (DLockSpaceRef *) DatumGetPointer(binaryheap_first(reaper->due));

		CHECK_FOR_INTERRUPTS();
		if (ref->deadline > dlock_clock_now())
			break;

		/* It may have been released, or renewed. */
		ref->deadline = dlock_manager_expire(db, ref->hash, ref->token);
		if (ref->deadline == 0 || ref->deadline > reaper->horizon)
			(void) binaryheap_remove_first(reaper->due);
		else
			binaryheap_replace_first(reaper->due, PointerGetDatum(ref));
	}
}

/*
 * Publish when this reaper means to wake; returns when it has to.
 */
static DLockTime
publish_plan(DLockReaper *reaper)
{
	pg_atomic_uint64 *wake_at = &reaper->shared->reaper.wake_at;
	uint64		seen = pg_atomic_read_u64(wake_at);

	reaper->planned = next_event(reaper);
	while (seen > (uint64) reaper->planned)
	{
		if (pg_atomic_compare_exchange_u64(wake_at, &seen, (uint64) reaper->planned))
			return reaper->planned;
	}

	/* Somebody has an earlier deadline: sweep then, or as soon as allowed. */
	return Min(reaper->planned, Max((DLockTime) seen, reaper->earliest_sweep));
}

/*
 * Do what is due; false if the extension is no longer here.  "wake" is when to
 * come again.
 */
static bool
reap(DLockReaper *reaper, DLockTime *wake)
{
	DLockDatabase db;
	DLockTime	now;
	DLockTime	asked;
	bool		installed;

	StartTransactionCommand();
	installed = dlock_session_open_if_installed(&db);
	if (installed)
	{
		now = dlock_clock_now();
		asked = (DLockTime) pg_atomic_read_u64(&reaper->shared->reaper.wake_at);
		if ((now >= reaper->horizon || (asked < reaper->planned && now >= asked)) &&
			now >= reaper->earliest_sweep)
			sweep(reaper, now);
		if (reaper->due != NULL)
			remove_expired(reaper, &db);
		*wake = publish_plan(reaper);
		dlock_session_close(&db);
	}
	CommitTransactionCommand();
	return installed;
}

/* The extension is no longer here: forget its leases, unless it came back. */
static void
retire(DLockDatabaseShared *shared)
{
	if (shared == NULL)
		return;
	dlock_database_want_reaper(shared, false);
	StartTransactionCommand();
	if (!dlock_session_unload_if_dropped(shared))
		dlock_database_want_reaper(shared, true);
	CommitTransactionCommand();
}

/* Take this worker out of the registry. */
static void
sign_off(int code, Datum arg)
{
	DLockDatabaseShared *shared = (DLockDatabaseShared *) DatumGetPointer(arg);

	pg_atomic_write_u64(&shared->reaper.wake_at, 0);
	dlock_database_lock(LW_EXCLUSIVE);
	shared->reaper.pid = 0;
	shared->reaper.latch = NULL;
	dlock_database_unlock();
	dlock_database_wake_launcher();
}

/* Enter this worker into the registry; false if it is not welcome. */
static bool
sign_on(DLockDatabaseShared *shared)
{
	bool		welcome;

	dlock_database_lock(LW_EXCLUSIVE);
	welcome = shared->reaper.pid == 0 && shared->reaper.holds == 0;
	if (welcome)
	{
		shared->reaper.pid = MyProcPid;
		shared->reaper.latch = MyLatch;
	}
	dlock_database_unlock();
	if (welcome)
	{
		dlock_exit_before_shmem(sign_off, PointerGetDatum(shared));
		/* It may be waiting with the next database until this one is settled. */
		dlock_database_wake_launcher();
	}
	return welcome;
}

/* This worker works.  Is it to go away nevertheless? */
static bool
is_held_away(DLockDatabaseShared *shared)
{
	bool		held;

	dlock_database_lock(LW_EXCLUSIVE);
	shared->reaper.attempts = 0;
	held = shared->reaper.holds > 0;
	dlock_database_unlock();
	return held;
}

/* This database in the registry; NULL if it is not there. */
static DLockDatabaseShared *
find_registered(void)
{
	DLockDatabaseShared *shared;

	dlock_database_lock(LW_SHARED);
	shared = dlock_database_find(MyDatabaseId);
	dlock_database_unlock();
	return shared;
}

static bool
is_extension_here(void)
{
	Relation	rel;

	StartTransactionCommand();
	rel = dlock_session_open_store(AccessShareLock);
	if (rel != NULL)
		table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	return rel != NULL;
}

/*
 * What a database sets for its sessions is not meant for this one, which writes
 * rows of tasks.  No wait for disk or standbys: what a crash undoes of its work
 * is done again.
 */
static void
override_settings(void)
{
	static const char *const settings[][2] = {
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"synchronous_commit", "off"},
		{"statement_timeout", "0"},
		{"lock_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"}
	};

	for (size_t i = 0; i < lengthof(settings); i++)
		SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET, PGC_S_OVERRIDE);
}

/* Work until there is nothing to do, or this worker is asked to end. */
static void
work(Datum arg)
{
	uint32		wait_event;
	DLockReaper reaper = {0};

	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid, 0);
	override_settings();
	wait_event = WaitEventExtensionNew("DLockReaperMain");

	/* A database without the extension needs no reaper, if it ever did. */
	if (!is_extension_here())
	{
		retire(find_registered());
		return;
	}

	reaper.shared = dlock_database_attach(MyDatabaseId);
	reaper.context = AllocSetContextCreate(TopMemoryContext, "dlock reaper",
										   ALLOCSET_DEFAULT_SIZES);
	dlock_database_want_reaper(reaper.shared, true);
	if (!sign_on(reaper.shared))
		return;
	dlock_tasksweep_begin(reaper.shared);

	while (!dlock_launcher_is_ending())
	{
		DLockTime	now;
		DLockTime	wake;
		DLockTime	tasks;

		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			reaper.horizon = 0;
		}

		pgstat_report_activity(STATE_RUNNING, "removing expired leases");
		if (!reap(&reaper, &wake))
		{
			retire(reaper.shared);
			return;
		}
		if (is_held_away(reaper.shared))
			return;
		tasks = dlock_tasksweep_all(reaper.shared);
		wake = Min(wake, tasks);
		(void) pgstat_report_stat(false);
		pgstat_report_activity(STATE_IDLE, NULL);

		now = dlock_clock_now();
		if (wake > now)
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 dlock_clock_nap_ms(now, wake, LONGEST_NAP), wait_event);
	}
}

/* The reaper of the database whose oid is the argument. */
void
dlock_reaper_main(Datum arg)
{
	dlock_launcher_run_worker(work, arg);
	proc_exit(0);
}
