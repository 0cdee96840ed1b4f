/*-------------------------------------------------------------------------
 *
 * convert.c
 *	  Convert leases to other modes.
 *
 * IDENTIFICATION
 *	  src/lock/convert.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/rule.h"
#include "base/stat.h"
#include "lock/convert.h"
#include "lock/queue.h"
#include "space/holder.h"

/* What prevents a conversion, whatever mode is asked for; NULL if nothing does. */
static const char *
find_problem(const DLockSpaceLease *lease)
{
	if (lease->mode == DLOCK_MODE_PERMIT)
		return gettext_noop("It is a permit of a semaphore.");
	if (lease->part != DLOCK_PART_WHOLE)
		return gettext_noop("It is the lease on a path.");
	/* The session that it is bound to knows it by its token. */
	if (lease->bind != DLOCK_BIND_NONE && lease->process != MyProcNumber)
		return gettext_noop("It is bound to another session.");
	return NULL;
}

/* The first request in the queue that is not for a conversion; or NULL. */
static DLockSpaceLease *
first_newcomer(DLockSpaceEntry *entry)
{
	DLockSpaceLease *request = dlock_space_queue(entry);

	while (request != NULL && request->kind == DLOCK_SPACE_CONVERT)
		request = dlock_space_next(request);
	return request;
}

typedef struct DLockConversion
{
	DLockHeldFind found;
	DLockMode	mode;
	bool		may_wait;
	const char *problem;		/* what prevents it, or NULL */
	DLockAcquireAnswer answer;
	DLockAcquireGranted *granted;
} DLockConversion;

/* Give a lease another mode, and with an upgrade another token. */
static DLockStepLack
change_mode(DLockStep *step, DLockSpaceLease *lease, DLockMode mode)
{
	DLockToken	token = lease->token;
	DLockStepLack lack = dlock_step_pin_lease(step, lease);

	Assert(dlock_partition_is_mine(dlock_space_entry_of(lease)->hash));
	if (lack == DLOCK_LACKS_NOTHING && dlock_rule_is_upgrade((DLockMode) lease->mode, mode))
		lack = dlock_step_tokens(step, 1, &token);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;
	if (token != lease->token)
		dlock_space_succeed(lease, lease->role, token);
	dlock_space_set_mode(lease, mode);
	if (lease->slot != DLOCK_SLOT_NONE)
		dlock_step_rewrite(step, lease, NULL);
	return DLOCK_LACKS_NOTHING;
}

/* Put a request for a conversion into the queue. */
static DLockStepLack
enqueue_conversion(DLockStep *step, const DLockSpaceLease *lease, DLockMode mode)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(lease);
	DLockHolderTexts texts;
	DLockLeaseValue value = {
		.token = lease->token,
		.mode = mode,
		.role = lease->role,
		.name = dlock_space_entry_name(entry, texts.name),
		.owner = dlock_space_lease_owner(lease, texts.owner).name
	};
	DLockOwner	owner = {value.role, value.owner};
	DLockMemoryRef place = DLOCK_MEMORY_NONE;

	Assert(dlock_partition_is_mine(entry->hash));
	if (!dlock_space_is_prepared(value.name.len, value.owner.len, 1))
	{
		step->room = (DLockStepRoom)
		{
			.count = 1,.name_len = value.name.len,.data_len = value.owner.len
		};
		return DLOCK_LACKS_ROOM;
	}
	(void) dlock_space_enqueue(entry->database, entry->hash, &value, DLOCK_SPACE_CONVERT, &place);
	(void) dlock_queue_enter(DLOCK_SPACE_CONVERT, entry->database, dlock_queue_owner_hash(&owner),
							 &step->set, 1, place, step->now, dlock_clock_wall());
	return DLOCK_LACKS_NOTHING;
}

/* Convert a lease that was found, or go into the queue for it. */
static DLockStepLack
convert_found(DLockStep *step, DLockConversion *convert)
{
	DLockSpaceLease *lease = convert->found.lease;
	DLockSpaceEntry *entry = dlock_space_entry_of(lease);
	DLockSpaceLease *request = dlock_queue_first(MyProcNumber);
	DLockMode	before = (DLockMode) lease->mode;
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner;
	DLockTime	until;
	DLockStepLack lack;

	if (dlock_rule_is_upgrade(before, convert->mode) &&
		dlock_holder_is_blocked(entry, convert->mode, 0, lease,
								(request != NULL) ? request : first_newcomer(entry),
								step->now, &until))
	{
		convert->answer = convert->may_wait ? DLOCK_ANSWER_QUEUED : DLOCK_ANSWER_REFUSED;
		if (!convert->may_wait || request != NULL)
			return DLOCK_LACKS_NOTHING;
		return enqueue_conversion(step, lease, convert->mode);
	}

	lack = dlock_step_tidy(step, entry);
	if (lack == DLOCK_LACKS_NOTHING)
		lack = change_mode(step, lease, convert->mode);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;
	if (request != NULL)
	{
		dlock_space_remove(entry, request);
		dlock_queue_end(MyProcNumber, DLOCK_QUEUE_IDLE);
	}
	dlock_stat_count(DLOCK_STAT_CONVERSION, 1);
	owner = dlock_space_lease_owner(lease, buffer);
	dlock_queue_owner_gained(step->db->shared->oid, &owner);
	dlock_queue_call(entry, step->now);
	convert->answer = DLOCK_ANSWER_GRANTED;
	*convert->granted = (DLockAcquireGranted)
	{
		.token = lease->token,.lsn = lease->lsn,.before = before
	};
	return DLOCK_LACKS_NOTHING;
}

/* An attempt: convert a lease. */
static DLockStepLack
try_convert(DLockStep *step, void *arg)
{
	DLockConversion *convert = arg;
	DLockStepLack lack = dlock_held_find(step, &convert->found);

	if (lack != DLOCK_LACKS_NOTHING || convert->found.lease == NULL)
		return lack;
	convert->problem = find_problem(convert->found.lease);
	return (convert->problem != NULL) ? DLOCK_LACKS_NOTHING : convert_found(step, convert);
}

/*
 * Convert the live lease with a token to another mode, or go into the queue.
 *
 * An upgrade has to be compatible with the other holders and with the
 * conversions that wait already, and gives the lease a new token; a downgrade
 * keeps it and never waits.  If this process is in the queue for it, the
 * request is looked at again.  GRANTED: it is left to the caller to list the
 * change (session/grants.c) and to flush it; nothing throws after it was made.
 * Throws LK002 if no such lease is live, 55000 if it cannot be converted,
 * 42501, 53400.
 */
DLockAcquireAnswer
dlock_convert_lease(DLockDatabase *db, const DLockHolderTarget *target,
					DLockMode mode, bool may_wait, DLockAcquireGranted *granted)
{
	DLockConversion convert = {
		.found = {.target = target},
		.mode = mode,.may_wait = may_wait,.granted = granted
	};
	DLockStep	step;

	if (!dlock_held_run(&step, db, &convert.found, try_convert))
		dlock_error_lease_lost(&target->name, target->token);
	if (convert.problem != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("lease on lock \"%.*s\" cannot be converted", target->name.len, target->name.data),
				 errdetail("%s", _(convert.problem)),
				 errhint("Release it and acquire it in the other mode.")));
	dlock_memory_trim();
	return convert.answer;
}
