/*-------------------------------------------------------------------------
 *
 * token.c
 *	  Fencing tokens: handing them out from shared memory.
 *
 * NOTES
 *	  Tokens are handed out from a block that was reserved before, by a WAL
 *	  record of the sequence dlock_token_seq (space/database.c).  The block is
 *	  *pending* until that record is flushed, and no token of a pending block is
 *	  handed out.  So a crash can skip tokens, and never gives one out twice,
 *	  whatever synchronous_commit says.
 *
 *	  The holder of a lock's partition lock takes the token for it, so of two
 *	  grants of one lock the later has the larger.  Grants of different locks
 *	  are ordered by the mutex in here.
 *
 *	  Reservation runs ahead of need.  The backend whose take would be the first
 *	  from the second half of the block is told that tokens are missing, as if
 *	  the block were used up.  It gives up its locks, having changed nothing,
 *	  reserves the next block, does not flush, and comes again.  The record is
 *	  flushed with the next commit or grant of anybody, or by the launcher
 *	  after wal_writer_delay (dlock_flush_later), and whoever finds the block
 *	  used up goes on with the pending one.  Half a block lasts for half a
 *	  second at 60 000 grants a second, so a grant waits for the flush of a
 *	  reservation only if none of these came by in that time; it flushes then
 *	  itself.
 *
 *	  There is nothing to lose with the backend that is sent.  No flag says that
 *	  a reservation is under way: "ask" moves on, and some thousand tokens
 *	  later the next backend is sent.  Two that reserve at a time meet at the
 *	  lock of the sequence's page, where the second sees the pending block of
 *	  the first (dlock_token_plan).  That lock is also what lets at most one
 *	  block be pending, and orders blocks in memory as their records in the WAL:
 *	  the record is made and published under it.
 *
 *	  A block whose tokens begin anew (see dlock_token_plan) does not continue
 *	  what is left of the one before, which then is used up first, or voided.
 *	  Tokens never go back.
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
	dlock_token_reset(tokens);
}

/*
 * Forget what is left, and have tokens begin anew with the next reservation.
 * What was reserved since the server started stays their floor.
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
 * Go on to the pending block, the one before being used up; false if there is
 * none that is durable.  What is left of the old one is skipped: less than
 * somebody wants at a time.
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
 * False if the caller is to give up all its locks, call
 * dlock_database_fetch_tokens(), and come again: since there are not so many,
 * or, with "may_ask", since it is time to reserve more.
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

/* Could so many be taken now? */
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
 * Tokens continue after the last block.  They begin anew, by the clock, with
 * the first block since the server started or the leases were loaded, where
 * that is the purpose, and where somebody has set the sequence higher than we
 * have, as the restore of a dump does; then not below "above".
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
 * Add a block that has been reserved by a record that ends at "lsn", as the
 * pending one; another that was pending is dropped.  The page of the sequence
 * must still be locked.  Cannot fail.
 */
void
dlock_token_publish(DLockTokenShared *tokens, DLockToken base, XLogRecPtr lsn)
{
	SpinLockAcquire(&tokens->mutex);
	Assert(base >= tokens->reserved);
	tokens->reserved_from = base + 1;
	tokens->reserved = base + DLOCK_TOKEN_BLOCK;
	tokens->reserved_lsn = lsn;
	tokens->ask = tokens->reserved - DLOCK_TOKEN_AHEAD;
	tokens->based = true;
	SpinLockRelease(&tokens->mutex);
}

/* Hand out no token up to this one any more. */
void
dlock_token_void(DLockTokenShared *tokens, DLockToken below)
{
	SpinLockAcquire(&tokens->mutex);
	if (tokens->next <= below)
		tokens->next = below + 1;
	SpinLockRelease(&tokens->mutex);
}

/* The last token that was reserved here since the server started; zero if none. */
DLockToken
dlock_token_last(DLockTokenShared *tokens)
{
	DLockToken	reserved;

	SpinLockAcquire(&tokens->mutex);
	reserved = tokens->reserved;
	SpinLockRelease(&tokens->mutex);
	return reserved;
}

/*
 * No token above this one has been handed out here since the server started;
 * those of before may be above it until the first is taken.
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
