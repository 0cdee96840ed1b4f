/*-------------------------------------------------------------------------
 *
 * release.c
 *	  Release leases, and end them otherwise: by force, by time, with a session.
 *
 * IDENTIFICATION
 *	  src/lock/release.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/stat.h"
#include "lock/queue.h"
#include "lock/release.h"
#include "space/holder.h"
#include "store/flush.h"


/* How long a lease that was stopped in memory may stay on disk. */
#define TIDY_DELAY		USECS_PER_SEC

/* When to come back to a lease whose partition is locked for long. */
#define SKIPPED_DELAY	USECS_PER_SEC

typedef struct DLockReleaseCall
{
	DLockFind	found;
	DLockToken	counted;		/* of a lease that goes on with one hold less */
} DLockReleaseCall;

/* A lease is released before the least time to hold it: it closes its lock. */
static void
close_lock(DLockStep *step, DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	/* An expiry that comes first ends it all the same. */
	DLockTime	until = Min(lease->min_until, lease->deadline);
	DLockTerm	term = {0, step->now, step->now, dlock_clock_wall()};

	Assert(dlock_partition_is_mine(entry->hash));
	dlock_database_note_deadline(step->db->shared, until);
	lease->delay = until - step->now;
	if (lease->slot != DLOCK_SLOT_NONE)
		dlock_step_log_state(step, lease, &term);
	dlock_step_stop_lease(entry, lease, lease->delay, step->now);
}

/* An attempt: release a lease once. */
static DLockStepLack
try_release(DLockStep *step, void *arg)
{
	DLockReleaseCall *release = arg;
	DLockStepLack lack = dlock_find_wanted(step, &release->found);
	DLockSpaceLease *lease = release->found.lease;
	DLockRuleEnd end;
	DLockTerm	term;

	if (lack != DLOCK_LACKS_NOTHING || lease == NULL)
		return lack;
	end = dlock_rule_release(lease->holds, lease->min_until, step->now);
	lack = (end == DLOCK_RULE_END) ? dlock_step_end_lease(step, release->found.entry, lease) :
		dlock_step_pin_lease(step, lease);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;
	if (end == DLOCK_RULE_CLOSE)
		close_lock(step, release->found.entry, lease);
	if (end != DLOCK_RULE_COUNT_DOWN)
	{
		dlock_stat_count(DLOCK_STAT_RELEASE, 1);
		return DLOCK_LACKS_NOTHING;
	}

	lease->holds--;
	release->counted = lease->token;
	term = dlock_find_term(lease);
	term.bound_wall = dlock_rule_bound_wall(term.bound_mono, step->now, dlock_clock_wall());
	if (lease->slot != DLOCK_SLOT_NONE)
		dlock_step_log_state(step, lease, &term);
	return DLOCK_LACKS_NOTHING;
}

/* An attempt: open a lock that a lease keeps closed, for its owner is done. */
static DLockStepLack
try_open(DLockStep *step, void *arg)
{
	DLockReleaseCall *release = arg;
	DLockStepLack lack = dlock_find_wanted(step, &release->found);

	if (lack != DLOCK_LACKS_NOTHING || release->found.lease == NULL)
		return lack;
	return dlock_step_end_lease(step, release->found.entry, release->found.lease);
}

/*
 * Release the lease that a target names, or open the lock that it keeps closed;
 * false if there is none.
 *
 * The release is not flushed: the next grant of the lock writes its record
 * after this one, and a crash that loses both brings the lease back for a ttl
 * at most.  Throws 42501.
 *
 * "counted", if not NULL, is the token of a lease that goes on with one hold less;
 * else DLOCK_TOKEN_NONE.
 */
bool
dlock_release_lease(DLockDatabase *db, const DLockFindTarget *target,
					DLockFindRight right, DLockToken *counted)
{
	DLockReleaseCall release = {.found = {.target = target,.right = right}};
	DLockStep	step;

	if (!dlock_find_run(&step, db, &release.found, target->closed ? try_open : try_release))
		return false;
	if (counted != NULL)
		*counted = release.counted;
	dlock_flush_later(step.lsn, step.now);
	return true;
}

/* Release those of these leases that are live, all their holds; how many? */
static int
release_refs(DLockDatabase *db, const DLockSpaceRef *refs, int count)
{
	int			released = 0;

	for (int i = 0; i < count; i++)
	{
		DLockFindTarget target = dlock_find_target(refs[i].hash, refs[i].token);

		CHECK_FOR_INTERRUPTS();
		if (!dlock_release_lease(db, &target, DLOCK_RIGHT_ROLE_SKIP, NULL))
			continue;
		released++;
		while (dlock_release_lease(db, &target, DLOCK_RIGHT_ROLE_SKIP, NULL))
			CHECK_FOR_INTERRUPTS();
	}
	return released;
}

/*
 * Release all live leases that the name of an owner stands for, as
 * dlock_renew_all() finds them.  Returns how many.
 */
int
dlock_release_all(DLockDatabase *db, const DLockBytes *owner_name)
{
	int			count;
	DLockSpaceRef *refs = dlock_index_owned(db->shared->oid, owner_name, &count);
	int			own = dlock_find_own_first(refs, count);
	int			released = release_refs(db, refs, own);

	if (released == 0)
		released = release_refs(db, refs + own, count - own);
	pfree(refs);
	return released;
}

/* ---- by force ---- */

/*
 * Lock the partitions of all that is held on a lock, with all parts.  Returns
 * the lock's entry, or NULL if it has none.
 */
static DLockSpaceEntry *
lock_all_of(DLockDatabase *db, const DLockBytes *name, DLockPartitionSet *set)
{
	Oid			database = db->shared->oid;
	uint32		hash = dlock_name_hash(database, name);

	memset(set, 0, sizeof(*set));
	dlock_partition_set_add(set, hash);
	for (;;)
	{
		DLockPartitionSet needed = *set;
		DLockSpaceEntry *entry;

		dlock_partition_lock_set(set, LW_EXCLUSIVE);
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
		dlock_partition_unlock_set(set);
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

	Assert(dlock_partition_is_mine(entry->hash));
	if (lease->part == DLOCK_PART_INTENT)
	{
		DLockSpaceEntry *below;
		DLockSpaceLease *whole = dlock_space_find_part(db->shared->oid, &path, lease->token, &below);

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
 * They are dead then; dlock_release_forced() erases them and calls the requests
 * that wait.  So a conversion that waits cannot save one of these leases.
 */
int
dlock_release_by_force(DLockDatabase *db, const DLockBytes *name, DLockReleaseForced **ended)
{
	DLockSpaceEntry *entry;
	DLockPartitionSet set;
	DLockTime	now;
	int			room = 8;
	int			count;
	int			released = 0;

	/* Memory is not to be asked for under the lock, so count first. */
	*ended = palloc(room * sizeof(DLockReleaseForced));
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
		dlock_partition_unlock_set(&set);
		room = count + 8;
		*ended = repalloc_huge(*ended, room * sizeof(DLockReleaseForced));
	}

	count = 0;
	for (DLockSpaceLease *lease = (entry != NULL) ? dlock_space_holders(entry) : NULL;
		 lease != NULL; lease = dlock_space_next(lease))
	{
		DLockReleaseForced *told = &(*ended)[count];
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
	dlock_partition_unlock_set(&set);
	if (count > 0)
		dlock_database_note_deadline(db->shared, now);
	dlock_stat_count(DLOCK_STAT_RELEASE, released);
	return count;
}

/* An attempt: log the end of a lease by force, and call the requests that wait. */
static DLockStepLack
try_tell_forced(DLockStep *step, void *arg)
{
	DLockFind  *found = arg;
	DLockStepLack lack = dlock_find_any(step, found);
	DLockSpaceLease *lease = found->lease;
	DLockHolderPart parts[DLOCK_PATH_MAX_PARTS];
	int			count;

	if (lack != DLOCK_LACKS_NOTHING || lease == NULL)
		return lack;
	if (lease->slot != DLOCK_SLOT_NONE)
	{
		DLockTerm	term = {0, lease->deadline, lease->deadline, 0};

		lack = dlock_step_pin(step, lease->slot);
		if (lack != DLOCK_LACKS_NOTHING)
			return lack;
		term.bound_wall = dlock_rule_bound_wall(lease->deadline, step->now, dlock_clock_wall());
		dlock_step_log_state(step, lease, &term);
	}
	dlock_database_note_deadline(step->db->shared, dlock_holder_blocks_until(lease));
	count = dlock_holder_parts(found->entry, lease, parts);
	for (int i = 0; i < count; i++)
		dlock_queue_call(parts[i].entry, step->now);
	return DLOCK_LACKS_NOTHING;
}

/*
 * See to what is left of a lease that was ended by force: either it is removed,
 * or it keeps its lock closed for a while, and that survives a crash.
 */
void
dlock_release_forced(DLockDatabase *db, uint32 hash, DLockToken token)
{
	DLockFindTarget target = dlock_find_target(hash, token);
	DLockFind	found = {.target = &target};
	DLockStep	step;
	bool		removed;

	DLOCK_FAULT("forced");
	if (dlock_release_expired(db, hash, token, NULL, &removed) == 0)
		return;
	(void) dlock_find_run(&step, db, &found, try_tell_forced);
	dlock_flush_later(step.lsn, step.now);
}

/* ---- by time ---- */

typedef struct DLockReleaseExpiry
{
	DLockFind	found;
	DLockTime	until;			/* zero: the lease is gone */
	bool		removed;
} DLockReleaseExpiry;

/* An attempt: remove a dead lease, or write one that only memory has as it is. */
static DLockStepLack
try_expire(DLockStep *step, void *arg)
{
	DLockReleaseExpiry *expiry = arg;
	DLockFind  *found = &expiry->found;
	DLockStepLack lack = dlock_find_any(step, found);
	DLockSpaceLease *lease = found->lease;

	expiry->until = 0;
	if (lack != DLOCK_LACKS_NOTHING || lease == NULL)
		return lack;
	expiry->until = dlock_holder_blocks_until(lease);
	if (expiry->until > step->now)
	{
		lack = lease->unwritten ? dlock_step_pin(step, lease->slot) : DLOCK_LACKS_NOTHING;
		if (lack == DLOCK_LACKS_NOTHING && lease->unwritten)
			dlock_step_rewrite(step, found->entry, lease, NULL);
		return lack;
	}
	expiry->removed = true;

	/* What is left of a path whose own lease is gone, or goes with it. */
	if (lease->part == DLOCK_PART_INTENT)
		return dlock_step_lack_path(step, found->entry, lease);
	lack = dlock_step_end_lease(step, found->entry, lease);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;
	pg_atomic_write_u64(&step->db->shared->stats.reaper_lag, step->now - expiry->until);
	expiry->until = 0;
	return DLOCK_LACKS_NOTHING;
}

/*
 * Remove a lease if it is dead, or write it if only memory has it as it is.
 * Returns zero when it is gone, else until when it keeps others out now.
 * "removed" says whether this call removed it.
 *
 * If "skipped" is given, it does not wait for partitions that are locked for
 * long, see dlock_partition_try_lock_set(), but returns when to come back.
 */
DLockTime
dlock_release_expired(DLockDatabase *db, uint32 hash, DLockToken token, DLockPartitionSet *skipped,
					  bool *removed)
{
	DLockFindTarget target = dlock_find_target(hash, token);
	DLockReleaseExpiry expiry = {.found = {.target = &target}};
	DLockStep	step;

	dlock_step_begin(&step, db);
	dlock_partition_set_add(&step.set, hash);
	step.skipped = skipped;
	if (!dlock_step_run(&step, try_expire, &expiry))
		expiry.until = dlock_clock_now() + SKIPPED_DELAY;
	else
		dlock_flush_later(step.lsn, step.now);
	*removed = expiry.removed && expiry.until == 0;
	return expiry.until;
}

/* ---- with a session, or without an answer ---- */

/* For how long a lock stays closed when a lease on it is stopped. */
static DLockTime
delay_of(const DLockSpaceLease *lease, DLockReleaseStop how, DLockTime now)
{
	DLockTime	delay = (how == DLOCK_STOP_LOST) ? lease->delay : 0;

	if (how != DLOCK_STOP_UNTOLD && lease->min_until > now)
		delay = Max(delay, Min(lease->min_until, lease->deadline) - now);
	return delay;
}

typedef struct DLockReleaseEnd
{
	DLockFind	found;
	DLockReleaseStop how;
} DLockReleaseEnd;

/* An attempt, which lacks nothing but partitions: end a lease in memory. */
static DLockStepLack
try_stop(DLockStep *step, void *arg)
{
	DLockReleaseEnd *end = arg;
	DLockStepLack lack = dlock_find_any(step, &end->found);
	DLockSpaceLease *lease = end->found.lease;
	DLockTime	delay;

	if (lack != DLOCK_LACKS_NOTHING || lease == NULL ||
		!dlock_rule_is_live(lease->deadline, step->now))
		return lack;
	delay = delay_of(lease, end->how, step->now);
	if (lease->slot != DLOCK_SLOT_NONE || delay > 0)
		dlock_database_note_deadline(step->db->shared, step->now + Max(TIDY_DELAY, delay));
	dlock_step_stop_lease(end->found.entry, lease, delay, step->now);
	return DLOCK_LACKS_NOTHING;
}

/*
 * End a lease now, without changing its page.
 *
 * "db" needs no more than its shared parts.  Cannot fail; to be called at the
 * end of a transaction, in an error, or at exit.
 */
void
dlock_release_stop(DLockDatabase *db, uint32 hash, DLockToken token, DLockReleaseStop how)
{
	DLockFindTarget target = dlock_find_target(hash, token);
	DLockReleaseEnd end = {.found = {.target = &target},.how = how};
	DLockStep	step;

	(void) dlock_find_run(&step, db, &end.found, try_stop);
}
