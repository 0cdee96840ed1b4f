/*-------------------------------------------------------------------------
 *
 * error.h
 *	  One function for each error that a user can meet.
 *
 * IDENTIFICATION
 *	  src/base/error.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ERROR_H
#define DLOCK_ERROR_H

#include "base/compat.h"
#include "base/types.h"

/* the state of the server */
pg_noreturn extern void dlock_error_not_preloaded(void);
pg_noreturn extern void dlock_error_no_extension(void);
pg_noreturn extern void dlock_error_standby(const char *function);
pg_noreturn extern void dlock_error_read_only(const char *function);
pg_noreturn extern void dlock_error_unsettled(void);
pg_noreturn extern void dlock_error_wrong_access_method(const char *relation);
pg_noreturn extern void dlock_error_store_damaged(uint32 block, const char *detail);
pg_noreturn extern void dlock_error_store_version(int found, int supported);
pg_noreturn extern void dlock_error_store_full(void);
pg_noreturn extern void dlock_error_no_random(void);
pg_noreturn extern void dlock_error_space_full(void);
pg_noreturn extern void dlock_error_role_limit(Oid role, int limit, uint32 count);
pg_noreturn extern void dlock_error_many_marks(const char *role, int limit);
pg_noreturn extern void dlock_error_many_limits(int limit);
pg_noreturn extern void dlock_error_many_databases(int limit);
extern void dlock_error_warn_memory(int percent, uint64 used, uint64 limit);
pg_noreturn extern void dlock_error_no_memory(void);
pg_noreturn extern void dlock_error_tokens_exhausted(void);
pg_noreturn extern void dlock_error_token_clock(void);
pg_noreturn extern void dlock_error_store_operation(const char *relation, const char *operation);

/* the caller's arguments */
pg_noreturn extern void dlock_error_null(const char *what);
pg_noreturn extern void dlock_error_null_token(void);
pg_noreturn extern void dlock_error_empty(const char *what);
pg_noreturn extern void dlock_error_too_long(const char *what, int len, int limit);
pg_noreturn extern void dlock_error_number(const char *what, long long value, const char *problem, const char *hint);
pg_noreturn extern void dlock_error_interval(const char *what, const char *problem, const char *hint);
pg_noreturn extern void dlock_error_ttl_over_limit(int limit_s);
pg_noreturn extern void dlock_error_default_ttl(int default_ms, int limit_s);
pg_noreturn extern void dlock_error_slots_over_limit(int limit_s);
pg_noreturn extern void dlock_error_token(DLockToken token);
pg_noreturn extern void dlock_error_word(const char *parameter, const char *word, const char *known);
pg_noreturn extern void dlock_error_permits(int permits);
pg_noreturn extern void dlock_error_permits_and_mode(void);
pg_noreturn extern void dlock_error_names(const char *problem, const char *detail);
pg_noreturn extern void dlock_error_reserved_name(const char *what, const DLockBytes *name);
pg_noreturn extern void dlock_error_no_group(const DLockBytes *group);
pg_noreturn extern void dlock_error_group_exists(const DLockBytes *group);
pg_noreturn extern void dlock_error_group_role(const DLockBytes *group, Oid role);
pg_noreturn extern void dlock_error_group_full(const DLockBytes *group, int limit);
pg_noreturn extern void dlock_error_count_or_names(bool both);
pg_noreturn extern void dlock_error_group_name(const DLockBytes *group);
pg_noreturn extern void dlock_error_weight(int weight, int limit);
pg_noreturn extern void dlock_error_partitions(const char *problem, const char *detail);
pg_noreturn extern void dlock_error_path(const char *problem, const DLockBytes *path);

/* the state of the lock */
pg_noreturn extern void dlock_error_other_permits(const DLockBytes *name, uint32 used, uint32 asked);
pg_noreturn extern void dlock_error_weaker(const DLockBytes *name, const DLockBytes *owner);
pg_noreturn extern void dlock_error_too_many_holders(const DLockBytes *name, int limit);
pg_noreturn extern void dlock_error_too_many_holds(const DLockBytes *name);
pg_noreturn extern void dlock_error_not_convertible(const DLockBytes *name, const char *detail);
pg_noreturn extern void dlock_error_lease_lost(const DLockBytes *name, DLockToken token);
pg_noreturn extern void dlock_error_membership_lost(const DLockBytes *group, DLockToken token);
pg_noreturn extern void dlock_error_deadlock(const char *circle);
pg_noreturn extern void dlock_error_self_deadlock(const DLockBytes *owner, const char *mode, const DLockBytes *name);
pg_noreturn extern void dlock_error_not_confirmed(void);
pg_noreturn extern void dlock_error_lock_timeout(void);
pg_noreturn extern void dlock_error_prepare(void);

/* fencing */
pg_noreturn extern void dlock_error_stale(const DLockBytes *resource, DLockToken token, DLockToken mark);
pg_noreturn extern void dlock_error_stale_row(const char *table, const char *column, DLockToken token, DLockToken mark);
pg_noreturn extern void dlock_error_unknown_token(const DLockBytes *resource, DLockToken token, DLockToken last);
pg_noreturn extern void dlock_error_unknown_row_token(const char *table, DLockToken token, DLockToken last);
pg_noreturn extern void dlock_error_no_token(const char *table, const DLockBytes *resource);
pg_noreturn extern void dlock_error_no_row_token(const char *table, const char *column, bool ambiguous);
pg_noreturn extern void dlock_error_no_merge_token(const char *table, const char *column);
pg_noreturn extern void dlock_error_no_resource(const char *table, const char *column);
extern char *dlock_error_blocked_hint(const DLockBytes *resource, const char *blockers);
pg_noreturn extern void dlock_error_read_only_fence(const DLockBytes *resource);
pg_noreturn extern void dlock_error_prepare_live(void);
pg_noreturn extern void dlock_error_unlogged_marks(const char *relation);
pg_noreturn extern void dlock_error_marks_altered(const char *relation);
pg_noreturn extern void dlock_error_guard(const char *trigger, const char *problem, const char *hint);
pg_noreturn extern void dlock_error_guard_column(const char *trigger, const char *column, const char *table);
pg_noreturn extern void dlock_error_not_trigger(void);

/* the caller's rights */
pg_noreturn extern void dlock_error_not_extension_owner(void);
pg_noreturn extern void dlock_error_not_resource_role(const DLockBytes *resource, const char *declared, Oid role);
pg_noreturn extern void dlock_error_not_owner(const DLockBytes *name, Oid role);

/* warnings */
extern void dlock_error_warn_guard(const char *trigger, const char *table, const char *open, const char *hint);
extern void dlock_error_warn_partitions(const DLockBytes *group, int code, const char *reason);

/* log lines */
pg_noreturn extern void dlock_error_left_out(const DLockBytes *name);
extern void dlock_error_warn_left_out(int count, int total);
extern void dlock_error_log_waiting(const DLockBytes *name, const char *mode, DLockTime waited, const char *blockers);
extern void dlock_error_log_acquired(const DLockBytes *name, const char *mode, DLockTime waited);

extern void dlock_error_log_reset(const DLockBytes *resource, DLockToken from, DLockToken to, const char *reason);

#endif							/* DLOCK_ERROR_H */
