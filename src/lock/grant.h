/*-------------------------------------------------------------------------
 *
 * grant.h
 *	  What changes who holds a lock: grants, ends, and hand-offs.
 *
 * IDENTIFICATION
 *	  src/lock/grant.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_GRANT_H
#define DLOCK_GRANT_H

#include "base/types.h"
#include "lock/work.h"
#include "space/space.h"

/* steps, under partition locks */
extern bool dlock_grant_tidy(DLockWork *work, DLockSpaceEntry *entry);
extern XLogRecPtr dlock_grant_write(DLockWork *work, DLockSlot slot,
									const DLockLeaseValue *lease);
extern void dlock_grant_log_state(DLockWork *work, DLockSpaceLease *lease,
								  const DLockTerm *term);
extern void dlock_grant_rewrite(DLockWork *work, DLockSpaceEntry *entry,
								DLockSpaceLease *lease);
extern bool dlock_grant_write_back(DLockWork *work, DLockSpaceEntry *entry,
								   DLockSpaceLease *lease);
extern DLockSpaceLease *dlock_grant_replace(DLockWork *work, DLockSpaceEntry *entry,
											DLockSpaceLease *lease,
											const DLockBytes *payload, DLockSlot slot);
extern bool dlock_grant_end_lease(DLockWork *work, DLockSpaceEntry *entry,
								  DLockSpaceLease *lease);
extern void dlock_grant_stop_lease(DLockWork *work, DLockSpaceEntry *entry,
								   DLockSpaceLease *lease, DLockTime delay);

/* without locks */
extern void dlock_grant_fetch(DLockWork *work);
extern void dlock_grant_end_path(DLockWork *work, const DLockBytes *path, DLockToken token);

#endif							/* DLOCK_GRANT_H */
