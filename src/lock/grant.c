/*-------------------------------------------------------------------------
 *
 * grant.c
 *	  What changes who holds a lock: grants and ends.
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

#include "base/clock.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/stat.h"
#include "lock/grant.h"
#include "lock/queue.h"
#include "space/holder.h"
#include "space/slot.h"
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
			dlock_queue_call(parts[i].entry, work->now);
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
			dlock_queue_call(parts[i].entry, work->now);
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
			dlock_queue_call(entry, work->now);
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
	bool		done;

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
