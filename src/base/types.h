/*-------------------------------------------------------------------------
 *
 * types.h
 *	  The values that all modules speak of; no shared state.
 *
 * NOTES
 *	  Times are of two kinds and are never mixed.  A DLockTime counts the
 *	  microseconds of the machine's monotonic clock (see base/clock.c); it
 *	  decides.  A TimestampTz is wall-clock time; it is shown to people, and it
 *	  stands in for the monotonic clock where a lease outlives the boot of the
 *	  machine that granted it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TYPES_H
#define DLOCK_TYPES_H

#include "datatype/timestamp.h"

/* Limits of what a caller may hand in, in bytes. */
#define DLOCK_NAME_MAX		255
#define DLOCK_OWNER_MAX		255
#define DLOCK_PAYLOAD_MAX	1024

/* Parts of a path, and names that one request may ask for. */
#define DLOCK_PATH_MAX_PARTS	32
#define DLOCK_NAMES_MAX			1000

/*
 * Leases on one lock, those of the weakest modes (NL and CR) aside.  Most operations
 * cost the same however many there are, but some scan them all.
 */
#define DLOCK_HOLDERS_MAX		100000

/* The longest time that a lock stays closed, or must be held: 2^32 - 1 ms. */
#define DLOCK_SPAN_MAX		(INT64CONST(0xFFFFFFFF) * 1000)

/*
 * Heavyweight locks with the tags of advisory locks, for loading a database's
 * leases and for the fence of a resource.  These are the last fields of the tags;
 * the SQL functions for advisory locks use 1 and 2 there.
 */
#define DLOCK_LOCK_CLASS_LOAD	25708
#define DLOCK_LOCK_CLASS_FENCE	25709

/*
 * A fencing token; zero is never one.  Up to the largest, a double keeps integers
 * exact, and so do JavaScript and jq.
 */
typedef int64 DLockToken;

#define DLOCK_TOKEN_NONE	((DLockToken) 0)
#define DLOCK_TOKEN_MAX		((INT64CONST(1) << 53) - 1)

/* Microseconds of the monotonic clock, or a span of it. */
typedef int64 DLockTime;

#define DLOCK_TIME_FOREVER	PG_INT64_MAX

/* A name, an owner, a payload; the bytes belong to the caller. */
typedef struct DLockBytes
{
	const char *data;
	int			len;
} DLockBytes;

static inline DLockBytes
dlock_bytes(const char *data, int len)
{
	DLockBytes	bytes = {data, len};

	return bytes;
}

/*
 * An owner of leases.  The name alone says nothing: owners of one name that
 * act for different roles are different owners.
 */
typedef struct DLockOwner
{
	Oid			role;
	DLockBytes	name;
} DLockOwner;

/*
 * How a lease holds its lock: the six modes of VMS's distributed lock manager,
 * weakest first, or one permit of a semaphore.  The numbers are written to
 * disk, and index tables (base/rule.c, base/name.c).
 */
typedef enum DLockMode
{
	DLOCK_MODE_NL = 0,			/* null: interest only */
	DLOCK_MODE_CR = 1,			/* concurrent read; intent to read below */
	DLOCK_MODE_CW = 2,			/* concurrent write; intent to write below */
	DLOCK_MODE_PR = 3,			/* protected read: shared */
	DLOCK_MODE_PW = 4,			/* protected write */
	DLOCK_MODE_EX = 5,			/* exclusive */
	DLOCK_MODE_PERMIT = 6
} DLockMode;

#define DLOCK_MODES				(DLOCK_MODE_PERMIT + 1)

/* What to do when the owner already holds the lock. */
typedef enum DLockReentry
{
	DLOCK_REENTRY_DENY,			/* refuse, and fail if it would wait */
	DLOCK_REENTRY_COUNT,		/* one more hold of the same lease */
	DLOCK_REENTRY_RETURN		/* the same lease again */
} DLockReentry;

/* What a lease ends with, besides its deadline.  Written to disk. */
typedef enum DLockBind
{
	DLOCK_BIND_NONE = 0,
	DLOCK_BIND_SESSION = 1,
	DLOCK_BIND_TRANSACTION = 2
} DLockBind;

/* A request for a path takes several leases.  All but intents are written to disk. */
typedef enum DLockPart
{
	DLOCK_PART_WHOLE = 0,		/* the only one */
	DLOCK_PART_PATH = 1,		/* the lease on the path itself */
	DLOCK_PART_INTENT = 2		/* an intent on an ancestor of the path */
} DLockPart;

/*
 * The home of a lease in the store: a block number and a slot of that page,
 * packed (store/page.h).  Block zero holds no slots, so zero is no slot.
 */
typedef uint32 DLockSlot;

#define DLOCK_SLOT_NONE		((DLockSlot) 0)

/*
 * What a lease promises about its end.  "deadline" is the promise itself;
 * "bound_mono" and "bound_wall" say, on either clock, up to when the record
 * on disk vouches for it.  A record's bound is not before the deadline.
 *
 * A ttl of zero means that there is no deadline, only for a lease that is bound to
 * a session or transaction.
 */
typedef struct DLockTerm
{
	DLockTime	ttl;
	DLockTime	deadline;
	DLockTime	bound_mono;
	TimestampTz bound_wall;
} DLockTerm;

/*
 * A lease as a value, as it stands on disk and as it is handed around.
 *
 * "delay" is for how long the lock stays closed after the deadline.  On disk
 * it and min_hold are stored in milliseconds.
 */
typedef struct DLockLeaseValue
{
	DLockToken	token;
	DLockMode	mode;
	DLockBind	bind;
	DLockPart	part;
	Oid			role;
	uint32		holds;			/* releases that it takes to end it */
	uint32		permits;		/* of the semaphore; zero if it is none */
	TimestampTz granted_at;
	uint64		origin;			/* where the bound was logged */
	DLockTerm	term;			/* the deadline is not on disk */
	DLockTime	delay;
	DLockTime	min_hold;
	DLockBytes	name;
	DLockBytes	owner;
	DLockBytes	payload;		/* a jsonb without header */
} DLockLeaseValue;

#endif							/* DLOCK_TYPES_H */
