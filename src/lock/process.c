/*-------------------------------------------------------------------------
 *
 * process.c
 *	  Processes that wait: their requests, and who blocks them.
 *
 * NOTES
 *	  The requests themselves stand in the queues of their locks
 *	  (space/space.c).  Each process has an entry in shared memory, which says
 *	  which requests are its.  Only that entry tells their partitions, so a process
 *	  locks those of its own requests, and all to find those of others.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/shmem.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/rule.h"
#include "lock/process.h"
#include "space/holder.h"

static DLockProcessShared *entries = NULL;

void
dlock_process_request(void)
{
	RequestAddinShmemSpace(mul_size(sizeof(DLockProcessShared), MaxBackends));
}

/* Create the entries; with AddinShmemInitLock held. */
void
dlock_process_startup(void)
{
	bool		found;
	Size		size = mul_size(sizeof(DLockProcessShared), MaxBackends);

	entries = ShmemInitStruct("dlock waits", size, &found);
	if (!found)
		memset(entries, 0, size);
}

/* The entry of a process, by its number (MyProcNumber). */
DLockProcessShared *
dlock_process_at(int process)
{
	Assert(process >= 0 && process < MaxBackends);
	DLOCK_FAULT_COUNT(DLOCK_COST_PLACES);
	return &entries[process];
}

/*
 * The first of the requests by which a process waits; NULL if it does not.  Their
 * partitions must be locked, unless the process is this one, in no queue.
 */
DLockSpaceLease *
dlock_process_first(int process)
{
	return dlock_space_lease_at(dlock_process_at(process)->first);
}

/*
 * Lock the partitions of what this process waits for.  False, and nothing locked, if it
 * does not wait, maybe since the extension was dropped.
 */
bool
dlock_process_lock_mine(LWLockMode mode)
{
	const DLockProcessShared *mine = dlock_process_at(MyProcNumber);

	if (mine->first == DLOCK_MEMORY_NONE)
		return false;
	dlock_partition_lock_set(&mine->set, mode);
	if (mine->first != DLOCK_MEMORY_NONE)
		return true;
	dlock_process_unlock_mine();
	return false;
}

/* Unlock them, whether or not it waits still. */
void
dlock_process_unlock_mine(void)
{
	dlock_partition_unlock_set(&dlock_process_at(MyProcNumber)->set);
}

/*
 * This process begins to wait by requests that are in their queues.  The partitions of the
 * set, which are theirs, must be locked exclusively.
 */
void
dlock_process_begin(const DLockPartitionSet *set, DLockMemoryRef first, DLockTime now)
{
	DLockProcessShared *mine = dlock_process_at(MyProcNumber);

	Assert(dlock_partition_set_is_mine(set) && mine->first == DLOCK_MEMORY_NONE);
	*mine = (DLockProcessShared)
	{
		first, *set, now
	};
}

/*
 * A process that waits does so no longer.  The partitions of all its requests must be
 * locked exclusively.  Cannot fail.
 */
void
dlock_process_end(int process)
{
	DLockProcessShared *wait = dlock_process_at(process);

	Assert(dlock_partition_set_is_mine(&wait->set) && wait->first != DLOCK_MEMORY_NONE);
	wait->first = DLOCK_MEMORY_NONE;
}

/* ---- who blocks them, for people to read ---- */

/*
 * Add the owner of a lease that blocks others, or of a request, to "owners", if that
 * conflicts with a mode and the owner is not among them.  The partition must be locked.
 */
void
dlock_process_add_blocker(DLockProcessBlockers *owners, DLockMode mode, const DLockSpaceLease *blocker)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner;

	if (owners->more || !dlock_rule_waits_behind(mode, DLOCK_RULE_BIT(blocker->mode)))
		return;
	owner = dlock_space_lease_owner(blocker, buffer);
	for (int i = 0; i < owners->count; i++)
	{
		DLockOwner	named = {owners->owners[i].role,
		{owners->owners[i].data, owners->owners[i].len}};

		if (dlock_name_is_owner(&named, &owner))
			return;
	}
	owners->more = owners->count == DLOCK_PROCESS_BLOCKERS;
	if (owners->more)
		return;
	owners->owners[owners->count].role = owner.role;
	owners->owners[owners->count].len = owner.name.len;
	memcpy(owners->owners[owners->count].data, owner.name.data, owner.name.len);
	owners->count++;
}

/*
 * The owners of the leases that block a request, and of the requests in front of it
 * that do.  The partition must be locked, in any mode.
 */
void
dlock_process_find_blockers(DLockSpaceLease *request, DLockTime now, DLockProcessBlockers *owners)
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
		if (lease != own && dlock_holder_blocks_until(lease) > now)
			dlock_process_add_blocker(owners, mode, lease);
	}
	for (DLockSpaceLease *ahead = dlock_space_queue(entry); ahead != request && !owners->more;
		 ahead = dlock_space_next(ahead))
	{
		if (dlock_holder_is_waiting(entry, ahead, now))
			dlock_process_add_blocker(owners, mode, ahead);
	}
}

/*
 * The owners that block what this process waits for (on the first lock on which
 * any do), as a list for people.
 */
char *
dlock_process_describe_blockers(void)
{
	DLockProcessBlockers *owners = palloc0(sizeof(DLockProcessBlockers));
	StringInfoData text;

	if (dlock_process_lock_mine(LW_SHARED))
	{
		DLockTime	now = dlock_clock_now();

		for (DLockSpaceLease *request = dlock_process_first(MyProcNumber);
			 request != NULL && owners->count == 0;
			 request = dlock_space_request_next(request))
			dlock_process_find_blockers(request, now, owners);
		dlock_process_unlock_mine();
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
