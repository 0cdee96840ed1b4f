/*-------------------------------------------------------------------------
 *
 * owned.h
 *	  Tables of what belongs to a role: groups and task queues.
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
#include "utils/relcache.h"

#include "base/types.h"

/* The first columns of each of these tables. */
#define DLOCK_OWNED_NAME	1	/* the primary key */
#define DLOCK_OWNED_ROLE	2

extern Relation dlock_owned_open(Oid schema, const char *table, LOCKMODE lockmode);
extern HeapTuple dlock_owned_find(Relation rel, const DLockBytes *name);
extern HeapTuple dlock_owned_find_usable(Relation rel, const DLockBytes *name, Oid user,
										 const char *what);
extern Oid	dlock_owned_role(Relation rel, HeapTuple tuple);
extern bool dlock_owned_lock(Relation rel, uint32 number, LOCKMODE lockmode);

#endif							/* DLOCK_OWNED_H */
