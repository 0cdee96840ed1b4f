/*-------------------------------------------------------------------------
 *
 * slot.h
 *	  Which slots of the store are free, and whose they are.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SLOT_H
#define DLOCK_SLOT_H

#include "storage/spin.h"

#include "base/compat.h"
#include "base/types.h"
#include "space/memory.h"
#include "store/page.h"

/* Backends spread over so many groups of pages, to keep out of each other's way. */
#define DLOCK_SLOT_STRIPES			16

/*
 * The free slots of one class on the pages of one stripe: a stack.  Protected by the
 * mutex, except "room", which the relation's extension lock protects.
 */
typedef struct DLockSlotStack
{
	slock_t		mutex;
	DLockMemoryRef top;			/* cell; those below are full */
	int			count;			/* of slots in the cell on top, if there is
								 * one */
	DLockMemoryRef spare;		/* empty cells */
	int			room;			/* for slots of pages to come */
} DLockSlotStack;

/* The free slots of one database's store. */
typedef struct DLockSlotShared
{
	/*
	 * Of the store.  Written while the database is being loaded; read with
	 * the relation open.
	 */
	uint64		incarnation;

	/* Protected by the relation's extension lock; take() reads it without. */
	BlockNumber nblocks;		/* blocks in use; the next page comes after
								 * them */

	DLockSlotStack stacks[DLOCK_PAGE_CLASSES][DLOCK_SLOT_STRIPES];
} DLockSlotShared;

/* the store as a whole */
extern void dlock_slot_init(DLockSlotShared *slots);
extern void dlock_slot_reset(DLockSlotShared *slots, uint64 incarnation);
extern void dlock_slot_clear(DLockSlotShared *slots);
extern bool dlock_slot_add_page(DLockSlotShared *slots,
								BlockNumber block, int slot_class, uint64 taken);

/* slots */
extern bool dlock_slot_reserve(DLockSlotShared *slots, const int *counts);
extern bool dlock_slot_extend(DLockSlotShared *slots, Relation rel, const int *counts);
extern DLockSlot dlock_slot_reserved(int slot_class, int n);
extern void dlock_slot_use(int slot_class);
extern void dlock_slot_trim(void);
extern void dlock_slot_free(DLockSlotShared *slots, int slot_class, DLockSlot slot);

#endif							/* DLOCK_SLOT_H */
