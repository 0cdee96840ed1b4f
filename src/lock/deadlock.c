/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *	  Owners that wait for each other in a circle.
 *
 * NOTES
 *	  A request waits for the leases that block it, and for the requests in front that do.
 *	  A lease is not released while its owner waits, or the backend that it is bound to.  If
 *	  such edges come back to where they began, the circle lasts until a lease expires.
 *
 *	  A semaphore is different: one holder that goes on is enough, or one permit that
 *	  nobody has.  So the check first works out what is stuck: all that waits, less what no
 *	  stuck wait or lease blocks, and this again until nothing is taken away.  The circle is
 *	  searched for in what is left.
 *
 *	  Like the server's own (storage/lmgr/deadlock.c), a check has all partitions locked
 *	  exclusively, from the copy of what waits in the database until its victim has left the
 *	  queues.  So what it finds is true, and of the members of a circle one alone finds it.
 *	  It takes time linear in the requests and the leases on their locks; how rarely it is
 *	  made, and why that is enough, is argued in src/README ("Deadlocks").
 *
 *	  A request for several locks holds nothing while it waits.  If only its place closes
 *	  a circle, it goes to the end of all its queues.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/ilist.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/rule.h"
#include "lock/deadlock.h"
#include "lock/queue.h"
#include "space/holder.h"
#include "space/place.h"

/* deadlock_timeout, in microseconds */
#define TIMEOUT		((DLockTime) DeadlockTimeout * 1000)

typedef struct DLockDeadlockLock DLockDeadlockLock;
typedef struct DLockDeadlockOwner DLockDeadlockOwner;
typedef struct DLockDeadlockRequest DLockDeadlockRequest;
typedef struct DLockDeadlockWait DLockDeadlockWait;

/* What a request waits for: a lease, or a request in front. */
typedef struct DLockDeadlockEdge
{
	DLockDeadlockRequest *from;
	DLockSpaceLease *blocker;
	DLockDeadlockWait *to;		/* that keeps the blocker there */
} DLockDeadlockEdge;

/* A backend that waits, or a place. */
struct DLockDeadlockWait
{
	DLockDeadlockOwner *owner;
	DLockDeadlockWait *next;	/* of the same owner */
	DLockDeadlockRequest *requests;
	int			process;		/* or -1 */
	struct DLockDeadlockLease *bound;	/* to the process */
	int			nblocked;		/* requests; zero: it is not stuck */
	bool		is_root;		/* the check is for it */
	int			round;			/* of the search that has found it last ... */
	DLockDeadlockWait *root;	/* ... from this root ... */
	DLockDeadlockEdge in;		/* ... by this edge */
};

/* A request in the queue of a lock. */
struct DLockDeadlockRequest
{
	DLockSpaceLease *request;
	DLockDeadlockLock *lock;
	DLockDeadlockWait *wait;
	DLockDeadlockRequest *next; /* of the same wait */
	dlist_node	in_queue;
	int			position;		/* larger than that of those in front */
	DLockMode	mode;
	DLockSpaceLease *converted; /* of a conversion: its lease */
	bool		blocked;		/* by something stuck */
};

/* A live lease that may be stuck. */
typedef struct DLockDeadlockLease
{
	DLockSpaceLease *lease;
	DLockDeadlockLock *lock;
	DLockDeadlockOwner *owner;	/* if that waits */
	DLockDeadlockWait *bound_to;	/* likewise */
	struct DLockDeadlockLease *next;	/* on the same lock */
	struct DLockDeadlockLease *next_owned;
	struct DLockDeadlockLease *next_bound;
	bool		stuck;			/* its owner is, or what it is bound to */
} DLockDeadlockLease;

/* A lock that somebody waits for. */
struct DLockDeadlockLock
{
	DLockSpaceEntry *entry;		/* key of the table */
	DLockDeadlockLock *next;
	dlist_head	queue;
	DLockDeadlockLease *leases;
	int			nstuck[DLOCK_MODES];	/* leases; of permits none if any is
										 * free */
	bool		is_changed;		/* something its requests waited for went on */

	/* In the search, by mode: from which request on to step; or NULL. */
	DLockDeadlockRequest *next_step[DLOCK_MODES];
	int			round;
};

/* An owner that waits. */
struct DLockDeadlockOwner
{
	DLockOwner	name;			/* key of the table */
	DLockDeadlockWait *waits;
	int			nstuck;			/* of them */
	DLockDeadlockLease *leases;
	int			round;			/* of the search that has found its waits last */
};

/* A check. */
typedef struct DLockDeadlockCheck
{
	Oid			database;
	DLockToken	place;			/* it is for the place with this id; if zero,
								 * for all requests with the number of this
								 * process */
	DLockTime	now;
	HTAB	   *lock_table;
	HTAB	   *owner_table;
	DLockDeadlockLock *locks;
	DLockDeadlockWait **backends;	/* by process */
	int			nstuck;			/* waits */
	int			nbackends;		/* of these */
	int			npositions;
	List	   *changed;		/* locks */
	int			round;			/* of the search for a circle */
	List	   *found;			/* waits that the search goes on from */
	List	   *circle;			/* of edges, from its root on; or NIL */
	List	   *moved;			/* processes of requests for several locks */
} DLockDeadlockCheck;

/* ---- the copy ---- */

static uint32
hash_owner(const void *key, Size size)
{
	const DLockOwner *owner = key;

	return dlock_name_hash(owner->role, &owner->name);
}

static int
match_owners(const void *a, const void *b, Size size)
{
	return dlock_name_is_owner(a, b) ? 0 : 1;
}

/* Is the check for what waits by a request? */
static bool
is_checked(const DLockDeadlockCheck *check, const DLockSpaceLease *request)
{
	return (check->place == DLOCK_TOKEN_NONE) ? request->process == MyProcNumber :
		request->placed && request->token == check->place;
}

/* What waits by a request. */
static DLockDeadlockWait *
copy_wait(DLockDeadlockCheck *check, const DLockSpaceLease *request)
{
	int			process = request->placed ? -1 : request->process;
	DLockDeadlockWait *wait = (process >= 0) ? check->backends[process] : NULL;
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	name = dlock_space_lease_owner(request, buffer);
	DLockDeadlockOwner *owner;
	bool		found;

	if (wait != NULL)
		return wait;
	owner = hash_search(check->owner_table, &name, HASH_ENTER, &found);
	if (!found)
	{
		memset(owner, 0, sizeof(*owner));
		owner->name.role = name.role;
		owner->name.name = dlock_name_copy(name.name);
	}
	wait = palloc0(sizeof(DLockDeadlockWait));
	wait->process = process;
	wait->owner = owner;
	wait->next = owner->waits;
	owner->waits = wait;
	owner->nstuck++;
	check->nstuck++;
	check->nbackends += process >= 0;
	if (process >= 0)
		check->backends[process] = wait;
	wait->is_root = is_checked(check, request);
	return wait;
}

/* Something that requests for a lock waited for may have gone on. */
static void
note_change(DLockDeadlockCheck *check, DLockDeadlockLock *lock)
{
	if (!lock->is_changed)
		check->changed = lappend(check->changed, lock);
	lock->is_changed = true;
}

/* Copy the queue of a lock, unless that was done. */
static void
copy_queue(DLockDeadlockCheck *check, DLockSpaceEntry *entry)
{
	bool		found;
	DLockDeadlockLock *lock = hash_search(check->lock_table, &entry, HASH_ENTER, &found);

	if (found)
		return;
	*lock = (DLockDeadlockLock)
	{
		.entry = entry,.next = check->locks
	};
	check->locks = lock;
	dlist_init(&lock->queue);
	note_change(check, lock);
	for (DLockSpaceLease *at = dlock_space_queue(entry); at != NULL; at = dlock_space_next(at))
	{
		DLockDeadlockRequest *request;

		if (!dlock_holder_is_waiting(entry, at, check->now))
			continue;
		request = palloc(sizeof(DLockDeadlockRequest));
		*request = (DLockDeadlockRequest)
		{
			.request = at,.lock = lock,.wait = copy_wait(check, at),.position = check->npositions++,
				.mode = (DLockMode) at->mode,.blocked = true
		};
		if (at->kind == DLOCK_SPACE_CONVERT)
			request->converted = dlock_holder_converted(entry, at, check->now);
		request->next = request->wait->requests;
		request->wait->requests = request;
		request->wait->nblocked++;
		dlist_push_tail(&lock->queue, &request->in_queue);
	}
}

/* Copy a lease, if it is kept from its release. */
static void
copy_lease(DLockDeadlockCheck *check, DLockDeadlockLock *lock, DLockSpaceLease *at)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	name = dlock_space_lease_owner(at, buffer);
	DLockDeadlockOwner *owner = hash_search(check->owner_table, &name, HASH_FIND, NULL);
	DLockDeadlockWait *bound_to = (at->process >= 0) ? check->backends[at->process] : NULL;
	DLockDeadlockLease *lease;

	/* What is only closed opens by itself. */
	if ((owner == NULL && bound_to == NULL) ||
		!dlock_rule_is_live(dlock_space_whole(at)->deadline, check->now))
		return;

	/*
	 * An owner may have an intent for each of a million paths: one is enough.
	 */
	if (at->part == DLOCK_PART_INTENT && owner != NULL && owner->leases != NULL && owner->leases->lock == lock &&
		owner->leases->lease->mode == at->mode && owner->leases->bound_to == bound_to)
		return;
	lease = palloc0(sizeof(DLockDeadlockLease));
	lease->lease = at;
	lease->lock = lock;
	lease->stuck = true;
	lease->next = lock->leases;
	lock->leases = lease;
	lock->nstuck[at->mode]++;
	if (owner != NULL)
	{
		lease->owner = owner;
		lease->next_owned = owner->leases;
		owner->leases = lease;
	}
	if (bound_to != NULL)
	{
		lease->bound_to = bound_to;
		lease->next_bound = bound_to->bound;
		bound_to->bound = lease;
	}
}

/* Copy the leases on a lock, once all that waits has been. */
static void
copy_leases(DLockDeadlockCheck *check, DLockDeadlockLock *lock)
{
	for (DLockSpaceLease *at = dlock_space_holders(lock->entry); at != NULL; at = dlock_space_next(at))
		copy_lease(check, lock, at);
	/* Another permit is free, or will be. */
	if (lock->nstuck[DLOCK_MODE_PERMIT] < lock->entry->permits)
		lock->nstuck[DLOCK_MODE_PERMIT] = 0;
}

/* Copy all that waits in the database, and the leases on its locks. */
static void
copy_waits(DLockDeadlockCheck *check)
{
	HASHCTL		locks = {.keysize = sizeof(DLockSpaceEntry *),.entrysize = sizeof(DLockDeadlockLock),.hcxt = CurrentMemoryContext};
	HASHCTL		owners = {
		.keysize = sizeof(DLockOwner),.entrysize = sizeof(DLockDeadlockOwner),.hcxt = CurrentMemoryContext,
		.hash = hash_owner,.match = match_owners
	};
	int			count;
	DLockSpaceEntry **places = dlock_place_locks(check->database, &count);

	check->now = dlock_clock_now();
	check->lock_table = hash_create("locks", 64, &locks, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	check->owner_table = hash_create("owners that wait", count + 64, &owners, HASH_ELEM | HASH_FUNCTION | HASH_COMPARE | HASH_CONTEXT);
	check->backends = palloc0(MaxBackends * sizeof(DLockDeadlockWait *));
	for (int process = 0; process < MaxBackends; process++)
	{
		DLockSpaceLease *request = dlock_process_first(process);

		if (request == NULL || dlock_space_entry_of(request)->database != check->database)
			continue;
		for (; request != NULL; request = dlock_space_request_next(request))
			copy_queue(check, dlock_space_entry_of(request));
	}
	for (int i = 0; i < count; i++)
		copy_queue(check, places[i]);
	for (DLockDeadlockLock *lock = check->locks; lock != NULL; lock = lock->next)
		copy_leases(check, lock);
}

/* ---- what is stuck ---- */

/* A lease will be released, unless something that is stuck keeps it from that. */
static void
unstick_lease(DLockDeadlockCheck *check, DLockDeadlockLease *lease)
{
	DLockMode	mode = (DLockMode) lease->lease->mode;
	int		   *nstuck = &lease->lock->nstuck[mode];

	if (!lease->stuck || (lease->owner != NULL && lease->owner->nstuck > 0) ||
		(lease->bound_to != NULL && lease->bound_to->nblocked > 0))
		return;
	lease->stuck = false;
	*nstuck = (mode == DLOCK_MODE_PERMIT) ? 0 : *nstuck - 1;
	/* One that is left may be what a conversion is to change. */
	if (*nstuck <= 1)
		note_change(check, lease->lock);
}

/* A wait goes on, and is in no queue any more. */
static void
unstick_wait(DLockDeadlockCheck *check, DLockDeadlockWait *wait)
{
	check->nstuck--;
	check->nbackends -= wait->process >= 0;
	for (DLockDeadlockRequest *request = wait->requests; request != NULL; request = request->next)
	{
		dlist_delete(&request->in_queue);
		note_change(check, request->lock);
	}
	if (--wait->owner->nstuck == 0)
	{
		for (DLockDeadlockLease *lease = wait->owner->leases; lease != NULL; lease = lease->next_owned)
			unstick_lease(check, lease);
	}
	for (DLockDeadlockLease *lease = wait->bound; lease != NULL; lease = lease->next_bound)
		unstick_lease(check, lease);
}

/* Go through the queue of a lock, and unstick the waits that nothing stuck blocks. */
static void
unstick_in(DLockDeadlockCheck *check, DLockDeadlockLock *lock)
{
	const DLockHolderCrowd nobody = {0};
	uint32		held = 0;
	uint32		ahead = 0;
	dlist_mutable_iter at;

	for (int mode = 0; mode < DLOCK_MODES; mode++)
		held |= (lock->nstuck[mode] > 0) ? DLOCK_RULE_BIT(mode) : 0;
	dlist_foreach_modify(at, &lock->queue)
	{
		DLockDeadlockRequest *request = dlist_container(DLockDeadlockRequest, in_queue, at.cur);
		uint32		others = held;

		DLOCK_FAULT("deadlock_compare");
		/* It does not wait for its own lease, which is stuck as it is. */
		if (request->converted != NULL && lock->nstuck[request->converted->mode] == 1)
			others &= ~DLOCK_RULE_BIT(request->converted->mode);
		if (request->blocked && !dlock_rule_waits_behind(request->mode, others | ahead))
		{
			request->blocked = false;
			if (--request->wait->nblocked == 0)
			{
				unstick_wait(check, request->wait);
				continue;
			}
		}
		ahead |= DLOCK_RULE_BIT(request->mode);
		if (request->converted == NULL && dlock_queue_is_closed(lock->entry, &nobody, ahead))
			break;
	}
}

/* Work out what is stuck: all that is left once no more goes on. */
static void
find_stuck(DLockDeadlockCheck *check)
{
	while (check->changed != NIL)
	{
		DLockDeadlockLock *lock = llast(check->changed);

		check->changed = list_delete_last(check->changed);
		lock->is_changed = false;
		unstick_in(check, lock);
	}
}

/* ---- the circle ---- */

/* Follow an edge to a wait: it closes a circle, or the wait is new. */
static void
step_to(DLockDeadlockCheck *check, DLockDeadlockEdge edge, DLockDeadlockWait *to)
{
	DLockDeadlockWait *root = edge.from->wait->root;

	edge.to = to;
	if (to->nblocked == 0 || check->circle != NIL)
		return;
	if (to == root)
	{
		DLockDeadlockEdge *last = palloc(sizeof(DLockDeadlockEdge));

		*last = edge;
		check->circle = list_make1(last);
		for (DLockDeadlockWait *wait = edge.from->wait; wait != root; wait = wait->in.from->wait)
			check->circle = lcons(&wait->in, check->circle);
	}
	else if (to->round != check->round)
	{
		to->round = check->round;
		to->root = root;
		to->in = edge;
		check->found = lappend(check->found, to);
	}
}

/* Step to what keeps a lease from its release. */
static void
step_to_holder(DLockDeadlockCheck *check, DLockDeadlockEdge edge, DLockDeadlockLease *lease)
{
	DLockDeadlockOwner *owner = lease->owner;

	edge.blocker = lease->lease;
	if (lease->bound_to != NULL)
		step_to(check, edge, lease->bound_to);
	if (owner == NULL || owner->round == check->round)
		return;
	owner->round = check->round;
	for (DLockDeadlockWait *wait = owner->waits; wait != NULL; wait = wait->next)
		step_to(check, edge, wait);
}

/*
 * Step to all that blocks a request: the leases, and the requests in front; unless that was
 * done from another request in its mode.  A conversion, which skips its own lease, is apart.
 */
static void
step_from(DLockDeadlockCheck *check, DLockDeadlockRequest *request)
{
	DLockDeadlockLock *lock = request->lock;
	DLockDeadlockEdge edge = {.from = request};
	DLockDeadlockRequest *ahead = NULL;

	if (lock->round != check->round)
		memset(lock->next_step, 0, sizeof(lock->next_step));
	lock->round = check->round;
	if (request->converted == NULL)
		ahead = lock->next_step[request->mode];
	if (ahead == NULL)
	{
		for (DLockDeadlockLease *lease = lock->leases; lease != NULL; lease = lease->next)
		{
			DLOCK_FAULT("deadlock_compare");
			if (lease->stuck && lock->nstuck[lease->lease->mode] > 0 && lease->lease != request->converted &&
				dlock_rule_waits_behind(request->mode, DLOCK_RULE_BIT(lease->lease->mode)))
				step_to_holder(check, edge, lease);
		}
		ahead = dlist_head_element(DLockDeadlockRequest, in_queue, &lock->queue);
	}
	while (ahead->position < request->position)
	{
		DLOCK_FAULT("deadlock_compare");
		edge.blocker = ahead->request;
		if (dlock_rule_waits_behind(request->mode, DLOCK_RULE_BIT(ahead->mode)))
			step_to(check, edge, ahead->wait);
		ahead = dlist_container(DLockDeadlockRequest, in_queue, dlist_next_node(&lock->queue, &ahead->in_queue));
	}
	if (request->converted == NULL)
		lock->next_step[request->mode] = ahead;
}

/* Search for a shortest circle through roots of an owner, breadth first. */
static void
search_from(DLockDeadlockCheck *check, DLockDeadlockOwner *owner)
{
	ListCell   *at;

	check->round++;
	check->found = NIL;
	for (DLockDeadlockWait *wait = owner->waits; wait != NULL; wait = wait->next)
	{
		if (!wait->is_root || wait->nblocked == 0)
			continue;
		wait->round = check->round;
		wait->root = wait;
		check->found = lappend(check->found, wait);
	}
	foreach(at, check->found)
	{
		const DLockDeadlockWait *wait = lfirst(at);

		for (DLockDeadlockRequest *request = wait->requests; request != NULL; request = request->next)
			step_from(check, request);
		if (check->circle != NIL)
			break;
	}
}

/* Search for a circle through what the check is for; false if there is none. */
static bool
find_circle(DLockDeadlockCheck *check)
{
	HASH_SEQ_STATUS owners;
	DLockDeadlockOwner *owner;

	check->circle = NIL;
	hash_seq_init(&owners, check->owner_table);
	while ((owner = hash_seq_search(&owners)) != NULL)
	{
		if (check->circle == NIL)
			search_from(check, owner);
	}
	return check->circle != NIL;
}

/* ---- what is done about it ---- */

/* Does a backend wait by a request for several locks, which holds nothing? */
static bool
is_unit(const DLockDeadlockWait *wait)
{
	return wait->process >= 0 && dlock_space_request_next(dlock_process_first(wait->process)) != NULL;
}

/*
 * Move a request for several locks that is in the circle only by its place in a queue to the
 * end of its queues, in the copy; false if there is none, or after MaxBackends moves.
 */
static bool
move_unit(DLockDeadlockCheck *check)
{
	DLockDeadlockWait *unit = NULL;
	ListCell   *at;

	foreach(at, check->circle)
	{
		const DLockDeadlockEdge *edge = lfirst(at);

		if (unit == NULL && edge->blocker->kind != DLOCK_SPACE_HELD && is_unit(edge->to))
			unit = edge->to;
	}
	if (unit == NULL || list_length(check->moved) == MaxBackends)
		return false;
	check->moved = lappend_int(check->moved, unit->process);
	unit->nblocked = 0;
	for (DLockDeadlockRequest *request = unit->requests; request != NULL; request = request->next)
	{
		dlist_delete(&request->in_queue);
		dlist_push_tail(&request->lock->queue, &request->in_queue);
		request->position = check->npositions++;
		request->blocked = true;
		unit->nblocked++;
		note_change(check, request->lock);
	}
	return true;
}

/* The circle in words, a line for each edge, the one from the victim first. */
static char *
describe_circle(const DLockDeadlockCheck *check)
{
	StringInfoData text;
	ListCell   *at;

	initStringInfo(&text);
	foreach(at, check->circle)
	{
		const DLockDeadlockEdge *edge = lfirst(at);
		char		buffers[3][DLOCK_NAME_MAX];
		DLockBytes	waiter = dlock_space_lease_owner(edge->from->request, buffers[0]).name;
		DLockBytes	lock = dlock_space_entry_name(edge->from->lock->entry, buffers[1]);
		DLockBytes	blocker = dlock_space_lease_owner(edge->blocker, buffers[2]).name;

		appendStringInfo(&text, "%sOwner \"%.*s\" waits for %s on lock \"%.*s\"; blocked by owner \"%.*s\".",
						 (text.len > 0) ? "\n" : "", waiter.len, waiter.data,
						 dlock_name_of_mode(edge->from->mode), lock.len, lock.data, blocker.len, blocker.data);
	}
	return text.data;
}

/* When a check in this database last found no backend stuck, so none in a circle. */
static DLockTime
unstuck_at(const DLockDatabase *db)
{
	return (DLockTime) pg_atomic_read_u64(&db->shared->unstuck_at);
}

/*
 * Unless a check after "since" found no backend stuck, search for circles until there is none,
 * or one that no move resolves.  If there is one, its victim, this backend or a place, leaves
 * its queues, and the result describes it; else the moves are made in the queues.  "name" and
 * "owner" are, unless NULL, those of the victim.  No partition lock may be held.
 */
static char *
run_check(DLockDatabase *db, DLockDeadlockCheck *check, DLockTime since, DLockBytes *name, DLockBytes *owner)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context;
	char	   *circle = NULL;

	if (unstuck_at(db) > since)
		return NULL;
	context = AllocSetContextCreate(caller, "dlock deadlock check", ALLOCSET_DEFAULT_SIZES);
	DLOCK_FAULT("deadlock_copy");
	dlock_partition_lock_set(&dlock_partition_all, LW_EXCLUSIVE);
	MemoryContextSwitchTo(context);
	/* Many may have waited for the locks: the first has checked for all. */
	if (unstuck_at(db) <= since)
	{
		copy_waits(check);
		do
		{
			find_stuck(check);
			if (check->nbackends == 0)
				pg_atomic_write_u64(&db->shared->unstuck_at, (uint64) check->now);
			if (check->nstuck == 0)
				pg_atomic_write_u64(&db->shared->check_places_at, (uint64) (check->now + TIMEOUT));
		} while (find_circle(check) && move_unit(check));
	}
	MemoryContextSwitchTo(caller);
	if (check->circle == NIL)
		dlock_queue_move_last(check->moved, check->now);
	else
	{
		DLockDeadlockRequest *request = ((DLockDeadlockEdge *) linitial(check->circle))->from;
		char		buffer[DLOCK_NAME_MAX];

		circle = describe_circle(check);
		if (name != NULL)
		{
			*name = dlock_name_copy(dlock_space_entry_name(request->lock->entry, buffer));
			*owner = dlock_space_copy_owner(request->request).name;
		}
		if (request->wait->process >= 0)
			dlock_queue_remove_mine(check->now);
		else
			dlock_queue_remove(request->request, check->now);
	}
	dlock_partition_unlock_set(&dlock_partition_all);
	MemoryContextDelete(context);
	return circle;
}

/*
 * Has a check found no backend stuck since this one was last known to be in no deadlock
 * ("checked", which is set anew)?
 */
bool
dlock_deadlock_is_checked(DLockDatabase *db, DLockTime *checked)
{
	DLockTime	since = *checked;

	*checked = Max(since, unstuck_at(db));
	return *checked > since;
}

/*
 * Check for a deadlock that this backend is part of, which waits.  If there is one, the backend
 * leaves its queues, and the result describes the circle; else NULL.  "checked" is when it was
 * last known to be in none.
 *
 * No partition lock may be held; "db" needs no more than its shared parts.
 */
char *
dlock_deadlock_check(DLockDatabase *db, DLockTime checked)
{
	DLockDeadlockCheck check = {.database = db->shared->oid};

	return run_check(db, &check, checked, NULL, NULL);
}

/*
 * Check for a deadlock that the place with an id is part of; without one, a place for which
 * this process listens and has asked.  If there is one, the place is gone: "name" and "owner",
 * unless NULL, are its (palloc'd).  Result and conditions as above.
 *
 * Places are checked once in deadlock_timeout if nothing is stuck, and eight times if a check
 * finds something that it cannot resolve.
 */
char *
dlock_deadlock_check_places(DLockDatabase *db, DLockToken id, DLockBytes *name, DLockBytes *owner)
{
	DLockDeadlockCheck check = {.database = db->shared->oid,.place = id};
	DLockTime	now = dlock_clock_now();
	char	   *circle;

	if (now < (DLockTime) pg_atomic_read_u64(&db->shared->check_places_at))
		return NULL;
	circle = run_check(db, &check, DLOCK_TIME_FOREVER, name, owner);
	if (circle == NULL && check.nstuck > 0)
		pg_atomic_write_u64(&db->shared->check_places_at, (uint64) (now + TIMEOUT / 8));
	return circle;
}
