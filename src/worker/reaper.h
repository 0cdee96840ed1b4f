/*-------------------------------------------------------------------------
 *
 * reaper.h
 *	  The background worker that removes a database's expired leases.
 *
 * IDENTIFICATION
 *	  src/worker/reaper.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_REAPER_H
#define DLOCK_REAPER_H

/* Called by the server, by name. */
extern PGDLLEXPORT void dlock_reaper_main(Datum arg);

#endif							/* DLOCK_REAPER_H */
