/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Differences between PostgreSQL versions, and nothing else.
 *
 * NOTES
 *	  This is the only file that tests PG_VERSION_NUM.  The rest is written
 *	  against the newest names; where an older server calls a thing otherwise,
 *	  the new name is defined here.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_COMPAT_H
#define DLOCK_COMPAT_H

#include "access/genam.h"
#include "access/tableam.h"
#include "replication/walsender_private.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 190000
#error "dlock supports PostgreSQL 15 to 18"
#endif

/* 16 moved the macros for variable-length values out of postgres.h. */
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

/* 16 renamed relfilenodes to relfile locators. */
#if PG_VERSION_NUM < 160000
typedef RelFileNode RelFileLocator;

#define rd_locator						rd_node
#define rd_newRelfilelocatorSubid		rd_newRelfilenodeSubid
#define rd_firstRelfilelocatorSubid		rd_firstRelfilenodeSubid
#define relation_set_new_filelocator	relation_set_new_filenode
#define RelFileLocatorEquals(a, b)		RelFileNodeEquals(a, b)
#endif

/* 16 exports the functions that allocate and free the values of settings. */
#if PG_VERSION_NUM < 160000
#define guc_malloc(elevel, size)	malloc(size)
#define guc_free(pointer)			free(pointer)
#endif

/* 17 added infinite intervals. */
#ifndef INTERVAL_NOT_FINITE
#define INTERVAL_NOT_FINITE(i)			false
#endif

/* 17 can ask for a stronger lock as well. */
#if PG_VERSION_NUM < 170000
#define DLOCK_LOCK_HELD_BY_ME(tag, mode)	LockHeldByMe(tag, mode)
#else
#define DLOCK_LOCK_HELD_BY_ME(tag, mode)	LockHeldByMe(tag, mode, false)
#endif

/* 17 gave the number of a process a name of its own. */
#if PG_VERSION_NUM < 170000
#define MyProcNumber					(MyProc->pgprocno)
#endif

/* 17 lets extensions name what they wait for. */
#if PG_VERSION_NUM < 170000
#define WaitEventExtensionNew(name)		PG_WAIT_EXTENSION
#endif

/* Up to 16 ConditionVariableCancelSleep() itself passes on a signal that has come. */
#if PG_VERSION_NUM < 170000
#define DLOCK_CANCEL_SLEEP(cv)			ConditionVariableCancelSleep()
#else
#define DLOCK_CANCEL_SLEEP(cv) \
	do { \
		if (ConditionVariableCancelSleep()) \
			ConditionVariableSignal(cv); \
	} while (0)
#endif

/* Reads the flag without a lock.  Minor releases of 2025 made it one of several. */
#ifdef SYNC_STANDBY_DEFINED
#define DLOCK_SYNC_STANDBYS_DEFINED() \
	((((volatile WalSndCtlData *) WalSndCtl)->sync_standbys_status & SYNC_STANDBY_DEFINED) != 0)
#else
#define DLOCK_SYNC_STANDBYS_DEFINED() \
	(((volatile WalSndCtlData *) WalSndCtl)->sync_standbys_defined)
#endif

/*
 * Must come first in each exit callback that locks something.  A process may exit while
 * it holds LWLocks: a FATAL error does not release them, and servers before the minor
 * releases of late 2025 call the callbacks with these still held.  So a callback could
 * wait for its own process, forever and without reacting to signals.
 */
#define DLOCK_BEGIN_EXIT()				LWLockReleaseAll()

/* 18 turned the attribute into a prefix. */
#ifndef pg_noreturn
#define pg_noreturn						pg_attribute_noreturn()
#endif

/* 18 counts the pages that are frozen. */
#if PG_VERSION_NUM < 180000
#define vac_update_relstats(rel, pages, tuples, visible, frozen, ...) \
	vac_update_relstats(rel, pages, tuples, visible, __VA_ARGS__)
#endif

/* 18 lets a module state its name and version. */
#ifndef PG_MODULE_MAGIC_EXT
#define PG_MODULE_MAGIC_EXT(...)		PG_MODULE_MAGIC
#endif

#endif							/* DLOCK_COMPAT_H */
