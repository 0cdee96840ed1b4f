/*-------------------------------------------------------------------------
 *
 * taskcheck.h
 *	  Arguments of functions on tasks.
 *
 * IDENTIFICATION
 *	  src/sql/taskcheck.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TASKCHECK_H
#define DLOCK_TASKCHECK_H

#include "fmgr.h"

#include "base/types.h"

extern DLockTime dlock_taskcheck_arguments(FunctionCallInfo fcinfo);

#endif							/* DLOCK_TASKCHECK_H */
