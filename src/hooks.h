/*-------------------------------------------------------------------------
 *
 * hooks.h
 *	  Hooks into commands of others.
 *
 * IDENTIFICATION
 *	  src/hooks.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_HOOKS_H
#define DLOCK_HOOKS_H

extern void dlock_hooks_install(void);

#endif							/* DLOCK_HOOKS_H */
