/*-------------------------------------------------------------------------
 *
 * pattern.c
 *	  The SQL functions of time slots and groups: arguments in, results out.
 *
 * IDENTIFICATION
 *	  src/sql/pattern.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/settings.h"
#include "pattern/group.h"
#include "pattern/once.h"
#include "pattern/owned.h"
#include "session/grants.h"
#include "session/session.h"
#include "session/signal.h"
#include "sql/value.h"

PG_FUNCTION_INFO_V1(dlock_sql_token);
PG_FUNCTION_INFO_V1(dlock_sql_session);
PG_FUNCTION_INFO_V1(dlock_sql_signal);
PG_FUNCTION_INFO_V1(dlock_sql_signals);
PG_FUNCTION_INFO_V1(dlock_sql_signal_wait);
PG_FUNCTION_INFO_V1(dlock_sql_once);
PG_FUNCTION_INFO_V1(dlock_sql_group_create);
PG_FUNCTION_INFO_V1(dlock_sql_group_alter);
PG_FUNCTION_INFO_V1(dlock_sql_group_drop);
PG_FUNCTION_INFO_V1(dlock_sql_group_join);
PG_FUNCTION_INFO_V1(dlock_sql_group_heartbeat);
PG_FUNCTION_INFO_V1(dlock_sql_group_yield);
PG_FUNCTION_INFO_V1(dlock_sql_group_leave);
PG_FUNCTION_INFO_V1(dlock_sql_group_member_list);
PG_FUNCTION_INFO_V1(dlock_sql_group_partition_list);

/* ---- for patterns in SQL ---- */

/*
 * _dlock.token(above) -> a new token, above one that a row has seen
 *
 * A row that was copied from another database may have seen a later token than
 * this one has granted.
 */
Datum
dlock_sql_token(PG_FUNCTION_ARGS)
{
	DLockToken	above = PG_ARGISNULL(0) ? DLOCK_TOKEN_NONE : PG_GETARG_INT64(0);
	DLockToken	token;
	DLockDatabase db;

	dlock_session_check_writable("dlock_task_capture");
	dlock_session_open(&db);
	token = dlock_token_take_one(&db.shared->tokens, db.sequence);
	if (token <= above && above < dlock_rule_token_clock(dlock_clock_wall()))
	{
		(void) dlock_token_move(&db.shared->tokens, db.sequence, DLOCK_TOKEN_NONE);
		token = dlock_token_take_one(&db.shared->tokens, db.sequence);
	}
	dlock_session_close(&db);
	if (token <= above)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a task has seen token %lld, which is above those of this database",
						(long long) above),
				 errdetail("Its row was copied from another database."),
				 errhint("Call dlock_bump_epoch() with that number as \"above\".")));
	PG_RETURN_INT64(token);
}

/* _dlock.session() -> the default owner */
Datum
dlock_sql_session(PG_FUNCTION_ARGS)
{
	PG_RETURN_DATUM(dlock_name_to_text(dlock_name_session()));
}

/* _dlock.signal(queue_id) -> true */
Datum
dlock_sql_signal(PG_FUNCTION_ARGS)
{
	dlock_signal_at_commit(PG_GETARG_INT32(0));
	PG_RETURN_BOOL(true);
}

/* _dlock.signals(queue_id) -> how many so far */
Datum
dlock_sql_signals(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64((int64) dlock_signal_seen(PG_GETARG_INT32(0)));
}

/* _dlock.signal_wait(queue_id, seen, until) */
Datum
dlock_sql_signal_wait(PG_FUNCTION_ARGS)
{
	dlock_signal_wait(PG_GETARG_INT32(0), (uint64) PG_GETARG_INT64(1),
					  TimestampDifferenceMilliseconds(dlock_clock_wall(), PG_GETARG_TIMESTAMPTZ(2)));
	PG_RETURN_VOID();
}

/* ---- time slots ---- */

static const DLockNameKind once_name = {
	DLOCK_ONCE_NAME_MAX,
	gettext_noop("name must not be null"),
	gettext_noop("name must not be empty"),
	gettext_noop("name is too long")
};

static Datum
once(PG_FUNCTION_ARGS)
{
	char		buffer[sizeof(DLOCK_ONCE_PREFIX) + DLOCK_ONCE_NAME_MAX];
	DLockBytes	given;
	DLockBytes	name;
	DLockTime	limit = (DLockTime) dlock_settings_max_ttl_s * USECS_PER_SEC;
	DLockTime	every;
	DLockDatabase db;
	DLockToken	token;

	given = dlock_value_get_text(fcinfo, 0, &once_name);
	name.len = snprintf(buffer, sizeof(buffer), "%s%.*s", DLOCK_ONCE_PREFIX, given.len, given.data);
	name.data = buffer;

	dlock_value_require(fcinfo, 1, gettext_noop("length of the time slots must not be null"));
	every = dlock_value_to_span(PG_GETARG_INTERVAL_P(1));
	if (every <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("length of the time slots must be greater than zero"),
				 errhint("Pass the length of a slot, such as '1 day'.")));
	if (every > limit)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("length of the time slots is longer than \"dlock.max_ttl\""),
				 errdetail("The limit is %d seconds.", dlock_settings_max_ttl_s),
				 errhint("Pass a shorter length, or raise \"dlock.max_ttl\".")));

	dlock_session_check_writable("dlock_once");
	dlock_session_open(&db);
	token = dlock_once_win(&db, &name, every, Min(limit, DLOCK_SPAN_MAX));
	dlock_session_close(&db);
	if (token == DLOCK_TOKEN_NONE)
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

/* dlock_once(name, every) -> token or null */
Datum
dlock_sql_once(PG_FUNCTION_ARGS)
{
	return dlock_grants_call(once, fcinfo);
}

/* ---- groups: arguments ---- */

static const DLockNameKind group_name = {
	DLOCK_GROUP_NAME_MAX,
	gettext_noop("group name must not be null"),
	gettext_noop("group name must not be empty"),
	gettext_noop("group name is too long")
};

static const DLockNameKind member_name = {
	DLOCK_GROUP_NAME_MAX,
	gettext_noop("member name must not be null"),
	gettext_noop("member name must not be empty"),
	gettext_noop("member name is too long")
};

static DLockBytes
get_group_name(FunctionCallInfo fcinfo, int argno)
{
	DLockBytes	name;

	name = dlock_value_get_text(fcinfo, argno, &group_name);
	if (memchr(name.data, '/', name.len) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("group name \"%.*s\" contains a slash", name.len, name.data),
				 errhint("Use another character.")));
	return name;
}

/* The names of the partitions, from "count" or "names". */
static ArrayType *
get_partitions(FunctionCallInfo fcinfo)
{
	int			count;
	Datum	   *names;

	if (PG_ARGISNULL(1) == PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("either count or names of the partitions must be given"),
				 errhint("Partitions that are counted are named 0, 1, 2 and so on.")));
	if (!PG_ARGISNULL(2))
		return PG_GETARG_ARRAYTYPE_P(2);
	count = PG_GETARG_INT32(1);
	if (count < 1 || count > DLOCK_GROUP_PARTITIONS_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("count of partitions must be from 1 to %d", DLOCK_GROUP_PARTITIONS_MAX),
				 errdetail("The number given is %d.", count),
				 errhint("Use several partitions for each member, not one for each key.")));
	names = palloc(count * sizeof(Datum));
	for (int i = 0; i < count; i++)
		names[i] = CStringGetTextDatum(psprintf("%d", i));
	return construct_array(names, count, TEXTOID, -1, false, TYPALIGN_INT);
}

/* ---- groups: definitions ---- */

/* dlock_group_create(group, count, names) -> how many partitions */
Datum
dlock_sql_group_create(PG_FUNCTION_ARGS)
{
	DLockBytes	name = get_group_name(fcinfo, 0);
	ArrayType  *partitions = get_partitions(fcinfo);

	dlock_owned_create_group(&name, partitions);
	PG_RETURN_INT32(ARR_DIMS(partitions)[0]);
}

/* dlock_group_alter(group, count, names) -> how many partitions */
Datum
dlock_sql_group_alter(PG_FUNCTION_ARGS)
{
	DLockBytes	name = get_group_name(fcinfo, 0);
	ArrayType  *partitions = get_partitions(fcinfo);

	dlock_owned_alter_group(&name, partitions);
	PG_RETURN_INT32(ARR_DIMS(partitions)[0]);
}

/* dlock_group_drop(group) -> was there one? */
Datum
dlock_sql_group_drop(PG_FUNCTION_ARGS)
{
	DLockBytes	name = get_group_name(fcinfo, 0);

	PG_RETURN_BOOL(dlock_owned_drop_group(&name));
}

/* ---- groups: members ---- */

/* The tokens of partitions in an array; none if it is NULL. */
static DLockToken *
get_tokens(FunctionCallInfo fcinfo, int argno, int *count)
{
	ArrayType  *array;
	Datum	   *values;
	bool	   *nulls;
	DLockToken *tokens;

	*count = 0;
	if (PG_ARGISNULL(argno))
		return NULL;
	array = PG_GETARG_ARRAYTYPE_P(argno);
	deconstruct_array(array, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE,
					  &values, &nulls, count);
	if (*count > DLOCK_GROUP_PARTITIONS_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("too many fencing tokens"),
				 errdetail("The array has %d tokens; the limit is %d.",
						   *count, DLOCK_GROUP_PARTITIONS_MAX)));
	tokens = palloc((*count + 1) * sizeof(DLockToken));
	for (int i = 0; i < *count; i++)
	{
		if (nulls[i])
			dlock_error_null(gettext_noop("fencing token must not be null"));
		tokens[i] = DatumGetInt64(values[i]);
	}
	return tokens;
}

/* The payload of a membership: its weight, and the member's payload if there is one. */
static DLockBytes
make_membership(int weight, const DLockBytes *given)
{
	char	   *text = (given->len == 0) ? psprintf("{\"weight\": %d}", weight) :
		psprintf("{\"weight\": %d, \"payload\": %s}", weight,
				 JsonbToCString(NULL, (JsonbContainer *) given->data, given->len));
	Jsonb	   *membership = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(text)));
	DLockBytes	bytes;

	bytes = dlock_bytes(VARDATA(membership), VARSIZE(membership) - VARHDRSZ);
	dlock_name_check(&dlock_name_payload, bytes.len);
	return bytes;
}

static Datum
group_join(PG_FUNCTION_ARGS)
{
	DLockGroup	group = {.name = get_group_name(fcinfo, 0)};
	DLockBytes	member;
	DLockTime	ttl;
	DLockBytes	payload;
	DLockDatabase db;
	DLockToken	token;

	member = dlock_value_get_text(fcinfo, 1, &member_name);
	ttl = dlock_value_get_ttl(fcinfo, 2, true);
	dlock_value_require(fcinfo, 3, gettext_noop("weight must not be null"));
	if (PG_GETARG_INT32(3) < 1 || PG_GETARG_INT32(3) > DLOCK_RULE_WEIGHT_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("weight must be from 1 to %d", DLOCK_RULE_WEIGHT_MAX),
				 errdetail("The weight given is %d.", PG_GETARG_INT32(3)),
				 errhint("A member gets partitions in proportion to its weight.")));
	payload = dlock_value_get_payload(fcinfo, 4);
	payload = make_membership(PG_GETARG_INT32(3), &payload);

	dlock_owned_use_group(&group, "dlock_group_join");
	dlock_session_open(&db);
	token = dlock_group_join(&db, &group, &member, ttl, &payload);
	dlock_session_close(&db);
	PG_RETURN_INT64(token);
}

/* dlock_group_join(group, member, ttl, weight, payload) -> token */
Datum
dlock_sql_group_join(PG_FUNCTION_ARGS)
{
	return dlock_grants_call(group_join, fcinfo);
}

static Datum
group_heartbeat(PG_FUNCTION_ARGS)
{
	DLockGroup	group = {.name = get_group_name(fcinfo, 0)};
	DLockToken	token = dlock_value_get_token(fcinfo, 1);
	int			yielded_count;
	DLockToken *yielded = get_tokens(fcinfo, 2, &yielded_count);
	DLockDatabase db;

	InitMaterializedSRF(fcinfo, 0);
	dlock_owned_use_group(&group, "dlock_group_heartbeat");
	dlock_session_open(&db);
	dlock_group_beat(&db, &group, token, yielded, yielded_count);
	dlock_session_close(&db);

	for (int i = 0; i < group.partition_count; i++)
	{
		DLockGroupPartition *partition = &group.partitions[i];
		DLockValueRow row = {0};

		if (partition->action == DLOCK_GROUP_NONE)
			continue;
		dlock_value_add(&row, true, dlock_name_to_text(partition->name));
		dlock_value_add(&row, true, Int64GetDatum(partition->token));
		dlock_value_add(&row, true,
						CStringGetTextDatum(partition->action == DLOCK_GROUP_RUN ? "run" : "yield"));
		dlock_value_put(&row, fcinfo);
	}
	return (Datum) 0;
}

/* dlock_group_heartbeat(group, token, yielded) -> what to run and to yield */
Datum
dlock_sql_group_heartbeat(PG_FUNCTION_ARGS)
{
	return dlock_grants_call(group_heartbeat, fcinfo);
}

/* dlock_group_yield(group, token, yielded) -> how many */
Datum
dlock_sql_group_yield(PG_FUNCTION_ARGS)
{
	DLockGroup	group = {.name = get_group_name(fcinfo, 0)};
	DLockToken	token = dlock_value_get_token(fcinfo, 1);
	int			count;
	DLockToken *yielded = get_tokens(fcinfo, 2, &count);
	DLockDatabase db;
	int			released;

	if (yielded == NULL)
		dlock_error_null(gettext_noop("array of fencing tokens must not be null"));
	dlock_session_check_writable("dlock_group_yield");
	dlock_session_open(&db);
	released = dlock_group_yield(&db, &group, token, yielded, count);
	dlock_session_close(&db);
	PG_RETURN_INT32(released);
}

/* dlock_group_leave(group, token) -> boolean */
Datum
dlock_sql_group_leave(PG_FUNCTION_ARGS)
{
	DLockGroup	group = {.name = get_group_name(fcinfo, 0)};
	DLockToken	token = dlock_value_get_token(fcinfo, 1);
	DLockDatabase db;
	bool		left;

	dlock_session_check_writable("dlock_group_leave");
	dlock_session_open(&db);
	left = dlock_group_leave(&db, &group, token);
	dlock_session_close(&db);
	PG_RETURN_BOOL(left);
}

/* ---- groups: reading ---- */

/* The members and partitions of a group; none if there is no such group, or on a standby. */
static DLockGroup
read_group(FunctionCallInfo fcinfo)
{
	DLockGroup	group = {.name = get_group_name(fcinfo, 0)};
	DLockDatabase db;

	if (RecoveryInProgress() || !dlock_owned_find_group(&group))
		return group;
	dlock_session_open(&db);
	dlock_group_look(&db, &group);
	dlock_session_close(&db);
	return group;
}

/* A deadline on the present wall clock. */
static Datum
expiry_of(const DLockGroup *group, DLockTime deadline)
{
	return TimestampTzGetDatum(dlock_clock_wall() + (deadline - group->now));
}

/* The member's own payload; false if there is none. */
static bool
payload_of(const DLockGroupMember *member, Datum *payload)
{
	Jsonb	   *membership = DatumGetJsonbP(dlock_name_to_jsonb(member->payload));
	JsonbValue	value;

	if (getKeyJsonValueFromContainer(&membership->root, "payload", strlen("payload"), &value) == NULL)
		return false;
	*payload = JsonbPGetDatum(JsonbValueToJsonb(&value));
	return true;
}

/* dlock_group_member_list(group) -> its members */
Datum
dlock_sql_group_member_list(PG_FUNCTION_ARGS)
{
	DLockGroup	group = read_group(fcinfo);

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < group.member_count; i++)
	{
		DLockGroupMember *member = &group.members[i];
		DLockRuleMember *share = &group.shares[i];
		Datum		payload = 0;
		bool		has_payload = payload_of(member, &payload);
		DLockValueRow row = {0};

		dlock_value_add(&row, true, dlock_name_to_text(member->name));
		dlock_value_add(&row, true, Int64GetDatum(member->token));
		dlock_value_add(&row, true, Int32GetDatum(share->weight));
		dlock_value_add(&row, true, Int32GetDatum(share->owned));
		dlock_value_add(&row, true, Int32GetDatum(share->quota));
		dlock_value_add(&row, true, ObjectIdGetDatum(member->role));
		dlock_value_add(&row, true, TimestampTzGetDatum(member->joined_at));
		dlock_value_add(&row, true, expiry_of(&group, member->told_until));
		dlock_value_add(&row, true, dlock_value_of_span(member->ttl));
		dlock_value_add(&row, has_payload, payload);
		dlock_value_put(&row, fcinfo);
	}
	return (Datum) 0;
}

/* dlock_group_partition_list(group) -> the partitions and their owners */
Datum
dlock_sql_group_partition_list(PG_FUNCTION_ARGS)
{
	DLockGroup	group = read_group(fcinfo);

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < group.partition_count; i++)
	{
		DLockGroupPartition *partition = &group.partitions[i];
		bool		owned = partition->member >= 0;
		bool		leased = partition->token != DLOCK_TOKEN_NONE;
		DLockValueRow row = {0};

		dlock_value_add(&row, true, dlock_name_to_text(partition->name));
		dlock_value_add(&row, owned, owned ? dlock_name_to_text(group.members[partition->member].name) : 0);
		dlock_value_add(&row, leased, Int64GetDatum(partition->token));
		dlock_value_add(&row, leased, TimestampTzGetDatum(partition->since));
		dlock_value_add(&row, leased, leased ? expiry_of(&group, partition->told_until) : 0);
		dlock_value_put(&row, fcinfo);
	}
	return (Datum) 0;
}
