/*-------------------------------------------------------------------------
 *
 * partition.c
 *	  The partitions of the lock space: their locks, and sets of them.
 *
 * NOTES
 *	  The first bits of the hash of a name say which partition its lock is in.
 *	  Each partition has an LWLock, which protects all that space.c keeps there.
 *
 *	  Lock rules.  A backend that needs several partitions takes them all at
 *	  once (dlock_partition_lock_set), and waits for one with none of the others
 *	  held.
 *
 *	  A backend that is stopped under a partition lock keeps those waiting that
 *	  need this partition, as under any LWLock of the server.
 *
 * IDENTIFICATION
 *	  src/space/partition.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "base/compat.h"
#include "base/fault.h"
#include "base/types.h"
#include "space/partition.h"

/* How often dlock_partition_lock_set() begins again before it insists. */
#define LOCK_SET_ATTEMPTS	10

#define NO_PARTITION	(-1)

LWLockPadded *dlock_partition_locks = NULL;

/* Processes to be woken once the partition locks have been given up. */
static int	to_wake[64];
static int	nwake = 0;

/* Ask for the locks. */
void
dlock_partition_request(void)
{
	RequestNamedLWLockTranche("dlock_space", DLOCK_PARTITION_COUNT);
}

/* Find them. */
void
dlock_partition_startup(void)
{
	dlock_partition_locks = GetNamedLWLockTranche("dlock_space");
}

/* Wake the processes that have been noted. */
static void
wake_noted(void)
{
	if (nwake > 0)
		DLOCK_FAULT_STOP("wake");
	for (int i = 0; i < nwake; i++)
		SetLatch(&GetPGProcByNumber(to_wake[i])->procLatch);
	nwake = 0;
}

/*
 * Wake a process once the partition locks that are held have been given up, so
 * that it does not wait for these.  No harm if it does not sleep, or is another
 * one by then.
 */
void
dlock_space_wake(int process)
{
	if (nwake == lengthof(to_wake))
		SetLatch(&GetPGProcByNumber(process)->procLatch);
	else
		to_wake[nwake++] = process;
}

/*
 * Take the partition lock of a lock's hash.  No other partition lock may be
 * held.
 */
void
dlock_partition_lock(uint32 hash, LWLockMode mode)
{
	Assert(!dlock_partition_is_any_held());
	LWLockAcquire(dlock_partition_lwlock(hash), mode);
	DLOCK_FAULT_COUNT(DLOCK_COST_LOCKINGS);
}

void
dlock_partition_unlock(uint32 hash)
{
	LWLockRelease(dlock_partition_lwlock(hash));
	wake_noted();
}

/*
 * The next partition of a set: after this one, or the first if it is NO_PARTITION.
 * NO_PARTITION if there is none.
 */
static inline int
next_in(const DLockPartitionSet *set, int partition)
{
	uint64		before;

	partition++;
	before = (UINT64CONST(1) << (partition % 64)) - 1;
	for (int word = partition / 64; word < (int) lengthof(set->bits); word++)
	{
		uint64		bits = set->bits[word] & ~before;

		if (bits != 0)
			return word * 64 + pg_rightmost_one_pos64(bits);
		before = 0;
	}
	return NO_PARTITION;
}

/* Add the partition of a lock's hash to a set. */
void
dlock_partition_set_add(DLockPartitionSet *set, uint32 hash)
{
	dlock_partition_add(set, dlock_partition_of(hash));
}

/* Add the partitions of another set to a set. */
void
dlock_partition_set_join(DLockPartitionSet *set, const DLockPartitionSet *other)
{
	for (int word = 0; word < (int) lengthof(set->bits); word++)
		set->bits[word] |= other->bits[word];
}

/* Are all partitions of another set in a set? */
bool
dlock_partition_set_contains(const DLockPartitionSet *set, const DLockPartitionSet *other)
{
	for (int word = 0; word < (int) lengthof(set->bits); word++)
	{
		if (other->bits[word] & ~set->bits[word])
			return false;
	}
	return true;
}

/* For assertions: are all partitions of the set locked exclusively by this backend? */
bool
dlock_partition_set_is_mine(const DLockPartitionSet *set)
{
	for (int partition = NO_PARTITION; (partition = next_in(set, partition)) != NO_PARTITION;)
	{
		if (!LWLockHeldByMeInMode(&dlock_partition_locks[partition].lock, LW_EXCLUSIVE))
			return false;
	}
	return true;
}

/*
 * Take the locks of all partitions of a set, of which this backend holds that of
 * "held" already, without waiting.  Returns NO_PARTITION, or else, with none of
 * them held, a partition whose lock is not free.
 */
static int
take_set(const DLockPartitionSet *set, LWLockMode mode, int held)
{
	DLockPartitionSet taken = {{0}};

	if (held != NO_PARTITION)
		dlock_partition_add(&taken, held);
	for (int partition = NO_PARTITION; (partition = next_in(set, partition)) != NO_PARTITION;)
	{
		if (partition == held)
			continue;
		if (!LWLockConditionalAcquire(&dlock_partition_locks[partition].lock, mode))
		{
			dlock_partition_unlock_set(&taken);
			return partition;
		}
		DLOCK_FAULT_COUNT(DLOCK_COST_LOCKINGS);
		dlock_partition_add(&taken, partition);
	}
	return NO_PARTITION;
}

/*
 * Take the locks of all partitions of a set.  No other partition lock may be
 * held.
 *
 * Wait for a lock with no other lock held, so that a backend that is stopped
 * under one lock keeps only backends waiting that need this one.  With many
 * partitions on a busy server that might never come to an end, so finally take
 * them in ascending order, holding those before.  Both can go on side by side
 * without a deadlock: a backend that waits with locks held waits for a higher one.
 */
void
dlock_partition_lock_set(const DLockPartitionSet *set, LWLockMode mode)
{
	int			held = NO_PARTITION;

	Assert(!dlock_partition_is_any_held());
	for (int attempt = 0; attempt < LOCK_SET_ATTEMPTS; attempt++)
	{
		held = take_set(set, mode, held);
		if (held == NO_PARTITION)
			return;
		LWLockAcquire(&dlock_partition_locks[held].lock, mode);
		DLOCK_FAULT_COUNT(DLOCK_COST_LOCKINGS);
	}
	LWLockRelease(&dlock_partition_locks[held].lock);
	for (int partition = NO_PARTITION; (partition = next_in(set, partition)) != NO_PARTITION;)
	{
		LWLockAcquire(&dlock_partition_locks[partition].lock, mode);
		DLOCK_FAULT_COUNT(DLOCK_COST_LOCKINGS);
	}
}

void
dlock_partition_unlock_set(const DLockPartitionSet *set)
{
	for (int partition = NO_PARTITION; (partition = next_in(set, partition)) != NO_PARTITION;)
		LWLockRelease(&dlock_partition_locks[partition].lock);
	wake_noted();
}
