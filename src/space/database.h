/*-------------------------------------------------------------------------
 *
 * database.h
 *	  What is shared about one database, and how to find it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_DATABASE_H
#define DLOCK_DATABASE_H

#include "port/atomics.h"
#include "storage/lwlock.h"

#include "base/stat.h"
#include "space/slot.h"
#include "store/token.h"

/* Databases of one server in which leases can be used. */
#define DLOCK_DATABASE_MAX	1024

/* What is in memory of a database. */
typedef enum DLockDatabaseState
{
	DLOCK_DATABASE_ABSENT,		/* nothing that counts */
	DLOCK_DATABASE_LOADED,		/* its leases, and where their pages are */
	DLOCK_DATABASE_MOVED		/* its leases; their pages may be elsewhere
								 * now */
} DLockDatabaseState;

/* One database.  Lives as long as the server, or until the database is dropped. */
typedef struct DLockDatabaseShared
{
	/* Protected by the registry lock. */
	Oid			oid;			/* or InvalidOid: the entry is free */
	bool		dropped;		/* the database is gone */
	bool		abandoned;		/* the worker has to purge the memory, if the
								 * state is ABSENT then */

	/*
	 * Set under the load lock; LOADED becomes MOVED at any time, and ABSENT
	 * when no backend can have the store open.
	 */
	pg_atomic_uint32 state;		/* a DLockDatabaseState */
	Oid			store;			/* the relation */
	RelFileLocator locator;		/* and its pages */

	/* Read and written by the worker only. */
	DLockTime	retry_at;		/* not to be cleaned up before that */
	int			failures;		/* errors in a row */

	/* When a deadlock check last found that no backend was stuck. */
	pg_atomic_uint64 unstuck_at;

	/* Places are not checked for deadlocks before that. */
	pg_atomic_uint64 check_places_at;

	DLockSlotShared slots;
	DLockTokenShared tokens;
	DLockStatShared stats;
} DLockDatabaseShared;

/* A database as one backend uses it during one operation. */
typedef struct DLockDatabase
{
	DLockDatabaseShared *shared;
	Relation	rel;			/* the store, locked; or NULL */
	RelFileLocator locator;		/* of its pages, if they can be changed */
	Oid			sequence;		/* of the tokens */
} DLockDatabase;

extern void dlock_database_request(void);
extern void dlock_database_startup(void);

extern DLockDatabaseShared *dlock_database_find(Oid oid);
extern DLockDatabaseShared *dlock_database_attach(Oid oid);
extern DLockDatabaseShared *dlock_database_abandoned_one(void);
extern void dlock_database_settle(DLockDatabaseShared *database);

extern void dlock_database_abandoned(Oid oid, bool dropped);
extern void dlock_database_moved(Oid oid, Oid relation);

extern void dlock_database_note_deadline(DLockTime deadline);
extern DLockTime dlock_database_wake_at(void);
extern void dlock_database_begin_sweep(DLockTime horizon);

extern bool dlock_database_wait_pass(void);
extern uint64 dlock_database_pass(void);
extern void dlock_database_end_pass(uint64 pass);

#endif							/* DLOCK_DATABASE_H */
