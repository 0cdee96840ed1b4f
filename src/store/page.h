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

/* The meta page. */
typedef struct DLockPageMeta
{
	Oid			database;
	uint64		incarnation;
} DLockPageMeta;

/* The kind of a page. */
typedef enum DLockPageKind
{
	DLOCK_PAGE_UNUSED,			/* not initialized, or of an old incarnation */
	DLOCK_PAGE_SLOTS,
	DLOCK_PAGE_DAMAGED
} DLockPageKind;

/*
 * A range of bytes of a page that a change has touched, in the layout of the WAL
 * record.
 */
typedef struct DLockPageRange
{
	uint16		offset;
	uint16		length;
} DLockPageRange;

typedef struct DLockPageChange
{
	int			count;
	DLockPageRange ranges[2];
} DLockPageChange;

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

/* the meta page */
extern void dlock_page_init_meta(Page page, const DLockPageMeta *meta);
extern int	dlock_page_get_meta(Page page, DLockPageMeta *meta);

/* pages of slots */
extern int	dlock_page_class_for(int data_len);
extern int	dlock_page_slot_count(int slot_class);
extern void dlock_page_init_slots(Page page, uint64 incarnation, int slot_class);
extern DLockPageKind dlock_page_kind(Page page, uint64 incarnation, int *slot_class);

/* slots */
extern DLockPageChange dlock_page_write(Page page, int number,
										const DLockLeaseValue *lease);
extern bool dlock_page_read(Page page, int number, DLockLeaseValue *lease);
extern DLockToken dlock_page_token(Page page, int number);
extern DLockPageChange dlock_page_erase(Page page, int number);
extern DLockPageChange dlock_page_set_state(Page page, int number,
											const DLockLeaseValue *lease);

#endif							/* DLOCK_PAGE_H */
