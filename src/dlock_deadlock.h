/*-------------------------------------------------------------------------
 *
 * dlock_deadlock.h
 *	  Owners that wait for each other in a circle.
 *
 * IDENTIFICATION
 *	  src/dlock_deadlock.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_DEADLOCK_H
#define DLOCK_DEADLOCK_H

#include "dlock_database.h"

extern char *dlock_deadlock_check(DLockDatabase *db);

#endif							/* DLOCK_DEADLOCK_H */
