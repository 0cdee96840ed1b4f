/*-------------------------------------------------------------------------
 *
 * owned.c
 *	  What belongs to a role: the definitions of groups, and task queues.
 *
 * NOTES
 *	  They are rows of tables, which are read and written here as catalogs are,
 *	  without regard to privileges on the table; what is read is what is committed
 *	  now, under any isolation level.  A row belongs to the role that created it;
 *	  that role and its members may use it.
 *
 *	  So the members of a group go by one list of partitions, and no caller can
 *	  bring its own.  The functions on task queues are in the extension's script,
 *	  and find and lock a queue here (sql/task.c).
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
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/error.h"
#include "base/name.h"
#include "fence/mark.h"
#include "pattern/owned.h"
#include "session/session.h"

/* The first columns of each of these tables. */
#define COLUMN_NAME			1	/* the primary key */
#define COLUMN_ROLE			2

/* And those of the table of groups. */
#define COLUMN_PARTITIONS	3
#define COLUMNS				3

/* ---- rows ---- */

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
static HeapTuple
find_row(Relation rel, const DLockBytes *name)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	/* This finds the index of the primary key. */
	list_free(RelationGetIndexList(rel));
	ScanKeyInit(&key, COLUMN_NAME, BTEqualStrategyNumber, F_TEXTEQ, dlock_name_to_text(*name));
	scan = systable_beginscan(rel, rel->rd_pkindex, OidIsValid(rel->rd_pkindex), snapshot, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		tuple = heap_copytuple(tuple);
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	return tuple;
}

/* The role that a row belongs to. */
static Oid
role_of(Relation rel, HeapTuple tuple)
{
	bool		isnull;

	return DatumGetObjectId(heap_getattr(tuple, COLUMN_ROLE, RelationGetDescr(rel), &isnull));
}

/* Find the row of this name that a role may use; NULL if there is none.  Throws 42501. */
HeapTuple
dlock_owned_find_usable(Relation rel, DLockOwnedKind kind, const DLockBytes *name, Oid user)
{
	HeapTuple	tuple = find_row(rel, name);
	Oid			role;
	char	   *rolename;

	if (!HeapTupleIsValid(tuple))
		return NULL;
	role = role_of(rel, tuple);
	if (has_privs_of_role(user, role))
		return tuple;
	rolename = GetUserNameFromId(role, true);
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 (kind == DLOCK_OWNED_GROUP) ?
			 errmsg("permission denied for group \"%.*s\"", name->len, name->data) :
			 errmsg("permission denied for task queue \"%.*s\"", name->len, name->data),
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

/* ---- groups ---- */

static const DLockNameKind partition_name = {
	DLOCK_GROUP_NAME_MAX,
	gettext_noop("partition name must not be null"),
	gettext_noop("partition name must not be empty"),
	gettext_noop("partition name is too long")
};

/* The names of partitions in an array, which may be the same; throws 22023 and 22004. */
static DLockBytes *
get_names(ArrayType *partitions, int *count)
{
	return dlock_name_of_array(partitions, DLOCK_GROUP_INVALID_NAMES, &partition_name,
							   DLOCK_GROUP_PARTITIONS_MAX, count);
}

/* Throw unless a group may have these partitions. */
static void
check_partitions(ArrayType *partitions)
{
	int			count;
	DLockBytes *names = get_names(partitions, &count);

	dlock_name_check_different(names, count, DLOCK_GROUP_INVALID_NAMES);
}

/* Open the table of groups; "function" is the SQL function that writes or uses it, if any. */
static Relation
open_groups(const char *function, LOCKMODE lockmode)
{
	static const Oid types[COLUMNS] = {TEXTOID, REGROLEOID, TEXTARRAYOID};
	Relation	rel;

	if (function != NULL)
		dlock_session_check_writable(function);
	dlock_session_attach();
	rel = dlock_owned_open(dlock_session_schema(), "dlock_groups", lockmode);
	if (lockmode == RowExclusiveLock)
		dlock_mark_check_table(rel, types, COLUMNS, true);
	return rel;
}

/* Take the partitions of a group from its row. */
static void
take_row(DLockGroup *group, Relation rel, HeapTuple tuple)
{
	bool		isnull;
	Datum		partitions = heap_getattr(tuple, COLUMN_PARTITIONS, RelationGetDescr(rel), &isnull);
	DLockBytes *names = get_names(DatumGetArrayTypePCopy(partitions), &group->partition_count);

	group->partitions = palloc0(group->partition_count * sizeof(DLockGroupPartition));
	for (int i = 0; i < group->partition_count; i++)
		group->partitions[i].name = names[i];
}

pg_noreturn static void
report_no_group(const DLockBytes *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("group \"%.*s\" does not exist", name->len, name->data),
			 errhint("Create it with dlock_group_create().")));
}

/* Find the row of a group that the caller may use.  Throws 42501. */
static HeapTuple
find_own_row(Relation rel, const DLockBytes *name)
{
	return dlock_owned_find_usable(rel, DLOCK_OWNED_GROUP, name, GetUserId());
}

/* Lock a name up to the end of the transaction, so that nobody else writes its row. */
static void
lock_name(Relation rel, const DLockBytes *name)
{
	(void) dlock_owned_lock(rel, (uint32) dlock_name_stable_hash(name), ExclusiveLock);
}

/* Find a row as above, and lock it; who may not use the group waits for nobody. */
static HeapTuple
lock_own_row(Relation rel, const DLockBytes *name)
{
	HeapTuple	tuple = find_own_row(rel, name);

	if (!HeapTupleIsValid(tuple))
		return NULL;
	lock_name(rel, name);
	return find_own_row(rel, name);
}

/* Write the row of a group, in place of another unless that is NULL. */
static void
write_row(Relation rel, HeapTuple old, const DLockBytes *name, Oid role, ArrayType *partitions)
{
	TupleDesc	desc = RelationGetDescr(rel);
	Datum	   *values = palloc0(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));
	HeapTuple	tuple;

	/* An administrator may have added columns; those of the other row stay. */
	memset(nulls, true, desc->natts * sizeof(bool));
	if (old != NULL)
		heap_deform_tuple(old, desc, values, nulls);
	memset(nulls, false, COLUMNS * sizeof(bool));
	values[COLUMN_NAME - 1] = dlock_name_to_text(*name);
	values[COLUMN_ROLE - 1] = ObjectIdGetDatum(role);
	values[COLUMN_PARTITIONS - 1] = PointerGetDatum(partitions);
	tuple = heap_form_tuple(desc, values, nulls);
	if (old == NULL)
		CatalogTupleInsert(rel, tuple);
	else
		CatalogTupleUpdate(rel, &old->t_self, tuple);
	CommandCounterIncrement();
}

/* Create a group, which belongs to the current role.  Throws 42710. */
void
dlock_owned_create_group(const DLockBytes *name, ArrayType *partitions)
{
	Relation	rel;

	check_partitions(partitions);
	rel = open_groups("dlock_group_create", RowExclusiveLock);
	if (!HeapTupleIsValid(find_row(rel, name)))
		lock_name(rel, name);
	if (HeapTupleIsValid(find_row(rel, name)))
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("group \"%.*s\" already exists", name->len, name->data),
				 errhint("To give it other partitions, use dlock_group_alter().")));
	write_row(rel, NULL, name, GetUserId(), partitions);
	table_close(rel, NoLock);
}

/* Give a group other partitions.  Throws 42501, and 42704 if there is none. */
void
dlock_owned_alter_group(const DLockBytes *name, ArrayType *partitions)
{
	Relation	rel;
	HeapTuple	tuple;

	check_partitions(partitions);
	rel = open_groups("dlock_group_alter", RowExclusiveLock);
	tuple = lock_own_row(rel, name);
	if (!HeapTupleIsValid(tuple))
		report_no_group(name);
	write_row(rel, tuple, name, role_of(rel, tuple), partitions);
	table_close(rel, NoLock);
}

/* Drop a group; false if there is none.  Throws 42501. */
bool
dlock_owned_drop_group(const DLockBytes *name)
{
	Relation	rel = open_groups("dlock_group_drop", RowExclusiveLock);
	HeapTuple	tuple = lock_own_row(rel, name);

	if (HeapTupleIsValid(tuple))
	{
		CatalogTupleDelete(rel, &tuple->t_self);
		CommandCounterIncrement();
	}
	table_close(rel, NoLock);
	return HeapTupleIsValid(tuple);
}

/* Read the partitions of a group, to look at it; false if there is none. */
bool
dlock_owned_find_group(DLockGroup *group)
{
	Relation	rel = open_groups(NULL, AccessShareLock);
	HeapTuple	tuple = find_row(rel, &group->name);

	if (HeapTupleIsValid(tuple))
		take_row(group, rel, tuple);
	table_close(rel, AccessShareLock);
	return HeapTupleIsValid(tuple);
}

/*
 * Read the partitions of a group that the caller wants to use, by the SQL
 * function of this name.  Throws 25006, 42501, and 42704 if there is none.
 */
void
dlock_owned_use_group(DLockGroup *group, const char *function)
{
	Relation	rel = open_groups(function, AccessShareLock);
	HeapTuple	tuple = find_own_row(rel, &group->name);

	if (!HeapTupleIsValid(tuple))
		report_no_group(&group->name);
	take_row(group, rel, tuple);
	table_close(rel, AccessShareLock);
}
