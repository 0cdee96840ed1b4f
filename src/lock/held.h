/*-------------------------------------------------------------------------
 *
 * held.h
 *	  Leases that are held: renew, convert, release and end them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_HELD_H
#define DLOCK_HELD_H

#include "lock/acquire.h"
#include "space/holder.h"

/* Why a lease is ended without anybody having released it. */
typedef enum DLockHeldStop
{
	DLOCK_STOP_OVER,			/* what it was bound to has ended in order */
	DLOCK_STOP_LOST,			/* its session is lost: lock_delay counts */
	DLOCK_STOP_UNTOLD			/* its grant was never answered */
} DLockHeldStop;

/* What is known of a lease that was ended, for a log line. */
typedef struct DLockHeldForced
{
	uint32		hash;			/* of its name, or of its path */
	DLockToken	token;
	Oid			role;
	DLockTime	closed_for;		/* how long the lock stays closed */
	bool		was_closed;		/* it was closed, and is open now */
	int			owner_len;
	char		owner[DLOCK_OWNER_MAX];
} DLockHeldForced;

extern bool dlock_held_is_live(DLockDatabase *db, const DLockHolderTarget *target);
extern bool dlock_held_is_told(DLockDatabase *db, const DLockHolderTarget *target);

/* renewing and converting */
extern void dlock_held_renew_each(DLockDatabase *db, const DLockHolderTarget *targets,
								  int count, DLockTime ttl, bool *renewed);
extern int	dlock_held_renew_all(DLockDatabase *db, const DLockBytes *owner_name,
								 DLockTime ttl);
extern DLockAcquireAnswer dlock_held_convert(DLockDatabase *db,
											 const DLockHolderTarget *target,
											 DLockMode mode, bool may_wait,
											 DLockAcquireGranted *granted);

/* releasing and ending */
extern bool dlock_held_release(DLockDatabase *db, const DLockHolderTarget *target, bool *found);
extern int	dlock_held_release_all(DLockDatabase *db, const DLockBytes *owner_name);
extern int	dlock_held_end_by_force(DLockDatabase *db, const DLockBytes *name,
									DLockHeldForced **ended);
extern DLockTime dlock_held_expire(DLockDatabase *db, uint32 hash, DLockToken token);
extern void dlock_held_stop(DLockDatabase *db, uint32 hash, DLockToken token,
							DLockHeldStop how);

#endif							/* DLOCK_HELD_H */
