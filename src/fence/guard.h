/*-------------------------------------------------------------------------
 *
 * guard.h
 *	  The trigger that refuses writes without a good token.
 *
 * IDENTIFICATION
 *	  src/fence/guard.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_GUARD_H
#define DLOCK_GUARD_H

#include "commands/trigger.h"

extern HeapTuple dlock_guard_fire(TriggerData *data, FmgrInfo *flinfo);
extern void dlock_guard_check_trigger(Oid trigger);

#endif							/* DLOCK_GUARD_H */
