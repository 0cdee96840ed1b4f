/*-------------------------------------------------------------------------
 *
 * fault_clock.c
 *	  The clock of a library for tests: it can stand still and be advanced.
 *
 * NOTES
 *	  A part of a library that is made with "make FAULTS=1", and of no other
 *	  (src/base/fault.h).  src/base/clock.c asks here what time it is; where the
 *	  time comes from is said in test_clock.h.
 *
 *	  A process that sleeps until a moment says so in shared memory.  When time
 *	  is advanced to that moment or beyond, its latch is set, as a timer would
 *	  do; nobody else is woken.  So a timer that is set too late, or a wake-up
 *	  that is lost, is a hang, and not a delay until the next one.
 *
 *	  The one that advances then waits until the server has settled: until each
 *	  process has done what there was to do at the new time and sleeps again, or
 *	  can do nothing.  That is known exactly.  A process that is about to sleep
 *	  says so in its latch before it looks at it for the last time, so one whose
 *	  latch says "sleeping" and is not set sleeps until somebody sets it.  If all
 *	  were seen so, one after the other, and no latch was set in between by this
 *	  library, then they were so all at a time.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "base/compat.h"
#include "../test/modules/test_clock.h"

/* From 1970, where Unix begins to count, to 2000, where PostgreSQL does. */
#define UNIX_TO_POSTGRES	((POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY)

/* How often to see whether all sleep, and how long at most, in microseconds. */
#define SETTLE_INTERVAL		200
#define SETTLE_PATIENCE		(120 * USECS_PER_SEC)

/* Mapped in the postmaster; NULL without a test clock. */
static TestClock *test_clock = NULL;

typedef struct FaultClockShared
{
	pg_atomic_uint64 wake_ups;	/* how often this library has set a latch */

	/* By process: the moment until which it wants to sleep, or wanted to. */
	pg_atomic_uint64 naps[FLEXIBLE_ARRAY_MEMBER];
} FaultClockShared;

static FaultClockShared *shared = NULL;

static Size
shared_size(void)
{
	return add_size(sizeof(FaultClockShared), mul_size(sizeof(pg_atomic_uint64), MaxBackends));
}

void
dlock_fault_clock_request(void)
{
	RequestAddinShmemSpace(shared_size());
}

/* With AddinShmemInitLock held. */
void
dlock_fault_clock_startup(void)
{
	bool		found;

	shared = ShmemInitStruct("dlock test clock", shared_size(), &found);
	if (found)
		return;
	pg_atomic_init_u64(&shared->wake_ups, 0);
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u64(&shared->naps[i], PG_INT64_MAX);
}

/* Called before the first reading of the clock. */
void
dlock_fault_clock_init(void)
{
	test_clock = test_clock_map();
}

/* The monotonic clock, for what the machine's says; a process can be held up after that. */
int64
dlock_fault_clock_time(int64 machine)
{
	int64		now = (test_clock != NULL) ? test_clock_time(test_clock, machine) : machine;

	dlock_fault_stop("clock");
	return now;
}

/* The wall clock likewise. */
int64
dlock_fault_clock_wall(int64 machine)
{
	int64		now = (test_clock != NULL) ?
		test_clock_wall(test_clock, machine + UNIX_TO_POSTGRES) - UNIX_TO_POSTGRES : machine;

	dlock_fault_stop("clock");
	return now;
}

/* The identity of the machine's boot likewise. */
uint32
dlock_fault_clock_boot(uint32 machine)
{
	return (test_clock != NULL) ? machine + (uint32) test_clock->boots : machine;
}

/*
 * How long to sleep until then, in milliseconds; "ms" on a clock that runs.  The time is
 * read once more after the process has said until when it sleeps, or whoever advances
 * the clock in between would not wake it.
 */
long
dlock_fault_clock_nap(int64 until, long ms)
{
	dlock_fault_count(DLOCK_COST_NAPS);
	if (test_clock == NULL || test_clock->frozen == 0)
		return ms;
	pg_atomic_write_u64(&shared->naps[MyProcNumber], (uint64) until);
	pg_memory_barrier();
	return (test_clock_time(test_clock, 0) < until) ? INT_MAX : 1;
}

/* This library is about to set a latch. */
void
dlock_fault_clock_wakes(void)
{
	if (shared != NULL)
		(void) pg_atomic_fetch_add_u64(&shared->wake_ups, 1);
}

/* Is a process stopped by a signal? */
static bool
is_stopped(int pid)
{
	char		path[64];
	char		line[512];
	char	   *state = NULL;
	FILE	   *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	file = fopen(path, "r");
	if (file == NULL)
		return true;			/* it has gone */
	if (fgets(line, sizeof(line), file) != NULL)
		state = strrchr(line, ')');
	fclose(file);
	return state != NULL && (state[2] == 'T' || state[2] == 'Z');
}

/* Does a process sleep, or can it do nothing until somebody else does something? */
static bool
is_at_rest(PGPROC *proc)
{
	int			pid = proc->pid;

	if (pid == 0 || proc == MyProc)
		return true;
	pg_memory_barrier();
	if (proc->procLatch.maybe_sleeping && !proc->procLatch.is_set)
		return true;
	return proc->lwWaiting || dlock_fault_stops(pid) || is_stopped(pid);
}

/* A process that does not sleep, or zero. */
static int
find_restless(void)
{
	for (int i = 0; i < MaxBackends; i++)
	{
		PGPROC	   *proc = GetPGProcByNumber(i);

		if (!is_at_rest(proc))
			return proc->pid;
	}
	return 0;
}

/* Wake the processes whose time has come. */
static void
wake_due(void)
{
	int64		now = test_clock_time(test_clock, 0);

	pg_memory_barrier();
	for (int i = 0; i < MaxBackends; i++)
	{
		if ((int64) pg_atomic_read_u64(&shared->naps[i]) <= now)
			SetLatch(&GetPGProcByNumber(i)->procLatch);
	}
}

/*
 * Wake the processes whose time has come, and wait until all of the server's sleep.
 * Throws if one does not.
 */
void
dlock_fault_clock_settle(void)
{
	int			restless = 0;

	if (test_clock != NULL && test_clock->frozen != 0)
		wake_due();
	for (int64 waited = 0; waited < SETTLE_PATIENCE; waited += SETTLE_INTERVAL)
	{
		uint64		before = pg_atomic_read_u64(&shared->wake_ups);

		restless = find_restless();
		if (restless == 0 && pg_atomic_read_u64(&shared->wake_ups) == before)
			return;
		CHECK_FOR_INTERRUPTS();
		pg_usleep(SETTLE_INTERVAL);
	}
	elog(ERROR, "process %d does not come to rest", restless);
}

/* Let so many microseconds pass at once, and wait until the server has settled. */
void
dlock_fault_clock_advance(int64 span)
{
	if (test_clock == NULL)
		elog(ERROR, "this server has no test clock");
	test_clock_advance(test_clock, span);
	dlock_fault_clock_settle();
}
