/*-------------------------------------------------------------------------
 *
 * clock.h
 *	  The only reader of time.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_CLOCK_H
#define DLOCK_CLOCK_H

#include "base/types.h"

extern void dlock_clock_init(void);
extern DLockTime dlock_clock_now(void);
extern TimestampTz dlock_clock_wall(void);
extern uint64 dlock_clock_origin(void);
extern long dlock_clock_nap_ms(DLockTime now, DLockTime until, DLockTime at_most);

#endif							/* DLOCK_CLOCK_H */
