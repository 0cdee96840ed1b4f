/*-------------------------------------------------------------------------
 *
 * value.h
 *	  Arguments and results of SQL functions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_VALUE_H
#define DLOCK_VALUE_H

#include "access/htup.h"
#include "access/tupdesc.h"
#include "fmgr.h"

#include "base/name.h"
#include "base/types.h"

/* A row of a result, filled from the first column on. */
typedef struct DLockValueRow
{
	int			count;			/* columns that are filled */
	Datum		values[24];
	bool		nulls[24];
} DLockValueRow;

/* arguments */
extern void dlock_value_require_parameter(FunctionCallInfo fcinfo, int argno, const char *parameter);
extern DLockBytes dlock_value_get_text(FunctionCallInfo fcinfo, int argno, const char *what);
extern DLockBytes dlock_value_get_owner(FunctionCallInfo fcinfo, int argno);
extern DLockToken dlock_value_to_token(Datum value, bool is_null);
extern DLockToken dlock_value_get_token(FunctionCallInfo fcinfo, int argno);
extern DLockBytes dlock_value_get_payload(FunctionCallInfo fcinfo, int argno);
extern DLockTime dlock_value_get_ttl(FunctionCallInfo fcinfo, int argno, bool acquiring);
extern DLockTime dlock_value_get_wait(FunctionCallInfo fcinfo, int argno);
extern DLockTime dlock_value_get_span(FunctionCallInfo fcinfo, int argno, const char *parameter);
extern char *dlock_value_get_reason(FunctionCallInfo fcinfo, int argno);

/* results */
extern void dlock_value_add(DLockValueRow *row, bool present, Datum value);
extern HeapTuple dlock_value_form(DLockValueRow *row, TupleDesc desc);
extern Datum dlock_value_of_span(DLockTime span);

#endif							/* DLOCK_VALUE_H */
