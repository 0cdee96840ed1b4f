/*-------------------------------------------------------------------------
 *
 * slot.h
 *	  Which slots of the store are free, and whose they are.
 *
 * IDENTIFICATION
 *	  src/space/slot.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SLOT_H
#define DLOCK_SLOT_H

#include "storage/buf.h"
#include "storage/spin.h"

#include "base/compat.h"
#include "base/types.h"
#include "store/page.h"

/* Backends spread over so many groups of pages, to keep out of each other's way. */
#define DLOCK_SLOT_STRIPES			16

/* Branches of the directory of pages, which is a tree: see space/slot.c. */
#define DLOCK_SLOT_BRANCHES			40

/* Pages of one class that have free slots, for the backends of one stripe. */
typedef struct DLockSlotStripe
{
	slock_t		mutex;
	BlockNumber head;			/* first page; protected by mutex */
} DLockSlotStripe;

/* The directory of one database's store. */
typedef struct DLockSlotShared
{
	/*
	 * Written only while the database is being loaded; read with the relation
	 * open.
	 */
	uint64		incarnation;	/* of the store */
	uint32		generation;		/* counts loads; what was kept before is void */

	/* Protected by the relation's extension lock. */
	BlockNumber nblocks;		/* blocks that the directory covers */
	BlockNumber blank;			/* first page of no class, by next */

	/*
	 * Cells, or zero.  Each is set once, under the extension lock or while
	 * the database is being loaded, and stays.
	 */
	uint32		branches[DLOCK_SLOT_BRANCHES];

	DLockSlotStripe stripes[DLOCK_PAGE_CLASSES][DLOCK_SLOT_STRIPES];
} DLockSlotShared;

/* the directory as a whole */
extern void dlock_slot_init(DLockSlotShared *slots);
extern void dlock_slot_reset(DLockSlotShared *slots, uint64 incarnation);
extern void dlock_slot_release(DLockSlotShared *slots);
extern bool dlock_slot_add_page(DLockSlotShared *slots,
								BlockNumber block, int slot_class, uint64 taken);

/* slots */
extern DLockSlot dlock_slot_reserved(DLockSlotShared *slots, int slot_class, int n);
extern bool dlock_slot_reserve(DLockSlotShared *slots, Relation rel,
							   int slot_class, int count);
extern void dlock_slot_use(int slot_class);
extern void dlock_slot_trim(void);
extern void dlock_slot_free(DLockSlotShared *slots, DLockSlot slot);
extern Buffer *dlock_slot_hint(DLockSlotShared *slots, DLockSlot slot);

#endif							/* DLOCK_SLOT_H */
