/*-------------------------------------------------------------------------
 *
 * taskqueue.h
 *	  Task queues: whose they are, and which ways tasks may go in them.
 *
 * IDENTIFICATION
 *	  src/pattern/taskqueue.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TASKQUEUE_H
#define DLOCK_TASKQUEUE_H

#include "storage/lockdefs.h"
#include "utils/array.h"

#include "base/types.h"
#include "session/tasksql.h"

/* Limits of what a caller may hand in. */
#define DLOCK_TASK_NAME_MAX		255 /* bytes of the name of a queue, or of a key */
#define DLOCK_TASK_STATE_MAX	63	/* bytes */

/* A queue to be created.  No transitions: NULL; no limit of attempts: zero. */
typedef struct DLockTaskDefinition
{
	DLockBytes	queue;
	DLockBytes	initial;
	DLockBytes	done;
	DLockBytes	parked;
	ArrayType  *transitions;
	int			max_attempts;
} DLockTaskDefinition;

/* A queue, as it is in the table.  Memory is that of the open tables. */
typedef struct DLockTaskQueue
{
	DLockBytes	name;
	int32		id;
	DLockBytes	initial;
	DLockBytes	done;
	DLockBytes	parked;
	int			max_attempts;	/* zero: no limit */
	int			ntransitions;	/* zero: all are allowed */
	Datum	   *transitions;	/* texts */
} DLockTaskQueue;

extern void dlock_taskqueue_check_word(const DLockBytes *state);
extern void dlock_taskqueue_check_state(const DLockTaskQueue *queue, const DLockBytes *state);
extern void dlock_taskqueue_check_transition(const DLockTaskQueue *queue, const DLockBytes *from,
											 const DLockBytes *to, const char *detail);

extern void dlock_taskqueue_open(DLockTaskSql *sql, const char *function, const DLockBytes *name,
								 LOCKMODE mode, DLockTaskQueue *queue);
extern void dlock_taskqueue_create(DLockTaskDefinition *definition);
extern uint64 dlock_taskqueue_drop(const DLockBytes *name);

#endif							/* DLOCK_TASKQUEUE_H */
