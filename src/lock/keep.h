/*-------------------------------------------------------------------------
 *
 * keep.h
 *	  Places: requests that stay in a queue though no call waits for them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_KEEP_H
#define DLOCK_KEEP_H

#include "space/lease.h"

/* under partition locks */
extern void dlock_keep_make(DLockSpaceLease *request, DLockTime since, DLockTime until, DLockTime now);
extern void dlock_keep_stay(DLockSpaceLease *place, DLockTime until, DLockTime now);
extern void dlock_keep_listen(DLockSpaceLease *place, DLockTime now, DLockTime anyway);

/* without locks */
extern void dlock_keep_leave(DLockTime keep);
extern DLockTime dlock_keep_expire(Oid database, uint32 lock, uint32 client, DLockToken id, bool anyway);
extern void dlock_keep_end_listening(Oid database, Oid role, const DLockBytes *client,
									 DLockTime keep, bool failed);
extern void dlock_keep_give_up(Oid database, Oid role, const DLockBytes *client);

#endif							/* DLOCK_KEEP_H */
