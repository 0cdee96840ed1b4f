/*-------------------------------------------------------------------------
 *
 * fence.c
 *	  Enforce tokens: the resources that this transaction may write to.
 *
 * NOTES
 *	  A transaction passes the fence of a resource with a token.  Two rules hold:
 *
 *	  1. The mark of a resource is the highest token with which a transaction
 *		 has passed and committed.  No transaction passes with a
 *		 token below the mark.
 *	  2. Once a transaction has passed, none passes with a higher token until it
 *		 has ended.  So of two transactions that passed with different tokens,
 *		 the one with the lower token has ended before the other one writes.
 *
 *	  src/README, "Fencing", says how the mark and a heavyweight lock enforce them.
 *
 *	  Marks are rows of an ordinary table, so they are transactional, dumped and
 *	  replicated.  They are read and written here as a catalog is, without a
 *	  query: at every isolation level the newest committed mark counts, and
 *	  privileges, constraints and triggers do not.  A table with other columns or
 *	  indexes is refused.  The snapshot is SnapshotSelf, which could see both or none of two
 *	  versions of a row that changes meanwhile; a mark changes under the resource's lock
 *	  alone, unless a restore or a subscription writes it.
 *
 *	  A table in this backend has the token with which the transaction has passed, so
 *	  a row of a statement costs a look-up there.  What a subtransaction changes there
 *	  is undone with it, as the server undoes the lock and the mark.
 *
 *	  The lock's key is a hash of the resource.  Two resources of one hash would
 *	  share the lock, and their transactions would wait for each other.  With 64
 *	  bits of SHA-256 that is improbable, and nobody can choose a resource to hold up
 *	  another one.
 *
 *	  A pass can be live: then the token's lease must be held when it passes, and just
 *	  before the commit.  The process may be paused between that check and the commit.
 *	  The order of writes is kept even then, since a successor waits at the fence for
 *	  this transaction.  The check before the commit is a callback, and the server
 *	  calls the last registered callback first.  Callbacks of other extensions may
 *	  commit on other servers, so ours is registered again at the first live pass of
 *	  each transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "catalog/pg_am.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/snapmgr.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/error.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/settings.h"
#include "base/stat.h"
#include "fence/fence.h"
#include "lock/held.h"
#include "session/session.h"

/* A resource, and how this transaction has passed its fence. */
typedef struct DLockFencePass
{
	char		name[DLOCK_NAME_MAX + 1];	/* hash key, must be first */
	LOCKTAG		tag;
	ItemPointerData tid;		/* where its mark was read last */
	uint64		transaction;	/* the last one that has used it, by number */
	DLockToken	token;			/* DLOCK_TOKEN_NONE: has not passed */
	DLockToken	live;			/* of its last live pass; NONE: there was none */
} DLockFencePass;

/* A table with more resources is not kept for the next transaction. */
#define MAX_REUSED	256

/* The resources, by name; NULL: none. */
static HTAB *passes = NULL;

static uint64 transaction = 1;	/* the number of this transaction */
static bool live = false;		/* is a pass of this transaction live? */
static DLockToken row_token = DLOCK_TOKEN_NONE; /* the last one that it has
												 * written into a row that is
												 * its own mark */

/* A token of a pass, or that of rows, that a subtransaction has changed. */
typedef struct DLockFenceChange
{
	struct DLockFenceChange *next;	/* an earlier one */
	SubTransactionId subid;
	DLockToken *token;
	DLockToken	before;
} DLockFenceChange;

static DLockFenceChange *changes = NULL;	/* the last one first */

/* ---- the marks ---- */

/* The columns of their table. */
enum
{
	COLUMN_RESOURCE = 1,
	COLUMN_TOKEN,
	COLUMN_RAISED_AT,
	COLUMN_RAISED_BY,
	COLUMNS = COLUMN_RAISED_BY
};

/* Open the table; throws 55000 if it is not there, or not as the script has made it. */
static Relation
open_marks(LOCKMODE lockmode)
{
	static const Oid types[COLUMNS] = {TEXTOID, INT8OID, TIMESTAMPTZOID, NAMEOID};
	Relation	rel = dlock_session_open_relation(DLOCK_RELATION_MARKS, lockmode, true);
	TupleDesc	desc = RelationGetDescr(rel);
	List	   *indexes = RelationGetIndexList(rel);
	bool		usable = list_length(indexes) == 1 && linitial_oid(indexes) == rel->rd_pkindex &&
		rel->rd_rel->relam == HEAP_TABLE_AM_OID && desc->natts == COLUMNS &&
		rel->rd_rel->relpersistence == RELPERSISTENCE_PERMANENT;

	for (int i = 0; usable && i < COLUMNS; i++)
		usable = TupleDescAttr(desc, i)->atttypid == types[i];
	list_free(indexes);
	if (!usable)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" has been altered, so dlock cannot use it",
						RelationGetRelationName(rel)),
				 errdetail("It must be a logged heap with its own columns, and have no index but its primary key."),
				 errhint("Undo the ALTER TABLE or CREATE INDEX.")));
	return rel;
}

/* Find the row of a resource, which is valid until "scan" ends; NULL if there is none. */
static HeapTuple
find_mark(Relation rel, const char *resource, SysScanDesc *scan)
{
	ScanKeyData key;

	ScanKeyInit(&key, COLUMN_RESOURCE, BTEqualStrategyNumber, F_TEXTEQ, CStringGetTextDatum(resource));
	*scan = systable_beginscan(rel, rel->rd_pkindex, true, SnapshotSelf, 1, &key);
	return systable_getnext(*scan);
}

static DLockToken
token_of(HeapTuple tuple, Relation rel)
{
	bool		isnull;

	return DatumGetInt64(heap_getattr(tuple, COLUMN_TOKEN, RelationGetDescr(rel), &isnull));
}

/*
 * Read the mark of a resource from where its row was last; false if it is not there.
 *
 * The table may have been rewritten or truncated since, or made anew, or another row may
 * be there.  But names are unique, so a valid row with this name is the one that a
 * scan would find.
 */
static bool
read_at(Relation rel, const DLockFencePass *pass, DLockToken *token)
{
	HeapTupleData tuple = {.t_self = pass->tid};
	Buffer		buffer;
	text	   *name;
	bool		isnull;
	bool		found;

	if (!ItemPointerIsValid(&pass->tid) ||
		ItemPointerGetBlockNumber(&pass->tid) >= RelationGetNumberOfBlocks(rel))
		return false;
	if (!heap_fetch(rel, SnapshotSelf, &tuple, &buffer, false))
		return false;
	name = DatumGetTextPP(heap_getattr(&tuple, COLUMN_RESOURCE, RelationGetDescr(rel), &isnull));
	found = VARSIZE_ANY_EXHDR(name) == strlen(pass->name) &&
		memcmp(VARDATA_ANY(name), pass->name, strlen(pass->name)) == 0;
	if (found)
		*token = token_of(&tuple, rel);
	ReleaseBuffer(buffer);
	return found;
}

/* The mark of a resource; DLOCK_TOKEN_NONE if it has none.  The fence lock must be held. */
static DLockToken
read_mark(DLockFencePass *pass)
{
	Relation	rel;
	DLockToken	token = DLOCK_TOKEN_NONE;

	Assert(DLOCK_LOCK_HELD_BY_ME(&pass->tag, ShareLock) || DLOCK_LOCK_HELD_BY_ME(&pass->tag, ExclusiveLock));
	rel = open_marks(AccessShareLock);
	if (!read_at(rel, pass, &token))
	{
		SysScanDesc scan;
		HeapTuple	tuple = find_mark(rel, pass->name, &scan);

		if (HeapTupleIsValid(tuple))
		{
			token = token_of(tuple, rel);
			pass->tid = tuple->t_self;
		}
		systable_endscan(scan);
	}
	table_close(rel, AccessShareLock);
	return token;
}

/*
 * Set the mark of a resource.  The fence lock must be held exclusively; the table stays
 * locked to the end of the transaction.
 */
static void
write_mark(const DLockFencePass *pass, DLockToken token)
{
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	old;
	HeapTuple	new;
	NameData	role;
	Datum		values[COLUMNS] = {0};
	bool		nulls[COLUMNS] = {false};

	Assert(DLOCK_LOCK_HELD_BY_ME(&pass->tag, ExclusiveLock));
	rel = open_marks(RowExclusiveLock);
	old = find_mark(rel, pass->name, &scan);
	namestrcpy(&role, GetUserNameFromId(GetUserId(), false));
	values[COLUMN_RESOURCE - 1] = CStringGetTextDatum(pass->name);
	values[COLUMN_TOKEN - 1] = Int64GetDatum(token);
	values[COLUMN_RAISED_AT - 1] = TimestampTzGetDatum(dlock_clock_wall());
	values[COLUMN_RAISED_BY - 1] = NameGetDatum(&role);
	new = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	if (HeapTupleIsValid(old))
		CatalogTupleUpdate(rel, &old->t_self, new);
	else
		CatalogTupleInsert(rel, new);
	systable_endscan(scan);
	table_close(rel, NoLock);

	/* The same statement may raise it once more. */
	CommandCounterIncrement();
}

/* ---- what this transaction has passed ---- */

/* Find a resource, and with which token this transaction has passed its fence. */
static DLockFencePass *
find_pass(const DLockBytes *resource)
{
	HASHCTL		control = {
		.keysize = DLOCK_NAME_MAX + 1,
		.entrysize = sizeof(DLockFencePass),
		.hcxt = TopMemoryContext
	};
	char		key[DLOCK_NAME_MAX + 1];
	DLockFencePass *pass;

	memcpy(key, resource->data, resource->len);
	key[resource->len] = '\0';
	if (passes == NULL)
		passes = hash_create("dlock fences", 16, &control, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	pass = hash_search(passes, key, HASH_FIND, NULL);
	if (pass == NULL)
	{
		uint64		hash = dlock_name_stable_hash(resource);

		pass = hash_search(passes, key, HASH_ENTER, NULL);
		SET_LOCKTAG_ADVISORY(pass->tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash,
							 DLOCK_LOCK_CLASS_FENCE);
		ItemPointerSetInvalid(&pass->tid);
		pass->transaction = 0;
	}
	if (pass->transaction != transaction)
	{
		pass->transaction = transaction;
		pass->token = pass->live = DLOCK_TOKEN_NONE;
	}
	return pass;
}

/* Change a token, until this subtransaction is rolled back. */
static void
change(DLockToken *token, DLockToken to)
{
	SubTransactionId subid = GetCurrentSubTransactionId();

	if (subid != TopSubTransactionId && *token != to &&
		!(changes != NULL && changes->token == token && changes->subid == subid))
	{
		DLockFenceChange *made = MemoryContextAlloc(TopTransactionContext, sizeof(DLockFenceChange));

		*made = (DLockFenceChange)
		{
			changes, subid, token, *token
		};
		changes = made;
	}
	*token = to;
}

/* Throw LK002 unless the token of a pass is that of a live lease. */
static void
check_live(const DLockFencePass *pass)
{
	DLockHolderTarget target = {
		.name = dlock_bytes(pass->name, strlen(pass->name)),
		.token = pass->token
	};
	DLockDatabase db;
	bool		held;

	dlock_session_check_grants("dlock_fence");
	dlock_session_open(&db);
	target.hash = dlock_name_hash(db.shared->oid, &target.name);
	held = dlock_held_is_told(&db, &target);
	dlock_session_close(&db);
	if (held)
		return;
	dlock_stat_count(DLOCK_STAT_FENCE_LOST, 1);
	dlock_error_lease_lost(&target.name, pass->token);
}

/*
 * Check what was passed live, before the commit, with the token of the last pass.  A live
 * pass that was rolled back still counts if another pass of the resource stands: so the
 * check may refuse too much, never too little.  PREPARE is refused, since COMMIT PREPARED
 * makes no check.
 */
static void
check_end(bool is_prepare)
{
	HASH_SEQ_STATUS scan;
	DLockFencePass *pass;

	hash_seq_init(&scan, passes);
	while ((pass = hash_seq_search(&scan)) != NULL)
	{
		if (pass->transaction != transaction || pass->live == DLOCK_TOKEN_NONE ||
			pass->token == DLOCK_TOKEN_NONE)
			continue;
		if (is_prepare)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that has passed a fence as a live holder"),
					 errdetail("Only the session that commits can see whether the lease is live."),
					 errhint("Pass the fence without \"live\".")));
		check_live(pass);
	}
}

static void
check_callback(XactEvent event, void *arg)
{
	if (live && (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE))
		check_end(event == XACT_EVENT_PRE_PREPARE);
}

static void
xact_callback(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	transaction++;
	live = false;
	row_token = DLOCK_TOKEN_NONE;
	changes = NULL;				/* goes with the transaction's memory */
	if (passes != NULL && hash_get_num_entries(passes) > MAX_REUSED)
	{
		hash_destroy(passes);
		passes = NULL;
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId subid,
				 SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		for (; changes != NULL && changes->subid == subid; changes = changes->next)
			*changes->token = changes->before;
	}
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		for (DLockFenceChange *made = changes; made != NULL && made->subid == subid; made = made->next)
			made->subid = parent;
	}
}

/* Have this backend and its callbacks ready; throws 55000 if dlock is not preloaded. */
static void
set_up(void)
{
	static bool done = false;

	if (done)
		return;
	dlock_session_attach();
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
	done = true;
}

/* ---- passing ---- */

/* Add the resource to errors and to log_lock_waits. */
static void
name_resource(void *arg)
{
	const DLockFencePass *pass = arg;

	errcontext("while passing the fence of resource \"%s\"", pass->name);
}

static void
acquire(DLockFencePass *pass, LOCKMODE mode)
{
	ErrorContextCallback context = {
		.previous = error_context_stack,
		.callback = name_resource,
		.arg = pass
	};

	error_context_stack = &context;
	(void) LockAcquire(&pass->tag, mode, false, false);
	error_context_stack = context.previous;
}

/* Can a database whose clock was never ahead have granted this token? */
static bool
is_below_clock(DLockToken token)
{
	return token <= dlock_rule_token_clock(dlock_clock_wall() +
										   (TimestampTz) dlock_settings_max_clock_skew_ms * 1000);
}

/* Make all tokens to come exceed this one, unless it is too far above the clock. */
static void
exceed(DLockTokenShared *tokens, DLockToken token)
{
	if (is_below_clock(token))
		dlock_token_exceed(tokens, token);
}

/*
 * Take a token above one that may come from another database.  The result may be below
 * that one if it is above the clock by more than dlock.max_clock_skew: then no database
 * whose clock was never ahead can have granted it.
 */
DLockToken
dlock_fence_take_above(DLockToken above)
{
	DLockDatabase db;
	DLockToken	token;

	dlock_session_open(&db);
	exceed(&db.shared->tokens, above);
	token = dlock_token_take_one(&db.shared->tokens, db.sequence);
	dlock_session_close(&db);
	return token;
}

/*
 * Throw LK001, and nothing else, for a token that is below the mark of "what" with this name:
 * a "resource", or "a row of table".
 *
 * A mark that came from elsewhere, by replication for one, may be above the tokens of
 * this database.  Those to come must be above it, or it would refuse them, too.  It is
 * enough to note that in memory: a refusal opens no store, and waits for nothing, and many
 * of them cost one block of tokens.  What a crash forgets, the next refusal notes again.
 */
void
dlock_fence_refuse(const char *what, const char *name, DLockToken token, DLockToken mark)
{
	DLockDatabase db;

	dlock_stat_count(DLOCK_STAT_FENCE_STALE, 1);
	dlock_session_shared(&db);
	exceed(&db.shared->tokens, mark);
	ereport(ERROR,
			(errcode(ERRCODE_DLOCK_STALE_TOKEN),
			 errmsg("fencing token %lld for %s \"%s\" is stale", (long long) token, what, name),
			 errdetail("Token %lld has been presented since.", (long long) mark),
			 errhint("Stop the work, and acquire the lock again.")));
}

/*
 * Throw 22023 for a token that cannot have been granted by now: it is above the tokens of
 * this database, and above the clock by more than dlock.max_clock_skew, as no token is of
 * a database whose clock was never ahead (src/README, "Tokens").  The other arguments are
 * those of dlock_fence_refuse().
 */
void
dlock_fence_check_known(const char *what, const char *name, DLockToken token)
{
	DLockDatabase db;
	DLockToken	issued;

	if (is_below_clock(token))
		return;
	dlock_session_open(&db);
	issued = dlock_token_issued(&db.shared->tokens);
	if (token > issued)
		issued = dlock_token_take_one(&db.shared->tokens, db.sequence);
	dlock_session_close(&db);
	if (token <= issued)
		return;
	dlock_stat_count(DLOCK_STAT_FENCE_UNKNOWN, 1);
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("fencing token %lld for %s \"%s\" has never been granted", (long long) token, what, name),
			 errdetail("The latest token of this database is %lld, and the token is above the clock.",
					   (long long) issued),
			 errhint("If the lock's database had its clock ahead, call dlock_bump_epoch() here, with \"above\" above its tokens.")));
}

/*
 * Get a resource's lock for a token, and raise the mark if it is below.
 *
 * Release the share lock before acquiring the exclusive one, or two transactions
 * that raise the mark would deadlock.  If another one has raised it meanwhile, share
 * the lock after all.
 */
static void
take(DLockFencePass *pass, DLockToken token)
{
	for (;;)
	{
		DLockToken	mark;

		DLOCK_FAULT("fence");
		acquire(pass, ShareLock);
		mark = read_mark(pass);
		DLOCK_FAULT("fence_read");
		if (mark > token)
			dlock_fence_refuse("resource", pass->name, token, mark);
		if (mark == token)
			return;
		(void) LockRelease(&pass->tag, ShareLock, false);
		DLOCK_FAULT("fence_raise");
		if (XactReadOnly)
			ereport(ERROR,
					(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
					 errmsg("cannot raise the mark of resource \"%s\" in a read-only transaction", pass->name),
					 errdetail("The token is higher than the mark of the resource."),
					 errhint("Call dlock_fence() in a READ WRITE transaction.")));
		dlock_fence_check_known("resource", pass->name, token);
		acquire(pass, ExclusiveLock);
		if (read_mark(pass) < token)
		{
			DLOCK_FAULT("fence_write");
			write_mark(pass, token);
			return;
		}
		(void) LockRelease(&pass->tag, ExclusiveLock, false);
	}
}

/*
 * Pass the fence of a resource for the rest of this transaction, with the token that it
 * presents: the one given, unless it is DLOCK_TOKEN_NONE; else the one that it has passed
 * with; else the one in the setting.  Returns it; DLOCK_TOKEN_NONE, and has not passed, if
 * there is none.  "as_live": as the holder of a lease on the lock of that name.  That is
 * checked at the first such pass with this token, and at each with "anew".
 *
 * Waits for transactions that have passed with a lower token, and for one that
 * is raising the mark.  Throws LK001 if a higher token has passed, LK002 if the
 * lease is not live, 22023 if the token is unknown, 25006 on a standby or if a
 * read-only transaction would have to raise the mark, 55000 if the extension is
 * not ready.
 */
DLockToken
dlock_fence_pass(const DLockBytes *resource, DLockToken token, bool as_live, bool anew)
{
	DLockFencePass *pass;

	if (RecoveryInProgress())
		dlock_error_standby("dlock_fence");
	set_up();
	pass = find_pass(resource);
	if (token == DLOCK_TOKEN_NONE)
		token = (pass->token != DLOCK_TOKEN_NONE) ? pass->token : dlock_settings_token(resource);
	if (token == DLOCK_TOKEN_NONE)
		return DLOCK_TOKEN_NONE;
	if (token < pass->token)
		dlock_fence_refuse("resource", pass->name, token, pass->token);
	if (token > pass->token)
	{
		take(pass, token);
		change(&pass->token, token);
	}
	if (!as_live || (pass->live == token && !anew))
		return token;
	check_live(pass);
	if (!live)
	{
		/* If this fails, nothing has passed live. */
		UnregisterXactCallback(check_callback, NULL);
		RegisterXactCallback(check_callback, NULL);
		live = true;
	}
	pass->live = token;
	return token;
}

/* ---- tokens of no resource in particular ---- */

/* This transaction has written a token into a row that is its own mark. */
void
dlock_fence_note_row(DLockToken token)
{
	set_up();
	change(&row_token, token);
}

/*
 * The token that this transaction presents for a row that is its own mark: the
 * last token that it has written into such a row; else the token for "*" in the
 * setting; else its only token, from passes and the setting.  DLOCK_TOKEN_NONE
 * if there is none, or several.
 */
DLockToken
dlock_fence_presented(void)
{
	const DLockSettingsToken *pairs;
	int			count = dlock_settings_tokens(&pairs);
	DLockToken	only = DLOCK_TOKEN_NONE;
	bool		several = false;
	HASH_SEQ_STATUS scan;
	DLockFencePass *pass;

	if (row_token != DLOCK_TOKEN_NONE)
		return row_token;
	for (int i = 0; i < count; i++)
	{
		if (pairs[i].any)
			return pairs[i].token;
		several |= only != DLOCK_TOKEN_NONE && only != pairs[i].token;
		only = pairs[i].token;
	}
	if (passes != NULL)
		hash_seq_init(&scan, passes);
	while (passes != NULL && (pass = hash_seq_search(&scan)) != NULL)
	{
		if (pass->transaction != transaction || pass->token == DLOCK_TOKEN_NONE)
			continue;
		several |= only != DLOCK_TOKEN_NONE && only != pass->token;
		only = pass->token;
	}
	return several ? DLOCK_TOKEN_NONE : only;
}
