/*-------------------------------------------------------------------------
 *
 * fence.h
 *	  Enforce tokens: the resources that this transaction may write to.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_FENCE_H
#define DLOCK_FENCE_H

#include "base/compat.h"
#include "base/types.h"

extern DLockToken dlock_fence_take_above(DLockToken above);
extern void dlock_fence_check_known(const char *what, const char *name, DLockToken token);
pg_noreturn extern void dlock_fence_refuse(const char *what, const char *name,
										   DLockToken token, DLockToken mark);
extern DLockToken dlock_fence_pass(const DLockBytes *resource, DLockToken token,
								   bool as_live, bool anew);
extern void dlock_fence_note_row(DLockToken token);
extern DLockToken dlock_fence_presented(void);

#endif							/* DLOCK_FENCE_H */
