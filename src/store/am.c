/*-------------------------------------------------------------------------
 *
 * am.c
 *	  The table access method of the lease store.
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
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/transam.h"
#include "catalog/pg_class.h"
#include "catalog/storage.h"
#include "commands/vacuum.h"
#include "storage/bufmgr.h"
#include "storage/smgr.h"

#include "store/am.h"

DLockAmMovedHook dlock_am_moved_hook = NULL;

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

/* ---- rows: none to read, none to write ---- */

/* Zero, so that no scan comes to a page; pg_relation_size() and the like ask the files. */
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

/*
 * The access method; relations that have it are known by this address.  It is the heap's,
 * but for what would come to a page, or change one.
 */
const TableAmRoutine *
dlock_am_routine(void)
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
