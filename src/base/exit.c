/*-------------------------------------------------------------------------
 *
 * exit.c
 *	  Callbacks for the exit of a process.
 *
 * NOTES
 *	  A process may exit while it holds LWLocks: a FATAL error does not release
 *	  them.  Servers before the minor releases of late 2025 call the callbacks
 *	  with these locks still held, so a callback that takes a lock could wait
 *	  for its own process, forever and without reacting to signals.  All callbacks
 *	  of dlock are registered here, and find no LWLock held.
 *
 * IDENTIFICATION
 *	  src/base/exit.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/lwlock.h"

#include "base/exit.h"

/* The most callbacks that all modules register in one process. */
#define MAX_CALLBACKS	8

static struct
{
	pg_on_exit_callback callback;
	Datum		arg;
}			callbacks[MAX_CALLBACKS];
static int	count = 0;

static void
run(int code, Datum index)
{
	int			i = DatumGetInt32(index);

	LWLockReleaseAll();
	callbacks[i].callback(code, callbacks[i].arg);
}

/* Remember a callback; returns its index for run(). */
static Datum
note(pg_on_exit_callback callback, Datum arg)
{
	if (count == MAX_CALLBACKS)
		elog(ERROR, "too many exit callbacks");
	callbacks[count].callback = callback;
	callbacks[count].arg = arg;
	return Int32GetDatum(count++);
}

/* As before_shmem_exit(): called while the process can still use everything. */
void
dlock_exit_before_shmem(pg_on_exit_callback callback, Datum arg)
{
	before_shmem_exit(run, note(callback, arg));
}

/* As on_shmem_exit(): called after the transaction has been aborted. */
void
dlock_exit_on_shmem(pg_on_exit_callback callback, Datum arg)
{
	on_shmem_exit(run, note(callback, arg));
}
