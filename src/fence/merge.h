/*-------------------------------------------------------------------------
 *
 * merge.h
 *	  Which columns a running MERGE sets.
 *
 * IDENTIFICATION
 *	  src/fence/merge.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_MERGE_H
#define DLOCK_MERGE_H

extern void dlock_merge_install(void);
extern bool dlock_merge_sets_unevenly(Oid relid, AttrNumber attr);

#endif							/* DLOCK_MERGE_H */
