/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  The background worker that starts the reapers.
 *
 * NOTES
 *	  The launcher is connected to no database.  It starts a reaper in a
 *	  database when something is due there, at most dlock.max_reapers at a time,
 *	  and never in the last free worker slot.  It also flushes WAL that backends
 *	  have left unflushed (store/flush.c).
 *
 *	  The registry shows what is due (src/README, "Workers").  The launcher sleeps
 *	  until the earliest of the times that databases publish, wake_at for leases and
 *	  visit_at after the extension was created or dropped.  When wake_at of some databases
 *	  has passed, the launcher walks over their leases, all in one walk.  Most
 *	  leases have been released or renewed by then, and the launcher only
 *	  publishes the next time.  A database is due if it has an expired lease, or
 *	  if its visit_at has passed.  The launcher serves databases in the order in
 *	  which they became due, or in which their last reapers exited.
 *
 *	  After a start nothing is loaded or published.  So the launcher begins with
 *	  a reaper for each database that allows connections.  If the database has
 *	  the extension, its reaper loads the leases and publishes the times.
 *
 *	  An idle reaper exits while other databases wait (worker/reaper.c), and
 *	  wakes the launcher when it does.
 *
 * IDENTIFICATION
 *	  src/worker/launcher.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

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
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/fault.h"
#include "base/settings.h"
#include "space/database.h"
#include "space/holder.h"
#include "space/space.h"
#include "store/flush.h"
#include "worker/launcher.h"

/* How long the launcher sleeps at most. */
#define LONGEST_NAP				(60 * USECS_PER_SEC)

/* Least time between two walks over the leases. */
#define WALK_DISTANCE			(50 * INT64CONST(1000))

/*
 * A worker rests for this multiple of what a walk took, of which no more is believed
 * than the second, since the machine may have slept.
 */
#define REST_FACTOR				10
#define COST_MAX				USECS_PER_SEC

/* When to try again if no worker slot is free, or a database is closed. */
#define NO_SLOT_DELAY			USECS_PER_SEC
#define CLOSED_DELAY			(10 * USECS_PER_SEC)

/* After a reaper has failed, try again after 1 s, then 2 s, up to this. */
#define MAX_RETRY_DELAY			(64 * USECS_PER_SEC)

/*
 * How many worker slots must be free to take one; and for how long after a start
 * one more must be free, while other workers of the server may be starting.
 */
#define FREE_SLOTS_NEEDED		2
#define SETTLING_TIME			USECS_PER_SEC

/* How long DROP DATABASE waits for a reaper, before the server does. */
#define DISMISS_TIMEOUT			(2 * USECS_PER_SEC)

/* ---- for others ---- */

/* Wake a database's reaper so that it looks around; false if there is none. */
static bool
nudge_reaper(Oid database)
{
	DLockDatabaseShared *shared;
	bool		found;

	dlock_database_lock(LW_SHARED);
	shared = dlock_database_find(database);
	found = shared != NULL && shared->reaper.pid != 0;
	if (found)
	{
		SetLatch(shared->reaper.latch);

		/* A stopped reaper could neither exit nor be terminated. */
		(void) kill(shared->reaper.pid, SIGCONT);
	}
	dlock_database_unlock();
	return found;
}

/*
 * This transaction has the privilege to drop a database, and has locked it.  Wait
 * until its reaper, which sees the lock, has exited.  The server itself would
 * wait longer, but WITH (FORCE) it needs privileges to terminate the reaper.
 */
void
dlock_launcher_dismiss_reaper(Oid database)
{
	DLockTime	end = dlock_clock_now() + DISMISS_TIMEOUT;

	while (nudge_reaper(database) && dlock_clock_now() < end)
	{
		CHECK_FOR_INTERRUPTS();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 10, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

/*
 * A committed transaction has created or dropped the extension in this backend's
 * database: have a reaper look at it.  Cannot fail.
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
		shared->reaper.not_before = 0;
	}
	dlock_database_unlock();
	if (shared != NULL)
		dlock_database_note_visit(shared, 0);
}

/* ---- databases ---- */

/* A reaper that the launcher has started and not seen end. */
typedef struct DLockLauncherWorker
{
	Oid			database;
	BackgroundWorkerHandle *handle;
	pid_t		pid;			/* zero if it has not been seen to run */
} DLockLauncherWorker;

static List *workers = NIL;

/* Databases that no reaper has looked at since the start, and when that was. */
static List *unknown = NIL;
static DLockTime started_at = 0;

/* A database whose leases the launcher walks over. */
typedef struct DLockLauncherWalk
{
	Oid			database;		/* the key of the table */
	DLockDatabaseShared *shared;
	DLockTime	first;			/* the first end of a lease */
} DLockLauncherWalk;

static bool
has_worker(Oid database)
{
	ListCell   *cell;

	foreach(cell, workers)
	{
		if (((DLockLauncherWorker *) lfirst(cell))->database == database)
			return true;
	}
	return false;
}

/* Can a worker be started in a database? */
typedef enum DLockLauncherAccess
{
	DATABASE_GONE,
	DATABASE_CLOSED,
	DATABASE_OPEN
} DLockLauncherAccess;

/*
 * Look a database up in the catalog; or if "wanted" is InvalidOid, note all open
 * ones as unknown.
 */
static DLockLauncherAccess
look_up_database(Oid wanted)
{
	MemoryContext old = CurrentMemoryContext;
	DLockLauncherAccess access = DATABASE_GONE;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);

		/* A limit below -1 marks a database that was dropped halfway. */
		bool		is_open = form->datallowconn && form->datconnlimit >= -1;

		if (form->oid == wanted)
		{
			access = is_open ? DATABASE_OPEN : DATABASE_CLOSED;
			break;
		}
		if (!OidIsValid(wanted) && is_open)
		{
			MemoryContext transaction = MemoryContextSwitchTo(TopMemoryContext);

			unknown = lappend_oid(unknown, form->oid);
			MemoryContextSwitchTo(transaction);
		}
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(old);
	return access;
}

/*
 * Forget the databases that have been dropped.  One whose oid has come back keeps its
 * mark, and is looked up again the next time.
 */
static void
forget_dropped(void)
{
	List	   *dropped = NIL;
	ListCell   *cell;

	dlock_database_lock(LW_SHARED);
	for (DLockDatabaseShared *shared = NULL; (shared = dlock_database_next(shared)) != NULL;)
	{
		if (shared->dropped)
			dropped = lappend_oid(dropped, shared->oid);
	}
	dlock_database_unlock();

	foreach(cell, dropped)
	{
		DLOCK_FAULT("forget_dropped");
		if (look_up_database(lfirst_oid(cell)) == DATABASE_GONE)
			dlock_database_forget(lfirst_oid(cell));
	}
}

/* ---- what is due ---- */

/* A reaper is needed for what was due at that time. */
static void
mark_due(DLockReaperShared *reaper, DLockTime time)
{
	reaper->due_since = Max(1, Max(time, reaper->left_at));
}

/*
 * Find the databases that have become due.  Databases whose leases must be looked
 * at for that go into the table.  Returns the next time of a database without a
 * reaper.
 */
static DLockTime
read_registry(HTAB *walks, DLockTime now)
{
	DLockTime	next = DLOCK_TIME_FOREVER;

	dlock_database_lock(LW_EXCLUSIVE);
	for (DLockDatabaseShared *shared = NULL; (shared = dlock_database_next(shared)) != NULL;)
	{
		DLockReaperShared *reaper = &shared->reaper;
		DLockTime	wake_at = (DLockTime) pg_atomic_read_u64(&reaper->wake_at);
		DLockTime	visit_at = (DLockTime) pg_atomic_read_u64(&reaper->visit_at);
		DLockTime	first = Min(wake_at, visit_at);

		if (reaper->pid != 0 || reaper->due_since != 0)
			continue;
		if (first > now)
			next = Min(next, first);
		else if (visit_at <= now || pg_atomic_read_u32(&shared->loaded) == 0)
			mark_due(reaper, first);
		else
		{
			DLockLauncherWalk *walk = hash_search(walks, &shared->oid, HASH_ENTER, NULL);

			walk->shared = shared;
			walk->first = DLOCK_TIME_FOREVER;
			next = Min(next, visit_at);
		}
	}
	dlock_database_unlock();
	return next;
}

static void
visit_lease(DLockSpaceEntry *entry, DLockSpaceLease *lease, void *arg)
{
	DLockLauncherWalk *walk = hash_search(arg, &entry->database, HASH_FIND, NULL);
	DLockTime	due = dlock_holder_due_at(lease);

	if (walk != NULL)
		walk->first = Min(walk->first, due);
}

/*
 * Walk over the leases of the databases in the table.  Returns the earliest
 * deadline of the databases without an expired lease.
 */
static DLockTime
walk_leases(HTAB *walks, DLockTime now)
{
	DLockTime	next = DLOCK_TIME_FOREVER;
	HASH_SEQ_STATUS scan;
	DLockLauncherWalk *walk;

	/* From here on a backend that grants a lease tells of it. */
	hash_seq_init(&scan, walks);
	while ((walk = hash_seq_search(&scan)) != NULL)
		(void) pg_atomic_exchange_u64(&walk->shared->reaper.wake_at,
									  (uint64) DLOCK_TIME_FOREVER);
	dlock_space_visit(InvalidOid, visit_lease, walks);

	hash_seq_init(&scan, walks);
	while ((walk = hash_seq_search(&scan)) != NULL)
	{
		dlock_database_note_deadline(walk->shared, walk->first);
		if (walk->first > now)
		{
			next = Min(next, walk->first);
			continue;
		}
		dlock_database_lock(LW_EXCLUSIVE);
		mark_due(&walk->shared->reaper, walk->first);
		dlock_database_unlock();
	}
	return next;
}

/* Find out what is due; returns when to do so again. */
static DLockTime
look(DLockTime now)
{
	static DLockTime earliest_walk = 0;
	HASHCTL		control = {
		.keysize = sizeof(Oid),
		.entrysize = sizeof(DLockLauncherWalk),
		.hcxt = CurrentMemoryContext
	};
	HTAB	   *walks = hash_create("dlock launcher walks", 16, &control,
									HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	DLockTime	next = read_registry(walks, now);
	DLockTime	first;

	if (hash_get_num_entries(walks) == 0)
		return next;
	if (now < earliest_walk)
		return Min(next, earliest_walk);
	first = walk_leases(walks, now);
	earliest_walk = dlock_launcher_rest(now, WALK_DISTANCE);
	return Min(next, first);
}

/* ---- workers ---- */

/* How long to wait after a number of failed starts. */
static DLockTime
retry_delay(int attempts)
{
	return (attempts == 0) ? 0 :
		Min(MAX_RETRY_DELAY, USECS_PER_SEC << Min(attempts - 1, 10));
}

/* Note the number of failed starts of a reaper, and the time of the next start. */
static void
note_attempt(Oid database, int starts, DLockTime not_before)
{
	DLockDatabaseShared *shared;

	dlock_database_lock(LW_EXCLUSIVE);
	shared = dlock_database_find(database);
	if (shared != NULL)
	{
		shared->reaper.attempts += starts;
		shared->reaper.not_before = Max(shared->reaper.not_before, not_before);
	}
	dlock_database_unlock();
}

/* See which workers have ended. */
static void
tend_workers(DLockTime now)
{
	ListCell   *cell;

	foreach(cell, workers)
	{
		DLockLauncherWorker *worker = lfirst(cell);
		DLockDatabaseShared *shared;
		BgwHandleStatus status;
		pid_t		pid;

		status = GetBackgroundWorkerPid(worker->handle, &pid);
		if (status == BGWH_STARTED)
			worker->pid = pid;
		if (status != BGWH_STOPPED)
			continue;

		dlock_database_lock(LW_EXCLUSIVE);
		shared = dlock_database_find(worker->database);
		if (shared != NULL)
			shared->reaper.not_before = Max(shared->reaper.not_before,
											now + retry_delay(shared->reaper.attempts));
		dlock_database_unlock();
		workers = foreach_delete_current(workers, cell);
		pfree(worker->handle);
		pfree(worker);
	}
}

static bool
is_worker(pid_t pid)
{
	ListCell   *cell;

	foreach(cell, workers)
	{
		if (((DLockLauncherWorker *) lfirst(cell))->pid == pid)
			return true;
	}
	return false;
}

/*
 * Is there a worker slot to spare?
 *
 * The server does not tell how many slots are free.  We know our own workers.
 * For others, count the PGPROCs that are reserved for workers and whose latch has
 * an owner.  A worker that is starting or has just ended has none, so this can be
 * wrong for a moment.
 */
static bool
can_spare_slot(DLockTime now)
{
	int			slots = max_worker_processes - list_length(workers);

	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];

		if (proc->procgloballist == &ProcGlobal->bgworkerFreeProcs &&
			proc->procLatch.owner_pid != 0 && !is_worker(proc->procLatch.owner_pid))
			slots--;
	}
	return slots >= FREE_SLOTS_NEEDED + (now < started_at + SETTLING_TIME);
}

/* What the launcher and its reapers have in common; the name is left to the caller. */
static BackgroundWorker
describe_worker(const char *type, const char *function, int restart_time)
{
	BackgroundWorker worker = {
		.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION,
		.bgw_start_time = BgWorkerStart_RecoveryFinished,
		.bgw_restart_time = restart_time,
		.bgw_library_name = "dlock"
	};

	strlcpy(worker.bgw_type, type, sizeof(worker.bgw_type));
	strlcpy(worker.bgw_function_name, function, sizeof(worker.bgw_function_name));
	return worker;
}

/* Start a reaper; false if there is no slot for it. */
static bool
start_reaper(Oid database)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	DLockLauncherWorker *started = palloc0(sizeof(DLockLauncherWorker));
	BackgroundWorker worker = describe_worker("dlock reaper", "dlock_reaper_main",
											  BGW_NEVER_RESTART);
	bool		registered;

	snprintf(worker.bgw_name, BGW_MAXLEN, "dlock reaper for database %u", database);
	worker.bgw_main_arg = ObjectIdGetDatum(database);
	worker.bgw_notify_pid = MyProcPid;

	started->database = database;
	registered = RegisterDynamicBackgroundWorker(&worker, &started->handle);
	if (registered)
		workers = lappend(workers, started);
	else
		pfree(started);
	MemoryContextSwitchTo(old);
	return registered;
}

/*
 * The database that has needed a reaper for the longest time; InvalidOid if none
 * does.  Sets "running" to the number of databases that have one.  "wake" is
 * lowered to the time at which a database may try again after a failure.
 */
static Oid
next_due(DLockTime now, int *running, DLockTime *wake)
{
	Oid			due = (unknown != NIL) ? linitial_oid(unknown) : InvalidOid;
	DLockTime	since = (unknown != NIL) ? started_at : DLOCK_TIME_FOREVER;

	*running = list_length(workers);
	dlock_database_lock(LW_SHARED);
	for (DLockDatabaseShared *shared = NULL; (shared = dlock_database_next(shared)) != NULL;)
	{
		DLockReaperShared *reaper = &shared->reaper;

		if (has_worker(shared->oid))
			continue;
		if (reaper->pid != 0)
			(*running)++;		/* started before this launcher was */
		else if (reaper->due_since != 0 && reaper->not_before > now)
			*wake = Min(*wake, reaper->not_before);
		else if (reaper->due_since != 0 && reaper->due_since < since)
		{
			due = shared->oid;
			since = reaper->due_since;
		}
	}
	dlock_database_unlock();
	return due;
}

/* Log that no worker slot can be spared, once until that ends. */
static void
report_slots(bool missing)
{
	static bool reported = false;

	if (missing && !reported)
		ereport(LOG,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("no background worker slot can be spared for a dlock reaper"),
				 errdetail("Expired leases of some databases are not removed until they are acquired again."),
				 errhint("Increase \"max_worker_processes\".")));
	reported = missing;
}

/*
 * Start reapers where they are needed, up to the limits.  Returns when to try
 * again unless the launcher is woken.
 */
static DLockTime
start_reapers(DLockTime now)
{
	int			running;
	DLockTime	wake = DLOCK_TIME_FOREVER;
	Oid			database;
	bool		no_slot = false;

	tend_workers(now);
	while (OidIsValid(database = next_due(now, &running, &wake)))
	{
		if (running >= dlock_settings_max_reapers)
			break;
		if (look_up_database(database) != DATABASE_OPEN)
		{
			unknown = list_delete_oid(unknown, database);
			note_attempt(database, 0, now + CLOSED_DELAY);
			continue;
		}
		if (!can_spare_slot(now) || !start_reaper(database))
		{
			no_slot = true;
			wake = Min(wake, now + NO_SLOT_DELAY);
			break;
		}
		unknown = list_delete_oid(unknown, database);
		note_attempt(database, 1, 0);
	}

	/* A slot may still come free while reapers run or the server starts. */
	if (running > 0 || !OidIsValid(database))
		report_slots(false);
	else if (no_slot && now >= started_at + SETTLING_TIME)
		report_slots(true);
	dlock_database_set_crowded(OidIsValid(database) || running > dlock_settings_max_reapers);
	return wake;
}

/* ---- for both kinds of workers ---- */

/*
 * When to repeat a walk that began at a time and is over: "least" after its end, or later,
 * so that walks take a tenth of the worker's time; one of more than COST_MAX counts as
 * that.
 */
DLockTime
dlock_launcher_rest(DLockTime begun, DLockTime least)
{
	DLockTime	spent = dlock_clock_now() - begun;

	spent = Min(spent, COST_MAX);
	return begun + spent + Max(least, spent * REST_FACTOR);
}

/*
 * SIGTERM: end, also in the middle of some work, which is interrupted as by a
 * query cancel.  The server's own handler (die) would log a FATAL error at each
 * shutdown.
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

/*
 * Run a worker's "work" with its signal handlers.  Returns when "work" returns, or
 * when SIGTERM interrupts it; then the process may be inside a transaction, and
 * must exit.
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
		if (!ShutdownRequestPending || geterrcode() != ERRCODE_QUERY_CANCELED)
			PG_RE_THROW();
		FlushErrorState();
	}
	PG_END_TRY();
}

/* ---- the launcher ---- */

static void
launcher_exit(int code, Datum arg)
{
	DLOCK_BEGIN_EXIT();
	dlock_flush_set_launcher(NULL);
}

static void
work(Datum arg)
{
	MemoryContext loop_context;
	uint32		wait_event;

	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	wait_event = WaitEventExtensionNew("DLockLauncherMain");

	before_shmem_exit(launcher_exit, (Datum) 0);
	dlock_flush_set_launcher(MyLatch);
	(void) look_up_database(InvalidOid);
	started_at = dlock_clock_now();
	loop_context = AllocSetContextCreate(TopMemoryContext, "dlock launcher",
										 ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(loop_context);

	while (!ShutdownRequestPending)
	{
		DLockTime	next;
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

		MemoryContextReset(loop_context);
		now = dlock_clock_now();
		pending = dlock_flush_pending(now);
		dlock_database_begin_look();
		forget_dropped();
		next = look(now);
		wake = start_reapers(now);
		wake = Min(wake, next);
		dlock_database_plan_look(wake);
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

	/* Makes the postmaster start another one if only this one ends. */
	proc_exit(1);
}

/*
 * Have the postmaster start the launcher.  Called while shared_preload_libraries
 * is processed.
 */
void
dlock_launcher_register(void)
{
	BackgroundWorker worker = describe_worker("dlock launcher", "dlock_launcher_main", 1);

	/* pg_upgrade wants the old and the new cluster to itself. */
	if (IsBinaryUpgrade)
		return;
	strlcpy(worker.bgw_name, "dlock launcher", sizeof(worker.bgw_name));
	RegisterBackgroundWorker(&worker);
}
