/*-------------------------------------------------------------------------
 *
 * database.h
 *	  What is shared about one database, and how to find it.
 *
 * IDENTIFICATION
 *	  src/space/database.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_DATABASE_H
#define DLOCK_DATABASE_H

#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

#include "base/stat.h"
#include "space/slot.h"
#include "store/token.h"

/* Databases of one server in which leases can be used. */
#define DLOCK_DATABASE_MAX	1024

/* The database's reaper, as others see it. */
typedef struct DLockReaperShared
{
	/* Protected by the registry lock; latch is also read without. */
	int			pid;			/* of the reaper; zero if there is none */
	Latch	   *latch;
	int			attempts;		/* starts since one has worked */
	DLockTime	left_at;		/* when the last one left */
	DLockTime	not_before;		/* the launcher starts none earlier */
	DLockTime	due_since;		/* since when one is needed; zero if none is */

	/*
	 * No lease in memory ends earlier, except those that the reaper has in
	 * its heap.  A backend that grants one with an earlier end lowers it.
	 */
	pg_atomic_uint64 wake_at;

	/* When a reaper has to visit the database whatever its leases; likewise. */
	pg_atomic_uint64 visit_at;
} DLockReaperShared;

/* One database.  Lives as long as the server, or until the database is dropped. */
typedef struct DLockDatabaseShared
{
	Oid			oid;			/* or InvalidOid: the place is free; set under
								 * the registry lock */
	bool		dropped;		/* protected by the registry lock */
	pg_atomic_uint32 loaded;	/* 1: the leases are in memory; set under the
								 * load lock */
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
extern DLockDatabaseShared *dlock_database_next(DLockDatabaseShared *database);
extern void dlock_database_forget(Oid oid);

extern void dlock_database_dropped(Oid oid);

extern void dlock_database_begin_look(void);
extern void dlock_database_plan_look(DLockTime next);
extern void dlock_database_set_crowded(bool crowded);
extern bool dlock_database_is_crowded(void);
extern int	dlock_database_count_waiting(void);
extern void dlock_database_note_deadline(DLockDatabaseShared *database,
										 DLockTime deadline);
extern void dlock_database_wake_reapers(void);
extern void dlock_database_note_visit(DLockDatabaseShared *database, DLockTime deadline);

#endif							/* DLOCK_DATABASE_H */
