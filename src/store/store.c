/*-------------------------------------------------------------------------
 *
 * store.c
 *	  The durable home of the leases: slots on pages of a relation with an access method
 *	  of its own, written in place.
 *
 * NOTES
 *	  The store is a relation, so that the server treats its pages like those of
 *	  any table (src/README, "Pages").  SQL does not see its content: it has no
 *	  columns, scans as empty, and refuses all writes.  Commands that move the
 *	  whole relation (VACUUM FULL, SET TABLESPACE) copy the blocks as they are,
 *	  since leases in memory know their blocks and slots.
 *
 *	  The rest is the access method of the heap.  None of it reads a page: to scans the
 *	  relation has no blocks, so they are empty and no tid is valid, and no index can be
 *	  built.
 *
 *	  It holds no transaction ids, so VACUUM only sets relfrozenxid and
 *	  relminmxid to the next ids, whatever transactions are open.  These could be
 *	  invalid, and the server would never vacuum the relation.  But age() of an
 *	  invalid id is the largest number, which sets off alerts for a wraparound.
 *
 *	  Only this file logs changes of pages.  Its records are generic
 *	  (generic_xlog.c), so recovery and standbys replay them without this
 *	  library.  A lease is written to its slot when it is granted, and the slot
 *	  is freed when the lease is erased; there are no versions.
 *
 *	  Lock rules.  dlock_store_change() takes the content lock of a pinned page and
 *	  nothing else.  It and dlock_store_pin_cached() read no page, and may be called
 *	  under a partition lock.  All others may wait.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/generic_xlog.h"
#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/transam.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "catalog/pg_class.h"
#include "catalog/storage.h"
#include "commands/sequence.h"
#include "commands/vacuum.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/bufmgr.h"
#include "storage/smgr.h"

#include "base/error.h"
#include "base/fault.h"
#include "store/store.h"

/* Refuse an operation.  "message" is the whole primary message, with %s for the relation. */
pg_noreturn static void
refuse(const char *message, const char *relation)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg(message, relation),
			 errdetail("It is the store of the leases, which only the functions of dlock change."),
			 errhint("To end a lease, use dlock_force_release().")));
}

/* ---- the access method: rows, none to read and none to write ---- */

/*
 * Zero, so that no scan comes to a page, nor pg_prewarm or pageinspect.  pg_relation_size()
 * and the like ask the files.
 */
static uint64
relation_size(Relation rel, ForkNumber fork)
{
	return 0;
}

static void
tuple_insert(Relation rel, TupleTableSlot *slot, CommandId cid, int options,
			 struct BulkInsertStateData *bistate)
{
	refuse("cannot insert into table \"%s\"", RelationGetRelationName(rel));
}

static void
multi_insert(Relation rel, TupleTableSlot **slots, int nslots, CommandId cid,
			 int options, struct BulkInsertStateData *bistate)
{
	refuse("cannot insert into table \"%s\"", RelationGetRelationName(rel));
}

static double
index_build_range_scan(Relation rel, Relation index, struct IndexInfo *index_info,
					   bool allow_sync, bool anyvisible, bool progress,
					   BlockNumber start_blockno, BlockNumber numblocks,
					   IndexBuildCallback callback, void *callback_state,
					   TableScanDesc scan)
{
	refuse("cannot create an index on table \"%s\"", RelationGetRelationName(rel));
}

/*
 * Refuse a rewrite by ALTER TABLE.  It has scanned the old table, found nothing,
 * and is about to replace it by the new, empty one, which this transaction has
 * created.  Nothing else inserts into such a table.
 */
static void
finish_bulk_insert(Relation rel, int options)
{
	if (rel->rd_createSubid != InvalidSubTransactionId)
		refuse("cannot rewrite table \"%s\"", "store");
}

/* ---- the access method: the relation as a whole ---- */

/*
 * Give the relation storage.  At creation, and for the copy of VACUUM FULL, the
 * new locator is that of the relation; TRUNCATE asks for another one.
 */
static void
relation_set_new_filelocator(Relation rel, const RelFileLocator *newrlocator,
							 char persistence, TransactionId *freezeXid,
							 MultiXactId *minmulti)
{
	SMgrRelation srel;

	if (persistence != RELPERSISTENCE_PERMANENT)
		refuse("cannot change the persistence of table \"%s\"", RelationGetRelationName(rel));
	if (!RelFileLocatorEquals(*newrlocator, rel->rd_locator))
		refuse("cannot truncate table \"%s\"", RelationGetRelationName(rel));

	*freezeXid = ReadNextTransactionId();
	*minmulti = ReadNextMultiXactId();
	srel = RelationCreateStorage(*newrlocator, persistence, true);
	smgrclose(srel);
}

static void
relation_nontransactional_truncate(Relation rel)
{
	refuse("cannot truncate table \"%s\"", RelationGetRelationName(rel));
}

/* SET TABLESPACE: move the blocks as they are.  No page gets dirty again. */
static void
relation_copy_data(Relation rel, const RelFileLocator *newrlocator)
{
	SMgrRelation dst;

	FlushRelationBuffers(rel);
	dst = RelationCreateStorage(*newrlocator, rel->rd_rel->relpersistence, true);
	RelationCopyStorage(RelationGetSmgr(rel), dst, MAIN_FORKNUM,
						rel->rd_rel->relpersistence);
	RelationDropStorage(rel);
	smgrclose(dst);
}

/* VACUUM FULL: copy the blocks as they are, likewise. */
static void
relation_copy_for_cluster(Relation OldTable, Relation NewTable, Relation OldIndex,
						  bool use_sort, TransactionId OldestXmin,
						  TransactionId *xid_cutoff, MultiXactId *multi_cutoff,
						  double *num_tuples, double *tups_vacuumed,
						  double *tups_recently_dead)
{
	FlushRelationBuffers(OldTable);
	RelationCopyStorage(RelationGetSmgr(OldTable), RelationGetSmgr(NewTable),
						MAIN_FORKNUM, NewTable->rd_rel->relpersistence);
	*xid_cutoff = ReadNextTransactionId();
	*multi_cutoff = ReadNextMultiXactId();
	*num_tuples = 0;
	*tups_vacuumed = 0;
	*tups_recently_dead = 0;
}

static void
relation_vacuum(Relation rel, struct VacuumParams *params,
				BufferAccessStrategy bstrategy)
{
	Form_pg_class form = rel->rd_rel;
	bool		ignored;

	vac_update_relstats(rel, form->relpages, form->reltuples, form->relallvisible,
						form->relallfrozen, form->relhasindex,
						ReadNextTransactionId(), ReadNextMultiXactId(),
						&ignored, &ignored, false);
}

/*
 * The access method; relations that have it are known by this address.  It is the heap's,
 * but for what would come to a page, or change one.
 */
const TableAmRoutine *
dlock_store_routine(void)
{
	static TableAmRoutine routine = {.type = T_Invalid};

	if (routine.type == T_Invalid)
	{
		routine = *GetHeapamTableAmRoutine();

		routine.tuple_insert = tuple_insert;
		routine.multi_insert = multi_insert;
		routine.finish_bulk_insert = finish_bulk_insert;
		routine.index_build_range_scan = index_build_range_scan;

		routine.relation_size = relation_size;
		routine.relation_set_new_filelocator = relation_set_new_filelocator;
		routine.relation_nontransactional_truncate = relation_nontransactional_truncate;
		routine.relation_copy_data = relation_copy_data;
		routine.relation_copy_for_cluster = relation_copy_for_cluster;
		routine.relation_vacuum = relation_vacuum;
	}
	return &routine;
}

/* ---- pages ---- */

/* The size of the store, which the access method does not tell. */
static BlockNumber
block_count(Relation rel)
{
	return smgrnblocks(RelationGetSmgr(rel), MAIN_FORKNUM);
}

pg_noreturn static void
report_damage(BlockNumber block, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("invalid page in block %u of the lease store", block),
			 errdetail("%s", detail),
			 errhint("Restore the relation from a backup, or, once all holders have stopped, drop and create the extension \"dlock\".")));
}

/*
 * Read the meta page; false if the store has none yet.  Throws if it has another
 * version, or is no meta page.
 */
bool
dlock_store_read_meta(Relation rel, DLockPageHeadDisk *meta)
{
	Buffer		buffer;
	bool		is_new;

	if (block_count(rel) == 0)
		return false;

	buffer = ReadBuffer(rel, DLOCK_PAGE_META_BLOCK);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	is_new = PageIsNew(BufferGetPage(buffer));
	*meta = *dlock_page_head(BufferGetPage(buffer));
	UnlockReleaseBuffer(buffer);

	/* After a crash the page may exist but not be initialized. */
	if (is_new)
		return false;
	if (meta->magic != DLOCK_PAGE_META_MAGIC)
		report_damage(DLOCK_PAGE_META_BLOCK, "It is not a meta page.");
	if (meta->version != DLOCK_PAGE_VERSION)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("lease store has format version %d, but this library reads version %d",
						meta->version, DLOCK_PAGE_VERSION),
				 errhint("Install a version of dlock that reads this format.")));
	return true;
}

/*
 * Initialize a page with free slots, or, given a database, the meta page; extend the
 * relation if it ends before that block.  The relation's extension lock must be held, or
 * the database be loading.
 */
void
dlock_store_init_page(Relation rel, BlockNumber block, uint64 incarnation, int slot_class,
					  Oid database)
{
	/* An earlier attempt may have extended the relation and then failed. */
	bool		exists = block < block_count(rel);
	Buffer		buffer = ReadBufferExtended(rel, MAIN_FORKNUM, exists ? block : P_NEW,
											RBM_ZERO_AND_LOCK, NULL);
	GenericXLogState *state;

	if (BufferGetBlockNumber(buffer) != block)
		elog(ERROR, "unexpected end of the lease store: block %u instead of %u",
			 BufferGetBlockNumber(buffer), block);
	state = GenericXLogStart(rel);
	dlock_page_init(GenericXLogRegisterBuffer(state, buffer, GENERIC_XLOG_FULL_IMAGE),
					incarnation, slot_class, database);
	(void) GenericXLogFinish(state);
	UnlockReleaseBuffer(buffer);
}

/* Free the given slots of a page on disk. */
static void
erase_slots(Relation rel, BlockNumber block, uint64 numbers)
{
	Buffer		buffer = ReadBuffer(rel, block);
	GenericXLogState *state;
	Page		page;

	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	state = GenericXLogStart(rel);
	page = GenericXLogRegisterBuffer(state, buffer, 0);
	for (; numbers != 0; numbers &= numbers - 1)
		(void) dlock_page_erase(page, pg_rightmost_one_pos64(numbers), NULL);
	(void) GenericXLogFinish(state);
	UnlockReleaseBuffer(buffer);
}

/*
 * Show all leases of a page to the visitor; returns the slots that stay taken,
 * and in "erase" those to erase.
 */
static uint64
visit_slots(Page page, BlockNumber block, int slot_class,
			DLockStoreLeaseVisitor visitor, void *arg, uint64 *erase)
{
	uint64		taken = 0;

	*erase = 0;
	for (int number = 0; number < dlock_page_slot_count(slot_class); number++)
	{
		DLockLeaseValue lease;
		int			len;

		if (!dlock_page_read(page, number, &lease))
			continue;

		len = lease.name.len + lease.owner.len + lease.payload.len;
		if (lease.name.len == 0 || lease.owner.len == 0 ||
			lease.payload.len > DLOCK_PAYLOAD_MAX ||
			dlock_page_class_for(len) != slot_class)
			report_damage(block, "A slot has lengths out of range.");
		if ((int) lease.mode >= DLOCK_MODES || (int) lease.bind > DLOCK_BIND_TRANSACTION ||
			(int) lease.part > DLOCK_PART_PATH)
			report_damage(block, "A slot has a mode out of range.");

		if (visitor(&lease, dlock_slot_make(block, number), PageGetLSN(page), arg))
			taken |= UINT64CONST(1) << number;
		else
			*erase |= UINT64CONST(1) << number;
	}
	return taken;
}

/*
 * Visit all pages of slots: show their leases to "visit_lease", and then the page itself
 * to "visit_page", with the slots that stay taken.
 *
 * Erases the leases that "visit_lease" does not keep; without "visit_page", as on
 * a standby, it changes nothing.  Visitors may throw.  Throws XX001 if a page is
 * damaged.
 */
void
dlock_store_visit(Relation rel, uint64 incarnation, DLockStoreLeaseVisitor visit_lease,
				  DLockStorePageVisitor visit_page, void *arg)
{
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	BlockNumber nblocks = block_count(rel);
	PGAlignedBlock copy;

	for (BlockNumber block = 1; block < nblocks; block++)
	{
		Buffer		buffer;
		int			slot_class;
		uint64		taken;
		uint64		erase;

		CHECK_FOR_INTERRUPTS();
		buffer = ReadBufferExtended(rel, MAIN_FORKNUM, block, RBM_NORMAL, strategy);
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		memcpy(copy.data, BufferGetPage(buffer), BLCKSZ);
		UnlockReleaseBuffer(buffer);

		slot_class = dlock_page_class((Page) copy.data, incarnation);
		if (slot_class == DLOCK_PAGE_DAMAGED)
			report_damage(block, "It is not a page of slots.");
		if (slot_class == DLOCK_PAGE_UNUSED)
			continue;
		taken = visit_slots((Page) copy.data, block, slot_class, visit_lease, arg, &erase);
		if (visit_page == NULL)
			continue;
		if (erase != 0)
			erase_slots(rel, block, erase);
		visit_page(block, slot_class, taken, arg);
	}
	FreeAccessStrategy(strategy);
}

/* ---- the sequence of tokens ---- */

/* The one tuple of a sequence, on its page. */
static Form_pg_sequence_data
sequence_data(Page page)
{
	HeapTupleHeader tuple = (HeapTupleHeader) PageGetItem(page, PageGetItemId(page, FirstOffsetNumber));

	return (Form_pg_sequence_data) ((char *) tuple + tuple->t_hoff);
}

/*
 * Lock the content of the page of the sequence of tokens, and return its value: the end
 * of the last block, or a value that was set by hand.
 */
DLockToken
dlock_store_lock_sequence(Relation sequence, Buffer *buffer)
{
	Form_pg_sequence_data data;

	*buffer = ReadBuffer(sequence, 0);
	LockBuffer(*buffer, BUFFER_LOCK_EXCLUSIVE);
	data = sequence_data(BufferGetPage(*buffer));
	return data->is_called ? data->last_value : data->last_value - 1;
}

/*
 * Set the value of the sequence, and unlock its page; returns the end of the record.
 *
 * The value is changed in place, as by nextval(), but without an xid, so that it
 * is permanent at once: a reservation must neither wait for the transaction that
 * happens to make it nor be undone by it.
 */
XLogRecPtr
dlock_store_set_sequence(Relation sequence, Buffer buffer, DLockToken value)
{
	GenericXLogState *state = GenericXLogStart(sequence);
	Form_pg_sequence_data data = sequence_data(GenericXLogRegisterBuffer(state, buffer, 0));
	XLogRecPtr	lsn;

	data->last_value = value;
	data->is_called = true;
	data->log_cnt = 0;
	lsn = GenericXLogFinish(state);
	UnlockReleaseBuffer(buffer);
	return lsn;
}

/* ---- slots ---- */

/*
 * The buffers in which this process has seen pages, by the block number.  Pages can share
 * an element; a wrong buffer is noticed.
 */
static Buffer seen[16384];

/*
 * Pin the page of a slot if it is in the buffer where this process has seen it last;
 * InvalidBuffer otherwise.  Does not wait; may be called under a partition lock.
 */
Buffer
dlock_store_pin_cached(const RelFileLocator *locator, DLockSlot slot)
{
	BlockNumber block = dlock_slot_block(slot);
	Buffer		buffer = seen[block % lengthof(seen)];

	if (BufferIsValid(buffer) && ReadRecentBuffer(*locator, MAIN_FORKNUM, block, buffer))
		return buffer;
	return InvalidBuffer;
}

/*
 * Pin the page of a slot of any database; its store must be locked.  May wait.  Throws XX001
 * if it is no page of slots of this incarnation: the locator is stale, or the page damaged.
 */
Buffer
dlock_store_pin(const RelFileLocator *locator, DLockSlot slot, uint64 incarnation)
{
	BlockNumber block = dlock_slot_block(slot);
	Buffer		buffer = ReadBufferWithoutRelcache(*locator, MAIN_FORKNUM, block,
												   RBM_NORMAL, NULL, true);
	int			slot_class;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	slot_class = dlock_page_class(BufferGetPage(buffer), incarnation);
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	if (slot_class < 0)
		report_damage(block, "It is not a page of slots of this store.");
	seen[block % lengthof(seen)] = buffer;
	return buffer;
}

StaticAssertDecl(sizeof(DLockPageRange) == 2 * sizeof(OffsetNumber),
				 "a range is not laid out as generic_xlog.c reads it");

/*
 * Change the slot of a lease, on the pinned page; returns the end of the record.  Cannot
 * fail.
 *
 * GenericXLogFinish() finds out what has changed by copying the page and
 * comparing the copy byte by byte.  We know what has changed, so this builds
 * the same record directly, at a sixth of the cost: the offset, the length, and the
 * bytes (generic_xlog.c, applyPageRedo).  That layout has not changed since 9.6, and
 * wal_consistency_checking = generic verifies it.
 *
 * The end of the record is not left in XactLastRecEnd: at the end of a transaction without
 * an xid the server would pass it on to the WAL writer, and wake it for each record.
 * store/flush.c flushes the records.
 */
XLogRecPtr
dlock_store_change(Buffer buffer, DLockSlot slot, DLockStoreChange change,
				   const DLockLeaseValue *lease)
{
	Page		page = BufferGetPage(buffer);
	XLogRecPtr	saved = XactLastRecEnd;
	DLockPageRange range;
	XLogRecPtr	lsn;

	Assert(BufferGetBlockNumber(buffer) == dlock_slot_block(slot));
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	START_CRIT_SECTION();
	range = change(page, dlock_slot_number(slot), lease);
	MarkBufferDirty(buffer);
	XLogBeginInsert();
	XLogRegisterBuffer(0, buffer, REGBUF_STANDARD);
	XLogRegisterBufData(0, (char *) &range, sizeof(range));
	XLogRegisterBufData(0, page + range.offset, range.length);
	DLOCK_FAULT_STOP("wal_insert");
	lsn = XLogInsert(RM_GENERIC_ID, 0);
	DLOCK_FAULT_STOP("wal_inserted");
	PageSetLSN(page, lsn);
	XactLastRecEnd = saved;

	END_CRIT_SECTION();
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	return lsn;
}
