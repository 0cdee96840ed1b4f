/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *	  Owners that wait for each other in a circle.
 *
 * NOTES
 *	  A backend that waits waits for the owners of the leases in its way, and
 *	  for the backends in front of it in the queue.  An owner that waits, in
 *	  any of its backends, does not go on to release what it holds; nor does a
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
 *	  Which backends look, and when, is argued in src/README ("Deadlocks"): one
 *	  whose owner holds something, or to which something is bound, after
 *	  deadlock_timeout, and again when that owner has got more.
 *
 *	  How they look.  First a copy of all that can be reached from this
 *	  backend is made, with the partitions of one waiting backend locked in
 *	  shared mode at a time.  The copy is no snapshot, but the edges of a
 *	  deadlock do not go away, so a copy that is made after the last of them
 *	  appeared has them all.  The search runs on the copy without locks.  If it
 *	  finds a circle, the partitions of all stuck backends are locked
 *	  exclusively, the copy is made anew from these partitions alone, and the
 *	  search is repeated: what it finds then is true.  This backend leaves the
 *	  queue before it gives up the locks, so no other backend of the circle
 *	  finds it, too.
 *
 *	  A request for several locks holds nothing while it waits.  If a circle
 *	  is closed only by its place in a queue, there is a way out: the request
 *	  goes to the end of all its queues.  So do all of a crowd at a time, and
 *	  the search begins again without locks: partitions are locked exclusively
 *	  for one copy and one search.  Both take time linear in the requests; the search
 *	  takes more if many convert leases on one lock, or if chains of waits cross.
 *
 * IDENTIFICATION
 *	  src/lock/deadlock.c
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

#define NONE	DLOCK_GRAPH_NONE

/* ---- who is stuck ---- */

/* The waiter that a process is; NULL if it is none, was not reached, or goes on. */
static DLockGraphWaiter *
stuck_waiter(DLockGraph *graph, int process)
{
	int			index = (process != NONE) ? graph->waiter_of[process] : NONE;

	return (index != NONE && graph->waiters[index].stuck) ? &graph->waiters[index] : NULL;
}

/*
 * A stuck waiter that a lease waits for to be released: the backend that the lease is
 * bound to, if "i" is NONE, or else the i-th candidate, if its owner waits by that
 * one; NULL if not.
 */
static DLockGraphWaiter *
stuck_of_holder(DLockGraph *graph, const DLockGraphHolder *holder, int i)
{
	DLockGraphWaiter *waiter;

	if (i == NONE)
		return stuck_waiter(graph, holder->process);
	waiter = stuck_waiter(graph, graph->candidates[holder->first + i].process);
	return (waiter != NULL && dlock_name_is_owner(&waiter->owner, &holder->owner)) ? waiter : NULL;
}

static bool
is_holder_stuck(DLockGraph *graph, const DLockGraphHolder *holder)
{
	for (int i = NONE; i < holder->ncandidates; i++)
	{
		if (stuck_of_holder(graph, holder, i) != NULL)
			return true;
	}
	return false;
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

		if (!is_holder_stuck(graph, &lock->holders[i]))
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

/* The search gets by an edge to a waiter. */
static void
step_to(DLockGraph *graph, const DLockGraphEdge *edge, DLockGraphWaiter *to)
{
	if (to == NULL || to->found)
		return;
	to->found = true;
	to->edge = *edge;
	graph->found[graph->nfound++] = (int) (to - graph->waiters);
}

/* Step to the holders that are in the way of a waiter at a place. */
static void
step_to_holders(DLockGraph *graph, DLockGraphEdge edge)
{
	DLockGraphLock *lock = &graph->locks[edge.at->lock];
	DLockGraphItem *item = &lock->items[edge.at->item];

	if (lock->reached & DLOCK_RULE_BIT(item->mode))
		return;

	/*
	 * A conversion skips its own lease, so others in this mode must look
	 * again.
	 */
	if (item->converted == DLOCK_TOKEN_NONE)
		lock->reached |= DLOCK_RULE_BIT(item->mode);
	for (int i = 0; i < lock->nholders; i++)
	{
		DLockGraphHolder *holder = &lock->holders[i];

		DLOCK_FAULT("deadlock_compare");
		if (!dlock_rule_waits_behind(item->mode, DLOCK_RULE_BIT(holder->mode)) || holder->token == item->converted)
			continue;
		edge.blocker = holder->owner;
		for (int c = NONE; c < holder->ncandidates; c++)
			step_to(graph, &edge, stuck_of_holder(graph, holder, c));
	}
}

/* Step to the requests in front of a waiter at a place that are in its way. */
static void
step_to_items(DLockGraph *graph, DLockGraphEdge edge)
{
	DLockGraphLock *lock = &graph->locks[edge.at->lock];
	DLockMode	mode = lock->items[edge.at->item].mode;

	edge.is_place = true;
	for (int *i = &lock->reached_items[mode]; *i < edge.at->item; (*i)++)
	{
		DLockGraphWaiter *waiter = stuck_waiter(graph, lock->items[*i].process);

		DLOCK_FAULT("deadlock_compare");
		if (waiter == NULL || !dlock_rule_waits_behind(mode, DLOCK_RULE_BIT(lock->items[*i].mode)))
			continue;
		edge.blocker = waiter->owner;
		step_to(graph, &edge, waiter);
	}
}

/* Step to all that are in the way of a waiter, and that were not stepped to yet. */
static void
step_from(DLockGraph *graph, int from)
{
	for (DLockGraphPlace *place = graph->places[graph->waiters[from].process];
		 place != NULL; place = place->next)
	{
		DLockGraphEdge edge = {.from = from,.at = place};

		step_to_holders(graph, edge);
		step_to_items(graph, edge);
	}
}

/*
 * Look for a shortest circle through this backend, breadth first; false if
 * there is none.
 */
static bool
find_circle(DLockGraph *graph)
{
	DLockGraphWaiter *mine = &graph->waiters[0];
	int			length;
	int			to = 0;

	find_stuck(graph);
	if (!mine->stuck)
		return false;

	for (int i = 0; i < graph->nlocks; i++)
	{
		graph->locks[i].reached = 0;
		memset(graph->locks[i].reached_items, 0, sizeof(graph->locks[i].reached_items));
	}
	graph->found[graph->nfound++] = 0;
	for (int i = 0; i < graph->nfound && !mine->found; i++)
		step_from(graph, graph->found[i]);
	if (!mine->found)
		return false;

	graph->length = 0;
	do
	{
		graph->length++;
		to = graph->waiters[to].edge.from;
	} while (to != 0);
	graph->circle = palloc(graph->length * sizeof(int));
	length = graph->length;
	do
	{
		graph->circle[--length] = to;
		to = graph->waiters[to].edge.from;
	} while (to != 0);
	return true;
}

/* Does a process wait by a request for several locks, which holds nothing? */
static bool
is_unit(int process)
{
	const DLockQueueShared *wait = dlock_queue_place(process);

	return wait->count > 1 && wait->kind != DLOCK_SPACE_CONVERT;
}

/* Mark on each lock how a stuck waiter is in the way of others. */
static void
mark(DLockGraph *graph, DLockGraphWaiter *blocker)
{
	for (int i = 0; i < graph->nlocks; i++)
	{
		DLockGraphLock *lock = &graph->locks[i];

		lock->marked_modes = 0;
		lock->marked_item = lock->nitems;
		for (int h = 0; h < lock->nholders; h++)
		{
			for (int c = NONE; c < lock->holders[h].ncandidates; c++)
			{
				if (stuck_of_holder(graph, &lock->holders[h], c) == blocker)
					lock->marked_modes |= DLOCK_RULE_BIT(lock->holders[h].mode);
			}
		}
	}
	for (DLockGraphPlace *place = graph->places[blocker->process]; place != NULL; place = place->next)
		graph->locks[place->lock].marked_item = place->item;
}

/* Does a process, which converts nothing, wait for the waiter that is marked? */
static bool
is_behind_marked(DLockGraph *graph, int process)
{
	for (DLockGraphPlace *place = graph->places[process]; place != NULL; place = place->next)
	{
		DLockGraphLock *lock = &graph->locks[place->lock];
		DLockMode	mode = lock->items[place->item].mode;

		DLOCK_FAULT("deadlock_compare");
		if (dlock_rule_waits_behind(mode, lock->marked_modes) ||
			(lock->marked_item < place->item &&
			 dlock_rule_waits_behind(mode, DLOCK_RULE_BIT(lock->items[lock->marked_item].mode))))
			return true;
	}
	return false;
}

/* Move requests for several locks, of these processes, to the end of their queues. */
static void
requeue(const int *processes, int count, DLockTime now)
{
	for (int i = 0; i < count; i++)
	{
		for (DLockSpaceLease *request = dlock_queue_first(processes[i]);
			 request != NULL; request = dlock_space_request_next(request))
		{
			/* At the end it stands already, and is in nobody's way. */
			if (dlock_space_next(request) == NULL)
				continue;
			request->bound_mono = 0;
			dlock_space_requeue(dlock_space_entry_of(request), request);
		}
	}
	for (int i = 0; i < count; i++)
	{
		for (DLockSpaceLease *request = dlock_queue_first(processes[i]);
			 request != NULL; request = dlock_space_request_next(request))
		{
			/* If it is the first still, there is nobody that it made way for. */
			if (dlock_space_queue(dlock_space_entry_of(request)) != request)
				dlock_queue_call_again(dlock_space_entry_of(request), now);
		}
	}
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

	for (int i = 0; i < graph->length && count == 0; i++)
	{
		DLockGraphWaiter *first = &graph->waiters[graph->circle[i]];
		const DLockGraphPlace *at = first->edge.at;
		DLockGraphItem *items = graph->locks[at->lock].items;
		DLockGraphWaiter *next = &graph->waiters[graph->circle[(i + 1) % graph->length]];

		if (!first->edge.is_place || !is_unit(first->process))
			continue;
		mark(graph, next);
		for (int ahead = 0; ahead < at->item; ahead++)
		{
			DLockGraphWaiter *unit = stuck_waiter(graph, items[ahead].process);

			if (unit != NULL && unit != next && is_unit(unit->process) &&
				dlock_rule_waits_behind(items[at->item].mode, DLOCK_RULE_BIT(items[ahead].mode)) &&
				is_behind_marked(graph, unit->process))
				units[count++] = unit->process;
		}
		Assert(count > 0);
	}
	requeue(units, count, graph->now);
	return count > 0;
}

/* The circle in words, a line for each edge. */
static char *
describe_circle(const DLockGraph *graph, MemoryContext context)
{
	StringInfoData text;
	MemoryContext old = MemoryContextSwitchTo(context);

	initStringInfo(&text);
	for (int i = 0; i < graph->length; i++)
	{
		DLockGraphEdge *edge = &graph->waiters[graph->circle[i]].edge;
		DLockBytes	waiter = graph->waiters[edge->from].owner.name;
		DLockGraphLock *lock = &graph->locks[edge->at->lock];

		appendStringInfo(&text, "%sOwner \"%.*s\" waits for %s on lock \"%.*s\" behind owner \"%.*s\".",
						 (i > 0) ? "\n" : "", waiter.len, waiter.data,
						 dlock_name_of_mode(lock->items[edge->at->item].mode), lock->name.len, lock->name.data,
						 edge->blocker.name.len, edge->blocker.name.data);
	}
	MemoryContextSwitchTo(old);
	return text.data;
}

/* The partitions of all stuck waiters. */
static DLockPartitionSet
stuck_set(const DLockGraph *graph)
{
	DLockPartitionSet set = {{0}};

	for (int i = 0; i < graph->nwaiters; i++)
	{
		if (graph->waiters[i].stuck)
			dlock_partition_set_join(&set, &graph->waiters[i].set);
	}
	return set;
}

/*
 * A circle was found in a copy.  Look again with the partitions of all stuck
 * waiters locked.  If it is still there, move requests if that helps ("may_move");
 * then the search is to be repeated, and the result is true.  Otherwise leave the
 * queue, and describe the circle, in "context".
 */
static bool
resolve(DLockGraph *graph, bool may_move, MemoryContext context, char **text)
{
	DLockPartitionSet set = stuck_set(graph);
	bool		moved = false;

	DLOCK_FAULT("deadlock_found");
	dlock_partition_lock_set(&set, LW_EXCLUSIVE);
	if (dlock_graph_copy(graph, &set) && find_circle(graph))
	{
		moved = may_move && requeue_units(graph);
		if (!moved)
		{
			*text = describe_circle(graph, context);
			dlock_queue_remove_mine(graph->now);
		}
	}
	dlock_partition_unlock_set(&set);
	return moved;
}

/*
 * Does the owner for which this backend waits hold a live lease, or has this
 * backend one that is bound to it?
 */
static bool
holds_something(DLockGraph *graph, bool is_bound)
{
	DLockPartitionSet set;
	DLockOwner	owner;

	if (!dlock_queue_lock(graph->me, graph->database, LW_SHARED, &set))
		return false;
	dlock_queue_listen();
	owner = dlock_space_copy_owner(dlock_queue_first(graph->me));
	dlock_partition_unlock_set(&set);
	return is_bound || dlock_holder_is_live(graph->database, &owner, dlock_clock_now());
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
	MemoryContext old = CurrentMemoryContext;
	char	   *text = NULL;
	int			attempts = MaxBackends;
	bool		looks;

	graph.context = AllocSetContextCreate(old, "dlock deadlock search", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(graph.context);
	looks = holds_something(&graph, is_bound);
	while (looks && dlock_graph_copy(&graph, NULL) && find_circle(&graph))
		looks = resolve(&graph, attempts-- > 0, old, &text);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(graph.context);
	return text;
}
