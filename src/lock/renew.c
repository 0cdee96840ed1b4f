/*-------------------------------------------------------------------------
 *
 * renew.c
 *	  Renew leases.
 *
 * IDENTIFICATION
 *	  src/lock/renew.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/clock.h"
#include "base/rule.h"
#include "base/stat.h"
#include "lock/queue.h"
#include "lock/renew.h"
#include "space/holder.h"
#include "store/flush.h"


typedef struct DLockRenewal
{
	DLockFind	found;
	DLockTime	ttl;
	XLogRecPtr	lsn;			/* vouches for the new deadline */
} DLockRenewal;

/* An attempt: renew a lease. */
static DLockStepLack
try_renew(DLockStep *step, void *arg)
{
	DLockRenewal *renew = arg;
	DLockStepLack lack = dlock_find_wanted(step, &renew->found);
	DLockSpaceLease *lease = renew->found.lease;
	DLockHolderPart parts[DLOCK_PATH_MAX_PARTS];
	DLockRuleRenewal renewal;
	DLockTerm	term;
	int			count;

	if (lack != DLOCK_LACKS_NOTHING || lease == NULL)
		return lack;
	term = dlock_find_term(lease);
	renewal = dlock_rule_renew(&term, renew->ttl, step->now, dlock_clock_wall());
	if (renewal.must_log && lease->slot != DLOCK_SLOT_NONE)
	{
		lack = dlock_step_pin(step, lease->slot);
		if (lack != DLOCK_LACKS_NOTHING)
			return lack;
		dlock_step_log_state(step, lease, &renewal.term);
	}

	dlock_stat_count(DLOCK_STAT_RENEWAL, 1);
	renew->lsn = lease->lsn;
	count = dlock_holder_parts(renew->found.entry, lease, parts);
	for (int i = 0; i < count; i++)
	{
		parts[i].lease->ttl = renewal.term.ttl;
		parts[i].lease->deadline = renewal.term.deadline;
		parts[i].lease->bound_mono = renewal.term.bound_mono;
		dlock_space_note_end(parts[i].lease);
	}
	if (renewal.term.deadline >= term.deadline)
		return DLOCK_LACKS_NOTHING;

	/* It ends earlier than requests in the queue expect. */
	dlock_database_note_deadline(step->db->shared, dlock_holder_blocks_until(lease));
	for (int i = 0; i < count; i++)
		dlock_queue_call(parts[i].entry, step->now);
	return DLOCK_LACKS_NOTHING;
}

/*
 * Renew the live lease that a target names; false if there is none, or if it
 * is to be skipped.  "lsn" is the end of the record that vouches for the new
 * deadline; it is left to the caller to flush it.
 */
static bool
renew_lease(DLockDatabase *db, const DLockFindTarget *target, DLockTime ttl,
			DLockFindRight right, XLogRecPtr *lsn)
{
	DLockRenewal renew = {.found = {.target = target,.right = right},.ttl = ttl};
	DLockStep	step;
	bool		renewed = dlock_find_run(&step, db, &renew.found, try_renew);

	*lsn = renew.lsn;
	return renewed;
}

/*
 * Renew the live lease that a target names; false if there is none.
 *
 * "ttl" zero keeps that of the lease.  When this returns true, the new
 * deadline is as durable as synchronous_commit asks for: also where the bound
 * that covers it was logged before, by a call that did not wait for the disk.
 * Throws 42501.
 */
bool
dlock_renew_lease(DLockDatabase *db, const DLockFindTarget *target,
				  DLockTime ttl)
{
	XLogRecPtr	lsn;

	if (!renew_lease(db, target, ttl, DLOCK_RIGHT_ROLE, &lsn))
		return false;
	dlock_flush_commit(lsn, dlock_clock_now());
	return true;
}

/*
 * Renew those of these leases that are live and that the current user may
 * renew.  Returns how many; the others' tokens become DLOCK_TOKEN_NONE.  "lsn"
 * is advanced to what vouches for the new deadlines, which is left to the
 * caller to flush.
 */
int
dlock_renew_refs(DLockDatabase *db, DLockSpaceRef *refs, int count,
				 DLockTime ttl, XLogRecPtr *lsn)
{
	int			renewed = 0;

	for (int i = 0; i < count; i++)
	{
		DLockFindTarget target = dlock_find_target(refs[i].hash, refs[i].token);
		XLogRecPtr	of_this;

		CHECK_FOR_INTERRUPTS();
		if (renew_lease(db, &target, ttl, DLOCK_RIGHT_ROLE_SKIP, &of_this))
		{
			renewed++;
			*lsn = Max(*lsn, of_this);
		}
		else
			refs[i].token = DLOCK_TOKEN_NONE;
	}
	return renewed;
}

/*
 * Renew all live leases that the name of an owner stands for: those of the
 * current user; if it has none, those of the roles that it is a member of.
 * Flushes once.  Returns how many.
 */
int
dlock_renew_all(DLockDatabase *db, const DLockBytes *owner_name, DLockTime ttl)
{
	int			count;
	DLockSpaceRef *refs = dlock_index_owned(db->shared->oid, owner_name, &count);
	int			own = dlock_find_own_first(refs, count);
	XLogRecPtr	last = InvalidXLogRecPtr;
	int			renewed = dlock_renew_refs(db, refs, own, ttl, &last);

	if (renewed == 0)
		renewed = dlock_renew_refs(db, refs + own, count - own, ttl, &last);
	pfree(refs);
	dlock_flush_commit(last, dlock_clock_now());
	return renewed;
}
