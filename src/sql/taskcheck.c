/*-------------------------------------------------------------------------
 *
 * taskcheck.c
 *	  Arguments of functions on tasks.
 *
 * NOTES
 *	  They are checked by the names of parameters, so that a function in the
 *	  extension's script has only to name them.  What is checked is put in place: an
 *	  owner that is null becomes this session, an interval a number of microseconds.
 *
 * IDENTIFICATION
 *	  src/sql/taskcheck.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "base/error.h"
#include "base/name.h"
#include "base/value.h"
#include "session/taskwait.h"
#include "sql/argument.h"
#include "sql/taskcheck.h"

/* Limits of what a caller may hand in; lengths in bytes. */
#define NAME_MAX_LEN	255		/* of a queue or a key */
#define STATE_MAX_LEN	63
#define ERROR_MAX_LEN	1024	/* that is kept */
#define STATES_MAX		DLOCK_TASKWAIT_STATES	/* that one call captures from */
#define DELAY_MAX		(36500 * USECS_PER_DAY)

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

/* What is kept of an error: not a part of a character, and not nothing. */
static void
take_error(FunctionCallInfo fcinfo, int argno)
{
	text	   *error = PG_GETARG_TEXT_PP(argno);
	int			len = VARSIZE_ANY_EXHDR(error);

	len = pg_mbcliplen(VARDATA_ANY(error), len, ERROR_MAX_LEN);
	fcinfo->args[argno].value = dlock_value_text(dlock_bytes(VARDATA_ANY(error), len));
	fcinfo->args[argno].isnull = len == 0;
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
	{"error", "error", false, take_error},
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

/* Check the arguments of a call; returns how long it may wait. */
DLockTime
dlock_taskcheck_arguments(FunctionCallInfo fcinfo)
{
	DLockTime	wait = 0;
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
	{
		char	   *name = TextDatumGetCString(names[i]);

		if (strcmp(name, "wait") == 0)
			wait = dlock_argument_wait(fcinfo, i);
		else
			check_argument(fcinfo, i, name, i >= PG_NARGS() - defaults);
	}
	ReleaseSysCache(tuple);
	return wait;
}
