/*-------------------------------------------------------------------------
 *
 * partition.c
 *	  The partitions of the lock space: their locks, sets of them, and counts of grants.
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
 *	  that need this partition, and no others.  A view, the worker or a search for
 *	  deadlocks can do without a partition, and leaves it out after
 *	  DLOCK_PARTITION_PATIENCE.
 *
 *	  How often a lock is granted is counted here, and not in its entry
 *	  (space/lease.h): that goes with the last lease, so a lock that is acquired
 *	  and released all the time has none most of the time.  The table of counts
 *	  has a fixed size.  It costs no memory for each lock, and a grant no more
 *	  than one cache line.
 *
 *	  It has no room for all locks.  It is made of sets of four places, and the
 *	  hash of a lock's name says which set is its own.  A grant moves the lock
 *	  one place to the front, and a lock that has no place takes the last one.
 *	  So locks that are granted often keep their places, and those that are
 *	  granted now and then replace each other (the transpose rule; R. Rivest, On
 *	  self-organizing sequential search heuristics, 1976).  A count is exact
 *	  from the time at which the lock got its place, and that time tells two
 *	  looks apart between which the lock had lost it.
 *
 *	  A lock is known by the hash of its name alone.  Two locks with the same one,
 *	  of 2^32, are counted together.  A set lies in one partition, whose lock
 *	  protects it.
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

#include "base/clock.h"
#include "base/compat.h"
#include "base/fault.h"
#include "base/types.h"
#include "space/partition.h"

/* How often dlock_partition_lock_set() begins again before it insists. */
#define LOCK_SET_ATTEMPTS	10

#define NO_PARTITION	(-1)

/* Counts of grants: as many sets as this power of 2, each of one cache line: 256 kB. */
#define COUNT_SET_BITS	12
#define COUNT_REST_BITS	(32 - COUNT_SET_BITS)
#define COUNT_PLACES		4

StaticAssertDecl(COUNT_SET_BITS >= DLOCK_PARTITION_BITS, "a set lies in one partition");

typedef struct DLockPartitionCountShared
{
	TimestampTz since;			/* when counting began; zero: the place is
								 * free */
	uint64		rest:COUNT_REST_BITS;	/* of the hash, behind the bits that
										 * say the set */
	uint64		grants:64 - COUNT_REST_BITS;
} DLockPartitionCountShared;

LWLockPadded *dlock_partition_locks = NULL;

/* The sets of counts, one after the other; set once, in the postmaster. */
static DLockPartitionCountShared *counts = NULL;

/* Processes to be woken once the partition locks have been given up. */
static int	to_wake[64];
static int	nwake = 0;

static Size
counts_size(void)
{
	return sizeof(DLockPartitionCountShared) * COUNT_PLACES << COUNT_SET_BITS;
}

/* Ask for the locks and the counts. */
void
dlock_partition_request(void)
{
	RequestNamedLWLockTranche("dlock_space", DLOCK_PARTITION_COUNT);
	RequestAddinShmemSpace(counts_size());
}

/* Find them, or create the counts; with AddinShmemInitLock held. */
void
dlock_partition_startup(void)
{
	bool		found;

	dlock_partition_locks = GetNamedLWLockTranche("dlock_space");
	counts = ShmemInitStruct("dlock grant counts", counts_size(), &found);
	if (!found)
		memset(counts, 0, counts_size());
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
	}
	LWLockRelease(&dlock_partition_locks[held].lock);
	for (int partition = NO_PARTITION; (partition = next_in(set, partition)) != NO_PARTITION;)
		LWLockAcquire(&dlock_partition_locks[partition].lock, mode);
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
	for (int partition = NO_PARTITION; (partition = next_in(set, partition)) != NO_PARTITION;)
		LWLockRelease(&dlock_partition_locks[partition].lock);
	wake_noted();
}

/* The set of counts that a hash falls into. */
static inline DLockPartitionCountShared *
counts_of(uint32 hash)
{
	return counts + (Size) (hash >> COUNT_REST_BITS) * COUNT_PLACES;
}

static inline uint32
rest_of(uint32 hash)
{
	return hash & ((UINT32_C(1) << COUNT_REST_BITS) - 1);
}

/* The place of a lock in its set of counts; COUNT_PLACES if it has none. */
static inline int
find_count(const DLockPartitionCountShared *set, uint32 hash)
{
	int			i = 0;

	while (i < COUNT_PLACES && (set[i].rest != rest_of(hash) || set[i].since == 0))
		i++;
	return i;
}

/*
 * Count a grant of the lock with this hash, at a time of the wall clock.  The
 * partition lock must be held exclusively.  Cannot fail.
 */
void
dlock_partition_count_grant(uint32 hash, TimestampTz now)
{
	DLockPartitionCountShared *set = counts_of(hash);
	int			i;

	Assert(dlock_partition_is_mine(hash));
	i = find_count(set, hash);
	if (i == COUNT_PLACES)
	{
		set[COUNT_PLACES - 1] = (DLockPartitionCountShared)
		{
			.since = now,.rest = rest_of(hash),.grants = 1
		};
		return;
	}
	set[i].grants++;
	if (i > 0)
	{
		DLockPartitionCountShared ahead = set[i - 1];

		set[i - 1] = set[i];
		set[i] = ahead;
	}
}

/*
 * How many grants of the lock with this hash were counted, and since when; zero
 * if it has no place.  The partition lock must be held in either mode.
 */
uint64
dlock_partition_grants(uint32 hash, TimestampTz *since)
{
	const DLockPartitionCountShared *set = counts_of(hash);
	int			i;

	Assert(dlock_partition_is_held(hash));
	i = find_count(set, hash);
	if (i == COUNT_PLACES)
		return 0;
	*since = set[i].since;
	return set[i].grants;
}
