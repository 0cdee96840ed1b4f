/*-------------------------------------------------------------------------
 *
 * dlock_database.h
 *	  What is shared about one database, and how to find it.
 *
 * IDENTIFICATION
 *	  src/dlock_database.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_DATABASE_H
#define DLOCK_DATABASE_H

#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

#include "dlock_slot.h"
#include "dlock_stat.h"
#include "dlock_token.h"

/* Databases of one server in which leases can be used. */
#define DLOCK_DATABASE_MAX	1024

/* Whether the leases of a database are in memory. */
typedef enum DLockDatabaseState
{
	DLOCK_DATABASE_UNLOADED,	/* none is, or the load was broken off */
	DLOCK_DATABASE_READY
} DLockDatabaseState;

/* The database's reaper, as others see it. */
typedef struct DLockReaperShared
{
	/*
	 * Protected by the registry lock.  The reaper sets pid and latch when it
	 * starts and clears them when it ends; anybody may ask for one (wanted) or
	 * keep it away (holds, a count).
	 */
	int			pid;
	Latch	   *latch;
	bool		wanted;
	int			holds;
	int			attempts;		/* starts since one has worked */

	/* When the reaper means to look again; whoever has less lowers it. */
	pg_atomic_uint64 wake_at;

	/* When it means to look at captures of tasks; likewise. */
	pg_atomic_uint64 task_at;
} DLockReaperShared;

/* One database.  Lives as long as the server, or until the database is dropped. */
typedef struct DLockDatabaseShared
{
	struct DLockDatabaseShared *next;	/* protected by the registry lock */
	Oid			oid;			/* constant */
	pg_atomic_uint32 state;		/* changed under the load lock */
	RelFileLocator locator;		/* of the store; likewise */
	DLockSlotShared slots;
	DLockTokenShared tokens;
	DLockReaperShared reaper;
	DLockStatShared stats;
} DLockDatabaseShared;

/* A database as one backend uses it during one operation. */
typedef struct DLockDatabase
{
	DLockDatabaseShared *shared;
	Relation	rel;			/* the store, locked */
	Oid			sequence;		/* of the tokens */
} DLockDatabase;

extern void dlock_database_request(void);
extern void dlock_database_startup(void);

extern void dlock_database_lock(LWLockMode mode);
extern void dlock_database_unlock(void);
extern DLockDatabaseShared *dlock_database_find(Oid oid);
extern DLockDatabaseShared *dlock_database_attach(Oid oid);
extern DLockDatabaseShared *dlock_database_first(void);
extern DLockDatabaseShared *dlock_database_next(DLockDatabaseShared *database);
extern bool dlock_database_hold_unknown(Oid oid);
extern bool dlock_database_unhold_unknown(Oid oid);
extern void dlock_database_forget(Oid oid);

extern void dlock_database_unload(Oid oid);

extern void dlock_database_set_launcher(Latch *latch);
extern void dlock_database_wake_launcher(void);
extern void dlock_database_want_reaper(DLockDatabaseShared *database, bool wanted);
extern void dlock_database_note_deadline(DLockDatabaseShared *database,
										 DLockTime deadline);
extern void dlock_database_wake_reapers(void);
extern void dlock_database_note_task(DLockDatabaseShared *database, DLockTime deadline);
extern DLockTime dlock_database_plan_task(DLockDatabaseShared *database, DLockTime next);

extern void dlock_database_fetch_tokens(DLockDatabase *db, int count);
extern DLockToken dlock_database_move_tokens(DLockDatabase *db, DLockToken above);

#endif							/* DLOCK_DATABASE_H */
