/*-------------------------------------------------------------------------
 *
 * once.h
 *	  The first call in a time slot wins.
 *
 * IDENTIFICATION
 *	  src/pattern/once.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ONCE_H
#define DLOCK_ONCE_H

#include "base/types.h"
#include "space/database.h"

#define DLOCK_ONCE_PREFIX		DLOCK_NAME_RESERVED "once/"
#define DLOCK_ONCE_NAME_MAX		240

extern DLockToken dlock_once_win(DLockDatabase *db, const DLockBytes *name,
								 DLockTime every, DLockTime memory);

#endif							/* DLOCK_ONCE_H */
