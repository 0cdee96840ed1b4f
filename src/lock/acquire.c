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
 *	  again (lock/queue.c), by the same code as a newcomer, and gets what can be granted
 *	  then; the requests become the leases.  The owner of a place asks in the same way:
 *	  if it is not granted, the place gets a process, stays, or is given up.
 *
 *	  A lease that is bound to a session or a transaction need not outlive the
 *	  server, so it has no slot: unless the lock is to stay closed
 *	  when the session is lost, which a crash must not cut short.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/settings.h"
#include "base/stat.h"
#include "lock/acquire.h"
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
	uint32		hash;
	DLockMode	mode;
	DLockPart	part;
	int			slot_class;		/* of its home on disk; NO_CLASS if it has
								 * none */
	DLockSlot	slot;
	DLockSpaceLease *place;		/* in the queue, if this process waits, or the
								 * owner has one */
	DLockSpaceEntry *entry;		/* NULL if the lock has none */

	/* The owner's lease, or NULL, and what entering it again makes of it. */
	DLockSpaceLease *own;
	DLockRuleRenewal renewal;
} DLockAcquireItem;

/* What can come of an attempt, beside a DLockRuleVerdict: errors. */
enum
{
	VERDICT_CROWDED = DLOCK_RULE_WEAKER + 1,	/* too many holders */
	VERDICT_OTHER_PERMITS,
	VERDICT_OTHER_PLACE			/* the owner has a place for something else */
};

/* A call to acquire, over all its attempts. */
typedef struct DLockAcquire
{
	const DLockAcquireRequest *request;
	DLockStep	step;
	DLockAcquireItem *items;
	bool		sleeps;			/* this process is in the queue for it */
	bool		waits;			/* the same, or its owner has a place */
	DLockAcquireGranted *granted;
	int			verdict;		/* if it lacked nothing */

	/* What was found that is an error. */
	uint32		permits;		/* of the lock, instead of those asked for */
	const DLockBytes *culprit;
} DLockAcquire;

static void
plan_item(DLockAcquire *acquire, int i)
{
	const DLockAcquireRequest *request = acquire->request;
	DLockAcquireItem *item = &acquire->items[i];
	DLockStepRoom *room = &acquire->step.room;
	Oid			database = acquire->step.db->shared->oid;

	item->name = request->names[i];
	item->hash = dlock_name_hash(database, &item->name);
	item->mode = request->mode;
	item->part = DLOCK_PART_WHOLE;
	item->slot_class = NO_CLASS;
	item->slot = DLOCK_SLOT_NONE;
	if (request->path && i > 0)
	{
		item->mode = dlock_rule_intent(request->mode);
		item->part = DLOCK_PART_INTENT;
	}
	else if (request->path && request->count > 1)
		item->part = DLOCK_PART_PATH;

	if (item->part != DLOCK_PART_INTENT &&
		(request->bind == DLOCK_BIND_NONE || request->delay > 0))
	{
		item->slot_class = dlock_page_class_for(item->name.len + room->data_len);
		room->slots[item->slot_class]++;
	}
	room->name_len = Max(room->name_len, item->name.len);
	dlock_partition_set_add(&acquire->step.set, item->hash);
}

static void
plan(DLockAcquire *acquire, DLockDatabase *db, const DLockAcquireRequest *request)
{
	acquire->request = request;
	acquire->items = palloc(request->count * sizeof(DLockAcquireItem));
	acquire->step.room = (DLockStepRoom)
	{
		.data_len = request->owner.len + request->payload.len
	};
	dlock_step_begin(&acquire->step, db);
	acquire->step.pin_room += request->count;
	for (int i = 0; i < request->count; i++)
		plan_item(acquire, i);
}

/* Reserve memory for all leases or requests that need some. */
static DLockStepLack
reserve_memory(DLockAcquire *acquire)
{
	DLockStepRoom *room = &acquire->step.room;

	return dlock_space_prepare(room->name_len, room->data_len, room->count) ?
		DLOCK_LACKS_NOTHING : DLOCK_LACKS_ROOM;
}

/* Reserve a slot for every item that has one, with its page pinned, and memory, too. */
static DLockStepLack
reserve_slots(DLockAcquire *acquire)
{
	int			used[DLOCK_PAGE_CLASSES] = {0};
	DLockStepLack lack = DLOCK_LACKS_ROOM;

	if (dlock_slot_reserve(&acquire->step.db->shared->slots, acquire->step.room.slots))
		lack = reserve_memory(acquire);
	dlock_step_make_pin_room(&acquire->step, acquire->request->count);
	for (int i = 0; i < acquire->request->count && lack == DLOCK_LACKS_NOTHING; i++)
	{
		DLockAcquireItem *item = &acquire->items[i];

		if (item->slot_class == NO_CLASS)
			continue;
		item->slot = dlock_slot_reserved(item->slot_class, used[item->slot_class]++);
		lack = dlock_step_pin(&acquire->step, item->slot);
	}
	return lack;
}

/* The lease that an item asks for, without what its grant adds. */
static DLockLeaseValue
value_of(DLockAcquire *acquire, const DLockAcquireItem *item)
{
	const DLockAcquireRequest *request = acquire->request;
	DLockLeaseValue value = {
		.mode = item->mode,.bind = request->bind,.part = item->part,.role = request->role,
		.holds = 1,.permits = request->permits,.origin = dlock_clock_origin(),
		.term = {.ttl = request->ttl,.deadline = DLOCK_TIME_FOREVER},.delay = request->delay,.min_hold = request->min_hold,
		.name = item->name,.owner = request->owner
	};

	if (item->part != DLOCK_PART_INTENT)
		value.payload = request->payload;
	return value;
}

/* Find the requests by which this process waits, if it does. */
static void
find_requests(DLockAcquire *acquire)
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
		/* A conversion has a lease. */
		if (request->kind == DLOCK_SPACE_ASKED && !dlock_space_is_over(request, now))
			return true;
	}
	return dlock_holder_survey(entry, now).modes != 0;
}

/*
 * Find the place that the owner has, if the call asks for one lock: not one that is over,
 * nor, with "takes", one that another process listens for.
 */
static void
find_own_place(DLockAcquire *acquire, DLockAcquireItem *item, const DLockOwner *owner)
{
	if (item->entry == NULL || acquire->sleeps || acquire->request->path ||
		acquire->request->tokens != NULL || dlock_space_requests_of(item->entry, owner) == 0)
		return;
	item->place = dlock_place_find(item->entry, owner);
	if (item->place != NULL &&
		(dlock_space_is_over(item->place, acquire->step.now) ||
		 (acquire->request->takes && dlock_place_listener(item->place) != MyProcNumber)))
		item->place = NULL;
	acquire->waits = item->place != NULL;
}

/* Was a place asked for with other arguments?  They make the lease that it becomes. */
static bool
is_for_other(const DLockAcquireRequest *request, const DLockSpaceLease *place)
{
	char		buffer[DLOCK_SPACE_TEXTS_MAX];
	DLockBytes	payload = dlock_space_lease_payload(place, buffer);

	return place->mode != request->mode || dlock_space_entry_of(place)->permits != request->permits ||
		place->ttl != request->ttl || place->delay != request->delay ||
		place->min_until != request->min_hold || request->bind != DLOCK_BIND_NONE ||
		!dlock_name_equal(&payload, &request->payload);
}

/* Check all locks, and decide. */
static int
decide(DLockAcquire *acquire)
{
	const DLockAcquireRequest *request = acquire->request;
	DLockRuleVerdict verdict;
	int			owned = 0;		/* locks that the owner has a lease on */
	DLockOwner	owner = {request->role, request->owner};
	DLockRuleCase asked = {
		.mode = request->mode,.reentry = request->reentry,
		.may_wait = request->may_wait || request->keep > 0
	};
	DLockTime	now = acquire->step.now;
	DLockTime	until;
	bool		blocked_by_self = false;	/* by a lease or an intent of its
											 * owner */

	for (int i = 0; i < request->count; i++)
	{
		DLockAcquireItem *item = &acquire->items[i];
		DLockSpaceLease *own;

		item->own = NULL;
		item->entry = (item->place != NULL) ? dlock_space_entry_of(item->place) :
			dlock_space_find(acquire->step.db->shared->oid, item->hash, &item->name);
		find_own_place(acquire, item, &owner);
		if (request->takes && item->place == NULL)
			return DLOCK_RULE_REFUSE;
		if (item->entry == NULL)
			continue;
		if (item->place != NULL && item->place->placed && is_for_other(request, item->place))
			return VERDICT_OTHER_PLACE;
		if (has_other_permits(item->entry, request->permits, now))
		{
			acquire->culprit = &request->names[i];
			acquire->permits = item->entry->permits;
			return VERDICT_OTHER_PERMITS;
		}
		own = (item->part != DLOCK_PART_INTENT) ? dlock_holder_find_owned(item->entry, &owner, now) : NULL;
		if (own != NULL)
		{
			if (!asked.held_by_owner || own->part != item->part ||
				dlock_rule_is_upgrade((DLockMode) own->mode, request->mode))
			{
				asked.held = (DLockMode) own->mode;
				acquire->culprit = &request->names[i];
			}
			asked.held_by_owner = true;
			item->own = own;
			owned++;
			/* A path is not covered by the lock of its name alone. */
			if (own->part != item->part && request->reentry != DLOCK_REENTRY_DENY)
				return DLOCK_RULE_WEAKER;
		}
		else if (dlock_holder_is_blocked(item->entry, item->mode, request->permits,
										 NULL, item->place, now, &until))
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
	if (!request->path && owned < request->count)
		asked.reentry = DLOCK_REENTRY_DENY;

	verdict = dlock_rule_decide(&asked);
	return (verdict == DLOCK_RULE_QUEUE && blocked_by_self) ? DLOCK_RULE_SELF : verdict;
}

/* Take the request, or the place that the owner has, out of its queues. */
static void
leave_queues(DLockAcquire *acquire)
{
	if (acquire->sleeps)
		dlock_queue_remove_mine(acquire->step.now);
	else if (acquire->waits)
		dlock_queue_remove(acquire->items[0].place, acquire->step.now);
}

/* Was the lease with this token granted to another call? */
static bool
is_of_other_call(const DLockAcquireRequest *request, DLockToken token)
{
	for (int i = 0; i < request->nearlier; i++)
	{
		if (request->earlier[i] == token)
			return false;
	}
	return true;
}

/* Enter again the leases that the owner has: one, a path, or all that are asked for. */
static DLockStepLack
reenter(DLockAcquire *acquire)
{
	const DLockAcquireRequest *request = acquire->request;
	DLockAcquireGranted *granted = acquire->granted;
	int			count = request->path ? 1 : request->count;
	bool		counts = request->reentry == DLOCK_REENTRY_COUNT;
	TimestampTz wall = dlock_clock_wall();

	dlock_step_make_pin_room(&acquire->step, count);
	for (int i = 0; i < count; i++)
	{
		DLockAcquireItem *item = &acquire->items[i];
		DLockTerm	term = dlock_space_lease_term(item->own);
		DLockStepLack lack = DLOCK_LACKS_NOTHING;

		item->renewal = dlock_rule_reenter(&term, request->ttl, acquire->step.now, wall);
		item->renewal.must_log |= counts;
		if (item->renewal.must_log)
			lack = dlock_step_pin_lease(&acquire->step, item->own);
		if (lack != DLOCK_LACKS_NOTHING)
			return lack;
	}

	leave_queues(acquire);
	granted->token = acquire->items[0].own->token;
	granted->entered = true;
	for (int i = 0; i < count; i++)
	{
		DLockAcquireItem *item = &acquire->items[i];
		DLockSpaceLease *own = item->own;

		own->holds += counts && own->holds < PG_UINT32_MAX;
		own->called |= is_of_other_call(acquire->request, own->token);
		dlock_step_renew(&acquire->step, own, &item->renewal.term, item->renewal.must_log);
		granted->lsn = Max(granted->lsn, own->lsn);
		if (request->tokens != NULL)
			request->tokens[i] = own->token;
	}
	dlock_stat_count(DLOCK_STAT_REENTRY, count);
	return DLOCK_LACKS_NOTHING;
}

/* Count the leases for their role.  Requests in the queue are counted already. */
static DLockStepLack
count_leases(DLockAcquire *acquire)
{
	const DLockAcquireRequest *request = acquire->request;

	if (acquire->waits ||
		dlock_count_add_leases(acquire->step.db->shared->oid, request->role, request->count,
							   dlock_settings_max_leases))
		return DLOCK_LACKS_NOTHING;
	acquire->step.role = request->role;
	return DLOCK_LACKS_LIMIT;
}

/*
 * Erase dead leases on the locks.  None may get too many holders, intents and weak modes
 * aside.
 */
static DLockStepLack
tidy_locks(DLockAcquire *acquire)
{
	for (int i = 0; i < acquire->request->count; i++)
	{
		DLockAcquireItem *item = &acquire->items[i];
		DLockStepLack lack;

		if (item->entry == NULL)
			continue;
		lack = dlock_step_tidy(&acquire->step, item->entry);
		if (lack != DLOCK_LACKS_NOTHING)
			return lack;

		/* Has the entry gone with its last lease? */
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
	DLockStepLack lack = tidy_locks(acquire);

	if (lack != DLOCK_LACKS_NOTHING || acquire->verdict != DLOCK_RULE_GRANT)
		return lack;
	lack = reserve_slots(acquire);
	if (lack == DLOCK_LACKS_NOTHING)
		lack = dlock_step_tokens(step, request->path ? 1 : request->count, &token);
	if (lack == DLOCK_LACKS_NOTHING)
		lack = count_leases(acquire);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;

	DLOCK_FAULT_STOP("grant");
	granted->token = token;
	for (int i = 0; i < request->count; i++)
	{
		DLockAcquireItem *item = &acquire->items[i];
		DLockLeaseValue value = value_of(acquire, item);
		DLockSpaceLease *lease;

		value.token = token;
		if (request->tokens != NULL)
			request->tokens[i] = token;
		value.granted_at = wall;
		value.term = dlock_rule_grant(request->ttl, step->now, wall);
		if (item->slot != DLOCK_SLOT_NONE)
		{
			granted->lsn = dlock_step_write(step, item->slot, &value);
			dlock_slot_use(item->slot_class);
		}
		lease = dlock_space_hold(shared->oid, item->hash, &value, item->slot, process,
								 granted->lsn, item->place, path);
		lease->min_until = (request->min_hold > 0) ? step->now + request->min_hold : 0;
		dlock_database_note_deadline(dlock_holder_blocks_until(lease));
		if (!request->path)
			token++;
		else if (i == 0)
			path = lease;

		/* Others of the owner ask again; later timers are set anew. */
		if (item->entry != NULL)
		{
			dlock_queue_wake_twins(item->entry, &owner, item->part);
			dlock_queue_give_turns(item->entry, step->now, DLOCK_TURNS_AGAIN);
		}
	}
	dlock_stat_count(DLOCK_STAT_GRANT, request->path ? 1 : request->count);
	if (acquire->waits)
	{
		dlock_stat_count(DLOCK_STAT_HANDOFF, request->path ? 1 : request->count);
		if (acquire->sleeps)
			dlock_process_end(MyProcNumber);
	}
	return DLOCK_LACKS_NOTHING;
}

/* Make the requests; "first" is where they can be found. */
static DLockStepLack
make_requests(DLockAcquire *acquire, DLockMemoryRef *first)
{
	DLockStepLack lack = reserve_memory(acquire);

	if (lack == DLOCK_LACKS_NOTHING)
		lack = count_leases(acquire);
	if (lack != DLOCK_LACKS_NOTHING)
		return lack;

	/* The last one first: find_requests() relies on the order of the names. */
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

/* Keep the place that the owner has, or make one of the request. */
static void
keep_place(DLockAcquire *acquire)
{
	const DLockAcquireRequest *request = acquire->request;
	DLockSpaceLease *place = acquire->items[0].place;
	DLockTime	now = acquire->step.now;

	if (acquire->waits && request->takes)
		dlock_queue_attend(place, now, request->anyway);
	else if (acquire->waits)
	{
		place->reentry = request->reentry;
		dlock_queue_keep_on(place, now + request->keep, now);
	}
	else
	{
		dlock_queue_keep(place, now, now + request->keep, now);
		acquire->granted->token = place->token;
	}
	acquire->granted->until = place->token;
}

/*
 * Give turns in the queues of the locks asked for; with "places", in those alone that have
 * places.  A place, or a request of a stopped process, may block this one though its lock is
 * free: it does so until it gets a turn, and for a ttl from then on.
 */
static void
give_turns(DLockAcquire *acquire, bool places)
{
	for (int i = 0; i < acquire->request->count; i++)
	{
		DLockSpaceEntry *entry = acquire->items[i].entry;

		if (entry != NULL && (entry->places || !places))
			dlock_queue_give_turns(entry, acquire->step.now, DLOCK_TURNS_ASKED);
	}
}

/* Put the request into the queues, or have a place in one; stay there if it is there. */
static DLockStepLack
enqueue(DLockAcquire *acquire)
{
	const DLockAcquireRequest *request = acquire->request;
	DLockSpaceLease *place = acquire->items[0].place;
	DLockMemoryRef first = DLOCK_MEMORY_NONE;
	DLockTime	now = acquire->step.now;

	if (!acquire->sleeps)
		give_turns(acquire, true);
	if (!acquire->waits)
	{
		DLockStepLack lack = make_requests(acquire, &first);

		if (lack != DLOCK_LACKS_NOTHING)
			return lack;
	}
	if (!request->may_wait)
	{
		keep_place(acquire);
		return DLOCK_LACKS_NOTHING;
	}
	if (acquire->waits && !acquire->sleeps)
	{
		dlock_place_remove(place);
		dlock_place_set_process(place, MyProcNumber);
		first = dlock_memory_ref(place);
	}
	if (!acquire->sleeps)
		dlock_process_begin(&acquire->step.set, first, now);
	acquire->granted->until = dlock_queue_stay(now, request->anyway);
	return DLOCK_LACKS_NOTHING;
}

/* An attempt. */
static DLockStepLack
try_acquire(DLockStep *step, void *arg)
{
	DLockAcquire *acquire = arg;
	DLockStepLack lack = DLOCK_LACKS_NOTHING;

	Assert(dlock_partition_set_is_mine(&step->set));
	find_requests(acquire);
	acquire->verdict = decide(acquire);

	/* Requests in the queue have the memory that their leases need. */
	step->room.count = !acquire->waits ? acquire->request->count : 0;
	if (acquire->verdict == DLOCK_RULE_QUEUE)
		return enqueue(acquire);
	if (acquire->verdict == DLOCK_RULE_GRANT)
		lack = grant(acquire);
	else if (acquire->verdict == DLOCK_RULE_REENTER)
		lack = reenter(acquire);
	else if (acquire->verdict == DLOCK_RULE_REFUSE)
		give_turns(acquire, false);

	/* A request that is refused, or an error, gives the place up. */
	if (lack == DLOCK_LACKS_NOTHING && !acquire->sleeps && acquire->verdict > DLOCK_RULE_REENTER &&
		acquire->verdict != VERDICT_OTHER_PLACE)
		leave_queues(acquire);
	return lack;
}

/* Report that the lock is used as a semaphore of another size, or by modes. */
pg_noreturn static void
report_other_permits(const DLockBytes *name, uint32 used, uint32 asked)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 (used == 0) ?
			 errmsg("lock \"%.*s\" is used without permits, not with %u", name->len, name->data, asked) :
			 (asked == 0) ?
			 errmsg_plural("lock \"%.*s\" has %u permit, and is not used by modes",
						   "lock \"%.*s\" has %u permits, and is not used by modes",
						   used, name->len, name->data, used) :
			 errmsg_plural("lock \"%.*s\" has %u permit, not %u",
						   "lock \"%.*s\" has %u permits, not %u",
						   used, name->len, name->data, used, asked),
			 errdetail("The first request sets the permits, until the lock has no holders and no waiters."),
			 (used == 0) ? errhint("Use another name for the semaphore.") :
			 errhint("Ask for it with permits => %u, or use another name.", used)));
}

/*
 * Acquire one lock or several, or go into their queues.  If this process is in
 * there already, it must be for this request, and stays unless it is granted.
 *
 * GRANTED: the leases run from this moment.  It is left to the caller to list them
 * (session/grants.c) and to flush; nothing throws after they were made.
 *
 * No partition lock may be held.  Throws 53400 if memory is full or the role is
 * at its limit, 54000 if a lock has too many holders, 22023 if the lock is in use with
 * another number of permits or the owner's place has other arguments, 55000 if the owner's own
 * lease does not cover what is asked for, 2200H if no token is left, and what the server
 * throws when a relation cannot be extended.  Nothing is granted then; a process that waits is
 * in its queues until it leaves them.
 */
DLockAcquireAnswer
dlock_acquire_locks(DLockDatabase *db, const DLockAcquireRequest *request,
					DLockAcquireGranted *granted)
{
	DLockAcquire acquire = {.granted = granted};

	memset(granted, 0, sizeof(DLockAcquireGranted));
	plan(&acquire, db, request);
	dlock_step_run(&acquire.step, try_acquire, &acquire);
	pfree(acquire.items);

	/*
	 * Its owner may have replaced the place meanwhile: the new one is asked
	 * for later.
	 */
	if (request->takes && acquire.verdict > DLOCK_RULE_SELF)
		return (acquire.verdict == VERDICT_OTHER_PLACE) ? DLOCK_ANSWER_REFUSED : DLOCK_ANSWER_FAILED;
	switch (acquire.verdict)
	{
		case DLOCK_RULE_GRANT:
		case DLOCK_RULE_REENTER:
			return DLOCK_ANSWER_GRANTED;
		case DLOCK_RULE_REFUSE:
			dlock_stat_count(DLOCK_STAT_REFUSAL, 1);
			return DLOCK_ANSWER_REFUSED;
		case DLOCK_RULE_QUEUE:
			if (request->may_wait)
				return DLOCK_ANSWER_QUEUED;
			dlock_stat_count(DLOCK_STAT_REFUSAL, !request->takes);
			return DLOCK_ANSWER_KEPT;
		case DLOCK_RULE_SELF:
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
					 errdetail("A place keeps the arguments of its first request."),
					 errhint("Pass the same arguments, or give up all places of the owner with dlock_release_all().")));
			break;
		case DLOCK_RULE_WEAKER:
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("owner \"%.*s\" holds lock \"%.*s\" in a weaker way than is asked for",
							request->owner.len, request->owner.data,
							acquire.culprit->len, acquire.culprit->data),
					 errdetail("A lease that is entered again stays as it is."),
					 errhint("Use dlock_convert() to change its mode; to hold it as a path, release it first.")));
			break;
	}
	pg_unreachable();
}
