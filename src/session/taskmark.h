/*-------------------------------------------------------------------------
 *
 * taskmark.h
 *	  Where a look for tasks begins.
 *
 * IDENTIFICATION
 *	  src/session/taskmark.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TASKMARK_H
#define DLOCK_TASKMARK_H

/* In place of the hash of a state: the index of captures and delays by their ends. */
#define DLOCK_TASKMARK_ENDS		0

/* A place in an index. */
typedef struct DLockTaskPlace
{
	int32		priority;
	int64		id;				/* or a time */
} DLockTaskPlace;

extern void dlock_taskmark_call(void);
extern DLockTaskPlace dlock_taskmark_begin(int32 queue, uint64 state);
extern void dlock_taskmark_end(int32 queue, uint64 state, int count, const DLockTaskPlace *first);
extern bool dlock_taskmark_drop(int32 queue, bool *tasks);

#endif							/* DLOCK_TASKMARK_H */
