/*-------------------------------------------------------------------------
 *
 * grant.c
 *	  What changes who holds a lock: grants, ends, and hand-offs.
 *
 * NOTES
 *	  These are the steps that the operations of lock/manager.c are made of.
 *	  A step runs under the partition locks of all that it touches.  It either
 *	  makes its change as a whole, first the page and its WAL record, then
 *	  memory; or it finds that something is missing, a page that is not pinned
 *	  or a token that is not reserved, changes nothing, and says so.  The
 *	  caller then gives up its locks, has the missing thing fetched
 *	  (dlock_grant_fetch), and starts over, since the world may have changed
 *	  meanwhile.  So nothing waits for a heavyweight lock or for a page to be
 *	  read, and nothing can throw, while a change is half made.  (What a change
 *	  can wait for is the content lock of a page that is just being written
 *	  out, and room in the WAL buffers, as any change of any page can.)
 *
 *	  A lock is handed off by the process that ends a lease on it: under the same
 *	  partition lock it makes the leases for the requests that can be granted
 *	  now, in the order of the queue, and sets their latches.  The request
 *	  in the queue carries all that the lease needs, so this takes no more
 *	  than a record.  There is no moment at which the lock is free and a
 *	  newcomer could have it.
 *
 *	  A request can be granted if it conflicts with no lease on the lock and with
 *	  no request in front of it in the queue.  Being compatible with all in
 *	  front, it delays none of them.
 *
 *	  Three kinds of requests are not simply granted.  One for several locks
 *	  needs all their partitions, so it is noted and looked at afterwards
 *	  (dlock_grant_finish).  A conversion changes a lease that its holder is
 *	  using, so it is left to that process, which is only woken.  And if what a
 *	  grant needs is not at hand, the process that waits for it is woken, to
 *	  fetch it and serve the queue itself (dlock_queue_serve): a process
 *	  that ends a lease has done its own work by then, which must not fail for
 *	  another's.  The same where pages cannot be changed, as at the end of a
 *	  transaction.  Should the process that was woken not get to run, those
 *	  behind it do the same at their next look, at most eight times
 *	  deadlock_timeout later.
 *
 *	  A lease keeps others out until its deadline, or longer if the lock is to
 *	  stay closed for a while after it.  A lease that is over in both respects
 *	  is dead.  Dead leases stay where they are until somebody wants the lock,
 *	  or the reaper comes; whoever grants a lease erases the dead ones of the
 *	  lock first.  So at any point of the WAL the leases of a lock that are
 *	  live on disk are compatible, whichever records a crash cuts off.  An
 *	  intent has no record of its own, so what is erased for it is its path's,
 *	  and all parts of a path go together.
 *
 * IDENTIFICATION
 *	  src/lock/grant.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/clock.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/stat.h"
#include "lock/grant.h"
#include "space/holder.h"
#include "space/slot.h"
#include "space/wait.h"
#include "store/store.h"

/* ---- steps ---- */

/* Take a lease away, from disk and from memory.  Its page is pinned. */
static void
erase_lease(DLockWork *work, DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	DLockDatabase *db = work->db;
	DLockSlot	slot = lease->slot;

	if (slot != DLOCK_SLOT_NONE)
		work->lsn = dlock_store_erase(dlock_work_page(work, slot), slot);
	dlock_space_remove(entry, lease);
	if (slot != DLOCK_SLOT_NONE)
		dlock_slot_free(&db->shared->slots, slot);
}

/*
 * A part of a lease on a path is dead.  All parts have one record on disk, and
 * end together, under the locks of all of the path.
 */
static void
note_path(DLockWork *work, DLockSpaceEntry *entry, DLockSpaceLease *part)
{
	char		buffer[DLOCK_NAME_MAX];
	DLockBytes	path = dlock_holder_path(entry, part, buffer);

	work->missing_path = part->token;
	work->path_len = path.len;
	memcpy(work->path, path.data, path.len);
}

/*
 * Erase the dead leases of a lock.  If nobody is left, its entry is gone, too.
 */
bool
dlock_grant_tidy(DLockWork *work, DLockSpaceEntry *entry)
{
	DLockSpaceLease *lease = dlock_space_holders(entry);
	DLockSpaceLease *next;
	bool		is_last = false;

	if (work->now < entry->earliest)
		return true;
	for (; lease != NULL; lease = next)
	{
		next = dlock_space_next(lease);
		if (dlock_holder_blocks_until(lease) <= work->now)
		{
			bool		expired = !lease->stopped;

			if (lease->part != DLOCK_PART_WHOLE)
			{
				note_path(work, entry, lease);
				return false;
			}
			if (lease->slot != DLOCK_SLOT_NONE && !dlock_work_pin(work, lease->slot))
				return false;
			is_last = entry->nholders == 1 && dlock_space_queue(entry) == NULL;
			erase_lease(work, entry, lease);
			dlock_stat_count(DLOCK_STAT_EXPIRY, expired);
		}
	}
	if (!is_last)
		dlock_space_refresh(entry);
	return true;
}

/* Write a lease into its slot, whose page is pinned. */
XLogRecPtr
dlock_grant_write(DLockWork *work, DLockSlot slot, const DLockLeaseValue *lease)
{
	work->lsn = dlock_store_write(dlock_work_page(work, slot), slot, lease);
	return work->lsn;
}

/* A lease that is held, as it is to be on disk. */
static DLockLeaseValue
value_on_disk(DLockWork *work, DLockSpaceEntry *entry, DLockSpaceLease *lease,
			  DLockHolderTexts *texts)
{
	DLockLeaseValue value = dlock_holder_value(entry, lease, texts);
	TimestampTz wall = dlock_clock_wall();

	value.origin = dlock_clock_origin();
	value.term.bound_wall = dlock_rule_bound_wall(lease->bound_mono, work->now, wall);
	value.min_hold = 0;
	if (lease->min_until > work->now)
		value.min_hold = lease->min_until - work->now + Max(0, wall - lease->granted_at);
	return value;
}

/* Write a lease that is held into its slot, whose page is pinned, once more. */
void
dlock_grant_rewrite(DLockWork *work, DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	DLockHolderTexts texts;
	DLockLeaseValue value = value_on_disk(work, entry, lease, &texts);

	lease->lsn = dlock_grant_write(work, lease->slot, &value);
	lease->unwritten = false;
}

/*
 * Have a lease that was changed in memory alone written; false if its page has
 * to be fetched.
 */
bool
dlock_grant_write_back(DLockWork *work, DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	if (!lease->unwritten)
		return true;
	if (!dlock_work_pin(work, lease->slot))
		return false;
	dlock_grant_rewrite(work, entry, lease);
	return true;
}

/*
 * Give a lease another payload, in "slot", which is the one that it has or a free
 * one of another class.  The pages of both are pinned, and there is memory for a
 * lease.  Returns the lease, which is at another place; the old one is gone.
 */
DLockSpaceLease *
dlock_grant_replace(DLockWork *work, DLockSpaceEntry *entry, DLockSpaceLease *lease,
					const DLockBytes *payload, DLockSlot slot)
{
	DLockSlot	old = lease->slot;
	DLockHolderTexts texts;
	DLockLeaseValue value = dlock_holder_value(entry, lease, &texts);
	DLockSpaceLease *changed;

	value.payload = *payload;
	changed = dlock_space_hold(entry->database, entry->hash, &value, slot, lease->process,
							   lease->lsn);
	changed->min_until = lease->min_until;
	dlock_space_remove(entry, lease);

	if (slot == DLOCK_SLOT_NONE)
		return changed;
	if (slot == old)
	{
		dlock_grant_rewrite(work, entry, changed);
		return changed;
	}
	value = value_on_disk(work, entry, changed, &texts);
	changed->lsn = work->lsn = dlock_store_move(dlock_work_page(work, old), old,
												dlock_work_page(work, slot), slot, &value);
	dlock_slot_free(&work->db->shared->slots, old);
	return changed;
}

/*
 * Log what has changed about a lease, whose page is pinned.  The term is what
 * recovery shall go by.
 */
void
dlock_grant_log_state(DLockWork *work, DLockSpaceLease *lease, const DLockTerm *term)
{
	DLockLeaseValue value;

	/* The page has a token or a mode that was undone: write all of it. */
	if (lease->unwritten)
	{
		DLockHolderTexts texts;

		value = value_on_disk(work, dlock_space_entry_of(lease), lease, &texts);
		value.term = *term;
		lease->lsn = dlock_grant_write(work, lease->slot, &value);
		lease->unwritten = false;
		return;
	}
	value.term = *term;
	value.origin = dlock_clock_origin();
	value.delay = lease->delay;
	value.holds = lease->holds;
	lease->lsn = work->lsn = dlock_store_set_state(dlock_work_page(work, lease->slot), lease->slot, &value);
}

/* ---- hand-off ---- */

/* Make the lease that is asked for; its page is pinned. */
static void
make_lease(DLockWork *work, DLockSpaceEntry *entry, DLockSpaceLease *request,
		   DLockToken token, TimestampTz wall)
{
	DLockTime	min_hold = request->min_until;
	DLockTerm	term;

	request->granted_at = wall;
	term = dlock_rule_grant(request->ttl, work->now, request->granted_at);
	request->token = token;
	request->deadline = term.deadline;
	request->bound_mono = term.bound_mono;
	request->min_until = (min_hold > 0) ? work->now + min_hold : 0;
	if (request->bind == DLOCK_BIND_NONE)
		request->process = -1;

	if (request->slot != DLOCK_SLOT_NONE)
	{
		DLockHolderTexts texts;
		DLockLeaseValue value = dlock_holder_value(entry, request, &texts);

		value.origin = dlock_clock_origin();
		value.term = term;
		value.min_hold = min_hold;
		request->lsn = dlock_grant_write(work, request->slot, &value);
	}
	dlock_space_promote(entry, request);
	dlock_stat_count(DLOCK_STAT_GRANT, request->part != DLOCK_PART_INTENT);
	dlock_stat_count(DLOCK_STAT_HANDOFF, request->part != DLOCK_PART_INTENT);
	dlock_database_note_deadline(work->db->shared, dlock_holder_blocks_until(request));
}

/* Tell a process that it has what it waits for. */
static void
tell_granted(int process, DLockToken token, XLogRecPtr lsn)
{
	DLockWaitShared *wait = dlock_wait_of(process);
	Oid			database = wait->database;
	uint32		owner = wait->owner;

	/* The place is the process's own again with this. */
	wait->token = token;
	wait->lsn = lsn;
	dlock_wait_leave(process, DLOCK_WAIT_GRANTED);
	dlock_wait_wake(process);
	dlock_wait_owner_gained(database, owner);
}

/* Grant a request that can be granted. */
static bool
grant_request(DLockWork *work, DLockSpaceEntry *entry, DLockSpaceLease *request)
{
	int			process = request->process;
	DLockToken	token;

	if (request->slot != DLOCK_SLOT_NONE && !dlock_work_pin(work, request->slot))
		return false;
	if (!dlock_work_tokens(work, 1, &token))
		return false;
	make_lease(work, entry, request, token, dlock_clock_wall());
	tell_granted(process, token, request->lsn);
	return true;
}

/* Look at a request for several locks when the partitions are unlocked. */
static void
note_unit(DLockWork *work, int process)
{
	uint32		serial = dlock_wait_of(process)->serial;

	for (int i = 0; i < work->nunits; i++)
	{
		if (work->units[i].process == process)
		{
			/* It asks anew, and its turn in dlock_grant_finish() may be over. */
			if (work->units[i].serial != serial)
				dlock_wait_wake(process);
			work->units[i].serial = serial;
			return;
		}
	}
	if (work->nunits == DLOCK_WORK_UNITS || work->db->rel == NULL)
	{
		dlock_wait_wake(process);
		return;
	}
	work->units[work->nunits].process = process;
	work->units[work->nunits].serial = serial;
	work->nunits++;
}

/* Wake a process that would look at a lock later than the lock changes. */
static void
wake_if_late(DLockSpaceLease *request, DLockTime until)
{
	if (request->deadline > until)
	{
		request->deadline = until;
		dlock_wait_wake(request->process);
	}
}

/* Can a conversion be made, as far as the lock's holders are concerned? */
static bool
is_convertible(DLockSpaceEntry *entry, const DLockSpaceLease *request, uint32 ahead,
			   DLockTime now)
{
	DLockSpaceLease *own = dlock_space_find_part(entry, request->token);
	DLockHolderCrowd crowd = dlock_holder_survey(entry, own, now);

	return !dlock_holder_is_in_way(&crowd, ahead, (DLockMode) request->mode, 0);
}

/* Is none of the requests that follow in a queue to be granted now? */
static bool
is_closed(DLockSpaceEntry *entry, const DLockHolderCrowd *crowd, uint32 ahead)
{
	for (int mode = 0; mode < DLOCK_MODES; mode++)
	{
		if ((entry->asked_modes & DLOCK_RULE_BIT(mode)) &&
			!dlock_holder_is_in_way(crowd, ahead, (DLockMode) mode, entry->permits))
			return false;
	}
	return true;
}

/*
 * Grant the requests in the queue of a lock that can be granted, and wake the
 * processes that have something else to do now.  To be called after each change
 * of who holds the lock, or of who waits.
 *
 * Only the first request that stays in the queue has a timer for the end of the
 * leases in its way.  It ends as soon as everything behind conflicts, so what
 * it costs does not depend on how many wait.
 *
 * Requests for several locks are noted, for dlock_grant_finish().
 */
void
dlock_grant_hand_off(DLockWork *work, DLockSpaceEntry *entry)
{
	DLockSpaceLease *request = dlock_space_queue(entry);
	DLockSpaceLease *next;
	DLockHolderCrowd crowd;
	uint32		ahead = 0;
	bool		is_first = true;
	bool		tidy;

	if (request == NULL)
		return;

	/* Where the dead are still on disk, nobody may stand beside them there. */
	tidy = dlock_grant_tidy(work, entry);
	crowd = dlock_holder_survey(entry, NULL, work->now);
	for (; request != NULL; request = next)
	{
		DLockMode	mode = (DLockMode) request->mode;
		char		buffer[DLOCK_OWNER_MAX];
		DLockOwner	owner = dlock_space_lease_owner(request, buffer);

		next = dlock_space_next(request);
		if (!dlock_holder_is_waiting(entry, request, work->now))
		{
			dlock_wait_wake(request->process);
			continue;
		}

		if (request->kind == DLOCK_SPACE_CONVERT)
		{
			if (is_convertible(entry, request, ahead, work->now))
				dlock_wait_wake(request->process);
			else
				wake_if_late(request, crowd.until);
			ahead |= DLOCK_RULE_BIT(mode);
			continue;
		}

		if (dlock_holder_is_in_way(&crowd, ahead, mode, entry->permits))
		{
			if (is_first)
				wake_if_late(request, crowd.until);
		}
		else if (request->part != DLOCK_PART_INTENT &&
				 dlock_space_find_owned(entry, &owner, work->now) != NULL)
			dlock_wait_wake(request->process);
		else if (dlock_wait_of(request->process)->count > 1)
			note_unit(work, request->process);
		else if ((tidy || request->slot == DLOCK_SLOT_NONE) &&
				 grant_request(work, entry, request))
		{
			crowd.modes |= DLOCK_RULE_BIT(mode);
			crowd.permits++;
			crowd.until = Min(crowd.until, dlock_holder_blocks_until(request));
			continue;
		}
		else if (work->serving)
			work->unserved = true;
		else
			dlock_wait_wake(request->process);

		is_first = false;
		ahead |= DLOCK_RULE_BIT(mode);
		if (is_closed(entry, &crowd, ahead))
			break;
	}
}

/*
 * A lease has been granted that leaves no room for another: wake the processes
 * that watch, or that have to look at the lock earlier than they mean to.
 */
static void
tell_change(DLockWork *work, DLockSpaceEntry *entry)
{
	DLockTime	until = dlock_holder_survey(entry, NULL, work->now).until;

	for (DLockSpaceLease *request = dlock_space_queue(entry); request != NULL;
		 request = dlock_space_next(request))
	{
		if (request->kind == DLOCK_SPACE_WATCH)
			dlock_wait_wake(request->process);
		else
			wake_if_late(request, until);
		if (request->kind == DLOCK_SPACE_ASKED)
			break;
	}
}

/* Is there a dead lease on a lock? */
static bool
has_dead(DLockSpaceEntry *entry, DLockTime now)
{
	DLockSpaceLease *lease = dlock_space_holders(entry);

	if (now < entry->earliest)
		return false;
	while (lease != NULL && dlock_holder_blocks_until(lease) > now)
		lease = dlock_space_next(lease);
	return lease != NULL;
}

/*
 * Before the dead on the locks of a request for several are erased for its sake:
 * others may be at the turn for one of them, and nobody will find a lease there
 * any more whose end would be the occasion to serve them.
 */
static void
serve_beside(DLockWork *work, DLockWaitShared *wait)
{
	bool		serving = work->serving;

	/* A request that cannot be served is woken, and nothing is fetched for it. */
	work->serving = false;
	for (DLockSpaceLease *request = dlock_space_request_first(wait->first);
		 request != NULL; request = dlock_space_request_next(request))
	{
		DLockSpaceEntry *entry = dlock_space_entry_of(request);

		if (has_dead(entry, work->now))
			dlock_grant_hand_off(work, entry);
	}
	work->serving = serving;
}

/*
 * Grant a request for several locks, all of whose partitions are locked, if
 * it can be granted; false if something is missing.
 */
static bool
grant_unit(DLockWork *work, DLockWaitShared *wait, int process)
{
	DLockSpaceLease *request;
	DLockSpaceLease *next;
	DLockTime	until;
	DLockToken	first;
	DLockToken	token;
	TimestampTz wall = dlock_clock_wall();
	XLogRecPtr	lsn = InvalidXLogRecPtr;
	bool		is_path = false;

	serve_beside(work, wait);
	for (request = dlock_space_request_first(wait->first); request != NULL;
		 request = dlock_space_request_next(request))
	{
		DLockSpaceEntry *entry = dlock_space_entry_of(request);
		char		buffer[DLOCK_OWNER_MAX];
		DLockOwner	owner = dlock_space_lease_owner(request, buffer);

		is_path |= (request->part != DLOCK_PART_WHOLE);

		/* Its owner has got one of the locks otherwise: it has to ask anew. */
		if (request->part != DLOCK_PART_INTENT &&
			dlock_space_find_owned(entry, &owner, work->now) != NULL)
		{
			dlock_wait_wake(process);
			return true;
		}
		if (dlock_holder_is_blocked(entry, (DLockMode) request->mode, entry->permits,
								   NULL, request, work->now, &until))
			return true;
		if (!dlock_grant_tidy(work, entry))
			return false;
	}

	dlock_work_make_room(work, wait->count);
	for (request = dlock_space_request_first(wait->first); request != NULL;
		 request = dlock_space_request_next(request))
	{
		if (request->slot != DLOCK_SLOT_NONE && !dlock_work_pin(work, request->slot))
			return false;
	}
	if (!dlock_work_tokens(work, is_path ? 1 : wait->count, &first))
		return false;

	token = first;
	for (request = dlock_space_request_first(wait->first); request != NULL; request = next)
	{
		DLockSpaceEntry *entry = dlock_space_entry_of(request);

		next = dlock_space_request_next(request);
		make_lease(work, entry, request, token, wall);
		tell_change(work, entry);
		lsn = Max(lsn, request->lsn);
		if (!is_path)
			token++;
	}
	tell_granted(process, first, lsn);
	return true;
}

/* The same for a process, if it still waits for that request; without locks. */
void
dlock_grant_serve_unit(DLockWork *work, int process, uint32 serial)
{
	DLockWaitShared *wait = dlock_wait_of(process);
	DLockSpaceSet set;
	bool		done;

	do
	{
		/* What this process itself waits for it needs; others can do it themselves. */
		if (!dlock_wait_lock(process, work->db->shared->oid, LW_EXCLUSIVE, &set,
							 (process == dlock_wait_me()) ? NULL : &work->skipped))
		{
			dlock_wait_wake(process);
			return;
		}
		if (wait->serial != serial)
		{
			dlock_space_unlock_set(&set);
			return;
		}
		if (wait->count + DLOCK_WORK_PINS > work->pin_room)
		{
			int			count = wait->count;

			dlock_space_unlock_set(&set);
			done = !dlock_work_need_pins(work, count + DLOCK_WORK_PINS);
			if (done)
				dlock_wait_wake(process);
			continue;
		}
		work->now = dlock_clock_now();
		done = grant_unit(work, wait, process);
		if (!done && !work->serving)
		{
			dlock_wait_wake(process);
			done = true;
		}
		dlock_space_unlock_set(&set);
		if (!done)
			dlock_grant_fetch(work);
	} while (!done);
}

/*
 * Hand off the locks with this hash whose queue is not empty, as far as
 * possible.
 */
void
dlock_grant_serve(DLockWork *work, uint32 hash)
{
	bool		done;

	do
	{
		DLockSpaceEntry *entry;

		dlock_space_lock(hash, LW_EXCLUSIVE);
		work->now = dlock_clock_now();
		work->serving = true;
		work->unserved = false;
		for (entry = dlock_space_bucket(hash); entry != NULL;
			 entry = dlock_space_next_entry(entry))
		{
			if (entry->hash != hash || entry->database != work->db->shared->oid ||
				dlock_space_queue(entry) == NULL)
				continue;
			if (dlock_grant_tidy(work, entry))
				dlock_grant_hand_off(work, entry);
			else
				work->unserved = true;
		}
		done = !work->unserved;
		dlock_space_unlock(hash);
		if (!done)
			dlock_grant_fetch(work);
	} while (!done);
}

/*
 * See to the requests for several locks that have been noted, and give up the
 * pins.  No partition lock may be held.
 */
void
dlock_grant_finish(DLockWork *work)
{
	for (int i = 0; i < work->nunits; i++)
		dlock_grant_serve_unit(work, work->units[i].process, work->units[i].serial);
	work->nunits = 0;
	dlock_work_finish(work);
}

/* ---- the end of leases ---- */

/*
 * End a lease, with all its parts, and hand its locks off.
 */
bool
dlock_grant_end_lease(DLockWork *work, DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	DLockHolderPart parts[DLOCK_PATH_MAX_PARTS];
	int			count;

	if (lease->slot != DLOCK_SLOT_NONE && !dlock_work_pin(work, lease->slot))
		return false;
	count = dlock_holder_parts(entry, lease, parts);
	for (int i = 0; i < count; i++)
	{
		bool		waited_for = dlock_space_queue(parts[i].entry) != NULL;

		erase_lease(work, parts[i].entry, parts[i].lease);
		if (waited_for)
			dlock_grant_hand_off(work, parts[i].entry);
	}
	return true;
}

/*
 * End a lease now, with all its parts, in memory alone; its locks stay closed
 * for "delay".  Cannot fail.
 *
 * What is on disk is erased later, by the reaper or by whoever comes next.
 * A crash before that brings back a lease for its ttl at most.
 */
void
dlock_grant_stop_lease(DLockWork *work, DLockSpaceEntry *entry,
					   DLockSpaceLease *lease, DLockTime delay)
{
	DLockHolderPart parts[DLOCK_PATH_MAX_PARTS];
	int			count = dlock_holder_parts(entry, lease, parts);
	bool		on_disk = lease->slot != DLOCK_SLOT_NONE;

	for (int i = 0; i < count; i++)
	{
		bool		waited_for = dlock_space_queue(parts[i].entry) != NULL;

		lease = parts[i].lease;
		if (!on_disk && delay == 0)
			dlock_space_remove(parts[i].entry, lease);
		else
		{
			lease->deadline = Min(lease->deadline, work->now);
			lease->delay = delay;
			lease->stopped = true;
			dlock_space_note_end(lease);
		}
		if (waited_for)
			dlock_grant_hand_off(work, parts[i].entry);
	}
}

/* Remove the intents of a path whose own lease is no longer there. */
static void
remove_intents(DLockWork *work, const DLockBytes *path, DLockToken token)
{
	DLockBytes	ancestors[DLOCK_PATH_MAX_PARTS];
	int			count = dlock_name_ancestors(path, ancestors);
	Oid			database = work->db->shared->oid;

	for (int i = 0; i < count; i++)
	{
		DLockSpaceEntry *entry = dlock_space_find(database,
												  dlock_name_hash(database, &ancestors[i]),
												  &ancestors[i]);
		DLockSpaceLease *intent = (entry != NULL) ? dlock_space_find_part(entry, token) : NULL;
		bool		waited_for;

		if (intent == NULL)
			continue;
		waited_for = dlock_space_queue(entry) != NULL;
		dlock_space_remove(entry, intent);
		if (waited_for)
			dlock_grant_hand_off(work, entry);
	}
}

/*
 * End the lease on a path, with all its parts, if it is dead.  No partition
 * lock may be held.
 */
void
dlock_grant_end_path(DLockWork *work, const DLockBytes *path, DLockToken token)
{
	Oid			database = work->db->shared->oid;
	DLockSpaceSet set = {{0}};
	bool		serving = work->serving;
	bool		done;

	/* In the midst of other work, and for other locks: their turn comes later. */
	work->serving = false;
	dlock_holder_path_set(database, path, &set);
	do
	{
		DLockSpaceEntry *entry;
		DLockSpaceLease *lease;

		done = true;
		dlock_space_lock_set(&set, LW_EXCLUSIVE);
		work->now = dlock_clock_now();
		entry = dlock_space_find(database, dlock_name_hash(database, path), path);
		lease = (entry != NULL) ? dlock_space_find_part(entry, token) : NULL;
		if (lease == NULL)
			remove_intents(work, path, token);
		else if (dlock_holder_blocks_until(lease) <= work->now)
		{
			bool		expired = !lease->stopped;

			done = dlock_grant_end_lease(work, entry, lease);
			dlock_stat_count(DLOCK_STAT_EXPIRY, done && expired);
		}
		dlock_space_unlock_set(&set);
		if (!done)
			dlock_work_fetch(work);
	} while (!done);
	work->serving = serving;
}

/*
 * Get what the last step lacked, waiting for it if need be.  No partition lock
 * may be held.
 */
void
dlock_grant_fetch(DLockWork *work)
{
	dlock_work_fetch(work);
	if (work->missing_path != DLOCK_TOKEN_NONE)
	{
		char		copy[DLOCK_NAME_MAX];
		DLockBytes	path = {copy, work->path_len};
		DLockToken	token = work->missing_path;

		memcpy(copy, work->path, work->path_len);
		work->missing_path = DLOCK_TOKEN_NONE;
		dlock_grant_end_path(work, &path, token);
	}
}
