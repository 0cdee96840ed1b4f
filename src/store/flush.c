/*-------------------------------------------------------------------------
 *
 * flush.c
 *	  When the store's WAL records become durable.
 *
 * NOTES
 *	  A grant, renewal or conversion is flushed before it is answered, if the
 *	  session's synchronous_commit asks for that.  Other records (of a release, or
 *	  under synchronous_commit = off) are flushed about wal_writer_delay later.
 *
 *	  The server has XLogSetAsyncXactLSN() for that.  Called for every record, it
 *	  wakes the WAL writer for almost every record, which costs more than
 *	  everything else a lease does.  Here the first backend that leaves a record
 *	  unflushed notes the time and wakes the worker (worker/worker.c); other
 *	  backends see that time and only advance the LSN.  The worker flushes up to
 *	  that LSN after a nap.  If the worker is missing or stopped, a backend that
 *	  finds the time too old calls XLogSetAsyncXactLSN().
 *
 *	  For each level of synchronous_commit there is a position up to which records are
 *	  *confirmed*: as safe as that level asks for.  What is told of a lease is what its
 *	  confirmed records vouch for (dlock_holder_told_until).  A record that is confirmed
 *	  stays so, whatever becomes of the standbys or of their names.
 *
 *	  The positions and the time are atomics.  A backend advances the LSN before
 *	  it reads the time, and the worker clears the time before it reads the LSN:
 *	  no record is missed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "postmaster/walwriter.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/error.h"
#include "base/fault.h"
#include "store/flush.h"

typedef struct DLockFlushShared
{
	pg_atomic_uint64 lsn;		/* end of the last record left unflushed */
	pg_atomic_uint64 since;		/* when the first was left; or 0 */
	Latch	   *volatile worker;	/* its latch; the worker writes it */

	/* By synchronous_commit: up to where records are confirmed; grows only. */
	pg_atomic_uint64 confirmed[SYNCHRONOUS_COMMIT_REMOTE_APPLY + 1];
} DLockFlushShared;

/* If the first was left this many times wal_writer_delay ago, the worker has not come. */
#define OVERLOOKED_FACTOR	4

static DLockFlushShared *flush = NULL;

void
dlock_flush_request(void)
{
	RequestAddinShmemSpace(sizeof(DLockFlushShared));
}

/* Create the shared state; with AddinShmemInitLock held. */
void
dlock_flush_startup(void)
{
	bool		found;

	flush = ShmemInitStruct("dlock flush", sizeof(DLockFlushShared), &found);
	if (!found)
	{
		pg_atomic_init_u64(&flush->lsn, 0);
		pg_atomic_init_u64(&flush->since, 0);
		flush->worker = NULL;
		for (int level = 0; level < lengthof(flush->confirmed); level++)
			pg_atomic_init_u64(&flush->confirmed[level], 0);
	}
}

/* Raise a position, unless it is that far already. */
static void
advance(pg_atomic_uint64 *position, uint64 to)
{
	uint64		seen = pg_atomic_read_u64(position);

	while (seen < to && !pg_atomic_compare_exchange_u64(position, &seen, to))
		;
}

/* Confirm records up to this one at a level of synchronous_commit, and at those below it. */
static void
confirm(int level, XLogRecPtr lsn)
{
	for (; level >= SYNCHRONOUS_COMMIT_LOCAL_FLUSH; level--)
		advance(&flush->confirmed[level], lsn);
}

/*
 * Is a record, and all before it, confirmed at a level of synchronous_commit?  Cheap, so
 * that it can be asked under partition locks.
 */
bool
dlock_flush_is_confirmed(int level, XLogRecPtr lsn)
{
	Assert(level >= SYNCHRONOUS_COMMIT_OFF && level <= SYNCHRONOUS_COMMIT_REMOTE_APPLY);
	return level == SYNCHRONOUS_COMMIT_OFF || lsn <= pg_atomic_read_u64(&flush->confirmed[level]);
}

/*
 * Confirm what the server has flushed, and its synchronous standbys, if any, have reported,
 * whether or not a session has waited for it.  No LWLock may be held.
 */
void
dlock_flush_confirm_reported(void)
{
	XLogRecPtr	flushed = GetFlushRecPtr(NULL);
	XLogRecPtr	reported[NUM_SYNC_REP_WAIT_MODE];

	/* Right after its start the server may not know yet that there are names. */
	if (max_wal_senders == 0 || !((SyncRepStandbyNames != NULL && SyncRepStandbyNames[0] != '\0') ||
								  DLOCK_SYNC_STANDBYS_DEFINED()))
	{
		confirm(SYNCHRONOUS_COMMIT_REMOTE_APPLY, flushed);
		return;
	}
	confirm(SYNCHRONOUS_COMMIT_LOCAL_FLUSH, flushed);
	LWLockAcquire(SyncRepLock, LW_SHARED);
	memcpy(reported, WalSndCtl->lsn, sizeof(reported));
	LWLockRelease(SyncRepLock);
	confirm(SYNCHRONOUS_COMMIT_REMOTE_WRITE, Min(flushed, reported[SYNC_REP_WAIT_WRITE]));
	confirm(SYNCHRONOUS_COMMIT_REMOTE_FLUSH, Min(flushed, reported[SYNC_REP_WAIT_FLUSH]));
	confirm(SYNCHRONOUS_COMMIT_REMOTE_APPLY, Min(flushed, reported[SYNC_REP_WAIT_APPLY]));
}

/* Have the synchronous standbys, if any, confirmed a record that this server has flushed? */
static bool
has_arrived(XLogRecPtr lsn)
{
	if (!DLOCK_SYNC_STANDBYS_DEFINED())
		return true;
	dlock_flush_confirm_reported();
	return dlock_flush_is_confirmed(synchronous_commit, lsn) || !DLOCK_SYNC_STANDBYS_DEFINED();
}

/*
 * Make a record as durable as the session's synchronous_commit asks for: as a
 * commit would, with the same waits for synchronous standbys.
 *
 * Interrupts are served at the end; the abort then undoes the grants of the call
 * (session/grants.c).  If an interrupt ends the wait for a standby, the server
 * only warns, since a commit stands.  Here that is an error (57014), too.  No
 * LWLock may be held.
 */
void
dlock_flush_commit(XLogRecPtr lsn)
{
	bool		confirmed = true;

	if (XLogRecPtrIsInvalid(lsn))
		return;
	if (synchronous_commit == SYNCHRONOUS_COMMIT_OFF)
	{
		dlock_flush_later(lsn, dlock_clock_now());
		return;
	}

	HOLD_INTERRUPTS();
	DLOCK_FAULT_STOP("flush");
	XLogFlush(lsn);
	DLOCK_FAULT_STOP("flushed");
	if (synchronous_commit > SYNCHRONOUS_COMMIT_LOCAL_FLUSH)
	{
		SyncRepWaitForLSN(lsn, true);
		confirmed = has_arrived(lsn);
	}
	confirm(confirmed ? synchronous_commit : SYNCHRONOUS_COMMIT_LOCAL_FLUSH, lsn);
	RESUME_INTERRUPTS();
	CHECK_FOR_INTERRUPTS();
	if (!confirmed)
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("canceled before a synchronous standby confirmed the change"),
				 errdetail("Grants of this call are undone. A renewal, a downgrade or a re-entered lease stands on this server, but may be missing on a standby."),
				 errhint("Call the function again.")));
}

/* Let a record become durable soon.  Cannot fail. */
void
dlock_flush_later(XLogRecPtr lsn, DLockTime now)
{
	uint64		seen = pg_atomic_read_u64(&flush->lsn);
	uint64		since;

	/* Another backend has moved it further, and sets the time. */
	if (seen >= lsn)
		return;
	advance(&flush->lsn, lsn);

	since = pg_atomic_read_u64(&flush->since);
	if (since == 0)
	{
		/* The time before the latch; a starting worker does the reverse. */
		if (pg_atomic_compare_exchange_u64(&flush->since, &since, (uint64) now))
			dlock_flush_wake_worker();
	}
	else if (now - (DLockTime) since >
			 (DLockTime) WalWriterDelay * 1000 * OVERLOOKED_FACTOR &&
			 pg_atomic_compare_exchange_u64(&flush->since, &since, (uint64) now))
		XLogSetAsyncXactLSN(lsn);
}

/* Name the latch of the worker, which calls dlock_flush_pending(). */
void
dlock_flush_set_worker(Latch *latch)
{
	flush->worker = latch;
	pg_memory_barrier();		/* before it reads what it is woken for */
}

/*
 * Wake the worker, to see what is new; false if none has started.  If it has ended, another
 * one starts soon.  Cannot fail.
 */
bool
dlock_flush_wake_worker(void)
{
	/* A latch is never unmapped; a stale one does no harm. */
	Latch	   *latch = flush->worker;

	if (latch != NULL)
		SetLatch(latch);
	return latch != NULL;
}

/*
 * Flush records that have waited for wal_writer_delay.  Returns when to call this again;
 * DLOCK_TIME_FOREVER: when the latch is set.
 */
DLockTime
dlock_flush_pending(DLockTime now)
{
	DLockTime	since = (DLockTime) pg_atomic_read_u64(&flush->since);
	DLockTime	due = since + (DLockTime) WalWriterDelay * 1000;

	if (since == 0)
		return DLOCK_TIME_FOREVER;
	if (now < due)
		return due;
	(void) pg_atomic_exchange_u64(&flush->since, 0);
	XLogFlush(pg_atomic_read_u64(&flush->lsn));
	return DLOCK_TIME_FOREVER;
}
