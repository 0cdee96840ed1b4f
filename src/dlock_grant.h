/*-------------------------------------------------------------------------
 *
 * dlock_grant.h
 *	  What changes who holds a lock: grants, ends, and hand-offs.
 *
 * IDENTIFICATION
 *	  src/dlock_grant.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_GRANT_H
#define DLOCK_GRANT_H

#include "dlock_space.h"
#include "dlock_types.h"
#include "dlock_work.h"

/* A lease and the lock that it is on: one part of a lease on a path. */
typedef struct DLockGrantPart
{
	DLockSpaceEntry *entry;
	DLockSpaceLease *lease;
} DLockGrantPart;

/* the work as a whole */
extern void dlock_grant_finish(DLockWork *work);

/* steps, under partition locks */
extern bool dlock_grant_tidy(DLockWork *work, DLockSpaceEntry *entry);
extern XLogRecPtr dlock_grant_write(DLockWork *work, DLockSlot slot,
									const DLockLeaseValue *lease);
extern void dlock_grant_log_state(DLockWork *work, DLockSpaceLease *lease,
								  const DLockTerm *term);
extern void dlock_grant_rewrite(DLockWork *work, DLockSpaceEntry *entry,
								DLockSpaceLease *lease);
extern void dlock_grant_hand_off(DLockWork *work, DLockSpaceEntry *entry);
extern bool dlock_grant_end_lease(DLockWork *work, DLockSpaceEntry *entry,
								  DLockSpaceLease *lease);
extern void dlock_grant_stop_lease(DLockWork *work, DLockSpaceEntry *entry,
								   DLockSpaceLease *lease, DLockTime delay);

/* looking, under partition locks in either mode */
extern DLockTime dlock_grant_blocks_until(const DLockSpaceLease *lease);
extern bool dlock_grant_is_blocked(DLockSpaceEntry *entry, DLockMode mode,
								   uint32 permits, const DLockSpaceLease *own,
								   const DLockSpaceLease *before,
								   DLockTime now, DLockTime *until);
extern DLockSpaceLease *dlock_grant_find_owner(DLockSpaceEntry *entry,
											   const DLockBytes *owner, DLockTime now);
extern void dlock_grant_path_set(Oid database, const DLockBytes *path,
								 DLockSpaceSet *set);
extern int	dlock_grant_parts(DLockSpaceEntry *entry, DLockSpaceLease *lease,
							  DLockGrantPart *parts);

/* without locks */
extern void dlock_grant_serve(DLockWork *work, uint32 hash);

#endif							/* DLOCK_GRANT_H */
