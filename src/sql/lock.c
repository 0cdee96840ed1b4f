/*-------------------------------------------------------------------------
 *
 * lock.c
 *	  The SQL functions on leases and fences: arguments in, results out.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/fault.h"
#include "base/name.h"
#include "fence/fence.h"
#include "fence/guard.h"
#include "lock/held.h"
#include "lock/queue.h"
#include "session/grants.h"
#include "session/session.h"
#include "session/take.h"
#include "session/wait.h"
#include "sql/value.h"

PG_FUNCTION_INFO_V1(dlock_sql_acquire);
PG_FUNCTION_INFO_V1(dlock_sql_acquire_all);
PG_FUNCTION_INFO_V1(dlock_sql_acquire_path);
PG_FUNCTION_INFO_V1(dlock_sql_acquire_each);
PG_FUNCTION_INFO_V1(dlock_sql_take);
PG_FUNCTION_INFO_V1(dlock_sql_convert);
PG_FUNCTION_INFO_V1(dlock_sql_renew);
PG_FUNCTION_INFO_V1(dlock_sql_renew_token);
PG_FUNCTION_INFO_V1(dlock_sql_renew_each);
PG_FUNCTION_INFO_V1(dlock_sql_release);
PG_FUNCTION_INFO_V1(dlock_sql_release_token);
PG_FUNCTION_INFO_V1(dlock_sql_release_each);
PG_FUNCTION_INFO_V1(dlock_sql_check);
PG_FUNCTION_INFO_V1(dlock_sql_watch);
PG_FUNCTION_INFO_V1(dlock_sql_renew_all);
PG_FUNCTION_INFO_V1(dlock_sql_release_all);
PG_FUNCTION_INFO_V1(dlock_sql_force_release);
PG_FUNCTION_INFO_V1(dlock_sql_bump_epoch);
PG_FUNCTION_INFO_V1(dlock_sql_fence);
PG_FUNCTION_INFO_V1(dlock_sql_guard);

/* ---- arguments ---- */

/* Words, in the order of their enums; modes have two synonyms in front. */
static const char *const modes[] = {"exclusive", "shared", "NL", "CR", "CW", "PR", "PW", "EX"};
static const char *const reentries[] = {"deny", "count", "return"};
static const char *const binds[] = {"none", "session", "transaction"};

/* The number of a word in a list. */
static int
get_word(FunctionCallInfo fcinfo, int argno, const char *parameter, const char *const *words, int count)
{
	text	   *given;
	int			len;
	StringInfoData known;

	dlock_value_require_parameter(fcinfo, argno, parameter);
	given = PG_GETARG_TEXT_PP(argno);
	len = VARSIZE_ANY_EXHDR(given);
	for (int i = 0; i < count; i++)
	{
		if (strncmp(words[i], VARDATA_ANY(given), len) == 0 && words[i][len] == '\0')
			return i;
	}

	initStringInfo(&known);
	for (int i = 0; i < count; i++)
		appendStringInfo(&known, "%s\"%s\"", (i == 0) ? "" : (i == count - 1) ? " and " : ", ", words[i]);
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid value for parameter \"%s\": \"%s\"", parameter, text_to_cstring(given)),
			 errhint("Valid values are %s.", known.data)));
}

static DLockMode
get_mode(FunctionCallInfo fcinfo, int argno)
{
	int			word = get_word(fcinfo, argno, "mode", modes, lengthof(modes));

	return (word == 0) ? DLOCK_MODE_EX : (word == 1) ? DLOCK_MODE_PR : (DLockMode) (word - 2);
}

/* Permits, if any, instead of the mode. */
static void
get_permits(FunctionCallInfo fcinfo, int argno, DLockAcquireRequest *request)
{
	if (PG_ARGISNULL(argno))
		return;
	if (PG_GETARG_INT32(argno) <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("permits must be greater than zero"),
				 errdetail("The number given is %d.", PG_GETARG_INT32(argno)),
				 errhint("Pass how many may hold the lock at a time.")));
	if (request->mode != DLOCK_MODE_EX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameters \"mode\" and \"permits\" cannot be used together"),
				 errhint("Leave one of them out.")));
	request->mode = DLOCK_MODE_PERMIT;
	request->permits = PG_GETARG_INT32(argno);
}

/* The parameters "lock_delay" and "min_hold", and a ttl that fits the latter and the bind. */
static void
get_times(FunctionCallInfo fcinfo, int argno, DLockAcquireRequest *request)
{
	request->delay = dlock_value_get_span(fcinfo, argno, "lock_delay");
	request->min_hold = dlock_value_get_span(fcinfo, argno + 1, "min_hold");

	/* A bound lease needs no deadline. */
	if (request->bind != DLOCK_BIND_NONE && PG_ARGISNULL(2))
		request->ttl = 0;
	else
		request->ttl = dlock_value_get_ttl(fcinfo, 2, true);
	if (request->ttl > 0 && request->min_hold > (request->ttl + 999) / 1000 * 1000)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"min_hold\" must not be longer than the ttl"),
				 errhint("Pass a longer ttl; a release can end the lease earlier.")));
}

/* How long a request keeps its place; one for a bound lease cannot keep it. */
static void
get_keep(FunctionCallInfo fcinfo, int argno, DLockAcquireRequest *request)
{
	request->keep = dlock_value_get_span(fcinfo, argno, "keep");
	if (request->keep > 0 && request->bind != DLOCK_BIND_NONE)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameters \"keep\" and \"bind\" cannot be used together"),
				 errdetail("A place is kept without a session, so there is none to bind the lease to."),
				 errhint("Leave one of them out.")));
}

/* The elements of an array: "*count" of them; if negative, any number, which it is set to. */
static Datum *
get_elements(FunctionCallInfo fcinfo, int argno, const char *parameter, Oid type, int *count, bool **nulls)
{
	ArrayType  *array;
	Datum	   *values;
	int			given;

	dlock_value_require_parameter(fcinfo, argno, parameter);
	array = PG_GETARG_ARRAYTYPE_P(argno);
	deconstruct_array(array, type, (type == TEXTOID) ? -1 : sizeof(int64), type != TEXTOID && FLOAT8PASSBYVAL,
					  (type == TEXTOID) ? TYPALIGN_INT : TYPALIGN_DOUBLE, &values, nulls, &given);
	if (ARR_NDIM(array) > 1 || given > DLOCK_NAMES_MAX || (*count >= 0 && given != *count))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid array for parameter \"%s\"", parameter),
				 ARR_NDIM(array) > 1 ? errdetail("It has %d dimensions.", ARR_NDIM(array)) :
				 errdetail("It has %d elements.", given),
				 errhint("Pass one-dimensional arrays of the same length, of up to %d elements.", DLOCK_NAMES_MAX)));
	*count = given;
	return values;
}

/* The names of locks, or of owners; a NULL owner means this session. */
static DLockBytes *
get_names(FunctionCallInfo fcinfo, int argno, bool are_owners, int *count)
{
	bool	   *nulls;
	Datum	   *values = get_elements(fcinfo, argno, are_owners ? "owners" : "names", TEXTOID, count, &nulls);
	DLockBytes *names = palloc(*count * sizeof(DLockBytes));

	for (int i = 0; i < *count; i++)
	{
		if (!nulls[i])
			names[i] = dlock_name_of_text(DatumGetTextPP(values[i]), are_owners ? "lease owner" : "lock name");
		else if (are_owners)
			names[i] = dlock_name_session();
		else
			dlock_error_null("lock name");
	}
	return names;
}

/* The lock and the owner of the first two parameters; lacks the hash. */
static DLockHolderTarget
get_owned_target(FunctionCallInfo fcinfo)
{
	DLockHolderTarget target = {.name = dlock_value_get_text(fcinfo, 0, "lock name")};

	target.owner = dlock_value_get_owner(fcinfo, 1);
	return target;
}

/* The same for a token. */
static DLockHolderTarget
get_target(FunctionCallInfo fcinfo)
{
	DLockHolderTarget target = {.name = dlock_value_get_text(fcinfo, 0, "lock name")};

	target.token = dlock_value_get_token(fcinfo, 1);
	return target;
}

/* Open the database for operations on targets, and set their hashes. */
static void
open_for_targets(DLockDatabase *db, DLockHolderTarget *targets, int count)
{
	dlock_session_open(db);
	for (int i = 0; i < count; i++)
		targets[i].hash = dlock_name_hash(db->shared->oid, &targets[i].name);
}

/* ---- functions ---- */

/* The answer of a call that may grant something: the grant is not undone from here on. */
static Datum
answer_token(FunctionCallInfo fcinfo, DLockToken token)
{
	dlock_grants_answered();
	if (token == DLOCK_TOKEN_NONE)
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

/* The same of several: null for no token. */
static Datum
answer_tokens(const DLockToken *tokens, int count)
{
	ArrayBuildState *array = initArrayResult(INT8OID, CurrentMemoryContext, false);
	Datum		result;

	for (int i = 0; i < count; i++)
		(void) accumArrayResult(array, Int64GetDatum(tokens[i]), tokens[i] == DLOCK_TOKEN_NONE,
								INT8OID, CurrentMemoryContext);
	result = makeArrayResult(array, CurrentMemoryContext);
	dlock_grants_answered();
	return result;
}

/*
 * Acquire the locks of a request.  The parameters after the first are those of
 * dlock_acquire(), which alone has "permits" and "keep".  Returns the first token.
 */
static DLockToken
acquire_names(FunctionCallInfo fcinfo, const char *function, bool has_permits,
			  DLockAcquireRequest *request)
{
	DLockTime	wait;
	int			argno;

	request->role = GetUserId();
	request->owner = dlock_value_get_owner(fcinfo, 1);
	wait = dlock_value_get_wait(fcinfo, 3);
	request->mode = get_mode(fcinfo, 4);
	if (has_permits)
		get_permits(fcinfo, 5, request);
	argno = has_permits ? 6 : 5;
	request->reentry = (DLockReentry) get_word(fcinfo, argno, "reentry", reentries, lengthof(reentries));
	request->bind = (DLockBind) get_word(fcinfo, argno + 1, "bind", binds, lengthof(binds));
	get_times(fcinfo, argno + 2, request);
	request->payload = dlock_value_get_payload(fcinfo, argno + 4);
	if (has_permits)
		get_keep(fcinfo, argno + 5, request);

	dlock_session_check_lease_writable(function);
	return dlock_wait_acquire(request, wait);
}

/* dlock_acquire(name, owner, ttl, wait, mode, ...) -> token or null */
Datum
dlock_sql_acquire(PG_FUNCTION_ARGS)
{
	DLockBytes	name = dlock_value_get_text(fcinfo, 0, "lock name");
	DLockAcquireRequest request = {
		.count = 1,
		.names = &name
	};

	return answer_token(fcinfo, acquire_names(fcinfo, "dlock_acquire", true, &request));
}

/* dlock_acquire_all(names, owner, ttl, wait, mode, ...) -> tokens or null */
Datum
dlock_sql_acquire_all(PG_FUNCTION_ARGS)
{
	DLockAcquireRequest request = {.count = -1};

	request.names = get_names(fcinfo, 0, false, &request.count);
	dlock_name_check_different(request.names, request.count);
	request.tokens = palloc(request.count * sizeof(DLockToken));
	if (acquire_names(fcinfo, "dlock_acquire_all", false, &request) == DLOCK_TOKEN_NONE)
		return answer_token(fcinfo, DLOCK_TOKEN_NONE);
	return answer_tokens(request.tokens, request.count);
}

/* A path and its ancestors: as many names as it has parts. */
static DLockBytes *
get_path(FunctionCallInfo fcinfo, int argno, int *count)
{
	DLockBytes *names = palloc((DLOCK_PATH_MAX_PARTS + 1) * sizeof(DLockBytes));
	const char *problem = NULL;

	names[0] = dlock_value_get_text(fcinfo, argno, "path");
	*count = 1 + dlock_name_ancestors(&names[0], names + 1);
	if (*count > DLOCK_PATH_MAX_PARTS)
		problem = "It has too many parts.";
	for (int i = 0; i < *count; i++)
	{
		if (names[i].len == 0 || names[i].data[names[i].len - 1] == '/')
			problem = "A part of it is empty.";
	}
	if (problem != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid path \"%.*s\"", names[0].len, names[0].data),
				 errdetail("%s", problem),
				 errhint("Write a path as \"a/b/c\", with up to %d parts.", DLOCK_PATH_MAX_PARTS)));
	return names;
}

/* dlock_acquire_path(path, owner, ttl, wait, mode, ...) -> token or null */
Datum
dlock_sql_acquire_path(PG_FUNCTION_ARGS)
{
	DLockAcquireRequest request = {.path = true};

	request.names = get_path(fcinfo, 0, &request.count);
	return answer_token(fcinfo, acquire_names(fcinfo, "dlock_acquire_path", false, &request));
}

/* dlock_convert(name, token, mode, wait) -> token or null */
Datum
dlock_sql_convert(PG_FUNCTION_ARGS)
{
	DLockBytes	name = dlock_value_get_text(fcinfo, 0, "lock name");
	DLockToken	token = dlock_value_get_token(fcinfo, 1);
	DLockMode	mode = get_mode(fcinfo, 2);
	DLockTime	wait = dlock_value_get_wait(fcinfo, 3);

	dlock_session_check_lease_writable("dlock_convert");
	return answer_token(fcinfo, dlock_wait_convert(&name, token, mode, wait));
}

/* Renew the leases of targets; returns whether each is held. */
static bool *
renew(FunctionCallInfo fcinfo, const char *function, DLockHolderTarget *targets, int count)
{
	DLockTime	ttl = dlock_value_get_ttl(fcinfo, 2, false);
	bool	   *renewed = palloc(count * sizeof(bool));
	DLockDatabase db;

	dlock_session_check_lease_writable(function);
	open_for_targets(&db, targets, count);
	dlock_held_renew_each(&db, targets, count, ttl, renewed);
	dlock_session_close(&db);
	return renewed;
}

/* dlock_renew(name, owner, ttl) -> boolean */
Datum
dlock_sql_renew(PG_FUNCTION_ARGS)
{
	DLockHolderTarget target = get_owned_target(fcinfo);

	PG_RETURN_BOOL(*renew(fcinfo, "dlock_renew", &target, 1));
}

/* dlock_renew_token(name, token, ttl) -> boolean */
Datum
dlock_sql_renew_token(PG_FUNCTION_ARGS)
{
	DLockHolderTarget target = get_target(fcinfo);

	PG_RETURN_BOOL(*renew(fcinfo, "dlock_renew_token", &target, 1));
}

/* Release a lease.  False if it is not held; then open the lock that it keeps closed. */
static bool
release_target(DLockDatabase *db, DLockHolderTarget *target)
{
	bool		found;
	bool		released = dlock_held_release(db, target, &found);

	target->closed = true;
	while (!released && dlock_held_release(db, target, &found))
		CHECK_FOR_INTERRUPTS();
	return released;
}

/* Release the leases of targets; returns whether each was held. */
static bool *
release(const char *function, DLockHolderTarget *targets, int count)
{
	bool	   *released = palloc(count * sizeof(bool));
	DLockDatabase db;

	dlock_session_check_lease_writable(function);
	open_for_targets(&db, targets, count);
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		released[i] = release_target(&db, &targets[i]);
	}
	dlock_session_close(&db);
	return released;
}

/* dlock_release(name, owner) -> boolean */
Datum
dlock_sql_release(PG_FUNCTION_ARGS)
{
	DLockHolderTarget target = get_owned_target(fcinfo);

	PG_RETURN_BOOL(*release("dlock_release", &target, 1));
}

/* dlock_release_token(name, token) -> boolean */
Datum
dlock_sql_release_token(PG_FUNCTION_ARGS)
{
	DLockHolderTarget target = get_target(fcinfo);

	PG_RETURN_BOOL(*release("dlock_release_token", &target, 1));
}

/* dlock_check(name, token) -> boolean */
Datum
dlock_sql_check(PG_FUNCTION_ARGS)
{
	DLockHolderTarget target = get_target(fcinfo);
	DLockDatabase db;
	bool		live;

	dlock_session_check_grants("dlock_check");
	open_for_targets(&db, &target, 1);
	live = dlock_held_is_told(&db, &target);
	dlock_session_close(&db);
	PG_RETURN_BOOL(live);
}

/* dlock_renew_all(owner, ttl) -> how many */
Datum
dlock_sql_renew_all(PG_FUNCTION_ARGS)
{
	DLockBytes	owner = dlock_value_get_owner(fcinfo, 0);
	DLockTime	ttl = dlock_value_get_ttl(fcinfo, 1, false);
	DLockDatabase db;
	int			renewed;

	dlock_session_check_lease_writable("dlock_renew_all");
	dlock_session_open(&db);
	renewed = dlock_held_renew_all(&db, &owner, ttl);
	dlock_session_close(&db);
	PG_RETURN_INT32(renewed);
}

/* dlock_release_all(owner) -> how many */
Datum
dlock_sql_release_all(PG_FUNCTION_ARGS)
{
	DLockBytes	owner = dlock_value_get_owner(fcinfo, 0);
	DLockDatabase db;
	int			released;

	dlock_session_check_lease_writable("dlock_release_all");
	dlock_session_open(&db);
	dlock_queue_give_up(db.shared->oid, GetUserId(), &owner);
	released = dlock_held_release_all(&db, &owner);
	dlock_session_close(&db);
	PG_RETURN_INT32(released);
}

/* ---- each ---- */

/* The leases of the first two parameters, names and tokens; those of strangers are skipped. */
static DLockHolderTarget *
get_each_target(FunctionCallInfo fcinfo, int *count)
{
	DLockBytes *names = get_names(fcinfo, 0, false, count);
	bool	   *nulls;
	Datum	   *values = get_elements(fcinfo, 1, "tokens", INT8OID, count, &nulls);
	DLockHolderTarget *targets = palloc(*count * sizeof(DLockHolderTarget));

	for (int i = 0; i < *count; i++)
	{
		targets[i] = (DLockHolderTarget)
		{
			.name = names[i],.token = dlock_value_to_token(values[i], nulls[i]),.skip = true
		};
	}
	return targets;
}

static Datum
array_of_bools(const bool *values, int count)
{
	Datum	   *elements = palloc(count * sizeof(Datum));

	for (int i = 0; i < count; i++)
		elements[i] = BoolGetDatum(values[i]);
	PG_RETURN_ARRAYTYPE_P(construct_array(elements, count, BOOLOID, sizeof(bool), true, TYPALIGN_CHAR));
}

/* dlock_acquire_each(names, owners, ttl, mode, ...) -> a token or null for each */
Datum
dlock_sql_acquire_each(PG_FUNCTION_ARGS)
{
	DLockAcquireRequest request = {.count = 1,.role = GetUserId(),.bind = DLOCK_BIND_NONE};
	int			count = -1;
	DLockBytes *names = get_names(fcinfo, 0, false, &count);
	DLockBytes *owners = get_names(fcinfo, 1, true, &count);
	DLockToken *tokens = palloc(count * sizeof(DLockToken));

	request.mode = get_mode(fcinfo, 3);
	get_permits(fcinfo, 4, &request);
	request.reentry = (DLockReentry) get_word(fcinfo, 5, "reentry", reentries, lengthof(reentries));
	get_times(fcinfo, 6, &request);
	get_keep(fcinfo, 8, &request);
	dlock_session_check_lease_writable("dlock_acquire_each");
	dlock_wait_acquire_each(&request, names, owners, count, tokens);
	return answer_tokens(tokens, count);
}

/* dlock_take(client, wait, keep) -> what the places of the client were granted */
Datum
dlock_sql_take(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	DLockBytes	client;
	DLockTime	wait = dlock_value_get_wait(fcinfo, 1);
	DLockTime	keep = dlock_value_get_span(fcinfo, 2, "keep");
	DLockTaken *taken;
	int			count;

	dlock_value_require_parameter(fcinfo, 0, "client");
	client = dlock_value_get_owner(fcinfo, 0);
	InitMaterializedSRF(fcinfo, 0);
	dlock_session_check_lease_writable("dlock_take");
	count = dlock_take(&client, wait, keep, &taken);
	for (int i = 0; i < count; i++)
	{
		DLockValueRow row = {0};

		dlock_value_add(&row, true, dlock_name_to_text(taken[i].name));
		dlock_value_add(&row, true, dlock_name_to_text(taken[i].owner));
		dlock_value_add(&row, taken[i].token != DLOCK_TOKEN_NONE, Int64GetDatum(taken[i].token));
		tuplestore_puttuple(result->setResult, dlock_value_form(&row, result->setDesc));
	}
	dlock_grants_answered();
	return (Datum) 0;
}

/* dlock_renew_each(names, tokens, ttl) -> a boolean for each */
Datum
dlock_sql_renew_each(PG_FUNCTION_ARGS)
{
	int			count = -1;
	DLockHolderTarget *targets = get_each_target(fcinfo, &count);

	return array_of_bools(renew(fcinfo, "dlock_renew_each", targets, count), count);
}

/* dlock_release_each(names, tokens) -> a boolean for each */
Datum
dlock_sql_release_each(PG_FUNCTION_ARGS)
{
	int			count = -1;
	DLockHolderTarget *targets = get_each_target(fcinfo, &count);

	return array_of_bools(release("dlock_release_each", targets, count), count);
}

/* ---- others ---- */

static void
log_forced(const DLockBytes *name, const DLockHeldForced *ended, const char *reason)
{
	char	   *role = GetUserNameFromId(ended->role, true);

	ereport(LOG,
			(ended->was_closed ?
			 errmsg("lock \"%.*s\" was opened by force", name->len, name->data) :
			 errmsg("lease on lock \"%.*s\" was released by force", name->len, name->data),
			 errdetail("Owner \"%.*s\" of role \"%s\" was granted it with token %lld; role \"%s\" took it away. Reason: %s",
					   ended->owner_len, ended->owner, (role != NULL) ? role : "(dropped)",
					   (long long) ended->token, GetUserNameFromId(GetUserId(), false), reason),
			 ended->closed_for == 0 ? 0 :
			 errhint("The lock stays closed for %lld ms, its lock delay; a second release by force opens it.",
					 (long long) ended->closed_for / 1000)));
}

/* dlock_force_release(name, reason) -> how many */
Datum
dlock_sql_force_release(PG_FUNCTION_ARGS)
{
	DLockBytes	name = dlock_value_get_text(fcinfo, 0, "lock name");
	char	   *reason = dlock_value_get_reason(fcinfo, 1);
	DLockDatabase db;
	DLockHeldForced *ended;
	int			count;

	dlock_session_check_writable("dlock_force_release");
	dlock_session_open(&db);
	count = dlock_held_end_by_force(&db, &name, &ended);
	for (int i = 0; i < count; i++)
		log_forced(&name, &ended[i], reason);
	for (int i = 0; i < count; i++)
	{
		DLOCK_FAULT("forced");
		(void) dlock_held_expire(&db, ended[i].hash, ended[i].token);
	}
	dlock_session_close(&db);
	PG_RETURN_INT32(count);
}

#define WATCH_COLUMNS	6

/* dlock_watch(name, seen, wait) -> the holder; NULLs if there is none */
Datum
dlock_sql_watch(PG_FUNCTION_ARGS)
{
	DLockBytes	name = dlock_value_get_text(fcinfo, 0, "lock name");
	DLockToken	seen = PG_ARGISNULL(1) ? DLOCK_TOKEN_NONE : dlock_value_get_token(fcinfo, 1);
	DLockTime	wait = dlock_value_get_wait(fcinfo, 2);
	DLockWaitHolder holder;
	DLockValueRow row = {0};
	TupleDesc	desc;

	dlock_session_check_grants("dlock_watch");
	dlock_wait_watch(&name, seen, wait, &holder);
	if (holder.token != DLOCK_TOKEN_NONE)
	{
		bool		ends = (holder.remaining != DLOCK_TIME_FOREVER);

		dlock_value_add(&row, true, Int64GetDatum(holder.token));
		dlock_value_add(&row, true, dlock_name_to_text(dlock_bytes(holder.owner, holder.owner_len)));
		dlock_value_add(&row, true, CStringGetTextDatum(dlock_name_of_mode(holder.mode)));
		dlock_value_add(&row, true, TimestampTzGetDatum(holder.granted_at));
		dlock_value_add(&row, ends, TimestampTzGetDatum(ends ? dlock_clock_wall() + holder.remaining : 0));
		dlock_value_add(&row, holder.payload_len > 0,
						dlock_name_payload_to_jsonb(dlock_bytes(holder.payload, holder.payload_len)));
	}
	while (row.count < WATCH_COLUMNS)
		dlock_value_add(&row, false, 0);
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	PG_RETURN_DATUM(HeapTupleGetDatum(dlock_value_form(&row, BlessTupleDesc(desc))));
}

/* dlock_bump_epoch(reason, above) -> a number below all later tokens */
Datum
dlock_sql_bump_epoch(PG_FUNCTION_ARGS)
{
	char	   *reason = dlock_value_get_reason(fcinfo, 0);
	DLockToken	above = PG_ARGISNULL(1) ? DLOCK_TOKEN_NONE : PG_GETARG_INT64(1);
	DLockDatabase db;
	DLockToken	below;

	dlock_session_check_writable("dlock_bump_epoch");
	if (above < 0 || above > DLOCK_TOKEN_MAX - DLOCK_TOKEN_BLOCK)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"above\" must not be negative, and must leave room for tokens"),
				 errdetail("The number given is %lld, and tokens end at 2^53.", (long long) above),
				 errhint("Pass the largest token that you know of.")));
	dlock_session_open(&db);
	below = dlock_token_reserve(&db.shared->tokens, db.sequence, 0, above);
	dlock_session_close(&db);

	ereport(LOG,
			(errmsg("fencing tokens were moved forward, above %lld",
					(long long) below),
			 errdetail("Role \"%s\" asked for it. Reason: %s",
					   GetUserNameFromId(GetUserId(), false), reason)));
	PG_RETURN_INT64(below);
}

/* ---- fences ---- */

/* dlock_fence(resource, token, live) -> void */
Datum
dlock_sql_fence(PG_FUNCTION_ARGS)
{
	DLockBytes	resource = dlock_value_get_text(fcinfo, 0, "resource");
	DLockToken	token = dlock_value_get_token(fcinfo, 1);

	dlock_value_require_parameter(fcinfo, 2, "live");
	(void) dlock_fence_pass(&resource, token, PG_GETARG_BOOL(2), true);
	PG_RETURN_VOID();
}

/* dlock_guard() -> trigger */
Datum
dlock_sql_guard(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("dlock_guard() must be called as a trigger"),
				 errhint("Use it in CREATE TRIGGER ... BEFORE ... EXECUTE FUNCTION dlock_guard('resource').")));
	PG_RETURN_POINTER(dlock_guard_fire((TriggerData *) fcinfo->context, fcinfo->flinfo));
}
