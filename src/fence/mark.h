/*-------------------------------------------------------------------------
 *
 * mark.h
 *	  The highest token that each fenced resource has seen.
 *
 * IDENTIFICATION
 *	  src/fence/mark.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_MARK_H
#define DLOCK_MARK_H

#include "storage/itemptr.h"
#include "storage/lock.h"

#include "base/types.h"

extern void dlock_mark_tag(LOCKTAG *tag, const DLockBytes *resource);
extern DLockToken dlock_mark_read(const DLockBytes *resource, ItemPointer tid);
extern void dlock_mark_write(const DLockBytes *resource, DLockToken token);

#endif							/* DLOCK_MARK_H */
