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
 *	  A backend that is stopped under a partition lock keeps the backends waiting
 *	  that need this partition, and no others.  A view, a reaper or a search for
 *	  deadlocks can do without a partition, and leaves it out after
 *	  DLOCK_PARTITION_PATIENCE.
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

#include "base/clock.h"
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

void
dlock_partition_request(void)
{
	RequestNamedLWLockTranche("dlock_space", DLOCK_PARTITION_COUNT);
}

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
}

void
dlock_partition_unlock(uint32 hash)
{
	LWLockRelease(dlock_partition_lwlock(hash));
	wake_noted();
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

/* Do two sets have a partition in common? */
static bool
sets_meet(const DLockPartitionSet *a, const DLockPartitionSet *b)
{
	for (int word = 0; word < (int) lengthof(a->bits); word++)
	{
		if (a->bits[word] & b->bits[word])
			return true;
	}
	return false;
}

/* How many partitions are in the set? */
int
dlock_partition_set_count(const DLockPartitionSet *set)
{
	int			count = 0;

	for (int word = 0; word < (int) lengthof(set->bits); word++)
		count += pg_popcount64(set->bits[word]);
	return count;
}

/* For assertions: are all partitions of the set locked exclusively by this backend? */
bool
dlock_partition_set_is_mine(const DLockPartitionSet *set)
{
	for (int partition = 0; partition < DLOCK_PARTITION_COUNT; partition++)
	{
		if ((set->bits[partition / 64] & (UINT64CONST(1) << (partition % 64))) != 0 &&
			!LWLockHeldByMeInMode(&dlock_partition_locks[partition].lock, LW_EXCLUSIVE))
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
	for (int word = 0; word < (int) lengthof(set->bits); word++)
	{
		for (uint64 bits = set->bits[word]; bits != 0; bits &= bits - 1)
		{
			int			partition = word * 64 + pg_rightmost_one_pos64(bits);

			if (partition == held)
				continue;
			if (!LWLockConditionalAcquire(&dlock_partition_locks[partition].lock, mode))
			{
				dlock_partition_unlock_set(&taken);
				return partition;
			}
			dlock_partition_add(&taken, partition);
		}
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
	}
	LWLockRelease(&dlock_partition_locks[held].lock);
	for (int word = 0; word < (int) lengthof(set->bits); word++)
	{
		for (uint64 bits = set->bits[word]; bits != 0; bits &= bits - 1)
			LWLockAcquire(&dlock_partition_locks[word * 64 + pg_rightmost_one_pos64(bits)].lock,
						  mode);
	}
}

/*
 * The same, unless a lock is not free for DLOCK_PARTITION_PATIENCE, as it happens if
 * a backend is stopped under it: then add that partition to "skipped", and
 * return false.  Do not even wait if one of them is in "skipped" already.
 */
bool
dlock_partition_try_lock_set(const DLockPartitionSet *set, LWLockMode mode, DLockPartitionSet *skipped)
{
	DLockTime	give_up = dlock_clock_now() + DLOCK_PARTITION_PATIENCE;
	int			busy;

	if (sets_meet(set, skipped))
		return false;
	while ((busy = take_set(set, mode, NO_PARTITION)) != NO_PARTITION)
	{
		if (dlock_clock_now() >= give_up)
		{
			dlock_partition_add(skipped, busy);
			return false;
		}
		pg_usleep(DLOCK_PARTITION_PATIENCE_STEP);
	}
	return true;
}

void
dlock_partition_unlock_set(const DLockPartitionSet *set)
{
	for (int word = 0; word < (int) lengthof(set->bits); word++)
	{
		for (uint64 bits = set->bits[word]; bits != 0; bits &= bits - 1)
			LWLockRelease(&dlock_partition_locks[word * 64 + pg_rightmost_one_pos64(bits)].lock);
	}
	wake_noted();
}
