/*-------------------------------------------------------------------------
 *
 * guard.h
 *	  The trigger that refuses writes without a good token.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_GUARD_H
#define DLOCK_GUARD_H

#include "commands/trigger.h"

extern HeapTuple dlock_guard_fire(TriggerData *data, FmgrInfo *flinfo);

#endif							/* DLOCK_GUARD_H */
