/*-------------------------------------------------------------------------
 *
 * queue.h
 *	  Requests that wait: calling them, looking, leaving.
 *
 * IDENTIFICATION
 *	  src/lock/queue.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_QUEUE_H
#define DLOCK_QUEUE_H

#include "storage/proc.h"

#include "base/compat.h"
#include "space/space.h"

typedef enum DLockQueueState
{
	DLOCK_QUEUE_IDLE,			/* it is in no queue */
	DLOCK_QUEUE_WAITING,
	DLOCK_QUEUE_DROPPED			/* the extension was dropped */
} DLockQueueState;

/*
 * What a process waits for.
 *
 * While the state is WAITING, all of it is protected by the locks of the
 * partitions in "set": any of them is enough to read, all of them exclusively
 * are needed to change.  While it is anything else the process itself is the
 * only one to change it.
 */
typedef struct DLockQueueShared
{
	DLockQueueState state;
	uint32		serial;			/* counts the requests of this process */
	bool		called;			/* a request of it was; set by anyone, cleared
								 * by the process */
	Oid			database;
	uint32		owner;			/* hash of the owner that waits; zero if it
								 * watches */
	DLockSpaceKind kind;
	DLockPartitionSet set;		/* the partitions of its requests */
	int			count;			/* of requests */
	DLockMemoryRef first;		/* the first of them */
	DLockTime	since;
	TimestampTz since_wall;
} DLockQueueShared;

/* What a process finds when it looks at what it waits for. */
typedef enum DLockQueueNews
{
	DLOCK_QUEUE_WAIT,			/* nothing to be done before the given time */
	DLOCK_QUEUE_READY,			/* ask again */
	DLOCK_QUEUE_GONE			/* it no longer waits: the extension was
								 * dropped */
} DLockQueueNews;

/* the places of processes */
extern void dlock_queue_request(void);
extern void dlock_queue_startup(void);

extern DLockQueueShared *dlock_queue_place(int process);
extern DLockQueueShared *dlock_queue_mine(void);
extern DLockSpaceLease *dlock_queue_first(int process);
extern uint32 dlock_queue_owner_hash(const DLockOwner *owner);
extern void dlock_queue_end(int process, DLockQueueState state);
extern bool dlock_queue_is_for_lock(int process, Oid database);
extern void dlock_queue_listen(void);
extern bool dlock_queue_listens(void);
extern void dlock_queue_owner_gained(Oid database, const DLockOwner *owner);
extern bool dlock_queue_is_within(int process, Oid database, const DLockPartitionSet *locked,
								  DLockPartitionSet *set);
extern bool dlock_queue_lock(int process, Oid database, LWLockMode mode,
							 DLockPartitionSet *set);

/* under partition locks */
extern void dlock_queue_wake_twins(DLockSpaceEntry *entry, const DLockOwner *owner,
								   DLockPart part);
extern void dlock_queue_tell_observers(Oid database, const DLockBytes *names, int count);
extern void dlock_queue_call(DLockSpaceEntry *entry, DLockTime now);
extern void dlock_queue_call_again(DLockSpaceEntry *entry, DLockTime now);
extern void dlock_queue_call_if_late(DLockSpaceEntry *entry, DLockTime now);
extern void dlock_queue_remove_mine(DLockTime now);

extern DLockTime dlock_queue_enter(DLockSpaceKind kind, Oid database, uint32 owner,
								   const DLockPartitionSet *set, int count,
								   DLockMemoryRef first, DLockTime now, TimestampTz wall);

/* without locks */
extern DLockQueueNews dlock_queue_look(DLockTime anyway, DLockTime *until);
extern void dlock_queue_call_mine(void);
extern void dlock_queue_leave(void);
extern void dlock_queue_dismiss(Oid database);

#endif							/* DLOCK_QUEUE_H */
