/*-------------------------------------------------------------------------
 *
 * wait.h
 *	  Calls that may wait: acquire, convert, watch.
 *
 * IDENTIFICATION
 *	  src/session/wait.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_WAIT_H
#define DLOCK_WAIT_H

#include "base/types.h"
#include "lock/acquire.h"

/* Who holds a lock, for an observer. */
typedef struct DLockWaitHolder
{
	DLockToken	token;			/* DLOCK_TOKEN_NONE: no holder, and no more is
								 * told */
	DLockMode	mode;
	TimestampTz granted_at;
	DLockTime	remaining;		/* DLOCK_TIME_FOREVER if it has no deadline */
	int			owner_len;
	int			payload_len;
	char		owner[DLOCK_OWNER_MAX];
	char		payload[DLOCK_PAYLOAD_MAX];
} DLockWaitHolder;

/* What a place was granted. */
typedef struct DLockWaitTaken
{
	DLockBytes	name;
	DLockBytes	owner;
	DLockToken	token;			/* DLOCK_TOKEN_NONE: an error; the place is
								 * gone */
} DLockWaitTaken;

extern DLockToken dlock_wait_acquire(const DLockAcquireRequest *request, DLockTime wait);
extern void dlock_wait_acquire_each(const DLockAcquireRequest *request, const DLockBytes *names,
									const DLockBytes *owners, int count, DLockToken *tokens);
extern int	dlock_wait_take(const DLockBytes *client, DLockTime wait, DLockTime keep,
							DLockWaitTaken **taken);
extern DLockToken dlock_wait_convert(const DLockBytes *name, DLockToken token,
									 DLockMode mode, DLockTime wait);
extern void dlock_wait_watch(const DLockBytes *name, DLockToken seen, DLockTime wait,
							 DLockWaitHolder *holder);

#endif							/* DLOCK_WAIT_H */
