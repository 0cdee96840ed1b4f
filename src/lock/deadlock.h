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

extern char *dlock_deadlock_check(DLockDatabase *db, bool is_awaited, DLockTime *checked);
extern char *dlock_deadlock_check_place(DLockDatabase *db, const DLockBytes *name, const DLockOwner *owner);
extern char *dlock_deadlock_check_client(DLockDatabase *db, const DLockOwner *client,
										 DLockBytes *name, DLockBytes *owner);

#endif							/* DLOCK_DEADLOCK_H */
