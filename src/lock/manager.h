/*-------------------------------------------------------------------------
 *
 * manager.h
 *	  Renew, release, convert, expire, check: what is done with leases.
 *
 * IDENTIFICATION
 *	  src/lock/manager.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_MANAGER_H
#define DLOCK_MANAGER_H

#include "base/types.h"
#include "lock/acquire.h"
#include "space/database.h"
#include "space/space.h"

/* How a lease is named. */
typedef enum DLockManagerBy
{
	DLOCK_BY_OWNER,				/* name and owner */
	DLOCK_BY_TOKEN,				/* name and token */
	DLOCK_BY_REF				/* hash of the name, and token */
} DLockManagerBy;

typedef struct DLockManagerTarget
{
	DLockManagerBy by;
	uint32		hash;			/* of the name */
	DLockBytes	name;
	DLockBytes	owner;
	DLockToken	token;
	bool		closed;			/* not a live one: one whose lock delay is not over */
} DLockManagerTarget;

/* On whose account a lease is renewed or released. */
typedef enum DLockManagerRight
{
	DLOCK_RIGHT_ROLE,			/* the current user's; throw if it may not */
	DLOCK_RIGHT_ROLE_SKIP		/* the current user's; leave it if it may not */
} DLockManagerRight;

/* Why a lease is ended without anybody having released it. */
typedef enum DLockManagerStop
{
	DLOCK_STOP_OVER,			/* what it was bound to has ended in order */
	DLOCK_STOP_LOST,			/* its session is lost: lock_delay counts */
	DLOCK_STOP_UNTOLD			/* nobody ever came to know of it */
} DLockManagerStop;

extern DLockAcquireAnswer dlock_manager_convert(DLockDatabase *db,
												const DLockManagerTarget *target,
												DLockMode mode, bool may_wait,
												DLockAcquireGranted *granted);
extern bool dlock_manager_renew(DLockDatabase *db, const DLockManagerTarget *target,
								DLockTime ttl);
extern int	dlock_manager_renew_refs(DLockDatabase *db, DLockSpaceRef *refs, int count,
									 DLockTime ttl, XLogRecPtr *lsn);
extern int	dlock_manager_renew_all(DLockDatabase *db, const DLockBytes *owner_name,
									DLockTime ttl);
extern bool dlock_manager_release(DLockDatabase *db, const DLockManagerTarget *target,
								  DLockManagerRight right, DLockToken *counted);
extern int	dlock_manager_release_all(DLockDatabase *db, const DLockBytes *owner_name);
extern bool dlock_manager_check(DLockDatabase *db, const DLockManagerTarget *target);
extern void dlock_manager_forced(DLockDatabase *db, uint32 hash, DLockToken token);
extern DLockTime dlock_manager_expire(DLockDatabase *db, uint32 hash, DLockToken token,
									  DLockSpaceSet *skipped, bool *removed);
extern void dlock_manager_stop(DLockDatabase *db, uint32 hash, DLockToken token,
							   DLockManagerStop how);

#endif							/* DLOCK_MANAGER_H */
