/*-------------------------------------------------------------------------
 *
 * plan.c
 *	  What the running statement does with a column of a table.
 *
 * NOTES
 *	  The server tells a row trigger which columns its statement sets.  That is
 *	  not enough in two cases:
 *
 *		- For a MERGE these are the columns that any of its actions sets, and the
 *		  trigger does not learn which action has fired it.
 *		- A row that moves to another partition fires the triggers for INSERT
 *		  there.  These do not learn that an UPDATE has fired them, and that the
 *		  row has old values, or what triggers have put in.
 *
 *	  But the plan of the statement says which columns its UPDATEs set.  So hooks
 *	  of the executor (dlock.c) keep the plan at hand while a statement with a
 *	  MERGE, an UPDATE of a partitioned table, an UPDATE below a node of an
 *	  extension, or a write in WITH runs.
 *
 *	  Extensions put nodes of their own above those of the server, or in their
 *	  place.  What cannot be found in the plan may do anything.
 *
 *	  A statement that a trigger or a function runs replaces the outer one until
 *	  it ends or fails.
 *
 * IDENTIFICATION
 *	  src/fence/plan.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/partition.h"
#include "parser/parsetree.h"
#include "utils/lsyscache.h"

#include "fence/plan.h"

/* What the executor runs. */
static DLockPlanRun running;

/* Add what modifies tables at the top of a plan, below the nodes of extensions. */
static List *
add_modifies(List *found, Plan *plan)
{
	ListCell   *cell;

	if (plan == NULL)
		return found;
	if (IsA(plan, ModifyTable))
		return lappend(found, plan);
	if (IsA(plan, CustomScan))
	{
		foreach(cell, ((CustomScan *) plan)->custom_plans)
			found = add_modifies(found, lfirst(cell));
	}
	return add_modifies(found, plan->lefttree);
}

/* All that modifies tables in the running statement; "hidden" if some is not found. */
static List *
find_modifies(bool *hidden)
{
	PlannedStmt *plan = running.plan;
	List	   *top = add_modifies(NIL, plan->planTree);
	List	   *others = NIL;
	ListCell   *cell;

	foreach(cell, plan->subplans)
		others = add_modifies(others, lfirst(cell));
	*hidden = (plan->commandType != CMD_SELECT && top == NIL) ||
		(plan->hasModifyingCTE && others == NIL);
	return list_concat(top, others);
}

static Oid
relid_of(Index relation)
{
	return rt_fetch(relation, running.plan->rtable)->relid;
}

/* Which of the UPDATE actions in a list set the column? */
static void
look_at_actions(List *actions, AttrNumber attr, bool *sets, bool *leaves)
{
	ListCell   *cell;

	*sets = *leaves = false;
	foreach(cell, actions)
	{
		MergeAction *action = lfirst(cell);

		if (action->commandType != CMD_UPDATE)
			continue;
		if (list_member_int(action->updateColnos, attr))
			*sets = true;
		else
			*leaves = true;
	}
}

/*
 * Is this a MERGE on this relation whose UPDATE actions differ in whether they set the
 * column?  A partition has actions, and numbers of columns, of its own.
 */
static bool
merge_differs(ModifyTable *modify, Oid relid, AttrNumber attr)
{
	ListCell   *relation;
	ListCell   *actions;

	if (modify->operation != CMD_MERGE)
		return false;
	forboth(relation, modify->resultRelations, actions, modify->mergeActionLists)
	{
		bool		sets;
		bool		leaves;

		if (relid_of(lfirst_int(relation)) != relid)
			continue;
		look_at_actions(lfirst(actions), attr, &sets, &leaves);
		return sets && leaves;
	}
	return false;
}

/* May this move rows among the partitions of one of these tables? */
static bool
moves_rows(ModifyTable *modify, List *tables)
{
	return (modify->operation == CMD_UPDATE || modify->operation == CMD_MERGE) &&
		modify->rootRelation > 0 && list_member_oid(tables, relid_of(modify->rootRelation));
}

/*
 * May what moves rows do so without setting the column?  All partitions have the
 * column, perhaps under other numbers, and have the same columns set, so any of them
 * will do.
 */
static bool
leaves_column(ModifyTable *modify, const char *column)
{
	AttrNumber	attr = get_attnum(relid_of(linitial_int(modify->resultRelations)), column);
	bool		sets;
	bool		leaves;

	if (modify->operation == CMD_UPDATE)
		return !list_member_int(linitial(modify->updateColnosLists), attr);
	look_at_actions(linitial(modify->mergeActionLists), attr, &sets, &leaves);
	return leaves;
}

/* May this insert rows into one of these tables? */
static bool
inserts_rows(ModifyTable *modify, List *tables)
{
	Index		target = modify->rootRelation > 0 ? modify->rootRelation :
		linitial_int(modify->resultRelations);
	ListCell   *cell;

	if (!list_member_oid(tables, relid_of(target)))
		return false;
	if (modify->operation == CMD_MERGE)
	{
		foreach(cell, linitial(modify->mergeActionLists))
		{
			if (((MergeAction *) lfirst(cell))->commandType == CMD_INSERT)
				return true;
		}
	}
	return modify->operation == CMD_INSERT;
}

/* A table and all those of which it is a partition, the root last. */
static List *
find_tables(Oid relid)
{
	List	   *tables = list_make1_oid(relid);

	/* A partition whose detach is pending still gets rows from old snapshots. */
	while (get_rel_relispartition(relid))
	{
		relid = get_partition_parent(relid, true);
		tables = lappend_oid(tables, relid);
	}
	return tables;
}

/*
 * What the running statement does with a column of a table.  To be called from a
 * trigger that the statement has fired, as all of these.
 */
DLockPlanColumn
dlock_plan_look(Oid relid, AttrNumber attr, const char *column)
{
	DLockPlanColumn look = {0};
	bool		hidden;
	List	   *tables;
	ListCell   *cell;

	if (running.plan == NULL)
		return look;
	tables = find_tables(relid);
	look.root = llast_oid(tables);
	foreach(cell, find_modifies(&hidden))
	{
		ModifyTable *modify = lfirst(cell);

		look.uneven |= merge_differs(modify, relid, attr);
		look.inserts |= inserts_rows(modify, tables);
		if (!moves_rows(modify, tables))
			continue;
		look.moves = true;
		look.unset |= leaves_column(modify, column);
	}
	if (hidden)
		look.inserts = look.moves = look.unset = true;
	/* The server tells what a plain UPDATE sets. */
	look.uneven |= hidden && (running.plan->commandType == CMD_MERGE || running.plan->hasModifyingCTE);
	return look;
}

/*
 * The running statement sets the column of a partition's row; if to null, a guard
 * fills it in.  If the row moves, it does so next, so the last note is all that counts.
 */
void
dlock_plan_note_set(const DLockPlanColumn *look, bool filled)
{
	if (look->moves)
		running.filled = filled ? look->root : InvalidOid;
}

/* Was the last such note for a partition of the same root? */
bool
dlock_plan_was_filled(const DLockPlanColumn *look)
{
	return look->moves && running.filled == look->root;
}

/* Is this a plan to keep?  Decided without a walk, since it is asked at each run. */
static bool
is_kept(PlannedStmt *plan)
{
	if (plan->commandType == CMD_UPDATE && !plan->hasModifyingCTE)
		return !IsA(plan->planTree, ModifyTable) ||
			((ModifyTable *) plan->planTree)->rootRelation > 0;
	return plan->commandType == CMD_MERGE || plan->hasModifyingCTE;
}

/*
 * The executor begins to run a plan.  Returns whether that changes what is kept
 * here; then it must be restored at the end.  Costs few tests for a plan that is
 * not kept.
 */
bool
dlock_plan_begin_run(PlannedStmt *plan, DLockPlanRun *before)
{
	*before = running;
	running.plan = is_kept(plan) ? plan : NULL;
	running.filled = InvalidOid;
	return running.plan != NULL || before->plan != NULL;
}

void
dlock_plan_end_run(const DLockPlanRun *before)
{
	running = *before;
}
