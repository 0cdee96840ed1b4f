/*-------------------------------------------------------------------------
 *
 * fence.h
 *	  Enforce tokens: the resources that this transaction may write to.
 *
 * IDENTIFICATION
 *	  src/fence/fence.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_FENCE_H
#define DLOCK_FENCE_H

#include "base/types.h"

/*
 * Changes with the passes of this transaction.  While it stays the same, a pass need
 * not be searched for again.
 */
extern uint64 dlock_fence_generation;

extern void dlock_fence_check_right(const DLockBytes *resource, bool is_prefix);
extern void dlock_fence_check_known(const DLockBytes *resource, const char *table, DLockToken token);
extern void dlock_fence_pass(const DLockBytes *resource, DLockToken token, bool as_live);
extern DLockToken dlock_fence_pass_presented(const DLockBytes *resource, DLockToken token, bool as_live);
extern void dlock_fence_note_row(DLockToken token);
extern DLockToken dlock_fence_presented(bool *ambiguous);
extern DLockToken dlock_fence_reset(const DLockBytes *resource, DLockToken token);

#endif							/* DLOCK_FENCE_H */
