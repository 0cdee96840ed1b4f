/*-------------------------------------------------------------------------
 *
 * holder.h
 *	  The leases that are held: found by their owner and by their token, and what
 *	  blocks a request.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_HOLDER_H
#define DLOCK_HOLDER_H

#include "nodes/pg_list.h"

#include "base/types.h"
#include "space/lease.h"

/* A lease as something to come back to: enough to find it again, if it lives. */
typedef struct DLockSpaceRef
{
	uint32		hash;
	DLockToken	token;
} DLockSpaceRef;

/* How a lease is named: by its lock, and by its token or its owner. */
typedef struct DLockHolderTarget
{
	uint32		hash;			/* of the name of the lock */
	DLockBytes	name;			/* or none: the token is enough */
	DLockToken	token;
	DLockBytes	owner;			/* if there is no token */
	bool		closed;			/* not a live one: one whose lock delay is not
								 * over */
	bool		skip;			/* a stranger's is no error, and is left alone */
} DLockHolderTarget;

/* The holders of a lock, taken together. */
typedef struct DLockHolderCrowd
{
	uint32		modes;			/* a set */
	uint32		ncr;			/* in mode CR */
	uint32		nstrong;		/* in another mode than NL and CR */
	DLockTime	until;			/* when the first blocks no more, or earlier */
} DLockHolderCrowd;

/* Room for the texts of a lease that are not in one piece. */
typedef struct DLockHolderTexts
{
	char		name[DLOCK_NAME_MAX];
	char		owner[DLOCK_OWNER_MAX];
	char		payload[DLOCK_SPACE_TEXTS_MAX];
} DLockHolderTexts;

/*
 * The buckets of tokens, with the leases that are "indexed".  There are as many as buckets of
 * locks, and a partition has the same numbers in both.  Set once, in the postmaster.
 */
extern DLockMemoryRef *dlock_holder_tokens;

/* set-up */
extern Size dlock_holder_size(uint32 bits);
extern void dlock_holder_request(void);
extern void dlock_holder_startup(DLockMemoryRef *place, uint32 bits);

/* a lease that comes, changes or goes */
extern void dlock_holder_add(DLockSpaceLease *lease);
extern void dlock_holder_change(DLockSpaceLease *lease, DLockToken token);
extern void dlock_holder_remove(DLockSpaceLease *lease);

/* look-ups */
extern DLockSpaceLease *dlock_holder_newest(DLockSpaceEntry *entry, DLockTime now, bool *pending);
extern DLockSpaceLease *dlock_holder_find_token(DLockSpaceEntry *entry, DLockToken token);
extern bool dlock_holder_are_few(DLockSpaceEntry *entry);
extern DLockSpaceLease *dlock_holder_find_owned(DLockSpaceEntry *entry, const DLockOwner *owner,
												DLockTime now);
extern bool dlock_holder_is_wanted(const DLockSpaceLease *lease, bool closed, DLockTime now);
extern DLockSpaceLease *dlock_holder_find_named(DLockSpaceEntry *entry,
												const DLockHolderTarget *target,
												const List *strangers);
extern DLockSpaceRef *dlock_holder_list(Oid database, const DLockBytes *owner_name,
										int *own, int *count);

/* a lease as a value, and what blocks a request */
extern DLockLeaseValue dlock_holder_value(const DLockSpaceLease *lease, DLockHolderTexts *texts);
extern DLockTime dlock_holder_blocks_until(const DLockSpaceLease *lease);
extern DLockTime dlock_holder_vouched_until(const DLockSpaceLease *lease);
extern DLockTime dlock_holder_told_until(const DLockSpaceLease *lease);
extern bool dlock_holder_is_unknown(const DLockSpaceLease *lease);
extern DLockTime dlock_holder_due_at(const DLockSpaceLease *lease);
extern DLockHolderCrowd dlock_holder_survey(DLockSpaceEntry *entry, DLockTime now);
extern DLockHolderCrowd dlock_holder_without(DLockHolderCrowd crowd, const DLockSpaceLease *own,
											 DLockTime now);
extern bool dlock_holder_is_in_way(const DLockHolderCrowd *crowd, uint32 ahead,
								   DLockMode mode, uint32 permits);
extern bool dlock_holder_is_blocked(DLockSpaceEntry *entry, DLockMode mode,
									uint32 permits, const DLockSpaceLease *own,
									const DLockSpaceLease *before,
									DLockTime now, DLockTime *until);
extern DLockSpaceLease *dlock_holder_converted(DLockSpaceEntry *entry,
											   const DLockSpaceLease *request, DLockTime now);
extern bool dlock_holder_is_waiting(DLockSpaceEntry *entry, const DLockSpaceLease *request,
									DLockTime now);
extern bool dlock_holder_is_own_way(DLockSpaceEntry *entry, const DLockOwner *owner,
									DLockMode mode, DLockTime now);

#endif							/* DLOCK_HOLDER_H */
