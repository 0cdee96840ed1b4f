/*-------------------------------------------------------------------------
 *
 * dlock_sqlview.c
 *	  The SQL functions behind the views.
 *
 * NOTES
 *	  On a primary the leases are read from memory, on a standby from the pages
 *	  as far as they have been replayed.  In either case the wall-clock times
 *	  are made when the view is read: expires_at is the wall clock's now plus
 *	  what is left.
 *
 * IDENTIFICATION
 *	  src/dlock_sqlview.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "dlock_clock.h"
#include "dlock_error.h"
#include "dlock_guc.h"
#include "dlock_rule.h"
#include "dlock_session.h"
#include "dlock_space.h"
#include "dlock_store.h"

PG_FUNCTION_INFO_V1(dlock_sql_lease_list);

#define LEASE_COLUMNS	10

/* Copies of the leases that were found, and what they are measured against. */
typedef struct DLockViewState
{
	DLockTime	now;
	TimestampTz wall;
	DLockTime	max_skew;
	uint64		boot;
	int			count;
	int			room;
	DLockLeaseValue *leases;
} DLockViewState;

static DLockBytes
copy_bytes(DLockBytes bytes)
{
	if (bytes.len > 0)
	{
		char	   *copy = palloc(bytes.len);

		memcpy(copy, bytes.data, bytes.len);
		bytes.data = copy;
	}
	return bytes;
}

/* Add a copy of a lease, whose deadline is set. */
static void
add_lease(DLockViewState *state, const DLockLeaseValue *lease)
{
	DLockLeaseValue *copy;

	if (state->count == state->room)
	{
		state->room *= 2;
		state->leases = repalloc_huge(state->leases,
									  state->room * sizeof(DLockLeaseValue));
	}
	copy = &state->leases[state->count++];
	*copy = *lease;
	copy->name = copy_bytes(lease->name);
	copy->owner = copy_bytes(lease->owner);
	copy->payload = copy_bytes(lease->payload);
}

/* A visitor of the space. */
static void
visit_memory(DLockSpaceEntry *entry, DLockSpaceLease *lease, void *arg)
{
	DLockViewState *state = arg;
	DLockLeaseValue value = {0};

	if (!dlock_rule_is_live(lease->deadline, state->now))
		return;
	value.token = lease->token;
	value.mode = (DLockMode) lease->mode;
	value.role = lease->role;
	value.granted_at = lease->granted_at;
	value.term.ttl = lease->ttl;
	value.term.deadline = lease->deadline;
	value.name = dlock_space_entry_name(entry);
	value.owner = dlock_space_lease_owner(lease);
	value.payload = dlock_space_lease_payload(lease);
	add_lease(state, &value);
}

/* A visitor of the store. */
static DLockStoreVerdict
visit_page_lease(const DLockLeaseValue *found, DLockSlot slot, void *arg)
{
	DLockViewState *state = arg;
	DLockLeaseValue lease = *found;
	bool		same_boot = lease.boot != 0 && lease.boot == state->boot;
	DLockTime	remaining = dlock_rule_remaining(&lease.term, same_boot, state->now,
												 state->wall, state->max_skew);

	if (remaining > 0)
	{
		lease.term.deadline = state->now + remaining;
		add_lease(state, &lease);
	}
	return DLOCK_STORE_KEEP;
}

static void
collect_from_pages(DLockViewState *state)
{
	Relation	rel = dlock_session_open_store(AccessShareLock);
	DLockPageMeta meta;

	if (rel == NULL)
		dlock_error_no_extension();

	/* A copied database has leases only once it has a meta page of its own. */
	if (dlock_store_read_meta(rel, &meta) && meta.database == MyDatabaseId)
		dlock_store_visit(rel, meta.incarnation, visit_page_lease, NULL, state);
	table_close(rel, AccessShareLock);
}

static void
collect_from_memory(DLockViewState *state)
{
	DLockDatabase db;

	dlock_session_open(&db);
	/* Loading takes time, and what it loads counts from its own now. */
	state->now = dlock_clock_now();
	state->wall = dlock_clock_wall();
	dlock_space_visit(db.shared->oid, visit_memory, state);
	dlock_session_close(&db);
}

static Datum
interval_of(DLockTime span)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = span;
	return IntervalPGetDatum(interval);
}

static Datum
text_of(DLockBytes bytes)
{
	return PointerGetDatum(cstring_to_text_with_len(bytes.data, bytes.len));
}

static Datum
jsonb_of(DLockBytes bytes)
{
	struct varlena *value = palloc(VARHDRSZ + bytes.len);

	SET_VARSIZE(value, VARHDRSZ + bytes.len);
	memcpy(VARDATA(value), bytes.data, bytes.len);
	return PointerGetDatum(value);
}

static const char *
mode_word(DLockMode mode)
{
	switch (mode)
	{
		case DLOCK_MODE_EXCLUSIVE:
			return "exclusive";
	}
	elog(ERROR, "unrecognized lease mode: %d", (int) mode);
}

/* dlock_lease_list() -> the live leases of this database */
Datum
dlock_sql_lease_list(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext row_context = AllocSetContextCreate(CurrentMemoryContext,
													  "dlock lease list row",
													  ALLOCSET_SMALL_SIZES);
	MemoryContext old;
	DLockViewState state;

	InitMaterializedSRF(fcinfo, 0);

	state.now = dlock_clock_now();
	state.wall = dlock_clock_wall();
	state.max_skew = (DLockTime) dlock_guc_max_clock_skew_ms * 1000;
	state.boot = dlock_clock_boot();
	state.count = 0;
	state.room = 64;
	state.leases = palloc(state.room * sizeof(DLockLeaseValue));

	if (RecoveryInProgress())
		collect_from_pages(&state);
	else
		collect_from_memory(&state);

	old = MemoryContextSwitchTo(row_context);
	for (int i = 0; i < state.count; i++)
	{
		const DLockLeaseValue *lease = &state.leases[i];
		DLockTime	remaining = lease->term.deadline - state.now;
		Datum		values[LEASE_COLUMNS];
		bool		nulls[LEASE_COLUMNS] = {0};

		values[0] = text_of(lease->name);
		values[1] = text_of(lease->owner);
		values[2] = Int64GetDatum(lease->token);
		values[3] = CStringGetTextDatum(mode_word(lease->mode));
		values[4] = ObjectIdGetDatum(lease->role);
		values[5] = TimestampTzGetDatum(lease->granted_at);
		values[6] = TimestampTzGetDatum(state.wall + remaining);
		values[7] = interval_of(remaining);
		values[8] = interval_of(lease->term.ttl);
		nulls[9] = lease->payload.len == 0;
		values[9] = nulls[9] ? (Datum) 0 : jsonb_of(lease->payload);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
		MemoryContextReset(row_context);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(row_context);
	return (Datum) 0;
}
