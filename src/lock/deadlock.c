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
 *	  A semaphore is different: one holder that goes on is enough.  So the
 *	  search first works out which backends are stuck: all that wait, less
 *	  those whose blockers can all go on (or one of the holders, of a
 *	  semaphore), and this again until no backend is taken away.  The circle is
 *	  looked for among the stuck ones.
 *
 *	  Which backends look, and when, is argued in src/README ("Deadlocks"): one
 *	  whose owner holds something, or to which something was bound, after
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
 *	  A partition that another backend keeps locked, because it was stopped in
 *	  there, is not copied.  The search is then repeated until it can be.
 *
 *	  A request for several locks holds nothing while it waits.  If a circle
 *	  is closed only by its place in a queue, there is a way out: the request
 *	  goes to the end of all its queues.
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
#include "lock/queue.h"
#include "space/holder.h"

#define NONE	(-1)

/* A request in the queue of a lock, copied. */
typedef struct DLockDeadlockItem
{
	int			process;
	DLockMode	mode;
	DLockToken	converted;		/* of a conversion: the token of its lease */
} DLockDeadlockItem;

/* A live lease whose owner may be waiting, copied. */
typedef struct DLockDeadlockHolder
{
	DLockOwner	owner;
	int			first;			/* candidates that may be of this owner */
	int			ncandidates;
	int			process;		/* that it is bound to; or NONE */
	DLockMode	mode;
	DLockToken	token;
} DLockDeadlockHolder;

/* A lock that a backend of interest waits for, copied. */
typedef struct DLockDeadlockLock
{
	uint32		hash;
	DLockBytes	name;
	int			nitems;
	DLockDeadlockItem *items;	/* in the order of the queue */
	int			nholders;
	DLockDeadlockHolder *holders;
	bool		has_free_holder;	/* a permit whose holder goes on */
	uint32		reached;		/* modes whose blockers among the holders were
								 * visited */
	int			reached_items[DLOCK_MODES]; /* and how far those in the queue */
} DLockDeadlockLock;

/* A place in a queue. */
typedef struct DLockDeadlockPlace
{
	int			lock;			/* index of the lock, and of the item there */
	int			item;
} DLockDeadlockPlace;

/* What a waiter waits behind. */
typedef struct DLockDeadlockEdge
{
	DLockOwner	waiter;
	DLockOwner	blocker;
	int			process;		/* of the request in front; NONE if it is a
								 * lease */
	DLockMode	mode;
	DLockBytes	lock;
} DLockDeadlockEdge;

/* A backend that waits, and that this one waits for at some remove. */
typedef struct DLockDeadlockWaiter
{
	int			process;
	DLockPartitionSet set;
	DLockOwner	owner;
	int			nplaces;
	DLockDeadlockPlace *places;
	bool		stuck;
	bool		blocked;		/* by stuck ones, in the pass at hand */

	/* How the search got here: from which waiter, by what. */
	bool		found;
	int			from;
	DLockDeadlockEdge edge;
} DLockDeadlockWaiter;

/* A backend that waits in this database; all of them, by the hash of the owner. */
typedef struct DLockDeadlockCandidate
{
	uint32		hash;
	int			process;
} DLockDeadlockCandidate;

typedef struct DLockDeadlockSearch
{
	Oid			database;
	int			me;
	DLockTime	now;
	const DLockPartitionSet *locked;	/* exclusively; NULL in the first copy */
	DLockPartitionSet skipped;	/* partitions left out of it */
	int			ncandidates;
	DLockDeadlockCandidate *candidates;
	int		   *waiter_of;		/* by process: index of the waiter, or NONE */
	int			nwaiters;
	DLockDeadlockWaiter *waiters;	/* the first is me */
	int			nlocks;
	DLockDeadlockLock *locks;
	int			nfound;
	int		   *found;			/* waiters that the circle may lead to */
	int			npending;
	int		   *pending;		/* processes to be visited */
	bool	   *is_pending;		/* by process: visited, or to be */
	int			length;
	DLockDeadlockEdge *edges;	/* the circle, from me to me */
} DLockDeadlockSearch;

static DLockOwner
copy_owner(const DLockSpaceLease *lease)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(lease, buffer);

	return (DLockOwner)
	{
		owner.role, dlock_name_copy(owner.name)
	};
}

/* Does a request wait for a lease, or behind a request, in another mode? */
static bool
waits_behind(DLockMode mode, DLockMode other)
{
	return dlock_rule_waits_behind(mode, DLOCK_RULE_BIT(other));
}

/* ---- the copy ---- */

/* What an array that grows has room for at first, a power of two. */
#define LEAST_ROOM	8

/* See to it that an array has room for one more than it has. */
static void *
make_room(void *array, int count, Size size)
{
	if (count < LEAST_ROOM || (count & (count - 1)) != 0)
		return array;
	return repalloc(array, 2 * count * size);
}

static int
compare_candidates(const void *a, const void *b)
{
	uint32		left = ((const DLockDeadlockCandidate *) a)->hash;
	uint32		right = ((const DLockDeadlockCandidate *) b)->hash;

	return (left > right) - (left < right);
}

/* The first candidate with this hash, and how many there are. */
static int
find_candidates(const DLockDeadlockSearch *search, uint32 hash, int *count)
{
	int			low = 0;
	int			high = search->ncandidates;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (search->candidates[middle].hash < hash)
			low = middle + 1;
		else
			high = middle;
	}
	for (high = low; high < search->ncandidates && search->candidates[high].hash == hash;)
		high++;
	*count = high - low;
	return low;
}

/*
 * Begin a copy.  Whatever was copied before is forgotten; "locked" says which
 * partitions the caller has locked exclusively, NULL if none.
 */
static void
begin_copy(DLockDeadlockSearch *search, const DLockPartitionSet *locked)
{
	int			processes = MaxBackends;

	MemoryContextReset(CurrentMemoryContext);
	search->locked = locked;
	search->now = dlock_clock_now();
	search->candidates = palloc(processes * sizeof(DLockDeadlockCandidate));
	search->waiter_of = palloc(processes * sizeof(int));
	search->waiters = palloc(processes * sizeof(DLockDeadlockWaiter));
	search->pending = palloc(processes * sizeof(int));
	search->found = palloc((processes + 1) * sizeof(int));	/* me twice */
	search->is_pending = palloc0(processes * sizeof(bool));
	search->locks = palloc(LEAST_ROOM * sizeof(DLockDeadlockLock));
	search->ncandidates = search->nwaiters = search->nlocks = search->npending = search->nfound = 0;

	for (int process = 0; process < processes; process++)
	{
		const DLockQueueShared *wait = dlock_queue_place(process);

		search->waiter_of[process] = NONE;
		if (dlock_queue_is_for_lock(process, search->database))
			search->candidates[search->ncandidates++] =
				(DLockDeadlockCandidate)
		{
			wait->owner, process
		};
	}
	qsort(search->candidates, search->ncandidates, sizeof(DLockDeadlockCandidate),
		  compare_candidates);
}

/* A process is to be visited, unless it was, or will be. */
static void
reach(DLockDeadlockSearch *search, int process)
{
	if (search->is_pending[process])
		return;
	search->is_pending[process] = true;
	search->pending[search->npending++] = process;
}

/* Copy the queue of a lock, and those of its holders that may be waiting. */
static void
fill_lock(DLockDeadlockSearch *search, DLockDeadlockLock *lock, DLockSpaceEntry *entry)
{
	lock->items = palloc(LEAST_ROOM * sizeof(DLockDeadlockItem));
	lock->holders = palloc(LEAST_ROOM * sizeof(DLockDeadlockHolder));
	for (DLockSpaceLease *request = dlock_space_queue(entry); request != NULL;
		 request = dlock_space_next(request))
	{
		if (!dlock_holder_is_waiting(entry, request, search->now))
			continue;
		lock->items = make_room(lock->items, lock->nitems, sizeof(DLockDeadlockItem));
		lock->items[lock->nitems++] = (DLockDeadlockItem)
		{
			.process = request->process,
				.mode = (DLockMode) request->mode,
				.converted = (request->kind == DLOCK_SPACE_CONVERT) ? request->token : DLOCK_TOKEN_NONE
		};
	}

	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL;
		 lease = dlock_space_next(lease))
	{
		char		buffer[DLOCK_OWNER_MAX];
		DLockOwner	owner = dlock_space_lease_owner(lease, buffer);
		int			count;
		int			first;

		if (dlock_holder_blocks_until(lease) <= search->now)
			continue;
		first = find_candidates(search, dlock_queue_owner_hash(&owner), &count);

		/* What is only closed opens by itself. */
		if (!dlock_rule_is_live(lease->deadline, search->now) ||
			(count == 0 &&
			 (lease->process == NONE ||
			  !dlock_queue_is_for_lock(lease->process, search->database))))
		{
			lock->has_free_holder |= (lease->mode == DLOCK_MODE_PERMIT);
			continue;
		}
		lock->holders = make_room(lock->holders, lock->nholders, sizeof(DLockDeadlockHolder));
		lock->holders[lock->nholders++] = (DLockDeadlockHolder)
		{
			copy_owner(lease), first, count, lease->process, (DLockMode) lease->mode, lease->token
		};
	}
}

/* The copy of a lock, which is made if there is none. */
static int
copy_lock(DLockDeadlockSearch *search, DLockSpaceEntry *entry)
{
	char		buffer[DLOCK_NAME_MAX];
	DLockBytes	name = dlock_space_entry_name(entry, buffer);
	DLockDeadlockLock *lock;

	for (int i = 0; i < search->nlocks; i++)
	{
		if (search->locks[i].hash == entry->hash &&
			dlock_name_equal(&search->locks[i].name, &name))
			return i;
	}
	search->locks = make_room(search->locks, search->nlocks, sizeof(DLockDeadlockLock));
	lock = &search->locks[search->nlocks];
	memset(lock, 0, sizeof(*lock));
	lock->hash = entry->hash;
	lock->name = dlock_name_copy(name);
	fill_lock(search, lock, entry);
	return search->nlocks++;
}

/* Copy what a process waits for; its partitions are locked. */
static void
copy_waiter(DLockDeadlockSearch *search, int process, const DLockPartitionSet *set)
{
	DLockQueueShared *wait = dlock_queue_place(process);
	DLockSpaceLease *request = dlock_queue_first(process);
	DLockDeadlockWaiter *waiter = &search->waiters[search->nwaiters];

	memset(waiter, 0, sizeof(*waiter));
	waiter->process = process;
	waiter->set = *set;
	waiter->owner = copy_owner(request);
	waiter->stuck = true;
	waiter->places = palloc(wait->count * sizeof(DLockDeadlockPlace));
	for (; request != NULL; request = dlock_space_request_next(request))
	{
		int			index = copy_lock(search, dlock_space_entry_of(request));
		DLockDeadlockLock *lock = &search->locks[index];
		int			item = 0;

		/* It is not there if it came after the lock was copied. */
		while (item < lock->nitems && lock->items[item].process != process)
			item++;
		if (item < lock->nitems)
			waiter->places[waiter->nplaces++] = (DLockDeadlockPlace)
		{
			index, item
		};
	}
	search->waiter_of[process] = search->nwaiters++;
}

/* Reach all that may be in the way of a request. */
static void
reach_blockers(DLockDeadlockSearch *search, const DLockDeadlockPlace *place)
{
	DLockDeadlockLock *lock = &search->locks[place->lock];
	DLockMode	mode = lock->items[place->item].mode;
	int		   *done = &lock->reached_items[mode];

	for (; *done < place->item; (*done)++)
	{
		if (waits_behind(mode, lock->items[*done].mode))
			reach(search, lock->items[*done].process);
	}
	if (lock->reached & DLOCK_RULE_BIT(mode))
		return;
	lock->reached |= DLOCK_RULE_BIT(mode);
	for (int i = 0; i < lock->nholders; i++)
	{
		const DLockDeadlockHolder *holder = &lock->holders[i];

		if (!waits_behind(mode, holder->mode))
			continue;
		if (holder->process != NONE)
			reach(search, holder->process);
		for (int c = 0; c < holder->ncandidates; c++)
			reach(search, search->candidates[holder->first + c].process);
	}
}

/* Copy what a process waits for, with its partitions locked for that. */
static void
visit(DLockDeadlockSearch *search, int process)
{
	DLockPartitionSet set;
	int			before = search->nwaiters;

	if (search->locked != NULL)
	{
		if (dlock_queue_is_within(process, search->database, search->locked, &set) &&
			dlock_queue_place(process)->kind != DLOCK_SPACE_WATCH)
			copy_waiter(search, process, &set);
	}
	else
	{
		CHECK_FOR_INTERRUPTS();
		if (!dlock_queue_lock(process, search->database, LW_SHARED, &set, &search->skipped))
			return;
		if (dlock_queue_place(process)->kind != DLOCK_SPACE_WATCH)
			copy_waiter(search, process, &set);
		dlock_partition_unlock_set(&set);
	}
	if (search->nwaiters == before)
		return;
	for (int i = 0; i < search->waiters[before].nplaces; i++)
		reach_blockers(search, &search->waiters[before].places[i]);
}

/*
 * Copy all that can be reached from this backend; false if it does not wait.
 */
static bool
copy_all(DLockDeadlockSearch *search, const DLockPartitionSet *locked)
{
	begin_copy(search, locked);
	reach(search, search->me);
	for (int i = 0; i < search->npending; i++)
		visit(search, search->pending[i]);
	return search->waiter_of[search->me] == 0;
}

/* ---- who is stuck ---- */

/* The waiter that a process is; NULL if it is none, was not reached, or goes on. */
static DLockDeadlockWaiter *
stuck_waiter(DLockDeadlockSearch *search, int process)
{
	int			index = (process != NONE) ? search->waiter_of[process] : NONE;

	return (index != NONE && search->waiters[index].stuck) ? &search->waiters[index] : NULL;
}

/*
 * A stuck waiter that a lease waits for to be released: the backend that the lease is
 * bound to, if "i" is NONE, or else the i-th candidate, if its owner waits by that
 * one; NULL if not.
 */
static DLockDeadlockWaiter *
stuck_of_holder(DLockDeadlockSearch *search, const DLockDeadlockHolder *holder, int i)
{
	DLockDeadlockWaiter *waiter;

	if (i == NONE)
		return stuck_waiter(search, holder->process);
	waiter = stuck_waiter(search, search->candidates[holder->first + i].process);
	return (waiter != NULL && dlock_name_is_owner(&waiter->owner, &holder->owner)) ? waiter : NULL;
}

static bool
is_holder_stuck(DLockDeadlockSearch *search, const DLockDeadlockHolder *holder)
{
	for (int i = NONE; i < holder->ncandidates; i++)
	{
		if (stuck_of_holder(search, holder, i) != NULL)
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
pass_lock(DLockDeadlockSearch *search, DLockDeadlockLock *lock)
{
	uint32		ahead = 0;
	uint32		held = 0;
	DLockToken	only[DLOCK_MODES] = {0};	/* the stuck holder in a mode, if
											 * it is one */
	bool		has_free_holder = lock->has_free_holder;
	bool		changed = false;

	for (int i = 0; i < lock->nholders; i++)
	{
		DLockMode	mode = lock->holders[i].mode;

		if (!is_holder_stuck(search, &lock->holders[i]))
		{
			has_free_holder |= (mode == DLOCK_MODE_PERMIT);
			continue;
		}
		only[mode] = (held & DLOCK_RULE_BIT(mode)) ? DLOCK_TOKEN_NONE : lock->holders[i].token;
		held |= DLOCK_RULE_BIT(mode);
	}
	if (has_free_holder)
		held &= ~DLOCK_RULE_BIT(DLOCK_MODE_PERMIT);

	for (int i = 0; i < lock->nitems; i++)
	{
		DLockDeadlockItem *item = &lock->items[i];
		DLockDeadlockWaiter *waiter = stuck_waiter(search, item->process);
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
		else if (waiter->nplaces == 1)
		{
			waiter->stuck = false;
			changed = true;
			continue;
		}
		ahead |= DLOCK_RULE_BIT(item->mode);
	}
	return changed;
}

/* Work out which of the waiters are stuck. */
static void
find_stuck(DLockDeadlockSearch *search)
{
	bool		changed;

	do
	{
		changed = false;
		for (int i = 0; i < search->nwaiters; i++)
			search->waiters[i].blocked = false;
		for (int i = 0; i < search->nlocks; i++)
			changed |= pass_lock(search, &search->locks[i]);
		for (int i = 0; i < search->nwaiters; i++)
		{
			if (search->waiters[i].stuck && !search->waiters[i].blocked)
			{
				search->waiters[i].stuck = false;
				changed = true;
			}
		}
	} while (changed);
}

/* ---- the circle ---- */

/* The search gets from one waiter by an edge to another. */
static void
step(DLockDeadlockSearch *search, int from, const DLockDeadlockEdge *edge, DLockDeadlockWaiter *to)
{
	if (to == NULL || to->found)
		return;
	to->found = true;
	to->from = from;
	to->edge = *edge;
	search->found[search->nfound++] = (int) (to - search->waiters);
}

/* Step to all that are in the way of a waiter at a place. */
static void
step_to_blockers(DLockDeadlockSearch *search, int from, const DLockDeadlockPlace *at)
{
	DLockDeadlockLock *lock = &search->locks[at->lock];
	DLockDeadlockItem *item = &lock->items[at->item];
	DLockDeadlockEdge edge = {.waiter = search->waiters[from].owner,.mode = item->mode,.lock = lock->name};

	edge.process = NONE;
	for (int i = 0; i < lock->nholders; i++)
	{
		DLockDeadlockHolder *holder = &lock->holders[i];

		if (!waits_behind(item->mode, holder->mode) || holder->token == item->converted)
			continue;
		edge.blocker = holder->owner;
		for (int c = NONE; c < holder->ncandidates; c++)
			step(search, from, &edge, stuck_of_holder(search, holder, c));
	}
	for (int i = 0; i < at->item; i++)
	{
		DLockDeadlockWaiter *waiter = stuck_waiter(search, lock->items[i].process);

		if (waiter == NULL || !waits_behind(item->mode, lock->items[i].mode))
			continue;
		edge.blocker = waiter->owner;
		edge.process = waiter->process;
		step(search, from, &edge, waiter);
	}
}

/*
 * Look for a shortest circle through this backend, breadth first; false if
 * there is none.
 */
static bool
find_circle(DLockDeadlockSearch *search)
{
	DLockDeadlockWaiter *mine = &search->waiters[0];
	int			length;
	int			to = 0;

	find_stuck(search);
	if (!mine->stuck)
		return false;

	search->found[search->nfound++] = 0;
	for (int i = 0; i < search->nfound && !mine->found; i++)
	{
		DLockDeadlockWaiter *waiter = &search->waiters[search->found[i]];

		for (int p = 0; p < waiter->nplaces; p++)
			step_to_blockers(search, search->found[i], &waiter->places[p]);
	}
	if (!mine->found)
		return false;

	search->length = 0;
	do
	{
		search->length++;
		to = search->waiters[to].from;
	} while (to != 0);
	search->edges = palloc(search->length * sizeof(DLockDeadlockEdge));
	length = search->length;
	do
	{
		search->edges[--length] = search->waiters[to].edge;
		to = search->waiters[to].from;
	} while (to != 0);
	return true;
}

/*
 * If a request for several locks is in the circle only by its place in a
 * queue, move it to the end of its queues; false if there is none.
 */
static bool
requeue_unit(const DLockDeadlockSearch *search)
{
	for (int i = 0; i < search->length; i++)
	{
		DLockQueueShared *wait;

		if (search->edges[i].process == NONE)
			continue;
		wait = dlock_queue_place(search->edges[i].process);
		if (wait->count == 1 || wait->kind == DLOCK_SPACE_CONVERT)
			continue;
		for (DLockSpaceLease *request = dlock_queue_first(search->edges[i].process);
			 request != NULL; request = dlock_space_request_next(request))
		{
			request->bound_mono = 0;
			dlock_space_requeue(dlock_space_entry_of(request), request);
			dlock_queue_call(dlock_space_entry_of(request), search->now);
		}
		return true;
	}
	return false;
}

/* The circle in words, a line for each edge. */
static char *
describe_circle(const DLockDeadlockSearch *search, MemoryContext context)
{
	StringInfoData text;
	MemoryContext old = MemoryContextSwitchTo(context);

	initStringInfo(&text);
	for (int i = 0; i < search->length; i++)
	{
		DLockDeadlockEdge *edge = &search->edges[i];

		appendStringInfo(&text, "%sOwner \"%.*s\" waits for %s on lock \"%.*s\" behind owner \"%.*s\".",
						 (i > 0) ? "\n" : "", edge->waiter.name.len, edge->waiter.name.data,
						 dlock_name_of_mode(edge->mode), edge->lock.len, edge->lock.data,
						 edge->blocker.name.len, edge->blocker.name.data);
	}
	MemoryContextSwitchTo(old);
	return text.data;
}

/* The partitions of all stuck waiters. */
static DLockPartitionSet
stuck_set(const DLockDeadlockSearch *search)
{
	DLockPartitionSet set = {{0}};

	for (int i = 0; i < search->nwaiters; i++)
	{
		if (search->waiters[i].stuck)
			dlock_partition_set_join(&set, &search->waiters[i].set);
	}
	return set;
}

/*
 * A circle was found in a copy.  Look again with the partitions of all stuck
 * waiters locked; if it is still there, leave the queue.  Returns its
 * description in "context", NULL if there is none.
 */
static char *
resolve(DLockDeadlockSearch *search, MemoryContext context)
{
	DLockPartitionSet set = stuck_set(search);
	char	   *text = NULL;
	int			attempts = MaxBackends;

	DLOCK_FAULT("deadlock_found");
	if (!dlock_partition_try_lock_set(&set, LW_EXCLUSIVE, &search->skipped))
		return NULL;
	while (text == NULL && copy_all(search, &set) && find_circle(search))
	{
		if (attempts-- > 0 && requeue_unit(search))
			continue;
		text = describe_circle(search, context);

		dlock_queue_remove_mine(search->now);
	}
	dlock_partition_unlock_set(&set);
	return text;
}

/*
 * Does the owner for which this backend waits hold a live lease, or has this
 * backend had one that was bound to it?
 */
static bool
holds_something(DLockDeadlockSearch *search)
{
	DLockPartitionSet set;
	DLockOwner	owner;

	if (!dlock_queue_lock(search->me, search->database, LW_SHARED, &set, NULL))
		return false;
	dlock_queue_listen();
	owner = copy_owner(dlock_queue_first(search->me));
	dlock_partition_unlock_set(&set);
	return dlock_queue_place(search->me)->has_bound ||
		dlock_holder_is_live(search->database, &owner, dlock_clock_now());
}

/*
 * Look for a deadlock that this backend is part of.  If there is one, the
 * backend leaves the queue, and the result describes the circle; else NULL.
 *
 * No partition lock may be held; "db" needs no more than its shared parts.
 * Reacts to interrupts.
 */
char *
dlock_deadlock_check(DLockDatabase *db)
{
	DLockDeadlockSearch search = {.database = db->shared->oid,.me = MyProcNumber};
	MemoryContext old = CurrentMemoryContext;
	MemoryContext context;
	char	   *text = NULL;

	context = AllocSetContextCreate(old, "dlock deadlock search", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);
	if (holds_something(&search) && copy_all(&search, NULL) && find_circle(&search))
		text = resolve(&search, old);

	if (dlock_partition_set_count(&search.skipped) > 0)
		(void) dlock_queue_end_listening(search.me);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return text;
}
