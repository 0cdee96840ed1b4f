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
 *	  cannot be short.  The owner of a place asks in the same way: it is granted what
 *	  can be granted to a request that stands there, or the place gets a process, stays,
 *	  or is given up.
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

#include "access/xact.h"
#include "miscadmin.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/settings.h"
#include "base/stat.h"
#include "lock/acquire.h"
#include "lock/keep.h"
#include "lock/queue.h"
#include "lock/step.h"
#include "space/count.h"
#include "space/holder.h"
#include "space/memory.h"
#include "space/place.h"
#include "space/slot.h"
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
	int			slot_class;		/* of its home on disk; NO_CLASS if it has
								 * none */
	DLockSlot	slot;
	DLockSpaceLease *place;		/* in the queue, if this process waits, or the
								 * owner has one */
	DLockSpaceEntry *entry;		/* NULL if the lock has none */

	/*
	 * The lease that the owner has, or NULL, and what entering it again makes
	 * of it.
	 */
	DLockSpaceLease *own;
	DLockRuleRenewal renewal;
	bool		other_payload;
} DLockAcquireItem;

/* What came of an attempt, if it lacked nothing. */
typedef enum DLockAcquireVerdict
{
	VERDICT_GRANT,
	VERDICT_REFUSED,
	VERDICT_QUEUE,
	VERDICT_SELF,
	VERDICT_CROWDED,			/* the lock has as many holders as it may */
	VERDICT_OTHER_PERMITS,
	VERDICT_OTHER_PLACE,		/* the owner has a place for something else */
	VERDICT_WEAKER,				/* the owner's lease does not cover it */
	VERDICT_TOO_MANY_HOLDS
} DLockAcquireVerdict;

/* A call to acquire, over all its attempts. */
typedef struct DLockAcquire
{
	const DLockAcquireRequest *request;
	DLockStep	step;
	DLockAcquireItem *items;
	DLockAcquireItem single;
	bool		sleeps;			/* this process is in the queue for it */
	bool		waits;			/* the same, or its owner has a place */
	DLockStepRoom room;			/* that the leases need */
	DLockAcquireGranted *granted;
	DLockAcquireVerdict verdict;

	/* What was found that is an error. */
	int			owned;			/* locks that the owner has a lease on */
	uint32		permits;		/* of the lock, instead of those asked for */
	const DLockBytes *culprit;
} DLockAcquire;

static void
plan_item(DLockAcquire *acquire, int i)
{
	const DLockAcquireRequest *request = acquire->request;
	DLockAcquireItem *item = &acquire->items[i];
	Oid			database = acquire->step.db->shared->oid;
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
		item->payload.len = 0;
	}
	else if (request->path && request->count > 1)
		item->part = DLOCK_PART_PATH;

	data_len = request->owner.len + item->payload.len;
	if (item->part != DLOCK_PART_INTENT &&
		(request->bind == DLOCK_BIND_NONE || request->delay > 0))
	{
		item->slot_class = dlock_page_class_for(item->name.len + data_len);
		acquire->room.slots[item->slot_class]++;
	}
	acquire->room.name_len = Max(acquire->room.name_len, item->name.len);
	acquire->room.data_len = Max(acquire->room.data_len, data_len);
	dlock_partition_set_add(&acquire->step.set, item->hash);
}

static void
plan(DLockAcquire *acquire, DLockDatabase *db, const DLockAcquireRequest *request)
{
	acquire->request = request;
	acquire->items = &acquire->single;
	memset(&acquire->room, 0, sizeof(acquire->room));
	dlock_step_begin(&acquire->step, db);
	if (request->count > 1)
	{
		acquire->items = palloc(request->count * sizeof(DLockAcquireItem));
		dlock_step_need_pins(&acquire->step, request->count + DLOCK_STEP_PINS);
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

/* The leases or requests need memory and slots, unless these are at hand. */
static DLockStepLack
lack_room(DLockAcquire *acquire)
{
	acquire->step.room = acquire->room;
	acquire->step.room.count = needs_memory(acquire) ? acquire->request->count : 0;
	return DLOCK_LACKS_ROOM;
}

/* Reserve memory for all leases or requests. */
static DLockStepLack
check_memory(DLockAcquire *acquire)
{
	if (!needs_memory(acquire) ||
		dlock_space_prepare(acquire->room.name_len, acquire->room.data_len,
							acquire->request->count))
		return DLOCK_LACKS_NOTHING;
	return lack_room(acquire);
}

/* Give every item its slot, of those reserved, and see to memory, too. */
static DLockStepLack
assign_slots(DLockAcquire *acquire)
{
	int			used[DLOCK_PAGE_CLASSES] = {0};

	if (!dlock_slot_reserve(&acquire->step.db->shared->slots, acquire->room.slots))
		return lack_room(acquire);
	for (int i = 0; i < acquire->request->count; i++)
	{
		DLockAcquireItem *item = &acquire->items[i];

		if (item->slot_class != NO_CLASS)
			item->slot = dlock_slot_reserved(item->slot_class, used[item->slot_class]++);
	}
	return check_memory(acquire);
}

/* Pin the pages of all slots. */
static DLockStepLack
pin_slots(DLockAcquire *acquire)
{
	DLockStepLack lack = DLOCK_LACKS_NOTHING;

	dlock_step_make_room(&acquire->step, acquire->request->count);
	for (int i = 0; i < acquire->request->count && lack == DLOCK_LACKS_NOTHING; i++)
	{
		if (acquire->items[i].slot != DLOCK_SLOT_NONE)
			lack = dlock_step_pin(&acquire->step, acquire->items[i].slot);
	}
	return lack;
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
	value.term = (DLockTerm)
	{
		.ttl = request->ttl
	};
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
	DLockSpaceLease *place = dlock_process_first(MyProcNumber);

	acquire->waits = acquire->sleeps = place != NULL;
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
		if ((request->kind == DLOCK_SPACE_ASKED && !dlock_space_is_over(request, now)) ||
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

/* Find the place that the owner has, which is for calls that ask for one lock.  One that is over goes. */
static void
find_own_place(DLockAcquire *acquire, DLockAcquireItem *item, const DLockOwner *owner)
{
	if (item->entry == NULL || !item->entry->places || acquire->sleeps ||
		acquire->request->path || acquire->request->tokens != NULL || !dlock_space_may_wait(item->entry, owner))
		return;
	item->place = dlock_place_find(item->entry, owner);
	if (item->place != NULL && dlock_space_is_over(item->place, acquire->step.now))
	{
		dlock_queue_remove(item->place, acquire->step.now);
		item->entry = dlock_space_find(acquire->step.db->shared->oid, item->hash, &item->name);
		item->place = NULL;
	}
	acquire->waits = item->place != NULL;
}

/* Was a place asked for with other arguments?  They make the lease that it becomes. */
static bool
is_for_other(const DLockAcquireRequest *request, const DLockSpaceLease *place)
{
	char		buffer[DLOCK_PAYLOAD_MAX];
	DLockBytes	payload = dlock_space_lease_payload(place, buffer);

	return place->mode != request->mode || dlock_space_entry_of(place)->permits != request->permits ||
		place->ttl != request->ttl || place->delay != request->delay ||
		place->min_until != request->min_hold || request->bind != DLOCK_BIND_NONE ||
		!dlock_name_equal(&payload, &request->payload);
}

/* Look at all locks, and decide. */
static DLockAcquireVerdict
decide(DLockAcquire *acquire)
{
	const DLockAcquireRequest *request = acquire->request;
	DLockOwner	owner = {request->role, request->owner};
	DLockRuleCase asked = {
		.mode = request->mode,.reentry = request->reentry,
		.may_wait = request->may_wait || request->keep > 0
	};
	DLockTime	now = acquire->step.now;
	bool		blocked_by_self = false;	/* by what it has on the way
											 * elsewhere */

	acquire->owned = 0;
	for (int i = 0; i < request->count; i++)
	{
		DLockAcquireItem *item = &acquire->items[i];
		DLockSpaceLease *own;

		item->own = NULL;
		item->entry = dlock_space_find(acquire->step.db->shared->oid, item->hash, &item->name);
		find_own_place(acquire, item, &owner);
		if (request->takes && item->place == NULL)
			return VERDICT_REFUSED;
		if (item->entry == NULL)
			continue;
		if (now >= item->entry->earliest)
			dlock_space_refresh(item->entry, now);
		if (item->place != NULL && item->place->placed && is_for_other(request, item->place))
			return VERDICT_OTHER_PLACE;
		if (has_other_permits(item->entry, request->permits, now))
		{
			acquire->culprit = &request->names[i];
			acquire->permits = item->entry->permits;
			return VERDICT_OTHER_PERMITS;
		}
		own = dlock_holder_find_owned(item->entry, &owner, now);
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
				return VERDICT_WEAKER;
		}
		else if (dlock_holder_is_blocked(item->entry, item->mode, request->permits,
										 NULL, item->place, now))
		{
			asked.blocked = true;
			if (!asked.may_wait ||
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
			return VERDICT_GRANT;
		case DLOCK_RULE_REFUSE:
			return VERDICT_REFUSED;
		case DLOCK_RULE_QUEUE:
			return blocked_by_self ? VERDICT_SELF : VERDICT_QUEUE;
		case DLOCK_RULE_SELF:
			return VERDICT_SELF;
		case DLOCK_RULE_WEAKER:
			return VERDICT_WEAKER;
	}
	pg_unreachable();
}

/* The request is in no queue any more, be it by a place. */
static void
leave_queues(DLockAcquire *acquire)
{
	if (acquire->sleeps)
		dlock_queue_remove_mine(acquire->step.now);
	else if (acquire->waits)
		dlock_queue_remove(acquire->items[0].place, acquire->step.now);
}

/* Have at hand what it takes to enter a lease again. */
static DLockStepLack
prepare_reentry(DLockAcquire *acquire, DLockAcquireItem *item, TimestampTz wall)
{
	const DLockAcquireRequest *request = acquire->request;
	DLockSpaceLease *own = item->own;
	DLockTerm	term = dlock_space_lease_term(own);
	char		buffer[DLOCK_PAYLOAD_MAX];
	DLockBytes	payload = dlock_space_lease_payload(own, buffer);
	bool		counts = request->reentry == DLOCK_REENTRY_COUNT;
	DLockStepLack lack = DLOCK_LACKS_NOTHING;

	item->renewal = dlock_rule_reenter(&term, request->ttl, acquire->step.now, wall);
	item->other_payload = request->set_payload && !dlock_name_equal(&payload, &request->payload);
	if (counts && own->holds == PG_UINT32_MAX)
	{
		acquire->culprit = &item->name;
		acquire->verdict = VERDICT_TOO_MANY_HOLDS;
		return DLOCK_LACKS_NOTHING;
	}
	if (item->other_payload && own->slot != DLOCK_SLOT_NONE && item->slot_class == NO_CLASS)
	{
		/* The lease outlives the server, and what is asked for would not. */
		acquire->culprit = &item->name;
		acquire->verdict = VERDICT_WEAKER;
		return DLOCK_LACKS_NOTHING;
	}
	if (item->other_payload)
		lack = assign_slots(acquire);
	if (lack == DLOCK_LACKS_NOTHING && own->slot != DLOCK_SLOT_NONE &&
		(item->renewal.must_log || counts || item->other_payload))
		lack = dlock_step_pin(&acquire->step, own->slot);
	if (lack == DLOCK_LACKS_NOTHING && own->slot != DLOCK_SLOT_NONE && item->other_payload)
		lack = dlock_step_pin(&acquire->step, item->slot);
	return lack;
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
	dlock_step_set_payload(&acquire->step, own, payload, slot);
}

/* Enter a lease again; all that it takes is at hand. */
static void
enter_again(DLockAcquire *acquire, DLockAcquireItem *item)
{
	bool		counts = acquire->request->reentry == DLOCK_REENTRY_COUNT;
	DLockTerm  *term = &item->renewal.term;

	item->own->holds += counts;
	dlock_step_renew(&acquire->step, item->own, term,
					 !item->other_payload && (item->renewal.must_log || counts));
	if (item->other_payload)
		replace_payload(acquire, item);
	dlock_stat_count(DLOCK_STAT_REENTRY, 1);
}

/* Enter again the leases that the owner has: one, a path, or all that are asked for. */
static DLockStepLack
reenter(DLockAcquire *acquire)
{
	const DLockAcquireRequest *request = acquire->request;
	DLockAcquireGranted *granted = acquire->granted;
	int			count = request->path ? 1 : request->count;
	TimestampTz wall = dlock_clock_wall();

	/* One more: the payload of a single lease can take it to another page. */
	dlock_step_make_room(&acquire->step, count + 1);
	for (int i = 0; i < count; i++)
	{
		DLockStepLack lack = prepare_reentry(acquire, &acquire->items[i], wall);

		if (lack != DLOCK_LACKS_NOTHING || acquire->verdict != VERDICT_GRANT)
			return lack;
	}

	leave_queues(acquire);
	*granted = (DLockAcquireGranted)
	{
		.token = acquire->items[0].own->token,.entered = true
	};
	for (int i = 0; i < count; i++)
	{
		DLockAcquireItem *item = &acquire->items[i];

		enter_again(acquire, item);
		granted->lsn = Max(granted->lsn, item->own->lsn);
		if (request->tokens != NULL)
			request->tokens[i] = item->own->token;
	}
	return DLOCK_LACKS_NOTHING;
}

/*
 * Count the leases for their role, if these are limited.  Requests in the queue are counted already.
 */
static DLockStepLack
reserve_leases(DLockAcquire *acquire)
{
	const DLockAcquireRequest *request = acquire->request;

	if (dlock_settings_max_leases < 0 || acquire->waits ||
		dlock_count_reserve_leases(acquire->step.db->shared->oid, request->role, request->count,
								   dlock_settings_max_leases))
		return DLOCK_LACKS_NOTHING;
	acquire->step.role = request->role;
	return DLOCK_LACKS_LIMIT;
}

/* Make a request in the queue the lease that it asks for, an intent one of "path". */
static DLockSpaceLease *
promote(DLockAcquireItem *item, const DLockLeaseValue *value, int process, XLogRecPtr lsn,
		DLockSpaceLease *path)
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
	lease->confirmed = 0;
	lease->level = synchronous_commit;
	dlock_space_promote(item->entry, lease, path);
	return lease;
}

/*
 * Erase dead leases on the locks.  No lock may get too many holders; intents, of which
 * an owner gets one for each path below, are not refused.
 */
static DLockStepLack
tidy_locks(DLockAcquire *acquire)
{
	for (int i = 0; i < acquire->request->count; i++)
	{
		DLockAcquireItem *item = &acquire->items[i];
		DLockStepLack lack;
		bool		crowded;

		if (item->entry == NULL)
			continue;
		crowded = item->entry->nstrong >= DLOCK_HOLDERS_MAX;
		lack = dlock_step_tidy(&acquire->step, item->entry);
		if (lack != DLOCK_LACKS_NOTHING)
			return lack;

		/*
		 * Of a crowd, the dead have gone now; with the last one, the entry
		 * has, too.
		 */
		if (!crowded)
			continue;
		item->entry = dlock_space_find(acquire->step.db->shared->oid, item->hash, &item->name);
		if (item->entry != NULL && item->entry->nstrong >= DLOCK_HOLDERS_MAX &&
			item->part != DLOCK_PART_INTENT && item->mode > DLOCK_MODE_CR)
		{
			acquire->culprit = &item->name;
			acquire->verdict = VERDICT_CROWDED;
		}
	}
	return DLOCK_LACKS_NOTHING;
}

/* Make the leases that are asked for, which nothing stands in the way of. */
static DLockStepLack
grant(DLockAcquire *acquire)
{
	const DLockAcquireRequest *request = acquire->request;
	DLockAcquireGranted *granted = acquire->granted;
	DLockStep  *step = &acquire->step;
	DLockDatabaseShared *shared = step->db->shared;
	DLockOwner	owner = {request->role, request->owner};
	int			process = (request->bind != DLOCK_BIND_NONE) ? MyProcNumber : -1;
	TimestampTz wall = dlock_clock_wall();
	DLockSpaceLease *path = NULL;
	DLockToken	token;
	DLockStepLack lack = assign_slots(acquire);

	if (lack == DLOCK_LACKS_NOTHING)
		lack = tidy_locks(acquire);
	if (lack != DLOCK_LACKS_NOTHING || acquire->verdict != VERDICT_GRANT)
		return lack;
	lack = pin_slots(acquire);
	if (lack == DLOCK_LACKS_NOTHING)
		lack = dlock_step_tokens(step, request->path ? 1 : request->count, &token);
	if (lack == DLOCK_LACKS_NOTHING)
		lack = reserve_leases(acquire);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;

	DLOCK_FAULT_STOP("grant");
	*granted = (DLockAcquireGranted)
	{
		.token = token
	};
	for (int i = 0; i < request->count; i++)
	{
		DLockAcquireItem *item = &acquire->items[i];
		DLockLeaseValue value = value_of(acquire, item);
		DLockSpaceLease *lease;

		value.token = token;
		value.granted_at = wall;
		value.term = dlock_rule_grant(request->ttl, step->now, wall);
		if (item->slot != DLOCK_SLOT_NONE)
			granted->lsn = dlock_step_write(step, item->slot, &value);
		lease = acquire->waits ?
			promote(item, &value, process, granted->lsn, path) :
			dlock_space_hold(shared->oid, item->hash, &value, item->slot, process,
							 granted->lsn, path);
		if (request->min_hold > 0)
			lease->min_until = step->now + request->min_hold;
		dlock_database_note_deadline(dlock_holder_blocks_until(lease));
		if (!request->path)
			token++;
		else if (i == 0)
			path = lease;
	}
	use_slots(acquire);
	dlock_stat_count(DLOCK_STAT_GRANT, request->path ? 1 : request->count);
	if (acquire->waits)
	{
		dlock_stat_count(DLOCK_STAT_HANDOFF, request->path ? 1 : request->count);
		if (acquire->sleeps)
			dlock_process_end(MyProcNumber, DLOCK_PROCESS_IDLE);
	}
	dlock_process_owner_gained(shared->oid, &owner);

	/*
	 * There may be somebody who watches, or who must look at the lock
	 * earlier, or other requests of the owner.
	 */
	for (int i = 0; i < request->count; i++)
	{
		DLockAcquireItem *item = &acquire->items[i];

		if (item->entry == NULL)
			continue;
		item->entry = dlock_space_find(shared->oid, item->hash, &item->name);
		dlock_queue_wake_twins(item->entry, &owner, item->part);
		dlock_queue_call(item->entry, step->now);
	}
	return DLOCK_LACKS_NOTHING;
}

/* Make the requests; "first" is where they can be found. */
static DLockStepLack
make_requests(DLockAcquire *acquire, DLockMemoryRef *first)
{
	DLockStepLack lack = check_memory(acquire);

	if (lack == DLOCK_LACKS_NOTHING)
		lack = reserve_leases(acquire);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;

	/* The last one first: they are told of in the order of the names. */
	for (int i = acquire->request->count - 1; i >= 0; i--)
	{
		DLockAcquireItem *item = &acquire->items[i];
		DLockLeaseValue value = value_of(acquire, item);

		item->place = dlock_space_enqueue(acquire->step.db->shared->oid, item->hash, &value,
										  DLOCK_SPACE_ASKED, first);
		item->place->reentry = acquire->request->reentry;
	}
	return DLOCK_LACKS_NOTHING;
}

/* Keep the place that the owner has, or a new one. */
static DLockStepLack
keep_place(DLockAcquire *acquire)
{
	const DLockAcquireRequest *request = acquire->request;
	DLockAcquireItem *item = &acquire->items[0];
	DLockTime	now = acquire->step.now;
	DLockMemoryRef first = DLOCK_MEMORY_NONE;
	DLockStepLack lack;

	acquire->granted->token = DLOCK_TOKEN_NONE;
	acquire->granted->checks = false;
	if (acquire->waits)
	{
		item->place->reentry = request->reentry;
		acquire->granted->checks = dlock_keep_stay(item->place, request->takes ? 0 : now + request->keep, now);
		return DLOCK_LACKS_NOTHING;
	}
	lack = make_requests(acquire, &first);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;
	dlock_keep_make(item->place, now, now + request->keep, now);
	acquire->granted->token = item->place->token;
	return DLOCK_LACKS_NOTHING;
}

/* Put the request into the queues. */
static DLockStepLack
enqueue(DLockAcquire *acquire)
{
	const DLockAcquireRequest *request = acquire->request;
	DLockOwner	owner = {request->role, request->owner};
	DLockMemoryRef first = DLOCK_MEMORY_NONE;
	DLockStepLack lack = DLOCK_LACKS_NOTHING;

	if (acquire->sleeps)
		return DLOCK_LACKS_NOTHING;

	/* It may be the turn of places that nobody has told of it. */
	for (int i = 0; i < request->count; i++)
	{
		if (acquire->items[i].entry != NULL && acquire->items[i].entry->places)
			dlock_queue_call_again(acquire->items[i].entry, acquire->step.now);
	}
	if (!request->may_wait)
		return keep_place(acquire);

	if (acquire->waits)
	{
		dlock_place_remove(acquire->items[0].place);
		acquire->items[0].place->process = MyProcNumber;
		acquire->items[0].place->bound_mono = 0;
		first = dlock_memory_ref(acquire->items[0].place);
	}
	else
		lack = make_requests(acquire, &first);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;
	acquire->granted->until =
		dlock_queue_enter(DLOCK_SPACE_ASKED, acquire->step.db->shared->oid,
						  dlock_process_owner_hash(&owner), &acquire->step.set, request->count, first,
						  acquire->step.now);
	return DLOCK_LACKS_NOTHING;
}

/*
 * Call the requests that may be what keeps this one out.  A stopped process waits
 * for the whole of its request, which may keep a lock free that nobody else
 * changes; once it has been called, requests pass it by after a ttl.
 */
static void
call_queues(DLockAcquire *acquire)
{
	for (int i = 0; i < acquire->request->count; i++)
	{
		if (acquire->items[i].entry != NULL)
			dlock_queue_call_again(acquire->items[i].entry, acquire->step.now);
	}
}

/* An attempt. */
static DLockStepLack
try_acquire(DLockStep *step, void *arg)
{
	DLockAcquire *acquire = arg;

	Assert(dlock_partition_set_is_mine(&step->set));
	find_places(acquire);
	acquire->verdict = decide(acquire);
	if (acquire->verdict == VERDICT_GRANT)
	{
		DLockStepLack lack = (acquire->owned > 0) ? reenter(acquire) : grant(acquire);

		/* What cannot be granted at all gives the place up. */
		if (lack == DLOCK_LACKS_NOTHING && acquire->verdict != VERDICT_GRANT && !acquire->sleeps)
			leave_queues(acquire);
		return lack;
	}
	if (acquire->verdict == VERDICT_QUEUE)
		return enqueue(acquire);
	if (acquire->verdict == VERDICT_REFUSED)
		call_queues(acquire);
	if (!acquire->sleeps && acquire->verdict != VERDICT_OTHER_PLACE)
		leave_queues(acquire);
	return DLOCK_LACKS_NOTHING;
}

/* Report that the lock is used as a semaphore of another size, or by modes. */
pg_noreturn static void
report_other_permits(const DLockBytes *name, uint32 used, uint32 asked)
{
	if (used == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("lock \"%.*s\" is used without permits, not with %u", name->len, name->data, asked),
				 errdetail("Leases on it, or requests that wait for it, have modes."),
				 errhint("Use another name for the semaphore.")));
	if (asked == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg_plural("lock \"%.*s\" has %u permit, and is not used by modes",
							   "lock \"%.*s\" has %u permits, and is not used by modes",
							   used, name->len, name->data, used),
				 errhint("Ask for it with permits => %u, or use another name.", used)));
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg_plural("lock \"%.*s\" has %u permit, not %u",
						   "lock \"%.*s\" has %u permits, not %u",
						   used, name->len, name->data, used, asked),
			 errdetail("The first request sets the number, which stays as long as the lock is held or waited for."),
			 errhint("Ask for it with permits => %u, or wait until it is free.", used)));
}

/*
 * Acquire one lock or several, or go into their queues.  If this process is in
 * there already, it must be for this request, and stays unless it is granted.
 *
 * GRANTED: "granted" has the token; the leases run from this moment.  It is
 * left to the caller to list them (session/grants.c) and to flush; nothing throws
 * after they were made.  REFUSED: somebody is in the way, and the
 * request may not wait.  QUEUED: it waits now, and nothing is held.  KEPT: it may not
 * wait, and has a place now.  SELF: its own owner is in the way.
 *
 * No partition lock may be held.  Throws 53400 if memory is full or the role is
 * at its limit, 54000 if a lock has too many holders, 22023 if the lock is in use with
 * another number of permits, 55000 if the owner's own lease does not cover what is asked
 * for, and what the server throws when a relation cannot be extended.  Nothing is granted
 * then; a process that waits is in its queues until it leaves them.
 */
DLockAcquireAnswer
dlock_acquire_locks(DLockDatabase *db, const DLockAcquireRequest *request,
					DLockAcquireGranted *granted)
{
	DLockAcquire acquire = {.granted = granted};

	plan(&acquire, db, request);
	dlock_step_run(&acquire.step, try_acquire, &acquire);
	if (request->count > 1)
		pfree(acquire.items);

	/* Its owner has replaced the place meanwhile, which is asked for anew. */
	if (request->takes && acquire.verdict == VERDICT_OTHER_PLACE)
		return DLOCK_ANSWER_REFUSED;
	if (request->takes && acquire.verdict != VERDICT_GRANT && acquire.verdict != VERDICT_REFUSED &&
		acquire.verdict != VERDICT_QUEUE && acquire.verdict != VERDICT_SELF)
		return DLOCK_ANSWER_FAILED;
	switch (acquire.verdict)
	{
		case VERDICT_GRANT:
			return DLOCK_ANSWER_GRANTED;
		case VERDICT_REFUSED:
			dlock_stat_count(DLOCK_STAT_REFUSAL, 1);
			return DLOCK_ANSWER_REFUSED;
		case VERDICT_QUEUE:
			if (request->may_wait)
				return DLOCK_ANSWER_QUEUED;
			dlock_stat_count(DLOCK_STAT_REFUSAL, !request->takes);
			return DLOCK_ANSWER_KEPT;
		case VERDICT_SELF:
			granted->own = acquire.culprit;
			return DLOCK_ANSWER_SELF;
		case VERDICT_CROWDED:
			dlock_error_crowded(acquire.culprit);
		case VERDICT_OTHER_PERMITS:
			report_other_permits(acquire.culprit, acquire.permits, request->permits);
		case VERDICT_OTHER_PLACE:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("owner \"%.*s\" keeps a place for lock \"%.*s\" with other arguments",
							request->owner.len, request->owner.data,
							request->names[0].len, request->names[0].data),
					 errdetail("The mode, the permits, the ttl and what else makes the lease stay as they were first asked for."),
					 errhint("Pass the same arguments, or give up all places of the owner with dlock_release_all().")));
			break;
		case VERDICT_WEAKER:
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("owner \"%.*s\" holds lock \"%.*s\" in a weaker way than is asked for",
							request->owner.len, request->owner.data,
							acquire.culprit->len, acquire.culprit->data),
					 errdetail("A lease that is entered again stays as it is."),
					 errhint("Use dlock_convert() to change its mode; to hold it as a path, release it first.")));
			break;
		case VERDICT_TOO_MANY_HOLDS:
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("lock \"%.*s\" has been acquired too often by its owner",
							acquire.culprit->len, acquire.culprit->data)));
			break;
	}
	pg_unreachable();
}
