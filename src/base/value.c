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

/* Add a row, which is complete, to the result of a function. */
void
dlock_value_put(DLockValueRow *row, ReturnSetInfo *result)
{
	Assert(row->count == result->setDesc->natts);
	tuplestore_putvalues(result->setResult, result->setDesc, row->values, row->nulls);
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
