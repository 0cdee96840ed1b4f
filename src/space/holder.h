/*-------------------------------------------------------------------------
 *
 * holder.h
 *	  Who holds a lock, and who is in the way of whom.
 *
 * IDENTIFICATION
 *	  src/space/holder.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_HOLDER_H
#define DLOCK_HOLDER_H

#include "base/types.h"
#include "space/space.h"

/* The holders of a lock, taken together. */
typedef struct DLockHolderCrowd
{
	uint32		modes;			/* a set */
	uint32		permits;		/* how many */
	DLockTime	until;			/* when the first of them ends */
} DLockHolderCrowd;

/* Room for the texts of a lease that are not in one piece. */
typedef struct DLockHolderTexts
{
	char		name[DLOCK_NAME_MAX];
	char		owner[DLOCK_OWNER_MAX];
	char		payload[DLOCK_PAYLOAD_MAX];
} DLockHolderTexts;

/* A lease and the lock that it is on: one part of a lease on a path. */
typedef struct DLockHolderPart
{
	DLockSpaceEntry *entry;
	DLockSpaceLease *lease;
} DLockHolderPart;

extern DLockLeaseValue dlock_holder_value(DLockSpaceEntry *entry,
										  const DLockSpaceLease *lease,
										  DLockHolderTexts *texts);
extern DLockTime dlock_holder_blocks_until(const DLockSpaceLease *lease);
extern DLockTime dlock_holder_due_at(const DLockSpaceLease *lease);
extern DLockHolderCrowd dlock_holder_survey(DLockSpaceEntry *entry, const DLockSpaceLease *own,
											DLockTime now);
extern bool dlock_holder_is_in_way(const DLockHolderCrowd *crowd, uint32 ahead,
								   DLockMode mode, uint32 permits);
extern bool dlock_holder_is_blocked(DLockSpaceEntry *entry, DLockMode mode,
									uint32 permits, const DLockSpaceLease *own,
									const DLockSpaceLease *before,
									DLockTime now, DLockTime *until);
extern bool dlock_holder_is_waiting(DLockSpaceEntry *entry, const DLockSpaceLease *request,
									DLockTime now);
extern bool dlock_holder_is_own_way(DLockSpaceEntry *entry, const DLockOwner *owner,
									DLockMode mode, DLockTime now);

/* the parts of a path */
extern void dlock_holder_path_set(Oid database, const DLockBytes *path,
								  DLockPartitionSet *set);
extern DLockBytes dlock_holder_path(DLockSpaceEntry *entry, DLockSpaceLease *part,
									char buffer[DLOCK_NAME_MAX]);
extern int	dlock_holder_parts(DLockSpaceEntry *entry, DLockSpaceLease *lease,
							   DLockHolderPart *parts);

#endif							/* DLOCK_HOLDER_H */
