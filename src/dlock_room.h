/*-------------------------------------------------------------------------
 *
 * dlock_room.h
 *	  Room for a request: what to do when memory or a limit leaves none.
 *
 * IDENTIFICATION
 *	  src/dlock_room.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ROOM_H
#define DLOCK_ROOM_H

#include "dlock_database.h"
#include "dlock_limit.h"

extern void dlock_room_find(DLockDatabase *db);
extern DLockLimitCounter dlock_room_counter(DLockDatabase *db, Oid role);
extern void dlock_room_under_limit(DLockDatabase *db, Oid role, DLockLimitCounter counter);

#endif							/* DLOCK_ROOM_H */
