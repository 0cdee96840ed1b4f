/*-------------------------------------------------------------------------
 *
 * tasksql.h
 *	  SQL on the tables of tasks and of groups.
 *
 * IDENTIFICATION
 *	  src/session/tasksql.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TASKSQL_H
#define DLOCK_TASKSQL_H

#include "space/database.h"

/* The statements, grouped as their texts are; their parameters are told there. */
typedef enum DLockTaskPlan
{
	DLOCK_TASK_FIND_GROUP,
	DLOCK_TASK_CREATE_GROUP,
	DLOCK_TASK_ALTER_GROUP,
	DLOCK_TASK_DROP_GROUP,
	DLOCK_TASK_FIND_QUEUE,
	DLOCK_TASK_CREATE_QUEUE,
	DLOCK_TASK_DROP_TASKS,
	DLOCK_TASK_DROP_QUEUE,
	DLOCK_TASK_PUT,
	DLOCK_TASK_LOCK,
	DLOCK_TASK_MOVE,
	DLOCK_TASK_EXTEND,
	DLOCK_TASK_PICK,
	DLOCK_TASK_CAPTURE,
	DLOCK_TASK_PURGE,
	DLOCK_TASK_SWEEP_QUEUE,
	DLOCK_TASK_SWEEP_ALL,
	DLOCK_TASK_CLAMP,
	DLOCK_TASK_NEXT_DUE
} DLockTaskPlan;

#define DLOCK_TASK_PLANS	(DLOCK_TASK_NEXT_DUE + 1)

/* How many rows one statement of a sweep changes at most. */
#define DLOCK_TASK_BATCH	1000

/* Most parameters that a statement has. */
#define DLOCK_TASK_PARAMS	13

/* Between open and close: the database, and what to go back to. */
typedef struct DLockTaskSql
{
	DLockDatabase db;
	Oid			caller;			/* the role that called */
	int			caller_context;
	int			nest_level;
} DLockTaskSql;

extern void dlock_tasksql_open(DLockTaskSql *sql, const char *function);
extern bool dlock_tasksql_try_open(DLockTaskSql *sql);
extern void dlock_tasksql_close(DLockTaskSql *sql);
extern uint64 dlock_tasksql_run(DLockTaskPlan plan, Datum *values, const char *nulls, long limit);
extern Datum dlock_tasksql_value(uint64 row, int column, bool *isnull);
extern char *dlock_tasksql_cstring(uint64 row, int column);
extern DLockBytes dlock_tasksql_bytes(char *value);
extern DLockTime dlock_tasksql_end(DLockTime span, Datum *values);
extern Oid	dlock_tasksql_lock_class(DLockTaskSql *sql);

#endif							/* DLOCK_TASKSQL_H */
