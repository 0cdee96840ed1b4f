/*-------------------------------------------------------------------------
 *
 * stat.h
 *	  What has happened since the last reset, counted by database.
 *
 * IDENTIFICATION
 *	  src/base/stat.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_STAT_H
#define DLOCK_STAT_H

#include "datatype/timestamp.h"
#include "port/atomics.h"

#include "base/types.h"

typedef enum DLockStatEvent
{
	DLOCK_STAT_GRANT,			/* leases granted, hand-offs included */
	DLOCK_STAT_HANDOFF,			/* of these, to waiters */
	DLOCK_STAT_REENTRY,
	DLOCK_STAT_REFUSAL,			/* requests refused at once */
	DLOCK_STAT_TIMEOUT,			/* requests that waited in vain */
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
	DLOCK_STAT_WAIT_TIME		/* their microseconds */
} DLockStatEvent;

#define DLOCK_STAT_EVENTS		(DLOCK_STAT_WAIT_TIME + 1)

/* Waits of up to 1 ms, 10 ms, 100 ms, 1 s, 10 s, 100 s, and longer ones. */
#define DLOCK_STAT_BUCKETS		7

typedef struct DLockStatCounts
{
	uint64		events[DLOCK_STAT_EVENTS];
	uint64		waits[DLOCK_STAT_BUCKETS];
	int64		leases;			/* in memory: those added less those removed */
} DLockStatCounts;

/* Of one database; "past" has the counts of processes that have exited. */
typedef struct DLockStatShared
{
	/* Protected by the lock dlock_stat. */
	DLockStatCounts past;
	DLockStatCounts base;		/* at the last reset; without leases */
	TimestampTz reset_at;

	pg_atomic_uint64 cleanup_lag;	/* of the last removal, microseconds */
} DLockStatShared;

extern void dlock_stat_request(void);
extern void dlock_stat_startup(void);
extern void dlock_stat_init(DLockStatShared *stats);
extern void dlock_stat_attach(DLockStatShared *stats);
extern void dlock_stat_detach(void);
extern void dlock_stat_count(DLockStatEvent event, uint64 count);
extern void dlock_stat_count_wait(DLockTime waited);
extern void dlock_stat_count_lease(int count);
extern void dlock_stat_forget_leases(DLockStatShared *stats);
extern DLockStatCounts dlock_stat_read(DLockStatShared *stats, TimestampTz *since);
extern void dlock_stat_reset(DLockStatShared *stats);

#endif							/* DLOCK_STAT_H */
