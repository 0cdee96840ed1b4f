/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  The background worker.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_WORKER_H
#define DLOCK_WORKER_H

/* Called by the server, by name. */
extern PGDLLEXPORT void dlock_worker_main(Datum arg);

extern void dlock_worker_register(void);

#endif							/* DLOCK_WORKER_H */
