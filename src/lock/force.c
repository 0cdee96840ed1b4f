/*-------------------------------------------------------------------------
 *
 * force.c
 *	  End whatever is held on a lock.
 *
 * IDENTIFICATION
 *	  src/lock/force.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/clock.h"
#include "base/name.h"
#include "base/stat.h"
#include "lock/force.h"
#include "space/holder.h"
#include "space/space.h"

/*
 * Lock the partitions of all that is held on a lock, with all parts.  Returns
 * the lock's entry, or NULL if it has none.
 */
static DLockSpaceEntry *
lock_all_of(DLockDatabase *db, const DLockBytes *name, DLockSpaceSet *set)
{
	Oid			database = db->shared->oid;
	uint32		hash = dlock_name_hash(database, name);

	memset(set, 0, sizeof(*set));
	dlock_space_set_add(set, hash);
	for (;;)
	{
		DLockSpaceSet needed = *set;
		DLockSpaceEntry *entry;

		dlock_space_lock_set(set, LW_EXCLUSIVE);
		entry = dlock_space_find(database, hash, name);
		for (DLockSpaceLease *lease = (entry != NULL) ? dlock_space_holders(entry) : NULL;
			 lease != NULL; lease = dlock_space_next(lease))
		{
		char		buffer[DLOCK_NAME_MAX];
		DLockBytes	path = dlock_holder_path(entry, lease, buffer);

			if (lease->part != DLOCK_PART_WHOLE)
				dlock_holder_path_set(database, &path, &needed);
		}
		if (memcmp(&needed, set, sizeof(needed)) == 0)
			return entry;
		dlock_space_unlock_set(set);
		*set = needed;
	}
}

/*
 * End a lease in memory, with all its parts, but hand nothing off yet.  For how
 * long it keeps the lock closed from then on is left as it is if it was live, for
 * its holder may take a while to notice; what is closed already is opened.
 */
static void
end_by_force(DLockDatabase *db, DLockSpaceEntry *entry, DLockSpaceLease *lease, DLockTime now)
{
	char		buffer[DLOCK_NAME_MAX];
	DLockBytes	path = dlock_holder_path(entry, lease, buffer);
	DLockHolderPart parts[DLOCK_PATH_MAX_PARTS];
	int			count;

	if (lease->part == DLOCK_PART_INTENT)
	{
		DLockSpaceEntry *below = dlock_space_find(db->shared->oid,
												  dlock_name_hash(db->shared->oid, &path), &path);
		DLockSpaceLease *whole = (below != NULL) ? dlock_space_find_part(below, lease->token) : NULL;

		if (whole != NULL)
		{
			entry = below;
			lease = whole;
		}
	}
	count = dlock_holder_parts(entry, lease, parts);
	for (int i = 0; i < count; i++)
	{
		if (parts[i].lease->deadline <= now)
			parts[i].lease->delay = 0;
		parts[i].lease->deadline = Min(parts[i].lease->deadline, now);
		dlock_space_note_end(parts[i].lease);
		parts[i].lease->stopped = true;
	}
}

/*
 * End all leases on a lock at one moment; a path that goes through it as a
 * whole.  A live one with a lock delay closes the lock, as by any unclean end;
 * one that has the lock closed does so no longer.  Returns how many, and tells
 * in "ended" (palloc'd) what they were.
 *
 * They are over then, and are left to be seen to (dlock_manager_forced), which
 * serves those who wait.  So somebody who waits to convert a lease that is among
 * them does not get away with it.
 */
int
dlock_force_end(DLockDatabase *db, const DLockBytes *name, DLockForceEnded **ended)
{
	DLockSpaceEntry *entry;
	DLockSpaceSet set;
	DLockTime	now;
	int			room = 8;
	int			count;
	int			released = 0;

	/* Memory is not to be asked for under the lock, so count first. */
	*ended = palloc(room * sizeof(DLockForceEnded));
	for (;;)
	{
		entry = lock_all_of(db, name, &set);
		now = dlock_clock_now();
		count = 0;
		for (DLockSpaceLease *lease = (entry != NULL) ? dlock_space_holders(entry) : NULL;
			 lease != NULL; lease = dlock_space_next(lease))
			count += dlock_holder_blocks_until(lease) > now;
		if (count <= room)
			break;
		dlock_space_unlock_set(&set);
		room = count + 8;
		*ended = repalloc_huge(*ended, room * sizeof(DLockForceEnded));
	}

	count = 0;
	for (DLockSpaceLease *lease = (entry != NULL) ? dlock_space_holders(entry) : NULL;
		 lease != NULL; lease = dlock_space_next(lease))
	{
		DLockForceEnded *told = &(*ended)[count];
		char		buffer[DLOCK_NAME_MAX];
	DLockBytes	path = dlock_holder_path(entry, lease, buffer);

		if (dlock_holder_blocks_until(lease) <= now)
			continue;
		told->hash = dlock_name_hash(db->shared->oid, &path);
		told->token = lease->token;
		told->role = lease->role;
		told->was_closed = lease->deadline <= now;
		told->closed_for = told->was_closed ? 0 : lease->delay;
		told->owner_len = lease->owner_len;
		dlock_space_copy_text(lease, 0, lease->owner_len, told->owner);
		released += !lease->stopped;
		end_by_force(db, entry, lease, now);
		count++;
	}
	dlock_space_unlock_set(&set);
	if (count > 0)
		dlock_database_note_deadline(db->shared, now);
	dlock_stat_count(DLOCK_STAT_RELEASE, released);
	return count;
}
