/*-------------------------------------------------------------------------
 *
 * manager.c
 *	  Renew, release, convert, expire, check: what is done with leases.
 *
 * NOTES
 *	  Every operation on a lease has the same shape, as lock/acquire.c has.
 *	  Under the partition lock of the lock's name it reads the clock, looks,
 *	  and decides by the rules; if something is to change it takes one of the
 *	  steps of lock/grant.c.  A lease on a path is changed with all its parts,
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
#include "utils/acl.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/stat.h"
#include "lock/grant.h"
#include "lock/manager.h"
#include "lock/queue.h"
#include "lock/room.h"
#include "space/holder.h"
#include "space/wait.h"
#include "store/flush.h"

/* How long a lease that was stopped in memory may stay on disk. */
#define TIDY_DELAY		USECS_PER_SEC

/* When to come back to a lease whose partition is locked for long. */
#define SKIPPED_DELAY	USECS_PER_SEC

/* A lease that was found, with the partitions of all its parts locked. */
typedef struct DLockManagerFound
{
	DLockSpaceSet set;
	DLockSpaceEntry *entry;
	DLockSpaceLease *lease;
	bool		lacks_memory;	/* a conversion has to wait, and there is no room */

	/* If given, partitions may be left out, see dlock_space_try_lock_set(). */
	DLockSpaceSet *skipped;
	bool		is_skipped;		/* that happened, so it is not known if there is a lease */

	/* What the catalogs say of the current user; asked without locks. */
	Oid			member_of;		/* another role whose leases it may use */
	List	   *strangers;		/* roles whose leases it may not use */
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
 * Find the lease that a target names, and lock the partitions of all its parts
 * exclusively; false, and nothing locked, if there is none, or if partitions
 * are left out.  "now" is read under the locks.
 */
static bool
lock_lease(DLockDatabase *db, const DLockManagerTarget *target,
		   DLockManagerFound *found, DLockTime *now)
{
	memset(&found->set, 0, sizeof(found->set));
	dlock_space_set_add(&found->set, target->hash);
	for (;;)
	{
		DLockSpaceSet needed = found->set;

		if (found->skipped == NULL)
			dlock_space_lock_set(&found->set, LW_EXCLUSIVE);
		else if (!dlock_space_try_lock_set(&found->set, LW_EXCLUSIVE, found->skipped))
		{
			found->is_skipped = true;
			return false;
		}
		*now = dlock_clock_now();
		found->lease = find_lease(db, target, found->strangers, &found->entry);
		if (found->lease == NULL)
		{
			dlock_space_unlock_set(&found->set);
			return false;
		}
		if (found->lease->part == DLOCK_PART_PATH)
		{
			char		buffer[DLOCK_NAME_MAX];
			DLockBytes	name = dlock_space_entry_name(found->entry, buffer);

			dlock_holder_path_set(db->shared->oid, &name, &needed);
		}
		if (memcmp(&needed, &found->set, sizeof(needed)) == 0)
			return true;
		dlock_space_unlock_set(&found->set);
		found->set = needed;
	}
}

/*
 * The same for a lease that is as the target wants it, live or closed, and that
 * the current user may use: its own, or that of a role that it is a member of.
 *
 * A name of an owner stands for no lease of a stranger, so the answer is false
 * then, as if that lease were not there.  A token or a reference names one
 * lease; "right" says what happens if that is a stranger's.
 */
static bool
lock_wanted_lease(DLockDatabase *db, const DLockManagerTarget *target,
				  DLockManagerRight right, DLockManagerFound *found, DLockTime *now)
{
	for (;;)
	{
		Oid			role;

		if (!lock_lease(db, target, found, now))
			return false;
		if (!is_wanted(target, found->lease, *now))
		{
			dlock_space_unlock_set(&found->set);
			return false;
		}

		role = found->lease->role;
		if (role == GetUserId() || role == found->member_of)
			return true;

		/* The catalogs are not to be read under a partition lock. */
		dlock_space_unlock_set(&found->set);
		if (has_privs_of_role(GetUserId(), role))
			found->member_of = role;
		else if (target->by == DLOCK_BY_OWNER)
			found->strangers = lappend_oid(found->strangers, role);
		else if (right == DLOCK_RIGHT_ROLE)
			dlock_error_not_owner(&target->name, role);
		else
			return false;
	}
}

static DLockTerm
term_of(const DLockSpaceLease *lease)
{
	return (DLockTerm) {lease->ttl, lease->deadline, lease->bound_mono, 0};
}

/* ---- renewal ---- */

/*
 * Renew a lease that was found; false if its page has to be fetched.
 */
static bool
renew_found(DLockWork *work, DLockManagerFound *found, DLockTime ttl)
{
	DLockSpaceLease *lease = found->lease;
	DLockTerm	term = term_of(lease);
	DLockRuleRenewal renewal = dlock_rule_renew(&term, ttl, work->now, dlock_clock_wall());
	DLockHolderPart parts[DLOCK_PATH_MAX_PARTS];
	int			count;

	if (renewal.must_log && lease->slot != DLOCK_SLOT_NONE)
	{
		if (!dlock_work_pin(work, lease->slot))
			return false;
		dlock_grant_log_state(work, lease, &renewal.term);
	}

	dlock_stat_count(DLOCK_STAT_RENEWAL, 1);
	count = dlock_holder_parts(found->entry, lease, parts);
	for (int i = 0; i < count; i++)
	{
		parts[i].lease->ttl = renewal.term.ttl;
		parts[i].lease->deadline = renewal.term.deadline;
		parts[i].lease->bound_mono = renewal.term.bound_mono;
		dlock_space_note_end(parts[i].lease);
	}
	if (renewal.term.deadline >= term.deadline)
		return true;

	/* It ends earlier than those who wait for it expect. */
	dlock_database_note_deadline(work->db->shared, dlock_holder_blocks_until(lease));
	for (int i = 0; i < count; i++)
		dlock_queue_call(parts[i].entry, work->now);
	return true;
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
	DLockWork work;
	DLockManagerFound found = {.member_of = InvalidOid};
	bool		renewed;

	dlock_work_begin(&work, db);
	while (lock_wanted_lease(db, target, right, &found, &work.now))
	{
		renewed = renew_found(&work, &found, ttl);
		if (renewed)
			*lsn = found.lease->lsn;
		dlock_space_unlock_set(&found.set);
		if (renewed)
		{
			dlock_work_finish(&work);
			return true;
		}
		dlock_grant_fetch(&work);
	}
	dlock_work_end(&work);
	return false;
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

/*
 * Release a lease that was found once; false if its page has to be fetched.
 */
static bool
release_found(DLockWork *work, DLockManagerFound *found)
{
	DLockSpaceLease *lease = found->lease;
	DLockTerm	term = term_of(lease);
	DLockRuleEnd end = dlock_rule_release(lease->holds, lease->min_until, work->now);

	if (end == DLOCK_RULE_END)
	{
		if (!dlock_grant_end_lease(work, found->entry, lease))
			return false;
		dlock_stat_count(DLOCK_STAT_RELEASE, 1);
		return true;
	}

	if (lease->slot != DLOCK_SLOT_NONE && !dlock_work_pin(work, lease->slot))
		return false;
	if (end == DLOCK_RULE_COUNT_DOWN)
	{
		lease->holds--;
		term.bound_wall = dlock_rule_bound_wall(term.bound_mono, work->now, dlock_clock_wall());
	}
	else
	{
		/* An expiry that comes first ends it all the same. */
		DLockTime	until = Min(lease->min_until, lease->deadline);

		dlock_database_note_deadline(work->db->shared, until);
		lease->delay = until - work->now;
		term = (DLockTerm) {0, work->now, work->now, dlock_clock_wall()};
		dlock_stat_count(DLOCK_STAT_RELEASE, 1);
	}
	if (lease->slot != DLOCK_SLOT_NONE)
		dlock_grant_log_state(work, lease, &term);

	/* Last, since it hands the lock off, for which pages may change places. */
	if (end == DLOCK_RULE_CLOSE)
		dlock_grant_stop_lease(work, found->entry, lease, lease->delay);
	return true;
}

/*
 * Open a lock that a lease keeps closed, for its owner says that it is done;
 * false if a page has to be fetched.
 */
static bool
open_found(DLockWork *work, DLockManagerFound *found)
{
	bool		expired = !found->lease->stopped;

	if (!dlock_grant_end_lease(work, found->entry, found->lease))
		return false;
	dlock_stat_count(DLOCK_STAT_EXPIRY, expired);
	return true;
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
	DLockWork work;
	DLockManagerFound found = {.member_of = InvalidOid};
	bool		released;

	dlock_work_begin(&work, db);
	while (lock_wanted_lease(db, target, right, &found, &work.now))
	{
		DLockToken	before = (found.lease->holds > 1) ? found.lease->token : DLOCK_TOKEN_NONE;

		released = target->closed ? open_found(&work, &found) : release_found(&work, &found);
		dlock_space_unlock_set(&found.set);
		if (released)
		{
			if (counted != NULL)
				*counted = before;
			dlock_work_finish(&work);
			dlock_flush_later(work.lsn, work.now);
			return true;
		}
		dlock_grant_fetch(&work);
	}
	dlock_work_end(&work);
	return false;
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
	if (lease->bind != DLOCK_BIND_NONE && lease->process != dlock_wait_me())
		return CONVERT_BOUND;
	return CONVERT_FINE;
}

/* This process's request for a conversion; NULL if it is not in the queue. */
static DLockSpaceLease *
find_request(void)
{
	const DLockWaitShared *wait = dlock_wait_of(dlock_wait_me());

	return (wait->state == DLOCK_WAIT_WAITING) ? dlock_space_request_first(wait->first) : NULL;
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

/* Give a lease another mode, and with an upgrade another token. */
static bool
change_mode(DLockWork *work, DLockManagerFound *found, DLockMode mode)
{
	DLockSpaceLease *lease = found->lease;
	DLockToken	token = lease->token;

	if (lease->slot != DLOCK_SLOT_NONE && !dlock_work_pin(work, lease->slot))
		return false;
	if (dlock_rule_is_upgrade((DLockMode) lease->mode, mode))
	{
		if (!dlock_work_tokens(work, 1, &token))
			return false;
		dlock_space_succeed(lease, lease->role, token);
	}
	dlock_space_set_mode(lease, mode);
	if (lease->slot != DLOCK_SLOT_NONE)
		dlock_grant_rewrite(work, found->entry, lease);
	return true;
}

/* Put a request for a conversion into the queue; memory is prepared. */
static void
enqueue_conversion(DLockDatabase *db, DLockManagerFound *found, DLockMode mode, DLockTime now)
{
	DLockHolderTexts texts;
	DLockLeaseValue value = {
		.token = found->lease->token,
		.mode = mode,
		.role = found->lease->role,
		.name = dlock_space_entry_name(found->entry, texts.name),
		.owner = dlock_space_lease_owner(found->lease, texts.owner).name
	};
	DLockMemoryRef place = DLOCK_MEMORY_NONE;

	(void) dlock_space_enqueue(db->shared->oid, found->entry->hash, &value, DLOCK_SLOT_NONE,
							   dlock_wait_me(), DLOCK_SPACE_CONVERT, &place);
	dlock_wait_enter(DLOCK_SPACE_CONVERT, db->shared->oid,
					 dlock_wait_owner_hash(&(DLockOwner) {value.role, value.owner}), &found->set, 1, place,
					 now, dlock_clock_wall());
}

/*
 * Convert a lease that was found, or go into the queue for it; false if
 * something is missing.
 */
static bool
convert_found(DLockWork *work, DLockManagerFound *found, DLockMode mode, bool may_wait,
			  DLockAcquireAnswer *answer, DLockAcquireGranted *granted)
{
	DLockSpaceLease *lease = found->lease;
	DLockSpaceLease *request = find_request();
	DLockMode	before = (DLockMode) lease->mode;
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner;
	DLockTime	until;

	if (dlock_rule_is_upgrade((DLockMode) lease->mode, mode) &&
		dlock_holder_is_blocked(found->entry, mode, 0, lease,
							   (request != NULL) ? request : first_newcomer(found->entry),
							   work->now, &until))
	{
		*answer = may_wait ? DLOCK_ANSWER_QUEUED : DLOCK_ANSWER_REFUSED;
		if (!may_wait || request != NULL)
			return true;
		found->lacks_memory = !dlock_space_is_prepared(found->entry->name_len,
													   lease->owner_len, 1);
		if (found->lacks_memory)
			return false;
		enqueue_conversion(work->db, found, mode, work->now);
		return true;
	}

	if (!dlock_grant_tidy(work, found->entry) || !change_mode(work, found, mode))
		return false;
	if (request != NULL)
	{
		dlock_space_remove(found->entry, request);
		dlock_wait_leave(dlock_wait_me(), DLOCK_WAIT_IDLE);
	}
	dlock_stat_count(DLOCK_STAT_CONVERSION, 1);
	owner = dlock_space_lease_owner(lease, buffer);
	dlock_wait_owner_gained(work->db->shared->oid, dlock_wait_owner_hash(&owner));
	dlock_queue_call(found->entry, work->now);
	*answer = DLOCK_ANSWER_GRANTED;
	*granted = (DLockAcquireGranted) {
		.token = lease->token, .lsn = lease->lsn, .before = before
	};
	return true;
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
	DLockAcquireAnswer answer;
	DLockManagerFound found = {.member_of = InvalidOid};
	DLockWork work;
	int			owner_len;

	dlock_work_begin(&work, db);
	while (lock_wanted_lease(db, target, DLOCK_RIGHT_ROLE, &found, &work.now))
	{
		DLockConvertProblem problem = check_convertible(found.lease);
		bool		done;

		found.lacks_memory = false;
		done = problem == CONVERT_FINE &&
			convert_found(&work, &found, mode, may_wait, &answer, granted);

		owner_len = found.lease->owner_len;
		dlock_space_unlock_set(&found.set);
		if (problem != CONVERT_FINE)
			dlock_error_not_convertible(&target->name,
										problem == CONVERT_PERMIT ? "It is a permit of a semaphore." :
										problem == CONVERT_PATH ? "It is the lease on a path." :
										"It is bound to another session.");
		if (done)
		{
			dlock_work_finish(&work);
			dlock_memory_trim();
			return answer;
		}
		dlock_grant_fetch(&work);
		while (found.lacks_memory && !dlock_space_prepare(target->name.len, owner_len, 1))
			dlock_room_find(db);
	}
	dlock_work_end(&work);
	dlock_error_lease_lost(&target->name, target->token);
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

/* The end of a lease by force is logged, and told to those in the queue. */
static bool
tell_forced(DLockWork *work, DLockManagerFound *found)
{
	DLockSpaceLease *lease = found->lease;
	DLockHolderPart parts[DLOCK_PATH_MAX_PARTS];
	DLockTerm	term = {0, lease->deadline, lease->deadline, 0};
	int			count;

	if (lease->slot != DLOCK_SLOT_NONE)
	{
		if (!dlock_work_pin(work, lease->slot))
			return false;
		term.bound_wall = dlock_rule_bound_wall(lease->deadline, work->now, dlock_clock_wall());
		dlock_grant_log_state(work, lease, &term);
	}
	dlock_database_note_deadline(work->db->shared, dlock_holder_blocks_until(lease));
	count = dlock_holder_parts(found->entry, lease, parts);
	for (int i = 0; i < count; i++)
		dlock_queue_call(parts[i].entry, work->now);
	return true;
}

/*
 * See to what is left of a lease that was ended by force: either it is removed,
 * or it keeps its lock closed for a while, and that survives a crash.
 */
void
dlock_manager_forced(DLockDatabase *db, uint32 hash, DLockToken token)
{
	DLockManagerTarget target = {.by = DLOCK_BY_REF, .hash = hash, .token = token};
	DLockManagerFound found = {.member_of = InvalidOid};
	DLockWork work;
	bool		removed;

	if (dlock_manager_expire(db, hash, token, NULL, &removed) == 0)
		return;
	dlock_work_begin(&work, db);
	while (lock_lease(db, &target, &found, &work.now))
	{
		bool		done = tell_forced(&work, &found);

		dlock_space_unlock_set(&found.set);
		if (done)
			break;
		dlock_grant_fetch(&work);
	}
	dlock_work_finish(&work);
	dlock_flush_later(work.lsn, work.now);
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
	DLockManagerFound found = {.member_of = InvalidOid, .skipped = skipped};
	DLockWork work;
	DLockTime	until = 0;

	*removed = false;
	dlock_work_begin(&work, db);
	while (lock_lease(db, &target, &found, &work.now))
	{
		bool		ended = false;
		bool		expired = !found.lease->stopped;

		until = dlock_holder_blocks_until(found.lease);
		if (until <= work.now && found.lease->part == DLOCK_PART_INTENT)
		{
			/* What is left of a path whose own lease is gone, or goes with it. */
			char		copy[DLOCK_NAME_MAX];
			DLockBytes	path = dlock_holder_path(found.entry, found.lease, copy);

			if (path.data != copy)
				memcpy(copy, path.data, path.len);
			path.data = copy;
			dlock_space_unlock_set(&found.set);
			dlock_grant_end_path(&work, &path, token);
			until = 0;
			*removed = true;
			break;
		}
		if (until <= work.now)
		{
			ended = dlock_grant_end_lease(&work, found.entry, found.lease);
			dlock_stat_count(DLOCK_STAT_EXPIRY, ended && expired);
			if (ended)
				pg_atomic_write_u64(&db->shared->stats.reaper_lag, work.now - until);
			until = 0;
		}
		else if (!dlock_grant_write_back(&work, found.entry, found.lease))
			until = 0;
		dlock_space_unlock_set(&found.set);
		*removed = ended;
		if (ended || until != 0)
			break;
		dlock_grant_fetch(&work);
	}
	if (found.is_skipped)
		until = dlock_clock_now() + SKIPPED_DELAY;
	dlock_work_finish(&work);
	dlock_flush_later(work.lsn, work.now);
	return until;
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
	DLockManagerFound found = {.member_of = InvalidOid};
	DLockWork work;

	dlock_work_begin(&work, db);
	if (!lock_lease(db, &target, &found, &work.now))
		return;
	if (dlock_rule_is_live(found.lease->deadline, work.now))
	{
		DLockTime	delay = delay_of(found.lease, how, work.now);

		if (found.lease->slot != DLOCK_SLOT_NONE || delay > 0)
			dlock_database_note_deadline(db->shared, work.now + Max(TIDY_DELAY, delay));
		dlock_grant_stop_lease(&work, found.entry, found.lease, delay);
	}
	dlock_space_unlock_set(&found.set);
	dlock_work_end(&work);
}
