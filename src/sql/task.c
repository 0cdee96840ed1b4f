/*-------------------------------------------------------------------------
 *
 * task.c
 *	  What the functions on tasks, which are in the extension's script, need of the
 *	  library: their languages, the right to a queue, tokens, clocks, waiting.
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
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "jit/jit.h"
#include "miscadmin.h"
#include "optimizer/cost.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/settings.h"
#include "pattern/owned.h"
#include "session/capture.h"
#include "session/session.h"
#include "session/wait.h"
#include "sql/value.h"

PG_FUNCTION_INFO_V1(dlock_sql_task_handler);
PG_FUNCTION_INFO_V1(dlock_sql_statement_handler);
PG_FUNCTION_INFO_V1(dlock_sql_task_caller);
PG_FUNCTION_INFO_V1(dlock_sql_task_open);
PG_FUNCTION_INFO_V1(dlock_sql_task_tokens);
PG_FUNCTION_INFO_V1(dlock_sql_task_tell);
PG_FUNCTION_INFO_V1(dlock_sql_task_enlist);
PG_FUNCTION_INFO_V1(dlock_sql_task_plan);
PG_FUNCTION_INFO_V1(dlock_sql_task_begin);
PG_FUNCTION_INFO_V1(dlock_sql_task_looked);
PG_FUNCTION_INFO_V1(dlock_sql_task_look_again);
PG_FUNCTION_INFO_V1(dlock_sql_task_clock);
PG_FUNCTION_INFO_V1(dlock_sql_task_end);
PG_FUNCTION_INFO_V1(dlock_sql_task_until);
PG_FUNCTION_INFO_V1(dlock_sql_task_wall_time);

/* A column of the table of queues. */
#define QUEUE_ID		3

/* ---- the language dlock_plpgsql ---- */

/* A call of a function in it. */
typedef struct DLockTaskCall
{
	DLockDatabase db;
	Oid			caller;			/* the role that called */
	int			caller_context; /* its security context */
	int			nest_level;		/* of settings */
	bool		waits;			/* if it finds no task */
	int32		queue;			/* the one that it has opened; zero if none */
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

	/* While it waited, the extension may have been dropped and created again. */
	if (call->waits && !SearchSysCacheExists1(PROCOID, ObjectIdGetDatum(function)))
		dlock_error_no_extension();
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

/* Run the body.  An error undoes what enter() has done, but for our variable. */
static Datum
run(FunctionCallInfo fcinfo, bool waits)
{
	static PGFunction plpgsql = NULL;
	DLockTaskCall *outer = current;
	DLockTaskCall call = {.waits = waits};
	Datum		result;

	if (plpgsql == NULL)
		plpgsql = load_external_function("$libdir/plpgsql", "plpgsql_call_handler", true, NULL);
	enter(&call, fcinfo->flinfo->fn_oid);
	current = &call;
	PG_TRY();
	{
		result = plpgsql(fcinfo);
	}
	PG_FINALLY();
	{
		current = outer;
	}
	PG_END_TRY();
	leave(&call);
	return result;
}

/* The rows that a look has returned end with its subtransaction: copy them. */
static void
keep_rows(ReturnSetInfo *set)
{
	Tuplestorestate *rows = set->setResult;
	TupleTableSlot *slot;

	MemoryContextSwitchTo(set->econtext->ecxt_per_query_memory);
	slot = MakeSingleTupleTableSlot(set->setDesc, &TTSOpsMinimalTuple);
	set->setResult = tuplestore_begin_heap((set->allowedModes & SFRM_Materialize_Random) != 0, false,
										   work_mem);
	while (tuplestore_gettupleslot(rows, true, false, slot))
		tuplestore_puttupleslot(set->setResult, slot);
	ExecDropSingleTupleTableSlot(slot);
	tuplestore_end(rows);
}

/*
 * Look for tasks once.  False if there are none: then nothing is left of the look, no lock
 * and no transaction id, which could be in the way of others while this waits.
 */
static bool
try_capture(FunctionCallInfo fcinfo)
{
	ReturnSetInfo *set = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool found = false;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		(void) run(fcinfo, true);
		CurrentResourceOwner = owner;
		if (set->setResult != NULL)
		{
			keep_rows(set);
			found = true;
		}
	}
	PG_FINALLY();
	{
		if (found)
			ReleaseCurrentSubTransaction();
		else
			RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
	}
	PG_END_TRY();
	return found;
}

/* Run a capture, and again as long as it finds no task and may wait. */
static void
run_waiting(FunctionCallInfo fcinfo, DLockTime wait)
{
	DLockTime	now = dlock_clock_now();
	DLockTime	deadline = (wait > DLOCK_TIME_FOREVER - now) ? DLOCK_TIME_FOREVER : now + wait;

	/* What a look leaves goes with it: there can be many in one statement. */
	MemoryContext look = AllocSetContextCreate(CurrentMemoryContext, "dlock look", ALLOCSET_SMALL_SIZES);
	MemoryContext context = MemoryContextSwitchTo(look);

	while (!try_capture(fcinfo) && dlock_wait_task(deadline))
		MemoryContextReset(look);
	MemoryContextSwitchTo(context);
	MemoryContextDelete(look);
	dlock_capture_leave();
}

/* The call handler. */
Datum
dlock_sql_task_handler(PG_FUNCTION_ARGS)
{
	DLockTime	wait;
	Datum		result = (Datum) 0;

	LOCAL_FCINFO(copy, FUNC_MAX_ARGS);

	/*
	 * States are compared by their bytes, whatever the collation of an
	 * argument.
	 */
	memcpy(copy, fcinfo, SizeForFunctionCallInfo(PG_NARGS()));
	copy->fncollation = DEFAULT_COLLATION_OID;
	wait = dlock_value_check_task(copy);

	/* A call within a call, in a trigger on our tables, does not wait. */
	if (wait > 0 && current == NULL)
		run_waiting(copy, wait);
	else
		result = run(copy, false);
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

/* dlock_task_caller() -> the role that called */
Datum
dlock_sql_task_caller(PG_FUNCTION_ARGS)
{
	PG_RETURN_OID(get_call()->caller);
}

/* ---- the language dlock_sql ----
 *
 * A function in it is a statement on the tables of tasks.  Under REPEATABLE READ and
 * SERIALIZABLE, too, it sees what is committed now, not what was when the transaction
 * began.  Else a queue in use would refuse nearly everything there: almost any row
 * that can be captured has changed since.  It is planned once in a session, and in one
 * way only.
 *
 * The result is the first column of the first row, NULL if there is no row; or if the
 * statement returns none, how many it has written.  A function that returns a set returns
 * all columns of all rows.
 */

/* A statement as planned, and the row of pg_proc that has its text. */
typedef struct DLockStatement
{
	Oid			function;		/* the key */
	TransactionId xmin;
	ItemPointerData tid;
	SPIPlanPtr	plan;
} DLockStatement;

static HTAB *statements = NULL;

/* Plan a statement, anew if there is a plan. */
static void
prepare(DLockStatement *statement, HeapTuple tuple)
{
	Form_pg_proc proc = (Form_pg_proc) GETSTRUCT(tuple);
	bool		isnull;
	Datum		source = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &isnull);
	SPIPlanPtr	plan = SPI_prepare_cursor(TextDatumGetCString(source), proc->pronargs,
										  proc->proargtypes.values, CURSOR_OPT_GENERIC_PLAN);

	if (plan == NULL)
		elog(ERROR, "could not prepare the statement of function %u: %s", statement->function,
			 SPI_result_code_string(SPI_result));
	SPI_keepplan(plan);
	if (statement->plan != NULL)
		SPI_freeplan(statement->plan);
	statement->plan = plan;
	statement->xmin = HeapTupleHeaderGetRawXmin(tuple->t_data);
	statement->tid = tuple->t_self;
}

/* Find the plan of a function. */
static SPIPlanPtr
find_plan(Oid function)
{
	DLockStatement *statement;
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	bool		found;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", function);
	if (statements == NULL)
	{
		HASHCTL		control = {0};

		control.keysize = sizeof(Oid);
		control.entrysize = sizeof(DLockStatement);
		statements = hash_create("dlock statements", 32, &control, HASH_ELEM | HASH_BLOBS);
	}
	statement = hash_search(statements, &function, HASH_ENTER, &found);
	if (!found)
		statement->plan = NULL;
	if (statement->plan == NULL ||
		statement->xmin != HeapTupleHeaderGetRawXmin(tuple->t_data) ||
		!ItemPointerEquals(&statement->tid, &tuple->t_self))
		prepare(statement, tuple);
	ReleaseSysCache(tuple);
	return statement->plan;
}

/* The first column of the first row, or NULL. */
static Datum
first_value(bool *isnull)
{
	TupleDesc	desc = SPI_tuptable->tupdesc;
	Datum		value = (Datum) 0;

	*isnull = true;
	if (SPI_processed > 0)
		value = SPI_getbinval(SPI_tuptable->vals[0], desc, 1, isnull);
	return *isnull ? value :
		SPI_datumTransfer(value, TupleDescAttr(desc, 0)->attbyval, TupleDescAttr(desc, 0)->attlen);
}

/*
 * Call handler of dlock_sql.  Only functions in dlock_plpgsql have the search_path
 * and the settings of the planner that a statement needs.
 */
Datum
dlock_sql_statement_handler(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *set = (ReturnSetInfo *) fcinfo->resultinfo;
	Snapshot	snapshot = IsolationUsesXactSnapshot() ? GetLatestSnapshot() : InvalidSnapshot;
	SPIPlanPtr	plan;
	Datum		values[FUNC_MAX_ARGS];
	char		nulls[FUNC_MAX_ARGS];
	Datum		result = (Datum) 0;
	int			code;

	(void) get_call();
	if (fcinfo->flinfo->fn_retset)
		InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < PG_NARGS(); i++)
	{
		values[i] = fcinfo->args[i].value;
		nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
	}
	(void) SPI_connect();
	plan = find_plan(fcinfo->flinfo->fn_oid);
	code = SPI_execute_snapshot(plan, values, nulls, snapshot, InvalidSnapshot, false, true, 0);
	if (code < 0)
		elog(ERROR, "could not run the statement of function %u: %s", fcinfo->flinfo->fn_oid,
			 SPI_result_code_string(code));
	if (fcinfo->flinfo->fn_retset)
	{
		for (uint64 i = 0; i < SPI_processed; i++)
			tuplestore_puttuple(set->setResult, SPI_tuptable->vals[i]);
	}
	else if (SPI_tuptable != NULL)
		result = first_value(&fcinfo->isnull);
	else
		result = Int64GetDatum((int64) SPI_processed);
	if (SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "could not disconnect from SPI");
	DLOCK_FAULT_STOP("task_statement");
	return result;
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
	DLockBytes	name = dlock_name_of_text(PG_GETARG_TEXT_PP(0), &dlock_value_queue_name);
	LOCKMODE	lockmode = PG_GETARG_BOOL(1) ? AccessExclusiveLock : AccessShareLock;
	Relation	rel = dlock_owned_open(RelationGetNamespace(call->db.rel), "dlock_task_queue",
									   AccessShareLock);
	HeapTuple	tuple;
	Datum		row;

	do
	{
		bool		isnull;

		tuple = dlock_owned_find_usable(rel, DLOCK_OWNED_QUEUE, &name, call->caller);
		if (!HeapTupleIsValid(tuple))
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("task queue \"%.*s\" does not exist", name.len, name.data),
					 errhint("Create it with dlock_task_create_queue().")));
		call->queue = DatumGetInt32(heap_getattr(tuple, QUEUE_ID, RelationGetDescr(rel), &isnull));
	} while (dlock_owned_lock(rel, (uint32) call->queue, lockmode));
	row = heap_copy_tuple_as_datum(tuple, RelationGetDescr(rel));
	table_close(rel, AccessShareLock);

	/* It is to be dropped. */
	if (lockmode == AccessExclusiveLock)
		dlock_capture_note(call->queue, DLOCK_CAPTURE_ANY, PG_INT32_MAX, DLOCK_CAPTURE_COMMITTED);
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
		if (!dlock_token_take(&db->shared->tokens, count, &first))
			dlock_token_fetch(&db->shared->tokens, db->sequence, count);
		else if (first > seen)
			PG_RETURN_INT64(first);

		/*
		 * A copied row.  Its database may have begun later than ours, by its
		 * clock.
		 */
		else if (seen < dlock_rule_token_clock(dlock_clock_wall()))
			(void) dlock_token_move(&db->shared->tokens, db->sequence, DLOCK_TOKEN_NONE);
		else
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("a task of queue \"%s\" has seen token %lld, which is above those of this database",
							text_to_cstring(PG_GETARG_TEXT_PP(0)), (long long) seen),
					 errdetail("Its row was copied from another database."),
					 errhint("Call dlock_bump_epoch() with that number as \"above\".")));
	}
}

/* ---- waiting for tasks ---- */

/*
 * dlock_task_tell(queue_id, state, committed) -> true
 *
 * A task can be captured once this transaction has committed, or if it was only locked,
 * once it has ended.
 */
Datum
dlock_sql_task_tell(PG_FUNCTION_ARGS)
{
	(void) get_call();
	dlock_capture_note(PG_GETARG_INT32(0), dlock_capture_state(PG_GETARG_TEXT_PP(1)), 1,
					   PG_GETARG_BOOL(2) ? DLOCK_CAPTURE_COMMITTED : DLOCK_CAPTURE_ENDED);
	PG_RETURN_BOOL(true);
}

/*
 * dlock_task_enlist(states) -> whether this capture waits if it finds nothing
 *
 * If so, whatever becomes ready from now on wakes it.
 */
Datum
dlock_sql_task_enlist(PG_FUNCTION_ARGS)
{
	DLockTaskCall *call = get_call();
	uint64		states[DLOCK_CAPTURE_STATES];
	Datum	   *values;
	int			count;

	dlock_capture_begin();
	if (!call->waits)
		PG_RETURN_BOOL(false);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, -1, false, TYPALIGN_INT, &values, NULL, &count);
	for (int i = 0; i < count; i++)
		states[i] = dlock_capture_state(DatumGetTextPP(values[i]));
	dlock_capture_enlist(call->queue, states, count);
	PG_RETURN_BOOL(true);
}

/* dlock_task_plan(due): this capture found nothing; when to look again, or null */
Datum
dlock_sql_task_plan(PG_FUNCTION_ARGS)
{
	(void) get_call();
	dlock_capture_plan(PG_ARGISNULL(0) ? DLOCK_TIME_FOREVER :
					   PG_GETARG_TIMESTAMPTZ(0) - dlock_clock_steady_offset());
	PG_RETURN_VOID();
}

/* ---- where a look begins ---- */

/* dlock_task_begin(state) -> where to begin to look for tasks in it, or for null, for what is over */
Datum
dlock_sql_task_begin(PG_FUNCTION_ARGS)
{
	uint64		state = PG_ARGISNULL(0) ? DLOCK_CAPTURE_ENDS : dlock_capture_state(PG_GETARG_TEXT_PP(0));
	DLockCapturePlace place = dlock_capture_look(get_call()->queue, state);
	DLockValueRow row = {0};

	dlock_value_add(&row, true, Int32GetDatum(place.priority));
	dlock_value_add(&row, true, Int64GetDatum(place.id));
	dlock_value_add(&row, true, TimestampTzGetDatum(place.due));
	return HeapTupleGetDatum(dlock_value_form(&row, fcinfo));
}

/*
 * dlock_task_looked(count, found, priority, id, due) -> true
 *
 * The look has ended, which was to find so many tasks.  The first that it found is at that
 * place; or nothing is over up to "due".
 */
Datum
dlock_sql_task_looked(PG_FUNCTION_ARGS)
{
	int			found = PG_ARGISNULL(1) ? 0 : PG_GETARG_INT32(1);
	DLockCapturePlace first = {PG_GETARG_INT32(2), PG_GETARG_INT64(3), PG_GETARG_TIMESTAMPTZ(4)};

	(void) get_call();
	dlock_capture_looked(PG_GETARG_INT32(0), found,
						 (found > 0 || !PG_ARGISNULL(4)) ? &first : NULL);
	PG_RETURN_BOOL(true);
}

/*
 * dlock_task_look_again() -> this capture found nothing; must it look again for tasks
 * (true), or only for what is over (false), or not (null)?
 */
Datum
dlock_sql_task_look_again(PG_FUNCTION_ARGS)
{
	bool		tasks;

	if (!dlock_capture_look_again(get_call()->queue, &tasks))
		PG_RETURN_NULL();
	PG_RETURN_BOOL(tasks);
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
 * Once this transaction has committed, the reaper and processes that wait look then.
 */
Datum
dlock_sql_task_end(PG_FUNCTION_ARGS)
{
	DLockTime	span = PG_ARGISNULL(0) ? dlock_value_get_ttl(fcinfo, 0, true) : PG_GETARG_INTERVAL_P(0)->time;

	/*
	 * The wall clock first, so that nothing ends before the time that is
	 * told.
	 */
	TimestampTz wall = dlock_clock_wall();
	DLockTime	ends = dlock_clock_now() + span;
	DLockValueRow row = {0};

	dlock_value_add(&row, true, dlock_value_of_span(span));
	dlock_value_add(&row, true, TimestampTzGetDatum(ends + dlock_clock_steady_offset()));
	dlock_value_add(&row, true, TimestampTzGetDatum(wall + span));
	dlock_value_add(&row, true, Int32GetDatum((int32) dlock_clock_boot()));
	dlock_value_add(&row, true, dlock_value_of_span(ends));
	if (span > 0)
	{
		DLockTaskCall *call = get_call();

		dlock_capture_note_end(call->db.shared, call->queue, ends);
	}
	return HeapTupleGetDatum(dlock_value_form(&row, fcinfo));
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
