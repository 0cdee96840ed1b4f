/*-------------------------------------------------------------------------
 *
 * dlock_sqlfunc.c
 *	  The SQL functions that act on leases: arguments in, results out.
 *
 * IDENTIFICATION
 *	  src/dlock_sqlfunc.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/int.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "dlock_error.h"
#include "dlock_guc.h"
#include "dlock_manager.h"
#include "dlock_name.h"
#include "dlock_session.h"

PG_FUNCTION_INFO_V1(dlock_sql_acquire);
PG_FUNCTION_INFO_V1(dlock_sql_renew_owner);
PG_FUNCTION_INFO_V1(dlock_sql_renew_token);
PG_FUNCTION_INFO_V1(dlock_sql_release_owner);
PG_FUNCTION_INFO_V1(dlock_sql_release_token);
PG_FUNCTION_INFO_V1(dlock_sql_check);
PG_FUNCTION_INFO_V1(dlock_sql_renew_all);
PG_FUNCTION_INFO_V1(dlock_sql_release_all);
PG_FUNCTION_INFO_V1(dlock_sql_force_release);
PG_FUNCTION_INFO_V1(dlock_sql_bump_epoch);

/* ---- arguments ---- */

static DLockBytes
get_name(FunctionCallInfo fcinfo, int argno)
{
	if (PG_ARGISNULL(argno))
		dlock_error_null("lock name");
	return dlock_name_of_text(PG_GETARG_TEXT_PP(argno), "lock name", DLOCK_NAME_MAX);
}

/* No owner means this session. */
static DLockBytes
get_owner(FunctionCallInfo fcinfo, int argno)
{
	if (PG_ARGISNULL(argno))
		return dlock_name_session();
	return dlock_name_of_text(PG_GETARG_TEXT_PP(argno), "lease owner", DLOCK_OWNER_MAX);
}

static DLockToken
get_token(FunctionCallInfo fcinfo, int argno)
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
static DLockBytes
get_payload(FunctionCallInfo fcinfo, int argno)
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
static DLockTime
interval_to_time(const Interval *interval)
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
static DLockTime
get_ttl(FunctionCallInfo fcinfo, int argno, bool acquiring)
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
		ttl = interval_to_time(interval);
		if (ttl <= 0)
			dlock_error_interval("ttl", "be greater than zero",
								 "To end a lease, use dlock_release().");
	}
	if (ttl > limit)
		dlock_error_ttl_over_limit(dlock_guc_max_ttl_s);
	return ttl;
}

/* A span that so far can only be zero. */
static void
require_no_span(FunctionCallInfo fcinfo, int argno, const char *parameter)
{
	const Interval *interval;

	if (PG_ARGISNULL(argno))
		dlock_error_null(parameter);
	interval = PG_GETARG_INTERVAL_P(argno);
	if (interval_to_time(interval) < 0)
		dlock_error_interval(parameter, "not be negative", "Pass '0' for none.");
	if (interval_to_time(interval) > 0)
		dlock_error_unsupported(parameter, "'0'");
}

/*
 * A word of a list, whose first is the only one supported so far.  "known" is
 * the list as it is written in a hint.
 */
static void
require_word(FunctionCallInfo fcinfo, int argno, const char *parameter,
			 const char *const *words, const char *known)
{
	text	   *value;
	const char *data;
	int			len;

	if (PG_ARGISNULL(argno))
		dlock_error_null(parameter);
	value = PG_GETARG_TEXT_PP(argno);
	data = VARDATA_ANY(value);
	len = (int) VARSIZE_ANY_EXHDR(value);

	for (int i = 0; words[i] != NULL; i++)
	{
		if ((int) strlen(words[i]) != len || memcmp(words[i], data, len) != 0)
			continue;
		if (i == 0)
			return;
		dlock_error_unsupported(parameter, psprintf("'%s'", words[0]));
	}
	dlock_error_word(parameter, text_to_cstring(value), known);
}

static const char *const mode_words[] = {
	"exclusive", "EX", "shared", "NL", "CR", "CW", "PR", "PW", NULL
};
static const char *const reentry_words[] = {"deny", "count", "return", NULL};
static const char *const bind_words[] = {"none", "session", "transaction", NULL};

/* The parameters of dlock_acquire() that are accepted in their defaults only. */
static void
require_defaults(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(3))
		dlock_error_unsupported("wait", "'0'");
	require_no_span(fcinfo, 3, "wait");
	require_word(fcinfo, 4, "mode", mode_words,
				 "\"exclusive\", \"shared\", \"NL\", \"CR\", \"CW\", \"PR\", \"PW\" and \"EX\"");
	if (!PG_ARGISNULL(5))
	{
		if (PG_GETARG_INT32(5) <= 0)
			dlock_error_permits(PG_GETARG_INT32(5));
		dlock_error_unsupported("permits", "NULL");
	}
	require_word(fcinfo, 6, "reentry", reentry_words,
				 "\"deny\", \"count\" and \"return\"");
	require_word(fcinfo, 7, "bind", bind_words,
				 "\"none\", \"session\" and \"transaction\"");
	require_no_span(fcinfo, 8, "lock_delay");
	require_no_span(fcinfo, 9, "min_hold");
}

static DLockManagerTarget
target_by_owner(FunctionCallInfo fcinfo)
{
	return (DLockManagerTarget)
	{
		.by = DLOCK_BY_OWNER,
		.name = get_name(fcinfo, 0),
		.owner = get_owner(fcinfo, 1)
	};
}

static DLockManagerTarget
target_by_token(FunctionCallInfo fcinfo)
{
	return (DLockManagerTarget)
	{
		.by = DLOCK_BY_TOKEN,
		.name = get_name(fcinfo, 0),
		.token = get_token(fcinfo, 1)
	};
}

/* Open the database for an operation on a target, and complete the latter. */
static void
open_for_target(DLockDatabase *db, DLockManagerTarget *target)
{
	dlock_session_open(db);
	target->hash = dlock_name_hash(db->shared->oid, &target->name);
}

/* ---- functions ---- */

/* dlock_acquire(name, owner, ttl, wait, mode, ...) -> token or null */
Datum
dlock_sql_acquire(PG_FUNCTION_ARGS)
{
	DLockDatabase db;
	DLockManagerRequest request;
	DLockToken	token;

	request.name = get_name(fcinfo, 0);
	request.owner = get_owner(fcinfo, 1);
	request.ttl = get_ttl(fcinfo, 2, true);
	require_defaults(fcinfo);
	request.payload = get_payload(fcinfo, 10);
	request.role = GetUserId();

	dlock_session_check_writable("dlock_acquire");
	dlock_session_open(&db);
	token = dlock_manager_acquire(&db, &request);
	dlock_session_close(&db);

	if (token == DLOCK_TOKEN_NONE)
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

static bool
renew(DLockManagerTarget *target, DLockTime ttl)
{
	DLockDatabase db;
	bool		renewed;

	dlock_session_check_writable("dlock_renew");
	open_for_target(&db, target);
	renewed = dlock_manager_renew(&db, target, ttl);
	dlock_session_close(&db);
	return renewed;
}

/* dlock_renew(name, owner, ttl) -> boolean */
Datum
dlock_sql_renew_owner(PG_FUNCTION_ARGS)
{
	DLockManagerTarget target = target_by_owner(fcinfo);

	PG_RETURN_BOOL(renew(&target, get_ttl(fcinfo, 2, false)));
}

/* dlock_renew(name, token, ttl) -> boolean */
Datum
dlock_sql_renew_token(PG_FUNCTION_ARGS)
{
	DLockManagerTarget target = target_by_token(fcinfo);

	PG_RETURN_BOOL(renew(&target, get_ttl(fcinfo, 2, false)));
}

static bool
release(DLockManagerTarget *target)
{
	DLockDatabase db;
	bool		released;

	dlock_session_check_writable("dlock_release");
	open_for_target(&db, target);
	released = dlock_manager_release(&db, target, DLOCK_RIGHT_ROLE, NULL);
	dlock_session_close(&db);
	return released;
}

/* dlock_release(name, owner) -> boolean */
Datum
dlock_sql_release_owner(PG_FUNCTION_ARGS)
{
	DLockManagerTarget target = target_by_owner(fcinfo);

	PG_RETURN_BOOL(release(&target));
}

/* dlock_release(name, token) -> boolean */
Datum
dlock_sql_release_token(PG_FUNCTION_ARGS)
{
	DLockManagerTarget target = target_by_token(fcinfo);

	PG_RETURN_BOOL(release(&target));
}

/* dlock_check(name, token) -> boolean */
Datum
dlock_sql_check(PG_FUNCTION_ARGS)
{
	DLockManagerTarget target = target_by_token(fcinfo);
	DLockDatabase db;
	bool		live;

	if (RecoveryInProgress())
		dlock_error_standby("dlock_check");
	open_for_target(&db, &target);
	live = dlock_manager_check(&db, &target);
	dlock_session_close(&db);
	PG_RETURN_BOOL(live);
}

/* dlock_renew_all(owner, ttl) -> how many */
Datum
dlock_sql_renew_all(PG_FUNCTION_ARGS)
{
	DLockBytes	owner = get_owner(fcinfo, 0);
	DLockTime	ttl = get_ttl(fcinfo, 1, false);
	DLockDatabase db;
	int			renewed;

	dlock_session_check_writable("dlock_renew_all");
	dlock_session_open(&db);
	renewed = dlock_manager_renew_all(&db, &owner, ttl);
	dlock_session_close(&db);
	PG_RETURN_INT32(renewed);
}

/* dlock_release_all(owner) -> how many */
Datum
dlock_sql_release_all(PG_FUNCTION_ARGS)
{
	DLockBytes	owner = get_owner(fcinfo, 0);
	DLockDatabase db;
	int			released;

	dlock_session_check_writable("dlock_release_all");
	dlock_session_open(&db);
	released = dlock_manager_release_all(&db, &owner);
	dlock_session_close(&db);
	PG_RETURN_INT32(released);
}

/* The reason that a privileged function asks for. */
static char *
get_reason(FunctionCallInfo fcinfo, int argno)
{
	char	   *reason;

	if (PG_ARGISNULL(argno))
		dlock_error_null("reason");
	reason = text_to_cstring(PG_GETARG_TEXT_PP(argno));
	if (reason[strspn(reason, " \t\r\n")] == '\0')
		dlock_error_empty("reason");
	return reason;
}

/* dlock_force_release(name, reason) -> how many */
Datum
dlock_sql_force_release(PG_FUNCTION_ARGS)
{
	DLockManagerTarget target = {.by = DLOCK_BY_NAME,.name = get_name(fcinfo, 0)};
	char	   *reason = get_reason(fcinfo, 1);
	char	   *user = GetUserNameFromId(GetUserId(), false);
	DLockDatabase db;
	DLockManagerEnded ended;
	bool		released;

	dlock_session_check_writable("dlock_force_release");
	open_for_target(&db, &target);
	released = dlock_manager_release(&db, &target, DLOCK_RIGHT_FORCE, &ended);
	dlock_session_close(&db);

	if (released)
	{
		char	   *role = GetUserNameFromId(ended.role, true);

		ereport(LOG,
				(errmsg("lease on lock \"%.*s\" was released by force",
						target.name.len, target.name.data),
				 errdetail("Owner \"%.*s\" of role \"%s\" held it with token %lld; role \"%s\" released it. Reason: %s",
						   ended.owner_len, ended.owner,
						   role != NULL ? role : "(dropped)",
						   (long long) ended.token, user, reason)));
	}
	PG_RETURN_INT32(released ? 1 : 0);
}

/* dlock_bump_epoch(reason) -> a number below all later tokens */
Datum
dlock_sql_bump_epoch(PG_FUNCTION_ARGS)
{
	char	   *reason = get_reason(fcinfo, 0);
	DLockDatabase db;
	DLockToken	below;

	dlock_session_check_writable("dlock_bump_epoch");
	dlock_session_open(&db);
	below = dlock_database_reserve_tokens(&db, true);
	dlock_session_close(&db);

	ereport(LOG,
			(errmsg("fencing tokens were moved to a new epoch, above %lld",
					(long long) below),
			 errdetail("Role \"%s\" asked for it. Reason: %s",
					   GetUserNameFromId(GetUserId(), false), reason)));
	PG_RETURN_INT64(below);
}
