/*-------------------------------------------------------------------------
 *
 * task.h
 *	  Task queues as state machines, with captures under a lease.
 *
 * IDENTIFICATION
 *	  src/pattern/task.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TASK_H
#define DLOCK_TASK_H

#include "base/types.h"

/* Limits of what a caller may hand in. */
#define DLOCK_TASK_ERROR_MAX	1024	/* bytes; what is more is cut off */
#define DLOCK_TASK_STATES_MAX	16	/* that one call captures from */
#define DLOCK_TASK_COUNT_MAX	1000	/* tasks that one call captures */
#define DLOCK_TASK_PURGE_MAX	1000000
#define DLOCK_TASK_DELAY_MAX	(36500 * USECS_PER_DAY)

/* A task to put.  A state left out is one without bytes. */
typedef struct DLockTaskNew
{
	DLockBytes	queue;
	DLockBytes	key;
	DLockBytes	state;
	int			priority;
	Datum		payload;
	bool		no_payload;
	DLockTime	delay;			/* until it can be captured */
} DLockTaskNew;

typedef struct DLockTaskCaptureRequest
{
	DLockBytes	queue;
	int			count;
	int			nstates;		/* zero: the initial one */
	DLockBytes	states[DLOCK_TASK_STATES_MAX];
	DLockBytes	state;
	DLockBytes	owner;
	DLockTime	ttl;
	DLockBytes	on_timeout;
} DLockTaskCaptureRequest;

/* A task and the capture of it that the caller claims to have. */
typedef struct DLockTaskTarget
{
	const char *function;		/* that was called */
	DLockBytes	queue;
	DLockBytes	key;
	DLockToken	token;			/* DLOCK_TOKEN_NONE: the caller claims none */
} DLockTaskTarget;

/* A captured task; the pointers are good until the callback returns. */
typedef struct DLockTaskCaptured
{
	Datum		key;
	DLockToken	token;
	Datum		payload;
	bool		no_payload;
	int			priority;
	int			attempts;
	DLockBytes	from;
	TimestampTz expires_at;		/* wall clock */
} DLockTaskCaptured;

typedef void (*DLockTaskReceiver) (const DLockTaskCaptured *task, void *arg);

extern bool dlock_task_put(const DLockTaskNew *task);
extern char *dlock_task_set(const DLockTaskTarget *target, const DLockBytes *state);
extern int	dlock_task_capture(const DLockTaskCaptureRequest *request, DLockTaskReceiver receive,
							   void *arg);
extern bool dlock_task_extend(const DLockTaskTarget *target, DLockTime ttl);
extern bool dlock_task_finish(const DLockTaskTarget *target, const DLockBytes *state);
extern char *dlock_task_fail(const DLockTaskTarget *target, const DLockBytes *error,
							 const DLockBytes *state, DLockTime delay);
extern char *dlock_task_release(const DLockTaskTarget *target, const DLockBytes *state,
								DLockTime delay);
extern TimestampTz dlock_task_until(TimestampTz deadline, uint32 boot, DLockTime ends);
extern uint64 dlock_task_purge(const DLockBytes *queue, Datum age, int count);

#endif							/* DLOCK_TASK_H */
