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

extern char *dlock_deadlock_check(DLockDatabase *db, bool is_awaited);
extern char *dlock_deadlock_check_places(DLockDatabase *db, DLockBytes *name, const DLockOwner *owner);

#endif							/* DLOCK_DEADLOCK_H */
