/*-------------------------------------------------------------------------
 *
 * space.h
 *	  The lock space: the live truth about all leases, in shared memory.
 *
 * IDENTIFICATION
 *	  src/space/space.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SPACE_H
#define DLOCK_SPACE_H

#include "access/xlogdefs.h"
#include "storage/lwlock.h"

#include "base/types.h"
#include "space/limit.h"
#include "space/memory.h"

#define DLOCK_SPACE_PARTITIONS		128
#define DLOCK_SPACE_OWNER_LOCKS		32

/* How long a partition is waited for that can be left out. */
#define DLOCK_SPACE_PATIENCE		(100 * INT64CONST(1000))

/*
 * A lock: a name, who holds it, and who waits for it.  It exists as long as
 * anybody does.  Protected by the lock of the partition that "hash" falls
 * into; database, hash and name never change while it is reachable.
 *
 * held_modes and nholders say what the leases on the lock come to without a
 * walk over them.  They count leases that are dead and not yet erased, too, but
 * before "earliest" there is none.
 *
 * It is a cell of space/memory.c, in which there is room for the name and behind
 * it for one lease.
 */
typedef struct DLockSpaceEntry
{
	DLockTime	earliest;		/* no lease on the lock stops blocking before this */
	DLockMemoryRef next;		/* next entry of the bucket */
	DLockMemoryRef holders;		/* first lease that is held; the indexed ones
								 * come last */
	DLockMemoryRef queue;		/* first request that waits */
	Oid			database;
	uint32		hash;
	uint32		permits;		/* of the semaphore; zero if it is none */
	uint32		nholders;
	uint32		nstrong;		/* of these, in another mode than NL and CR */
	uint8		held_modes;		/* a set; exactly those of the leases */
	uint8		asked_modes;	/* a set; at least those of the queue */
	uint8		name_len;
	bool		lodges;			/* a lease or request lies in its cell */
	char		name[FLEXIBLE_ARRAY_MEMBER];	/* what does not fit goes on in cells */
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
 * and role change under both; the entry and the owner's name never change
 * while it is reachable.  So either lock is enough to read these.
 */
typedef struct DLockSpaceLease
{
	DLockToken	token;			/* of a conversion: that of the lease held */
	DLockTime	ttl;
	DLockTime	deadline;		/* of a request: when its process will look */
	DLockTime	bound_mono;		/* see DLockTerm */
	DLockTime	delay;			/* the lock stays closed after the deadline */
	DLockTime	min_until;		/* a release takes effect no earlier; of a
								 * request: a span */
	TimestampTz granted_at;
	XLogRecPtr	lsn;			/* end of the last record about this lease */
	DLockMemoryRef entry;		/* its lock */
	DLockMemoryRef next;		/* in the list of holders, or in the queue */
	DLockMemoryRef prev;		/* likewise; of the first one, the last */
	DLockMemoryRef token_next;	/* in the bucket of its token, if "indexed" */
	DLockMemoryRef owner_prev;	/* in the bucket of its owner, if it is held */
	DLockMemoryRef owner_next;	/* likewise; of a request: its next part */
	DLockSlot	slot;			/* none if it does not outlive the server */
	Oid			role;
	int			process;		/* that waits, or that it is bound to; or -1 */
	uint32		holds;
	DLockLimitCounter counter;	/* that it is counted by; or zero */
	uint16		payload_len;
	uint8		owner_len;
	uint8		room;			/* of data; what does not fit goes on in cells */
	uint8		kind;			/* a DLockSpaceKind */
	uint8		mode;
	uint8		bind:2;
	uint8		part:2;
	uint8		stopped:1;		/* it ended otherwise than by its deadline */
	uint8		unwritten:1;	/* its page says something older or undone */
	uint8		indexed:1;		/* it is in the bucket of its token */
	char		data[FLEXIBLE_ARRAY_MEMBER];	/* owner, payload */
} DLockSpaceLease;

/* The lock that a lease is on, or that a request waits for. */
static inline DLockSpaceEntry *
dlock_space_entry_of(const DLockSpaceLease *lease)
{
	return dlock_memory_at(lease->entry);
}

/* The longest part of a name that stands there, and the least that is left to an owner. */
#define DLOCK_SPACE_OWNER_ROOM	16
#define DLOCK_SPACE_NAME_ROOM \
	((int) (DLOCK_MEMORY_CELL - DLOCK_SPACE_OWNER_ROOM - MAXIMUM_ALIGNOF - \
			offsetof(DLockSpaceEntry, name) - offsetof(DLockSpaceLease, data)))

/* The name of a lock; a long one is put together in "buffer". */
static inline DLockBytes
dlock_space_entry_name(const DLockSpaceEntry *entry, char buffer[DLOCK_NAME_MAX])
{
	if (entry->name_len <= DLOCK_SPACE_NAME_ROOM)
		return (DLockBytes) {entry->name, entry->name_len};
	dlock_memory_text_get(entry->name, DLOCK_SPACE_NAME_ROOM,
						  entry->name_len, 0, entry->name_len, buffer);
	return (DLockBytes) {buffer, entry->name_len};
}

/* A part of the texts of a lease; put together in "buffer" if it is not in one piece. */
static inline DLockBytes
dlock_space_lease_text(const DLockSpaceLease *lease, int from, int len, char *buffer)
{
	int			total = lease->owner_len + lease->payload_len;

	if (from + len <= dlock_memory_text_here(lease->room, total))
		return (DLockBytes) {lease->data + from, len};
	dlock_memory_text_get(lease->data, lease->room, total, from, len, buffer);
	return (DLockBytes) {buffer, len};
}

/* Copy a part of the texts of a lease. */
static inline void
dlock_space_copy_text(const DLockSpaceLease *lease, int from, int len, char *into)
{
	dlock_memory_text_get(lease->data, lease->room, lease->owner_len + lease->payload_len,
						  from, len, into);
}

/* The owner of a lease or of a request; a long one is put together in "buffer". */
static inline DLockOwner
dlock_space_lease_owner(const DLockSpaceLease *lease, char buffer[DLOCK_OWNER_MAX])
{
	return (DLockOwner) {lease->role, dlock_space_lease_text(lease, 0, lease->owner_len, buffer)};
}

/* Its payload, likewise. */
static inline DLockBytes
dlock_space_lease_payload(const DLockSpaceLease *lease, char buffer[DLOCK_PAYLOAD_MAX])
{
	return dlock_space_lease_text(lease, lease->owner_len, lease->payload_len, buffer);
}

/* Is this the name of its owner, whatever the role? */
static inline bool
dlock_space_is_owner_name(const DLockSpaceLease *lease, const DLockBytes *name)
{
	return lease->owner_len == name->len &&
		dlock_memory_text_begins(lease->data, lease->room,
								 lease->owner_len + lease->payload_len, name);
}

/* Is it this owner's? */
static inline bool
dlock_space_is_owned(const DLockSpaceLease *lease, const DLockOwner *owner)
{
	return lease->role == owner->role && dlock_space_is_owner_name(lease, &owner->name);
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
extern void dlock_space_set_join(DLockSpaceSet *set, const DLockSpaceSet *other);
extern bool dlock_space_set_contains(const DLockSpaceSet *set, const DLockSpaceSet *other);
extern bool dlock_space_set_has(const DLockSpaceSet *set, uint32 hash);
extern int	dlock_space_set_count(const DLockSpaceSet *set);
extern void dlock_space_lock_set(const DLockSpaceSet *set, LWLockMode mode);
extern bool dlock_space_try_lock_set(const DLockSpaceSet *set, LWLockMode mode,
									 DLockSpaceSet *skipped);
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
extern bool dlock_space_is_first(const DLockSpaceLease *request);
extern DLockSpaceLease *dlock_space_request_first(DLockMemoryRef first);
extern DLockSpaceLease *dlock_space_request_next(DLockSpaceLease *lease);
extern DLockSpaceLease *dlock_space_find_part(const DLockSpaceEntry *entry, DLockToken token);
extern DLockSpaceLease *dlock_space_find_owned(DLockSpaceEntry *entry, const DLockOwner *owner,
											   DLockTime now);

/* changes */
extern DLockSpaceLease *dlock_space_hold(Oid database, uint32 hash,
										 const DLockLeaseValue *value,
										 DLockSlot slot, int process,
										 XLogRecPtr lsn);
extern DLockSpaceLease *dlock_space_enqueue(Oid database, uint32 hash,
											const DLockLeaseValue *value,
											DLockSlot slot, int process,
											DLockSpaceKind kind, DLockMemoryRef *place);
extern void dlock_space_promote(DLockSpaceEntry *entry, DLockSpaceLease *lease);
extern void dlock_space_requeue(DLockSpaceEntry *entry, DLockSpaceLease *lease);
extern void dlock_space_succeed(DLockSpaceLease *lease, Oid role, DLockToken token);
extern void dlock_space_remove(DLockSpaceEntry *entry, DLockSpaceLease *lease);

extern void dlock_space_set_mode(DLockSpaceLease *lease, DLockMode mode);
extern void dlock_space_note_end(const DLockSpaceLease *lease);
extern void dlock_space_refresh(DLockSpaceEntry *entry);

/* walks */
extern DLockSpaceSet dlock_space_visit(Oid database, DLockSpaceVisitor visitor, void *arg);
extern bool dlock_space_count(Oid database, Oid role);
extern DLockSpaceRef *dlock_space_owned(Oid database, const DLockBytes *owner_name,
										int *count);
extern bool dlock_space_owner_is_live(Oid database, const DLockOwner *owner, DLockTime now);
extern void dlock_space_purge(Oid database);

#endif							/* DLOCK_SPACE_H */
