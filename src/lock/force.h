/*-------------------------------------------------------------------------
 *
 * force.h
 *	  End whatever is held on a lock.
 *
 * IDENTIFICATION
 *	  src/lock/force.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_FORCE_H
#define DLOCK_FORCE_H

#include "base/types.h"
#include "space/database.h"

/* What is known of a lease that was ended, for a log line. */
typedef struct DLockForceEnded
{
	uint32		hash;			/* of its name, or of its path's */
	DLockToken	token;
	Oid			role;
	DLockTime	closed_for;		/* the lock is closed now, for so long */
	bool		was_closed;		/* it was, and is open now */
	int			owner_len;
	char		owner[DLOCK_OWNER_MAX];
} DLockForceEnded;

extern int	dlock_force_end(DLockDatabase *db, const DLockBytes *name,
							DLockForceEnded **ended);

#endif							/* DLOCK_FORCE_H */
