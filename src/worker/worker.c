/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The background worker: erases expired leases of all databases, and flushes
 *	  the WAL that backends have left unflushed.
 *
 * NOTES
 *	  The worker only cleans up.  A lease ends at its deadline whether or not it
 *	  has been erased, and a waiting backend sees to its own lock.
 *
 *	  A sweep walks over the leases of all databases and puts those that end within
 *	  SWEEP_INTERVAL into a heap.  Then the worker sleeps until the first deadline,
 *	  erases what has expired, and sweeps again after the interval, or at an earlier
 *	  deadline that a backend has noted (space/database.c).  Most leases in the heap
 *	  have been released by then.
 *
 *	  The worker is connected to no database.  It reads and changes the pages of a
 *	  store by their locator, under two locks that a session has, too: RowExclusiveLock
 *	  on the database, which commands on all of it wait for, such as DROP DATABASE; and
 *	  on the relation, which VACUUM FULL and the like wait for.  It never waits for
 *	  these locks, and keeps them for one batch.  src/README ("The worker") argues why
 *	  the locator is right while it has them.
 *
 *	  A call that has found no room waits for a *pass*: the worker erases what was due when
 *	  the pass began, with one sweep if there may be leases that it does not know of.
 *
 *	  After an error the worker leaves that database alone for a while; the others do
 *	  not suffer from it.
 *
 *	  Lock rules.  The locks on the database and its store come first, the database's
 *	  before the store's; what follows is as for a backend (lock/step.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_database.h"
#include "lib/pairingheap.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/sinval.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/fault.h"
#include "lock/held.h"
#include "lock/queue.h"
#include "lock/step.h"
#include "session/session.h"
#include "space/holder.h"
#include "space/place.h"
#include "space/space.h"
#include "store/flush.h"
#include "worker/worker.h"

/* How far ahead of now a sweep reads, and the longest nap. */
#define SWEEP_INTERVAL		(10 * USECS_PER_SEC)

/*
 * After a sweep the worker sweeps no more, but for a pass, for SWEEP_DISTANCE or, if that is
 * longer, for SWEEP_REST_FACTOR times what the sweep took; at most for SWEEP_INTERVAL, since
 * the machine may have slept.
 */
#define SWEEP_DISTANCE		(10 * INT64CONST(1000))
#define SWEEP_REST_FACTOR	10

/* How many leases are erased at a time; a database stays locked while its own are. */
#define BATCH				1000

/*
 * After so many leases the worker rests for a moment.  A process that never
 * rests loses its processor at the end of a time slice, most likely while it
 * holds a lock, and all that want this lock wait until it runs again.
 */
#define BURST				50
#define BURST_REST			1	/* microseconds; a timer makes it some 50 */

/*
 * When to retry if a database or its store is locked, and after an error.  After each further
 * error the delay is doubled, up to ERROR_DOUBLINGS times.
 */
#define RETRY_DELAY			USECS_PER_SEC
#define ERROR_DOUBLINGS		6

/* A lease, or a place, that ends soon: enough to find it again, if it lives. */
typedef struct DLockWorkerLease
{
	pairingheap_node node;
	DLockTime	due_at;
	DLockToken	token;
	uint32		hash;
	Oid			database;
	uint32		client;			/* of a place: its hash; the token is its id.
								 * Else zero */
} DLockWorkerLease;

/* The state of the worker. */
typedef struct DLockWorker
{
	MemoryContext context;		/* of the leases in "due" */
	pairingheap *due;			/* found by the last sweep, by due_at */
	DLockTime	horizon;		/* the last sweep found all up to here */
	DLockTime	earliest_sweep;
} DLockWorker;

/* ---- what is due ---- */

static DLockWorkerLease *
lease_of(pairingheap_node *node)
{
	return pairingheap_container(DLockWorkerLease, node, node);
}

/* The server's heap has the largest on top, and this one the first deadline. */
static int
compare_due(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	DLockTime	left = pairingheap_const_container(DLockWorkerLease, node, a)->due_at;
	DLockTime	right = pairingheap_const_container(DLockWorkerLease, node, b)->due_at;

	return (left < right) - (left > right);
}

static void
collect_due(DLockSpaceEntry *entry, DLockSpaceLease *lease, void *arg)
{
	DLockWorker *worker = arg;
	DLockWorkerLease *found;
	DLockTime	due_at;

	/* An intent goes with its path, and a request with its call. */
	if (lease->part == DLOCK_PART_INTENT || (lease->kind != DLOCK_SPACE_HELD && !lease->placed))
		return;
	due_at = !lease->placed ? dlock_holder_due_at(lease) :
		(lease->process < 0) ? lease->confirmed : DLOCK_TIME_FOREVER;
	if (due_at > worker->horizon)
		return;
	found = MemoryContextAlloc(worker->context, sizeof(DLockWorkerLease));
	*found = (DLockWorkerLease)
	{
		.due_at = due_at,.token = lease->token,.hash = entry->hash,.database = entry->database
	};
	if (lease->placed)
	{
		char		buffer[DLOCK_OWNER_MAX];
		DLockOwner	owner = dlock_space_lease_owner(lease, buffer);

		found->client = dlock_place_client(entry->database, &owner.name);
	}
	pairingheap_add(worker->due, &found->node);
}

/* Set the next horizon, and find all leases and places that end before it. */
static void
sweep(DLockWorker *worker, DLockTime now)
{
	DLockTime	end;

	worker->horizon = now + SWEEP_INTERVAL;
	dlock_database_begin_sweep(worker->horizon);
	MemoryContextReset(worker->context);
	pairingheap_reset(worker->due);
	dlock_space_visit(InvalidOid, collect_due, worker);

	DLOCK_FAULT("worker_swept");
	end = dlock_clock_now();
	worker->earliest_sweep = end +
		Min(Max(SWEEP_DISTANCE, (end - now) * SWEEP_REST_FACTOR), SWEEP_INTERVAL);
}

/* When the first lease in the heap is due; DLOCK_TIME_FOREVER if it is empty. */
static DLockTime
first_due_at(DLockWorker *worker)
{
	return pairingheap_is_empty(worker->due) ? DLOCK_TIME_FOREVER :
		lease_of(pairingheap_first(worker->due))->due_at;
}

/* ---- erasing ---- */

/* Lock something in this transaction, unless that would have to wait. */
static bool
try_lock(const LOCKTAG *tag)
{
	return LockAcquire(tag, RowExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Open the leases of a database in this transaction, whose end closes them.  False if a
 * command has locked the database or the store, or waits to lock it; or if the pages have
 * just moved.
 */
static bool
try_open(DLockDatabaseShared *shared, DLockDatabase *db)
{
	Oid			store = shared->store;
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, shared->oid, 0);
	if (!try_lock(&tag))
		return false;
	DLOCK_FAULT("worker_lock");
	SET_LOCKTAG_RELATION(tag, shared->oid, store);
	if (!try_lock(&tag))
		return false;

	/* It may have been dropped or moved before that. */
	if (pg_atomic_read_u32(&shared->state) != DLOCK_DATABASE_LOADED || shared->store != store)
		return false;
	pg_read_barrier();
	db->shared = shared;
	db->rel = NULL;
	db->locator = shared->locator;
	db->sequence = InvalidOid;
	dlock_step_open();
	return true;
}

/*
 * Erase leases of one database in a transaction of its own, unless it is locked.  "due_at"
 * of each is when it is due next; zero if it is gone.  After an error the transaction is
 * still open.
 */
static void
erase_in_database(DLockDatabaseShared *shared, DLockWorkerLease **leases, int count)
{
	DLockDatabase db;

	StartTransactionCommand();
	if (try_open(shared, &db))
	{
		dlock_stat_attach(&shared->stats);
		for (int i = 0; i < count; i++)
		{
			CHECK_FOR_INTERRUPTS();
			if (i % BURST == BURST - 1)
				pg_usleep(BURST_REST);

			/* It may have been released, or renewed. */
			DLOCK_FAULT("worker_erase");
			leases[i]->due_at = (leases[i]->client != 0) ?
				dlock_queue_expire(db.shared->oid, leases[i]->hash, leases[i]->client, leases[i]->token, false) :
				dlock_held_expire(&db, leases[i]->hash, leases[i]->token);
		}
		dlock_step_close();
		DLOCK_FAULT("worker_erased");
		shared->failures = 0;
	}
	else
		shared->retry_at = dlock_clock_now() + RETRY_DELAY;
	CommitTransactionCommand();
}

/* The same; an error goes to the log, and the database has to wait. */
static void
try_erase(DLockDatabaseShared *shared, DLockWorkerLease **leases, int count)
{
	MemoryContext context = CurrentMemoryContext;

	PG_TRY();
	{
		erase_in_database(shared, leases, count);
	}
	PG_CATCH();
	{
		HOLD_INTERRUPTS();
		EmitErrorReport();
		AbortCurrentTransaction();
		FlushErrorState();
		RESUME_INTERRUPTS();
		shared->retry_at = dlock_clock_now() + (RETRY_DELAY << shared->failures);
		shared->failures = Min(shared->failures + 1, ERROR_DOUBLINGS);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
}

/* Find a database; NULL if its leases do not count, or their pages have moved. */
static DLockDatabaseShared *
find_database(Oid oid)
{
	DLockDatabaseShared *shared = dlock_database_find(oid);

	return (shared != NULL && pg_atomic_read_u32(&shared->state) == DLOCK_DATABASE_LOADED) ? shared : NULL;
}

static int
compare_databases(const void *a, const void *b)
{
	const DLockWorkerLease *left = *(DLockWorkerLease *const *) a;
	const DLockWorkerLease *right = *(DLockWorkerLease *const *) b;

	if (left->database != right->database)
		return (left->database > right->database) ? 1 : -1;
	return (left->due_at > right->due_at) - (left->due_at < right->due_at);
}

/* Erase a batch of the leases whose deadline has passed, database by database. */
static void
erase_due(DLockWorker *worker)
{
	static DLockWorkerLease *batch[BATCH];
	DLockTime	now = dlock_clock_now();
	int			count = 0;
	int			next;

	while (count < BATCH && first_due_at(worker) <= now)
		batch[count++] = lease_of(pairingheap_remove_first(worker->due));
	qsort(batch, count, sizeof(batch[0]), compare_databases);
	for (int begin = 0; begin < count; begin = next)
	{
		DLockDatabaseShared *shared = find_database(batch[begin]->database);

		for (next = begin + 1; next < count && batch[next]->database == batch[begin]->database;)
			next++;

		/*
		 * They leave the heap: a backend that opens the store has the worker
		 * sweep.
		 */
		if (shared == NULL)
			continue;
		if (shared->retry_at <= now)
			try_erase(shared, &batch[begin], next - begin);
		for (int i = begin; i < next; i++)
		{
			if (batch[i]->due_at == 0)
				continue;
			batch[i]->due_at = Max(batch[i]->due_at, shared->retry_at);
			if (batch[i]->due_at <= worker->horizon)
				pairingheap_add(worker->due, &batch[i]->node);
		}
	}
}

/* ---- abandoned databases ---- */

/* Purge the memory of what was dropped. */
static void
purge_abandoned(void)
{
	DLockDatabaseShared *shared;

	while ((shared = dlock_database_abandoned_one()) != NULL)
	{
		DLOCK_FAULT("worker_purge");
		StartTransactionCommand();
		dlock_session_purge(shared);
		CommitTransactionCommand();
	}
}

/* ---- the process ---- */

/* Do what is due; returns when to do so again, unless woken. */
static DLockTime
do_due(DLockWorker *worker)
{
	uint64		pass = dlock_database_pass();	/* before "now" */
	DLockTime	now = dlock_clock_now();
	DLockTime	pending = dlock_flush_pending(now);
	DLockTime	wake_at = DLOCK_TIME_FOREVER;

	purge_abandoned();
	if (!DLOCK_FAULT_IS_OFF("worker"))
	{
		/*
		 * A lease that is not in the heap may have ended.  A pass does not
		 * wait until the worker has rested.
		 */
		if (now >= dlock_database_wake_at() && (pass != 0 || now >= worker->earliest_sweep))
			sweep(worker, now);
		do
		{
			erase_due(worker);
			pending = dlock_flush_pending(dlock_clock_now());
		} while (pass != 0 && first_due_at(worker) <= now && !ShutdownRequestPending);
		wake_at = Min(first_due_at(worker), Max(dlock_database_wake_at(), worker->earliest_sweep));
	}
	if (pass != 0)
		dlock_database_end_pass(pass);
	return Min(pending, wake_at);
}

/*
 * The worker.  The postmaster restarts it if it ends alone.
 *
 * At a SIGTERM it ends after the current work: purges, a sweep and a batch at most, which wait
 * for no heavyweight lock.  The server's own handler (die) would log a FATAL error at each
 * shutdown.
 */
void
dlock_worker_main(Datum arg)
{
	DLockWorker worker = {.due = pairingheap_allocate(compare_due, NULL)};
	uint32		wait_event;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	wait_event = WaitEventExtensionNew("DLockWorkerMain");
	worker.context = AllocSetContextCreate(TopMemoryContext, "dlock worker",
										   ALLOCSET_DEFAULT_SIZES);
	dlock_flush_set_worker(MyLatch);
	dlock_database_note_deadline(0);	/* the heap is empty: sweep */

	for (;;)
	{
		DLockTime	next;
		DLockTime	now;

		ResetLatch(MyLatch);
		if (ShutdownRequestPending)
			proc_exit(1);

		/* Others may wait until this process has served their interrupts. */
		CHECK_FOR_INTERRUPTS();
		ProcessCatchupInterrupt();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		next = do_due(&worker);
		(void) pgstat_report_stat(false);

		/* A nap takes a millisecond at least. */
		now = dlock_clock_now();
		if (next > now)
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 dlock_clock_nap_ms(now, next, SWEEP_INTERVAL), wait_event);
	}
}

/*
 * Have the postmaster start the worker.  Called while shared_preload_libraries is
 * processed.
 */
void
dlock_worker_register(void)
{
	BackgroundWorker worker = {
		.bgw_name = "dlock worker",
		.bgw_type = "dlock worker",
		.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION,
		.bgw_start_time = BgWorkerStart_RecoveryFinished,
		.bgw_restart_time = 1,
		.bgw_library_name = "dlock",
		.bgw_function_name = "dlock_worker_main"
	};

	/* pg_upgrade wants the old and the new cluster to itself. */
	if (!IsBinaryUpgrade)
		RegisterBackgroundWorker(&worker);
}
