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
 * A lock: a name and who holds it.  It exists as long as anybody does.
 * Protected by the lock of the partition that "hash" falls into; database,
 * hash and name never change while it is reachable.
 */
typedef struct DLockSpaceEntry
{
	dsa_pointer next;			/* next entry of the bucket */
	dsa_pointer holders;		/* first lease, by next_holder */
	Oid			database;
	uint32		hash;
	uint16		capacity;		/* bytes that "name" has room for */
	uint8		name_len;
	char		name[FLEXIBLE_ARRAY_MEMBER];
} DLockSpaceEntry;

/*
 * A lease.  Protected by the partition lock of its entry, except owner_prev
 * and owner_next, which the owner's lock protects.  token, database, hash and
 * the owner never change while it is reachable, so either lock is enough to
 * read them.
 */
typedef struct DLockSpaceLease
{
	dsa_pointer next_holder;	/* next lease of the same entry */
	dsa_pointer owner_prev;		/* previous lease in the owner's bucket */
	dsa_pointer owner_next;		/* next lease in the owner's bucket */
	DLockToken	token;
	DLockTime	ttl;
	DLockTime	deadline;
	DLockTime	bound_mono;		/* see DLockTerm */
	TimestampTz granted_at;
	XLogRecPtr	lsn;			/* end of the last record about this lease */
	Oid			database;
	uint32		hash;			/* that of the entry */
	DLockSlot	slot;
	Oid			role;
	uint16		capacity;		/* bytes that "data" has room for */
	uint16		payload_len;
	uint8		owner_len;
	uint8		mode;
	char		data[FLEXIBLE_ARRAY_MEMBER];	/* owner, payload */
} DLockSpaceLease;

static inline DLockBytes
dlock_space_entry_name(const DLockSpaceEntry *entry)
{
	return (DLockBytes) {entry->name, entry->name_len};
}

static inline DLockBytes
dlock_space_lease_owner(const DLockSpaceLease *lease)
{
	return (DLockBytes) {lease->data, lease->owner_len};
}

static inline DLockBytes
dlock_space_lease_payload(const DLockSpaceLease *lease)
{
	return (DLockBytes) {lease->data + lease->owner_len, lease->payload_len};
}

/* A lease as something to come back to: enough to find it again, if it lives. */
typedef struct DLockSpaceRef
{
	uint32		hash;
	DLockToken	token;
	DLockTime	deadline;
} DLockSpaceRef;

typedef void (*DLockSpaceVisitor) (DLockSpaceEntry *entry,
								   DLockSpaceLease *lease, void *arg);

/* set-up */
extern void dlock_space_request(void);
extern void dlock_space_startup(void);
extern bool dlock_space_is_ready(void);
extern dsa_area *dlock_space_area(void);

/* partition locks */
extern void dlock_space_lock(uint32 hash, LWLockMode mode);
extern void dlock_space_unlock(uint32 hash);

/* memory */
extern bool dlock_space_is_prepared(int name_len, int data_len);
extern bool dlock_space_prepare(int name_len, int data_len);

/* changes and look-ups */
extern DLockSpaceEntry *dlock_space_find(Oid database, uint32 hash,
										 const DLockBytes *name);
extern DLockSpaceEntry *dlock_space_find_token(Oid database, uint32 hash,
											   DLockToken token,
											   DLockSpaceLease **lease);
extern DLockSpaceLease *dlock_space_holders(DLockSpaceEntry *entry);
extern DLockSpaceLease *dlock_space_next_holder(DLockSpaceLease *lease);
extern DLockSpaceLease *dlock_space_insert(Oid database, uint32 hash,
										   const DLockLeaseValue *value,
										   DLockSlot slot, XLogRecPtr lsn);
extern void dlock_space_remove(DLockSpaceEntry *entry, DLockSpaceLease *lease);

/* walks */
extern void dlock_space_visit(Oid database, DLockSpaceVisitor visitor, void *arg);
extern DLockSpaceRef *dlock_space_owned(Oid database, const DLockBytes *owner,
										int *count);
extern void dlock_space_purge(Oid database);

#endif							/* DLOCK_SPACE_H */
