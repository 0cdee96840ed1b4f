/*-------------------------------------------------------------------------
 *
 * page.c
 *	  The format of the lease store's pages.
 *
 * NOTES
 *	  src/README ("Pages") says what is on which page.  These functions see a Page
 *	  and nothing else.  The caller has locked its buffer, or passes a copy; it writes
 *	  the WAL record.
 *
 *	  Pages have the standard header, which checksums, page verification and
 *	  full-page images use.  pd_lower is the end of the last slot ever written
 *	  on the page, so that unused space is the hole of a standard page, which
 *	  full-page images leave out.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "store/page.h"

#define META_MAGIC		0x444C4D31	/* "DLM1" */
#define SLOTS_MAGIC		0x444C5331	/* "DLS1" */

typedef struct DLockPageMetaDisk
{
	uint32		magic;
	uint16		version;
	uint16		unused;
	uint64		incarnation;
	Oid			database;
} DLockPageMetaDisk;

typedef struct DLockPageSlotsDisk
{
	uint32		magic;
	uint16		version;
	uint16		slot_class;
	uint64		incarnation;
} DLockPageSlotsDisk;

typedef struct DLockPageSlotDisk
{
	int64		token;			/* zero: the slot is free, the rest is stale */
	int64		granted_at;

	/* These change while the lease is held: see dlock_page_set_state(). */
	int64		ttl;
	int64		bound_mono;
	int64		bound_wall;
	uint64		origin;
	uint32		delay_ms;
	uint32		holds;

	uint32		min_hold_ms;
	uint32		permits;
	Oid			role;
	uint16		payload_len;
	uint8		name_len;
	uint8		owner_len;
	uint8		mode;
	uint8		bind;
	uint8		part;
	uint8		unused;
	char		data[FLEXIBLE_ARRAY_MEMBER];	/* name, owner, payload */
} DLockPageSlotDisk;

/* The first slot begins here. */
#define SLOTS_OFFSET	64

StaticAssertDecl(SizeOfPageHeaderData + sizeof(DLockPageSlotsDisk) <= SLOTS_OFFSET,
				 "slots overlap the page's header");

#define SLOT_DATA_OFFSET	offsetof(DLockPageSlotDisk, data)

/*
 * The smallest class fits a name and an owner of 68 bytes together, the
 * next any name and owner, the last those with the longest payload.
 */
static const int slot_sizes[DLOCK_PAGE_CLASSES] = {144, 640, 2016};

StaticAssertDecl(SLOT_DATA_OFFSET + DLOCK_NAME_MAX + DLOCK_OWNER_MAX <= 640,
				 "name and owner do not fit a slot of the second class");
StaticAssertDecl(SLOT_DATA_OFFSET + DLOCK_NAME_MAX + DLOCK_OWNER_MAX +
				 DLOCK_PAYLOAD_MAX <= 2016,
				 "name, owner and payload do not fit a slot of the last class");
StaticAssertDecl(SLOTS_OFFSET + 2016 <= BLCKSZ,
				 "a block is too small for a slot of the last class");

/* Microseconds as milliseconds, rounded up. */
static uint32
to_ms(DLockTime span)
{
	return (uint32) ((Min(span, DLOCK_SPAN_MAX) + 999) / 1000);
}

static DLockPageMetaDisk *
meta_of(Page page)
{
	return (DLockPageMetaDisk *) PageGetContents(page);
}

static DLockPageSlotsDisk *
slots_of(Page page)
{
	return (DLockPageSlotsDisk *) PageGetContents(page);
}

static int
slot_offset(Page page, int number)
{
	int			slot_class = slots_of(page)->slot_class;

	Assert(slot_class < DLOCK_PAGE_CLASSES);
	Assert(number >= 0 && number < dlock_page_slot_count(slot_class));
	return SLOTS_OFFSET + number * slot_sizes[slot_class];
}

static DLockPageSlotDisk *
slot_at(Page page, int number)
{
	return (DLockPageSlotDisk *) ((char *) page + slot_offset(page, number));
}

/* Turn any page into the meta page. */
void
dlock_page_init_meta(Page page, const DLockPageMeta *meta)
{
	DLockPageMetaDisk *disk = meta_of(page);

	PageInit(page, BLCKSZ, 0);
	((PageHeader) page)->pd_lower =
		MAXALIGN(SizeOfPageHeaderData) + sizeof(DLockPageMetaDisk);
	disk->magic = META_MAGIC;
	disk->version = DLOCK_PAGE_VERSION;
	disk->unused = 0;
	disk->database = meta->database;
	disk->incarnation = meta->incarnation;
}

/*
 * Read the meta page; returns its format version, or -1 if it is no meta page.
 * "meta" is set only if that is DLOCK_PAGE_VERSION.
 */
int
dlock_page_get_meta(Page page, DLockPageMeta *meta)
{
	DLockPageMetaDisk *disk = meta_of(page);

	if (PageIsNew(page) || disk->magic != META_MAGIC)
		return -1;
	if (disk->version == DLOCK_PAGE_VERSION)
	{
		meta->database = disk->database;
		meta->incarnation = disk->incarnation;
	}
	return disk->version;
}

/* The class of slots for a lease with this many bytes of texts and payload. */
int
dlock_page_class_for(int data_len)
{
	for (int slot_class = 0; slot_class < DLOCK_PAGE_CLASSES - 1; slot_class++)
	{
		if ((int) SLOT_DATA_OFFSET + data_len <= slot_sizes[slot_class])
			return slot_class;
	}
	Assert((int) SLOT_DATA_OFFSET + data_len <= slot_sizes[DLOCK_PAGE_CLASSES - 1]);
	return DLOCK_PAGE_CLASSES - 1;
}

/* The number of slots on a page of this class. */
int
dlock_page_slot_count(int slot_class)
{
	return Min(DLOCK_PAGE_MAX_SLOTS,
			   (BLCKSZ - SLOTS_OFFSET) / slot_sizes[slot_class]);
}

/* Turn any page into one of free slots. */
void
dlock_page_init_slots(Page page, uint64 incarnation, int slot_class)
{
	DLockPageSlotsDisk *disk;

	PageInit(page, BLCKSZ, 0);
	((PageHeader) page)->pd_lower = SLOTS_OFFSET;
	disk = slots_of(page);
	disk->magic = SLOTS_MAGIC;
	disk->version = DLOCK_PAGE_VERSION;
	disk->slot_class = slot_class;
	disk->incarnation = incarnation;
}

/*
 * The kind of a page in a store of this incarnation.  Sets "slot_class" if it is a
 * page of slots.
 */
DLockPageKind
dlock_page_kind(Page page, uint64 incarnation, int *slot_class)
{
	DLockPageSlotsDisk *disk = slots_of(page);

	if (PageIsNew(page))
		return DLOCK_PAGE_UNUSED;
	if (disk->magic != SLOTS_MAGIC || disk->version != DLOCK_PAGE_VERSION ||
		disk->slot_class >= DLOCK_PAGE_CLASSES ||
		((PageHeader) page)->pd_lower < SLOTS_OFFSET)
		return DLOCK_PAGE_DAMAGED;
	if (disk->incarnation != incarnation)
		return DLOCK_PAGE_UNUSED;
	*slot_class = disk->slot_class;
	return DLOCK_PAGE_SLOTS;
}

static DLockPageChange
one_range(Page page, const void *start, Size length)
{
	DLockPageChange change = {
		.count = 1,
		.ranges = {{(const char *) start - (const char *) page, length}}
	};

	return change;
}

static void
write_state(DLockPageSlotDisk *slot, const DLockLeaseValue *lease)
{
	slot->ttl = lease->term.ttl;
	slot->bound_mono = lease->term.bound_mono;
	slot->bound_wall = lease->term.bound_wall;
	slot->origin = lease->origin;
	slot->delay_ms = to_ms(lease->delay);
	slot->holds = lease->holds;
}

/* Write a lease into a slot of its class, free or not. */
DLockPageChange
dlock_page_write(Page page, int number, const DLockLeaseValue *lease)
{
	PageHeader	header = (PageHeader) page;
	DLockPageSlotDisk *slot = slot_at(page, number);
	int			end = slot_offset(page, number) + slot_sizes[slots_of(page)->slot_class];
	char	   *data = slot->data;
	DLockPageChange change;

	Assert(lease->token != DLOCK_TOKEN_NONE);
	Assert((int) SLOT_DATA_OFFSET + lease->name.len + lease->owner.len +
		   lease->payload.len <= slot_sizes[slots_of(page)->slot_class]);

	slot->token = lease->token;
	slot->granted_at = lease->granted_at;
	write_state(slot, lease);
	slot->min_hold_ms = to_ms(lease->min_hold);
	slot->permits = lease->permits;
	slot->role = lease->role;
	slot->payload_len = lease->payload.len;
	slot->name_len = lease->name.len;
	slot->owner_len = lease->owner.len;
	slot->mode = lease->mode;
	slot->bind = lease->bind;
	slot->part = lease->part;
	slot->unused = 0;

	memcpy(data, lease->name.data, lease->name.len);
	data += lease->name.len;
	memcpy(data, lease->owner.data, lease->owner.len);
	data += lease->owner.len;
	if (lease->payload.len > 0)
		memcpy(data, lease->payload.data, lease->payload.len);
	data += lease->payload.len;

	change = one_range(page, slot, data - (char *) slot);

	/* All bytes between the old pd_lower and this slot are zero. */
	if (header->pd_lower < end)
	{
		header->pd_lower = end;
		change.ranges[1].offset = offsetof(PageHeaderData, pd_lower);
		change.ranges[1].length = sizeof(LocationIndex);
		change.count = 2;
	}
	return change;
}

/*
 * Read the lease in a slot; false if the slot is free.  The texts and the
 * payload of the result point into the page.
 */
bool
dlock_page_read(Page page, int number, DLockLeaseValue *lease)
{
	DLockPageSlotDisk *slot;

	if (dlock_page_token(page, number) == DLOCK_TOKEN_NONE)
		return false;

	slot = slot_at(page, number);
	lease->token = slot->token;
	lease->mode = (DLockMode) slot->mode;
	lease->bind = (DLockBind) slot->bind;
	lease->part = (DLockPart) slot->part;
	lease->role = slot->role;
	lease->holds = slot->holds;
	lease->permits = slot->permits;
	lease->delay = (DLockTime) slot->delay_ms * 1000;
	lease->min_hold = (DLockTime) slot->min_hold_ms * 1000;
	lease->granted_at = slot->granted_at;
	lease->origin = slot->origin;
	lease->term.ttl = slot->ttl;
	lease->term.deadline = 0;
	lease->term.bound_mono = slot->bound_mono;
	lease->term.bound_wall = slot->bound_wall;
	lease->name = dlock_bytes(slot->data, slot->name_len);
	lease->owner = dlock_bytes(slot->data + slot->name_len, slot->owner_len);
	lease->payload = dlock_bytes(slot->data + slot->name_len + slot->owner_len,
								 slot->payload_len);
	return true;
}

/* The token in a slot; DLOCK_TOKEN_NONE if the slot is free. */
DLockToken
dlock_page_token(Page page, int number)
{
	/* Nothing was ever written beyond pd_lower. */
	if (slot_offset(page, number) >= ((PageHeader) page)->pd_lower)
		return DLOCK_TOKEN_NONE;
	return slot_at(page, number)->token;
}

/* Free a slot.  The rest of it stays, to keep the WAL record short. */
DLockPageChange
dlock_page_erase(Page page, int number)
{
	DLockPageSlotDisk *slot = slot_at(page, number);

	slot->token = DLOCK_TOKEN_NONE;
	return one_range(page, &slot->token, sizeof(slot->token));
}

/*
 * Overwrite the parts of a lease that change while it is held: its ttl, bound and
 * origin, its lock delay, and its holds.
 */
DLockPageChange
dlock_page_set_state(Page page, int number, const DLockLeaseValue *lease)
{
	DLockPageSlotDisk *slot = slot_at(page, number);

	write_state(slot, lease);
	return one_range(page, &slot->ttl,
					 offsetof(DLockPageSlotDisk, min_hold_ms) -
					 offsetof(DLockPageSlotDisk, ttl));
}
