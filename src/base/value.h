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

#include "base/types.h"

extern Datum dlock_value_interval(DLockTime span);
extern Datum dlock_value_text(DLockBytes bytes);
extern Datum dlock_value_jsonb(DLockBytes bytes);

#endif							/* DLOCK_VALUE_H */
