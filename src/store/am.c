/*-------------------------------------------------------------------------
 *
 * am.c
 *	  The table access method of the lease store.
 *
 * NOTES
 *	  The store is a relation, so that the server treats its pages like those of
 *	  any table (src/README, "Pages").  SQL does not see its content: it has no
 *	  columns, scans as empty, and refuses all writes.  Commands that move the whole relation (VACUUM FULL,
 *	  SET TABLESPACE) copy the blocks as they are, since leases in memory know
 *	  their blocks and slots.
 *
 *	  It holds no transaction ids, so VACUUM only sets relfrozenxid and
 *	  relminmxid to the next ids, whatever transactions are open.  These could be
 *	  invalid, and the server would never vacuum the relation.  But age() of an
 *	  invalid id is the largest number, which sets off alerts for a wraparound.
 *
 * IDENTIFICATION
 *	  src/store/am.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/transam.h"
#include "catalog/pg_class.h"
#include "catalog/storage.h"
#include "commands/vacuum.h"
#include "executor/tuptable.h"
#include "storage/bufmgr.h"
#include "storage/smgr.h"

#include "base/error.h"
#include "store/am.h"

DLockAmMovedHook dlock_am_moved_hook = NULL;

/* ---- scans: no rows ---- */

static const TupleTableSlotOps *
slot_callbacks(Relation rel)
{
	return &TTSOpsVirtual;
}

static TableScanDesc
scan_begin(Relation rel, Snapshot snapshot, int nkeys, struct ScanKeyData *key,
		   ParallelTableScanDesc pscan, uint32 flags)
{
	TableScanDesc scan = palloc0(sizeof(TableScanDescData));

	scan->rs_rd = rel;
	scan->rs_snapshot = snapshot;
	scan->rs_nkeys = nkeys;
	scan->rs_flags = flags;
	scan->rs_parallel = pscan;
	RelationIncrementReferenceCount(rel);
	return scan;
}

static void
scan_end(TableScanDesc scan)
{
	RelationDecrementReferenceCount(scan->rs_rd);
	if (scan->rs_flags & SO_TEMP_SNAPSHOT)
		UnregisterSnapshot(scan->rs_snapshot);
	pfree(scan);
}

static void
scan_rescan(TableScanDesc scan, struct ScanKeyData *key, bool set_params,
			bool allow_strat, bool allow_sync, bool allow_pagemode)
{
}

static bool
scan_getnextslot(TableScanDesc scan, ScanDirection direction, TupleTableSlot *slot)
{
	ExecClearTuple(slot);
	return false;
}

static bool
scan_analyze_next_block(DLOCK_ANALYZE_PARAMETERS)
{
	return false;
}

static bool
scan_analyze_next_tuple(TableScanDesc scan, TransactionId OldestXmin,
						double *liverows, double *deadrows, TupleTableSlot *slot)
{
	return false;
}

static bool
scan_sample_next_block(TableScanDesc scan, struct SampleScanState *scanstate)
{
	return false;
}

static bool
scan_sample_next_tuple(TableScanDesc scan, struct SampleScanState *scanstate,
					   TupleTableSlot *slot)
{
	ExecClearTuple(slot);
	return false;
}

/* Refuse an operation; "message" as in base/error.c. */
pg_noreturn static void
refuse(const char *message, Relation rel)
{
	dlock_error_store_operation(message, RelationGetRelationName(rel));
}

/* ---- indexes: none ---- */

static struct IndexFetchTableData *
index_fetch_begin(Relation rel)
{
	refuse(gettext_noop("cannot use an index of table \"%s\""), rel);
}

static void
index_fetch_done(struct IndexFetchTableData *data)
{
}

static bool
index_fetch_tuple(struct IndexFetchTableData *scan, ItemPointer tid, Snapshot snapshot,
				  TupleTableSlot *slot, bool *call_again, bool *all_dead)
{
	return false;
}

static TransactionId
index_delete_tuples(Relation rel, TM_IndexDeleteOp *delstate)
{
	return InvalidTransactionId;
}

static double
index_build_range_scan(Relation rel, Relation index, struct IndexInfo *index_info,
					   bool allow_sync, bool anyvisible, bool progress,
					   BlockNumber start_blockno, BlockNumber numblocks,
					   IndexBuildCallback callback, void *callback_state,
					   TableScanDesc scan)
{
	refuse(gettext_noop("cannot create an index on table \"%s\""), rel);
}

static void
index_validate_scan(Relation rel, Relation index, struct IndexInfo *index_info,
					Snapshot snapshot, struct ValidateIndexState *state)
{
	refuse(gettext_noop("cannot create an index on table \"%s\""), rel);
}

/* ---- single rows: none to fetch, none to write ---- */

static bool
tuple_fetch_row_version(Relation rel, ItemPointer tid, Snapshot snapshot,
						TupleTableSlot *slot)
{
	return false;
}

static bool
tuple_tid_valid(TableScanDesc scan, ItemPointer tid)
{
	return false;
}

static void
tuple_get_latest_tid(TableScanDesc scan, ItemPointer tid)
{
}

static bool
tuple_satisfies_snapshot(Relation rel, TupleTableSlot *slot, Snapshot snapshot)
{
	return false;
}

static void
tuple_insert(Relation rel, TupleTableSlot *slot, CommandId cid, int options,
			 struct BulkInsertStateData *bistate)
{
	refuse(gettext_noop("cannot insert into table \"%s\""), rel);
}

static void
tuple_insert_speculative(Relation rel, TupleTableSlot *slot, CommandId cid,
						 int options, struct BulkInsertStateData *bistate,
						 uint32 specToken)
{
	refuse(gettext_noop("cannot insert into table \"%s\""), rel);
}

static void
tuple_complete_speculative(Relation rel, TupleTableSlot *slot, uint32 specToken,
						   bool succeeded)
{
	refuse(gettext_noop("cannot insert into table \"%s\""), rel);
}

static void
multi_insert(Relation rel, TupleTableSlot **slots, int nslots, CommandId cid,
			 int options, struct BulkInsertStateData *bistate)
{
	refuse(gettext_noop("cannot insert into table \"%s\""), rel);
}

static TM_Result
tuple_delete(Relation rel, ItemPointer tid, CommandId cid, Snapshot snapshot,
			 Snapshot crosscheck, bool wait, TM_FailureData *tmfd, bool changingPart)
{
	refuse(gettext_noop("cannot delete from table \"%s\""), rel);
}

static TM_Result
tuple_update(Relation rel, ItemPointer otid, TupleTableSlot *slot, CommandId cid,
			 Snapshot snapshot, Snapshot crosscheck, bool wait, TM_FailureData *tmfd,
			 LockTupleMode *lockmode, DLockUpdateIndexes *update_indexes)
{
	refuse(gettext_noop("cannot update table \"%s\""), rel);
}

static TM_Result
tuple_lock(Relation rel, ItemPointer tid, Snapshot snapshot, TupleTableSlot *slot,
		   CommandId cid, LockTupleMode mode, LockWaitPolicy wait_policy,
		   uint8 flags, TM_FailureData *tmfd)
{
	refuse(gettext_noop("cannot lock rows of table \"%s\""), rel);
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
		dlock_error_store_operation(gettext_noop("cannot rewrite table \"%s\""),
									"store");
}

/* ---- the relation as a whole ---- */

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
		refuse(gettext_noop("cannot change the persistence of table \"%s\""), rel);
	if (!RelFileLocatorEquals(*newrlocator, rel->rd_locator))
		refuse(gettext_noop("cannot truncate table \"%s\""), rel);

	*freezeXid = ReadNextTransactionId();
	*minmulti = ReadNextMultiXactId();
	srel = RelationCreateStorage(*newrlocator, persistence, true);
	smgrclose(srel);
}

static void
relation_nontransactional_truncate(Relation rel)
{
	refuse(gettext_noop("cannot truncate table \"%s\""), rel);
}

/* Tell that the blocks move, and write them out: no page gets dirty again. */
static void
begin_move(Relation rel)
{
	if (dlock_am_moved_hook != NULL)
		dlock_am_moved_hook();
	FlushRelationBuffers(rel);
}

/* SET TABLESPACE: move the blocks as they are. */
static void
relation_copy_data(Relation rel, const RelFileLocator *newrlocator)
{
	SMgrRelation dst;

	begin_move(rel);
	dst = RelationCreateStorage(*newrlocator, rel->rd_rel->relpersistence, true);
	RelationCopyStorage(RelationGetSmgr(rel), dst, MAIN_FORKNUM,
						rel->rd_rel->relpersistence);
	RelationDropStorage(rel);
	smgrclose(dst);
}

/* VACUUM FULL: copy the blocks as they are. */
static void
relation_copy_for_cluster(Relation OldTable, Relation NewTable, Relation OldIndex,
						  bool use_sort, TransactionId OldestXmin,
						  TransactionId *xid_cutoff, MultiXactId *multi_cutoff,
						  double *num_tuples, double *tups_vacuumed,
						  double *tups_recently_dead)
{
	begin_move(OldTable);
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

static bool
relation_needs_toast_table(Relation rel)
{
	return false;
}

static void
relation_estimate_size(Relation rel, int32 *attr_widths, BlockNumber *pages,
					   double *tuples, double *allvisfrac)
{
	*pages = 0;
	*tuples = 0;
	*allvisfrac = 0;
}

static const TableAmRoutine routine = {
	.type = T_TableAmRoutine,

	.slot_callbacks = slot_callbacks,

	.scan_begin = scan_begin,
	.scan_end = scan_end,
	.scan_rescan = scan_rescan,
	.scan_getnextslot = scan_getnextslot,

	.parallelscan_estimate = table_block_parallelscan_estimate,
	.parallelscan_initialize = table_block_parallelscan_initialize,
	.parallelscan_reinitialize = table_block_parallelscan_reinitialize,

	.index_fetch_begin = index_fetch_begin,
	.index_fetch_reset = index_fetch_done,
	.index_fetch_end = index_fetch_done,
	.index_fetch_tuple = index_fetch_tuple,
	.index_delete_tuples = index_delete_tuples,
	.index_build_range_scan = index_build_range_scan,
	.index_validate_scan = index_validate_scan,

	.tuple_fetch_row_version = tuple_fetch_row_version,
	.tuple_tid_valid = tuple_tid_valid,
	.tuple_get_latest_tid = tuple_get_latest_tid,
	.tuple_satisfies_snapshot = tuple_satisfies_snapshot,

	.tuple_insert = tuple_insert,
	.tuple_insert_speculative = tuple_insert_speculative,
	.tuple_complete_speculative = tuple_complete_speculative,
	.multi_insert = multi_insert,
	.tuple_delete = tuple_delete,
	.tuple_update = tuple_update,
	.tuple_lock = tuple_lock,
	.finish_bulk_insert = finish_bulk_insert,

	.relation_set_new_filelocator = relation_set_new_filelocator,
	.relation_nontransactional_truncate = relation_nontransactional_truncate,
	.relation_copy_data = relation_copy_data,
	.relation_copy_for_cluster = relation_copy_for_cluster,
	.relation_vacuum = relation_vacuum,
	.relation_size = table_block_relation_size,
	.relation_needs_toast_table = relation_needs_toast_table,
	.relation_estimate_size = relation_estimate_size,

	.scan_analyze_next_block = scan_analyze_next_block,
	.scan_analyze_next_tuple = scan_analyze_next_tuple,
	.scan_sample_next_block = scan_sample_next_block,
	.scan_sample_next_tuple = scan_sample_next_tuple,
};

/* The access method; relations that have it are known by this address. */
const TableAmRoutine *
dlock_am_routine(void)
{
	return &routine;
}
