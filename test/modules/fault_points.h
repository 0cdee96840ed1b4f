/*-------------------------------------------------------------------------
 *
 * fault_points.h
 *	  What the fault points of src/base/fault.h do in a library for tests.
 *
 * NOTES
 *	  "make FAULTS=1" puts this header before each source file, since it also
 *	  makes a point of each allocation, each page read and each look at
 *	  interrupts in it: those need no macro of their own.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_FAULT_POINTS_H
#define DLOCK_FAULT_POINTS_H

/* The module of the tests reads everything; the server's flags would hide it. */
#pragma GCC visibility push(default)

#include "postgres.h"

#include "access/generic_xlog.h"
#include "access/tableam.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/latch.h"
#include "utils/memutils.h"

/* The longest name of a point, with its end. */
#define DLOCK_FAULT_NAME	32

typedef enum DLockFaultKind
{
	DLOCK_FAULT_KIND_STOP,		/* wait until it is disarmed */
	DLOCK_FAULT_KIND_ERROR		/* throw, or fail */
} DLockFaultKind;

/* What is counted; test/modules/fault_counts.c has the names. */
typedef enum DLockFaultCost
{
	DLOCK_COST_ENTRIES,			/* locks that a walk came to */
	DLOCK_COST_LEASES,
	DLOCK_COST_REQUESTS,
	DLOCK_COST_PLACES,			/* of processes that may wait */
	DLOCK_COST_RECORDS,			/* of the WAL */
	DLOCK_COST_FLUSHES,			/* of the WAL, needed or not */
	DLOCK_COST_WAKES,			/* of other processes */
	DLOCK_COST_NAPS,			/* how often the process went to sleep */
	DLOCK_COST_WOKEN,			/* how often this library has set its latch */
	DLOCK_COST_LOCKINGS,		/* of partitions */
	DLOCK_COST_MOST,			/* leases between two of these: the maximum */
	DLOCK_COST_MOST_REQUESTS	/* while one of them was locked: likewise */
} DLockFaultCost;

#define DLOCK_FAULT_COSTS	(DLOCK_COST_MOST_REQUESTS + 1)

/* set-up */
extern void dlock_fault_request(void);
extern void dlock_fault_startup(void);
extern void dlock_fault_clock_request(void);
extern void dlock_fault_clock_startup(void);
extern void dlock_fault_clock_init(void);
extern void dlock_fault_counts_request(void);
extern void dlock_fault_counts_startup(void);

/* for tests */
extern void dlock_fault_arm(const char *name, DLockFaultKind kind, int pid, int nth);
extern bool dlock_fault_disarm(const char *name);
extern int	dlock_fault_hit(const char *name);
extern bool dlock_fault_stops(int pid);
extern void dlock_fault_clock_advance(int64 span);
extern void dlock_fault_clock_settle(void);
extern const char *dlock_fault_count_name(DLockFaultCost cost);
extern uint64 dlock_fault_counted(int pid, DLockFaultCost cost);

/* the clock */
extern int64 dlock_fault_clock_time(int64 machine);
extern int64 dlock_fault_clock_wall(int64 machine);
extern uint32 dlock_fault_clock_boot(uint32 machine);
extern long dlock_fault_clock_nap(int64 until, long ms);
extern void dlock_fault_clock_wakes(void);

/* the counts */
extern void dlock_fault_count(DLockFaultCost cost);
extern void dlock_fault_count_wake(const Latch *latch);

/* points */
extern void dlock_fault_point(const char *name);
extern void dlock_fault_stop(const char *name);
extern bool dlock_fault_fails(const char *name);
extern bool dlock_fault_is_off(const char *name);
extern void dlock_fault_memory(const char *name);
extern void dlock_fault_interrupt(void);

#define DLOCK_FAULT(name)		dlock_fault_point(name)
#define DLOCK_FAULT_STOP(name)	dlock_fault_stop(name)
#define DLOCK_FAULT_FAILS(name)	dlock_fault_fails(name)
#define DLOCK_FAULT_IS_OFF(name)	dlock_fault_is_off(name)
#define DLOCK_FAULT_CLOCK_INIT()	dlock_fault_clock_init()
#define DLOCK_FAULT_TIME(machine)	dlock_fault_clock_time(machine)
#define DLOCK_FAULT_WALL(machine)	dlock_fault_clock_wall(machine)
#define DLOCK_FAULT_BOOT(machine)	dlock_fault_clock_boot(machine)
#define DLOCK_FAULT_NAP(until, ms)	dlock_fault_clock_nap(until, ms)
#define DLOCK_FAULT_COUNT(cost)		dlock_fault_count(cost)

/*
 * The points that need no macro.  A function-like macro does not expand its own
 * name again, so these call what they stand for.
 */
#define palloc(size) \
	(dlock_fault_memory("palloc"), palloc(size))
#define palloc0(size) \
	(dlock_fault_memory("palloc0"), palloc0(size))
#define palloc_extended(size, flags) \
	(dlock_fault_fails("palloc_extended") ? NULL : palloc_extended(size, flags))
#define repalloc(pointer, size) \
	(dlock_fault_memory("repalloc"), repalloc(pointer, size))
#define repalloc_huge(pointer, size) \
	(dlock_fault_memory("repalloc_huge"), repalloc_huge(pointer, size))
#define MemoryContextAlloc(context, size) \
	(dlock_fault_memory("MemoryContextAlloc"), MemoryContextAlloc(context, size))
#define MemoryContextAllocHuge(context, size) \
	(dlock_fault_memory("MemoryContextAllocHuge"), MemoryContextAllocHuge(context, size))
#define ReadBuffer(rel, block) \
	(dlock_fault_point("ReadBuffer"), ReadBuffer(rel, block))
#define ReadBufferExtended(rel, fork, block, mode, strategy) \
	(dlock_fault_point("ReadBufferExtended"), ReadBufferExtended(rel, fork, block, mode, strategy))
#define ReadBufferWithoutRelcache(locator, fork, block, mode, strategy, permanent) \
	(dlock_fault_point("ReadBufferWithoutRelcache"), \
	 ReadBufferWithoutRelcache(locator, fork, block, mode, strategy, permanent))
#define ReadRecentBuffer(locator, fork, block, buffer) \
	(!dlock_fault_fails("ReadRecentBuffer") && ReadRecentBuffer(locator, fork, block, buffer))
#define SetLatch(latch) \
	(dlock_fault_clock_wakes(), dlock_fault_count_wake(latch), SetLatch(latch))

/* What is counted and needs no macro either. */
#define GenericXLogFinish(state) \
	(dlock_fault_count(DLOCK_COST_RECORDS), GenericXLogFinish(state))
#define XLogInsert(rmid, info) \
	(dlock_fault_count(DLOCK_COST_RECORDS), XLogInsert(rmid, info))
#define XLogFlush(lsn) \
	(dlock_fault_count(DLOCK_COST_FLUSHES), XLogFlush(lsn))

#undef CHECK_FOR_INTERRUPTS
#define CHECK_FOR_INTERRUPTS() \
	do { \
		dlock_fault_interrupt(); \
		if (INTERRUPTS_PENDING_CONDITION()) \
			ProcessInterrupts(); \
	} while (0)

#endif							/* DLOCK_FAULT_POINTS_H */
