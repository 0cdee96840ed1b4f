/*-------------------------------------------------------------------------
 *
 * statement.c
 *	  The language dlock_sql: one SQL statement, which sees what is committed now.
 *
 * NOTES
 *	  A function in this language is a statement on the tables of tasks.  Under
 *	  REPEATABLE READ and SERIALIZABLE, too, it sees what is committed now, not
 *	  what was when the transaction began.  Else a queue in use would refuse nearly
 *	  everything there: almost any row that can be captured has changed since.
 *
 *	  It is planned once in a session, and in one way only.
 *
 * IDENTIFICATION
 *	  src/sql/statement.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_proc.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "sql/task.h"

PG_FUNCTION_INFO_V1(dlock_sql_statement_handler);

/* A statement as planned, and the row of pg_proc that has its text. */
typedef struct DLockStatement
{
	Oid			function;		/* the key */
	TransactionId xmin;
	ItemPointerData tid;
	Oid			type;			/* of the result */
	SPIPlanPtr	plan;
} DLockStatement;

static HTAB *statements = NULL;

/* Plan a statement. */
static void
prepare(DLockStatement *statement, HeapTuple tuple)
{
	Form_pg_proc proc = (Form_pg_proc) GETSTRUCT(tuple);
	bool		isnull;
	Datum		source = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &isnull);

	statement->xmin = HeapTupleHeaderGetRawXmin(tuple->t_data);
	statement->tid = tuple->t_self;
	statement->type = proc->prorettype;
	statement->plan = SPI_prepare_cursor(TextDatumGetCString(source), proc->pronargs,
										 proc->proargtypes.values, CURSOR_OPT_GENERIC_PLAN);
	if (statement->plan == NULL)
		elog(ERROR, "could not prepare the statement of function %u: %s", statement->function,
			 SPI_result_code_string(SPI_result));
	SPI_keepplan(statement->plan);
}

/* Find the statement of a function. */
static DLockStatement *
find_statement(Oid function)
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
	if (statement->plan != NULL &&
		(statement->xmin != HeapTupleHeaderGetRawXmin(tuple->t_data) ||
		 !ItemPointerEquals(&statement->tid, &tuple->t_self)))
	{
		SPI_freeplan(statement->plan);
		statement->plan = NULL;
	}
	if (statement->plan == NULL)
		prepare(statement, tuple);
	ReleaseSysCache(tuple);
	return statement;
}

/* The first row of the result, as a value of the function's type. */
static Datum
first_row(Oid type, MemoryContext context, bool *isnull)
{
	TupleDesc	desc = SPI_tuptable->tupdesc;
	HeapTupleHeader row;
	MemoryContext old;
	Datum		value;

	*isnull = SPI_processed == 0;
	if (*isnull)
		return (Datum) 0;
	if (!type_is_rowtype(type))
	{
		value = SPI_getbinval(SPI_tuptable->vals[0], desc, 1, isnull);
		old = MemoryContextSwitchTo(context);
		if (!*isnull)
			value = datumCopy(value, TupleDescAttr(desc, 0)->attbyval, TupleDescAttr(desc, 0)->attlen);
		MemoryContextSwitchTo(old);
		return value;
	}
	if (type == RECORDOID)
		BlessTupleDesc(desc);
	old = MemoryContextSwitchTo(context);
	value = heap_copy_tuple_as_datum(SPI_tuptable->vals[0], desc);
	MemoryContextSwitchTo(old);
	if (type != RECORDOID)
	{
		row = DatumGetHeapTupleHeader(value);
		HeapTupleHeaderSetTypeId(row, type);
		HeapTupleHeaderSetTypMod(row, -1);
	}
	return value;
}

/*
 * Call handler of dlock_sql.  Only functions in dlock_plpgsql have the search_path
 * and the settings of the planner that a statement needs.
 */
Datum
dlock_sql_statement_handler(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *set = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext context = CurrentMemoryContext;
	Snapshot	snapshot = IsolationUsesXactSnapshot() ? GetLatestSnapshot() : InvalidSnapshot;
	DLockStatement *statement;
	Datum		values[FUNC_MAX_ARGS];
	char		nulls[FUNC_MAX_ARGS];
	Datum		result = (Datum) 0;
	int			code;

	dlock_task_check_call();
	if (fcinfo->flinfo->fn_retset)
		InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < PG_NARGS(); i++)
	{
		values[i] = fcinfo->args[i].value;
		nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
	}
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	statement = find_statement(fcinfo->flinfo->fn_oid);
	code = SPI_execute_snapshot(statement->plan, values, nulls, snapshot, InvalidSnapshot, false,
								true, 0);
	if (code < 0)
		elog(ERROR, "could not run the statement of function %u: %s", statement->function,
			 SPI_result_code_string(code));
	if (fcinfo->flinfo->fn_retset)
	{
		for (uint64 i = 0; i < SPI_processed; i++)
			tuplestore_puttuple(set->setResult, SPI_tuptable->vals[i]);
	}
	else if (SPI_tuptable != NULL)
		result = first_row(statement->type, context, &fcinfo->isnull);
	else
		result = Int64GetDatum((int64) SPI_processed);
	if (SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "could not disconnect from SPI");
	return result;
}
