/*-------------------------------------------------------------------------
 *
 * session.c
 *	  This backend and the database that it is connected to.
 *
 * NOTES
 *	  Every operation opens the database first and closes it at its end, not
 *	  at the end of the transaction.  In between it holds a RowExclusiveLock on
 *	  the store, a fast-path lock that keeps DROP EXTENSION, VACUUM FULL and the
 *	  like out.  Oids of relations are remembered until an invalidation message.
 *
 * IDENTIFICATION
 *	  src/session/session.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "catalog/pg_extension.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"

#include "base/compat.h"
#include "base/error.h"
#include "base/stat.h"
#include "session/recover.h"
#include "session/session.h"
#include "space/memory.h"
#include "store/am.h"

/* Remembered from the catalogs; InvalidOid: not looked up. */
static Oid	store_oid = InvalidOid;
static Oid	sequence_oid = InvalidOid;
static Oid	marks_oid = InvalidOid;
static Oid	declared_oid = InvalidOid;

/* The shared state of this backend's database. */
static DLockDatabaseShared *my_database = NULL;

/* One of the relations or everything has changed in the catalogs. */
static void
forget_relations(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == store_oid || relid == sequence_oid || relid == marks_oid ||
		relid == declared_oid)
		store_oid = sequence_oid = marks_oid = declared_oid = InvalidOid;
}

/*
 * The extension, and the schema that it is in; InvalidOid if it is not
 * installed.
 */
static Oid
find_extension(Oid *schema)
{
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	Oid			extension = InvalidOid;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ,
				CStringGetDatum("dlock"));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	*schema = InvalidOid;
	if (HeapTupleIsValid(tuple))
	{
		extension = ((Form_pg_extension) GETSTRUCT(tuple))->oid;
		*schema = ((Form_pg_extension) GETSTRUCT(tuple))->extnamespace;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return extension;
}

/*
 * Look the relations up in the catalogs; false if the extension is not there.
 * Leases can do without the marks.
 */
static bool
find_relations(void)
{
	static bool registered = false;
	Oid			schema;
	Oid			store;
	Oid			sequence;
	Oid			marks;
	Oid			declared;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(forget_relations, (Datum) 0);
		registered = true;
	}

	if (!OidIsValid(find_extension(&schema)))
		return false;
	sequence = get_relname_relid("dlock_token_seq", schema);
	store = get_relname_relid("dlock_store", schema);
	marks = get_relname_relid("dlock_fence_mark", schema);
	declared = get_relname_relid("dlock_fence_declared", schema);

	/* Each look-up can have made us forget the others. */
	sequence_oid = sequence;
	store_oid = store;
	marks_oid = marks;
	declared_oid = declared;
	return OidIsValid(store_oid) && OidIsValid(sequence_oid);
}

/* Is the storage of the relation that of a committed transaction? */
static bool
is_settled(Relation rel)
{
	return rel->rd_createSubid == InvalidSubTransactionId &&
		rel->rd_newRelfilelocatorSubid == InvalidSubTransactionId &&
		rel->rd_firstRelfilelocatorSubid == InvalidSubTransactionId;
}

static bool
is_relation(const Oid *remembered, Oid relid)
{
	return OidIsValid(relid) &&
		(OidIsValid(*remembered) || find_relations()) && relid == *remembered;
}

/* Is this relation the table of marks of this database? */
bool
dlock_session_is_marks(Oid relid)
{
	return is_relation(&marks_oid, relid);
}

/* Is this relation the store of this database? */
bool
dlock_session_is_store(Oid relid)
{
	return is_relation(&store_oid, relid);
}

/* Open one of the relations; NULL if the extension is not installed. */
static Relation
open_relation(Oid *remembered, LOCKMODE lockmode)
{
	Relation	rel;

	/* The remembered oid may belong to a dropped extension. */
	for (;;)
	{
		if (!OidIsValid(*remembered) && (!find_relations() || !OidIsValid(*remembered)))
			return NULL;
		rel = try_table_open(*remembered, lockmode);
		if (rel != NULL)
			break;
		store_oid = sequence_oid = marks_oid = declared_oid = InvalidOid;
	}

	/* Opening it can have made us forget the oids. */
	if (!OidIsValid(*remembered) && !find_relations())
	{
		table_close(rel, lockmode);
		return NULL;
	}
	return rel;
}

/*
 * Open the store of this database; NULL if the extension is not installed.
 * Throws 55000 if it has another access method.
 */
Relation
dlock_session_open_store(LOCKMODE lockmode)
{
	Relation	rel = open_relation(&store_oid, lockmode);

	if (rel != NULL && rel->rd_tableam != dlock_am_routine())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" does not have the access method of the lease store",
						RelationGetRelationName(rel)),
				 errdetail("Its access method has been changed, and the leases in it are gone."),
				 errhint("Drop and create the extension \"dlock\".")));
	return rel;
}

/* Open a table that must be there; throws 55000 if it is not. */
static Relation
open_table(Oid *remembered, LOCKMODE lockmode)
{
	Relation	rel = open_relation(remembered, lockmode);

	if (rel == NULL)
		dlock_error_no_extension();
	return rel;
}

/* Open the marks of fenced resources; throws 55000 if they are not there. */
Relation
dlock_session_open_marks(LOCKMODE lockmode)
{
	return open_table(&marks_oid, lockmode);
}

/* Open what is declared about resources; throws 55000 if it is not there. */
Relation
dlock_session_open_declared(LOCKMODE lockmode)
{
	return open_table(&declared_oid, lockmode);
}

/* The schema of the extension; InvalidOid if it is not installed. */
Oid
dlock_session_schema(void)
{
	Oid			schema;

	(void) find_extension(&schema);
	return schema;
}

/* May the current user do what only the owner of the extension may? */
bool
dlock_session_is_owner(void)
{
	Oid			schema;
	Oid			extension = find_extension(&schema);

	if (!OidIsValid(extension))
		dlock_error_no_extension();
	return object_ownercheck(ExtensionRelationId, extension, GetUserId());
}

/*
 * Throw 25006 unless leases may be changed here and now.  "function" is the
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

/* Throw 55000 if dlock is not preloaded. */
static void
check_preloaded(void)
{
	if (!dlock_memory_is_ready())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("dlock is not preloaded"),
				 errdetail("Leases live in shared memory, which is laid out when the server starts."),
				 errhint("Add \"shared_preload_libraries = 'dlock'\" to postgresql.conf and restart the server.")));
}

/*
 * Find the shared state of this database, leases loaded or not, and count in it
 * from now on.  Throws 55000 if dlock is not preloaded.
 */
void
dlock_session_attach(void)
{
	if (my_database != NULL)
		return;
	check_preloaded();
	my_database = dlock_database_attach(MyDatabaseId);
	dlock_stat_attach(&my_database->stats);
}

/*
 * Open the leases of this database for one operation, after loading them if
 * necessary; false if the extension is not installed.  The server must not be in
 * recovery.  Throws 55000 in all states that an operator has to repair.
 */
static bool
open_if_installed(DLockDatabase *db)
{
	check_preloaded();
	db->rel = dlock_session_open_store(RowExclusiveLock);
	if (db->rel == NULL)
		return false;
	if (!is_settled(db->rel))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot use leases in the transaction that creates or rewrites their store"),
				 errdetail("A rollback of this transaction would remove the store, while leases do not roll back."),
				 errhint("Commit the CREATE EXTENSION or ALTER TABLE first.")));

	dlock_session_attach();
	db->shared = my_database;
	db->sequence = sequence_oid;
	if (!dlock_recover_is_loaded(db))
		dlock_recover_load(db);
	return true;
}

/* The same; throws 55000 if the extension is not installed. */
void
dlock_session_open(DLockDatabase *db)
{
	if (!open_if_installed(db))
		dlock_error_no_extension();
}

/*
 * The same, but do not wait if another session has locked the store, or is
 * waiting to lock it.
 */
DLockSessionTry
dlock_session_try_open(DLockDatabase *db)
{
	Oid			locked;
	bool		installed;

	if (!OidIsValid(store_oid) && !find_relations())
		return DLOCK_SESSION_ABSENT;
	locked = store_oid;
	if (!ConditionalLockRelationOid(locked, RowExclusiveLock))
		return DLOCK_SESSION_LOCKED;
	installed = open_if_installed(db);
	UnlockRelationOid(locked, RowExclusiveLock);
	return installed ? DLOCK_SESSION_OPENED : DLOCK_SESSION_ABSENT;
}

/*
 * Forget the leases of this database if the extension is no longer installed;
 * false if it is.
 */
bool
dlock_session_unload_if_dropped(DLockDatabaseShared *shared)
{
	Relation	rel;

	/* The lock keeps others from loading the leases of a new extension. */
	dlock_recover_lock(shared);
	store_oid = sequence_oid = marks_oid = declared_oid = InvalidOid;
	rel = dlock_session_open_store(AccessShareLock);
	if (rel == NULL)
		dlock_recover_unload(shared);
	else
		table_close(rel, AccessShareLock);
	dlock_recover_unlock(shared);
	return rel == NULL;
}

/* Close what was opened, at the end of the operation. */
void
dlock_session_close(DLockDatabase *db)
{
	table_close(db->rel, RowExclusiveLock);
	db->rel = NULL;
}

/*
 * The database without its store.  Can be called at any time after the first
 * open, also in an error and at exit.  Cannot fail.
 */
void
dlock_session_shared(DLockDatabase *db)
{
	Assert(my_database != NULL);
	db->shared = my_database;
	db->rel = NULL;
	db->sequence = InvalidOid;
}
