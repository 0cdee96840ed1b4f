/*-------------------------------------------------------------------------
 *
 * deadlock.h
 *	  Owners that wait for each other in a circle.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_DEADLOCK_H
#define DLOCK_DEADLOCK_H

#include "space/database.h"

extern bool dlock_deadlock_is_checked(DLockDatabase *db, DLockTime *checked);
extern char *dlock_deadlock_check(DLockDatabase *db, DLockTime checked);
extern char *dlock_deadlock_check_places(DLockDatabase *db, DLockToken id,
										 DLockBytes *name, DLockBytes *owner);

#endif							/* DLOCK_DEADLOCK_H */
