/*-------------------------------------------------------------------------
 *
 * wait.h
 *	  Who waits: one place in shared memory for each process.
 *
 * IDENTIFICATION
 *	  src/space/wait.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_WAIT_H
#define DLOCK_WAIT_H

#include "base/types.h"
#include "space/space.h"

typedef enum DLockWaitState
{
	DLOCK_WAIT_IDLE,			/* it is in no queue */
	DLOCK_WAIT_WAITING,
	DLOCK_WAIT_GONE				/* the extension was dropped */
} DLockWaitState;

/*
 * What a process waits for.
 *
 * While the state is WAITING, all of it is protected by the locks of the
 * partitions in "set": any of them is enough to read, all of them exclusively
 * are needed to change.  While it is anything else the process itself is the
 * only one to change it.
 */
typedef struct DLockWaitShared
{
	DLockWaitState state;
	uint32		serial;			/* counts the requests of this process */
	bool		look_again;		/* for a deadlock; set by anyone, cleared by the process */
	bool		called;			/* a request of it was; likewise */
	bool		has_bound;		/* leases were bound to it at some time */
	Oid			database;
	uint32		owner;			/* hash of the owner that waits; zero if it watches */
	DLockSpaceKind kind;
	DLockSpaceSet set;			/* the partitions of its requests */
	int			count;			/* of requests */
	DLockMemoryRef first;			/* the first of them */
	DLockTime	since;
	TimestampTz since_wall;
} DLockWaitShared;

extern void dlock_wait_request(void);
extern void dlock_wait_startup(void);

extern int	dlock_wait_me(void);
extern int	dlock_wait_processes(void);
extern DLockWaitShared *dlock_wait_of(int process);
extern int	dlock_wait_pid(int process);
extern uint32 dlock_wait_owner_hash(const DLockOwner *owner);
extern void dlock_wait_enter(DLockSpaceKind kind, Oid database, uint32 owner,
							 const DLockSpaceSet *set, int count,
							 DLockMemoryRef first, DLockTime now, TimestampTz wall);
extern void dlock_wait_leave(int process, DLockWaitState state);
extern bool dlock_wait_is_for_lock(int process, Oid database);
extern bool dlock_wait_is_any(void);
extern void dlock_wait_owner_gained(Oid database, uint32 owner);
extern bool dlock_wait_is_within(int process, Oid database, const DLockSpaceSet *locked,
								 DLockSpaceSet *set);
extern bool dlock_wait_lock(int process, Oid database, LWLockMode mode,
							DLockSpaceSet *set, DLockSpaceSet *skipped);

#endif							/* DLOCK_WAIT_H */
