/*-------------------------------------------------------------------------
 *
 * dlock_memory.h
 *	  The shared memory that locks and leases are made of.
 *
 * IDENTIFICATION
 *	  src/dlock_memory.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_MEMORY_H
#define DLOCK_MEMORY_H

#include "utils/dsa.h"

/* What a chunk is for. */
typedef enum DLockMemoryKind
{
	DLOCK_MEMORY_ENTRY,			/* a lock */
	DLOCK_MEMORY_LEASE
} DLockMemoryKind;

#define DLOCK_MEMORY_KINDS		2

/* The largest chunk of each kind. */
#define DLOCK_MEMORY_MAX_ENTRY	320
#define DLOCK_MEMORY_MAX_LEASE	1560

/* This backend's mapping of the area; NULL before dlock_memory_area(). */
extern dsa_area *dlock_memory_mapped;

/* set-up */
extern void dlock_memory_request(void);
extern void dlock_memory_startup(void);
extern bool dlock_memory_is_ready(void);
extern dsa_area *dlock_memory_area(void);

/* chunks */
extern bool dlock_memory_is_prepared(DLockMemoryKind kind, int size, int count);
extern bool dlock_memory_prepare(DLockMemoryKind kind, int size, int count);
extern dsa_pointer dlock_memory_take(DLockMemoryKind kind, int *size);
extern void dlock_memory_give_back(DLockMemoryKind kind, dsa_pointer dp, int size);
extern void dlock_memory_trim(void);

#endif							/* DLOCK_MEMORY_H */
