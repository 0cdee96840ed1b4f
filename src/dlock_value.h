/*-------------------------------------------------------------------------
 *
 * dlock_value.h
 *	  Our values as values of SQL.
 *
 * IDENTIFICATION
 *	  src/dlock_value.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_VALUE_H
#define DLOCK_VALUE_H

#include "dlock_types.h"

extern Datum dlock_value_interval(DLockTime span);
extern Datum dlock_value_text(DLockBytes bytes);
extern Datum dlock_value_jsonb(DLockBytes bytes);

#endif							/* DLOCK_VALUE_H */
