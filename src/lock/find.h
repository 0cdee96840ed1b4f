/*-------------------------------------------------------------------------
 *
 * find.h
 *	  The lease that a call names.
 *
 * IDENTIFICATION
 *	  src/lock/find.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_FIND_H
#define DLOCK_FIND_H

#include "lock/step.h"

/* How a lease is named. */
typedef enum DLockFindBy
{
	DLOCK_BY_OWNER,				/* name and owner */
	DLOCK_BY_TOKEN,				/* name and token */
	DLOCK_BY_REF				/* hash of the name, and token */
} DLockFindBy;

typedef struct DLockFindTarget
{
	DLockFindBy by;
	uint32		hash;			/* of the name */
	DLockBytes	name;
	DLockBytes	owner;
	DLockToken	token;
	bool		closed;			/* not a live one: one whose lock delay is not
								 * over */
} DLockFindTarget;

/* On whose account a lease is renewed or released. */
typedef enum DLockFindRight
{
	DLOCK_RIGHT_ROLE,			/* the current user's; throw if it may not */
	DLOCK_RIGHT_ROLE_SKIP		/* the current user's; leave it if it may not */
} DLockFindRight;

/* A lease that is looked for, and what was found. */
typedef struct DLockFind
{
	const DLockFindTarget *target;
	DLockFindRight right;
	DLockSpaceEntry *entry;
	DLockSpaceLease *lease;		/* NULL if there is none */
	Oid			stranger;		/* whose lease it is, if that prevents it */
} DLockFind;

/* under partition locks */
extern DLockStepLack dlock_find_any(DLockStep *step, DLockFind *found);
extern DLockStepLack dlock_find_wanted(DLockStep *step, DLockFind *found);
extern DLockTerm dlock_find_term(const DLockSpaceLease *lease);

/* without locks */
extern DLockFindTarget dlock_find_target(uint32 hash, DLockToken token);
extern bool dlock_find_run(DLockStep *step, DLockDatabase *db, DLockFind *found,
						   DLockStepAttempt attempt);
extern int	dlock_find_own_first(DLockSpaceRef *refs, int count);
extern bool dlock_find_is_live(DLockDatabase *db, const DLockFindTarget *target);

#endif							/* DLOCK_FIND_H */
