/*-------------------------------------------------------------------------
 *
 * taskwait.h
 *	  Processes that wait for tasks.
 *
 * IDENTIFICATION
 *	  src/session/taskwait.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TASKWAIT_H
#define DLOCK_TASKWAIT_H

#include "space/database.h"

/* States that one call captures from. */
#define DLOCK_TASKWAIT_STATES	16

/* In place of the hash of a state: any. */
#define DLOCK_TASKWAIT_ANY		0

/* When a note of a transaction counts. */
typedef enum DLockTaskWaitWhen
{
	DLOCK_TASKWAIT_COMMITTED = 1,
	DLOCK_TASKWAIT_ABORTED = 2,
	DLOCK_TASKWAIT_ENDED = 3	/* one way or the other */
} DLockTaskWaitWhen;

extern void dlock_taskwait_request(void);
extern void dlock_taskwait_startup(void);

/* what a transaction tells when it ends */
extern uint64 dlock_taskwait_state(const char *state, int len);
extern void dlock_taskwait_note(int32 queue, uint64 state, int count, DLockTaskWaitWhen when);
extern void dlock_taskwait_note_end(DLockDatabaseShared *database, int32 queue, DLockTime ends);

/* at once */
extern void dlock_taskwait_call_all(Oid database, bool gone);

/* waiting */
extern void dlock_taskwait_enlist(int32 queue, const uint64 *states, int count);
extern void dlock_taskwait_plan(DLockTime next);
extern void dlock_taskwait_taken(uint64 state);
extern bool dlock_taskwait_must_look(DLockTime now, DLockTime *until);
extern void dlock_taskwait_leave(void);

#endif							/* DLOCK_TASKWAIT_H */
