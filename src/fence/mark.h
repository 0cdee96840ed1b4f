/*-------------------------------------------------------------------------
 *
 * mark.h
 *	  The highest token that each fenced resource has seen.
 *
 * IDENTIFICATION
 *	  src/fence/mark.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_MARK_H
#define DLOCK_MARK_H

#include "storage/lock.h"

#include "base/types.h"

/* What is declared about a resource. */
typedef struct DLockMarkDeclared
{
	bool		is_foreign;		/* fenced by another database's tokens */
	Oid			denied;			/* its role, if the current user is no member */
	char		by[DLOCK_NAME_MAX + 1]; /* the declaration that says so */
} DLockMarkDeclared;

extern void dlock_mark_find_declared(const DLockBytes *resource, bool is_prefix, DLockMarkDeclared *declared);
extern void dlock_mark_declare(const DLockBytes *resource, Oid role, bool is_foreign);
extern void dlock_mark_tag(LOCKTAG *tag, const DLockBytes *resource);
extern DLockToken dlock_mark_read(const DLockBytes *resource);
extern void dlock_mark_write(const DLockBytes *resource, DLockToken token);

#endif							/* DLOCK_MARK_H */
