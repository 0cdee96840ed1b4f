/*-------------------------------------------------------------------------
 *
 * owned.h
 *	  What belongs to a role: the definitions of groups, and task queues.
 *
 * IDENTIFICATION
 *	  src/pattern/owned.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_OWNED_H
#define DLOCK_OWNED_H

#include "access/htup.h"
#include "storage/lockdefs.h"
#include "utils/array.h"
#include "utils/relcache.h"

#include "pattern/group.h"

/* What a row is. */
typedef enum DLockOwnedKind
{
	DLOCK_OWNED_GROUP,
	DLOCK_OWNED_QUEUE
} DLockOwnedKind;

/* rows */
extern Relation dlock_owned_open(Oid schema, const char *table, LOCKMODE lockmode);
extern HeapTuple dlock_owned_find_usable(Relation rel, DLockOwnedKind kind,
										 const DLockBytes *name, Oid user);
extern bool dlock_owned_lock(Relation rel, uint32 number, LOCKMODE lockmode);

/* groups */
extern void dlock_owned_create_group(const DLockBytes *name, ArrayType *partitions);
extern void dlock_owned_alter_group(const DLockBytes *name, ArrayType *partitions);
extern bool dlock_owned_drop_group(const DLockBytes *name);
extern bool dlock_owned_find_group(DLockGroup *group);
extern void dlock_owned_use_group(DLockGroup *group, const char *function);

#endif							/* DLOCK_OWNED_H */
