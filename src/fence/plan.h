/*-------------------------------------------------------------------------
 *
 * plan.h
 *	  Which columns the running statement sets.
 *
 * IDENTIFICATION
 *	  src/fence/plan.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_PLAN_H
#define DLOCK_PLAN_H

#include "nodes/plannodes.h"

/* What is kept of a statement while it runs. */
typedef struct DLockPlanRun
{
	PlannedStmt *plan;			/* NULL unless it may have a MERGE, an UPDATE
								 * of a partitioned table, or a write in WITH */
	Oid			filled;			/* see dlock_plan_note_set() */
} DLockPlanRun;

/*
 * What the running statement may do with a column of a table; all true if part of the
 * plan is hidden.
 */
typedef struct DLockPlanColumn
{
	bool		uneven;			/* one UPDATE action of a MERGE on the table
								 * sets it, and another does not */
	bool		moves;			/* an UPDATE may move rows into the partition
								 * ... */
	bool		unset;			/* ... without setting it */
	bool		inserts;		/* an INSERT may bring rows */
	Oid			root;			/* the table, or that of which it is a
								 * partition */
} DLockPlanColumn;

extern bool dlock_plan_begin_run(PlannedStmt *plan, DLockPlanRun *before);
extern void dlock_plan_end_run(const DLockPlanRun *before);
extern DLockPlanColumn dlock_plan_look(Oid relid, AttrNumber attr, const char *column);
extern void dlock_plan_note_set(const DLockPlanColumn *look, bool filled);
extern bool dlock_plan_was_filled(const DLockPlanColumn *look);

#endif							/* DLOCK_PLAN_H */
