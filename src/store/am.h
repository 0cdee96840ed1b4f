/*-------------------------------------------------------------------------
 *
 * am.h
 *	  The table access method of the lease store.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_AM_H
#define DLOCK_AM_H

#include "base/compat.h"

/*
 * Called when a relation of this access method is about to get other storage, under
 * AccessExclusiveLock.
 */
typedef void (*DLockAmMovedHook) (void);

extern DLockAmMovedHook dlock_am_moved_hook;

extern const TableAmRoutine *dlock_am_routine(void);

#endif							/* DLOCK_AM_H */
