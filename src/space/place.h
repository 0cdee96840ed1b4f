/*-------------------------------------------------------------------------
 *
 * place.h
 *	  Places in queues that are kept between calls, by client, and the processes
 *	  that listen for them.
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

/*
 * Places of a role: all of them, or those of a client.  With a process only those that have
 * it, and those that have none and are kept until some time between "now" and "until".
 */
typedef struct DLockPlaceSet
{
	Oid			role;
	const DLockBytes *client;	/* or NULL */
	Oid			database;		/* of the client */
	int			process;		/* or -1 */
	DLockTime	now;
	DLockTime	until;
	int			bucket;			/* where a search goes on; zero at first */
} DLockPlaceSet;

/* set-up */
extern void dlock_place_request(void);
extern void dlock_place_startup(void);

/* places that come and go, and searches for one; and the process of a request */
extern void dlock_place_set_process(DLockSpaceLease *request, int process);
extern uint32 dlock_place_client(Oid database, const DLockBytes *name);
extern void dlock_place_add(DLockSpaceLease *request, DLockTime since, DLockTime until);
extern void dlock_place_remove(DLockSpaceLease *request);
extern DLockSpaceLease *dlock_place_find(DLockSpaceEntry *entry, const DLockOwner *owner);
extern DLockSpaceLease *dlock_place_find_id(DLockSpaceEntry *entry, uint32 client, DLockToken id);
extern DLockSpaceEntry **dlock_place_locks(Oid database, int *count);

/* all of a set */
extern bool dlock_place_seek(DLockPlaceSet *set, uint32 *hash);
extern int	dlock_place_gather(const DLockPlaceSet *set, uint32 hash, DLockSpaceLease **found, int room);

/* listening */
extern void dlock_place_listen(Oid database, Oid role, const DLockBytes *client);
extern void dlock_place_end_listening(void);
extern int	dlock_place_listener(const DLockSpaceLease *place);
extern void dlock_place_attend(DLockSpaceLease *place);
extern int	dlock_place_due(DLockTime now, DLockPlaceCopy *copies, int room, DLockTime *until);
extern void dlock_place_wake_listeners(Oid database);

#endif							/* DLOCK_PLACE_H */
