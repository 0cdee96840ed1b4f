/*-------------------------------------------------------------------------
 *
 * fence.c
 *	  Enforce tokens: the resources that this transaction may write to.
 *
 * NOTES
 *	  A transaction passes the fence of a resource with a token.  Two rules hold:
 *
 *	  1. The mark of a resource is the highest token with which a transaction
 *		 has passed and committed (fence/mark.c).  No transaction passes with a
 *		 token below the mark.
 *	  2. Once a transaction has passed, none passes with a higher token until it
 *		 has ended.  So of two transactions that passed with different tokens,
 *		 the one with the lower token has ended before the other one writes.
 *
 *	  The second rule is enforced by a heavyweight lock for each resource, held
 *	  to the end of the transaction.  A transaction whose token is the mark takes
 *	  it in share mode, and a transaction that raises the mark in exclusive mode.
 *	  The mark is a row that the transaction itself updates.  If it commits, all
 *	  later holders of the lock see the new mark, since the server releases locks
 *	  only after the commit is visible; if it rolls back, so does the mark.  The
 *	  server detects deadlocks among these and all other locks, keeps them over
 *	  PREPARE TRANSACTION, and releases them at a rollback to a savepoint.
 *
 *	  Only a token that this database has granted raises a mark; a higher one
 *	  would refuse all tokens to come.  Tokens of a resource that is declared to
 *	  be foreign come from another database, and are not checked.
 *
 *	  The lock's key is a hash of the resource.  Two resources of one hash would
 *	  share the lock, and their transactions would wait for each other.  With 64
 *	  bits of SHA-256 that is improbable, and nobody can choose a resource to hold up
 *	  another one.
 *
 *	  A transaction that has passed and does not end keeps all higher tokens
 *	  out, so an error that ends a wait for the lock names the transaction.
 *
 *	  The mark is read under the lock, and the lock is kept, so one check is
 *	  enough for a transaction.  This backend remembers its passes by savepoint,
 *	  since a rollback to a savepoint takes back locks and marks.
 *
 *	  A pass can be live: then the token's lease must be held at each statement
 *	  that asks, and just before the commit.  The process may be paused between
 *	  that check and the commit.  The order of writes is kept even then, since a
 *	  successor waits at the fence for this transaction.  The check before the
 *	  commit is a callback, and the server calls the last registered callback
 *	  first.  Callbacks of other extensions may commit on other servers, so ours
 *	  is registered again at the first live pass of each transaction.
 *
 *	  All passes of a transaction are on one stack, newest first, so passes of a
 *	  savepoint are on top of earlier ones.  A token that was presented in a row
 *	  which is its own mark is on the stack too, as a pass of no resource.
 *	  Most transactions pass few resources, so the first ones are in an array;
 *	  the hash table for all others is not made without need.
 *
 * IDENTIFICATION
 *	  src/fence/fence.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "base/error.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/settings.h"
#include "base/stat.h"
#include "fence/fence.h"
#include "fence/mark.h"
#include "lock/held.h"
#include "session/session.h"

/* One pass of this transaction. */
typedef struct DLockFencePass
{
	struct DLockFencePass *next;	/* on the stack */
	struct DLockFencePass *before;	/* of the same resource */
	struct DLockFenceResource *resource;	/* NULL: a row's token */
	SubTransactionId subid;
	DLockToken	token;
	bool		live;
} DLockFencePass;

/* A resource that this transaction has passed. */
typedef struct DLockFenceResource
{
	char		name[DLOCK_NAME_MAX + 1];	/* hash key, must be first */
	DLockFencePass *last;		/* NULL if rolled back */
} DLockFenceResource;

/* So many resources of a transaction need no hash table. */
#define FEW		4

/* These belong to the current transaction, and are empty outside one. */
static DLockFenceResource few[FEW];
static int	few_count = 0;
static HTAB *others = NULL;
static DLockFencePass *stack = NULL;
static DLockFencePass *last_row = NULL;
static bool live = false;		/* has any pass been live? */

uint64		dlock_fence_generation = 1;

/* ---- what this transaction has passed ---- */

/* Throw LK002 unless a token is that of a live lease. */
static void
check_live(const DLockBytes *resource, DLockToken token)
{
	DLockHolderTarget target = {
		.by = DLOCK_BY_TOKEN,
		.name = *resource,
		.token = token
	};
	DLockDatabase db;
	bool		held;

	dlock_session_open(&db);
	target.hash = dlock_name_hash(db.shared->oid, resource);
	held = dlock_held_is_told(&db, &target);
	dlock_session_close(&db);
	if (held)
		return;
	dlock_stat_count(DLOCK_STAT_FENCE_LOST, 1);
	dlock_error_lease_lost(resource, token);
}

/* The live pass of a resource that counts: the one with the highest token. */
static DLockFencePass *
last_live(const DLockFenceResource *resource)
{
	DLockFencePass *pass = resource->last;

	while (pass != NULL && !pass->live)
		pass = pass->before;
	return pass;
}

/* Before the commit: is what was live still so? */
static void
check_commit(void)
{
	for (DLockFencePass *pass = stack; live && pass != NULL; pass = pass->next)
	{
		if (pass->live && pass == last_live(pass->resource))
		{
			DLockBytes	name = {pass->resource->name, strlen(pass->resource->name)};

			check_live(&name, pass->token);
		}
	}
}

/* A prepared transaction commits without a check. */
static void
check_prepare(void)
{
	for (DLockFencePass *pass = stack; pass != NULL; pass = pass->next)
	{
		if (pass->live)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot prepare a transaction that has passed a fence as a live holder"),
					 errdetail("Only the session that commits can see whether the lease is live."),
					 errhint("Pass the fence without \"live\".")));
	}
}

/*
 * The check before the commit.  If registering it again fails, nothing has
 * passed live; xact_callback() still forgets the passes.
 */
static void
check_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_COMMIT)
		check_commit();
	else if (event == XACT_EVENT_PRE_PREPARE)
		check_prepare();
}

static void
xact_callback(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	few_count = 0;
	others = NULL;				/* goes with the transaction's memory */
	stack = NULL;
	last_row = NULL;
	live = false;
	dlock_fence_generation++;
}

static void
subxact_callback(SubXactEvent event, SubTransactionId subid,
				 SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		while (stack != NULL && stack->subid == subid)
		{
			DLockFencePass *pass = stack;

			if (pass->resource != NULL)
				pass->resource->last = pass->before;
			else
				last_row = pass->before;
			stack = pass->next;
			pfree(pass);
			dlock_fence_generation++;
		}
	}
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		for (DLockFencePass *pass = stack; pass != NULL && pass->subid == subid; pass = pass->next)
			pass->subid = parent;
	}
}

/* Be called when the transaction ends. */
static void
register_callbacks(void)
{
	static bool registered = false;

	if (registered)
		return;
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
	registered = true;
}

static HTAB *
create_others(void)
{
	HASHCTL		control = {
		.keysize = DLOCK_NAME_MAX + 1,
		.entrysize = sizeof(DLockFenceResource),
		.hcxt = TopTransactionContext
	};

	return hash_create("dlock fences", 16, &control, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

/* The resource of this name; if there is none, a new one with "enter", else NULL. */
static DLockFenceResource *
find_resource(const DLockBytes *name, bool enter)
{
	DLockFenceResource *resource;
	char		key[DLOCK_NAME_MAX + 1];
	bool		found;

	for (int i = 0; i < few_count; i++)
	{
		if (few[i].name[name->len] == '\0' && memcmp(few[i].name, name->data, name->len) == 0)
			return &few[i];
	}
	if (enter && few_count < FEW)
	{
		resource = &few[few_count++];
		memcpy(resource->name, name->data, name->len);
		resource->name[name->len] = '\0';
		resource->last = NULL;
		return resource;
	}

	if (others == NULL && !enter)
		return NULL;
	if (others == NULL)
		others = create_others();
	memcpy(key, name->data, name->len);
	key[name->len] = '\0';
	resource = hash_search(others, key, enter ? HASH_ENTER : HASH_FIND, &found);
	if (resource != NULL && !found)
		resource->last = NULL;
	return resource;
}

/* Remember a pass; all that can fail is done before anything changes. */
static void
remember(DLockFenceResource *resource, DLockToken token, bool is_live)
{
	DLockFencePass **last = (resource != NULL) ? &resource->last : &last_row;
	DLockFencePass *pass = MemoryContextAlloc(TopTransactionContext, sizeof(DLockFencePass));

	if (is_live && !live)
	{
		UnregisterXactCallback(check_callback, NULL);
		RegisterXactCallback(check_callback, NULL);
		live = true;
	}
	pass->next = stack;
	pass->before = *last;
	pass->resource = resource;
	pass->subid = GetCurrentSubTransactionId();
	pass->token = token;
	pass->live = is_live;
	*last = pass;
	stack = pass;
	dlock_fence_generation++;
}

/* ---- the lock and the mark ---- */

/* The transactions that have passed the fence, as a list for people. */
static char *
list_holders(const LOCKTAG *tag)
{
	LockData   *locks = GetLockStatusData();
	StringInfoData list;

	initStringInfo(&list);
	for (int i = 0; i < locks->nelements; i++)
	{
		LockInstanceData *lock = &locks->locks[i];
		PGPROC	   *proc;
		char	   *role;

		if (memcmp(&lock->locktag, tag, sizeof(LOCKTAG)) != 0 || lock->holdMask == 0 ||
			lock->pid == MyProcPid)
			continue;
		proc = BackendPidGetProc(lock->pid);
		role = (proc != NULL) ? GetUserNameFromId(proc->roleId, true) : NULL;
		if (list.len > 0)
			appendStringInfoString(&list, ", ");
		if (lock->pid == 0)
			appendStringInfoString(&list, "a prepared transaction");
		else if (role != NULL)
			appendStringInfo(&list, "process %d of role \"%s\"", lock->pid, role);
		else
			appendStringInfo(&list, "process %d", lock->pid);
	}
	return list.data;
}

/* Throw the error that has ended the wait for a resource's lock, with a hint. */
pg_noreturn static void
rethrow_blocked(const LOCKTAG *tag, const DLockBytes *resource, MemoryContext caller)
{
	ErrorData  *error;
	char	   *holders;

	MemoryContextSwitchTo(caller);
	error = CopyErrorData();
	FlushErrorState();

	/* Leave the lock's queue before catalogs, and so other locks, are used. */
	LockErrorCleanup();
	if (error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ||
		error->sqlerrcode == ERRCODE_QUERY_CANCELED)
	{
		holders = list_holders(tag);
		if (*holders != '\0')
			error->hint = psprintf("In the way at the fence of resource \"%.*s\": %s. That role, a member of pg_signal_backend, or a superuser can end a process by pg_terminate_backend().",
								   resource->len, resource->data, holders);
	}
	ReThrowError(error);
}

/* Get a resource's lock; an error that ends the wait names its holders. */
static void
acquire(const LOCKTAG *tag, LOCKMODE mode, const DLockBytes *resource)
{
	MemoryContext caller = CurrentMemoryContext;

	if (LockAcquire(tag, mode, false, true) != LOCKACQUIRE_NOT_AVAIL)
		return;
	PG_TRY();
	{
		(void) LockAcquire(tag, mode, false, false);
	}
	PG_CATCH();
	{
		rethrow_blocked(tag, resource, caller);
	}
	PG_END_TRY();
}

static void
refuse_stale(const DLockBytes *resource, DLockToken token, DLockToken mark)
{
	dlock_stat_count(DLOCK_STAT_FENCE_STALE, 1);
	ereport(ERROR,
			(errcode(ERRCODE_DLOCK_STALE_TOKEN),
			 errmsg("fencing token %lld for resource \"%.*s\" is stale",
					(long long) token, resource->len, resource->data),
			 errdetail("The resource has been fenced with token %lld since.", (long long) mark),
			 errhint("Stop the work, and acquire the lock again.")));
}

/*
 * Throw 22023 for a token that this database has not granted, unless the resource is
 * declared foreign.  A row of "table" that is its own mark has no resource: it is empty,
 * and "table" is NULL for all others.
 *
 * Most tokens are not above those that this backend has seen before.  Any other
 * token is compared with a fresh one, which is above all tokens from before the
 * start of the server (see README).
 */
void
dlock_fence_check_known(const DLockBytes *resource, const char *table, DLockToken token)
{
	static DLockToken issued = DLOCK_TOKEN_NONE;
	DLockMarkDeclared declared;
	DLockDatabase db;

	if (token <= issued)
		return;
	dlock_mark_find_declared(resource, false, &declared);
	if (declared.is_foreign)
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
			 (table == NULL) ?
			 errmsg("fencing token %lld for resource \"%.*s\" has never been granted",
					(long long) token, resource->len, resource->data) :
			 errmsg("fencing token %lld for a row of table \"%s\" has never been granted",
					(long long) token, table),
			 errdetail("The latest token of this database is %lld.", (long long) issued),
			 (table == NULL) ?
			 errhint("If the lock is in another database, call dlock_fence_declare(resource, is_foreign => true).") :
			 errhint("If the locks are in another database, create the guard with 'tokens=foreign'.")));
}

/*
 * Get a resource's lock for a token, and raise the mark if it is below.
 *
 * Release the share lock before acquiring the exclusive one, or two transactions
 * that raise the mark would deadlock.
 */
static void
take(const DLockBytes *resource, DLockToken token)
{
	LOCKTAG		tag;
	DLockToken	mark;

	dlock_mark_tag(&tag, resource);
	DLOCK_FAULT("fence");
	acquire(&tag, ShareLock, resource);
	mark = dlock_mark_read(resource);
	DLOCK_FAULT("fence_read");
	if (mark < token)
	{
		(void) LockRelease(&tag, ShareLock, false);
		DLOCK_FAULT("fence_raise");
		if (XactReadOnly)
			ereport(ERROR,
					(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
					 errmsg("cannot raise the mark of resource \"%.*s\" in a read-only transaction",
							resource->len, resource->data),
					 errdetail("The token is higher than the mark of the resource."),
					 errhint("Call dlock_fence() in a READ WRITE transaction.")));
		dlock_fence_check_known(resource, NULL, token);
		acquire(&tag, ExclusiveLock, resource);
		mark = dlock_mark_read(resource);
		if (mark < token)
		{
			DLOCK_FAULT("fence_write");
			dlock_mark_write(resource, token);
			return;
		}
		if (mark == token)
		{
			/*
			 * Another transaction has raised it to this token: share the
			 * lock.
			 */
			(void) LockAcquire(&tag, ShareLock, false, false);
			(void) LockRelease(&tag, ExclusiveLock, false);
		}
	}
	if (mark > token)
		refuse_stale(resource, token, mark);
}

/*
 * Throw 42501 unless the current user may pass the fence of a resource, or with
 * "is_prefix", of all whose names begin so.
 *
 * A guard does not ask.  Its creator had this right, and privileges on the table
 * decide which roles may write.
 */
void
dlock_fence_check_right(const DLockBytes *resource, bool is_prefix)
{
	DLockMarkDeclared declared;

	dlock_mark_find_declared(resource, is_prefix, &declared);
	if (OidIsValid(declared.denied))
	{
		char	   *role = GetUserNameFromId(declared.denied, true);

		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for fenced resource \"%.*s\"",
						resource->len, resource->data),
				 (role != NULL) ?
				 errdetail("\"%s\" is declared to belong to role \"%s\".", declared.by, role) :
				 errdetail("\"%s\" is declared to belong to a role that no longer exists.", declared.by),
				 errhint("Use a member of the role, or change the declaration with dlock_fence_declare().")));
	}
}

/*
 * Pass the fence of a resource with a token, above zero, for the rest of this
 * transaction; "as_live", as the holder of a lease on the lock of that name.
 *
 * Waits for transactions that have passed with a lower token, and for one that
 * is raising the mark.  Throws LK001 if a higher token has passed, LK002 if the
 * lease is not live, 22023 if the token is unknown, 25006 on a standby or if a
 * read-only transaction would have to raise the mark, 55000 if the extension is
 * not ready.
 */
void
dlock_fence_pass(const DLockBytes *resource, DLockToken token, bool as_live)
{
	DLockFenceResource *passed;
	DLockFencePass *last;

	if (RecoveryInProgress())
		dlock_error_standby("dlock_fence");
	dlock_session_attach();
	register_callbacks();
	passed = find_resource(resource, true);
	last = passed->last;

	if (last != NULL && token < last->token)
		refuse_stale(resource, token, last->token);
	if (last == NULL || token > last->token)
		take(resource, token);
	if (as_live)
		check_live(resource, token);
	if (last == NULL || token > last->token || (as_live && !last->live))
		remember(passed, token, as_live);
}

/* The token with which this transaction has passed; DLOCK_TOKEN_NONE if not. */
static DLockToken
passed_with(const DLockBytes *resource)
{
	DLockFenceResource *passed;

	if (stack == NULL)
		return DLOCK_TOKEN_NONE;
	passed = find_resource(resource, false);
	return (passed != NULL && passed->last != NULL) ? passed->last->token : DLOCK_TOKEN_NONE;
}

/*
 * Pass the fence of a resource with the token that this transaction presents: the one
 * given, unless it is DLOCK_TOKEN_NONE; else the one that it has passed with; else the
 * one in the setting.  Returns it; DLOCK_TOKEN_NONE, and has not passed, if there is none.
 * Throws what dlock_fence_pass() throws.
 */
DLockToken
dlock_fence_pass_presented(const DLockBytes *resource, DLockToken token, bool as_live)
{
	if (token == DLOCK_TOKEN_NONE)
		token = passed_with(resource);
	if (token == DLOCK_TOKEN_NONE)
		token = dlock_settings_token(resource);
	if (token != DLOCK_TOKEN_NONE)
		dlock_fence_pass(resource, token, as_live);
	return token;
}

/* ---- tokens of no resource in particular ---- */

/* This transaction has written a token into a row that is its own mark. */
void
dlock_fence_note_row(DLockToken token)
{
	/* A statement may write many rows. */
	if (last_row != NULL && last_row->subid == GetCurrentSubTransactionId())
	{
		last_row->token = token;
		return;
	}
	register_callbacks();
	remember(NULL, token, false);
}

/*
 * The token that this transaction presents for a row that is its own mark: the
 * last token that it has written into such a row; else the token for "*" in the
 * setting; else its only token, from passes and the setting.  DLOCK_TOKEN_NONE
 * if there is none, or several; these set "ambiguous".
 */
DLockToken
dlock_fence_presented(bool *ambiguous)
{
	const DLockSettingsToken *pairs;
	int			count = dlock_settings_tokens(&pairs);
	DLockToken	only = DLOCK_TOKEN_NONE;

	*ambiguous = false;
	if (last_row != NULL)
		return last_row->token;
	for (int i = 0; i < count; i++)
	{
		if (pairs[i].any)
			return pairs[i].token;
		*ambiguous |= (only != DLOCK_TOKEN_NONE && only != pairs[i].token);
		only = pairs[i].token;
	}
	for (DLockFencePass *pass = stack; pass != NULL; pass = pass->next)
	{
		/* Only the latest pass of a resource counts. */
		if (pass->resource->last != pass || pass->token == DLOCK_TOKEN_NONE)
			continue;
		*ambiguous |= (only != DLOCK_TOKEN_NONE && only != pass->token);
		only = pass->token;
	}
	return *ambiguous ? DLOCK_TOKEN_NONE : only;
}

/*
 * Set the mark of a resource to a token, which may be lower, or remove it if the
 * token is DLOCK_TOKEN_NONE.  Waits until all other transactions that have passed
 * are over.  Returns the old mark.  Throws 42501 unless the current user owns the
 * extension.
 */
DLockToken
dlock_fence_reset(const DLockBytes *resource, DLockToken token)
{
	LOCKTAG		tag;
	DLockToken	mark;

	dlock_session_attach();
	if (!dlock_session_is_owner())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of extension \"dlock\" to reset a mark"),
				 errdetail("A lower mark lets holders write that have been fenced off."),
				 errhint("Acquire a new lease: its token is above the mark.")));
	dlock_mark_tag(&tag, resource);
	acquire(&tag, ExclusiveLock, resource);
	mark = dlock_mark_read(resource);
	dlock_mark_write(resource, token);

	/* If this transaction has passed, it has to do so again. */
	if (passed_with(resource) != DLOCK_TOKEN_NONE)
		remember(find_resource(resource, false), DLOCK_TOKEN_NONE, false);
	return mark;
}
