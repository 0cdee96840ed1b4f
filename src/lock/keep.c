/*-------------------------------------------------------------------------
 *
 * keep.c
 *	  Places: requests that stay in a queue though no call waits for them.
 *
 * NOTES
 *	  A place is called as any request in the queue (lock/queue.c), and wakes the process
 *	  that listens for it; without one, it has its turn for as long as it is kept, its ttl
 *	  at most, and its owner asks for it or does not.
 *
 *	  Nothing in here can fail, since all of it is done in the clean-up of calls, too.
 *
 *	  To leave many places, or to give them up, takes two locks in turn: that of their
 *	  client, to see on which lock the next one is (space/place.c); and the partition of
 *	  that lock, to change some of them, and to call its queue once for these.  They are
 *	  found from the client, and from the last to the first, so the queue is not searched,
 *	  and its timer mostly leaves last.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/fault.h"
#include "lock/keep.h"
#include "lock/process.h"
#include "lock/queue.h"
#include "space/database.h"
#include "space/place.h"
#include "space/space.h"

/* How many places are left under a partition lock at a time. */
#define LEAVE_BATCH		64

/* A place is kept until some time, as long as it has no process. */
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
dlock_keep_make(DLockSpaceLease *request, DLockTime since, DLockTime until, DLockTime now)
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
	dlock_queue_call(entry, now, DLOCK_CALL_AGAIN);
}

/*
 * A place that its owner has asked for cannot be granted yet, and is kept until some time.
 * If that is earlier than before, the queue is called.  A listening process goes on
 * listening.  The partition must be locked exclusively.
 */
void
dlock_keep_stay(DLockSpaceLease *place, DLockTime until, DLockTime now)
{
	bool		shrinks = until < place->confirmed;

	Assert(place->placed);
	keep_until(place, until);
	place->bound_mono = 0;
	if (shrinks && place->process < 0)
		dlock_queue_call(dlock_space_entry_of(place), now, DLOCK_CALL_AGAIN);
}

/*
 * This process listens, and has asked for a place in vain; it asks again at "anyway" at the
 * latest.  The partition must be locked exclusively.
 */
void
dlock_keep_listen(DLockSpaceLease *place, DLockTime now, DLockTime anyway)
{
	DLockTime	until;

	Assert(place->placed);
	dlock_place_set_process(place, MyProcNumber);
	place->called = false;
	place->bound_mono = 0;
	(void) dlock_queue_keeps(place, now, anyway, &until);
}

/* This process waits no longer, if it does.  Its request becomes a place, unless "keep" is zero. */
void
dlock_keep_leave(DLockTime keep)
{
	DLockProcessShared *mine = dlock_process_mine();
	DLockPartitionSet set;

	if (keep > 0 && dlock_process_lock_mine(LW_EXCLUSIVE, &set))
	{
		DLockSpaceLease *request = dlock_process_first(MyProcNumber);
		DLockTime	now = dlock_clock_now();

		dlock_process_end(MyProcNumber, DLOCK_PROCESS_IDLE);
		dlock_keep_make(request, mine->since, now + keep, now);
		dlock_partition_unlock_set(&set);
	}
	dlock_queue_leave();
}

/*
 * Remove a place, by its id and the hashes of its lock and of its client, if it is over, or
 * in any case ("anyway").  Returns until when it is kept; zero if it is gone, or has a
 * process.
 */
DLockTime
dlock_keep_expire(Oid database, uint32 lock, uint32 client, DLockToken id, bool anyway)
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
 * A process leaves places on one lock.  They are kept until the time of the set, or "longer":
 * to their own end if that is later.  Without a time they are given up, unless another process
 * listens for them.
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
				dlock_queue_call(entry, now, DLOCK_CALL_AGAIN);
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
 * This process stops listening for a client's places.  They are kept for "keep" from now on;
 * if it failed, no less than before.  Places without a process that would end sooner are kept
 * so, too.
 */
void
dlock_keep_end_listening(Oid database, Oid role, const DLockBytes *client, DLockTime keep, bool failed)
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
dlock_keep_give_up(Oid database, Oid role, const DLockBytes *client)
{
	DLockPlaceSet set = {
		.role = role,.client = client,.database = database,.process = -1,.until = DLOCK_TIME_FOREVER
	};

	leave_all(&set, false);
}
