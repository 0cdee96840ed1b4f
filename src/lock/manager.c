/*-------------------------------------------------------------------------
 *
 * manager.c
 *	  Renew, release, convert, expire, check: what is done with leases.
 *
 * NOTES
 *	  Every operation on a lease is an attempt that the driver runs
 *	  (lock/step.c).  Under the partition lock of the lock's name it looks,
 *	  decides by the rules, and changes what is to change.  A lease on a path is changed with all its parts,
 *	  under the partition locks of the path and its ancestors.
 *
 *	  Lock order, which every file of dlock keeps:
 *
 *	  (1) whatever can wait, fail or extend: the relation's lock, the load
 *		  lock, the extension lock, the token sequence, reading a page,
 *		  allocating in the space.  Never under (2) to (5).
 *	  (2) the partition locks of names, all at once (dlock_space_lock_set).
 *	  (3) the content lock of a buffer (store/store.c), or an owner's lock
 *		  (space/index.c).
 *	  (4) the mutex of the tokens, that of a stripe of slots (space/slot.c), or
 *		  that of a list of free memory (space/memory.c).
 *
 *	  Never held together with another: the registry lock (space/database.c),
 *	  the lock of the limits (space/limit.c), that of the counts (base/stat.c).
 *
 *	  Flushing comes last, with no lock held.  Others see a lease before it is
 *	  durable; what they can conclude from that is a refusal, which promises
 *	  nothing.
 *
 * IDENTIFICATION
 *	  src/lock/manager.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/stat.h"
#include "lock/manager.h"
#include "lock/queue.h"
#include "lock/step.h"
#include "space/holder.h"
#include "store/flush.h"

/* How long a lease that was stopped in memory may stay on disk. */
#define TIDY_DELAY		USECS_PER_SEC

/* When to come back to a lease whose partition is locked for long. */
#define SKIPPED_DELAY	USECS_PER_SEC

/* A lease that is looked for, and what was found. */
typedef struct DLockManagerFound
{
	const DLockManagerTarget *target;
	DLockManagerRight right;
	DLockSpaceEntry *entry;
	DLockSpaceLease *lease;		/* NULL if there is none */
	Oid			stranger;		/* whose lease it is, if that prevents it */
} DLockManagerFound;

static DLockManagerTarget
target_of_ref(const DLockSpaceRef *ref)
{
	return (DLockManagerTarget)
	{
		.by = DLOCK_BY_REF, .hash = ref->hash, .token = ref->token
	};
}

/*
 * Is a lease live; or, if the target wants that, over, and its lock closed by
 * its lock delay?
 */
static bool
is_wanted(const DLockManagerTarget *target, const DLockSpaceLease *lease, DLockTime now)
{
	if (dlock_rule_is_live(lease->deadline, now))
		return !target->closed;
	return target->closed && now >= lease->min_until && dlock_holder_blocks_until(lease) > now;
}

/*
 * Find the lease that an owner's name stands for: that of the current user, else
 * the first that is not a stranger's.  An owner may have leases that are closed
 * beside its live one.
 */
static DLockSpaceLease *
find_by_owner(DLockSpaceEntry *entry, const DLockManagerTarget *target, const List *strangers)
{
	DLockOwner	own = {GetUserId(), target->owner};
	DLockTime	now = dlock_clock_now();
	DLockSpaceLease *other = target->closed ? NULL : dlock_space_find_owned(entry, &own, now);

	if (other != NULL)
		return other;
	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL;
		 lease = dlock_space_next(lease))
	{
		if (lease->part == DLOCK_PART_INTENT || !is_wanted(target, lease, now) ||
			!dlock_space_is_owner_name(lease, &target->owner))
			continue;
		if (lease->role == GetUserId())
			return lease;
		if (other == NULL && !list_member_oid(strangers, lease->role))
			other = lease;
	}
	return other;
}

/*
 * Find the lease that a target names; NULL if there is none.  The partition
 * lock must be held.  Intents are found by reference only.
 */
static DLockSpaceLease *
find_lease(DLockDatabase *db, const DLockManagerTarget *target, const List *strangers,
		   DLockSpaceEntry **entry)
{
	DLockSpaceLease *lease = NULL;
	Oid			database = db->shared->oid;

	if (target->by == DLOCK_BY_REF)
	{
		*entry = dlock_space_find_token(database, target->hash, target->token, &lease);
		return lease;
	}

	*entry = dlock_space_find(database, target->hash, &target->name);
	if (*entry == NULL)
		return NULL;
	if (target->by == DLOCK_BY_OWNER)
		return find_by_owner(*entry, target, strangers);
	lease = dlock_space_find_part(*entry, target->token);
	return (lease != NULL && lease->part != DLOCK_PART_INTENT) ? lease : NULL;
}

/*
 * Find the lease that a target names, with the partitions of all its parts
 * locked.
 */
static DLockStepLack
find(DLockStep *step, DLockManagerFound *found)
{
	DLockSpaceSet needed = {{0}};
	char		buffer[DLOCK_NAME_MAX];
	DLockBytes	name;

	Assert(dlock_partition_is_mine(found->target->hash));
	found->lease = find_lease(step->db, found->target, step->strangers, &found->entry);
	if (found->lease == NULL || found->lease->part != DLOCK_PART_PATH)
		return DLOCK_LACKS_NOTHING;
	name = dlock_space_entry_name(found->entry, buffer);
	dlock_holder_path_set(step->db->shared->oid, &name, &needed);
	return dlock_step_widen(step, &needed);
}

/*
 * The same for a lease that is as the target wants it, held or closed, and that
 * the current user may use: its own, or that of a role that it is a member of.
 *
 * A name of an owner stands for no lease of a stranger: the answer is as if that
 * lease were not there.  A token or a reference names one lease; "right" says what
 * happens if that is a stranger's.
 */
static DLockStepLack
find_wanted(DLockStep *step, DLockManagerFound *found)
{
	DLockStepLack lack = find(step, found);
	Oid			role;

	if (lack != DLOCK_LACKS_NOTHING || found->lease == NULL)
		return lack;
	role = found->lease->role;
	if (!is_wanted(found->target, found->lease, step->now))
		found->lease = NULL;
	else if (role == GetUserId() || role == step->member_of)
		return DLOCK_LACKS_NOTHING;
	else if (list_member_oid(step->strangers, role))
	{
		found->stranger = role;
		found->lease = NULL;
	}
	else
	{
		/* The catalogs are not to be read under a partition lock. */
		step->role = role;
		return DLOCK_LACKS_RIGHT;
	}
	return DLOCK_LACKS_NOTHING;
}

/*
 * Run an attempt on the lease that a target names.  "arg" begins with "found".
 * True if there is such a lease.  Throws 42501.
 */
static bool
run(DLockStep *step, DLockDatabase *db, DLockManagerFound *found, DLockStepAttempt attempt)
{
	dlock_step_begin(step, db);
	dlock_space_set_add(&step->set, found->target->hash);
	(void) dlock_step_run(step, attempt, found);
	if (OidIsValid(found->stranger) && found->right == DLOCK_RIGHT_ROLE)
		dlock_error_not_owner(&found->target->name, found->stranger);
	return found->lease != NULL;
}

static DLockTerm
term_of(const DLockSpaceLease *lease)
{
	return (DLockTerm) {lease->ttl, lease->deadline, lease->bound_mono, 0};
}

/* ---- renewal ---- */

typedef struct DLockManagerRenewal
{
	DLockManagerFound found;
	DLockTime	ttl;
	XLogRecPtr	lsn;			/* vouches for the new deadline */
} DLockManagerRenewal;

/* An attempt: renew a lease. */
static DLockStepLack
try_renew(DLockStep *step, void *arg)
{
	DLockManagerRenewal *renew = arg;
	DLockStepLack lack = find_wanted(step, &renew->found);
	DLockSpaceLease *lease = renew->found.lease;
	DLockHolderPart parts[DLOCK_PATH_MAX_PARTS];
	DLockRuleRenewal renewal;
	DLockTerm	term;
	int			count;

	if (lack != DLOCK_LACKS_NOTHING || lease == NULL)
		return lack;
	term = term_of(lease);
	renewal = dlock_rule_renew(&term, renew->ttl, step->now, dlock_clock_wall());
	if (renewal.must_log && lease->slot != DLOCK_SLOT_NONE)
	{
		lack = dlock_step_pin(step, lease->slot);
		if (lack != DLOCK_LACKS_NOTHING)
			return lack;
		dlock_step_log_state(step, lease, &renewal.term);
	}

	dlock_stat_count(DLOCK_STAT_RENEWAL, 1);
	renew->lsn = lease->lsn;
	count = dlock_holder_parts(renew->found.entry, lease, parts);
	for (int i = 0; i < count; i++)
	{
		parts[i].lease->ttl = renewal.term.ttl;
		parts[i].lease->deadline = renewal.term.deadline;
		parts[i].lease->bound_mono = renewal.term.bound_mono;
		dlock_space_note_end(parts[i].lease);
	}
	if (renewal.term.deadline >= term.deadline)
		return DLOCK_LACKS_NOTHING;

	/* It ends earlier than requests in the queue expect. */
	dlock_database_note_deadline(step->db->shared, dlock_holder_blocks_until(lease));
	for (int i = 0; i < count; i++)
		dlock_queue_call(parts[i].entry, step->now);
	return DLOCK_LACKS_NOTHING;
}

/*
 * Renew the live lease that a target names; false if there is none, or if it
 * is to be skipped.  "lsn" is the end of the record that vouches for the new
 * deadline; it is left to the caller to flush it.
 */
static bool
renew_lease(DLockDatabase *db, const DLockManagerTarget *target, DLockTime ttl,
			DLockManagerRight right, XLogRecPtr *lsn)
{
	DLockManagerRenewal renew = {.found = {.target = target, .right = right}, .ttl = ttl};
	DLockStep	step;
	bool		renewed = run(&step, db, &renew.found, try_renew);

	*lsn = renew.lsn;
	return renewed;
}

/*
 * Renew the live lease that a target names; false if there is none.
 *
 * "ttl" zero keeps that of the lease.  When this returns true, the new
 * deadline is as durable as synchronous_commit asks for: also where the bound
 * that covers it was logged before, by a call that did not wait for the disk.
 * Throws 42501.
 */
bool
dlock_manager_renew(DLockDatabase *db, const DLockManagerTarget *target,
					DLockTime ttl)
{
	XLogRecPtr	lsn;

	if (!renew_lease(db, target, ttl, DLOCK_RIGHT_ROLE, &lsn))
		return false;
	dlock_flush_commit(lsn, dlock_clock_now());
	return true;
}

/*
 * Renew those of these leases that are live and that the current user may
 * renew.  Returns how many; the others' tokens become DLOCK_TOKEN_NONE.  "lsn"
 * is advanced to what vouches for the new deadlines, which is left to the
 * caller to flush.
 */
int
dlock_manager_renew_refs(DLockDatabase *db, DLockSpaceRef *refs, int count,
						 DLockTime ttl, XLogRecPtr *lsn)
{
	int			renewed = 0;

	for (int i = 0; i < count; i++)
	{
		DLockManagerTarget target = target_of_ref(&refs[i]);
		XLogRecPtr	of_this;

		CHECK_FOR_INTERRUPTS();
		if (renew_lease(db, &target, ttl, DLOCK_RIGHT_ROLE_SKIP, &of_this))
		{
			renewed++;
			*lsn = Max(*lsn, of_this);
		}
		else
			refs[i].token = DLOCK_TOKEN_NONE;
	}
	return renewed;
}

/* Put the current user's own leases in front; returns how many these are. */
static int
own_first(DLockSpaceRef *refs, int count)
{
	int			own = 0;

	for (int i = 0; i < count; i++)
	{
		DLockSpaceRef ref = refs[i];

		if (ref.role != GetUserId())
			continue;
		refs[i] = refs[own];
		refs[own++] = ref;
	}
	return own;
}

/*
 * Renew all live leases that the name of an owner stands for: those of the
 * current user; if it has none, those of the roles that it is a member of.
 * Flushes once.  Returns how many.
 */
int
dlock_manager_renew_all(DLockDatabase *db, const DLockBytes *owner_name, DLockTime ttl)
{
	int			count;
	DLockSpaceRef *refs = dlock_space_owned(db->shared->oid, owner_name, &count);
	int			own = own_first(refs, count);
	XLogRecPtr	last = InvalidXLogRecPtr;
	int			renewed = dlock_manager_renew_refs(db, refs, own, ttl, &last);

	if (renewed == 0)
		renewed = dlock_manager_renew_refs(db, refs + own, count - own, ttl, &last);
	pfree(refs);
	dlock_flush_commit(last, dlock_clock_now());
	return renewed;
}

/* ---- release ---- */

typedef struct DLockManagerRelease
{
	DLockManagerFound found;
	DLockToken	counted;		/* of a lease that goes on with one hold less */
} DLockManagerRelease;

/* A lease is released before the least time to hold it: it closes its lock. */
static void
close_lock(DLockStep *step, DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	/* An expiry that comes first ends it all the same. */
	DLockTime	until = Min(lease->min_until, lease->deadline);
	DLockTerm	term = {0, step->now, step->now, dlock_clock_wall()};

	dlock_database_note_deadline(step->db->shared, until);
	lease->delay = until - step->now;
	if (lease->slot != DLOCK_SLOT_NONE)
		dlock_step_log_state(step, lease, &term);
	dlock_step_stop_lease(entry, lease, lease->delay, step->now);
}

/* An attempt: release a lease once. */
static DLockStepLack
try_release(DLockStep *step, void *arg)
{
	DLockManagerRelease *release = arg;
	DLockStepLack lack = find_wanted(step, &release->found);
	DLockSpaceLease *lease = release->found.lease;
	DLockRuleEnd end;
	DLockTerm	term;

	if (lack != DLOCK_LACKS_NOTHING || lease == NULL)
		return lack;
	end = dlock_rule_release(lease->holds, lease->min_until, step->now);
	lack = (end == DLOCK_RULE_END) ? dlock_step_end_lease(step, release->found.entry, lease) :
		dlock_step_pin_lease(step, lease);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;
	if (end == DLOCK_RULE_CLOSE)
		close_lock(step, release->found.entry, lease);
	if (end != DLOCK_RULE_COUNT_DOWN)
	{
		dlock_stat_count(DLOCK_STAT_RELEASE, 1);
		return DLOCK_LACKS_NOTHING;
	}

	lease->holds--;
	release->counted = lease->token;
	term = term_of(lease);
	term.bound_wall = dlock_rule_bound_wall(term.bound_mono, step->now, dlock_clock_wall());
	if (lease->slot != DLOCK_SLOT_NONE)
		dlock_step_log_state(step, lease, &term);
	return DLOCK_LACKS_NOTHING;
}

/* An attempt: open a lock that a lease keeps closed, for its owner is done. */
static DLockStepLack
try_open(DLockStep *step, void *arg)
{
	DLockManagerRelease *release = arg;
	DLockStepLack lack = find_wanted(step, &release->found);
	bool		expired;

	if (lack != DLOCK_LACKS_NOTHING || release->found.lease == NULL)
		return lack;
	expired = !release->found.lease->stopped;
	lack = dlock_step_end_lease(step, release->found.entry, release->found.lease);
	dlock_stat_count(DLOCK_STAT_EXPIRY, lack == DLOCK_LACKS_NOTHING && expired);
	return lack;
}

/*
 * Release the lease that a target names, or open the lock that it keeps closed;
 * false if there is none.
 *
 * The release is not flushed: whoever acquires the lock next writes its record
 * after this one, and a crash that loses both brings the lease back for a ttl
 * at most.  Throws 42501.
 *
 * "counted", if not NULL, is the token of a lease that goes on with one hold less;
 * else DLOCK_TOKEN_NONE.
 */
bool
dlock_manager_release(DLockDatabase *db, const DLockManagerTarget *target,
					  DLockManagerRight right, DLockToken *counted)
{
	DLockManagerRelease release = {.found = {.target = target, .right = right}};
	DLockStep	step;

	if (!run(&step, db, &release.found, target->closed ? try_open : try_release))
		return false;
	if (counted != NULL)
		*counted = release.counted;
	dlock_flush_later(step.lsn, step.now);
	return true;
}

/* Release those of these leases that are live, all their holds; how many? */
static int
release_refs(DLockDatabase *db, const DLockSpaceRef *refs, int count)
{
	int			released = 0;

	for (int i = 0; i < count; i++)
	{
		DLockManagerTarget target = target_of_ref(&refs[i]);

		CHECK_FOR_INTERRUPTS();
		if (!dlock_manager_release(db, &target, DLOCK_RIGHT_ROLE_SKIP, NULL))
			continue;
		released++;
		while (dlock_manager_release(db, &target, DLOCK_RIGHT_ROLE_SKIP, NULL))
			CHECK_FOR_INTERRUPTS();
	}
	return released;
}

/*
 * Release all live leases that the name of an owner stands for, as
 * dlock_manager_renew_all() finds them.  Returns how many.
 */
int
dlock_manager_release_all(DLockDatabase *db, const DLockBytes *owner_name)
{
	int			count;
	DLockSpaceRef *refs = dlock_space_owned(db->shared->oid, owner_name, &count);
	int			own = own_first(refs, count);
	int			released = release_refs(db, refs, own);

	if (released == 0)
		released = release_refs(db, refs + own, count - own);
	pfree(refs);
	return released;
}

/* ---- conversion ---- */

/* What prevents a conversion, whatever mode is asked for. */
typedef enum DLockConvertProblem
{
	CONVERT_FINE,
	CONVERT_PERMIT,
	CONVERT_PATH,
	CONVERT_BOUND
} DLockConvertProblem;

static DLockConvertProblem
check_convertible(const DLockSpaceLease *lease)
{
	if (lease->mode == DLOCK_MODE_PERMIT)
		return CONVERT_PERMIT;
	if (lease->part != DLOCK_PART_WHOLE)
		return CONVERT_PATH;
	/* The session that it is bound to knows it by its token. */
	if (lease->bind != DLOCK_BIND_NONE && lease->process != dlock_queue_me())
		return CONVERT_BOUND;
	return CONVERT_FINE;
}

/* This process's request for a conversion; NULL if it is not in the queue. */
static DLockSpaceLease *
find_request(void)
{
	const DLockQueueShared *wait = dlock_queue_place(dlock_queue_me());

	return (wait->state == DLOCK_QUEUE_WAITING) ? dlock_space_request_first(wait->first) : NULL;
}

/* The first request in the queue that is not for a conversion; or NULL. */
static DLockSpaceLease *
first_newcomer(DLockSpaceEntry *entry)
{
	DLockSpaceLease *request = dlock_space_queue(entry);

	while (request != NULL && request->kind == DLOCK_SPACE_CONVERT)
		request = dlock_space_next(request);
	return request;
}

typedef struct DLockManagerConversion
{
	DLockManagerFound found;
	DLockMode	mode;
	bool		may_wait;
	DLockConvertProblem problem;
	DLockAcquireAnswer answer;
	DLockAcquireGranted *granted;
} DLockManagerConversion;

/* Give a lease another mode, and with an upgrade another token. */
static DLockStepLack
change_mode(DLockStep *step, DLockManagerFound *found, DLockMode mode)
{
	DLockSpaceLease *lease = found->lease;
	DLockToken	token = lease->token;
	DLockStepLack lack = dlock_step_pin_lease(step, lease);

	if (lack == DLOCK_LACKS_NOTHING && dlock_rule_is_upgrade((DLockMode) lease->mode, mode))
		lack = dlock_step_tokens(step, 1, &token);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;
	if (token != lease->token)
		dlock_space_succeed(lease, lease->role, token);
	dlock_space_set_mode(lease, mode);
	if (lease->slot != DLOCK_SLOT_NONE)
		dlock_step_rewrite(step, found->entry, lease);
	return DLOCK_LACKS_NOTHING;
}

/* Put a request for a conversion into the queue. */
static DLockStepLack
enqueue_conversion(DLockStep *step, DLockManagerFound *found, DLockMode mode)
{
	Oid			database = step->db->shared->oid;
	DLockHolderTexts texts;
	DLockLeaseValue value = {
		.token = found->lease->token,
		.mode = mode,
		.role = found->lease->role,
		.name = dlock_space_entry_name(found->entry, texts.name),
		.owner = dlock_space_lease_owner(found->lease, texts.owner).name
	};
	DLockOwner	owner = {value.role, value.owner};
	DLockMemoryRef place = DLOCK_MEMORY_NONE;

	if (!dlock_space_is_prepared(value.name.len, value.owner.len, 1))
	{
		step->room = (DLockStepRoom) {
			.count = 1, .name_len = value.name.len, .data_len = value.owner.len
		};
		return DLOCK_LACKS_ROOM;
	}
	(void) dlock_space_enqueue(database, found->entry->hash, &value, DLOCK_SLOT_NONE,
							   dlock_queue_me(), DLOCK_SPACE_CONVERT, &place);
	dlock_queue_enter(DLOCK_SPACE_CONVERT, database, dlock_queue_owner_hash(&owner), &step->set, 1,
					 place, step->now, dlock_clock_wall());
	return DLOCK_LACKS_NOTHING;
}

/* Convert a lease that was found, or go into the queue for it. */
static DLockStepLack
convert_found(DLockStep *step, DLockManagerConversion *convert)
{
	DLockManagerFound *found = &convert->found;
	DLockSpaceLease *lease = found->lease;
	DLockSpaceLease *request = find_request();
	DLockMode	before = (DLockMode) lease->mode;
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner;
	DLockTime	until;
	DLockStepLack lack;

	if (dlock_rule_is_upgrade(before, convert->mode) &&
		dlock_holder_is_blocked(found->entry, convert->mode, 0, lease,
								(request != NULL) ? request : first_newcomer(found->entry),
								step->now, &until))
	{
		convert->answer = convert->may_wait ? DLOCK_ANSWER_QUEUED : DLOCK_ANSWER_REFUSED;
		if (!convert->may_wait || request != NULL)
			return DLOCK_LACKS_NOTHING;
		return enqueue_conversion(step, found, convert->mode);
	}

	lack = dlock_step_tidy(step, found->entry);
	if (lack == DLOCK_LACKS_NOTHING)
		lack = change_mode(step, found, convert->mode);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;
	if (request != NULL)
	{
		dlock_space_remove(found->entry, request);
		dlock_queue_end(dlock_queue_me(), DLOCK_QUEUE_IDLE);
	}
	dlock_stat_count(DLOCK_STAT_CONVERSION, 1);
	owner = dlock_space_lease_owner(lease, buffer);
	dlock_queue_owner_gained(step->db->shared->oid, dlock_queue_owner_hash(&owner));
	dlock_queue_call(found->entry, step->now);
	convert->answer = DLOCK_ANSWER_GRANTED;
	*convert->granted = (DLockAcquireGranted) {
		.token = lease->token, .lsn = lease->lsn, .before = before
	};
	return DLOCK_LACKS_NOTHING;
}

/* An attempt: convert a lease. */
static DLockStepLack
try_convert(DLockStep *step, void *arg)
{
	DLockManagerConversion *convert = arg;
	DLockStepLack lack = find_wanted(step, &convert->found);

	if (lack != DLOCK_LACKS_NOTHING || convert->found.lease == NULL)
		return lack;
	convert->problem = check_convertible(convert->found.lease);
	if (convert->problem != CONVERT_FINE)
		return DLOCK_LACKS_NOTHING;
	return convert_found(step, convert);
}

/*
 * Convert the live lease with a token to another mode, or go into the queue.
 *
 * An upgrade has to be compatible with the other holders and with the
 * conversions that wait already, and gives the lease a new token; a downgrade
 * keeps it and never waits.  If this process is in the queue for it, the
 * request is looked at again.  GRANTED: it is left to the caller to list the
 * change (session/answer.c) and to flush it; nothing throws after it was made.
 * Throws LK002 if no such lease is live, 55000 if it cannot be converted,
 * 42501, 53400.
 */
DLockAcquireAnswer
dlock_manager_convert(DLockDatabase *db, const DLockManagerTarget *target,
					  DLockMode mode, bool may_wait, DLockAcquireGranted *granted)
{
	DLockManagerConversion convert = {
		.found = {.target = target, .right = DLOCK_RIGHT_ROLE},
		.mode = mode, .may_wait = may_wait, .granted = granted
	};
	DLockStep	step;

	if (!run(&step, db, &convert.found, try_convert))
		dlock_error_lease_lost(&target->name, target->token);
	if (convert.problem != CONVERT_FINE)
		dlock_error_not_convertible(&target->name,
									convert.problem == CONVERT_PERMIT ? "It is a permit of a semaphore." :
									convert.problem == CONVERT_PATH ? "It is the lease on a path." :
									"It is bound to another session.");
	dlock_memory_trim();
	return convert.answer;
}

/* Is the lease that a target names live now?  Changes nothing. */
bool
dlock_manager_check(DLockDatabase *db, const DLockManagerTarget *target)
{
	DLockSpaceEntry *entry;
	DLockSpaceLease *lease;
	bool		live;

	dlock_space_lock(target->hash, LW_SHARED);
	lease = find_lease(db, target, NIL, &entry);
	live = lease != NULL && dlock_rule_is_live(lease->deadline, dlock_clock_now());
	dlock_space_unlock(target->hash);
	return live;
}

/* An attempt: log the end of a lease by force, and call the requests that wait. */
static DLockStepLack
try_tell_forced(DLockStep *step, void *arg)
{
	DLockManagerFound *found = arg;
	DLockStepLack lack = find(step, found);
	DLockSpaceLease *lease = found->lease;
	DLockHolderPart parts[DLOCK_PATH_MAX_PARTS];
	int			count;

	if (lack != DLOCK_LACKS_NOTHING || lease == NULL)
		return lack;
	if (lease->slot != DLOCK_SLOT_NONE)
	{
		DLockTerm	term = {0, lease->deadline, lease->deadline, 0};

		lack = dlock_step_pin(step, lease->slot);
		if (lack != DLOCK_LACKS_NOTHING)
			return lack;
		term.bound_wall = dlock_rule_bound_wall(lease->deadline, step->now, dlock_clock_wall());
		dlock_step_log_state(step, lease, &term);
	}
	dlock_database_note_deadline(step->db->shared, dlock_holder_blocks_until(lease));
	count = dlock_holder_parts(found->entry, lease, parts);
	for (int i = 0; i < count; i++)
		dlock_queue_call(parts[i].entry, step->now);
	return DLOCK_LACKS_NOTHING;
}

/*
 * See to what is left of a lease that was ended by force: either it is removed,
 * or it keeps its lock closed for a while, and that survives a crash.
 */
void
dlock_manager_forced(DLockDatabase *db, uint32 hash, DLockToken token)
{
	DLockManagerTarget target = {.by = DLOCK_BY_REF, .hash = hash, .token = token};
	DLockManagerFound found = {.target = &target};
	DLockStep	step;
	bool		removed;

	if (dlock_manager_expire(db, hash, token, NULL, &removed) == 0)
		return;
	(void) run(&step, db, &found, try_tell_forced);
	dlock_flush_later(step.lsn, step.now);
}

typedef struct DLockManagerExpiry
{
	DLockManagerFound found;
	DLockTime	until;			/* zero: the lease is gone */
	bool		removed;
} DLockManagerExpiry;

/* An attempt: remove a dead lease, or write one that only memory has as it is. */
static DLockStepLack
try_expire(DLockStep *step, void *arg)
{
	DLockManagerExpiry *expiry = arg;
	DLockManagerFound *found = &expiry->found;
	DLockStepLack lack = find(step, found);
	DLockSpaceLease *lease = found->lease;
	bool		expired;

	expiry->until = 0;
	if (lack != DLOCK_LACKS_NOTHING || lease == NULL)
		return lack;
	expiry->until = dlock_holder_blocks_until(lease);
	if (expiry->until > step->now)
	{
		lack = lease->unwritten ? dlock_step_pin(step, lease->slot) : DLOCK_LACKS_NOTHING;
		if (lack == DLOCK_LACKS_NOTHING && lease->unwritten)
			dlock_step_rewrite(step, found->entry, lease);
		return lack;
	}
	expired = !lease->stopped;
	expiry->removed = true;

	/* What is left of a path whose own lease is gone, or goes with it. */
	if (lease->part == DLOCK_PART_INTENT)
		return dlock_step_lack_path(step, found->entry, lease);
	lack = dlock_step_end_lease(step, found->entry, lease);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;
	dlock_stat_count(DLOCK_STAT_EXPIRY, expired);
	pg_atomic_write_u64(&step->db->shared->stats.reaper_lag, step->now - expiry->until);
	expiry->until = 0;
	return DLOCK_LACKS_NOTHING;
}

/*
 * Remove a lease if it is dead, or write it if only memory has it as it is.
 * Returns zero when it is gone, else until when it keeps others out now.
 * "removed" says whether this call removed it.
 *
 * If "skipped" is given, it does not wait for partitions that are locked for
 * long, see dlock_space_try_lock_set(), but returns when to come back.
 */
DLockTime
dlock_manager_expire(DLockDatabase *db, uint32 hash, DLockToken token, DLockSpaceSet *skipped,
					 bool *removed)
{
	DLockManagerTarget target = {.by = DLOCK_BY_REF, .hash = hash, .token = token};
	DLockManagerExpiry expiry = {.found = {.target = &target}};
	DLockStep	step;

	dlock_step_begin(&step, db);
	dlock_space_set_add(&step.set, hash);
	step.skipped = skipped;
	if (!dlock_step_run(&step, try_expire, &expiry))
		expiry.until = dlock_clock_now() + SKIPPED_DELAY;
	else
		dlock_flush_later(step.lsn, step.now);
	*removed = expiry.removed && expiry.until == 0;
	return expiry.until;
}

/* For how long a lock stays closed when a lease on it is stopped. */
static DLockTime
delay_of(const DLockSpaceLease *lease, DLockManagerStop how, DLockTime now)
{
	DLockTime	delay = (how == DLOCK_STOP_LOST) ? lease->delay : 0;

	if (how != DLOCK_STOP_UNTOLD && lease->min_until > now)
		delay = Max(delay, Min(lease->min_until, lease->deadline) - now);
	return delay;
}

typedef struct DLockManagerEnd
{
	DLockManagerFound found;
	DLockManagerStop how;
} DLockManagerEnd;

/* An attempt, which lacks nothing but partitions: end a lease in memory. */
static DLockStepLack
try_stop(DLockStep *step, void *arg)
{
	DLockManagerEnd *end = arg;
	DLockStepLack lack = find(step, &end->found);
	DLockSpaceLease *lease = end->found.lease;
	DLockTime	delay;

	if (lack != DLOCK_LACKS_NOTHING || lease == NULL ||
		!dlock_rule_is_live(lease->deadline, step->now))
		return lack;
	delay = delay_of(lease, end->how, step->now);
	if (lease->slot != DLOCK_SLOT_NONE || delay > 0)
		dlock_database_note_deadline(step->db->shared, step->now + Max(TIDY_DELAY, delay));
	dlock_step_stop_lease(end->found.entry, lease, delay, step->now);
	return DLOCK_LACKS_NOTHING;
}

/*
 * End a lease now, without changing its page.
 *
 * "db" needs no more than its shared parts.  Cannot fail; to be called at the
 * end of a transaction, in an error, or at exit.
 */
void
dlock_manager_stop(DLockDatabase *db, uint32 hash, DLockToken token, DLockManagerStop how)
{
	DLockManagerTarget target = {.by = DLOCK_BY_REF, .hash = hash, .token = token};
	DLockManagerEnd end = {.found = {.target = &target}, .how = how};
	DLockStep	step;

	(void) run(&step, db, &end.found, try_stop);
}
