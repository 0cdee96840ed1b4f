/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  A lock, a lease and a request in shared memory.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LEASE_H
#define DLOCK_LEASE_H

#include "access/xlogdefs.h"

#include "base/fault.h"
#include "base/name.h"
#include "base/types.h"
#include "space/memory.h"
#include "space/partition.h"

/*
 * The modes that may stand beside leases in another mode.  All live leases on a lock that
 * are in none of these have the same mode (see the matrix in base/rule.c).
 */
#define DLOCK_SPACE_WEAK_MODES \
	(DLOCK_RULE_BIT(DLOCK_MODE_NL) | DLOCK_RULE_BIT(DLOCK_MODE_CR))

/*
 * A lock: a name, the leases on it, and the requests that wait for it.  It
 * exists as long as it has one of these.  Protected by the lock of the
 * partition that "hash" falls into; database, hash and name never change while
 * it is reachable.
 *
 * held_modes, ncr and nstrong sum up the leases on the lock, dead ones that are not yet
 * erased included.  Before "earliest" none is dead, and held_modes is exact but for NL.
 * Leases in NL are not counted: only permits conflict with them, and where there are
 * permits, no lease has another mode.
 *
 * It is a cell of space/memory.c, with room for the name, and for one lease
 * behind that.
 */
typedef struct DLockSpaceEntry
{
	DLockTime	earliest;		/* all leases on the lock block until then */
	DLockMemoryRef next;		/* next entry of the bucket */
	DLockMemoryRef holders;		/* leases: first the few that are not
								 * "indexed", then the indexed ones, newest
								 * first, then indexed intents */
	DLockMemoryRef queue;		/* requests that wait */
	Oid			database;
	uint32		hash;
	uint32		permits;		/* of the semaphore; zero if it is none */
	uint32		ncr;			/* leases in mode CR */
	uint32		nstrong;		/* leases in another mode than NL and CR */
	uint32		nattended;		/* requests for a lease that have a process */
	uint8		held_modes;		/* a set; at least those of the leases */
	uint8		asked_modes;	/* a set; at least those of the queue */
	uint8		name_len;
	uint8		lodges:1;		/* a lease or request lies in its cell */
	uint8		places:1;		/* there may be places in the queue */
	char		name[FLEXIBLE_ARRAY_MEMBER];	/* or as much as fits */
} DLockSpaceEntry;

/* What a DLockSpaceLease is. */
typedef enum DLockSpaceKind
{
	DLOCK_SPACE_HELD,			/* a lease, held or closed */
	DLOCK_SPACE_ASKED,			/* a request for a lease */
	DLOCK_SPACE_CONVERT			/* a request for a conversion */
} DLockSpaceKind;

/*
 * A lease, or a request in the queue for one.  A request has all that the lease
 * will need, so a grant only has to move it.  A request for one lock that no call
 * waits for is a place, kept for its owner (space/place.c).
 *
 * Each field changes under the partition lock of its entry alone, exclusively, be it of a
 * lease, a request or a place; except u.owner and u.client, the links in the bucket of an
 * owner or of a client, which that bucket's lock protects.  The token of a lease
 * changes under both locks.  The entry, the role and the owner's name never change while
 * it is reachable, nor does what a place asks for, except "reentry".  To read these, either
 * lock is enough.
 *
 * A lease on a path has an intent on each ancestor.  An intent is made and goes with
 * its path, and has no term of its own: what is said of its end is read from the path
 * (dlock_space_whole).  Whatever changes that, or the list of the intents, has the
 * partitions of the path and of all its ancestors locked exclusively, so any of them is
 * enough to read it.
 */
typedef struct DLockSpaceLease
{
	DLockToken	token;			/* of a conversion: that of the lease held; of
								 * a place: when it was asked for, made unique */
	DLockTime	ttl;
	DLockTime	deadline;		/* of a request: when its process asks again */
	DLockTime	bound_mono;		/* see DLockTerm; of a request that has a
								 * turn, or had one: when that ends, else 0 */
	DLockTime	delay;			/* the lock stays closed after the deadline */
	DLockTime	min_until;		/* a release takes effect no earlier; of a
								 * request: a span */
	TimestampTz granted_at;
	XLogRecPtr	lsn;			/* end of the last record about this lease; or
								 * DLOCK_SPACE_BEING_WRITTEN */
	DLockTime	confirmed;		/* while that record is not confirmed at
								 * "level" (store/flush.c): up to when those
								 * before it vouch for the lease, or
								 * DLOCK_SPACE_UNKNOWN; of a place: until when
								 * it is kept */
	DLockMemoryRef entry;		/* its lock */
	DLockMemoryNode on_lock;	/* in the list of holders, or in the queue */
	union
	{
		DLockMemoryNode owner;	/* of a lease: in the bucket of its owner */
		DLockMemoryNode client; /* of a place: in the bucket of its client */
		DLockMemoryRef path;	/* of an intent: the lease on its path */
	}			u;
	DLockMemoryRef next_part;	/* of a request: the next by which its process
								 * waits; of a lease on a path, and of an
								 * intent: the next intent */
	DLockMemoryRef token_next;	/* in the bucket of its token, if "indexed" */
	DLockSlot	slot;			/* none if it does not outlive the server */
	Oid			role;
	int			process;		/* that waits, or that it is bound to; of a
								 * place: that listens for it, or did when it
								 * was set; or -1 */
	uint32		holds;
	uint16		payload_len;
	uint8		owner_len;
	uint8		room;			/* of data; what does not fit goes on in cells */
	uint8		kind;			/* a DLockSpaceKind */
	uint8		mode;
	uint8		bind:2;
	uint8		part:2;
	uint8		stopped:1;		/* it ended otherwise than by its deadline */
	uint8		indexed:1;		/* it is in the bucket of its token */
	uint8		unwritten:1;	/* its page says something older or undone */
	uint8		kept:1;			/* of a request: this lock blocked it when its
								 * process asked last, or turns were given; if
								 * not, it waits for another lock */
	uint8		level:4;		/* of synchronous_commit, with which it was
								 * granted or renewed last */
	uint8		reentry:2;		/* of a place: a DLockReentry */
	uint8		placed:1;		/* it is a place */
	uint8		called:1;		/* of a place: its process is to ask for it;
								 * of a lease: another call was told of it
								 * since its token was granted */
	char		data[FLEXIBLE_ARRAY_MEMBER];	/* owner, payload */
} DLockSpaceLease;

/* As "lsn": the record is about to be written, before the partition lock is given up. */
#define DLOCK_SPACE_BEING_WRITTEN	((XLogRecPtr) PG_UINT64_MAX)

/* As "confirmed": the lease was loaded, its last holder may have been told anything. */
#define DLOCK_SPACE_UNKNOWN			((DLockTime) -1)

/* The lease on the path of an intent, which says when it ends; else the lease itself. */
static inline DLockSpaceLease *
dlock_space_whole(const DLockSpaceLease *lease)
{
	Assert(lease->kind == DLOCK_SPACE_HELD);
	return (lease->part == DLOCK_PART_INTENT) ? dlock_memory_at(lease->u.path) :
		unconstify(DLockSpaceLease *, lease);
}

/* The lock that a lease is on, or that a request waits for. */
static inline DLockSpaceEntry *
dlock_space_entry_of(const DLockSpaceLease *lease)
{
	return dlock_memory_at(lease->entry);
}

/*
 * A lease or a request that a walk comes to; NULL for DLOCK_MEMORY_NONE.  All walks go
 * through here, and over locks through dlock_space_entry_at(): they are counted.
 */
static inline DLockSpaceLease *
dlock_space_lease_at(DLockMemoryRef ref)
{
	DLockSpaceLease *lease = dlock_memory_at(ref);

	if (ref == DLOCK_MEMORY_NONE)
		return NULL;
	DLOCK_FAULT_COUNT((lease->kind == DLOCK_SPACE_HELD) ? DLOCK_COST_LEASES : DLOCK_COST_REQUESTS);
	return lease;
}

/* A lock that a walk comes to, likewise. */
static inline DLockSpaceEntry *
dlock_space_entry_at(DLockMemoryRef ref)
{
	if (ref == DLOCK_MEMORY_NONE)
		return NULL;
	DLOCK_FAULT_COUNT(DLOCK_COST_ENTRIES);
	return dlock_memory_at(ref);
}

/* The first lease on a lock; NULL if there is none.  The partition lock must be held. */
static inline DLockSpaceLease *
dlock_space_holders(DLockSpaceEntry *entry)
{
	Assert(dlock_partition_is_held(entry->hash));
	return dlock_space_lease_at(entry->holders);
}

/* The first request in the queue of a lock, likewise. */
static inline DLockSpaceLease *
dlock_space_queue(DLockSpaceEntry *entry)
{
	Assert(dlock_partition_is_held(entry->hash));
	return dlock_space_lease_at(entry->queue);
}

/* The next lease or request of the same lock, likewise. */
static inline DLockSpaceLease *
dlock_space_next(DLockSpaceLease *lease)
{
	Assert(dlock_partition_is_held(dlock_space_entry_of(lease)->hash));
	return dlock_space_lease_at(lease->on_lock.next);
}

/* The next request by which its process waits at the same time, likewise. */
static inline DLockSpaceLease *
dlock_space_request_next(DLockSpaceLease *request)
{
	Assert(dlock_partition_is_held(dlock_space_entry_of(request)->hash));
	Assert(request->kind != DLOCK_SPACE_HELD);
	return dlock_space_lease_at(request->next_part);
}

/*
 * The next part of a lease on a path: its intents follow it.  NULL after the last one, and
 * for other leases.  The partition of one of the parts must be locked.
 */
static inline DLockSpaceLease *
dlock_space_next_part(const DLockSpaceLease *part)
{
	Assert(part->kind == DLOCK_SPACE_HELD);
	return dlock_space_lease_at(part->next_part);
}

/*
 * Is a place past its time, without a process?  Then it counts as gone, and may be removed
 * at any time.  Lock as for next.
 */
static inline bool
dlock_space_is_over(const DLockSpaceLease *request, DLockTime now)
{
	Assert(dlock_partition_is_held(dlock_space_entry_of(request)->hash));
	return request->placed && request->process < 0 && request->confirmed <= now;
}

/* The next lease in the same bucket of the index of tokens.  Lock as for next. */
static inline DLockSpaceLease *
dlock_space_next_indexed(DLockSpaceLease *lease)
{
	Assert(lease->indexed && dlock_partition_is_held(dlock_space_entry_of(lease)->hash));
	return dlock_space_lease_at(lease->token_next);
}

/* The next lock of the same bucket, likewise. */
static inline DLockSpaceEntry *
dlock_space_next_entry(DLockSpaceEntry *entry)
{
	Assert(dlock_partition_is_held(entry->hash));
	return dlock_space_entry_at(entry->next);
}

/* The least room for an owner, and the longest part of a name that stands in the entry. */
#define DLOCK_SPACE_OWNER_ROOM	16
#define DLOCK_SPACE_NAME_ROOM \
	((int) (DLOCK_MEMORY_CELL - DLOCK_SPACE_OWNER_ROOM - MAXIMUM_ALIGNOF - \
			offsetof(DLockSpaceEntry, name) - offsetof(DLockSpaceLease, data)))

/* The name of a lock; a long one is put together in "buffer". */
static inline DLockBytes
dlock_space_entry_name(const DLockSpaceEntry *entry, char buffer[DLOCK_NAME_MAX])
{
	return dlock_memory_text_begin(entry->name, DLOCK_SPACE_NAME_ROOM, entry->name_len,
								   entry->name_len, buffer);
}

/* The name of the owner of a lease or of a request; a long one is put together in "buffer". */
static inline DLockBytes
dlock_space_owner_name(const DLockSpaceLease *lease, char buffer[DLOCK_OWNER_MAX])
{
	return dlock_memory_text_begin(lease->data, lease->room, lease->owner_len + lease->payload_len,
								   lease->owner_len, buffer);
}

/* The same with the role. */
static inline DLockOwner
dlock_space_lease_owner(const DLockSpaceLease *lease, char buffer[DLOCK_OWNER_MAX])
{
	return (DLockOwner)
	{
		lease->role, dlock_space_owner_name(lease, buffer)
	};
}

/* The same, palloc'd. */
static inline DLockOwner
dlock_space_copy_owner(const DLockSpaceLease *lease)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(lease, buffer);

	owner.name = dlock_name_copy(owner.name);
	return owner;
}

/* Room for the owner and the payload of a lease. */
#define DLOCK_SPACE_TEXTS_MAX	(DLOCK_OWNER_MAX + DLOCK_PAYLOAD_MAX)

/* The payload of a lease; where texts go on in cells, both are put together in "buffer". */
static inline DLockBytes
dlock_space_lease_payload(const DLockSpaceLease *lease, char buffer[DLOCK_SPACE_TEXTS_MAX])
{
	int			len = lease->owner_len + lease->payload_len;
	DLockBytes	texts = dlock_memory_text_begin(lease->data, lease->room, len, len, buffer);

	return dlock_bytes(texts.data + lease->owner_len, lease->payload_len);
}

/* Copy the name of its owner, and its payload. */
static inline void
dlock_space_copy_texts(const DLockSpaceLease *lease, char *owner, char *payload)
{
	char		buffer[DLOCK_SPACE_TEXTS_MAX];

	memcpy(owner, dlock_space_owner_name(lease, buffer).data, lease->owner_len);
	memcpy(payload, dlock_space_lease_payload(lease, buffer).data, lease->payload_len);
}

/* Its term, but for the bound on the wall clock.  The partition lock must be held. */
static inline DLockTerm
dlock_space_lease_term(const DLockSpaceLease *lease)
{
	Assert(dlock_partition_is_held(dlock_space_entry_of(lease)->hash));
	lease = dlock_space_whole(lease);
	return (DLockTerm)
	{
		lease->ttl, lease->deadline, lease->bound_mono, 0
	};
}

/* Is this the name of its owner, whatever the role? */
static inline bool
dlock_space_is_owner_name(const DLockSpaceLease *lease, const DLockBytes *name)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockBytes	own;

	if (lease->owner_len != name->len)
		return false;
	own = dlock_space_owner_name(lease, buffer);
	return dlock_name_equal(&own, name);
}

/* Is this the name of its owner, or of the client of which its owner is a task? */
static inline bool
dlock_space_is_of(const DLockSpaceLease *lease, const DLockBytes *name)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockBytes	own = dlock_space_owner_name(lease, buffer);
	DLockBytes	client = dlock_name_client(&own);

	return dlock_name_equal(&own, name) || dlock_name_equal(&client, name);
}

/* Is it this owner's? */
static inline bool
dlock_space_is_owned(const DLockSpaceLease *lease, const DLockOwner *owner)
{
	return lease->role == owner->role && dlock_space_is_owner_name(lease, &owner->name);
}

#endif							/* DLOCK_LEASE_H */
