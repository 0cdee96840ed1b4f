/*-------------------------------------------------------------------------
 *
 * dlock_store.c
 *	  The durable home of the leases: slots on pages, written in place.
 *
 * NOTES
 *	  The only file that changes pages or writes WAL.  Records are generic
 *	  ones (generic_xlog.c), so recovery and standbys replay them without this
 *	  library.  A lease is written to its slot when it is granted and the slot
 *	  is freed when the lease ends; there are no versions, no transaction ids,
 *	  and nothing to vacuum.
 *
 *	  Which slots are free is known in memory only, by a directory with an
 *	  element for each page, which is built when the database is loaded.  A
 *	  page with free slots hangs in the list of its class and stripe; a backend
 *	  takes slots from its own stripe first.  Pages of no class (never
 *	  initialised, or left over from a template database) hang in a list of
 *	  their own.  The relation only grows when no page has room.
 *
 *	  A slot is reserved before the partition lock of its lease is taken, since
 *	  that can mean to extend the relation.  Until it is used it belongs to the
 *	  backend, which keeps it over errors and gives it back when it exits; a
 *	  slot that is freed is kept likewise, if none is.
 *
 *	  Lock rules.  In order: the relation's extension lock (heavyweight), a
 *	  buffer's content lock, a stripe's mutex.  The functions under "records"
 *	  take the content lock and nothing else, and may be called under a
 *	  partition lock.
 *
 *	  The end of a record is not left in XactLastRecEnd: at the end of a
 *	  transaction without an xid the server would pass it on to the WAL writer
 *	  and wake that for each record.  dlock_flush.c sees to the flushing.
 *
 * IDENTIFICATION
 *	  src/dlock_store.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/generic_xlog.h"
#include "access/htup_details.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/bufmgr.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"

#include "dlock_error.h"
#include "dlock_rule.h"
#include "dlock_store.h"

/* The end of a list of pages; block 0 is the meta page. */
#define NO_BLOCK		0

/*
 * What is known of a page.  "free" and "next" are protected by the mutex of
 * the page's stripe, or by the extension lock while it has no class; class and
 * stripe are set once.  "recent" is a hint, read and written without a lock.
 */
typedef struct DLockStorePage
{
	uint64		free;			/* bit n: place n is free and nobody's */
	BlockNumber next;			/* next page of the list */
	Buffer		recent;			/* the buffer that the page was last seen in */
	uint8		slot_class;
	uint8		stripe;
} DLockStorePage;

/* Slots that this backend has for itself, one of each class. */
static struct
{
	DLockStoreShared *store;	/* NULL until something was kept */
	dsa_area   *area;
	uint32		generation;
	DLockSlot	slots[DLOCK_PAGE_CLASSES];
}			kept;

/* The element of the directory for a block that it covers. */
static DLockStorePage *
page_at(DLockStoreShared *store, dsa_area *area, BlockNumber block)
{
	uint32		index = block / DLOCK_STORE_FIRST_SEGMENT + 1;
	int			segment = pg_leftmost_one_pos32(index);
	BlockNumber start = DLOCK_STORE_FIRST_SEGMENT * ((1U << segment) - 1);
	DLockStorePage *pages = dsa_get_address(area, store->segments[segment]);

	return &pages[block - start];
}

/*
 * Make the directory cover a block; false if there is no memory for that.  The
 * extension lock must be held, or the database be loading.
 */
static bool
cover_block(DLockStoreShared *store, dsa_area *area, BlockNumber block)
{
	int			segment = pg_leftmost_one_pos32(block / DLOCK_STORE_FIRST_SEGMENT + 1);

	for (int i = 0; i <= segment; i++)
	{
		Size		size = sizeof(DLockStorePage) *
			((Size) DLOCK_STORE_FIRST_SEGMENT << i);

		if (DsaPointerIsValid(store->segments[i]))
			continue;
		store->segments[i] =
			dsa_allocate_extended(area, size,
								  DSA_ALLOC_HUGE | DSA_ALLOC_NO_OOM | DSA_ALLOC_ZERO);
		if (!DsaPointerIsValid(store->segments[i]))
			return false;
	}
	return true;
}

/* Finish a record and return its end, without leaving it to the commit. */
static XLogRecPtr
finish_record(GenericXLogState *state)
{
	XLogRecPtr	saved = XactLastRecEnd;
	XLogRecPtr	lsn = GenericXLogFinish(state);

	XactLastRecEnd = saved;
	return lsn;
}

/* Set up the memory of a store that has not been loaded yet. */
void
dlock_store_init(DLockStoreShared *store)
{
	memset(store, 0, sizeof(DLockStoreShared));
	for (int slot_class = 0; slot_class < DLOCK_PAGE_CLASSES; slot_class++)
	{
		for (int stripe = 0; stripe < DLOCK_STORE_STRIPES; stripe++)
			SpinLockInit(&store->stripes[slot_class][stripe].mutex);
	}
}

/*
 * Forget all pages, and turn to this relation, with this incarnation.  The
 * database must be loading.
 */
void
dlock_store_reset(DLockStoreShared *store, Relation rel, uint64 incarnation)
{
	store->locator = rel->rd_locator;
	store->incarnation = incarnation;
	store->generation++;
	store->nblocks = 1;
	store->blank = NO_BLOCK;

	/*
	 * A backend that is just exiting may give a slot back.  It does so under
	 * the mutex, and not once the generation has changed.
	 */
	for (int slot_class = 0; slot_class < DLOCK_PAGE_CLASSES; slot_class++)
	{
		for (int i = 0; i < DLOCK_STORE_STRIPES; i++)
		{
			DLockStoreStripe *stripe = &store->stripes[slot_class][i];

			SpinLockAcquire(&stripe->mutex);
			stripe->head = NO_BLOCK;
			SpinLockRelease(&stripe->mutex);
		}
	}
}

/* Free the memory of a store whose database is gone. */
void
dlock_store_release(DLockStoreShared *store, dsa_area *area)
{
	for (int i = 0; i < DLOCK_STORE_SEGMENTS; i++)
	{
		if (DsaPointerIsValid(store->segments[i]))
			dsa_free(area, store->segments[i]);
	}
}

/* Does the memory speak of the pages of this relation as it is now? */
bool
dlock_store_is_current(const DLockStoreShared *store, Relation rel)
{
	return RelFileLocatorEquals(store->locator, rel->rd_locator);
}

/* Turn to a relation into which the pages were copied as they are. */
void
dlock_store_adopt(DLockStoreShared *store, Relation rel)
{
	store->locator = rel->rd_locator;
}

/*
 * Read the meta page; false if the store has none yet.  Throws if it is of
 * another version or no meta page.
 */
bool
dlock_store_read_meta(Relation rel, DLockPageMeta *meta)
{
	Buffer		buffer;
	bool		is_new;
	bool		is_meta;
	int			version = 0;

	if (RelationGetNumberOfBlocks(rel) == 0)
		return false;

	buffer = ReadBuffer(rel, DLOCK_PAGE_META_BLOCK);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	is_new = PageIsNew(BufferGetPage(buffer));
	is_meta = dlock_page_is_meta(BufferGetPage(buffer));
	if (is_meta)
		version = dlock_page_get_meta(BufferGetPage(buffer), meta);
	UnlockReleaseBuffer(buffer);

	/* A crash can leave the page extended but not initialised. */
	if (is_new)
		return false;
	if (!is_meta)
		dlock_error_store_damaged(DLOCK_PAGE_META_BLOCK, "It is not a meta page.");
	if (version != DLOCK_PAGE_VERSION)
		dlock_error_store_version(version, DLOCK_PAGE_VERSION);
	return true;
}

/*
 * Write the meta page, making the store's first block if need be; returns the
 * end of the record.  The database must be loading.
 */
XLogRecPtr
dlock_store_write_meta(Relation rel, const DLockPageMeta *meta)
{
	GenericXLogState *state;
	Buffer		buffer;
	XLogRecPtr	lsn;

	LockRelationForExtension(rel, ExclusiveLock);
	if (RelationGetNumberOfBlocks(rel) == 0)
		buffer = ReadBufferExtended(rel, MAIN_FORKNUM, P_NEW, RBM_ZERO_AND_LOCK, NULL);
	else
	{
		buffer = ReadBuffer(rel, DLOCK_PAGE_META_BLOCK);
		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	}
	UnlockRelationForExtension(rel, ExclusiveLock);

	Assert(BufferGetBlockNumber(buffer) == DLOCK_PAGE_META_BLOCK);
	state = GenericXLogStart(rel);
	dlock_page_init_meta(GenericXLogRegisterBuffer(state, buffer, GENERIC_XLOG_FULL_IMAGE),
						 meta);
	lsn = finish_record(state);
	UnlockReleaseBuffer(buffer);
	return lsn;
}

/* Put a page with free slots at the head of its list. */
static void
push_page(DLockStoreShared *store, DLockStorePage *page, BlockNumber block, uint64 free)
{
	DLockStoreStripe *stripe = &store->stripes[page->slot_class][page->stripe];

	SpinLockAcquire(&stripe->mutex);
	page->free = free;
	page->next = stripe->head;
	stripe->head = block;
	SpinLockRelease(&stripe->mutex);
}

static uint64
all_places(int slot_class)
{
	return (UINT64CONST(1) << dlock_page_slot_count(slot_class)) - 1;
}

/* Free the given places of a page on disk. */
static void
erase_places(Relation rel, BlockNumber block, uint64 places)
{
	Buffer		buffer = ReadBuffer(rel, block);
	GenericXLogState *state;
	Page		page;

	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	state = GenericXLogStart(rel);
	page = GenericXLogRegisterBuffer(state, buffer, 0);
	for (; places != 0; places &= places - 1)
		(void) dlock_page_erase(page, pg_rightmost_one_pos64(places));
	(void) finish_record(state);
	UnlockReleaseBuffer(buffer);
}

/*
 * Copy a block into "copy", so that it can be looked at without a lock.
 */
static void
copy_block(Relation rel, BlockNumber block, BufferAccessStrategy strategy, char *copy)
{
	Buffer		buffer = ReadBufferExtended(rel, MAIN_FORKNUM, block,
											RBM_NORMAL, strategy);

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	memcpy(copy, BufferGetPage(buffer), BLCKSZ);
	UnlockReleaseBuffer(buffer);
}

/*
 * Show all leases of a page to the visitor; returns the places that are taken,
 * and in "erase" those that are not to be.
 */
static uint64
visit_page(Page page, BlockNumber block, int slot_class,
		   DLockStoreVisitor visitor, void *arg, uint64 *erase)
{
	uint64		taken = 0;

	*erase = 0;
	for (int place = 0; place < dlock_page_slot_count(slot_class); place++)
	{
		DLockLeaseValue lease;
		int			len;

		if (!dlock_page_read(page, place, &lease))
			continue;

		len = lease.name.len + lease.owner.len + lease.payload.len;
		if (lease.name.len == 0 || lease.owner.len == 0 ||
			lease.payload.len > DLOCK_PAYLOAD_MAX ||
			dlock_page_class_for(len) > slot_class)
			dlock_error_store_damaged(block, "A slot has lengths that it cannot have.");

		if (visitor(&lease, dlock_slot_make(block, place), arg) == DLOCK_STORE_KEEP)
			taken |= UINT64CONST(1) << place;
		else
			*erase |= UINT64CONST(1) << place;
	}
	return taken;
}

/*
 * Look at all pages, show the leases to the visitor, erase on disk those that
 * it says, and build the directory.
 *
 * dlock_store_reset() must have been called, and the database be loading.  The
 * visitor may throw.  Throws also when a page is damaged or memory is full.
 */
void
dlock_store_load(DLockStoreShared *store, dsa_area *area, Relation rel,
				 DLockStoreVisitor visitor, void *arg)
{
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	BlockNumber nblocks = RelationGetNumberOfBlocks(rel);
	PGAlignedBlock copy;

	if (nblocks > DLOCK_SLOT_MAX_BLOCK + 1)
		dlock_error_store_full();

	for (BlockNumber block = 1; block < nblocks; block++)
	{
		DLockStorePage *page;
		int			slot_class;
		uint64		taken;
		uint64		erase;

		CHECK_FOR_INTERRUPTS();
		if (!cover_block(store, area, block))
			dlock_error_space_full();
		page = page_at(store, area, block);
		page->free = 0;
		page->recent = InvalidBuffer;

		copy_block(rel, block, strategy, copy.data);
		switch (dlock_page_kind((Page) copy.data, store->incarnation, &slot_class))
		{
			case DLOCK_PAGE_UNUSED:
				page->next = store->blank;
				store->blank = block;
				break;

			case DLOCK_PAGE_SLOTS:
				taken = visit_page((Page) copy.data, block, slot_class,
								   visitor, arg, &erase);
				if (erase != 0)
					erase_places(rel, block, erase);
				page->slot_class = slot_class;
				page->stripe = block % DLOCK_STORE_STRIPES;
				if ((all_places(slot_class) & ~taken) != 0)
					push_page(store, page, block, all_places(slot_class) & ~taken);
				break;

			case DLOCK_PAGE_DAMAGED:
				dlock_error_store_damaged(block, "It is not a page of slots.");
		}
		store->nblocks = block + 1;
	}
	FreeAccessStrategy(strategy);
}

/*
 * Show all leases on the pages to the visitor, without any change and without
 * need of the directory: for a standby.  The visitor's answers do not matter.
 */
void
dlock_store_visit(Relation rel, uint64 incarnation,
				  DLockStoreVisitor visitor, void *arg)
{
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	BlockNumber nblocks = RelationGetNumberOfBlocks(rel);
	PGAlignedBlock copy;

	for (BlockNumber block = 1; block < nblocks; block++)
	{
		int			slot_class;
		uint64		erase;

		CHECK_FOR_INTERRUPTS();
		copy_block(rel, block, strategy, copy.data);
		if (dlock_page_kind((Page) copy.data, incarnation, &slot_class) == DLOCK_PAGE_SLOTS)
			(void) visit_page((Page) copy.data, block, slot_class, visitor, arg, &erase);
	}
	FreeAccessStrategy(strategy);
}

/*
 * Reserve the next "count" tokens, none of them at or below "floor"; with
 * "jump", in a new epoch.  The caller must flush up to the result before it
 * hands out any token from "first" to "last".
 *
 * The sequence is the authority.  It is changed in place, as nextval() does,
 * but without an xid, so that this commits at once and for good.  The meta page
 * remembers what was written there; both change in one record.  If they
 * disagree, somebody else has set the sequence: it was restored from a dump,
 * whose source may have granted more tokens since, so that calls for a new
 * epoch, too.
 */
XLogRecPtr
dlock_store_reserve_tokens(Relation rel, Relation sequence, DLockToken floor,
						   int count, bool jump,
						   DLockToken *first, DLockToken *last)
{
	Buffer		meta_buffer = ReadBuffer(rel, DLOCK_PAGE_META_BLOCK);
	Buffer		sequence_buffer = ReadBuffer(sequence, 0);
	GenericXLogState *state;
	Page		page;
	HeapTupleHeader tuple;
	Form_pg_sequence_data data;
	DLockPageMeta meta;
	DLockToken	value;
	DLockToken	base;
	XLogRecPtr	lsn;

	LockBuffer(sequence_buffer, BUFFER_LOCK_EXCLUSIVE);
	LockBuffer(meta_buffer, BUFFER_LOCK_EXCLUSIVE);

	state = GenericXLogStart(rel);
	page = GenericXLogRegisterBuffer(state, sequence_buffer, 0);
	tuple = (HeapTupleHeader) PageGetItem(page, PageGetItemId(page, FirstOffsetNumber));
	data = (Form_pg_sequence_data) ((char *) tuple + tuple->t_hoff);
	(void) dlock_page_get_meta(BufferGetPage(meta_buffer), &meta);

	value = data->is_called ? data->last_value : data->last_value - 1;
	base = Max(Max(value, meta.reserved), Max(floor, 0));
	if (jump || value != meta.reserved)
	{
		base = dlock_rule_next_epoch(base);
		if (base == DLOCK_TOKEN_NONE)
			dlock_error_tokens_exhausted();
	}
	if (base > PG_INT64_MAX - count)
		dlock_error_tokens_exhausted();
	*first = base + 1;
	*last = base + count;

	data->last_value = *last;
	data->is_called = true;
	data->log_cnt = 0;

	meta.reserved = *last;
	dlock_page_set_meta(GenericXLogRegisterBuffer(state, meta_buffer, 0), &meta);
	lsn = finish_record(state);

	UnlockReleaseBuffer(meta_buffer);
	UnlockReleaseBuffer(sequence_buffer);
	return lsn;
}

/*
 * Mark a slot as free in the directory, unless that has been built anew since
 * this generation.
 */
static void
put_slot(DLockStoreShared *store, dsa_area *area, DLockSlot slot, uint32 generation)
{
	BlockNumber block = dlock_slot_block(slot);
	DLockStorePage *page = page_at(store, area, block);
	uint64		bit = UINT64CONST(1) << dlock_slot_place(slot);
	DLockStoreStripe *stripe = &store->stripes[page->slot_class][page->stripe];

	SpinLockAcquire(&stripe->mutex);
	if (*(volatile uint32 *) &store->generation == generation)
	{
		Assert((page->free & bit) == 0);
		if (page->free == 0)
		{
			page->next = stripe->head;
			stripe->head = block;
		}
		page->free |= bit;
	}
	SpinLockRelease(&stripe->mutex);
}

/* Give back at exit what this backend kept. */
static void
give_back_kept(int code, Datum arg)
{
	DLockStoreShared *store = kept.store;

	for (int slot_class = 0; slot_class < DLOCK_PAGE_CLASSES; slot_class++)
	{
		if (kept.slots[slot_class] != DLOCK_SLOT_NONE)
			put_slot(store, kept.area, kept.slots[slot_class], kept.generation);
		kept.slots[slot_class] = DLOCK_SLOT_NONE;
	}
}

/* Turn to what this backend kept, unless that is void. */
static void
refresh_kept(DLockStoreShared *store, dsa_area *area)
{
	if (kept.store == NULL)
	{
		kept.store = store;
		kept.area = area;
		on_shmem_exit(give_back_kept, (Datum) 0);
	}
	if (kept.generation != store->generation)
	{
		kept.generation = store->generation;
		memset(kept.slots, 0, sizeof(kept.slots));
	}
}

/* Take a slot from a stripe; DLOCK_SLOT_NONE if it has none. */
static DLockSlot
take_from_stripe(DLockStoreShared *store, dsa_area *area, int slot_class, int stripe_no)
{
	DLockStoreStripe *stripe = &store->stripes[slot_class][stripe_no];
	DLockSlot	slot = DLOCK_SLOT_NONE;

	/* A glance without the mutex can only miss what was just put there. */
	if (*(volatile BlockNumber *) &stripe->head == NO_BLOCK)
		return slot;

	SpinLockAcquire(&stripe->mutex);
	if (stripe->head != NO_BLOCK)
	{
		DLockStorePage *page = page_at(store, area, stripe->head);
		int			place = pg_rightmost_one_pos64(page->free);

		slot = dlock_slot_make(stripe->head, place);
		page->free &= page->free - 1;
		if (page->free == 0)
			stripe->head = page->next;
	}
	SpinLockRelease(&stripe->mutex);
	return slot;
}

/* Take a slot from this backend's stripe or, failing that, from any other. */
static DLockSlot
take_from_any(DLockStoreShared *store, dsa_area *area, int slot_class, int own_stripe)
{
	for (int i = 0; i < DLOCK_STORE_STRIPES; i++)
	{
		DLockSlot	slot = take_from_stripe(store, area, slot_class,
											(own_stripe + i) % DLOCK_STORE_STRIPES);

		if (slot != DLOCK_SLOT_NONE)
			return slot;
	}
	return DLOCK_SLOT_NONE;
}

/*
 * Find or make a page of this class for a stripe, and take its first slot.
 * May wait, extend the relation, and throw; what was done by then stands.
 */
static DLockSlot
take_from_new_page(DLockStoreShared *store, dsa_area *area, Relation rel,
				   int slot_class, int stripe)
{
	DLockSlot	slot;
	DLockStorePage *page;
	GenericXLogState *state;
	Buffer		buffer;
	BlockNumber block;

	LockRelationForExtension(rel, ExclusiveLock);

	/* Whoever had the lock before may have made room for us, too. */
	slot = take_from_stripe(store, area, slot_class, stripe);
	if (slot != DLOCK_SLOT_NONE)
	{
		UnlockRelationForExtension(rel, ExclusiveLock);
		return slot;
	}

	block = store->blank;
	if (block == NO_BLOCK)
	{
		block = store->nblocks;
		if (block > DLOCK_SLOT_MAX_BLOCK)
			dlock_error_store_full();
		if (!cover_block(store, area, block))
			dlock_error_space_full();
	}
	page = page_at(store, area, block);

	/* An earlier attempt may have extended the relation and then failed. */
	if (block < RelationGetNumberOfBlocks(rel))
	{
		buffer = ReadBuffer(rel, block);
		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	}
	else
		buffer = ReadBufferExtended(rel, MAIN_FORKNUM, P_NEW, RBM_ZERO_AND_LOCK, NULL);
	Assert(BufferGetBlockNumber(buffer) == block);

	state = GenericXLogStart(rel);
	dlock_page_init_slots(GenericXLogRegisterBuffer(state, buffer, GENERIC_XLOG_FULL_IMAGE),
						  store->incarnation, slot_class);
	(void) finish_record(state);
	UnlockReleaseBuffer(buffer);

	if (block == store->blank)
		store->blank = page->next;
	else
		store->nblocks = block + 1;
	page->recent = InvalidBuffer;
	page->slot_class = slot_class;
	page->stripe = stripe;
	push_page(store, page, block, all_places(slot_class) & ~UINT64CONST(1));

	UnlockRelationForExtension(rel, ExclusiveLock);
	return dlock_slot_make(block, 0);
}

/* The slot of this class that this backend has for itself, if any. */
DLockSlot
dlock_store_reserved(DLockStoreShared *store, int slot_class)
{
	if (kept.store != store || kept.generation != store->generation)
		return DLOCK_SLOT_NONE;
	return kept.slots[slot_class];
}

/*
 * Have a free slot of this class.  It is this backend's, to be used
 * (dlock_store_use) or not, until the database is loaded anew.
 *
 * May wait and throw; no partition lock may be held.
 */
DLockSlot
dlock_store_reserve(DLockStoreShared *store, dsa_area *area, Relation rel,
					int slot_class)
{
	int			stripe = MyProcPid % DLOCK_STORE_STRIPES;
	DLockSlot	slot;

	refresh_kept(store, area);
	if (kept.slots[slot_class] != DLOCK_SLOT_NONE)
		return kept.slots[slot_class];

	slot = take_from_stripe(store, area, slot_class, stripe);

	/*
	 * A stripe that has no page of its own gets one, as long as the store is
	 * small; after that it shares the others', so as not to grow for nothing.
	 */
	if (slot == DLOCK_SLOT_NONE && store->nblocks > DLOCK_STORE_STRIPES)
		slot = take_from_any(store, area, slot_class, stripe);
	if (slot == DLOCK_SLOT_NONE)
		slot = take_from_new_page(store, area, rel, slot_class, stripe);

	kept.slots[slot_class] = slot;
	return slot;
}

/* The reserved slot of this class has been used.  Cannot fail. */
void
dlock_store_use(int slot_class)
{
	Assert(kept.slots[slot_class] != DLOCK_SLOT_NONE);
	kept.slots[slot_class] = DLOCK_SLOT_NONE;
}

/*
 * A slot has been erased on disk: it is free for others.  No partition lock
 * needs to be held.  Cannot fail.
 */
void
dlock_store_free(DLockStoreShared *store, dsa_area *area, DLockSlot slot)
{
	int			slot_class = page_at(store, area, dlock_slot_block(slot))->slot_class;

	if (kept.store == store && kept.generation == store->generation &&
		kept.slots[slot_class] == DLOCK_SLOT_NONE)
		kept.slots[slot_class] = slot;
	else
		put_slot(store, area, slot, store->generation);
}

/*
 * Pin the page of a slot.  Reads it if need be, so it may wait and throw; no
 * partition lock may be held.
 */
Buffer
dlock_store_pin(DLockStoreShared *store, dsa_area *area, Relation rel,
				DLockSlot slot)
{
	Buffer		buffer = dlock_store_pin_cached(store, area, rel, slot);

	if (!BufferIsValid(buffer))
	{
		BlockNumber block = dlock_slot_block(slot);

		buffer = ReadBuffer(rel, block);
		page_at(store, area, block)->recent = buffer;
	}
	return buffer;
}

/*
 * Pin the page of a slot if it is in the buffer that it was last seen in;
 * InvalidBuffer otherwise.  Does not wait; may be called under a partition lock.
 */
Buffer
dlock_store_pin_cached(DLockStoreShared *store, dsa_area *area, Relation rel,
					   DLockSlot slot)
{
	BlockNumber block = dlock_slot_block(slot);
	Buffer		recent = page_at(store, area, block)->recent;

	if (BufferIsValid(recent) &&
		ReadRecentBuffer(rel->rd_locator, MAIN_FORKNUM, block, recent))
		return recent;
	return InvalidBuffer;
}

/* Drop a pin. */
void
dlock_store_unpin(Buffer buffer)
{
	ReleaseBuffer(buffer);
}

/*
 * Log the change that was just made to a page, within the same critical
 * section; returns the end of the record.
 *
 * GenericXLogFinish() finds out what has changed by copying the page and
 * comparing the copy byte by byte.  We know what has changed, so this builds
 * the same record directly, at a sixth of the cost: for each range its offset,
 * its length, and the bytes (generic_xlog.c, applyPageRedo).  That layout has
 * not changed since 9.6, and wal_consistency_checking = generic verifies it.
 */
static XLogRecPtr
log_change(Buffer buffer, DLockPageChange *change)
{
	Page		page = BufferGetPage(buffer);
	XLogRecPtr	saved = XactLastRecEnd;
	XLogRecPtr	lsn;

	MarkBufferDirty(buffer);
	XLogBeginInsert();
	XLogRegisterBuffer(0, buffer, REGBUF_STANDARD);
	for (int i = 0; i < change->count; i++)
	{
		DLockPageRange *range = &change->ranges[i];

		XLogRegisterBufData(0, (char *) range, sizeof(DLockPageRange));
		XLogRegisterBufData(0, page + range->offset, range->length);
	}
	lsn = XLogInsert(RM_GENERIC_ID, 0);
	PageSetLSN(page, lsn);
	XactLastRecEnd = saved;
	return lsn;
}

StaticAssertDecl(sizeof(DLockPageRange) == 2 * sizeof(OffsetNumber),
				 "a range is not laid out as generic_xlog.c reads it");

/*
 * Write a lease into its slot, on the pinned page; returns the end of the
 * record.
 */
XLogRecPtr
dlock_store_write(Buffer buffer, DLockSlot slot, const DLockLeaseValue *lease)
{
	DLockPageChange change;
	XLogRecPtr	lsn;

	Assert(BufferGetBlockNumber(buffer) == dlock_slot_block(slot));
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	START_CRIT_SECTION();
	change = dlock_page_write(BufferGetPage(buffer), dlock_slot_place(slot), lease);
	lsn = log_change(buffer, &change);
	END_CRIT_SECTION();
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	return lsn;
}

/* Erase the lease in a slot, likewise. */
XLogRecPtr
dlock_store_erase(Buffer buffer, DLockSlot slot)
{
	DLockPageChange change;
	XLogRecPtr	lsn;

	Assert(BufferGetBlockNumber(buffer) == dlock_slot_block(slot));
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	START_CRIT_SECTION();
	change = dlock_page_erase(BufferGetPage(buffer), dlock_slot_place(slot));
	lsn = log_change(buffer, &change);
	END_CRIT_SECTION();
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	return lsn;
}

/* Overwrite the ttl and the bound of the lease in a slot, likewise. */
XLogRecPtr
dlock_store_set_term(Buffer buffer, DLockSlot slot, const DLockTerm *term, uint64 boot)
{
	DLockPageChange change;
	XLogRecPtr	lsn;

	Assert(BufferGetBlockNumber(buffer) == dlock_slot_block(slot));
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	START_CRIT_SECTION();
	change = dlock_page_set_term(BufferGetPage(buffer), dlock_slot_place(slot),
								 term, boot);
	lsn = log_change(buffer, &change);
	END_CRIT_SECTION();
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	return lsn;
}
