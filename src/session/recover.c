/*-------------------------------------------------------------------------
 *
 * recover.c
 *	  Bring the leases of a database from its pages into memory.
 *
 * NOTES
 *	  This happens once for each database, at the first use after the start or
 *	  promotion of the server.  A crash is no special case: the pages always are
 *	  as a crash would leave them.
 *
 *	  The meta page says which database the pages belong to.  There are three
 *	  cases.
 *
 *	  - No meta page: the extension is new.  The store begins a random
 *		incarnation.
 *	  - Another database's oid: this database was copied from a template.  The
 *		leases belong to the other database, so the store begins a new
 *		incarnation, which makes all its pages blank.
 *	  - This database's oid: the leases are ours.
 *
 *	  The disk cannot tell whether another server has granted tokens that our
 *	  sequence does not know.  So after each load tokens restart at the clock
 *	  (src/README, "Tokens").
 *
 *	  A store with a new relfilenumber but the incarnation that is in memory was
 *	  copied as it was (VACUUM FULL, SET TABLESPACE).  Memory stays valid.
 *
 *	  The load lock is a heavyweight lock, so that a wait for a long load can be
 *	  canceled.  A backend that uses the leases holds a lock on the relation, and
 *	  has seen the database loaded with that relation's relfilenumber.  Only a
 *	  process that locks the relation exclusively changes the relfilenumber.  So
 *	  no backend uses the leases while they are being loaded.
 *
 * IDENTIFICATION
 *	  src/session/recover.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/error.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/settings.h"
#include "lock/queue.h"
#include "session/recover.h"
#include "session/taskwait.h"
#include "space/slot.h"
#include "space/space.h"
#include "store/flush.h"
#include "store/store.h"

/* A load, with the clocks as read once for all its leases. */
typedef struct DLockRecoverState
{
	DLockDatabase *db;
	DLockTime	now;
	TimestampTz wall;
	DLockTime	max_skew;
	uint64		origin;
} DLockRecoverState;

/* Are the leases in memory, and are they those of the relation at hand? */
bool
dlock_recover_is_loaded(const DLockDatabase *db)
{
	bool		ready = pg_atomic_read_u32(&db->shared->state) == DLOCK_DATABASE_READY;

	pg_read_barrier();
	return ready && RelFileLocatorEquals(db->shared->locator, db->rel->rd_locator);
}

/*
 * Until when a lease must be held at least.
 *
 * The record has the time of the grant on the wall clock only.  But its bound is
 * one instant on both clocks, so on the same boot it gives the time of the grant
 * on the monotonic clock.
 */
static DLockTime
min_until_of(const DLockRecoverState *state, const DLockLeaseValue *lease)
{
	DLockTime	left = lease->granted_at + lease->min_hold - state->wall;

	if (dlock_rule_origin(lease->origin, state->origin) != DLOCK_RULE_ELSEWHERE &&
		lease->bind == DLOCK_BIND_NONE)
		left = lease->granted_at - (lease->term.bound_wall - lease->term.bound_mono) +
			lease->min_hold - state->now;
	return state->now + Min(left, lease->min_hold);
}

/*
 * Memory is full.  This database has no expired leases in memory, and only the
 * reapers of other databases can remove theirs.
 */
pg_noreturn static void
no_room(void)
{
	dlock_database_wake_reapers();
	dlock_error_space_full();
}

/* Put a lease into memory. */
static void
hold_lease(DLockRecoverState *state, const DLockLeaseValue *lease, DLockSlot slot, XLogRecPtr lsn)
{
	Oid			database = state->db->shared->oid;
	uint32		hash = dlock_name_hash(database, &lease->name);
	DLockSpaceLease *held;

	if (!dlock_space_prepare(lease->name.len, lease->owner.len + lease->payload.len, 1))
		no_room();
	dlock_partition_lock(hash, LW_EXCLUSIVE);
	held = dlock_space_hold(database, hash, lease, slot, -1, lsn);
	if (lease->min_hold > 0)
		held->min_until = min_until_of(state, lease);
	dlock_partition_unlock(hash);
}

/* The intents of a lease on a path are not on disk: they follow from it. */
static void
hold_intents(DLockRecoverState *state, const DLockLeaseValue *lease, XLogRecPtr lsn)
{
	DLockBytes	ancestors[DLOCK_PATH_MAX_PARTS];
	int			count = dlock_name_ancestors(&lease->name, ancestors);
	DLockLeaseValue intent = *lease;

	intent.part = DLOCK_PART_INTENT;
	intent.mode = dlock_rule_intent(lease->mode);
	intent.payload = lease->name;
	intent.holds = 1;
	for (int i = 0; i < count; i++)
	{
		intent.name = ancestors[i];
		hold_lease(state, &intent, DLOCK_SLOT_NONE, lsn);
	}
}

/*
 * Put a lease from disk into memory, unless it has ended.
 *
 * A lease that was bound to a session or a transaction ends now; it is on disk
 * only because its lock stays closed for a lock delay.
 *
 * "lsn" is that of its page.  The record may not be on a standby yet, since the
 * server may have stopped while the grant waited for that.  So answers about the
 * lease wait for it first.
 */
static DLockStoreVerdict
load_lease(const DLockLeaseValue *found, DLockSlot slot, XLogRecPtr lsn, void *arg)
{
	DLockRecoverState *state = arg;
	DLockLeaseValue lease = *found;
	DLockRuleOrigin origin = dlock_rule_origin(lease.origin, state->origin);
	bool		was_closed = lease.term.ttl == 0 && lease.term.bound_wall != DT_NOEND;
	DLockTime	remaining = 0;

	/* A lock that was closed already stays closed no longer than before. */
	if (lease.bind == DLOCK_BIND_NONE || was_closed)
		remaining = dlock_rule_remaining(&lease.term, origin, state->now,
										 state->wall, state->max_skew);
	if (remaining + lease.delay <= 0)
		return DLOCK_STORE_ERASE;

	/*
	 * Convert the remaining time to our clock.  The record, and so the bound,
	 * does not have the skew, so the first renewal logs a new bound, which a
	 * server needs that is promoted next.
	 */
	lease.term.deadline = state->now + remaining;
	if (remaining == 0)
		lease.term.bound_mono = lease.term.deadline;
	else if (origin == DLOCK_RULE_ELSEWHERE)
		lease.term.bound_mono = state->now +
			dlock_rule_remaining(&found->term, origin, state->now, state->wall, 0);

	hold_lease(state, &lease, slot, lsn);
	if (lease.part == DLOCK_PART_PATH)
		hold_intents(state, &lease, lsn);
	return DLOCK_STORE_KEEP;
}

/* Enter a page into the directory of slots. */
static void
load_page(BlockNumber block, int slot_class, uint64 taken, void *arg)
{
	DLockRecoverState *state = arg;

	DLOCK_FAULT("load_page");
	if (!dlock_slot_add_page(&state->db->shared->slots, block, slot_class, taken))
		no_room();
}

static uint64
random_incarnation(void)
{
	uint64		incarnation;

	do
	{
		if (!pg_strong_random(&incarnation, sizeof(incarnation)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate a random number for the lease store")));
	} while (incarnation == 0);
	return incarnation;
}

/*
 * Decide which database the pages belong to (see above); returns the incarnation.
 */
static uint64
settle_meta(DLockDatabase *db)
{
	DLockPageMeta meta;

	if (dlock_store_read_meta(db->rel, &meta) && meta.database == db->shared->oid)
		return meta.incarnation;
	meta.database = db->shared->oid;
	meta.incarnation = random_incarnation();
	dlock_flush_now(dlock_store_write_meta(db->rel, &meta));
	return meta.incarnation;
}

/* Was the store rewritten as it is, with memory still valid? */
static bool
was_moved(DLockDatabase *db)
{
	DLockPageMeta meta;

	return pg_atomic_read_u32(&db->shared->state) == DLOCK_DATABASE_READY &&
		dlock_store_read_meta(db->rel, &meta) &&
		meta.database == db->shared->oid &&
		meta.incarnation == db->shared->slots.incarnation;
}

static LOCKTAG
load_lock_tag(DLockDatabaseShared *shared)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, shared->oid, 0, 0, DLOCK_LOCK_CLASS_LOAD);
	return tag;
}

#ifdef USE_ASSERT_CHECKING
static bool
is_load_locked(DLockDatabaseShared *shared)
{
	LOCKTAG		tag = load_lock_tag(shared);

	return DLOCK_LOCK_HELD_BY_ME(&tag, ExclusiveLock);
}
#endif

/* Take the load lock of a database, waiting for it; freed by an abort. */
void
dlock_recover_lock(DLockDatabaseShared *shared)
{
	LOCKTAG		tag = load_lock_tag(shared);

	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

void
dlock_recover_unlock(DLockDatabaseShared *shared)
{
	LOCKTAG		tag = load_lock_tag(shared);

	LockRelease(&tag, ExclusiveLock, false);
}

/*
 * Forget the leases of a database, if any are in memory.  The load lock must
 * be held, and the store not be in use.
 */
void
dlock_recover_unload(DLockDatabaseShared *shared)
{
	Assert(is_load_locked(shared));
	pg_atomic_write_u32(&shared->state, DLOCK_DATABASE_UNLOADED);
	dlock_queue_dismiss(shared->oid);
	dlock_taskwait_call_all(shared->oid, true);
	dlock_space_purge(shared->oid);
}

/* Read the store from the start.  The load lock must be held. */
static void
load(DLockDatabase *db)
{
	DLockDatabaseShared *shared = db->shared;
	DLockRecoverState state;
	uint64		incarnation;

	Assert(is_load_locked(shared));
	/* Leases of an earlier load, or of an extension dropped since. */
	dlock_recover_unload(shared);
	dlock_stat_forget_leases(&shared->stats);

	incarnation = settle_meta(db);

	/* Tokens restart with the first grant, which may be much later. */
	dlock_token_reset(&shared->tokens);
	dlock_slot_reset(&shared->slots, incarnation);
	shared->locator = db->rel->rd_locator;

	state.db = db;
	state.origin = dlock_clock_origin();
	state.now = dlock_clock_now();
	state.wall = dlock_clock_wall();
	state.max_skew = (DLockTime) dlock_settings_max_clock_skew_ms * 1000;

	PG_TRY();
	{
		dlock_store_visit(db->rel, incarnation, load_lease, load_page, &state);
	}
	PG_CATCH();
	{
		/* Leave the memory to other databases. */
		dlock_space_purge(shared->oid);
		PG_RE_THROW();
	}
	PG_END_TRY();
	dlock_memory_trim();

	DLOCK_FAULT("load_ready");
	pg_write_barrier();
	pg_atomic_write_u32(&shared->state, DLOCK_DATABASE_READY);

	dlock_database_note_deadline(shared, 0);
	dlock_database_note_task(shared, 0);
}

/*
 * Load the leases of a database, or wait until another backend has loaded them.
 *
 * The store must be open and locked; no other lock may be held.  Throws 53400
 * if memory does not suffice, XX001 if a page is damaged; the database is
 * not loaded then, and the next use tries again.
 */
void
dlock_recover_load(DLockDatabase *db)
{
	Assert(CheckRelationLockedByMe(db->rel, RowExclusiveLock, true));
	Assert(!dlock_partition_is_any_held());
	dlock_recover_lock(db->shared);
	if (dlock_recover_is_loaded(db))
	{
		 /* another backend was faster */ ;
	}
	else if (was_moved(db))
		db->shared->locator = db->rel->rd_locator;
	else
		load(db);
	dlock_recover_unlock(db->shared);
}
