/*-------------------------------------------------------------------------
 *
 * error.c
 *	  The errors that more than one SQL function throws.
 *
 * NOTES
 *	  Nothing in here may be called while a partition lock or a spinlock is
 *	  held.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/error.h"

void
dlock_error_no_extension(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("extension \"dlock\" is not installed in this database"),
			 errhint("Run \"CREATE EXTENSION dlock\".")));
}

void
dlock_error_standby(const char *function)
{
	ereport(ERROR,
			(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
			 errmsg("cannot execute %s() during recovery", function),
			 errdetail("Only the primary server grants leases."),
			 errhint("Connect to the primary server.")));
}

void
dlock_error_space_full(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("lease memory is full"),
			 errdetail("The leases of all databases together have used up \"dlock.max_memory\"."),
			 errhint("Limit roles by \"dlock.max_leases\", or increase \"dlock.max_memory\".")));
}

/* "what" is the subject, such as "lock name". */
void
dlock_error_null(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("%s must not be null", what)));
}

void
dlock_error_token(DLockToken token)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("fencing token must be greater than zero"),
			 errdetail("The token given is %lld.", (long long) token),
			 errhint("Pass the token that dlock_acquire() returned.")));
}

/* LK002: what a holder relies on is no longer so. */
void
dlock_error_lease_lost(const DLockBytes *name, DLockToken token)
{
	ereport(ERROR,
			(errcode(ERRCODE_DLOCK_LEASE_LOST),
			 errmsg("lease on lock \"%.*s\" with token %lld is not held", name->len, name->data,
					(long long) token),
			 errdetail("It has expired, has been released, or was never granted."),
			 errhint("Stop the work under this lease, and acquire the lock again.")));
}

void
dlock_error_crowded(const DLockBytes *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("lock \"%.*s\" has too many holders", name->len, name->data),
			 errdetail("A lock may have %d holders.", DLOCK_HOLDERS_MAX),
			 errhint("Spread the holders over several locks.")));
}

void
dlock_error_not_owner(const DLockBytes *name, Oid role)
{
	char	   *rolename = GetUserNameFromId(role, true);

	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for the lease on lock \"%.*s\"", name->len, name->data),
			 (rolename == NULL) ? errdetail("The role that acquired it no longer exists.") :
			 errdetail("It was acquired by role \"%s\".", rolename),
			 (rolename == NULL) ? errhint("A superuser can release it.") :
			 errhint("Only that role and its members can renew or release it; dlock_force_release() needs a grant of its own.")));
}
