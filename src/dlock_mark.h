/*-------------------------------------------------------------------------
 *
 * dlock_mark.h
 *	  The highest token that each fenced resource has seen.
 *
 * IDENTIFICATION
 *	  src/dlock_mark.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_MARK_H
#define DLOCK_MARK_H

#include "dlock_types.h"

extern DLockToken dlock_mark_read(const DLockBytes *resource);
extern void dlock_mark_write(const DLockBytes *resource, DLockToken token);
extern void dlock_mark_remove(const DLockBytes *resource);

#endif							/* DLOCK_MARK_H */
