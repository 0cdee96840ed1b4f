/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  Who waits: one place in shared memory for each process.
 *
 * NOTES
 *	  The requests themselves stand in the queues of their locks
 *	  (space/space.c).  Here is what belongs to the process: which requests are
 *	  its, and how to wake it.
 *
 *	  To get from a process to its requests one has to lock partitions that are
 *	  only known from the process's place.  So the place is read without a
 *	  lock, the locks are taken, and the serial tells whether it still is the
 *	  same request: it cannot go away from then on.
 *
 * IDENTIFICATION
 *	  src/space/wait.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "base/compat.h"
#include "base/name.h"
#include "space/wait.h"

/* How many counters tell whether an owner waits; a power of two, and one for all. */
#define OWNER_COUNTERS	16384

/*
 * How many backends wait for an owner with a hash that falls on this counter.
 * So a grant finds out in O(1) that its owner does not wait by another backend.
 */
static pg_atomic_uint32 *owners_waiting = NULL;

static DLockWaitShared *places = NULL;

static Size
counters_size(void)
{
	return (OWNER_COUNTERS + 1) * sizeof(pg_atomic_uint32);
}

void
dlock_wait_request(void)
{
	RequestAddinShmemSpace(add_size(counters_size(),
									mul_size(sizeof(DLockWaitShared), MaxBackends)));
}

/* Create the places; with AddinShmemInitLock held. */
void
dlock_wait_startup(void)
{
	bool		found;
	Size		size = mul_size(sizeof(DLockWaitShared), MaxBackends);

	places = ShmemInitStruct("dlock waits", size, &found);
	if (!found)
		memset(places, 0, size);
	owners_waiting = ShmemInitStruct("dlock owners that wait", counters_size(), &found);
	if (!found)
	{
		for (int i = 0; i <= OWNER_COUNTERS; i++)
			pg_atomic_init_u32(&owners_waiting[i], 0);
	}
}

/* The number of this process. */
int
dlock_wait_me(void)
{
	return MyProcNumber;
}

/* The numbers of processes are below this. */
int
dlock_wait_processes(void)
{
	return MaxBackends;
}

DLockWaitShared *
dlock_wait_of(int process)
{
	Assert(process >= 0 && process < MaxBackends);
	return &places[process];
}

/* The process id of a process, for people; zero if it has just ended. */
int
dlock_wait_pid(int process)
{
	return GetPGProcByNumber(process)->pid;
}

/* The hash by which an owner that waits is found; never zero. */
uint32
dlock_wait_owner_hash(const DLockOwner *owner)
{
	return Max(1, dlock_name_hash(owner->role, &owner->name));
}

static pg_atomic_uint32 *
counter_of(uint32 owner)
{
	return &owners_waiting[owner & (OWNER_COUNTERS - 1)];
}

/* One more backend waits for an owner, or one less. */
static void
count_owner(uint32 owner, int by)
{
	(void) pg_atomic_fetch_add_u32(counter_of(owner), by);
	(void) pg_atomic_fetch_add_u32(&owners_waiting[OWNER_COUNTERS], by);
}

/*
 * This process begins to wait for "count" requests, the first of which is at
 * "first"; "owner" is the hash of their owner, zero if it only watches.  The
 * partitions of the set must be locked exclusively.
 */
void
dlock_wait_enter(DLockSpaceKind kind, Oid database, uint32 owner,
				 const DLockSpaceSet *set, int count, DLockMemoryRef first,
				 DLockTime now, TimestampTz wall)
{
	DLockWaitShared *mine = dlock_wait_of(dlock_wait_me());

	Assert(mine->state == DLOCK_WAIT_IDLE);
	mine->look_again = mine->called = false;
	mine->database = database;
	mine->owner = owner;
	mine->kind = kind;
	if (owner != 0)
		count_owner(owner, 1);
	mine->set = *set;
	mine->count = count;
	mine->first = first;
	mine->since = now;
	mine->since_wall = wall;
	pg_write_barrier();
	mine->serial++;
	pg_write_barrier();
	mine->state = DLOCK_WAIT_WAITING;
}

/*
 * Lock the partitions of what a process waits for; they are told in "set".
 * False, and nothing locked, if it does not wait, or does so in another
 * database; or if they are left out, see dlock_space_try_lock_set(), which
 * happens only if "skipped" is given.
 */
bool
dlock_wait_lock(int process, Oid database, LWLockMode mode, DLockSpaceSet *set,
				DLockSpaceSet *skipped)
{
	volatile DLockWaitShared *wait = dlock_wait_of(process);
	uint32		serial;

	while (wait->state == DLOCK_WAIT_WAITING && wait->database == database)
	{
		serial = wait->serial;
		pg_read_barrier();
		*set = dlock_wait_of(process)->set;
		if (skipped == NULL)
			dlock_space_lock_set(set, mode);
		else if (!dlock_space_try_lock_set(set, mode, skipped))
			return false;

		/*
		 * In this order: if it waits, the serial is that of what it waits for,
		 * and if that is the one of before, so is the set.
		 */
		if (wait->state == DLOCK_WAIT_WAITING)
		{
			pg_read_barrier();
			if (wait->serial == serial)
				return true;
		}
		dlock_space_unlock_set(set);
	}
	return false;
}

/*
 * Does a process wait in this database, for requests whose partitions, told in
 * "set", are all among those that the caller has locked?  Then they stay there.
 */
bool
dlock_wait_is_within(int process, Oid database, const DLockSpaceSet *locked,
					 DLockSpaceSet *set)
{
	volatile DLockWaitShared *wait = dlock_wait_of(process);
	uint32		serial = wait->serial;

	pg_read_barrier();
	*set = dlock_wait_of(process)->set;
	pg_read_barrier();

	/* In this order, as above: a set that changed while it was read is no set. */
	if (wait->state != DLOCK_WAIT_WAITING || wait->database != database)
		return false;
	pg_read_barrier();
	return wait->serial == serial && dlock_space_set_contains(locked, set);
}

/*
 * A process that waits does so no longer; "state" is what it is from now on.
 * The partitions of all its requests must be locked exclusively.  Cannot fail.
 */
void
dlock_wait_leave(int process, DLockWaitState state)
{
	DLockWaitShared *wait = dlock_wait_of(process);

	Assert(wait->state == DLOCK_WAIT_WAITING);
	if (wait->owner != 0)
		count_owner(wait->owner, -1);
	pg_write_barrier();
	wait->state = state;
}

/*
 * Does a process wait for a lock of this database, and not only watch?  Without
 * the partitions of its requests locked this is only a hint.
 */
bool
dlock_wait_is_for_lock(int process, Oid database)
{
	volatile DLockWaitShared *wait = dlock_wait_of(process);

	return wait->state == DLOCK_WAIT_WAITING && wait->database == database &&
		wait->kind != DLOCK_SPACE_WATCH;
}

/* Does any backend wait for a lock? */
bool
dlock_wait_is_any(void)
{
	return pg_atomic_read_u32(&owners_waiting[OWNER_COUNTERS]) != 0;
}

/*
 * An owner got a lock, or a stronger mode: backends by which it waits may be in
 * a deadlock now, and look.  To be called under a partition lock.  Cannot fail.
 */
void
dlock_wait_owner_gained(Oid database, uint32 owner)
{
	/*
	 * A backend that is just beginning to wait may be missed.  It looks by
	 * itself, after deadlock_timeout, and finds the lease then.
	 */
	if (pg_atomic_read_u32(counter_of(owner)) == 0)
		return;
	for (int process = 0; process < MaxBackends; process++)
	{
		if (dlock_wait_is_for_lock(process, database) && places[process].owner == owner)
		{
			places[process].look_again = true;
			dlock_space_wake(process);
		}
	}
}
