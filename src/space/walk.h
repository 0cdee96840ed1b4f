/*-------------------------------------------------------------------------
 *
 * walk.h
 *	  Walks over the leases and requests of a database, or of all.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_WALK_H
#define DLOCK_WALK_H

#include "space/space.h"

typedef void (*DLockWalkVisitor) (DLockSpaceEntry *entry, DLockSpaceLease *lease, void *arg);

extern void dlock_walk_leases(Oid database, DLockWalkVisitor visitor, void *arg);
extern void dlock_walk_queues(Oid database, DLockWalkVisitor visitor, void *arg);
extern void dlock_walk_lock(Oid database, const DLockBytes *name, DLockWalkVisitor visitor, void *arg);
extern void dlock_walk_purge(Oid database);

#endif							/* DLOCK_WALK_H */
