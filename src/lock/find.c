/*-------------------------------------------------------------------------
 *
 * find.c
 *	  The lease that a call names.
 *
 * NOTES
 *	  Leases are named by owner, by token, or by a reference.  To find one is the
 *	  first part of the attempts of lock/renew.c, lock/release.c and
 *	  lock/convert.c.  A lease on a path is changed with all its parts, under
 *	  the partition locks of the path and its ancestors.
 *
 * IDENTIFICATION
 *	  src/lock/find.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/rule.h"
#include "lock/find.h"
#include "space/holder.h"


/* The target that the hash of a name and a token stand for. */
DLockFindTarget
dlock_find_target(uint32 hash, DLockToken token)
{
	return (DLockFindTarget)
	{
		.by = DLOCK_BY_REF,.hash = hash,.token = token
	};
}

/*
 * Is a lease live; or, if the target wants that, over, and its lock closed by
 * its lock delay?
 */
static bool
is_wanted(const DLockFindTarget *target, const DLockSpaceLease *lease, DLockTime now)
{
	if (dlock_rule_is_live(lease->deadline, now))
		return !target->closed;
	return target->closed && now >= lease->min_until && dlock_holder_blocks_until(lease) > now;
}

/*
 * Find the lease that an owner's name stands for: that of the current user, else
 * the first that is not a stranger's.  An owner may have leases that are closed
 * beside its live one.
 */
static DLockSpaceLease *
find_by_owner(DLockSpaceEntry *entry, const DLockFindTarget *target, const List *strangers)
{
	DLockOwner	own = {GetUserId(), target->owner};
	DLockTime	now = dlock_clock_now();
	DLockSpaceLease *other = target->closed ? NULL : dlock_index_find_owned(entry, &own, now);

	if (other != NULL)
		return other;
	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL;
		 lease = dlock_space_next(lease))
	{
		if (lease->part == DLOCK_PART_INTENT || !is_wanted(target, lease, now) ||
			!dlock_space_is_owner_name(lease, &target->owner))
			continue;
		if (lease->role == GetUserId())
			return lease;
		if (other == NULL && !list_member_oid(strangers, lease->role))
			other = lease;
	}
	return other;
}

/*
 * Find the lease that a target names; NULL if there is none.  The partition
 * lock must be held.  Intents are found by reference only.
 */
static DLockSpaceLease *
find_lease(DLockDatabase *db, const DLockFindTarget *target, const List *strangers,
		   DLockSpaceEntry **entry)
{
	DLockSpaceLease *lease = NULL;
	Oid			database = db->shared->oid;

	Assert(dlock_partition_is_held(target->hash));
	if (target->by == DLOCK_BY_REF)
	{
		*entry = dlock_space_find_token(database, target->hash, target->token, &lease);
		return lease;
	}

	*entry = dlock_space_find(database, target->hash, &target->name);
	if (*entry == NULL)
		return NULL;
	if (target->by == DLOCK_BY_OWNER)
		return find_by_owner(*entry, target, strangers);
	lease = dlock_index_find_part(*entry, target->token);
	return (lease != NULL && lease->part != DLOCK_PART_INTENT) ? lease : NULL;
}

/*
 * Find the lease that a target names, with the partitions of all its parts
 * locked.
 */
DLockStepLack
dlock_find_any(DLockStep *step, DLockFind *found)
{
	DLockPartitionSet needed = {{0}};
	char		buffer[DLOCK_NAME_MAX];
	DLockBytes	name;

	Assert(dlock_partition_is_mine(found->target->hash));
	found->lease = find_lease(step->db, found->target, step->strangers, &found->entry);
	if (found->lease == NULL || found->lease->part != DLOCK_PART_PATH)
		return DLOCK_LACKS_NOTHING;
	name = dlock_space_entry_name(found->entry, buffer);
	dlock_holder_path_set(step->db->shared->oid, &name, &needed);
	return dlock_step_widen(step, &needed);
}

/*
 * The same for a lease that is as the target wants it, held or closed, and that
 * the current user may use: its own, or that of a role that it is a member of.
 *
 * A name of an owner stands for no lease of a stranger: the answer is as if that
 * lease were not there.  A token or a reference names one lease; "right" says what
 * happens if that is a stranger's.
 */
DLockStepLack
dlock_find_wanted(DLockStep *step, DLockFind *found)
{
	DLockStepLack lack = dlock_find_any(step, found);
	Oid			role;

	if (lack != DLOCK_LACKS_NOTHING || found->lease == NULL)
		return lack;
	role = found->lease->role;
	if (!is_wanted(found->target, found->lease, step->now))
		found->lease = NULL;
	else if (role == GetUserId() || role == step->member_of)
		return DLOCK_LACKS_NOTHING;
	else if (list_member_oid(step->strangers, role))
	{
		found->stranger = role;
		found->lease = NULL;
	}
	else
	{
		/* The catalogs are not to be read under a partition lock. */
		step->role = role;
		return DLOCK_LACKS_RIGHT;
	}
	return DLOCK_LACKS_NOTHING;
}

/*
 * Run an attempt on the lease that a target names.  "arg" begins with "found".
 * True if there is such a lease.  Throws 42501.
 */
bool
dlock_find_run(DLockStep *step, DLockDatabase *db, DLockFind *found, DLockStepAttempt attempt)
{
	dlock_step_begin(step, db);
	dlock_partition_set_add(&step->set, found->target->hash);
	(void) dlock_step_run(step, attempt, found);
	if (OidIsValid(found->stranger) && found->right == DLOCK_RIGHT_ROLE)
		dlock_error_not_owner(&found->target->name, found->stranger);
	return found->lease != NULL;
}

/* Put the current user's own leases in front; returns how many these are. */
int
dlock_find_own_first(DLockSpaceRef *refs, int count)
{
	int			own = 0;

	for (int i = 0; i < count; i++)
	{
		DLockSpaceRef ref = refs[i];

		if (ref.role != GetUserId())
			continue;
		refs[i] = refs[own];
		refs[own++] = ref;
	}
	return own;
}

/* The term of a lease, but for the bound on the wall clock. */
DLockTerm
dlock_find_term(const DLockSpaceLease *lease)
{
	Assert(dlock_partition_is_held(dlock_space_entry_of(lease)->hash));
	return (DLockTerm)
	{
		lease->ttl, lease->deadline, lease->bound_mono, 0
	};
}

/* Is the lease that a target names live now?  Changes nothing. */
bool
dlock_find_is_live(DLockDatabase *db, const DLockFindTarget *target)
{
	DLockSpaceEntry *entry;
	DLockSpaceLease *lease;
	bool		live;

	dlock_partition_lock(target->hash, LW_SHARED);
	lease = find_lease(db, target, NIL, &entry);
	live = lease != NULL && dlock_rule_is_live(lease->deadline, dlock_clock_now());
	dlock_partition_unlock(target->hash);
	return live;
}
