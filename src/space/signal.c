/*-------------------------------------------------------------------------
 *
 * signal.c
 *	  What wakes a process besides a turn: changes of leases, and tasks.
 *
 * NOTES
 *	  A process *listens* for the hash of a lock that it watches.  Whatever may give the lock
 *	  another holder tells those that listen for it: each is woken once, and listens again
 *	  before it reads again.  They are counted by their hash (space/count.c), so a change
 *	  finds out in O(1) that no process is to be told of it.
 *
 *	  No change is missed.  A process resets its latch, listens, and then reads the leases
 *	  under their partition lock.  A change is made, and told, under that lock.  If it comes
 *	  before that, it is seen; if it comes after, the process is found listening, and its
 *	  latch is set.  A grant is told of without the lock, but after it was confirmed, with a
 *	  memory barrier in between; a process listens, which is a barrier, too, before it asks
 *	  what is confirmed.
 *
 *	  A session that waits for rows, such as a capture of tasks, sleeps on a
 *	  condition variable that the hash of database and queue chooses.  A
 *	  transaction counts the rows that it makes available, and sends as many
 *	  signals once it has committed and its rows can be seen.  So a row wakes one
 *	  session.
 *
 *	  Such a session reads the number of signals before it scans, and sleeps only while
 *	  that number stands, so no signal between its scan and its sleep is lost.
 *	  When it wakes it scans again: a signal for another queue of the same hash,
 *	  or of a subtransaction that was rolled back, costs one scan.  What no
 *	  transaction of this server announces (a delay that ends, a prepared
 *	  transaction, rows of a subscription) is found by the caller, which sleeps
 *	  for a second at most.
 *
 *	  Locks: none but the spinlocks of the condition variables.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "base/compat.h"
#include "space/count.h"
#include "space/partition.h"
#include "space/signal.h"

/* Queues of tasks share so many condition variables. */
#define SIGNALS		128

typedef struct DLockSignalQueue
{
	ConditionVariable waiters;
	pg_atomic_uint64 sent;		/* signals so far */
} DLockSignalQueue;

typedef struct DLockSignalShared
{
	DLockSignalQueue queues[SIGNALS];
	pg_atomic_uint32 listening; /* processes */

	/*
	 * By process: the hash for which it listens, or zero.  Set by the
	 * process; cleared by the first that tells it, or when its watch ends.
	 */
	pg_atomic_uint32 hashes[FLEXIBLE_ARRAY_MEMBER];
} DLockSignalShared;

static DLockSignalShared *signals = NULL;

/* What this transaction will send when it commits. */
static int	due[SIGNALS];
static bool any_due = false;

static Size
shared_size(void)
{
	return add_size(offsetof(DLockSignalShared, hashes), mul_size(sizeof(pg_atomic_uint32), MaxBackends));
}

void
dlock_signal_request(void)
{
	RequestAddinShmemSpace(shared_size());
}

/* Create what there is, or find it; with AddinShmemInitLock held. */
void
dlock_signal_startup(void)
{
	bool		found;

	signals = ShmemInitStruct("dlock signals", shared_size(), &found);
	if (found)
		return;
	pg_atomic_init_u32(&signals->listening, 0);
	for (int i = 0; i < SIGNALS; i++)
	{
		ConditionVariableInit(&signals->queues[i].waiters);
		pg_atomic_init_u64(&signals->queues[i].sent, 0);
	}
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u32(&signals->hashes[i], 0);
}

/* ---- changes of leases ---- */

/* The key by which those that listen are counted. */
static inline uint64
listener_key(uint32 hash)
{
	return hash_bytes_uint32_extended(hash, 0);
}

/* One more process listens for a hash, or one less. */
static void
count_listener(uint32 hash, int by)
{
	dlock_count_add(DLOCK_COUNT_LISTENERS, listener_key(hash), by);
	(void) pg_atomic_fetch_add_u32(&signals->listening, by);
}

/* This process listens for a hash from now on.  It has reset its latch, and reads next. */
void
dlock_signal_listen(uint32 hash)
{
	uint32		before;

	hash = Max(hash, 1);
	count_listener(hash, 1);	/* first, so that it is never too low */
	before = pg_atomic_exchange_u32(&signals->hashes[MyProcNumber], hash);
	if (before != 0)
		count_listener(before, -1);
}

/* This process listens no longer.  Cannot fail. */
void
dlock_signal_end_listening(void)
{
	uint32		hash = pg_atomic_exchange_u32(&signals->hashes[MyProcNumber], 0);

	if (hash != 0)
		count_listener(hash, -1);
}

/* Does any process listen?  Without one, it costs nothing to tell. */
bool
dlock_signal_is_any_listening(void)
{
	return pg_atomic_read_u32(&signals->listening) != 0;
}

/* Wake the processes that listen for a hash, each once.  Cannot fail. */
void
dlock_signal_tell(uint32 hash)
{
	hash = Max(hash, 1);
	if (!dlock_signal_is_any_listening() ||
		dlock_count_read(DLOCK_COUNT_LISTENERS, listener_key(hash)) == 0)
		return;
	for (int process = 0; process < MaxBackends; process++)
	{
		uint32		listens = hash;

		if (pg_atomic_read_u32(&signals->hashes[process]) == hash &&
			pg_atomic_compare_exchange_u32(&signals->hashes[process], &listens, 0))
		{
			count_listener(hash, -1);
			dlock_partition_wake(process);
		}
	}
}

/* Wake all processes that listen.  Cannot fail. */
void
dlock_signal_tell_all(void)
{
	for (int process = 0; process < MaxBackends; process++)
	{
		if (pg_atomic_read_u32(&signals->hashes[process]) != 0)
			dlock_partition_wake(process);
	}
}

/* ---- tasks ---- */

static int
index_of(int32 queue)
{
	return hash_combine(murmurhash32(MyDatabaseId), murmurhash32((uint32) queue)) % SIGNALS;
}

/* Wake up one session that waits for this queue, once this transaction has committed. */
void
dlock_signal_at_commit(int32 queue)
{
	due[index_of(queue)]++;
	any_due = (signals != NULL);
}

/* The transaction has ended.  Cannot fail. */
void
dlock_signal_end_transaction(bool committed)
{
	if (!any_due)
		return;
	for (int i = 0; i < SIGNALS; i++)
	{
		if (committed && due[i] > 0)
		{
			pg_atomic_fetch_add_u64(&signals->queues[i].sent, due[i]);
			for (int n = 0; n < Min(due[i], MaxBackends); n++)
				ConditionVariableSignal(&signals->queues[i].waiters);
		}
		due[i] = 0;
	}
	any_due = false;
}

/* The number of signals up to now, to be read before the scan. */
uint64
dlock_signal_seen(int32 queue)
{
	return (signals != NULL) ? pg_atomic_read_u64(&signals->queues[index_of(queue)].sent) : 0;
}

/* Sleep until there is a signal that has not been seen, but no longer than this. */
void
dlock_signal_wait(int32 queue, uint64 seen, long timeout_ms)
{
	static uint32 event = 0;
	DLockSignalQueue *shared = &signals->queues[index_of(queue)];

	if (event == 0)
		event = WaitEventExtensionNew("DLockTaskCapture");
	ConditionVariablePrepareToSleep(&shared->waiters);
	while (pg_atomic_read_u64(&shared->sent) == seen)
	{
		if (ConditionVariableTimedSleep(&shared->waiters, timeout_ms, event))
			break;
	}
	DLOCK_CANCEL_SLEEP(&shared->waiters);
}
