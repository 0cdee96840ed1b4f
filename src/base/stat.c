/*-------------------------------------------------------------------------
 *
 * stat.c
 *	  What has happened since the last reset, counted by database.
 *
 * NOTES
 *	  Every process has counters of its own, so that counting is cheap
 *	  however many processes do it.  At its exit a process adds its counts to
 *	  the past of the database.  A reader adds up the past and the counters of the
 *	  processes that count for the database.  A reset notes that sum, which later
 *	  readers subtract; it does not write to the counters of other processes.
 *
 *	  Lock rules.  Only its process writes its counters, without a lock; a reader may
 *	  see counters of slightly different moments.  The LWLock dlock_stat keeps a
 *	  reader from counting a process twice, or not at all, while that exits:
 *	  readers take it in share mode, an exiting process and a reset in exclusive
 *	  mode.  No other lock is acquired under it.
 *
 * IDENTIFICATION
 *	  src/base/stat.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/stat.h"

/* What one process has counted; "stats" is NULL if it has not begun. */
typedef struct DLockStatProcess
{
	DLockStatShared *volatile stats;
	DLockStatCounts counts;
} DLockStatProcess;

static DLockStatProcess *processes = NULL;
static LWLock *stat_lock = NULL;

/* This process's counters; before it has some, its counts are ignored. */
static DLockStatCounts nowhere;
static DLockStatCounts *mine = &nowhere;

void
dlock_stat_request(void)
{
	RequestAddinShmemSpace(mul_size(sizeof(DLockStatProcess), MaxBackends));
	RequestNamedLWLockTranche("dlock_stat", 1);
}

/* Create the counters; with AddinShmemInitLock held. */
void
dlock_stat_startup(void)
{
	bool		found;
	Size		size = mul_size(sizeof(DLockStatProcess), MaxBackends);

	processes = ShmemInitStruct("dlock statistics", size, &found);
	stat_lock = &GetNamedLWLockTranche("dlock_stat")->lock;
	if (!found)
		memset(processes, 0, size);
}

/* Set up the counts of a database, which are zero. */
void
dlock_stat_init(DLockStatShared *stats)
{
	stats->reset_at = dlock_clock_wall();
	pg_atomic_init_u64(&stats->cleanup_lag, 0);
}

/* Add counts, "sign" being 1, or subtract them: -1. */
static void
add_counts(DLockStatCounts *sum, const DLockStatCounts *counts, int sign)
{
	for (int i = 0; i < DLOCK_STAT_EVENTS; i++)
		sum->events[i] += sign * counts->events[i];
	for (int i = 0; i < DLOCK_STAT_BUCKETS; i++)
		sum->waits[i] += sign * counts->waits[i];
	sum->leases += sign * counts->leases;
}

/* At exit, add this process's counts to the past of the database. */
static void
detach_at_exit(int code, Datum arg)
{
	DLOCK_BEGIN_EXIT();
	dlock_stat_detach();
}

/*
 * Add this process's counts to the past of the database that it counts for, if it does,
 * and count for none.  Cannot fail.
 */
void
dlock_stat_detach(void)
{
	DLockStatProcess *process = &processes[MyProcNumber];

	if (mine == &nowhere)
		return;
	LWLockAcquire(stat_lock, LW_EXCLUSIVE);
	add_counts(&process->stats->past, &process->counts, 1);
	process->stats = NULL;
	memset(&process->counts, 0, sizeof(process->counts));
	LWLockRelease(stat_lock);
	mine = &nowhere;
}

/* Count for this database until this process detaches or exits. */
void
dlock_stat_attach(DLockStatShared *stats)
{
	static bool registered = false;
	DLockStatProcess *process = &processes[MyProcNumber];

	Assert(mine == &nowhere);
	if (!registered)
		on_shmem_exit(detach_at_exit, (Datum) 0);
	registered = true;
	process->stats = stats;
	mine = &process->counts;
}

/* Count an event.  Cannot fail, and takes no lock. */
void
dlock_stat_count(DLockStatEvent event, uint64 count)
{
	mine->events[event] += count;
}

/* Count a wait, in microseconds. */
void
dlock_stat_count_wait(DLockTime waited)
{
	int			bucket = 0;

	for (DLockTime limit = 1000; bucket < DLOCK_STAT_BUCKETS - 1 && waited > limit; limit *= 10)
		bucket++;
	mine->waits[bucket]++;
	mine->events[DLOCK_STAT_WAIT]++;
	mine->events[DLOCK_STAT_WAIT_TIME] += waited;
}

/*
 * A lease of this database was added to memory (1) or removed (-1).  Only the
 * sum over all processes means something.
 */
void
dlock_stat_count_lease(int count)
{
	mine->leases += count;
}

/* The sum of all that was ever counted for a database; with the lock held. */
static DLockStatCounts
sum_up(const DLockStatShared *stats)
{
	DLockStatCounts sum = stats->past;

	Assert(LWLockHeldByMe(stat_lock));
	for (int i = 0; i < MaxBackends; i++)
	{
		if (processes[i].stats == stats)
			add_counts(&sum, &processes[i].counts, 1);
	}
	return sum;
}

/* No leases are in memory now, and no backend grants any. */
void
dlock_stat_forget_leases(DLockStatShared *stats)
{
	TimestampTz since;

	mine->leases -= dlock_stat_read(stats, &since).leases;
}

/* What has been counted for a database since the last reset, and when that was. */
DLockStatCounts
dlock_stat_read(DLockStatShared *stats, TimestampTz *since)
{
	DLockStatCounts sum;

	LWLockAcquire(stat_lock, LW_SHARED);
	sum = sum_up(stats);
	add_counts(&sum, &stats->base, -1);
	*since = stats->reset_at;
	LWLockRelease(stat_lock);
	return sum;
}

/* Count a database's events from zero.  The leases in memory stay counted. */
void
dlock_stat_reset(DLockStatShared *stats)
{
	LWLockAcquire(stat_lock, LW_EXCLUSIVE);
	stats->base = sum_up(stats);
	stats->base.leases = 0;
	stats->reset_at = dlock_clock_wall();
	LWLockRelease(stat_lock);
	pg_atomic_write_u64(&stats->cleanup_lag, 0);
}
