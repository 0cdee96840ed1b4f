/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *	  Owners that wait for each other in a circle.
 *
 * NOTES
 *	  A waiting backend waits for the owners of the leases that block it, and for the
 *	  requests in front.  A waiting owner, by a backend or a place, releases nothing; nor
 *	  does a waiting backend end what is bound to it, for any role.  If such edges come
 *	  back to where they began, the circle lasts until a lease expires.
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
 *	  A check copies who waits for whom (lock/graph.c), and searches the copy without
 *	  locks.  The copy is no snapshot.  But the edges of a deadlock stay, so a copy made
 *	  after the last appeared has them all; and if it has a circle, the
 *	  partitions of all stuck backends, and of places in the circle, are locked exclusively,
 *	  and copy and search are repeated in these alone: what is found then is true.  Other
 *	  places, of which an owner may have thousands, free nobody in the circle; but if that
 *	  has a wait for a permit, which any holder may free, all stuck ones are locked.  The
 *	  victim leaves its queues before the unlock, so no other backend finds this circle.
 *
 *	  A search takes time linear in the requests, as the copy does, but for many
 *	  conversions on one lock, and for chains of waits that cross.
 *
 *	  Nobody sleeps by a place, so its owner's next call for it checks; and a client that asks
 *	  for many places checks once for all of an owner.  Such a search begins at each of these
 *	  places, and finds the circles through a lease of the owner: each such lease is an edge to
 *	  all its places.  A request behind a place closes a circle only if the search began at that
 *	  place; its other circles are found by the owners of the leases in them (src/README,
 *	  "Deadlocks").
 *
 *	  A request for several locks holds nothing while it waits.  If only its place closes
 *	  a circle, it goes to the end of all its queues, and the check begins again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/rule.h"
#include "lock/deadlock.h"
#include "lock/graph.h"
#include "lock/queue.h"
#include "space/holder.h"
#include "space/place.h"

#define NONE	DLOCK_GRAPH_NONE
#define BOUND	(-2)			/* see next_stuck() */

/* ---- who is stuck ---- */

/* The waiter of a process; NULL if it was not reached, or is not stuck. */
static DLockGraphWaiter *
stuck_waiter(DLockGraph *graph, int process)
{
	int			index = (process != NONE) ? graph->waiter_of[process] : NONE;

	return (index != NONE && graph->waiters[index].stuck) ? &graph->waiters[index] : NULL;
}

/*
 * The next stuck waiter that keeps a lease from its release, or NULL: the backend that it is
 * bound to, and those by which its owner waits.  "at" is BOUND at first.
 */
static DLockGraphWaiter *
next_stuck(DLockGraph *graph, const DLockGraphHolder *holder, int *at)
{
	while (*at != NONE)
	{
		int			process = (*at == BOUND) ? holder->process : *at;
		DLockGraphWaiter *waiter = stuck_waiter(graph, process);

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
pass_lock(DLockGraph *graph, DLockGraphLock *lock)
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
		DLockGraphItem *item = &lock->items[i];
		DLockGraphWaiter *waiter = stuck_waiter(graph, item->process);
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
		else if (graph->positions[item->process]->next == NULL)
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
find_stuck(DLockGraph *graph)
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

/* Follow an edge to a waiter: it closes a circle, or the waiter is new. */
static void
step_to(DLockGraph *graph, const DLockGraphEdge *edge, DLockGraphWaiter *to)
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
step_from_place(DLockGraph *graph, DLockGraphEdge edge)
{
	DLockGraphLock *lock = &graph->locks[edge.at->lock];
	DLockGraphItem *item = &lock->items[edge.at->item];
	bool		skips = (lock->reached & DLOCK_RULE_BIT(item->mode)) != 0;

	/* A conversion skips its own lease, so others in this mode step again. */
	if (item->converted == DLOCK_TOKEN_NONE)
		lock->reached |= DLOCK_RULE_BIT(item->mode);
	for (int i = 0; i < lock->nholders && !skips; i++)
	{
		DLockGraphHolder *holder = &lock->holders[i];

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
		DLockGraphWaiter *waiter = stuck_waiter(graph, lock->items[*i].process);

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
find_circle(DLockGraph *graph)
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
		for (DLockGraphPosition *place = graph->positions[graph->waiters[graph->reached[i]].process];
			 place != NULL; place = place->next)
		{
			DLockGraphEdge edge = {.from = graph->reached[i],.at = place};

			step_from_place(graph, edge);
		}
	}
	if (graph->victim == NONE)
		return false;

	graph->has_permit = false;
	to = graph->victim;
	do
	{
		DLockGraphEdge *edge = &graph->waiters[to].edge;

		graph->has_permit |= graph->locks[edge->at->lock].items[edge->at->item].mode == DLOCK_MODE_PERMIT;
		graph->waiters[edge->from].next = to;
		graph->waiters[edge->from].in_circle = true;
		to = edge->from;
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

/* Note on each lock how a stuck waiter is in the way of others. */
static void
note(DLockGraph *graph, DLockGraphWaiter *blocker)
{
	for (int i = 0; i < graph->nlocks; i++)
	{
		DLockGraphLock *lock = &graph->locks[i];

		lock->noted_modes = 0;
		lock->noted_item = lock->nitems;
		for (int h = 0; h < lock->nholders; h++)
		{
			for (int at = BOUND; at != NONE;)
			{
				if (next_stuck(graph, &lock->holders[h], &at) == blocker)
					lock->noted_modes |= DLOCK_RULE_BIT(lock->holders[h].mode);
			}
		}
	}
	for (DLockGraphPosition *place = graph->positions[blocker->process]; place != NULL; place = place->next)
		graph->locks[place->lock].noted_item = place->item;
}

/* Does a process, which converts nothing, wait for the waiter that was noted? */
static bool
is_behind_noted(DLockGraph *graph, int process)
{
	for (DLockGraphPosition *place = graph->positions[process]; place != NULL; place = place->next)
	{
		DLockGraphLock *lock = &graph->locks[place->lock];
		DLockMode	mode = lock->items[place->item].mode;

		DLOCK_FAULT("deadlock_compare");
		if (dlock_rule_waits_behind(mode, lock->noted_modes) ||
			(lock->noted_item < place->item &&
			 dlock_rule_waits_behind(mode, DLOCK_RULE_BIT(lock->items[lock->noted_item].mode))))
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
requeue_units(DLockGraph *graph)
{
	int		   *units = palloc(MaxBackends * sizeof(int));
	int			count = 0;
	int			i = graph->victim;

	do
	{
		DLockGraphWaiter *first = &graph->waiters[i = graph->waiters[i].next];
		const DLockGraphPosition *at = first->edge.at;
		DLockGraphItem *items = graph->locks[at->lock].items;
		DLockGraphWaiter *next = &graph->waiters[first->next];

		if (!first->edge.is_place || !is_unit(first->process))
			continue;
		note(graph, next);
		for (int ahead = 0; ahead < at->item; ahead++)
		{
			DLockGraphWaiter *unit = stuck_waiter(graph, items[ahead].process);

			if (unit != NULL && unit != next && is_unit(unit->process) &&
				dlock_rule_waits_behind(items[at->item].mode, DLOCK_RULE_BIT(items[ahead].mode)) &&
				is_behind_noted(graph, unit->process))
				units[count++] = unit->process;
		}
		Assert(count > 0);
	} while (i != graph->victim && count == 0);
	dlock_queue_move_last(units, count, graph->now);
	return count > 0;
}

/* The circle in words, a line for each edge. */
static char *
describe_circle(const DLockGraph *graph, MemoryContext context)
{
	StringInfoData text;
	MemoryContext old = MemoryContextSwitchTo(context);
	int			i = graph->victim;

	initStringInfo(&text);
	do
	{
		DLockGraphEdge *edge = &graph->waiters[i = graph->waiters[i].next].edge;
		DLockBytes	waiter = graph->waiters[edge->from].owner.name;
		DLockGraphLock *lock = &graph->locks[edge->at->lock];

		appendStringInfo(&text, "%sOwner \"%.*s\" waits for %s on lock \"%.*s\"; blocked by owner \"%.*s\".",
						 (text.len > 0) ? "\n" : "", waiter.len, waiter.data,
						 dlock_name_of_mode(lock->items[edge->at->item].mode), lock->name.len, lock->name.data,
						 edge->blocker.name.len, edge->blocker.name.data);
	} while (i != graph->victim);
	MemoryContextSwitchTo(old);
	return text.data;
}

/* Leave the queue: this backend, or the place from which the circle was found, told in "context". */
static void
leave(DLockGraph *graph, MemoryContext context)
{
	const DLockGraphPosition *at = graph->waiters[graph->waiters[graph->victim].next].edge.at;
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
 * backends, and of places in the circle, locked.  If it is still there, move requests
 * if that helps, or else leave the queue, and describe the circle, in "context".  True
 * if the search is to be repeated, which "may_repeat" allows: requests were moved, or this
 * circle is gone and another may exist.
 */
static bool
resolve(DLockGraph *graph, bool may_repeat, MemoryContext context, char **text)
{
	DLockPlaceRef *kept = MemoryContextAlloc(context, graph->nwaiters * sizeof(DLockPlaceRef));
	int			nkept = 0;
	DLockPartitionSet set = {{0}};
	bool		repeat = may_repeat;

	for (int i = 0; i < graph->nwaiters; i++)
	{
		const DLockPlaceRef *place = dlock_graph_place(graph, graph->waiters[i].process);

		if (!graph->waiters[i].stuck || (place != NULL && !graph->waiters[i].in_circle && !graph->has_permit))
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
	dlock_graph_copy(graph, &set);
	if (find_circle(graph))
	{
		repeat = may_repeat && requeue_units(graph);
		if (!repeat)
		{
			*text = describe_circle(graph, context);
			leave(graph, context);
		}
	}
	dlock_partition_unlock_set(&set);
	return repeat;
}

/*
 * Search for a circle until there is none, or one that no move resolves; returns what it is
 * in words, in the current context.
 */
static char *
search(DLockGraph *graph)
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
		dlock_graph_copy(graph, NULL);
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
	DLockGraph	graph = {.database = db->shared->oid,.me = MyProcNumber};
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
	DLockGraph	graph = {.database = db->shared->oid,.my_name = *name,.my_owner = owner};
	char	   *circle;

	if (!dlock_holder_is_live(graph.database, owner, dlock_clock_now()))
		return NULL;
	circle = search(&graph);
	*name = graph.my_name;
	return circle;
}
