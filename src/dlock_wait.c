/*-------------------------------------------------------------------------
 *
 * dlock_wait.c
 *	  Who waits: one place in shared memory for each process.
 *
 * NOTES
 *	  The requests themselves stand in the queues of their locks
 *	  (dlock_space.c).  Here is what belongs to the process: which requests are
 *	  its, whether they have been granted, and how to wake it.
 *
 *	  To get from a process to its requests one has to lock partitions that are
 *	  only known from the process's place.  So the place is read without a
 *	  lock, the locks are taken, and the serial tells whether it still is the
 *	  same request: it cannot go away from then on.
 *
 * IDENTIFICATION
 *	  src/dlock_wait.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "dlock_compat.h"
#include "dlock_wait.h"

static DLockWaitShared *places = NULL;

void
dlock_wait_request(void)
{
	RequestAddinShmemSpace(mul_size(sizeof(DLockWaitShared), MaxBackends));
}

/* Create the places; with AddinShmemInitLock held. */
void
dlock_wait_startup(void)
{
	bool		found;
	Size		size = mul_size(sizeof(DLockWaitShared), MaxBackends);

	places = ShmemInitStruct("dlock waits", size, &found);
	if (!found)
		memset(places, 0, size);
}

/* The number of this process. */
int
dlock_wait_me(void)
{
	return MyProcNumber;
}

/* The numbers of processes are below this. */
int
dlock_wait_processes(void)
{
	return MaxBackends;
}

DLockWaitShared *
dlock_wait_of(int process)
{
	Assert(process >= 0 && process < MaxBackends);
	return &places[process];
}

/* Wake a process; no harm if it does not sleep, or is another one by now. */
void
dlock_wait_wake(int process)
{
	SetLatch(&GetPGProcByNumber(process)->procLatch);
}

/* The process id of a process, for people; zero if it has just ended. */
int
dlock_wait_pid(int process)
{
	return GetPGProcByNumber(process)->pid;
}

/*
 * This process begins to wait for "count" requests, the first of which is at
 * "first".  The partitions of the set must be locked exclusively.
 */
void
dlock_wait_enter(DLockSpaceKind kind, Oid database, const DLockSpaceSet *set,
				 int count, dsa_pointer first, DLockTime now, TimestampTz wall)
{
	DLockWaitShared *mine = dlock_wait_of(dlock_wait_me());

	Assert(mine->state == DLOCK_WAIT_IDLE);
	mine->database = database;
	mine->kind = kind;
	mine->set = *set;
	mine->count = count;
	mine->first = first;
	mine->since = now;
	mine->since_wall = wall;
	mine->token = DLOCK_TOKEN_NONE;
	mine->lsn = InvalidXLogRecPtr;
	pg_write_barrier();
	mine->serial++;
	pg_write_barrier();
	mine->state = DLOCK_WAIT_WAITING;
}

/*
 * Lock the partitions of what a process waits for; they are told in "set".
 * False, and nothing locked, if it does not wait, or does so in another
 * database.
 */
bool
dlock_wait_lock(int process, Oid database, LWLockMode mode, DLockSpaceSet *set)
{
	volatile DLockWaitShared *wait = dlock_wait_of(process);
	uint32		serial;

	while (wait->state == DLOCK_WAIT_WAITING && wait->database == database)
	{
		serial = wait->serial;
		pg_read_barrier();
		*set = dlock_wait_of(process)->set;
		dlock_space_lock_set(set, mode);

		/*
		 * In this order: if it waits, the serial is that of what it waits for,
		 * and if that is the one of before, so is the set.
		 */
		if (wait->state == DLOCK_WAIT_WAITING)
		{
			pg_read_barrier();
			if (wait->serial == serial)
				return true;
		}
		dlock_space_unlock_set(set);
	}
	return false;
}
