/*-------------------------------------------------------------------------
 *
 * value.h
 *	  Our values as values of SQL.
 *
 * IDENTIFICATION
 *	  src/base/value.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_VALUE_H
#define DLOCK_VALUE_H

#include "access/htup.h"
#include "fmgr.h"
#include "nodes/execnodes.h"

#include "base/types.h"

/* A row of a result, filled from the first column on. */
typedef struct DLockValueRow
{
	int			count;			/* columns that are filled */
	Datum		values[24];
	bool		nulls[24];
} DLockValueRow;

extern void dlock_value_add(DLockValueRow *row, bool present, Datum value);
extern void dlock_value_put(DLockValueRow *row, ReturnSetInfo *result);
extern HeapTuple dlock_value_form(DLockValueRow *row, FunctionCallInfo fcinfo);

extern Datum dlock_value_interval(DLockTime span);
extern Datum dlock_value_text(DLockBytes bytes);
extern Datum dlock_value_jsonb(DLockBytes bytes);

#endif							/* DLOCK_VALUE_H */
