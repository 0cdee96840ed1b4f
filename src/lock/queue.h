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

#include "space/database.h"
#include "space/wait.h"

/* What a process finds when it looks at what it waits for. */
typedef enum DLockQueueNews
{
	DLOCK_QUEUE_WAIT,			/* nothing to be done before the given time */
	DLOCK_QUEUE_READY,			/* ask again */
	DLOCK_QUEUE_GONE			/* it no longer waits: the extension was dropped */
} DLockQueueNews;

/* How many owners in the way are named. */
#define DLOCK_QUEUE_OWNERS		64

/* Owners, each once. */
typedef struct DLockQueueOwners
{
	int			count;
	bool		more;			/* than are named */
	struct
	{
		Oid			role;
		int			len;
		char		data[DLOCK_OWNER_MAX];
	}			owners[DLOCK_QUEUE_OWNERS];
} DLockQueueOwners;

/* Told of a lease or a request that is in the way of another request. */
typedef void (*DLockQueueVisitor) (DLockSpaceLease *blocker, void *arg);

/* under partition locks */
extern DLockSpaceLease *dlock_queue_leader(DLockSpaceEntry *entry, DLockTime now);
extern void dlock_queue_blockers(DLockSpaceLease *request, DLockTime now,
								 DLockQueueVisitor visitor, void *arg);
extern void dlock_queue_owners_in_way(DLockSpaceLease *request, DLockTime now,
									  DLockQueueOwners *owners);
extern void dlock_queue_call(DLockSpaceEntry *entry, DLockTime now);
extern void dlock_queue_remove_mine(DLockTime now);

/* without locks */
extern DLockQueueNews dlock_queue_look(DLockTime anyway, DLockTime *until);
extern void dlock_queue_call_mine(void);
extern void dlock_queue_leave(void);
extern char *dlock_queue_describe_blockers(void);
extern void dlock_queue_dismiss(Oid database);

#endif							/* DLOCK_QUEUE_H */
