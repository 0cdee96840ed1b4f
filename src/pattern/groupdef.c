/*-------------------------------------------------------------------------
 *
 * groupdef.c
 *	  What groups there are: whose they are, and their partitions.
 *
 * NOTES
 *	  Groups are rows of the table dlock_groups.  They are read and written here
 *	  as catalogs are, without regard to privileges on the table, so the members of
 *	  a group go by one list of partitions, and no caller can bring its own.  A group
 *	  belongs to the role that created it; that role and its members may use it.
 *	  What is read is what is committed now, under any isolation level.
 *
 * IDENTIFICATION
 *	  src/pattern/groupdef.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "base/error.h"
#include "base/name.h"
#include "base/value.h"
#include "pattern/groupdef.h"
#include "pattern/owned.h"
#include "session/session.h"

static int
compare_bytes(const void *a, const void *b)
{
	return dlock_name_compare(a, b);
}

/* The names of so many partitions: 0, 1, 2 and so on. */
ArrayType *
dlock_groupdef_number_names(int count)
{
	Datum	   *names = palloc(count * sizeof(Datum));

	for (int i = 0; i < count; i++)
		names[i] = CStringGetTextDatum(psprintf("%d", i));
	return construct_array(names, count, TEXTOID, -1, false, TYPALIGN_INT);
}

/* Make an array the partitions of a group; throws 22023 and 22004. */
static void
set_partitions(DLockGroup *group, ArrayType *array)
{
	Datum	   *values;
	bool	   *nulls;
	int			count;

	if (ARR_NDIM(array) > 1)
		dlock_error_partitions("be a one-dimensional array",
							   psprintf("The array given has %d dimensions.", ARR_NDIM(array)));
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &values, &nulls, &count);
	if (count == 0)
		dlock_error_partitions("be at least one", "A group needs partitions.");
	if (count > DLOCK_GROUP_PARTITIONS_MAX)
		dlock_error_partitions("not be too many",
							   psprintf("The array given has %d; the limit is %d.",
										count, DLOCK_GROUP_PARTITIONS_MAX));
	group->partition_count = count;
	group->partitions = palloc0(count * sizeof(DLockGroupPartition));
	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			dlock_error_null("partition name");
		group->partitions[i].name = dlock_name_of_text(DatumGetTextPP(values[i]), "partition name",
													   DLOCK_GROUP_NAME_MAX);
	}
}

/* Throw unless a group may have these partitions. */
static void
check_partitions(const DLockBytes *name, ArrayType *partitions)
{
	DLockGroup	group = {.name = *name};
	DLockBytes *names;

	set_partitions(&group, partitions);
	names = palloc(group.partition_count * sizeof(DLockBytes));
	for (int i = 0; i < group.partition_count; i++)
		names[i] = group.partitions[i].name;
	qsort(names, group.partition_count, sizeof(DLockBytes), compare_bytes);
	for (int i = 1; i < group.partition_count; i++)
	{
		if (dlock_name_equal(&names[i - 1], &names[i]))
			dlock_error_partitions("be different",
								   psprintf("The name \"%.*s\" is given more than once.",
											names[i].len, names[i].data));
	}
}

/* The columns of the table; the others are those of owned.h. */
#define COLUMN_PARTITIONS	3
#define COLUMNS				3

/* Open the table of groups; "function" is the SQL function that writes or uses it, if any. */
static Relation
open_groups(const char *function, LOCKMODE lockmode)
{
	if (function != NULL)
		dlock_session_check_writable(function);
	dlock_session_attach();
	return dlock_owned_open(dlock_session_schema(), "dlock_groups", lockmode);
}

/* Take the partitions of a group from its row. */
static void
take_row(DLockGroup *group, Relation rel, HeapTuple tuple)
{
	bool		isnull;
	Datum		partitions = heap_getattr(tuple, COLUMN_PARTITIONS, RelationGetDescr(rel), &isnull);

	set_partitions(group, DatumGetArrayTypePCopy(partitions));
}

/* Find the row of a group that the caller may use.  Throws 42501. */
static HeapTuple
find_own_row(Relation rel, const DLockBytes *name)
{
	HeapTuple	tuple = dlock_owned_find(rel, name);
	Oid			role;

	if (!HeapTupleIsValid(tuple))
		return NULL;
	role = dlock_owned_role(rel, tuple);
	if (!has_privs_of_role(GetUserId(), role))
		dlock_error_group_role(name, role);
	return tuple;
}

/* Lock a name up to the end of the transaction, so that nobody else writes its row. */
static void
lock_name(Relation rel, const DLockBytes *name)
{
	(void) dlock_owned_lock(rel, dlock_name_hash(MyDatabaseId, name), ExclusiveLock);
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

	/* An administrator may have added columns. */
	memset(nulls, true, desc->natts * sizeof(bool));
	memset(nulls, false, COLUMNS * sizeof(bool));
	values[DLOCK_OWNED_NAME - 1] = dlock_value_text(*name);
	values[DLOCK_OWNED_ROLE - 1] = ObjectIdGetDatum(role);
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
dlock_groupdef_create(const DLockBytes *name, ArrayType *partitions)
{
	Relation	rel;

	check_partitions(name, partitions);
	rel = open_groups("dlock_group_create", RowExclusiveLock);
	if (!HeapTupleIsValid(dlock_owned_find(rel, name)))
		lock_name(rel, name);
	if (HeapTupleIsValid(dlock_owned_find(rel, name)))
		dlock_error_group_exists(name);
	write_row(rel, NULL, name, GetUserId(), partitions);
	table_close(rel, NoLock);
}

/* Give a group other partitions.  Throws 42501, and 42704 if there is none. */
void
dlock_groupdef_alter(const DLockBytes *name, ArrayType *partitions)
{
	Relation	rel;
	HeapTuple	tuple;

	check_partitions(name, partitions);
	rel = open_groups("dlock_group_alter", RowExclusiveLock);
	tuple = lock_own_row(rel, name);
	if (!HeapTupleIsValid(tuple))
		dlock_error_no_group(name);
	write_row(rel, tuple, name, dlock_owned_role(rel, tuple), partitions);
	table_close(rel, NoLock);
}

/* Drop a group; false if there is none.  Throws 42501. */
bool
dlock_groupdef_drop(const DLockBytes *name)
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
dlock_groupdef_find(DLockGroup *group)
{
	Relation	rel = open_groups(NULL, AccessShareLock);
	HeapTuple	tuple = dlock_owned_find(rel, &group->name);

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
dlock_groupdef_use(DLockGroup *group, const char *function)
{
	Relation	rel = open_groups(function, AccessShareLock);
	HeapTuple	tuple = find_own_row(rel, &group->name);

	if (!HeapTupleIsValid(tuple))
		dlock_error_no_group(&group->name);
	take_row(group, rel, tuple);
	table_close(rel, AccessShareLock);
}
