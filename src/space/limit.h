/*-------------------------------------------------------------------------
 *
 * limit.h
 *	  How many leases a role has in a database, where that is limited.
 *
 * IDENTIFICATION
 *	  src/space/limit.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LIMIT_H
#define DLOCK_LIMIT_H

#include "port/atomics.h"

#include "base/types.h"

/* Counters there are, each of one role in one database. */
#define DLOCK_LIMIT_COUNTERS	16383

/* The number of a counter; zero is none. */
typedef uint16 DLockLimitCounter;

/* set-up */
extern void dlock_limit_request(void);
extern void dlock_limit_startup(void);

/* without partition locks */
extern DLockLimitCounter dlock_limit_track(Oid database, Oid role);
extern bool dlock_limit_is_complete(DLockLimitCounter counter);
extern void dlock_limit_set_complete(DLockLimitCounter counter);

/* under a partition lock, or without */
extern bool dlock_limit_charge(DLockLimitCounter counter, uint32 leases, uint32 limit);
extern uint32 dlock_limit_count(DLockLimitCounter counter);
extern pg_atomic_uint64 *dlock_limit_look_at(DLockLimitCounter counter);

/* for a lease or request that comes or goes */
extern DLockLimitCounter dlock_limit_enter(Oid database, Oid role);
extern void dlock_limit_leave(DLockLimitCounter counter);

#endif							/* DLOCK_LIMIT_H */
