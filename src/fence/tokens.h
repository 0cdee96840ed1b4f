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
	bool		any;			/* "*": any name that is not in the list */
	DLockToken	token;
} DLockTokensPair;

extern void dlock_tokens_define(void);
extern DLockToken dlock_tokens_find(const DLockBytes *name);
extern int	dlock_tokens_list(const DLockTokensPair **pairs);

#endif							/* DLOCK_TOKENS_H */
