/*-------------------------------------------------------------------------
 *
 * dlock.h
 *	  Leases of dlock: locks in PostgreSQL that expire, with fencing tokens.
 *
 * NOTES
 *	  A session is a program's dealings with one server.  All of its leases share its
 *	  connections, of which there are up to two, one more while something waits, and one
 *	  for each dlock_work().  What threads ask for at the same time goes in one statement,
 *	  and so do renewals.
 *
 *	  Deadlines are counted from before a request is sent, on a clock that does not step
 *	  and, where the system has such a one, goes on while the machine is suspended.
 *
 *	  All functions may be called by any thread at any time, with two exceptions: nothing
 *	  may use a session while or after dlock_close() is called, but calls that wait then end;
 *	  and nothing may use a lease while or after it is freed.  A forked child holds nothing:
 *	  it opens a session of its own.  A thread works for others while it waits, so nothing may cancel it
 *	  in a call, and no longjmp() or exception leave one, or a function that the library calls.
 *
 *	  Strings are UTF-8, whatever the locale and PGCLIENTENCODING are, and are copied.  Spans
 *	  are milliseconds.  An error may be NULL.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_H
#define DLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <libpq-fe.h>

#if defined(__GNUC__)
#define DLOCK_API	__attribute__((visibility("default")))
#else
#define DLOCK_API
#endif

#ifdef __cplusplus
extern "C"
{
#endif

typedef struct dlock_session dlock_session;
typedef struct dlock_shards dlock_shards;
typedef struct dlock_lease dlock_lease;

typedef enum dlock_status
{
	DLOCK_OK,
	DLOCK_WAITING,				/* an asynchronous request is not answered yet */
	DLOCK_REFUSED,				/* another owner holds the lock: error.holder */
	DLOCK_LOST,					/* the lease is not held any more (LK002) */
	DLOCK_DEADLOCK,				/* the wait would never have ended (40P01) */
	DLOCK_UNREACHABLE,			/* the server could not be asked in time */
	DLOCK_CANCELED,				/* the caller has given up */
	DLOCK_TOKEN_STALE,			/* a later holder has written (LK001) */
	DLOCK_TOKEN_MISSING,		/* a write presented no token (LK003) */
	DLOCK_UNSUPPORTED,			/* the database has no dlock, or an old one */
	DLOCK_CLOSED,				/* the session is closed, or of the parent
								 * process */
	DLOCK_ERROR					/* any other error: error.sqlstate, if it is
								 * the server's */
} dlock_status;

typedef struct dlock_error
{
	dlock_status status;
	char		sqlstate[6];
	char		holder[512];	/* its owner, "client#task", if that is known */
	char		message[512];
} dlock_error;

/* To wait without a limit. */
#define DLOCK_FOREVER	INT64_MAX

/* Zero, or NULL, is the default of all. */
typedef struct dlock_options
{
	int64_t		ttl_ms;			/* how long the lease lasts without a renewal;
								 * a minute */
	int64_t		wait_ms;		/* how long to wait for the lock; not at all */
	const char *task;			/* the owner is "client#task"; a new one.
								 * Leases within a lease want
								 * dlock_lease_task() of that */
	const char *mode;			/* as of dlock_acquire() in SQL; "exclusive" */
	int			permits;		/* above 0: a semaphore of so many holders */
	bool		reenter;		/* a task may enter its own lock again */
	int64_t		lock_delay_ms;
	int64_t		min_hold_ms;
	const char *payload;		/* JSON that is shown in dlock_leases */
	bool		async;			/* return at once, see dlock_event_fd() */
	int			give_up_fd;		/* above 0: gives up when it becomes readable,
								 * such as a pipe that a signal handler writes
								 * to */

	/*
	 * Called by the session's thread at a loss, which is no event then.  It
	 * must be short, and call of the functions below only those that answer
	 * at once.
	 */
	void		(*on_lost) (dlock_lease *lease, void *argument);
	void	   *argument;
} dlock_options;

typedef struct dlock_session_options
{
	const char *client;			/* names the owners "client#task", and no
								 * other session's; host/pid/random */

	/*
	 * Called by the session's thread as soon as renewals fail.  It must be
	 * short, too, and call only what answers at once.
	 */
	void		(*on_trouble) (const char *message, void *argument);
	void	   *argument;
} dlock_session_options;

/* ---- sessions ---- */

/* Does not connect yet; NULL if there is no memory, or no thread. */
DLOCK_API extern dlock_session *dlock_open(const char *conninfo, const dlock_session_options *options, dlock_error *error);

/* Ends waits, elections and workers, releases all leases, and closes the connections. */
DLOCK_API extern void dlock_close(dlock_session *session);

DLOCK_API extern const char *dlock_client(const dlock_session *session);

/*
 * For programs with a loop of their own: a descriptor that is readable while there are
 * events.  An event is a lease that was lost, or whose asynchronous request was answered;
 * dlock_lease_status() says which.  NULL: no more events.
 */
DLOCK_API extern int dlock_event_fd(const dlock_session *session);
DLOCK_API extern dlock_lease *dlock_next_event(dlock_session *session);

/* ---- leases ---- */

/*
 * DLOCK_OK: *lease is held, and renewed until you release it.  DLOCK_WAITING, if that is to be
 * asynchronous: *lease is of a request.  Otherwise it is NULL.
 */
DLOCK_API extern dlock_status dlock_acquire(dlock_session *session, const char *name, const dlock_options *options,
											dlock_lease **lease, dlock_error *error);

/* All of the locks, or none. */
DLOCK_API extern dlock_status dlock_acquire_all(dlock_session *session, const char *const *names, int count,
												const dlock_options *options, dlock_lease **lease, dlock_error *error);

/* A place in a hierarchy, such as "a/b/c". */
DLOCK_API extern dlock_status dlock_acquire_path(dlock_session *session, const char *path, const dlock_options *options,
												 dlock_lease **lease, dlock_error *error);

/* Wait for the answer to an asynchronous request; or give it up, which is an answer. */
DLOCK_API extern dlock_status dlock_lease_wait(dlock_lease *lease, dlock_error *error);
DLOCK_API extern void dlock_lease_cancel(dlock_lease *lease);

/*
 * The work has ended.  Not DLOCK_OK: the lease had ended before.  Called by on_lost, it changes
 * nothing; called by others, it waits until on_lost has ended.
 */
DLOCK_API extern dlock_status dlock_lease_release(dlock_lease *lease, dlock_error *error);

/* Releases it if it is held, or gives it up, without waiting for the answer. */
DLOCK_API extern void dlock_lease_free(dlock_lease *lease);

/* How it is: DLOCK_OK while it is held, and after a release in time; or why it is not. */
DLOCK_API extern dlock_status dlock_lease_status(dlock_lease *lease, dlock_error *error);

/* May the work go on?  It is to end before the lease does. */
DLOCK_API extern bool dlock_lease_held(dlock_lease *lease);

/* How long the lease lasts, at least, if no renewal succeeds. */
DLOCK_API extern int64_t dlock_lease_remaining(dlock_lease *lease);

/* The fencing token, of the first lock if there are several; or of a lock by its name, 0 if it is none of the lease's. */
DLOCK_API extern int64_t dlock_lease_token(const dlock_lease *lease);
DLOCK_API extern int64_t dlock_lease_token_of(const dlock_lease *lease, const char *name);

/* That of its options. */
DLOCK_API extern void *dlock_lease_argument(const dlock_lease *lease);

DLOCK_API extern const char *dlock_lease_name(const dlock_lease *lease);
DLOCK_API extern const char *dlock_lease_owner(const dlock_lease *lease);
DLOCK_API extern const char *dlock_lease_task(const dlock_lease *lease);

/* ---- tokens ---- */

/*
 * A transaction that presents the tokens, on a connection of the caller's, which is shut down
 * at a loss.  If these do not return DLOCK_OK there is no transaction any more.  A commit is
 * refused if the work is to end, and fails if a statement has failed.
 */
DLOCK_API extern dlock_status dlock_lease_begin(dlock_lease *lease, PGconn *conn, dlock_error *error);
DLOCK_API extern dlock_status dlock_lease_commit(dlock_lease *lease, PGconn *conn, dlock_error *error);
DLOCK_API extern void dlock_lease_rollback(dlock_lease *lease, PGconn *conn);

/* Present the tokens of leases in a transaction that is open already; ask dlock_lease_held() before its COMMIT. */
DLOCK_API extern dlock_status dlock_present(PGconn *conn, dlock_lease *const *leases, int count, dlock_error *error);

/* What has become of a statement: DLOCK_TOKEN_STALE and so on. */
DLOCK_API extern dlock_status dlock_result_status(const PGresult *result);

/* ---- around leases ---- */

/* *token is that of the first call in this time slot, or 0. */
DLOCK_API extern dlock_status dlock_once(dlock_session *session, const char *name, int64_t every_ms, int64_t *token,
										 dlock_error *error);

/*
 * Campaign until give_up_fd is readable, or the session closed: that is DLOCK_OK.  A leader has a term: "lead" is called, and resigns by
 * returning; false ends the election.
 */
DLOCK_API extern dlock_status dlock_elect(dlock_session *session, const char *name, const dlock_options *options,
										  bool (*lead) (dlock_lease *lease, void *argument), void *argument, dlock_error *error);

/*
 * Tell the holder of a lock, at first and then whenever another one is seen, until give_up_fd is readable, the session
 * closed, or "see" returns false: that is DLOCK_OK.  No holder: token 0, and NULLs.
 */
DLOCK_API extern dlock_status dlock_watch(dlock_session *session, const char *name, int64_t every_ms, int give_up_fd,
										  bool (*see) (int64_t token, const char *owner, const char *payload, void *argument),
										  void *argument, dlock_error *error);

/* A task of a queue.  A transaction of its lease finishes it. */
typedef struct dlock_task
{
	const char *queue;
	const char *key;
	int64_t		token;
	const char *payload;		/* JSON, or NULL */
	int			priority;
	int			attempts;
	const char *from_state;
	const char *state;			/* the handler may set which one it is to have
								 * in the end */
	dlock_lease *lease;			/* of the capture; the worker's, and its name
								 * is the key */
} dlock_task;

typedef struct dlock_work_options
{
	int			concurrency;	/* how many tasks, and threads, at a time; one */
	int64_t		ttl_ms;			/* of a capture; a minute */
	const char *const *from_states; /* up to a NULL; the queue's */
	const char *to_state;		/* "working" */
	const char *on_timeout;
	int			give_up_fd;		/* above 0: ends the work when it becomes
								 * readable */
	int64_t		grace_ms;		/* how long it then waits for what is under
								 * way; for ever */
} dlock_work_options;

/*
 * Work on tasks of a queue until give_up_fd is readable, or the session closed: that is DLOCK_OK.  Threads of it call the handler,
 * which returns NULL, or what it failed with: a text that stays until its thread calls it again.  After the grace the
 * captures count as lost, and tasks that fail then are given back as if they had not been captured.
 */
DLOCK_API extern dlock_status dlock_work(dlock_session *session, const char *queue, const dlock_work_options *options,
										 const char *(*handler) (dlock_task *task, void *argument), void *argument,
										 dlock_error *error);

/* ---- several servers, each of which has the locks of some names ---- */

/*
 * Which of so many servers, at least one, has the locks of this name: its CRC-32, modulo "count".  Number them
 * alike everywhere.
 */
DLOCK_API extern unsigned int dlock_shard_of(const char *name, unsigned int count);

/* A session with each server, all of one client: name each server once.  A server that is down refuses its names, and no others. */
DLOCK_API extern dlock_shards *dlock_open_shards(const char *const *conninfos, unsigned int count,
												 const dlock_session_options *options, dlock_error *error);
DLOCK_API extern void dlock_close_shards(dlock_shards *shards);

/* The session with a server, by its number, for what is not here: its events, or a path. */
DLOCK_API extern dlock_session *dlock_shards_session(const dlock_shards *shards, unsigned int number);

/* As dlock_acquire() and so on, of the server that has the lock. */
DLOCK_API extern dlock_status dlock_shards_acquire(dlock_shards *shards, const char *name, const dlock_options *options,
												   dlock_lease **lease, dlock_error *error);
DLOCK_API extern dlock_status dlock_shards_once(dlock_shards *shards, const char *name, int64_t every_ms, int64_t *token,
												dlock_error *error);
DLOCK_API extern dlock_status dlock_shards_elect(dlock_shards *shards, const char *name, const dlock_options *options,
												 bool (*lead) (dlock_lease *lease, void *argument), void *argument,
												 dlock_error *error);
DLOCK_API extern dlock_status dlock_shards_watch(dlock_shards *shards, const char *name, int64_t every_ms, int give_up_fd,
												 bool (*see) (int64_t token, const char *owner, const char *payload,
															  void *argument),
												 void *argument, dlock_error *error);

#ifdef __cplusplus
}
#endif

#endif							/* DLOCK_H */
