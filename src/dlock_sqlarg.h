/*-------------------------------------------------------------------------
 *
 * dlock_sqlarg.h
 *	  Arguments of SQL functions, as the values that the rest speaks of.
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

extern DLockBytes dlock_sqlarg_name(FunctionCallInfo fcinfo, int argno, const char *what);
extern DLockBytes dlock_sqlarg_own_name(FunctionCallInfo fcinfo, int argno);
extern void dlock_sqlarg_check_own(const DLockBytes *name);
extern DLockBytes dlock_sqlarg_owner(FunctionCallInfo fcinfo, int argno);
extern DLockBytes dlock_sqlarg_own_owner(FunctionCallInfo fcinfo, int argno);
extern DLockToken dlock_sqlarg_token(FunctionCallInfo fcinfo, int argno);
extern DLockBytes dlock_sqlarg_payload(FunctionCallInfo fcinfo, int argno);
extern DLockTime dlock_sqlarg_interval(const Interval *interval);
extern DLockTime dlock_sqlarg_ttl(FunctionCallInfo fcinfo, int argno, bool acquiring);
extern DLockTime dlock_sqlarg_wait(FunctionCallInfo fcinfo, int argno);
extern DLockTime dlock_sqlarg_span(FunctionCallInfo fcinfo, int argno, const char *parameter);
extern char *dlock_sqlarg_reason(FunctionCallInfo fcinfo, int argno);

#endif							/* DLOCK_SQLARG_H */
