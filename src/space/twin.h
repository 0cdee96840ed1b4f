/*-------------------------------------------------------------------------
 *
 * twin.h
 *	  Does an owner have a request in the queue of a lock?
 *
 * IDENTIFICATION
 *	  src/space/twin.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TWIN_H
#define DLOCK_TWIN_H

#include "space/lease.h"

/* set-up */
extern void dlock_twin_request(void);
extern void dlock_twin_startup(void);

/* under the partition lock, exclusively */
extern void dlock_twin_enter(const DLockSpaceLease *request);
extern void dlock_twin_leave(const DLockSpaceLease *request);

/* under the partition lock */
extern bool dlock_twin_may_wait(DLockSpaceEntry *entry, const DLockOwner *owner);

#endif							/* DLOCK_TWIN_H */
