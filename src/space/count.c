/*-------------------------------------------------------------------------
 *
 * count.c
 *	  How many there are of something, by a key.
 *
 * NOTES
 *	  The key is a hash of 64 bits, and says which two counters count a thing, one
 *	  in each of two rows.  The smaller one is the answer.  It is never too low, and
 *	  zero is certain.  It is too high only if both counters are shared with other
 *	  keys in use: with n of these, with a probability of about (n / COUNTERS)^2,
 *	  0.001 % with a hundred and 0.1 % with a thousand.  (A count-min sketch; G.
 *	  Cormode and S. Muthukrishnan, 2005.)
 *
 *	  So nothing is ever added to a table or removed from it, and it cannot be full.
 *
 *	  Lock rules.  The counters are atomic.  A caller that must miss nothing locks
 *	  what the key stands for.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#include "space/count.h"

#define ROWS		2

/* How many counters a row has, a power of two; 768 kB in all. */
#define COUNTERS	32768

typedef struct DLockCountShared
{
	pg_atomic_uint32 counters[DLOCK_COUNT_KINDS][ROWS][COUNTERS];
} DLockCountShared;

static DLockCountShared *counts = NULL;

void
dlock_count_request(void)
{
	RequestAddinShmemSpace(sizeof(DLockCountShared));
}

/* Create the counters, or find them; with AddinShmemInitLock held. */
void
dlock_count_startup(void)
{
	bool		found;

	counts = ShmemInitStruct("dlock counts", sizeof(DLockCountShared), &found);
	if (found)
		return;
	for (int kind = 0; kind < DLOCK_COUNT_KINDS; kind++)
	{
		for (int i = 0; i < ROWS * COUNTERS; i++)
			pg_atomic_init_u32(&counts->counters[kind][i / COUNTERS][i % COUNTERS], 0);
	}
}

static inline pg_atomic_uint32 *
counter_of(DLockCountKind kind, int row, uint64 key)
{
	return &counts->counters[kind][row][(key >> (32 * row)) % COUNTERS];
}

/* Count more ("by" > 0) or fewer.  Cannot fail. */
void
dlock_count_add(DLockCountKind kind, uint64 key, int by)
{
	for (int row = 0; row < ROWS; row++)
	{
		Assert(by > 0 || pg_atomic_read_u32(counter_of(kind, row, key)) > 0);
		(void) pg_atomic_fetch_add_u32(counter_of(kind, row, key), by);
	}
}

/* How many are counted?  May be too high, see above. */
uint32
dlock_count_read(DLockCountKind kind, uint64 key)
{
	uint32		first = pg_atomic_read_u32(counter_of(kind, 0, key));

	return (first == 0) ? 0 : Min(first, pg_atomic_read_u32(counter_of(kind, 1, key)));
}

/* ---- the leases of a role ---- */

static inline uint64
role_key(Oid database, Oid role)
{
	return hash_bytes_uint32_extended(role, database);
}

/*
 * Count leases, or requests for some, that a role gets next.  False, and they are not
 * counted, if it would have more than the limit (negative: there is none).
 *
 * Of several calls at once the last that has counted sees all others, so they do not exceed
 * the limit together.  Each of them may be refused.
 */
bool
dlock_count_add_leases(Oid database, Oid role, int leases, int limit)
{
	uint64		key = role_key(database, role);

	dlock_count_add(DLOCK_COUNT_LEASES, key, leases);
	if (limit < 0 || dlock_count_read(DLOCK_COUNT_LEASES, key) <= (uint32) limit)
		return true;
	dlock_count_add(DLOCK_COUNT_LEASES, key, -leases);
	return false;
}

/* One of them has gone.  Cannot fail. */
void
dlock_count_remove_lease(Oid database, Oid role)
{
	dlock_count_add(DLOCK_COUNT_LEASES, role_key(database, role), -1);
}

/* How many leases has a role, requests included? */
uint32
dlock_count_leases(Oid database, Oid role)
{
	return dlock_count_read(DLOCK_COUNT_LEASES, role_key(database, role));
}
