/*-------------------------------------------------------------------------
 *
 * session.h
 *	  This backend and the database that it is connected to.
 *
 * IDENTIFICATION
 *	  src/session/session.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SESSION_H
#define DLOCK_SESSION_H

#include "space/database.h"

/* The result of an attempt to open the store. */
typedef enum DLockSessionTry
{
	DLOCK_SESSION_OPENED,
	DLOCK_SESSION_LOCKED,		/* by another session */
	DLOCK_SESSION_ABSENT		/* the extension is not installed */
} DLockSessionTry;

extern void dlock_session_check_preloaded(void);
extern void dlock_session_check_writable(const char *function);
extern void dlock_session_open(DLockDatabase *db);
extern DLockSessionTry dlock_session_try_open(DLockDatabase *db);
extern bool dlock_session_is_internal(Oid relid);
extern Relation dlock_session_open_store(LOCKMODE lockmode);
extern Relation dlock_session_open_marks(LOCKMODE lockmode);
extern bool dlock_session_is_owner(void);
extern void dlock_session_attach(void);
extern void dlock_session_purge(DLockDatabaseShared *shared);
extern void dlock_session_close(DLockDatabase *db);
extern void dlock_session_shared(DLockDatabase *db);

#endif							/* DLOCK_SESSION_H */
