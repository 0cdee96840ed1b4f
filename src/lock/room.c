/*-------------------------------------------------------------------------
 *
 * room.c
 *	  Room for a request: what to do when memory or a limit leaves none.
 *
 * NOTES
 *	  A lease that is dead takes memory, and counts for its role, until it is
 *	  erased.  The reaper does that, but no promise needs a reaper, so a request
 *	  that finds no room erases dead leases of its database itself, and is
 *	  refused only if there are none.
 *
 *	  All of this happens between two attempts of an operation, without locks.
 *
 * IDENTIFICATION
 *	  src/lock/room.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/settings.h"
#include "lock/grant.h"
#include "lock/queue.h"
#include "lock/room.h"
#include "lock/work.h"
#include "space/holder.h"
#include "store/flush.h"

/* How many locks with dead leases one walk finds. */
#define DEAD_LOCKS	1000

typedef struct DLockRoomDead
{
	DLockTime	now;
	int			count;
	uint32		hashes[DEAD_LOCKS];
} DLockRoomDead;

/* A visitor of the space: note the lock of a dead lease. */
static void
note_dead(DLockSpaceEntry *entry, DLockSpaceLease *lease, void *arg)
{
	DLockRoomDead *dead = arg;

	if (dlock_holder_blocks_until(lease) > dead->now || dead->count == DEAD_LOCKS ||
		(dead->count > 0 && dead->hashes[dead->count - 1] == entry->hash))
		return;
	dead->hashes[dead->count++] = entry->hash;
}

/* Erase the dead leases on the locks with this hash, and hand these off. */
static void
erase_dead_on(DLockWork *work, uint32 hash)
{
	bool		done;

	do
	{
		DLockSpaceEntry *next;

		done = true;
		dlock_space_lock(hash, LW_EXCLUSIVE);
		work->now = dlock_clock_now();
		for (DLockSpaceEntry *entry = dlock_space_bucket(hash); entry != NULL; entry = next)
		{
			bool		waited_for = dlock_space_queue(entry) != NULL;

			/* With its last lease the entry goes, too. */
			next = dlock_space_next_entry(entry);
			if (entry->hash != hash || entry->database != work->db->shared->oid)
				continue;
			if (!dlock_grant_tidy(work, entry))
				done = false;
			else if (waited_for)
				dlock_queue_call(entry, work->now);
		}
		dlock_space_unlock(hash);
		if (!done)
			dlock_grant_fetch(work);
	} while (!done);
}

/*
 * Erase dead leases of a database, as the reaper does; of up to DEAD_LOCKS
 * locks.  False if there were none.  No partition lock may be held.
 */
static bool
erase_dead(DLockDatabase *db)
{
	DLockRoomDead *dead = palloc(sizeof(DLockRoomDead));
	bool		found;
	DLockWork	work;

	dead->now = dlock_clock_now();
	dead->count = 0;
	(void) dlock_space_visit(db->shared->oid, note_dead, dead);
	found = dead->count > 0;

	dlock_work_begin(&work, db);
	for (int i = 0; i < dead->count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		erase_dead_on(&work, dead->hashes[i]);
	}
	dlock_work_finish(&work);
	dlock_flush_later(work.lsn, dlock_clock_now());
	pfree(dead);
	return found;
}

/*
 * Memory is full: make room by erasing dead leases of this database.  Throws
 * 53400 if there are none; those of other databases only their reapers can
 * erase, and these are woken.  No partition lock may be held.
 */
void
dlock_room_find(DLockDatabase *db)
{
	if (erase_dead(db))
		return;
	dlock_database_wake_reapers();
	dlock_error_space_full();
}

/*
 * Once a backend has found no dead leases at a limit, it does not look again for
 * so long: a role at its limit may ask again and again.
 */
#define LOOK_DISTANCE	(100 * INT64CONST(1000))

/*
 * The counter of the leases of a role, if the settings limit these; zero if
 * not.  Throws 53400 if there are no more counters.
 */
DLockLimitCounter
dlock_room_counter(DLockDatabase *db, Oid role)
{
	DLockLimitCounter counter;

	if (dlock_settings_max_leases < 0)
		return 0;
	counter = dlock_limit_track(db->shared->oid, role);
	/* What is not counted now, for its partition is locked, is with the next request. */
	if (!dlock_limit_is_complete(counter) && dlock_space_count(db->shared->oid, role))
		dlock_limit_set_complete(counter);
	return counter;
}

/*
 * A role is at its limit: erase dead leases of this database.  Throws 53400 if
 * there are none.  No partition lock may be held.
 */
void
dlock_room_under_limit(DLockDatabase *db, Oid role, DLockLimitCounter counter)
{
	static DLockTime look_at = 0;

	if (dlock_clock_now() >= look_at)
	{
		if (erase_dead(db))
			return;
		look_at = dlock_clock_now() + LOOK_DISTANCE;
	}
	dlock_error_role_limit(role, dlock_settings_max_leases, dlock_limit_count(counter));
}
