/*-------------------------------------------------------------------------
 *
 * token.c
 *	  Fencing tokens: handed out from shared memory, reserved in a sequence.
 *
 * NOTES
 *	  Tokens come from a block that was reserved by a WAL record of the sequence
 *	  _dlock.token_seq.  The block is *pending* until that
 *	  record is flushed, and no token of a pending block is handed out.  So a
 *	  crash can skip tokens, but never hands one out twice, whatever
 *	  synchronous_commit says.
 *
 *	  A backend takes a token under the partition lock of the lock that it
 *	  grants, so of two grants of one lock the later has the larger token.  The
 *	  mutex in here orders grants of different locks.
 *
 *	  Blocks are reserved ahead of need.  The first backend that would take a
 *	  token from the second half of the block is told that tokens are missing.
 *	  It releases its locks, having changed nothing, reserves the next block
 *	  without a flush, and tries again.  The next commit or grant of any backend
 *	  flushes the record, or the worker does after wal_writer_delay
 *	  (dlock_flush_later).  A backend that finds the block used up goes on with
 *	  the pending one, and flushes the record itself if that has not happened
 *	  yet.  Half a block lasts half a second at 60 000 grants a second.
 *
 *	  Nothing is lost if the backend that should reserve is killed.  No flag says
 *	  that a reservation is under way: "ask" has moved on, and after some thousand
 *	  tokens the next backend reserves.  Two backends that reserve at the same
 *	  time meet at the lock of the sequence's page, where the second sees the
 *	  pending block of the first (plan_block).  The record is written and
 *	  published under that lock, so at most one block is pending, and blocks in
 *	  memory have the order of their records.
 *
 *	  A block that restarts tokens (see plan_block) does not continue the
 *	  block before, whose rest is used up first, or voided.  Tokens never
 *	  decrease.
 *
 * IDENTIFICATION
 *	  src/store/token.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xlog.h"
#include "storage/lmgr.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/rule.h"
#include "store/flush.h"
#include "store/store.h"
#include "store/token.h"

/* After how many tokens another backend is sent to reserve more. */
#define ASK_AGAIN	(DLOCK_TOKEN_AHEAD / 16)

/* Set up an empty store of tokens. */
void
dlock_token_init(DLockTokenShared *tokens)
{
	SpinLockInit(&tokens->mutex);
	tokens->reserved = 0;
	tokens->epoch = DLOCK_TOKEN_NONE;
	dlock_token_reset(tokens);
}

/*
 * Forget the rest of the block, so that tokens restart with the next reservation,
 * above all that were reserved since the server started.
 */
void
dlock_token_reset(DLockTokenShared *tokens)
{
	SpinLockAcquire(&tokens->mutex);
	tokens->last = tokens->ask = tokens->reserved;
	tokens->next = tokens->reserved + 1;
	tokens->reserved_from = tokens->reserved + 1;
	tokens->reserved_lsn = InvalidXLogRecPtr;
	tokens->based = false;
	SpinLockRelease(&tokens->mutex);
}

/* Is a block pending?  Returns in "lsn" what has to be flushed to use it. */
static bool
is_pending(DLockTokenShared *tokens, XLogRecPtr *lsn)
{
	bool		pending;

	SpinLockAcquire(&tokens->mutex);
	pending = tokens->reserved > tokens->last;
	*lsn = tokens->reserved_lsn;
	SpinLockRelease(&tokens->mutex);
	return pending;
}

/*
 * Go on to the pending block; false if there is none that is durable.  The rest
 * of the old block is too small for the caller, and is skipped.
 */
static bool
use_pending(DLockTokenShared *tokens)
{
	XLogRecPtr	lsn;
	XLogRecPtr	flushed;

	if (!is_pending(tokens, &lsn))
		return false;
	flushed = GetFlushRecPtr(NULL);
	if (flushed < lsn)
		return false;

	SpinLockAcquire(&tokens->mutex);
	if (tokens->reserved > tokens->last && tokens->reserved_lsn <= flushed)
	{
		tokens->next = Max(tokens->next, tokens->reserved_from);
		tokens->last = tokens->reserved;
	}
	SpinLockRelease(&tokens->mutex);
	return true;
}

/*
 * Take the next "count" tokens, which follow each other, and return the first.
 * "count" is at most DLOCK_TOKEN_AHEAD.
 *
 * Returns false if there are not enough, or if it is time to reserve more.  Then
 * the caller must release its locks, call dlock_token_fetch(), and try again.
 */
bool
dlock_token_take(DLockTokenShared *tokens, int count, DLockToken *first)
{
	bool		enough;
	bool		asked = false;

	do
	{
		SpinLockAcquire(&tokens->mutex);
		enough = tokens->next <= tokens->last - count + 1;
		if (enough && tokens->next > tokens->ask)
		{
			tokens->ask = tokens->next + ASK_AGAIN;
			asked = true;
		}
		else if (enough)
		{
			*first = tokens->next;
			tokens->next += count;
		}
		SpinLockRelease(&tokens->mutex);
	} while (!enough && use_pending(tokens));
	return enough && !asked;
}

/* ---- reserving; waits, so no partition lock may be held ---- */

/* Could "count" tokens be taken now? */
static bool
suffice(DLockTokenShared *tokens, int count)
{
	bool		enough;

	SpinLockAcquire(&tokens->mutex);
	enough = tokens->next <= tokens->last - count + 1;
	SpinLockRelease(&tokens->mutex);
	return enough;
}

/*
 * Plan the reservation of a block: returns in "base" the number below its first
 * token, or DLOCK_TOKEN_MAX if no room is left for a block.  False if none
 * is needed.  The page of the sequence must be locked, and says "value".
 *
 * Tokens continue after the last block.  They restart at the clock, not below
 * "above", with the first block since the start of the server or the load of the
 * leases, if they are to move, and if the sequence was set to a higher value than
 * ours, as the restore of a dump does.
 */
static bool
plan_block(DLockTokenShared *tokens, bool moves, TimestampTz wall, DLockToken value,
		   DLockToken above, DLockToken *base)
{
	DLockToken	reserved;
	bool		needed;
	bool		based;

	SpinLockAcquire(&tokens->mutex);
	reserved = tokens->reserved;
	based = tokens->based;
	needed = reserved == tokens->last && tokens->last - tokens->next < DLOCK_TOKEN_AHEAD;
	SpinLockRelease(&tokens->mutex);

	if (!moves && !needed)
		return false;
	if (!moves && based && value <= reserved)
		*base = reserved;
	else
		*base = Max(dlock_rule_token_base(wall, reserved, value), above);
	if (*base > DLOCK_TOKEN_MAX - DLOCK_TOKEN_BLOCK)
		*base = DLOCK_TOKEN_MAX;
	return true;
}

/*
 * Make a block pending that was reserved by the record that ends at "lsn"; drop
 * the one that was pending.  If tokens are to move, drop the rest of the block in
 * use, too.  The page of the sequence must still be locked.  Cannot fail.
 */
static void
publish_block(DLockTokenShared *tokens, bool moves, DLockToken base, XLogRecPtr lsn)
{
	SpinLockAcquire(&tokens->mutex);
	Assert(base >= tokens->reserved);
	if (!tokens->based || base != tokens->reserved)
		tokens->epoch = base;
	tokens->reserved_from = base + 1;
	tokens->reserved = base + DLOCK_TOKEN_BLOCK;
	tokens->reserved_lsn = lsn;
	tokens->ask = tokens->reserved - DLOCK_TOKEN_AHEAD;
	tokens->based = true;
	if (moves)
		tokens->next = tokens->reserved_from;
	SpinLockRelease(&tokens->mutex);
}

/*
 * Reserve a block of tokens in the sequence with this oid, unless none is needed;
 * if tokens are to move, in any case.  Returns the number below its first, or
 * DLOCK_TOKEN_NONE.  With "try", also where no token is left.  What is left
 * unflushed is that of the pending block.
 */
static DLockToken
reserve_block(DLockTokenShared *tokens, Oid oid, bool moves, DLockToken above, bool try)
{
	Relation	sequence = relation_open(oid, NoLock);
	TimestampTz wall = dlock_clock_wall();
	Buffer		buffer;
	DLockToken	value = dlock_store_lock_sequence(sequence, &buffer);
	DLockToken	base = DLOCK_TOKEN_NONE;
	XLogRecPtr	lsn;

	DLOCK_FAULT("token_reserve");
	if (plan_block(tokens, moves, wall, value, above, &base))
	{
		if (base < DLOCK_TOKEN_MAX)
		{
			lsn = dlock_store_set_sequence(sequence, buffer, base + DLOCK_TOKEN_BLOCK);
			DLOCK_FAULT("token_reserved");
			publish_block(tokens, moves, base, lsn);
		}
		else if (try)
			base = DLOCK_TOKEN_NONE;
		else if (dlock_rule_token_clock(wall) > DLOCK_TOKEN_MAX - DLOCK_TOKEN_BLOCK)
			ereport(ERROR,
					(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
					 errmsg("no fencing tokens are left at the time that this server's clock shows"),
					 errdetail("Tokens are taken from the clock, and end in the year 2094."),
					 errhint("Set the clock of the server right, and try again.")));
		else
			ereport(ERROR,
					(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
					 errmsg("fencing tokens are exhausted"),
					 errdetail("The sequence \"_dlock.token_seq\" is near 2^53, the end of the tokens."),
					 errhint("Set the sequence back to the value it had before it was set so high by hand.")));
	}
	dlock_store_unlock_sequence(buffer);
	relation_close(sequence, NoLock);
	return base;
}

/*
 * Get tokens: when dlock_token_take() has not given any.
 *
 * If there are some, so that this is ahead of need, it waits for nothing and
 * flushes nothing.  Otherwise it returns when a block is durable, for which it
 * may wait, also for a lock on the sequence.  The caller tries again, and may
 * find the block used up by others.  Throws 2200H if no token is left.
 */
void
dlock_token_fetch(DLockTokenShared *tokens, Oid sequence, int count)
{
	bool		ahead = suffice(tokens, count);
	XLogRecPtr	lsn;

	if (!is_pending(tokens, &lsn))
	{
		if (!ahead)
			LockRelationOid(sequence, RowExclusiveLock);
		else if (!ConditionalLockRelationOid(sequence, RowExclusiveLock))
			return;
		(void) reserve_block(tokens, sequence, false, DLOCK_TOKEN_NONE, ahead);
		UnlockRelationOid(sequence, RowExclusiveLock);
		if (!is_pending(tokens, &lsn))
			return;
	}
	if (ahead)
		dlock_flush_later(lsn, dlock_clock_now());
	else
		dlock_flush_now(lsn);
}

/* Take one token.  Waits and throws as above. */
DLockToken
dlock_token_take_one(DLockTokenShared *tokens, Oid sequence)
{
	DLockToken	token;

	while (!dlock_token_take(tokens, 1, &token))
		dlock_token_fetch(tokens, sequence, 1);
	return token;
}

/*
 * Have tokens begin anew, not below "above".  Returns a number that is below all
 * that are granted from now on, and not below any that was granted here before.
 * Waits as above; throws 2200H if no token would be left.
 */
DLockToken
dlock_token_move(DLockTokenShared *tokens, Oid sequence, DLockToken above)
{
	DLockToken	base;
	XLogRecPtr	lsn;

	LockRelationOid(sequence, RowExclusiveLock);
	base = reserve_block(tokens, sequence, true, above, false);
	UnlockRelationOid(sequence, RowExclusiveLock);

	/* It is pending, unless others are quick, or moved on to yet a later one. */
	if (is_pending(tokens, &lsn))
		dlock_flush_now(lsn);
	return base;
}

/* ---- reading ---- */

/* The number below the first token since they last restarted; zero if none was reserved. */
DLockToken
dlock_token_epoch(DLockTokenShared *tokens)
{
	DLockToken	epoch;

	SpinLockAcquire(&tokens->mutex);
	epoch = tokens->epoch;
	SpinLockRelease(&tokens->mutex);
	return epoch;
}

/*
 * A number that no token granted since the server started exceeds.  Older tokens
 * may exceed it until the first token is taken.
 */
DLockToken
dlock_token_issued(DLockTokenShared *tokens)
{
	DLockToken	next;

	SpinLockAcquire(&tokens->mutex);
	next = tokens->next;
	SpinLockRelease(&tokens->mutex);
	return next - 1;
}
