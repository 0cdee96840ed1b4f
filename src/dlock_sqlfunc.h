/*-------------------------------------------------------------------------
 *
 * dlock_sqlfunc.h
 *	  Arguments that several SQL functions take.
 *
 * IDENTIFICATION
 *	  src/dlock_sqlfunc.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SQLFUNC_H
#define DLOCK_SQLFUNC_H

#include "fmgr.h"

#include "dlock_types.h"

extern DLockBytes dlock_sqlfunc_get_owner(FunctionCallInfo fcinfo, int argno);
extern DLockToken dlock_sqlfunc_get_token(FunctionCallInfo fcinfo, int argno);
extern DLockTime dlock_sqlfunc_get_ttl(FunctionCallInfo fcinfo, int argno, bool acquiring);

#endif							/* DLOCK_SQLFUNC_H */
