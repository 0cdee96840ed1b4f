/*-------------------------------------------------------------------------
 *
 * limit.c
 *	  How many leases a role has in a database, where that is limited.
 *
 * NOTES
 *	  Leases are counted for a role from the first time that it acquires one
 *	  under a limit (dlock.max_leases), to the stop of the server; for all other
 *	  roles nothing is counted (src/README, "Shared memory").
 *
 *	  Each lease or request that is counted remembers its counter, and takes
 *	  itself off that when it goes.  So a counter cannot drift: whatever ends a
 *	  lease ends its being counted.  What a role had before its counter came is
 *	  found by a walk, which looks at a partition under its lock, after the
 *	  counter can be seen by all (dlock_space_counter).  A lease that is made in
 *	  that partition later finds the counter by itself.
 *
 *	  A request that is about to make leases charges the counter with all of
 *	  them first, if the limit allows that, and the leases then use up that
 *	  charge.  Between the two nothing may fail.
 *
 *	  The table is a hash table of open addressing, to which keys are only
 *	  added.
 *
 *	  Lock rules.  The table's lock is held to add a key, and nothing else is
 *	  locked while it is held.  Keys are read, and counts changed, without it.
 *
 * IDENTIFICATION
 *	  src/space/limit.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "space/limit.h"
#include "space/partition.h"

/* The leases of a role in a database. */
typedef struct DLockLimitRole
{
	Oid			database;		/* set once, under the table's lock, and last */
	Oid			role;			/* set once, likewise */
	bool		complete;		/* all leases of the role are counted */
	pg_atomic_uint32 count;
	pg_atomic_uint64 look_at;	/* see dlock_limit_look_at() */
} DLockLimitRole;

typedef struct DLockLimitShared
{
	pg_atomic_uint32 used;		/* counters; raised under the table's lock */
	DLockLimitRole roles[DLOCK_LIMIT_COUNTERS + 1]; /* the first is unused */
} DLockLimitShared;

static DLockLimitShared *limits = NULL;
static LWLock *table_lock = NULL;

/* What was looked for last, when so many counters were in use. */
static struct
{
	uint32		used;
	Oid			database;
	Oid			role;
	DLockLimitCounter counter;
}			last;

/* Leases that a counter has been charged with, and that are still to be made. */
static uint32 charged = 0;
static DLockLimitCounter charged_to = 0;

void
dlock_limit_request(void)
{
	RequestAddinShmemSpace(sizeof(DLockLimitShared));
	RequestNamedLWLockTranche("dlock_limit", 1);
}

/* Create the table; with AddinShmemInitLock held. */
void
dlock_limit_startup(void)
{
	bool		found;

	limits = ShmemInitStruct("dlock limits", sizeof(DLockLimitShared), &found);
	table_lock = &GetNamedLWLockTranche("dlock_limit")->lock;
	if (!found)
		memset(limits, 0, sizeof(DLockLimitShared));
}

/*
 * The place of a role in the table, or the one where it belongs; zero if it is
 * not there and the table is full.
 */
static DLockLimitCounter
find_place(Oid database, Oid role)
{
	uint32		start = murmurhash32(database * 31 + role) % DLOCK_LIMIT_COUNTERS;

	for (uint32 i = 0; i < DLOCK_LIMIT_COUNTERS; i++)
	{
		DLockLimitCounter place = (start + i) % DLOCK_LIMIT_COUNTERS + 1;
		DLockLimitRole *found = &limits->roles[place];
		Oid			in = *(volatile Oid *) &found->database;

		pg_read_barrier();
		if (!OidIsValid(in) || (in == database && found->role == role))
			return place;
	}
	return 0;
}

/* The counter of a role in a database; zero if it has none. */
static DLockLimitCounter
find_counter(Oid database, Oid role)
{
	uint32		used = pg_atomic_read_u32(&limits->used);
	DLockLimitCounter place;

	if (used == 0)
		return 0;
	if (last.used == used && last.database == database && last.role == role)
		return last.counter;
	pg_read_barrier();
	place = find_place(database, role);
	if (place != 0 && limits->roles[place].database != database)
		place = 0;
	last.used = used;
	last.database = database;
	last.role = role;
	last.counter = place;
	return place;
}

/* An error kept leases from being made that a counter was charged with. */
static void
take_back(int code, Datum arg)
{
	if (charged > 0)
		pg_atomic_fetch_sub_u32(&limits->roles[charged_to].count, charged);
	charged = 0;
}

/*
 * The counter of a role in a database, which gets one if it has none.  Throws
 * 53400 if there are no more.
 *
 * If it is not complete, the caller counts the leases that are not counted yet
 * (dlock_space_counter), and says so.
 */
DLockLimitCounter
dlock_limit_track(Oid database, Oid role)
{
	static bool armed = false;
	DLockLimitCounter counter = find_counter(database, role);

	Assert(!dlock_partition_is_any_held());
	if (!armed)
		on_shmem_exit(take_back, (Datum) 0);
	armed = true;
	if (counter != 0)
		return counter;

	LWLockAcquire(table_lock, LW_EXCLUSIVE);
	counter = find_place(database, role);
	if (counter != 0 && !OidIsValid(limits->roles[counter].database))
	{
		limits->roles[counter].role = role;
		pg_atomic_init_u64(&limits->roles[counter].look_at, 0);
		pg_write_barrier();
		limits->roles[counter].database = database;
		pg_write_barrier();
		pg_atomic_fetch_add_u32(&limits->used, 1);
	}
	LWLockRelease(table_lock);
	if (counter == 0)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many roles with limited leases"),
				 errdetail("From its start on, a server can count the leases of %d roles, each in one database.",
						   DLOCK_LIMIT_COUNTERS),
				 errhint("Set \"dlock.max_leases\" for fewer roles, and restart the server.")));
	return counter;
}

bool
dlock_limit_is_complete(DLockLimitCounter counter)
{
	return *(volatile bool *) &limits->roles[counter].complete;
}

void
dlock_limit_set_complete(DLockLimitCounter counter)
{
	limits->roles[counter].complete = true;
}

/*
 * Charge a counter with leases that are made next, if it does not count more
 * than the limit then; false otherwise.  Nothing may fail until they are made.
 */
bool
dlock_limit_charge(DLockLimitCounter counter, uint32 leases, uint32 limit)
{
	pg_atomic_uint32 *count = &limits->roles[counter].count;
	uint32		before;

	/* Running out of memory is the one error that is possible in between. */
	take_back(0, (Datum) 0);
	charged_to = counter;
	before = pg_atomic_read_u32(count);
	do
	{
		if (leases > limit || before > limit - leases)
			return false;
	} while (!pg_atomic_compare_exchange_u32(count, &before, before + leases));
	charged = leases;
	return true;
}

/* How many leases and requests a counter counts. */
uint32
dlock_limit_count(DLockLimitCounter counter)
{
	return pg_atomic_read_u32(&limits->roles[counter].count);
}

/*
 * When a call that the limit refuses may look for dead leases of the role; zero: at
 * any time (lock/step.c).
 */
pg_atomic_uint64 *
dlock_limit_look_at(DLockLimitCounter counter)
{
	return &limits->roles[counter].look_at;
}

/*
 * Count a lease or request of a role, which is to remember the counter; zero if
 * it is not counted.  Under its partition lock.  Cannot fail.
 */
DLockLimitCounter
dlock_limit_enter(Oid database, Oid role)
{
	DLockLimitCounter counter = find_counter(database, role);

	if (charged > 0)
		charged--;
	else if (counter != 0)
		pg_atomic_fetch_add_u32(&limits->roles[counter].count, 1);
	return counter;
}

/* A lease or request that was counted by this goes.  Cannot fail. */
void
dlock_limit_leave(DLockLimitCounter counter)
{
	if (counter != 0)
		pg_atomic_fetch_sub_u32(&limits->roles[counter].count, 1);
}
