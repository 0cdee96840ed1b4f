/*-------------------------------------------------------------------------
 *
 * task.h
 *	  The language dlock_plpgsql.
 *
 * IDENTIFICATION
 *	  src/sql/task.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SQL_TASK_H
#define DLOCK_SQL_TASK_H

extern void dlock_task_check_call(void);

#endif							/* DLOCK_SQL_TASK_H */
