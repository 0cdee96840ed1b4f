/*-------------------------------------------------------------------------
 *
 * dlock_reaper.c
 *	  The background workers: one that removes expired leases in each
 *	  database, and one that starts those.
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
 *	  The launcher is connected to no database.  It starts when recovery ends,
 *	  has one worker after another look into each database, and from then on
 *	  keeps a reaper in those that want one: where the extension is.  It also
 *	  flushes what others have left unflushed (dlock_flush.c).
 *
 *	  A session of a reaper in a database would be in the way of DROP DATABASE
 *	  and its like.  So whoever is about to do that holds the reaper away
 *	  (dlock_reaper_hold) until it is done.
 *
 * IDENTIFICATION
 *	  src/dlock_reaper.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "lib/binaryheap.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "dlock_clock.h"
#include "dlock_flush.h"
#include "dlock_guc.h"
#include "dlock_manager.h"
#include "dlock_reaper.h"
#include "dlock_session.h"
#include "dlock_space.h"

/* Least distance of two sweeps, and its proportion to what the last one took. */
#define SWEEP_DISTANCE			(10 * INT64CONST(1000))
#define SWEEP_DISTANCE_FACTOR	10

/* How many leases are removed before others get at the store's lock. */
#define REAP_BATCH				1000

/* How long a worker sleeps when nothing calls for it. */
#define LONGEST_NAP				(60 * USECS_PER_SEC)

/* How long after a failed start it tries again: 1 s, then 2 s, up to this. */
#define MAX_RETRY_DELAY			(64 * USECS_PER_SEC)

/* How long a reaper is waited for when it is asked to leave. */
#define HOLD_TIMEOUT			(5 * USECS_PER_SEC)

PGDLLEXPORT void dlock_reaper_main(Datum arg);
PGDLLEXPORT void dlock_launcher_main(Datum arg);

/* ---- reaper ---- */

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

	if (lease->deadline > reaper->horizon)
		return;
	if (reaper->count == reaper->room)
	{
		reaper->room *= 2;
		reaper->refs = repalloc_huge(reaper->refs, reaper->room * sizeof(DLockSpaceRef));
	}
	reaper->refs[reaper->count++] =
		(DLockSpaceRef) {lease->hash, lease->token, lease->deadline};
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

	spent = dlock_clock_now() - now;
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
		before_shmem_exit(sign_off, PointerGetDatum(shared));
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

/* The reaper of the database whose oid is the argument. */
void
dlock_reaper_main(Datum arg)
{
	uint32		wait_event;
	DLockReaper reaper = {0};

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid, 0);
	wait_event = WaitEventExtensionNew("DLockReaperMain");

	/* A database without the extension is none of our business. */
	if (!is_extension_here())
		proc_exit(0);

	reaper.shared = dlock_database_attach(MyDatabaseId);
	reaper.context = AllocSetContextCreate(TopMemoryContext, "dlock reaper",
										   ALLOCSET_DEFAULT_SIZES);
	dlock_database_want_reaper(reaper.shared, true);
	if (!sign_on(reaper.shared))
		proc_exit(0);

	for (;;)
	{
		DLockTime	now;
		DLockTime	wake;

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
			proc_exit(0);
		}
		if (is_held_away(reaper.shared))
			proc_exit(0);
		pgstat_report_activity(STATE_IDLE, NULL);

		now = dlock_clock_now();
		if (wake > now)
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 dlock_clock_nap_ms(now, wake, LONGEST_NAP), wait_event);
	}
}

/* ---- keeping reapers away ---- */

/* Change the number of those who hold a database's reaper away. */
static void
change_holds(Oid database, int by)
{
	DLockDatabaseShared *shared;

	dlock_database_lock(LW_EXCLUSIVE);
	shared = dlock_database_find(database);
	if (shared != NULL)
	{
		shared->reaper.holds += by;
		if (shared->reaper.latch != NULL)
			SetLatch(shared->reaper.latch);
	}
	dlock_database_unlock();
}

static bool
has_reaper(Oid database)
{
	DLockDatabaseShared *shared;
	bool		has;

	dlock_database_lock(LW_SHARED);
	shared = dlock_database_find(database);
	has = shared != NULL && shared->reaper.pid != 0;
	dlock_database_unlock();
	return has;
}

/*
 * Ask a database's reaper to leave and to stay away, and wait a few seconds
 * until it has left.  Each call is to be followed by dlock_reaper_unhold(),
 * also after an error.
 */
void
dlock_reaper_hold(Oid database)
{
	DLockTime	end = dlock_clock_now() + HOLD_TIMEOUT;

	change_holds(database, 1);
	while (has_reaper(database) && dlock_clock_now() < end)
	{
		CHECK_FOR_INTERRUPTS();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 10, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

/* Let the reaper come back, if the database is still there. */
void
dlock_reaper_unhold(Oid database)
{
	change_holds(database, -1);
	dlock_database_wake_launcher();
}

/*
 * The extension was created or dropped in this backend's database by a
 * transaction that has committed: have that looked at.  Cannot fail.
 */
void
dlock_reaper_extension_changed(void)
{
	DLockDatabaseShared *shared;

	dlock_database_lock(LW_EXCLUSIVE);
	shared = dlock_database_find(MyDatabaseId);
	if (shared != NULL)
	{
		shared->reaper.attempts = 0;
		if (shared->reaper.latch != NULL)
			SetLatch(shared->reaper.latch);
		else
			shared->reaper.wanted = true;
	}
	dlock_database_unlock();
	dlock_database_wake_launcher();
}

/* ---- launcher ---- */

/* A database that the launcher has, or wants to have, a worker in. */
typedef struct DLockLauncherChild
{
	Oid			database;
	BackgroundWorkerHandle *handle; /* NULL while none was started */
	bool		probe;			/* look whether the extension is there */
	DLockTime	not_before;		/* when to start the next one */
} DLockLauncherChild;

static List *children = NIL;
static bool slots_exhausted = false;

static DLockLauncherChild *
find_child(Oid database)
{
	ListCell   *cell;

	foreach(cell, children)
	{
		DLockLauncherChild *child = lfirst(cell);

		if (child->database == database)
			return child;
	}
	return NULL;
}

static DLockLauncherChild *
add_child(Oid database)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	DLockLauncherChild *child = palloc0(sizeof(DLockLauncherChild));

	child->database = database;
	children = lappend(children, child);
	MemoryContextSwitchTo(old);
	return child;
}

/* All databases that can be connected to are to be looked into. */
static void
probe_all_databases(void)
{
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);

		if (form->datallowconn)
			add_child(form->oid)->probe = true;
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
}

static bool
database_exists(Oid database)
{
	bool		exists;

	StartTransactionCommand();
	exists = SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(database));
	CommitTransactionCommand();
	return exists;
}

/* Start a worker; false if there is no slot for one. */
static bool
start_worker(DLockLauncherChild *child)
{
	BackgroundWorker worker;
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	bool		started;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "dlock", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "dlock_reaper_main", sizeof(worker.bgw_function_name));
	snprintf(worker.bgw_name, BGW_MAXLEN, "dlock reaper for database %u", child->database);
	strlcpy(worker.bgw_type, "dlock reaper", sizeof(worker.bgw_type));
	worker.bgw_main_arg = ObjectIdGetDatum(child->database);
	worker.bgw_notify_pid = MyProcPid;
	started = RegisterDynamicBackgroundWorker(&worker, &child->handle);
	MemoryContextSwitchTo(old);

	if (!started && !slots_exhausted)
		ereport(LOG,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("no background worker slot is free for a dlock reaper"),
				 errdetail("Expired leases of some databases are not removed until they are acquired again."),
				 errhint("Increase \"max_worker_processes\".")));
	slots_exhausted = !started;
	return started;
}

/*
 * Does the database want a reaper and have none?  "delay" is how long to wait
 * before the next attempt, since earlier ones have failed.
 */
static bool
wants_reaper(Oid database, DLockTime *delay)
{
	DLockDatabaseShared *shared;
	bool		wants;

	*delay = 0;
	dlock_database_lock(LW_SHARED);
	shared = dlock_database_find(database);
	wants = shared != NULL && shared->reaper.wanted &&
		shared->reaper.pid == 0 && shared->reaper.holds == 0;
	if (wants && shared->reaper.attempts > 0)
		*delay = Min(MAX_RETRY_DELAY,
					 USECS_PER_SEC << Min(shared->reaper.attempts - 1, 10));
	dlock_database_unlock();
	return wants;
}

static bool
is_wanted(Oid database)
{
	DLockDatabaseShared *shared;
	bool		wanted;

	dlock_database_lock(LW_SHARED);
	shared = dlock_database_find(database);
	wanted = shared != NULL && shared->reaper.wanted;
	dlock_database_unlock();
	return wanted;
}

static void
count_attempt(Oid database)
{
	DLockDatabaseShared *shared;

	dlock_database_lock(LW_EXCLUSIVE);
	shared = dlock_database_find(database);
	if (shared != NULL)
		shared->reaper.attempts++;
	dlock_database_unlock();
}

/* The databases of the registry that have no reaper are to be seen to. */
static void
adopt_registered(void)
{
	List	   *oids = NIL;
	ListCell   *cell;

	dlock_database_lock(LW_SHARED);
	for (DLockDatabaseShared *shared = dlock_database_first();
		 shared != NULL; shared = dlock_database_next(shared))
	{
		if (shared->reaper.pid == 0 && find_child(shared->oid) == NULL)
			oids = lappend_oid(oids, shared->oid);
	}
	dlock_database_unlock();

	foreach(cell, oids)
		(void) add_child(lfirst_oid(cell));
	list_free(oids);
}

/*
 * See to a child that has a worker; false if that has ended.
 *
 * "probing" is set if it is still looking into its database.
 */
static bool
tend_worker(DLockLauncherChild *child, DLockTime now, bool *probing)
{
	DLockTime	delay;
	pid_t		pid;

	if (GetBackgroundWorkerPid(child->handle, &pid) != BGWH_STOPPED)
	{
		*probing |= child->probe && !has_reaper(child->database);
		return true;
	}

	pfree(child->handle);
	child->handle = NULL;
	child->probe = false;
	(void) wants_reaper(child->database, &delay);
	child->not_before = now + delay;
	return false;
}

/*
 * See to all children; returns when to do so again.
 *
 * Databases are probed one after the other, so as not to take all of the
 * server's worker slots at its start.
 */
static DLockTime
tend_children(DLockTime now)
{
	DLockTime	wake = DLOCK_TIME_FOREVER;
	bool		probing = false;
	ListCell   *cell;

	adopt_registered();
	foreach(cell, children)
	{
		DLockLauncherChild *child = lfirst(cell);
		DLockTime	delay;

		if (child->handle != NULL && tend_worker(child, now, &probing))
			continue;

		if (child->probe && has_reaper(child->database))
			child->probe = false;

		if (child->probe ? !probing : wants_reaper(child->database, &delay))
		{
			if (!database_exists(child->database))
			{
				dlock_database_forget(child->database);
				child->probe = false;
			}
			else if (now >= child->not_before && start_worker(child))
			{
				count_attempt(child->database);
				probing |= child->probe;
				continue;
			}
			else
			{
				child->not_before = Max(child->not_before, now + USECS_PER_SEC);
				wake = Min(wake, child->not_before);
				continue;
			}
		}

		/* Nothing to be done there, or somebody else does it. */
		if (!child->probe)
		{
			if (!is_wanted(child->database) && !database_exists(child->database))
				dlock_database_forget(child->database);
			children = foreach_delete_current(children, cell);
			pfree(child);
		}
	}
	return wake;
}

static void
launcher_exit(int code, Datum arg)
{
	dlock_flush_serve(NULL);
	dlock_database_set_launcher(NULL);
}

/* The launcher. */
void
dlock_launcher_main(Datum arg)
{
	uint32		wait_event;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	wait_event = WaitEventExtensionNew("DLockLauncherMain");

	(void) dlock_space_area();
	before_shmem_exit(launcher_exit, (Datum) 0);
	dlock_database_set_launcher(MyLatch);
	dlock_flush_serve(MyLatch);
	probe_all_databases();

	for (;;)
	{
		DLockTime	wake;
		DLockTime	now;

		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}

		now = dlock_clock_now();
		wake = tend_children(now);
		wake = Min(wake, dlock_flush_pending(now));
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 dlock_clock_nap_ms(dlock_clock_now(), wake, LONGEST_NAP),
						 wait_event);
	}
}

/*
 * Have the postmaster start the launcher.  To be called while
 * shared_preload_libraries is being processed.
 */
void
dlock_reaper_register(void)
{
	BackgroundWorker worker;

	/* pg_upgrade wants the old and the new cluster to itself. */
	if (IsBinaryUpgrade)
		return;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 1;
	strlcpy(worker.bgw_library_name, "dlock", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "dlock_launcher_main", sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_name, "dlock launcher", sizeof(worker.bgw_name));
	strlcpy(worker.bgw_type, "dlock launcher", sizeof(worker.bgw_type));
	RegisterBackgroundWorker(&worker);
}
