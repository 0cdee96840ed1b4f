/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  Calls that may wait: acquire, convert, watch.
 *
 * NOTES
 *	  A call asks for a lease, and if it has to wait, its process goes into
 *	  the queue and sleeps on its latch.  It is woken at its turn (lock/queue.c),
 *	  and wakes by itself for six things: its time is up; a lease that blocks it
 *	  ends, so that it takes the lock over even if no other backend does anything;
 *	  it is time for a deadlock check, and no other process has made it; it has not
 *	  asked for long; it is interrupted; its client has closed the connection.  Then
 *	  it asks again.
 *
 *	  While it sleeps it has the store closed, so that this can be dropped or rewritten,
 *	  and no partition locked.  Only the snapshot of its statement stays, as
 *	  that of any statement does; a request that waits for long can be a place instead.
 *
 *	  An error, be it an interrupt, takes the process out of the queue in the
 *	  clean-up below.  What it was granted by then is undone like any other
 *	  grant that is not answered (session/grants.c).
 *
 *	  A call that watches stands in no queue.  It sleeps until it is told of a change
 *	  (space/signal.c), the lease ends, or deadlock_timeout is over.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/snapmgr.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/error.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/stat.h"
#include "lock/process.h"
#include "lock/deadlock.h"
#include "lock/held.h"
#include "lock/queue.h"
#include "session/grants.h"
#include "session/session.h"
#include "session/wait.h"
#include "space/holder.h"
#include "space/signal.h"
#include "store/flush.h"

/* As in libpq/libpq.h, which wants the headers of Kerberos. */
extern PGDLLIMPORT WaitEventSet *FeBeWaitSet;
#define FeBeWaitSetSocketPos 0

/* The longest time to sleep, in microseconds. */
#define LONGEST_NAP		(60 * USECS_PER_SEC)

typedef struct DLockWaitCall DLockWaitCall;

/*
 * Ask for what is wanted.  GRANTED: there it is, and the process is in no queue.
 * QUEUED: it is in the queue now, or still.
 */
typedef DLockAcquireAnswer (*DLockWaitAsk) (DLockWaitCall *waiting, DLockDatabase *db,
											bool may_wait);

/* A call that may wait. */
struct DLockWaitCall
{
	DLockWaitAsk ask;
	const DLockBytes *name;		/* of the first lock */
	DLockMode	mode;
	DLockTime	deadline;		/* when its time is up */
	DLockTime	anyway;			/* when it asks, whatever has happened */
	DLockTime	retry;			/* how long to wait until the store is tried
								 * again */
	DLockTime	check_at;		/* when to check for a deadlock */
	DLockTime	checked;		/* when it was last known to be in none */
	int			vain;			/* checks in a row that left something stuck,
								 * 3 at most */
	DLockTime	began;
	DLockTime	lock_timeout_at;	/* when the server's lock_timeout is over */
	bool		was_logged;		/* that it waits for long */

	/* what it asks for, by kind, and the answer */
	DLockAcquireRequest request;
	DLockToken	token;			/* of the lease to convert */
	DLockAcquireGranted granted;
};

/* When is a span from now over? */
static DLockTime
deadline_of(DLockTime now, DLockTime wait)
{
	return (wait > DLOCK_TIME_FOREVER - now) ? DLOCK_TIME_FOREVER : now + wait;
}

static DLockWaitCall
begin_call(DLockWaitAsk ask, const DLockBytes *name, DLockMode mode, DLockTime wait)
{
	DLockTime	now = dlock_clock_now();

	return (DLockWaitCall)
	{
		.ask = ask,
			.name = name,
			.mode = mode,
			.began = now,
			.deadline = deadline_of(now, wait),
			.anyway = now + (DLockTime) DeadlockTimeout * 1000,
			.check_at = now + (DLockTime) DeadlockTimeout * 1000,
			.retry = DLOCK_WAIT_RETRY,
			.checked = now,
			.lock_timeout_at = (LockTimeout > 0) ?
			now + (DLockTime) LockTimeout * 1000 : DLOCK_TIME_FOREVER
	};
}

/* ---- leaving in an error ---- */

/* The clean-up.  Must not fail. */
static void
abandon(int code, Datum arg)
{
	/* The abort would do that next; here it must come first. */
	LWLockReleaseAll();
	DLOCK_FAULT_STOP("abandon");
	dlock_queue_leave();
	dlock_stat_count_wait(dlock_clock_now() - ((DLockWaitCall *) DatumGetPointer(arg))->began);
}

/* ---- waiting ---- */

/* The owner that asks is in a circle of waits. */
pg_noreturn static void
report_deadlock(const char *circle)
{
	dlock_stat_count(DLOCK_STAT_DEADLOCK, 1);
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected"),
			 errdetail("%s", circle),
			 errhint("Acquire locks in the same order everywhere, or all at once with dlock_acquire_all().")));
}

/*
 * The backend was in no deadlock at "checked": set when to check again.  The processes are
 * due one after the other, so the first of many checks for all.  They check more rarely if
 * checks find something stuck that others have to resolve.
 */
static void
set_check(DLockWaitCall *waiting)
{
	DLockTime	timeout = (DLockTime) DeadlockTimeout * 1000;

	waiting->check_at = waiting->checked + (timeout << waiting->vain) - timeout / 4 * MyProcNumber / MaxBackends;
}

/* Has somebody else checked since, for all?  Then this backend need not. */
static bool
is_checked(DLockWaitCall *waiting)
{
	DLockDatabase db;

	dlock_session_shared(&db);
	if (!dlock_deadlock_is_checked(&db, &waiting->checked))
		return false;
	waiting->vain = 0;
	set_check(waiting);
	return true;
}

/* Check for a deadlock. */
static void
check_deadlock(DLockWaitCall *waiting, DLockTime now)
{
	DLockDatabase db;
	char	   *circle;

	dlock_session_shared(&db);
	circle = dlock_deadlock_check(&db, waiting->checked);
	if (circle != NULL)
		report_deadlock(circle);
	if (is_checked(waiting))
		return;
	waiting->checked = now;
	waiting->vain = Min(waiting->vain + 1, 3);
	set_check(waiting);
}

/*
 * It has waited for long: log that, if it is wanted, and see to it that no request in front
 * of it has been overlooked.
 */
static void
check_progress(DLockWaitCall *waiting, DLockTime now)
{
	waiting->anyway = now + DLOCK_WAIT_ANYWAY * (DLockTime) DeadlockTimeout * 1000;
	if (log_lock_waits && !waiting->was_logged)
	{
		DLockTime	waited = now - waiting->began;
		char	   *blockers = dlock_process_describe_blockers();

		waiting->was_logged = true;
		ereport(LOG,
				(errmsg("session still waiting for %s on lock \"%.*s\" after %lld.%03d ms",
						dlock_name_of_mode(waiting->mode), waiting->name->len, waiting->name->data,
						(long long) (waited / 1000), (int) (waited % 1000)),
				 errdetail_log("Blocked by: %s.", blockers)));
	}
	dlock_queue_give_turns_ahead();
}

/*
 * Ask again, being in the queue.  "until" is when to do so again at the latest.  If the store
 * cannot be had at once, another session is rewriting it, or wants to.
 */
static DLockAcquireAnswer
ask_again(DLockWaitCall *waiting, DLockTime *until)
{
	DLockAcquireAnswer answer;
	DLockDatabase db;
	bool		opened;

	DLOCK_FAULT("ask_again");
	opened = dlock_session_try_open(&db, false);

	/*
	 * If the extension was dropped, so were the requests of this process.
	 * While the store is open it cannot be dropped, so a request that is
	 * there stays.
	 */
	if (dlock_process_at(MyProcNumber)->first == DLOCK_MEMORY_NONE)
		dlock_error_no_extension();
	if (!opened)
	{
		*until = dlock_clock_now() + waiting->retry;
		waiting->retry = Min(2 * waiting->retry, (DLockTime) DeadlockTimeout * 1000);
		return DLOCK_ANSWER_QUEUED;
	}
	waiting->retry = DLOCK_WAIT_RETRY;
	answer = waiting->ask(waiting, &db, true);
	dlock_session_close(&db);
	*until = waiting->granted.until;
	if (answer == DLOCK_ANSWER_QUEUED)
		DLOCK_FAULT("in_vain");
	return answer;
}

/*
 * Sleep until the latch is set, or the client has closed its connection, which the next
 * CHECK_FOR_INTERRUPTS() then finds.  A client's backend sleeps on the events of its
 * connection, as pq_check_connection() does.  False if neither happens before "until", or
 * within LONGEST_NAP.
 */
bool
dlock_wait_nap(DLockTime now, DLockTime until, uint32 event)
{
	long		ms = dlock_clock_nap_ms(now, until, LONGEST_NAP);
	WaitEvent	occurred;

	if (FeBeWaitSet == NULL || !WaitEventSetCanReportClosed())
		return (WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, event) & WL_LATCH_SET) != 0;
	ModifyWaitEvent(FeBeWaitSet, FeBeWaitSetSocketPos, WL_SOCKET_CLOSED, NULL);
	if (WaitEventSetWait(FeBeWaitSet, ms, &occurred, 1, event) == 0)
		return false;
	if ((occurred.events & WL_POSTMASTER_DEATH) != 0)
		proc_exit(1);
	if ((occurred.events & WL_SOCKET_CLOSED) != 0)
		ClientConnectionLost = InterruptPending = true;
	return true;
}

/*
 * Sleep until this process is woken, or "until" is reached, or a deadlock check is due that
 * no other process has made meanwhile.
 */
static void
sleep_in_queue(DLockWaitCall *waiting, DLockTime until, uint32 event)
{
	DLockTime	now = dlock_clock_now();
	bool		woken = false;

	while (!woken && now < Min(until, waiting->check_at))
	{
		woken = dlock_wait_nap(now, Min(until, waiting->check_at), event);
		now = dlock_clock_now();
		if (now >= waiting->check_at)
			(void) is_checked(waiting);
	}
}

/* The time is up: leave the queue, or keep the place. */
static DLockAcquireAnswer
give_up(DLockWaitCall *waiting)
{
	bool		fails = dlock_clock_now() < waiting->deadline;

	DLOCK_FAULT("give_up");
	dlock_queue_leave_kept(fails ? 0 : waiting->request.keep);
	if (fails)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("canceling statement due to lock timeout")));
	dlock_stat_count(DLOCK_STAT_TIMEOUT, 1);
	return DLOCK_ANSWER_REFUSED;
}

/*
 * Wait, being in the queue, and ask again until there is an answer.
 *
 * What changes after a backend has asked, under the same locks, sets its latch.  So it need
 * not ask again before its first nap, unless an interrupt is pending: to process that may
 * reset the latch.
 */
static DLockAcquireAnswer
wait_in_queue(DLockWaitCall *waiting)
{
	static uint32 event = 0;
	DLockAcquireAnswer answer = DLOCK_ANSWER_QUEUED;
	DLockTime	until = waiting->granted.until;

	if (event == 0)
		event = WaitEventExtensionNew("DLockAcquire");
	for (bool asks = InterruptPending;; asks = true)
	{
		DLockTime	now;

		if (asks)
		{
			ResetLatch(MyLatch);
			CHECK_FOR_INTERRUPTS();
			answer = ask_again(waiting, &until);
		}
		if (answer != DLOCK_ANSWER_QUEUED)
			return answer;

		now = dlock_clock_now();
		if (now >= Min(waiting->deadline, waiting->lock_timeout_at))
		{
			if (asks)
				return give_up(waiting);
			continue;
		}
		if (now >= waiting->check_at)
			check_deadlock(waiting, now);
		if (now >= waiting->anyway)
		{
			check_progress(waiting, now);
			continue;
		}
		until = Min(until, waiting->deadline);
		until = Min(until, Min(waiting->lock_timeout_at, waiting->anyway));
		InvalidateCatalogSnapshotConditionally();
		DLOCK_FAULT("nap");
		sleep_in_queue(waiting, until, event);
	}
}

/* The call has waited, and has its answer: count and log that. */
static void
end_wait(const DLockWaitCall *waiting, bool granted)
{
	dlock_stat_count_wait(dlock_clock_now() - waiting->began);
	if (granted && waiting->was_logged)
	{
		DLockTime	waited = dlock_clock_now() - waiting->began;

		ereport(LOG,
				(errmsg("session acquired %s on lock \"%.*s\" after %lld.%03d ms",
						dlock_name_of_mode(waiting->mode), waiting->name->len, waiting->name->data,
						(long long) (waited / 1000), (int) (waited % 1000))));
	}
}

/*
 * Ask for what is wanted, and wait for it if need be.  GRANTED; or REFUSED or KEPT if
 * it is not to be had in time.  Throws 40P01, 55P03, 57014 and whatever else
 * interrupts it, and 55000 if the extension is dropped meanwhile; the process is
 * in no queue then.
 */
static DLockAcquireAnswer
call(DLockWaitCall *waiting)
{
	DLockAcquireAnswer answer;
	DLockDatabase db;

	dlock_session_open(&db);
	answer = waiting->ask(waiting, &db, waiting->began < waiting->deadline);
	dlock_session_close(&db);
	if (answer != DLOCK_ANSWER_QUEUED)
		return answer;

	DLOCK_FAULT_STOP("enqueued");
	PG_ENSURE_ERROR_CLEANUP(abandon, PointerGetDatum(waiting));
	{
		answer = wait_in_queue(waiting);
	}
	PG_END_ENSURE_ERROR_CLEANUP(abandon, PointerGetDatum(waiting));
	end_wait(waiting, answer == DLOCK_ANSWER_GRANTED);
	return answer;
}

/* ---- acquire ---- */

/* Has a place that was asked for in vain been there for so long that a check is due? */
bool
dlock_wait_is_long(const DLockAcquireGranted *granted)
{
	return dlock_clock_now() - granted->until >= (DLockTime) DeadlockTimeout * 1000;
}

static DLockAcquireAnswer
ask_to_acquire(DLockWaitCall *waiting, DLockDatabase *db, bool may_wait)
{
	DLockAcquireRequest *request = &waiting->request;
	DLockAcquireAnswer answer;

	request->may_wait = may_wait;
	request->anyway = waiting->anyway;
	dlock_grants_prepare(request->count, request->bind);
	answer = dlock_acquire_locks(db, request, &waiting->granted);
	if (answer == DLOCK_ANSWER_GRANTED)
		dlock_grants_add(db, request, &waiting->granted);
	if (answer == DLOCK_ANSWER_KEPT)
	{
		char	   *circle = NULL;

		dlock_grants_add_place(db, request, &waiting->granted);
		if (dlock_wait_is_long(&waiting->granted))
			circle = dlock_deadlock_check_places(db, waiting->granted.until, NULL, NULL);
		if (circle != NULL)
			report_deadlock(circle);
	}
	if (answer == DLOCK_ANSWER_SELF)
	{
		dlock_stat_count(DLOCK_STAT_DEADLOCK, 1);
		ereport(ERROR,
				(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
				 errmsg("deadlock detected"),
				 errdetail("Owner \"%.*s\" waits for %s on lock \"%.*s\"; blocked by owner \"%.*s\".",
						   request->owner.len, request->owner.data, dlock_name_of_mode(request->mode),
						   waiting->granted.own->len, waiting->granted.own->data,
						   request->owner.len, request->owner.data),
				 errhint("Use another owner, or reentry => 'count' or 'return' to enter the lease that it holds.")));
	}
	return answer;
}

/*
 * Grants on these locks become durable as synchronous_commit asks for, and those that watch
 * are told.  The barrier: what is granted and confirmed must be visible before this asks
 * whether anybody listens.
 */
void
dlock_wait_make_durable(XLogRecPtr lsn, const DLockBytes *names, int count)
{
	DLOCK_FAULT("granted");
	dlock_flush_commit(lsn);
	pg_memory_barrier();
	for (int i = 0; i < count && dlock_signal_is_any_listening(); i++)
		dlock_signal_tell(dlock_name_hash(MyDatabaseId, &names[i]));
}

/*
 * The token of what a call was granted, on "count" locks, durable as synchronous_commit
 * asks for.
 */
static DLockToken
take_answer(const DLockWaitCall *waiting, DLockAcquireAnswer answer, int count)
{
	if (answer != DLOCK_ANSWER_GRANTED)
		return DLOCK_TOKEN_NONE;
	dlock_wait_make_durable(waiting->granted.lsn, waiting->name, count);
	return waiting->granted.token;
}

/*
 * Acquire what is asked for, waiting up to "wait" microseconds for it
 * (DLOCK_TIME_FOREVER: without a limit).  Returns the first token, or
 * DLOCK_TOKEN_NONE if the time is up; then it has a place if request->keep says so.
 *
 * When this returns the grant is as durable as synchronous_commit asks for.
 * Throws what dlock_acquire_locks() and call() throw.
 */
DLockToken
dlock_wait_acquire(const DLockAcquireRequest *request, DLockTime wait)
{
	DLockWaitCall waiting = begin_call(ask_to_acquire, &request->names[0], request->mode, wait);

	waiting.request = *request;
	return take_answer(&waiting, call(&waiting), request->path ? 1 : request->count);
}

/*
 * Acquire each of these locks for its owner, by itself and without waiting: the other
 * arguments are those of the request.  "tokens" gets the answers in their order,
 * DLOCK_TOKEN_NONE for a lock that was not to be had.
 *
 * One flush makes all grants as durable as synchronous_commit asks for.  Throws what
 * dlock_acquire_locks() throws; nothing is granted then.
 */
void
dlock_wait_acquire_each(const DLockAcquireRequest *request, const DLockBytes *names,
						const DLockBytes *owners, int count, DLockToken *tokens)
{
	DLockWaitCall waiting = {.request = *request};
	XLogRecPtr	lsn = InvalidXLogRecPtr;
	DLockDatabase db;

	dlock_session_open(&db);
	dlock_grants_prepare(count, request->bind);
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		waiting.request.names = &names[i];
		waiting.request.owner = owners[i];
		waiting.request.earlier = tokens;
		waiting.request.nearlier = i;
		tokens[i] = DLOCK_TOKEN_NONE;
		if (ask_to_acquire(&waiting, &db, false) == DLOCK_ANSWER_GRANTED)
		{
			tokens[i] = waiting.granted.token;
			lsn = Max(lsn, waiting.granted.lsn);
		}
	}
	dlock_session_close(&db);
	dlock_wait_make_durable(lsn, names, count);
}

/* ---- convert ---- */

static DLockAcquireAnswer
ask_to_convert(DLockWaitCall *waiting, DLockDatabase *db, bool may_wait)
{
	DLockAcquireGranted *granted = &waiting->granted;
	DLockHolderTarget target = {
		.hash = dlock_name_hash(db->shared->oid, waiting->name),
		.name = *waiting->name,.token = waiting->token
	};
	DLockAcquireAnswer answer;

	dlock_grants_prepare(1, DLOCK_BIND_NONE);
	answer = dlock_held_convert(db, &target, waiting->mode, may_wait, granted);
	if (answer == DLOCK_ANSWER_GRANTED)
		dlock_grants_convert(target.hash, waiting->token, granted, waiting->mode);
	return answer;
}

/*
 * Convert the lease with a token to another mode, waiting for that as
 * dlock_wait_acquire() does.  Returns the token that it has then, or
 * DLOCK_TOKEN_NONE if the time is up, and the lease is as it was.
 */
DLockToken
dlock_wait_convert(const DLockBytes *name, DLockToken token, DLockMode mode, DLockTime wait)
{
	DLockWaitCall waiting = begin_call(ask_to_convert, name, mode, wait);

	waiting.token = token;

	/* If it waits, then as a holder, which may have closed a circle. */
	waiting.check_at = 0;
	return take_answer(&waiting, call(&waiting), 1);
}

/* ---- watch ---- */

/* Who holds the lock now?  Its partition must be locked. */
static void
describe_holder(DLockSpaceLease *lease, DLockTime now, DLockWaitHolder *holder)
{
	DLockTime	told_until;

	holder->token = DLOCK_TOKEN_NONE;
	if (lease == NULL)
		return;
	holder->token = lease->token;
	holder->mode = (DLockMode) lease->mode;
	holder->granted_at = lease->granted_at;
	told_until = dlock_holder_told_until(lease);
	holder->remaining = (told_until == DLOCK_TIME_FOREVER) ?
		DLOCK_TIME_FOREVER : told_until - now;
	holder->owner_len = lease->owner_len;
	holder->payload_len = lease->payload_len;
	dlock_space_copy_texts(lease, holder->owner, holder->payload);
}

/*
 * See who holds a lock; true if that is not the holder with the token "seen".  But with
 * "may_wait" false if an earlier holder, or none, is told while a newer lease is about to be
 * confirmed: in an upgrade that is the lease that was seen.  "until" is when the lease of
 * the holder ends, as far as that is told.
 */
static bool
look_at_holder(const DLockBytes *name, DLockToken seen, bool may_wait,
			   DLockWaitHolder *holder, DLockTime *until)
{
	DLockDatabase db;
	DLockSpaceEntry *entry;
	DLockSpaceLease *lease = NULL;
	bool		pending = false;
	DLockTime	now;
	uint32		hash;

	dlock_session_open(&db);
	hash = dlock_name_hash(db.shared->oid, name);
	if (may_wait)
		dlock_signal_listen(hash);
	dlock_flush_confirm_reported();
	DLOCK_FAULT("watch_look");
	dlock_partition_lock(hash, LW_SHARED);
	now = dlock_clock_now();
	entry = dlock_space_find(db.shared->oid, hash, name);
	if (entry != NULL)
		lease = dlock_holder_newest(entry, now, &pending);
	describe_holder(lease, now, holder);
	*until = (lease != NULL) ? dlock_holder_told_until(lease) : DLOCK_TIME_FOREVER;
	dlock_partition_unlock(hash);
	dlock_session_close(&db);
	return holder->token != seen && !(may_wait && pending && holder->token < seen);
}

/* The clean-up.  Must not fail. */
static void
watch_no_more(int code, Datum arg)
{
	dlock_signal_end_listening();
}

/*
 * Wait until the holder of a lock is another than the one with the token
 * "seen" (DLOCK_TOKEN_NONE: nobody), but no longer than "wait" microseconds.
 * In either case "holder" is the holder then.
 *
 * A process that watches stands in no queue: it listens (space/signal.c).  What becomes
 * confirmed otherwise than by the call that granted it is told to nobody, so it reads
 * every deadlock_timeout, too.
 */
void
dlock_wait_watch(const DLockBytes *name, DLockToken seen, DLockTime wait,
				 DLockWaitHolder *holder)
{
	static uint32 event = 0;
	DLockTime	deadline = deadline_of(dlock_clock_now(), wait);

	if (event == 0)
		event = WaitEventExtensionNew("DLockWatch");
	PG_ENSURE_ERROR_CLEANUP(watch_no_more, (Datum) 0);
	for (;;)
	{
		DLockTime	now = dlock_clock_now();
		bool		may_wait = now < deadline;
		DLockTime	until;

		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (look_at_holder(name, seen, may_wait, holder, &until) || !may_wait)
			break;
		until = Min(until, Min(deadline, now + (DLockTime) DeadlockTimeout * 1000));
		InvalidateCatalogSnapshotConditionally();
		DLOCK_FAULT("nap");
		(void) dlock_wait_nap(dlock_clock_now(), until, event);
	}
	PG_END_ENSURE_ERROR_CLEANUP(watch_no_more, (Datum) 0);
	watch_no_more(0, (Datum) 0);
}
