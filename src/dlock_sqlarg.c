/*-------------------------------------------------------------------------
 *
 * dlock_sqlarg.c
 *	  Arguments of SQL functions: taken, checked, converted.
 *
 * NOTES
 *	  Each throws 22004 for a NULL that it does not take, and 22023 for what is
 *	  out of range.
 *
 * IDENTIFICATION
 *	  src/dlock_sqlarg.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/int.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "dlock_error.h"
#include "dlock_guc.h"
#include "dlock_name.h"
#include "dlock_sqlarg.h"

/* The name of a lock. */
DLockBytes
dlock_sqlarg_name(FunctionCallInfo fcinfo, int argno)
{
	if (PG_ARGISNULL(argno))
		dlock_error_null("lock name");
	return dlock_name_of_text(PG_GETARG_TEXT_PP(argno), "lock name", DLOCK_NAME_MAX);
}

/* Throw 42939 if a name is one of dlock's own. */
void
dlock_sqlarg_check_own(const DLockBytes *name)
{
	if (dlock_name_is_reserved(name))
		dlock_error_reserved_name(name);
}

/* The name of a lock that users may acquire. */
DLockBytes
dlock_sqlarg_own_name(FunctionCallInfo fcinfo, int argno)
{
	DLockBytes	name = dlock_sqlarg_name(fcinfo, argno);

	dlock_sqlarg_check_own(&name);
	return name;
}

/* No owner means this session. */
DLockBytes
dlock_sqlarg_owner(FunctionCallInfo fcinfo, int argno)
{
	if (PG_ARGISNULL(argno))
		return dlock_name_session();
	return dlock_name_of_text(PG_GETARG_TEXT_PP(argno), "lease owner", DLOCK_OWNER_MAX);
}

/* A fencing token. */
DLockToken
dlock_sqlarg_token(FunctionCallInfo fcinfo, int argno)
{
	DLockToken	token;

	if (PG_ARGISNULL(argno))
		dlock_error_null("fencing token");
	token = PG_GETARG_INT64(argno);
	if (token <= 0)
		dlock_error_token(token);
	return token;
}

/* The bytes of a payload; none if it is null. */
DLockBytes
dlock_sqlarg_payload(FunctionCallInfo fcinfo, int argno)
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
dlock_sqlarg_span(const Interval *interval)
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
dlock_sqlarg_ttl(FunctionCallInfo fcinfo, int argno, bool acquiring)
{
	DLockTime	limit = (DLockTime) dlock_guc_max_ttl_s * USECS_PER_SEC;
	DLockTime	ttl;

	if (PG_ARGISNULL(argno))
	{
		if (!acquiring)
			return 0;
		ttl = (DLockTime) dlock_guc_default_ttl_ms * 1000;
	}
	else
	{
		const Interval *interval = PG_GETARG_INTERVAL_P(argno);

		if (INTERVAL_NOT_FINITE(interval))
			dlock_error_interval("ttl", "be finite",
								 "Ask for a finite ttl and renew the lease while it is needed.");
		ttl = dlock_sqlarg_span(interval);
		if (ttl <= 0)
			dlock_error_interval("ttl", "be greater than zero",
								 "To end a lease, use dlock_release().");
	}
	if (ttl > limit)
		dlock_error_ttl_over_limit(dlock_guc_max_ttl_s);
	return ttl;
}

/* The bytes of a payload as the jsonb that they are of. */
Datum
dlock_sqlarg_jsonb(const char *data, int len)
{
	struct varlena *value = palloc(VARHDRSZ + len);

	SET_VARSIZE(value, VARHDRSZ + len);
	memcpy(VARDATA(value), data, len);
	return PointerGetDatum(value);
}
