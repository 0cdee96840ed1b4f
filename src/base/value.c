/*-------------------------------------------------------------------------
 *
 * value.c
 *	  Our values as values of SQL.
 *
 * NOTES
 *	  All results are palloc'd in the current context.
 *
 * IDENTIFICATION
 *	  src/base/value.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "base/compat.h"
#include "base/value.h"

/* Fill the next column: with a value, or unless "present", with NULL. */
void
dlock_value_add(DLockValueRow *row, bool present, Datum value)
{
	Assert(row->count < lengthof(row->values));
	row->values[row->count] = value;
	row->nulls[row->count++] = !present;
}

/*
 * Throw 55000 if the result has other columns than the row: the function was
 * created by the script of another version than the library's.
 */
static void
check_columns(const DLockValueRow *row, TupleDesc desc)
{
	if (row->count != desc->natts)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("library and extension \"dlock\" are of different versions"),
				 errdetail("The function was created with %d columns, and the library has %d.",
						   desc->natts, row->count),
				 errhint("Restart the server if the library was replaced, and run \"ALTER EXTENSION dlock UPDATE\".")));
}

/* Add a row, which is complete, to the result of a function.  Throws 55000, see above. */
void
dlock_value_put(DLockValueRow *row, ReturnSetInfo *result)
{
	check_columns(row, result->setDesc);
	tuplestore_putvalues(result->setResult, result->setDesc, row->values, row->nulls);
}

/* A row, which is complete, as the result of a function.  Throws 55000, see above. */
HeapTuple
dlock_value_form(DLockValueRow *row, FunctionCallInfo fcinfo)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	check_columns(row, desc);
	return heap_form_tuple(BlessTupleDesc(desc), row->values, row->nulls);
}

/* A span of microseconds as an interval without days and months. */
Datum
dlock_value_interval(DLockTime span)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = span;
	return IntervalPGetDatum(interval);
}

Datum
dlock_value_text(DLockBytes bytes)
{
	return PointerGetDatum(cstring_to_text_with_len(bytes.data, bytes.len));
}

/* The bytes of a payload as the jsonb that they are of. */
Datum
dlock_value_jsonb(DLockBytes bytes)
{
	struct varlena *value = palloc(VARHDRSZ + bytes.len);

	SET_VARSIZE(value, VARHDRSZ + bytes.len);
	memcpy(VARDATA(value), bytes.data, bytes.len);
	return PointerGetDatum(value);
}
