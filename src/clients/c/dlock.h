/*-------------------------------------------------------------------------
 *
 * dlock.h
 *	  Leases of dlock for C, over libpq.
 *
 *		DlockLease *lease = dlock_lease_new("", "nightly-report",
 *											&(DlockOptions) {.ttl_ms = 60000});
 *
 *		if (dlock_lease_acquire(lease) == DLOCK_OK)
 *		{
 *			if (dlock_lease_begin(lease, conn))
 *			{
 *				PQclear(PQexec(conn, "UPDATE report SET ..."));
 *				dlock_lease_commit(lease, conn);
 *			}
 *			dlock_lease_release(lease);
 *		}
 *		dlock_lease_free(lease);
 *
 * NOTES
 *	  A thread renews the lease every two seconds, on a connection of its own.  If
 *	  the lease is lost, or could not be renewed until five seconds before its end,
 *	  the work is told to stop: dlock_lease_is_lost() turns true, on_lost is called,
 *	  and connections in transactions of the lease are shut down, so that libpq
 *	  returns.  (With a ttl below 30 seconds, a sixth of it instead of five seconds;
 *	  below 12, also instead of two.)
 *
 *	  Deadlines are counted from before a request is sent, on a clock that does not
 *	  step and, where the system has such a one, goes on while the machine is
 *	  suspended.
 *
 *	  A lease may be used by one thread at a time, but dlock_lease_is_lost() and
 *	  dlock_lease_remaining_ms() by any.  Link with -lpq and -pthread; the libpq has
 *	  to be thread-safe, as it is by default.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_H
#define DLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include <libpq-fe.h>

typedef struct DlockLease DlockLease;

typedef enum DlockStatus
{
	DLOCK_OK,
	DLOCK_REFUSED,				/* somebody else holds the lock */
	DLOCK_GIVEN_UP,				/* give_up_fd has become readable */
	DLOCK_LOST,					/* the server says that the lease is not held
								 * any more */
	DLOCK_UNREACHABLE,			/* the server could not be asked in time */
	DLOCK_ERROR					/* any other error of the server */
} DlockStatus;

/* To wait without a limit. */
#define DLOCK_FOREVER	INT64_MAX

/* Zero, or NULL, is the default of all but the ttl. */
typedef struct DlockOptions
{
	int64_t		ttl_ms;			/* how long the lease lasts without a renewal */
	int64_t		wait_ms;		/* how long to wait for the lock */
	const char *owner;			/* what to call the holder in dlock_leases; a
								 * random part is added */
	const char *mode;			/* as of dlock_acquire(); NULL: exclusive */
	int			permits;		/* above 0: a semaphore of so many holders */
	int64_t		lock_delay_ms;
	int64_t		min_hold_ms;
	const char *payload;		/* JSON that is shown in dlock_leases */
	int			give_up_fd;		/* above 0: gives up waiting for the lock when
								 * it becomes readable */
	void		(*on_lost) (DlockLease *lease, void *argument); /* perhaps called by
																 * another thread */
	void	   *argument;
} DlockOptions;

/*
 * The strings are UTF-8, whatever the locale and PGCLIENTENCODING are, and are copied.
 * Returns NULL if there is no memory.
 */
extern DlockLease *dlock_lease_new(const char *conninfo, const char *name, const DlockOptions *options);

/* Releases it if it is held.  on_lost must not call this. */
extern void dlock_lease_free(DlockLease *lease);

/* DLOCK_OK: the lease is held, and renewed until you release it.  Release it before you acquire it again. */
extern DlockStatus dlock_lease_acquire(DlockLease *lease);

/*
 * The work has ended.  DLOCK_LOST or DLOCK_UNREACHABLE: the lease had ended before.
 * Without a lease, or called by on_lost, it changes nothing and returns the present status;
 * called by others, it waits until on_lost has ended.
 */
extern DlockStatus dlock_lease_release(DlockLease *lease);

/* What the last acquire or release has complained of, if it failed, and its SQLSTATE; both may be empty. */
extern const char *dlock_lease_message(const DlockLease *lease);
extern const char *dlock_lease_sqlstate(const DlockLease *lease);

extern int64_t dlock_lease_token(const DlockLease *lease);

/* Is the work to end?  Without a lease there is none, so this is true. */
extern bool dlock_lease_is_lost(DlockLease *lease);

/* How long the lease lasts, at least, if no renewal succeeds; the work ends earlier. */
extern int64_t dlock_lease_remaining_ms(DlockLease *lease);

/*
 * A transaction that presents the token, on a connection of the caller's.  Where these
 * return false there is no transaction any more, and PQerrorMessage() may tell why; a
 * commit is refused, and the transaction rolled back, if the work is to end.
 */
extern bool dlock_lease_begin(DlockLease *lease, PGconn *conn);
extern bool dlock_lease_commit(DlockLease *lease, PGconn *conn);
extern void dlock_lease_rollback(DlockLease *lease, PGconn *conn);

#endif							/* DLOCK_H */
