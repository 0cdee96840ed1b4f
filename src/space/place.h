/*-------------------------------------------------------------------------
 *
 * place.h
 *	  Places in queues that are kept between calls, by client, and the processes
 *	  that listen for them.
 *
 * IDENTIFICATION
 *	  src/space/place.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_PLACE_H
#define DLOCK_PLACE_H

#include "base/types.h"
#include "space/lease.h"

/* What a place asks for, copied. */
typedef struct DLockPlaceCopy
{
	DLockMode	mode;
	uint32		permits;
	DLockReentry reentry;
	DLockTime	ttl;
	DLockTime	delay;
	DLockTime	min_hold;
	int			name_len;
	int			owner_len;
	int			payload_len;
	char		name[DLOCK_NAME_MAX];
	char		owner[DLOCK_OWNER_MAX];
	char		payload[DLOCK_PAYLOAD_MAX];
} DLockPlaceCopy;

/* A place that somebody may wait for. */
typedef struct DLockPlaceRef
{
	uint32		owner;			/* hash of its owner */
	uint32		lock;			/* and of its lock */
} DLockPlaceRef;

/* set-up */
extern void dlock_place_request(void);
extern void dlock_place_startup(void);

/* a place that comes or goes, or is looked for */
extern void dlock_place_add(DLockSpaceLease *request, DLockTime since, DLockTime until);
extern void dlock_place_remove(DLockSpaceLease *request);
extern DLockSpaceLease *dlock_place_find(DLockSpaceEntry *entry, const DLockOwner *owner);
extern DLockPlaceRef *dlock_place_list(Oid database, int *count);
extern int	dlock_place_hashes(Oid database, Oid role, const DLockBytes *client, int process,
							   uint32 *hashes, int room);

/* listening */
extern void dlock_place_listen(Oid database, Oid role, const DLockBytes *client);
extern void dlock_place_end_listening(void);
extern bool dlock_place_is_heard(const DLockSpaceLease *place);
extern void dlock_place_attend(DLockSpaceLease *place);
extern int	dlock_place_due(DLockTime now, DLockPlaceCopy *copies, int room, DLockTime *until);
extern void dlock_place_wake_listeners(Oid database);

#endif							/* DLOCK_PLACE_H */
