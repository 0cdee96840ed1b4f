/*-------------------------------------------------------------------------
 *
 * task.c
 *	  The SQL functions on tasks: arguments in, results out.
 *
 * IDENTIFICATION
 *	  src/sql/task.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/name.h"
#include "pattern/task.h"
#include "pattern/taskqueue.h"
#include "sql/argument.h"

PG_FUNCTION_INFO_V1(dlock_sql_task_create_queue);
PG_FUNCTION_INFO_V1(dlock_sql_task_drop_queue);
PG_FUNCTION_INFO_V1(dlock_sql_task_put);
PG_FUNCTION_INFO_V1(dlock_sql_task_set);
PG_FUNCTION_INFO_V1(dlock_sql_task_capture);
PG_FUNCTION_INFO_V1(dlock_sql_task_extend);
PG_FUNCTION_INFO_V1(dlock_sql_task_finish);
PG_FUNCTION_INFO_V1(dlock_sql_task_fail);
PG_FUNCTION_INFO_V1(dlock_sql_task_release);
PG_FUNCTION_INFO_V1(dlock_sql_task_purge);
PG_FUNCTION_INFO_V1(dlock_sql_task_until);
PG_FUNCTION_INFO_V1(dlock_sql_task_wall_time);

#define CAPTURE_COLUMNS		7

/* ---- arguments ---- */

static DLockBytes
get_queue(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(0))
		dlock_error_null("queue name");
	return dlock_name_of_text(PG_GETARG_TEXT_PP(0), "queue name", DLOCK_TASK_NAME_MAX);
}

static DLockBytes
get_key(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(1))
		dlock_error_null("task key");
	return dlock_name_of_text(PG_GETARG_TEXT_PP(1), "task key", DLOCK_TASK_NAME_MAX);
}

static DLockBytes
state_of_text(text *value)
{
	DLockBytes	state = dlock_name_of_text(value, "task state", DLOCK_TASK_STATE_MAX);

	dlock_taskqueue_check_word(&state);
	return state;
}

static DLockBytes
get_state(FunctionCallInfo fcinfo, int argno)
{
	if (PG_ARGISNULL(argno))
		dlock_error_null("task state");
	return state_of_text(PG_GETARG_TEXT_PP(argno));
}

/* The same; no bytes for null, which leaves it to the queue. */
static DLockBytes
get_state_or_none(FunctionCallInfo fcinfo, int argno)
{
	if (PG_ARGISNULL(argno))
		return (DLockBytes) {NULL, 0};
	return get_state(fcinfo, argno);
}

static int
get_number(FunctionCallInfo fcinfo, int argno, const char *what, int limit)
{
	int32		number;

	if (PG_ARGISNULL(argno))
		dlock_error_null(what);
	number = PG_GETARG_INT32(argno);
	if (number <= 0)
		dlock_error_number(what, number, "be greater than zero", "Pass at least 1.");
	if (number > limit)
		dlock_error_number(what, number, "not be so large", psprintf("Pass at most %d.", limit));
	return number;
}

/* The task and the token that it was captured with. */
static DLockTaskTarget
get_target(FunctionCallInfo fcinfo, const char *function)
{
	return (DLockTaskTarget)
	{
		.function = function,
		.queue = get_queue(fcinfo),
		.key = get_key(fcinfo),
		.token = dlock_argument_token(fcinfo, 2)
	};
}

/* How long a task is put off; null is not at all. */
static DLockTime
get_delay(FunctionCallInfo fcinfo, int argno)
{
	DLockTime	delay;

	if (PG_ARGISNULL(argno))
		return 0;
	delay = dlock_argument_interval(PG_GETARG_INTERVAL_P(argno));
	if (delay < 0)
		dlock_error_interval("delay", "not be negative", "Pass '0' for none.");
	if (delay > DLOCK_TASK_DELAY_MAX)
		dlock_error_interval("delay", "not be longer than 36500 days", "Pass a shorter one.");
	return delay;
}

/* The states to capture from. */
static void
get_states(FunctionCallInfo fcinfo, int argno, DLockTaskCaptureRequest *request)
{
	ArrayType  *array;
	Datum	   *values;
	bool	   *nulls;
	int			count;

	request->nstates = 0;
	if (PG_ARGISNULL(argno))
		return;
	array = PG_GETARG_ARRAYTYPE_P(argno);
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &values, &nulls, &count);
	if (ARR_NDIM(array) > 1 || count == 0 || count > DLOCK_TASK_STATES_MAX)
		dlock_error_number("number of states", count,
						   psprintf("be from 1 to %d, in one dimension", DLOCK_TASK_STATES_MAX),
						   "Pass an array of states, or NULL for the initial one.");
	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			dlock_error_null("task state");
		request->states[i] = state_of_text(DatumGetTextPP(values[i]));
	}
	request->nstates = count;
}

/* ---- functions ---- */

/* dlock_task_create_queue(queue, transitions, initial, done, parked, max_attempts) */
Datum
dlock_sql_task_create_queue(PG_FUNCTION_ARGS)
{
	DLockTaskDefinition definition = {.queue = get_queue(fcinfo)};

	if (!PG_ARGISNULL(1))
		definition.transitions = PG_GETARG_ARRAYTYPE_P(1);
	definition.initial = get_state(fcinfo, 2);
	definition.done = get_state(fcinfo, 3);
	definition.parked = get_state(fcinfo, 4);
	if (!PG_ARGISNULL(5))
		definition.max_attempts = get_number(fcinfo, 5, "max_attempts", PG_INT32_MAX);
	dlock_taskqueue_create(&definition);
	PG_RETURN_VOID();
}

/* dlock_task_drop_queue(queue) -> how many tasks went with it */
Datum
dlock_sql_task_drop_queue(PG_FUNCTION_ARGS)
{
	DLockBytes	queue = get_queue(fcinfo);

	PG_RETURN_INT64((int64) dlock_taskqueue_drop(&queue));
}

/* dlock_task_put(queue, key, payload, priority, state, delay) -> is it new? */
Datum
dlock_sql_task_put(PG_FUNCTION_ARGS)
{
	DLockTaskNew task = {
		.queue = get_queue(fcinfo),
		.key = get_key(fcinfo),
		.no_payload = PG_ARGISNULL(2)
	};

	if (!task.no_payload)
		task.payload = PG_GETARG_DATUM(2);
	if (PG_ARGISNULL(3))
		dlock_error_null("priority");
	task.priority = PG_GETARG_INT32(3);
	task.state = get_state_or_none(fcinfo, 4);
	task.delay = get_delay(fcinfo, 5);
	PG_RETURN_BOOL(dlock_task_put(&task));
}

/* dlock_task_set(queue, key, state, token) -> the state before */
Datum
dlock_sql_task_set(PG_FUNCTION_ARGS)
{
	DLockTaskTarget target = {
		.function = "dlock_task_set",
		.queue = get_queue(fcinfo),
		.key = get_key(fcinfo),
		.token = DLOCK_TOKEN_NONE
	};
	DLockBytes	state = get_state(fcinfo, 2);

	if (!PG_ARGISNULL(3))
		target.token = dlock_argument_token(fcinfo, 3);
	PG_RETURN_TEXT_P(cstring_to_text(dlock_task_set(&target, &state)));
}

/* A captured task as a row. */
static void
put_captured(const DLockTaskCaptured *task, void *arg)
{
	ReturnSetInfo *result = arg;
	Datum		values[CAPTURE_COLUMNS];
	bool		nulls[CAPTURE_COLUMNS] = {0};

	values[0] = task->key;
	values[1] = Int64GetDatum(task->token);
	values[2] = task->payload;
	nulls[2] = task->no_payload;
	values[3] = Int32GetDatum(task->priority);
	values[4] = Int32GetDatum(task->attempts);
	values[5] = PointerGetDatum(cstring_to_text_with_len(task->from.data, task->from.len));
	values[6] = TimestampTzGetDatum(task->expires_at);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/* dlock_task_capture(queue, count, from_states, to_state, owner, ttl, on_timeout) -> tasks */
Datum
dlock_sql_task_capture(PG_FUNCTION_ARGS)
{
	DLockTaskCaptureRequest request = {.queue = get_queue(fcinfo)};

	request.count = get_number(fcinfo, 1, "number of tasks", DLOCK_TASK_COUNT_MAX);
	get_states(fcinfo, 2, &request);
	request.state = get_state(fcinfo, 3);
	request.owner = dlock_argument_owner(fcinfo, 4);
	request.ttl = dlock_argument_ttl(fcinfo, 5, true);
	request.on_timeout = get_state_or_none(fcinfo, 6);
	InitMaterializedSRF(fcinfo, 0);
	(void) dlock_task_capture(&request, put_captured, fcinfo->resultinfo);
	return (Datum) 0;
}

/* dlock_task_extend(queue, key, token, ttl) -> is it still held? */
Datum
dlock_sql_task_extend(PG_FUNCTION_ARGS)
{
	DLockTaskTarget target = get_target(fcinfo, "dlock_task_extend");

	PG_RETURN_BOOL(dlock_task_extend(&target, dlock_argument_ttl(fcinfo, 3, false)));
}

/* dlock_task_finish(queue, key, token, state) -> was it now? */
Datum
dlock_sql_task_finish(PG_FUNCTION_ARGS)
{
	DLockTaskTarget target = get_target(fcinfo, "dlock_task_finish");
	DLockBytes	state = get_state_or_none(fcinfo, 3);

	PG_RETURN_BOOL(dlock_task_finish(&target, &state));
}

/* dlock_task_fail(queue, key, token, error, state, delay) -> the state after */
Datum
dlock_sql_task_fail(PG_FUNCTION_ARGS)
{
	DLockTaskTarget target = get_target(fcinfo, "dlock_task_fail");
	DLockBytes	state = get_state_or_none(fcinfo, 4);
	DLockBytes	error = {NULL, 0};

	if (!PG_ARGISNULL(3))
	{
		text	   *value = PG_GETARG_TEXT_PP(3);

		error = (DLockBytes) {VARDATA_ANY(value), (int) VARSIZE_ANY_EXHDR(value)};
	}
	PG_RETURN_TEXT_P(cstring_to_text(dlock_task_fail(&target, &error, &state,
													 get_delay(fcinfo, 5))));
}

/* dlock_task_release(queue, key, token, state, delay) -> the state after */
Datum
dlock_sql_task_release(PG_FUNCTION_ARGS)
{
	DLockTaskTarget target = get_target(fcinfo, "dlock_task_release");
	DLockBytes	state = get_state_or_none(fcinfo, 3);

	PG_RETURN_TEXT_P(cstring_to_text(dlock_task_release(&target, &state,
														get_delay(fcinfo, 4))));
}

/* dlock_task_purge(queue, older_than, count) -> how many */
Datum
dlock_sql_task_purge(PG_FUNCTION_ARGS)
{
	DLockBytes	queue = get_queue(fcinfo);

	if (PG_ARGISNULL(1))
		dlock_error_null("older_than");
	if (dlock_argument_interval(PG_GETARG_INTERVAL_P(1)) < 0)
		dlock_error_interval("older_than", "not be negative", "Pass '0' for all that are finished.");
	PG_RETURN_INT64((int64) dlock_task_purge(&queue, PG_GETARG_DATUM(1),
											 get_number(fcinfo, 2, "number of tasks",
														DLOCK_TASK_PURGE_MAX)));
}

/* dlock_task_until(deadline, boot, ends) -> when that is, by the clock that does not step */
Datum
dlock_sql_task_until(PG_FUNCTION_ARGS)
{
	PG_RETURN_TIMESTAMPTZ(dlock_task_until(PG_GETARG_TIMESTAMPTZ(0), (uint32) PG_GETARG_INT32(1),
										   PG_GETARG_INTERVAL_P(2)->time));
}

/* dlock_task_wall_time(deadline) -> when the wall clock, as it goes now, will show it */
Datum
dlock_sql_task_wall_time(PG_FUNCTION_ARGS)
{
	TimestampTz deadline = PG_GETARG_TIMESTAMPTZ(0);

	if (TIMESTAMP_NOT_FINITE(deadline))
		PG_RETURN_TIMESTAMPTZ(deadline);
	PG_RETURN_TIMESTAMPTZ(deadline + (dlock_clock_wall() - dlock_clock_steady()));
}
