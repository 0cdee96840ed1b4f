/*-------------------------------------------------------------------------
 *
 * once.c
 *	  The first call in a time slot wins.
 *
 * NOTES
 *	  Time is cut into slots of one length, numbered from 1970 on.  The first
 *	  call in a slot wins, and the numbers of the slots that are won only grow.
 *
 *	  The record of the last win is a lease on a lock of its own.  A call wins if
 *	  the wall clock is in a later slot now than it was when that lease was
 *	  granted.  The lease has the time of the win and not the number of its slot,
 *	  so the length may change from one call to the next.
 *
 *	  The lease ends with its slot.  Winning a shorter slot meanwhile does not
 *	  end it earlier, or the longer slot could be won twice.  After its end the
 *	  lock stays closed for a time that the monotonic clock measures.  During
 *	  that time the win is remembered, and a wall clock that is set back opens no
 *	  slot again.  The time is limited, so that a wall clock that was years ahead
 *	  by mistake does not close the lock for years.
 *
 *	  The next winner gets the same lease, rewritten in place with a new token,
 *	  as a conversion does.  So there always is a record, and nothing to allocate
 *	  or to clean up.
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
#include "lock/queue.h"
#include "lock/step.h"
#include "pattern/once.h"
#include "session/grants.h"
#include "space/holder.h"
#include "space/partition.h"
#include "store/flush.h"

/* A call, over all its attempts. */
typedef struct DLockOnce
{
	uint32		hash;			/* of the name of the lock */
	const DLockBytes *name;
	DLockTime	every;
	DLockTime	memory;
	DLockAcquireGranted granted;
	DLockGrantsSlot *before;
	bool		is_first;		/* there is no record yet */
} DLockOnce;

/*
 * Was the last win taken back by force?  After a restart, a ttl of zero says so.
 */
static bool
was_taken_back(const DLockSpaceLease *lease)
{
	return lease->stopped || lease->ttl == 0;
}

/* The record of the last win, to restore if the next win is not answered. */
static DLockGrantsSlot
record_of(const DLockSpaceLease *lease)
{
	DLockGrantsSlot record = {
		.token = lease->token,
		.term = dlock_space_lease_term(lease),
		.delay = lease->delay,
		.min_until = lease->min_until,
		.granted_at = lease->granted_at,
		.role = lease->role,
		.holds = lease->holds,
		.vouched_until = dlock_holder_vouched_until(lease),
		.stopped = lease->stopped
	};

	return record;
}

/* Give the lease of the last winner to the caller. */
static DLockStepLack
succeed(DLockStep *step, DLockOnce *once, DLockSpaceEntry *entry, DLockSpaceLease *lease,
		TimestampTz wall)
{
	DLockTime	ttl = dlock_rule_slot_end(wall, once->every) - wall;
	DLockTime	until = step->now;
	DLockTerm	term;
	DLockToken	token;
	DLockStepLack lack;

	Assert(dlock_partition_is_mine(entry->hash));
	/* What it says of longer slots has to be remembered as long as before. */
	if (!was_taken_back(lease))
	{
		ttl = Max(ttl, lease->deadline - step->now);
		until = dlock_holder_blocks_until(lease);
	}
	term = dlock_rule_grant(ttl, step->now, wall);

	lack = dlock_step_pin(step, lease->slot);
	if (lack == DLOCK_LACKS_NOTHING)
		lack = dlock_step_tokens(step, 1, &token);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;

	*once->before = record_of(lease);
	dlock_space_succeed(lease, GetUserId(), token);
	lease->granted_at = wall;
	lease->delay = Max(once->memory, until - term.deadline);
	dlock_space_set_term(lease, &term);
	lease->min_until = 0;
	lease->holds = 1;
	lease->stopped = false;
	dlock_step_rewrite(step, lease, NULL);
	dlock_database_note_deadline(dlock_holder_blocks_until(lease));
	dlock_stat_count(DLOCK_STAT_GRANT, 1);

	/* There are no waiters for this lock, but there may be observers. */
	dlock_queue_call(entry, step->now);
	dlock_grants_add_slot(once->hash, token);
	once->granted.token = token;
	once->granted.lsn = lease->lsn;
	return DLOCK_LACKS_NOTHING;
}

/*
 * An attempt: look at the record of the last win.  A record with the granted
 * token is the caller's own, and gets the length of its slot.
 */
static DLockStepLack
try_win(DLockStep *step, void *arg)
{
	DLockOnce  *once = arg;
	DLockSpaceEntry *entry;
	DLockSpaceLease *lease;
	TimestampTz wall;

	/* In this order, so that a delay between ends the lease late, not early. */
	wall = dlock_clock_wall();
	step->now = dlock_clock_now();
	entry = dlock_space_find(step->db->shared->oid, once->hash, once->name);
	lease = (entry != NULL) ? dlock_space_holders(entry) : NULL;
	once->is_first = lease == NULL;
	if (once->is_first)
		return DLOCK_LACKS_NOTHING;

	/* A slot whose lease was released by force can be won again. */
	if (lease->token != once->granted.token &&
		!was_taken_back(lease) && dlock_holder_blocks_until(lease) > step->now &&
		dlock_rule_slot(wall, once->every) <= dlock_rule_slot(lease->granted_at, once->every))
		return DLOCK_LACKS_NOTHING;
	return succeed(step, once, entry, lease, wall);
}

/*
 * Make the first record.  Returns false if the caller must look at the lock
 * again, since another backend was faster, or the slot ended meanwhile.  In the
 * latter case the record, with this token, lasts only to the end of the earlier
 * slot, which would be too short.
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
	dlock_grants_add(db, &request, granted);
	return dlock_rule_slot(dlock_clock_wall(), every) == dlock_rule_slot(wall, every);
}

/*
 * Win the slot of "every" microseconds that the wall clock is in, unless it or a
 * later one is won already.  Returns the token, or DLOCK_TOKEN_NONE.
 *
 * "name" is that of the lock.  The win is remembered for "memory" microseconds
 * after its slot, in whole milliseconds.  A win is as durable as
 * synchronous_commit asks for.  Throws 53400.
 */
DLockToken
dlock_once_win(DLockDatabase *db, const DLockBytes *name, DLockTime every, DLockTime memory)
{
	DLockOnce	once = {
		.hash = dlock_name_hash(db->shared->oid, name),
		.name = name,.every = every,.memory = memory,
		.before = dlock_grants_prepare_slot()
	};

	do
	{
		DLockStep	step;

		CHECK_FOR_INTERRUPTS();
		dlock_grants_prepare(2, DLOCK_BIND_NONE);
		dlock_step_begin(&step, db);
		dlock_partition_set_add(&step.set, once.hash);
		dlock_step_run(&step, try_win, &once);
	} while (once.is_first && !begin(db, name, every, memory, &once.granted));

	/* Either the slot is lost, or it was over before it was won. */
	if (once.granted.token == DLOCK_TOKEN_NONE)
	{
		dlock_stat_count(DLOCK_STAT_REFUSAL, 1);
		return DLOCK_TOKEN_NONE;
	}
	dlock_flush_commit(once.granted.lsn, dlock_clock_now());
	dlock_process_tell_observers(db->shared->oid, name, 1);
	return once.granted.token;
}
