/*-------------------------------------------------------------------------
 *
 * fault_counts.c
 *	  Counts of what operations cost: what they visit, write and flush.
 *
 * NOTES
 *	  A part of a library that is made with "make FAULTS=1", and of no other
 *	  (src/base/fault.h).  A test compares the counts before and after a
 *	  statement.  The load of the machine does not change them.
 *
 *	  Walks are counted where a reference is followed: in the functions of
 *	  space/lease.h and, for places, in dlock_process_at().  So a new walk is
 *	  counted, too.  Records, flushes and wake-ups are counted by the macros at
 *	  the end of fault_points.h.
 *
 *	  Lock rules.  A process changes its own counts, and "woken" is changed by
 *	  the one that wakes it; all of them are atomic and may be read at any time.
 *	  The counts of a process that has ended go on with the next one that has
 *	  its number.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "base/compat.h"
#include "space/partition.h"

typedef struct FaultCountsShared
{
	pg_atomic_uint64 costs[DLOCK_FAULT_COSTS];
} FaultCountsShared;

/* By process; set once, in the postmaster. */
static FaultCountsShared *counts = NULL;

static const char *const names[DLOCK_FAULT_COSTS] = {
	"entries", "leases", "requests", "places", "records", "flushes", "wakes", "naps", "woken",
	"lockings", "most", "most_requests"
};

static Size
counts_size(void)
{
	return mul_size(sizeof(FaultCountsShared), MaxBackends);
}

void
dlock_fault_counts_request(void)
{
	RequestAddinShmemSpace(counts_size());
}

/* With AddinShmemInitLock held. */
void
dlock_fault_counts_startup(void)
{
	bool		found;

	counts = ShmemInitStruct("dlock fault counts", counts_size(), &found);
	for (int i = 0; i < MaxBackends && !found; i++)
	{
		for (int cost = 0; cost < DLOCK_FAULT_COSTS; cost++)
			pg_atomic_init_u64(&counts[i].costs[cost], 0);
	}
}

/* Keep the largest numbers of leases and requests that this process has visited under one lock. */
static void
count_most(DLockFaultCost cost)
{
	static bool begun = false;
	static uint64 visits[2] = {0, 0};
	pg_atomic_uint64 *most = &counts[MyProcNumber].costs[DLOCK_COST_MOST];

	if (cost == DLOCK_COST_LOCKINGS)
		visits[0] = visits[1] = 0;
	else if (cost == DLOCK_COST_LEASES)
		visits[0]++;
	else if (cost == DLOCK_COST_REQUESTS && dlock_partition_is_any_held())
		visits[1]++;
	for (int i = 0; i < 2; i++)
	{
		if (!begun || visits[i] > pg_atomic_read_u64(&most[i]))
			pg_atomic_write_u64(&most[i], visits[i]);
	}
	begun = true;
}

/* This process has visited or done something. */
void
dlock_fault_count(DLockFaultCost cost)
{
	if (counts == NULL || MyProc == NULL || MyProcNumber >= MaxBackends)
		return;
	(void) pg_atomic_fetch_add_u64(&counts[MyProcNumber].costs[cost], 1);
	count_most(cost);
}

/* This process sets the latch of a process: count that for both. */
void
dlock_fault_count_wake(const Latch *latch)
{
	const PGPROC *proc = (const PGPROC *) ((const char *) latch - offsetof(PGPROC, procLatch));
	ptrdiff_t	number = proc - ProcGlobal->allProcs;

	dlock_fault_count(DLOCK_COST_WAKES);
	if (counts != NULL && number >= 0 && number < MaxBackends)
		(void) pg_atomic_fetch_add_u64(&counts[number].costs[DLOCK_COST_WOKEN], 1);
}

const char *
dlock_fault_count_name(DLockFaultCost cost)
{
	return names[cost];
}

/* What a process has counted; zero: all of them together. */
uint64
dlock_fault_counted(int pid, DLockFaultCost cost)
{
	uint64		sum = 0;

	for (int i = 0; i < MaxBackends; i++)
	{
		if (pid == 0 || GetPGProcByNumber(i)->pid == pid)
			sum += pg_atomic_read_u64(&counts[i].costs[cost]);
	}
	return sum;
}
