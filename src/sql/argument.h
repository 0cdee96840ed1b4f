/*-------------------------------------------------------------------------
 *
 * argument.h
 *	  Arguments of SQL functions, as the values that the rest speaks of.
 *
 * IDENTIFICATION
 *	  src/sql/argument.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ARGUMENT_H
#define DLOCK_ARGUMENT_H

#include "fmgr.h"

#include "base/types.h"

extern void dlock_argument_require(FunctionCallInfo fcinfo, int argno, const char *what);
extern DLockBytes dlock_argument_text(FunctionCallInfo fcinfo, int argno, const char *what, int limit);
extern DLockBytes dlock_argument_name(FunctionCallInfo fcinfo, int argno, const char *what);
extern DLockBytes dlock_argument_own_name(FunctionCallInfo fcinfo, int argno);
extern void dlock_argument_check_own(const DLockBytes *name);
extern DLockBytes dlock_argument_owner(FunctionCallInfo fcinfo, int argno);
extern DLockBytes dlock_argument_own_owner(FunctionCallInfo fcinfo, int argno);
extern DLockToken dlock_argument_token(FunctionCallInfo fcinfo, int argno);
extern DLockBytes dlock_argument_payload(FunctionCallInfo fcinfo, int argno);
extern DLockTime dlock_argument_interval(const Interval *interval);
extern DLockTime dlock_argument_ttl(FunctionCallInfo fcinfo, int argno, bool acquiring);
extern DLockTime dlock_argument_wait(FunctionCallInfo fcinfo, int argno);
extern DLockTime dlock_argument_span(FunctionCallInfo fcinfo, int argno, const char *parameter);
extern char *dlock_argument_reason(FunctionCallInfo fcinfo, int argno);
extern DLockTime dlock_argument_check_task(FunctionCallInfo fcinfo);

#endif							/* DLOCK_ARGUMENT_H */
