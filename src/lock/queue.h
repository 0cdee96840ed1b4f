/*-------------------------------------------------------------------------
 *
 * queue.h
 *	  Requests that wait: their turns, staying, leaving.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_QUEUE_H
#define DLOCK_QUEUE_H

#include "lock/process.h"
#include "space/space.h"

/* Why turns are given. */
typedef enum DLockQueueCause
{
	DLOCK_TURNS_AGAIN,			/* leases have changed; or a request has gone
								 * or moved, or may have been overlooked */
	DLOCK_TURNS_ASKED,			/* a request is blocked: one in front of it
								 * may be due for a turn */
	DLOCK_TURNS_KEPT			/* a lease or a turn has run out, or the last
								 * dead lease has gone: only requests that the
								 * lock blocked ("kept") */
} DLockQueueCause;

/* under partition locks */
extern void dlock_queue_wake_twins(DLockSpaceEntry *entry, const DLockOwner *owner,
								   DLockPart part);
extern bool dlock_queue_is_closed(DLockSpaceEntry *entry, const DLockHolderCrowd *crowd, uint32 ahead);
extern void dlock_queue_give_turns(DLockSpaceEntry *entry, DLockTime now, DLockQueueCause cause);
extern void dlock_queue_pass_by(DLockSpaceEntry *entry, DLockTime now);
extern void dlock_queue_move_last(const List *processes, DLockTime now);
extern void dlock_queue_remove_mine(DLockTime now);
extern void dlock_queue_remove(DLockSpaceLease *request, DLockTime now);
extern void dlock_queue_keep(DLockSpaceLease *request, DLockTime since, DLockTime until, DLockTime now);
extern void dlock_queue_keep_on(DLockSpaceLease *place, DLockTime until, DLockTime now);
extern void dlock_queue_attend(DLockSpaceLease *place, DLockTime now, DLockTime anyway);
extern DLockTime dlock_queue_stay(DLockTime now, DLockTime anyway);

/* without locks */
extern void dlock_queue_give_turns_ahead(void);
extern void dlock_queue_leave(void);
extern void dlock_queue_dismiss(Oid database);
extern void dlock_queue_leave_kept(DLockTime keep);
extern DLockTime dlock_queue_expire(Oid database, uint32 lock, uint32 client, DLockToken id, bool anyway);
extern void dlock_queue_end_listening(Oid database, Oid role, const DLockBytes *client,
									  DLockTime keep, bool failed);
extern void dlock_queue_give_up(Oid database, Oid role, const DLockBytes *client);

#endif							/* DLOCK_QUEUE_H */
