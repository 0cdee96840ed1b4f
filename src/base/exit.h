/*-------------------------------------------------------------------------
 *
 * exit.h
 *	  Callbacks for the exit of a process.
 *
 * IDENTIFICATION
 *	  src/base/exit.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_EXIT_H
#define DLOCK_EXIT_H

#include "storage/ipc.h"

extern void dlock_exit_before_shmem(pg_on_exit_callback callback, Datum arg);
extern void dlock_exit_on_shmem(pg_on_exit_callback callback, Datum arg);

#endif							/* DLOCK_EXIT_H */
