/*-------------------------------------------------------------------------
 *
 * stat.h
 *	  What has happened since the server started, counted by database.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_STAT_H
#define DLOCK_STAT_H

#include "port/atomics.h"

#include "base/types.h"

/* The view dlock_stats (sql/engine.sql) knows them by their numbers. */
typedef enum DLockStatEvent
{
	DLOCK_STAT_GRANT,			/* leases granted, hand-offs included */
	DLOCK_STAT_HANDOFF,			/* of these, to requests that waited */
	DLOCK_STAT_REENTRY,
	DLOCK_STAT_REFUSAL,			/* requests refused at once */
	DLOCK_STAT_TIMEOUT,			/* requests refused after a wait */
	DLOCK_STAT_DEADLOCK,
	DLOCK_STAT_RENEWAL,
	DLOCK_STAT_CONVERSION,
	DLOCK_STAT_RELEASE,			/* leases ended by a release */
	DLOCK_STAT_EXPIRY,			/* expired leases, counted when removed */
	DLOCK_STAT_FENCE_STALE,		/* fence rejections: LK001, ... */
	DLOCK_STAT_FENCE_LOST,		/* ... LK002, ... */
	DLOCK_STAT_FENCE_MISSING,	/* ... LK003, ... */
	DLOCK_STAT_FENCE_UNKNOWN,	/* ... 22023: a token that was never granted */
	DLOCK_STAT_WAIT,			/* waits that are over, for whatever reason */
	DLOCK_STAT_WAIT_TIME,		/* their microseconds */
	DLOCK_STAT_BUCKET,			/* waits by their length: the first bucket */
	DLOCK_STAT_LEASES = DLOCK_STAT_BUCKET + 7	/* leases in memory: added
												 * less removed */
} DLockStatEvent;

/* Waits of up to 1 ms, 10 ms, 100 ms, 1 s, 10 s, 100 s, and longer ones. */
#define DLOCK_STAT_BUCKETS		(DLOCK_STAT_LEASES - DLOCK_STAT_BUCKET)

#define DLOCK_STAT_COUNTERS		(DLOCK_STAT_LEASES + 1)
#define DLOCK_STAT_STRIPES		4

/* Of one database.  All fields are atomic. */
typedef struct DLockStatShared
{
	pg_atomic_uint64 counters[DLOCK_STAT_STRIPES][DLOCK_STAT_COUNTERS];
	pg_atomic_uint64 cleanup_lag;	/* how late the last removal was, in us */
} DLockStatShared;

extern void dlock_stat_init(DLockStatShared *stats);
extern void dlock_stat_attach(DLockStatShared *stats);
extern void dlock_stat_count(DLockStatEvent event, int64 count);
extern void dlock_stat_count_wait(DLockTime waited);
extern int64 dlock_stat_read(DLockStatShared *stats, DLockStatEvent event);

#endif							/* DLOCK_STAT_H */
