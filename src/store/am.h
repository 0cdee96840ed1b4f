/*-------------------------------------------------------------------------
 *
 * am.h
 *	  The table access method of the lease store.
 *
 * IDENTIFICATION
 *	  src/store/am.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_AM_H
#define DLOCK_AM_H

#include "base/compat.h"

/* Called when a relation of this access method gets storage. */
typedef void (*DLockAmCreatedHook) (void);

extern DLockAmCreatedHook dlock_am_created_hook;

extern const TableAmRoutine *dlock_am_routine(void);

#endif							/* DLOCK_AM_H */
