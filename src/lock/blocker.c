/*-------------------------------------------------------------------------
 *
 * blocker.c
 *	  The owners that are in the way of a request, for people to read.
 *
 * IDENTIFICATION
 *	  src/lock/blocker.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"

#include "base/clock.h"
#include "base/name.h"
#include "base/rule.h"
#include "lock/blocker.h"
#include "lock/queue.h"
#include "space/holder.h"

/* Add the owner of a lease or a request, unless it is there. */
static void
add_owner(DLockBlockerOwners *owners, const DLockSpaceLease *blocker)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(blocker, buffer);

	for (int i = 0; i < owners->count; i++)
	{
		DLockOwner	named = {owners->owners[i].role,
		{owners->owners[i].data, owners->owners[i].len}};

		if (dlock_name_is_owner(&named, &owner))
			return;
	}
	owners->more = owners->count == DLOCK_BLOCKER_OWNERS;
	if (owners->more)
		return;
	owners->owners[owners->count].role = owner.role;
	owners->owners[owners->count].len = owner.name.len;
	memcpy(owners->owners[owners->count].data, owner.name.data, owner.name.len);
	owners->count++;
}

/*
 * The owners of the leases that are in the way of a request, and of the requests
 * in front of it that are.  The partition must be locked, in any mode.
 */
void
dlock_blocker_find(DLockSpaceLease *request, DLockTime now, DLockBlockerOwners *owners)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(request);
	DLockMode	mode = (DLockMode) request->mode;
	DLockSpaceLease *own = (request->kind == DLOCK_SPACE_CONVERT) ?
		dlock_holder_converted(entry, request, now) : NULL;

	owners->count = 0;
	owners->more = false;
	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL && !owners->more;
		 lease = dlock_space_next(lease))
	{
		if (lease != own && dlock_holder_blocks_until(lease) > now &&
			dlock_rule_waits_behind(mode, DLOCK_RULE_BIT(lease->mode)))
			add_owner(owners, lease);
	}
	for (DLockSpaceLease *ahead = dlock_space_queue(entry); ahead != request && !owners->more;
		 ahead = dlock_space_next(ahead))
	{
		if (dlock_holder_is_waiting(entry, ahead, now) &&
			dlock_rule_waits_behind(mode, DLOCK_RULE_BIT(ahead->mode)))
			add_owner(owners, ahead);
	}
}

/*
 * The owners that are in the way of what this process waits for (of the first
 * lock of which that is so), as a list for people.
 */
char *
dlock_blocker_describe(void)
{
	DLockBlockerOwners *owners = palloc0(sizeof(DLockBlockerOwners));
	StringInfoData text;
	DLockPartitionSet set;

	if (dlock_queue_lock(MyProcNumber, dlock_queue_mine()->database, LW_SHARED, &set))
	{
		DLockTime	now = dlock_clock_now();

		for (DLockSpaceLease *request = dlock_queue_first(MyProcNumber);
			 request != NULL && owners->count == 0;
			 request = dlock_space_request_next(request))
			dlock_blocker_find(request, now, owners);
		dlock_partition_unlock_set(&set);
	}

	initStringInfo(&text);
	for (int i = 0; i < owners->count; i++)
		appendStringInfo(&text, "%s\"%.*s\"", (i > 0) ? ", " : "",
						 owners->owners[i].len, owners->owners[i].data);
	if (owners->more)
		appendStringInfoString(&text, ", ...");
	pfree(owners);
	return text.data;
}
