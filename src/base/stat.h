/*-------------------------------------------------------------------------
 *
 * stat.h
 *	  What has happened since the server started, counted by database.
 *
 * IDENTIFICATION
 *	  src/base/stat.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_STAT_H
#define DLOCK_STAT_H

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
	DLOCK_STAT_FENCE_REJECTION, /* tokens refused, missing or lost */
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
	DLockStatCounts past;		/* protected by the lock dlock_stat */
	pg_atomic_uint64 reaper_lag;	/* of the last removal, microseconds */
} DLockStatShared;

extern void dlock_stat_request(void);
extern void dlock_stat_startup(void);
extern void dlock_stat_init(DLockStatShared *stats);
extern void dlock_stat_attach(DLockStatShared *stats);
extern void dlock_stat_count(DLockStatEvent event, uint64 count);
extern void dlock_stat_count_wait(DLockTime waited);
extern void dlock_stat_count_lease(int count);
extern void dlock_stat_forget_leases(DLockStatShared *stats);
extern DLockStatCounts dlock_stat_read(DLockStatShared *stats);

#endif							/* DLOCK_STAT_H */
