/*-------------------------------------------------------------------------
 *
 * partition.h
 *	  The partitions of the lock space: their locks, and sets of them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_PARTITION_H
#define DLOCK_PARTITION_H

#include "storage/lwlock.h"

#define DLOCK_PARTITION_BITS	7
#define DLOCK_PARTITION_COUNT		(1 << DLOCK_PARTITION_BITS)

/* A set of partitions. */
typedef struct DLockPartitionSet
{
	uint64		bits[DLOCK_PARTITION_COUNT / 64];
} DLockPartitionSet;

/* All of them. */
extern const DLockPartitionSet dlock_partition_all;

/* The locks; set once, in the postmaster. */
extern LWLockPadded *dlock_partition_locks;

/* The partition of a lock, by the hash of its name. */
static inline int
dlock_partition_of(uint32 hash)
{
	return hash >> (32 - DLOCK_PARTITION_BITS);
}

static inline LWLock *
dlock_partition_lwlock(uint32 hash)
{
	return &dlock_partition_locks[dlock_partition_of(hash)].lock;
}

/* For assertions: does this backend hold the lock, in any mode, or exclusively? */
#define dlock_partition_is_held(hash) \
	LWLockHeldByMe(dlock_partition_lwlock(hash))
#define dlock_partition_is_mine(hash) \
	LWLockHeldByMeInMode(dlock_partition_lwlock(hash), LW_EXCLUSIVE)

/* Does it hold the lock of any partition, or all those of a set exclusively? */
#define dlock_partition_is_any_held() \
	LWLockAnyHeldByMe(&dlock_partition_locks[0].lock, DLOCK_PARTITION_COUNT, sizeof(LWLockPadded))
extern bool dlock_partition_set_is_mine(const DLockPartitionSet *set);

/* set-up */
extern void dlock_partition_request(void);
extern void dlock_partition_startup(void);

/* one partition */
extern void dlock_partition_lock(uint32 hash, LWLockMode mode);
extern void dlock_partition_unlock(uint32 hash);
extern void dlock_partition_wake(int process);

/* sets of partitions */
extern void dlock_partition_set_add(DLockPartitionSet *set, uint32 hash);
extern void dlock_partition_set_join(DLockPartitionSet *set, const DLockPartitionSet *other);
extern void dlock_partition_lock_set(const DLockPartitionSet *set, LWLockMode mode);
extern void dlock_partition_unlock_set(const DLockPartitionSet *set);

#endif							/* DLOCK_PARTITION_H */
