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
 *	  full-page images use.  pd_lower is the end of the slots, on the meta page
 *	  SLOTS_OFFSET.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "store/page.h"

#define SLOTS_MAGIC		0x444C5331	/* "DLS1" */

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

StaticAssertDecl(MAXALIGN(SizeOfPageHeaderData) + sizeof(DLockPageHeadDisk) <= SLOTS_OFFSET,
				 "slots overlap the head of the page");

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

static DLockPageSlotDisk *
slot_at(Page page, int number)
{
	int			slot_class = dlock_page_head(page)->slot_class;

	Assert(slot_class < DLOCK_PAGE_CLASSES);
	Assert(number >= 0 && number < dlock_page_slot_count(slot_class));
	return (DLockPageSlotDisk *) ((char *) page + SLOTS_OFFSET + number * slot_sizes[slot_class]);
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

/* Where the slots of a page of this class end. */
static LocationIndex
slots_end(int slot_class)
{
	return SLOTS_OFFSET + dlock_page_slot_count(slot_class) * slot_sizes[slot_class];
}

/* Turn any page into one of free slots, or, given a database, into its meta page. */
void
dlock_page_init(Page page, uint64 incarnation, int slot_class, Oid database)
{
	PageInit(page, BLCKSZ, 0);
	((PageHeader) page)->pd_lower = OidIsValid(database) ? SLOTS_OFFSET : slots_end(slot_class);
	*dlock_page_head(page) = (DLockPageHeadDisk)
	{
		.magic = OidIsValid(database) ? DLOCK_PAGE_META_MAGIC : SLOTS_MAGIC,
			.version = DLOCK_PAGE_VERSION,.slot_class = slot_class,
			.incarnation = incarnation,.database = database
	};
}

/*
 * The class of a page of slots in a store of this incarnation; DLOCK_PAGE_UNUSED or
 * DLOCK_PAGE_DAMAGED if it is none.
 */
int
dlock_page_class(Page page, uint64 incarnation)
{
	DLockPageHeadDisk *head = dlock_page_head(page);

	if (PageIsNew(page))
		return DLOCK_PAGE_UNUSED;
	if (head->magic != SLOTS_MAGIC || head->version != DLOCK_PAGE_VERSION ||
		head->slot_class >= DLOCK_PAGE_CLASSES ||
		((PageHeader) page)->pd_lower != slots_end(head->slot_class))
		return DLOCK_PAGE_DAMAGED;
	return (head->incarnation == incarnation) ? head->slot_class : DLOCK_PAGE_UNUSED;
}

static DLockPageRange
range_of(Page page, const void *start, Size length)
{
	return (DLockPageRange)
	{
		(const char *) start - (const char *) page, length
	};
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
DLockPageRange
dlock_page_write(Page page, int number, const DLockLeaseValue *lease)
{
	DLockPageSlotDisk *slot = slot_at(page, number);
	char	   *data = slot->data;

	Assert(lease->token != DLOCK_TOKEN_NONE);
	Assert((int) SLOT_DATA_OFFSET + lease->name.len + lease->owner.len +
		   lease->payload.len <= slot_sizes[dlock_page_head(page)->slot_class]);

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
	return range_of(page, slot, data - (char *) slot);
}

/*
 * Read the lease in a slot; false if the slot is free.  The texts and the
 * payload of the result point into the page.
 */
bool
dlock_page_read(Page page, int number, DLockLeaseValue *lease)
{
	DLockPageSlotDisk *slot = slot_at(page, number);

	if (slot->token == DLOCK_TOKEN_NONE)
		return false;
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

/* Free a slot.  The rest of it stays, to keep the WAL record short. */
DLockPageRange
dlock_page_erase(Page page, int number, const DLockLeaseValue *lease)
{
	DLockPageSlotDisk *slot = slot_at(page, number);

	slot->token = DLOCK_TOKEN_NONE;
	return range_of(page, &slot->token, sizeof(slot->token));
}

/*
 * Overwrite the parts of a lease that change while it is held: its ttl, bound and
 * origin, its lock delay, and its holds.
 */
DLockPageRange
dlock_page_set_state(Page page, int number, const DLockLeaseValue *lease)
{
	DLockPageSlotDisk *slot = slot_at(page, number);

	write_state(slot, lease);
	return range_of(page, &slot->ttl,
					offsetof(DLockPageSlotDisk, min_hold_ms) -
					offsetof(DLockPageSlotDisk, ttl));
}
