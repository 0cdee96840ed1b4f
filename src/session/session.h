/*-------------------------------------------------------------------------
 *
 * session.h
 *	  This backend and the database that it is connected to.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SESSION_H
#define DLOCK_SESSION_H

#include "space/database.h"

/* The relations of the extension that C uses, in the schema _dlock. */
typedef enum DLockSessionRelation
{
	DLOCK_RELATION_STORE,
	DLOCK_RELATION_SEQUENCE,
	DLOCK_RELATION_MARKS
} DLockSessionRelation;

extern void dlock_session_check_preloaded(void);
extern void dlock_session_check_writable(const char *function);
extern void dlock_session_check_grants(const char *function);
extern void dlock_session_check_lease_writable(const char *function);
extern void dlock_session_open(DLockDatabase *db);
extern bool dlock_session_try_open(DLockDatabase *db, bool wait);
extern Relation dlock_session_open_relation(DLockSessionRelation which, LOCKMODE lockmode, bool wait);
extern void dlock_session_attach(void);
extern void dlock_session_purge(DLockDatabaseShared *shared);
extern void dlock_session_close(DLockDatabase *db);
extern void dlock_session_shared(DLockDatabase *db);

#endif							/* DLOCK_SESSION_H */
