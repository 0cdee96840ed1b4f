/*-------------------------------------------------------------------------
 *
 * take.h
 *	  Taking what the places of a client can be granted.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TAKE_H
#define DLOCK_TAKE_H

#include "base/types.h"

/* What a place was granted. */
typedef struct DLockTaken
{
	DLockBytes	name;
	DLockBytes	owner;
	DLockToken	token;			/* DLOCK_TOKEN_NONE: an error; the place is
								 * gone */
} DLockTaken;

extern int	dlock_take(const DLockBytes *client, DLockTime wait, DLockTime keep, DLockTaken **taken);

#endif							/* DLOCK_TAKE_H */
