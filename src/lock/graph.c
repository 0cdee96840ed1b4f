/*-------------------------------------------------------------------------
 *
 * graph.c
 *	  A copy of who waits for whom.
 *
 * NOTES
 *	  The copy has all that can be reached from where a search begins (lock/deadlock.c),
 *	  with the partitions of one waiting backend at a time locked in shared mode; or, if the
 *	  caller has locked partitions exclusively, what waits for locks in these alone.
 *
 *	  Each lock is copied once, and each place in a queue and each lease is visited once
 *	  for each mode, so a copy takes time linear in requests and leases, but for owners
 *	  with many of both.
 *
 *	  A place is a process of its own in it, with a number above those of backends
 *	  ("nodes"), that waits for one lock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/rule.h"
#include "lock/graph.h"
#include "space/holder.h"

#define NONE	DLOCK_GRAPH_NONE

#define LEAST_ROOM	4			/* of an array that grows; a power of two */
#define BUCKETS		16384		/* by hash: of locks, and of processes */

/* Make room in an array for one more. */
static void *
grow(void *array, int count, Size size)
{
	if (count == 0)
		return palloc(LEAST_ROOM * size);
	if (count < LEAST_ROOM || (count & (count - 1)) != 0)
		return array;
	return repalloc_huge(array, 2 * count * size);
}

/* The place that a node is; NULL if it is a backend. */
const DLockPlaceRef *
dlock_graph_place(const DLockGraph *graph, int node)
{
	return (node >= MaxBackends) ? &graph->kept[node - MaxBackends] : NULL;
}

/* The hash of the owner that waits by a node. */
static uint32
owner_of(const DLockGraph *graph, int node)
{
	const DLockPlaceRef *place = dlock_graph_place(graph, node);

	return (place != NULL) ? Max(1, place->owner) : dlock_process_at(node)->owner;
}

/* The first candidate from this one on whose owner has this hash; or NONE. */
static int
find_candidate(const DLockGraph *graph, int process, uint32 hash)
{
	while (process != NONE && owner_of(graph, process) != hash)
		process = graph->next_candidate[process];
	return process;
}

/* The bucket of an owner's place on a lock, by their hashes. */
static int *
first_place_node(const DLockGraph *graph, uint32 owner, uint32 lock)
{
	return &graph->place_nodes[hash_combine(owner, lock) % BUCKETS];
}

/* The node of the place of an owner on a lock, by their hashes; NONE if it is new. */
static int
find_place_node(const DLockGraph *graph, uint32 owner, uint32 lock)
{
	int			node = *first_place_node(graph, owner, lock);

	while (node != NONE && (owner_of(graph, node) != owner || dlock_graph_place(graph, node)->lock != lock))
		node = graph->next_place_node[node - MaxBackends];
	return node;
}

/* Begin a copy with all that wait in the database. */
static void
begin_copy(DLockGraph *graph, const DLockPartitionSet *locked)
{
	int			processes;

	Assert(CurrentMemoryContext == graph->context);
	MemoryContextReset(graph->context);
	processes = MaxBackends + graph->nkept;
	graph->locked = locked;
	graph->now = dlock_clock_now();
	graph->candidates = palloc(BUCKETS * sizeof(int));
	graph->next_candidate = palloc(processes * sizeof(int));
	graph->place_nodes = palloc(BUCKETS * sizeof(int));
	graph->next_place_node = palloc((graph->nkept + 1) * sizeof(int));
	graph->waiter_of = palloc(processes * sizeof(int));
	graph->waiters = palloc(processes * sizeof(DLockGraphWaiter));
	graph->reached = palloc((processes + 1) * sizeof(int));
	graph->is_reached = palloc0(processes * sizeof(bool));
	graph->positions = palloc0(processes * sizeof(DLockGraphPosition *));
	graph->buckets = palloc(BUCKETS * sizeof(int));
	memset(graph->buckets, 0xFF, BUCKETS * sizeof(int));	/* NONE */
	memset(graph->candidates, 0xFF, BUCKETS * sizeof(int));
	memset(graph->place_nodes, 0xFF, BUCKETS * sizeof(int));
	graph->nwaiters = graph->nlocks = graph->nreached = 0;

	for (int process = 0; process < processes; process++)
	{
		int		   *first = &graph->candidates[owner_of(graph, process) % BUCKETS];

		graph->waiter_of[process] = NONE;
		if (process < MaxBackends && !dlock_process_is_for_lock(process, graph->database))
			continue;
		graph->next_candidate[process] = *first;
		*first = process;
		if (process < MaxBackends)
			continue;
		first = first_place_node(graph, owner_of(graph, process), dlock_graph_place(graph, process)->lock);
		graph->next_place_node[process - MaxBackends] = *first;
		*first = process;
	}
}

/* A process is to be visited, unless it was, or will be. */
static void
reach(DLockGraph *graph, int process)
{
	if (graph->is_reached[process])
		return;
	graph->is_reached[process] = true;
	graph->reached[graph->nreached++] = process;
}

/* Copy the queue of the next lock. */
static void
fill_queue(DLockGraph *graph, DLockGraphLock *lock, DLockSpaceEntry *entry)
{
	for (DLockSpaceLease *request = dlock_space_queue(entry); request != NULL;
		 request = dlock_space_next(request))
	{
		DLockGraphPosition *place;
		DLockOwner	owner;
		int			node = request->process;

		if (!dlock_holder_is_waiting(entry, request, graph->now))
			continue;
		owner = dlock_space_copy_owner(request);
		if (request->placed)
			node = find_place_node(graph, dlock_process_owner_hash(&owner), entry->hash);
		if (node == NONE)
			continue;
		place = palloc(sizeof(DLockGraphPosition));
		place->lock = graph->nlocks;
		place->item = lock->nitems;
		place->next = graph->positions[node];
		graph->positions[node] = place;
		lock->items = grow(lock->items, lock->nitems, sizeof(DLockGraphItem));
		lock->items[lock->nitems++] = (DLockGraphItem)
		{
			.process = node,
				.owner = owner,
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
		uint32		hash;
		int			candidate;

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
		hash = dlock_process_owner_hash(&owner);
		candidate = find_candidate(graph, graph->candidates[hash % BUCKETS], hash);

		/* What is only closed opens by itself. */
		if (!dlock_rule_is_live(dlock_space_whole(lease)->deadline, graph->now) ||
			(candidate == NONE &&
			 (lease->process == NONE ||
			  !dlock_process_is_for_lock(lease->process, graph->database))))
		{
			lock->has_free_permit |= (lease->mode == DLOCK_MODE_PERMIT);
			continue;
		}
		if (lease->part == DLOCK_PART_INTENT)
			intent = lease;
		lock->holders = grow(lock->holders, lock->nholders, sizeof(DLockGraphHolder));
		lock->holders[lock->nholders++] = (DLockGraphHolder)
		{
			dlock_space_copy_owner(lease), candidate, lease->process, (DLockMode) lease->mode, lease->token
		};
	}
	/* A permit that nobody has is free. */
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

/* Reach all that may be in the way of a request. */
static void
reach_blockers(DLockGraph *graph, const DLockGraphPosition *place)
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
		for (int c = holder->candidate; c != NONE; c = graph->next_candidate[c])
			reach(graph, c);
	}
}

/*
 * Lock the partitions of what a node waits for ("set"), or check that the caller has; false if
 * it does not wait, or waits for others.
 */
static bool
lock_node(DLockGraph *graph, int node, DLockPartitionSet *set)
{
	if (dlock_graph_place(graph, node) == NULL)
		return (graph->locked != NULL) ?
			dlock_process_is_within(node, graph->database, graph->locked, set) :
			dlock_process_lock(node, graph->database, LW_SHARED, set);
	memset(set, 0, sizeof(*set));
	dlock_partition_set_add(set, dlock_graph_place(graph, node)->lock);
	if (graph->locked != NULL)
		return dlock_partition_set_contains(graph->locked, set);
	dlock_partition_lock_set(set, LW_SHARED);
	return true;
}

/* Copy what a node waits for.  "is_mine": a search may begin there. */
static void
copy_waiter(DLockGraph *graph, int node, bool is_mine)
{
	const DLockPlaceRef *ref = dlock_graph_place(graph, node);
	const DLockGraphPosition *first;
	DLockPartitionSet set;
	DLockOwner *owner;

	if (!lock_node(graph, node, &set))
		return;
	for (DLockSpaceLease *request = (ref == NULL) ? dlock_process_first(node) : NULL;
		 request != NULL; request = dlock_space_request_next(request))
		copy_lock(graph, dlock_space_entry_of(request));
	for (DLockSpaceEntry *entry = (ref != NULL) ? dlock_space_bucket(ref->lock) : NULL;
		 entry != NULL; entry = dlock_space_next_entry(entry))
	{
		if (entry->hash == ref->lock && entry->database == graph->database)
			copy_lock(graph, entry);
	}
	if (graph->locked == NULL)
		dlock_partition_unlock_set(&set);
	first = graph->positions[node];
	if (first == NULL)
		return;
	owner = &graph->locks[first->lock].items[first->item].owner;
	graph->waiters[graph->nwaiters] = (DLockGraphWaiter)
	{
		.process = node,.set = set,.stuck = true,.owner = *owner,
			.is_root = is_mine && (graph->my_owner == NULL || dlock_name_is_owner(owner, graph->my_owner))
	};
	graph->waiter_of[node] = graph->nwaiters++;
}

/* Copy what a node waits for, and reach what is in its way. */
static void
visit(DLockGraph *graph, int node, bool is_mine)
{
	if (graph->locked == NULL)
		CHECK_FOR_INTERRUPTS();
	copy_waiter(graph, node, is_mine);
	if (graph->waiter_of[node] == NONE)
		return;
	for (DLockGraphPosition *place = graph->positions[node]; place != NULL; place = place->next)
		reach_blockers(graph, place);
}

/* Reach what the search is for. */
static void
reach_mine(DLockGraph *graph)
{
	uint32		owner = (graph->my_owner != NULL) ? dlock_process_owner_hash(graph->my_owner) : 0;
	uint32		lock = (graph->my_name.len > 0) ? dlock_name_hash(graph->database, &graph->my_name) : 0;

	if (graph->my_owner == NULL)
		reach(graph, graph->me);
	for (int node = MaxBackends; graph->my_owner != NULL && node < MaxBackends + graph->nkept; node++)
	{
		if (owner_of(graph, node) == owner && (graph->my_name.len == 0 || dlock_graph_place(graph, node)->lock == lock))
			reach(graph, node);
	}
}

/*
 * Copy all that can be reached from what the search is for.  "locked" are the partitions that
 * the caller has locked exclusively: what waits for others, too, is left out.  If it is NULL,
 * reacts to interrupts.
 */
void
dlock_graph_copy(DLockGraph *graph, const DLockPartitionSet *locked)
{
	int			mine;

	DLOCK_FAULT("deadlock_copy");
	begin_copy(graph, locked);
	reach_mine(graph);
	mine = graph->nreached;
	for (int i = 0; i < graph->nreached; i++)
		visit(graph, graph->reached[i], i < mine);
}
