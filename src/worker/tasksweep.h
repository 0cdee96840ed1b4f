/*-------------------------------------------------------------------------
 *
 * tasksweep.h
 *	  Ending captures of tasks that have timed out.
 *
 * IDENTIFICATION
 *	  src/worker/tasksweep.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TASKSWEEP_H
#define DLOCK_TASKSWEEP_H

#include "space/database.h"

extern void dlock_tasksweep_note(DLockDatabaseShared *database, TimestampTz deadline);
extern DLockTime dlock_tasksweep_all(DLockDatabaseShared *database, bool *moved);
extern void dlock_tasksweep_end(DLockDatabaseShared *database);

#endif							/* DLOCK_TASKSWEEP_H */
