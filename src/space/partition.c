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

#define WORDS	((int) lengthof(((DLockPartitionSet *) NULL)->bits))

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
 * Wake a process once the partition locks that are held, if any, have been given up, so that
 * it does not wait for these; at once if to_wake is full.  A wake-up does no harm to a process
 * that does not sleep, or has got the number since.
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

/* The lock of the first partition of those that are left of a word of a set. */
static inline LWLock *
first_lock(int word, uint64 bits)
{
	return &dlock_partition_locks[word * 64 + pg_rightmost_one_pos64(bits)].lock;
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
	for (int word = 0; word < WORDS; word++)
		set->bits[word] |= other->bits[word];
}

/* For assertions: are all partitions of the set locked exclusively by this backend? */
bool
dlock_partition_set_is_mine(const DLockPartitionSet *set)
{
	for (int word = 0; word < WORDS; word++)
	{
		for (uint64 bits = set->bits[word]; bits != 0; bits &= bits - 1)
		{
			if (!LWLockHeldByMeInMode(first_lock(word, bits), LW_EXCLUSIVE))
				return false;
		}
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
	for (int word = 0; word < WORDS; word++)
	{
		for (uint64 bits = set->bits[word]; bits != 0; bits &= bits - 1)
		{
			LWLockAcquire(first_lock(word, bits), mode);
			DLOCK_FAULT_COUNT(DLOCK_COST_LOCKINGS);
		}
	}
}

void
dlock_partition_unlock_set(const DLockPartitionSet *set)
{
	for (int word = 0; word < WORDS; word++)
	{
		for (uint64 bits = set->bits[word]; bits != 0; bits &= bits - 1)
			LWLockRelease(first_lock(word, bits));
	}
	wake_noted();
}
