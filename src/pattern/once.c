/*-------------------------------------------------------------------------
 *
 * once.c
 *	  Who comes first in a time slot.
 *
 * NOTES
 *	  Time is cut into slots of one length, numbered from 1970 on.  The first
 *	  call in a slot wins, and numbers of slots that were won only grow.
 *
 *	  The record of the last win is a lease on a lock of its own.  What counts
 *	  is when it was granted, on the wall clock: a call wins if now is in a
 *	  later slot than that moment was.  It is the moment that is kept, and not
 *	  the number of the slot, so that the length may change from one call to
 *	  the next.  The lease ends with its slot; a shorter slot that is won
 *	  meanwhile does not bring that nearer, or the longer one could be won
 *	  again.  After that the lock stays closed for a while, which is how long the
 *	  win is remembered: as long as it is, a wall clock that is set back opens no
 *	  slot again.  It is not remembered for ever, so a clock that was years ahead
 *	  by mistake does not keep the lock closed for years; how long, the monotonic
 *	  clock says.
 *
 *	  The next winner gets the same lease, rewritten in place with a new token,
 *	  as a conversion would be: one record, no moment without one, and nothing
 *	  to be allocated or cleaned up.
 *
 * IDENTIFICATION
 *	  src/pattern/once.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/clock.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/stat.h"
#include "lock/acquire.h"
#include "lock/grant.h"
#include "pattern/once.h"
#include "session/answer.h"
#include "space/holder.h"
#include "store/flush.h"

typedef enum DLockOnceStep
{
	ONCE_NEW,					/* there is no record */
	ONCE_WON,
	ONCE_LOST,
	ONCE_MISSING				/* something has to be fetched */
} DLockOnceStep;

/*
 * Was the last win taken back by force?  After a restart that shows only in that
 * no time was left to it.
 */
static bool
was_taken_back(const DLockSpaceLease *lease)
{
	return lease->stopped || lease->ttl == 0;
}

/* The record of the last win, to be put back should the next not be answered. */
static DLockAnswerSlot
record_of(const DLockSpaceLease *lease)
{
	DLockAnswerSlot record = {
		.token = lease->token,
		.term = {lease->ttl, lease->deadline, lease->bound_mono, 0},
		.delay = lease->delay,
		.min_until = lease->min_until,
		.granted_at = lease->granted_at,
		.role = lease->role,
		.holds = lease->holds,
		.stopped = lease->stopped
	};

	return record;
}

/* Make the lease of the last winner the caller's. */
static bool
succeed(DLockWork *work, DLockSpaceEntry *entry, DLockSpaceLease *lease,
		TimestampTz wall, DLockTime every, DLockTime memory, DLockAnswerSlot *before)
{
	DLockTime	ttl = dlock_rule_slot_end(wall, every) - wall;
	DLockTime	until = work->now;
	DLockTerm	term;
	DLockToken	token;

	/* What it says of longer slots has to be remembered as long as before. */
	if (!was_taken_back(lease))
	{
		ttl = Max(ttl, lease->deadline - work->now);
		until = dlock_holder_blocks_until(lease);
	}
	term = dlock_rule_grant(ttl, work->now, wall);

	if (!dlock_work_pin(work, lease->slot) || !dlock_work_tokens(work, 1, &token))
		return false;

	*before = record_of(lease);
	dlock_space_succeed(lease, GetUserId(), token);
	lease->ttl = term.ttl;
	lease->deadline = term.deadline;
	lease->bound_mono = term.bound_mono;
	lease->granted_at = wall;
	lease->delay = Max(memory, until - term.deadline);
	dlock_space_note_end(lease);
	lease->min_until = 0;
	lease->holds = 1;
	lease->stopped = false;
	dlock_grant_rewrite(work, entry, lease);
	dlock_database_note_deadline(work->db->shared, dlock_holder_blocks_until(lease));
	dlock_stat_count(DLOCK_STAT_GRANT, 1);

	/* Nobody can wait for it, but somebody may watch. */
	dlock_grant_hand_off(work, entry);
	return true;
}

/*
 * Look at the record of the last win, under its partition lock.  One that is
 * granted already is the caller's own, and is made to last for its slot.
 */
static DLockOnceStep
look(DLockWork *work, uint32 hash, const DLockBytes *name, DLockTime every,
	 DLockTime memory, DLockAcquireGranted *granted, DLockAnswerSlot *before)
{
	DLockSpaceEntry *entry;
	DLockSpaceLease *lease;
	DLockOnceStep step = ONCE_NEW;
	TimestampTz wall;

	dlock_space_lock(hash, LW_EXCLUSIVE);

	/* In this order, so that a delay between ends the lease late, not early. */
	wall = dlock_clock_wall();
	work->now = dlock_clock_now();
	entry = dlock_space_find(work->db->shared->oid, hash, name);
	lease = (entry != NULL) ? dlock_space_holders(entry) : NULL;
	if (lease != NULL)
	{
		/* What was ended by force is to be won again. */
		if (lease->token != granted->token &&
			!was_taken_back(lease) && dlock_holder_blocks_until(lease) > work->now &&
			dlock_rule_slot(wall, every) <= dlock_rule_slot(lease->granted_at, every))
			step = ONCE_LOST;
		else if (!succeed(work, entry, lease, wall, every, memory, before))
			step = ONCE_MISSING;
		else
		{
			step = ONCE_WON;
			dlock_answer_won(hash, lease->token, before);
			granted->token = lease->token;
			granted->lsn = lease->lsn;
		}
	}
	dlock_space_unlock(hash);
	return step;
}

/*
 * Make the first record; false if the lock has to be looked at again: somebody
 * else was faster, or the slot was over meanwhile.  In that case there may be a
 * record, with this token, that lasts no longer than to the end of the slot
 * before it, and so would be forgotten too early.
 */
static bool
begin(DLockDatabase *db, const DLockBytes *name, DLockTime every, DLockTime memory,
	  DLockAcquireGranted *granted)
{
	TimestampTz wall = dlock_clock_wall();
	DLockAcquireRequest request = {
		.count = 1,
		.names = name,
		.owner = *name,
		.ttl = dlock_rule_slot_end(wall, every) - wall,
		.mode = DLOCK_MODE_EX,
		.reentry = DLOCK_REENTRY_DENY,
		.bind = DLOCK_BIND_NONE,
		.delay = memory,
		.role = GetUserId()
	};

	if (dlock_acquire_locks(db, &request, granted) != DLOCK_ANSWER_GRANTED)
		return false;
	dlock_answer_granted(db, &request, granted);
	return dlock_rule_slot(dlock_clock_wall(), every) == dlock_rule_slot(wall, every);
}

/*
 * Win the slot of "every" microseconds that the wall clock is in, if nobody has
 * won it or a later one.  Returns the token, or DLOCK_TOKEN_NONE.
 *
 * "name" is that of the lock; the win is remembered for "memory" microseconds
 * after its slot, in whole milliseconds.  When this returns a token, the win is
 * as durable as synchronous_commit asks for.  Throws 53400.
 */
DLockToken
dlock_once_win(DLockDatabase *db, const DLockBytes *name, DLockTime every, DLockTime memory)
{
	uint32		hash = dlock_name_hash(db->shared->oid, name);
	DLockAcquireGranted granted = {.token = DLOCK_TOKEN_NONE};
	DLockAnswerSlot *before = dlock_answer_prepare_slot();
	DLockOnceStep step;
	DLockWork	work;

	dlock_work_begin(&work, db);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		dlock_answer_prepare(2);
		step = look(&work, hash, name, every, memory, &granted, before);
		if (step == ONCE_MISSING)
			dlock_grant_fetch(&work);
		else if (step != ONCE_NEW || begin(db, name, every, memory, &granted))
			break;
	}
	dlock_grant_finish(&work);

	/* Either the slot is lost, or it was over before it was won. */
	if (granted.token == DLOCK_TOKEN_NONE)
	{
		dlock_stat_count(DLOCK_STAT_REFUSAL, 1);
		return DLOCK_TOKEN_NONE;
	}
	dlock_flush_commit(granted.lsn, dlock_clock_now());
	return granted.token;
}
