/*-------------------------------------------------------------------------
 *
 * blocker.h
 *	  The owners that are in the way of a request, for people to read.
 *
 * IDENTIFICATION
 *	  src/lock/blocker.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_BLOCKER_H
#define DLOCK_BLOCKER_H

#include "space/lease.h"

/* How many owners in the way are named. */
#define DLOCK_BLOCKER_OWNERS	64

/* Owners, each once. */
typedef struct DLockBlockerOwners
{
	int			count;
	bool		more;			/* than are named */
	struct
	{
		Oid			role;
		int			len;
		char		data[DLOCK_OWNER_MAX];
	}			owners[DLOCK_BLOCKER_OWNERS];
} DLockBlockerOwners;

extern void dlock_blocker_find(DLockSpaceLease *request, DLockTime now,
							   DLockBlockerOwners *owners);
extern char *dlock_blocker_describe(void);

#endif							/* DLOCK_BLOCKER_H */
