/*-------------------------------------------------------------------------
 *
 * queue.c
 *	  Requests that wait: their turns, staying, leaving.
 *
 * NOTES
 *	  A lock is handed off in two steps, as src/README ("Hand-off") argues.  A
 *	  backend that ends what blocks requests gives a *turn* to those
 *	  that can be granted now, and wakes their processes.  A process that has a turn
 *	  takes the lock itself, as it would have done at once had it been free
 *	  (lock/acquire.c).  A turn promises nothing, so a request for several locks, which
 *	  can have one for a lock while another is still held, needs no rules of its own.
 *	  A conversion is woken, but gets no turn: it lasts no longer than the lease that it
 *	  is for.
 *
 *	  A process that waits holds no lock of the server's.  To leave the queue
 *	  it only changes memory, so it can do that during an error or at exit.
 *
 *	  A place is a request that no call waits for.  It gets turns like any other, and
 *	  wakes the process that listens for it; without one, it has its turn for as long as it
 *	  is kept, its ttl at most, and its owner asks for it or does not.
 *
 *	  To leave many places, or to give them up, takes two locks in turn: that of their
 *	  client, to see on which lock the next one is (space/place.c); and the partition of
 *	  that lock, to change some of them, and to give turns once for these.  They are
 *	  found from the client, and from the last to the first, so the queue is not searched,
 *	  and the one that has its timer mostly leaves last.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/fault.h"
#include "base/rule.h"
#include "lock/queue.h"
#include "space/database.h"
#include "space/holder.h"
#include "space/place.h"
#include "space/signal.h"

/* How many places to leave under a partition lock at a time. */
#define LEAVE_BATCH		64

/* Wake the process of a request, if it has one. */
static void
wake(DLockSpaceLease *request)
{
	if (request->process < 0)
		return;
	if (request->placed)
		request->called = true;
	dlock_partition_wake(request->process);
}

/*
 * An owner was granted a lock, or another mode: wake the processes of its other
 * requests for that lock.  Such a request enters the lease now, or waits for its own
 * owner; its process asks, and knows at once.  The partition must be locked exclusively.
 * Cannot fail.
 *
 * The grant of an intent wakes no request for one: an owner may have many.
 */
void
dlock_queue_wake_twins(DLockSpaceEntry *entry, const DLockOwner *owner, DLockPart part)
{
	Assert(dlock_partition_is_mine(entry->hash));
	if (dlock_space_queue(entry) == NULL || dlock_space_requests_of(entry, owner) == 0)
		return;
	for (DLockSpaceLease *request = dlock_space_queue(entry); request != NULL;
		 request = dlock_space_next(request))
	{
		if (request->kind == DLOCK_SPACE_ASKED &&
			(part != DLOCK_PART_INTENT || request->part != DLOCK_PART_INTENT) &&
			dlock_space_is_owned(request, owner))
			wake(request);
	}
}

/* ---- turns ---- */

/*
 * Wake the process of a request if its timer is later than "until".  One whose time has
 * passed is awake or stopped: only set its time.
 */
static void
wake_if_late(DLockSpaceLease *request, DLockTime until, DLockTime now)
{
	bool		later = request->deadline > until;

	if (later || request->deadline <= now)
		request->deadline = until;
	if (later)
		wake(request);
}

/*
 * Wake the process of a conversion that can be made, or whose lease has ended, or if it
 * would ask too late.  Returns the mode that it keeps others out in, as a set.
 */
static uint32
wake_conversion(DLockSpaceLease *request, const DLockHolderCrowd *crowd, uint32 ahead,
				DLockTime now)
{
	DLockSpaceLease *own = dlock_holder_converted(dlock_space_entry_of(request), request, now);
	DLockHolderCrowd others = dlock_holder_without(*crowd, own, now);

	if (own != NULL && dlock_holder_is_in_way(&others, ahead, (DLockMode) request->mode, 0))
		wake_if_late(request, crowd->until, now);
	else
		dlock_partition_wake(request->process);
	return (own != NULL) ? DLOCK_RULE_BIT(request->mode) : 0;
}

/* Has the owner of a request for a lease got one by another request? */
static bool
is_owned_otherwise(DLockSpaceLease *request, DLockTime now)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(request, buffer);

	return request->part != DLOCK_PART_INTENT &&
		dlock_holder_find_owned(dlock_space_entry_of(request), &owner, now) != NULL;
}

/*
 * Does the request right in front of a request have the timer, or rely on one that has?
 * It is blocked then, and has a process and no turn.
 */
static bool
relies_in_front(const DLockSpaceLease *request)
{
	const DLockSpaceLease *previous = dlock_memory_at(request->on_lock.prev);

	return dlock_space_entry_of(request)->queue != dlock_memory_ref(request) &&
		previous->kind == DLOCK_SPACE_ASKED && previous->bound_mono == 0 &&
		previous->process >= 0 && previous->kept;
}

/* Can none of the requests that follow in a queue get a turn now? */
bool
dlock_queue_is_closed(DLockSpaceEntry *entry, const DLockHolderCrowd *crowd, uint32 ahead)
{
	for (int mode = 0; mode < DLOCK_MODES; mode++)
	{
		if ((entry->asked_modes & DLOCK_RULE_BIT(mode)) &&
			!dlock_holder_is_in_way(crowd, ahead, (DLockMode) mode, entry->permits))
			return false;
	}
	return true;
}

/* Give a request a turn, which keeps others out for a time, and wake its process. */
static void
give_turn(DLockSpaceLease *request, DLockTime now)
{
	request->bound_mono = dlock_rule_grant(request->ttl, now, 0).deadline;
	if (request->process < 0)
		request->bound_mono = Min(request->bound_mono, request->confirmed);
	wake(request);
}

/*
 * Give turns to the requests in the queue of a lock that can be granted, and wake the
 * processes that have something else to do now.  The partition must be locked
 * exclusively.
 *
 * Of the requests that are blocked and have a process, the first one has a timer for the end
 * of what blocks it, and gives turns to the others.  The walk ends as soon as everything behind
 * conflicts, so its cost does not depend on how many requests for leases wait; but it goes
 * on to the request that gets the timer, if one may need it.
 */
void
dlock_queue_give_turns(DLockSpaceEntry *entry, DLockTime now, DLockQueueCause cause)
{
	DLockSpaceLease *request = dlock_space_queue(entry);
	DLockHolderCrowd crowd;
	uint32		ahead = 0;
	bool		timed = false;	/* a request has the timer */
	uint32		asked = 0;		/* modes */
	uint32		attended;		/* that have not been met */
	bool		arms = cause != DLOCK_TURNS_ASKED;	/* somebody may need
													 * another timer */

	Assert(dlock_partition_is_mine(entry->hash));
	if (request == NULL)
		return;
	crowd = dlock_holder_survey(entry, now);
	if (!arms && dlock_queue_is_closed(entry, &crowd, 0))
		return;
	attended = entry->nattended;
	for (; request != NULL && request->kind == DLOCK_SPACE_CONVERT; request = dlock_space_next(request))
		ahead |= wake_conversion(request, &crowd, ahead, now);
	for (; request != NULL; request = dlock_space_next(request))
	{
		DLockMode	mode = (DLockMode) request->mode;
		bool		blocked;
		bool		callable;

		asked |= DLOCK_RULE_BIT(mode);
		if (dlock_space_is_over(request, now))
			continue;
		if (request->process >= 0 && attended > 0)
			attended--;

		blocked = dlock_holder_is_in_way(&crowd, ahead, mode, entry->permits);
		callable = cause != DLOCK_TURNS_KEPT || request->kept;
		if (request->bound_mono == 0 && !blocked && callable && !is_owned_otherwise(request, now))
		{
			give_turn(request, now);
			arms = true;
		}

		/*
		 * For those behind, a request whose turn is over does not count; one
		 * that has a turn counts as granted.
		 */
		if (request->bound_mono != 0 && request->bound_mono <= now)
			continue;
		if (request->process < 0)
			crowd.until = Min(crowd.until, request->confirmed);
		if (request->bound_mono != 0)
		{
			crowd.modes |= DLOCK_RULE_BIT(mode);
			crowd.nstrong += (mode == DLOCK_MODE_PERMIT);
			crowd.until = Min(crowd.until, request->bound_mono);
			continue;
		}
		if (blocked)
			request->kept = true;
		if (blocked && request->process >= 0)
		{
			if (!timed)
				wake_if_late(request, crowd.until, now);
			timed = true;
		}

		/*
		 * Its owner has a lease on the lock: its process must ask again,
		 * though it gets no turn.
		 */
		if (!blocked && callable)
			wake(request);
		ahead |= DLOCK_RULE_BIT(mode);
		if (dlock_queue_is_closed(entry, &crowd, ahead) && !(arms && attended > 0 && !timed))
			return;
	}
	entry->asked_modes = asked;
}

/* ---- this process ---- */

/*
 * A request waits longer, and gives up its turn, to get another one later.  Returns when what
 * blocks it may end, so that its process has to ask again; at "anyway" it does so in any case.
 * Its partition must be locked exclusively.
 */
static DLockTime
wait_longer(DLockSpaceLease *request, DLockTime now, DLockTime anyway)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(request);
	DLockSpaceLease *own = NULL;
	DLockTime	until;
	bool		blocked;

	if (request->kind == DLOCK_SPACE_CONVERT)
		own = dlock_holder_converted(entry, request, now);
	blocked = dlock_holder_is_blocked(entry, (DLockMode) request->mode, entry->permits,
									  own, request, now, &until);
	if (own != NULL)
		until = Min(until, own->deadline);

	/*
	 * It waits for another lock, or one in front asks in time and gives it a
	 * turn, too.
	 */
	else if (!blocked || relies_in_front(request))
		until = (!blocked && request->placed) ? now : DLOCK_TIME_FOREVER;
	request->deadline = Min(until, anyway);
	request->kept = blocked || request->placed;
	request->bound_mono = 0;
	return until;
}

/*
 * If the timer of a request of this process has run out, give turns to those that rely on
 * it: the process may wait for another lock, too, and not take this one.  For the
 * first in the queue no turn can have run out, so nothing has changed unless a lease is dead.
 * The partition must be locked exclusively.
 */
static void
pass_on(DLockSpaceLease *request, DLockTime now)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(request);

	if (request->kind != DLOCK_SPACE_ASKED || request->deadline > now)
		return;
	(void) dlock_holder_survey(entry, now);
	request->kept = false;		/* it asks just now */
	if (now >= entry->earliest || dlock_space_queue(entry) != request)
		dlock_queue_give_turns(entry, now, DLOCK_TURNS_KEPT);
}

/*
 * This process has asked in vain, and waits on.  Returns when to ask again at the latest.
 * "anyway" is when it asks in any case, so it need not be woken for what happens later.
 * The partitions of its requests must be locked exclusively.
 */
DLockTime
dlock_queue_stay(DLockTime now, DLockTime anyway)
{
	DLockTime	until = DLOCK_TIME_FOREVER;
	bool		blocked = false;

	for (DLockSpaceLease *request = dlock_process_first(MyProcNumber);
		 request != NULL; request = dlock_space_request_next(request))
	{
		pass_on(request, now);
		until = Min(until, wait_longer(request, now, anyway));
		blocked |= request->kept;
	}

	/* The turns that were given since it asked may let it in. */
	return blocked ? until : now;
}

/*
 * Give turns in the queues in which this process is blocked, so that no request in front of
 * it is overlooked.  In its other queues none blocks it, and all requests for several locks
 * would be woken.
 */
void
dlock_queue_give_turns_ahead(void)
{
	DLockTime	now;

	if (!dlock_process_lock_mine(LW_EXCLUSIVE))
		return;
	now = dlock_clock_now();
	for (DLockSpaceLease *request = dlock_process_first(MyProcNumber);
		 request != NULL; request = dlock_space_request_next(request))
	{
		if (request->kind != DLOCK_SPACE_ASKED || request->kept)
			dlock_queue_give_turns(dlock_space_entry_of(request), now, DLOCK_TURNS_AGAIN);
	}
	dlock_process_unlock_mine();
}

/* ---- leaving ---- */

/*
 * Take a request out of its queue, and give turns in that.  The partition must be locked
 * exclusively.  Cannot fail.
 */
void
dlock_queue_remove(DLockSpaceLease *request, DLockTime now)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(request);

	if (dlock_space_remove(entry, request))
		dlock_queue_give_turns(entry, now, DLOCK_TURNS_AGAIN);
}

/*
 * A lock is opened by force: places without a process are passed by until they are asked
 * for, and turns are given.  The partition must be locked exclusively.
 */
void
dlock_queue_pass_by(DLockSpaceEntry *entry, DLockTime now)
{
	for (DLockSpaceLease *request = entry->places ? dlock_space_queue(entry) : NULL;
		 request != NULL; request = dlock_space_next(request))
	{
		if (request->placed && request->process < 0)
			request->bound_mono = now;
	}
	dlock_queue_give_turns(entry, now, DLOCK_TURNS_AGAIN);
}

/*
 * Move requests for several locks, of these processes, to the end of their queues, whose
 * partitions are locked exclusively.  They keep their order.
 */
void
dlock_queue_move_last(const List *processes, DLockTime now)
{
	ListCell   *at;

	foreach(at, processes)
	{
		for (DLockSpaceLease *request = dlock_process_first(lfirst_int(at));
			 request != NULL; request = dlock_space_request_next(request))
		{
			DLockSpaceEntry *entry = dlock_space_entry_of(request);

			/* It is the last already, and blocks nobody. */
			if (dlock_space_next(request) == NULL)
				continue;
			request->bound_mono = 0;
			dlock_space_requeue(entry, request);
			dlock_queue_give_turns(entry, now, DLOCK_TURNS_AGAIN);
		}
	}
}

/*
 * Take all requests of this process out of their queues, whose partitions are
 * locked exclusively.
 */
void
dlock_queue_remove_mine(DLockTime now)
{
	DLockSpaceLease *next;

	Assert(dlock_partition_set_is_mine(&dlock_process_at(MyProcNumber)->set));
	for (DLockSpaceLease *request = dlock_process_first(MyProcNumber);
		 request != NULL; request = next)
	{
		next = dlock_space_request_next(request);
		dlock_queue_remove(request, now);
	}
	dlock_process_end(MyProcNumber);
}

/* Wait no longer, if this process does.  Cannot fail. */
void
dlock_queue_leave(void)
{
	if (dlock_process_lock_mine(LW_EXCLUSIVE))
	{
		dlock_queue_remove_mine(dlock_clock_now());
		dlock_process_unlock_mine();
	}
}

/*
 * The extension is no longer in this database, or its store is loaded: end all waits for its
 * locks.  None can begin, since the caller has locked the store or the load.  Processes that
 * watch or listen are woken, and find that.
 */
void
dlock_queue_dismiss(Oid database)
{
	dlock_partition_lock_set(&dlock_partition_all, LW_EXCLUSIVE);
	for (int process = 0; process < MaxBackends; process++)
	{
		DLockSpaceLease *request = dlock_process_first(process);
		DLockSpaceLease *next;

		if (request == NULL || dlock_space_entry_of(request)->database != database)
			continue;
		for (; request != NULL; request = next)
		{
			next = dlock_space_request_next(request);
			dlock_space_remove(dlock_space_entry_of(request), request);
		}
		dlock_process_end(process);
		dlock_partition_wake(process);
	}
	dlock_partition_unlock_set(&dlock_partition_all);
	dlock_place_wake_listeners(database);
	dlock_signal_tell_all();
}

/* ---- places; nothing in here can fail, since calls do it in their clean-up, too ---- */

/* A place is kept until some time; while it has a process that does not matter. */
static void
keep_until(DLockSpaceLease *place, DLockTime until)
{
	Assert(dlock_partition_is_mine(dlock_space_entry_of(place)->hash));
	place->confirmed = until;
	dlock_database_note_deadline(until);
}

/*
 * A request that no call waits for becomes a place, kept until some time.  An owner has
 * one place on a lock: of two the one in front stays.  The partition must be locked
 * exclusively.
 */
void
dlock_queue_keep(DLockSpaceLease *request, DLockTime since, DLockTime until, DLockTime now)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(request);
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(request, buffer);
	DLockSpaceLease *other = (dlock_space_requests_of(entry, &owner) > 1) ?
		dlock_place_find(entry, &owner) : NULL;
	DLockSpaceLease *first = dlock_space_queue(entry);

	if (other != NULL)
		until = Max(until, other->confirmed);
	while (other != NULL && first != other && first != request)
		first = dlock_space_next(first);
	if (other != NULL && first == other && !dlock_space_is_over(other, now))
	{
		keep_until(other, until);
		if (other->bound_mono <= now)
			other->bound_mono = 0;	/* it has been asked for */
		dlock_space_remove(entry, request);
	}
	else
	{
		dlock_place_add(request, since, until);
		dlock_database_note_deadline(until);
		if (other != NULL)
			dlock_space_remove(entry, other);
	}
	dlock_queue_give_turns(entry, now, DLOCK_TURNS_AGAIN);
}

/*
 * A place that its owner has asked for cannot be granted yet, and is kept until some time.
 * If that is earlier than before, and no process listens, turns are given.  The
 * partition must be locked exclusively.
 */
void
dlock_queue_keep_on(DLockSpaceLease *place, DLockTime until, DLockTime now)
{
	bool		shrinks = until < place->confirmed;

	Assert(place->placed);
	keep_until(place, until);
	place->bound_mono = 0;
	if (shrinks && place->process < 0)
		dlock_queue_give_turns(dlock_space_entry_of(place), now, DLOCK_TURNS_AGAIN);
}

/*
 * This process listens, and has asked for a place in vain; it asks again at "anyway" at the
 * latest.  The partition must be locked exclusively.
 */
void
dlock_queue_attend(DLockSpaceLease *place, DLockTime now, DLockTime anyway)
{
	Assert(place->placed);
	dlock_place_set_process(place, MyProcNumber);
	place->called = false;
	(void) wait_longer(place, now, anyway);
}

/* This process waits no longer, if it does.  Its request becomes a place, unless "keep" is zero. */
void
dlock_queue_leave_kept(DLockTime keep)
{
	if (keep > 0 && dlock_process_lock_mine(LW_EXCLUSIVE))
	{
		DLockSpaceLease *request = dlock_process_first(MyProcNumber);
		DLockTime	now = dlock_clock_now();

		dlock_process_end(MyProcNumber);
		dlock_queue_keep(request, dlock_process_at(MyProcNumber)->since, now + keep, now);
		dlock_process_unlock_mine();
	}
	dlock_queue_leave();
}

/*
 * Remove a place, by its id and the hashes of its lock and of its client, if it is over, or
 * in any case ("anyway").  Returns until when it is kept; zero if it is gone, or has a
 * process.
 */
DLockTime
dlock_queue_expire(Oid database, uint32 lock, uint32 client, DLockToken id, bool anyway)
{
	DLockSpaceLease *place = NULL;
	DLockTime	until = 0;
	DLockTime	now;

	dlock_partition_lock(lock, LW_EXCLUSIVE);
	now = dlock_clock_now();
	for (DLockSpaceEntry *entry = dlock_space_bucket(lock); entry != NULL && place == NULL;
		 entry = dlock_space_next_entry(entry))
	{
		if (entry->hash == lock && entry->database == database)
			place = dlock_place_find_id(entry, client, id);
	}
	if (place != NULL && (anyway || dlock_space_is_over(place, now)))
		dlock_queue_remove(place, now);
	else if (place != NULL && place->process < 0)
		until = place->confirmed;
	dlock_partition_unlock(lock);
	return until;
}

/*
 * Leave places of a set on one lock.  They are kept until the time of the set; with "longer",
 * until their own if that is later.  If the set has none, they are given up, unless the set
 * is that of a process and another one listens.
 */
static void
leave_some(const DLockPlaceSet *set, DLockSpaceLease **places, int count, bool longer)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(places[0]);
	DLockTime	now = dlock_clock_now();
	bool		is_kept = set->until != DLOCK_TIME_FOREVER;

	for (int i = 0; i < count; i++)
	{
		bool		is_last = i == count - 1;
		bool		over = dlock_space_is_over(places[i], now);

		if (is_kept && !over)
			keep_until(places[i], Max(set->until, longer ? places[i]->confirmed : 0));
		if (!over && (is_kept || (set->process >= 0 && dlock_place_listener(places[i]) >= 0)))
		{
			dlock_place_attend(places[i]);
			if (is_last)
				dlock_queue_give_turns(entry, now, DLOCK_TURNS_AGAIN);
		}
		else if (is_last)
			dlock_queue_remove(places[i], now);
		else
			dlock_space_remove(entry, places[i]);
	}
}

/* The same with all places of a set. */
static void
leave_all(DLockPlaceSet *set, bool longer)
{
	uint32		hash;

	while (dlock_place_seek(set, &hash))
	{
		DLockSpaceLease *places[LEAVE_BATCH];
		int			count;

		DLOCK_FAULT_STOP("leave");
		dlock_partition_lock(hash, LW_EXCLUSIVE);
		count = dlock_place_gather(set, hash, places, LEAVE_BATCH);
		if (count > 0)
			leave_some(set, places, count, longer);
		dlock_partition_unlock(hash);
	}
}

/*
 * This process stops listening for a client's places.  They are kept for "keep" from now on
 * (zero: given up); if it failed, no less than before.  So are places without a process that
 * would end sooner.
 */
void
dlock_queue_end_listening(Oid database, Oid role, const DLockBytes *client, DLockTime keep, bool failed)
{
	DLockTime	now = dlock_clock_now();
	DLockPlaceSet set = {
		.role = role,.client = client,.database = database,.process = MyProcNumber,
		.now = now,.until = (keep > 0 || failed) ? now + keep : DLOCK_TIME_FOREVER
	};

	dlock_place_end_listening();
	leave_all(&set, failed);
}

/* Give up all places of a client; if it is NULL, of a role, in all databases. */
void
dlock_queue_give_up(Oid database, Oid role, const DLockBytes *client)
{
	DLockPlaceSet set = {
		.role = role,.client = client,.database = database,.process = -1,.until = DLOCK_TIME_FOREVER
	};

	leave_all(&set, false);
}
