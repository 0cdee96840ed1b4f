/*-------------------------------------------------------------------------
 *
 * dlock_mark.c
 *	  The highest token that each fenced resource has seen.
 *
 * NOTES
 *	  The marks are rows of an ordinary table, so a mark that is raised comes
 *	  and goes with the transaction that raises it, is dumped, and is
 *	  replicated.  They are read and written here without a query, as a catalog
 *	  is: whatever the isolation level, what counts is the newest mark that is
 *	  committed, and no privileges on the table are asked for.  Constraints and
 *	  triggers do not count either.  A table that was given columns which must not
 *	  be null, or indexes such as no catalog has, is refused.
 *
 *	  The snapshot is "self", which sees what is committed at the moment that it
 *	  looks at a row, and what this transaction has done.  It is not repeatable,
 *	  and could see both or none of two versions of a row if the row changed
 *	  meanwhile.  It does not, since of a resource's mark
 *
 *		a reader holds the resource's fence lock in share mode at least,
 *		a writer in exclusive mode, to the end of its transaction.
 *
 *	  See dlock_fence.c, which takes these locks.
 *
 * IDENTIFICATION
 *	  src/dlock_mark.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/snapmgr.h"

#include "dlock_clock.h"
#include "dlock_error.h"
#include "dlock_mark.h"
#include "dlock_session.h"
#include "dlock_value.h"

/* The columns of the table. */
enum
{
	COLUMN_RESOURCE = 1,
	COLUMN_TOKEN,
	COLUMN_RAISED_AT,
	COLUMN_RAISED_BY,
	COLUMNS = COLUMN_RAISED_BY
};

/* The marks, and that of one resource among them. */
typedef struct DLockMark
{
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	tuple;			/* NULL if there is none */
} DLockMark;

/* Is a column that somebody has added one that may be left alone? */
static bool
is_harmless_column(Form_pg_attribute attr)
{
	return attr->attisdropped || (!attr->attnotnull && attr->attgenerated == '\0');
}

static bool
is_plain_index(Oid oid)
{
	Relation	index = index_open(oid, AccessShareLock);
	bool		plain = index->rd_index->indimmediate && !index->rd_index->indisexclusion &&
		RelationGetIndexExpressions(index) == NIL && RelationGetIndexPredicate(index) == NIL;

	index_close(index, AccessShareLock);
	return plain;
}

/* Is the table what the functions in here can deal with? */
static bool
is_usable(Relation rel, bool writing)
{
	static const Oid types[COLUMNS] = {TEXTOID, INT8OID, TIMESTAMPTZOID, NAMEOID};
	TupleDesc	desc = RelationGetDescr(rel);
	List	   *indexes = NIL;
	ListCell   *cell;

	/* Making the list of indexes is where the primary key gets known. */
	if (writing || !rel->rd_indexvalid)
		indexes = RelationGetIndexList(rel);
	if (!OidIsValid(rel->rd_pkindex) || desc->natts < COLUMNS)
		return false;
	for (int i = 0; i < COLUMNS; i++)
	{
		if (TupleDescAttr(desc, i)->attisdropped || TupleDescAttr(desc, i)->atttypid != types[i])
			return false;
	}
	if (writing)
	{
		for (int i = COLUMNS; i < desc->natts; i++)
		{
			if (!is_harmless_column(TupleDescAttr(desc, i)))
				return false;
		}
		foreach(cell, indexes)
		{
			if (!is_plain_index(lfirst_oid(cell)))
				return false;
		}
	}
	list_free(indexes);
	return true;
}

static void
open_mark(DLockMark *mark, const DLockBytes *resource, bool writing)
{
	ScanKeyData key;

	mark->rel = dlock_session_open_marks(writing ? RowExclusiveLock : AccessShareLock);
	if (!is_usable(mark->rel, writing))
		dlock_error_marks_altered(RelationGetRelationName(mark->rel));
	ScanKeyInit(&key, COLUMN_RESOURCE, BTEqualStrategyNumber, F_TEXTEQ,
				dlock_value_text(*resource));
	mark->scan = systable_beginscan(mark->rel, mark->rel->rd_pkindex, true, SnapshotSelf, 1, &key);
	mark->tuple = systable_getnext(mark->scan);
}

/* What was written stays locked to the end of the transaction. */
static void
close_mark(DLockMark *mark, bool writing)
{
	systable_endscan(mark->scan);
	table_close(mark->rel, writing ? NoLock : AccessShareLock);

	/* The same statement may raise it once more. */
	if (writing)
		CommandCounterIncrement();
}

/*
 * The mark of a resource; DLOCK_TOKEN_NONE if it has none.  The fence lock must
 * be held.
 */
DLockToken
dlock_mark_read(const DLockBytes *resource)
{
	DLockMark	mark;
	DLockToken	token = DLOCK_TOKEN_NONE;
	bool		isnull;

	open_mark(&mark, resource, false);
	if (HeapTupleIsValid(mark.tuple))
		token = DatumGetInt64(heap_getattr(mark.tuple, COLUMN_TOKEN, RelationGetDescr(mark.rel),
										   &isnull));
	close_mark(&mark, false);
	return token;
}

/* Set the mark of a resource.  The fence lock must be held exclusively. */
void
dlock_mark_write(const DLockBytes *resource, DLockToken token)
{
	DLockMark	mark;
	TupleDesc	desc;
	Datum	   *values;
	bool	   *nulls;
	HeapTuple	tuple;
	NameData	role;

	open_mark(&mark, resource, true);
	desc = RelationGetDescr(mark.rel);
	values = palloc0(desc->natts * sizeof(Datum));
	nulls = palloc(desc->natts * sizeof(bool));
	memset(nulls, true, desc->natts * sizeof(bool));
	if (HeapTupleIsValid(mark.tuple))
		heap_deform_tuple(mark.tuple, desc, values, nulls);

	namestrcpy(&role, GetUserNameFromId(GetUserId(), false));
	values[COLUMN_RESOURCE - 1] = dlock_value_text(*resource);
	values[COLUMN_TOKEN - 1] = Int64GetDatum(token);
	values[COLUMN_RAISED_AT - 1] = TimestampTzGetDatum(dlock_clock_wall());
	values[COLUMN_RAISED_BY - 1] = NameGetDatum(&role);
	memset(nulls, false, COLUMNS * sizeof(bool));

	tuple = heap_form_tuple(desc, values, nulls);
	if (HeapTupleIsValid(mark.tuple))
		CatalogTupleUpdate(mark.rel, &mark.tuple->t_self, tuple);
	else
		CatalogTupleInsert(mark.rel, tuple);
	close_mark(&mark, true);
	heap_freetuple(tuple);
	pfree(values);
	pfree(nulls);
}

/* Remove the mark of a resource.  The fence lock must be held exclusively. */
void
dlock_mark_remove(const DLockBytes *resource)
{
	DLockMark	mark;

	open_mark(&mark, resource, true);
	if (HeapTupleIsValid(mark.tuple))
		CatalogTupleDelete(mark.rel, &mark.tuple->t_self);
	close_mark(&mark, true);
}
