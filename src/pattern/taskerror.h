/*-------------------------------------------------------------------------
 *
 * taskerror.h
 *	  One function for each error that a user of task queues can meet.
 *
 * IDENTIFICATION
 *	  src/pattern/taskerror.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TASKERROR_H
#define DLOCK_TASKERROR_H

#include "base/compat.h"
#include "base/types.h"

pg_noreturn extern void dlock_taskerror_no_queue(const DLockBytes *queue);
pg_noreturn extern void dlock_taskerror_queue_exists(const DLockBytes *queue);
pg_noreturn extern void dlock_taskerror_queue_role(const DLockBytes *queue, Oid role);
pg_noreturn extern void dlock_taskerror_no_task(const DLockBytes *queue, const DLockBytes *key);
pg_noreturn extern void dlock_taskerror_transition_form(const char *transition, const char *detail);
pg_noreturn extern void dlock_taskerror_state_form(const DLockBytes *state);
pg_noreturn extern void dlock_taskerror_unknown_state(const DLockBytes *queue, const DLockBytes *state);
pg_noreturn extern void dlock_taskerror_done_state(const DLockBytes *state, const char *detail);
pg_noreturn extern void dlock_taskerror_unfinished_state(const DLockBytes *state);
pg_noreturn extern void dlock_taskerror_transition(const DLockBytes *queue, const DLockBytes *from, const DLockBytes *to, const char *detail, const char *allowed);
pg_noreturn extern void dlock_taskerror_captured(const DLockBytes *queue, const DLockBytes *key, const char *owner);
pg_noreturn extern void dlock_taskerror_lost(const DLockBytes *queue, const DLockBytes *key, DLockToken token, const char *detail);
pg_noreturn extern void dlock_taskerror_token(const DLockBytes *queue, DLockToken token);

#endif							/* DLOCK_TASKERROR_H */
