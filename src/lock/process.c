/*-------------------------------------------------------------------------
 *
 * process.c
 *	  Processes that wait: their requests, what wakes them beside a turn, who blocks them.
 *
 * NOTES
 *	  The requests themselves stand in the queues of their locks
 *	  (space/space.c).  Each process has an entry in shared memory, which says
 *	  which requests are its.  Their partitions are only known from that entry, so a
 *	  process locks those of its own, and whoever looks for others' locks all.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/rule.h"
#include "lock/process.h"
#include "space/count.h"
#include "space/holder.h"

/*
 * Backends that wait and have looked for a deadlock: they are told when their owner
 * gets something.  They are counted by the hash of the owner (space/count.c), so a grant
 * finds out in O(1) that nobody is to be told of it.
 */
typedef struct DLockProcessListenShared
{
	pg_atomic_uint32 count;
	pg_atomic_uint32 observers; /* processes that watch a lock */

	/*
	 * By process: the hash of the owner, zero for those that do not listen.
	 * Set by the process, with its partitions locked; cleared by the first
	 * that tells it, or with the end of the wait.
	 */
	pg_atomic_uint32 owners[FLEXIBLE_ARRAY_MEMBER];
} DLockProcessListenShared;

static DLockProcessListenShared *listeners = NULL;
static DLockProcessShared *places = NULL;

static Size
listeners_size(void)
{
	return add_size(sizeof(DLockProcessListenShared), mul_size(sizeof(pg_atomic_uint32), MaxBackends));
}

void
dlock_process_request(void)
{
	RequestAddinShmemSpace(listeners_size());
	RequestAddinShmemSpace(mul_size(sizeof(DLockProcessShared), MaxBackends));
}

/* Create the places; with AddinShmemInitLock held. */
void
dlock_process_startup(void)
{
	bool		found;
	Size		size = mul_size(sizeof(DLockProcessShared), MaxBackends);

	places = ShmemInitStruct("dlock waits", size, &found);
	if (!found)
		memset(places, 0, size);
	listeners = ShmemInitStruct("dlock listeners", listeners_size(), &found);
	if (found)
		return;
	pg_atomic_init_u32(&listeners->count, 0);
	pg_atomic_init_u32(&listeners->observers, 0);
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u32(&listeners->owners[i], 0);
}

/* The place of a process, by its number (MyProcNumber). */
DLockProcessShared *
dlock_process_at(int process)
{
	Assert(process >= 0 && process < MaxBackends);
	DLOCK_FAULT_COUNT(DLOCK_COST_PLACES);
	return &places[process];
}

/* The place of this process. */
DLockProcessShared *
dlock_process_mine(void)
{
	return &places[MyProcNumber];
}

/*
 * The first of the requests by which a process waits; NULL if it does not.  Their
 * partitions must be locked, unless the process is this one, in no queue.
 */
DLockSpaceLease *
dlock_process_first(int process)
{
	const DLockProcessShared *wait = dlock_process_at(process);

	return (wait->state == DLOCK_PROCESS_WAITING) ? dlock_space_lease_at(wait->first) : NULL;
}

/* The hash by which an owner that waits is found; never zero. */
uint32
dlock_process_owner_hash(const DLockOwner *owner)
{
	return Max(1, dlock_name_hash(owner->role, &owner->name));
}

/* The key by which the backends that listen for an owner are counted. */
static inline uint64
listener_key(uint32 owner)
{
	return hash_bytes_uint32_extended(owner, 0);
}

/* One more backend listens for an owner, or one less. */
static void
count_listener(uint32 owner, int by)
{
	dlock_count_add(DLOCK_COUNT_LISTENERS, listener_key(owner), by);
	(void) pg_atomic_fetch_add_u32(&listeners->count, by);
}

/*
 * This process waits, and is about to look for a deadlock: from now on it is told
 * once if its owner gets something.  Its partitions must be locked, in any mode.
 */
void
dlock_process_listen(void)
{
	int			me = MyProcNumber;
	uint32		owner = places[me].owner;

	Assert(places[me].state == DLOCK_PROCESS_WAITING && owner != 0);
	count_listener(owner, 1);	/* first, so that it is never too low */
	if (pg_atomic_exchange_u32(&listeners->owners[me], owner) != 0)
		count_listener(owner, -1);
}

/* Does this process listen still, so that it can sleep for long? */
bool
dlock_process_listens(void)
{
	return pg_atomic_read_u32(&listeners->owners[MyProcNumber]) != 0;
}

/* A process listens no longer; false if it did not. */
static bool
end_listening(int process)
{
	uint32		owner = pg_atomic_exchange_u32(&listeners->owners[process], 0);

	if (owner != 0)
		count_listener(owner, -1);
	return owner != 0;
}

/*
 * Lock the partitions of what this process waits for; they are told in "set".  False, and
 * nothing locked, if it does not wait, maybe since the extension was dropped.
 */
bool
dlock_process_lock_mine(LWLockMode mode, DLockPartitionSet *set)
{
	volatile DLockProcessShared *mine = dlock_process_mine();

	if (mine->state != DLOCK_PROCESS_WAITING)
		return false;
	*set = dlock_process_mine()->set;
	dlock_partition_lock_set(set, mode);
	if (mine->state == DLOCK_PROCESS_WAITING)
		return true;
	dlock_partition_unlock_set(set);
	return false;
}

/*
 * A process that waits does so no longer; "state" is what it is from now on.
 * The partitions of all its requests must be locked exclusively.  Cannot fail.
 */
void
dlock_process_end(int process, DLockProcessState state)
{
	DLockProcessShared *wait = dlock_process_at(process);

	Assert(dlock_partition_set_is_mine(&wait->set) && wait->state == DLOCK_PROCESS_WAITING);
	(void) end_listening(process);
	if (wait->kind == DLOCK_SPACE_WATCH)
		(void) pg_atomic_fetch_sub_u32(&listeners->observers, 1);
	pg_write_barrier();
	wait->state = state;
}

/*
 * Does a process wait for a lock of this database, and not only watch?  Without
 * the partitions of its requests locked this is only a hint.
 */
bool
dlock_process_is_for_lock(int process, Oid database)
{
	volatile DLockProcessShared *wait = dlock_process_at(process);

	return wait->state == DLOCK_PROCESS_WAITING && wait->database == database &&
		wait->kind != DLOCK_SPACE_WATCH;
}

/*
 * An owner got a lock, or a stronger mode: backends by which it waits may be in
 * a deadlock now, and look.  To be called under the partition lock under which it
 * got that.  Cannot fail.
 *
 * A backend that does not listen looks by itself within deadlock_timeout, and finds
 * the lease then.  So an owner that gets and gives up locks all the time, by one
 * backend, wakes those by which it waits once in that time, not with every lock.
 */
void
dlock_process_owner_gained(Oid database, const DLockOwner *owner)
{
	uint32		hash;

	if (pg_atomic_read_u32(&listeners->count) == 0)
		return;
	hash = dlock_process_owner_hash(owner);
	if (dlock_count_read(DLOCK_COUNT_LISTENERS, listener_key(hash)) == 0)
		return;
	for (int process = 0; process < MaxBackends; process++)
	{
		if (pg_atomic_read_u32(&listeners->owners[process]) == hash &&
			dlock_process_is_for_lock(process, database) &&
			end_listening(process))
			dlock_space_wake(process);
	}
}

/* This process begins to watch a lock; it is counted until dlock_process_end(). */
void
dlock_process_observes(void)
{
	(void) pg_atomic_fetch_add_u32(&listeners->observers, 1);
}

/*
 * What this process was granted on locks is confirmed: wake the observers.  Without
 * observers anywhere this costs nothing.  No partition lock may be held.  Cannot fail.
 *
 * No wake-up is lost: a process is counted as an observer before it looks last at what
 * is confirmed, and here the confirmation comes before the look at the count.
 */
void
dlock_process_tell_observers(Oid database, const DLockBytes *names, int count)
{
	Assert(!dlock_partition_is_any_held());
	pg_memory_barrier();
	if (pg_atomic_read_u32(&listeners->observers) == 0)
		return;
	for (int i = 0; i < count; i++)
	{
		uint32		hash = dlock_name_hash(database, &names[i]);
		DLockSpaceEntry *entry;

		dlock_partition_lock(hash, LW_SHARED);
		entry = dlock_space_find(database, hash, &names[i]);
		for (DLockSpaceLease *request = (entry != NULL) ? dlock_space_queue(entry) : NULL;
			 request != NULL && request->kind != DLOCK_SPACE_ASKED;
			 request = dlock_space_next(request))
		{
			if (request->kind == DLOCK_SPACE_WATCH)
				dlock_space_wake(request->process);
		}
		dlock_partition_unlock(hash);
	}
}

/* ---- who blocks them, for people to read ---- */

/*
 * Add the owner of a lease that blocks, or of a request, to those that are in the way of a
 * mode, if it is, and not among them.  The partition must be locked.
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
 * The owners of the leases that are in the way of a request, and of the requests
 * in front of it that are.  The partition must be locked, in any mode.
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
 * The owners that are in the way of what this process waits for (of the first
 * lock of which that is so), as a list for people.
 */
char *
dlock_process_describe_blockers(void)
{
	DLockProcessBlockers *owners = palloc0(sizeof(DLockProcessBlockers));
	StringInfoData text;
	DLockPartitionSet set;

	if (dlock_process_lock_mine(LW_SHARED, &set))
	{
		DLockTime	now = dlock_clock_now();

		for (DLockSpaceLease *request = dlock_process_first(MyProcNumber);
			 request != NULL && owners->count == 0;
			 request = dlock_space_request_next(request))
			dlock_process_find_blockers(request, now, owners);
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
