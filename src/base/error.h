/*-------------------------------------------------------------------------
 *
 * error.h
 *	  One function for each error that a user can meet.
 *
 * IDENTIFICATION
 *	  src/base/error.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ERROR_H
#define DLOCK_ERROR_H

#include "base/compat.h"
#include "base/types.h"

/* what fencing refuses, and a lease that is lost */
#define ERRCODE_DLOCK_STALE_TOKEN	MAKE_SQLSTATE('L', 'K', '0', '0', '1')
#define ERRCODE_DLOCK_LEASE_LOST	MAKE_SQLSTATE('L', 'K', '0', '0', '2')
#define ERRCODE_DLOCK_NO_TOKEN		MAKE_SQLSTATE('L', 'K', '0', '0', '3')

/* the state of the server */
pg_noreturn extern void dlock_error_not_preloaded(void);
pg_noreturn extern void dlock_error_no_extension(void);
pg_noreturn extern void dlock_error_standby(const char *function);
pg_noreturn extern void dlock_error_store_full(void);
pg_noreturn extern void dlock_error_space_full(void);
pg_noreturn extern void dlock_error_role_limit(Oid role, int limit, uint32 count);
pg_noreturn extern void dlock_error_many_limits(int limit);
pg_noreturn extern void dlock_error_many_databases(int limit);
extern void dlock_error_warn_memory(int percent, uint64 used, uint64 limit);
pg_noreturn extern void dlock_error_no_memory(void);
pg_noreturn extern void dlock_error_tokens_exhausted(void);
pg_noreturn extern void dlock_error_token_clock(void);
pg_noreturn extern void dlock_error_store_operation(const char *relation, const char *operation);

/* the caller's arguments */
pg_noreturn extern void dlock_error_null(const char *what);
pg_noreturn extern void dlock_error_empty(const char *what);
pg_noreturn extern void dlock_error_too_long(const char *what, int len, int limit);
pg_noreturn extern void dlock_error_number(const char *what, long long value, const char *problem, const char *hint);
pg_noreturn extern void dlock_error_interval(const char *what, const char *problem, const char *hint);
pg_noreturn extern void dlock_error_token(DLockToken token);
pg_noreturn extern void dlock_error_no_group(const DLockBytes *group);
pg_noreturn extern void dlock_error_group_exists(const DLockBytes *group);
pg_noreturn extern void dlock_error_group_role(const DLockBytes *group, Oid role);
pg_noreturn extern void dlock_error_partitions(const char *problem, const char *detail);

/* the state of the lock */
pg_noreturn extern void dlock_error_other_permits(const DLockBytes *name, uint32 used, uint32 asked);
pg_noreturn extern void dlock_error_weaker(const DLockBytes *name, const DLockBytes *owner);
pg_noreturn extern void dlock_error_too_many_holders(const DLockBytes *name, int limit);
pg_noreturn extern void dlock_error_too_many_holds(const DLockBytes *name);
pg_noreturn extern void dlock_error_not_convertible(const DLockBytes *name, const char *detail);
pg_noreturn extern void dlock_error_lease_lost(const DLockBytes *name, DLockToken token);
pg_noreturn extern void dlock_error_deadlock(const char *circle);
pg_noreturn extern void dlock_error_self_deadlock(const DLockBytes *owner, const char *mode, const DLockBytes *name);
pg_noreturn extern void dlock_error_lock_timeout(void);

/* fencing */

/* the caller's rights */
pg_noreturn extern void dlock_error_not_owner(const DLockBytes *name, Oid role);

/* warnings */

/* log lines */
extern void dlock_error_log_waiting(const DLockBytes *name, const char *mode, DLockTime waited, const char *blockers);
extern void dlock_error_log_acquired(const DLockBytes *name, const char *mode, DLockTime waited);


#endif							/* DLOCK_ERROR_H */
