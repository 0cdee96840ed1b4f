/*-------------------------------------------------------------------------
 *
 * stop_partition.c
 *	  For tests: a backend that stops under a partition lock of the lock space.
 *
 * NOTES
 *	  It needs nothing of dlock but the name of its LWLocks and the way from a
 *	  name to a partition.
 *
 * IDENTIFICATION
 *	  test/modules/stop_partition.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/builtins.h"

#include "base/hash.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(partition_of);
PG_FUNCTION_INFO_V1(stop_in_partition);

#define PARTITION_BITS	7

/* partition_of(name) -> in which partition the lock of this database is */
Datum
partition_of(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	uint32		hash = (uint32) dlock_hash_bytes(MyDatabaseId, name, strlen(name));

	PG_RETURN_INT32(hash >> (32 - PARTITION_BITS));
}

/* stop_in_partition(partition): stop under its lock, until a SIGCONT */
Datum
stop_in_partition(PG_FUNCTION_ARGS)
{
	LWLock	   *lock = &GetNamedLWLockTranche("dlock_space")[PG_GETARG_INT32(0)].lock;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	kill(MyProcPid, SIGSTOP);
	LWLockRelease(lock);
	PG_RETURN_VOID();
}
