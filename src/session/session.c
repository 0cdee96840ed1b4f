/*-------------------------------------------------------------------------
 *
 * session.c
 *	  This backend and the database that it is connected to: opening it, and
 *	  loading its leases from their pages.
 *
 * NOTES
 *	  Every operation opens the database first and closes it at its end, not
 *	  at the end of the transaction.  In between it holds a RowExclusiveLock on
 *	  the store, a fast-path lock that keeps DROP EXTENSION, VACUUM FULL and the
 *	  like out.
 *
 *	  Leases of a database are loaded at its first use after the start or promotion of
 *	  the server, and again once the extension has been created anew.  A crash is no
 *	  special case: the pages always are as a crash would leave them.
 *
 *	  The meta page says which database the pages belong to.  There are three
 *	  cases.
 *
 *	  - No meta page: the extension is new.  The store begins a random
 *		incarnation.
 *	  - Another database's oid: this database was copied from a template.  The
 *		leases belong to the other database, so the store begins a new
 *		incarnation, in which none of its pages counts.
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
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_namespace.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/sinval.h"
#include "utils/lsyscache.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/error.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/settings.h"
#include "base/stat.h"
#include "lock/queue.h"
#include "lock/step.h"
#include "session/session.h"
#include "space/count.h"
#include "space/memory.h"
#include "space/slot.h"
#include "space/space.h"
#include "store/flush.h"
#include "store/store.h"

static const char *const names[] = {
	[DLOCK_RELATION_STORE] = "store",
	[DLOCK_RELATION_SEQUENCE] = "token_seq",
	[DLOCK_RELATION_MARKS] = "fence_mark"
};

/* Their oids, as they were found last. */
static Oid	oids[lengthof(names)];

/* The shared state of this backend's database. */
static DLockDatabaseShared *my_database = NULL;

/*
 * Look up the relations in the catalogs.  Throws 55000 if "wanted" or the sequence is not
 * there.
 *
 * A schema _dlock that is not the extension's does not count: while the extension
 * is not installed, or its own schema has another name, any role that may create
 * schemas can make one.
 */
static void
look_up(DLockSessionRelation wanted)
{
	uint64		before;

	/*
	 * The extension may be dropped and created again meanwhile.  The store is
	 * looked up last: as long as its oid is valid, that of the sequence is.
	 */
	do
	{
		Oid			extension;
		Oid			schema;
		bool		is_there;

		before = SharedInvalidMessageCounter;
		extension = get_extension_oid("dlock", true);
		schema = get_namespace_oid("_dlock", true);
		is_there = OidIsValid(extension) && OidIsValid(schema) &&
			getExtensionOfObject(NamespaceRelationId, schema) == extension;
		for (int i = lengthof(names) - 1; i >= DLOCK_RELATION_STORE; i--)
		{
			oids[i] = is_there ? get_relname_relid(names[i], schema) : InvalidOid;
			DLOCK_FAULT("relation_found");
		}
	} while (before != SharedInvalidMessageCounter);
	if (!OidIsValid(oids[wanted]) || !OidIsValid(oids[DLOCK_RELATION_SEQUENCE]))
	{
		memset(oids, 0, sizeof(oids));
		dlock_error_no_extension();
	}
}

/* Is the storage of the relation that of a committed transaction? */
static bool
is_settled(Relation rel)
{
	return rel->rd_createSubid == InvalidSubTransactionId &&
		rel->rd_newRelfilelocatorSubid == InvalidSubTransactionId &&
		rel->rd_firstRelfilelocatorSubid == InvalidSubTransactionId;
}

/*
 * Open one of the relations.  NULL if "wait" is false and another session has locked it,
 * or waits to lock it.  Throws 55000 if it is not there, or if the store has another
 * access method.
 */
Relation
dlock_session_open_relation(DLockSessionRelation which, LOCKMODE lockmode, bool wait)
{
	Relation	rel = NULL;

	/*
	 * The relation that was found last may have been dropped since, or
	 * renamed.
	 */
	for (;;)
	{
		if (!OidIsValid(oids[which]))
			look_up(which);
		if (wait)
			LockRelationOid(oids[which], lockmode);
		else if (!ConditionalLockRelationOid(oids[which], lockmode))
			return NULL;
		rel = try_relation_open(oids[which], NoLock);
		if (rel != NULL && strcmp(RelationGetRelationName(rel), names[which]) == 0)
			break;
		if (rel != NULL)
			relation_close(rel, NoLock);
		UnlockRelationOid(oids[which], lockmode);
		oids[which] = InvalidOid;
	}

	if (which == DLOCK_RELATION_STORE && rel->rd_tableam != dlock_store_routine())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" does not have the access method of the lease store",
						RelationGetRelationName(rel)),
				 errdetail("Its access method has been changed, and the leases in it are gone."),
				 errhint("Drop and create the extension \"dlock\".")));
	return rel;
}

/*
 * Throw 25006 unless something durable may be changed here and now.  "function" is the
 * SQL function's name, for the message.
 */
void
dlock_session_check_writable(const char *function)
{
	if (RecoveryInProgress())
		dlock_error_standby(function);
	if (XactReadOnly)
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot execute %s() in a read-only transaction", function),
				 errdetail("It changes leases or tasks, which are durable."),
				 errhint("Use a READ WRITE transaction.")));
}

/*
 * Throw 25006 on a standby, and 0A000 if this server grants no leases ("dlock.grants"): in
 * both cases another server does, and an answer from here would be wrong.
 */
void
dlock_session_check_grants(const char *function)
{
	if (RecoveryInProgress())
		dlock_error_standby(function);
	if (!dlock_settings_grants)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot execute %s() on a server that grants no leases", function),
				 errdetail("\"dlock.grants\" is off."),
				 errhint("Make the call a statement of its own: not beside another call, not in an expression, not in a function.")));
}

/* Throw what the two functions above throw. */
void
dlock_session_check_lease_writable(const char *function)
{
	dlock_session_check_grants(function);
	dlock_session_check_writable(function);
}

/* Throw 55000 if dlock is not preloaded. */
void
dlock_session_check_preloaded(void)
{
	if (dlock_memory_cells == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("dlock is not preloaded"),
				 errdetail("Leases live in shared memory, which is laid out when the server starts."),
				 errhint("Add \"shared_preload_libraries = 'dlock'\" to postgresql.conf and restart the server.")));
}

/*
 * Find the shared state of this database, leases loaded or not.  Statistics count for
 * it from now on.  Throws 55000 if dlock is not preloaded.
 */
void
dlock_session_attach(void)
{
	if (my_database != NULL)
		return;
	dlock_session_check_preloaded();
	my_database = dlock_database_attach(MyDatabaseId);
	dlock_stat_attach(&my_database->stats);
}

/* ---- loading ---- */

/* A load, with the clocks as read once for all its leases. */
typedef struct DLockSessionLoad
{
	DLockDatabaseShared *shared;
	DLockTime	now;
	TimestampTz wall;
} DLockSessionLoad;

/* Are the leases in memory, and are they those of the relation that is open? */
static bool
is_loaded(const DLockDatabase *db)
{
	bool		loaded = pg_atomic_read_u32(&db->shared->state) == DLOCK_DATABASE_LOADED;

	pg_read_barrier();
	return loaded && RelFileLocatorEquals(db->shared->locator, db->rel->rd_locator);
}

/*
 * Until when a lease must be held at least.
 *
 * The record has the time of the grant on the wall clock only.  But its bound is
 * one instant on both clocks, so on the same boot it gives the time of the grant
 * on the monotonic clock.
 */
static DLockTime
min_until_of(const DLockSessionLoad *state, const DLockLeaseValue *lease)
{
	DLockTime	left = lease->granted_at + lease->min_hold - state->wall;

	if (dlock_rule_origin(lease->origin, dlock_clock_origin()) != DLOCK_RULE_ELSEWHERE &&
		lease->bind == DLOCK_BIND_NONE)
		left = lease->granted_at - (lease->term.bound_wall - lease->term.bound_mono) +
			lease->min_hold - state->now;
	return state->now + Min(left, lease->min_hold);
}

/*
 * Put a lease into memory.  The intents of one on a path are not on disk: they follow
 * from it.
 */
static void
hold_lease(DLockSessionLoad *state, const DLockLeaseValue *lease, DLockSlot slot, XLogRecPtr lsn)
{
	Oid			database = state->shared->oid;
	uint32		hash = dlock_name_hash(database, &lease->name);
	DLockBytes	ancestors[DLOCK_PATH_MAX_PARTS];
	int			count = (lease->part == DLOCK_PART_PATH) ? dlock_name_ancestors(&lease->name, ancestors) : 0;
	DLockPartitionSet set = {{0}};
	DLockSpaceLease *held;

	if (!dlock_space_prepare(lease->name.len, lease->owner.len + lease->payload.len, 1 + count))
		dlock_error_space_full();
	dlock_partition_set_add(&set, hash);
	for (int i = 0; i < count; i++)
		dlock_partition_set_add(&set, dlock_name_hash(database, &ancestors[i]));
	(void) dlock_count_add_leases(database, lease->role, 1 + count, -1);
	dlock_partition_lock_set(&set, LW_EXCLUSIVE);
	held = dlock_space_hold(database, hash, lease, slot, -1, lsn, NULL, NULL);
	held->level = SYNCHRONOUS_COMMIT_ON;
	held->confirmed = DLOCK_SPACE_UNKNOWN;
	if (lease->min_hold > 0)
		held->min_until = min_until_of(state, lease);
	for (int i = 0; i < count; i++)
	{
		DLockLeaseValue intent = dlock_rule_intent_of(lease, ancestors[i]);

		(void) dlock_space_hold(database, dlock_name_hash(database, &intent.name), &intent,
								DLOCK_SLOT_NONE, -1, lsn, NULL, held);
	}
	dlock_partition_unlock_set(&set);
}

/*
 * Put a lease from disk into memory; false if it has ended.
 *
 * A lease that was bound to a session or a transaction ends now; it is on disk
 * only because its lock stays closed for a lock delay.
 *
 * "lsn" is that of its page.  The record may not be on a standby yet, since the
 * server may have stopped while the grant waited for that.  So answers about the
 * lease first wait for the standby.
 */
static bool
load_lease(const DLockLeaseValue *found, DLockSlot slot, XLogRecPtr lsn, void *arg)
{
	DLockSessionLoad *state = arg;
	DLockLeaseValue lease = *found;
	DLockRuleOrigin origin = dlock_rule_origin(lease.origin, dlock_clock_origin());
	bool		was_closed = lease.term.ttl == 0 && lease.term.bound_wall != DT_NOEND;
	DLockTime	remaining = 0;

	/* A lock that was closed already stays closed no longer than before. */
	if (lease.bind == DLOCK_BIND_NONE || was_closed)
		remaining = dlock_rule_remaining(&lease.term, origin, state->now,
										 state->wall, (DLockTime) dlock_settings_max_clock_skew_ms * 1000);
	if (remaining + lease.delay <= 0)
		return false;

	/*
	 * Convert the remaining time to our clock.  The deadline has the skew,
	 * the bound does not.  So the first renewal logs a new bound, as the
	 * server that is promoted next needs it.
	 */
	lease.term.deadline = state->now + remaining;
	if (remaining == 0)
		lease.term.bound_mono = lease.term.deadline;
	else if (origin == DLOCK_RULE_ELSEWHERE)
		lease.term.bound_mono = state->now +
			dlock_rule_remaining(&found->term, origin, state->now, state->wall, 0);

	hold_lease(state, &lease, slot, lsn);
	return true;
}

/* Learn which slots of a page are free. */
static void
load_page(BlockNumber block, int slot_class, uint64 taken, void *arg)
{
	DLockSessionLoad *state = arg;

	DLOCK_FAULT("load_page");
	if (!dlock_slot_add_page(&state->shared->slots, block, slot_class, taken))
		dlock_error_space_full();
}

/* Give the store a new incarnation, in which none of its pages counts; returns it. */
static uint64
begin_incarnation(DLockDatabase *db)
{
	uint64		incarnation;

	if (!pg_strong_random(&incarnation, sizeof(incarnation)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate a random number for the lease store")));

	/*
	 * Not flushed: whatever must be durable of this incarnation follows in
	 * the WAL.
	 */
	dlock_store_init_page(db->rel, DLOCK_PAGE_META_BLOCK, incarnation, 0, db->shared->oid);
	return incarnation;
}

/* The clean-up of a load: free the memory.  Must not fail. */
static void
abandon_load(int code, Datum arg)
{
	DLockDatabaseShared *shared = (DLockDatabaseShared *) DatumGetPointer(arg);

	LWLockReleaseAll();
	dlock_space_purge(shared->oid);
	dlock_slot_clear(&shared->slots);
	dlock_memory_trim();
}

/*
 * Read all leases of this incarnation of the store into memory.  The load lock must be held.
 */
static void
read_store(DLockDatabase *db, uint64 incarnation)
{
	DLockDatabaseShared *shared = db->shared;
	DLockSessionLoad state = {shared, dlock_clock_now(), dlock_clock_wall()};

	/* Forget leases of an earlier load, or of an extension dropped since. */
	pg_atomic_write_u32(&shared->state, DLOCK_DATABASE_ABSENT);
	dlock_queue_dismiss(shared->oid);
	dlock_space_purge(shared->oid);

	/* Tokens restart with the first grant, which may be much later. */
	dlock_token_reset(&shared->tokens);
	dlock_slot_reset(&shared->slots, incarnation);

	PG_ENSURE_ERROR_CLEANUP(abandon_load, PointerGetDatum(shared));
	{
		dlock_store_visit(db->rel, incarnation, load_lease, load_page, &state);
	}
	PG_END_ENSURE_ERROR_CLEANUP(abandon_load, PointerGetDatum(shared));
	dlock_memory_trim();
	DLOCK_FAULT("load_ready");
}

static LOCKTAG
load_lock_tag(DLockDatabaseShared *shared)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, shared->oid, 0, 0, DLOCK_LOCK_CLASS_LOAD);
	return tag;
}

/*
 * Load the leases of a database, or wait until another backend has loaded them.
 *
 * The store must be open and locked; no partition lock may be held.  Throws 53400
 * if memory does not suffice, XX001 if a page is damaged; the database is
 * not loaded then, and the next use tries again.
 */
static void
load(DLockDatabase *db)
{
	DLockDatabaseShared *shared = db->shared;
	LOCKTAG		tag = load_lock_tag(shared);

	Assert(CheckRelationLockedByMe(db->rel, RowExclusiveLock, true));
	Assert(!dlock_partition_is_any_held());
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
	/* Another backend may have been faster. */
	if (!is_loaded(db))
	{
		DLockPageHeadDisk meta;
		bool		is_ours = dlock_store_read_meta(db->rel, &meta) && meta.database == shared->oid;

		/* If the store was moved as it is, memory stays valid. */
		if (!is_ours || meta.incarnation != shared->slots.incarnation ||
			pg_atomic_read_u32(&shared->state) == DLOCK_DATABASE_ABSENT)
			read_store(db, is_ours ? meta.incarnation : begin_incarnation(db));

		/*
		 * Publish where the pages are, and have the worker sweep.  If the
		 * worker has the store locked, these values do not change.
		 */
		shared->store = RelationGetRelid(db->rel);
		shared->locator = db->rel->rd_locator;
		pg_write_barrier();
		pg_atomic_write_u32(&shared->state, DLOCK_DATABASE_LOADED);
		dlock_database_note_deadline(0);
	}
	LockRelease(&tag, ExclusiveLock, false);
}

/* ---- opening ---- */

/*
 * Open the leases of this database for one operation, after loading them if
 * necessary.  The server must not be in recovery.  False if "wait" is false and another
 * session has locked the store, or waits to lock it.  Throws 55000 in all states that an
 * operator has to repair.
 */
bool
dlock_session_try_open(DLockDatabase *db, bool wait)
{
	dlock_session_check_preloaded();
	db->rel = dlock_session_open_relation(DLOCK_RELATION_STORE, RowExclusiveLock, wait);
	if (db->rel == NULL)
		return false;
	if (!is_settled(db->rel))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot use leases in the transaction that creates or rewrites their store"),
				 errdetail("A rollback of this transaction would remove the store, while leases do not roll back."),
				 errhint("Commit the CREATE EXTENSION or ALTER TABLE first.")));

	dlock_session_attach();
	dlock_step_open();
	db->shared = my_database;
	db->locator = db->rel->rd_locator;
	db->sequence = oids[DLOCK_RELATION_SEQUENCE];
	if (!is_loaded(db))
		load(db);
	return true;
}

/* The same, and wait. */
void
dlock_session_open(DLockDatabase *db)
{
	(void) dlock_session_try_open(db, true);
}

/*
 * For the worker: forget the leases of an abandoned database, and a dropped one
 * altogether.  What a backend has loaded since, or is just loading, stays: it has
 * purged what was there before.
 */
void
dlock_session_purge(DLockDatabaseShared *shared)
{
	LOCKTAG		tag = load_lock_tag(shared);
	bool		locked = LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;

	if (locked && pg_atomic_read_u32(&shared->state) == DLOCK_DATABASE_ABSENT)
	{
		dlock_stat_attach(&shared->stats);
		dlock_space_purge(shared->oid);
		dlock_slot_clear(&shared->slots);
	}
	dlock_database_settle(shared);
	if (locked)
		LockRelease(&tag, ExclusiveLock, false);
}

/* Close what was opened, at the end of the operation. */
void
dlock_session_close(DLockDatabase *db)
{
	dlock_step_close();
	table_close(db->rel, RowExclusiveLock);
	db->rel = NULL;
}

/*
 * The database without its store.  Can be called at any time after the first
 * open, also in an abort and at exit.  Cannot fail.
 */
void
dlock_session_shared(DLockDatabase *db)
{
	Assert(my_database != NULL);
	db->shared = my_database;
	db->rel = NULL;
	db->sequence = InvalidOid;
}
