/*-------------------------------------------------------------------------
 *
 * store.h
 *	  The durable home of the leases: slots on pages of a relation.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_STORE_H
#define DLOCK_STORE_H

#include "access/xlogdefs.h"
#include "storage/buf.h"

#include "base/compat.h"
#include "base/types.h"
#include "store/page.h"

/* False: erase the lease.  "lsn" is the end of the last record of its page. */
typedef bool (*DLockStoreLeaseVisitor) (const DLockLeaseValue *lease, DLockSlot slot,
										XLogRecPtr lsn, void *arg);

typedef void (*DLockStorePageVisitor) (BlockNumber block, int slot_class,
									   uint64 taken, void *arg);

/* A function of store/page.h that changes a slot. */
typedef DLockPageRange (*DLockStoreChange) (Page page, int number, const DLockLeaseValue *lease);

/* the store as a whole */
extern const TableAmRoutine *dlock_store_routine(void);
extern bool dlock_store_read_meta(Relation rel, DLockPageHeadDisk *meta);
extern void dlock_store_visit(Relation rel, uint64 incarnation,
							  DLockStoreLeaseVisitor visit_lease,
							  DLockStorePageVisitor visit_page, void *arg);
extern void dlock_store_init_page(Relation rel, BlockNumber block, uint64 incarnation,
								  int slot_class, Oid database);

/* tokens */
extern DLockToken dlock_store_lock_sequence(Relation sequence, Buffer *buffer);
extern XLogRecPtr dlock_store_set_sequence(Relation sequence, Buffer buffer, DLockToken value);

/* slots */
extern Buffer dlock_store_pin_cached(const RelFileLocator *locator, DLockSlot slot);
extern Buffer dlock_store_pin(const RelFileLocator *locator, DLockSlot slot,
							  uint64 incarnation);
extern XLogRecPtr dlock_store_change(Buffer buffer, DLockSlot slot, DLockStoreChange change,
									 const DLockLeaseValue *lease);

#endif							/* DLOCK_STORE_H */
