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

#include "base/compat.h"
#include "base/value.h"

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
