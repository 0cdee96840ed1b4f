/*-------------------------------------------------------------------------
 *
 * database.c
 *	  What is shared about one database, and how to find it.
 *
 * NOTES
 *	  The registry is an array of the databases in which leases have been used
 *	  since the server started, in the main shared memory segment, which is at the
 *	  same address in every process.  A backend looks its own up once and keeps the
 *	  pointer: the database cannot be dropped while the backend is connected to it.
 *
 *	  The registry lock is an LWLock and is never held together with another
 *	  LWLock of dlock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/condition_variable.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/fault.h"
#include "space/database.h"
#include "space/space.h"
#include "store/flush.h"

/* The longest time that a backend waits for a pass. */
#define PASS_PATIENCE	USECS_PER_SEC

typedef struct DLockRegistryShared
{
	int			used;			/* entries that were ever used; protected by
								 * the registry lock */

	/*
	 * No lease in memory ends before this time, except those that the worker
	 * knows of.  A backend that grants one that does lowers the time.
	 */
	pg_atomic_uint64 wake_at;

	/*
	 * Passes of the worker that backends have asked for, and those that have
	 * ended.
	 */
	pg_atomic_uint64 passes_asked;
	pg_atomic_uint64 passes_ended;
	ConditionVariable pass_ended;

	DLockDatabaseShared entries[DLOCK_DATABASE_MAX];
} DLockRegistryShared;

static DLockRegistryShared *registry = NULL;
static LWLock *registry_lock = NULL;

void
dlock_database_request(void)
{
	RequestAddinShmemSpace(sizeof(DLockRegistryShared));
	RequestNamedLWLockTranche("dlock_registry", 1);
}

/* Create the registry; with AddinShmemInitLock held. */
void
dlock_database_startup(void)
{
	bool		found;

	registry = ShmemInitStruct("dlock registry", sizeof(DLockRegistryShared), &found);
	registry_lock = &GetNamedLWLockTranche("dlock_registry")->lock;
	if (!found)
	{
		registry->used = 0;
		pg_atomic_init_u64(&registry->wake_at, (uint64) DLOCK_TIME_FOREVER);
		pg_atomic_init_u64(&registry->passes_asked, 0);
		pg_atomic_init_u64(&registry->passes_ended, 0);
		ConditionVariableInit(&registry->pass_ended);
	}
}

/* Take the registry lock. */
static void
lock_registry(LWLockMode mode)
{
	Assert(!LWLockHeldByMe(registry_lock) && !dlock_partition_is_any_held());
	LWLockAcquire(registry_lock, mode);
}

/* Find the entry of a database, or a free one (InvalidOid); NULL if there is none. */
static DLockDatabaseShared *
find_entry(Oid oid)
{
	Assert(LWLockHeldByMe(registry_lock));
	for (int i = 0; i < registry->used; i++)
	{
		if (registry->entries[i].oid == oid)
			return &registry->entries[i];
	}
	return NULL;
}

/* Find a database in the registry; NULL if it is not there. */
DLockDatabaseShared *
dlock_database_find(Oid oid)
{
	DLockDatabaseShared *database;

	lock_registry(LW_SHARED);
	database = find_entry(oid);
	LWLockRelease(registry_lock);
	return database;
}

/* Add a database to the registry, whose lock is held; NULL if it is full. */
static DLockDatabaseShared *
add_database(Oid oid)
{
	DLockDatabaseShared *database = find_entry(InvalidOid);

	Assert(LWLockHeldByMeInMode(registry_lock, LW_EXCLUSIVE));
	if (database == NULL)
	{
		if (registry->used == DLOCK_DATABASE_MAX || DLOCK_FAULT_FAILS("databases"))
			return NULL;
		database = &registry->entries[registry->used++];
	}

	memset(database, 0, sizeof(DLockDatabaseShared));
	database->oid = oid;
	pg_atomic_init_u32(&database->state, DLOCK_DATABASE_ABSENT);
	pg_atomic_init_u64(&database->unstuck_at, 0);
	pg_atomic_init_u64(&database->check_places_at, 0);
	dlock_slot_init(&database->slots);
	dlock_token_init(&database->tokens);
	dlock_stat_init(&database->stats);
	return database;
}

/*
 * Find the database of this backend in the registry, or add it.  The registry lock
 * must not be held.  Throws 53400 if the registry is full.
 */
DLockDatabaseShared *
dlock_database_attach(Oid oid)
{
	DLockDatabaseShared *database;

	lock_registry(LW_EXCLUSIVE);
	database = find_entry(oid);
	if (database == NULL)
		database = add_database(oid);
	else
		database->dropped = false;	/* if set, another database has the oid
									 * now */
	LWLockRelease(registry_lock);
	if (database == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("leases are used in too many databases"),
				 errdetail("A server has room for %d databases that use leases.", DLOCK_DATABASE_MAX),
				 errhint("Drop the extension \"dlock\" where it is not needed, and restart the server.")));
	return database;
}

/* A database that is abandoned; NULL if there is none. */
DLockDatabaseShared *
dlock_database_abandoned_one(void)
{
	DLockDatabaseShared *database = NULL;

	lock_registry(LW_SHARED);
	for (int i = 0; i < registry->used && database == NULL; i++)
	{
		if (registry->entries[i].abandoned)
			database = &registry->entries[i];
	}
	LWLockRelease(registry_lock);
	return database;
}

/*
 * The worker, which alone calls this, is done with an abandoned database, and has purged its
 * memory if need be.  If the database was dropped, and is not there again, it leaves the
 * registry; then the load lock must be held.
 */
void
dlock_database_settle(DLockDatabaseShared *database)
{
	lock_registry(LW_EXCLUSIVE);
	database->abandoned = false;
	if (database->dropped)
		database->oid = InvalidOid;
	LWLockRelease(registry_lock);
}

/* ---- stores that are dropped or moved ---- */

/*
 * The store of a database, or all of the database, has been dropped: what is in memory
 * counts no longer, and the worker purges it.  The relation or the database is locked
 * exclusively.  Cannot fail.
 */
void
dlock_database_abandoned(Oid oid, bool dropped)
{
	DLockDatabaseShared *database;

	lock_registry(LW_EXCLUSIVE);
	database = find_entry(oid);
	if (database != NULL)
	{
		pg_atomic_write_u32(&database->state, DLOCK_DATABASE_ABSENT);
		database->dropped |= dropped;
		database->abandoned = true;
	}
	LWLockRelease(registry_lock);
	dlock_flush_wake_worker();
}

/*
 * A relation is altered, or a whole database ("relation" is InvalidOid).  If that is or
 * contains the store, its pages may be elsewhere from now on.  The worker leaves them alone
 * until a backend opens the store and publishes where they are.  If they do move, what is
 * altered is locked exclusively.
 */
void
dlock_database_moved(Oid oid, Oid relation)
{
	DLockDatabaseShared *database;
	uint32		expected = DLOCK_DATABASE_LOADED;

	lock_registry(LW_SHARED);
	database = find_entry(oid);
	if (database != NULL && (relation == InvalidOid || relation == database->store))
		(void) pg_atomic_compare_exchange_u32(&database->state, &expected, DLOCK_DATABASE_MOVED);
	LWLockRelease(registry_lock);
}

/* ---- the worker ---- */

/*
 * A lease has this deadline: have it seen to no later than that.  May be called
 * under a partition lock.  Cannot fail.
 */
void
dlock_database_note_deadline(DLockTime deadline)
{
	uint64		seen = pg_atomic_read_u64(&registry->wake_at);

	while ((uint64) deadline < seen)
	{
		if (!pg_atomic_compare_exchange_u64(&registry->wake_at, &seen, (uint64) deadline))
			continue;
		dlock_flush_wake_worker();
		return;
	}
}

/* The earliest deadline that was noted since the last sweep began, or its horizon. */
DLockTime
dlock_database_wake_at(void)
{
	return (DLockTime) pg_atomic_read_u64(&registry->wake_at);
}

/*
 * The worker is about to walk over the leases: from here on each grant of one that ends
 * before the horizon notes it, whether or not the walk meets it.
 */
void
dlock_database_begin_sweep(DLockTime horizon)
{
	(void) pg_atomic_exchange_u64(&registry->wake_at, (uint64) horizon);
}

/*
 * Wait until the worker has erased what is dead now, in all databases that are not locked, and
 * purged what was dropped: one pass.  No LWLock may be held; throws if the wait is canceled.
 *
 * Locks of relations may be held: the worker waits for none, so the pass ends.  If it takes
 * longer than PASS_PATIENCE, the wait ends before it.  False if no worker has started.
 */
bool
dlock_database_wait_pass(void)
{
	static uint32 event = 0;
	uint64		pass = pg_atomic_add_fetch_u64(&registry->passes_asked, 1);
	DLockTime	until = dlock_clock_now() + PASS_PATIENCE;

	Assert(!dlock_partition_is_any_held());
	if (event == 0)
		event = WaitEventExtensionNew("DLockWorkerPass");
	if (DLOCK_FAULT_FAILS("passes") || !dlock_flush_wake_worker())
		return false;
	for (;;)
	{
		DLockTime	now;

		/* The end of another pass may have taken this process off the list. */
		ConditionVariablePrepareToSleep(&registry->pass_ended);
		now = dlock_clock_now();
		if (pg_atomic_read_u64(&registry->passes_ended) >= pass || now >= until)
			break;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 dlock_clock_nap_ms(now, until, PASS_PATIENCE), event);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	DLOCK_CANCEL_SLEEP(&registry->pass_ended);
	return true;
}

/* For the worker: the last pass that was asked for; zero if that has ended. */
uint64
dlock_database_pass(void)
{
	uint64		pass = pg_atomic_read_u64(&registry->passes_asked);

	return (pass > pg_atomic_read_u64(&registry->passes_ended)) ? pass : 0;
}

/* This pass has ended, and all before it. */
void
dlock_database_end_pass(uint64 pass)
{
	pg_atomic_write_u64(&registry->passes_ended, pass);
	ConditionVariableBroadcast(&registry->pass_ended);
}
