/*-------------------------------------------------------------------------
 *
 * value.c
 *	  Arguments and results of SQL functions, from and to the values that the
 *	  rest speaks of.
 *
 * NOTES
 *	  What reads an argument takes the call and the number of the argument, and
 *	  throws 22004 for one that must not be null, and 22023 for one that is out of
 *	  its range.  Results are palloc'd in the current context.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "common/int.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/error.h"
#include "base/name.h"
#include "base/settings.h"
#include "sql/value.h"

/* ---- arguments ---- */

/* Throw 22004, with the parameter's name, if an argument is NULL. */
void
dlock_value_require_parameter(FunctionCallInfo fcinfo, int argno, const char *parameter)
{
	if (PG_ARGISNULL(argno))
		dlock_error_null(psprintf("parameter \"%s\"", parameter));
}

/* A text that must not be null.  Throws 22004 and 22023. */
DLockBytes
dlock_value_get_text(FunctionCallInfo fcinfo, int argno, const char *what)
{
	if (PG_ARGISNULL(argno))
		dlock_error_null(what);
	return dlock_name_of_text(PG_GETARG_TEXT_PP(argno), what);
}

/* No owner means this session. */
DLockBytes
dlock_value_get_owner(FunctionCallInfo fcinfo, int argno)
{
	if (PG_ARGISNULL(argno))
		return dlock_name_session();
	return dlock_name_of_text(PG_GETARG_TEXT_PP(argno), "lease owner");
}

DLockToken
dlock_value_to_token(Datum value, bool is_null)
{
	DLockToken	token;

	if (is_null)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("fencing token must not be null"),
				 errhint("A call that returned NULL in place of a token acquired nothing.")));
	token = DatumGetInt64(value);
	if (token <= 0)
		dlock_error_token(token);
	return token;
}

DLockToken
dlock_value_get_token(FunctionCallInfo fcinfo, int argno)
{
	return dlock_value_to_token(PG_GETARG_DATUM(argno), PG_ARGISNULL(argno));
}

/* The bytes of a payload; none if it is null. */
DLockBytes
dlock_value_get_payload(FunctionCallInfo fcinfo, int argno)
{
	Jsonb	   *payload;
	DLockBytes	bytes = {NULL, 0};

	if (PG_ARGISNULL(argno))
		return bytes;
	payload = PG_GETARG_JSONB_P(argno);
	bytes.data = VARDATA(payload);
	bytes.len = VARSIZE(payload) - VARHDRSZ;
	if (bytes.len > DLOCK_PAYLOAD_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("payload is too long"),
				 errdetail("It has %d bytes; the limit is %d.", bytes.len, DLOCK_PAYLOAD_MAX)));
	return bytes;
}

/*
 * An interval in microseconds, a day being 24 hours and a month 30 days.  What
 * is too long for that comes back as the longest there is.
 */
static DLockTime
to_span(const Interval *interval)
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
 * A ttl in microseconds.  For null, the default, within the limit, if "acquiring"; else
 * zero, which stands for the lease's own.
 */
DLockTime
dlock_value_get_ttl(FunctionCallInfo fcinfo, int argno, bool acquiring)
{
	DLockTime	limit = (DLockTime) dlock_settings_max_ttl_s * USECS_PER_SEC;
	DLockTime	ttl;

	if (PG_ARGISNULL(argno))
	{
		if (!acquiring)
			return 0;
		ttl = Min((DLockTime) dlock_settings_default_ttl_ms * 1000, limit);
	}
	else
	{
		ttl = to_span(PG_GETARG_INTERVAL_P(argno));
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
dlock_value_get_wait(FunctionCallInfo fcinfo, int argno)
{
	DLockTime	wait;

	if (PG_ARGISNULL(argno))
		return DLOCK_TIME_FOREVER;
	wait = to_span(PG_GETARG_INTERVAL_P(argno));
	if (wait < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("wait must not be negative"),
				 errhint("Pass '0' not to wait, and NULL to wait without a limit.")));
	return wait;
}

/*
 * A span that is no ttl, up to dlock.max_ttl and DLOCK_SPAN_MAX: in microseconds, rounded up
 * to whole milliseconds.
 */
DLockTime
dlock_value_get_span(FunctionCallInfo fcinfo, int argno, const char *parameter)
{
	DLockTime	limit = Min(dlock_settings_max_ttl_s * USECS_PER_SEC, DLOCK_SPAN_MAX);
	DLockTime	span;

	dlock_value_require_parameter(fcinfo, argno, parameter);
	span = to_span(PG_GETARG_INTERVAL_P(argno));
	if (span < 0 || span > limit)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" is out of range", parameter),
				 errdetail("The limit is %lld seconds.", (long long) (limit / USECS_PER_SEC)),
				 errhint("Pass a span from zero to \"dlock.max_ttl\".")));

	/* Leases keep it in milliseconds. */
	return (span + 999) / 1000 * 1000;
}

/* The reason that a privileged function asks for. */
char *
dlock_value_get_reason(FunctionCallInfo fcinfo, int argno)
{
	char	   *reason;

	if (PG_ARGISNULL(argno))
		dlock_error_null("reason");
	reason = text_to_cstring(PG_GETARG_TEXT_PP(argno));
	if (reason[strspn(reason, " \t\r\n")] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("reason must not be empty")));
	return reason;
}

/* ---- results ---- */

/* Fill the next column: with the value if "present", else with NULL. */
void
dlock_value_add(DLockValueRow *row, bool present, Datum value)
{
	Assert(row->count < lengthof(row->values));
	row->values[row->count] = value;
	row->nulls[row->count++] = !present;
}

/*
 * A row, which is complete, as a tuple.  Throws 55000 if the result has other columns: the
 * function was created by the script of another version than the library's.
 */
HeapTuple
dlock_value_form(DLockValueRow *row, TupleDesc desc)
{
	if (row->count != desc->natts)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("library and extension \"dlock\" are of different versions"),
				 errdetail("The function was created with %d columns, and the library has %d.",
						   desc->natts, row->count),
				 errhint("Restart the server if the library was replaced, and run \"ALTER EXTENSION dlock UPDATE\".")));
	return heap_form_tuple(desc, row->values, row->nulls);
}

/* A span of microseconds as an interval without days and months. */
Datum
dlock_value_of_span(DLockTime span)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = span;
	return IntervalPGetDatum(interval);
}
