/*-------------------------------------------------------------------------
 *
 * acquire.c
 *	  Acquire locks: one, or several of which all or none are had.
 *
 * NOTES
 *	  The decision and the change are made under the partition locks of all
 *	  the names, so it makes no difference in which order they are given, and
 *	  two requests cannot each have half of what the other needs.
 *
 *	  A request that has to wait goes into the queues of all its locks at
 *	  once.  It holds nothing meanwhile.  When it may be its turn, its process asks
 *	  again (lock/queue.c), and is granted what a newcomer would be granted if
 *	  nobody stood in the queue behind it: by the same code, and at that moment.
 *	  All that differs is that the requests become the leases, so that memory
 *	  cannot be short.
 *
 *	  A lease that is bound to a session or a transaction need not outlive the
 *	  server, so it has no place on disk: unless the lock is to stay closed
 *	  when the session is lost, which a crash must not cut short.
 *
 * IDENTIFICATION
 *	  src/lock/acquire.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/settings.h"
#include "base/stat.h"
#include "lock/acquire.h"
#include "lock/grant.h"
#include "lock/queue.h"
#include "lock/room.h"
#include "space/holder.h"
#include "space/memory.h"
#include "space/slot.h"
#include "space/wait.h"
#include "store/page.h"

#define NO_CLASS	(-1)

/* One of the locks that are asked for. */
typedef struct DLockAcquireItem
{
	DLockBytes	name;
	DLockBytes	payload;
	uint32		hash;
	DLockMode	mode;
	DLockPart	part;
	int			slot_class;		/* of its home on disk; NO_CLASS if it has none */
	DLockSlot	slot;
	DLockSpaceLease *place;		/* in the queue, if this process waits */
	DLockSpaceEntry *entry;		/* NULL if the lock has none */

	/* The lease that the owner has, or NULL, and what entering it again makes of it. */
	DLockSpaceLease *own;
	DLockRuleRenewal renewal;
	bool		other_payload;
} DLockAcquireItem;

/* An attempt to acquire. */
typedef struct DLockAcquire
{
	const DLockAcquireRequest *request;
	DLockWork work;
	DLockSpaceSet set;
	DLockAcquireItem *items;
	DLockAcquireItem single;
	int			longest_name;
	int			longest_data;
	int			slots_of_class[DLOCK_PAGE_CLASSES];
	DLockLimitCounter counter;	/* of the role's leases; zero if these are not limited */
	bool		waits;			/* this process is in the queue for it */

	/* What was found that is an error. */
	int			owned;			/* locks that the owner has a lease on */
	uint32		permits;		/* of the lock, instead of those asked for */
	const DLockBytes *culprit;
} DLockAcquire;

typedef enum DLockAcquireStep
{
	STEP_GRANTED,
	STEP_REFUSED,
	STEP_QUEUED,
	STEP_SELF,
	STEP_MISSING,				/* fetch what is missing and come again */
	STEP_NO_ROOM,				/* reserve slots and memory and come again */
	STEP_LIMITED,				/* the role has as many leases as it may */
	STEP_CROWDED,				/* the lock has as many holders as it may */
	STEP_OTHER_PERMITS,
	STEP_WEAKER,				/* the owner's lease does not cover it */
	STEP_TOO_MANY_HOLDS
} DLockAcquireStep;

static void
plan_item(DLockAcquire *acquire, int i)
{
	const DLockAcquireRequest *request = acquire->request;
	DLockAcquireItem *item = &acquire->items[i];
	Oid			database = acquire->work.db->shared->oid;
	int			data_len;

	item->name = request->names[i];
	item->payload = request->payload;
	item->hash = dlock_name_hash(database, &item->name);
	item->mode = request->mode;
	item->part = DLOCK_PART_WHOLE;
	item->slot_class = NO_CLASS;
	item->slot = DLOCK_SLOT_NONE;
	if (request->path && i > 0)
	{
		item->mode = dlock_rule_intent(request->mode);
		item->part = DLOCK_PART_INTENT;
		item->payload = request->names[0];
	}
	else if (request->path && request->count > 1)
		item->part = DLOCK_PART_PATH;

	data_len = request->owner.len + item->payload.len;
	if (item->part != DLOCK_PART_INTENT &&
		(request->bind == DLOCK_BIND_NONE || request->delay > 0))
	{
		item->slot_class = dlock_page_class_for(item->name.len + data_len);
		acquire->slots_of_class[item->slot_class]++;
	}
	acquire->longest_name = Max(acquire->longest_name, item->name.len);
	acquire->longest_data = Max(acquire->longest_data, data_len);
	dlock_space_set_add(&acquire->set, item->hash);
}

static void
plan(DLockAcquire *acquire, DLockDatabase *db, const DLockAcquireRequest *request)
{
	acquire->request = request;
	acquire->counter = dlock_room_counter(db, request->role);
	acquire->items = &acquire->single;
	acquire->longest_name = acquire->longest_data = 0;
	memset(&acquire->set, 0, sizeof(acquire->set));
	memset(acquire->slots_of_class, 0, sizeof(acquire->slots_of_class));
	dlock_work_begin(&acquire->work, db);
	if (request->count > 1)
	{
		acquire->items = palloc(request->count * sizeof(DLockAcquireItem));
		if (!dlock_work_need_pins(&acquire->work, request->count + DLOCK_WORK_PINS))
			dlock_error_no_memory();
	}
	for (int i = 0; i < request->count; i++)
		plan_item(acquire, i);
}

/* Requests in the queue have the memory that their leases need. */
static bool
needs_memory(const DLockAcquire *acquire)
{
	return !acquire->waits || acquire->owned > 0;
}

/* Reserve the slots and the memory for all leases, without locks. */
static void
reserve(DLockAcquire *acquire)
{
	DLockDatabase *db = acquire->work.db;

	while (needs_memory(acquire) &&
		   !dlock_space_prepare(acquire->longest_name, acquire->longest_data,
								acquire->request->count))
		dlock_room_find(db);
	for (int slot_class = 0; slot_class < DLOCK_PAGE_CLASSES; slot_class++)
	{
		while (!dlock_slot_reserve(&db->shared->slots, db->rel, slot_class,
								   acquire->slots_of_class[slot_class]))
			dlock_room_find(db);
	}
}

/* Is there memory for all leases or requests? */
static bool
has_memory(const DLockAcquire *acquire)
{
	return !needs_memory(acquire) ||
		dlock_space_is_prepared(acquire->longest_name, acquire->longest_data,
								acquire->request->count);
}

/* Give every item its slot, of those reserved; false if they or memory are too few. */
static bool
assign_slots(DLockAcquire *acquire)
{
	DLockSlotShared *slots = &acquire->work.db->shared->slots;
	int			used[DLOCK_PAGE_CLASSES] = {0};

	if (!has_memory(acquire))
		return false;
	for (int i = 0; i < acquire->request->count; i++)
	{
		DLockAcquireItem *item = &acquire->items[i];

		if (item->slot_class == NO_CLASS)
			continue;
		item->slot = dlock_slot_reserved(slots, item->slot_class, used[item->slot_class]++);
		if (item->slot == DLOCK_SLOT_NONE)
			return false;
	}
	return true;
}

/* Pin the pages of all slots; false if one is missing. */
static bool
pin_slots(DLockAcquire *acquire)
{
	dlock_work_make_room(&acquire->work, acquire->request->count);
	for (int i = 0; i < acquire->request->count; i++)
	{
		if (acquire->items[i].slot != DLOCK_SLOT_NONE &&
			!dlock_work_pin(&acquire->work, acquire->items[i].slot))
			return false;
	}
	return true;
}

/* The slots are in use now. */
static void
use_slots(DLockAcquire *acquire)
{
	for (int i = 0; i < acquire->request->count; i++)
	{
		if (acquire->items[i].slot_class != NO_CLASS)
			dlock_slot_use(acquire->items[i].slot_class);
	}
}

static DLockLeaseValue
value_of(DLockAcquire *acquire, const DLockAcquireItem *item)
{
	const DLockAcquireRequest *request = acquire->request;
	DLockLeaseValue value;

	value.token = DLOCK_TOKEN_NONE;
	value.mode = item->mode;
	value.bind = request->bind;
	value.part = item->part;
	value.role = request->role;
	value.holds = 1;
	value.permits = request->permits;
	value.granted_at = 0;
	value.origin = dlock_clock_origin();
	value.term = (DLockTerm) {.ttl = request->ttl};
	value.delay = request->delay;
	value.min_hold = request->min_hold;
	value.name = item->name;
	value.owner = request->owner;
	value.payload = item->payload;
	return value;
}

/* Find this process's places in the queues, if it is there. */
static void
find_places(DLockAcquire *acquire)
{
	const DLockWaitShared *wait = dlock_wait_of(dlock_wait_me());
	DLockSpaceLease *place = NULL;

	acquire->waits = wait->state == DLOCK_WAIT_WAITING;
	if (acquire->waits)
		place = dlock_space_request_first(wait->first);
	for (int i = 0; i < acquire->request->count; i++)
	{
		acquire->items[i].place = place;
		if (place != NULL)
			place = dlock_space_request_next(place);
	}
	Assert(place == NULL);
}

/* Is the lock used with another number of permits than is asked for? */
static bool
has_other_permits(DLockSpaceEntry *entry, uint32 permits, DLockTime now)
{
	if (entry->permits == permits)
		return false;
	for (DLockSpaceLease *request = dlock_space_queue(entry); request != NULL;
		 request = dlock_space_next(request))
	{
		if (request->kind == DLOCK_SPACE_ASKED ||
			dlock_holder_is_waiting(entry, request, now))
			return true;
	}
	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL;
		 lease = dlock_space_next(lease))
	{
		if (dlock_holder_blocks_until(lease) > now)
			return true;
	}
	return false;
}

/* Look at all locks, and decide. */
static DLockAcquireStep
decide(DLockAcquire *acquire)
{
	const DLockAcquireRequest *request = acquire->request;
	DLockOwner	owner = {request->role, request->owner};
	DLockRuleCase asked = {
		.mode = request->mode, .reentry = request->reentry, .may_wait = request->may_wait
	};
	DLockTime	now = acquire->work.now;
	DLockTime	until;
	bool		blocked_by_self = false;	/* by what it has on the way elsewhere */

	acquire->owned = 0;
	for (int i = 0; i < request->count; i++)
	{
		DLockAcquireItem *item = &acquire->items[i];
		DLockSpaceLease *own;

		item->own = NULL;
		item->entry = dlock_space_find(acquire->work.db->shared->oid, item->hash, &item->name);
		if (item->entry == NULL)
			continue;
		if (now >= item->entry->earliest)
			dlock_space_refresh(item->entry);
		if (has_other_permits(item->entry, request->permits, now))
		{
			acquire->culprit = &request->names[i];
			acquire->permits = item->entry->permits;
			return STEP_OTHER_PERMITS;
		}
		own = dlock_space_find_owned(item->entry, &owner, now);
		if (own != NULL && item->part != DLOCK_PART_INTENT)
		{
			if (!asked.held_by_owner || dlock_rule_is_upgrade((DLockMode) own->mode, request->mode))
			{
				asked.held = (DLockMode) own->mode;
				acquire->culprit = &request->names[i];
			}
			asked.held_by_owner = true;
			item->own = own;
			acquire->owned++;
			/* A path is not covered by the lock of its name alone. */
			if (own->part != item->part && request->reentry != DLOCK_REENTRY_DENY)
				return STEP_WEAKER;
		}
		else if (dlock_holder_is_blocked(item->entry, item->mode, request->permits,
										 NULL, item->place, now, &until))
		{
			asked.blocked = true;
			if (!request->may_wait ||
				!dlock_holder_is_own_way(item->entry, &owner, item->mode, now))
				continue;
			blocked_by_self = true;
			acquire->culprit = &request->names[i];
		}
	}

	/* All are entered again, or none is. */
	if (!request->path && acquire->owned < request->count)
		asked.reentry = DLOCK_REENTRY_DENY;

	switch (dlock_rule_decide(&asked))
	{
		case DLOCK_RULE_GRANT:
		case DLOCK_RULE_REENTER:
			return STEP_GRANTED;
		case DLOCK_RULE_REFUSE:
			return STEP_REFUSED;
		case DLOCK_RULE_QUEUE:
			return blocked_by_self ? STEP_SELF : STEP_QUEUED;
		case DLOCK_RULE_SELF:
			return STEP_SELF;
		case DLOCK_RULE_WEAKER:
			return STEP_WEAKER;
	}
	pg_unreachable();
}

/* Have at hand what it takes to enter a lease again; anything but GRANTED: it is not. */
static DLockAcquireStep
prepare_reentry(DLockAcquire *acquire, DLockAcquireItem *item, TimestampTz wall)
{
	const DLockAcquireRequest *request = acquire->request;
	DLockSpaceLease *own = item->own;
	DLockTerm	term = {own->ttl, own->deadline, own->bound_mono, 0};
	char		buffer[DLOCK_PAYLOAD_MAX];
	DLockBytes	payload = dlock_space_lease_payload(own, buffer);
	bool		counts = request->reentry == DLOCK_REENTRY_COUNT;

	item->renewal = dlock_rule_reenter(&term, request->ttl, acquire->work.now, wall);
	if (!item->renewal.must_log)
		item->renewal.term.bound_wall = dlock_rule_bound_wall(item->renewal.term.bound_mono,
															  acquire->work.now, wall);
	item->other_payload = request->set_payload && !dlock_name_equal(&payload, &request->payload);
	if (counts && own->holds == PG_UINT32_MAX)
	{
		acquire->culprit = &item->name;
		return STEP_TOO_MANY_HOLDS;
	}
	if (item->other_payload && !assign_slots(acquire))
		return STEP_NO_ROOM;
	if (own->slot == DLOCK_SLOT_NONE)
		return STEP_GRANTED;
	if ((item->renewal.must_log || counts || item->other_payload) &&
		!dlock_work_pin(&acquire->work, own->slot))
		return STEP_MISSING;
	if (item->other_payload && !dlock_work_pin(&acquire->work, item->slot))
		return STEP_MISSING;
	return STEP_GRANTED;
}

/* Give the lease that is entered again, with its new term, the payload asked for. */
static void
replace_payload(DLockAcquire *acquire, DLockAcquireItem *item)
{
	const DLockBytes *payload = &acquire->request->payload;
	DLockSpaceLease *own = item->own;
	DLockSlot	slot = own->slot;
	int			slot_class = dlock_page_class_for(item->name.len + own->owner_len + own->payload_len);

	if (slot != DLOCK_SLOT_NONE && slot_class != item->slot_class)
	{
		slot = item->slot;
		dlock_slot_use(item->slot_class);
	}
	item->own = dlock_grant_replace(&acquire->work, item->entry, own, payload, slot);
}

/* Enter a lease again; all that it takes is at hand. */
static void
enter_again(DLockAcquire *acquire, DLockAcquireItem *item)
{
	bool		counts = acquire->request->reentry == DLOCK_REENTRY_COUNT;
	DLockTerm  *term = &item->renewal.term;
	DLockHolderPart parts[DLOCK_PATH_MAX_PARTS];
	int			count = dlock_holder_parts(item->entry, item->own, parts);

	item->own->holds += counts;
	if (item->own->slot != DLOCK_SLOT_NONE && !item->other_payload &&
		(item->renewal.must_log || counts))
		dlock_grant_log_state(&acquire->work, item->own, term);
	for (int i = 0; i < count; i++)
	{
		parts[i].lease->ttl = term->ttl;
		parts[i].lease->deadline = term->deadline;
		parts[i].lease->bound_mono = term->bound_mono;
	}
	if (item->other_payload)
		replace_payload(acquire, item);
	dlock_stat_count(DLOCK_STAT_REENTRY, 1);
}

/* Enter again the leases that the owner has: one, a path, or all that are asked for. */
static DLockAcquireStep
reenter(DLockAcquire *acquire, DLockAcquireGranted *granted)
{
	const DLockAcquireRequest *request = acquire->request;
	int			count = request->path ? 1 : request->count;
	TimestampTz wall = dlock_clock_wall();

	if (count > 1)
		dlock_work_make_room(&acquire->work, count);
	for (int i = 0; i < count; i++)
	{
		DLockAcquireStep step = prepare_reentry(acquire, &acquire->items[i], wall);

		if (step != STEP_GRANTED)
			return step;
	}

	if (acquire->waits)
		dlock_queue_remove_mine(acquire->work.now);
	*granted = (DLockAcquireGranted) {.token = acquire->items[0].own->token, .entered = true};
	for (int i = 0; i < count; i++)
	{
		DLockAcquireItem *item = &acquire->items[i];

		enter_again(acquire, item);
		granted->lsn = Max(granted->lsn, item->own->lsn);
		if (request->tokens != NULL)
			request->tokens[i] = item->own->token;
	}
	return STEP_GRANTED;
}

/*
 * Count the leases for their role, if these are limited; false if they are too
 * many.  Requests in the queue are counted already.
 */
static bool
charge(DLockAcquire *acquire)
{
	return acquire->counter == 0 || acquire->waits ||
		dlock_limit_charge(acquire->counter, acquire->request->count, dlock_settings_max_leases);
}

/* Make a request in the queue the lease that it asks for. */
static DLockSpaceLease *
promote(DLockAcquireItem *item, const DLockLeaseValue *value, int process, XLogRecPtr lsn)
{
	DLockSpaceLease *lease = item->place;

	lease->token = value->token;
	lease->granted_at = value->granted_at;
	lease->deadline = value->term.deadline;
	lease->bound_mono = value->term.bound_mono;
	lease->min_until = 0;
	lease->slot = item->slot;
	lease->process = process;
	lease->lsn = lsn;
	dlock_space_promote(item->entry, lease);
	return lease;
}

/* Make the leases that are asked for, which nothing stands in the way of. */
static DLockAcquireStep
grant(DLockAcquire *acquire, DLockAcquireGranted *granted)
{
	const DLockAcquireRequest *request = acquire->request;
	DLockWork *work = &acquire->work;
	DLockDatabaseShared *shared = work->db->shared;
	int			process = (request->bind != DLOCK_BIND_NONE) ? dlock_wait_me() : -1;
	TimestampTz wall = dlock_clock_wall();
	DLockToken	token;

	if (!assign_slots(acquire))
		return STEP_NO_ROOM;
	for (int i = 0; i < request->count; i++)
	{
		DLockAcquireItem *item = &acquire->items[i];
		bool		crowded;

		if (item->entry == NULL)
			continue;
		crowded = !acquire->waits && item->entry->nstrong >= DLOCK_HOLDERS_MAX;
		if (!dlock_grant_tidy(work, item->entry))
			return STEP_MISSING;

		/* Of a crowd, the dead have gone now; with the last one, the entry has, too. */
		if (!crowded)
			continue;
		item->entry = dlock_space_find(shared->oid, item->hash, &item->name);
		if (item->entry != NULL && item->entry->nstrong >= DLOCK_HOLDERS_MAX &&
			item->part == DLOCK_PART_WHOLE && item->mode > DLOCK_MODE_CR)
		{
			acquire->culprit = &item->name;
			return STEP_CROWDED;
		}
	}
	if (!pin_slots(acquire))
		return STEP_MISSING;
	if (!dlock_work_tokens(work, request->path ? 1 : request->count, &token))
		return STEP_MISSING;
	if (!charge(acquire))
		return STEP_LIMITED;

	*granted = (DLockAcquireGranted) {.token = token};
	for (int i = 0; i < request->count; i++)
	{
		DLockAcquireItem *item = &acquire->items[i];
		DLockLeaseValue value = value_of(acquire, item);
		DLockSpaceLease *lease;

		value.token = token;
		value.granted_at = wall;
		value.term = dlock_rule_grant(request->ttl, work->now, wall);
		if (item->slot != DLOCK_SLOT_NONE)
			granted->lsn = dlock_grant_write(work, item->slot, &value);
		lease = acquire->waits ?
			promote(item, &value, process, granted->lsn) :
			dlock_space_hold(shared->oid, item->hash, &value, item->slot, process,
							 granted->lsn);
		if (request->min_hold > 0)
			lease->min_until = work->now + request->min_hold;
		dlock_database_note_deadline(shared, dlock_holder_blocks_until(lease));
		if (!request->path)
			token++;
	}
	use_slots(acquire);
	dlock_stat_count(DLOCK_STAT_GRANT, request->path ? 1 : request->count);
	if (acquire->waits)
	{
		dlock_stat_count(DLOCK_STAT_HANDOFF, request->path ? 1 : request->count);
		dlock_wait_leave(dlock_wait_me(), DLOCK_WAIT_IDLE);
	}
	if (dlock_wait_is_any())
		dlock_wait_owner_gained(shared->oid, dlock_wait_owner_hash(&(DLockOwner) {request->role, request->owner}));

	/* There may be somebody who watches, or who must look at the lock earlier. */
	for (int i = 0; i < request->count; i++)
	{
		DLockAcquireItem *item = &acquire->items[i];

		if (item->entry == NULL)
			continue;
		item->entry = dlock_space_find(shared->oid, item->hash, &item->name);
		dlock_queue_call(item->entry, work->now);
	}
	return STEP_GRANTED;
}

/* Put the request into the queues. */
static DLockAcquireStep
enqueue(DLockAcquire *acquire)
{
	const DLockAcquireRequest *request = acquire->request;
	Oid			database = acquire->work.db->shared->oid;
	DLockMemoryRef first = DLOCK_MEMORY_NONE;

	if (acquire->waits)
		return STEP_QUEUED;
	if (!has_memory(acquire))
		return STEP_NO_ROOM;
	if (!charge(acquire))
		return STEP_LIMITED;

	/* The last one first: they are told of in the order of the names. */
	for (int i = request->count - 1; i >= 0; i--)
	{
		DLockAcquireItem *item = &acquire->items[i];
		DLockLeaseValue value = value_of(acquire, item);

		(void) dlock_space_enqueue(database, item->hash, &value, DLOCK_SLOT_NONE,
									dlock_wait_me(), DLOCK_SPACE_ASKED, &first);
	}
	dlock_wait_enter(DLOCK_SPACE_ASKED, database,
					 dlock_wait_owner_hash(&(DLockOwner) {request->role, request->owner}),
					 &acquire->set, request->count, first,
					 acquire->work.now, dlock_clock_wall());
	return STEP_QUEUED;
}

/* Everything that is done under the partition locks. */
static DLockAcquireStep
attempt(DLockAcquire *acquire, DLockAcquireGranted *granted)
{
	DLockAcquireStep step;

	dlock_space_lock_set(&acquire->set, LW_EXCLUSIVE);
	acquire->work.now = dlock_clock_now();
	find_places(acquire);
	step = decide(acquire);
	if (step == STEP_GRANTED)
		step = (acquire->owned > 0) ? reenter(acquire, granted) : grant(acquire, granted);
	else if (step == STEP_QUEUED)
		step = enqueue(acquire);
	dlock_space_unlock_set(&acquire->set);
	return step;
}

/*
 * Acquire one lock or several, or go into their queues.  If this process is in
 * there already, it must be for this request, and stays unless it is granted.
 *
 * GRANTED: "granted" has the token; the leases run from this moment.  It is
 * left to the caller to list them (session/answer.c) and to flush; nothing throws
 * after they were made.  REFUSED: somebody is in the way, and the
 * request may not wait.  QUEUED: it waits now, and nothing is held.  SELF: its
 * own owner is in the way.
 *
 * No partition lock may be held.  Throws 53400 if memory is full or the role is
 * at its limit, 22023 if the
 * lock is in use with another number of permits, 55000 if the owner's own
 * lease does not cover what is asked for, and what the server throws when a
 * relation cannot be extended; nothing has changed then.
 */
DLockAcquireAnswer
dlock_acquire_locks(DLockDatabase *db, const DLockAcquireRequest *request,
					  DLockAcquireGranted *granted)
{
	DLockAcquire acquire;
	DLockAcquireStep step;

	plan(&acquire, db, request);
	do
	{
		step = attempt(&acquire, granted);
		if (step == STEP_NO_ROOM)
			reserve(&acquire);
		else if (step == STEP_MISSING)
			dlock_grant_fetch(&acquire.work);
		else if (step == STEP_LIMITED)
			dlock_room_under_limit(db, request->role, acquire.counter);
	} while (step == STEP_NO_ROOM || step == STEP_MISSING || step == STEP_LIMITED);

	dlock_work_finish(&acquire.work);
	if (request->count > 1)
	{
		pfree(acquire.items);
		dlock_slot_trim();
	}
	dlock_memory_trim();

	switch (step)
	{
		case STEP_GRANTED:
			return DLOCK_ANSWER_GRANTED;
		case STEP_REFUSED:
			dlock_stat_count(DLOCK_STAT_REFUSAL, 1);
			return DLOCK_ANSWER_REFUSED;
		case STEP_QUEUED:
			return DLOCK_ANSWER_QUEUED;
		case STEP_SELF:
			granted->own = acquire.culprit;
			return DLOCK_ANSWER_SELF;
		case STEP_CROWDED:
			dlock_error_too_many_holders(acquire.culprit, DLOCK_HOLDERS_MAX);
		case STEP_OTHER_PERMITS:
			dlock_error_other_permits(acquire.culprit, acquire.permits, request->permits);
		case STEP_WEAKER:
			dlock_error_weaker(acquire.culprit, &request->owner);
		case STEP_TOO_MANY_HOLDS:
			dlock_error_too_many_holds(acquire.culprit);
		default:
			pg_unreachable();
	}
}
