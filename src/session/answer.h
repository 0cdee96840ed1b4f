/*-------------------------------------------------------------------------
 *
 * answer.h
 *	  A call that is not answered leaves nothing behind.
 *
 * IDENTIFICATION
 *	  src/session/answer.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ANSWER_H
#define DLOCK_ANSWER_H

#include "fmgr.h"

#include "base/types.h"
#include "lock/acquire.h"
#include "space/space.h"

/* The record of a time slot as it was before it was won. */
typedef struct DLockAnswerSlot
{
	DLockToken	token;
	DLockTerm	term;
	DLockTime	delay;
	DLockTime	min_until;
	TimestampTz granted_at;
	Oid			role;
	uint32		holds;
	bool		stopped;
} DLockAnswerSlot;

extern bool dlock_answer_begin_run(void);
extern void dlock_answer_end_run(bool failed);
extern Datum dlock_answer_call(PGFunction body, FunctionCallInfo fcinfo);

/* before a change */
extern void dlock_answer_prepare(int count);
extern DLockAnswerSlot *dlock_answer_prepare_slot(void);

/* after it; these cannot fail */
extern void dlock_answer_granted(DLockDatabase *db, const DLockAcquireRequest *request,
								 const DLockAcquireGranted *granted);
extern void dlock_answer_converted(uint32 hash, DLockToken from, DLockMode before,
								   DLockToken to, DLockMode after);
extern void dlock_answer_counted_down(uint32 hash, DLockToken token);
extern void dlock_answer_won(uint32 hash, DLockToken token, const DLockAnswerSlot *before);

#endif							/* DLOCK_ANSWER_H */
