/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *	  Owners that wait for each other in a circle.
 *
 * NOTES
 *	  A backend that waits waits for the owners of the leases in its way, and
 *	  for the backends in front of it in the queue.  An owner that waits, in
 *	  any of its backends or by a place, does not go on to release what it holds; nor does a
 *	  backend that waits end what is bound to it, for whichever role it acquired
 *	  that.  If these edges lead from a backend back to it, the circle lasts
 *	  until a lease runs out.
 *
 *	  A semaphore is different: one holder that goes on is enough, or one permit
 *	  that nobody has.  So the search first works out which backends are stuck:
 *	  all that wait, less those whose blockers can all go on (or for a semaphore
 *	  as said), and this again until no backend is taken away.  The circle is
 *	  looked for among the stuck ones.
 *
 *	  Which backends check, and when, and why that is enough, is argued in src/README
 *	  ("Deadlocks").
 *
 *	  A check copies all that can be reached from this backend, with the partitions of
 *	  one waiting backend at a time locked in shared mode, and searches the copy without
 *	  locks.  The copy is no snapshot.  But the edges of a deadlock stay, so one that is
 *	  made after the last of them appeared has them all; and if it has a circle, the
 *	  partitions of all stuck backends are locked exclusively, and copy and search are
 *	  repeated in these alone: what is found then is true.  This backend leaves its queues
 *	  before it unlocks, so no other backend of the circle finds it, too.
 *
 *	  Each lock is copied once, and each place in a queue and each lease is visited once
 *	  for each mode, so a copy takes time linear in the requests.  So does the search, but
 *	  for many conversions on one lock, and for chains of waits that cross.
 *
 *	  In the copy a place is a process of its own, with a number above those of backends
 *	  ("nodes"), that waits for one lock.  Nobody sleeps by it, so its owner's next call for
 *	  it checks; and a client that asks for many places checks once for all of an owner.
 *	  Such a search begins at each of these places.  A lease of the owner leads to them all, so
 *	  whichever of them the search came from, it has a circle; a place in front of a request
 *	  closes one only if the search came from that place, but each circle has a lease, whose
 *	  owner finds it (src/README, "Deadlocks").
 *
 *	  A request for several locks holds nothing while it waits.  If only its place closes
 *	  a circle, it goes to the end of all its queues, and the check begins again.
 *
 * IDENTIFICATION
 *	  src/lock/deadlock.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/rule.h"
#include "lock/deadlock.h"
#include "lock/queue.h"
#include "space/holder.h"
#include "space/place.h"

#define NONE	(-1)
#define BOUND	(-2)			/* see next_stuck() */

#define LEAST_ROOM	4			/* of an array that grows; a power of two */
#define BUCKETS		16384		/* by hash: of locks, and of processes */

/* A request in the queue of a lock, copied. */
typedef struct DLockDeadlockItem
{
	int			process;
	DLockMode	mode;
	DLockToken	converted;		/* of a conversion: the token of its lease */
	DLockOwner	owner;
} DLockDeadlockItem;

/* A live lease whose owner may be waiting, copied. */
typedef struct DLockDeadlockHolder
{
	DLockOwner	owner;
	int			candidate;		/* first process that may wait for this owner;
								 * or NONE */
	int			process;		/* that it is bound to; or NONE */
	DLockMode	mode;
	DLockToken	token;
} DLockDeadlockHolder;

/* A lock that a backend of interest waits for, copied. */
typedef struct DLockDeadlockLock
{
	uint32		hash;
	DLockBytes	name;
	int			next;			/* copied with the same hash bucket, or NONE */
	int			nitems;
	DLockDeadlockItem *items;	/* in the order of the queue */
	int			nholders;
	DLockDeadlockHolder *holders;
	bool		has_free_permit;	/* that nobody has, or whose holder goes
									 * on */
	uint32		reached;		/* modes whose blockers among the holders were
								 * visited, in the copy and then in the search */
	int			reached_items[DLOCK_MODES]; /* and how far those in the queue */
	uint32		marked_modes;	/* of the leases of the waiter that is marked */
	int			marked_item;	/* and its place in the queue; or the end */
} DLockDeadlockLock;

/* A place in a queue. */
typedef struct DLockDeadlockPlace
{
	int			lock;			/* index of the lock, and of the item there */
	int			item;
	struct DLockDeadlockPlace *next;	/* of the same process */
} DLockDeadlockPlace;

/* How the search got to a waiter: from which one, and what is in the way of that. */
typedef struct DLockDeadlockEdge
{
	int			from;
	const DLockDeadlockPlace *at;
	DLockOwner	blocker;
	bool		is_place;		/* a request in front of it, and not a lease */
} DLockDeadlockEdge;

/* A backend that waits, and that this one waits for at some remove. */
typedef struct DLockDeadlockWaiter
{
	int			process;
	DLockPartitionSet set;
	DLockOwner	owner;
	bool		is_root;		/* the search begins here, and comes back */
	bool		stuck;
	bool		blocked;		/* by stuck ones, in the pass at hand */
	bool		found;
	int			root;			/* of the search that has found it */
	DLockDeadlockEdge edge;
	int			next;			/* in the circle */
} DLockDeadlockWaiter;

/*
 * A copy of who waits for whom in a database, as far as it can be reached from one
 * backend, with room for a search in it.
 */
typedef struct DLockDeadlockGraph
{
	MemoryContext context;		/* of the copy, which has all of it */
	Oid			database;
	int			me;				/* the backend that the search is for; or */
	const DLockOwner *my_owner; /* unless NULL, the places of this owner ... */
	DLockBytes	my_name;		/* ... on this lock, if it has a name */
	DLockTime	now;
	const DLockPartitionSet *locked;	/* exclusively; NULL in the first copy */
	int			nkept;			/* places in the database, those that are
								 * stuck in the second copy ... */
	DLockPlaceRef *kept;		/* ... whose nodes follow MaxBackends */
	int		   *candidates;		/* by hash of the owner: the first process of
								 * all that wait in the database, or NONE */
	int		   *next_candidate; /* by process: the next with this hash */
	int		   *place_nodes;	/* by hash of the owner and the lock: the
								 * first node that is a place, or NONE */
	int		   *next_place_node;	/* of those: the next with this hash */
	int		   *waiter_of;		/* by process: index of the waiter, or NONE */
	int			nwaiters;
	DLockDeadlockWaiter *waiters;
	int			victim;			/* the waiter from which a circle was found;
								 * or NONE */
	DLockDeadlockPlace **places;	/* by process, in copied locks; perhaps
									 * also of an earlier request, until all
									 * are locked */
	int			nlocks;
	DLockDeadlockLock *locks;
	int		   *buckets;		/* by hash: index of a lock, or NONE */
	int			nreached;
	int		   *reached;		/* processes, in the copy; then waiters */
	bool	   *is_reached;		/* by process, in the copy */
} DLockDeadlockGraph;

/* ---- the copy ---- */

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

/* The place that a node is; NULL if it is a backend. */
static const DLockPlaceRef *
place_of(const DLockDeadlockGraph *graph, int node)
{
	return (node >= MaxBackends) ? &graph->kept[node - MaxBackends] : NULL;
}

/* The hash of the owner that waits by a node. */
static uint32
owner_of(const DLockDeadlockGraph *graph, int node)
{
	const DLockPlaceRef *place = place_of(graph, node);

	return (place != NULL) ? Max(1, place->owner) : dlock_process_at(node)->owner;
}

/* The first process that waits, from this one on, whose owner has a hash; or NONE. */
static int
find_candidate(const DLockDeadlockGraph *graph, int process, uint32 hash)
{
	while (process != NONE && owner_of(graph, process) != hash)
		process = graph->next_candidate[process];
	return process;
}

/* Where the first node of a place of an owner on a lock is, by their hashes. */
static int *
first_place_node(const DLockDeadlockGraph *graph, uint32 owner, uint32 lock)
{
	return &graph->place_nodes[hash_combine(owner, lock) % BUCKETS];
}

/* The node of the place of an owner on a lock, by their hashes; NONE if it is new. */
static int
find_place_node(const DLockDeadlockGraph *graph, uint32 owner, uint32 lock)
{
	int			node = *first_place_node(graph, owner, lock);

	while (node != NONE && (owner_of(graph, node) != owner || place_of(graph, node)->lock != lock))
		node = graph->next_place_node[node - MaxBackends];
	return node;
}

/* Begin a copy with all that wait in the database. */
static void
begin_copy(DLockDeadlockGraph *graph, const DLockPartitionSet *locked)
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
	graph->waiters = palloc(processes * sizeof(DLockDeadlockWaiter));
	graph->reached = palloc((processes + 1) * sizeof(int)); /* me twice */
	graph->is_reached = palloc0(processes * sizeof(bool));
	graph->places = palloc0(processes * sizeof(DLockDeadlockPlace *));
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
		first = first_place_node(graph, owner_of(graph, process), place_of(graph, process)->lock);
		graph->next_place_node[process - MaxBackends] = *first;
		*first = process;
	}
}

/* A process is to be visited, unless it was, or will be. */
static void
reach(DLockDeadlockGraph *graph, int process)
{
	if (graph->is_reached[process])
		return;
	graph->is_reached[process] = true;
	graph->reached[graph->nreached++] = process;
}

/* Copy the queue of the next lock. */
static void
fill_queue(DLockDeadlockGraph *graph, DLockDeadlockLock *lock, DLockSpaceEntry *entry)
{
	for (DLockSpaceLease *request = dlock_space_queue(entry); request != NULL;
		 request = dlock_space_next(request))
	{
		DLockDeadlockPlace *place;
		DLockOwner	owner;
		int			node = request->process;

		if (!dlock_holder_is_waiting(entry, request, graph->now))
			continue;
		owner = dlock_space_copy_owner(request);
		if (request->placed)
			node = find_place_node(graph, dlock_process_owner_hash(&owner), entry->hash);
		if (node == NONE)
			continue;
		place = palloc(sizeof(DLockDeadlockPlace));
		place->lock = graph->nlocks;
		place->item = lock->nitems;
		place->next = graph->places[node];
		graph->places[node] = place;
		lock->items = grow(lock->items, lock->nitems, sizeof(DLockDeadlockItem));
		lock->items[lock->nitems++] = (DLockDeadlockItem)
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
fill_holders(DLockDeadlockGraph *graph, DLockDeadlockLock *lock, DLockSpaceEntry *entry)
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
		lock->holders = grow(lock->holders, lock->nholders, sizeof(DLockDeadlockHolder));
		lock->holders[lock->nholders++] = (DLockDeadlockHolder)
		{
			dlock_space_copy_owner(lease), candidate, lease->process, (DLockMode) lease->mode, lease->token
		};
	}
	/* One that nobody has is for a request that has been called. */
	lock->has_free_permit |= taken < entry->permits;
}

/* Copy a lock, unless that was done. */
static void
copy_lock(DLockDeadlockGraph *graph, DLockSpaceEntry *entry)
{
	char		buffer[DLOCK_NAME_MAX];
	DLockBytes	name = dlock_space_entry_name(entry, buffer);
	int		   *bucket = &graph->buckets[entry->hash % BUCKETS];
	DLockDeadlockLock *lock;

	for (int i = *bucket; i != NONE; i = graph->locks[i].next)
	{
		DLOCK_FAULT("deadlock_compare");
		if (graph->locks[i].hash == entry->hash &&
			dlock_name_equal(&graph->locks[i].name, &name))
			return;
	}
	graph->locks = grow(graph->locks, graph->nlocks, sizeof(DLockDeadlockLock));
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
reach_blockers(DLockDeadlockGraph *graph, const DLockDeadlockPlace *place)
{
	DLockDeadlockLock *lock = &graph->locks[place->lock];
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
		const DLockDeadlockHolder *holder = &lock->holders[i];

		if (!dlock_rule_waits_behind(mode, DLOCK_RULE_BIT(holder->mode)))
			continue;
		if (holder->process != NONE)
			reach(graph, holder->process);
		for (int c = holder->candidate; c != NONE; c = graph->next_candidate[c])
			reach(graph, c);
	}
}

/*
 * Lock the partitions of what a node waits for, told in "set", unless the caller has locked
 * all that count; false if it does not wait, or if these are others.
 */
static bool
lock_node(DLockDeadlockGraph *graph, int node, DLockPartitionSet *set)
{
	if (place_of(graph, node) == NULL)
		return (graph->locked != NULL) ?
			dlock_process_is_within(node, graph->database, graph->locked, set) :
			dlock_process_lock(node, graph->database, LW_SHARED, set);
	memset(set, 0, sizeof(*set));
	dlock_partition_set_add(set, place_of(graph, node)->lock);
	if (graph->locked != NULL)
		return dlock_partition_set_contains(graph->locked, set);
	dlock_partition_lock_set(set, LW_SHARED);
	return true;
}

/* Copy what a node waits for, unless it only watches; may a search begin there? */
static void
copy_waiter(DLockDeadlockGraph *graph, int node, bool is_mine)
{
	const DLockPlaceRef *ref = place_of(graph, node);
	const DLockDeadlockPlace *first;
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
	first = graph->places[node];
	if (first == NULL)
		return;
	owner = &graph->locks[first->lock].items[first->item].owner;
	graph->waiters[graph->nwaiters] = (DLockDeadlockWaiter)
	{
		.process = node,.set = set,.stuck = true,.owner = *owner,
			.is_root = is_mine && (graph->my_owner == NULL || dlock_name_is_owner(owner, graph->my_owner))
	};
	graph->waiter_of[node] = graph->nwaiters++;
}

/* Copy what a node waits for, and reach what is in its way. */
static void
visit(DLockDeadlockGraph *graph, int node, bool is_mine)
{
	if (graph->locked == NULL)
		CHECK_FOR_INTERRUPTS();
	copy_waiter(graph, node, is_mine);
	if (graph->waiter_of[node] == NONE)
		return;
	for (DLockDeadlockPlace *place = graph->places[node]; place != NULL; place = place->next)
		reach_blockers(graph, place);
}

/* Reach what the search is for. */
static void
reach_mine(DLockDeadlockGraph *graph)
{
	uint32		owner = (graph->my_owner != NULL) ? dlock_process_owner_hash(graph->my_owner) : 0;
	uint32		lock = (graph->my_name.len > 0) ? dlock_name_hash(graph->database, &graph->my_name) : 0;

	if (graph->my_owner == NULL)
		reach(graph, graph->me);
	for (int node = MaxBackends; graph->my_owner != NULL && node < MaxBackends + graph->nkept; node++)
	{
		if (owner_of(graph, node) == owner && (graph->my_name.len == 0 || place_of(graph, node)->lock == lock))
			reach(graph, node);
	}
}

/*
 * Copy all that can be reached from what the search is for.  "locked" are the partitions that
 * the caller has locked exclusively: what waits for others, too, is left out.  If it is NULL,
 * reacts to interrupts.
 */
static void
copy_graph(DLockDeadlockGraph *graph, const DLockPartitionSet *locked)
{
	int			mine;

	DLOCK_FAULT("deadlock_copy");
	begin_copy(graph, locked);
	reach_mine(graph);
	mine = graph->nreached;
	for (int i = 0; i < graph->nreached; i++)
		visit(graph, graph->reached[i], i < mine);
}

/* ---- who is stuck ---- */

/* The waiter that a process is; NULL if it is none, was not reached, or goes on. */
static DLockDeadlockWaiter *
stuck_waiter(DLockDeadlockGraph *graph, int process)
{
	int			index = (process != NONE) ? graph->waiter_of[process] : NONE;

	return (index != NONE && graph->waiters[index].stuck) ? &graph->waiters[index] : NULL;
}

/*
 * The next stuck waiter without which a lease is not released, or NULL: the backend that it
 * is bound to, and those by which its owner waits.  "at" is BOUND at first.
 */
static DLockDeadlockWaiter *
next_stuck(DLockDeadlockGraph *graph, const DLockDeadlockHolder *holder, int *at)
{
	while (*at != NONE)
	{
		int			process = (*at == BOUND) ? holder->process : *at;
		DLockDeadlockWaiter *waiter = stuck_waiter(graph, process);

		*at = (*at == BOUND) ? holder->candidate : graph->next_candidate[*at];
		if (waiter != NULL && (process == holder->process ||
							   dlock_name_is_owner(&waiter->owner, &holder->owner)))
			return waiter;
	}
	return NULL;
}

/*
 * Go through the queue of a lock: which requests are blocked by stuck ones?  A
 * request for this lock alone that is not is free to go on, so it frees
 * those behind it in the same pass.
 */
static bool
pass_lock(DLockDeadlockGraph *graph, DLockDeadlockLock *lock)
{
	uint32		ahead = 0;
	uint32		held = 0;
	DLockToken	only[DLOCK_MODES] = {0};	/* the stuck holder in a mode, if
											 * it is one */
	bool		has_free_permit = lock->has_free_permit;
	bool		changed = false;

	for (int i = 0; i < lock->nholders; i++)
	{
		DLockMode	mode = lock->holders[i].mode;
		int			at = BOUND;

		if (next_stuck(graph, &lock->holders[i], &at) == NULL)
		{
			has_free_permit |= (mode == DLOCK_MODE_PERMIT);
			continue;
		}
		only[mode] = (held & DLOCK_RULE_BIT(mode)) ? DLOCK_TOKEN_NONE : lock->holders[i].token;
		held |= DLOCK_RULE_BIT(mode);
	}
	if (has_free_permit)
		held &= ~DLOCK_RULE_BIT(DLOCK_MODE_PERMIT);

	for (int i = 0; i < lock->nitems; i++)
	{
		DLockDeadlockItem *item = &lock->items[i];
		DLockDeadlockWaiter *waiter = stuck_waiter(graph, item->process);
		uint32		others = held;

		if (waiter == NULL)
			continue;
		/* A conversion does not wait for the lease that it converts. */
		for (int mode = 0; mode < DLOCK_MODES; mode++)
		{
			if (item->converted != DLOCK_TOKEN_NONE && only[mode] == item->converted)
				others &= ~DLOCK_RULE_BIT(mode);
		}
		if (dlock_rule_waits_behind(item->mode, others | ahead))
			waiter->blocked = true;
		else if (graph->places[item->process]->next == NULL)
		{
			waiter->stuck = false;
			changed = true;
			continue;
		}
		ahead |= DLOCK_RULE_BIT(item->mode);
	}
	return changed;
}

/*
 * Work out which of the waiters are stuck.  Who waits was copied before those that it
 * waits for, so a chain to one that goes on takes one pass, backwards.
 */
static void
find_stuck(DLockDeadlockGraph *graph)
{
	bool		changed;

	do
	{
		if (graph->locked == NULL)
			CHECK_FOR_INTERRUPTS();
		changed = false;
		for (int i = 0; i < graph->nwaiters; i++)
			graph->waiters[i].blocked = false;
		for (int i = graph->nlocks - 1; i >= 0; i--)
			changed |= pass_lock(graph, &graph->locks[i]);
		for (int i = 0; i < graph->nwaiters; i++)
		{
			if (graph->waiters[i].stuck && !graph->waiters[i].blocked)
			{
				graph->waiters[i].stuck = false;
				changed = true;
			}
		}
	} while (changed);
}

/* ---- the circle ---- */

/* The search gets by an edge to a waiter: to the root that it came from, or further. */
static void
step_to(DLockDeadlockGraph *graph, const DLockDeadlockEdge *edge, DLockDeadlockWaiter *to)
{
	int			root = graph->waiters[edge->from].root;

	if (to == NULL || graph->victim != NONE)
		return;
	if (to->is_root && (!edge->is_place || to == &graph->waiters[root]))
	{
		graph->victim = root;
		graph->waiters[root].edge = *edge;
	}
	else if (!to->found)
	{
		to->found = true;
		to->root = root;
		to->edge = *edge;
		graph->reached[graph->nreached++] = (int) (to - graph->waiters);
	}
}

/* Step to the holders and the requests in front that block a waiter at a place. */
static void
step_from_place(DLockDeadlockGraph *graph, DLockDeadlockEdge edge)
{
	DLockDeadlockLock *lock = &graph->locks[edge.at->lock];
	DLockDeadlockItem *item = &lock->items[edge.at->item];
	bool		skips = (lock->reached & DLOCK_RULE_BIT(item->mode)) != 0;

	/* A conversion skips its own lease, so others in this mode step again. */
	if (item->converted == DLOCK_TOKEN_NONE)
		lock->reached |= DLOCK_RULE_BIT(item->mode);
	for (int i = 0; i < lock->nholders && !skips; i++)
	{
		DLockDeadlockHolder *holder = &lock->holders[i];

		DLOCK_FAULT("deadlock_compare");
		if (!dlock_rule_waits_behind(item->mode, DLOCK_RULE_BIT(holder->mode)) || holder->token == item->converted)
			continue;
		edge.blocker = holder->owner;
		for (int at = BOUND; at != NONE;)
			step_to(graph, &edge, next_stuck(graph, holder, &at));
	}

	edge.is_place = true;
	for (int *i = &lock->reached_items[item->mode]; *i < edge.at->item; (*i)++)
	{
		DLockDeadlockWaiter *waiter = stuck_waiter(graph, lock->items[*i].process);

		DLOCK_FAULT("deadlock_compare");
		if (waiter == NULL || !dlock_rule_waits_behind(item->mode, DLOCK_RULE_BIT(lock->items[*i].mode)))
			continue;
		edge.blocker = waiter->owner;
		step_to(graph, &edge, waiter);
	}
}

/*
 * Look for a shortest circle through what the search is for, breadth first; false if
 * there is none.
 */
static bool
find_circle(DLockDeadlockGraph *graph)
{
	int			to;

	find_stuck(graph);
	for (int i = 0; i < graph->nlocks; i++)
	{
		graph->locks[i].reached = 0;
		memset(graph->locks[i].reached_items, 0, sizeof(graph->locks[i].reached_items));
	}
	graph->nreached = 0;
	graph->victim = NONE;
	for (int i = 0; i < graph->nwaiters; i++)
	{
		if (!graph->waiters[i].is_root || !graph->waiters[i].stuck)
			continue;
		graph->waiters[i].found = true;
		graph->waiters[i].root = i;
		graph->reached[graph->nreached++] = i;
	}
	for (int i = 0; i < graph->nreached && graph->victim == NONE; i++)
	{
		for (DLockDeadlockPlace *place = graph->places[graph->waiters[graph->reached[i]].process];
			 place != NULL; place = place->next)
		{
			DLockDeadlockEdge edge = {.from = graph->reached[i],.at = place};

			step_from_place(graph, edge);
		}
	}
	if (graph->victim == NONE)
		return false;

	to = graph->victim;
	do
	{
		int			from = graph->waiters[to].edge.from;

		graph->waiters[from].next = to;
		to = from;
	} while (to != graph->victim);
	return true;
}

/* Does a process wait by a request for several locks, which holds nothing? */
static bool
is_unit(int process)
{
	return process < MaxBackends && dlock_process_at(process)->count > 1 &&
		dlock_process_at(process)->kind != DLOCK_SPACE_CONVERT;
}

/* Mark on each lock how a stuck waiter is in the way of others. */
static void
mark(DLockDeadlockGraph *graph, DLockDeadlockWaiter *blocker)
{
	for (int i = 0; i < graph->nlocks; i++)
	{
		DLockDeadlockLock *lock = &graph->locks[i];

		lock->marked_modes = 0;
		lock->marked_item = lock->nitems;
		for (int h = 0; h < lock->nholders; h++)
		{
			for (int at = BOUND; at != NONE;)
			{
				if (next_stuck(graph, &lock->holders[h], &at) == blocker)
					lock->marked_modes |= DLOCK_RULE_BIT(lock->holders[h].mode);
			}
		}
	}
	for (DLockDeadlockPlace *place = graph->places[blocker->process]; place != NULL; place = place->next)
		graph->locks[place->lock].marked_item = place->item;
}

/* Does a process, which converts nothing, wait for the waiter that is marked? */
static bool
is_behind_marked(DLockDeadlockGraph *graph, int process)
{
	for (DLockDeadlockPlace *place = graph->places[process]; place != NULL; place = place->next)
	{
		DLockDeadlockLock *lock = &graph->locks[place->lock];
		DLockMode	mode = lock->items[place->item].mode;

		DLOCK_FAULT("deadlock_compare");
		if (dlock_rule_waits_behind(mode, lock->marked_modes) ||
			(lock->marked_item < place->item &&
			 dlock_rule_waits_behind(mode, DLOCK_RULE_BIT(lock->items[lock->marked_item].mode))))
			return true;
	}
	return false;
}

/*
 * If a request for several locks is in the circle only by its place in a
 * queue, move it to the end of its queues; false if there is none.  With it go
 * all that are in such a circle, too, with the same waiter behind them and the same
 * one in their way (src/README, "Deadlocks").
 */
static bool
requeue_units(DLockDeadlockGraph *graph)
{
	int		   *units = palloc(MaxBackends * sizeof(int));
	int			count = 0;
	int			i = graph->victim;

	do
	{
		DLockDeadlockWaiter *first = &graph->waiters[i = graph->waiters[i].next];
		const DLockDeadlockPlace *at = first->edge.at;
		DLockDeadlockItem *items = graph->locks[at->lock].items;
		DLockDeadlockWaiter *next = &graph->waiters[first->next];

		if (!first->edge.is_place || !is_unit(first->process))
			continue;
		mark(graph, next);
		for (int ahead = 0; ahead < at->item; ahead++)
		{
			DLockDeadlockWaiter *unit = stuck_waiter(graph, items[ahead].process);

			if (unit != NULL && unit != next && is_unit(unit->process) &&
				dlock_rule_waits_behind(items[at->item].mode, DLOCK_RULE_BIT(items[ahead].mode)) &&
				is_behind_marked(graph, unit->process))
				units[count++] = unit->process;
		}
		Assert(count > 0);
	} while (i != graph->victim && count == 0);
	dlock_queue_move_last(units, count, graph->now);
	return count > 0;
}

/* The circle in words, a line for each edge. */
static char *
describe_circle(const DLockDeadlockGraph *graph, MemoryContext context)
{
	StringInfoData text;
	MemoryContext old = MemoryContextSwitchTo(context);
	int			i = graph->victim;

	initStringInfo(&text);
	do
	{
		DLockDeadlockEdge *edge = &graph->waiters[i = graph->waiters[i].next].edge;
		DLockBytes	waiter = graph->waiters[edge->from].owner.name;
		DLockDeadlockLock *lock = &graph->locks[edge->at->lock];

		appendStringInfo(&text, "%sOwner \"%.*s\" waits for %s on lock \"%.*s\" behind owner \"%.*s\".",
						 (text.len > 0) ? "\n" : "", waiter.len, waiter.data,
						 dlock_name_of_mode(lock->items[edge->at->item].mode), lock->name.len, lock->name.data,
						 edge->blocker.name.len, edge->blocker.name.data);
	} while (i != graph->victim);
	MemoryContextSwitchTo(old);
	return text.data;
}

/* Leave the queue: this backend, or the place from which the circle was found, told in "context". */
static void
leave(DLockDeadlockGraph *graph, MemoryContext context)
{
	DLockDeadlockPlace *at = graph->places[graph->waiters[graph->victim].process];
	MemoryContext old;
	DLockSpaceEntry *entry;
	DLockSpaceLease *place = NULL;

	if (graph->my_owner == NULL)
	{
		dlock_queue_remove_mine(graph->now);
		return;
	}
	old = MemoryContextSwitchTo(context);
	graph->my_name = dlock_name_copy(graph->locks[at->lock].name);
	MemoryContextSwitchTo(old);
	entry = dlock_space_find(graph->database, dlock_name_hash(graph->database, &graph->my_name), &graph->my_name);
	if (entry != NULL)
		place = dlock_place_find(entry, graph->my_owner);
	if (place != NULL)
		dlock_queue_remove(place, graph->now);
}

/*
 * A circle was found in a copy.  Look again with the partitions of all stuck
 * waiters locked.  If it is still there, move requests if that helps ("may_move");
 * then the search is to be repeated, and the result is true.  Otherwise leave the
 * queue, and describe the circle, in "context".
 */
static bool
resolve(DLockDeadlockGraph *graph, bool may_move, MemoryContext context, char **text)
{
	DLockPlaceRef *kept = MemoryContextAlloc(context, graph->nwaiters * sizeof(DLockPlaceRef));
	int			nkept = 0;
	DLockPartitionSet set = {{0}};
	bool		moved = false;

	for (int i = 0; i < graph->nwaiters; i++)
	{
		const DLockPlaceRef *place = place_of(graph, graph->waiters[i].process);

		if (!graph->waiters[i].stuck)
			continue;
		dlock_partition_set_join(&set, &graph->waiters[i].set);
		if (place != NULL)
			kept[nkept++] = *place;
	}
	pfree(graph->kept);
	graph->kept = kept;
	graph->nkept = nkept;
	DLOCK_FAULT("deadlock_found");
	dlock_partition_lock_set(&set, LW_EXCLUSIVE);
	copy_graph(graph, &set);
	if (find_circle(graph))
	{
		moved = may_move && requeue_units(graph);
		if (!moved)
		{
			*text = describe_circle(graph, context);
			leave(graph, context);
		}
	}
	dlock_partition_unlock_set(&set);
	return moved;
}

/*
 * Search for a circle until there is none, or one that no move resolves; returns what it is
 * in words, in the current context.
 */
static char *
search(DLockDeadlockGraph *graph)
{
	MemoryContext old = CurrentMemoryContext;
	char	   *text = NULL;
	int			attempts = MaxBackends;
	bool		goes_on = true;

	graph->context = AllocSetContextCreate(old, "dlock deadlock search", ALLOCSET_DEFAULT_SIZES);
	while (goes_on)
	{
		graph->kept = dlock_place_list(graph->database, &graph->nkept);
		MemoryContextSwitchTo(graph->context);
		copy_graph(graph, NULL);
		goes_on = find_circle(graph) && resolve(graph, attempts-- > 0, old, &text);
		MemoryContextSwitchTo(old);
		pfree(graph->kept);
	}
	MemoryContextDelete(graph->context);
	return text;
}

/*
 * Look for a deadlock that this backend is part of.  If there is one, the
 * backend leaves the queue, and the result describes the circle; else NULL.
 * "is_bound" says that leases are bound to this backend.
 *
 * No partition lock may be held; "db" needs no more than its shared parts.
 * Reacts to interrupts.
 */
char *
dlock_deadlock_check(DLockDatabase *db, bool is_bound)
{
	DLockDeadlockGraph graph = {.database = db->shared->oid,.me = MyProcNumber};
	char	   *circle = NULL;
	DLockPartitionSet set;
	DLockOwner	owner;

	if (!dlock_process_lock(graph.me, graph.database, LW_SHARED, &set))
		return NULL;
	dlock_process_listen();
	owner = dlock_space_copy_owner(dlock_process_first(graph.me));
	dlock_partition_unlock_set(&set);

	/* Who holds nothing is in no circle. */
	if (is_bound || dlock_holder_is_live(graph.database, &owner, dlock_clock_now()))
		circle = search(&graph);
	pfree(unconstify(char *, owner.name.data));
	return circle;
}

/*
 * Look for a deadlock that the place of an owner on a lock is part of; or any place of the
 * owner, if "name" is empty.  If there is one, the place is gone, and "name" is its lock.
 * Result and conditions as above.
 */
char *
dlock_deadlock_check_places(DLockDatabase *db, DLockBytes *name, const DLockOwner *owner)
{
	DLockDeadlockGraph graph = {.database = db->shared->oid,.my_name = *name,.my_owner = owner};
	char	   *circle;

	if (!dlock_holder_is_live(graph.database, owner, dlock_clock_now()))
		return NULL;
	circle = search(&graph);
	*name = graph.my_name;
	return circle;
}
