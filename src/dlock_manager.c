/*-------------------------------------------------------------------------
 *
 * dlock_manager.c
 *	  Acquire, renew, release, expire, check: where the parts are joined.
 *
 * NOTES
 *	  Every operation on a lease has the same shape.  Under the partition lock
 *	  of the lock's name it reads the clock, looks, and decides by the rules.
 *	  If the answer is no, that is all.  If something is to change, and all that
 *	  the change needs is at hand, it is made at once: first the page and its
 *	  WAL record, then memory.  If something is missing, the lock is given up,
 *	  the missing thing is fetched, and the operation starts over, since the
 *	  world may have changed meanwhile.  So nothing waits for a heavyweight
 *	  lock or for a page to be read, and nothing can throw, while a change is
 *	  half made.  (What a change can wait for is the content lock of a page that
 *	  is just being written out, and room in the WAL buffers, as any change of
 *	  any page can.)
 *
 *	  Lock order, which every file of dlock keeps:
 *
 *	  (1) whatever can wait, fail or extend: the relation's lock, the load
 *		  lock, the extension lock, the token sequence, reading a page,
 *		  allocating in the space.  Never under (2) to (5).
 *	  (2) the partition lock of a name (dlock_space.c).
 *	  (3) the content lock of a buffer (dlock_store.c), or an owner's lock
 *		  (dlock_space.c), or a lock inside the area (dsa.c).
 *	  (4) the mutex of the tokens, or that of a stripe of slots (dlock_slot.c).
 *
 *	  The registry lock (dlock_database.c) is never held together with another.
 *
 *	  The order of records.  A lease that takes the place of an expired one is
 *	  written after that one's slot was erased, and both under the partition
 *	  lock.  So at any point of the WAL there is at most one live lease of a
 *	  name on disk, whichever records a crash cuts off.
 *
 *	  Flushing comes last, with no lock held.  Others see a lease before it is
 *	  durable; what they can conclude from that is a refusal, which promises
 *	  nothing.
 *
 * IDENTIFICATION
 *	  src/dlock_manager.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/acl.h"

#include "dlock_clock.h"
#include "dlock_error.h"
#include "dlock_flush.h"
#include "dlock_manager.h"
#include "dlock_name.h"
#include "dlock_page.h"
#include "dlock_rule.h"
#include "dlock_slot.h"
#include "dlock_space.h"
#include "dlock_store.h"
#include "dlock_token.h"

/* The pinned page of a slot that may have to be changed. */
typedef struct DLockManagerPin
{
	DLockSlot	slot;			/* the one it was pinned for */
	Buffer		buffer;
} DLockManagerPin;

#define NO_PIN	((DLockManagerPin) {DLOCK_SLOT_NONE, InvalidBuffer})

static void
drop_pin(DLockManagerPin *pin)
{
	if (BufferIsValid(pin->buffer))
		dlock_store_unpin(pin->buffer);
	*pin = NO_PIN;
}

/*
 * Have the page of a slot pinned, under the partition lock; false if that
 * cannot be done without waiting.
 */
static bool
try_pin(DLockDatabase *db, DLockManagerPin *pin, DLockSlot slot)
{
	if (pin->slot == slot)
		return true;
	drop_pin(pin);
	pin->buffer = dlock_store_pin_cached(db->rel, slot,
										 *dlock_slot_hint(&db->shared->slots, db->area, slot));
	if (!BufferIsValid(pin->buffer))
		return false;
	pin->slot = slot;
	return true;
}

/* The same without the partition lock, waiting for the page if need be. */
static void
wait_pin(DLockDatabase *db, DLockManagerPin *pin, DLockSlot slot)
{
	drop_pin(pin);
	pin->buffer = dlock_store_pin(db->rel, slot);
	pin->slot = slot;
	*dlock_slot_hint(&db->shared->slots, db->area, slot) = pin->buffer;
}

/*
 * The lease that stands in the way of an exclusive one, or that did until it
 * expired; NULL if there is none.
 */
static DLockSpaceLease *
first_holder(DLockSpaceEntry *entry)
{
	return (entry != NULL) ? dlock_space_holders(entry) : NULL;
}

/* A grant that can be made: all it needs is at hand. */
typedef struct DLockManagerGrant
{
	DLockTime	now;
	DLockToken	token;
	DLockSlot	slot;			/* the new lease's home ... */
	DLockManagerPin home;		/* ... and its page */
	DLockSpaceEntry *entry;		/* NULL if the lock has none */
	DLockSpaceLease *expired;	/* the lease to be replaced, if any ... */
	DLockManagerPin stale;		/* ... and its page */
} DLockManagerGrant;

/*
 * Find out whether a lease can be granted and get all that the grant needs.
 *
 * If so, returns true, with the partition of the name locked exclusively.  If
 * the lock is held, returns false, with nothing locked and nothing kept.
 */
static bool
prepare_grant(DLockDatabase *db, const DLockManagerRequest *request,
			  uint32 hash, int slot_class, DLockManagerGrant *grant)
{
	DLockDatabaseShared *shared = db->shared;
	int			name_len = request->name.len;
	int			data_len = request->owner.len + request->payload.len;

	grant->home = grant->stale = NO_PIN;
	for (;;)
	{
		dlock_space_lock(hash, LW_EXCLUSIVE);
		grant->now = dlock_clock_now();
		grant->entry = dlock_space_find(shared->oid, hash, &request->name);
		grant->expired = first_holder(grant->entry);
		grant->slot = dlock_slot_reserved(&shared->slots, slot_class);

		if (grant->expired != NULL &&
			dlock_rule_is_live(grant->expired->deadline, grant->now))
		{
			dlock_space_unlock(hash);
			drop_pin(&grant->home);
			drop_pin(&grant->stale);
			return false;
		}

		if (grant->slot == DLOCK_SLOT_NONE ||
			!try_pin(db, &grant->home, grant->slot) ||
			!dlock_space_is_prepared(name_len, data_len))
		{
			dlock_space_unlock(hash);
			if (!dlock_space_prepare(name_len, data_len))
				dlock_error_space_full();
			grant->slot = dlock_slot_reserve(&shared->slots, db->area, db->rel,
											 slot_class);
			wait_pin(db, &grant->home, grant->slot);
		}
		else if (grant->expired != NULL &&
				 !try_pin(db, &grant->stale, grant->expired->slot))
		{
			DLockSlot	stale_slot = grant->expired->slot;

			dlock_space_unlock(hash);
			wait_pin(db, &grant->stale, stale_slot);
		}
		else if (!dlock_token_take(&shared->tokens, &grant->token))
		{
			dlock_space_unlock(hash);
			(void) dlock_database_reserve_tokens(db, false);
		}
		else
			return true;
	}
}

/*
 * Acquire an exclusive lease.  Returns its token, or DLOCK_TOKEN_NONE if the
 * lock is held, by whomever.
 *
 * The lease runs from the moment of the grant.  When this returns it is as
 * durable as synchronous_commit asks for.  Throws 53400 if memory is full, and
 * what the server throws when a relation cannot be extended; nothing has
 * changed then.
 */
DLockToken
dlock_manager_acquire(DLockDatabase *db, const DLockManagerRequest *request)
{
	DLockDatabaseShared *shared = db->shared;
	uint32		hash = dlock_name_hash(shared->oid, &request->name);
	int			slot_class = dlock_page_class_for(request->name.len + request->owner.len +
												  request->payload.len);
	DLockSlot	stale_slot = DLOCK_SLOT_NONE;
	DLockManagerGrant grant;
	DLockLeaseValue lease;
	XLogRecPtr	lsn;

	if (!prepare_grant(db, request, hash, slot_class, &grant))
		return DLOCK_TOKEN_NONE;

	lease.token = grant.token;
	lease.mode = DLOCK_MODE_EXCLUSIVE;
	lease.role = request->role;
	lease.granted_at = dlock_clock_wall();
	lease.boot = dlock_clock_boot();
	lease.term = dlock_rule_grant(request->ttl, grant.now, lease.granted_at);
	lease.name = request->name;
	lease.owner = request->owner;
	lease.payload = request->payload;

	if (grant.expired != NULL)
	{
		stale_slot = grant.expired->slot;
		(void) dlock_store_erase(grant.stale.buffer, stale_slot);
		dlock_space_remove(grant.entry, grant.expired);
	}
	lsn = dlock_store_write(grant.home.buffer, grant.slot, &lease);
	dlock_slot_use(slot_class);
	(void) dlock_space_insert(shared->oid, hash, &lease, grant.slot, lsn);
	dlock_space_unlock(hash);

	if (stale_slot != DLOCK_SLOT_NONE)
		dlock_slot_free(&shared->slots, db->area, stale_slot);
	drop_pin(&grant.home);
	drop_pin(&grant.stale);
	dlock_database_note_deadline(shared, lease.term.deadline);

	dlock_flush_commit(lsn, grant.now);
	return lease.token;
}

static DLockManagerTarget
target_of_ref(const DLockSpaceRef *ref)
{
	return (DLockManagerTarget)
	{
		.by = DLOCK_BY_REF, .hash = ref->hash, .token = ref->token
	};
}

/*
 * Find the lease that a target names; NULL if there is none.  The partition
 * lock must be held.
 */
static DLockSpaceLease *
find_lease(DLockDatabase *db, const DLockManagerTarget *target,
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
	for (lease = first_holder(*entry); lease != NULL; lease = dlock_space_next_holder(lease))
	{
		DLockBytes	owner = dlock_space_lease_owner(lease);

		if (target->by == DLOCK_BY_NAME ||
			(target->by == DLOCK_BY_TOKEN && lease->token == target->token) ||
			(target->by == DLOCK_BY_OWNER && dlock_name_equal(&owner, &target->owner)))
			return lease;
	}
	return NULL;
}

/*
 * May the current user renew or release leases of this role?  Looks into the
 * catalogs; no partition lock may be held.
 */
static bool
check_right(const DLockManagerTarget *target, Oid role, DLockManagerRight right)
{
	if (has_privs_of_role(GetUserId(), role))
		return true;
	if (right == DLOCK_RIGHT_ROLE)
		dlock_error_not_owner(&target->name, role);
	return false;
}

/*
 * Find the live lease that a target names, with its partition locked
 * exclusively, its right checked, and "now" read under the lock.
 *
 * NULL, and nothing locked, if there is no such lease, or if it is to be
 * skipped.  "checked" is a role that the current user is known to be a member
 * of; it is kept by the caller over several calls.
 */
static DLockSpaceLease *
lock_live_lease(DLockDatabase *db, const DLockManagerTarget *target,
				DLockManagerRight right, Oid *checked,
				DLockSpaceEntry **entry, DLockTime *now)
{
	for (;;)
	{
		DLockSpaceLease *lease;
		Oid			role;

		dlock_space_lock(target->hash, LW_EXCLUSIVE);
		*now = dlock_clock_now();
		lease = find_lease(db, target, entry);
		if (lease == NULL || !dlock_rule_is_live(lease->deadline, *now))
		{
			dlock_space_unlock(target->hash);
			return NULL;
		}

		role = lease->role;
		if (right == DLOCK_RIGHT_FORCE || role == GetUserId() || role == *checked)
			return lease;

		dlock_space_unlock(target->hash);
		if (!check_right(target, role, right))
			return NULL;
		*checked = role;
	}
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
	DLockManagerPin pin = NO_PIN;
	Oid			checked = InvalidOid;
	DLockSpaceEntry *entry;
	DLockSpaceLease *lease;
	DLockRuleRenewal renewal;
	DLockTerm	term;
	DLockTime	now;

	for (;;)
	{
		DLockSlot	slot;

		lease = lock_live_lease(db, target, right, &checked, &entry, &now);
		if (lease == NULL)
		{
			drop_pin(&pin);
			return false;
		}

		term.ttl = lease->ttl;
		term.deadline = lease->deadline;
		term.bound_mono = lease->bound_mono;
		term.bound_wall = 0;
		renewal = dlock_rule_renew(&term, ttl, now, dlock_clock_wall());
		if (!renewal.must_log || try_pin(db, &pin, lease->slot))
			break;

		slot = lease->slot;
		dlock_space_unlock(target->hash);
		wait_pin(db, &pin, slot);
	}

	if (renewal.must_log)
		lease->lsn = dlock_store_set_term(pin.buffer, lease->slot,
										  &renewal.term, dlock_clock_boot());
	lease->ttl = renewal.term.ttl;
	lease->deadline = renewal.term.deadline;
	lease->bound_mono = renewal.term.bound_mono;
	*lsn = lease->lsn;
	dlock_space_unlock(target->hash);

	drop_pin(&pin);
	if (renewal.term.deadline < term.deadline)
		dlock_database_note_deadline(db->shared, renewal.term.deadline);
	return true;
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
 * Renew all live leases of an owner that the current user may renew, and flush
 * once.  Returns how many.
 */
int
dlock_manager_renew_all(DLockDatabase *db, const DLockBytes *owner, DLockTime ttl)
{
	int			count;
	int			renewed = 0;
	DLockSpaceRef *refs = dlock_space_owned(db->shared->oid, owner, &count);
	XLogRecPtr	last = InvalidXLogRecPtr;

	for (int i = 0; i < count; i++)
	{
		DLockManagerTarget target = target_of_ref(&refs[i]);
		XLogRecPtr	lsn;

		CHECK_FOR_INTERRUPTS();
		if (renew_lease(db, &target, ttl, DLOCK_RIGHT_ROLE_SKIP, &lsn))
		{
			renewed++;
			last = Max(last, lsn);
		}
	}
	pfree(refs);

	dlock_flush_commit(last, dlock_clock_now());
	return renewed;
}

/*
 * End a lease that was found under its partition lock, which is given up;
 * false if its page has to be waited for, in which case nothing has changed
 * and "pin" has it now.
 */
static bool
end_lease(DLockDatabase *db, uint32 hash, DLockSpaceEntry *entry,
		  DLockSpaceLease *lease, DLockManagerPin *pin, DLockTime now)
{
	DLockSlot	slot = lease->slot;
	XLogRecPtr	lsn;

	if (!try_pin(db, pin, slot))
	{
		dlock_space_unlock(hash);
		wait_pin(db, pin, slot);
		return false;
	}

	lsn = dlock_store_erase(pin->buffer, slot);
	dlock_space_remove(entry, lease);
	dlock_space_unlock(hash);

	dlock_slot_free(&db->shared->slots, db->area, slot);
	drop_pin(pin);
	dlock_flush_later(lsn, now);
	return true;
}

/*
 * Release the live lease that a target names; false if there is none.
 *
 * The release is not flushed: whoever acquires the lock next writes its record
 * after this one, and a crash that loses both brings the lease back for a ttl
 * at most.  "ended", unless NULL, is told what was released.  Throws 42501.
 */
bool
dlock_manager_release(DLockDatabase *db, const DLockManagerTarget *target,
					  DLockManagerRight right, DLockManagerEnded *ended)
{
	DLockManagerPin pin = NO_PIN;
	Oid			checked = InvalidOid;
	DLockSpaceEntry *entry;
	DLockSpaceLease *lease;
	DLockTime	now;

	for (;;)
	{
		lease = lock_live_lease(db, target, right, &checked, &entry, &now);
		if (lease == NULL)
		{
			drop_pin(&pin);
			return false;
		}

		if (ended != NULL)
		{
			ended->token = lease->token;
			ended->role = lease->role;
			ended->owner_len = lease->owner_len;
			memcpy(ended->owner, lease->data, lease->owner_len);
		}
		if (end_lease(db, target->hash, entry, lease, &pin, now))
			return true;
	}
}

/*
 * Release all live leases of an owner that the current user may release.
 * Returns how many.
 */
int
dlock_manager_release_all(DLockDatabase *db, const DLockBytes *owner)
{
	int			count;
	int			released = 0;
	DLockSpaceRef *refs = dlock_space_owned(db->shared->oid, owner, &count);

	for (int i = 0; i < count; i++)
	{
		DLockManagerTarget target = target_of_ref(&refs[i]);

		CHECK_FOR_INTERRUPTS();
		if (dlock_manager_release(db, &target, DLOCK_RIGHT_ROLE_SKIP, NULL))
			released++;
	}
	pfree(refs);
	return released;
}

/* Is the lease that a target names live now?  Changes nothing. */
bool
dlock_manager_check(DLockDatabase *db, const DLockManagerTarget *target)
{
	DLockSpaceEntry *entry;
	DLockSpaceLease *lease;
	bool		live;

	dlock_space_lock(target->hash, LW_SHARED);
	lease = find_lease(db, target, &entry);
	live = lease != NULL && dlock_rule_is_live(lease->deadline, dlock_clock_now());
	dlock_space_unlock(target->hash);
	return live;
}

/*
 * Remove a lease if it has expired.  Returns zero when it is gone, else the
 * deadline that it has now.
 */
DLockTime
dlock_manager_expire(DLockDatabase *db, uint32 hash, DLockToken token)
{
	DLockManagerTarget target = {.by = DLOCK_BY_REF, .hash = hash, .token = token};
	DLockManagerPin pin = NO_PIN;

	for (;;)
	{
		DLockSpaceEntry *entry;
		DLockSpaceLease *lease;
		DLockTime	deadline = 0;
		DLockTime	now;

		dlock_space_lock(hash, LW_EXCLUSIVE);
		now = dlock_clock_now();
		lease = find_lease(db, &target, &entry);
		if (lease != NULL && dlock_rule_is_live(lease->deadline, now))
			deadline = lease->deadline;
		if (lease == NULL || deadline != 0)
		{
			dlock_space_unlock(hash);
			drop_pin(&pin);
			return deadline;
		}
		if (end_lease(db, hash, entry, lease, &pin, now))
			return 0;
	}
}
