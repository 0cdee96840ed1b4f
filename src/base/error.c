/*-------------------------------------------------------------------------
 *
 * error.c
 *	  One function for each error that a user can meet.
 *
 * NOTES
 *	  Nothing in here may be called while a partition lock or a spinlock is
 *	  held.
 *
 * IDENTIFICATION
 *	  src/base/error.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/guc.h"

#include "base/error.h"

void
dlock_error_not_preloaded(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("dlock is not preloaded"),
			 errdetail("Leases live in shared memory, which is laid out when the server starts."),
			 errhint("Add \"shared_preload_libraries = 'dlock'\" to postgresql.conf and restart the server.")));
}

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
dlock_error_store_full(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("lease store has reached its largest size"),
			 errhint("Release leases that are no longer needed.")));
}

#define SPACE_HINT	"Limit roles by \"dlock.max_leases\", or increase \"dlock.max_memory\"."

void
dlock_error_space_full(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("lock space is full"),
			 errdetail("The leases of all databases together have used up \"dlock.max_memory\"."),
			 errhint(SPACE_HINT)));
}

void
dlock_error_role_limit(Oid role, int limit, uint32 count)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("too many leases for role \"%s\"", GetUserNameFromId(role, false)),
			 errdetail("The role holds %u leases in this database, waiting requests included, and \"dlock.max_leases\" is %d.",
					   count, limit),
			 errhint("Release leases, or have a superuser raise \"dlock.max_leases\" for the role.")));
}

void
dlock_error_many_limits(int limit)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("too many roles with limited leases"),
			 errdetail("A server can count the leases of %d roles, each in one database, from its start on.", limit),
			 errhint("Set \"dlock.max_leases\" for fewer roles, and restart the server.")));
}

void
dlock_error_many_databases(int limit)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("leases are used in too many databases"),
			 errdetail("A server has room for %d databases that use leases.", limit),
			 errhint("Drop the extension dlock where it is not needed, and restart the server.")));
}

/*
 * Memory for leases runs short.  Goes to the log alone: it concerns the
 * operator, and not the role whose call happens to find that out.
 */
void
dlock_error_warn_memory(int percent, uint64 used, uint64 limit)
{
	int			before = client_min_messages;

	client_min_messages = ERROR;
	PG_TRY();
	{
		ereport(WARNING,
				(errmsg("lock space is more than %d%% full", percent),
				 errdetail("The leases of all databases together use " UINT64_FORMAT " of " UINT64_FORMAT " bytes.",
						   used, limit),
				 errhint(SPACE_HINT)));
	}
	PG_FINALLY();
	{
		client_min_messages = before;
	}
	PG_END_TRY();
}

void
dlock_error_no_memory(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OUT_OF_MEMORY),
			 errmsg("out of memory")));
}

void
dlock_error_tokens_exhausted(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
			 errmsg("fencing tokens are exhausted"),
			 errdetail("The sequence \"dlock_token_seq\" is near 2^53, the end of the tokens."),
			 errhint("Set the sequence back to the value it had before it was set so high by hand.")));
}

void
dlock_error_token_clock(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
			 errmsg("no fencing tokens are left at the time that this server's clock shows"),
			 errdetail("Tokens are taken from the clock, and end in the year 2094."),
			 errhint("Set the clock of the server right, and try again.")));
}

void
dlock_error_store_operation(const char *relation, const char *operation)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot %s table \"%s\"", operation, relation),
			 errdetail("It is the store of the leases, which only the functions of dlock change."),
			 errhint("To end a lease, use dlock_force_release().")));
}

void
dlock_error_null(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("%s must not be null", what)));
}

void
dlock_error_empty(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%s must not be empty", what)));
}

void
dlock_error_too_long(const char *what, int len, int limit)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%s is too long", what),
			 errdetail("It has %d bytes; the limit is %d.", len, limit)));
}

void
dlock_error_number(const char *what, long long value, const char *problem, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%s must %s", what, problem),
			 errdetail("The number given is %lld.", value),
			 errhint("%s", hint)));
}

void
dlock_error_interval(const char *what, const char *problem, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%s must %s", what, problem),
			 errhint("%s", hint)));
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

void
dlock_error_partitions(const char *problem, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("partition names must %s", problem),
			 errdetail("%s", detail),
			 errhint("Pass a one-dimensional array of 1 to 10000 different names.")));
}

void
dlock_error_no_group(const DLockBytes *group)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("group \"%.*s\" does not exist", group->len, group->data),
			 errdetail("There is no such row in the table dlock_groups."),
			 errhint("Create it with dlock_group_create().")));
}

void
dlock_error_group_exists(const DLockBytes *group)
{
	ereport(ERROR,
			(errcode(ERRCODE_DUPLICATE_OBJECT),
			 errmsg("group \"%.*s\" already exists", group->len, group->data),
			 errdetail("There is a row of this name in the table dlock_groups."),
			 errhint("To give it other partitions, use dlock_group_alter().")));
}

void
dlock_error_group_role(const DLockBytes *group, Oid role)
{
	char	   *rolename = GetUserNameFromId(role, true);

	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for group \"%.*s\"", group->len, group->data),
			 rolename != NULL ? errdetail("It was created by role \"%s\".", rolename) :
			 errdetail("The role that created it no longer exists."),
			 errhint("Only that role, its members and superusers can use it.")));
}

/* The lock is in use as a semaphore of another size, or by modes; or asked so. */
void
dlock_error_other_permits(const DLockBytes *name, uint32 used, uint32 asked)
{
	if (used == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("lock \"%.*s\" is used without permits, not with %u", name->len, name->data, asked),
				 errdetail("Leases on it, or requests that wait for it, have modes."),
				 errhint("Use another name for the semaphore.")));
	if (asked == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg_plural("lock \"%.*s\" has %u permit, and is not used by modes",
							   "lock \"%.*s\" has %u permits, and is not used by modes",
							   used, name->len, name->data, used),
				 errdetail("It is in use as a semaphore."),
				 errhint("Ask for it with permits => %u, or use another name.", used)));
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg_plural("lock \"%.*s\" has %u permit, not %u",
						   "lock \"%.*s\" has %u permits, not %u",
						   used, name->len, name->data, used, asked),
			 errdetail("The number is set by the first who asks, and kept as long as anybody holds the lock or waits for it."),
			 errhint("Ask for it with permits => %u, or wait until it is free.", used)));
}

void
dlock_error_weaker(const DLockBytes *name, const DLockBytes *owner)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("owner \"%.*s\" holds lock \"%.*s\" in a weaker way than is asked for",
					owner->len, owner->data, name->len, name->data),
			 errdetail("A lease that is entered again stays as it is."),
			 errhint("Use dlock_convert() to change its mode; to hold it as a path, release it first.")));
}

void
dlock_error_too_many_holds(const DLockBytes *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("lock \"%.*s\" has been acquired too often by its owner", name->len, name->data)));
}

void
dlock_error_too_many_holders(const DLockBytes *name, int limit)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("lock \"%.*s\" has too many holders", name->len, name->data),
			 errdetail("A lock may have %d holders.", limit),
			 errhint("Spread the holders over several locks.")));
}

void
dlock_error_not_convertible(const DLockBytes *name, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("lease on lock \"%.*s\" cannot be converted", name->len, name->data),
			 errdetail("%s", detail),
			 errhint("Release it and acquire it in the other mode.")));
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
			 errhint("Stop the work that it was to protect, and acquire the lock anew.")));
}

void
dlock_error_deadlock(const char *circle)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected"),
			 errdetail("%s", circle),
			 errhint("Acquire locks in the same order everywhere, or all at once with dlock_acquire_all().")));
}

void
dlock_error_self_deadlock(const DLockBytes *owner, const char *mode, const DLockBytes *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected"),
			 errdetail("Owner \"%.*s\" waits for %s on lock \"%.*s\" behind owner \"%.*s\".",
					   owner->len, owner->data, mode,
					   name->len, name->data, owner->len, owner->data),
			 errhint("Use another owner, or reentry => 'count' or 'return' to enter the lease that it holds.")));
}

/* As the server has it for its own locks. */
void
dlock_error_lock_timeout(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("canceling statement due to lock timeout")));
}

#define STOPPED_HINT "Look for a server process that is stopped (state T in ps); SIGCONT makes it go on."

/* As log_lock_waits has it for the server's own locks. */
void
dlock_error_log_waiting(const DLockBytes *name, const char *mode, DLockTime waited,
						const char *blockers)
{
	ereport(LOG,
			(errmsg("session still waiting for %s on lock \"%.*s\" after %lld.%03d ms",
					mode, name->len, name->data,
					(long long) (waited / 1000), (int) (waited % 1000)),
			 errdetail_log("In the way: %s.", blockers)));
}

void
dlock_error_log_acquired(const DLockBytes *name, const char *mode, DLockTime waited)
{
	ereport(LOG,
			(errmsg("session acquired %s on lock \"%.*s\" after %lld.%03d ms",
					mode, name->len, name->data,
					(long long) (waited / 1000), (int) (waited % 1000))));
}

void
dlock_error_not_owner(const DLockBytes *name, Oid role)
{
	char	   *rolename = GetUserNameFromId(role, true);

	if (rolename == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for the lease on lock \"%.*s\"", name->len, name->data),
				 errdetail("The role that acquired it no longer exists."),
				 errhint("A superuser can release it.")));
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for the lease on lock \"%.*s\"", name->len, name->data),
			 errdetail("It was acquired by role \"%s\".", rolename),
			 errhint("Only that role and its members can renew or release it; dlock_force_release() needs a grant of its own.")));
}
