/*-------------------------------------------------------------------------
 *
 * count.h
 *	  How many there are of something, by a key.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_COUNT_H
#define DLOCK_COUNT_H

/* What is counted, and by what. */
typedef enum DLockCountKind
{
	DLOCK_COUNT_LEASES,			/* and requests for them, by database and role */
	DLOCK_COUNT_REQUESTS,		/* for leases, by owner and lock */
	DLOCK_COUNT_LISTENERS		/* backends that watch, by lock */
} DLockCountKind;

#define DLOCK_COUNT_KINDS	(DLOCK_COUNT_LISTENERS + 1)

/* set-up */
extern void dlock_count_request(void);
extern void dlock_count_startup(void);

/* with locks or without */
extern void dlock_count_add(DLockCountKind kind, uint64 key, int by);
extern uint32 dlock_count_read(DLockCountKind kind, uint64 key);

/* the leases of a role */
extern bool dlock_count_add_leases(Oid database, Oid role, int leases, int limit);
extern void dlock_count_remove_lease(Oid database, Oid role);
extern uint32 dlock_count_leases(Oid database, Oid role);

#endif							/* DLOCK_COUNT_H */
