/*-------------------------------------------------------------------------
 *
 * index.h
 *	  Leases found by their owner, and by their token.
 *
 * IDENTIFICATION
 *	  src/space/index.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_INDEX_H
#define DLOCK_INDEX_H

#include "space/lease.h"

/* So many leases on a lock are looked through before an index is asked. */
#define DLOCK_INDEX_FEW		8

/* A lease as something to come back to: enough to find it again, if it lives. */
typedef struct DLockSpaceRef
{
	uint32		hash;
	Oid			role;
	DLockToken	token;
	DLockTime	deadline;
} DLockSpaceRef;

/* set-up */
extern Size dlock_index_size(uint32 bits);
extern void dlock_index_request(void);
extern void dlock_index_startup(DLockMemoryRef *place, uint32 bits);

/* a lease that comes, changes or goes */
extern void dlock_index_add(DLockSpaceLease *lease);
extern void dlock_index_change(DLockSpaceLease *lease, Oid role, DLockToken token);
extern void dlock_index_remove(DLockSpaceLease *lease);

/* look-ups */
extern DLockSpaceLease *dlock_index_find_part(const DLockSpaceEntry *entry, DLockToken token);
extern DLockSpaceLease *dlock_index_find_owned(DLockSpaceEntry *entry, const DLockOwner *owner,
											   DLockTime now);
extern DLockSpaceRef *dlock_index_owned(Oid database, const DLockBytes *owner_name,
										int *count);
extern bool dlock_index_owner_is_live(Oid database, const DLockOwner *owner, DLockTime now);

#endif							/* DLOCK_INDEX_H */
