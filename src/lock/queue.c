/*-------------------------------------------------------------------------
 *
 * queue.c
 *	  This process in the queue: looking, leaving, giving back.
 *
 * NOTES
 *	  A process that waits holds no lock of the server's, not even on the
 *	  store, so that it is in nobody's way.  What it does in the queue it does
 *	  in memory alone, and so can do at any time, be it while an error is being
 *	  handled or at exit.  There is one exception, to serve the queue, for which
 *	  it opens the store like any other operation.
 *
 *	  There is one way out of the queue for every reason.  It is a race with
 *	  the hand-off, which the partition locks decide: either the request is
 *	  still in the queue, and is taken out of it, or it has been granted.  Then
 *	  a process that leaves because its time is up takes what it got; one that
 *	  leaves in an error gives it back.
 *
 * IDENTIFICATION
 *	  src/lock/queue.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"

#include "base/clock.h"
#include "base/name.h"
#include "base/rule.h"
#include "lock/grant.h"
#include "lock/queue.h"
#include "space/holder.h"
#include "space/slot.h"

static DLockWaitShared *
mine(void)
{
	return dlock_wait_of(dlock_wait_me());
}

/* Lock my partitions, if I still wait. */
static bool
lock_mine(LWLockMode mode, DLockSpaceSet *set)
{
	return dlock_wait_lock(dlock_wait_me(), mine()->database, mode, set, NULL);
}

/* The lease that a conversion is to change; NULL if it is lost. */
static DLockSpaceLease *
find_converted(DLockSpaceEntry *entry, const DLockSpaceLease *request, DLockTime now)
{
	DLockSpaceLease *lease = dlock_space_find_part(entry, request->token);

	if (lease != NULL && !dlock_rule_is_live(lease->deadline, now))
		return NULL;
	return lease;
}

/*
 * The live lease with the latest token on a lock, intents aside; NULL if there
 * is none.
 */
DLockSpaceLease *
dlock_queue_leader(DLockSpaceEntry *entry, DLockTime now)
{
	DLockSpaceLease *leader = NULL;

	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL;
		 lease = dlock_space_next(lease))
	{
		if (lease->part != DLOCK_PART_INTENT && dlock_rule_is_live(lease->deadline, now) &&
			(leader == NULL || leader->token < lease->token))
			leader = lease;
	}
	return leader;
}

/*
 * Call "visitor" for each lease that is in the way of a request, and for each
 * request in front of it that is.
 */
void
dlock_queue_blockers(DLockSpaceLease *request, DLockTime now,
					 DLockQueueVisitor visitor, void *arg)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(request);
	uint32		conflicts = dlock_rule_conflicts((DLockMode) request->mode) |
		((request->mode == DLOCK_MODE_PERMIT) ? DLOCK_RULE_BIT(DLOCK_MODE_PERMIT) : 0);
	DLockSpaceLease *own = (request->kind == DLOCK_SPACE_CONVERT) ?
		find_converted(entry, request, now) : NULL;

	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL;
		 lease = dlock_space_next(lease))
	{
		if (lease != own && dlock_holder_blocks_until(lease) > now &&
			(conflicts & DLOCK_RULE_BIT(lease->mode)) != 0)
			visitor(lease, arg);
	}
	for (DLockSpaceLease *ahead = dlock_space_queue(entry); ahead != request;
		 ahead = dlock_space_next(ahead))
	{
		if (dlock_holder_is_waiting(entry, ahead, now) &&
			(conflicts & DLOCK_RULE_BIT(ahead->mode)) != 0)
			visitor(ahead, arg);
	}
}

/* A visitor of blockers: add the owner. */
static void
add_owner(DLockSpaceLease *blocker, void *arg)
{
	DLockQueueOwners *owners = arg;
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(blocker, buffer);

	for (int i = 0; i < owners->count; i++)
	{
		DLockOwner	named = {owners->owners[i].role,
			{owners->owners[i].data, owners->owners[i].len}};

		if (dlock_name_is_owner(&named, &owner))
			return;
	}
	owners->more = owners->count == DLOCK_QUEUE_OWNERS;
	if (owners->more)
		return;
	owners->owners[owners->count].role = owner.role;
	owners->owners[owners->count].len = owner.name.len;
	memcpy(owners->owners[owners->count].data, owner.name.data, owner.name.len);
	owners->count++;
}

/* The owners that are in the way of a request. */
void
dlock_queue_owners_in_way(DLockSpaceLease *request, DLockTime now, DLockQueueOwners *owners)
{
	owners->count = 0;
	owners->more = false;
	dlock_queue_blockers(request, now, add_owner, owners);
}

/* Look at one request, whose partition is locked. */
static DLockQueueNews
look_at(DLockSpaceLease *request, DLockTime now, DLockTime anyway, DLockTime *until)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(request);
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(request, buffer);
	DLockSpaceLease *own = NULL;
	bool		blocked;

	if (request->kind == DLOCK_SPACE_WATCH)
	{
		DLockSpaceLease *leader = dlock_queue_leader(entry, now);

		*until = (leader != NULL) ? leader->deadline : DLOCK_TIME_FOREVER;
		return (request->token == ((leader != NULL) ? leader->token : DLOCK_TOKEN_NONE)) ?
			DLOCK_QUEUE_WAIT : DLOCK_QUEUE_RETRY;
	}
	if (request->kind == DLOCK_SPACE_CONVERT)
	{
		own = find_converted(entry, request, now);
		if (own == NULL)
			return DLOCK_QUEUE_RETRY;
	}
	/* Its owner has got the lock otherwise: what that means depends on the call. */
	else if (request->part != DLOCK_PART_INTENT &&
			 dlock_space_find_owned(entry, &owner, now) != NULL)
		return DLOCK_QUEUE_RETRY;

	blocked = dlock_holder_is_blocked(entry, (DLockMode) request->mode, entry->permits,
									 own, request, now, until);
	if (own != NULL)
		*until = Min(*until, own->deadline);
	/* The one in front wakes in time, and hands off to this one, too. */
	else if (blocked && !dlock_space_is_first(request))
		*until = DLOCK_TIME_FOREVER;
	request->deadline = Min(*until, anyway);
	if (blocked)
		return DLOCK_QUEUE_WAIT;
	return (request->kind == DLOCK_SPACE_CONVERT) ? DLOCK_QUEUE_RETRY : DLOCK_QUEUE_SERVE;
}

/*
 * See what has become of what this process waits for.
 *
 * If it goes on waiting, "until" is when to look again at the latest, since a
 * lease in the way ends then.  "anyway" is when the process will look in any
 * case, so that it need not be woken for what happens later.  No lock may be
 * held.
 */
DLockQueueNews
dlock_queue_look(DLockTime anyway, DLockTime *until)
{
	DLockSpaceSet set;
	DLockTime	now;
	DLockQueueNews news = DLOCK_QUEUE_SERVE;

	*until = DLOCK_TIME_FOREVER;
	if (!lock_mine(LW_SHARED, &set))
	{
		pg_read_barrier();
		return (mine()->state == DLOCK_WAIT_GRANTED) ? DLOCK_QUEUE_GRANTED : DLOCK_QUEUE_GONE;
	}

	now = dlock_clock_now();
	for (DLockSpaceLease *request = dlock_space_request_first(mine()->first);
		 request != NULL; request = dlock_space_request_next(request))
	{
		DLockTime	ends;
		DLockQueueNews found = look_at(request, now, anyway, &ends);

		if (found == DLOCK_QUEUE_RETRY)
		{
			news = found;
			break;
		}
		*until = Min(*until, ends);
		if (found == DLOCK_QUEUE_WAIT)
			news = found;
	}
	dlock_space_unlock_set(&set);
	return news;
}

/*
 * The owners that are in the way of what this process waits for (of the first
 * lock of which that is so), as a list for people.
 */
char *
dlock_queue_describe_blockers(void)
{
	DLockQueueOwners *owners = palloc0(sizeof(DLockQueueOwners));
	StringInfoData text;
	DLockSpaceSet set;

	if (lock_mine(LW_SHARED, &set))
	{
		DLockTime	now = dlock_clock_now();

		for (DLockSpaceLease *request = dlock_space_request_first(mine()->first);
			 request != NULL && owners->count == 0;
			 request = dlock_space_request_next(request))
			dlock_queue_owners_in_way(request, now, owners);
		dlock_space_unlock_set(&set);
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

/*
 * Hand off all that this process waits for, to itself or to whoever is in
 * front.
 */
void
dlock_queue_serve(DLockDatabase *db)
{
	uint32		hashes[DLOCK_NAMES_MAX];
	int			count = 0;
	uint32		serial;
	DLockWork work;
	DLockSpaceSet set;

	if (!lock_mine(LW_SHARED, &set))
		return;
	serial = mine()->serial;
	for (DLockSpaceLease *request = dlock_space_request_first(mine()->first);
		 request != NULL; request = dlock_space_request_next(request))
		hashes[count++] = dlock_space_entry_of(request)->hash;
	dlock_space_unlock_set(&set);

	dlock_work_begin(&work, db);
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		dlock_grant_serve(&work, hashes[i]);
	}
	/* Of all those for several locks that these are for, this process at least. */
	if (count > 1)
		dlock_grant_serve_unit(&work, dlock_wait_me(), serial);
	dlock_grant_finish(&work);
}

/*
 * Take all requests of this process out of their queues, whose partitions are
 * locked exclusively.
 */
void
dlock_queue_remove_mine(DLockWork *work)
{
	DLockDatabase *db = work->db;
	DLockSpaceLease *request;
	DLockSpaceLease *next;

	for (request = dlock_space_request_first(mine()->first); request != NULL; request = next)
	{
		DLockSpaceEntry *entry = dlock_space_entry_of(request);
		DLockSpaceKind kind = (DLockSpaceKind) request->kind;
		DLockSlot	slot = request->slot;
		bool		is_last;

		next = dlock_space_request_next(request);
		is_last = dlock_space_holders(entry) == NULL &&
			dlock_space_next(dlock_space_queue(entry)) == NULL;
		dlock_space_remove(entry, request);
		if (slot != DLOCK_SLOT_NONE)
			dlock_slot_free(&db->shared->slots, slot);
		if (!is_last && kind != DLOCK_SPACE_WATCH)
			dlock_grant_hand_off(work, entry);
	}
	dlock_wait_leave(dlock_wait_me(), DLOCK_WAIT_IDLE);
}

/* What this process got has been noticed. */
void
dlock_queue_taken(void)
{
	mine()->state = DLOCK_WAIT_IDLE;
}

/*
 * Leave the queue.  False if it is too late for that, since the request has
 * been granted or thrown out; that is left as it is, then.
 *
 * Without db->rel those behind are only woken.  Cannot fail then.
 */
bool
dlock_queue_leave(DLockDatabase *db)
{
	DLockWork work;
	DLockSpaceSet set;

	if (!lock_mine(LW_EXCLUSIVE, &set))
		return false;
	dlock_work_begin(&work, db);
	work.now = dlock_clock_now();
	dlock_queue_remove_mine(&work);
	dlock_space_unlock_set(&set);
	dlock_grant_finish(&work);
	return true;
}

/*
 * The extension is no longer in this database: nobody waits for its locks any
 * more.  Nobody can begin to, either, since the store is locked.
 */
void
dlock_queue_dismiss(Oid database)
{
	for (int process = 0; process < dlock_wait_processes(); process++)
	{
		DLockWaitShared *wait = dlock_wait_of(process);
		DLockSpaceSet set;
		DLockSpaceLease *request;
		DLockSpaceLease *next;

		if (!dlock_wait_lock(process, database, LW_EXCLUSIVE, &set, NULL))
			continue;
		for (request = dlock_space_request_first(wait->first); request != NULL; request = next)
		{
			next = dlock_space_request_next(request);
			dlock_space_remove(dlock_space_entry_of(request), request);
		}
		dlock_wait_leave(process, DLOCK_WAIT_GONE);
		dlock_wait_wake(process);
		dlock_space_unlock_set(&set);
	}
}
