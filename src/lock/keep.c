/*-------------------------------------------------------------------------
 *
 * keep.c
 *	  Places: requests that stay in a queue though no call waits for them.
 *
 * NOTES
 *	  A place stands in the queue of its lock, and in the list of its client
 *	  (space/place.c), by which a process that listens finds it.  To make one, or to keep
 *	  one that was asked for, is done under its partition lock, like all else with
 *	  requests (lock/queue.c).  Many are left, or given up, at once: in the list first, and
 *	  then the queues of their locks are called, each once.  So a client with many places
 *	  for one lock costs that lock no more than a walk over its queue.
 *
 *	  Nothing here can fail, since all of it is done in the clean-up of calls, too.
 *
 * IDENTIFICATION
 *	  src/lock/keep.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"

#include "base/clock.h"
#include "base/compat.h"
#include "lock/keep.h"
#include "lock/process.h"
#include "lock/queue.h"
#include "space/database.h"
#include "space/holder.h"
#include "space/place.h"

/* How many places are left at a time. */
#define LEAVE_BATCH		1024

/* The longest time between two deadlock checks of a place, in terms of deadlock_timeout. */
#define CHECK_RARELY	8

/*
 * When to check a place next: as a call that waits, after deadlock_timeout, and then when it
 * is twice as old, but no more rarely than is said above.  Places are checked at the same
 * moments, so that a process that listens for many does not wake for each.
 */
static DLockTime
next_check(DLockTime age, DLockTime now)
{
	DLockTime	timeout = (DLockTime) DeadlockTimeout * 1000;
	DLockTime	next = now + Min(Max(age, timeout), (CHECK_RARELY - 1) * timeout);

	return next + timeout - next % timeout;
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
	DLockSpaceLease *other = entry->places ? dlock_place_find(entry, &owner) : NULL;
	bool		is_behind = false;

	if (other != NULL && !dlock_space_is_over(other, now))
	{
		DLockSpaceLease *at = dlock_space_queue(entry);

		while (at != other && at != request)
			at = dlock_space_next(at);
		is_behind = at == other;
	}
	dlock_database_note_deadline(until);
	if (is_behind)
		dlock_place_stay(other, Max(other->confirmed, until), other->deadline);
	else
		dlock_place_add(request, since, until);
	if (other != NULL)
		dlock_space_remove(entry, is_behind ? request : other);
	dlock_queue_call_again(entry, now);
}

/*
 * A place was asked for, and cannot be granted yet.  It is kept until another time, unless
 * that is zero.  True if it is to be checked for a deadlock.  The partition must be locked
 * exclusively.
 */
bool
dlock_keep_stay(DLockSpaceLease *place, DLockTime until, DLockTime now)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(place);
	bool		checks = now >= place->granted_at;
	bool		ends_earlier = until > 0 && until < entry->earliest;
	DLockTime	look_at;

	Assert(place->placed);
	if (checks)
		place->granted_at = next_check(now - place->token, now);
	place->bound_mono = 0;
	(void) dlock_queue_keeps(place, now, place->granted_at, &look_at);
	dlock_place_stay(place, until, Min(look_at, place->granted_at));
	if (until > 0)
		dlock_database_note_deadline(until);

	/* Whoever has the timer is to look earlier. */
	if (ends_earlier)
		dlock_queue_call_again(entry, now);
	return checks;
}

/* This process waits no longer, if it does.  Its request becomes a place, unless "keep" is zero. */
void
dlock_keep_leave(DLockTime keep)
{
	DLockProcessShared *mine = dlock_process_mine();
	DLockPartitionSet set;

	if (keep > 0 && dlock_process_lock(MyProcNumber, mine->database, LW_EXCLUSIVE, &set))
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
 * Call the queues of the locks of a hash that have places, of which some have another end,
 * "end" at the earliest, or no process.  Those that are over go, and with the last one
 * the lock.  Returns when the next one is over.
 */
static DLockTime
call_locks(uint32 hash, DLockTime end)
{
	DLockTime	until = DLOCK_TIME_FOREVER;
	DLockSpaceEntry *next;
	DLockTime	now;

	dlock_partition_lock(hash, LW_EXCLUSIVE);
	now = dlock_clock_now();
	for (DLockSpaceEntry *entry = dlock_space_bucket(hash); entry != NULL; entry = next)
	{
		DLockSpaceLease *first;

		next = dlock_space_next_entry(entry);
		if (entry->hash != hash || !entry->places)
			continue;
		dlock_space_note(entry, end);
		entry->attended = true;
		dlock_queue_call_again(entry, now);
		until = Min(until, dlock_holder_requests_until(entry, now));
		first = dlock_space_queue(entry);
		if (first != NULL && dlock_space_is_over(first, now) && dlock_space_next(first) == NULL &&
			dlock_space_holders(entry) == NULL)
			dlock_space_remove(entry, first);
	}
	dlock_partition_unlock(hash);
	return until;
}

/* Remove the places on locks of a hash that are over.  Returns when to do so again. */
DLockTime
dlock_keep_expire(uint32 hash)
{
	return call_locks(hash, 0);
}

/* Give up a place that an owner has been given, unless it has got another one since. */
void
dlock_keep_undo(Oid database, uint32 hash, const DLockOwner *owner, DLockToken id)
{
	DLockSpaceLease *place = NULL;

	dlock_partition_lock(hash, LW_EXCLUSIVE);
	for (DLockSpaceEntry *entry = dlock_space_bucket(hash); entry != NULL && place == NULL;
		 entry = dlock_space_next_entry(entry))
	{
		if (entry->hash == hash && entry->database == database && entry->places)
			place = dlock_place_find(entry, owner);
	}
	if (place != NULL && place->token == id)
		dlock_queue_remove(place, dlock_clock_now());
	dlock_partition_unlock(hash);
}

static int
compare_hashes(const void *a, const void *b)
{
	uint32		left = *(const uint32 *) a;
	uint32		right = *(const uint32 *) b;

	return (left > right) - (left < right);
}

/* Leave some places, which are kept until a time, and call the queues of their locks. */
static void
leave(const DLockPlaceSet *set, DLockTime until)
{
	uint32		hashes[LEAVE_BATCH];
	int			count;

	dlock_database_note_deadline(until);
	while ((count = dlock_place_leave(set, until, hashes, LEAVE_BATCH)) > 0)
	{
		qsort(hashes, count, sizeof(hashes[0]), compare_hashes);
		for (int i = 0; i < count; i++)
		{
			if (i == 0 || hashes[i] != hashes[i - 1])
				(void) call_locks(hashes[i], until);
		}
	}
}

/*
 * This process listens no longer for the places of a client, which are kept for so long
 * from now on; if it has failed, for no less than they would be.
 */
void
dlock_keep_end_listening(Oid database, Oid role, const DLockBytes *client, DLockTime keep, bool failed)
{
	DLockPlaceSet set = {role, client, database, MyProcNumber, failed};

	dlock_place_end_listening();
	leave(&set, dlock_clock_now() + keep);
}

/* Give up all places of a client, or of a role, in all databases, if that is NULL. */
void
dlock_keep_give_up(Oid database, Oid role, const DLockBytes *client)
{
	DLockPlaceSet set = {role, client, database, -1, false};

	leave(&set, dlock_clock_now());
}
