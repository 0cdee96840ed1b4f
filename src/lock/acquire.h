/*-------------------------------------------------------------------------
 *
 * acquire.h
 *	  Acquire locks: one, or several of which all or none are had.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ACQUIRE_H
#define DLOCK_ACQUIRE_H

#include "access/xlogdefs.h"

#include "base/types.h"
#include "space/database.h"

/*
 * What a caller asks for: one lock, or several of which it gets all or none.
 *
 * With "path", the first name is the path and the others are its ancestors,
 * on which it gets intents.  There is a token for each lock, in ascending
 * order, but only one for a whole path.
 */
typedef struct DLockAcquireRequest
{
	int			count;
	const DLockBytes *names;
	bool		path;
	DLockBytes	owner;
	DLockBytes	payload;
	DLockTime	ttl;			/* zero: none */
	DLockMode	mode;
	uint32		permits;		/* zero unless the mode is DLOCK_MODE_PERMIT */
	DLockReentry reentry;
	DLockBind	bind;
	DLockTime	delay;
	DLockTime	min_hold;
	Oid			role;
	bool		may_wait;
	DLockTime	keep;			/* how long it keeps its place, if it is not
								 * granted; zero: it has none */
	bool		takes;			/* grant it only to the owner's place, which
								 * this process listens for; "keep" is more
								 * than zero */
	DLockTime	anyway;			/* when it asks again in any case, if it waits
								 * or "takes" */
	DLockToken *tokens;			/* where to put them, unless NULL */
	const DLockToken *earlier;	/* tokens that the same call got before ... */
	int			nearlier;		/* ... and how many */
} DLockAcquireRequest;

typedef enum DLockAcquireAnswer
{
	DLOCK_ANSWER_GRANTED,
	DLOCK_ANSWER_REFUSED,		/* it is blocked, and may not wait */
	DLOCK_ANSWER_QUEUED,		/* this process is in the queue now, and holds
								 * nothing */
	DLOCK_ANSWER_KEPT,			/* it may not wait, and has a place */
	DLOCK_ANSWER_SELF,			/* it would wait for its own owner */
	DLOCK_ANSWER_FAILED			/* "takes": there is an error, and the place
								 * is gone */
} DLockAcquireAnswer;

/* What else an answer says. */
typedef struct DLockAcquireGranted
{
	DLockToken	token;			/* the first one; KEPT: the id of a place that
								 * is new, or none */
	XLogRecPtr	lsn;			/* to be flushed before the token is told */
	DLockTime	until;			/* QUEUED: when to ask again at the latest.
								 * KEPT: the id of the place, which is when it
								 * was asked for */
	bool		entered;		/* these are leases that the owner had before */
	DLockMode	before;			/* of a conversion: the mode that the lease
								 * had ... */
	DLockTime	vouched_until;	/* ... and up to when it was vouched for */
	const DLockBytes *own;		/* SELF: the name of the lock that the owner
								 * has */
} DLockAcquireGranted;

extern DLockAcquireAnswer dlock_acquire_locks(DLockDatabase *db,
											  const DLockAcquireRequest *request,
											  DLockAcquireGranted *granted);

#endif							/* DLOCK_ACQUIRE_H */
