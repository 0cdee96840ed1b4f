/*-------------------------------------------------------------------------
 *
 * grants.h
 *	  What this backend was granted.
 *
 * IDENTIFICATION
 *	  src/session/grants.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_GRANTS_H
#define DLOCK_GRANTS_H

#include "fmgr.h"

#include "base/types.h"
#include "lock/acquire.h"
#include "space/space.h"

/* The record of a time slot as it was before it was won. */
typedef struct DLockGrantsSlot
{
	DLockToken	token;
	DLockTerm	term;
	DLockTime	vouched_until;
	DLockTime	delay;
	DLockTime	min_until;
	TimestampTz granted_at;
	Oid			role;
	uint32		holds;
	bool		stopped;
} DLockGrantsSlot;

extern Datum dlock_grants_call(PGFunction body, FunctionCallInfo fcinfo);
extern void dlock_grants_discard(void);
extern bool dlock_grants_are_bound(void);

/* before a change */
extern void dlock_grants_prepare(int more, DLockBind bind);
extern DLockGrantsSlot *dlock_grants_prepare_slot(void);

/* after it; these cannot fail */
extern void dlock_grants_add(DLockDatabase *db, const DLockAcquireRequest *request,
							 const DLockAcquireGranted *granted);
extern void dlock_grants_convert(uint32 hash, DLockToken from,
								 const DLockAcquireGranted *granted, DLockMode after);
extern void dlock_grants_add_slot(uint32 hash, DLockToken token);

#endif							/* DLOCK_GRANTS_H */
