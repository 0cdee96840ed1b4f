/*-------------------------------------------------------------------------
 *
 * grants.h
 *	  What this backend was granted.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_GRANTS_H
#define DLOCK_GRANTS_H

#include "base/types.h"
#include "lock/acquire.h"
#include "space/space.h"

extern void dlock_grants_answered(void);
extern void dlock_grants_discard(void);

/* before a change */
extern void dlock_grants_prepare(int more, DLockBind bind);

/* after it; these cannot fail */
extern void dlock_grants_add(DLockDatabase *db, const DLockAcquireRequest *request,
							 const DLockAcquireGranted *granted);
extern void dlock_grants_add_place(DLockDatabase *db, const DLockAcquireRequest *request,
								   const DLockAcquireGranted *granted);
extern void dlock_grants_convert(uint32 hash, DLockToken from,
								 const DLockAcquireGranted *granted, DLockMode after);

#endif							/* DLOCK_GRANTS_H */
