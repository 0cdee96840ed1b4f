/*-------------------------------------------------------------------------
 *
 * merge.h
 *	  Which columns a running MERGE sets.
 *
 * IDENTIFICATION
 *	  src/fence/merge.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_MERGE_H
#define DLOCK_MERGE_H

#include "nodes/plannodes.h"

extern bool dlock_merge_begin_run(PlannedStmt *plan, PlannedStmt **before);
extern void dlock_merge_end_run(PlannedStmt *before);
extern bool dlock_merge_sets_unevenly(Oid relid, AttrNumber attr);

#endif							/* DLOCK_MERGE_H */
