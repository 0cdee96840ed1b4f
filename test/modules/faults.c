/*-------------------------------------------------------------------------
 *
 * faults.c
 *	  For tests: arm the fault points of the library, and check what is left.
 *
 * NOTES
 *	  For a library with fault points (src/base/fault.h), which must be
 *	  preloaded.
 *
 *	  inconsistencies() compares what is known about leases in several places:
 *	  the cells of the lock space with each other, with the counts and with the
 *	  places of processes that wait; and all of that with the pages.  It is for
 *	  a server at which nothing else happens.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "port/pg_bitutils.h"
#include "storage/bufmgr.h"
#include "storage/proc.h"
#include "utils/builtins.h"

#include "fault_points.h"
#include "base/clock.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/settings.h"
#include "lock/queue.h"
#include "session/session.h"
#include "space/count.h"
#include "space/holder.h"
#include "space/place.h"
#include "store/store.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(fault_arm);
PG_FUNCTION_INFO_V1(fault_go);
PG_FUNCTION_INFO_V1(fault_hit);
PG_FUNCTION_INFO_V1(clock_advance);
PG_FUNCTION_INFO_V1(clock_settle);
PG_FUNCTION_INFO_V1(fault_counts);
PG_FUNCTION_INFO_V1(inconsistencies);

/* fault_arm(name, kind, pid, nth): kind is stop or error; pid zero is any process */
Datum
fault_arm(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	char	   *kind = text_to_cstring(PG_GETARG_TEXT_PP(1));
	int			pid = PG_GETARG_INT32(2);
	int			nth = PG_GETARG_INT32(3);

	dlock_fault_arm(name, (strcmp(kind, "stop") == 0) ? DLOCK_FAULT_KIND_STOP : DLOCK_FAULT_KIND_ERROR,
					pid, nth);
	PG_RETURN_VOID();
}

/* fault_go(name): disarm a point; a process that is stopped there goes on */
Datum
fault_go(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(dlock_fault_disarm(text_to_cstring(PG_GETARG_TEXT_PP(0))));
}

/* fault_hit(name): the process that it happened to, or zero */
Datum
fault_hit(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(dlock_fault_hit(text_to_cstring(PG_GETARG_TEXT_PP(0))));
}

/* clock_advance(us): let time pass at once, and wait until the server has settled */
Datum
clock_advance(PG_FUNCTION_ARGS)
{
	dlock_fault_clock_advance(PG_GETARG_INT64(0));
	PG_RETURN_VOID();
}

/* clock_settle(): wake the processes whose time has come, and wait until all sleep */
Datum
clock_settle(PG_FUNCTION_ARGS)
{
	dlock_fault_clock_settle();
	PG_RETURN_VOID();
}

/* fault_counts(pid): names and counts of what a process has done; zero: of all processes */
Datum
fault_counts(PG_FUNCTION_ARGS)
{
	int			pid = PG_GETARG_INT32(0);
	StringInfoData text;

	initStringInfo(&text);
	for (int cost = 0; cost < DLOCK_FAULT_COSTS; cost++)
		appendStringInfo(&text, "%s " UINT64_FORMAT " ", dlock_fault_count_name((DLockFaultCost) cost),
						 dlock_fault_counted(pid, (DLockFaultCost) cost));
	PG_RETURN_TEXT_P(cstring_to_text_with_len(text.data, text.len));
}

/* ---- what is known about leases ---- */

/* A lease on a page. */
typedef struct PageLease
{
	DLockSlot	slot;
	DLockToken	token;
	bool		in_memory;
} PageLease;

/* A lease that its owner must find. */
typedef struct OwnedLease
{
	const char *name;
	DLockBytes	owner;
	Oid			role;
	DLockToken	token;
} OwnedLease;

typedef struct Check
{
	DLockDatabase db;
	DLockTime	now;
	StringInfoData findings;
	PageLease  *leases;
	int			nleases;
	int			room;
	List	   *owned;
	int64		cells;			/* in use by locks, leases and requests */
	int64		held;
	int			requests;		/* apart from places */
} Check;

/* The leases of roles in databases; those that were found by an earlier call stay. */
static struct
{
	Oid			database;
	Oid			role;
	uint32		leases;
}			roles[100];
static int	nroles = 0;

#define complain(check, ...) \
	(appendStringInfo(&(check)->findings, __VA_ARGS__), \
	 appendStringInfoString(&(check)->findings, "; "))

static bool
note_on_page(const DLockLeaseValue *lease, DLockSlot slot, XLogRecPtr lsn, void *arg)
{
	Check	   *check = arg;

	if (check->nleases == check->room)
	{
		check->room *= 2;
		check->leases = repalloc_huge(check->leases, check->room * sizeof(PageLease));
	}
	check->leases[check->nleases++] = (PageLease)
	{
		slot, lease->token, false
	};
	return true;
}

/* Count the cells of a list of free slots; each begins with the reference to the next one. */
static void
count_slot_cells(Check *check, DLockMemoryRef cell)
{
	for (; cell != DLOCK_MEMORY_NONE; cell = *(DLockMemoryRef *) dlock_memory_at(cell))
		check->cells++;
}

/* A lease and its page. */
static void
check_slot(Check *check, const char *name, const DLockSpaceLease *lease)
{
	for (int i = 0; i < check->nleases; i++)
	{
		PageLease  *found = &check->leases[i];

		if (found->slot != lease->slot)
			continue;
		if (found->in_memory)
			complain(check, "%s: two leases have slot %u", name, lease->slot);
		found->in_memory = true;
		if (found->token != lease->token && !lease->unwritten)
			complain(check, "%s: token %lld in memory, %lld on the page", name,
					 (long long) lease->token, (long long) found->token);
		return;
	}
	complain(check, "%s: the page has no lease with token %lld", name, (long long) lease->token);
}

/* Remember a lease that is to be found by its owner, which takes other locks. */
static void
note_owned(Check *check, const char *name, const DLockSpaceLease *lease)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(lease, buffer);
	OwnedLease *owned = palloc(sizeof(OwnedLease));

	owned->name = name;
	owned->owner = dlock_bytes(pnstrdup(owner.name.data, owner.name.len), owner.name.len);
	owned->role = lease->role;
	owned->token = lease->token;
	check->owned = lappend(check->owned, owned);
}

static void
check_owned(Check *check, const OwnedLease *owned)
{
	int			count;
	DLockSpaceRef *refs = dlock_holder_list(check->db.shared->oid, &owned->owner, NULL, &count);
	bool		found = false;

	for (int i = 0; i < count; i++)
		found |= refs[i].token == owned->token;
	if (!found)
		complain(check, "%s: token %lld is not found by its owner", owned->name,
				 (long long) owned->token);
	pfree(refs);
}

static void
count_for_role(Oid database, Oid role)
{
	int			i = 0;

	while (i < nroles && (roles[i].database != database || roles[i].role != role))
		i++;
	if (i == nroles && nroles++ == lengthof(roles))
		elog(ERROR, "too many roles");
	roles[i].database = database;
	roles[i].role = role;
	roles[i].leases++;
}

/* What leases and requests have in common; counts their cells. */
static void
check_common(Check *check, const char *name, const DLockSpaceEntry *entry,
			 const DLockSpaceLease *lease, bool *lodges)
{
	bool		is_lodger = (const char *) lease > (const char *) entry &&
		(const char *) lease < (const char *) entry + DLOCK_MEMORY_CELL;

	if (lease->entry != dlock_memory_ref(entry))
		complain(check, "%s: a lease of another lock", name);
	if (is_lodger && *lodges)
		complain(check, "%s: two leases in the cell of the lock", name);
	*lodges |= is_lodger;
	check->cells += !is_lodger +
		dlock_memory_text_cells(lease->owner_len + lease->payload_len, lease->room);
	if (lease->kind == DLOCK_SPACE_HELD || lease->kind == DLOCK_SPACE_ASKED)
		count_for_role(entry->database, lease->role);
}

/* A path and its intents lead to each other. */
static void
check_parts(Check *check, const char *name, const DLockSpaceEntry *entry, const DLockSpaceLease *lease)
{
	DLockBytes	ancestors[DLOCK_PATH_MAX_PARTS];
	char		buffers[2][DLOCK_NAME_MAX];
	DLockBytes	own = dlock_space_entry_name(entry, buffers[0]);
	int			count = (lease->part == DLOCK_PART_PATH) ? dlock_name_ancestors(&own, ancestors) : 0;
	const DLockSpaceLease *path = dlock_space_whole(lease);
	const DLockSpaceLease *part = path;

	if (lease->part == DLOCK_PART_INTENT)
	{
		while (part != NULL && part != lease)
			part = dlock_space_next_part(part);
		if (part == NULL || path->token != lease->token)
			complain(check, "%s: an intent without its path", name);
		return;
	}

	/*
	 * The last of the intents was made last: that on the nearest ancestor
	 * comes first.
	 */
	while ((part = dlock_space_next_part(part)) != NULL && count > 0)
	{
		DLockBytes	at = dlock_space_entry_name(dlock_space_entry_of(part), buffers[1]);

		if (!dlock_name_equal(&at, &ancestors[--count]))
			break;
	}
	if (part != NULL || count > 0)
		complain(check, "%s: a path without one of its intents", name);
}

static void
check_holders(Check *check, const char *name, DLockSpaceEntry *entry, bool *lodges)
{
	uint32		count = 0;
	uint32		ncr = 0;
	uint32		strong = 0;
	uint32		modes = 0;
	uint32		permits = 0;
	uint32		rest;
	int			rank = 0;
	DLockMemoryRef before = DLOCK_MEMORY_NONE;

	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL; lease = dlock_space_next(lease))
	{
		bool		blocks = dlock_holder_blocks_until(lease) > check->now;

		count++;
		modes |= DLOCK_RULE_BIT(lease->mode);
		ncr += lease->mode == DLOCK_MODE_CR;
		strong += lease->mode != DLOCK_MODE_NL && lease->mode != DLOCK_MODE_CR;
		permits += blocks && lease->mode == DLOCK_MODE_PERMIT;
		check_common(check, name, entry, lease, lodges);
		if (lease->kind != DLOCK_SPACE_HELD)
			complain(check, "%s: a request among the leases", name);
		if (before != DLOCK_MEMORY_NONE && lease->on_lock.prev != before)
			complain(check, "%s: the list of leases is broken", name);
		before = dlock_memory_ref(lease);
		if (rank > lease->indexed * (1 + (lease->part == DLOCK_PART_INTENT)))
			complain(check, "%s: the order of leases is broken", name);
		rank = lease->indexed * (1 + (lease->part == DLOCK_PART_INTENT));
		if (entry->earliest > dlock_holder_blocks_until(lease))
			complain(check, "%s: a lease ends before \"earliest\"", name);
		check_parts(check, name, entry, lease);
		if (lease->part != DLOCK_PART_INTENT)
		{
			if (dlock_holder_find_token(entry, lease->token) != lease)
				complain(check, "%s: token %lld is not found", name, (long long) lease->token);
			note_owned(check, name, lease);
		}
		if (lease->slot != DLOCK_SLOT_NONE)
			check_slot(check, name, lease);
		for (DLockSpaceLease *other = dlock_space_holders(entry); other != lease; other = dlock_space_next(other))
		{
			if (blocks && dlock_holder_blocks_until(other) > check->now &&
				!dlock_rule_is_compatible((DLockMode) lease->mode, (DLockMode) other->mode))
				complain(check, "%s: held twice", name);
			if (other->token == lease->token)
				complain(check, "%s: two leases with token %lld", name, (long long) lease->token);
		}
	}
	check->held += count;

	/*
	 * Once "earliest" has passed there may be more modes; and that of null
	 * leases at any time.
	 */
	rest = entry->held_modes & ~(modes | DLOCK_RULE_BIT(DLOCK_MODE_NL));
	if (ncr != entry->ncr || strong != entry->nstrong || (modes & ~entry->held_modes) != 0 ||
		(rest != 0 && check->now < entry->earliest))
		complain(check, "%s: %u in CR, %u strong, modes %x; the lock says %u, %u, %x", name,
				 ncr, strong, modes, entry->ncr, entry->nstrong, entry->held_modes);
	if (entry->permits > 0 && permits > entry->permits)
		complain(check, "%s: %u permits of %u", name, permits, entry->permits);
}

/* Is a request one of those that its process waits for? */
static bool
is_waited_for(const DLockSpaceLease *request)
{
	for (DLockSpaceLease *part = dlock_process_first(request->process); part != NULL;
		 part = dlock_space_request_next(part))
	{
		if (part == request)
			return true;
	}
	return false;
}

/* A place: it is found by its owner, no other is, and who listens has been told. */
static void
check_place(Check *check, const char *name, DLockSpaceEntry *entry, DLockSpaceLease *place)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(place, buffer);
	uint32		client = dlock_place_client(entry->database, &owner.name);

	if (!entry->places || place->kind != DLOCK_SPACE_ASKED || place->token == DLOCK_TOKEN_NONE)
		complain(check, "%s: half a place", name);
	if (dlock_place_find(entry, &owner) != place)
		complain(check, "%s: not the place that its owner finds", name);
	if (dlock_place_find_id(entry, client, place->token) != place)
		complain(check, "%s: a place that its client does not find", name);
	if (place->process != dlock_place_listener(place))
		complain(check, "%s: a place of process %d, that %d listens for", name, place->process,
				 dlock_place_listener(place));
}

static void
check_queue(Check *check, const char *name, DLockSpaceEntry *entry, bool *lodges)
{
	uint32		attended = 0;

	for (DLockSpaceLease *request = dlock_space_queue(entry); request != NULL; request = dlock_space_next(request))
	{
		check->requests += !request->placed;
		check_common(check, name, entry, request, lodges);
		attended += request->kind == DLOCK_SPACE_ASKED && request->process >= 0;
		if (request->placed)
			check_place(check, name, entry, request);
		else if (request->kind == DLOCK_SPACE_HELD)
			complain(check, "%s: a lease in the queue", name);
		else if (!is_waited_for(request))
			complain(check, "%s: a request that process %d does not wait for", name, request->process);
		if (request->kind == DLOCK_SPACE_ASKED &&
			(entry->asked_modes & DLOCK_RULE_BIT(request->mode)) == 0)
			complain(check, "%s: the lock does not know the mode of a request", name);
	}
	if (attended != entry->nattended)
		complain(check, "%s: %u requests have a process; the lock says %u", name, attended, entry->nattended);
}

static void
check_entry(Check *check, DLockSpaceEntry *entry)
{
	char		buffer[DLOCK_NAME_MAX];
	DLockBytes	bytes = dlock_space_entry_name(entry, buffer);
	char	   *name = pnstrdup(bytes.data, bytes.len);
	bool		lodges = false;

	check->cells += 1 + dlock_memory_text_cells(entry->name_len, DLOCK_SPACE_NAME_ROOM);
	if (entry->hash != dlock_name_hash(entry->database, &bytes))
		complain(check, "%s: not its hash", name);
	if (dlock_space_holders(entry) == NULL && dlock_space_queue(entry) == NULL)
		complain(check, "%s: a lock without leases and requests", name);
	check_holders(check, name, entry, &lodges);
	check_queue(check, name, entry, &lodges);
	if (lodges != entry->lodges)
		complain(check, "%s: its cell is taken, or is not", name);
}

/* The processes that wait. */
static void
check_processes(Check *check)
{
	int			requests = 0;

	for (int process = 0; process < MaxBackends; process++)
	{
		DLockSpaceLease *request = dlock_process_first(process);

		if (request == NULL || dlock_space_entry_of(request)->database != check->db.shared->oid)
			continue;
		for (; request != NULL; request = dlock_space_request_next(request))
			requests++;
		if (GetPGProcByNumber(process)->pid == 0)
			complain(check, "process %d waits, but has ended", process);
	}
	if (requests != check->requests)
		complain(check, "%d requests in queues, %d of processes", check->requests, requests);
}

/*
 * inconsistencies(kept): what is wrong, as text; empty if nothing is.  "kept" is how
 * many cells backends may have for themselves.
 */
Datum
inconsistencies(PG_FUNCTION_ARGS)
{
	int64		kept = PG_GETARG_INT32(0);
	Check	   *check = palloc0(sizeof(Check));
	DLockPartitionSet all;
	ListCell   *cell;
	uint32		buckets;
	int64		counted;
	int64		used;

	initStringInfo(&check->findings);
	check->room = 64;
	check->leases = palloc(check->room * sizeof(PageLease));
	dlock_session_open(&check->db);
	dlock_store_visit(check->db.rel, check->db.shared->slots.incarnation, note_on_page, NULL, check);

	memset(&all, 0xff, sizeof(all));
	dlock_partition_lock_set(&all, LW_EXCLUSIVE);
	check->now = dlock_clock_now();
	for (int i = 0; i < nroles; i++)
		roles[i].leases = 0;
	buckets = Max(12, pg_ceil_log2_64((uint64) dlock_settings_max_memory_kb * 1024 / 256));
	for (uint64 bucket = 0; bucket < UINT64CONST(1) << buckets; bucket++)
	{
		for (DLockSpaceEntry *entry = dlock_space_bucket((uint32) (bucket << (32 - buckets)));
			 entry != NULL; entry = dlock_space_next_entry(entry))
			check_entry(check, entry);
	}
	check_processes(check);
	dlock_partition_unlock_set(&all);

	foreach(cell, check->owned)
		check_owned(check, lfirst(cell));
	for (int i = 0; i < check->nleases; i++)
	{
		if (!check->leases[i].in_memory)
			complain(check, "the page has token %lld, memory has not", (long long) check->leases[i].token);
	}
	for (int i = 0; i < nroles; i++)
	{
		uint32		leases = dlock_count_leases(roles[i].database, roles[i].role);

		if (roles[i].leases != leases)
			complain(check, "a role's count is %u instead of %u", leases, roles[i].leases);
	}
	counted = dlock_stat_read(&check->db.shared->stats, DLOCK_STAT_LEASES);
	if (counted != check->held)
		complain(check, "the statistics have %lld leases instead of %lld",
				 (long long) counted, (long long) check->held);
	for (int i = 0; i < DLOCK_PAGE_CLASSES * DLOCK_SLOT_STRIPES; i++)
	{
		DLockSlotStack *stack = &check->db.shared->slots.stacks[i / DLOCK_SLOT_STRIPES][i % DLOCK_SLOT_STRIPES];

		count_slot_cells(check, stack->top);
		count_slot_cells(check, stack->spare);
	}
	used = dlock_memory_used() / DLOCK_MEMORY_CELL;
	if (used < check->cells || used > check->cells + kept)
		complain(check, "%lld cells are in use instead of %lld to %lld",
				 (long long) used, (long long) check->cells, (long long) (check->cells + kept));
	dlock_session_close(&check->db);
	PG_RETURN_TEXT_P(cstring_to_text_with_len(check->findings.data, check->findings.len));
}
