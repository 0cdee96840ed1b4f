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
			 errdetail("Leases are granted by the primary server only."),
			 errhint("Connect to the primary; the view dlock_leases can be read here.")));
}

void
dlock_error_read_only(const char *function)
{
	ereport(ERROR,
			(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
			 errmsg("cannot execute %s() in a read-only transaction", function),
			 errdetail("It changes leases or tasks, which are durable."),
			 errhint("Call it in a transaction that is READ WRITE.")));
}

void
dlock_error_unsettled(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("leases cannot be used in the transaction that creates or rewrites their store"),
			 errdetail("A rollback of this transaction would take the store away, while leases do not roll back."),
			 errhint("Commit the CREATE EXTENSION or ALTER TABLE first.")));
}

void
dlock_error_wrong_access_method(const char *relation)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s\" does not have the access method of the lease store", relation),
			 errdetail("Its access method has been changed, and the leases in it are gone."),
			 errhint("Drop and create the extension \"dlock\".")));
}

void
dlock_error_store_damaged(uint32 block, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("invalid page in block %u of the lease store", block),
			 errdetail("%s", detail),
			 errhint("Restore the relation from a backup, or drop and create the extension \"dlock\" once all holders have stopped.")));
}

void
dlock_error_store_version(int found, int supported)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("lease store has format version %d, but this library reads version %d", found, supported),
			 errhint("Install the version of dlock that wrote it, or a newer one that can read it.")));
}

void
dlock_error_store_full(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("lease store has reached its largest size"),
			 errhint("Release leases that are no longer needed.")));
}

void
dlock_error_no_random(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR),
			 errmsg("could not generate a random number for the lease store")));
}

#define SPACE_HINT \
	"Count the rows of dlock_leases by role, in each database, to see which roles use it; release leases, limit roles by \"dlock.max_leases\", or increase \"dlock.max_memory\" and restart the server."

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
dlock_error_many_marks(const char *role, int limit)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("too many fenced resources for role \"%s\"", role),
			 errdetail("The role raised the marks of %d resources of dlock_fences, and \"dlock.max_marks\" allows no more.",
					   limit),
			 errhint("Remove marks with dlock_fence_reset(), or have a superuser raise \"dlock.max_marks\" for the role.")));
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
			 errhint("Use dlock_force_release() to end a lease, and the view dlock_leases to look at them.")));
}

void
dlock_error_null(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("%s must not be null", what),
			 errdetail("The argument given is NULL."),
			 errhint("Pass a value for it.")));
}

/* The same of a token, which other functions return null instead of. */
void
dlock_error_null_token(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("fencing token must not be null"),
			 errdetail("The argument given is NULL."),
			 errhint("Look at what the call returned that should have given the token: NULL means that nothing was acquired.")));
}

void
dlock_error_empty(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%s must not be empty", what),
			 errdetail("The argument given is blank."),
			 errhint("Pass at least one character for it.")));
}

void
dlock_error_too_long(const char *what, int len, int limit)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%s is too long", what),
			 errdetail("It has %d bytes; the limit is %d.", len, limit),
			 errhint("Use a shorter one, or a digest of it.")));
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
dlock_error_ttl_over_limit(int limit_s)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("ttl is longer than \"dlock.max_ttl\""),
			 errdetail("The limit is %d seconds.", limit_s),
			 errhint("Ask for a shorter ttl and renew the lease while it is needed.")));
}

/* No ttl was passed, and the one that stands in for it is not allowed. */
void
dlock_error_default_ttl(int default_ms, int limit_s)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("\"dlock.default_ttl\" is longer than \"dlock.max_ttl\""),
			 errdetail("No ttl was passed, the default is %d.%03d seconds, and the limit is %d seconds.",
					   default_ms / 1000, default_ms % 1000, limit_s),
			 errhint("Pass a ttl, or set \"dlock.default_ttl\" to no more than the limit.")));
}

void
dlock_error_slots_over_limit(int limit_s)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("length of the time slots is longer than \"dlock.max_ttl\""),
			 errdetail("The limit is %d seconds.", limit_s),
			 errhint("Pass a shorter one, or have a superuser raise \"dlock.max_ttl\".")));
}

void
dlock_error_token(DLockToken token)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("fencing token must be greater than zero"),
			 errdetail("The token given is %lld.", (long long) token),
			 errhint("Pass the token that dlock_acquire() returned; NULL means that it acquired nothing.")));
}

void
dlock_error_word(const char *parameter, const char *word, const char *known)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid value for parameter \"%s\": \"%s\"", parameter, word),
			 errhint("Valid values are %s.", known)));
}

void
dlock_error_permits(int permits)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("permits must be greater than zero"),
			 errdetail("The number given is %d.", permits),
			 errhint("Pass how many may hold the lock at a time.")));
}

void
dlock_error_permits_and_mode(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("parameters \"mode\" and \"permits\" cannot be used together"),
			 errdetail("A lock is either held in modes or by a number of permits."),
			 errhint("Leave one of them out.")));
}

/* The array of names is not as it has to be. */
void
dlock_error_names(const char *problem, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("lock names must %s", problem),
			 errdetail("%s", detail),
			 errhint("Pass a one-dimensional array of 1 to %d different names.", DLOCK_NAMES_MAX)));
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
dlock_error_reserved_name(const char *what, const DLockBytes *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_RESERVED_NAME),
			 errmsg("%s \"%.*s\" is reserved", what, name->len, name->data),
			 errdetail("Names that begin with \"%s\" are those of time slots and groups.",
					   DLOCK_NAME_RESERVED),
			 errhint("Use another name, or dlock_once() and the functions of groups.")));
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

void
dlock_error_group_full(const DLockBytes *group, int limit)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("group \"%.*s\" has too many members", group->len, group->data),
			 errdetail("The limit is %d.", limit),
			 errhint("Let members leave, or wait until memberships of dead ones expire.")));
}

void
dlock_error_count_or_names(bool both)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("either count or names of the partitions must be given"),
			 both ? errdetail("Both are given.") : errdetail("Neither is given."),
			 errhint("Partitions that are counted are named 0, 1, 2 and so on.")));
}

void
dlock_error_group_name(const DLockBytes *group)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("group name must not have slashes"),
			 errdetail("The name given is \"%.*s\".", group->len, group->data),
			 errhint("Use another character.")));
}

void
dlock_error_weight(int weight, int limit)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("weight must be from 1 to %d", limit),
			 errdetail("The weight given is %d.", weight),
			 errhint("A member is given partitions in proportion to its weight.")));
}

void
dlock_error_path(const char *problem, const DLockBytes *path)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("path must %s", problem),
			 errdetail("The path given is \"%.*s\".", path->len, path->data),
			 errhint("Write a path as \"a/b/c\", with up to %d parts.", DLOCK_PATH_MAX_PARTS)));
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
			(errcode(MAKE_SQLSTATE('L', 'K', '0', '0', '2')),
			 errmsg("lease on lock \"%.*s\" with token %lld is not held", name->len, name->data,
					(long long) token),
			 errdetail("It has expired, has been released, or was never granted."),
			 errhint("Stop the work that it was to protect, and acquire the lock anew.")));
}

/* LK001: somebody with a higher token has taken over. */
void
dlock_error_stale(const DLockBytes *resource, DLockToken token, DLockToken mark)
{
	ereport(ERROR,
			(errcode(MAKE_SQLSTATE('L', 'K', '0', '0', '1')),
			 errmsg("fencing token %lld for resource \"%.*s\" is stale", (long long) token,
					resource->len, resource->data),
			 errdetail("It has been fenced with token %lld since.", (long long) mark),
			 errhint("Stop the work: the lease that the token came with has ended. Acquire the lock anew. If new tokens are refused, too, the mark has been raised by mistake: see dlock_fence_reset().")));
}

/* LK001 for a row that is its own mark. */
void
dlock_error_stale_row(const char *table, const char *column, DLockToken token, DLockToken mark)
{
	ereport(ERROR,
			(errcode(MAKE_SQLSTATE('L', 'K', '0', '0', '1')),
			 errmsg("fencing token %lld is stale for a row of table \"%s\"", (long long) token, table),
			 errdetail("Column \"%s\" of the row holds %lld.", column, (long long) mark),
			 errhint("Stop the work: the lease that the token came with has ended. Acquire the lock anew.")));
}

/* It would shut all real ones out. */
void
dlock_error_unknown_token(const DLockBytes *resource, DLockToken token, DLockToken last)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("fencing token %lld for resource \"%.*s\" has never been handed out", (long long) token,
					resource->len, resource->data),
			 errdetail("The tokens of this database have come to %lld.", (long long) last),
			 errhint("Present the token of a lease of this database. If the lock is in another database, declare that with dlock_fence_declare(resource, is_foreign => true).")));
}

/* The same for a row that is its own mark. */
void
dlock_error_unknown_row_token(const char *table, DLockToken token, DLockToken last)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("fencing token %lld for a row of table \"%s\" has never been handed out", (long long) token, table),
			 errdetail("The tokens of this database have come to %lld.", (long long) last),
			 errhint("Present the token of a lease of this database. If the locks are in another database, create the guard with 'tokens=foreign'.")));
}

/* LK003: the table is guarded, and there is no token for the resource. */
void
dlock_error_no_token(const char *table, const DLockBytes *resource)
{
	ereport(ERROR,
			(errcode(MAKE_SQLSTATE('L', 'K', '0', '0', '3')),
			 errmsg("no fencing token presented for resource \"%.*s\"", resource->len, resource->data),
			 errdetail("Table \"%s\" takes writes only from the holder of a lease.", table),
			 errhint("Acquire the lock, and call dlock_fence() with its token in this transaction, name both in \"dlock.tokens\", or set the column that the guard takes tokens from, if it has one.")));
}

/* LK003 for a row that is its own mark, or starts as one. */
void
dlock_error_no_row_token(const char *table, const char *column, bool ambiguous)
{
	if (ambiguous)
		ereport(ERROR,
				(errcode(MAKE_SQLSTATE('L', 'K', '0', '0', '3')),
				 errmsg("more than one fencing token is presented for a row of table \"%s\"", table),
				 errdetail("The row is fenced by its column \"%s\", which names no resource.", column),
				 errhint("Set the column to the token, or name it for \"*\" in \"dlock.tokens\".")));
	ereport(ERROR,
			(errcode(MAKE_SQLSTATE('L', 'K', '0', '0', '3')),
			 errmsg("no fencing token presented for a row of table \"%s\"", table),
			 errdetail("The row is fenced by its column \"%s\".", column),
			 errhint("Set the column to the token of the lease in the same statement, or, for a DELETE, name it for \"*\" in \"dlock.tokens\".")));
}

/* LK003 in a MERGE that may leave the column as it is. */
void
dlock_error_no_merge_token(const char *table, const char *column)
{
	ereport(ERROR,
			(errcode(MAKE_SQLSTATE('L', 'K', '0', '0', '3')),
			 errmsg("no fencing token presented for a row of table \"%s\"", table),
			 errdetail("Some UPDATE actions of this MERGE set column \"%s\" and some do not, so the token that a row already holds presents nothing.", column),
			 errhint("Set the column in all UPDATE actions, or present the token by dlock_fence() or \"dlock.tokens\".")));
}

/* The row does not tell what it belongs to. */
void
dlock_error_no_resource(const char *table, const char *column)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("column \"%s\" of a row of table \"%s\" must not be null", column, table),
			 errdetail("It names the resource that the row is guarded by."),
			 errhint("Declare the column NOT NULL.")));
}

/* The hint of an error that has ended a wait at a fence. */
char *
dlock_error_blocked_hint(const DLockBytes *resource, const char *blockers)
{
	return psprintf("In the way at the fence of resource \"%.*s\": %s. That role, a member of pg_signal_backend, or a superuser can end a process by pg_terminate_backend().",
					resource->len, resource->data, blockers);
}

void
dlock_error_read_only_fence(const DLockBytes *resource)
{
	ereport(ERROR,
			(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
			 errmsg("cannot raise the mark of resource \"%.*s\" in a read-only transaction",
					resource->len, resource->data),
			 errdetail("The token is higher than all that it has been fenced with."),
			 errhint("Call dlock_fence() in a transaction that is READ WRITE.")));
}

void
dlock_error_prepare_live(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot prepare a transaction that has passed a fence as a live holder"),
			 errdetail("Whether the lease is live can be seen only by the session that commits."),
			 errhint("Pass the fence by its high-water mark, without \"live\".")));
}

void
dlock_error_not_extension_owner(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("must be owner of extension \"dlock\" to reset a mark"),
			 errdetail("A mark that is lowered lets holders write that have been fenced off."),
			 errhint("A new lease has a token above the mark, and needs no reset.")));
}

/* "resource" may be what names begin with. */
void
dlock_error_not_resource_role(const DLockBytes *resource, const char *declared, Oid role)
{
	char	   *rolename = GetUserNameFromId(role, true);

	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for fenced resource \"%.*s\"", resource->len, resource->data),
			 (rolename != NULL) ?
			 errdetail("\"%s\" is declared to belong to role \"%s\".", declared, rolename) :
			 errdetail("\"%s\" is declared to belong to a role that no longer exists.", declared),
			 errhint("Use a member of the role, or declare the resource anew with dlock_fence_declare().")));
}

void
dlock_error_unlogged_marks(const char *relation)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot change the persistence of table \"%s\"", relation),
			 errdetail("A crash would lose the marks, and old tokens would pass again."),
			 errhint("Leave it as it is; nothing is written to it while marks stand.")));
}

void
dlock_error_marks_altered(const char *relation)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s\" has been altered in a way that keeps marks from being written", relation),
			 errdetail("It must have its own columns and its primary key, no other column that is NOT NULL or generated, and no index with an expression, a predicate, or deferrable uniqueness."),
			 errhint("Undo what was altered.")));
}

void
dlock_error_log_reset(const DLockBytes *resource, DLockToken from, DLockToken to,
					  const char *reason)
{
	ereport(LOG,
			(errmsg("transaction resets the mark of resource \"%.*s\" from %lld to %lld", resource->len,
					resource->data, (long long) from, (long long) to),
			 errdetail("Role \"%s\" asked for it. Reason: %s",
					   GetUserNameFromId(GetUserId(), false), reason)));
}

/* A trigger on dlock_guard() is not as it has to be. */
void
dlock_error_guard(const char *trigger, const char *problem, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
			 errmsg("trigger \"%s\" %s", trigger, problem),
			 errdetail("It executes dlock_guard()."),
			 errhint("%s", hint)));
}

void
dlock_error_guard_column(const char *trigger, const char *column, const char *table)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_COLUMN),
			 errmsg("column \"%s\" of relation \"%s\" does not exist", column, table),
			 errdetail("Trigger \"%s\" names it to dlock_guard().", trigger),
			 errhint("Name a column of the table, or create the trigger anew if the column was renamed.")));
}

void
dlock_error_not_trigger(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
			 errmsg("dlock_guard() must be called as a trigger"),
			 errdetail("It guards a table against writes without a fencing token."),
			 errhint("Use it in CREATE TRIGGER ... BEFORE ... EXECUTE FUNCTION dlock_guard('resource').")));
}

void
dlock_error_membership_lost(const DLockBytes *group, DLockToken token)
{
	ereport(ERROR,
			(errcode(MAKE_SQLSTATE('L', 'K', '0', '0', '2')),
			 errmsg("membership in group \"%.*s\" with token %lld is not held", group->len, group->data,
					(long long) token),
			 errdetail("It has expired, has been left or taken over, or was never granted."),
			 errhint("Stop the work on all partitions, and join the group anew.")));
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

/* The wait for a synchronous standby was cancelled. */
void
dlock_error_not_confirmed(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_QUERY_CANCELED),
			 errmsg("canceled before a synchronous standby confirmed the change"),
			 errdetail("What this call was granted is taken back. A renewal, a downgrade or a lease entered again stands on this server and may be missing on a standby."),
			 errhint("Call the function again.")));
}

/* As the server has it for its own locks. */
void
dlock_error_lock_timeout(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("canceling statement due to lock timeout")));
}

void
dlock_error_prepare(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot prepare a transaction that holds leases bound to it"),
			 errdetail("A prepared transaction outlives its session, and a bound lease does not."),
			 errhint("Release them first, or bind them to the session, or to nothing.")));
}

/* "open" lists the writes, "hint" is what closes them. */
void
dlock_error_warn_guard(const char *trigger, const char *table, const char *open, const char *hint)
{
	ereport(WARNING,
			(errmsg("guard \"%s\" leaves writes to table \"%s\" open", trigger, table),
			 errdetail("No guard fires for: %s.", open),
			 errhint("%s", hint)));
}

/* "reason" is the message of the error that was met. */
void
dlock_error_warn_partitions(const DLockBytes *group, int code, const char *reason)
{
	ereport(WARNING,
			(errcode(code),
			 errmsg("could not acquire partitions of group \"%.*s\": %s", group->len, group->data, reason),
			 errdetail("The member keeps those that it has."),
			 errhint("The next heartbeat tries again.")));
}

#define STOPPED_HINT "Look for a server process that is stopped (state T in ps); SIGCONT makes it go on."

/* A part of the memory of leases stays locked, and the leases of this lock are in it. */
void
dlock_error_left_out(const DLockBytes *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("leases on lock \"%.*s\" cannot be read", name->len, name->data),
			 errdetail("A server process keeps their part of memory locked for more than 100 ms."),
			 errhint(STOPPED_HINT)));
}

/* The same of a view, which has left such parts out. */
void
dlock_error_warn_left_out(int count, int total)
{
	ereport(WARNING,
			(errcode(ERRCODE_WARNING),
			 errmsg("%d of %d parts of the memory of leases were left out", count, total),
			 errdetail("A server process keeps them locked for more than 100 ms."),
			 errhint(STOPPED_HINT)));
}

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
