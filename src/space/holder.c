/*-------------------------------------------------------------------------
 *
 * holder.c
 *	  Who holds a lock, and who is in the way of whom.
 *
 * NOTES
 *	  These functions look and change nothing.  They want the partitions of
 *	  all that they look at locked, in either mode.
 *
 * IDENTIFICATION
 *	  src/space/holder.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/name.h"
#include "base/rule.h"
#include "space/holder.h"

/*
 * A lease as a value.  What only a record has is left empty: the boot, the bound
 * on the wall clock, and min_hold.  Long texts are put together in "texts".
 */
DLockLeaseValue
dlock_holder_value(DLockSpaceEntry *entry, const DLockSpaceLease *lease,
				   DLockHolderTexts *texts)
{
	Assert(dlock_partition_is_held(entry->hash));
	return (DLockLeaseValue)
	{
		.token = lease->token,
			.mode = (DLockMode) lease->mode,
			.bind = (DLockBind) lease->bind,
			.part = (DLockPart) lease->part,
			.role = lease->role,
			.holds = lease->holds,
			.permits = entry->permits,
			.granted_at = lease->granted_at,
			.term =
		{
			lease->ttl, lease->deadline, lease->bound_mono, 0
		},
			.delay = lease->delay,
			.name = dlock_space_entry_name(entry, texts->name),
			.owner = dlock_space_lease_owner(lease, texts->owner).name,
			.payload = dlock_space_lease_payload(lease, texts->payload)
	};
}

/* Until when a lease keeps others out. */
DLockTime
dlock_holder_blocks_until(const DLockSpaceLease *lease)
{
	Assert(dlock_partition_is_held(dlock_space_entry_of(lease)->hash));
	return dlock_rule_blocks_until(lease->deadline, lease->delay);
}

/* When a reaper has something to do about a lease: end it, or write it. */
DLockTime
dlock_holder_due_at(const DLockSpaceLease *lease)
{
	Assert(dlock_partition_is_held(dlock_space_entry_of(lease)->hash));
	return lease->unwritten ? 0 : dlock_holder_blocks_until(lease);
}

/*
 * The leases that block others on a lock, taken together, without "own".
 *
 * As long as none of them is dead the lock itself says what they come to; then
 * "until" may be earlier than the end of the first of them.
 */
DLockHolderCrowd
dlock_holder_survey(DLockSpaceEntry *entry, const DLockSpaceLease *own, DLockTime now)
{
	DLockHolderCrowd crowd = {0, 0, DLOCK_TIME_FOREVER};

	Assert(dlock_partition_is_held(entry->hash));
	if (own == NULL && now < entry->earliest)
		return (DLockHolderCrowd)
	{
		entry->held_modes, entry->nholders, entry->earliest
	};

	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL;
		 lease = dlock_space_next(lease))
	{
		DLockTime	until = dlock_holder_blocks_until(lease);

		if (lease == own || until <= now)
			continue;
		crowd.modes |= DLOCK_RULE_BIT(lease->mode);
		crowd.permits += (lease->mode == DLOCK_MODE_PERMIT);
		crowd.until = Min(crowd.until, until);
	}
	return crowd;
}

/* Is there anybody in the way: in the crowd, or in front, in these modes? */
bool
dlock_holder_is_in_way(const DLockHolderCrowd *crowd, uint32 ahead, DLockMode mode, uint32 permits)
{
	return (dlock_rule_conflicts(mode) & crowd->modes) != 0 ||
		dlock_rule_waits_behind(mode, ahead) ||
		(mode == DLOCK_MODE_PERMIT && crowd->permits >= permits);
}

/*
 * Does a request in the queue wait for the lock, so that others are behind it?
 * Not if it only watches; nor if it is for the conversion of a lease that has
 * ended since; nor if it was called too long ago.  Its process will notice when
 * it gets to run.
 */
bool
dlock_holder_is_waiting(DLockSpaceEntry *entry, const DLockSpaceLease *request, DLockTime now)
{
	DLockSpaceLease *converted;

	Assert(dlock_partition_is_held(entry->hash));
	if (request->kind == DLOCK_SPACE_ASKED)
		return request->bound_mono == 0 || request->bound_mono > now;
	if (request->kind == DLOCK_SPACE_WATCH)
		return false;
	converted = dlock_index_find_part(entry, request->token);
	return converted != NULL && dlock_rule_is_live(converted->deadline, now);
}

/*
 * Would a lease in this mode conflict with the holders of the lock, apart from
 * "own", or with the requests in the queue that are in front of "before" (NULL:
 * all of them)?  "until" is when the first of the holders ends, or a request that
 * has been called no longer keeps others out.
 */
bool
dlock_holder_is_blocked(DLockSpaceEntry *entry, DLockMode mode, uint32 permits,
						const DLockSpaceLease *own, const DLockSpaceLease *before,
						DLockTime now, DLockTime *until)
{
	DLockHolderCrowd crowd = dlock_holder_survey(entry, own, now);

	*until = crowd.until;
	if (dlock_holder_is_in_way(&crowd, 0, mode, permits))
		return true;
	for (DLockSpaceLease *request = dlock_space_queue(entry);
		 request != NULL && request != before; request = dlock_space_next(request))
	{
		/* From here on nothing but requests for leases follows. */
		if (request->kind == DLOCK_SPACE_ASKED &&
			!dlock_rule_waits_behind(mode, entry->asked_modes))
			break;
		if (!dlock_rule_waits_behind(mode, DLOCK_RULE_BIT(request->mode)) ||
			!dlock_holder_is_waiting(entry, request, now))
			continue;
		if (request->kind == DLOCK_SPACE_ASKED && request->bound_mono != 0)
		{
			*until = Min(*until, request->bound_mono);

			/* A permit is on its way to it, and there may be more. */
			if (mode == DLOCK_MODE_PERMIT && ++crowd.permits < permits)
				continue;
		}
		return true;
	}
	return false;
}

/*
 * Is an owner in its own way, with any live lease that it has on a lock, be it
 * an intent?
 */
bool
dlock_holder_is_own_way(DLockSpaceEntry *entry, const DLockOwner *owner, DLockMode mode,
						DLockTime now)
{
	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL;
		 lease = dlock_space_next(lease))
	{
		if (dlock_rule_is_live(lease->deadline, now) && dlock_space_is_owned(lease, owner) &&
			!dlock_rule_is_compatible((DLockMode) lease->mode, mode))
			return true;
	}
	return false;
}

/* ---- the parts of a path ---- */

/* Add the partitions of a path and its ancestors to a set. */
void
dlock_holder_path_set(Oid database, const DLockBytes *path, DLockPartitionSet *set)
{
	DLockBytes	ancestors[DLOCK_PATH_MAX_PARTS];
	int			count = dlock_name_ancestors(path, ancestors);

	dlock_partition_set_add(set, dlock_name_hash(database, path));
	for (int i = 0; i < count; i++)
		dlock_partition_set_add(set, dlock_name_hash(database, &ancestors[i]));
}

/* The path that a part of a lease on a path belongs to; put together in "buffer" if long. */
DLockBytes
dlock_holder_path(DLockSpaceEntry *entry, DLockSpaceLease *part, char buffer[DLOCK_NAME_MAX])
{
	Assert(dlock_partition_is_held(entry->hash));
	return (part->part == DLOCK_PART_INTENT) ?
		dlock_space_lease_text(part, part->owner_len, part->payload_len, buffer) :
		dlock_space_entry_name(entry, buffer);
}

/*
 * All parts of a lease: itself, and if it is one on a path, the intents on the
 * ancestors.  Returns how many; there are at most DLOCK_PATH_MAX_PARTS.  The
 * partitions of the whole path must be locked.
 */
int
dlock_holder_parts(DLockSpaceEntry *entry, DLockSpaceLease *lease, DLockHolderPart *parts)
{
	char		buffer[DLOCK_NAME_MAX];
	DLockBytes	name = dlock_space_entry_name(entry, buffer);
	DLockBytes	ancestors[DLOCK_PATH_MAX_PARTS];
	int			count = 1;
	int			nancestors = 0;

	Assert(dlock_partition_is_held(entry->hash));
	parts[0] = (DLockHolderPart)
	{
		entry, lease
	};
	if (lease->part == DLOCK_PART_PATH)
		nancestors = dlock_name_ancestors(&name, ancestors);
	for (int i = 0; i < nancestors; i++)
	{
		DLockSpaceEntry *above;
		DLockSpaceLease *intent = dlock_space_find_part(entry->database, &ancestors[i],
														lease->token, &above);

		if (intent != NULL)
			parts[count++] = (DLockHolderPart)
		{
			above, intent
		};
	}
	return count;
}
