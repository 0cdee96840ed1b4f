/*-------------------------------------------------------------------------
 *
 * bind.h
 *	  Leases that end with this session or its transaction.
 *
 * IDENTIFICATION
 *	  src/session/bind.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_BIND_H
#define DLOCK_BIND_H

#include "base/types.h"

extern void dlock_bind_prepare(int more);
extern void dlock_bind_add(uint32 hash, DLockToken token, DLockBind bind);
extern void dlock_bind_convert(uint32 hash, DLockToken from, DLockToken to);
extern void dlock_bind_discard(void);

#endif							/* DLOCK_BIND_H */
