/*-------------------------------------------------------------------------
 *
 * dlock_token.c
 *	  Fencing tokens: handing them out from shared memory.
 *
 * NOTES
 *	  A token is handed out from a block that was reserved, and the
 *	  reservation flushed, before (dlock_store_reserve_tokens).  So a crash can
 *	  skip tokens, and can never give one out twice.
 *
 *	  The holder of a lock's partition lock takes the token for it, so of two
 *	  grants of one lock the later has the larger.  Grants of different locks
 *	  are ordered by the mutex in here.
 *
 * IDENTIFICATION
 *	  src/dlock_token.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "dlock_token.h"

/* Set up an empty store of tokens. */
void
dlock_token_init(DLockTokenShared *tokens)
{
	SpinLockInit(&tokens->mutex);
	tokens->next = 1;
	tokens->last = 0;
}

/*
 * Take the next "count" tokens, which follow each other, and return the first.
 *
 * False if so many are not reserved, in which case the caller gives up all its
 * locks, reserves more, and comes again.  "count" is at most DLOCK_TOKEN_BLOCK.
 */
bool
dlock_token_take(DLockTokenShared *tokens, int count, DLockToken *first)
{
	bool		taken = false;

	SpinLockAcquire(&tokens->mutex);
	if (tokens->next <= tokens->last - count + 1)
	{
		*first = tokens->next;
		tokens->next += count;
		taken = true;
	}
	SpinLockRelease(&tokens->mutex);
	return taken;
}

/* The last token that was ever reserved here since the server started. */
DLockToken
dlock_token_last(DLockTokenShared *tokens)
{
	DLockToken	last;

	SpinLockAcquire(&tokens->mutex);
	last = tokens->last;
	SpinLockRelease(&tokens->mutex);
	return last;
}

/*
 * Drop what is left of the block at hand, so that the next grant reserves one,
 * and with that looks at the sequence.
 */
void
dlock_token_void(DLockTokenShared *tokens)
{
	SpinLockAcquire(&tokens->mutex);
	tokens->next = tokens->last + 1;
	SpinLockRelease(&tokens->mutex);
}

/*
 * Add a block that has been reserved and flushed.
 *
 * Two backends may have reserved at the same time.  A block that continues
 * what is there is joined to it, one further up replaces it, and one below it
 * is dropped: tokens never go back.
 */
void
dlock_token_add(DLockTokenShared *tokens, DLockToken first, DLockToken last)
{
	SpinLockAcquire(&tokens->mutex);
	if (first > tokens->last)
	{
		if (first > tokens->last + 1)
			tokens->next = first;
		tokens->last = last;
	}
	SpinLockRelease(&tokens->mutex);
}
