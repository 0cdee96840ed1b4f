/*-------------------------------------------------------------------------
 *
 * step.c
 *	  Steps: what is done with leases, and the driver that does it.
 *
 * NOTES
 *	  Everything that changes leases is an *attempt* that the driver runs
 *	  (dlock_step_run).  It runs under the partition locks of all that it
 *	  touches, where nothing may be waited for.  It either makes its change as
 *	  a whole, first the page and its WAL record, then memory; or it finds that
 *	  something is lacking, changes nothing, and says what.  The driver then
 *	  gives up the locks, fetches that, and runs the attempt again, since the
 *	  world may have changed meanwhile.  So nothing waits for a heavyweight lock
 *	  or for a page to be read, and nothing can throw, while a change is half
 *	  made.  (What a change can wait for is the content lock of a page that is
 *	  just being written out, and room in the WAL buffers, as any change of any
 *	  page can.)  Pins are kept from one attempt and step to the next, until the
 *	  store is closed.
 *
 *	  Two times in a lease tell what it is:
 *
 *	  held		now < deadline: it is its owner's
 *	  closed	deadline <= now < deadline + delay: it is nobody's, and keeps
 *				others out; it was released early or ended uncleanly
 *	  expired	deadline + delay <= now, and its time ran out
 *	  released	deadline + delay <= now, and something else ended it ("stopped")
 *
 *	  A lease that is expired or released is dead.  Dead leases stay where
 *	  they are until a request wants the lock, or the worker comes; a grant
 *	  erases the dead leases of the lock first.  So wherever a crash cuts off the
 *	  WAL, the leases of a lock that are live on disk are compatible.  An intent
 *	  has no record of its own, so that of its path is erased, and all parts of
 *	  the path with it.
 *
 *	  A dead lease also takes memory, and counts for its role.  A request that
 *	  finds no room has the worker erase what is dead, once, and is refused if
 *	  there is no room then.
 *
 *	  Lock order, which every file of dlock keeps:
 *
 *	  (1) whatever can wait, fail or extend: the relation's lock, the load
 *		  lock, the extension lock, the token sequence, reading a page.
 *		  Never under (2) to (4).
 *	  (2) the partition locks of names, all at once (dlock_partition_lock_set).
 *	  (3) the content lock of a buffer (store/store.c), an owner's lock
 *		  (space/holder.c), or that of a client (space/place.c).
 *	  (4) the mutex of the tokens, that of a stack of slots (space/slot.c), or
 *		  that of a list of free memory (space/memory.c).
 *
 *	  Never held together with another LWLock: the registry lock (space/database.c).
 *
 *	  Flushing comes last, with no lock held.  Others see a lease before it is
 *	  durable; what they can conclude from that is a refusal, which promises
 *	  nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/acl.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/settings.h"
#include "base/stat.h"
#include "lock/queue.h"
#include "lock/step.h"
#include "space/count.h"
#include "space/holder.h"
#include "space/slot.h"
#include "store/flush.h"
#include "store/store.h"
#include "store/token.h"

/* An expired lease that is to be logged. */
typedef struct DLockStepExpired
{
	struct DLockStepExpired *next;
	DLockToken	token;
	Oid			role;
	DLockTime	ended;
	int			name_len;
	int			owner_len;
	char		texts[FLEXIBLE_ARRAY_MEMBER];	/* name, owner */
} DLockStepExpired;

/*
 * The pages that this backend has pinned.  They stay so from one step to the next, until the
 * store is closed, since the next lease often is on the same page.
 */
static struct
{
	BlockNumber block;
	Buffer		buffer;
}			pins[DLOCK_NAMES_MAX + DLOCK_STEP_PINS];
static int	npins = 0;

/* ---- pages and tokens ---- */

/* The store has been opened.  After an error the server has given up the pins of before. */
void
dlock_step_open(void)
{
	npins = 0;
}

/* The store is about to be closed, or a flush to be waited for: give up all pins. */
void
dlock_step_close(void)
{
	while (npins > 0)
		ReleaseBuffer(pins[--npins].buffer);
}

/* Make room for "count" more pins, so that adding the last gives up none of them. */
void
dlock_step_make_pin_room(DLockStep *step, int count)
{
	Assert(dlock_partition_set_is_mine(&step->set));
	Assert(count <= step->pin_room);
	if (npins + count > step->pin_room)
		dlock_step_close();
}

static void
add_pin(DLockStep *step, DLockSlot slot, Buffer buffer)
{
	Assert(step->pin_room <= lengthof(pins));
	if (npins >= step->pin_room)
		dlock_step_close();
	pins[npins].block = dlock_slot_block(slot);
	pins[npins++].buffer = buffer;
}

/* The buffer with the page of a slot; InvalidBuffer if it is not pinned. */
static Buffer
page_of(DLockStep *step, DLockSlot slot)
{
	Assert(dlock_partition_set_is_mine(&step->set));
	for (int i = 0; i < npins; i++)
	{
		if (pins[i].block == dlock_slot_block(slot))
			return pins[i].buffer;
	}
	return InvalidBuffer;
}

/* Have the page of a slot pinned. */
DLockStepLack
dlock_step_pin(DLockStep *step, DLockSlot slot)
{
	DLockDatabase *db = step->db;
	Buffer		buffer;

	if (BufferIsValid(page_of(step, slot)))
		return DLOCK_LACKS_NOTHING;
	buffer = dlock_store_pin_cached(&db->locator, slot);
	if (!BufferIsValid(buffer))
	{
		step->slot = slot;
		return DLOCK_LACKS_PAGE;
	}
	add_pin(step, slot, buffer);
	return DLOCK_LACKS_NOTHING;
}

/* The same for the page of a lease, if it is on disk. */
DLockStepLack
dlock_step_pin_lease(DLockStep *step, const DLockSpaceLease *lease)
{
	Assert(dlock_partition_is_mine(dlock_space_entry_of(lease)->hash));
	return (lease->slot == DLOCK_SLOT_NONE) ? DLOCK_LACKS_NOTHING : dlock_step_pin(step, lease->slot);
}

/* Take so many tokens, which follow each other. */
DLockStepLack
dlock_step_tokens(DLockStep *step, int count, DLockToken *first)
{
	Assert(dlock_partition_set_is_mine(&step->set));
	if (dlock_token_take(&step->db->shared->tokens, count, first))
		return DLOCK_LACKS_NOTHING;
	step->tokens = count;
	return DLOCK_LACKS_TOKENS;
}

/* ---- the driver ---- */

/* Begin an operation on the leases of a database. */
void
dlock_step_begin(DLockStep *step, DLockDatabase *db)
{
	step->db = db;
	memset(&step->set, 0, sizeof(step->set));
	step->lsn = InvalidXLogRecPtr;
	step->expired = NULL;
	step->member_of = InvalidOid;
	step->strangers = NIL;
	step->pin_room = DLOCK_STEP_PINS;
}

/*
 * There is no room, or a role is at its limit: let the worker erase what is dead, once.
 * False if it has done so already, or is not there.
 */
static bool
wait_for_worker(DLockStep *step)
{
	bool		waits = !step->has_waited;

	step->has_waited = true;
	return waits && dlock_database_wait_pass();
}

/* Reserve memory and slots.  Throws 53400 if there are none. */
static void
fetch_room(DLockStep *step)
{
	DLockDatabase *db = step->db;
	DLockStepRoom *room = &step->room;

	/* A new page takes memory, too, so it comes first. */
	while (!dlock_slot_reserve(&db->shared->slots, room->slots))
	{
		if (!dlock_slot_extend(&db->shared->slots, db->rel, room->slots) && !wait_for_worker(step))
			dlock_error_space_full();
	}
	while (!dlock_space_prepare(room->name_len, room->data_len, room->count))
	{
		if (!wait_for_worker(step))
			dlock_error_space_full();
	}
}

/* A role is at its limit.  Throws 53400 if the worker has erased already, or is missing. */
static void
fetch_limit(DLockStep *step)
{
	if (wait_for_worker(step))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("too many leases for role \"%s\"", GetUserNameFromId(step->role, false)),
			 errdetail("The role holds %u leases in this database, waiting requests included, and \"dlock.max_leases\" is %d.",
					   dlock_count_leases(step->db->shared->oid, step->role), dlock_settings_max_leases),
			 errhint("Release leases, or have a superuser raise \"dlock.max_leases\" for the role.")));
}

/* Fetch what an attempt lacked, waiting for it if need be. */
static void
fetch(DLockStep *step, DLockStepLack lack)
{
	Assert(!dlock_partition_is_any_held());
	switch (lack)
	{
		case DLOCK_LACKS_NOTHING:
		case DLOCK_LACKS_PARTITIONS:
			break;
		case DLOCK_LACKS_PAGE:
			add_pin(step, step->slot,
					dlock_store_pin(&step->db->locator, step->slot, step->db->shared->slots.incarnation));
			break;
		case DLOCK_LACKS_TOKENS:
			(void) dlock_token_reserve(&step->db->shared->tokens, step->db->sequence, step->tokens, DLOCK_TOKEN_NONE);
			break;
		case DLOCK_LACKS_ROOM:
			fetch_room(step);
			break;
		case DLOCK_LACKS_LIMIT:
			fetch_limit(step);
			break;
		case DLOCK_LACKS_RIGHT:
			if (has_privs_of_role(GetUserId(), step->role))
				step->member_of = step->role;
			else
				step->strangers = lappend_oid(step->strangers, step->role);
			break;
	}
}

/* Log the expired leases that the last attempt erased, the last one first. */
static void
log_expired(DLockStep *step)
{
	while (step->expired != NULL)
	{
		DLockStepExpired *expired = step->expired;
		DLockTime	ago = step->now - expired->ended;
		char	   *rolename = GetUserNameFromId(expired->role, true);

		step->expired = expired->next;
		DLOCK_FAULT("log_expired");
		ereport(LOG_SERVER_ONLY,
				(errmsg("lease on lock \"%.*s\" has expired", expired->name_len, expired->texts),
				 errdetail("Owner \"%.*s\" (role \"%s\") held it with token %lld; it ended %lld.%03d ms ago.",
						   expired->owner_len, expired->texts + expired->name_len,
						   (rolename != NULL) ? rolename : "unknown", (long long) expired->token,
						   (long long) (ago / 1000), (int) (ago % 1000))));
		pfree(expired);
	}
}

/*
 * Run an attempt until it lacks nothing.  No partition lock may be held.
 *
 * Without db->rel an attempt may lack only partitions and pages of leases; with
 * neither that nor db->locator, only partitions, and then this cannot fail.
 */
void
dlock_step_run(DLockStep *step, DLockStepAttempt attempt, void *arg)
{
	DLockStepLack lack;

	Assert(!dlock_partition_is_any_held());
	Assert(step->db->rel == NULL || CheckRelationLockedByMe(step->db->rel, RowExclusiveLock, true));
	step->has_waited = false;
	step->locked = step->set;
	do
	{
		DLockPartitionSet locked = step->locked;

		dlock_partition_lock_set(&locked, LW_EXCLUSIVE);
		DLOCK_FAULT_STOP("step_locked");
		step->now = dlock_clock_now();
		lack = attempt(step, arg);
		if (lack == DLOCK_LACKS_NOTHING)
			DLOCK_FAULT_STOP("step_done");
		dlock_partition_unlock_set(&locked);
		log_expired(step);
		fetch(step, lack);
		/* With a relation it may fail, and nothing is half done. */
		if (lack != DLOCK_LACKS_NOTHING && step->db->rel != NULL)
			CHECK_FOR_INTERRUPTS();
	} while (lack != DLOCK_LACKS_NOTHING);
	dlock_slot_trim();
	dlock_memory_trim();
}

/*
 * Are these partitions, which an attempt needs besides those of the step, locked?  If not,
 * the next attempt has them, in place of those added before.
 */
DLockStepLack
dlock_step_widen(DLockStep *step, const DLockPartitionSet *needed)
{
	DLockPartitionSet all = step->locked;

	Assert(dlock_partition_set_is_mine(&step->locked));
	dlock_partition_set_join(&all, needed);
	if (memcmp(&all, &step->locked, sizeof(all)) == 0)
		return DLOCK_LACKS_NOTHING;
	step->locked = step->set;
	dlock_partition_set_join(&step->locked, needed);
	return DLOCK_LACKS_PARTITIONS;
}

/* Add the partitions of all parts of a lease to a set; one of them must be locked. */
void
dlock_step_add_parts(DLockPartitionSet *set, const DLockSpaceLease *lease)
{
	for (; lease != NULL; lease = dlock_space_next_part(lease))
		dlock_partition_set_add(set, dlock_space_entry_of(lease)->hash);
}

/* Are the partitions of all parts of a lease locked?  That of one must be. */
DLockStepLack
dlock_step_lock_parts(DLockStep *step, const DLockSpaceLease *lease)
{
	DLockPartitionSet needed = {{0}};

	dlock_step_add_parts(&needed, lease);
	return dlock_step_widen(step, &needed);
}

/* ---- records of leases ---- */

/* Write a lease into its slot, whose page is pinned. */
XLogRecPtr
dlock_step_write(DLockStep *step, DLockSlot slot, const DLockLeaseValue *lease)
{
	step->lsn = dlock_store_change(page_of(step, slot), slot, dlock_page_write, lease);
	return step->lsn;
}

/* Set the term and the origin of a record that is written now. */
static void
set_record_term(DLockStep *step, DLockLeaseValue *value, const DLockTerm *term)
{
	value->term = dlock_rule_record_term(term, step->now, dlock_clock_wall());
	value->origin = dlock_rule_record_origin(term, dlock_clock_origin(), step->now);
}

/*
 * A record of a lease, with this bound, is about to be written.  Until it is confirmed, only
 * what it and the records before it both vouch for is told: a standby may have either.
 */
static void
expect_record(DLockSpaceLease *lease, DLockTime bound)
{
	Assert(dlock_partition_is_mine(dlock_space_entry_of(lease)->hash));
	lease->confirmed = Min(dlock_holder_vouched_until(lease), bound);
	lease->lsn = DLOCK_SPACE_BEING_WRITTEN;
}

/*
 * Write a lease as memory has it into its slot, whose page is pinned, once more; with
 * another term unless that is NULL.
 */
void
dlock_step_rewrite(DLockStep *step, DLockSpaceLease *lease, const DLockTerm *term)
{
	DLockHolderTexts texts;
	DLockLeaseValue value = dlock_holder_value(lease, &texts);
	DLockTerm	own = value.term;

	Assert(dlock_partition_is_mine(dlock_space_entry_of(lease)->hash));
	set_record_term(step, &value, (term != NULL) ? term : &own);
	if (lease->min_until > step->now)
		value.min_hold = lease->min_until - step->now +
			Max(0, dlock_clock_wall() - lease->granted_at);
	expect_record(lease, value.term.bound_mono);
	lease->lsn = dlock_step_write(step, lease->slot, &value);
	lease->unwritten = false;
}

/*
 * Log what has changed about a lease, whose page is pinned.  The term is what
 * recovery shall go by; its bounds for the record are computed here.
 */
void
dlock_step_log_state(DLockStep *step, DLockSpaceLease *lease, const DLockTerm *term)
{
	DLockLeaseValue value;

	Assert(dlock_partition_is_mine(dlock_space_entry_of(lease)->hash));
	/* The page says something older or undone: write all of it. */
	if (lease->unwritten)
	{
		dlock_step_rewrite(step, lease, term);
		return;
	}
	set_record_term(step, &value, term);
	value.delay = lease->delay;
	value.holds = lease->holds;
	expect_record(lease, value.term.bound_mono);
	lease->lsn = step->lsn = dlock_store_change(page_of(step, lease->slot), lease->slot,
												dlock_page_set_state, &value);
}

/*
 * Give a live lease another term.  "must_log": its bound, ttl or holds change, so it is
 * logged, and its page, if it has one, is pinned.  What is told of it goes by this session's
 * synchronous_commit from now on.
 */
void
dlock_step_renew(DLockStep *step, DLockSpaceLease *lease, const DLockTerm *term, bool must_log)
{
	Assert(dlock_partition_is_mine(dlock_space_entry_of(lease)->hash));
	if (lease->level != synchronous_commit)
	{
		/* What is told already stays so. */
		lease->confirmed = dlock_holder_told_until(lease);
		lease->level = synchronous_commit;
	}
	if (must_log && lease->slot != DLOCK_SLOT_NONE)
		dlock_step_log_state(step, lease, term);
	dlock_space_set_term(lease, term);
}

/* ---- the end of leases ---- */

/*
 * If the lease has expired, count that, and note it for the log.  A line is
 * missing there if the backend has no memory for it.
 */
static void
note_expiry(DLockStep *step, const DLockSpaceLease *lease)
{
	DLockHolderTexts texts;
	DLockBytes	name;
	DLockOwner	owner;
	DLockStepExpired *expired;

	if (lease->stopped || dlock_rule_is_live(lease->deadline, step->now))
		return;
	dlock_stat_count(DLOCK_STAT_EXPIRY, 1);
	if (!dlock_settings_log_expirations)
		return;
	name = dlock_space_entry_name(dlock_space_entry_of(lease), texts.name);
	owner = dlock_space_lease_owner(lease, texts.owner);
	expired = palloc_extended(offsetof(DLockStepExpired, texts) + name.len + owner.name.len,
							  MCXT_ALLOC_NO_OOM);
	if (expired == NULL)
		return;
	expired->next = step->expired;
	expired->token = lease->token;
	expired->role = owner.role;
	expired->ended = lease->deadline;
	expired->name_len = name.len;
	expired->owner_len = owner.name.len;
	memcpy(expired->texts, name.data, name.len);
	memcpy(expired->texts + name.len, owner.name.data, owner.name.len);
	step->expired = expired;
}

/*
 * Give turns after leases were erased.  Expired ones blocked nobody, so the queue is scanned
 * only if no lease is left, or if it has places, which may get turns by this alone.
 */
static void
give_turns(DLockSpaceEntry *entry, bool changed, DLockTime now)
{
	if (changed)
		dlock_queue_give_turns(entry, now, DLOCK_TURNS_AGAIN);
	else if (dlock_space_holders(entry) == NULL || entry->places)
		dlock_queue_give_turns(entry, now, DLOCK_TURNS_KEPT);
}

/*
 * Erase a lease with all its parts, on disk, where its page is pinned, and in memory.  Gives
 * turns to the requests that wait for their locks, except for the lock "but": that is left
 * to the caller.  False if the entry of "but" has gone.
 */
static bool
erase_parts(DLockStep *step, DLockSpaceLease *lease, const DLockSpaceEntry *but)
{
	bool		changed = lease->stopped || dlock_holder_blocks_until(lease) > step->now;
	DLockSlot	slot = lease->slot;
	int			slot_class = dlock_page_class_for(dlock_space_entry_of(lease)->name_len +
												  lease->owner_len + lease->payload_len);
	bool		stays = true;
	DLockSpaceLease *next;

	if (slot != DLOCK_SLOT_NONE)
		step->lsn = dlock_store_change(page_of(step, slot), slot, dlock_page_erase, NULL);
	for (DLockSpaceLease *part = lease; part != NULL; part = next)
	{
		DLockSpaceEntry *entry = dlock_space_entry_of(part);
		bool		left;

		next = dlock_space_next_part(part);
		left = dlock_space_remove(entry, part);
		if (entry == but)
			stays = left;
		else if (left)
			give_turns(entry, changed, step->now);
	}
	if (slot != DLOCK_SLOT_NONE)
		dlock_slot_free(&step->db->shared->slots, slot_class, slot);
	return stays;
}

/*
 * Erase a lease with all its parts, whose partitions are locked, and give turns to the
 * requests that wait.
 */
DLockStepLack
dlock_step_erase_lease(DLockStep *step, DLockSpaceLease *lease)
{
	DLockStepLack lack = dlock_step_pin_lease(step, lease);

	if (lack != DLOCK_LACKS_NOTHING)
		return lack;
	note_expiry(step, lease);
	(void) erase_parts(step, lease, NULL);
	return DLOCK_LACKS_NOTHING;
}

/* How many leases a step erases before it lets others have the locks. */
#define TIDY_BATCH	1000

/*
 * Erase the dead leases of a lock, and give turns to the requests that wait, whether or
 * not a grant follows.  If nothing is left, the entry is freed, too.  Asks for another attempt
 * if it erased leases on other locks, or has some to log, or after TIDY_BATCH.
 */
DLockStepLack
dlock_step_tidy(DLockStep *step, DLockSpaceEntry *entry)
{
	DLockStepLack lack = DLOCK_LACKS_NOTHING;
	DLockSpaceLease *next;
	int			erased = 0;
	bool		stopped = false;
	bool		stays = true;

	Assert(dlock_partition_is_mine(entry->hash));
	(void) dlock_holder_survey(entry, step->now);
	if (step->now < entry->earliest)
		return DLOCK_LACKS_NOTHING;
	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL; lease = next)
	{
		DLockSpaceLease *whole = dlock_space_whole(lease);

		next = dlock_space_next(lease);
		if (dlock_holder_blocks_until(lease) > step->now)
			continue;
		/* Others may use the partition before this goes on. */
		lack = (erased == TIDY_BATCH) ? DLOCK_LACKS_PARTITIONS : dlock_step_lock_parts(step, whole);
		if (lack == DLOCK_LACKS_NOTHING)
			lack = dlock_step_pin_lease(step, whole);
		if (lack != DLOCK_LACKS_NOTHING)
			break;

		/*
		 * The caller may point to entries of the path's other locks: they may
		 * go.
		 */
		if (whole->part == DLOCK_PART_PATH)
			lack = DLOCK_LACKS_PARTITIONS;
		erased++;
		stopped |= whole->stopped;
		note_expiry(step, whole);
		stays = erase_parts(step, whole, entry);
		if (lack != DLOCK_LACKS_NOTHING)
			break;
	}
	if (stays && erased > 0)
		give_turns(entry, stopped, step->now);
	/* To log can throw, so it comes before a grant: once more. */
	return (lack == DLOCK_LACKS_NOTHING && step->expired != NULL) ? DLOCK_LACKS_PARTITIONS : lack;
}

/* A lease ends at another time than the worker and requests in the queues expect: tell these. */
void
dlock_step_tell_end(DLockStep *step, DLockSpaceLease *lease)
{
	Assert(dlock_partition_is_mine(dlock_space_entry_of(lease)->hash));
	dlock_database_note_deadline(dlock_holder_blocks_until(lease));
	for (; lease != NULL; lease = dlock_space_next_part(lease))
		dlock_queue_give_turns(dlock_space_entry_of(lease), step->now, DLOCK_TURNS_AGAIN);
}

/*
 * End a lease now, with all its parts, in memory alone; its locks stay closed
 * for "delay".  Cannot fail.
 *
 * What is on disk is erased later, by the worker or by the next grant.
 * A crash before that brings it back for a ttl at most, on another server for two.
 */
void
dlock_step_stop_lease(DLockStep *step, DLockSpaceLease *lease, DLockTime delay)
{
	Assert(dlock_partition_is_mine(dlock_space_entry_of(lease)->hash));
	if (lease->slot == DLOCK_SLOT_NONE && delay == 0)
	{
		(void) erase_parts(step, lease, NULL);
		return;
	}
	dlock_space_stop(lease, delay, step->now);
	dlock_step_tell_end(step, lease);
}
