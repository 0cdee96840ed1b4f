/*-------------------------------------------------------------------------
 *
 * waiting.c
 *	  Calls that may wait: acquire, convert, watch.
 *
 * NOTES
 *	  A process that waits sleeps on its latch.  It is woken when it has been
 *	  granted what it waits for, and wakes by itself for five things: its time
 *	  is up; a lease in its way ends, so that it takes the lock over even if
 *	  nobody else does anything; it is time to look for a deadlock; it is
 *	  interrupted; its client has closed the connection.  Whatever it is, it
 *	  then looks at its requests and decides anew.
 *
 *	  While it sleeps it has nothing open and holds nothing: neither the store,
 *	  so that this can be dropped or rewritten, nor anything of the lock.  If the
 *	  statement is nothing but this call, it does not hold its snapshot either, so a
 *	  wait of days does not keep vacuum from removing rows.
 *
 *	  An error, be it an interrupt, takes the process out of the queue in the
 *	  clean-up below.  If the grant was faster, it is undone like any other that
 *	  is not answered (session/answer.c).
 *
 * IDENTIFICATION
 *	  src/session/waiting.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "executor/execdesc.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/pquery.h"
#include "utils/builtins.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/error.h"
#include "base/name.h"
#include "base/stat.h"
#include "lock/deadlock.h"
#include "lock/manager.h"
#include "lock/queue.h"
#include "lock/room.h"
#include "session/answer.h"
#include "session/bind.h"
#include "session/session.h"
#include "session/waiting.h"
#include "space/space.h"
#include "store/flush.h"

/*
 * For FeBeWaitSet and the positions in it.  Of struct Port nothing is used, so
 * its parts that take headers of other libraries can be left out.
 */
#undef ENABLE_GSS
#undef ENABLE_SSPI
#undef USE_OPENSSL
#undef USE_SSL
#include "libpq/libpq.h"

/* The longest time to sleep, in microseconds. */
#define LONGEST_NAP		(60 * USECS_PER_SEC)

/* The longest time between two looks for a deadlock, in terms of deadlock_timeout. */
#define CHECK_RARELY	8

/* How long to leave the store alone if it cannot be had at once. */
#define RETRY_NAP		(10 * INT64CONST(1000))

/* A call that waits. */
typedef struct DLockWaiting
{
	DLockSpaceKind kind;
	const DLockAcquireRequest *request; /* for several or one; if ASKED */
	const DLockBytes *name;		/* for messages */
	DLockMode	mode;
	DLockTime	deadline;		/* when its time is up */
	DLockTime	check_at;		/* when to look for a deadlock */
	DLockTime	check_every;	/* how long after that again */
	DLockTime	began;
	DLockTime	lock_timeout_at;	/* when the server's lock_timeout is over */
	bool		has_waited;
	bool		was_logged;		/* that it waits for long */
} DLockWaiting;

/* How a wait ends, unless in an error. */
typedef enum DLockWaitingEnd
{
	WAITING_GRANTED,
	WAITING_TIMED_OUT,
	WAITING_RETRY				/* it has left the queue, and is to ask anew */
} DLockWaitingEnd;

static DLockWaitShared *
mine(void)
{
	return dlock_wait_of(dlock_wait_me());
}

static void
begin_waiting(DLockWaiting *waiting, DLockSpaceKind kind, const DLockBytes *name,
			  DLockMode mode, DLockTime wait)
{
	DLockTime	now = dlock_clock_now();

	waiting->kind = kind;
	waiting->request = NULL;
	waiting->name = name;
	waiting->mode = mode;
	waiting->began = now;
	waiting->deadline = (wait > DLOCK_TIME_FOREVER - now) ? DLOCK_TIME_FOREVER : now + wait;
	waiting->check_every = (DLockTime) DeadlockTimeout * 1000;
	waiting->check_at = now + waiting->check_every;
	waiting->lock_timeout_at = (LockTimeout > 0 && kind != DLOCK_SPACE_WATCH) ?
		now + (DLockTime) LockTimeout * 1000 : DLOCK_TIME_FOREVER;
	waiting->has_waited = waiting->was_logged = false;
}

/* ---- leaving in an error ---- */

/* The wait is over, one way or another. */
static void
count_wait(const DLockWaiting *waiting)
{
	if (waiting->kind != DLOCK_SPACE_WATCH)
		dlock_stat_count_wait(dlock_clock_now() - waiting->began);
}

/* The clean-up.  Must not fail.  What was granted is undone next. */
static void
abandon(int code, Datum arg)
{
	DLockWaiting *waiting = (DLockWaiting *) DatumGetPointer(arg);
	DLockDatabase db;

	/* The abort would do that next; here it must come first. */
	LWLockReleaseAll();
	dlock_session_shared(&db);
	if (!dlock_queue_leave(&db) && mine()->state == DLOCK_WAIT_GRANTED)
		dlock_answer_granted(&db, waiting->request,
							 &(DLockAcquireGranted) {.token = mine()->token});
	dlock_queue_taken();
	count_wait(waiting);
}

/* ---- the snapshot ---- */

/* Is this a function of ours, which needs no snapshot when it goes on? */
static bool
is_own_function(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	bool		is_own = false;
	bool		is_null;
	Datum		symbol;

	if (!HeapTupleIsValid(tuple))
		return false;
	symbol = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &is_null);
	if (!is_null && ((Form_pg_proc) GETSTRUCT(tuple))->prolang == ClanguageId)
		is_own = strncmp(TextDatumGetCString(symbol), "dlock_sql_", 10) == 0;
	ReleaseSysCache(tuple);
	return is_own;
}

/*
 * Is this plan SELECT of one call of ours, with constants and parameters as its
 * arguments?  Then nothing is evaluated by the statement's snapshot any more.
 */
static bool
is_mere_call(const PlannedStmt *statement)
{
	Plan	   *plan = statement->planTree;
	FuncExpr   *call;
	ListCell   *cell;

	if (statement->commandType != CMD_SELECT || statement->subplans != NIL || !IsA(plan, Result) ||
		plan->lefttree != NULL || plan->initPlan != NIL || list_length(plan->targetlist) != 1)
		return false;
	call = (FuncExpr *) linitial_node(TargetEntry, plan->targetlist)->expr;
	if (!IsA(call, FuncExpr))
		return false;
	foreach(cell, call->args)
	{
		if (!IsA(lfirst(cell), Const) && !IsA(lfirst(cell), Param))
			return false;
	}
	return is_own_function(call->funcid);
}

/*
 * Give up the statement's snapshot if it is not needed.  Returns the query to take
 * another for after the wait, or NULL.  Should an error come first, the query is not
 * looked at again.
 */
static QueryDesc *
release_snapshot(void)
{
	QueryDesc  *query = (ActivePortal != NULL) ? ActivePortal->queryDesc : NULL;

	/* Is the snapshot in use that of the portal, and not one of a function in between? */
	if (query == NULL || query->estate == NULL || query->snapshot != query->estate->es_snapshot ||
		!ActiveSnapshotSet() || GetActiveSnapshot() != query->snapshot || !is_mere_call(query->plannedstmt))
		return NULL;

	PopActiveSnapshot();
	UnregisterSnapshot(query->estate->es_snapshot);
	UnregisterSnapshot(query->snapshot);
	query->estate->es_snapshot = query->snapshot = InvalidSnapshot;
	return query;
}

/* The wait is over: let the query have a snapshot again. */
static void
take_snapshot(QueryDesc *query)
{
	if (query == NULL)
		return;
	query->snapshot = RegisterSnapshot(GetTransactionSnapshot());
	query->estate->es_snapshot = RegisterSnapshot(query->snapshot);
	PushActiveSnapshot(query->snapshot);
}

/* ---- waiting ---- */

/*
 * Let those be served who can be, as any other operation does.  False if the
 * store cannot be had at once: somebody is rewriting it, or wants to.
 */
static bool
serve(void)
{
	DLockDatabase db;

	switch (dlock_session_try_open(&db))
	{
		case DLOCK_SESSION_OPENED:
			break;
		case DLOCK_SESSION_LOCKED:
			return false;
		case DLOCK_SESSION_ABSENT:
			dlock_error_no_extension();
	}
	dlock_queue_serve(&db);
	dlock_session_close(&db);
	return true;
}

/*
 * The call has waited for deadlock_timeout: is it in a deadlock?  If not, say
 * that it waits if that is wanted, and see to it that nobody in front of it
 * has been overlooked.
 */
static void
check_progress(DLockWaiting *waiting, DLockTime now)
{
	DLockDatabase db;
	char	   *circle;

	waiting->check_at = now + waiting->check_every;
	waiting->check_every = Min(2 * waiting->check_every,
							   CHECK_RARELY * (DLockTime) DeadlockTimeout * 1000);
	if (waiting->kind == DLOCK_SPACE_WATCH)
		return;

	dlock_session_shared(&db);
	circle = dlock_deadlock_check(&db);
	if (circle != NULL)
	{
		dlock_stat_count(DLOCK_STAT_DEADLOCK, 1);
		dlock_error_deadlock(circle);
	}

	if (log_lock_waits && !waiting->was_logged &&
		now - waiting->began >= (DLockTime) DeadlockTimeout * 1000)
	{
		waiting->was_logged = true;
		dlock_error_log_waiting(waiting->name, dlock_name_of_mode(waiting->mode), now - waiting->began,
								dlock_queue_describe_blockers());
	}
	(void) serve();
}

static uint32
wait_event(const DLockWaiting *waiting)
{
	static uint32 acquire_event = 0;
	static uint32 watch_event = 0;

	if (acquire_event == 0)
	{
		acquire_event = WaitEventExtensionNew("DLockAcquire");
		watch_event = WaitEventExtensionNew("DLockWatch");
	}
	return (waiting->kind == DLOCK_SPACE_WATCH) ? watch_event : acquire_event;
}

/* Leave the queue to ask anew, unless the grant was faster. */
static bool
leave_for_retry(void)
{
	DLockDatabase db;

	dlock_session_shared(&db);
	return dlock_queue_leave(&db);
}

/*
 * Look at what this process waits for, and do what that calls for.  True if
 * that ends the wait; otherwise "until" is when to look again.
 */
static bool
look(DLockWaiting *waiting, DLockTime *until, DLockWaitingEnd *end)
{
	switch (dlock_queue_look(waiting->check_at, until))
	{
		case DLOCK_QUEUE_GRANTED:
			*end = WAITING_GRANTED;
			return true;

		case DLOCK_QUEUE_GONE:
			dlock_queue_taken();
			dlock_error_no_extension();

		case DLOCK_QUEUE_RETRY:
			*end = WAITING_RETRY;

			/* A conversion keeps its place until it can be made. */
			if (waiting->kind == DLOCK_SPACE_CONVERT)
				return true;
			*until = 0;
			return leave_for_retry();

		case DLOCK_QUEUE_SERVE:
			*until = serve() ? 0 : dlock_clock_now() + RETRY_NAP;
			break;

		case DLOCK_QUEUE_WAIT:
			break;
	}

	if (dlock_clock_now() >= Min(waiting->deadline, waiting->lock_timeout_at))
	{
		*end = WAITING_TIMED_OUT;
		*until = 0;
		if (!leave_for_retry())
			return false;
		if (dlock_clock_now() < waiting->deadline)
			dlock_error_lock_timeout();
		return true;
	}
	return false;
}

/*
 * Sleep on the latch, at most so many milliseconds, or until the client has
 * closed its connection, which the next look at interrupts then finds.
 *
 * The server's own set of events is used as pq_check_connection() does: each
 * of its users sets the events of the socket first, so they need no restoring.
 */
static void
nap(long timeout, uint32 event)
{
	WaitEvent	events[FeBeWaitSetNEvents];
	int			count;

	if (MyProcPort == NULL || !WaitEventSetCanReportClosed())
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 timeout, event);
		return;
	}

	ModifyWaitEvent(FeBeWaitSet, FeBeWaitSetSocketPos, WL_SOCKET_CLOSED, NULL);
	count = WaitEventSetWait(FeBeWaitSet, timeout, events, lengthof(events), event);
	for (int i = 0; i < count; i++)
	{
		if (events[i].events & WL_POSTMASTER_DEATH)
			proc_exit(1);
		if (events[i].events & WL_SOCKET_CLOSED)
			ClientConnectionLost = InterruptPending = true;
	}
}

/* Sleep until the wait is over. */
static DLockWaitingEnd
sleep_in_queue(DLockWaiting *waiting)
{
	DLockWaitingEnd end;
	DLockTime	until;

	for (;;)
	{
		DLockTime	now;

		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (look(waiting, &until, &end))
			return end;

		now = dlock_clock_now();
		if (mine()->look_again)
		{
			mine()->look_again = false;
			waiting->check_every = (DLockTime) DeadlockTimeout * 1000;
			waiting->check_at = Min(waiting->check_at, now + waiting->check_every);
		}
		if (now >= waiting->check_at)
		{
			check_progress(waiting, now);
			continue;
		}
		until = Min(until, waiting->deadline);
		until = Min(until, Min(waiting->lock_timeout_at, waiting->check_at));
		InvalidateCatalogSnapshotConditionally();
		if (until > now)
			nap(dlock_clock_nap_ms(now, until, LONGEST_NAP), wait_event(waiting));
	}
}

/*
 * Wait, being in the queue; the clean-up is armed.
 */
static DLockWaitingEnd
wait_armed(DLockWaiting *waiting)
{
	QueryDesc  *query = release_snapshot();
	DLockWaitingEnd end;

	waiting->has_waited = true;
	end = sleep_in_queue(waiting);
	take_snapshot(query);
	return end;
}

/*
 * Wait, being in the queue.  Throws 40P01, 55P03, 57014 and whatever else
 * interrupts it; it has left the queue then.
 */
static DLockWaitingEnd
wait_in_queue(DLockWaiting *waiting)
{
	DLockWaitingEnd end;

	PG_ENSURE_ERROR_CLEANUP(abandon, PointerGetDatum(waiting));
	{
		end = wait_armed(waiting);
	}
	PG_END_ENSURE_ERROR_CLEANUP(abandon, PointerGetDatum(waiting));
	return end;
}

/* The call has its answer: count and log that it has waited, if it has. */
static void
end_wait(const DLockWaiting *waiting, bool granted)
{
	if (!waiting->has_waited)
		return;
	count_wait(waiting);
	if (granted && waiting->was_logged)
		dlock_error_log_acquired(waiting->name, dlock_name_of_mode(waiting->mode),
								 dlock_clock_now() - waiting->began);
}

/* ---- acquire ---- */

/* The request has been granted. */
static void
remember(DLockDatabase *db, const DLockAcquireRequest *request,
		 const DLockAcquireGranted *granted)
{
	int			count = request->path ? 1 : request->count;

	dlock_answer_granted(db, request, granted);
	if (request->bind == DLOCK_BIND_NONE || granted->entered)
		return;
	for (int i = 0; i < count; i++)
		dlock_bind_add(dlock_name_hash(db->shared->oid, &request->names[i]), granted->token + i,
					   request->bind);
}

/*
 * Acquire what is asked for, waiting up to "wait" microseconds for it
 * (DLOCK_TIME_FOREVER: without a limit).  Returns the first token, or
 * DLOCK_TOKEN_NONE if the time is up.
 *
 * When this returns the grant is as durable as synchronous_commit asks for.
 * Throws what dlock_acquire_locks() throws, 40P01, and 55000 if the
 * extension is dropped meanwhile.
 */
DLockToken
dlock_waiting_acquire(const DLockAcquireRequest *request, DLockTime wait)
{
	DLockAcquireRequest asked = *request;
	DLockWaiting waiting;
	DLockAcquireGranted granted;
	DLockAcquireAnswer answer;
	DLockDatabase db;
	DLockWaitingEnd end;

	begin_waiting(&waiting, DLOCK_SPACE_ASKED, &asked.names[0], asked.mode, wait);
	waiting.request = &asked;
	do
	{
		asked.may_wait = wait > 0 && dlock_clock_now() < waiting.deadline;
		dlock_session_open(&db);
		dlock_answer_prepare(asked.count);
		if (asked.bind != DLOCK_BIND_NONE)
		{
			dlock_bind_prepare(asked.path ? 1 : asked.count);
			mine()->has_bound = true;
		}
		answer = dlock_acquire_locks(&db, &asked, &granted);
		if (answer == DLOCK_ANSWER_GRANTED)
			remember(&db, &asked, &granted);
		dlock_session_close(&db);

		if (answer == DLOCK_ANSWER_REFUSED)
		{
			end_wait(&waiting, false);
			return DLOCK_TOKEN_NONE;
		}
		if (answer == DLOCK_ANSWER_SELF)
		{
			dlock_stat_count(DLOCK_STAT_DEADLOCK, 1);
			dlock_error_self_deadlock(&asked.owner, dlock_name_of_mode(asked.mode),
									  granted.own);
		}
		if (answer == DLOCK_ANSWER_GRANTED)
			break;

		end = wait_in_queue(&waiting);
		if (end == WAITING_TIMED_OUT)
		{
			dlock_stat_count(DLOCK_STAT_TIMEOUT, 1);
			end_wait(&waiting, false);
			return DLOCK_TOKEN_NONE;
		}
		if (end == WAITING_GRANTED)
		{
			granted = (DLockAcquireGranted) {.token = mine()->token, .lsn = mine()->lsn};
			remember(&db, &asked, &granted);
			dlock_queue_taken();
		}
	} while (end == WAITING_RETRY);

	end_wait(&waiting, true);
	dlock_flush_commit(granted.lsn, dlock_clock_now());
	return granted.token;
}

/* ---- convert ---- */

/* One attempt at a conversion, which may find this process in the queue. */
static DLockAcquireAnswer
convert_once(const DLockBytes *name, DLockToken token, DLockMode mode, bool may_wait,
			 DLockAcquireGranted *granted)
{
	DLockManagerTarget target = {.by = DLOCK_BY_TOKEN, .name = *name, .token = token};
	DLockAcquireAnswer answer;
	DLockDatabase db;

	dlock_session_open(&db);
	dlock_answer_prepare(1);
	target.hash = dlock_name_hash(db.shared->oid, name);
	answer = dlock_manager_convert(&db, &target, mode, may_wait, granted);
	if (answer == DLOCK_ANSWER_GRANTED)
	{
		dlock_answer_converted(target.hash, token, granted->before, granted->token, mode);
		dlock_bind_convert(target.hash, token, granted->token);
	}
	dlock_session_close(&db);
	return answer;
}

/*
 * Convert the lease with a token to another mode, waiting for that as
 * dlock_waiting_acquire() does.  Returns the token that it has then, or
 * DLOCK_TOKEN_NONE if the time is up, and the lease is as it was.
 */
DLockToken
dlock_waiting_convert(const DLockBytes *name, DLockToken token, DLockMode mode,
					  DLockTime wait)
{
	DLockWaiting waiting;
	DLockAcquireGranted granted;
	DLockAcquireAnswer answer = convert_once(name, token, mode, wait > 0, &granted);

	if (answer == DLOCK_ANSWER_QUEUED)
	{
		begin_waiting(&waiting, DLOCK_SPACE_CONVERT, name, mode, wait);

		/* It waits as a holder, which may have closed a circle. */
		waiting.check_at = 0;
		PG_ENSURE_ERROR_CLEANUP(abandon, PointerGetDatum(&waiting));
		{
			do
			{
				if (wait_armed(&waiting) == WAITING_TIMED_OUT)
				{
					dlock_stat_count(DLOCK_STAT_TIMEOUT, 1);
					answer = DLOCK_ANSWER_REFUSED;
				}
				else
					answer = convert_once(name, token, mode, true, &granted);
			} while (answer == DLOCK_ANSWER_QUEUED);
		}
		PG_END_ENSURE_ERROR_CLEANUP(abandon, PointerGetDatum(&waiting));
		end_wait(&waiting, answer == DLOCK_ANSWER_GRANTED);
	}
	if (answer == DLOCK_ANSWER_REFUSED)
		return DLOCK_TOKEN_NONE;

	dlock_flush_commit(granted.lsn, dlock_clock_now());
	return granted.token;
}

/* ---- watch ---- */

/* Who holds the lock now?  Its partition must be locked. */
static void
describe_holder(DLockSpaceLease *leader, DLockTime now, DLockWaitingHolder *holder)
{
	holder->token = DLOCK_TOKEN_NONE;
	if (leader == NULL)
		return;
	holder->token = leader->token;
	holder->mode = (DLockMode) leader->mode;
	holder->granted_at = leader->granted_at;
	holder->remaining = (leader->deadline == DLOCK_TIME_FOREVER) ?
		DLOCK_TIME_FOREVER : leader->deadline - now;
	holder->owner_len = leader->owner_len;
	holder->payload_len = leader->payload_len;
	dlock_space_copy_text(leader, 0, leader->owner_len, holder->owner);
	dlock_space_copy_text(leader, leader->owner_len, leader->payload_len, holder->payload);
}

/* Put a request to watch the lock into its queue; memory is prepared. */
static void
enqueue_watch(DLockDatabase *db, const DLockBytes *name, uint32 hash, DLockToken seen)
{
	DLockLeaseValue value = {.token = seen, .mode = DLOCK_MODE_NL, .name = *name};
	DLockMemoryRef place = DLOCK_MEMORY_NONE;
	DLockSpaceSet set = {{0}};

	dlock_space_set_add(&set, hash);
	(void) dlock_space_enqueue(db->shared->oid, hash, &value, DLOCK_SLOT_NONE,
							   dlock_wait_me(), DLOCK_SPACE_WATCH, &place);
	dlock_wait_enter(DLOCK_SPACE_WATCH, db->shared->oid, 0, &set, 1, place,
					 dlock_clock_now(), dlock_clock_wall());
}

/*
 * See who holds the lock; if that is still the one seen and "may_wait", go
 * into the queue and return true.
 */
static bool
watch_once(const DLockBytes *name, DLockToken seen, bool may_wait, DLockWaitingHolder *holder)
{
	DLockDatabase db;
	uint32		hash;
	DLockSpaceEntry *entry;
	DLockTime	now;
	bool		queued;

	dlock_session_open(&db);
	hash = dlock_name_hash(db.shared->oid, name);
	while (may_wait && !dlock_space_prepare(name->len, 0, 1))
		dlock_room_find(&db);

	dlock_space_lock(hash, LW_EXCLUSIVE);
	now = dlock_clock_now();
	entry = dlock_space_find(db.shared->oid, hash, name);
	describe_holder((entry != NULL) ? dlock_queue_leader(entry, now) : NULL, now, holder);
	queued = may_wait && holder->token == seen;
	if (queued)
		enqueue_watch(&db, name, hash, seen);
	dlock_space_unlock(hash);
	dlock_session_close(&db);
	return queued;
}

/*
 * Wait until the holder of a lock is another than the one with the token
 * "seen" (DLOCK_TOKEN_NONE: nobody), but no longer than "wait" microseconds.
 * In either case "holder" tells who it is then.
 */
void
dlock_waiting_watch(const DLockBytes *name, DLockToken seen, DLockTime wait,
					DLockWaitingHolder *holder)
{
	DLockWaiting waiting;

	begin_waiting(&waiting, DLOCK_SPACE_WATCH, name, DLOCK_MODE_NL, wait);
	while (watch_once(name, seen, dlock_clock_now() < waiting.deadline, holder))
		(void) wait_in_queue(&waiting);
}
