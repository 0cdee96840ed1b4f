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
 *	  committed, and no privileges on the table are asked for.
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

/* The columns of the table. */
enum
{
	COLUMN_RESOURCE = 1,
	COLUMN_TOKEN,
	COLUMN_RAISED_AT,
	COLUMN_RAISED_BY,
	COLUMNS = COLUMN_RAISED_BY
};

static SysScanDesc
begin_scan(Relation rel, const DLockBytes *resource)
{
	ScanKeyData key;

	/* Finds out the primary key, too. */
	list_free(RelationGetIndexList(rel));
	if (!OidIsValid(rel->rd_pkindex))
		dlock_error_no_primary_key(RelationGetRelationName(rel));
	ScanKeyInit(&key, COLUMN_RESOURCE, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(cstring_to_text_with_len(resource->data, resource->len)));
	return systable_beginscan(rel, rel->rd_pkindex, true, SnapshotSelf, 1, &key);
}

/*
 * The mark of a resource; DLOCK_TOKEN_NONE if it has none.  The fence lock must
 * be held.
 */
DLockToken
dlock_mark_read(const DLockBytes *resource)
{
	Relation	rel = dlock_session_open_marks(AccessShareLock);
	SysScanDesc scan = begin_scan(rel, resource);
	HeapTuple	tuple = systable_getnext(scan);
	DLockToken	token = DLOCK_TOKEN_NONE;
	bool		isnull;

	if (HeapTupleIsValid(tuple))
		token = DatumGetInt64(heap_getattr(tuple, COLUMN_TOKEN, RelationGetDescr(rel), &isnull));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return token;
}

/* Set the mark of a resource.  The fence lock must be held exclusively. */
void
dlock_mark_write(const DLockBytes *resource, DLockToken token)
{
	Relation	rel = dlock_session_open_marks(RowExclusiveLock);
	SysScanDesc scan = begin_scan(rel, resource);
	HeapTuple	old = systable_getnext(scan);
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS] = {false};
	HeapTuple	new;
	NameData	role;

	namestrcpy(&role, GetUserNameFromId(GetUserId(), false));
	values[COLUMN_RESOURCE - 1] =
		PointerGetDatum(cstring_to_text_with_len(resource->data, resource->len));
	values[COLUMN_TOKEN - 1] = Int64GetDatum(token);
	values[COLUMN_RAISED_AT - 1] = TimestampTzGetDatum(dlock_clock_wall());
	values[COLUMN_RAISED_BY - 1] = NameGetDatum(&role);

	new = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	if (HeapTupleIsValid(old))
		CatalogTupleUpdate(rel, &old->t_self, new);
	else
		CatalogTupleInsert(rel, new);
	heap_freetuple(new);
	systable_endscan(scan);
	table_close(rel, NoLock);

	/* The same statement may raise it once more. */
	CommandCounterIncrement();
}

/* Remove the mark of a resource.  The fence lock must be held exclusively. */
void
dlock_mark_remove(const DLockBytes *resource)
{
	Relation	rel = dlock_session_open_marks(RowExclusiveLock);
	SysScanDesc scan = begin_scan(rel, resource);
	HeapTuple	tuple = systable_getnext(scan);

	if (HeapTupleIsValid(tuple))
		CatalogTupleDelete(rel, &tuple->t_self);
	systable_endscan(scan);
	table_close(rel, NoLock);
	CommandCounterIncrement();
}
