/*-------------------------------------------------------------------------
 *
 * token.c
 *	  Fencing tokens: handed out from shared memory, reserved in a sequence.
 *
 * NOTES
 *	  Tokens come from a block that was reserved by a WAL record of the sequence
 *	  _dlock.token_seq.  That record is flushed before any token of the block is
 *	  handed out.  So a crash can skip tokens, but never hands one out twice,
 *	  whatever synchronous_commit says.
 *
 *	  A backend takes a token under the partition lock of the lock that it
 *	  grants, so of two grants of one lock the later has the larger token.  The
 *	  mutex in here orders grants of different locks.
 *
 *	  A backend that finds too few tokens gives up its locks, having changed
 *	  nothing, reserves the next block, and runs its attempt again.  Others that
 *	  find too few meanwhile wait for that.  So all grants of the database wait for
 *	  a flush after each 65 536 tokens: about once a second at full speed.
 *
 *	  They wait for a heavyweight lock, that of the sequence's page 0, which is held
 *	  until the block can be used; so they can be canceled, however long the flush
 *	  takes.  The flush itself cannot be canceled, as none of the server's can.  The
 *	  content lock of the page is held for the change alone: a flush under it would
 *	  hold up, uninterruptibly, whoever reads the sequence, and the checkpointer.
 *	  Nothing is waited for under the heavyweight lock but the content lock and the
 *	  flush, so it is in no deadlock.
 *
 *	  A block continues the one before.  If tokens restart (see base_of_block), the
 *	  rest of the block before is skipped.  Tokens never decrease.
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
#include "store/store.h"
#include "store/token.h"

/* Set up the tokens of a database, of which none is reserved. */
void
dlock_token_init(DLockTokenShared *tokens)
{
	SpinLockInit(&tokens->mutex);
	tokens->last = 0;
	tokens->above = DLOCK_TOKEN_NONE;
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
	tokens->next = tokens->last + 1;
	tokens->based = false;
	SpinLockRelease(&tokens->mutex);
}

/*
 * Take the next "count" tokens, which follow each other, and return the first.
 * "count" is at most DLOCK_TOKEN_BLOCK.
 *
 * False if there are not enough.  Then the caller must release its locks, call
 * dlock_token_reserve(), and try again.
 */
bool
dlock_token_take(DLockTokenShared *tokens, int count, DLockToken *first)
{
	bool		enough;

	SpinLockAcquire(&tokens->mutex);
	enough = tokens->next + count - 1 <= tokens->last;
	if (enough)
	{
		*first = tokens->next;
		tokens->next += count;
	}
	SpinLockRelease(&tokens->mutex);
	return enough;
}

/* Skip the tokens of the block that are not above "above".  The mutex must be held. */
static inline void
skip(DLockTokenShared *tokens)
{
	if (tokens->next <= tokens->above)
		tokens->next = Min(tokens->above, tokens->last) + 1;
}

/*
 * Make all tokens to come exceed this one.  Reserves nothing: if the block does not reach
 * beyond it, the next reservation will.  So this does not wait, and cannot fail; a crash
 * before that reservation undoes it.
 */
void
dlock_token_exceed(DLockTokenShared *tokens, DLockToken token)
{
	SpinLockAcquire(&tokens->mutex);
	tokens->above = Max(tokens->above, token);
	skip(tokens);
	SpinLockRelease(&tokens->mutex);
}

/* ---- reserving; waits, so no partition lock may be held ---- */

/*
 * The number below the first token of the next block.  Throws 2200H if no room is left
 * for a block.
 *
 * Tokens continue after the last block.  They restart at the clock, not below "above":
 * if "moves"; with the first block since a start or a load; if "above" exceeds the last
 * block; and if the sequence is above it, as after the restore of a dump.
 */
static DLockToken
base_of_block(DLockTokenShared *tokens, bool moves, DLockToken value, DLockToken above)
{
	TimestampTz wall = dlock_clock_wall();
	DLockToken	base = tokens->last;

	SpinLockAcquire(&tokens->mutex);
	above = Max(above, tokens->above);
	SpinLockRelease(&tokens->mutex);
	if (moves || !tokens->based || Max(value, above) > tokens->last)
		base = Max(dlock_rule_token_base(wall, tokens->last, value), above);
	if (base <= DLOCK_TOKEN_MAX - DLOCK_TOKEN_BLOCK)
		return base;
	if (dlock_rule_token_clock(wall) > DLOCK_TOKEN_MAX - DLOCK_TOKEN_BLOCK)
		ereport(ERROR,
				(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
				 errmsg("no fencing tokens are left at the time of this server's clock"),
				 errdetail("Tokens are taken from the clock, and end in the year 2094."),
				 errhint("Correct the clock of the server, and try again.")));
	ereport(ERROR,
			(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
			 errmsg("fencing tokens are exhausted"),
			 errdetail("The sequence \"_dlock.token_seq\" is near 2^53, the end of the tokens."),
			 errhint("Set the sequence back to its value before it was set by hand.")));
}

/*
 * Reserve a block of tokens in the sequence with this oid, durably, unless another backend
 * has reserved enough for "count" of them since dlock_token_take() failed.  The caller
 * retries, and may find the block used up by others.
 *
 * If "count" is zero, tokens restart in any case, not below "above".  Then the result is
 * below all tokens granted from now on, and not below any granted here before.  Throws
 * 2200H if no block is left.
 *
 * Apart from a load (dlock_token_reset), only the backend that has the page locked changes
 * the block.  So it reads "last" and "based" without the mutex.
 */
DLockToken
dlock_token_reserve(DLockTokenShared *tokens, Oid oid, int count, DLockToken above)
{
	Relation	sequence = relation_open(oid, RowExclusiveLock);
	DLockToken	base = DLOCK_TOKEN_NONE;

	LockPage(sequence, 0, ExclusiveLock);
	DLOCK_FAULT("token_reserve");
	if (count == 0 || dlock_token_issued(tokens) + count > tokens->last)
	{
		Buffer		buffer;
		DLockToken	value = dlock_store_lock_sequence(sequence, &buffer);

		base = base_of_block(tokens, count == 0, value, above);
		value = base + DLOCK_TOKEN_BLOCK;
		XLogFlush(dlock_store_set_sequence(sequence, buffer, value));
		DLOCK_FAULT("token_reserved");

		SpinLockAcquire(&tokens->mutex);
		Assert(base >= tokens->last);
		if (base != tokens->last || count == 0)
			tokens->next = base + 1;
		tokens->last = value;
		tokens->based = true;
		skip(tokens);
		SpinLockRelease(&tokens->mutex);
	}
	UnlockPage(sequence, 0, ExclusiveLock);
	relation_close(sequence, RowExclusiveLock);
	return base;
}

/* Take one token.  Waits and throws as above. */
DLockToken
dlock_token_take_one(DLockTokenShared *tokens, Oid sequence)
{
	DLockToken	token;

	while (!dlock_token_take(tokens, 1, &token))
		(void) dlock_token_reserve(tokens, sequence, 1, DLOCK_TOKEN_NONE);
	return token;
}

/* ---- reading ---- */

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
