/*-------------------------------------------------------------------------
 *
 * taskqueue.c
 *	  Task queues: whose they are, and which ways tasks may go in them.
 *
 * NOTES
 *	  The rows of queues have no foreign keys from those of tasks, which would
 *	  lock one row for each task that is put.  A lock on the number of the queue
 *	  serves instead, shared by all who use it and exclusive for those who drop
 *	  it.  No role gets, or waits for, that of a queue that it may not use: a role
 *	  without rights must not be able to hold others up.
 *
 *	  Declared transitions are kept as texts like "from -> to", with one blank on
 *	  each side.  Moving a task to the state for parked ones, when its attempts
 *	  are used up, needs no declaration.
 *
 * IDENTIFICATION
 *	  src/pattern/taskqueue.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "base/error.h"
#include "base/name.h"
#include "base/value.h"
#include "pattern/taskerror.h"
#include "pattern/taskqueue.h"

/* What stands between the states of a transition. */
static const char arrow[] = "->";
static const char spaced_arrow[] = " -> ";

/* ---- states and transitions ---- */

static DLockBytes
trim(DLockBytes bytes)
{
	while (bytes.len > 0 && bytes.data[0] == ' ')
	{
		bytes.data++;
		bytes.len--;
	}
	while (bytes.len > 0 && bytes.data[bytes.len - 1] == ' ')
		bytes.len--;
	return bytes;
}

/* Where an arrow is in these bytes; -1 if there is none. */
static int
find_arrow(const DLockBytes *bytes)
{
	for (int i = 0; i + 1 < bytes->len; i++)
	{
		if (memcmp(bytes->data + i, arrow, 2) == 0)
			return i;
	}
	return -1;
}

/* Throw 22023 unless it can be the name of a state; its length is right. */
void
dlock_taskqueue_check_word(const DLockBytes *state)
{
	if (trim(*state).len != state->len || find_arrow(state) >= 0)
		dlock_taskerror_state_form(state);
}

/* Split a transition as it is kept. */
static void
split_transition(Datum transition, DLockBytes *from, DLockBytes *to)
{
	text	   *value = DatumGetTextPP(transition);
	DLockBytes	whole = {VARDATA_ANY(value), (int) VARSIZE_ANY_EXHDR(value)};
	int			at = find_arrow(&whole);

	*from = trim((DLockBytes) {whole.data, at});
	*to = trim((DLockBytes) {whole.data + at + 2, whole.len - at - 2});
}

/* A transition as somebody has written it, in the form in which it is kept. */
static Datum
normal_transition(Datum transition)
{
	char	   *written = TextDatumGetCString(transition);
	DLockBytes	whole = dlock_tasksql_bytes(written);
	DLockBytes	sides[2];
	int			at = find_arrow(&whole);

	if (at < 0)
		dlock_taskerror_transition_form(written, "There is no \"->\" in it.");
	split_transition(transition, &sides[0], &sides[1]);
	for (int i = 0; i < 2; i++)
	{
		if (sides[i].len == 0)
			dlock_taskerror_transition_form(written, "A state is missing.");
		if (find_arrow(&sides[i]) >= 0)
			dlock_taskerror_transition_form(written, "There is more than one \"->\" in it.");
		if (sides[i].len > DLOCK_TASK_STATE_MAX)
			dlock_error_too_long("task state", sides[i].len, DLOCK_TASK_STATE_MAX);
	}
	return CStringGetTextDatum(psprintf("%.*s%s%.*s", sides[0].len, sides[0].data, spaced_arrow,
										sides[1].len, sides[1].data));
}

/* Throw 22023 unless the queue knows the state. */
void
dlock_taskqueue_check_state(const DLockTaskQueue *queue, const DLockBytes *state)
{
	if (queue->ntransitions == 0 || dlock_name_equal(state, &queue->parked))
		return;
	for (int i = 0; i < queue->ntransitions; i++)
	{
		DLockBytes	from;
		DLockBytes	to;

		split_transition(queue->transitions[i], &from, &to);
		if (dlock_name_equal(state, &from) || dlock_name_equal(state, &to))
			return;
	}
	dlock_taskerror_unknown_state(&queue->name, state);
}

/* Throw 23514 unless a task may go from one state to the other. */
void
dlock_taskqueue_check_transition(const DLockTaskQueue *queue, const DLockBytes *from,
								 const DLockBytes *to, const char *detail)
{
	StringInfoData allowed;

	if (queue->ntransitions == 0)
		return;
	initStringInfo(&allowed);
	for (int i = 0; i < queue->ntransitions; i++)
	{
		DLockBytes	left;
		DLockBytes	right;

		split_transition(queue->transitions[i], &left, &right);
		if (!dlock_name_equal(from, &left))
			continue;
		if (dlock_name_equal(to, &right))
			return;
		appendStringInfo(&allowed, "%s\"%.*s\"", (allowed.len > 0) ? ", " : "",
						 right.len, right.data);
	}
	dlock_taskerror_transition(&queue->name, from, to, detail, allowed.data);
}

/* ---- queues ---- */

/* Lock a queue up to the end of the transaction; true if it was locked already. */
static bool
lock_queue(DLockTaskSql *sql, int32 id, LOCKMODE mode)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, dlock_tasksql_lock_class(sql), (Oid) id, 0);
	return LockAcquire(&tag, mode, false, false) != LOCKACQUIRE_OK;
}

static bool
read_queue(const DLockBytes *name, DLockTaskQueue *queue, Oid *role)
{
	Datum		key = dlock_value_text(*name);
	Datum		value;
	bool		isnull;

	if (dlock_tasksql_run(DLOCK_TASK_FIND_QUEUE, &key, NULL, 0) == 0)
		return false;
	queue->name = *name;
	queue->id = DatumGetInt32(dlock_tasksql_value(0, 1, &isnull));
	*role = DatumGetObjectId(dlock_tasksql_value(0, 2, &isnull));
	queue->initial = dlock_tasksql_bytes(dlock_tasksql_cstring(0, 3));
	queue->done = dlock_tasksql_bytes(dlock_tasksql_cstring(0, 4));
	queue->parked = dlock_tasksql_bytes(dlock_tasksql_cstring(0, 5));
	value = dlock_tasksql_value(0, 6, &isnull);
	queue->max_attempts = isnull ? 0 : DatumGetInt32(value);
	queue->ntransitions = 0;
	value = dlock_tasksql_value(0, 7, &isnull);
	if (!isnull)
		deconstruct_array(DatumGetArrayTypePCopy(value), TEXTOID, -1, false, TYPALIGN_INT,
						  &queue->transitions, NULL, &queue->ntransitions);
	return true;
}

/* Read a queue; throws unless it is there and the caller may use it. */
static void
check_queue(DLockTaskSql *sql, const DLockBytes *name, DLockTaskQueue *queue)
{
	Oid			role;

	if (!read_queue(name, queue, &role))
		dlock_taskerror_no_queue(name);
	if (!has_privs_of_role(sql->caller, role))
		dlock_taskerror_queue_role(name, role);
}

/* Open the tables, find a queue that the caller may use, and lock it. */
void
dlock_taskqueue_open(DLockTaskSql *sql, const char *function, const DLockBytes *name,
					 LOCKMODE mode, DLockTaskQueue *queue)
{
	int32		locked;
	bool		again;

	dlock_tasksql_open(sql, function);
	check_queue(sql, name, queue);
	do
	{
		/* It may have been dropped since it was read, and created anew. */
		locked = queue->id;
		again = !lock_queue(sql, locked, mode);
		if (again)
			check_queue(sql, name, queue);
	} while (again && queue->id != locked);
}

/* Bring declared transitions into the form in which they are kept. */
static Datum
normal_transitions(const DLockTaskDefinition *definition)
{
	DLockTaskQueue queue = {.name = definition->queue, .parked = definition->parked};
	bool	   *nulls;

	if (ARR_NDIM(definition->transitions) > 1)
		dlock_error_number("dimensions of the array of transitions",
						   ARR_NDIM(definition->transitions), "not be more than one",
						   "Pass texts like \"from -> to\".");
	deconstruct_array(definition->transitions, TEXTOID, -1, false, TYPALIGN_INT,
					  &queue.transitions, &nulls, &queue.ntransitions);
	if (queue.ntransitions == 0)
		dlock_error_empty("array of transitions");
	for (int i = 0; i < queue.ntransitions; i++)
	{
		if (nulls[i])
			dlock_error_null("transition");
		queue.transitions[i] = normal_transition(queue.transitions[i]);
	}
	dlock_taskqueue_check_state(&queue, &definition->initial);
	dlock_taskqueue_check_state(&queue, &definition->done);
	return PointerGetDatum(construct_array(queue.transitions, queue.ntransitions, TEXTOID, -1,
										   false, TYPALIGN_INT));
}

/* Create a queue; it belongs to the current role. */
void
dlock_taskqueue_create(DLockTaskDefinition *definition)
{
	DLockTaskSql sql;
	Datum		values[7];
	char		nulls[] = "       ";

	if (dlock_name_equal(&definition->initial, &definition->done) ||
		dlock_name_equal(&definition->parked, &definition->done))
		dlock_taskerror_done_state(&definition->done,
								   "The initial state and the one of parked tasks must be others.");

	dlock_tasksql_open(&sql, "dlock_task_create_queue");
	values[0] = dlock_value_text(definition->queue);
	values[1] = ObjectIdGetDatum(sql.caller);
	values[2] = dlock_value_text(definition->initial);
	values[3] = dlock_value_text(definition->done);
	values[4] = dlock_value_text(definition->parked);
	values[5] = Int32GetDatum(definition->max_attempts);
	if (definition->max_attempts == 0)
		nulls[5] = 'n';
	if (definition->transitions != NULL)
		values[6] = normal_transitions(definition);
	else
		nulls[6] = 'n';
	if (dlock_tasksql_run(DLOCK_TASK_CREATE_QUEUE, values, nulls, 0) == 0)
		dlock_taskerror_queue_exists(&definition->queue);
	dlock_tasksql_close(&sql);
}

/* Drop a queue and its tasks; returns how many these were. */
uint64
dlock_taskqueue_drop(const DLockBytes *name)
{
	DLockTaskSql sql;
	DLockTaskQueue queue;
	Datum		id;
	uint64		dropped;

	dlock_taskqueue_open(&sql, "dlock_task_drop_queue", name, AccessExclusiveLock, &queue);
	id = Int32GetDatum(queue.id);
	dropped = dlock_tasksql_run(DLOCK_TASK_DROP_TASKS, &id, NULL, 0);
	(void) dlock_tasksql_run(DLOCK_TASK_DROP_QUEUE, &id, NULL, 0);
	dlock_tasksql_close(&sql);
	return dropped;
}
