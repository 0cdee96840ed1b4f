/*-------------------------------------------------------------------------
 *
 * taskerror.c
 *	  One function for each error that a user of task queues can meet.
 *
 * IDENTIFICATION
 *	  src/pattern/taskerror.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/acl.h"

#include "pattern/taskerror.h"

void
dlock_taskerror_no_queue(const DLockBytes *queue)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("task queue \"%.*s\" does not exist", queue->len, queue->data),
			 errhint("Create it with dlock_task_create_queue().")));
}

void
dlock_taskerror_queue_exists(const DLockBytes *queue)
{
	ereport(ERROR,
			(errcode(ERRCODE_DUPLICATE_OBJECT),
			 errmsg("task queue \"%.*s\" already exists", queue->len, queue->data),
			 errhint("Use another name, or drop it with dlock_task_drop_queue().")));
}

void
dlock_taskerror_queue_role(const DLockBytes *queue, Oid role)
{
	char	   *rolename = GetUserNameFromId(role, true);

	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for task queue \"%.*s\"", queue->len, queue->data),
			 rolename != NULL ? errdetail("It was created by role \"%s\".", rolename) :
			 errdetail("The role that created it no longer exists."),
			 errhint("Only that role, its members and superusers can use it.")));
}

void
dlock_taskerror_no_task(const DLockBytes *queue, const DLockBytes *key)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("task \"%.*s\" does not exist in queue \"%.*s\"",
					key->len, key->data, queue->len, queue->data),
			 errhint("Put it there with dlock_task_put().")));
}

void
dlock_taskerror_transition_form(const char *transition, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid transition \"%s\"", transition),
			 errdetail("%s", detail),
			 errhint("Write a transition as \"from -> to\".")));
}

void
dlock_taskerror_state_form(const DLockBytes *state)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid state \"%.*s\"", state->len, state->data),
			 errdetail("It begins or ends with a blank, or has \"->\" in it."),
			 errhint("Use a word.")));
}

void
dlock_taskerror_unknown_state(const DLockBytes *queue, const DLockBytes *state)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("state \"%.*s\" is not declared for task queue \"%.*s\"",
					state->len, state->data, queue->len, queue->data),
			 errdetail("The queue has declared transitions, and none of them leads there or starts there."),
			 errhint("Use one of the states that are declared.")));
}

void
dlock_taskerror_done_state(const DLockBytes *state, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("state \"%.*s\" is the one of finished tasks", state->len, state->data),
			 errdetail("%s", detail),
			 errhint("Use another state.")));
}

void
dlock_taskerror_unfinished_state(const DLockBytes *state)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("state \"%.*s\" cannot be that of a finished task", state->len, state->data),
			 errdetail("It is the initial state of the queue, or the one of parked tasks."),
			 errhint("Use another state, or hand the task on with dlock_task_release().")));
}

/* "allowed" is a list of the states that there is a way to; it may be empty. */
void
dlock_taskerror_transition(const DLockBytes *queue, const DLockBytes *from, const DLockBytes *to,
						   const char *detail, const char *allowed)
{
	ereport(ERROR,
			(errcode(ERRCODE_CHECK_VIOLATION),
			 errmsg("task queue \"%.*s\" does not allow the transition from state \"%.*s\" to \"%.*s\"",
					queue->len, queue->data, from->len, from->data, to->len, to->data),
			 errdetail("%s", detail),
			 allowed[0] != '\0' ? errhint("From \"%.*s\" it allows: %s.", from->len, from->data, allowed) :
			 errhint("From \"%.*s\" it allows none.", from->len, from->data)));
}

void
dlock_taskerror_captured(const DLockBytes *queue, const DLockBytes *key, const char *owner)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_IN_USE),
			 errmsg("task \"%.*s\" of queue \"%.*s\" is captured",
					key->len, key->data, queue->len, queue->data),
			 errdetail("Owner \"%s\" holds it under a lease.", owner),
			 errhint("Pass the token of the capture, or wait until it ends.")));
}

/* LK002, as of a lease. */
void
dlock_taskerror_lost(const DLockBytes *queue, const DLockBytes *key, DLockToken token,
					 const char *detail)
{
	ereport(ERROR,
			(errcode(MAKE_SQLSTATE('L', 'K', '0', '0', '2')),
			 errmsg("capture of task \"%.*s\" of queue \"%.*s\" with token %lld is not held",
					key->len, key->data, queue->len, queue->data, (long long) token),
			 errdetail("%s", detail),
			 errhint("Stop the work on this task, and undo what was not committed.")));
}

void
dlock_taskerror_token(const DLockBytes *queue, DLockToken token)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("a task of queue \"%.*s\" has seen token %lld, which is above those of this database",
					queue->len, queue->data, (long long) token),
			 errdetail("Its row was copied from another database."),
			 errhint("Call dlock_bump_epoch() with that number as \"above\".")));
}
