/*-------------------------------------------------------------------------
 *
 * capture.c
 *	  How captures look for tasks: where a look begins, and how one that finds
 *	  nothing waits.
 *
 * NOTES
 *	  A capture that finds no task can wait for one.  Its process enters a list
 *	  in shared memory, looks once more, and sleeps on its latch (session/wait.c).
 *	  A transaction that makes tasks ready notes their queue and state, and when it
 *	  has ended calls as many waiting processes as there are tasks: it takes them
 *	  off the list and sets their latches.  A process that was called enters the
 *	  list again and looks.
 *
 *	  No call is lost.  A process enters the list before it takes the snapshot of
 *	  its look, and a transaction reads the list after its end can be seen.  So
 *	  either the look sees the task, or the transaction finds the process.  A process that
 *	  was called and leaves, and has neither found nothing nor taken a task of the state
 *	  it was called for, passes the call on.
 *
 *	  A look skips rows that are locked.  So a transaction that locks a row that
 *	  is ready calls for it, too, when it ends without taking it: a capture
 *	  that is rolled back, or a call that only found the task not to be captured.
 *	  A look that fails may have locked any row of its queue.
 *
 *	  Of the processes that wait for the same, the one that has been in the list
 *	  for the longest time leads: it alone has a timer for the next capture or
 *	  delay that ends.  The reaper comes at that time, too, and what it commits
 *	  calls processes like any other transaction; but nothing depends on it.  Calls
 *	  begin with the latest, so the timer rarely has to be handed on.
 *
 *	  What nobody tells of, such as rows that logical replication has written, the
 *	  leading process finds within LOOK_INTERVAL.  COMMIT PREPARED and ROLLBACK PREPARED
 *	  call everyone in the database, as the notes of their transactions are gone.
 *
 *	  Shared memory has a place for each process and a fixed number of lists,
 *	  each with a lock, by the hash of database and queue.  So there is nothing to
 *	  fill up, and nothing that outlives a crash.  The lock of a list is held
 *	  together with no other.
 *
 *	  Where a look begins.  A captured task leaves a dead entry at the front of each
 *	  index that captures look through, until vacuum removes it, which it cannot as
 *	  long as an older transaction is open.  A look that has had to read over many of
 *	  them makes a mark: the place of the first task that it found.  The next looks of
 *	  this session begin there, and move the mark on.
 *
 *	  Tasks come up before a mark: put with a lower priority, given back, timed out, or
 *	  of a transaction that commits late.  Nothing tells of them here, for two rules are
 *	  enough:
 *
 *	  - A mark counts for a short time from the look that made it, MARK_TIME at most.
 *		Then a look begins at the front.
 *	  - A call that finds nothing has looked from the front: if it began at a mark, it
 *		drops it and looks again.
 *
 *	  So no task is passed over for longer than MARK_TIME, nor while no other is there.
 *	  It may be captured that much later than one of a higher priority, and only where
 *	  every look would take long.
 *
 *	  A mark counts for TIMES_LOOK times as long as the look took that made it.  So a
 *	  session spends a small part of its time on looks from the front, and the faster
 *	  they are, the sooner it sees what has come up there.
 *
 *	  The mark of what is over is one for all states, though a capture that waits looks
 *	  for those that end in its own states.  Others are late by it, within these rules.
 *
 *	  Marks are memory of this process, and hints only: nothing has to drop one, be it a
 *	  rollback, or a queue that is dropped.
 *
 * IDENTIFICATION
 *	  src/session/capture.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "executor/instrument.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "base/clock.h"
#include "base/compat.h"
#include "lock/queue.h"
#include "session/capture.h"

/* Lists; a power of two. */
#define LISTS			64

/* What a transaction can note; if there is more, it calls all processes of the database. */
#define NOTES			64

/* How often a process that leads looks if nothing is due. */
#define LOOK_INTERVAL	(60 * USECS_PER_SEC)

/*
 * A process that waits, or is about to.  Protected by the lock of the list of its
 * queue; while it is on none, only the process itself changes it.
 */
typedef struct DLockCaptureShared
{
	bool		listed;
	bool		called;			/* and has not looked since */
	Oid			database;
	int32		queue;
	uint64		called_for;		/* which state */
	DLockTime	look_at;		/* when to look: as of the last look, or what
								 * has been told since */
	dlist_node	node;			/* in the list */
	int			count;			/* of states */
	uint64		states[DLOCK_CAPTURE_STATES];	/* their hashes */
} DLockCaptureShared;

static DLockCaptureShared *places = NULL;
static dlist_head *lists = NULL;	/* the latest first */
static LWLockPadded *locks = NULL;

/* It follows a call by that look: for which state.  It owes that a task of it is taken. */
static bool owes = false;
static uint64 owes_for;

/* The level of the transaction in which this process waits; zero if it does not. */
static int	wait_level = 0;

static DLockCaptureShared *
mine(void)
{
	return &places[MyProcNumber];
}

/* The number of the list for a queue. */
static int
list_of(Oid database, int32 queue)
{
	return (int) (hash_combine(murmurhash32(database), murmurhash32((uint32) queue)) & (LISTS - 1));
}

static void
wake(const DLockCaptureShared *place)
{
	SetLatch(&GetPGProcByNumber(place - places)->procLatch);
}

/* ---- lists ---- */

/* Of the processes in a list that wait for the same as this one, the one that leads, or NULL. */
static DLockCaptureShared *
find_leader(int list, const DLockCaptureShared *place)
{
	dlist_iter	iter;

	Assert(LWLockHeldByMe(&locks[list].lock));
	dlist_reverse_foreach(iter, &lists[list])
	{
		DLockCaptureShared *other = dlist_container(DLockCaptureShared, node, iter.cur);

		if (other->database == place->database && other->queue == place->queue &&
			other->count == place->count &&
			memcmp(other->states, place->states, place->count * sizeof(uint64)) == 0)
			return other;
	}
	return NULL;
}

/* Take a process off its list.  If it leads, the next one has the timer from now on. */
static void
take_off(int list, DLockCaptureShared *place)
{
	bool		leads = find_leader(list, place) == place;
	DLockCaptureShared *heir;

	Assert(LWLockHeldByMeInMode(&locks[list].lock, LW_EXCLUSIVE));
	dlist_delete(&place->node);
	place->listed = false;
	heir = leads ? find_leader(list, place) : NULL;
	if (heir != NULL)
		wake(heir);
}

/* ---- calling ---- */

/* Does a process wait for a state of a queue?  Queue 0 stands for all. */
static bool
waits_for(const DLockCaptureShared *place, Oid database, int32 queue, uint64 state)
{
	if (place->database != database || (queue != 0 && place->queue != queue))
		return false;
	if (state == DLOCK_CAPTURE_ANY)
		return true;
	for (int i = 0; i < place->count; i++)
	{
		if (place->states[i] == state)
			return true;
	}
	return false;
}

/*
 * Call up to so many processes of a list, and tell the others that a capture or a delay
 * ends then.  To be called once others can see what this is about: a process that
 * enters later sees it.  Cannot fail.
 */
static void
call_list(int list, Oid database, int32 queue, uint64 state, int64 count, DLockTime ends)
{
	dlist_mutable_iter iter;

	pg_memory_barrier();
	if (dlist_is_empty(&lists[list]))
		return;
	LWLockAcquire(&locks[list].lock, LW_EXCLUSIVE);
	dlist_foreach_modify(iter, &lists[list])
	{
		DLockCaptureShared *place = dlist_container(DLockCaptureShared, node, iter.cur);

		if (count == 0 && ends == DLOCK_TIME_FOREVER)
			break;
		if (!waits_for(place, database, queue, state))
			continue;
		if (count > 0)
		{
			count--;
			take_off(list, place);
			place->called = true;
			place->called_for = state;
			wake(place);
		}
		else if (ends < place->look_at)
		{
			place->look_at = ends;
			if (find_leader(list, place) == place)
				wake(place);
		}
	}
	LWLockRelease(&locks[list].lock);
}

/*
 * Have all processes of a database that wait look, which ends their waits if the
 * extension is gone.  Cannot fail.
 */
void
dlock_capture_call_all(Oid database)
{
	for (int i = 0; lists != NULL && i < LISTS; i++)
		call_list(i, database, 0, DLOCK_CAPTURE_ANY, PG_INT32_MAX, DLOCK_TIME_FOREVER);
}

/* ---- what a transaction tells when it ends ---- */

typedef struct DLockCaptureNote
{
	SubTransactionId subxact;
	int32		queue;
	uint64		state;
	DLockCaptureWhen when;
	int64		count;			/* of tasks */
	DLockTime	ends;			/* the first of captures and delays */
} DLockCaptureNote;

static DLockCaptureNote notes[NOTES];
static int	note_count = 0;

/* Are there more than fit? */
static bool overflow = false;

/* The earliest end of captures and delays of this transaction, and the database. */
static DLockTime first_end = DLOCK_TIME_FOREVER;
static DLockDatabaseShared *own_database = NULL;

/* Add a note, or join it with one that is there. */
static void
add_note(const DLockCaptureNote *note)
{
	for (int i = note_count - 1; i >= 0; i--)
	{
		DLockCaptureNote *other = &notes[i];

		if (other->queue != note->queue || other->state != note->state ||
			other->subxact != note->subxact || other->when != note->when)
			continue;
		other->count += note->count;
		other->ends = Min(other->ends, note->ends);
		return;
	}
	if (note_count < NOTES)
		notes[note_count++] = *note;
	else
		overflow = true;
}

/*
 * A transaction or subtransaction has ended: tell what it noted for that.  One that is rolled
 * back without an id has locked no row.
 */
static void
tell(SubTransactionId subxact, DLockCaptureWhen event)
{
	bool		has_id = TransactionIdIsValid(GetCurrentTransactionIdIfAny());
	int			kept = 0;

	for (int i = 0; i < note_count; i++)
	{
		DLockCaptureNote note = notes[i];

		if (subxact != InvalidSubTransactionId && note.subxact != subxact)
			notes[kept++] = note;
		else if ((note.when & event) != 0 && (event == DLOCK_CAPTURE_COMMITTED || has_id))
			call_list(list_of(MyDatabaseId, note.queue), MyDatabaseId, note.queue, note.state,
					  note.count, note.ends);
	}
	note_count = kept;
	if (overflow && (event == DLOCK_CAPTURE_COMMITTED || has_id))
		dlock_capture_call_all(MyDatabaseId);
}

static void
at_end_of_transaction(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	if (wait_level > 0)
		dlock_capture_leave();
	if (event != XACT_EVENT_PREPARE)
		tell(InvalidSubTransactionId,
			 (event == XACT_EVENT_COMMIT) ? DLOCK_CAPTURE_COMMITTED : DLOCK_CAPTURE_ABORTED);
	note_count = 0;
	overflow = false;
	first_end = DLOCK_TIME_FOREVER;
}

static void
at_end_of_subtransaction(SubXactEvent event, SubTransactionId subxact, SubTransactionId parent,
						 void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		if (GetCurrentTransactionNestLevel() <= wait_level)
			dlock_capture_leave();
		tell(subxact, DLOCK_CAPTURE_ABORTED);
	}
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		int			count = note_count;

		note_count = 0;
		for (int i = 0; i < count; i++)
		{
			DLockCaptureNote note = notes[i];

			if (note.subxact == subxact)
				note.subxact = parent;
			add_note(&note);
		}
	}
}

/* What stands for a state here. */
uint64
dlock_capture_state(const text *state)
{
	uint64		hash = hash_bytes_extended((const unsigned char *) VARDATA_ANY(state),
										   VARSIZE_ANY_EXHDR(state), 0);

	return (hash == DLOCK_CAPTURE_ANY) ? 1 : hash;
}

/*
 * When this transaction has ended so, call as many processes that wait for this state
 * of a queue.
 */
void
dlock_capture_note(int32 queue, uint64 state, int count, DLockCaptureWhen when)
{
	DLockCaptureNote note = {
		.subxact = GetCurrentSubTransactionId(),.queue = queue,.state = state,.when = when,
		.count = count,.ends = DLOCK_TIME_FOREVER
	};

	add_note(&note);
}

/*
 * Once this transaction has committed, a capture or a delay of a queue ends then: tell
 * the processes that wait, and the reaper.
 */
void
dlock_capture_note_end(DLockDatabaseShared *database, int32 queue, DLockTime ends)
{
	DLockCaptureNote note = {
		.subxact = GetCurrentSubTransactionId(),.queue = queue,.when = DLOCK_CAPTURE_COMMITTED,
		.ends = ends
	};

	add_note(&note);
	own_database = database;
	first_end = Min(first_end, ends);
}

/* ---- waiting ---- */

/*
 * This process is about to look for tasks of a queue in these states, in a subtransaction of
 * the one in which it waits: enter the list, if it is not there.  The snapshot of the look
 * must be taken after that.  An error, or the exit, takes it off with that transaction.
 */
void
dlock_capture_enlist(int32 queue, const uint64 *states, int count)
{
	DLockCaptureShared *place = mine();
	int			list = list_of(MyDatabaseId, queue);

	Assert(count > 0 && count <= DLOCK_CAPTURE_STATES);

	/*
	 * The queue may have been dropped, and another created in its place; or
	 * its initial state is another now.
	 */
	if (place->queue != queue || place->count != count ||
		memcmp(place->states, states, count * sizeof(uint64)) != 0)
		dlock_capture_leave();
	LWLockAcquire(&locks[list].lock, LW_EXCLUSIVE);
	if (!place->listed)
	{
		place->database = MyDatabaseId;
		place->queue = queue;
		place->count = count;
		memcpy(place->states, states, count * sizeof(uint64));
		owes = place->called;
		owes_for = place->called_for;
		place->called = false;
		dlist_push_head(&lists[list], &place->node);
		place->listed = true;
	}
	place->look_at = DLOCK_TIME_FOREVER;
	LWLockRelease(&locks[list].lock);
	wait_level = GetCurrentTransactionNestLevel() - 1;
}

/* The look found nothing; at this time it may find something. */
void
dlock_capture_plan(DLockTime next)
{
	DLockCaptureShared *place = mine();
	int			list = list_of(place->database, place->queue);

	next = Min(next, dlock_clock_now() + LOOK_INTERVAL);
	LWLockAcquire(&locks[list].lock, LW_EXCLUSIVE);
	place->look_at = Min(place->look_at, next);
	LWLockRelease(&locks[list].lock);
	owes = false;
}

/*
 * Leave the list.  A call that this process has not followed is passed on.  May be
 * called at any time.  Cannot fail.
 */
void
dlock_capture_leave(void)
{
	DLockCaptureShared *place = mine();
	int			list = list_of(place->database, place->queue);

	wait_level = 0;
	LWLockAcquire(&locks[list].lock, LW_EXCLUSIVE);
	if (place->listed)
		take_off(list, place);
	LWLockRelease(&locks[list].lock);
	if (owes)
		call_list(list, place->database, place->queue, owes_for, 1, DLOCK_TIME_FOREVER);
	if (place->called)
		call_list(list, place->database, place->queue, place->called_for, 1, DLOCK_TIME_FOREVER);
	owes = place->called = false;
}

/* Is it time to look?  If not, "until" is when it is. */
bool
dlock_capture_must_look(DLockTime now, DLockTime *until)
{
	DLockCaptureShared *place = mine();
	int			list = list_of(place->database, place->queue);
	bool		called;

	LWLockAcquire(&locks[list].lock, LW_SHARED);
	called = place->called;
	*until = (find_leader(list, place) == place) ? place->look_at : DLOCK_TIME_FOREVER;
	LWLockRelease(&locks[list].lock);
	return called || *until <= now;
}

/* ---- where a look begins ---- */

/* How many marks a session has. */
#define MARKS			16

/* A look that touches more pages than this, and some for each task, makes a mark. */
#define CHEAP_PAGES		200
#define PAGES_OF_TASK	6

/* How long a mark counts: as many times as long as the look took, and at most. */
#define TIMES_LOOK		20
#define MARK_TIME		(5 * USECS_PER_SEC)

typedef struct DLockCaptureMark
{
	int32		queue;
	uint64		state;
	DLockCapturePlace place;
	DLockTime	until;			/* as long as it counts */
} DLockCaptureMark;

static DLockCaptureMark marks[MARKS];

/* The look that goes on: its mark, when it began, and after how many pages and notes. */
static DLockCaptureMark *mark = marks;
static DLockTime began;
static int64 pages_before;
static int	notes_before;
static bool overflow_before;

/* Has this call begun a look for tasks at a mark, or one for what is over? */
static bool skipped_tasks = false;
static bool skipped_ends = false;

/* The mark of a state of a queue; if there is none, a new one in place of what counts least long. */
static DLockCaptureMark *
find_mark(int32 queue, uint64 state)
{
	DLockCaptureMark *least = &marks[0];

	for (int i = 0; i < MARKS; i++)
	{
		if (marks[i].queue == queue && marks[i].state == state)
			return &marks[i];
		if (marks[i].until < least->until)
			least = &marks[i];
	}
	*least = (DLockCaptureMark)
	{
		.queue = queue,.state = state
	};
	return least;
}

static int64
count_pages(void)
{
	return pgBufferUsage.shared_blks_hit + pgBufferUsage.shared_blks_read;
}

/* A capture begins. */
void
dlock_capture_begin(void)
{
	skipped_tasks = skipped_ends = false;
}

/*
 * A look begins: where?  The snapshot is taken after that.  It may lock rows, which others
 * then skip: if it fails, they look again.
 */
DLockCapturePlace
dlock_capture_look(int32 queue, uint64 state)
{
	const DLockCapturePlace front = {PG_INT32_MIN, PG_INT64_MIN, PG_INT64_MIN};

	mark = find_mark(queue, state);
	began = dlock_clock_now();
	pages_before = count_pages();
	notes_before = note_count;
	overflow_before = overflow;
	dlock_capture_note(queue, DLOCK_CAPTURE_ANY, PG_INT32_MAX, DLOCK_CAPTURE_ABORTED);
	if (began >= mark->until)
		return front;
	*(state == DLOCK_CAPTURE_ENDS ? &skipped_ends : &skipped_tasks) = true;
	return mark->place;
}

/*
 * The look has ended.  It was to find up to "count" tasks, and has locked so many.  Nothing is
 * before "first"; NULL if it found no task, or something that is over.
 */
void
dlock_capture_looked(int count, int found, const DLockCapturePlace *first)
{
	DLockTime	took = dlock_clock_now() - began;

	note_count = notes_before;
	overflow = overflow_before;
	if (found > 0)
	{
		/* If they are lost again, the transaction tells. */
		dlock_capture_note(mark->queue, mark->state, found, DLOCK_CAPTURE_ABORTED);
		if (owes_for == mark->state || owes_for == DLOCK_CAPTURE_ANY)
			owes = false;
	}
	if (first == NULL)
		return;
	mark->place = *first;
	if (began >= mark->until &&
		count_pages() - pages_before > CHEAP_PAGES + (int64) PAGES_OF_TASK * count)
		mark->until = began + took + Min(took * TIMES_LOOK, MARK_TIME);
}

/*
 * The call has found nothing.  If it has begun at marks, drop those of the queue; then it must
 * look again, for "tasks" or only for what is over.
 */
bool
dlock_capture_look_again(int32 queue, bool *tasks)
{
	bool		dropped = skipped_tasks || skipped_ends;

	*tasks = skipped_tasks;
	skipped_tasks = skipped_ends = false;
	for (int i = 0; dropped && i < MARKS; i++)
	{
		if (marks[i].queue == queue)
			marks[i].until = 0;
	}
	return dropped;
}

/* ---- set-up ---- */

void
dlock_capture_request(void)
{
	RegisterXactCallback(at_end_of_transaction, NULL);
	RegisterSubXactCallback(at_end_of_subtransaction, NULL);
	RequestAddinShmemSpace(mul_size(sizeof(DLockCaptureShared), MaxBackends));
	RequestAddinShmemSpace(sizeof(dlist_head) * LISTS);
	RequestNamedLWLockTranche("dlock_capture", LISTS);
}

/* Create the places and the lists; with AddinShmemInitLock held. */
void
dlock_capture_startup(void)
{
	Size		size = mul_size(sizeof(DLockCaptureShared), MaxBackends);
	bool		found;

	places = ShmemInitStruct("dlock waits for tasks", size, &found);
	if (!found)
		memset(places, 0, size);
	lists = ShmemInitStruct("dlock lists of waits for tasks", sizeof(dlist_head) * LISTS, &found);
	for (int i = 0; !found && i < LISTS; i++)
		dlist_init(&lists[i]);
	locks = GetNamedLWLockTranche("dlock_capture");
}
