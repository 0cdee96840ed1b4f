/*-------------------------------------------------------------------------
 *
 * space.h
 *	  The lock space: the live truth about all leases, in shared memory.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SPACE_H
#define DLOCK_SPACE_H

#include "space/holder.h"
#include "space/lease.h"
#include "space/partition.h"

/* What is done with a lease or a request on a lock. */
typedef void (*DLockSpaceVisitor) (DLockSpaceEntry *entry, DLockSpaceLease *lease, void *arg);

/* set-up */
extern void dlock_space_request(void);
extern void dlock_space_startup(void);

/* memory */
extern bool dlock_space_prepare(int name_len, int data_len, int count);

/* look-ups */
extern DLockSpaceEntry *dlock_space_find(Oid database, uint32 hash,
										 const DLockBytes *name);
extern DLockSpaceLease *dlock_space_find_token(Oid database, uint32 hash, DLockToken token);
extern DLockSpaceLease *dlock_space_find_target(Oid database, const DLockHolderTarget *target,
												const List *strangers);
extern DLockSpaceEntry *dlock_space_bucket(uint32 hash);
extern DLockSpaceLease *dlock_space_behind(DLockSpaceEntry *entry, DLockSpaceKind kind);
extern uint32 dlock_space_requests_of(const DLockSpaceEntry *entry, const DLockOwner *owner);

/* changes */
extern DLockSpaceLease *dlock_space_hold(Oid database, uint32 hash,
										 const DLockLeaseValue *value,
										 DLockSlot slot, int process, XLogRecPtr lsn,
										 DLockSpaceLease *request, DLockSpaceLease *path);
extern DLockSpaceLease *dlock_space_enqueue(Oid database, uint32 hash,
											const DLockLeaseValue *value,
											DLockSpaceKind kind, DLockMemoryRef *place);
extern void dlock_space_requeue(DLockSpaceEntry *entry, DLockSpaceLease *lease);
extern void dlock_space_succeed(DLockSpaceLease *lease, DLockToken token);
extern bool dlock_space_remove(DLockSpaceEntry *entry, DLockSpaceLease *lease);

extern void dlock_space_set_mode(DLockSpaceLease *lease, DLockMode mode);
extern void dlock_space_set_term(DLockSpaceLease *lease, const DLockTerm *term);
extern void dlock_space_stop(DLockSpaceLease *lease, DLockTime delay, DLockTime now);

/* all of a database */
extern void dlock_space_visit(Oid database, DLockSpaceVisitor visitor, void *arg);
extern void dlock_space_visit_lock(Oid database, const DLockBytes *name, DLockSpaceVisitor visitor, void *arg);
extern void dlock_space_purge(Oid database);

#endif							/* DLOCK_SPACE_H */
