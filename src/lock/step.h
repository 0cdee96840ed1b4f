/*-------------------------------------------------------------------------
 *
 * step.h
 *	  Steps: what is done with leases, and the driver that does it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_STEP_H
#define DLOCK_STEP_H

#include "nodes/pg_list.h"

#include "base/types.h"
#include "space/database.h"
#include "space/space.h"
#include "store/page.h"

/* Pages that single operations may need pinned at a time. */
#define DLOCK_STEP_PINS	8

/* What an attempt lacks; the rest is told in the step. */
typedef enum DLockStepLack
{
	DLOCK_LACKS_NOTHING,		/* it is done */
	DLOCK_LACKS_PAGE,			/* of "slot", pinned */
	DLOCK_LACKS_TOKENS,			/* "tokens" of them */
	DLOCK_LACKS_PARTITIONS,		/* "locked" has others now; or it is to begin
								 * anew */
	DLOCK_LACKS_ROOM,			/* memory and slots, as "room" tells */
	DLOCK_LACKS_LIMIT,			/* "role" has as many leases as it may */
	DLOCK_LACKS_RIGHT			/* may the current user act for "role"? */
} DLockStepLack;

/* Memory and slots for new leases. */
typedef struct DLockStepRoom
{
	int			count;			/* of leases or requests that need memory */
	int			name_len;		/* of the longest name */
	int			data_len;		/* of the longest owner and payload */
	int			slots[DLOCK_PAGE_CLASSES];	/* by class */
} DLockStepRoom;

/*
 * An operation on leases: what its attempts have, and what the last one lacked.
 */
typedef struct DLockStep
{
	DLockDatabase *db;			/* without db->locator, pages cannot be
								 * changed */
	DLockPartitionSet set;		/* partitions to lock exclusively */
	DLockPartitionSet locked;	/* these, and what an attempt found to need */
	DLockTime	now;			/* read under the partition locks */
	bool		has_waited;		/* for the worker to make room */
	XLogRecPtr	lsn;			/* end of the last record written */

	/* What the catalogs say of the current user. */
	Oid			member_of;		/* another role for which it may act */
	List	   *strangers;		/* roles for which it may not */

	int			pin_room;		/* pages that may be pinned: DLOCK_STEP_PINS,
								 * and those that are needed beyond that */

	/* Expired leases that the attempt has erased, to be logged without locks. */
	struct DLockStepExpired *expired;

	/* What the last attempt lacked. */
	DLockSlot	slot;
	int			tokens;
	DLockStepRoom room;
	Oid			role;
} DLockStep;

/*
 * An attempt runs with the partitions of step->locked locked exclusively.  It either
 * makes its change as a whole, or changes nothing and says what it lacks.
 */
typedef DLockStepLack (*DLockStepAttempt) (DLockStep *step, void *arg);

/* the driver, without locks */
extern void dlock_step_open(void);
extern void dlock_step_close(void);
extern void dlock_step_begin(DLockStep *step, DLockDatabase *db);
extern void dlock_step_run(DLockStep *step, DLockStepAttempt attempt, void *arg);

/* what an attempt needs, under partition locks */
extern void dlock_step_make_pin_room(DLockStep *step, int count);
extern DLockStepLack dlock_step_pin(DLockStep *step, DLockSlot slot);
extern DLockStepLack dlock_step_pin_lease(DLockStep *step, const DLockSpaceLease *lease);
extern DLockStepLack dlock_step_tokens(DLockStep *step, int count, DLockToken *first);
extern DLockStepLack dlock_step_widen(DLockStep *step, const DLockPartitionSet *needed);
extern void dlock_step_add_parts(DLockPartitionSet *set, const DLockSpaceLease *lease);
extern DLockStepLack dlock_step_lock_parts(DLockStep *step, const DLockSpaceLease *lease);

/* records of leases, whose pages are pinned */
extern XLogRecPtr dlock_step_write(DLockStep *step, DLockSlot slot,
								   const DLockLeaseValue *lease);
extern void dlock_step_log_state(DLockStep *step, DLockSpaceLease *lease,
								 const DLockTerm *term);
extern void dlock_step_renew(DLockStep *step, DLockSpaceLease *lease, const DLockTerm *term,
							 bool must_log);
extern void dlock_step_rewrite(DLockStep *step, DLockSpaceLease *lease, const DLockTerm *term);

/* the end of leases */
extern DLockStepLack dlock_step_tidy(DLockStep *step, DLockSpaceEntry *entry);
extern DLockStepLack dlock_step_erase_lease(DLockStep *step, DLockSpaceLease *lease);
extern void dlock_step_tell_end(DLockStep *step, DLockSpaceLease *lease);
extern void dlock_step_stop_lease(DLockStep *step, DLockSpaceLease *lease, DLockTime delay);

#endif							/* DLOCK_STEP_H */
