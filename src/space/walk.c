/*-------------------------------------------------------------------------
 *
 * walk.c
 *	  Walks over the leases and requests of a database, or of all.
 *
 * NOTES
 *	  A walk gives up the partition lock again and again.  One over leases goes by buckets:
 *	  those of the table have locks and the few leases that are not indexed, those of the
 *	  index of tokens (space/holder.c) the others.  So it can stop anywhere and go on there,
 *	  however many leases a lock has.  A queue is visited in one go.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/fault.h"
#include "base/name.h"
#include "base/rule.h"
#include "space/walk.h"

/*
 * How many buckets, a power of 2, or leases a walk looks at before it lets others have the
 * lock.  A bucket is looked at as a whole; there are about as many as cells.
 */
#define VISIT_BUCKETS		32
#define VISIT_LEASES		64

StaticAssertDecl((1 << DLOCK_SPACE_MIN_BITS) / DLOCK_PARTITION_COUNT % VISIT_BUCKETS == 0,
				 "a partition is a multiple of what a walk looks at");

typedef struct DLockWalk
{
	Oid			database;		/* InvalidOid: all */
	DLockWalkVisitor visitor;
	void	   *arg;
	enum
	{
		WALK_LEASES, WALK_INDEXED, WALK_QUEUES
	}			what;			/* it visits */
	uint32		visits;			/* under the lock that is held */
} DLockWalk;

static void
visit(DLockWalk *walk, DLockSpaceLease *lease)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(lease);

	walk->visits++;
	if (!OidIsValid(walk->database) || entry->database == walk->database)
		walk->visitor(entry, lease, walk->arg);
}

/* Visit the requests for a lock. */
static void
visit_queue(DLockWalk *walk, DLockSpaceEntry *entry)
{
	for (DLockSpaceLease *request = dlock_space_queue(entry); request != NULL;
		 request = dlock_space_next(request))
		visit(walk, request);
}

/* Visit the leases of a lock that are not indexed: a few.  Are there others? */
static bool
visit_few(DLockWalk *walk, DLockSpaceEntry *entry)
{
	DLockSpaceLease *lease = dlock_space_holders(entry);

	for (; lease != NULL && !lease->indexed; lease = dlock_space_next(lease))
		visit(walk, lease);
	return lease != NULL;
}

/*
 * Visit what the walk is for in some buckets of the table and of the index.  Returns how
 * many buckets these were: fewer than "count" if there is much in them.
 */
static uint32
look_at(DLockWalk *walk, uint32 first, uint32 count)
{
	uint32		bucket = first;

	walk->visits = 0;
	for (; bucket < first + count && walk->visits < VISIT_LEASES; bucket++)
	{
		for (DLockSpaceEntry *entry = dlock_space_entry_at(dlock_space_buckets[bucket]);
			 entry != NULL && walk->what != WALK_INDEXED; entry = dlock_space_next_entry(entry))
		{
			if (walk->what == WALK_QUEUES)
				visit_queue(walk, entry);
			else
				(void) visit_few(walk, entry);
		}
		for (DLockSpaceLease *lease = (walk->what != WALK_QUEUES) ? dlock_space_lease_at(dlock_holder_tokens[bucket]) : NULL;
			 lease != NULL; lease = dlock_space_next_indexed(lease))
			visit(walk, lease);
	}
	return bucket - first;
}

/* Visit what the walk is for in all buckets of some partitions. */
static void
walk_over(DLockWalk *walk, int partition, int count)
{
	uint32		per_partition = (1U << dlock_space_bits) / DLOCK_PARTITION_COUNT;
	uint32		end = (partition + count) * per_partition;

	Assert(!dlock_partition_is_any_held());
	for (uint32 bucket = partition * per_partition; bucket < end;)
	{
		LWLock	   *lock = &dlock_partition_locks[bucket / per_partition].lock;

		CHECK_FOR_INTERRUPTS();
		LWLockAcquire(lock, LW_SHARED);
		DLOCK_FAULT_COUNT(DLOCK_COST_LOCKINGS);
		bucket += look_at(walk, bucket, Min(VISIT_BUCKETS, per_partition - bucket % per_partition));
		LWLockRelease(lock);
	}
}

/*
 * Call "visitor" for every lease of a database, or of all (InvalidOid), expired ones
 * too.  The partition lock is given up after
 * VISIT_BUCKETS or some VISIT_LEASES, so the walk as a whole is no snapshot: a lease that
 * is converted meanwhile may be visited twice or not at all.
 *
 * The visitor runs under the partition lock in shared mode and must neither
 * change anything nor wait; it may allocate local memory.
 */
void
dlock_walk_leases(Oid database, DLockWalkVisitor visitor, void *arg)
{
	DLockWalk	walk = {.database = database,.visitor = visitor,.arg = arg};

	walk_over(&walk, 0, DLOCK_PARTITION_COUNT);
}

/* The same for every request in a queue, in the order of the queue, which is seen at one moment. */
void
dlock_walk_queues(Oid database, DLockWalkVisitor visitor, void *arg)
{
	DLockWalk	walk = {.database = database,.visitor = visitor,.arg = arg,.what = WALK_QUEUES};

	walk_over(&walk, 0, DLOCK_PARTITION_COUNT);
}

/*
 * Call "visitor" for the leases on one lock, as dlock_walk_leases() does.  A lock with few
 * is seen at one moment; with one that has many, leases on other locks are visited, too.
 */
void
dlock_walk_lock(Oid database, const DLockBytes *name, DLockWalkVisitor visitor, void *arg)
{
	DLockWalk	walk = {.database = database,.visitor = visitor,.arg = arg,.what = WALK_INDEXED};
	uint32		hash = dlock_name_hash(database, name);
	DLockSpaceEntry *entry;
	bool		more;

	dlock_partition_lock(hash, LW_SHARED);
	entry = dlock_space_find(database, hash, name);
	more = entry != NULL && visit_few(&walk, entry);
	dlock_partition_unlock(hash);
	if (more)
		walk_over(&walk, dlock_partition_of(hash), 1);
}

/*
 * The first lease on a lock, or else the first place; with "paths", the first lease on a
 * path.  NULL if there is none.
 */
static DLockSpaceLease *
first_lasting(DLockSpaceEntry *entry, bool paths)
{
	DLockSpaceLease *lease = dlock_space_holders(entry);

	while (paths && lease != NULL && lease->part != DLOCK_PART_PATH)
		lease = dlock_space_next(lease);
	if (paths || lease != NULL)
		return lease;
	lease = dlock_space_queue(entry);
	while (lease != NULL && !lease->placed)
		lease = dlock_space_next(lease);
	return lease;
}

/*
 * Forget some leases and places of a database in a bucket, which is locked; with "paths",
 * leases on paths alone.  How many?
 */
static int
purge_some(Oid database, uint32 bucket, bool paths)
{
	DLockSpaceEntry *next;
	int			removed = 0;

	for (DLockSpaceEntry *entry = dlock_space_entry_at(dlock_space_buckets[bucket]); entry != NULL; entry = next)
	{
		DLockSpaceLease *lease = (entry->database == database) ? first_lasting(entry, paths) : NULL;

		next = dlock_space_next_entry(entry);
		while (lease != NULL && removed < VISIT_LEASES)
		{
			bool		is_last = (entry->holders == DLOCK_MEMORY_NONE) != (entry->queue == DLOCK_MEMORY_NONE) &&
				lease->on_lock.prev == dlock_memory_ref(lease);

			/* No refresh: the paths of intents may have gone. */
			entry->held_modes = DLOCK_RULE_BIT(lease->mode);
			/* The entry goes with its last lease. */
			dlock_space_remove(entry, lease);
			lease = is_last ? NULL : first_lasting(entry, paths);
			removed++;
		}
	}
	return removed;
}

/*
 * Forget every lease and every place of a database.  No other backend may be using the
 * leases of that database.
 */
void
dlock_walk_purge(Oid database)
{
	uint32		count = 1U << dlock_space_bits;

	for (uint32 i = 0; i < 2 * count; i++)
	{
		uint32		bucket = i % count;
		LWLock	   *lock = &dlock_partition_locks[bucket / (count / DLOCK_PARTITION_COUNT)].lock;
		int			removed = VISIT_LEASES;

		/* Most buckets of most servers are empty; a glance needs no lock. */
		if (*(volatile DLockMemoryRef *) &dlock_space_buckets[bucket] == DLOCK_MEMORY_NONE)
			continue;

		/*
		 * Paths first: a session that ends meanwhile looks for the path that
		 * is bound to it, and follows that to its intents.
		 */
		while (removed >= VISIT_LEASES)
		{
			LWLockAcquire(lock, LW_EXCLUSIVE);
			DLOCK_FAULT_COUNT(DLOCK_COST_LOCKINGS);
			removed = purge_some(database, bucket, i < count);
			LWLockRelease(lock);
		}
	}
}
