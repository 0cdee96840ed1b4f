/*-------------------------------------------------------------------------
 *
 * room.h
 *	  Room for a request: what to do when memory or a limit leaves none.
 *
 * IDENTIFICATION
 *	  src/lock/room.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ROOM_H
#define DLOCK_ROOM_H

#include "space/database.h"
#include "space/limit.h"

extern void dlock_room_find(DLockDatabase *db);
extern DLockLimitCounter dlock_room_counter(DLockDatabase *db, Oid role);
extern void dlock_room_under_limit(DLockDatabase *db, Oid role, DLockLimitCounter counter);

#endif							/* DLOCK_ROOM_H */
