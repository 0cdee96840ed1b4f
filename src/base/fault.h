/*-------------------------------------------------------------------------
 *
 * fault.h
 *	  Fault points: where a test can stop a process, or have something fail.
 *
 * NOTES
 *	  They exist in a library that was built with "make FAULTS=1", and in no
 *	  other.  In that build test/modules/fault_points.h comes before each source
 *	  file, and says what they do.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_FAULT_H
#define DLOCK_FAULT_H

#ifndef DLOCK_FAULTS

/* A process can be stopped here, or throw an error. */
#define DLOCK_FAULT(name)		((void) 0)

/* It can be stopped here, but an error must not come: something is half done. */
#define DLOCK_FAULT_STOP(name)	((void) 0)

/* Is what follows to fail? */
#define DLOCK_FAULT_FAILS(name)	false

/* Has a test switched something off? */
#define DLOCK_FAULT_IS_OFF(name)	false

/* The time, given what the machine's clocks say. */
#define DLOCK_FAULT_CLOCK_INIT()	((void) 0)
#define DLOCK_FAULT_TIME(machine)	(machine)
#define DLOCK_FAULT_WALL(machine)	(machine)
#define DLOCK_FAULT_BOOT(machine)	(machine)

/* How long to sleep until then, in milliseconds? */
#define DLOCK_FAULT_NAP(until, ms)	(ms)

/* Something was visited or done that costs: a DLockFaultCost. */
#define DLOCK_FAULT_COUNT(cost)	((void) 0)

#endif							/* DLOCK_FAULTS */

#endif							/* DLOCK_FAULT_H */
