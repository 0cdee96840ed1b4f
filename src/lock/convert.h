/*-------------------------------------------------------------------------
 *
 * convert.h
 *	  Convert leases to other modes.
 *
 * IDENTIFICATION
 *	  src/lock/convert.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_CONVERT_H
#define DLOCK_CONVERT_H

#include "lock/acquire.h"
#include "lock/held.h"

extern DLockAcquireAnswer dlock_convert_lease(DLockDatabase *db,
											  const DLockHolderTarget *target,
											  DLockMode mode, bool may_wait,
											  DLockAcquireGranted *granted);

#endif							/* DLOCK_CONVERT_H */
