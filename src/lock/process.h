/*-------------------------------------------------------------------------
 *
 * process.h
 *	  Processes that wait: their requests, and who blocks them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_PROCESS_H
#define DLOCK_PROCESS_H

#include "storage/proc.h"

#include "base/compat.h"
#include "space/space.h"

/*
 * What a process waits for.
 *
 * While it has a request, this is protected by the locks of the partitions in "set":
 * any of them is enough to read, all of them exclusively are needed to change.
 * While it has none the process itself is the only one to change it.
 */
typedef struct DLockProcessShared
{
	DLockMemoryRef first;		/* of its requests; none if it does not wait */
	DLockPartitionSet set;		/* the partitions of its requests */
	DLockTime	since;			/* when it began to wait */
} DLockProcessShared;

/* How many owners that block a request are named. */
#define DLOCK_PROCESS_BLOCKERS	64

/* Owners, each once. */
typedef struct DLockProcessBlockers
{
	int			count;
	bool		more;			/* than are named */
	struct
	{
		Oid			role;
		int			len;
		char		data[DLOCK_OWNER_MAX];
	}			owners[DLOCK_PROCESS_BLOCKERS];
} DLockProcessBlockers;

/* set-up */
extern void dlock_process_request(void);
extern void dlock_process_startup(void);

/* what a process waits for */
extern DLockProcessShared *dlock_process_at(int process);
extern DLockSpaceLease *dlock_process_first(int process);
extern bool dlock_process_lock_mine(LWLockMode mode);
extern void dlock_process_unlock_mine(void);
extern void dlock_process_begin(const DLockPartitionSet *set, DLockMemoryRef first, DLockTime now);
extern void dlock_process_end(int process);

/* who blocks it */
extern void dlock_process_add_blocker(DLockProcessBlockers *owners, DLockMode mode,
									  const DLockSpaceLease *blocker);
extern void dlock_process_find_blockers(DLockSpaceLease *request, DLockTime now,
										DLockProcessBlockers *owners);
extern char *dlock_process_describe_blockers(void);

#endif							/* DLOCK_PROCESS_H */
