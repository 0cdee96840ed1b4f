/*-------------------------------------------------------------------------
 *
 * dlock_deadlock.c
 *	  Owners that wait for each other in a circle.
 *
 * NOTES
 *	  A process that waits waits for the owners of the leases in its way, and
 *	  for the processes in front of it in the queue.  An owner that waits, in
 *	  whichever of its processes, does not go on to release what it holds; nor
 *	  does a process that waits end what is bound to it, for whatever role it
 *	  acquired that.  If
 *	  following these edges from a process leads back to it, nobody in the
 *	  circle will ever go on: at least not before a lease runs out.
 *
 *	  A semaphore is different: there, it is enough if one of the holders goes
 *	  on.  So it is first worked out who is stuck: everybody who waits, less
 *	  those for whom all in their way can go on, or one of the holders if it is
 *	  a semaphore; and this again until nobody is left to be taken away.  The
 *	  circle is looked for among the rest.
 *
 *	  Each process looks for itself, after it has waited for deadlock_timeout
 *	  and again each time that has passed: an edge can also appear without
 *	  anybody beginning to wait, when a conversion or another session of an
 *	  owner gets a lock.  It looks while it has all partitions locked
 *	  exclusively, as the server's own detector does with its lock table.  So
 *	  what it sees is one instant, and as it leaves the queue before it gives
 *	  the locks up, no second process of the circle finds it, too.
 *
 *	  A request for several locks holds nothing while it waits.  If a circle
 *	  is closed only by its place in a queue, it is nobody's mistake and there
 *	  is a way out: the request goes to the end of all its queues.
 *
 * IDENTIFICATION
 *	  src/dlock_deadlock.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"

#include "dlock_clock.h"
#include "dlock_deadlock.h"
#include "dlock_grant.h"
#include "dlock_name.h"
#include "dlock_queue.h"
#include "dlock_rule.h"
#include "dlock_wait.h"

/* A process waits, with one of its requests, for somebody. */
typedef struct DLockDeadlockEdge
{
	DLockSpaceLease *request;
	DLockSpaceLease *blocker;
} DLockDeadlockEdge;

typedef struct DLockDeadlockSearch
{
	Oid			database;
	DLockTime	now;
	int			me;
	DLockOwner	my_owner;
	bool	   *stuck;			/* by process */
	bool	   *visited;		/* likewise */
	DLockDeadlockEdge *path;	/* from me to where the search is */
	int			length;
	bool		found;
} DLockDeadlockSearch;

/* A step of the search, as the visitor of blockers gets it. */
typedef struct DLockDeadlockStep
{
	DLockDeadlockSearch *search;
	DLockSpaceLease *request;
} DLockDeadlockStep;

static void follow(DLockSpaceLease *blocker, void *arg);

/* What a process waits for with a lock; NULL if it waits for none. */
static DLockSpaceLease *
first_request(DLockDeadlockSearch *search, int process)
{
	DLockWaitShared *wait = dlock_wait_of(process);

	if (wait->state != DLOCK_WAIT_WAITING || wait->database != search->database ||
		wait->kind == DLOCK_SPACE_WATCH)
		return NULL;
	return dlock_space_request_first(wait->first);
}

/*
 * Is a holder stuck: the process that the lease is bound to, or any process of
 * its owner?
 */
static bool
is_holder_stuck(DLockDeadlockSearch *search, const DLockSpaceLease *holder)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(holder, buffer);

	if (holder->process >= 0 && search->stuck[holder->process])
		return true;
	for (int process = 0; process < dlock_wait_processes(); process++)
	{
		if (search->stuck[process] &&
			dlock_space_is_owned(first_request(search, process), &owner))
			return true;
	}
	return false;
}

/* What is in the way of a request, and goes on or not. */
typedef struct DLockDeadlockTally
{
	DLockDeadlockSearch *search;
	int			stuck_holders;
	int			other_holders;
	int			stuck_ahead;
} DLockDeadlockTally;

/* A visitor of blockers. */
static void
tally(DLockSpaceLease *blocker, void *arg)
{
	DLockDeadlockTally *counts = arg;
	DLockDeadlockSearch *search = counts->search;

	if (blocker->kind != DLOCK_SPACE_HELD)
		counts->stuck_ahead += search->stuck[blocker->process];
	/* What is only closed opens by itself. */
	else if (dlock_rule_is_live(blocker->deadline, search->now) &&
			 is_holder_stuck(search, blocker))
		counts->stuck_holders++;
	else
		counts->other_holders++;
}

/* Is there no way for a process to go on, given who else is stuck? */
static bool
is_stuck(DLockDeadlockSearch *search, int process)
{
	for (DLockSpaceLease *request = first_request(search, process); request != NULL;
		 request = dlock_space_request_next(request))
	{
		DLockDeadlockTally counts = {search, 0, 0, 0};

		dlock_queue_blockers(request, search->now, tally, &counts);
		if (counts.stuck_ahead > 0)
			return true;
		if (counts.stuck_holders > 0 &&
			(request->mode != DLOCK_MODE_PERMIT || counts.other_holders == 0))
			return true;
	}
	return false;
}

/* Work out who is stuck. */
static void
find_stuck(DLockDeadlockSearch *search)
{
	bool		changed;

	for (int process = 0; process < dlock_wait_processes(); process++)
		search->stuck[process] = first_request(search, process) != NULL;
	do
	{
		changed = false;
		for (int process = 0; process < dlock_wait_processes(); process++)
		{
			if (search->stuck[process] && !is_stuck(search, process))
			{
				search->stuck[process] = false;
				changed = true;
			}
		}
	} while (changed);
}

static void
search_from(DLockDeadlockSearch *search, int process)
{
	DLockSpaceLease *request = first_request(search, process);

	search->visited[process] = true;
	for (; request != NULL && !search->found; request = dlock_space_request_next(request))
	{
		DLockDeadlockStep step = {search, request};

		dlock_queue_blockers(request, search->now, follow, &step);
	}
}

/* Go on from all processes that a holder waits in. */
static void
search_from_holder(DLockDeadlockSearch *search, const DLockSpaceLease *holder)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(holder, buffer);

	if (holder->process == search->me || dlock_name_is_owner(&owner, &search->my_owner))
		search->found = true;
	for (int process = 0; process < dlock_wait_processes() && !search->found; process++)
	{
		if (!search->stuck[process] || search->visited[process])
			continue;
		if (holder->process == process ||
			dlock_space_is_owned(first_request(search, process), &owner))
			search_from(search, process);
	}
}

/* Somebody is in the way: go on from there. */
static void
follow(DLockSpaceLease *blocker, void *arg)
{
	DLockDeadlockStep *step = arg;
	DLockDeadlockSearch *search = step->search;

	if (search->found)
		return;
	search->path[search->length++] = (DLockDeadlockEdge) {step->request, blocker};
	if (blocker->kind == DLOCK_SPACE_HELD)
	{
		/* What is only closed opens by itself. */
		if (dlock_rule_is_live(blocker->deadline, search->now))
			search_from_holder(search, blocker);
	}
	else if (blocker->process == search->me)
		search->found = true;
	else if (search->stuck[blocker->process] && !search->visited[blocker->process])
		search_from(search, blocker->process);
	if (!search->found)
		search->length--;
}

/* Look for a circle through this process, among those who are stuck. */
static bool
find_circle_of_stuck(DLockDeadlockSearch *search)
{
	memset(search->visited, 0, dlock_wait_processes() * sizeof(bool));
	search->length = 0;
	search->found = false;
	search_from(search, search->me);
	return search->found;
}

/*
 * Look for a circle through this process.
 *
 * Working out who is stuck is the more expensive part, so it is only done once
 * there is a circle if everybody who waits is taken to be.
 */
static bool
find_circle(DLockDeadlockSearch *search)
{
	for (int process = 0; process < dlock_wait_processes(); process++)
		search->stuck[process] = first_request(search, process) != NULL;
	if (!find_circle_of_stuck(search))
		return false;
	find_stuck(search);
	return search->stuck[search->me] && find_circle_of_stuck(search);
}

/*
 * If a request for several locks is in the circle only by its place in a
 * queue, let it lose that; false if there is none.
 */
static bool
requeue_unit(DLockDeadlockSearch *search, DLockWork *work)
{
	for (int i = 0; i < search->length; i++)
	{
		DLockSpaceLease *blocker = search->path[i].blocker;
		DLockWaitShared *wait;

		if (blocker->kind != DLOCK_SPACE_ASKED)
			continue;
		wait = dlock_wait_of(blocker->process);
		if (wait->count == 1)
			continue;
		for (DLockSpaceLease *request = dlock_space_request_first(wait->first);
			 request != NULL; request = dlock_space_request_next(request))
			dlock_space_requeue(dlock_space_request_entry(request), request);
		for (DLockSpaceLease *request = dlock_space_request_first(wait->first);
			 request != NULL; request = dlock_space_request_next(request))
			dlock_grant_hand_off(work, dlock_space_request_entry(request));
		return true;
	}
	return false;
}

/* The circle in words, a line for each edge. */
static char *
describe_circle(DLockDeadlockSearch *search)
{
	StringInfoData text;

	initStringInfo(&text);
	for (int i = 0; i < search->length; i++)
	{
		DLockSpaceLease *request = search->path[i].request;
		char		buffers[3][Max(DLOCK_NAME_MAX, DLOCK_OWNER_MAX)];
		DLockBytes	name = dlock_space_entry_name(dlock_space_request_entry(request), buffers[0]);
		DLockBytes	waiter = dlock_space_lease_owner(request, buffers[1]).name;
		DLockBytes	blocker = dlock_space_lease_owner(search->path[i].blocker, buffers[2]).name;

		appendStringInfo(&text, "%sOwner \"%.*s\" waits for %s on lock \"%.*s\" behind owner \"%.*s\".",
						 (i > 0) ? "\n" : "", waiter.len, waiter.data,
						 dlock_name_of_mode((DLockMode) request->mode),
						 name.len, name.data, blocker.len, blocker.data);
	}
	return text.data;
}

/*
 * Look for a deadlock that this process is part of.  If there is one, it
 * leaves the queue, and the result describes the circle; else NULL.
 *
 * No partition lock may be held; "db" needs no more than its shared parts.
 */
char *
dlock_deadlock_check(DLockDatabase *db)
{
	DLockDeadlockSearch search;
	DLockWork work;
	DLockSpaceSet everything;
	DLockSpaceLease *mine;
	char		buffer[DLOCK_OWNER_MAX];
	char	   *circle = NULL;

	search.database = db->shared->oid;
	search.me = dlock_wait_me();
	search.stuck = palloc(dlock_wait_processes() * sizeof(bool));
	search.visited = palloc(dlock_wait_processes() * sizeof(bool));
	search.path = palloc((dlock_wait_processes() + 1) * sizeof(DLockDeadlockEdge));
	dlock_space_set_fill(&everything);

	dlock_work_begin(&work, db);
	dlock_space_lock_set(&everything, LW_EXCLUSIVE);
	work.now = search.now = dlock_clock_now();
	mine = first_request(&search, search.me);
	if (mine != NULL)
	{
		int			attempts = dlock_wait_processes();

		search.my_owner = dlock_space_lease_owner(mine, buffer);
		while (circle == NULL && dlock_wait_of(search.me)->state == DLOCK_WAIT_WAITING &&
			   find_circle(&search))
		{
			if (attempts-- > 0 && requeue_unit(&search, &work))
				continue;
			circle = describe_circle(&search);
			dlock_queue_remove_mine(&work);
		}
	}
	dlock_space_unlock_set(&everything);
	dlock_grant_finish(&work);
	pfree(search.stuck);
	pfree(search.visited);
	pfree(search.path);
	return circle;
}
