/*-------------------------------------------------------------------------
 *
 * release.h
 *	  Release leases, and end them otherwise: by force, by time, with a session.
 *
 * IDENTIFICATION
 *	  src/lock/release.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_RELEASE_H
#define DLOCK_RELEASE_H

#include "lock/find.h"

/* Why a lease is ended without anybody having released it. */
typedef enum DLockReleaseStop
{
	DLOCK_STOP_OVER,			/* what it was bound to has ended in order */
	DLOCK_STOP_LOST,			/* its session is lost: lock_delay counts */
	DLOCK_STOP_UNTOLD			/* nobody ever came to know of it */
} DLockReleaseStop;

/* What is known of a lease that was ended, for a log line. */
typedef struct DLockReleaseForced
{
	uint32		hash;			/* of its name, or of its path's */
	DLockToken	token;
	Oid			role;
	DLockTime	closed_for;		/* the lock is closed now, for so long */
	bool		was_closed;		/* it was, and is open now */
	int			owner_len;
	char		owner[DLOCK_OWNER_MAX];
} DLockReleaseForced;

extern bool dlock_release_lease(DLockDatabase *db, const DLockFindTarget *target,
								DLockFindRight right, DLockToken *counted);
extern int	dlock_release_all(DLockDatabase *db, const DLockBytes *owner_name);
extern int	dlock_release_by_force(DLockDatabase *db, const DLockBytes *name,
								   DLockReleaseForced **ended);
extern void dlock_release_forced(DLockDatabase *db, uint32 hash, DLockToken token);
extern DLockTime dlock_release_expired(DLockDatabase *db, uint32 hash, DLockToken token,
									   DLockPartitionSet *skipped, bool *removed);
extern void dlock_release_stop(DLockDatabase *db, uint32 hash, DLockToken token,
							   DLockReleaseStop how);

#endif							/* DLOCK_RELEASE_H */
