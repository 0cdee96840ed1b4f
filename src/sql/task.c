/*-------------------------------------------------------------------------
 *
 * task.c
 *	  What the functions on tasks, which are in the extension's script, need of the
 *	  library: their language, arguments, the right to a queue, tokens, clocks.
 *
 * NOTES
 *	  Tasks are rows of tables that only the owner of the extension can read and
 *	  change.  A function that is SECURITY DEFINER does not know the role that called
 *	  it, but that role decides which queues may be used.  So the functions are in
 *	  a language of their own.  dlock_plpgsql is PL/pgSQL whose call handler checks the
 *	  arguments, opens the leases, notes the caller, becomes the owner and pins
 *	  settings.
 *
 *	  A row of a task has no foreign key to its queue: it would lock the queue's row
 *	  once for each task that is put.  All functions take a shared lock on the number of
 *	  the queue instead, and dlock_task_drop_queue() an exclusive one.
 *
 * IDENTIFICATION
 *	  src/sql/task.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "jit/jit.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "optimizer/cost.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/settings.h"
#include "base/value.h"
#include "pattern/owned.h"
#include "session/session.h"
#include "sql/argument.h"
#include "sql/task.h"
#include "worker/tasksweep.h"

PG_FUNCTION_INFO_V1(dlock_sql_task_handler);
PG_FUNCTION_INFO_V1(dlock_sql_task_caller);
PG_FUNCTION_INFO_V1(dlock_sql_task_open);
PG_FUNCTION_INFO_V1(dlock_sql_task_tokens);
PG_FUNCTION_INFO_V1(dlock_sql_task_clip);
PG_FUNCTION_INFO_V1(dlock_sql_task_clock);
PG_FUNCTION_INFO_V1(dlock_sql_task_end);
PG_FUNCTION_INFO_V1(dlock_sql_task_until);
PG_FUNCTION_INFO_V1(dlock_sql_task_wall_time);

/* Limits of what a caller may hand in; lengths in bytes. */
#define NAME_MAX_LEN	255		/* of a queue or a key */
#define STATE_MAX_LEN	63
#define ERROR_MAX_LEN	1024	/* what is more is cut off */
#define STATES_MAX		16		/* that one call captures from */
#define DELAY_MAX		(36500 * USECS_PER_DAY)

/* A column of the table of queues. */
#define QUEUE_ID		3

/* ---- arguments ---- */

static void
check_queue(FunctionCallInfo fcinfo, int argno)
{
	(void) dlock_name_of_text(PG_GETARG_TEXT_PP(argno), "queue name", NAME_MAX_LEN);
}

static void
check_key(FunctionCallInfo fcinfo, int argno)
{
	(void) dlock_name_of_text(PG_GETARG_TEXT_PP(argno), "task key", NAME_MAX_LEN);
}

/* Throw 22023 unless it can be the name of a state. */
static void
check_state_name(text *value)
{
	DLockBytes	state = dlock_name_of_text(value, "task state", STATE_MAX_LEN);
	bool		bad = state.data[0] == ' ' || state.data[state.len - 1] == ' ';

	for (int i = 0; i + 1 < state.len; i++)
		bad |= memcmp(state.data + i, "->", 2) == 0;
	if (bad)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid state \"%.*s\"", state.len, state.data),
				 errdetail("It begins or ends with a blank, or has \"->\" in it."),
				 errhint("Use a word.")));
}

static void
check_state(FunctionCallInfo fcinfo, int argno)
{
	check_state_name(PG_GETARG_TEXT_PP(argno));
}

static void
check_states(FunctionCallInfo fcinfo, int argno)
{
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(argno);
	Datum	   *values;
	bool	   *nulls;
	int			count;

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &values, &nulls, &count);
	if (ARR_NDIM(array) > 1 || count == 0 || count > STATES_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("number of states must be from 1 to %d, in one dimension", STATES_MAX),
				 errdetail("The number given is %d.", count),
				 errhint("Pass an array of states, or NULL for the initial one.")));
	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			dlock_error_null("task state");
		check_state_name(DatumGetTextPP(values[i]));
	}
}

static void
check_number(int number, const char *what, int largest)
{
	if (number <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be greater than zero", what),
				 errdetail("The number given is %d.", number),
				 errhint("Pass at least 1.")));
	if (number > largest)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be greater than %d", what, largest),
				 errdetail("The number given is %d.", number)));
}

/* Of tasks to capture, or to purge. */
static void
check_count(FunctionCallInfo fcinfo, int argno)
{
	check_number(PG_GETARG_INT32(argno), "number of tasks",
				 fcinfo->flinfo->fn_retset ? 1000 : 1000000);
}

static void
check_attempts(FunctionCallInfo fcinfo, int argno)
{
	check_number(PG_GETARG_INT32(argno), "max_attempts", PG_INT32_MAX);
}

static void
check_age(FunctionCallInfo fcinfo, int argno)
{
	if (dlock_argument_interval(PG_GETARG_INTERVAL_P(argno)) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("older_than must not be negative"),
				 errhint("Pass '0' for all that are finished.")));
}

static void
check_token(FunctionCallInfo fcinfo, int argno)
{
	(void) dlock_argument_token(fcinfo, argno);
}

static void
take_ttl(FunctionCallInfo fcinfo, int argno)
{
	fcinfo->args[argno].value = dlock_value_interval(dlock_argument_ttl(fcinfo, argno, false));
}

static void
take_delay(FunctionCallInfo fcinfo, int argno)
{
	DLockTime	delay = dlock_argument_interval(PG_GETARG_INTERVAL_P(argno));

	if (delay < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("delay must not be negative"),
				 errhint("Pass '0' for none.")));
	if (delay > DELAY_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("delay must not be longer than 36500 days")));
	fcinfo->args[argno].value = dlock_value_interval(delay);
	fcinfo->args[argno].isnull = delay == 0;
}

static void
take_owner(FunctionCallInfo fcinfo, int argno)
{
	fcinfo->args[argno].value = dlock_value_text(dlock_argument_owner(fcinfo, argno));
	fcinfo->args[argno].isnull = false;
}

/*
 * What is checked, by the names of parameters, of all functions in the language.  Where
 * "what", which is for errors, is NULL the check takes care of nulls.
 */
static const struct
{
	const char *name;
	const char *what;
	bool		required;		/* even if it has a default */
	void		(*check) (FunctionCallInfo fcinfo, int argno);
}			parameters[] =

{
	{"queue", "queue name", true, check_queue},
	{"key", "task key", true, check_key},
	{"token", NULL, false, check_token},
	{"state", "task state", false, check_state},
	{"to_state", "task state", true, check_state},
	{"from_states", "task state", false, check_states},
	{"on_timeout", "task state", false, check_state},
	{"initial", "task state", true, check_state},
	{"done", "task state", true, check_state},
	{"parked", "task state", true, check_state},
	{"max_attempts", "max_attempts", false, check_attempts},
	{"priority", "priority", true, NULL},
	{"count", "number of tasks", true, check_count},
	{"owner", NULL, true, take_owner},
	{"ttl", "ttl", false, take_ttl},
	{"delay", "delay", false, take_delay},
	{"older_than", "older_than", true, check_age},
};

/* Check an argument; one that has no default must not be null. */
static void
check_argument(FunctionCallInfo fcinfo, int argno, const char *name, bool has_default)
{
	for (size_t i = 0; i < lengthof(parameters); i++)
	{
		if (strcmp(name, parameters[i].name) != 0)
			continue;
		if (PG_ARGISNULL(argno))
		{
			if (has_default && !parameters[i].required)
				return;
			if (parameters[i].what != NULL)
				dlock_error_null(parameters[i].what);
		}
		if (parameters[i].check != NULL)
			parameters[i].check(fcinfo, argno);
		return;
	}
}

/* Check the arguments of a call. */
static void
check_arguments(FunctionCallInfo fcinfo)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(fcinfo->flinfo->fn_oid));
	int			defaults;
	bool		isnull;
	Datum		array;
	Datum	   *names;
	int			count;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", fcinfo->flinfo->fn_oid);
	defaults = ((Form_pg_proc) GETSTRUCT(tuple))->pronargdefaults;
	array = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_proargnames, &isnull);
	if (isnull)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("function in language dlock_plpgsql has no names of parameters")));
	deconstruct_array(DatumGetArrayTypeP(array), TEXTOID, -1, false, TYPALIGN_INT, &names, NULL,
					  &count);
	for (int i = 0; i < PG_NARGS(); i++)
		check_argument(fcinfo, i, TextDatumGetCString(names[i]), i >= PG_NARGS() - defaults);
	ReleaseSysCache(tuple);
}

/* ---- the language dlock_plpgsql ---- */

/* A call of a function in it. */
typedef struct DLockTaskCall
{
	DLockDatabase db;
	Oid			caller;			/* the role that called */
	int			caller_context; /* its security context */
	int			nest_level;		/* of settings */
} DLockTaskCall;

/* The innermost call, or NULL. */
static DLockTaskCall *current = NULL;

/*
 * Settings of the planner while functions run: it goes by the indexes that are there for
 * our statements.  With statistics from when the table was empty it would rather read or
 * sort it as a whole.
 */
static const struct
{
	const char *name;
	bool	   *value;
	bool		pinned;
}			settings[] =

{
	{"enable_seqscan", &enable_seqscan, false},
	{"enable_bitmapscan", &enable_bitmapscan, false},
	{"enable_sort", &enable_sort, false},
	{"enable_indexscan", &enable_indexscan, true},
	{"enable_tidscan", &enable_tidscan, true},
	{"enable_nestloop", &enable_nestloop, true},
	{"jit", &jit_enabled, false},
};

static void
set_option(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0,
							 false);
}

/* Open the leases and become the owner of the extension. */
static void
enter(DLockTaskCall *call, Oid function)
{
	char	   *schema;

	if (XactReadOnly || RecoveryInProgress())
		dlock_session_check_writable(get_func_name(function));
	dlock_session_open(&call->db);
	GetUserIdAndSecContext(&call->caller, &call->caller_context);
	SetUserIdAndSecContext(call->db.rel->rd_rel->relowner,
						   call->caller_context | SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_NOFORCE_RLS);
	call->nest_level = NewGUCNestLevel();
	schema = get_namespace_name(RelationGetNamespace(call->db.rel));
	set_option("search_path", psprintf("pg_catalog, %s, pg_temp", quote_identifier(schema)));
	for (size_t i = 0; i < lengthof(settings); i++)
	{
		if (*settings[i].value != settings[i].pinned)
			set_option(settings[i].name, settings[i].pinned ? "on" : "off");
	}
}

/* Go back to what was before. */
static void
leave(DLockTaskCall *call)
{
	AtEOXact_GUC(false, call->nest_level);
	SetUserIdAndSecContext(call->caller, call->caller_context);
	dlock_session_close(&call->db);
}

/*
 * The call handler.  An error undoes what enter() has done, but for our variable.
 */
Datum
dlock_sql_task_handler(PG_FUNCTION_ARGS)
{
	static PGFunction plpgsql = NULL;
	DLockTaskCall *outer = current;
	DLockTaskCall call;
	Datum		result;

	LOCAL_FCINFO(copy, FUNC_MAX_ARGS);

	if (plpgsql == NULL)
		plpgsql = load_external_function("$libdir/plpgsql", "plpgsql_call_handler", true, NULL);

	/*
	 * States are compared by their bytes, whatever the collation of an
	 * argument.
	 */
	memcpy(copy, fcinfo, SizeForFunctionCallInfo(PG_NARGS()));
	copy->fncollation = DEFAULT_COLLATION_OID;
	check_arguments(copy);
	enter(&call, fcinfo->flinfo->fn_oid);
	current = &call;
	PG_TRY();
	{
		result = plpgsql(copy);
	}
	PG_FINALLY();
	{
		current = outer;
	}
	PG_END_TRY();
	leave(&call);
	fcinfo->isnull = copy->isnull;
	return result;
}

/* The call that runs. */
static DLockTaskCall *
get_call(void)
{
	if (current == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this function is for functions in the language dlock_plpgsql")));
	return current;
}

/* Throw 55000 unless a function in dlock_plpgsql runs. */
void
dlock_task_check_call(void)
{
	(void) get_call();
}

/* dlock_task_caller() -> the role that called */
Datum
dlock_sql_task_caller(PG_FUNCTION_ARGS)
{
	PG_RETURN_OID(get_call()->caller);
}

/* ---- queues and tokens ---- */

/*
 * dlock_task_open(queue, exclusive) -> the row of a queue, which is locked
 *
 * The right is checked before that: a role must not be able to hold others up, or have
 * to wait, by a queue that it may not use.  While it waited, the queue may have been
 * dropped, and another one of its name be there.
 */
Datum
dlock_sql_task_open(PG_FUNCTION_ARGS)
{
	DLockTaskCall *call = get_call();
	DLockBytes	name = dlock_name_of_text(PG_GETARG_TEXT_PP(0), "queue name", NAME_MAX_LEN);
	LOCKMODE	lockmode = PG_GETARG_BOOL(1) ? AccessExclusiveLock : AccessShareLock;
	Relation	rel = dlock_owned_open(RelationGetNamespace(call->db.rel), "dlock_task_queue",
									   AccessShareLock);
	uint32		locked = 0;
	HeapTuple	tuple;
	Datum		row;

	for (;;)
	{
		bool		isnull;
		Oid			role;
		uint32		id;

		tuple = dlock_owned_find(rel, &name);
		if (!HeapTupleIsValid(tuple))
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("task queue \"%.*s\" does not exist", name.len, name.data),
					 errhint("Create it with dlock_task_create_queue().")));
		role = dlock_owned_role(rel, tuple);
		if (!has_privs_of_role(call->caller, role))
		{
			char	   *rolename = GetUserNameFromId(role, true);

			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied for task queue \"%.*s\"", name.len, name.data),
					 rolename != NULL ? errdetail("It was created by role \"%s\".", rolename) :
					 errdetail("The role that created it no longer exists."),
					 errhint("Only that role, its members and superusers can use it.")));
		}
		id = DatumGetUInt32(heap_getattr(tuple, QUEUE_ID, RelationGetDescr(rel), &isnull));
		if (id == locked || !dlock_owned_lock(rel, id, lockmode))
			break;
		locked = id;
	}
	row = heap_copy_tuple_as_datum(tuple, RelationGetDescr(rel));
	table_close(rel, AccessShareLock);
	PG_RETURN_DATUM(row);
}

/* dlock_task_tokens(queue, count, seen) -> the first of the tokens */
Datum
dlock_sql_task_tokens(PG_FUNCTION_ARGS)
{
	DLockDatabase *db = &get_call()->db;
	int			count = PG_GETARG_INT32(1);
	DLockToken	seen = PG_ARGISNULL(2) ? DLOCK_TOKEN_NONE : PG_GETARG_INT64(2);
	DLockToken	first;

	for (;;)
	{
		if (!dlock_token_take(&db->shared->tokens, count, true, &first))
			dlock_database_fetch_tokens(db, count);
		else if (first > seen)
			PG_RETURN_INT64(first);

		/*
		 * A copied row.  Its database may have begun later than ours, by its
		 * clock.
		 */
		else if (seen < dlock_rule_token_clock(dlock_clock_wall()))
			(void) dlock_database_move_tokens(db, DLOCK_TOKEN_NONE);
		else
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("a task of queue \"%s\" has seen token %lld, which is above those of this database",
							text_to_cstring(PG_GETARG_TEXT_PP(0)), (long long) seen),
					 errdetail("Its row was copied from another database."),
					 errhint("Call dlock_bump_epoch() with that number as \"above\".")));
	}
}

/* dlock_task_clip(error) -> what is kept of it: not a part of a character, and not nothing */
Datum
dlock_sql_task_clip(PG_FUNCTION_ARGS)
{
	text	   *error = PG_GETARG_TEXT_PP(0);
	int			len = VARSIZE_ANY_EXHDR(error);

	if (len == 0)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text_with_len(VARDATA_ANY(error),
											  pg_mbcliplen(VARDATA_ANY(error), len, ERROR_MAX_LEN)));
}

/* ---- clocks ---- */

/* dlock_task_clock() -> now, by the clock that does not step */
Datum
dlock_sql_task_clock(PG_FUNCTION_ARGS)
{
	PG_RETURN_TIMESTAMPTZ(dlock_clock_steady());
}

/*
 * dlock_task_end(ttl) -> the ttl, or for null the default one; when to look at what ends
 * so far from now; the end by the wall clock; the boot; the end by the clock of that
 *
 * Once this transaction has committed, the reaper looks at that time.
 */
Datum
dlock_sql_task_end(PG_FUNCTION_ARGS)
{
	DLockTime	span = PG_ARGISNULL(0) ? dlock_argument_ttl(fcinfo, 0, true) : PG_GETARG_INTERVAL_P(0)->time;

	/*
	 * The wall clock first, so that nothing ends before the time that is
	 * told.
	 */
	TimestampTz wall = dlock_clock_wall();
	DLockTime	ends = dlock_clock_now() + span;
	Datum		values[5];
	bool		nulls[5] = {0};
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	values[0] = dlock_value_interval(span);
	values[1] = TimestampTzGetDatum(ends + dlock_clock_steady_offset());
	values[2] = TimestampTzGetDatum(wall + span);
	values[3] = Int32GetDatum((int32) dlock_clock_boot());
	values[4] = dlock_value_interval(ends);
	if (span > 0)
		dlock_tasksweep_note(get_call()->db.shared, ends);
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}

/*
 * dlock_task_until(deadline, boot, ends) -> when that is, by the clock that does not step
 *
 * On the boot that wrote it the monotonic clock still tells, also on a standby and
 * after a restart.  Otherwise the wall clocks are compared as they are now, and given
 * dlock.max_clock_skew in favour of the capturer.
 */
Datum
dlock_sql_task_until(PG_FUNCTION_ARGS)
{
	uint32		boot = (uint32) PG_GETARG_INT32(1);

	if (boot != 0 && boot == dlock_clock_boot())
		PG_RETURN_TIMESTAMPTZ(PG_GETARG_INTERVAL_P(2)->time + dlock_clock_steady_offset());
	PG_RETURN_TIMESTAMPTZ(PG_GETARG_TIMESTAMPTZ(0) +
						  (DLockTime) dlock_settings_max_clock_skew_ms * 1000 +
						  (dlock_clock_steady() - dlock_clock_wall()));
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
