/*-------------------------------------------------------------------------
 *
 * groupdef.h
 *	  What groups there are: whose they are, and their partitions.
 *
 * IDENTIFICATION
 *	  src/pattern/groupdef.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_GROUPDEF_H
#define DLOCK_GROUPDEF_H

#include "utils/array.h"

#include "pattern/group.h"

extern ArrayType *dlock_groupdef_number_names(int count);
extern void dlock_groupdef_create(const DLockBytes *name, ArrayType *partitions);
extern void dlock_groupdef_alter(const DLockBytes *name, ArrayType *partitions);
extern bool dlock_groupdef_drop(const DLockBytes *name);
extern bool dlock_groupdef_find(DLockGroup *group);
extern void dlock_groupdef_use(DLockGroup *group, const char *function);

#endif							/* DLOCK_GROUPDEF_H */
