/*-------------------------------------------------------------------------
 *
 * dlock_reaper.h
 *	  The background workers.
 *
 * IDENTIFICATION
 *	  src/dlock_reaper.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_REAPER_H
#define DLOCK_REAPER_H

#include "postgres_ext.h"

extern void dlock_reaper_register(void);
extern void dlock_reaper_hold(Oid database);
extern void dlock_reaper_unhold(Oid database);
extern void dlock_reaper_extension_changed(void);

#endif							/* DLOCK_REAPER_H */
