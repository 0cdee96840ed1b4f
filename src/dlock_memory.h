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

#include "dlock_types.h"

/* The size of a cell; there is no other. */
#define DLOCK_MEMORY_CELL		232

/* Where the cells lie; a dsa_pointer is an offset from here.  Zero is no cell. */
extern char *dlock_memory_cells;

/* The shared memory that a pointer leads to. */
static inline void *
dlock_memory_at(dsa_pointer dp)
{
	return dlock_memory_cells + dp;
}

/* The pointer that leads to a place in the shared memory. */
static inline dsa_pointer
dlock_memory_pointer(const void *place)
{
	return (const char *) place - dlock_memory_cells;
}

/* set-up */
extern void dlock_memory_request(void);
extern void dlock_memory_startup(void);
extern bool dlock_memory_is_ready(void);

/* cells */
extern bool dlock_memory_is_prepared(int count);
extern bool dlock_memory_prepare(int count);
extern dsa_pointer dlock_memory_take(void);
extern void dlock_memory_give_back(dsa_pointer dp);
extern void dlock_memory_trim(void);
extern uint64 dlock_memory_used(void);
extern uint64 dlock_memory_limit(void);

/* texts that may go on in further cells */
extern int	dlock_memory_text_cells(int len, int room);
extern void dlock_memory_text_put(char *place, int room, const DLockBytes *parts, int count);
extern void dlock_memory_text_get(const char *place, int room, int total,
								  int from, int len, char *into);
extern bool dlock_memory_text_begins(const char *place, int room, int total,
									 const DLockBytes *bytes);
extern void dlock_memory_text_free(const char *place, int room, int total);

/* How much of a text of "total" bytes stands in its place itself. */
static inline int
dlock_memory_text_here(int room, int total)
{
	return (total <= room) ? total : room - (int) sizeof(uint32);
}

#endif							/* DLOCK_MEMORY_H */
