/*-------------------------------------------------------------------------
 *
 * stat.c
 *	  What has happened since the server started, counted by database.
 *
 * NOTES
 *	  The counters of a database are in a few stripes, over which backends spread,
 *	  so that they do not all write to one cache line.  A reader adds the stripes up.
 *
 *	  Lock rules.  The counters are atomic, and nothing is locked; a reader may see
 *	  counters of slightly different moments.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/stat.h"

/* The database that this process counts for; NULL: its counts are ignored. */
static DLockStatShared *counted = NULL;

/* Set up the counters of a database. */
void
dlock_stat_init(DLockStatShared *stats)
{
	for (int stripe = 0; stripe < DLOCK_STAT_STRIPES; stripe++)
	{
		for (int i = 0; i < DLOCK_STAT_COUNTERS; i++)
			pg_atomic_init_u64(&stats->counters[stripe][i], 0);
	}
	pg_atomic_init_u64(&stats->cleanup_lag, 0);
}

/* Count for this database from now on. */
void
dlock_stat_attach(DLockStatShared *stats)
{
	counted = stats;
}

/* Count an event.  Cannot fail, and takes no lock. */
void
dlock_stat_count(DLockStatEvent event, int64 count)
{
	if (counted != NULL)
		(void) pg_atomic_fetch_add_u64(&counted->counters[MyProcPid % DLOCK_STAT_STRIPES][event], count);
}

/* Count a wait, in microseconds. */
void
dlock_stat_count_wait(DLockTime waited)
{
	int			bucket = 0;

	for (DLockTime limit = 1000; bucket < DLOCK_STAT_BUCKETS - 1 && waited > limit; limit *= 10)
		bucket++;
	dlock_stat_count(DLOCK_STAT_BUCKET + bucket, 1);
	dlock_stat_count(DLOCK_STAT_WAIT, 1);
	dlock_stat_count(DLOCK_STAT_WAIT_TIME, waited);
}

/* A counter of a database.  Stripes are read one by one, so their sum could be negative. */
int64
dlock_stat_read(DLockStatShared *stats, DLockStatEvent event)
{
	uint64		sum = 0;

	for (int stripe = 0; stripe < DLOCK_STAT_STRIPES; stripe++)
		sum += pg_atomic_read_u64(&stats->counters[stripe][event]);
	return Max((int64) sum, 0);
}
