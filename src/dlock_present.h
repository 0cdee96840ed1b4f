/*-------------------------------------------------------------------------
 *
 * dlock_present.h
 *	  Fencing tokens that the setting dlock.tokens presents.
 *
 * IDENTIFICATION
 *	  src/dlock_present.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_PRESENT_H
#define DLOCK_PRESENT_H

#include "dlock_types.h"

/* One "name=token" of the list. */
typedef struct DLockPresentPair
{
	DLockBytes	name;
	bool		any;			/* "*": whatever the list does not name */
	DLockToken	token;
} DLockPresentPair;

extern int	dlock_present_parse(const char *value, DLockPresentPair **pairs,
								const char **problem);
extern void dlock_present_assign(const char *value);
extern DLockToken dlock_present_find(const DLockBytes *name);
extern int	dlock_present_list(const DLockPresentPair **pairs);

#endif							/* DLOCK_PRESENT_H */
