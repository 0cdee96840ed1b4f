/*-------------------------------------------------------------------------
 *
 * token.h
 *	  Hand out fencing tokens from shared memory.
 *
 * IDENTIFICATION
 *	  src/store/token.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TOKEN_H
#define DLOCK_TOKEN_H

#include "access/xlogdefs.h"
#include "storage/spin.h"

#include "base/types.h"

/*
 * How many tokens are reserved at a time, and how many are left of a block when
 * the next is reserved: half of them.
 */
#define DLOCK_TOKEN_BLOCK	65536
#define DLOCK_TOKEN_AHEAD	(DLOCK_TOKEN_BLOCK / 2)

/* The tokens of a database.  All fields are protected by the mutex. */
typedef struct DLockTokenShared
{
	slock_t		mutex;
	DLockToken	next;			/* the next token to hand out ... */
	DLockToken	last;			/* ... unless it is above this */
	DLockToken	ask;			/* a taker beyond this must reserve more */

	/* The last block reserved; pending while "reserved" is above "last". */
	DLockToken	reserved_from;
	DLockToken	reserved;
	XLogRecPtr	reserved_lsn;	/* it is durable when this is flushed */
	bool		based;			/* reserved since the last reset */
	DLockToken	epoch;			/* below the block with which they restarted */
} DLockTokenShared;

/* What a reservation is for. */
typedef enum DLockTokenPurpose
{
	DLOCK_TOKEN_REFILL,			/* unless enough are left, or pending */
	DLOCK_TOKEN_MOVE			/* tokens restart at the clock */
} DLockTokenPurpose;

extern void dlock_token_init(DLockTokenShared *tokens);
extern void dlock_token_reset(DLockTokenShared *tokens);

extern bool dlock_token_take(DLockTokenShared *tokens, int count, bool may_ask,
							 DLockToken *first);
extern bool dlock_token_suffice(DLockTokenShared *tokens, int count);
extern bool dlock_token_is_pending(DLockTokenShared *tokens, XLogRecPtr *lsn);
extern bool dlock_token_plan(DLockTokenShared *tokens, DLockTokenPurpose purpose,
							 TimestampTz wall, DLockToken value, DLockToken above,
							 DLockToken *base);
extern void dlock_token_publish(DLockTokenShared *tokens, DLockToken base, XLogRecPtr lsn);
extern void dlock_token_void(DLockTokenShared *tokens, DLockToken below);
extern DLockToken dlock_token_issued(DLockTokenShared *tokens);
extern DLockToken dlock_token_epoch(DLockTokenShared *tokens);

#endif							/* DLOCK_TOKEN_H */
