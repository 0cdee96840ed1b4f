/*-------------------------------------------------------------------------
 *
 * dlock_utility.h
 *	  Hooks into commands of others.
 *
 * IDENTIFICATION
 *	  src/dlock_utility.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_UTILITY_H
#define DLOCK_UTILITY_H

extern void dlock_utility_install(void);

#endif							/* DLOCK_UTILITY_H */
