/*-------------------------------------------------------------------------
 *
 * dlock_token.h
 *	  Fencing tokens: handing them out, reserving blocks of them.
 *
 * IDENTIFICATION
 *	  src/dlock_token.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TOKEN_H
#define DLOCK_TOKEN_H

#include "storage/spin.h"

#include "dlock_types.h"

/* How many tokens are reserved at a time, and at most lost in a crash. */
#define DLOCK_TOKEN_BLOCK	8192

/* The tokens of a database that may be handed out from memory. */
typedef struct DLockTokenShared
{
	slock_t		mutex;
	DLockToken	next;			/* the next one; protected by mutex */
	DLockToken	last;			/* the last one reserved; likewise */
} DLockTokenShared;

extern void dlock_token_init(DLockTokenShared *tokens);
extern bool dlock_token_take(DLockTokenShared *tokens, int count, DLockToken *first);
extern DLockToken dlock_token_last(DLockTokenShared *tokens);
extern void dlock_token_void(DLockTokenShared *tokens);
extern void dlock_token_add(DLockTokenShared *tokens, DLockToken first, DLockToken last);

#endif							/* DLOCK_TOKEN_H */
