/*-------------------------------------------------------------------------
 *
 * signal.c
 *	  Wake up sessions that wait for the rows of a queue.
 *
 * NOTES
 *	  A session that waits for rows, such as a capture of tasks, sleeps on a
 *	  condition variable that the hash of database and queue chooses.  A
 *	  transaction counts the rows that it makes available, and sends as many
 *	  signals once it has committed and its rows can be seen.  So a row wakes one
 *	  session.
 *
 *	  A waiter reads the number of signals before it scans, and sleeps only while
 *	  that number stands, so no signal between its scan and its sleep is lost.
 *	  Whoever wakes up scans again: a signal for another queue of the same hash,
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
#include "storage/condition_variable.h"
#include "storage/shmem.h"

#include "base/compat.h"
#include "session/session.h"
#include "session/signal.h"

#define SIGNALS		128

/* What the queues of a hash share. */
typedef struct DLockSignalShared
{
	ConditionVariable waiters;
	pg_atomic_uint64 sent;		/* signals so far */
} DLockSignalShared;

static DLockSignalShared *signals = NULL;

/* What this transaction will send when it commits. */
static int	due[SIGNALS];
static bool any_due = false;

void
dlock_signal_request(void)
{
	RequestAddinShmemSpace(MAXALIGN(SIGNALS * sizeof(DLockSignalShared)));
}

void
dlock_signal_startup(void)
{
	bool		found;

	signals = ShmemInitStruct("dlock signals", SIGNALS * sizeof(DLockSignalShared), &found);
	if (found)
		return;
	for (int i = 0; i < SIGNALS; i++)
	{
		ConditionVariableInit(&signals[i].waiters);
		pg_atomic_init_u64(&signals[i].sent, 0);
	}
}

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
			pg_atomic_fetch_add_u64(&signals[i].sent, due[i]);
			for (int n = 0; n < Min(due[i], MaxBackends); n++)
				ConditionVariableSignal(&signals[i].waiters);
		}
		due[i] = 0;
	}
	any_due = false;
}

/* The number of signals up to now, to be read before the scan. */
uint64
dlock_signal_seen(int32 queue)
{
	return (signals != NULL) ? pg_atomic_read_u64(&signals[index_of(queue)].sent) : 0;
}

/*
 * Sleep until there is a signal that has not been seen, but no longer than this.  Throws
 * 55000 if dlock is not preloaded.
 */
void
dlock_signal_wait(int32 queue, uint64 seen, long timeout_ms)
{
	static uint32 event = 0;
	DLockSignalShared *shared;

	dlock_session_check_preloaded();
	shared = &signals[index_of(queue)];
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
