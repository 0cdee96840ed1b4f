/*-------------------------------------------------------------------------
 *
 * slot.c
 *	  Which slots of the store are free, and whose they are.
 *
 * NOTES
 *	  Free slots are known in memory only, by a directory with an element for
 *	  each page, which is built when the database is loaded.  A page with free
 *	  slots hangs in the list of its class and stripe; a backend takes slots
 *	  from its own stripe first.  Pages of no class (never initialised, or left
 *	  over from a template database) hang in a list of their own.  The relation
 *	  only grows when no page has room.
 *
 *	  A slot is reserved before the partition lock of its lease is taken, since
 *	  that can mean to extend the relation.  Until it is used it belongs to the
 *	  backend, which keeps it over errors and gives it back when it exits; a
 *	  slot that is freed is kept likewise, if none is.
 *
 *	  Lock rules.  The relation's extension lock (heavyweight) comes before a
 *	  stripe's mutex.  No two mutexes are held at a time.
 *
 * IDENTIFICATION
 *	  src/space/slot.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"

#include "base/fault.h"
#include "space/memory.h"
#include "space/partition.h"
#include "space/slot.h"
#include "store/store.h"

/* The end of a list of pages; block 0 is the meta page. */
#define NO_BLOCK		0

/*
 * What is known of a page.  "free" and "next" are protected by the mutex of
 * the page's stripe, or by the extension lock while it has no class; class and
 * stripe are set once.  "hint" is read and written without a lock.
 */
typedef struct DLockSlotPage
{
	uint64		free;			/* bit n: place n is free, not reserved */
	BlockNumber next;			/* next page of the list */
	Buffer		hint;			/* the buffer that the page was last seen in */
	uint8		slot_class;
	uint8		stripe;
} DLockSlotPage;

/*
 * The directory is a tree of cells of the memory that leases are made of, of
 * one height, so that it grows by a cell whatever else has been there.  A leaf
 * has so many pages, and a node above it so many cells.
 */
#define LEAF_PAGES		((BlockNumber) (DLOCK_MEMORY_CELL / sizeof(DLockSlotPage)))
#define NODE_CELLS		((uint32) (DLOCK_MEMORY_CELL / sizeof(uint32)))
#define BRANCH_LEAVES	(NODE_CELLS * NODE_CELLS * NODE_CELLS)
#define TREE_HEIGHT		3

StaticAssertDecl((uint64) DLOCK_SLOT_BRANCHES * BRANCH_LEAVES * LEAF_PAGES > DLOCK_SLOT_MAX_BLOCK,
				 "the directory covers all blocks that a slot can lie on");

/*
 * Slots that this backend has for itself: one of each class, as a rule, and
 * as many as a request needs while it is made.
 */
typedef struct DLockSlotKept
{
	int			count;
	DLockSlot	slots[DLOCK_NAMES_MAX];
} DLockSlotKept;

static struct
{
	DLockSlotShared *slots;		/* NULL until something was kept */
	uint32		generation;
	DLockSlotKept of_class[DLOCK_PAGE_CLASSES];
}			kept;

static inline void *
cell_at(uint32 cell)
{
	return dlock_memory_at(dlock_memory_cell(cell));
}

/* The element of the directory for a block that it covers. */
static DLockSlotPage *
page_at(DLockSlotShared *slots, BlockNumber block)
{
	uint32		leaf = block / LEAF_PAGES;
	uint32		cell = slots->branches[leaf / BRANCH_LEAVES];

	cell = ((uint32 *) cell_at(cell))[leaf / (NODE_CELLS * NODE_CELLS) % NODE_CELLS];
	cell = ((uint32 *) cell_at(cell))[leaf / NODE_CELLS % NODE_CELLS];
	cell = ((uint32 *) cell_at(cell))[leaf % NODE_CELLS];
	return (DLockSlotPage *) cell_at(cell) + block % LEAF_PAGES;
}

/* The cell that a link of the tree leads to, which is made if there is none; NULL if memory is full. */
static uint32 *
follow_link(uint32 *link)
{
	if (*link == 0)
	{
		DLockMemoryRef ref;

		if (!dlock_memory_prepare(1))
			return NULL;
		ref = dlock_memory_take();
		memset(dlock_memory_at(ref), 0, DLOCK_MEMORY_CELL);
		pg_write_barrier();
		*link = dlock_memory_number(ref);
	}
	return cell_at(*link);
}

/*
 * Make the directory cover a block; false if memory is full.  The extension
 * lock must be held, or the database be loading.
 */
static bool
cover_block(DLockSlotShared *slots, BlockNumber block)
{
	uint32		leaf = block / LEAF_PAGES;
	uint32	   *node;

	if (block > DLOCK_SLOT_MAX_BLOCK)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("lease store has reached its largest size"),
				 errhint("Release leases that are no longer needed.")));

	node = follow_link(&slots->branches[leaf / BRANCH_LEAVES]);
	if (node != NULL)
		node = follow_link(&node[leaf / (NODE_CELLS * NODE_CELLS) % NODE_CELLS]);
	if (node != NULL)
		node = follow_link(&node[leaf / NODE_CELLS % NODE_CELLS]);
	return node != NULL && follow_link(&node[leaf % NODE_CELLS]) != NULL;
}

/* Set up the directory, which is all zeros, of a store that has not been loaded yet. */
void
dlock_slot_init(DLockSlotShared *slots)
{
	for (int slot_class = 0; slot_class < DLOCK_PAGE_CLASSES; slot_class++)
	{
		for (int stripe = 0; stripe < DLOCK_SLOT_STRIPES; stripe++)
			SpinLockInit(&slots->stripes[slot_class][stripe].mutex);
	}
}

/*
 * Forget all pages; those to come are of this incarnation.  The database must
 * be loading.
 */
void
dlock_slot_reset(DLockSlotShared *slots, uint64 incarnation)
{
	slots->incarnation = incarnation;
	slots->generation++;
	slots->nblocks = 1;
	slots->blank = NO_BLOCK;

	/*
	 * A backend that is just exiting may give a slot back.  It does so under
	 * the mutex, and not once the generation has changed.
	 */
	for (int slot_class = 0; slot_class < DLOCK_PAGE_CLASSES; slot_class++)
	{
		for (int i = 0; i < DLOCK_SLOT_STRIPES; i++)
		{
			DLockSlotStripe *stripe = &slots->stripes[slot_class][i];

			SpinLockAcquire(&stripe->mutex);
			stripe->head = NO_BLOCK;
			SpinLockRelease(&stripe->mutex);
		}
	}
}

/* Free a cell of the tree, and all below it, "height" levels. */
static void
free_tree(uint32 cell, int height)
{
	uint32	   *node = cell_at(cell);

	if (cell == 0)
		return;
	for (int i = 0; i < NODE_CELLS && height > 0; i++)
		free_tree(node[i], height - 1);
	dlock_memory_give_back(dlock_memory_cell(cell));
}

/* Free the memory of a directory whose database is gone. */
void
dlock_slot_release(DLockSlotShared *slots)
{
	for (int i = 0; i < DLOCK_SLOT_BRANCHES; i++)
		free_tree(slots->branches[i], TREE_HEIGHT);
}

/*
 * Mark places of a page as free.  A page that had no free place goes to the head
 * of its list.  Nothing is done if the directory has been built anew since this
 * generation.
 */
static void
free_places(DLockSlotShared *slots, BlockNumber block, uint64 places, uint32 generation)
{
	DLockSlotPage *page = page_at(slots, block);
	DLockSlotStripe *stripe = &slots->stripes[page->slot_class][page->stripe];

	SpinLockAcquire(&stripe->mutex);
	if (*(volatile uint32 *) &slots->generation == generation && places != 0)
	{
		Assert((page->free & places) == 0);
		if (page->free == 0)
		{
			page->next = stripe->head;
			stripe->head = block;
		}
		page->free |= places;
	}
	SpinLockRelease(&stripe->mutex);
}

static void
free_slot(DLockSlotShared *slots, DLockSlot slot, uint32 generation)
{
	free_places(slots, dlock_slot_block(slot), UINT64CONST(1) << dlock_slot_place(slot), generation);
}

/*
 * Give a page a class and a stripe; "taken" has a bit for each of its places that is
 * not free.  Locks as for cover_block().
 */
static void
set_class(DLockSlotShared *slots, BlockNumber block, int slot_class, int stripe, uint64 taken)
{
	DLockSlotPage *page = page_at(slots, block);
	uint64		all_places = (UINT64CONST(1) << dlock_page_slot_count(slot_class)) - 1;

	page->free = 0;
	page->hint = InvalidBuffer;
	page->slot_class = slot_class;
	page->stripe = stripe;
	free_places(slots, block, all_places & ~taken, slots->generation);
}

/*
 * Enter a page that was found on disk; they come in ascending order.
 *
 * "slot_class" is negative for a page that is to be initialised before it is
 * used.  "taken" has a bit for each place with a lease.  The database must be
 * loading.  False if memory is full.
 */
bool
dlock_slot_add_page(DLockSlotShared *slots,
					BlockNumber block, int slot_class, uint64 taken)
{
	Assert(block == slots->nblocks);
	if (!cover_block(slots, block))
		return false;
	if (slot_class < 0)
	{
		page_at(slots, block)->next = slots->blank;
		slots->blank = block;
	}
	else
		set_class(slots, block, slot_class, block % DLOCK_SLOT_STRIPES, taken);
	slots->nblocks = block + 1;
	return true;
}

/* Give back all but "left" slots of each class that this backend keeps. */
static void
trim_kept(int left)
{
	for (int slot_class = 0; slot_class < DLOCK_PAGE_CLASSES; slot_class++)
	{
		DLockSlotKept *of_class = &kept.of_class[slot_class];

		while (of_class->count > left)
			free_slot(kept.slots, of_class->slots[--of_class->count], kept.generation);
	}
}

/* Give back at exit what this backend kept. */
static void
give_back_kept(int code, Datum arg)
{
	trim_kept(0);
}

/* Turn to what this backend kept, unless that is void. */
static void
refresh_kept(DLockSlotShared *slots)
{
	if (kept.slots == NULL)
	{
		kept.slots = slots;
		on_shmem_exit(give_back_kept, (Datum) 0);
	}
	if (kept.generation != slots->generation)
	{
		kept.generation = slots->generation;
		for (int slot_class = 0; slot_class < DLOCK_PAGE_CLASSES; slot_class++)
			kept.of_class[slot_class].count = 0;
	}
}

/* Take a slot from a stripe; DLOCK_SLOT_NONE if it has none. */
static DLockSlot
take_from_stripe(DLockSlotShared *slots, int slot_class, int stripe_no)
{
	DLockSlotStripe *stripe = &slots->stripes[slot_class][stripe_no];
	DLockSlot	slot = DLOCK_SLOT_NONE;

	/* A glance without the mutex can only miss what was just put there. */
	if (*(volatile BlockNumber *) &stripe->head == NO_BLOCK)
		return slot;

	SpinLockAcquire(&stripe->mutex);
	if (stripe->head != NO_BLOCK)
	{
		DLockSlotPage *page = page_at(slots, stripe->head);
		int			place = pg_rightmost_one_pos64(page->free);

		slot = dlock_slot_make(stripe->head, place);
		page->free &= page->free - 1;
		if (page->free == 0)
			stripe->head = page->next;
	}
	SpinLockRelease(&stripe->mutex);
	return slot;
}

/*
 * Find or make a page of this class for a stripe, and take its first slot;
 * DLOCK_SLOT_NONE if memory is full.
 * May wait, extend the relation, and throw; what was done by then stands.
 */
static DLockSlot
take_from_new_page(DLockSlotShared *slots, Relation rel,
				   int slot_class, int stripe)
{
	DLockSlot	slot;
	BlockNumber block;

	LockRelationForExtension(rel, ExclusiveLock);

	/* The backend that had the lock before may have left some slots. */
	slot = take_from_stripe(slots, slot_class, stripe);
	block = (slots->blank != NO_BLOCK) ? slots->blank : slots->nblocks;
	if (slot == DLOCK_SLOT_NONE && cover_block(slots, block))
	{
		DLOCK_FAULT("extend");
		dlock_store_init_page(rel, block, slots->incarnation, slot_class);
		DLOCK_FAULT("extended");

		if (block == slots->blank)
			slots->blank = page_at(slots, block)->next;
		else
			slots->nblocks = block + 1;
		slot = dlock_slot_make(block, 0);
		set_class(slots, block, slot_class, stripe, UINT64CONST(1));
	}
	UnlockRelationForExtension(rel, ExclusiveLock);
	return slot;
}

/*
 * A slot that this backend has for itself, the nth (from zero) of its class;
 * DLOCK_SLOT_NONE if it has no more than n.
 */
DLockSlot
dlock_slot_reserved(DLockSlotShared *slots, int slot_class, int n)
{
	DLockSlotKept *of_class = &kept.of_class[slot_class];

	if (kept.slots != slots || kept.generation != slots->generation ||
		n >= of_class->count)
		return DLOCK_SLOT_NONE;
	return of_class->slots[of_class->count - 1 - n];
}

/*
 * Have "count" free slots of this class, at most DLOCK_NAMES_MAX.  They are this
 * backend's, to be used (dlock_slot_use) or not, until the database is loaded
 * anew.  False if memory is full.
 *
 * May wait and throw; no partition lock may be held.
 */
bool
dlock_slot_reserve(DLockSlotShared *slots, Relation rel,
				   int slot_class, int count)
{
	int			stripe = MyProcPid % DLOCK_SLOT_STRIPES;
	DLockSlotKept *of_class = &kept.of_class[slot_class];

	Assert(!dlock_partition_is_any_held());
	Assert(CheckRelationLockedByMe(rel, RowExclusiveLock, true));
	if (count > (int) lengthof(of_class->slots))
		elog(ERROR, "too many slots for one request: %d", count);
	refresh_kept(slots);
	while (of_class->count < count)
	{
		DLockSlot	slot = take_from_stripe(slots, slot_class, stripe);

		/*
		 * A stripe that has no page of its own gets one, as long as the store
		 * is small; after that it shares the others', so as not to grow for
		 * nothing.
		 */
		if (slots->nblocks > DLOCK_SLOT_STRIPES)
		{
			for (int i = 1; i < DLOCK_SLOT_STRIPES && slot == DLOCK_SLOT_NONE; i++)
				slot = take_from_stripe(slots, slot_class, (stripe + i) % DLOCK_SLOT_STRIPES);
		}
		if (slot == DLOCK_SLOT_NONE)
			slot = take_from_new_page(slots, rel, slot_class, stripe);
		if (slot == DLOCK_SLOT_NONE)
			return false;
		of_class->slots[of_class->count++] = slot;
	}
	return true;
}

/*
 * The first reserved slot of this class is the caller's now.  Cannot fail.
 */
void
dlock_slot_use(int slot_class)
{
	Assert(kept.of_class[slot_class].count > 0);
	kept.of_class[slot_class].count--;
}

/* Give back what was reserved beyond what is worth keeping. */
void
dlock_slot_trim(void)
{
	trim_kept(1);
}

/*
 * A slot is empty, on disk as well: it is free for others.  Cannot fail.
 */
void
dlock_slot_free(DLockSlotShared *slots, DLockSlot slot)
{
	int			slot_class = page_at(slots, dlock_slot_block(slot))->slot_class;
	DLockSlotKept *of_class = &kept.of_class[slot_class];

	if (kept.slots == slots && kept.generation == slots->generation &&
		of_class->count == 0)
		of_class->slots[of_class->count++] = slot;
	else
		free_slot(slots, slot, slots->generation);
}

/*
 * Where to remember the buffer that the page of a slot is in.
 */
Buffer *
dlock_slot_hint(DLockSlotShared *slots, DLockSlot slot)
{
	return &page_at(slots, dlock_slot_block(slot))->hint;
}
