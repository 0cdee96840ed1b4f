/*-------------------------------------------------------------------------
 *
 * dlock_launcher.c
 *	  The background worker that starts the reapers, and who keeps them away.
 *
 * NOTES
 *	  The launcher is connected to no database.  It starts when recovery ends,
 *	  has one worker after another look into each database, and from then on
 *	  keeps a reaper in those that want one: where the extension is.  It also
 *	  flushes what others have left unflushed (dlock_flush.c).
 *
 *	  A session of a reaper in a database would be in the way of DROP DATABASE
 *	  and its like.  So whoever is about to do that holds the reaper away
 *	  until the end of his transaction.
 *
 *	  What others want to be done stands in the registry; the launcher's latch
 *	  is set after that.  So it goes by what it finds there whenever it wakes.
 *
 * IDENTIFICATION
 *	  src/dlock_launcher.c
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
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "dlock_clock.h"
#include "dlock_database.h"
#include "dlock_exit.h"
#include "dlock_flush.h"
#include "dlock_launcher.h"

/* How long the launcher sleeps when nothing calls for it. */
#define LONGEST_NAP				(60 * USECS_PER_SEC)

/* How long after a start that was not possible it tries again. */
#define START_DISTANCE			USECS_PER_SEC

/* How long after a worker has failed it tries again: 1 s, then 2 s, up to this. */
#define MAX_RETRY_DELAY			(64 * USECS_PER_SEC)

/* How long a worker may look into its database before others do, too. */
#define PROBE_PATIENCE			USECS_PER_SEC

/* How long a reaper is waited for when it is asked to leave. */
#define HOLD_TIMEOUT			(5 * USECS_PER_SEC)

/* ---- keeping reapers away ---- */

/*
 * Change the number of those who hold a database's reaper away, by one; false
 * if it is not in the registry and cannot be noted otherwise.
 */
static bool
change_holds(Oid database, int by)
{
	DLockDatabaseShared *shared;
	bool		changed = true;

	dlock_database_lock(LW_EXCLUSIVE);
	shared = dlock_database_find(database);
	if (shared != NULL)
	{
		shared->reaper.holds += by;
		if (shared->reaper.latch != NULL)
			SetLatch(shared->reaper.latch);
	}
	else
		changed = (by > 0) ? dlock_database_hold_unknown(database) :
			dlock_database_unhold_unknown(database);
	dlock_database_unlock();
	return changed;
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
 * Ask a database's reaper to stay away, also one that is only about to look
 * whether the database has leases; false if that cannot be noted.  If true,
 * dlock_launcher_unhold() is to follow, also after an error.
 */
bool
dlock_launcher_hold(Oid database)
{
	return change_holds(database, 1);
}

/* Wait a few seconds until a reaper that was asked to stay away has left. */
void
dlock_launcher_wait_left(Oid database)
{
	DLockTime	end = dlock_clock_now() + HOLD_TIMEOUT;

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
dlock_launcher_unhold(Oid database)
{
	(void) change_holds(database, -1);
	dlock_database_wake_launcher();
}

/*
 * The extension was created or dropped in this backend's database by a
 * transaction that has committed: have that looked at.  Cannot fail.
 */
void
dlock_launcher_extension_changed(void)
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

/* ---- the worker ---- */

/* A database that the launcher has, or wants to have, a worker in. */
typedef struct DLockLauncherChild
{
	Oid			database;
	BackgroundWorkerHandle *handle; /* NULL while none was started */
	bool		probe;			/* look whether the extension is there */
	DLockTime	started_at;		/* when the worker was started */
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

/* Whether a worker can be started in a database. */
typedef enum DLockLauncherAccess
{
	DATABASE_GONE,
	DATABASE_CLOSED,
	DATABASE_OPEN
} DLockLauncherAccess;

static DLockLauncherAccess
check_database(Oid database)
{
	DLockLauncherAccess access = DATABASE_GONE;
	HeapTuple	tuple;

	StartTransactionCommand();
	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	if (HeapTupleIsValid(tuple))
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);

		/* A limit below -1 marks a database that was dropped halfway. */
		access = (form->datallowconn && form->datconnlimit >= -1) ?
			DATABASE_OPEN : DATABASE_CLOSED;
		ReleaseSysCache(tuple);
	}
	CommitTransactionCommand();
	return access;
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
		*probing |= child->probe && !has_reaper(child->database) &&
			now - child->started_at < PROBE_PATIENCE;
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
 * Start a worker for a child that is to have one; returns when to try again,
 * if it could not be started.
 */
static DLockTime
try_start(DLockLauncherChild *child, DLockTime now)
{
	if (now < child->not_before)
		return child->not_before;
	if (check_database(child->database) == DATABASE_OPEN && start_worker(child))
	{
		child->started_at = now;
		count_attempt(child->database);
		return DLOCK_TIME_FOREVER;
	}
	child->not_before = now + START_DISTANCE;
	return child->not_before;
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
		{
			if (child->probe)
				wake = Min(wake, now + PROBE_PATIENCE);
			continue;
		}

		if (is_wanted(child->database) || has_reaper(child->database))
			child->probe = false;
		if (child->probe && probing)
			continue;

		if (child->probe || wants_reaper(child->database, &delay))
		{
			/* Min() evaluates its arguments twice. */
			DLockTime	again = try_start(child, now);

			wake = Min(wake, again);
			probing |= child->probe && child->handle != NULL;
			if (child->handle != NULL || check_database(child->database) != DATABASE_GONE)
				continue;
		}

		/* Nothing is to be done there, or somebody else does it. */
		if (!has_reaper(child->database) &&
			check_database(child->database) == DATABASE_GONE)
			dlock_database_forget(child->database);
		children = foreach_delete_current(children, cell);
		pfree(child);
	}
	return wake;
}

static void
launcher_exit(int code, Datum arg)
{
	dlock_flush_serve(NULL);
	dlock_database_set_launcher(NULL);
}

/* ---- how workers end ---- */

/*
 * SIGTERM: end, be it in the middle of something.  That is interrupted as a
 * statement that is cancelled; the server's own handler (die) would do the same
 * with a FATAL error, at each shutdown.
 */
static void
handle_terminate(SIGNAL_ARGS)
{
	int			save_errno = errno;

	ShutdownRequestPending = true;
	QueryCancelPending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
	errno = save_errno;
}

/* Has this worker been asked to end? */
bool
dlock_launcher_is_ending(void)
{
	return ShutdownRequestPending;
}

/*
 * Do a worker's work, with its signal handlers.  Returns when "work" does, or
 * when it was interrupted since the worker is to end; then the process may be in
 * the middle of a transaction, and has to exit.
 */
void
dlock_launcher_run_worker(void (*work) (Datum arg), Datum arg)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, handle_terminate);
	BackgroundWorkerUnblockSignals();
	PG_TRY();
	{
		work(arg);
	}
	PG_CATCH();
	{
		if (!dlock_launcher_is_ending() || geterrcode() != ERRCODE_QUERY_CANCELED)
			PG_RE_THROW();
		FlushErrorState();
	}
	PG_END_TRY();
}

/* ---- the launcher ---- */

static void
work(Datum arg)
{
	uint32		wait_event;

	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	wait_event = WaitEventExtensionNew("DLockLauncherMain");

	dlock_exit_before_shmem(launcher_exit, (Datum) 0);
	dlock_database_set_launcher(MyLatch);
	dlock_flush_serve(MyLatch);
	probe_all_databases();

	while (!dlock_launcher_is_ending())
	{
		DLockTime	wake;
		DLockTime	pending;
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
		pending = dlock_flush_pending(now);
		wake = Min(wake, pending);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 dlock_clock_nap_ms(dlock_clock_now(), wake, LONGEST_NAP),
						 wait_event);
	}
}

/* The launcher. */
void
dlock_launcher_main(Datum arg)
{
	dlock_launcher_run_worker(work, arg);

	/* So that the postmaster starts another one if this one alone is to end. */
	proc_exit(1);
}

/*
 * Have the postmaster start the launcher.  To be called while
 * shared_preload_libraries is being processed.
 */
void
dlock_launcher_register(void)
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
