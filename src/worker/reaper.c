/*-------------------------------------------------------------------------
 *
 * reaper.c
 *	  The background worker that removes a database's expired leases.
 *
 * NOTES
 *	  A reaper only cleans up.  A lease ends at its deadline whether or not it
 *	  has been removed.
 *
 *	  A reaper sweeps over the leases of its database and puts those that end
 *	  within dlock.reap_interval into a heap.  Then it sleeps until the first
 *	  deadline, removes expired leases, and sweeps again after the interval, or at
 *	  an earlier time that a backend has published (src/README, "Workers").  Most of
 *	  those leases have been released by then.
 *
 *	  The launcher starts a reaper when something is due in a database, up to
 *	  dlock.max_reapers.  A reaper exits after some time without work; earlier if
 *	  another database waits for a reaper, or if a command needs this database
 *	  for itself (CountOtherDBBackends).  After a reaper has exited, the launcher
 *	  looks at its database, so the reaper need not publish its heap.
 *
 * IDENTIFICATION
 *	  src/worker/reaper.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "lib/binaryheap.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/fault.h"
#include "base/settings.h"
#include "lock/held.h"
#include "session/session.h"
#include "space/holder.h"
#include "space/space.h"
#include "store/flush.h"
#include "worker/launcher.h"

/* Least time between two sweeps. */
#define SWEEP_DISTANCE			(10 * INT64CONST(1000))

/* How many leases are removed while the store stays locked. */
#define REAP_BATCH				1000

/*
 * After so many leases the reaper rests for a moment.  A process that never
 * rests loses its processor at the end of a time slice, most likely while it
 * holds a lock, and all that want this lock wait until it runs again.
 */
#define REAP_BURST				50
#define REAP_REST				1	/* microseconds; a timer makes it some 50 */

/*
 * A reaper exits after this time without work: a multiple of dlock.reap_interval,
 * up to a minute.
 */
#define IDLE_INTERVALS			6
#define IDLE_MAX				(60 * USECS_PER_SEC)

/* An idle reaper stays if something is due within this time. */
#define SOON					USECS_PER_SEC

/* While other databases wait, a busy reaper exits after this time. */
#define TURN					USECS_PER_SEC

/* How often to look whether a command needs the database. */
#define LOOK_INTERVAL			(250 * INT64CONST(1000))

/*
 * A command needs the database if it holds its lock this long; a refused command
 * does not.  And for how long no reaper is started then.
 */
#define CLAIM_LEAST				(100 * INT64CONST(1000))
#define CLAIM_ABSENCE			(5 * USECS_PER_SEC)

/* How long to wait if the store of the database is locked. */
#define LOCKED_NAP				USECS_PER_SEC

/* A lease that ends soon: enough to find it again, if it lives. */
typedef struct DLockReaperLease
{
	DLockTime	due_at;
	DLockToken	token;
	uint32		hash;
} DLockReaperLease;

/* The state of a reaper. */
typedef struct DLockReaper
{
	DLockDatabaseShared *shared;
	MemoryContext context;		/* of leases and due */
	DLockReaperLease *leases;	/* found by the last sweep */
	int			count;
	int			room;
	binaryheap *due;			/* of leases, by due_at */
	DLockTime	horizon;		/* the heap has all deadlines up to here */
	DLockTime	earliest_sweep;
	DLockTime	planned;		/* when to wake, as published */
	DLockTime	started;
	DLockTime	last_work;		/* zero if there was none */
	VirtualTransactionId claimant;	/* has locked the database, if valid */
	DLockTime	claimed_at;		/* since when, as far as we know */
	bool		claimed;		/* for long enough */
} DLockReaper;

/* The server's heap has the largest on top, and this one the first deadline. */
static int
compare_due(Datum a, Datum b, void *arg)
{
	DLockTime	left = ((DLockReaperLease *) DatumGetPointer(a))->due_at;
	DLockTime	right = ((DLockReaperLease *) DatumGetPointer(b))->due_at;

	return (left < right) - (left > right);
}

static void
collect_due(DLockSpaceEntry *entry, DLockSpaceLease *lease, void *arg)
{
	DLockReaper *reaper = arg;
	DLockTime	due_at = dlock_holder_due_at(lease);

	if (due_at > reaper->horizon)
		return;
	if (reaper->count == reaper->room)
	{
		reaper->room *= 2;
		reaper->leases = repalloc_huge(reaper->leases, reaper->room * sizeof(DLockReaperLease));
	}
	reaper->leases[reaper->count++] = (DLockReaperLease)
	{
		due_at, lease->token, entry->hash
	};
}

/* Find all leases that end before the next horizon. */
static void
sweep(DLockReaper *reaper, DLockTime now)
{
	MemoryContext old;

	reaper->horizon = now + (DLockTime) dlock_settings_reap_interval_ms * 1000;

	/*
	 * From here on each grant of a lease that ends before the horizon tells
	 * of itself, whether or not the walk meets it.
	 */
	pg_atomic_exchange_u64(&reaper->shared->reaper.wake_at, (uint64) reaper->horizon);

	MemoryContextReset(reaper->context);
	old = MemoryContextSwitchTo(reaper->context);
	reaper->count = 0;
	reaper->room = 64;
	reaper->leases = palloc(reaper->room * sizeof(DLockReaperLease));
	dlock_space_visit(reaper->shared->oid, collect_due, reaper);

	DLOCK_FAULT("reap_swept");
	reaper->due = binaryheap_allocate(Max(1, reaper->count), compare_due, NULL);
	for (int i = 0; i < reaper->count; i++)
		binaryheap_add_unordered(reaper->due, PointerGetDatum(&reaper->leases[i]));
	binaryheap_build(reaper->due);
	MemoryContextSwitchTo(old);
	reaper->earliest_sweep = dlock_launcher_rest(now, SWEEP_DISTANCE);
}

/* The lease in the heap that ends first; NULL if there is none. */
static DLockReaperLease *
first_due(DLockReaper *reaper)
{
	if (reaper->due == NULL || binaryheap_empty(reaper->due))
		return NULL;
	return (DLockReaperLease *) DatumGetPointer(binaryheap_first(reaper->due));
}

/* When the next lease that is known of ends, or the next sweep is due. */
static DLockTime
next_event(DLockReaper *reaper)
{
	DLockTime	next_sweep = Max(reaper->horizon, reaper->earliest_sweep);
	DLockReaperLease *first = first_due(reaper);

	return (first == NULL) ? next_sweep : Min(first->due_at, next_sweep);
}

/* Remove a batch of the leases whose deadline has passed. */
static void
remove_expired(DLockReaper *reaper, DLockDatabase *db)
{
	DLockReaperLease *first;

	for (int i = 0; i < REAP_BATCH && (first = first_due(reaper)) != NULL; i++)
	{
		bool		removed;

		CHECK_FOR_INTERRUPTS();
		if (first->due_at > dlock_clock_now())
			break;
		if (i % REAP_BURST == REAP_BURST - 1)
			pg_usleep(REAP_REST);

		/* It may have been released, or renewed. */
		DLOCK_FAULT("reap");
		first->due_at = dlock_held_expire(db, first->hash, first->token, &removed);
		if (removed)
			reaper->last_work = dlock_clock_now();
		if (first->due_at == 0 || first->due_at > reaper->horizon)
			(void) binaryheap_remove_first(reaper->due);
		else
			binaryheap_replace_first(reaper->due, PointerGetDatum(first));
	}
}

/* Publish when this reaper means to wake; returns when it has to. */
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

	/* A lease has an earlier deadline: sweep then, or as soon as allowed. */
	return Min(reaper->planned, Max((DLockTime) seen, reaper->earliest_sweep));
}

/* Do what is due, if the store can be opened.  "wake" is when to come again. */
static DLockSessionTry
reap(DLockReaper *reaper, DLockTime *wake)
{
	DLockSessionTry result;
	DLockDatabase db;

	StartTransactionCommand();
	*wake = dlock_clock_now() + LOCKED_NAP;
	result = dlock_session_try_open(&db);
	if (result == DLOCK_SESSION_OPENED)
	{
		DLockTime	now = dlock_clock_now();
		DLockTime	asked = (DLockTime) pg_atomic_read_u64(&reaper->shared->reaper.wake_at);

		if ((now >= reaper->horizon || (asked < reaper->planned && now >= asked)) &&
			now >= reaper->earliest_sweep)
			sweep(reaper, now);
		remove_expired(reaper, &db);
		*wake = publish_plan(reaper);
		dlock_session_close(&db);
	}
	CommitTransactionCommand();
	return result;
}

/* ---- coming and going ---- */

/*
 * The extension is not here: nothing is due, and the leases of one that was
 * dropped are forgotten.  If it has come back, it may have told of a deadline
 * that is overwritten here, so another reaper looks at it.
 */
static void
retire(void)
{
	DLockDatabaseShared *shared;

	dlock_database_lock(LW_SHARED);
	shared = dlock_database_find(MyDatabaseId);
	dlock_database_unlock();
	if (shared == NULL)
		return;
	DLOCK_FAULT_STOP("reap_retire");
	pg_atomic_exchange_u64(&shared->reaper.wake_at, (uint64) DLOCK_TIME_FOREVER);
	pg_atomic_exchange_u64(&shared->reaper.visit_at, (uint64) DLOCK_TIME_FOREVER);
	StartTransactionCommand();
	if (!dlock_session_unload_if_dropped(shared))
		dlock_database_note_visit(shared, 0);
	CommitTransactionCommand();

	dlock_database_lock(LW_EXCLUSIVE);
	shared->reaper.attempts = 0;
	shared->reaper.due_since = 0;
	dlock_database_unlock();
}

/* Take this worker out of the registry. */
static void
sign_off(int code, Datum arg)
{
	DLockReaper *reaper = (DLockReaper *) DatumGetPointer(arg);
	DLockReaperShared *shared = &reaper->shared->reaper;

	DLOCK_BEGIN_EXIT();
	DLOCK_FAULT_STOP("reap_leave");
	dlock_database_lock(LW_EXCLUSIVE);
	shared->pid = 0;
	shared->latch = NULL;
	shared->left_at = dlock_clock_now();
	if (reaper->claimed)
		shared->not_before = shared->left_at + CLAIM_ABSENCE;
	dlock_database_unlock();

	/* What it had in its heap is unknown to others. */
	if (reaper->planned != DLOCK_TIME_FOREVER)
		(void) pg_atomic_exchange_u64(&shared->wake_at, 0);
	dlock_flush_wake_launcher();
}

/* Enter this worker into the registry; false if there is another one. */
static bool
sign_on(DLockReaper *reaper)
{
	DLockReaperShared *shared = &reaper->shared->reaper;
	bool		welcome;

	dlock_database_lock(LW_EXCLUSIVE);
	welcome = shared->pid == 0;
	if (welcome)
	{
		shared->pid = MyProcPid;
		shared->latch = MyLatch;
		shared->due_since = 0;
	}
	dlock_database_unlock();
	if (welcome)
		before_shmem_exit(sign_off, PointerGetDatum(reaper));
	return welcome;
}

/* This worker works. */
static void
note_success(DLockDatabaseShared *shared)
{
	dlock_database_lock(LW_EXCLUSIVE);
	shared->reaper.attempts = 0;
	dlock_database_unlock();
}

/*
 * Does a command need this database for itself?  It holds a lock on it that keeps
 * new sessions out.
 */
static bool
is_database_claimed(DLockReaper *reaper, DLockTime now)
{
	VirtualTransactionId *holders;
	LOCKTAG		tag;
	int			count;
	bool		same = false;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, MyDatabaseId, 0);
	holders = GetLockConflicts(&tag, RowExclusiveLock, &count);
	for (int i = 0; i < count; i++)
		same |= VirtualTransactionIdEquals(holders[i], reaper->claimant);
	if (!same)
	{
		if (count > 0)
			reaper->claimant = holders[0];
		else
			SetInvalidVirtualTransactionId(reaper->claimant);
		reaper->claimed_at = now;
	}
	pfree(holders);
	reaper->claimed = same && now - reaper->claimed_at >= CLAIM_LEAST;
	return reaper->claimed;
}

/* Is this reaper to leave?  "next" is when it has more to do. */
static bool
must_leave(DLockReaper *reaper, DLockTime next, DLockTime now)
{
	DLockTime	idle = (DLockTime) dlock_settings_reap_interval_ms * 1000 * IDLE_INTERVALS;

	if (is_database_claimed(reaper, now) || dlock_settings_max_reapers == 0)
		return true;
	if (dlock_database_is_crowded() &&
		(next > now + SOON || now - reaper->started >= TURN))
		return true;
	if (reaper->last_work == 0 && next > now + SOON)
		return true;
	return next > now && now - Max(reaper->last_work, reaper->started) >= Min(idle, IDLE_MAX);
}

/* Sleep until "next", or until woken; false if this reaper is to leave. */
static bool
nap(DLockReaper *reaper, DLockTime next, uint32 wait_event)
{
	for (;;)
	{
		DLockTime	now = dlock_clock_now();
		DLockTime	longest = LOOK_INTERVAL;

		if (must_leave(reaper, next, now))
			return false;
		if (next <= now)
			return true;
		if (VirtualTransactionIdIsValid(reaper->claimant))
			longest = CLAIM_LEAST;
		if (WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					  dlock_clock_nap_ms(now, Min(next, now + longest), longest), wait_event) & WL_LATCH_SET)
			return true;
	}
}

/*
 * What a database sets for its sessions is not meant for this one.  No wait for disk
 * or standbys: what a crash undoes of its work is done again.
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
		{"idle_in_transaction_session_timeout", "0"},
		{"transaction_timeout", "0"}	/* since 17 */
	};

	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, 0);
	for (size_t i = 0; i < lengthof(settings); i++)
	{
		if (GetConfigOption(settings[i][0], true, false) != NULL)
			SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET, PGC_S_OVERRIDE);
	}
}

/* Work until there is nothing to do, or this worker is asked to end. */
static void
work(Datum arg)
{
	static DLockReaper reaper;	/* outlives this function, for the exit */
	uint32		wait_event;
	Oid			schema;

	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid, 0);
	override_settings();
	wait_event = WaitEventExtensionNew("DLockReaperMain");

	/* The launcher may not have learned yet that none is wanted. */
	if (dlock_settings_max_reapers == 0)
		return;

	/* A database without the extension needs no reaper, if it ever did. */
	StartTransactionCommand();
	schema = dlock_session_schema();
	CommitTransactionCommand();
	if (!OidIsValid(schema))
	{
		retire();
		return;
	}

	reaper.shared = dlock_database_attach(MyDatabaseId);
	reaper.context = AllocSetContextCreate(TopMemoryContext, "dlock reaper",
										   ALLOCSET_DEFAULT_SIZES);
	reaper.started = dlock_clock_now();
	SetInvalidVirtualTransactionId(reaper.claimant);
	if (!sign_on(&reaper))
		return;

	/* This is the visit. */
	(void) pg_atomic_exchange_u64(&reaper.shared->reaper.visit_at, (uint64) DLOCK_TIME_FOREVER);
	while (!ShutdownRequestPending)
	{
		DLockSessionTry result;
		DLockTime	next;

		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			reaper.horizon = 0;
		}

		pgstat_report_activity(STATE_RUNNING, "removing expired leases");
		result = reap(&reaper, &next);
		if (result == DLOCK_SESSION_ABSENT)
		{
			reaper.planned = DLOCK_TIME_FOREVER;
			retire();
			return;
		}
		if (result == DLOCK_SESSION_OPENED)
			note_success(reaper.shared);
		(void) pgstat_report_stat(false);
		pgstat_report_activity(STATE_IDLE, NULL);
		if (!nap(&reaper, next, wait_event))
			return;
	}
}

/* The reaper of the database whose oid is the argument. */
void
dlock_reaper_main(Datum arg)
{
	dlock_launcher_run_worker(work, arg);
	proc_exit(0);
}
