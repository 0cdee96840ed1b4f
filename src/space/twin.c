/*-------------------------------------------------------------------------
 *
 * twin.c
 *	  Does an owner have a request in the queue of a lock?
 *
 * NOTES
 *	  A grant must wake the other requests of its owner for the same lock, and
 *	  must not search the queue for them: they are rare, and the queue is long.
 *	  So each request for a lease is counted, as long as it is in its queue, in
 *	  two of the counters of a table; the owner and the lock say in which.  If one
 *	  of the two is zero, there is no such request.  If neither is, there may be
 *	  one, and the queue is searched.
 *
 *	  With n requests waiting, a search is in vain with a probability of about
 *	  (2 n / TWIN_COUNTERS)^2: 0.1 % with a thousand.
 *
 *	  Lock rules.  The requests for a lock are counted under its partition lock,
 *	  so who holds that finds them all counted.  The counters are atomic, since
 *	  requests of other partitions share them.
 *
 * IDENTIFICATION
 *	  src/space/twin.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#include "base/name.h"
#include "space/partition.h"
#include "space/twin.h"

/* How many counters there are, 256 kB; a power of two. */
#define TWIN_COUNTERS	65536

/* The counters; set once, in the postmaster. */
static pg_atomic_uint32 *counters = NULL;

void
dlock_twin_request(void)
{
	RequestAddinShmemSpace(TWIN_COUNTERS * sizeof(pg_atomic_uint32));
}

/* Create the counters, or find them; with AddinShmemInitLock held. */
void
dlock_twin_startup(void)
{
	bool		found;

	counters = ShmemInitStruct("dlock twins", TWIN_COUNTERS * sizeof(pg_atomic_uint32), &found);
	for (int i = 0; !found && i < TWIN_COUNTERS; i++)
		pg_atomic_init_u32(&counters[i], 0);
}

/* The two counters of an owner's requests for a lock. */
static inline void
find_counters(const DLockSpaceEntry *entry, const DLockOwner *owner, pg_atomic_uint32 *found[2])
{
	uint32		hash = dlock_name_hash(owner->role, &owner->name);
	uint64		both = hash_bytes_uint32_extended(hash, entry->hash);

	found[0] = &counters[both % TWIN_COUNTERS];
	found[1] = &counters[(both >> 32) % TWIN_COUNTERS];
}

/* Count a request, once more or once less. */
static void
count_request(const DLockSpaceLease *request, int by)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(request);
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(request, buffer);
	pg_atomic_uint32 *found[2];

	Assert(dlock_partition_is_mine(entry->hash) && request->kind == DLOCK_SPACE_ASKED);
	find_counters(entry, &owner, found);
	for (int i = 0; i < 2; i++)
	{
		Assert(by > 0 || pg_atomic_read_u32(found[i]) > 0);
		(void) pg_atomic_fetch_add_u32(found[i], by);
	}
}

/*
 * A request for a lease enters the queue of its lock.  The partition must be locked
 * exclusively.  Cannot fail.
 */
void
dlock_twin_enter(const DLockSpaceLease *request)
{
	count_request(request, 1);
}

/* It leaves the queue: likewise, with the request still as it was. */
void
dlock_twin_leave(const DLockSpaceLease *request)
{
	count_request(request, -1);
}

/*
 * May an owner have a request for a lease in the queue of a lock?  False is certain.
 * The partition must be locked.
 */
bool
dlock_twin_may_wait(DLockSpaceEntry *entry, const DLockOwner *owner)
{
	pg_atomic_uint32 *found[2];

	Assert(dlock_partition_is_held(entry->hash));
	find_counters(entry, owner, found);
	return pg_atomic_read_u32(found[0]) != 0 && pg_atomic_read_u32(found[1]) != 0;
}
