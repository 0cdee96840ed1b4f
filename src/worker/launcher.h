/*-------------------------------------------------------------------------
 *
 * launcher.h
 *	  The background worker that starts the reapers.
 *
 * IDENTIFICATION
 *	  src/worker/launcher.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LAUNCHER_H
#define DLOCK_LAUNCHER_H

#include "base/types.h"

/* Called by the server, by name. */
extern PGDLLEXPORT void dlock_launcher_main(Datum arg);
extern PGDLLEXPORT void dlock_reaper_main(Datum arg);

extern void dlock_launcher_register(void);
extern void dlock_launcher_dismiss_reaper(Oid database);
extern void dlock_launcher_extension_changed(void);

/* for both kinds of workers */
extern void dlock_launcher_run_worker(void (*work) (Datum arg), Datum arg);
extern DLockTime dlock_launcher_rest(DLockTime begun, DLockTime least);

#endif							/* DLOCK_LAUNCHER_H */
