/*-------------------------------------------------------------------------
 *
 * grants.c
 *	  What this backend was granted: undone if that is not answered, and ended
 *	  with the session or the transaction that it is bound to.
 *
 * NOTES
 *	  A grant is made before it is flushed, and flushed before it is answered.
 *	  A call that is cancelled or terminated in between would leave a lease
 *	  that no client knows.  So a function lists what it was granted.  If it ends in an
 *	  error, whatever it is, the abort of the transaction or subtransaction undoes what
 *	  it listed, as if it had never been granted (src/README, "What is not answered").
 *	  The last thing that it does is to answer: an error later in the statement undoes
 *	  nothing, since leases are not transactional.
 *
 *	  How a change is undone:
 *
 *	  a grant		it ends (dlock_held_stop)
 *	  a new place	it is given up
 *	  one more hold	there is one less
 *	  an upgrade	the lease gets its old token and its old mode back.  Where
 *					neither mode covers the other (CW and PR), something that
 *					conflicts may have been granted meanwhile; then the lease
 *					ends.
 *
 *	  A renewal and a downgrade are not undone: their owner has the same token
 *	  as before.
 *
 *	  The undo changes memory alone, and cannot fail.  It wakes the worker, which
 *	  sees to the pages.
 *
 *	  This backend remembers the leases that are bound to it, and ends them from
 *	  the server's callbacks: at commit, when the transaction is visible to
 *	  others; at abort, also of a subtransaction; and at exit, after the
 *	  transaction has been rolled back.  A callback must not fail and cannot open
 *	  the store, so it changes memory only.
 *
 *	  A lease that has ended otherwise stays on the list for a while.  That does
 *	  no harm, since leases are found by their tokens.
 *
 *	  After a crash of the server no callback runs, but bound leases are gone
 *	  with its shared memory.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "utils/memutils.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/rule.h"
#include "lock/held.h"
#include "lock/queue.h"
#include "session/grants.h"
#include "session/session.h"
#include "space/holder.h"
#include "space/memory.h"
#include "space/place.h"
#include "space/slot.h"

typedef enum DLockGrantsKind
{
	CHANGE_GRANT,
	CHANGE_PLACE,				/* it was not granted, and has a place */
	CHANGE_HOLD,				/* the owner's own lease was entered once more */
	CHANGE_UPGRADE
} DLockGrantsKind;

/* A change that has not been answered, or a lease that is bound. */
typedef struct DLockGrantsItem
{
	uint32		hash;			/* of the lock's name */
	uint8		kind;			/* a DLockGrantsKind */
	uint8		bind;			/* GRANT: a DLockBind */
	uint8		before;			/* UPGRADE: the modes */
	uint8		after;
	SubTransactionId subid;		/* GRANT: in which it was acquired */
	uint32		client;			/* PLACE: hash of its client */
	DLockToken	token;			/* that the lease has now; PLACE: its id */
	DLockToken	from;			/* UPGRADE: that it had ... */
	DLockTime	vouched_until;	/* ... and up to when it was vouched for */
} DLockGrantsItem;

/*
 * The list: first the grants that have been answered and are bound to this session or its
 * transaction, then the changes of the call under way.
 */
static DLockGrantsItem *items = NULL;
static int	nbound = 0;
static int	count = 0;
static int	room = 0;

/* ---- leases that are bound to this session or its transaction ---- */

/*
 * End the leases that are bound so and were acquired in the subtransaction (if
 * that is not InvalidSubTransactionId), and take them off the list.
 */
static void
end_bound(DLockBind bind, SubTransactionId subid)
{
	DLockHeldStop how = (proc_exit_inprogress && pgStatSessionEndCause != DISCONNECT_NORMAL) ?
		DLOCK_STOP_LOST : DLOCK_STOP_OVER;
	int			left = 0;
	DLockDatabase db;

	Assert(count == nbound);
	if (nbound == 0)
		return;
	dlock_session_shared(&db);
	for (int i = 0; i < nbound; i++)
	{
		if (items[i].bind == bind &&
			(subid == InvalidSubTransactionId || subid == items[i].subid))
			dlock_held_stop(&db, items[i].hash, items[i].token, how);
		else
			items[left++] = items[i];
	}
	count = nbound = left;
}

/* A prepared transaction outlives its session, and a lease that is bound does not. */
static void
check_prepare(void)
{
	DLockDatabase db;

	for (int i = 0; i < nbound; i++)
	{
		DLockHolderTarget target = {.hash = items[i].hash,.token = items[i].token};

		dlock_session_shared(&db);
		if (items[i].bind == DLOCK_BIND_TRANSACTION && dlock_held_is_live(&db, &target))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that holds leases bound to it"),
					 errdetail("A prepared transaction outlives its session, and a bound lease does not."),
					 errhint("Release the leases first, or acquire them with bind => 'none'.")));
	}
}

/* Take leases that have ended otherwise off the list. */
static void
forget_ended(void)
{
	int			left = 0;
	DLockDatabase db;

	Assert(count == nbound);
	dlock_session_shared(&db);
	for (int i = 0; i < nbound; i++)
	{
		DLockHolderTarget target = {.hash = items[i].hash,.token = items[i].token};

		if (dlock_held_is_live(&db, &target))
			items[left++] = items[i];
	}
	count = nbound = left;
}

/* A lease that may be bound has another token now. */
static void
convert_bound(uint32 hash, DLockToken from, DLockToken to)
{
	for (int i = 0; i < nbound; i++)
	{
		if (items[i].hash == hash && items[i].token == from)
			items[i].token = to;
	}
}

/* ---- undoing; cannot fail ---- */

/* Take back a hold or an upgrade of a lease; false if that must end it. */
static bool
restore(DLockSpaceLease *lease, const DLockGrantsItem *item, DLockTime now)
{
	DLockHolderCrowd crowd;
	XLogRecPtr	lsn = lease->lsn;

	Assert(dlock_partition_is_mine(item->hash));
	if (item->kind == CHANGE_HOLD)
	{
		lease->holds--;
		lease->called &= lease->holds > 0;
		return lease->holds > 0;
	}
	if (lease->called)
		return true;			/* another call was told of the new token */
	dlock_space_succeed(lease, item->from);
	lease->lsn = lsn;
	lease->confirmed = item->vouched_until;
	convert_bound(item->hash, item->token, item->from);

	/* It may have been converted to a weaker mode since. */
	if (lease->mode != item->after)
		return true;
	crowd = dlock_holder_without(dlock_holder_survey(dlock_space_entry_of(lease), now), lease, now);
	if (dlock_holder_is_in_way(&crowd, 0, (DLockMode) item->before, 0))
		return false;
	dlock_space_set_mode(lease, (DLockMode) item->before);
	return true;
}

/* Undo a change. */
static void
undo(DLockDatabase *db, const DLockGrantsItem *item)
{
	DLockHeldStop how = DLOCK_STOP_UNTOLD;
	DLockToken	ends = (item->kind == CHANGE_GRANT) ? item->token : DLOCK_TOKEN_NONE;
	DLockSpaceLease *lease;
	DLockTime	now;

	if (item->kind == CHANGE_PLACE)
		(void) dlock_queue_expire(db->shared->oid, item->hash, item->client, item->token, true);
	else if (ends == DLOCK_TOKEN_NONE)
	{
		dlock_partition_lock(item->hash, LW_EXCLUSIVE);
		now = dlock_clock_now();
		lease = dlock_space_find_token(db->shared->oid, item->hash, item->token);

		/* What was ended by force stays ended. */
		if (lease != NULL && !lease->stopped && dlock_rule_is_live(lease->deadline, now))
		{
			if (!restore(lease, item, now))
			{
				ends = lease->token;
				how = (item->kind == CHANGE_UPGRADE) ? DLOCK_STOP_LOST : how;
			}
			if (lease->slot != DLOCK_SLOT_NONE)
				lease->unwritten = true;
			dlock_database_note_deadline(dlock_holder_due_at(lease));
			dlock_queue_give_turns(dlock_space_entry_of(lease), now, DLOCK_TURNS_AGAIN);
		}
		dlock_partition_unlock(item->hash);
	}
	if (ends != DLOCK_TOKEN_NONE)
		dlock_held_stop(db, item->hash, ends, how);
}

/*
 * A transaction or subtransaction is aborted: if that is because a call fails, undo what it
 * has listed.  Free the memory and slots that it has reserved.
 */
static void
undo_all(void)
{
	DLockDatabase db;

	if (count > nbound)
	{
		DLOCK_FAULT_STOP("undo");
		dlock_session_shared(&db);
	}
	while (count > nbound)
		undo(&db, &items[--count]);
	dlock_memory_trim();
	dlock_slot_trim();
}

/* ---- the server's callbacks ---- */

static void
xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_PREPARE)
		check_prepare();
	if (event == XACT_EVENT_ABORT)
		undo_all();
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
		end_bound(DLOCK_BIND_TRANSACTION, InvalidSubTransactionId);
}

static void
subxact_callback(SubXactEvent event, SubTransactionId subid,
				 SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		undo_all();
		end_bound(DLOCK_BIND_TRANSACTION, subid);
	}
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		for (int i = 0; i < nbound; i++)
		{
			if (items[i].subid == subid)
				items[i].subid = parent;
		}
	}
}

static void
end_bound_at_exit(int code, Datum arg)
{
	DLOCK_BEGIN_EXIT();
	end_bound(DLOCK_BIND_SESSION, InvalidSubTransactionId);
}

/* ---- listing ---- */

/*
 * Reserve room to list so many changes; "bind" is that of the leases to be granted.
 * The database must have been opened once before.
 */
void
dlock_grants_prepare(int more, DLockBind bind)
{
	if (items == NULL)
	{
		/* If one of these fails, the next call registers all of them again. */
		RegisterXactCallback(xact_callback, NULL);
		RegisterSubXactCallback(subxact_callback, NULL);
		on_shmem_exit(end_bound_at_exit, (Datum) 0);
		items = MemoryContextAlloc(TopMemoryContext, 64 * sizeof(DLockGrantsItem));
		room = 64;
	}
	if (count + more <= room)
		return;
	if (bind != DLOCK_BIND_NONE)
		forget_ended();
	if (count + more > room / 2)
	{
		int			wanted = Max(2 * room, count + more);

		items = repalloc(items, wanted * sizeof(DLockGrantsItem));
		room = wanted;
	}
}

static void
list(const DLockGrantsItem *item)
{
	Assert(count < room);
	items[count++] = *item;
}

/* What is asked for has been granted, or entered once more. */
void
dlock_grants_add(DLockDatabase *db, const DLockAcquireRequest *request,
				 const DLockAcquireGranted *granted)
{
	int			leases = request->path ? 1 : request->count;

	if (granted->entered && request->reentry != DLOCK_REENTRY_COUNT)
		return;
	for (int i = 0; i < leases; i++)
	{
		DLockGrantsItem item = {
			.kind = granted->entered ? CHANGE_HOLD : CHANGE_GRANT,
			.hash = dlock_name_hash(db->shared->oid, &request->names[i]),
			.token = (request->tokens != NULL) ? request->tokens[i] : granted->token,
			.bind = granted->entered ? DLOCK_BIND_NONE : request->bind,
			.subid = GetCurrentSubTransactionId()
		};

		list(&item);
	}
}

/* A request for one lock was not granted; list its place if that is new, so has an id. */
void
dlock_grants_add_place(DLockDatabase *db, const DLockAcquireRequest *request,
					   const DLockAcquireGranted *granted)
{
	DLockGrantsItem item = {
		.kind = CHANGE_PLACE,.token = granted->token,
		.client = dlock_place_client(db->shared->oid, &request->owner),
		.hash = dlock_name_hash(db->shared->oid, &request->names[0])
	};

	if (granted->token != DLOCK_TOKEN_NONE)
		list(&item);
}

/* A lease has been converted; with an upgrade it has got another token. */
void
dlock_grants_convert(uint32 hash, DLockToken from, const DLockAcquireGranted *granted,
					 DLockMode after)
{
	DLockGrantsItem item = {
		.kind = CHANGE_UPGRADE,.hash = hash,.token = granted->token,.from = from,
		.vouched_until = granted->vouched_until,.before = granted->before,.after = after
	};

	if (from == granted->token)
		return;
	list(&item);
	convert_bound(hash, from, granted->token);
}

/* ---- calls ---- */

/* A call is answered: what it has listed leaves the list, but for leases that are bound. */
void
dlock_grants_answered(void)
{
	for (int i = nbound; i < count; i++)
	{
		if (items[i].bind != DLOCK_BIND_NONE)
			items[nbound++] = items[i];
	}
	count = nbound;
}

/* The session is reset: end the leases that are bound to it. */
void
dlock_grants_discard(void)
{
	end_bound(DLOCK_BIND_SESSION, InvalidSubTransactionId);
}
