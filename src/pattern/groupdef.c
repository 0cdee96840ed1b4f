/*-------------------------------------------------------------------------
 *
 * groupdef.c
 *	  What groups there are: whose they are, and their partitions.
 *
 * NOTES
 *	  Groups are rows of the table dlock_groups.  They are read and written as
 *	  the owner of the extension, whatever role calls, so the members of a group
 *	  go by one list of partitions, and no caller can bring its own.  A group
 *	  belongs to the role that created it; that role and its members may use it.
 *
 * IDENTIFICATION
 *	  src/pattern/groupdef.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "base/error.h"
#include "base/name.h"
#include "base/value.h"
#include "pattern/groupdef.h"
#include "session/tasksql.h"

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

/* Find the row of a group; false if there is none. */
static bool
find_row(const DLockBytes *name, Oid *role)
{
	Datum		key = dlock_value_text(*name);
	bool		isnull;

	if (dlock_tasksql_run(DLOCK_TASK_FIND_GROUP, &key, NULL, 0) == 0)
		return false;
	*role = DatumGetObjectId(dlock_tasksql_value(0, 1, &isnull));
	return true;
}

/* The same, for a caller that may use the group; throws 42501. */
static bool
find_own_row(DLockTaskSql *sql, const DLockBytes *name, Oid *role)
{
	if (!find_row(name, role))
		return false;
	if (!has_privs_of_role(sql->caller, *role))
		dlock_error_group_role(name, *role);
	return true;
}

/* Take the partitions of the row that was found into the caller's memory. */
static void
take_row(DLockGroup *group, MemoryContext context)
{
	MemoryContext old = MemoryContextSwitchTo(context);
	bool		isnull;
	Datum		partitions = dlock_tasksql_value(0, 2, &isnull);

	set_partitions(group, DatumGetArrayTypePCopy(partitions));
	MemoryContextSwitchTo(old);
}

/* Create a group, which belongs to the current role.  Throws 42710. */
void
dlock_groupdef_create(const DLockBytes *name, ArrayType *partitions)
{
	DLockTaskSql sql;
	Datum		values[3];

	check_partitions(name, partitions);
	dlock_tasksql_open(&sql, "dlock_group_create");
	values[0] = dlock_value_text(*name);
	values[1] = ObjectIdGetDatum(sql.caller);
	values[2] = PointerGetDatum(partitions);
	if (dlock_tasksql_run(DLOCK_TASK_CREATE_GROUP, values, NULL, 0) == 0)
		dlock_error_group_exists(name);
	dlock_tasksql_close(&sql);
}

/* Give a group other partitions.  Throws 42501, and 42704 if there is none. */
void
dlock_groupdef_alter(const DLockBytes *name, ArrayType *partitions)
{
	DLockTaskSql sql;
	Oid			role;
	Datum		values[3];

	check_partitions(name, partitions);
	dlock_tasksql_open(&sql, "dlock_group_alter");
	if (!find_own_row(&sql, name, &role))
		dlock_error_no_group(name);
	values[0] = dlock_value_text(*name);
	values[1] = ObjectIdGetDatum(role);
	values[2] = PointerGetDatum(partitions);
	if (dlock_tasksql_run(DLOCK_TASK_ALTER_GROUP, values, NULL, 0) == 0)
		dlock_error_no_group(name);
	dlock_tasksql_close(&sql);
}

/* Drop a group; false if there is none.  Throws 42501. */
bool
dlock_groupdef_drop(const DLockBytes *name)
{
	DLockTaskSql sql;
	Oid			role;
	Datum		values[2];
	bool		dropped;

	dlock_tasksql_open(&sql, "dlock_group_drop");
	dropped = find_own_row(&sql, name, &role);
	if (dropped)
	{
		values[0] = dlock_value_text(*name);
		values[1] = ObjectIdGetDatum(role);
		dropped = dlock_tasksql_run(DLOCK_TASK_DROP_GROUP, values, NULL, 0) > 0;
	}
	dlock_tasksql_close(&sql);
	return dropped;
}

/* Read the partitions of a group, to look at it; false if there is none. */
bool
dlock_groupdef_find(DLockGroup *group)
{
	MemoryContext context = CurrentMemoryContext;
	DLockTaskSql sql;
	Oid			role;
	bool		found;

	dlock_tasksql_open(&sql, NULL);
	found = find_row(&group->name, &role);
	if (found)
		take_row(group, context);
	dlock_tasksql_close(&sql);
	return found;
}

/*
 * Read the partitions of a group that the caller wants to use, by the SQL
 * function of this name.  Throws 25006, 42501, and 42704 if there is none.
 */
void
dlock_groupdef_use(DLockGroup *group, const char *function)
{
	MemoryContext context = CurrentMemoryContext;
	DLockTaskSql sql;
	Oid			role;

	dlock_tasksql_open(&sql, function);
	if (!find_own_row(&sql, &group->name, &role))
		dlock_error_no_group(&group->name);
	take_row(group, context);
	dlock_tasksql_close(&sql);
}
