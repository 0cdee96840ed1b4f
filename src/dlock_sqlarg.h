/*-------------------------------------------------------------------------
 *
 * dlock_sqlarg.h
 *	  Arguments of SQL functions: taken, checked, converted.
 *
 * IDENTIFICATION
 *	  src/dlock_sqlarg.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SQLARG_H
#define DLOCK_SQLARG_H

#include "fmgr.h"

#include "dlock_types.h"

extern DLockBytes dlock_sqlarg_name(FunctionCallInfo fcinfo, int argno);
extern DLockBytes dlock_sqlarg_own_name(FunctionCallInfo fcinfo, int argno);
extern void dlock_sqlarg_check_own(const DLockBytes *name);
extern DLockBytes dlock_sqlarg_owner(FunctionCallInfo fcinfo, int argno);
extern DLockToken dlock_sqlarg_token(FunctionCallInfo fcinfo, int argno);
extern DLockBytes dlock_sqlarg_payload(FunctionCallInfo fcinfo, int argno);
extern DLockTime dlock_sqlarg_span(const Interval *interval);
extern DLockTime dlock_sqlarg_ttl(FunctionCallInfo fcinfo, int argno, bool acquiring);
extern Datum dlock_sqlarg_jsonb(const char *data, int len);

#endif							/* DLOCK_SQLARG_H */
