/*-------------------------------------------------------------------------
 *
 * name.h
 *	  Names of locks, owners and modes: limits, hashes, the default owner.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_NAME_H
#define DLOCK_NAME_H

#include "base/types.h"

extern void dlock_name_check(const char *what, int len);
extern DLockBytes dlock_name_of_text(const text *value, const char *what);
extern DLockBytes dlock_name_copy(DLockBytes bytes);
extern void dlock_name_check_different(const DLockBytes *names, int count);
extern DLockBytes dlock_name_session(void);
extern int	dlock_name_ancestors(const DLockBytes *path, DLockBytes *ancestors);
extern bool dlock_name_is_below(const DLockBytes *path, const DLockBytes *above);
extern const char *dlock_name_of_mode(DLockMode mode);
extern void dlock_name_init(void);
extern uint32 dlock_name_hash(Oid database, const DLockBytes *bytes);
extern uint64 dlock_name_stable_hash(const DLockBytes *bytes);
extern Datum dlock_name_to_text(DLockBytes bytes);
extern Datum dlock_name_payload_to_jsonb(DLockBytes bytes);

/* Equality of the full bytes; "data" may be NULL where there are none. */
static inline bool
dlock_name_equal(const DLockBytes *a, const DLockBytes *b)
{
	return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

/* The client of an owner that is written as client#task; the whole name of any other. */
static inline DLockBytes
dlock_name_client(const DLockBytes *owner)
{
	const char *end = memchr(owner->data, '#', owner->len);

	return (DLockBytes)
	{
		owner->data, (end != NULL) ? (int) (end - owner->data) : owner->len
	};
}

/* Are these one owner? */
static inline bool
dlock_name_is_owner(const DLockOwner *a, const DLockOwner *b)
{
	return a->role == b->role && dlock_name_equal(&a->name, &b->name);
}

#endif							/* DLOCK_NAME_H */
