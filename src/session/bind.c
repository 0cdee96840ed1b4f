/*-------------------------------------------------------------------------
 *
 * bind.c
 *	  Leases that end with this session or its transaction.
 *
 * NOTES
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
 * IDENTIFICATION
 *	  src/session/bind.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "pgstat.h"
#include "utils/memutils.h"

#include "base/error.h"
#include "base/exit.h"
#include "lock/held.h"
#include "session/bind.h"
#include "session/session.h"

typedef struct DLockBound
{
	uint32		hash;
	DLockToken	token;
	DLockBind	bind;
	SubTransactionId subid;		/* in which it was acquired */
} DLockBound;

static DLockBound *bound = NULL;
static int	count = 0;
static int	room = 0;

/* Has the session ended without a disconnect of its client? */
static bool
is_session_lost(void)
{
	return proc_exit_inprogress && pgStatSessionEndCause != DISCONNECT_NORMAL;
}

/*
 * End the leases that are bound so and were acquired in the subtransaction (if
 * that is not InvalidSubTransactionId), and forget them.
 */
static void
end_leases(DLockBind bind, SubTransactionId subid)
{
	DLockHeldStop how = is_session_lost() ? DLOCK_STOP_LOST : DLOCK_STOP_OVER;
	int			kept = 0;
	DLockDatabase db;

	if (count == 0)
		return;
	dlock_session_shared(&db);
	for (int i = 0; i < count; i++)
	{
		if (bound[i].bind == bind &&
			(subid == InvalidSubTransactionId || subid == bound[i].subid))
			dlock_held_stop(&db, bound[i].hash, bound[i].token, how);
		else
			bound[kept++] = bound[i];
	}
	count = kept;
}

static void
end_transaction(void)
{
	end_leases(DLOCK_BIND_TRANSACTION, InvalidSubTransactionId);
}

/* A prepared transaction outlives its session; a lease cannot follow it. */
static void
check_prepare(void)
{
	DLockDatabase db;

	for (int i = 0; i < count; i++)
	{
		DLockHeldTarget target = dlock_held_target(bound[i].hash, bound[i].token);

		dlock_session_shared(&db);
		if (bound[i].bind == DLOCK_BIND_TRANSACTION && dlock_held_is_live(&db, &target))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot prepare a transaction that holds leases bound to it"),
					 errdetail("A prepared transaction outlives its session, and a bound lease does not."),
					 errhint("Release the leases first, or acquire them with bind => 'none'.")));
	}
}

static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_PREPARE:
			check_prepare();
			break;

		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			end_transaction();
			break;

		default:
			break;
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId subid,
				 SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		end_leases(DLOCK_BIND_TRANSACTION, subid);
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		for (int i = 0; i < count; i++)
		{
			if (bound[i].subid == subid)
				bound[i].subid = parent;
		}
	}
}

static void
end_session(int code, Datum arg)
{
	end_leases(DLOCK_BIND_SESSION, InvalidSubTransactionId);
}

/* Forget leases that have ended otherwise. */
static void
forget_ended(void)
{
	int			kept = 0;
	DLockDatabase db;

	dlock_session_shared(&db);
	for (int i = 0; i < count; i++)
	{
		DLockHeldTarget target = dlock_held_target(bound[i].hash, bound[i].token);

		if (dlock_held_is_live(&db, &target))
			bound[kept++] = bound[i];
	}
	count = kept;
}

/*
 * Make room for this many more leases, so that adding them cannot fail.  The
 * database must have been opened once before.
 */
void
dlock_bind_prepare(int more)
{
	if (bound == NULL)
	{
		bound = MemoryContextAlloc(TopMemoryContext, 8 * sizeof(DLockBound));
		room = 8;
		RegisterXactCallback(xact_callback, NULL);
		RegisterSubXactCallback(subxact_callback, NULL);
		dlock_exit_on_shmem(end_session, (Datum) 0);
	}
	if (count + more <= room)
		return;
	forget_ended();
	if (count + more > room / 2)
	{
		int			wanted = 2 * Max(room, count + more);

		bound = repalloc(bound, wanted * sizeof(DLockBound));
		room = wanted;
	}
}

/* A lease that was just granted is bound to this session or its transaction. */
void
dlock_bind_add(uint32 hash, DLockToken token, DLockBind bind)
{
	DLockBound	new = {hash, token, bind, GetCurrentSubTransactionId()};

	Assert(count < room);
	bound[count++] = new;
}

/* A lease that may be bound has another token now. */
void
dlock_bind_convert(uint32 hash, DLockToken from, DLockToken to)
{
	for (int i = 0; i < count; i++)
	{
		if (bound[i].hash == hash && bound[i].token == from)
			bound[i].token = to;
	}
}

/* The session is reset: end the leases that are bound to it. */
void
dlock_bind_discard(void)
{
	end_leases(DLOCK_BIND_SESSION, InvalidSubTransactionId);
}
