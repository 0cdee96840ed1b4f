/*-------------------------------------------------------------------------
 *
 * taskmark.c
 *	  Where a look for tasks begins.
 *
 * NOTES
 *	  A captured task leaves a dead entry at the front of each index that captures
 *	  look through, until vacuum removes it, which it cannot as long as an older
 *	  transaction is open.  A look that has had to read over many of them makes a
 *	  mark: the place of the first task that it found.  The next looks of this
 *	  session begin there, and move the mark on.
 *
 *	  Tasks come up before a mark: put with a lower priority, given back, timed
 *	  out, or of a transaction that commits late.  Nothing tells of them here, for two rules
 *	  are enough:
 *
 *	  - A mark counts for a short time from the look that made it, MARK_TIME at most.
 *	    Then a look begins at the front.
 *	  - A call that finds nothing has looked from the front: if it began at a mark, it
 *	    drops it and looks again.
 *
 *	  So no task is passed over for longer than MARK_TIME, nor while no other is there.
 *	  It may be captured that much later than one of a higher priority, and only
 *	  where every look would take long.
 *
 *	  A mark counts for TIMES_LOOK times as long as the look took that made it.  So a
 *	  session spends a small part of its time on looks from the front, and the faster
 *	  they are, the sooner it sees what has come up there.
 *
 *	  The mark of what is over is one for all states, though a capture that waits looks for
 *	  those that end in its own states.  Others are late by it, within these rules.
 *
 *	  Marks are memory of this process, and hints only: nothing has to drop one, be it a
 *	  rollback, or a queue that is dropped.
 *
 * IDENTIFICATION
 *	  src/session/taskmark.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/instrument.h"

#include "base/clock.h"
#include "session/taskmark.h"

/* How many marks a session has. */
#define MARKS			16

/* A look that touches more pages than this, and some for each task, makes a mark. */
#define CHEAP_PAGES		200
#define PAGES_OF_TASK	6

/* How long a mark counts: as many times as long as the look took, and at most. */
#define TIMES_LOOK		20
#define MARK_TIME		(5 * USECS_PER_SEC)

typedef struct DLockTaskMark
{
	int32		queue;
	uint64		state;
	DLockTaskPlace place;
	DLockTime	until;			/* as long as it counts */
} DLockTaskMark;

static DLockTaskMark marks[MARKS];

/* The look that goes on: when and after how many pages it began; does it begin at a mark? */
static DLockTime began;
static int64 pages_before;
static bool from_mark;

/* Has this call begun a look for tasks at a mark, or one for what is over? */
static bool skipped_tasks = false;
static bool skipped_ends = false;

/* Is this the mark of a state of a queue? */
static bool
is_of(const DLockTaskMark *mark, int32 queue, uint64 state)
{
	return mark->queue == queue && mark->state == state;
}

/* The mark of a state of a queue; or else the one that counts no longer, or the least long. */
static DLockTaskMark *
find(int32 queue, uint64 state)
{
	DLockTaskMark *least = &marks[0];

	for (int i = 0; i < MARKS; i++)
	{
		if (is_of(&marks[i], queue, state))
			return &marks[i];
		if (marks[i].until < least->until)
			least = &marks[i];
	}
	return least;
}

static int64
count_pages(void)
{
	return pgBufferUsage.shared_blks_hit + pgBufferUsage.shared_blks_read;
}

/* A capture begins. */
void
dlock_taskmark_call(void)
{
	skipped_tasks = skipped_ends = false;
}

/* A look begins: where?  The snapshot is taken after that. */
DLockTaskPlace
dlock_taskmark_begin(int32 queue, uint64 state)
{
	DLockTaskMark *mark = find(queue, state);

	began = dlock_clock_now();
	pages_before = count_pages();
	from_mark = is_of(mark, queue, state) && began < mark->until;
	if (from_mark)
	{
		*(state == DLOCK_TASKMARK_ENDS ? &skipped_ends : &skipped_tasks) = true;
		return mark->place;
	}
	return (DLockTaskPlace)
	{
		.priority = PG_INT32_MIN,.id = PG_INT64_MIN
	};
}

/*
 * The look has ended, which was to find up to so many tasks: nothing is before "first",
 * or if that is NULL, it found none and leaves no mark.
 */
void
dlock_taskmark_end(int32 queue, uint64 state, int count, const DLockTaskPlace *first)
{
	DLockTaskMark *mark = find(queue, state);
	DLockTime	took = dlock_clock_now() - began;

	if (first == NULL)
		return;
	if (from_mark)
	{
		mark->place = *first;
		return;
	}
	if (count_pages() - pages_before <= CHEAP_PAGES + (int64) PAGES_OF_TASK * count)
	{
		if (is_of(mark, queue, state))
			mark->until = 0;
		return;
	}
	mark->queue = queue;
	mark->state = state;
	mark->place = *first;
	mark->until = began + took + Min(took * TIMES_LOOK, MARK_TIME);
}

/*
 * The call has found nothing.  If it has begun at marks, drop those of the queue; then it must
 * look again, for "tasks" or only for what is over.
 */
bool
dlock_taskmark_drop(int32 queue, bool *tasks)
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
