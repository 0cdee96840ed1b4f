/*-------------------------------------------------------------------------
 *
 * wrap_plan.c
 *	  For tests: a node of an extension above what modifies a table, in each plan.
 *
 * NOTES
 *	  Other extensions have such nodes.  With the setting wrap_plan.hide the plan
 *	  does not show what is below.
 *
 * IDENTIFICATION
 *	  test/modules/wrap_plan.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/executor.h"
#include "fmgr.h"
#include "nodes/extensible.h"
#include "nodes/plannodes.h"
#include "optimizer/planner.h"
#include "utils/guc.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

static planner_hook_type next_planner_hook;
static bool hides;

static Node *create_state(CustomScan *scan);

static const CustomScanMethods scan_methods = {
	.CustomName = "wrap_plan",
	.CreateCustomScanState = create_state
};

static void
begin_scan(CustomScanState *node, EState *estate, int eflags)
{
	CustomScan *scan = (CustomScan *) node->ss.ps.plan;
	Plan	   *below = linitial(scan->custom_plans == NIL ? scan->custom_private : scan->custom_plans);

	node->custom_ps = list_make1(ExecInitNode(below, estate, eflags));
}

static TupleTableSlot *
run_scan(CustomScanState *node)
{
	return ExecProcNode(linitial(node->custom_ps));
}

static void
end_scan(CustomScanState *node)
{
	ExecEndNode(linitial(node->custom_ps));
}

static void
rescan(CustomScanState *node)
{
	ExecReScan(linitial(node->custom_ps));
}

static const CustomExecMethods exec_methods = {
	.CustomName = "wrap_plan",
	.BeginCustomScan = begin_scan,
	.ExecCustomScan = run_scan,
	.EndCustomScan = end_scan,
	.ReScanCustomScan = rescan
};

static Node *
create_state(CustomScan *scan)
{
	CustomScanState *state = (CustomScanState *) newNode(sizeof(CustomScanState), T_CustomScanState);

	state->methods = &exec_methods;
	return (Node *) state;
}

static PlannedStmt *
planner_hook_wrap(Query *query, const char *string, int options, ParamListInfo params)
{
	PlannedStmt *plan = next_planner_hook(query, string, options, params);
	CustomScan *scan;

	if (!IsA(plan->planTree, ModifyTable) || plan->hasReturning)
		return plan;
	scan = makeNode(CustomScan);
	scan->methods = &scan_methods;
	if (hides)
		scan->custom_private = list_make1(plan->planTree);
	else
		scan->custom_plans = list_make1(plan->planTree);
	plan->planTree = (Plan *) scan;
	return plan;
}

void
_PG_init(void)
{
	DefineCustomBoolVariable("wrap_plan.hide", "Hide what is below.", NULL, &hides, false,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	RegisterCustomScanMethods(&scan_methods);
	next_planner_hook = (planner_hook != NULL) ? planner_hook : standard_planner;
	planner_hook = planner_hook_wrap;
}
