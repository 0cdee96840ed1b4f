/*-------------------------------------------------------------------------
 *
 * dlock_space.h
 *	  The lock space: the live truth about all leases, in shared memory.
 *
 * IDENTIFICATION
 *	  src/dlock_space.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SPACE_H
#define DLOCK_SPACE_H

#include "access/xlogdefs.h"
#include "storage/lwlock.h"
#include "utils/dsa.h"

#include "dlock_types.h"

#define DLOCK_SPACE_PARTITIONS		128
#define DLOCK_SPACE_OWNER_LOCKS		32

/*
 * A lock: a name, who holds it, and who waits for it.  It exists as long as
 * anybody does.  Protected by the lock of the partition that "hash" falls
 * into; database, hash and name never change while it is reachable.
 */
typedef struct DLockSpaceEntry
{
	dsa_pointer next;			/* next entry of the bucket */
	dsa_pointer holders;		/* first lease that is held, by next */
	dsa_pointer queue;			/* first request that waits, by next */
	Oid			database;
	uint32		hash;
	uint32		permits;		/* of the semaphore; zero if it is none */
	uint16		size;			/* of the chunk */
	uint8		name_len;
	char		name[FLEXIBLE_ARRAY_MEMBER];
} DLockSpaceEntry;

/* What a lease in memory is. */
typedef enum DLockSpaceKind
{
	DLOCK_SPACE_HELD,			/* a lease, held or closed */
	DLOCK_SPACE_ASKED,			/* a lease that somebody waits for */
	DLOCK_SPACE_CONVERT,		/* a conversion that somebody waits for */
	DLOCK_SPACE_WATCH			/* somebody wants to see the holder change */
} DLockSpaceKind;

/*
 * A lease, or a place in the queue for one: a request that waits has all that
 * the lease will need, so a grant only has to move it.
 *
 * Protected by the partition lock of its entry, except owner_prev and
 * owner_next of a lease that is held, which the owner's lock protects.  Token
 * and role change under both; database, hash and the owner's name never change
 * while it is reachable.  So either lock is enough to read these.
 */
typedef struct DLockSpaceLease
{
	dsa_pointer next;			/* next holder, or next in the queue */
	dsa_pointer owner_prev;		/* previous lease in the owner's bucket; of a
								 * request: the entry */
	dsa_pointer owner_next;		/* next lease in the owner's bucket; of a
								 * request: its next lease */
	DLockToken	token;			/* of a conversion: that of the lease held */
	DLockTime	ttl;
	DLockTime	deadline;		/* of a request: when its process will look */
	DLockTime	bound_mono;		/* see DLockTerm */
	DLockTime	delay;			/* the lock stays closed after the deadline */
	DLockTime	min_until;		/* a release takes effect no earlier; of a
								 * request: a span */
	TimestampTz granted_at;
	XLogRecPtr	lsn;			/* end of the last record about this lease */
	Oid			database;
	uint32		hash;			/* that of the entry */
	DLockSlot	slot;			/* none if it does not outlive the server */
	Oid			role;
	int			process;		/* that waits, or that it is bound to; or -1 */
	uint32		holds;
	uint16		size;			/* of the chunk */
	uint16		payload_len;
	uint8		owner_len;
	uint8		kind;			/* a DLockSpaceKind */
	uint8		mode;
	uint8		bind:2;
	uint8		part:2;
	uint8		stopped:1;		/* it ended otherwise than by its deadline */
	char		data[FLEXIBLE_ARRAY_MEMBER];	/* owner, payload */
} DLockSpaceLease;

static inline DLockBytes
dlock_space_entry_name(const DLockSpaceEntry *entry)
{
	return (DLockBytes) {entry->name, entry->name_len};
}

static inline DLockOwner
dlock_space_lease_owner(const DLockSpaceLease *lease)
{
	return (DLockOwner) {lease->role, {lease->data, lease->owner_len}};
}

static inline DLockBytes
dlock_space_lease_payload(const DLockSpaceLease *lease)
{
	return (DLockBytes) {lease->data + lease->owner_len, lease->payload_len};
}

/* A set of partitions. */
typedef struct DLockSpaceSet
{
	uint64		bits[DLOCK_SPACE_PARTITIONS / 64];
} DLockSpaceSet;

/* A lease as something to come back to: enough to find it again, if it lives. */
typedef struct DLockSpaceRef
{
	uint32		hash;
	Oid			role;
	DLockToken	token;
	DLockTime	deadline;
} DLockSpaceRef;

typedef void (*DLockSpaceVisitor) (DLockSpaceEntry *entry,
								   DLockSpaceLease *lease, void *arg);

/* set-up */
extern void dlock_space_request(void);
extern void dlock_space_startup(void);

/* partition locks */
extern void dlock_space_lock(uint32 hash, LWLockMode mode);
extern void dlock_space_unlock(uint32 hash);
extern void dlock_space_set_add(DLockSpaceSet *set, uint32 hash);
extern void dlock_space_set_fill(DLockSpaceSet *set);
extern bool dlock_space_set_has(const DLockSpaceSet *set, uint32 hash);
extern void dlock_space_lock_set(const DLockSpaceSet *set, LWLockMode mode);
extern void dlock_space_unlock_set(const DLockSpaceSet *set);

/* memory */
extern bool dlock_space_is_prepared(int name_len, int data_len, int count);
extern bool dlock_space_prepare(int name_len, int data_len, int count);

/* look-ups */
extern DLockSpaceEntry *dlock_space_find(Oid database, uint32 hash,
										 const DLockBytes *name);
extern DLockSpaceEntry *dlock_space_find_token(Oid database, uint32 hash,
											   DLockToken token,
											   DLockSpaceLease **lease);
extern DLockSpaceEntry *dlock_space_bucket(uint32 hash);
extern DLockSpaceEntry *dlock_space_next_entry(DLockSpaceEntry *entry);
extern DLockSpaceLease *dlock_space_holders(DLockSpaceEntry *entry);
extern DLockSpaceLease *dlock_space_queue(DLockSpaceEntry *entry);
extern DLockSpaceLease *dlock_space_next(DLockSpaceLease *lease);
extern DLockSpaceLease *dlock_space_request_first(dsa_pointer first);
extern DLockSpaceLease *dlock_space_request_next(DLockSpaceLease *lease);
extern DLockSpaceEntry *dlock_space_request_entry(DLockSpaceLease *lease);

/* changes */
extern DLockSpaceLease *dlock_space_hold(Oid database, uint32 hash,
										 const DLockLeaseValue *value,
										 DLockSlot slot, int process,
										 XLogRecPtr lsn);
extern DLockSpaceLease *dlock_space_enqueue(Oid database, uint32 hash,
											const DLockLeaseValue *value,
											DLockSlot slot, int process,
											DLockSpaceKind kind, dsa_pointer *place);
extern void dlock_space_promote(DLockSpaceEntry *entry, DLockSpaceLease *lease);
extern void dlock_space_requeue(DLockSpaceEntry *entry, DLockSpaceLease *lease);
extern void dlock_space_succeed(DLockSpaceLease *lease, Oid role, DLockToken token);
extern void dlock_space_remove(DLockSpaceEntry *entry, DLockSpaceLease *lease);

/* walks */
extern void dlock_space_visit(Oid database, DLockSpaceVisitor visitor, void *arg);
extern DLockSpaceRef *dlock_space_owned(Oid database, const DLockBytes *owner_name,
										int *count);
extern void dlock_space_purge(Oid database);

#endif							/* DLOCK_SPACE_H */
