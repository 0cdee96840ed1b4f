/*-------------------------------------------------------------------------
 *
 * tokens.h
 *	  Fencing tokens that the setting dlock.tokens presents.
 *
 * IDENTIFICATION
 *	  src/fence/tokens.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TOKENS_H
#define DLOCK_TOKENS_H

#include "base/types.h"

/* One "name=token" of the list. */
typedef struct DLockTokensPair
{
	DLockBytes	name;
	bool		any;			/* "*": whatever the list does not name */
	DLockToken	token;
} DLockTokensPair;

extern int	dlock_tokens_parse(const char *value, DLockTokensPair **pairs,
								const char **problem);
extern void dlock_tokens_assign(const char *value);
extern DLockToken dlock_tokens_find(const DLockBytes *name);
extern int	dlock_tokens_list(const DLockTokensPair **pairs);

#endif							/* DLOCK_TOKENS_H */
