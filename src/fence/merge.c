/*-------------------------------------------------------------------------
 *
 * merge.c
 *	  Which columns a running MERGE sets.
 *
 * NOTES
 *	  The server tells a row trigger which columns its statement sets.  For a
 *	  MERGE these are the columns that any of its actions sets, and the trigger
 *	  does not learn which action has fired it.  But the plan of the statement
 *	  says whether the actions differ.  So hooks of the executor (dlock.c) keep
 *	  the plan at hand while a statement with a MERGE runs.
 *
 *	  A statement that a trigger or a function runs replaces the outer one until
 *	  it ends or fails.
 *
 * IDENTIFICATION
 *	  src/fence/merge.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "parser/parsetree.h"

#include "fence/merge.h"

/* The plan that the executor runs, if it has a MERGE; else NULL. */
static PlannedStmt *merge_plan = NULL;

/* The MERGE of a plan, if "plan" is one; NULL if not. */
static ModifyTable *
as_merge(Plan *plan)
{
	if (plan == NULL || !IsA(plan, ModifyTable) ||
		((ModifyTable *) plan)->operation != CMD_MERGE)
		return NULL;
	return (ModifyTable *) plan;
}

/* Has a plan a MERGE, at its top or, from 17 on, in WITH? */
static bool
has_merge(PlannedStmt *plan)
{
	ListCell   *cell;

	if (as_merge(plan->planTree) != NULL)
		return true;
	if (plan->hasModifyingCTE)
	{
		foreach(cell, plan->subplans)
		{
			if (as_merge(lfirst(cell)) != NULL)
				return true;
		}
	}
	return false;
}

/*
 * Is a plan a MERGE on this relation whose UPDATE actions differ in whether they set
 * the column?  A partition has actions, and numbers of columns, of its own.
 */
static bool
merge_differs(Plan *plan, Oid relid, AttrNumber attr)
{
	ModifyTable *merge = as_merge(plan);
	bool		sets = false;
	bool		leaves = false;
	ListCell   *relation;
	ListCell   *actions;

	if (merge == NULL)
		return false;
	forboth(relation, merge->resultRelations, actions, merge->mergeActionLists)
	{
		ListCell   *cell;

		if (rt_fetch(lfirst_int(relation), merge_plan->rtable)->relid != relid)
			continue;
		foreach(cell, (List *) lfirst(actions))
		{
			MergeAction *action = lfirst(cell);

			if (action->commandType != CMD_UPDATE)
				continue;
			if (list_member_int(action->updateColnos, attr))
				sets = true;
			else
				leaves = true;
		}
	}
	return sets && leaves;
}

/*
 * Does the statement that the executor runs have a MERGE on this relation of
 * which one UPDATE action sets the column and another does not?  To be called
 * from a trigger that the statement has fired.
 */
bool
dlock_merge_sets_unevenly(Oid relid, AttrNumber attr)
{
	ListCell   *cell;

	if (merge_plan == NULL)
		return false;
	if (merge_differs(merge_plan->planTree, relid, attr))
		return true;
	foreach(cell, merge_plan->subplans)
	{
		if (merge_differs(lfirst(cell), relid, attr))
			return true;
	}
	return false;
}

/*
 * The executor begins to run a plan.  Returns whether that changes the plan at
 * hand; then it must be restored at the end.  Costs two tests for a plan without
 * a MERGE.
 */
bool
dlock_merge_begin_run(PlannedStmt *plan, PlannedStmt **before)
{
	*before = merge_plan;
	merge_plan = has_merge(plan) ? plan : NULL;
	return merge_plan != *before;
}

void
dlock_merge_end_run(PlannedStmt *before)
{
	merge_plan = before;
}
