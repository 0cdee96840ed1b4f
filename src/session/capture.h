/*-------------------------------------------------------------------------
 *
 * capture.h
 *	  How captures look for tasks: where a look begins, and how one that finds
 *	  nothing waits.
 *
 * IDENTIFICATION
 *	  src/session/capture.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_CAPTURE_H
#define DLOCK_CAPTURE_H

#include "space/database.h"

/* States that one call captures from. */
#define DLOCK_CAPTURE_STATES	16

/* In place of the hash of a state: any. */
#define DLOCK_CAPTURE_ANY		0

/* Likewise, where a look begins: the index of captures and delays by their ends. */
#define DLOCK_CAPTURE_ENDS		0

/* When a note of a transaction counts. */
typedef enum DLockCaptureWhen
{
	DLOCK_CAPTURE_COMMITTED = 1,
	DLOCK_CAPTURE_ABORTED = 2,
	DLOCK_CAPTURE_ENDED = 3		/* one way or the other */
} DLockCaptureWhen;

/* A place in an index. */
typedef struct DLockCapturePlace
{
	int32		priority;
	int64		id;
	TimestampTz due;			/* in the index of ends, in place of these */
} DLockCapturePlace;

extern void dlock_capture_request(void);
extern void dlock_capture_startup(void);

/* what a transaction tells when it ends */
extern uint64 dlock_capture_state(const text *state);
extern void dlock_capture_note(int32 queue, uint64 state, int count, DLockCaptureWhen when);
extern void dlock_capture_note_end(DLockDatabaseShared *database, int32 queue, DLockTime ends);

/* at once */
extern void dlock_capture_call_all(Oid database);

/* waiting */
extern void dlock_capture_enlist(int32 queue, const uint64 *states, int count);
extern void dlock_capture_plan(DLockTime next);
extern bool dlock_capture_must_look(DLockTime now, DLockTime *until);
extern void dlock_capture_leave(void);

/* where a look begins */
extern void dlock_capture_begin(void);
extern DLockCapturePlace dlock_capture_look(int32 queue, uint64 state);
extern void dlock_capture_looked(int count, int found, const DLockCapturePlace *first);
extern bool dlock_capture_look_again(int32 queue, bool *tasks);

#endif							/* DLOCK_CAPTURE_H */
