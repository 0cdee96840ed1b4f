/*-------------------------------------------------------------------------
 *
 * graph.c
 *	  The wait-for graph: who waits for whom, copied.
 *
 * NOTES
 *	  A copy begins with one backend that waits.  It has the locks that this one
 *	  waits for, their queues, and those of their holders whose owners may be
 *	  waiting; from there it goes on to the backends by which these wait.  Each
 *	  lock is copied once, and each place in a queue is looked at once for each
 *	  mode, so the time it takes is linear in what it copies.
 *
 *	  It lies in a memory context of its own, which is the current one, and is reset
 *	  when it begins.
 *
 * IDENTIFICATION
 *	  src/lock/graph.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/rule.h"
#include "lock/graph.h"
#include "lock/queue.h"
#include "space/holder.h"

#define NONE	DLOCK_GRAPH_NONE

/* What an array that grows has room for at first, a power of two. */
#define LEAST_ROOM	4

/* Locks that were copied are found by so many bits of their hashes. */
#define BUCKETS		16384

/* See to it that an array has room for one more than it has. */
static void *
grow(void *array, int count, Size size)
{
	if (count == 0)
		return palloc(LEAST_ROOM * size);
	if (count < LEAST_ROOM || (count & (count - 1)) != 0)
		return array;
	return repalloc_huge(array, 2 * count * size);
}

static int
compare_candidates(const void *a, const void *b)
{
	uint32		left = ((const DLockGraphCandidate *) a)->hash;
	uint32		right = ((const DLockGraphCandidate *) b)->hash;

	return (left > right) - (left < right);
}

/* The first candidate with this hash, and how many there are. */
static int
find_candidates(const DLockGraph *graph, uint32 hash, int *count)
{
	int			low = 0;
	int			high = graph->ncandidates;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (graph->candidates[middle].hash < hash)
			low = middle + 1;
		else
			high = middle;
	}
	for (high = low; high < graph->ncandidates && graph->candidates[high].hash == hash;)
		high++;
	*count = high - low;
	return low;
}

/* Begin a copy with all that wait in the database. */
static void
begin_copy(DLockGraph *graph, const DLockPartitionSet *locked)
{
	int			processes = MaxBackends;

	Assert(CurrentMemoryContext == graph->context);
	MemoryContextReset(graph->context);
	graph->locked = locked;
	graph->now = dlock_clock_now();
	graph->candidates = palloc(processes * sizeof(DLockGraphCandidate));
	graph->waiter_of = palloc(processes * sizeof(int));
	graph->waiters = palloc(processes * sizeof(DLockGraphWaiter));
	graph->pending = palloc(processes * sizeof(int));
	graph->found = palloc((processes + 1) * sizeof(int));	/* me twice */
	graph->is_pending = palloc0(processes * sizeof(bool));
	graph->places = palloc0(processes * sizeof(DLockGraphPlace *));
	graph->buckets = palloc(BUCKETS * sizeof(int));
	memset(graph->buckets, 0xFF, BUCKETS * sizeof(int));	/* NONE */
	graph->ncandidates = graph->nwaiters = graph->nlocks = graph->npending = graph->nfound = 0;

	for (int process = 0; process < processes; process++)
	{
		const DLockQueueShared *wait = dlock_queue_place(process);

		graph->waiter_of[process] = NONE;
		if (dlock_queue_is_for_lock(process, graph->database))
			graph->candidates[graph->ncandidates++] =
				(DLockGraphCandidate)
		{
			wait->owner, process
		};
	}
	qsort(graph->candidates, graph->ncandidates, sizeof(DLockGraphCandidate),
		  compare_candidates);
}

/* A process is to be visited, unless it was, or will be. */
static void
reach(DLockGraph *graph, int process)
{
	if (graph->is_pending[process])
		return;
	graph->is_pending[process] = true;
	graph->pending[graph->npending++] = process;
}

/* Copy the queue of the next lock. */
static void
fill_queue(DLockGraph *graph, DLockGraphLock *lock, DLockSpaceEntry *entry)
{
	for (DLockSpaceLease *request = dlock_space_queue(entry); request != NULL;
		 request = dlock_space_next(request))
	{
		DLockGraphPlace *place;

		if (!dlock_holder_is_waiting(entry, request, graph->now))
			continue;
		place = palloc(sizeof(DLockGraphPlace));
		place->lock = graph->nlocks;
		place->item = lock->nitems;
		place->next = graph->places[request->process];
		graph->places[request->process] = place;
		lock->items = grow(lock->items, lock->nitems, sizeof(DLockGraphItem));
		lock->items[lock->nitems++] = (DLockGraphItem)
		{
			.process = request->process,
				.mode = (DLockMode) request->mode,
				.converted = (request->kind == DLOCK_SPACE_CONVERT) ? request->token : DLOCK_TOKEN_NONE
		};
	}
}

/* Copy those of the holders of a lock that may be waiting. */
static void
fill_holders(DLockGraph *graph, DLockGraphLock *lock, DLockSpaceEntry *entry)
{
	const DLockSpaceLease *intent = NULL;	/* that was copied last */
	uint32		taken = 0;

	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL;
		 lease = dlock_space_next(lease))
	{
		char		buffer[DLOCK_OWNER_MAX];
		DLockOwner	owner = dlock_space_lease_owner(lease, buffer);
		int			count;
		int			first;

		if (dlock_holder_blocks_until(lease) <= graph->now)
			continue;

		/*
		 * An owner may have an intent for each of a million paths: one is
		 * enough.
		 */
		if (intent != NULL && lease->part == DLOCK_PART_INTENT && lease->mode == intent->mode &&
			lease->process == intent->process && dlock_space_is_owned(intent, &owner))
			continue;
		taken += (lease->mode == DLOCK_MODE_PERMIT);
		first = find_candidates(graph, dlock_queue_owner_hash(&owner), &count);

		/* What is only closed opens by itself. */
		if (!dlock_rule_is_live(lease->deadline, graph->now) ||
			(count == 0 &&
			 (lease->process == NONE ||
			  !dlock_queue_is_for_lock(lease->process, graph->database))))
		{
			lock->has_free_permit |= (lease->mode == DLOCK_MODE_PERMIT);
			continue;
		}
		if (lease->part == DLOCK_PART_INTENT)
			intent = lease;
		lock->holders = grow(lock->holders, lock->nholders, sizeof(DLockGraphHolder));
		lock->holders[lock->nholders++] = (DLockGraphHolder)
		{
			dlock_space_copy_owner(lease), first, count, lease->process, (DLockMode) lease->mode, lease->token
		};
	}
	/* One that nobody has is for a request that has been called. */
	lock->has_free_permit |= taken < entry->permits;
}

/* Copy a lock, unless that was done. */
static void
copy_lock(DLockGraph *graph, DLockSpaceEntry *entry)
{
	char		buffer[DLOCK_NAME_MAX];
	DLockBytes	name = dlock_space_entry_name(entry, buffer);
	int		   *bucket = &graph->buckets[entry->hash % BUCKETS];
	DLockGraphLock *lock;

	for (int i = *bucket; i != NONE; i = graph->locks[i].next)
	{
		DLOCK_FAULT("deadlock_compare");
		if (graph->locks[i].hash == entry->hash &&
			dlock_name_equal(&graph->locks[i].name, &name))
			return;
	}
	graph->locks = grow(graph->locks, graph->nlocks, sizeof(DLockGraphLock));
	lock = &graph->locks[graph->nlocks];
	memset(lock, 0, sizeof(*lock));
	lock->hash = entry->hash;
	lock->name = dlock_name_copy(name);
	lock->next = *bucket;
	fill_queue(graph, lock, entry);
	fill_holders(graph, lock, entry);
	*bucket = graph->nlocks++;
}

/* Copy what a process waits for, unless it only watches; its partitions are locked. */
static void
copy_waiter(DLockGraph *graph, int process, const DLockPartitionSet *set)
{
	DLockSpaceLease *request = dlock_queue_first(process);
	DLockGraphWaiter *waiter = &graph->waiters[graph->nwaiters];

	if (request->kind == DLOCK_SPACE_WATCH)
		return;
	memset(waiter, 0, sizeof(*waiter));
	waiter->process = process;
	waiter->set = *set;
	waiter->owner = dlock_space_copy_owner(request);
	waiter->stuck = true;
	for (; request != NULL; request = dlock_space_request_next(request))
		copy_lock(graph, dlock_space_entry_of(request));
	graph->waiter_of[process] = graph->nwaiters++;
}

/* Reach all that may be in the way of a request. */
static void
reach_blockers(DLockGraph *graph, const DLockGraphPlace *place)
{
	DLockGraphLock *lock = &graph->locks[place->lock];
	DLockMode	mode = lock->items[place->item].mode;
	int		   *done = &lock->reached_items[mode];

	for (; *done < place->item; (*done)++)
	{
		if (dlock_rule_waits_behind(mode, DLOCK_RULE_BIT(lock->items[*done].mode)))
			reach(graph, lock->items[*done].process);
	}
	if (lock->reached & DLOCK_RULE_BIT(mode))
		return;
	lock->reached |= DLOCK_RULE_BIT(mode);
	for (int i = 0; i < lock->nholders; i++)
	{
		const DLockGraphHolder *holder = &lock->holders[i];

		if (!dlock_rule_waits_behind(mode, DLOCK_RULE_BIT(holder->mode)))
			continue;
		if (holder->process != NONE)
			reach(graph, holder->process);
		for (int c = 0; c < holder->ncandidates; c++)
			reach(graph, graph->candidates[holder->first + c].process);
	}
}

/* Copy what a process waits for, with its partitions locked for that. */
static void
visit(DLockGraph *graph, int process)
{
	DLockPartitionSet set;
	int			before = graph->nwaiters;

	if (graph->locked != NULL)
	{
		if (dlock_queue_is_within(process, graph->database, graph->locked, &set))
			copy_waiter(graph, process, &set);
	}
	else
	{
		CHECK_FOR_INTERRUPTS();
		if (!dlock_queue_lock(process, graph->database, LW_SHARED, &set))
			return;
		copy_waiter(graph, process, &set);
		dlock_partition_unlock_set(&set);
	}
	if (graph->nwaiters == before)
		return;
	for (DLockGraphPlace *place = graph->places[process]; place != NULL; place = place->next)
		reach_blockers(graph, place);
}

/*
 * Copy all that can be reached from the backend "me"; false if it does not wait.
 * Whatever was copied before is forgotten.
 *
 * "locked" are the partitions that the caller has locked exclusively: what waits for
 * others, too, is left out.  If it is NULL, the partitions of one waiter at a time are
 * locked, in shared mode.  Reacts to interrupts then.
 */
bool
dlock_graph_copy(DLockGraph *graph, const DLockPartitionSet *locked)
{
	DLOCK_FAULT("deadlock_copy");
	begin_copy(graph, locked);
	reach(graph, graph->me);
	for (int i = 0; i < graph->npending; i++)
		visit(graph, graph->pending[i]);
	return graph->waiter_of[graph->me] == 0;
}
