/*-------------------------------------------------------------------------
 *
 * wait.h
 *	  Calls that may wait: acquire, convert, watch.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_WAIT_H
#define DLOCK_WAIT_H

#include "base/types.h"
#include "lock/acquire.h"

/* Who holds a lock, for a watch. */
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

/* How long to leave the store alone if it cannot be opened at once, the first time. */
#define DLOCK_WAIT_RETRY	(10 * INT64CONST(1000))

/* A request or a place is asked for again within so many times deadlock_timeout. */
#define DLOCK_WAIT_ANYWAY	8

extern DLockToken dlock_wait_acquire(const DLockAcquireRequest *request, DLockTime wait);
extern void dlock_wait_acquire_each(const DLockAcquireRequest *request, const DLockBytes *names,
									const DLockBytes *owners, int count, DLockToken *tokens);
extern DLockToken dlock_wait_convert(const DLockBytes *name, DLockToken token,
									 DLockMode mode, DLockTime wait);
extern void dlock_wait_watch(const DLockBytes *name, DLockToken seen, DLockTime wait,
							 DLockWaitHolder *holder);

/* what session/take.c has in common with these */
extern bool dlock_wait_nap(DLockTime now, DLockTime until, uint32 event);
extern bool dlock_wait_is_long(const DLockAcquireGranted *granted);
extern void dlock_wait_make_durable(XLogRecPtr lsn, const DLockBytes *names, int count);

#endif							/* DLOCK_WAIT_H */
