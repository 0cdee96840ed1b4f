/*-------------------------------------------------------------------------
 *
 * page.h
 *	  The format of the lease store's pages.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_PAGE_H
#define DLOCK_PAGE_H

#include "storage/block.h"
#include "storage/bufpage.h"

#include "base/types.h"

#define DLOCK_PAGE_VERSION		1
#define DLOCK_PAGE_META_BLOCK	0

/* What a page begins with, as it is on disk. */
typedef struct DLockPageHeadDisk
{
	uint32		magic;
	uint16		version;
	uint16		slot_class;		/* of its slots; the meta page has none */
	uint64		incarnation;
	Oid			database;		/* of the meta page */
} DLockPageHeadDisk;

#define DLOCK_PAGE_META_MAGIC	0x444C4D31	/* "DLM1" */

/* What dlock_page_class() returns for a page without slots. */
#define DLOCK_PAGE_UNUSED		(-1)	/* not initialized, or of an old
										 * incarnation */
#define DLOCK_PAGE_DAMAGED		(-2)

/*
 * The bytes of a page that a change has touched, in the layout of the WAL record.
 */
typedef struct DLockPageRange
{
	uint16		offset;
	uint16		length;
} DLockPageRange;

/* Classes of slots, smallest first. */
#define DLOCK_PAGE_CLASSES		3
#define DLOCK_PAGE_MAX_SLOTS	56

/* A slot is its block number shifted by six bits, plus its number there. */
#define DLOCK_SLOT_BITS			6
#define DLOCK_SLOT_MAX_BLOCK	((BlockNumber) (PG_UINT32_MAX >> DLOCK_SLOT_BITS))

static inline DLockSlot
dlock_slot_make(BlockNumber block, int number)
{
	return ((DLockSlot) block << DLOCK_SLOT_BITS) | (DLockSlot) number;
}

static inline BlockNumber
dlock_slot_block(DLockSlot slot)
{
	return slot >> DLOCK_SLOT_BITS;
}

static inline int
dlock_slot_number(DLockSlot slot)
{
	return slot & ((1 << DLOCK_SLOT_BITS) - 1);
}

static inline DLockPageHeadDisk *
dlock_page_head(Page page)
{
	return (DLockPageHeadDisk *) PageGetContents(page);
}

/* pages */
extern int	dlock_page_class_for(int data_len);
extern int	dlock_page_slot_count(int slot_class);
extern void dlock_page_init(Page page, uint64 incarnation, int slot_class, Oid database);
extern int	dlock_page_class(Page page, uint64 incarnation);

/* slots; one that changes a slot returns the bytes that it has touched */
extern DLockPageRange dlock_page_write(Page page, int number, const DLockLeaseValue *lease);
extern DLockPageRange dlock_page_set_state(Page page, int number, const DLockLeaseValue *lease);
extern DLockPageRange dlock_page_erase(Page page, int number, const DLockLeaseValue *lease);
extern bool dlock_page_read(Page page, int number, DLockLeaseValue *lease);

#endif							/* DLOCK_PAGE_H */
