/*-------------------------------------------------------------------------
 *
 * dlock_types.h
 *	  The values that all modules speak of; no functions, no shared state.
 *
 * NOTES
 *	  Times are of two kinds and are never mixed.  A DLockTime counts the
 *	  microseconds of the machine's monotonic clock (see dlock_clock.c); it
 *	  decides.  A TimestampTz is wall-clock time; it is shown to people, and it
 *	  stands in for the monotonic clock where a lease outlives the boot of the
 *	  machine that granted it.
 *
 * IDENTIFICATION
 *	  src/dlock_types.h
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

/* A fencing token.  Positive as a bigint; zero is never a token. */
typedef int64 DLockToken;

#define DLOCK_TOKEN_NONE	((DLockToken) 0)

/* Microseconds of the monotonic clock, or a span of it. */
typedef int64 DLockTime;

#define DLOCK_TIME_FOREVER	PG_INT64_MAX

/* Bytes that belong to somebody else: a name, an owner, a payload. */
typedef struct DLockBytes
{
	const char *data;
	int			len;
} DLockBytes;

/*
 * How a lease holds its lock.  The numbers are written to disk.
 */
typedef enum DLockMode
{
	DLOCK_MODE_EXCLUSIVE = 5
} DLockMode;

/*
 * The home of a lease in the store: a block number and a place on that page,
 * packed (dlock_page.h).  Block zero holds no slots, so zero is no slot.
 */
typedef uint32 DLockSlot;

#define DLOCK_SLOT_NONE		((DLockSlot) 0)

/*
 * What a lease promises about its end.  "deadline" is the promise itself;
 * "bound_mono" and "bound_wall" say, on either clock, up to when the record
 * on disk vouches for it.  The bound is never before the deadline.
 */
typedef struct DLockTerm
{
	DLockTime	ttl;
	DLockTime	deadline;
	DLockTime	bound_mono;
	TimestampTz bound_wall;
} DLockTerm;

/* A lease as a value, as it stands on disk and as it is handed around. */
typedef struct DLockLeaseValue
{
	DLockToken	token;
	DLockMode	mode;
	Oid			role;
	TimestampTz granted_at;
	uint64		boot;			/* the boot that bound_mono belongs to */
	DLockTerm	term;			/* the deadline is not kept on disk */
	DLockBytes	name;
	DLockBytes	owner;
	DLockBytes	payload;		/* the bytes of a jsonb without its header */
} DLockLeaseValue;

#endif							/* DLOCK_TYPES_H */
