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
 *	  lock of dlock.
 *
 * IDENTIFICATION
 *	  src/space/database.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "base/clock.h"
#include "base/fault.h"
#include "space/database.h"
#include "space/space.h"
#include "store/flush.h"

typedef struct DLockRegistryShared
{
	int			used;			/* places that were ever used; protected by
								 * the registry lock */

	/* When the launcher looks at the registry; a backend with less lowers it. */
	pg_atomic_uint64 look_at;

	/* The launcher says: a database waits for another's reaper to leave. */
	pg_atomic_uint32 crowded;

	DLockDatabaseShared places[DLOCK_DATABASE_MAX];
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
		pg_atomic_init_u64(&registry->look_at, (uint64) DLOCK_TIME_FOREVER);
		pg_atomic_init_u32(&registry->crowded, 0);
	}
}

/* Take the registry lock. */
void
dlock_database_lock(LWLockMode mode)
{
	Assert(!LWLockHeldByMe(registry_lock) && !dlock_partition_is_any_held());
	LWLockAcquire(registry_lock, mode);
}

void
dlock_database_unlock(void)
{
	LWLockRelease(registry_lock);
}

/*
 * The database of the registry after this one, or the first after NULL; NULL if
 * there is none.  The registry lock must be held.
 */
DLockDatabaseShared *
dlock_database_next(DLockDatabaseShared *database)
{
	Assert(LWLockHeldByMe(registry_lock));
	for (int i = (database == NULL) ? 0 : database - registry->places + 1; i < registry->used; i++)
	{
		if (OidIsValid(registry->places[i].oid))
			return &registry->places[i];
	}
	return NULL;
}

/* Find a database in the registry, likewise. */
DLockDatabaseShared *
dlock_database_find(Oid oid)
{
	DLockDatabaseShared *database = NULL;

	while ((database = dlock_database_next(database)) != NULL && database->oid != oid)
		;
	return database;
}

/* Add a database to the registry, whose lock is held; NULL if it is full. */
static DLockDatabaseShared *
add_database(Oid oid)
{
	DLockDatabaseShared *database = registry->places;
	DLockDatabaseShared *end = database + registry->used;

	Assert(LWLockHeldByMeInMode(registry_lock, LW_EXCLUSIVE));
	while (database < end && OidIsValid(database->oid))
		database++;
	if (database == end)
	{
		if (registry->used == DLOCK_DATABASE_MAX || DLOCK_FAULT_FAILS("databases"))
			return NULL;
		registry->used++;
	}

	memset(database, 0, sizeof(DLockDatabaseShared));
	database->oid = oid;
	pg_atomic_init_u32(&database->loaded, 0);
	pg_atomic_init_u64(&database->reaper.wake_at, (uint64) DLOCK_TIME_FOREVER);
	pg_atomic_init_u64(&database->reaper.visit_at, (uint64) DLOCK_TIME_FOREVER);
	dlock_slot_init(&database->slots);
	dlock_token_init(&database->tokens);
	dlock_stat_init(&database->stats);
	return database;
}

/*
 * Find a database in the registry, or add it.  The registry lock must not be
 * held.  Throws 53400 if the registry is full.
 */
DLockDatabaseShared *
dlock_database_attach(Oid oid)
{
	DLockDatabaseShared *database;

	dlock_database_lock(LW_EXCLUSIVE);
	database = dlock_database_find(oid);
	if (database == NULL)
		database = add_database(oid);
	dlock_database_unlock();
	if (database == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("leases are used in too many databases"),
				 errdetail("A server has room for %d databases that use leases.", DLOCK_DATABASE_MAX),
				 errhint("Drop the extension \"dlock\" where it is not needed, and restart the server.")));
	return database;
}

/*
 * Take a database that has been dropped out of the registry, with all its
 * leases.  The registry lock must not be held.
 *
 * The database must be in there.  So this is for the launcher alone: nobody
 * else takes any out.
 */
void
dlock_database_forget(Oid oid)
{
	DLockDatabaseShared *database;
	DLockSlotShared slots;

	/* Another database may take the place at once. */
	dlock_database_lock(LW_EXCLUSIVE);
	database = dlock_database_find(oid);
	slots = database->slots;
	database->oid = InvalidOid;
	dlock_database_unlock();

	dlock_space_purge(oid);
	dlock_slot_release(&slots);
}

/*
 * The database has been dropped: have the launcher forget it.  Should its oid
 * come back before that, the new database does not get its leases.  Cannot
 * fail.
 */
void
dlock_database_dropped(Oid oid)
{
	DLockDatabaseShared *database;

	dlock_database_lock(LW_EXCLUSIVE);
	database = dlock_database_find(oid);
	if (database != NULL)
	{
		database->dropped = true;
		pg_atomic_write_u32(&database->loaded, 0);
	}
	dlock_database_unlock();
	dlock_flush_wake_launcher();
}

/* ---- the launcher, and the reaper of a database ---- */

/* Lower a published time; false if it is not later. */
static bool
lower_time(pg_atomic_uint64 *published, DLockTime time)
{
	uint64		seen = pg_atomic_read_u64(published);

	while ((uint64) time < seen)
	{
		if (pg_atomic_compare_exchange_u64(published, &seen, (uint64) time))
			return true;
	}
	return false;
}

/*
 * For the launcher: from here on a backend that lowers any time of a database
 * without a reaper wakes it, until it has told by dlock_database_plan_look()
 * when it looks again.
 */
void
dlock_database_begin_look(void)
{
	(void) pg_atomic_exchange_u64(&registry->look_at, (uint64) DLOCK_TIME_FOREVER);
}

void
dlock_database_plan_look(DLockTime next)
{
	(void) lower_time(&registry->look_at, next);
}

/* Say whether a database waits for the reaper of another to leave. */
void
dlock_database_set_crowded(bool crowded)
{
	pg_atomic_write_u32(&registry->crowded, crowded);
}

bool
dlock_database_is_crowded(void)
{
	return pg_atomic_read_u32(&registry->crowded) != 0;
}

/* How many databases need a reaper and have none?  The registry lock must not be held. */
int
dlock_database_count_waiting(void)
{
	int			count = 0;

	dlock_database_lock(LW_SHARED);
	for (DLockDatabaseShared *database = NULL; (database = dlock_database_next(database)) != NULL;)
		count += database->reaper.due_since != 0 && database->reaper.pid == 0;
	dlock_database_unlock();
	return count;
}

/* A time of the database was lowered: wake the process that has to know. */
static void
wake_worker(DLockDatabaseShared *database, DLockTime time)
{
	Latch	   *latch = *(Latch *volatile *) &database->reaper.latch;

	/*
	 * A reaper that is about to leave may not see the time.  But it makes the
	 * launcher look after that.
	 */
	if (latch != NULL)
		SetLatch(latch);
	else if (lower_time(&registry->look_at, time))
		dlock_flush_wake_launcher();
}

/*
 * A lease has this deadline: have it seen to no later than that.  May be called
 * under a partition lock.
 */
void
dlock_database_note_deadline(DLockDatabaseShared *database, DLockTime deadline)
{
	if (lower_time(&database->reaper.wake_at, deadline))
		wake_worker(database, deadline);
}

/* Wake the reapers of all databases in which something is due. */
void
dlock_database_wake_reapers(void)
{
	DLockTime	now = dlock_clock_now();

	dlock_database_lock(LW_SHARED);
	for (DLockDatabaseShared *database = NULL; (database = dlock_database_next(database)) != NULL;)
	{
		if ((DLockTime) pg_atomic_read_u64(&database->reaper.wake_at) <= now)
			wake_worker(database, now);
	}
	dlock_database_unlock();
}

/* The same for a visit whatever the leases.  Cannot fail. */
void
dlock_database_note_visit(DLockDatabaseShared *database, DLockTime deadline)
{
	if (lower_time(&database->reaper.visit_at, deadline))
		wake_worker(database, deadline);
}
