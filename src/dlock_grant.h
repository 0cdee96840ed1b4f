/*-------------------------------------------------------------------------
 *
 * dlock_grant.h
 *	  What changes who holds a lock: grants, ends, and hand-offs.
 *
 * IDENTIFICATION
 *	  src/dlock_grant.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_GRANT_H
#define DLOCK_GRANT_H

#include "storage/block.h"
#include "storage/buf.h"

#include "dlock_database.h"
#include "dlock_space.h"
#include "dlock_types.h"

/* Pages that single operations may need pinned at a time. */
#define DLOCK_GRANT_PINS	8

/* Requests of several locks that one release may turn out to be for. */
#define DLOCK_GRANT_UNITS	8

typedef struct DLockGrantPin
{
	BlockNumber block;
	Buffer		buffer;
} DLockGrantPin;

/*
 * A piece of work: what it has, what it lacks, and what it has yet to do once
 * its locks are given up.
 */
typedef struct DLockGrantWork
{
	DLockDatabase *db;			/* without db->rel, pages cannot be changed */
	DLockTime	now;			/* read under the partition lock */
	XLogRecPtr	lsn;			/* end of the last record written */

	/* Pinned pages; the oldest makes way when there is no more room. */
	int			npins;
	int			pin_room;
	int			oldest_pin;
	DLockGrantPin *pins;
	DLockGrantPin few_pins[DLOCK_GRANT_PINS];

	/* What the last step lacked: see dlock_grant_fetch(). */
	DLockSlot	missing_slot;
	int			missing_tokens;

	/* Locks whose queue is to be looked at once more. */
	int			nagain;
	uint32		again[DLOCK_PATH_MAX_PARTS];

	/* Processes that wait for several locks, one of which came free. */
	int			nunits;
	struct
	{
		int			process;
		uint32		serial;
	}			units[DLOCK_GRANT_UNITS];
} DLockGrantWork;

/* A lease and the lock that it is on: one part of a lease on a path. */
typedef struct DLockGrantPart
{
	DLockSpaceEntry *entry;
	DLockSpaceLease *lease;
} DLockGrantPart;

/* the work as a whole */
extern void dlock_grant_begin(DLockGrantWork *work, DLockDatabase *db);
extern void dlock_grant_end(DLockGrantWork *work);
extern void dlock_grant_need_pins(DLockGrantWork *work, int count);
extern void dlock_grant_fetch(DLockGrantWork *work);
extern void dlock_grant_finish(DLockGrantWork *work);

/* steps, under partition locks */
extern void dlock_grant_make_room(DLockGrantWork *work, int count);
extern bool dlock_grant_pin(DLockGrantWork *work, DLockSlot slot);
extern bool dlock_grant_tokens(DLockGrantWork *work, int count, DLockToken *first);
extern bool dlock_grant_tidy(DLockGrantWork *work, DLockSpaceEntry *entry);
extern XLogRecPtr dlock_grant_write(DLockGrantWork *work, DLockSlot slot,
									const DLockLeaseValue *lease);
extern void dlock_grant_log_state(DLockGrantWork *work, DLockSpaceLease *lease,
								  const DLockTerm *term);
extern void dlock_grant_rewrite(DLockGrantWork *work, DLockSpaceEntry *entry,
								DLockSpaceLease *lease);
extern void dlock_grant_hand_off(DLockGrantWork *work, DLockSpaceEntry *entry);
extern bool dlock_grant_end_lease(DLockGrantWork *work, DLockSpaceEntry *entry,
								  DLockSpaceLease *lease);
extern void dlock_grant_stop_lease(DLockGrantWork *work, DLockSpaceEntry *entry,
								   DLockSpaceLease *lease, DLockTime delay);

/* looking, under partition locks in either mode */
extern DLockTime dlock_grant_blocks_until(const DLockSpaceLease *lease);
extern bool dlock_grant_is_blocked(DLockSpaceEntry *entry, DLockMode mode,
								   uint32 permits, const DLockSpaceLease *own,
								   const DLockSpaceLease *before,
								   DLockTime now, DLockTime *until);
extern DLockSpaceLease *dlock_grant_find_owner(DLockSpaceEntry *entry,
											   const DLockBytes *owner, DLockTime now);
extern void dlock_grant_path_set(Oid database, const DLockBytes *path,
								 DLockSpaceSet *set);
extern int	dlock_grant_parts(DLockSpaceEntry *entry, DLockSpaceLease *lease,
							  DLockGrantPart *parts);

/* without locks */
extern void dlock_grant_serve(DLockGrantWork *work, uint32 hash);

#endif							/* DLOCK_GRANT_H */
