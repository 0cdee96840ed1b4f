/*-------------------------------------------------------------------------
 *
 * task.c
 *	  Task queues as state machines, with captures under a lease.
 *
 * NOTES
 *	  A task is a row.  Its capture is not a lease in memory, but a part of that
 *	  row: the token, the owner, the deadline.  So the state and the capture are
 *	  committed or rolled back as one, and a standby or a dump has both.  Of the
 *	  leases only the authority for tokens is used.
 *
 *	  A capture is live if its token is the one in the row, the row is captured
 *	  ("due" is not null), and the deadline is to come.  Every change locks the
 *	  row first, and reads the clock after that, as it may have waited.
 *
 *	  The token is taken after the row is locked.  So of two captures of one
 *	  task the later has the larger, as of two leases of one lock.  A rollback
 *	  skips tokens, and that is all.
 *
 *	  Nobody changes what a state is by looking at it: what a reader sees is what
 *	  the table holds, also of a capture that has timed out and that nobody has
 *	  moved yet (worker/tasksweep.c).
 *
 *	  Locks: first a lock on the queue, shared by all who use it and exclusive for
 *	  those who drop it, then rows of tasks.  A capture
 *	  skips rows that are locked, so it waits for nobody.
 *
 * IDENTIFICATION
 *	  src/pattern/task.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/itemptr.h"
#include "utils/array.h"

#include "base/clock.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/settings.h"
#include "base/value.h"
#include "pattern/task.h"
#include "pattern/taskerror.h"
#include "pattern/taskqueue.h"
#include "session/tasksql.h"
#include "store/token.h"
#include "worker/tasksweep.h"

/* A task that is locked. */
typedef struct DLockTaskRow
{
	DLockBytes	key;
	ItemPointerData tid;
	DLockBytes	state;
	int			attempts;
	DLockToken	token;
	bool		captured;
	TimestampTz until;			/* on the steady clock */
	DLockTime	ttl;
	char	   *owner;
	DLockBytes	from;
	DLockBytes	on_timeout;
	bool		finished;
} DLockTaskRow;

/* What becomes of it. */
typedef struct DLockTaskMove
{
	const DLockBytes *state;
	int			attempts;
	bool		captured;
	bool		finished;
	DLockBytes	error;
	DLockTime	delay;			/* until it can be captured */
} DLockTaskMove;

/* ---- one task ---- */

static void
check_task_transition(const DLockTaskQueue *queue, const DLockTaskRow *row, const DLockBytes *to)
{
	if (!dlock_name_equal(&row->state, to))
		dlock_taskqueue_check_transition(queue, &row->state, to,
						 psprintf("Task \"%.*s\" is in the first of these states.",
								  row->key.len, row->key.data));
}

/*
 * Put a task into a queue, in its initial state if none is given; false if it is
 * there already, and then nothing about it changes.
 */
bool
dlock_task_put(const DLockTaskNew *task)
{
	const DLockBytes *state = &task->state;
	DLockTaskSql sql;
	DLockTaskQueue queue;
	Datum		values[11];
	char		nulls[] = "           ";
	DLockTime	ends;
	bool		finished;
	bool		is_new;

	dlock_taskqueue_open(&sql, "dlock_task_put", &task->queue, AccessShareLock, &queue);
	if (state->len == 0)
		state = &queue.initial;
	else
		dlock_taskqueue_check_state(&queue, state);
	finished = dlock_name_equal(state, &queue.done);
	if (finished && task->delay > 0)
		dlock_taskerror_done_state(state, "A task that is finished cannot be put off.");
	values[0] = Int32GetDatum(queue.id);
	values[1] = dlock_value_text(task->key);
	values[2] = dlock_value_text(*state);
	values[3] = Int32GetDatum(task->priority);
	values[4] = task->payload;
	if (task->no_payload)
		nulls[4] = 'n';
	values[5] = BoolGetDatum(finished);
	values[6] = dlock_value_interval(task->delay);
	ends = dlock_tasksql_end(task->delay, values + 7);
	if (task->delay == 0)
		memset(nulls + 6, 'n', 5);
	is_new = dlock_tasksql_run(DLOCK_TASK_PUT, values, nulls, 0) > 0;
	if (is_new && task->delay > 0)
		dlock_tasksweep_note(sql.db.shared, ends);
	dlock_tasksql_close(&sql);
	return is_new;
}

/*
 * When a capture or a delay ends, by our steady clock.
 *
 * On the boot that wrote it the monotonic clock still tells, also on a standby and
 * after a restart.  Otherwise the wall clocks are compared as they are now, and given
 * dlock.max_clock_skew in favour of the capturer.
 */
TimestampTz
dlock_task_until(TimestampTz deadline, uint32 boot, DLockTime ends)
{
	if (boot != 0 && boot == dlock_clock_boot())
		return ends + dlock_clock_steady_offset();
	return deadline + (DLockTime) dlock_settings_max_clock_skew_ms * 1000 +
		(dlock_clock_steady() - dlock_clock_wall());
}

/* Is the capture of this task over, though its row does not say so? */
static bool
is_timed_out(const DLockTaskRow *row)
{
	return row->captured && row->until <= dlock_clock_steady();
}

/* Find a task and lock it. */
static void
lock_task(const DLockTaskQueue *queue, const DLockBytes *key, DLockTaskRow *row)
{
	Datum		values[] = {Int32GetDatum(queue->id), dlock_value_text(*key)};
	Datum		value;
	bool		isnull;

	if (dlock_tasksql_run(DLOCK_TASK_LOCK, values, NULL, 0) == 0)
		dlock_taskerror_no_task(&queue->name, key);
	memset(row, 0, sizeof(*row));
	row->key = *key;
	row->tid = *(ItemPointer) DatumGetPointer(dlock_tasksql_value(0, 1, &isnull));
	row->state = dlock_tasksql_bytes(dlock_tasksql_cstring(0, 2));
	row->attempts = DatumGetInt32(dlock_tasksql_value(0, 3, &isnull));
	value = dlock_tasksql_value(0, 4, &isnull);
	row->token = isnull ? DLOCK_TOKEN_NONE : DatumGetInt64(value);
	row->captured = DatumGetBool(dlock_tasksql_value(0, 5, &isnull));
	value = dlock_tasksql_value(0, 6, &isnull);
	row->until = isnull ? 0 : DatumGetTimestampTz(value);
	value = dlock_tasksql_value(0, 7, &isnull);
	row->ttl = isnull ? 0 : DatumGetIntervalP(value)->time;
	row->owner = dlock_tasksql_cstring(0, 8);
	row->from = dlock_tasksql_bytes(dlock_tasksql_cstring(0, 9));
	row->on_timeout = dlock_tasksql_bytes(dlock_tasksql_cstring(0, 10));
	row->finished = DatumGetBool(dlock_tasksql_value(0, 11, &isnull));
}

/* Does this token stand for a live capture of the task? */
static bool
is_held(const DLockTaskRow *row, DLockToken token)
{
	return row->captured && row->token == token && !is_timed_out(row);
}

/* Throw LK002 unless the target's token stands for a live capture. */
static void
check_held(const DLockTaskTarget *target, const DLockTaskRow *row)
{
	const char *detail;

	if (is_held(row, target->token))
		return;
	if (row->token < target->token)
		detail = "The task was not captured with this token, or that was rolled back.";
	else if (row->token > target->token)
		detail = psprintf("The task has been captured again since, with token %lld.",
						  (long long) row->token);
	else if (row->captured)
		detail = "It has timed out.";
	else
		detail = psprintf("It has ended; the task is in state \"%.*s\".",
						  row->state.len, row->state.data);
	dlock_taskerror_lost(&target->queue, &target->key, target->token, detail);
}

/*
 * Write the state that a locked task goes to, and what that ends.  The owner
 * stays with a capture that goes on, or that has finished the task.
 */
static void
move_task(DLockTaskSql *sql, const DLockTaskRow *row, const DLockTaskMove *move)
{
	DLockTime	ends;
	Datum		values[12] = {
		PointerGetDatum(&row->tid),
		dlock_value_text(*move->state),
		Int32GetDatum(move->attempts),
		BoolGetDatum(move->captured && !move->finished),
		BoolGetDatum(move->finished),
		(move->error.len > 0) ? dlock_value_text(move->error) : (Datum) 0,
		BoolGetDatum(row->captured && (move->captured || move->finished)),
		dlock_value_interval(move->delay)
	};
	char		nulls[] = "            ";

	ends = dlock_tasksql_end(move->delay, values + 8);
	if (move->error.len == 0)
		nulls[5] = 'n';
	if (move->delay == 0)
		memset(nulls + 7, 'n', 5);
	if (dlock_tasksql_run(DLOCK_TASK_MOVE, values, nulls, 0) != 1)
		elog(ERROR, "task \"%.*s\" was locked but not moved", row->key.len, row->key.data);
	if (move->delay > 0)
		dlock_tasksweep_note(sql->db.shared, ends);
}

/* Open the queue of a target and lock the task. */
static void
open_target(DLockTaskSql *sql, const DLockTaskTarget *target, DLockTaskQueue *queue,
			DLockTaskRow *row)
{
	dlock_taskqueue_open(sql, target->function, &target->queue, AccessShareLock, queue);
	lock_task(queue, &target->key, row);
}

/* A copy that outlives the tables being open. */
static char *
copy_out(MemoryContext context, const DLockBytes *bytes)
{
	return MemoryContextStrdup(context, pnstrdup(bytes->data, bytes->len));
}

/*
 * Set the state of a task; returns the one before.  With a token, in a capture
 * that goes on, unless the state is the one of finished tasks.
 */
char *
dlock_task_set(const DLockTaskTarget *target, const DLockBytes *state)
{
	MemoryContext context = CurrentMemoryContext;
	DLockTaskSql sql;
	DLockTaskQueue queue;
	DLockTaskRow row;
	bool		finished;
	bool		anew;
	char	   *before;

	open_target(&sql, target, &queue, &row);
	if (target->token != DLOCK_TOKEN_NONE)
		check_held(target, &row);
	else if (is_timed_out(&row))
	{
		DLockTaskMove move = {
			.state = &row.on_timeout,
			.attempts = row.attempts,
			.error = dlock_tasksql_bytes("timed out")
		};

		move_task(&sql, &row, &move);
		lock_task(&queue, &target->key, &row);
	}
	else if (row.captured)
		dlock_taskerror_captured(&queue.name, &row.key, row.owner);

	dlock_taskqueue_check_state(&queue, state);
	check_task_transition(&queue, &row, state);
	finished = dlock_name_equal(state, &queue.done);
	if (row.captured && !finished && !dlock_name_equal(&row.on_timeout, &queue.parked) &&
		!dlock_name_equal(&row.on_timeout, state))
		dlock_taskqueue_check_transition(&queue, state, &row.on_timeout,
						 "There the task would go when its capture times out.");

	/* Who takes a task up again that was given up, or was done, means it to be tried. */
	if (row.finished)
		anew = !finished;
	else
		anew = !row.captured && !dlock_name_equal(&row.state, state) &&
			dlock_name_equal(&row.state, &queue.parked);
	before = copy_out(context, &row.state);
	move_task(&sql, &row, &(DLockTaskMove) {
		.state = state,
		.attempts = anew ? 0 : row.attempts,
		.captured = row.captured,
		.finished = finished
	});
	dlock_tasksql_close(&sql);
	return before;
}

/* Extend a capture, by its own ttl if "ttl" is zero; false if it is not held. */
bool
dlock_task_extend(const DLockTaskTarget *target, DLockTime ttl)
{
	DLockTaskSql sql;
	DLockTaskQueue queue;
	DLockTaskRow row;
	bool		held;

	open_target(&sql, target, &queue, &row);
	held = is_held(&row, target->token);
	if (held)
	{
		Datum		values[6];
		DLockTime	ends;

		/*
		 * It is never further away than its ttl, so without another one this does
		 * not bring it nearer.
		 */
		if (ttl == 0)
			ttl = row.ttl;
		values[0] = PointerGetDatum(&row.tid);
		values[1] = dlock_value_interval(ttl);
		ends = dlock_tasksql_end(ttl, values + 2);
		if (dlock_tasksql_run(DLOCK_TASK_EXTEND, values, NULL, 0) != 1)
			elog(ERROR, "task \"%.*s\" was locked but not extended", row.key.len, row.key.data);
		dlock_tasksweep_note(sql.db.shared, ends);
	}
	dlock_tasksql_close(&sql);
	return held;
}

/*
 * Finish a task, in the queue's state for that if "state" has no bytes; false
 * if this token has done so before.
 */
bool
dlock_task_finish(const DLockTaskTarget *target, const DLockBytes *state)
{
	DLockTaskSql sql;
	DLockTaskQueue queue;
	DLockTaskRow row;
	bool		again;

	open_target(&sql, target, &queue, &row);
	if (state->len == 0)
		state = &queue.done;

	/* Without an owner somebody else has finished it, after this capture was lost. */
	again = row.finished && row.owner != NULL && row.token == target->token &&
		dlock_name_equal(&row.state, state);
	if (!again)
	{
		check_held(target, &row);
		dlock_taskqueue_check_state(&queue, state);
		if (dlock_name_equal(state, &queue.initial) || dlock_name_equal(state, &queue.parked))
			dlock_taskerror_unfinished_state(state);
		check_task_transition(&queue, &row, state);
		move_task(&sql, &row, &(DLockTaskMove) {
			.state = state,
			.attempts = row.attempts,
			.finished = true
		});
	}
	dlock_tasksql_close(&sql);
	return !again;
}

/* Cut a message off where it is too long, but not within a character. */
static DLockBytes
clip(const DLockBytes *message)
{
	return (DLockBytes)
	{
		message->data, pg_mbcliplen(message->data, message->len, DLOCK_TASK_ERROR_MAX)
	};
}

/*
 * End a capture without success; returns the state that the task is in then:
 * "state", or without bytes the one that it was captured from, or the one of
 * parked tasks if all attempts are used up.  Unless it is that one, the task
 * cannot be captured before "delay" is over.
 */
char *
dlock_task_fail(const DLockTaskTarget *target, const DLockBytes *error, const DLockBytes *state,
				DLockTime delay)
{
	MemoryContext context = CurrentMemoryContext;
	DLockTaskSql sql;
	DLockTaskQueue queue;
	DLockTaskRow row;
	char	   *after;

	open_target(&sql, target, &queue, &row);
	check_held(target, &row);
	if (queue.max_attempts > 0 && row.attempts >= queue.max_attempts)
	{
		state = &queue.parked;
		delay = 0;
	}
	else
	{
		if (state->len == 0)
			state = &row.from;
		dlock_taskqueue_check_state(&queue, state);
		if (dlock_name_equal(state, &queue.done))
			dlock_taskerror_done_state(state, "A capture that fails must not end there.");
		check_task_transition(&queue, &row, state);
	}
	after = copy_out(context, state);
	move_task(&sql, &row, &(DLockTaskMove) {
		.state = state,
		.attempts = row.attempts,
		.error = clip(error),
		.delay = delay
	});
	dlock_tasksql_close(&sql);
	return after;
}

/*
 * End a capture and hand the task on, to "state"; or without bytes hand it back
 * to the state that it was captured from, as if the capture had not been.
 * It cannot be captured before "delay" is over.  Returns the state that it is in
 * then.
 */
char *
dlock_task_release(const DLockTaskTarget *target, const DLockBytes *state, DLockTime delay)
{
	MemoryContext context = CurrentMemoryContext;
	DLockTaskSql sql;
	DLockTaskQueue queue;
	DLockTaskRow row;
	int			attempts;
	char	   *after;

	open_target(&sql, target, &queue, &row);
	check_held(target, &row);
	if (state->len == 0)
		state = &row.from;
	dlock_taskqueue_check_state(&queue, state);
	if (dlock_name_equal(state, &queue.done))
		dlock_taskerror_done_state(state, "A capture is released there only by dlock_task_finish().");
	check_task_transition(&queue, &row, state);

	/* What comes next is tried anew. */
	attempts = dlock_name_equal(state, &row.from) ? Max(0, row.attempts - 1) : 0;
	after = copy_out(context, state);
	move_task(&sql, &row, &(DLockTaskMove) {
		.state = state,
		.attempts = attempts,
		.delay = delay
	});
	dlock_tasksql_close(&sql);
	return after;
}

/* ---- captures ---- */

/* Take tokens for locked tasks, all above the largest that one of them has seen. */
static DLockToken
take_tokens(DLockTaskSql *sql, const DLockBytes *queue, int count, DLockToken seen)
{
	DLockToken	first;

	for (;;)
	{
		if (!dlock_token_take(&sql->db.shared->tokens, count, true, &first))
			dlock_database_fetch_tokens(&sql->db, count);
		else if (first > seen)
			return first;

		/* A copied row.  Its database may have begun later than ours, by its clock. */
		else if (seen < dlock_rule_token_clock(dlock_clock_wall()))
			(void) dlock_database_move_tokens(&sql->db, DLOCK_TOKEN_NONE);
		else
			dlock_taskerror_token(queue, seen);
	}
}

/* The state that a capture from a state ends in, if it times out. */
static const DLockBytes *
timeout_state(const DLockTaskCaptureRequest *request, const DLockBytes *from)
{
	return (request->on_timeout.len > 0) ? &request->on_timeout : from;
}

/* Throw unless the queue allows what a capture from this state can lead to. */
static void
check_capture(const DLockTaskQueue *queue, const DLockTaskCaptureRequest *request,
			  const DLockBytes *from)
{
	const DLockBytes *back = timeout_state(request, from);

	dlock_taskqueue_check_state(queue, from);
	dlock_taskqueue_check_state(queue, &request->state);
	dlock_taskqueue_check_state(queue, back);
	if (dlock_name_equal(&request->state, &queue->done))
		dlock_taskerror_done_state(&request->state, "A capture cannot begin there.");
	if (dlock_name_equal(back, &queue->done))
		dlock_taskerror_done_state(back, "A capture cannot time out to there.");
	dlock_taskqueue_check_transition(queue, from, &request->state, "So the capture would move tasks.");
	if (!dlock_name_equal(&request->state, back))
		dlock_taskqueue_check_transition(queue, &request->state, back,
						 "So tasks would be moved when their capture times out, unless on_timeout names another state.");
}

/* Write the capture of tasks that are picked and locked; returns when it ends. */
static DLockTime
write_captures(const DLockTaskQueue *queue, const DLockTaskCaptureRequest *request,
			   const DLockBytes *from, Datum *tids, DLockToken first, int count)
{
	Datum	   *tokens = palloc(count * sizeof(Datum));
	char		nulls[] = "             ";
	Datum		values[13];
	DLockTime	ends;

	for (int i = 0; i < count; i++)
		tokens[i] = Int64GetDatum(first + i);
	values[0] = PointerGetDatum(construct_array(tids, count, TIDOID, sizeof(ItemPointerData),
												false, TYPALIGN_SHORT));
	values[1] = PointerGetDatum(construct_array(tokens, count, INT8OID, sizeof(int64),
												FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	values[2] = dlock_value_text(request->state);
	values[3] = dlock_value_text(request->owner);
	values[4] = dlock_value_text(*from);
	values[5] = dlock_value_text(*timeout_state(request, from));
	values[6] = Int32GetDatum(queue->max_attempts);
	if (queue->max_attempts == 0)
		nulls[6] = 'n';
	values[7] = dlock_value_text(queue->parked);
	values[8] = dlock_value_interval(request->ttl);
	ends = dlock_tasksql_end(request->ttl, values + 9);
	if (dlock_tasksql_run(DLOCK_TASK_CAPTURE, values, nulls, 0) != (uint64) count)
		elog(ERROR, "tasks of queue \"%.*s\" were locked but not captured",
			 queue->name.len, queue->name.data);
	return ends;
}

/* Capture up to "count" tasks in one state; returns how many. */
static int
capture_from(DLockTaskSql *sql, const DLockTaskQueue *queue,
			 const DLockTaskCaptureRequest *request, const DLockBytes *from, int count,
			 DLockTaskReceiver receive, void *arg)
{
	Datum		values[] = {Int32GetDatum(queue->id), dlock_value_text(*from)};
	int			found = (int) dlock_tasksql_run(DLOCK_TASK_PICK, values, NULL, count);
	DLockTaskCaptured *tasks;
	Datum	   *tids;
	DLockToken	seen = DLOCK_TOKEN_NONE;
	DLockToken	first;
	DLockTime	ends;
	TimestampTz expires_at;

	if (found == 0)
		return 0;
	tasks = palloc0(found * sizeof(DLockTaskCaptured));
	tids = palloc(found * sizeof(Datum));
	for (int i = 0; i < found; i++)
	{
		bool		isnull;
		Datum		token;

		tids[i] = dlock_tasksql_value(i, 1, &isnull);
		tasks[i].key = dlock_tasksql_value(i, 2, &isnull);
		token = dlock_tasksql_value(i, 3, &isnull);
		if (!isnull)
			seen = Max(seen, DatumGetInt64(token));
		tasks[i].payload = dlock_tasksql_value(i, 4, &tasks[i].no_payload);
		tasks[i].priority = DatumGetInt32(dlock_tasksql_value(i, 5, &isnull));
		tasks[i].attempts = DatumGetInt32(dlock_tasksql_value(i, 6, &isnull)) + 1;
		tasks[i].from = *from;
	}

	first = take_tokens(sql, &queue->name, found, seen);
	ends = write_captures(queue, request, from, tids, first, found);
	dlock_tasksweep_note(sql->db.shared, ends);
	expires_at = dlock_clock_wall() + (ends - dlock_clock_now());
	for (int i = 0; i < found; i++)
	{
		tasks[i].token = first + i;
		tasks[i].expires_at = expires_at;
		receive(&tasks[i], arg);
	}
	return found;
}

/*
 * Capture tasks: of each of the states in turn, by priority and age, until there
 * are enough.  Hands each of them to "receive"; returns how many.
 */
int
dlock_task_capture(const DLockTaskCaptureRequest *request, DLockTaskReceiver receive, void *arg)
{
	DLockTaskSql sql;
	DLockTaskQueue queue;
	const DLockBytes *states = request->states;
	int			nstates = request->nstates;
	int			captured = 0;

	dlock_taskqueue_open(&sql, "dlock_task_capture", &request->queue, AccessShareLock, &queue);
	if (nstates == 0)
	{
		states = &queue.initial;
		nstates = 1;
	}
	for (int i = 0; i < nstates; i++)
		check_capture(&queue, request, &states[i]);

	/* Those that have timed out may be the next. */
	dlock_tasksweep_queue(queue.id);
	for (int i = 0; i < nstates && captured < request->count; i++)
		captured += capture_from(&sql, &queue, request, &states[i],
								 request->count - captured, receive, arg);
	dlock_tasksql_close(&sql);
	return captured;
}

/* Remove up to "count" tasks that were finished so long ago; returns how many. */
uint64
dlock_task_purge(const DLockBytes *name, Datum age, int count)
{
	DLockTaskSql sql;
	DLockTaskQueue queue;
	Datum		values[3];
	uint64		purged;

	dlock_taskqueue_open(&sql, "dlock_task_purge", name, AccessShareLock, &queue);
	values[0] = Int32GetDatum(queue.id);
	values[1] = age;
	values[2] = Int32GetDatum(count);
	purged = dlock_tasksql_run(DLOCK_TASK_PURGE, values, NULL, 0);
	dlock_tasksql_close(&sql);
	return purged;
}
