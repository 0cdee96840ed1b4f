/*-------------------------------------------------------------------------
 *
 * argument.c
 *	  Arguments of SQL functions, as the values that the rest speaks of.
 *
 * NOTES
 *	  Each takes the call and the number of the argument, and throws 22004 or
 *	  22023, or another error that says so, for one that is out of its range.
 *
 * IDENTIFICATION
 *	  src/sql/argument.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/int.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "base/compat.h"
#include "base/error.h"
#include "base/name.h"
#include "base/settings.h"
#include "sql/argument.h"

/* Throw 22004 if an argument is NULL; "what" names it. */
void
dlock_argument_require(FunctionCallInfo fcinfo, int argno, const char *what)
{
	if (PG_ARGISNULL(argno))
		dlock_error_null(what);
}

/* A text of 1 to "limit" bytes. */
DLockBytes
dlock_argument_text(FunctionCallInfo fcinfo, int argno, const char *what, int limit)
{
	dlock_argument_require(fcinfo, argno, what);
	return dlock_name_of_text(PG_GETARG_TEXT_PP(argno), what, limit);
}

/* A name of a lock or a resource. */
DLockBytes
dlock_argument_name(FunctionCallInfo fcinfo, int argno, const char *what)
{
	return dlock_argument_text(fcinfo, argno, what, DLOCK_NAME_MAX);
}

static void
check_unreserved(const char *what, const DLockBytes *name)
{
	if (dlock_name_is_reserved(name))
		ereport(ERROR,
				(errcode(ERRCODE_RESERVED_NAME),
				 errmsg("%s \"%.*s\" is reserved", what, name->len, name->data),
				 errdetail("Names that begin with \"%s\" belong to time slots and groups.",
						   DLOCK_NAME_RESERVED),
				 errhint("Use another name.")));
}

/* Throw 42939 if a lock name is reserved for dlock itself. */
void
dlock_argument_check_own(const DLockBytes *name)
{
	check_unreserved("lock name", name);
}

/* The name of a lock that users may acquire. */
DLockBytes
dlock_argument_own_name(FunctionCallInfo fcinfo, int argno)
{
	DLockBytes	name = dlock_argument_name(fcinfo, argno, "lock name");

	dlock_argument_check_own(&name);
	return name;
}

/* No owner means this session. */
DLockBytes
dlock_argument_owner(FunctionCallInfo fcinfo, int argno)
{
	if (PG_ARGISNULL(argno))
		return dlock_name_session();
	return dlock_name_of_text(PG_GETARG_TEXT_PP(argno), "lease owner", DLOCK_OWNER_MAX);
}

/*
 * The owner of a lease that a user acquires.  Throws 42939 for the names with
 * which groups own their leases.
 */
DLockBytes
dlock_argument_own_owner(FunctionCallInfo fcinfo, int argno)
{
	DLockBytes	owner = dlock_argument_owner(fcinfo, argno);

	check_unreserved("lease owner", &owner);
	return owner;
}

DLockToken
dlock_argument_token(FunctionCallInfo fcinfo, int argno)
{
	DLockToken	token;

	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("fencing token must not be null"),
				 errhint("A call that returned NULL in place of a token acquired nothing.")));
	token = PG_GETARG_INT64(argno);
	if (token <= 0)
		dlock_error_token(token);
	return token;
}

/* The bytes of a payload; none if it is null. */
DLockBytes
dlock_argument_payload(FunctionCallInfo fcinfo, int argno)
{
	Jsonb	   *payload;
	DLockBytes	bytes = {NULL, 0};

	if (PG_ARGISNULL(argno))
		return bytes;
	payload = PG_GETARG_JSONB_P(argno);
	bytes.data = VARDATA(payload);
	bytes.len = VARSIZE(payload) - VARHDRSZ;
	if (bytes.len > DLOCK_PAYLOAD_MAX)
		dlock_error_too_long("payload", bytes.len, DLOCK_PAYLOAD_MAX);
	return bytes;
}

/*
 * An interval in microseconds, a day being 24 hours and a month 30 days.  What
 * is too long for that comes back as the longest there is.
 */
DLockTime
dlock_argument_interval(const Interval *interval)
{
	int64		days = (int64) interval->month * DAYS_PER_MONTH + interval->day;
	int64		result;

	if (INTERVAL_NOT_FINITE(interval) ||
		pg_mul_s64_overflow(days, USECS_PER_DAY, &result) ||
		pg_add_s64_overflow(result, interval->time, &result))
		return (days < 0) ? PG_INT64_MIN : PG_INT64_MAX;
	return result;
}

/*
 * A ttl in microseconds.  For null, the default if "acquiring", else zero,
 * which stands for the lease's own.
 */
DLockTime
dlock_argument_ttl(FunctionCallInfo fcinfo, int argno, bool acquiring)
{
	DLockTime	limit = (DLockTime) dlock_settings_max_ttl_s * USECS_PER_SEC;
	DLockTime	ttl;

	if (PG_ARGISNULL(argno))
	{
		if (!acquiring)
			return 0;
		ttl = (DLockTime) dlock_settings_default_ttl_ms * 1000;
		if (ttl > limit)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("\"dlock.default_ttl\" is longer than \"dlock.max_ttl\""),
					 errdetail("The default is %d.%03d seconds, and the limit is %d seconds.",
							   dlock_settings_default_ttl_ms / 1000,
							   dlock_settings_default_ttl_ms % 1000,
							   dlock_settings_max_ttl_s),
					 errhint("Pass a ttl, or lower \"dlock.default_ttl\".")));
	}
	else
	{
		const Interval *interval = PG_GETARG_INTERVAL_P(argno);

		if (INTERVAL_NOT_FINITE(interval))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("ttl must be finite"),
					 errhint("Pass a finite ttl, and renew the lease while it is needed.")));
		ttl = dlock_argument_interval(interval);
		if (ttl <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("ttl must be greater than zero"),
					 errhint("To end a lease, use dlock_release().")));
	}
	if (ttl > limit)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("ttl is longer than \"dlock.max_ttl\""),
				 errdetail("The limit is %d seconds.", dlock_settings_max_ttl_s),
				 errhint("Pass a shorter ttl, and renew the lease while it is needed.")));
	return ttl;
}

/*
 * How long to wait, in microseconds; DLOCK_TIME_FOREVER for null, which means
 * that there is no limit.
 */
DLockTime
dlock_argument_wait(FunctionCallInfo fcinfo, int argno)
{
	DLockTime	wait;

	if (PG_ARGISNULL(argno))
		return DLOCK_TIME_FOREVER;
	wait = dlock_argument_interval(PG_GETARG_INTERVAL_P(argno));
	if (wait < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("wait must not be negative"),
				 errhint("Pass '0' not to wait, and NULL to wait without a limit.")));
	return wait;
}

/* A span that a lease or its lock lasts for other reasons than its ttl. */
DLockTime
dlock_argument_span(FunctionCallInfo fcinfo, int argno, const char *parameter)
{
	DLockTime	span;

	dlock_argument_require(fcinfo, argno, parameter);
	span = dlock_argument_interval(PG_GETARG_INTERVAL_P(argno));
	if (span < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be negative", parameter),
				 errhint("Pass '0' for none.")));
	if (span > (DLockTime) dlock_settings_max_ttl_s * USECS_PER_SEC)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is longer than \"dlock.max_ttl\"", parameter),
				 errdetail("The limit is %d seconds.", dlock_settings_max_ttl_s)));
	if (span > DLOCK_SPAN_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is too long", parameter),
				 errdetail("The limit is 2^32 - 1 milliseconds, which is 49 days.")));

	/* Leases keep it in milliseconds. */
	return (span + 999) / 1000 * 1000;
}

/* The reason that a privileged function asks for. */
char *
dlock_argument_reason(FunctionCallInfo fcinfo, int argno)
{
	char	   *reason;

	dlock_argument_require(fcinfo, argno, "reason");
	reason = text_to_cstring(PG_GETARG_TEXT_PP(argno));
	if (reason[strspn(reason, " \t\r\n")] == '\0')
		dlock_error_empty("reason");
	return reason;
}
