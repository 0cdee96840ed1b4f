/*-------------------------------------------------------------------------
 *
 * recover.h
 *	  Bring the leases of a database from its pages into memory.
 *
 * IDENTIFICATION
 *	  src/session/recover.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_RECOVER_H
#define DLOCK_RECOVER_H

#include "space/database.h"

extern bool dlock_recover_is_loaded(const DLockDatabase *db);
extern void dlock_recover_load(DLockDatabase *db);
extern void dlock_recover_lock(DLockDatabaseShared *shared);
extern void dlock_recover_unlock(DLockDatabaseShared *shared);
extern void dlock_recover_unload(DLockDatabaseShared *shared);

#endif							/* DLOCK_RECOVER_H */
