/*-------------------------------------------------------------------------
 *
 * token.h
 *	  Fencing tokens: handed out from shared memory, reserved in a sequence.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TOKEN_H
#define DLOCK_TOKEN_H

#include "storage/spin.h"

#include "base/types.h"

/* How many tokens are reserved at a time. */
#define DLOCK_TOKEN_BLOCK	65536

/* The tokens of a database, protected by the mutex; but see dlock_token_reserve(). */
typedef struct DLockTokenShared
{
	slock_t		mutex;
	DLockToken	next;			/* the next token to hand out ... */
	DLockToken	last;			/* ... unless it is above this, the last
								 * reserved */
	DLockToken	above;			/* those to come are above this */
	bool		based;			/* reserved since the last reset */
} DLockTokenShared;

extern void dlock_token_init(DLockTokenShared *tokens);
extern void dlock_token_reset(DLockTokenShared *tokens);

/* under a partition lock */
extern bool dlock_token_take(DLockTokenShared *tokens, int count, DLockToken *first);

/* without; "sequence" is the oid of the sequence of tokens */
extern DLockToken dlock_token_reserve(DLockTokenShared *tokens, Oid sequence, int count, DLockToken above);
extern DLockToken dlock_token_take_one(DLockTokenShared *tokens, Oid sequence);

/* either way */
extern void dlock_token_exceed(DLockTokenShared *tokens, DLockToken token);
extern DLockToken dlock_token_issued(DLockTokenShared *tokens);

#endif							/* DLOCK_TOKEN_H */
