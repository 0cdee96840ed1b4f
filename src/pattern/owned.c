/*-------------------------------------------------------------------------
 *
 * owned.c
 *	  Tables of what belongs to a role: groups and task queues.
 *
 * NOTES
 *	  They are read as catalogs are, without regard to privileges on the table, and
 *	  as is committed now, under any isolation level.
 *
 * IDENTIFICATION
 *	  src/pattern/owned.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/error.h"
#include "base/value.h"
#include "pattern/owned.h"

/* Open a table of the extension, whose schema this is; throws 55000 if it is not there. */
Relation
dlock_owned_open(Oid schema, const char *table, LOCKMODE lockmode)
{
	Oid			oid = get_relname_relid(table, schema);

	if (!OidIsValid(oid))
		dlock_error_no_extension();
	return table_open(oid, lockmode);
}

/* A copy of the row of this name; NULL if there is none. */
HeapTuple
dlock_owned_find(Relation rel, const DLockBytes *name)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	/* This finds the index of the primary key. */
	list_free(RelationGetIndexList(rel));
	ScanKeyInit(&key, DLOCK_OWNED_NAME, BTEqualStrategyNumber, F_TEXTEQ, dlock_value_text(*name));
	scan = systable_beginscan(rel, rel->rd_pkindex, OidIsValid(rel->rd_pkindex), snapshot, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		tuple = heap_copytuple(tuple);
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	return tuple;
}

/* The role that a row belongs to. */
Oid
dlock_owned_role(Relation rel, HeapTuple tuple)
{
	bool		isnull;

	return DatumGetObjectId(heap_getattr(tuple, DLOCK_OWNED_ROLE, RelationGetDescr(rel), &isnull));
}

/*
 * Find the row of this name that a role may use; NULL if there is none.  "what" says
 * what the row is.  Throws 42501.
 */
HeapTuple
dlock_owned_find_usable(Relation rel, const DLockBytes *name, Oid user, const char *what)
{
	HeapTuple	tuple = dlock_owned_find(rel, name);
	Oid			role;
	char	   *rolename;

	if (!HeapTupleIsValid(tuple))
		return NULL;
	role = dlock_owned_role(rel, tuple);
	if (has_privs_of_role(user, role))
		return tuple;
	rolename = GetUserNameFromId(role, true);
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for %s \"%.*s\"", what, name->len, name->data),
			 rolename != NULL ? errdetail("It was created by role \"%s\".", rolename) :
			 errdetail("The role that created it no longer exists."),
			 errhint("Only that role, its members and superusers can use it.")));
}

/*
 * Lock what has this number in a table, up to the end of the transaction; false if
 * it was locked so before.
 */
bool
dlock_owned_lock(Relation rel, uint32 number, LOCKMODE lockmode)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, RelationGetRelid(rel), number, 0);
	return LockAcquire(&tag, lockmode, false, false) == LOCKACQUIRE_OK;
}
