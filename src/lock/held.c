/*-------------------------------------------------------------------------
 *
 * held.c
 *	  Leases that are held: renew, convert and release them, and end them
 *	  otherwise: by force, by time, with a session.
 *
 * NOTES
 *	  To find a lease, by owner, token or reference, is the first part of each
 *	  attempt.  One on a path is changed under the partition locks of all its parts.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/stat.h"
#include "lock/held.h"
#include "lock/queue.h"
#include "lock/step.h"
#include "space/holder.h"
#include "store/flush.h"

/* ---- finding ---- */

/* A lease to find, and what was found. */
typedef struct DLockHeldFind
{
	const DLockHolderTarget *target;
	DLockSpaceLease *lease;		/* NULL if there is none */
	Oid			stranger;		/* whose lease it is, if that prevents it */
} DLockHeldFind;

/*
 * Find the lease that a target names, with the partitions of all its parts
 * locked.
 */
static DLockStepLack
find_any(DLockStep *step, DLockHeldFind *found)
{
	Assert(dlock_partition_is_mine(found->target->hash));
	found->lease = dlock_space_find_target(step->db->shared->oid, found->target, step->strangers);
	return (found->lease != NULL) ? dlock_step_lock_parts(step, found->lease) : DLOCK_LACKS_NOTHING;
}

/*
 * The same for a lease that is as the target wants it, held or closed, and that
 * the current user may use: its own, or that of a role that it is a member of.
 *
 * A name of an owner stands for no lease of a stranger: the answer is as if that
 * lease were not there.  A token or a reference names one lease; if that is a
 * stranger's, the target says what happens.
 */
static DLockStepLack
find_wanted(DLockStep *step, DLockHeldFind *found)
{
	DLockStepLack lack = find_any(step, found);
	Oid			role;

	if (lack != DLOCK_LACKS_NOTHING || found->lease == NULL)
		return lack;
	role = found->lease->role;
	if (!dlock_holder_is_wanted(found->lease, found->target->closed, step->now))
		found->lease = NULL;
	else if (role != GetUserId() && role != step->member_of)
	{
		/* The catalogs are not to be read under a partition lock. */
		step->role = role;
		if (!list_member_oid(step->strangers, role))
			return DLOCK_LACKS_RIGHT;
		found->stranger = role;
		found->lease = NULL;
	}
	return DLOCK_LACKS_NOTHING;
}

/*
 * Run an attempt on the lease that a target names.  Its "arg" begins with "found".
 * True if there is such a lease.  Throws 42501.
 */
static bool
run_on_found(DLockStep *step, DLockDatabase *db, DLockHeldFind *found, DLockStepAttempt attempt)
{
	dlock_step_begin(step, db);
	dlock_partition_set_add(&step->set, found->target->hash);
	dlock_step_run(step, attempt, found);
	if (OidIsValid(found->stranger) && !found->target->skip)
		dlock_error_not_owner(&found->target->name, found->stranger);
	return found->lease != NULL;
}

/* What is done to a lease that a target names; false if there is none. */
typedef bool (*DLockHeldAction) (DLockDatabase *db, const DLockHolderTarget *target, void *arg);

/*
 * Do something to all live leases that the name of an owner stands for: those of the
 * current user; if it has none, those of the roles that it is a member of.  Returns how
 * many.
 */
static int
run_on_owned(DLockDatabase *db, const DLockBytes *owner_name, DLockHeldAction action, void *arg)
{
	int			own;
	int			count;
	DLockSpaceRef *refs = dlock_holder_list(db->shared->oid, owner_name, &own, &count);
	int			done = 0;

	for (int i = 0; i < count && (i != own || done == 0); i++)
	{
		DLockHolderTarget target = {.hash = refs[i].hash,.token = refs[i].token,.skip = true};

		CHECK_FOR_INTERRUPTS();
		done += action(db, &target, arg);
	}
	pfree(refs);
	return done;
}

/* What is said of a lease. */
typedef struct DLockHeldEnds
{
	DLockTime	deadline;		/* zero if there is none */
	DLockTime	told_until;
	bool		unknown;		/* see dlock_holder_is_unknown() */
	XLogRecPtr	lsn;
} DLockHeldEnds;

/* When does the lease that a target names end?  Changes nothing. */
static DLockHeldEnds
find_ends(DLockDatabase *db, const DLockHolderTarget *target)
{
	DLockHeldEnds ends = {0};
	DLockSpaceLease *lease;

	dlock_partition_lock(target->hash, LW_SHARED);
	lease = dlock_space_find_target(db->shared->oid, target, NIL);
	if (lease != NULL)
		ends = (DLockHeldEnds)
	{
		lease->deadline, dlock_holder_told_until(lease), dlock_holder_is_unknown(lease), lease->lsn
	};
	dlock_partition_unlock(target->hash);
	return ends;
}

/* Is the lease that a target names live now, be it confirmed or not? */
bool
dlock_held_is_live(DLockDatabase *db, const DLockHolderTarget *target)
{
	return dlock_rule_is_live(find_ends(db, target).deadline, dlock_clock_now());
}

/*
 * Is it held, as far as that is confirmed?  The answer to everybody who asks.  Waits
 * only if the lease was loaded: for its record, as synchronous_commit asks for.
 */
bool
dlock_held_is_told(DLockDatabase *db, const DLockHolderTarget *target)
{
	DLockHeldEnds ends = find_ends(db, target);

	if (dlock_rule_is_live(ends.told_until, dlock_clock_now()))
		return true;
	if (!dlock_rule_is_live(ends.deadline, dlock_clock_now()))
		return false;

	/* The record may be safe by now, though no session has waited for it. */
	dlock_flush_confirm_reported();
	ends = find_ends(db, target);
	if (!ends.unknown)
		return dlock_rule_is_live(ends.told_until, dlock_clock_now());
	dlock_flush_commit(ends.lsn);
	return dlock_held_is_live(db, target);
}

/* ---- renewing ---- */

typedef struct DLockHeldRenewal
{
	DLockHeldFind found;
	DLockTime	ttl;
	XLogRecPtr	lsn;			/* vouches for all new deadlines */
} DLockHeldRenewal;

/* An attempt: renew a lease. */
static DLockStepLack
try_renew(DLockStep *step, void *arg)
{
	DLockHeldRenewal *renew = arg;
	DLockStepLack lack = find_wanted(step, &renew->found);
	DLockSpaceLease *lease = renew->found.lease;
	DLockRuleRenewal renewal;
	DLockTerm	term;

	if (lack != DLOCK_LACKS_NOTHING || lease == NULL)
		return lack;
	term = dlock_space_lease_term(lease);
	renewal = dlock_rule_renew(&term, renew->ttl, step->now, dlock_clock_wall());
	if (renewal.must_log)
		lack = dlock_step_pin_lease(step, lease);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;

	dlock_stat_count(DLOCK_STAT_RENEWAL, 1);
	lease->called |= renew->found.target->token == DLOCK_TOKEN_NONE;
	dlock_step_renew(step, lease, &renewal.term, renewal.must_log);
	renew->lsn = Max(renew->lsn, lease->lsn);
	if (renewal.term.deadline < term.deadline)
		dlock_step_tell_end(step, lease);
	return DLOCK_LACKS_NOTHING;
}

/* Renew the live lease that a target names; false if there is none, or if it is to be skipped. */
static bool
renew_lease(DLockDatabase *db, const DLockHolderTarget *target, void *arg)
{
	DLockHeldRenewal *renew = arg;
	DLockStep	step;

	memset(&renew->found, 0, sizeof(renew->found));
	renew->found.target = target;
	return run_on_found(&step, db, &renew->found, try_renew);
}

/*
 * Renew each of these live leases by itself; "renewed" gets the answers in their order:
 * false for one that is not there.
 *
 * "ttl" zero keeps that of the lease.  When this returns, the new deadlines are as durable
 * as synchronous_commit asks for, by one flush: also those that an earlier record
 * covers, whose call did not wait for the disk.  Throws 42501.
 */
void
dlock_held_renew_each(DLockDatabase *db, const DLockHolderTarget *targets, int count,
					  DLockTime ttl, bool *renewed)
{
	DLockHeldRenewal renew = {.ttl = ttl};

	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		renewed[i] = renew_lease(db, &targets[i], &renew);
	}
	dlock_step_close();			/* no pins while it waits */
	dlock_flush_commit(renew.lsn);
}

/* The same with all live leases that the name of an owner stands for; how many? */
int
dlock_held_renew_all(DLockDatabase *db, const DLockBytes *owner_name, DLockTime ttl)
{
	DLockHeldRenewal renew = {.ttl = ttl};
	int			renewed = run_on_owned(db, owner_name, renew_lease, &renew);

	dlock_step_close();			/* no pins while it waits */
	dlock_flush_commit(renew.lsn);
	return renewed;
}

/* ---- converting ---- */

/* What prevents a conversion, whatever mode is asked for; NULL if nothing does. */
static const char *
find_problem(const DLockSpaceLease *lease)
{
	if (lease->mode == DLOCK_MODE_PERMIT)
		return gettext_noop("It is a permit of a semaphore.");
	if (lease->part != DLOCK_PART_WHOLE)
		return gettext_noop("It is the lease on a path.");
	/* The session that it is bound to knows it by its token. */
	if (lease->bind != DLOCK_BIND_NONE && lease->process != MyProcNumber)
		return gettext_noop("It is bound to another session.");
	return NULL;
}

typedef struct DLockHeldConversion
{
	DLockHeldFind found;
	DLockMode	mode;
	bool		may_wait;
	const char *problem;		/* what prevents it, or NULL */
	bool		crowded;		/* too many holders, but for NL and CR */
	DLockAcquireAnswer answer;
	DLockAcquireGranted *granted;
} DLockHeldConversion;

/* Give a lease another mode, and with an upgrade another token. */
static DLockStepLack
change_mode(DLockStep *step, DLockSpaceLease *lease, DLockMode mode)
{
	DLockToken	token = lease->token;
	DLockStepLack lack = dlock_step_pin_lease(step, lease);

	Assert(dlock_partition_is_mine(dlock_space_entry_of(lease)->hash));
	if (lack == DLOCK_LACKS_NOTHING && dlock_rule_is_upgrade((DLockMode) lease->mode, mode))
		lack = dlock_step_tokens(step, 1, &token);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;
	if (token != lease->token)
	{
		dlock_space_succeed(lease, token);
		lease->called = false;
		/* The worker may know the lease by its old token alone. */
		dlock_database_note_deadline(dlock_holder_blocks_until(lease));
	}
	dlock_space_set_mode(lease, mode);
	if (lease->slot != DLOCK_SLOT_NONE)
		dlock_step_rewrite(step, lease, NULL);
	return DLOCK_LACKS_NOTHING;
}

/* Put a request for a conversion into the queue. */
static DLockStepLack
enqueue_conversion(DLockStep *step, const DLockSpaceLease *lease, DLockMode mode)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(lease);
	DLockHolderTexts texts;
	DLockLeaseValue value = {
		.token = lease->token,
		.mode = mode,
		.role = lease->role,
		.term = {.deadline = DLOCK_TIME_FOREVER},
		.name = dlock_space_entry_name(entry, texts.name),
		.owner = dlock_space_lease_owner(lease, texts.owner).name
	};
	DLockMemoryRef place = DLOCK_MEMORY_NONE;

	Assert(dlock_partition_is_mine(entry->hash));
	step->room = (DLockStepRoom)
	{
		.count = 1,.name_len = value.name.len,.data_len = value.owner.len
	};
	if (!dlock_space_prepare(value.name.len, value.owner.len, 1))
		return DLOCK_LACKS_ROOM;
	(void) dlock_space_enqueue(entry->database, entry->hash, &value, DLOCK_SPACE_CONVERT, &place);
	dlock_process_begin(&step->set, place, step->now);
	return DLOCK_LACKS_NOTHING;
}

/* Convert a lease that was found, or go into the queue for it. */
static DLockStepLack
convert_found(DLockStep *step, DLockHeldConversion *convert)
{
	DLockSpaceLease *lease = convert->found.lease;
	DLockSpaceEntry *entry = dlock_space_entry_of(lease);
	DLockSpaceLease *request = dlock_process_first(MyProcNumber);
	DLockMode	before = (DLockMode) lease->mode;
	DLockTime	vouched_until = dlock_holder_vouched_until(lease);
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner;
	DLockTime	until;
	DLockStepLack lack;

	if (dlock_rule_is_upgrade(before, convert->mode) &&
		dlock_holder_is_blocked(entry, convert->mode, 0, lease,
								(request != NULL) ? request :
								dlock_space_behind(entry, DLOCK_SPACE_CONVERT),
								step->now, &until))
	{
		convert->answer = convert->may_wait ? DLOCK_ANSWER_QUEUED : DLOCK_ANSWER_REFUSED;
		lack = (convert->may_wait && request == NULL) ?
			enqueue_conversion(step, lease, convert->mode) : DLOCK_LACKS_NOTHING;
		if (convert->may_wait && lack == DLOCK_LACKS_NOTHING)
			convert->granted->until = dlock_queue_stay(step->now, DLOCK_TIME_FOREVER);
		return lack;
	}

	lack = dlock_step_tidy(step, entry);
	convert->crowded = lack == DLOCK_LACKS_NOTHING && entry->nstrong >= DLOCK_HOLDERS_MAX &&
		(DLOCK_RULE_BIT(before) & DLOCK_SPACE_WEAK_MODES) != 0 &&
		(DLOCK_RULE_BIT(convert->mode) & DLOCK_SPACE_WEAK_MODES) == 0;
	if (convert->crowded)
		return DLOCK_LACKS_NOTHING;
	if (lack == DLOCK_LACKS_NOTHING)
		lack = change_mode(step, lease, convert->mode);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;
	if (request != NULL)
		dlock_queue_remove_mine(step->now);
	dlock_stat_count(DLOCK_STAT_CONVERSION, 1);
	owner = dlock_space_lease_owner(lease, buffer);
	dlock_queue_wake_twins(entry, &owner, (DLockPart) lease->part);
	dlock_queue_give_turns(entry, step->now, DLOCK_TURNS_AGAIN);
	convert->answer = DLOCK_ANSWER_GRANTED;
	*convert->granted = (DLockAcquireGranted)
	{
		.token = lease->token,.lsn = lease->lsn,.before = before,.vouched_until = vouched_until
	};
	return DLOCK_LACKS_NOTHING;
}

/* An attempt: convert a lease. */
static DLockStepLack
try_convert(DLockStep *step, void *arg)
{
	DLockHeldConversion *convert = arg;
	DLockStepLack lack = find_wanted(step, &convert->found);

	if (lack != DLOCK_LACKS_NOTHING || convert->found.lease == NULL)
		return lack;
	convert->problem = find_problem(convert->found.lease);
	return (convert->problem != NULL) ? DLOCK_LACKS_NOTHING : convert_found(step, convert);
}

/*
 * Convert the live lease with a token to another mode, or go into the queue.
 *
 * An upgrade has to be compatible with the other holders and with the
 * conversions that wait already, and gives the lease a new token; a downgrade
 * keeps it and never waits.  If this process is in the queue for it, the
 * request stays there unless it is granted.  GRANTED: it is left to the caller to list the
 * change (session/grants.c) and to flush it; nothing throws after it was made.
 * Throws LK002 if no such lease is live, 55000 if it cannot be converted, 54000 if
 * the lock has too many holders, 42501, 53400.
 */
DLockAcquireAnswer
dlock_held_convert(DLockDatabase *db, const DLockHolderTarget *target,
				   DLockMode mode, bool may_wait, DLockAcquireGranted *granted)
{
	DLockHeldConversion convert = {
		.found = {.target = target},
		.mode = mode,.may_wait = may_wait,.granted = granted
	};
	DLockStep	step;

	if (!run_on_found(&step, db, &convert.found, try_convert))
		dlock_error_lease_lost(&target->name, target->token);
	if (convert.problem != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("lease on lock \"%.*s\" cannot be converted", target->name.len, target->name.data),
				 errdetail("%s", _(convert.problem)),
				 errhint("Release it and acquire it in the other mode.")));
	if (convert.crowded)
		dlock_error_crowded(&target->name);
	return convert.answer;
}

/* ---- releasing ---- */

typedef struct DLockHeldRelease
{
	DLockHeldFind found;
	bool		unconfirmed;	/* what is told of it is over ... */
	int			level;			/* ... unless its record is confirmed by now */
	XLogRecPtr	lsn;
} DLockHeldRelease;

/* A lease is released before the least time to hold it: it closes its lock. */
static void
close_lock(DLockStep *step, DLockSpaceLease *lease)
{
	/* An expiry that comes first ends it all the same. */
	DLockTime	until = Min(lease->min_until, lease->deadline);
	DLockTerm	term = {0, step->now, step->now, 0};

	Assert(dlock_partition_is_mine(dlock_space_entry_of(lease)->hash));
	lease->delay = until - step->now;
	if (lease->slot != DLOCK_SLOT_NONE)
		dlock_step_log_state(step, lease, &term);
	dlock_step_stop_lease(step, lease, lease->delay);
}

/* An attempt: release a lease once, or open the lock that it keeps closed. */
static DLockStepLack
try_release(DLockStep *step, void *arg)
{
	DLockHeldRelease *release = arg;
	DLockStepLack lack = find_wanted(step, &release->found);
	DLockSpaceLease *lease = release->found.lease;
	DLockRuleEnd end;
	DLockTerm	term;

	if (lack != DLOCK_LACKS_NOTHING || lease == NULL)
		return lack;
	if (release->found.target->closed)
		return dlock_step_erase_lease(step, lease);
	release->unconfirmed = !dlock_rule_is_live(dlock_holder_told_until(lease), step->now) &&
		!dlock_holder_is_unknown(lease);
	release->level = lease->level;
	release->lsn = lease->lsn;
	end = dlock_rule_release(lease->holds, lease->min_until, step->now);
	lack = (end == DLOCK_RULE_END) ? dlock_step_erase_lease(step, lease) :
		dlock_step_pin_lease(step, lease);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;
	if (end == DLOCK_RULE_CLOSE)
		close_lock(step, lease);
	if (end != DLOCK_RULE_COUNT_DOWN)
	{
		dlock_stat_count(DLOCK_STAT_RELEASE, 1);
		return DLOCK_LACKS_NOTHING;
	}

	lease->holds--;
	term = dlock_space_lease_term(lease);
	if (lease->slot != DLOCK_SLOT_NONE)
		dlock_step_log_state(step, lease, &term);
	return DLOCK_LACKS_NOTHING;
}

/*
 * Release the lease that a target names, or open the lock that it keeps closed.  False if
 * there is none, as "found" tells, or if the deadline that is confirmed has passed: as far
 * as is known its holder did not hold it any more.
 *
 * The release is not flushed: the next grant of the lock writes its record
 * after this one, and a crash that loses both brings the lease back for a ttl
 * at most.  Throws 42501.
 */
bool
dlock_held_release(DLockDatabase *db, const DLockHolderTarget *target, bool *found)
{
	DLockHeldRelease release = {.found = {.target = target}};
	DLockStep	step;

	*found = run_on_found(&step, db, &release.found, try_release);
	if (*found)
		dlock_flush_later(step.lsn, step.now);
	if (!*found || !release.unconfirmed)
		return *found;
	dlock_flush_confirm_reported();
	return dlock_flush_is_confirmed(release.level, release.lsn);
}

/* Release all holds of a lease, and count it if it was held. */
static bool
release_owned(DLockDatabase *db, const DLockHolderTarget *target, void *arg)
{
	bool		found;

	*(int *) arg += dlock_held_release(db, target, &found);
	for (bool again = found; again; (void) dlock_held_release(db, target, &again))
		CHECK_FOR_INTERRUPTS();
	return found;
}

/* Release all live leases that the name of an owner stands for; how many were held? */
int
dlock_held_release_all(DLockDatabase *db, const DLockBytes *owner_name)
{
	int			count = 0;

	(void) run_on_owned(db, owner_name, release_owned, &count);
	return count;
}

/* ---- by force ---- */

typedef struct DLockHeldForce
{
	const DLockBytes *name;
	int			room;			/* how many leases can be told of */
	DLockHeldForced *ended;
	int			count;			/* of leases to be ended; more than "room":
								 * none was */
} DLockHeldForce;

/*
 * Note what is told of a lease that is about to be ended by force.  A live one keeps its
 * delay, for its holder may take a while to notice; a closed one opens its lock.
 */
static void
note_forced(DLockHeldForced *told, const DLockSpaceLease *lease, DLockTime now)
{
	char		buffer[DLOCK_OWNER_MAX];

	told->hash = dlock_space_entry_of(lease)->hash;
	told->token = lease->token;
	told->role = lease->role;
	told->was_closed = lease->deadline <= now;
	told->closed_for = told->was_closed ? 0 : lease->delay;
	told->owner_len = lease->owner_len;
	memcpy(told->owner, dlock_space_owner_name(lease, buffer).data, lease->owner_len);
}

/* An attempt: end all leases on a lock, if there is room to tell of them. */
static DLockStepLack
try_force(DLockStep *step, void *arg)
{
	DLockHeldForce *force = arg;
	Oid			database = step->db->shared->oid;
	DLockSpaceEntry *entry = dlock_space_find(database, dlock_name_hash(database, force->name),
											  force->name);
	DLockPartitionSet needed = {{0}};
	int			released = 0;
	DLockStepLack lack;

	force->count = 0;
	if (entry == NULL)
		return DLOCK_LACKS_NOTHING;
	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL;
		 lease = dlock_space_next(lease))
	{
		dlock_step_add_parts(&needed, dlock_space_whole(lease));
		force->count += dlock_holder_blocks_until(lease) > step->now;
	}
	lack = dlock_step_widen(step, &needed);
	if (lack != DLOCK_LACKS_NOTHING || force->count > force->room)
		return lack;

	force->count = 0;
	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL;
		 lease = dlock_space_next(lease))
	{
		DLockSpaceLease *whole = dlock_space_whole(lease);
		DLockHeldForced *told = &force->ended[force->count];

		if (dlock_holder_blocks_until(lease) <= step->now)
			continue;
		force->count++;
		released += !whole->stopped;
		note_forced(told, whole, step->now);
		dlock_space_stop(whole, told->closed_for, step->now);
		whole->unwritten = whole->slot != DLOCK_SLOT_NONE;
	}
	if (force->count > 0)
		dlock_database_note_deadline(step->now);
	dlock_stat_count(DLOCK_STAT_RELEASE, released);
	dlock_queue_pass_by(entry, step->now);
	return DLOCK_LACKS_NOTHING;
}

/*
 * End all leases on a lock at one moment; a path that goes through it as a
 * whole.  A live one with a lock delay closes the lock, as by any unclean end;
 * one that has the lock closed does so no longer.  Places that no process listens for are
 * passed by.  Returns how many leases, and tells in "ended" (palloc'd) what they were.
 *
 * Requests for the lock get turns at once, and a conversion cannot save one of the leases.
 * dlock_held_expire() erases these, or writes that they have ended, and gives turns on the
 * other locks of their paths.
 */
int
dlock_held_end_by_force(DLockDatabase *db, const DLockBytes *name, DLockHeldForced **ended)
{
	DLockHeldForce force = {.name = name,.ended = palloc(0)};

	do
	{
		DLockStep	step;

		/* Memory is not to be asked for under the lock. */
		force.room = force.count + 8;
		force.ended = repalloc_huge(force.ended, force.room * sizeof(DLockHeldForced));
		dlock_step_begin(&step, db);
		dlock_partition_set_add(&step.set, dlock_name_hash(db->shared->oid, name));
		dlock_step_run(&step, try_force, &force);
	} while (force.count > force.room);
	*ended = force.ended;
	return force.count;
}

/* ---- by time ---- */

typedef struct DLockHeldExpiry
{
	DLockHeldFind found;
	DLockHeldStop how;			/* if it is stopped */
	DLockTime	until;			/* zero: the lease is gone */
} DLockHeldExpiry;

/* An attempt: remove a dead lease, or write one whose page is out of date. */
static DLockStepLack
try_expire(DLockStep *step, void *arg)
{
	DLockHeldExpiry *expiry = arg;
	DLockStepLack lack = find_any(step, &expiry->found);
	DLockSpaceLease *lease = expiry->found.lease;

	expiry->until = 0;
	if (lack != DLOCK_LACKS_NOTHING || lease == NULL)
		return lack;
	expiry->until = dlock_holder_blocks_until(lease);
	if (expiry->until > step->now)
	{
		DLockTerm	ended = {0, lease->deadline, lease->deadline, 0};

		lack = lease->unwritten ? dlock_step_pin(step, lease->slot) : DLOCK_LACKS_NOTHING;
		if (lack == DLOCK_LACKS_NOTHING && lease->unwritten)
		{
			dlock_step_rewrite(step, lease, lease->stopped ? &ended : NULL);
			if (lease->stopped)
				dlock_step_tell_end(step, lease);
		}
		return lack;
	}

	lack = dlock_step_erase_lease(step, lease);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;
	pg_atomic_write_u64(&step->db->shared->stats.cleanup_lag, step->now - expiry->until);
	expiry->until = 0;
	return DLOCK_LACKS_NOTHING;
}

/*
 * Remove a lease if it is dead, or write it if its page is out of date.  Returns zero
 * when it is gone, else until when it keeps others out.
 */
DLockTime
dlock_held_expire(DLockDatabase *db, uint32 hash, DLockToken token)
{
	DLockHolderTarget target = {.hash = hash,.token = token};
	DLockHeldExpiry expiry = {.found = {.target = &target}};
	DLockStep	step;

	(void) run_on_found(&step, db, &expiry.found, try_expire);
	dlock_flush_later(step.lsn, step.now);
	return expiry.until;
}

/* ---- with a session, or without an answer ---- */

/* For how long a lock stays closed when a lease on it is stopped. */
static DLockTime
delay_of(const DLockSpaceLease *lease, DLockHeldStop how, DLockTime now)
{
	DLockTime	delay = (how == DLOCK_STOP_LOST) ? lease->delay : 0;

	if (how != DLOCK_STOP_UNTOLD && lease->min_until > now)
		delay = Max(delay, Min(lease->min_until, lease->deadline) - now);
	return delay;
}

/* An attempt, which lacks nothing but partitions: end a lease in memory. */
static DLockStepLack
try_stop(DLockStep *step, void *arg)
{
	DLockHeldExpiry *end = arg;
	DLockStepLack lack = find_any(step, &end->found);
	DLockSpaceLease *lease = end->found.lease;

	if (lack != DLOCK_LACKS_NOTHING || lease == NULL ||
		!dlock_rule_is_live(lease->deadline, step->now))
		return lack;

	/* Another call was told of it. */
	if (end->how == DLOCK_STOP_UNTOLD && lease->called)
	{
		lease->unwritten |= lease->holds > 1 && lease->slot != DLOCK_SLOT_NONE;
		lease->holds -= lease->holds > 1;
		dlock_database_note_deadline(dlock_holder_due_at(lease));
		return DLOCK_LACKS_NOTHING;
	}
	dlock_step_stop_lease(step, lease, delay_of(lease, end->how, step->now));
	return DLOCK_LACKS_NOTHING;
}

/*
 * End a lease now, without changing its page; with DLOCK_STOP_UNTOLD, one that another call
 * was told of loses a hold at most.
 *
 * "db" needs no more than its shared parts.  Cannot fail; to be called at the
 * end of a transaction, in an error, or at exit.
 */
void
dlock_held_stop(DLockDatabase *db, uint32 hash, DLockToken token, DLockHeldStop how)
{
	DLockHolderTarget target = {.hash = hash,.token = token};
	DLockHeldExpiry end = {.found = {.target = &target},.how = how};
	DLockStep	step;

	(void) run_on_found(&step, db, &end.found, try_stop);
}
