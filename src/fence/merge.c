/*-------------------------------------------------------------------------
 *
 * merge.c
 *	  Which columns a running MERGE sets.
 *
 * NOTES
 *	  The server tells a row trigger which columns its statement sets.  For a
 *	  MERGE that is what any of the actions sets, and nothing tells which of them
 *	  fired the trigger.  What can be known is whether they differ, from the plan
 *	  of the statement.  So hooks of the executor keep the plan at hand while a
 *	  statement runs that has a MERGE.
 *
 *	  A statement that is run within another one, by a trigger or a function,
 *	  takes its place until it ends or fails.
 *
 * IDENTIFICATION
 *	  src/fence/merge.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/executor.h"
#include "nodes/plannodes.h"
#include "parser/parsetree.h"

#include "base/compat.h"
#include "fence/merge.h"

static ExecutorRun_hook_type next_run_hook = NULL;
static ExecutorFinish_hook_type next_finish_hook = NULL;

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
 * Do the UPDATE actions of a MERGE on this relation differ in whether they set
 * the column?  A partition has actions, and numbers of columns, of its own.
 */
static bool
merge_differs(ModifyTable *merge, Oid relid, AttrNumber attr)
{
	bool		sets = false;
	bool		leaves = false;
	ListCell   *relation;
	ListCell   *actions;

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
	ModifyTable *merge;

	if (merge_plan == NULL)
		return false;
	if ((merge = as_merge(merge_plan->planTree)) != NULL && merge_differs(merge, relid, attr))
		return true;
	foreach(cell, merge_plan->subplans)
	{
		if ((merge = as_merge(lfirst(cell))) != NULL && merge_differs(merge, relid, attr))
			return true;
	}
	return false;
}

static void
call_next_run(DLOCK_RUN_PARAMETERS)
{
	if (next_run_hook != NULL)
		next_run_hook(DLOCK_RUN_ARGUMENTS);
	else
		standard_ExecutorRun(DLOCK_RUN_ARGUMENTS);
}

/* Most statements have nothing to do with a MERGE, and pay for two tests. */
static void
run_hook(DLOCK_RUN_PARAMETERS)
{
	PlannedStmt *before = merge_plan;
	PlannedStmt *plan = has_merge(query->plannedstmt) ? query->plannedstmt : NULL;

	if (plan == before)
	{
		call_next_run(DLOCK_RUN_ARGUMENTS);
		return;
	}
	merge_plan = plan;
	PG_TRY();
	{
		call_next_run(DLOCK_RUN_ARGUMENTS);
	}
	PG_FINALLY();
	{
		merge_plan = before;
	}
	PG_END_TRY();
}

static void
call_next_finish(QueryDesc *query)
{
	if (next_finish_hook != NULL)
		next_finish_hook(query);
	else
		standard_ExecutorFinish(query);
}

/* What is left of a MERGE in WITH is run here, before the AFTER triggers. */
static void
finish_hook(QueryDesc *query)
{
	PlannedStmt *before = merge_plan;
	PlannedStmt *plan = has_merge(query->plannedstmt) ? query->plannedstmt : NULL;

	if (plan == before)
	{
		call_next_finish(query);
		return;
	}
	merge_plan = plan;
	PG_TRY();
	{
		call_next_finish(query);
	}
	PG_FINALLY();
	{
		merge_plan = before;
	}
	PG_END_TRY();
}

/* Install the hooks, while shared_preload_libraries is processed. */
void
dlock_merge_install(void)
{
	next_run_hook = ExecutorRun_hook;
	ExecutorRun_hook = run_hook;
	next_finish_hook = ExecutorFinish_hook;
	ExecutorFinish_hook = finish_hook;
}
