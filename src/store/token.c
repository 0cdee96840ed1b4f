/*-------------------------------------------------------------------------
 *
 * token.c
 *	  Hand out fencing tokens from shared memory.
 *
 * NOTES
 *	  Tokens come from a block that was reserved by a WAL record of the sequence
 *	  dlock_token_seq (space/database.c).  The block is *pending* until that
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
 *	  flushes the record, or the launcher does after wal_writer_delay
 *	  (dlock_flush_later).  A backend that finds the block used up goes on with
 *	  the pending one, and flushes the record itself if that has not happened
 *	  yet.  Half a block lasts half a second at 60 000 grants a second.
 *
 *	  Nothing is lost if the backend that should reserve is killed.  No flag says
 *	  that a reservation is under way: "ask" has moved on, and after some thousand
 *	  tokens the next backend reserves.  Two backends that reserve at the same
 *	  time meet at the lock of the sequence's page, where the second sees the
 *	  pending block of the first (dlock_token_plan).  The record is written and
 *	  published under that lock, so at most one block is pending, and blocks in
 *	  memory have the order of their records.
 *
 *	  A block that restarts tokens (see dlock_token_plan) does not continue the
 *	  block before, whose rest is used up first, or voided.  Tokens never
 *	  decrease.
 *
 * IDENTIFICATION
 *	  src/store/token.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"

#include "base/rule.h"
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

/*
 * Go on to the pending block; false if there is none that is durable.  The rest
 * of the old block is too small for the caller, and is skipped.
 */
static bool
use_pending(DLockTokenShared *tokens)
{
	XLogRecPtr	lsn;
	XLogRecPtr	flushed;

	if (!dlock_token_is_pending(tokens, &lsn))
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
 * Returns false if there are not enough, or, with "may_ask", if it is time to
 * reserve more.  Then the caller must release its locks, call
 * dlock_database_fetch_tokens(), and try again.
 */
bool
dlock_token_take(DLockTokenShared *tokens, int count, bool may_ask, DLockToken *first)
{
	bool		enough;
	bool		asked = false;

	do
	{
		SpinLockAcquire(&tokens->mutex);
		enough = tokens->next <= tokens->last - count + 1;
		if (enough && may_ask && tokens->next > tokens->ask)
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

/* Could "count" tokens be taken now? */
bool
dlock_token_suffice(DLockTokenShared *tokens, int count)
{
	bool		enough;

	SpinLockAcquire(&tokens->mutex);
	enough = tokens->next <= tokens->last - count + 1;
	SpinLockRelease(&tokens->mutex);
	return enough;
}

/* Is a block pending?  Returns in "lsn" what has to be flushed to use it. */
bool
dlock_token_is_pending(DLockTokenShared *tokens, XLogRecPtr *lsn)
{
	bool		pending;

	SpinLockAcquire(&tokens->mutex);
	pending = tokens->reserved > tokens->last;
	*lsn = tokens->reserved_lsn;
	SpinLockRelease(&tokens->mutex);
	return pending;
}

/*
 * Plan the reservation of a block: returns in "base" the number below its first
 * token, or DLOCK_TOKEN_MAX if no room is left for a block.  False if none
 * is needed.  The page of the sequence must be locked, and says "value".
 *
 * Tokens continue after the last block.  They restart at the clock, not below
 * "above", with the first block since the start of the server or the load of the
 * leases, if "purpose" says so, and if the sequence was set to a higher value
 * than ours, as the restore of a dump does.
 */
bool
dlock_token_plan(DLockTokenShared *tokens, DLockTokenPurpose purpose,
				 TimestampTz wall, DLockToken value, DLockToken above,
				 DLockToken *base)
{
	DLockToken	reserved;
	bool		needed;
	bool		based;

	SpinLockAcquire(&tokens->mutex);
	reserved = tokens->reserved;
	based = tokens->based;
	needed = reserved == tokens->last && tokens->last - tokens->next < DLOCK_TOKEN_AHEAD;
	SpinLockRelease(&tokens->mutex);

	if (purpose == DLOCK_TOKEN_REFILL && !needed)
		return false;
	if (purpose == DLOCK_TOKEN_REFILL && based && value <= reserved)
		*base = reserved;
	else
		*base = Max(dlock_rule_token_base(wall, reserved, value), above);
	if (*base > DLOCK_TOKEN_MAX - DLOCK_TOKEN_BLOCK)
		*base = DLOCK_TOKEN_MAX;
	return true;
}

/*
 * Make a block pending that was reserved by the record that ends at "lsn"; drop
 * the one that was pending.  The page of the sequence must still be locked.
 * Cannot fail.
 */
void
dlock_token_publish(DLockTokenShared *tokens, DLockToken base, XLogRecPtr lsn)
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
	SpinLockRelease(&tokens->mutex);
}

/* Hand out only tokens above this one. */
void
dlock_token_void(DLockTokenShared *tokens, DLockToken below)
{
	SpinLockAcquire(&tokens->mutex);
	if (tokens->next <= below)
		tokens->next = below + 1;
	SpinLockRelease(&tokens->mutex);
}

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
