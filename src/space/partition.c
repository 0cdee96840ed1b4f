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
 *	  once, in ascending order (dlock_partition_lock_set).
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

#define NO_PARTITION	(-1)

LWLockPadded *dlock_partition_locks = NULL;

const DLockPartitionSet dlock_partition_all = {{PG_UINT64_MAX, PG_UINT64_MAX}};

StaticAssertDecl(DLOCK_PARTITION_COUNT == 2 * 64, "dlock_partition_all has all");

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
 * Wake a process once the partition locks that are held, if any, have been given up,
 * so that it does not wait for these.  No harm if it does not sleep, or is another
 * one by then.
 */
void
dlock_partition_wake(int process)
{
	if (nwake == lengthof(to_wake) || !dlock_partition_is_any_held())
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
	int			partition = dlock_partition_of(hash);

	set->bits[partition / 64] |= UINT64CONST(1) << (partition % 64);
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
 * Take the locks of all partitions of a set, in ascending order.  No other partition
 * lock may be held.
 */
void
dlock_partition_lock_set(const DLockPartitionSet *set, LWLockMode mode)
{
	Assert(!dlock_partition_is_any_held());
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
