/*-------------------------------------------------------------------------
 *
 * stat.c
 *	  What has happened since the server started, counted by database.
 *
 * NOTES
 *	  Every process counts in a place of its own, so that counting costs
 *	  nothing worth mentioning however many do it.  When it ends, what it has
 *	  counted is added to the database's past.  Whoever reads adds up the past
 *	  and the places of the processes that count for this database.
 *
 *	  Lock rules.  A place is written by its process alone, without a lock; a
 *	  counter is read while that goes on, as of one moment or another.  The
 *	  LWLock dlock_stat keeps a process from being counted twice, or not at
 *	  all, while it ends: readers share it, a process that ends has it alone.
 *	  No other lock is asked for under it.
 *
 * IDENTIFICATION
 *	  src/base/stat.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "base/compat.h"
#include "base/exit.h"
#include "base/stat.h"

/* What one process has counted; "stats" is NULL if it has not begun. */
typedef struct DLockStatPlace
{
	DLockStatShared *volatile stats;
	DLockStatCounts counts;
} DLockStatPlace;

static DLockStatPlace *places = NULL;
static LWLock *places_lock = NULL;

/* This process's place, once it has one; until then it counts for nobody. */
static DLockStatCounts nowhere;
static DLockStatCounts *mine = &nowhere;

void
dlock_stat_request(void)
{
	RequestAddinShmemSpace(mul_size(sizeof(DLockStatPlace), MaxBackends));
	RequestNamedLWLockTranche("dlock_stat", 1);
}

/* Create the places; with AddinShmemInitLock held. */
void
dlock_stat_startup(void)
{
	bool		found;
	Size		size = mul_size(sizeof(DLockStatPlace), MaxBackends);

	places = ShmemInitStruct("dlock statistics", size, &found);
	places_lock = &GetNamedLWLockTranche("dlock_stat")->lock;
	if (!found)
		memset(places, 0, size);
}

/* Set up the counts of a database. */
void
dlock_stat_init(DLockStatShared *stats)
{
	memset(&stats->past, 0, sizeof(stats->past));
	pg_atomic_init_u64(&stats->reaper_lag, 0);
}

static void
add_counts(DLockStatCounts *sum, const DLockStatCounts *counts)
{
	for (int i = 0; i < DLOCK_STAT_EVENTS; i++)
		sum->events[i] += counts->events[i];
	for (int i = 0; i < DLOCK_STAT_BUCKETS; i++)
		sum->waits[i] += counts->waits[i];
	sum->leases += counts->leases;
}

/* At exit, what was counted becomes the past of the database. */
static void
leave_place(int code, Datum arg)
{
	DLockStatPlace *place = (DLockStatPlace *) DatumGetPointer(arg);
	DLockStatShared *stats = place->stats;

	LWLockAcquire(places_lock, LW_EXCLUSIVE);
	add_counts(&stats->past, &place->counts);
	place->stats = NULL;
	memset(&place->counts, 0, sizeof(place->counts));
	LWLockRelease(places_lock);
	mine = &nowhere;
}

/* From now on this process counts for this database, to the end of its life. */
void
dlock_stat_attach(DLockStatShared *stats)
{
	DLockStatPlace *place = &places[MyProcNumber];

	dlock_exit_on_shmem(leave_place, PointerGetDatum(place));
	place->stats = stats;
	mine = &place->counts;
}

/* Count an event.  Cannot fail, and takes no lock. */
void
dlock_stat_count(DLockStatEvent event, uint64 count)
{
	mine->events[event] += count;
}

/* Count a wait of so many microseconds. */
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
 * A lease of this process's database came into memory (1), or went (-1).  Only
 * the sum over all processes says something.
 */
void
dlock_stat_count_lease(int count)
{
	mine->leases += count;
}

/* There are no leases in memory, and nobody makes any. */
void
dlock_stat_forget_leases(DLockStatShared *stats)
{
	mine->leases -= dlock_stat_read(stats).leases;
}

/* All that has been counted for a database. */
DLockStatCounts
dlock_stat_read(DLockStatShared *stats)
{
	DLockStatCounts sum;

	LWLockAcquire(places_lock, LW_SHARED);
	sum = stats->past;
	for (int i = 0; i < MaxBackends; i++)
	{
		if (places[i].stats == stats)
			add_counts(&sum, &places[i].counts);
	}
	LWLockRelease(places_lock);
	return sum;
}
