/*-------------------------------------------------------------------------
 *
 * dlock_slot.h
 *	  Which slots of the store are free, and whose they are.
 *
 * IDENTIFICATION
 *	  src/dlock_slot.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SLOT_H
#define DLOCK_SLOT_H

#include "storage/buf.h"
#include "storage/spin.h"
#include "utils/dsa.h"

#include "dlock_compat.h"
#include "dlock_page.h"
#include "dlock_types.h"

/* Backends spread over so many groups of pages, to keep out of each other's way. */
#define DLOCK_SLOT_STRIPES			16

/* The directory of pages grows in segments, each twice as large as the last. */
#define DLOCK_SLOT_FIRST_SEGMENT	64
#define DLOCK_SLOT_SEGMENTS			21

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
	 * Written only while the database is being loaded; read by whoever has the
	 * relation open.
	 */
	uint64		incarnation;	/* of the store */
	uint32		generation;		/* counts loads; what was kept before is void */

	/* Protected by the relation's extension lock. */
	BlockNumber nblocks;		/* blocks that the directory covers */
	BlockNumber blank;			/* first page of no class, by next */

	/* An element is set once, under the extension lock, and stays. */
	dsa_pointer segments[DLOCK_SLOT_SEGMENTS];

	DLockSlotStripe stripes[DLOCK_PAGE_CLASSES][DLOCK_SLOT_STRIPES];
} DLockSlotShared;

/* the directory as a whole */
extern void dlock_slot_init(DLockSlotShared *slots);
extern void dlock_slot_reset(DLockSlotShared *slots, uint64 incarnation);
extern void dlock_slot_release(DLockSlotShared *slots, dsa_area *area);
extern void dlock_slot_add_page(DLockSlotShared *slots, dsa_area *area,
								BlockNumber block, int slot_class, uint64 taken);

/* slots */
extern DLockSlot dlock_slot_reserved(DLockSlotShared *slots, int slot_class, int n);
extern void dlock_slot_reserve(DLockSlotShared *slots, dsa_area *area, Relation rel,
							   int slot_class, int count);
extern void dlock_slot_use(int slot_class);
extern void dlock_slot_trim(void);
extern void dlock_slot_free(DLockSlotShared *slots, dsa_area *area, DLockSlot slot);
extern Buffer *dlock_slot_hint(DLockSlotShared *slots, dsa_area *area, DLockSlot slot);

#endif							/* DLOCK_SLOT_H */
