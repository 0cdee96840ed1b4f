/*-------------------------------------------------------------------------
 *
 * take.c
 *	  Taking what the places of a client can be granted.
 *
 * NOTES
 *	  The call listens (space/place.c): it asks for each place of the client as its owner
 *	  would, and sleeps on its latch until one of them may be granted, or is made.  What it
 *	  has not been granted it leaves when it ends (lock/queue.c).
 *
 *	  What has been granted is to be answered, and soon: from the first row on the call
 *	  does not sleep or check for interrupts between places, and from the first grant on
 *	  it makes no deadlock check.  What is wrong with one place is a row without a token.
 *	  An error, such as one for lack of memory, or a cancel in what an attempt waits for,
 *	  undoes what was granted.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/snapmgr.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/stat.h"
#include "lock/acquire.h"
#include "lock/deadlock.h"
#include "lock/queue.h"
#include "session/grants.h"
#include "session/session.h"
#include "session/take.h"
#include "session/wait.h"
#include "space/place.h"

/* A call that takes what the places of a client can be granted. */
typedef struct DLockTake
{
	Oid			database;
	Oid			role;
	const DLockBytes *client;
	DLockTime	keep;
	DLockTaken *taken;			/* what it has taken */
	int			count;
	int			room;
	int			granted;		/* of these */
	bool		is_long;		/* a place was asked for in vain that may be
								 * in a deadlock */
	XLogRecPtr	lsn;
} DLockTake;

/* How many places are asked for at a time. */
#define TAKE_BATCH		64

/* The clean-up.  Must not fail. */
static void
abandon_take(int code, Datum arg)
{
	DLockTake  *take = (DLockTake *) DatumGetPointer(arg);

	LWLockReleaseAll();
	dlock_queue_end_listening(take->database, take->role, take->client, take->keep, true);
}

/* Room for one more row. */
static DLockTaken *
next_row(DLockTake *take)
{
	if (take->count == take->room)
	{
		take->room = Max(8, 2 * take->room);
		take->taken = (take->taken == NULL) ? palloc(take->room * sizeof(DLockTaken)) :
			repalloc_huge(take->taken, take->room * sizeof(DLockTaken));
	}
	return &take->taken[take->count];
}

/* Check for deadlocks that places are in.  Each victim is gone, and gets a row. */
static void
check_places(DLockTake *take, DLockDatabase *db)
{
	DLockTaken *row = next_row(take);

	while (dlock_deadlock_check_places(db, DLOCK_TOKEN_NONE, &row->name, &row->owner) != NULL)
	{
		row->token = DLOCK_TOKEN_NONE;
		dlock_stat_count(DLOCK_STAT_DEADLOCK, 1);
		take->count++;
		row = next_row(take);
	}
}

/* Ask for a place, which may be granted. */
static void
ask_for_place(DLockTake *take, DLockDatabase *db, const DLockPlaceCopy *copy, DLockTime anyway)
{
	DLockBytes	name = dlock_bytes(copy->name, copy->name_len);
	DLockAcquireRequest request = {
		.count = 1,.names = &name,.role = take->role,
		.owner = dlock_bytes(copy->owner, copy->owner_len),
		.payload = dlock_bytes(copy->payload, copy->payload_len),
		.mode = copy->mode,.permits = copy->permits,.reentry = copy->reentry,
		.ttl = copy->ttl,.delay = copy->delay,.min_hold = copy->min_hold,
		.keep = 1,.takes = true,.anyway = anyway
	};
	DLockAcquireGranted granted;
	DLockAcquireAnswer answer;
	DLockTaken *row = next_row(take);

	*row = (DLockTaken)
	{
		.name = dlock_name_copy(name),.owner = dlock_name_copy(request.owner)
	};
	dlock_grants_prepare(1, DLOCK_BIND_NONE);
	answer = dlock_acquire_locks(db, &request, &granted);
	switch (answer)
	{
		case DLOCK_ANSWER_KEPT:
		case DLOCK_ANSWER_REFUSED:
			pfree(unconstify(char *, row->name.data));
			pfree(unconstify(char *, row->owner.data));
			take->is_long |= answer == DLOCK_ANSWER_KEPT && dlock_wait_is_long(&granted);
			return;
		case DLOCK_ANSWER_GRANTED:
			dlock_grants_add(db, &request, &granted);
			row->token = granted.token;
			take->lsn = Max(take->lsn, granted.lsn);
			take->granted++;
			break;
		case DLOCK_ANSWER_SELF:
			dlock_stat_count(DLOCK_STAT_DEADLOCK, 1);
			break;
		default:
			break;
	}
	take->count++;
}

/*
 * Ask for all places that are due.  Returns when to do so again, if nothing has been taken.
 * Once something has, what becomes due after the last batch is left to the next call.
 */
static DLockTime
take_due(DLockTake *take, DLockPlaceCopy *copies)
{
	DLockDatabase db;
	DLockTime	until;
	int			due;

	if (!dlock_session_try_open(&db, false))
		return dlock_clock_now() + DLOCK_WAIT_RETRY;
	do
	{
		DLockTime	now = dlock_clock_now();

		due = dlock_place_due(now, copies, TAKE_BATCH, &until);
		for (int i = 0; i < due; i++)
		{
			if (take->count == 0)
				CHECK_FOR_INTERRUPTS();
			ask_for_place(take, &db, &copies[i],
						  now + DLOCK_WAIT_ANYWAY * (DLockTime) DeadlockTimeout * 1000);
		}
	} while (due == TAKE_BATCH || (due > 0 && take->count == 0));
	if (take->is_long && take->granted == 0)
		check_places(take, &db);
	take->is_long = false;
	dlock_session_close(&db);
	return until;
}

/* Take what can be taken; sleep until that is something, or a deadline. */
static void
take_or_wait(DLockTake *take, DLockTime deadline)
{
	static uint32 event = 0;
	DLockPlaceCopy *copies = palloc(TAKE_BATCH * sizeof(DLockPlaceCopy));

	if (event == 0)
		event = WaitEventExtensionNew("DLockTake");
	for (;;)
	{
		DLockTime	until;
		DLockTime	now;

		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		until = take_due(take, copies);
		now = dlock_clock_now();
		if (take->count > 0 || now >= deadline)
			break;
		InvalidateCatalogSnapshotConditionally();
		DLOCK_FAULT("take_nap");
		(void) dlock_wait_nap(now, Min(until, deadline), event);
	}
	pfree(copies);
}

/*
 * Take what the places of a client of the current user can be granted, and wait up to
 * "wait" microseconds until that is something.  Places that are left are kept for "keep"
 * from the end of the call on; if it fails, for no less than before.  Returns how many rows
 * "taken" (palloc'd) has: those granted, and, without a token, those that can never be.
 *
 * One flush makes all grants as durable as synchronous_commit asks for.  Throws what
 * dlock_wait_acquire() throws; what has been granted is undone then, and its place is gone.
 */
int
dlock_take(const DLockBytes *client, DLockTime wait, DLockTime keep, DLockTaken **taken)
{
	DLockTime	began = dlock_clock_now();
	DLockTime	deadline = (wait > DLOCK_TIME_FOREVER - began) ? DLOCK_TIME_FOREVER : began + wait;
	DLockTake	take = {.role = GetUserId(),.client = client,.keep = keep};
	DLockDatabase db;
	DLockBytes *names;

	dlock_session_open(&db);
	take.database = db.shared->oid;
	dlock_session_close(&db);
	PG_ENSURE_ERROR_CLEANUP(abandon_take, PointerGetDatum(&take));
	{
		dlock_place_listen(take.database, take.role, client);
		DLOCK_FAULT("take_listens");
		take_or_wait(&take, deadline);
	}
	PG_END_ENSURE_ERROR_CLEANUP(abandon_take, PointerGetDatum(&take));
	dlock_queue_end_listening(take.database, take.role, client, keep, false);

	*taken = take.taken;
	names = palloc((take.count + 1) * sizeof(DLockBytes));
	for (int i = 0; i < take.count; i++)
		names[i] = take.taken[i].name;
	if (take.granted > 0)
		dlock_wait_make_durable(take.lsn, names, take.count);
	return take.count;
}
