/*-------------------------------------------------------------------------
 *
 * error.h
 *	  The errors that more than one SQL function throws.
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
pg_noreturn extern void dlock_error_no_extension(void);
pg_noreturn extern void dlock_error_standby(const char *function);
pg_noreturn extern void dlock_error_space_full(void);

/* the caller's arguments */
pg_noreturn extern void dlock_error_null(const char *what);
pg_noreturn extern void dlock_error_token(DLockToken token);

/* the state of the lock */
pg_noreturn extern void dlock_error_lease_lost(const DLockBytes *name, DLockToken token);
pg_noreturn extern void dlock_error_crowded(const DLockBytes *name);

/* the caller's rights */
pg_noreturn extern void dlock_error_not_owner(const DLockBytes *name, Oid role);

#endif							/* DLOCK_ERROR_H */
