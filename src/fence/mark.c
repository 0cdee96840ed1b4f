/*-------------------------------------------------------------------------
 *
 * mark.c
 *	  The marks of fenced resources.
 *
 * NOTES
 *	  The mark of a resource is the highest token that it has seen.  Marks are
 *	  rows of an ordinary table, so they are transactional, dumped and
 *	  replicated.  They are read and written here as a catalog is, without a
 *	  query: at every isolation level the newest committed mark counts, and
 *	  privileges, constraints and triggers do not.  So a table that has been altered
 *	  is refused.
 *
 *	  The snapshot is SnapshotSelf, which could see both or none of two versions
 *	  of a row that changes meanwhile.  A mark does not change meanwhile, since
 *
 *		a reader holds the resource's fence lock in share mode at least,
 *		a writer in exclusive mode, to the end of its transaction.
 *
 *	  fence/fence.c takes these locks.
 *
 *	  A mark that stands is in the same row as when this backend read it last,
 *	  so the caller remembers where that was, and the row is read there first.
 *	  Nobody remembers what the mark was, so a write to the table need not be
 *	  announced, be it by a restore or a subscription.
 *
 * IDENTIFICATION
 *	  src/fence/mark.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_am.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/snapmgr.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/error.h"
#include "base/name.h"
#include "fence/mark.h"
#include "session/session.h"

/* The columns of the table. */
enum
{
	COLUMN_RESOURCE = 1,
	COLUMN_TOKEN,
	COLUMN_RAISED_AT,
	COLUMN_RAISED_BY,
	COLUMNS = COLUMN_RAISED_BY
};

/* Is the table as the script has made it? */
static bool
is_usable(Relation rel)
{
	static const Oid types[COLUMNS] = {TEXTOID, INT8OID, TIMESTAMPTZOID, NAMEOID};
	TupleDesc	desc = RelationGetDescr(rel);
	List	   *indexes = RelationGetIndexList(rel);
	bool		usable = list_length(indexes) == 1 && linitial_oid(indexes) == rel->rd_pkindex &&
		rel->rd_rel->relam == HEAP_TABLE_AM_OID && desc->natts == COLUMNS &&
		rel->rd_rel->relpersistence == RELPERSISTENCE_PERMANENT;

	for (int i = 0; usable && i < COLUMNS; i++)
		usable = TupleDescAttr(desc, i)->atttypid == types[i];
	list_free(indexes);
	return usable;
}

/* The heavyweight lock of a resource's fence. */
void
dlock_mark_tag(LOCKTAG *tag, const DLockBytes *resource)
{
	uint64		hash = dlock_name_stable_hash(resource);

	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash,
						 DLOCK_LOCK_CLASS_FENCE);
}

#ifdef USE_ASSERT_CHECKING
static bool
is_fence_locked(const DLockBytes *resource, bool writing)
{
	LOCKTAG		tag;

	dlock_mark_tag(&tag, resource);
	return DLOCK_LOCK_HELD_BY_ME(&tag, ExclusiveLock) ||
		(!writing && DLOCK_LOCK_HELD_BY_ME(&tag, ShareLock));
}
#endif

/* Open the table; throws 55000 if it is not there, or altered. */
static Relation
open_marks(LOCKMODE lockmode)
{
	Relation	rel = dlock_session_open_relation(DLOCK_RELATION_MARKS, lockmode, true);

	if (!is_usable(rel))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" has been altered, so dlock cannot use it",
						RelationGetRelationName(rel)),
				 errdetail("It must be a logged heap with its own columns, and have no index but its primary key."),
				 errhint("Undo the ALTER TABLE or CREATE INDEX.")));
	return rel;
}

/* Find the row of a resource, which is valid until "scan" ends; NULL if there is none. */
static HeapTuple
find_mark(Relation rel, const DLockBytes *resource, SysScanDesc *scan)
{
	ScanKeyData key;

	ScanKeyInit(&key, COLUMN_RESOURCE, BTEqualStrategyNumber, F_TEXTEQ,
				dlock_name_to_text(*resource));
	*scan = systable_beginscan(rel, rel->rd_pkindex, true, SnapshotSelf, 1, &key);
	return systable_getnext(*scan);
}

static DLockToken
token_of(HeapTuple tuple, Relation rel)
{
	bool		isnull;

	return DatumGetInt64(heap_getattr(tuple, COLUMN_TOKEN, RelationGetDescr(rel), &isnull));
}

/*
 * Read the mark of a resource from a row where it may be; false if it is not there.
 *
 * The table may have been rewritten, truncated or dropped since, or the row may be
 * another one.  But names are unique, so a valid row with this name is the one that a
 * scan would find.
 */
static bool
read_at(Relation rel, ItemPointer tid, const DLockBytes *resource, DLockToken *token)
{
	HeapTupleData tuple;
	Buffer		buffer;
	text	   *name;
	bool		isnull;
	bool		found;

	if (!ItemPointerIsValid(tid) ||
		ItemPointerGetBlockNumber(tid) >= RelationGetNumberOfBlocks(rel))
		return false;
	tuple.t_self = *tid;
	if (!heap_fetch(rel, SnapshotSelf, &tuple, &buffer, false))
		return false;
	name = DatumGetTextPP(heap_getattr(&tuple, COLUMN_RESOURCE, RelationGetDescr(rel), &isnull));
	found = VARSIZE_ANY_EXHDR(name) == resource->len &&
		memcmp(VARDATA_ANY(name), resource->data, resource->len) == 0;
	if (found)
		*token = token_of(&tuple, rel);
	ReleaseBuffer(buffer);
	return found;
}

/*
 * The mark of a resource; DLOCK_TOKEN_NONE if it has none.  The fence lock must
 * be held.  "tid" is where its row was found last; it is searched for elsewhere, and
 * "tid" set, if it is not there.
 */
DLockToken
dlock_mark_read(const DLockBytes *resource, ItemPointer tid)
{
	Relation	rel;
	DLockToken	token = DLOCK_TOKEN_NONE;

	Assert(is_fence_locked(resource, false));
	rel = open_marks(AccessShareLock);
	if (!read_at(rel, tid, resource, &token))
	{
		SysScanDesc scan;
		HeapTuple	tuple = find_mark(rel, resource, &scan);

		if (HeapTupleIsValid(tuple))
		{
			token = token_of(tuple, rel);
			*tid = tuple->t_self;
		}
		systable_endscan(scan);
	}
	table_close(rel, AccessShareLock);
	return token;
}

/*
 * Set the mark of a resource.  The fence lock must be held exclusively; the table stays
 * locked to the end of the transaction.
 */
void
dlock_mark_write(const DLockBytes *resource, DLockToken token)
{
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	old;
	HeapTuple	new;
	NameData	role;
	Datum		values[COLUMNS] = {0};
	bool		nulls[COLUMNS] = {false};

	Assert(is_fence_locked(resource, true));
	rel = open_marks(RowExclusiveLock);
	old = find_mark(rel, resource, &scan);
	namestrcpy(&role, GetUserNameFromId(GetUserId(), false));
	values[COLUMN_RESOURCE - 1] = dlock_name_to_text(*resource);
	values[COLUMN_TOKEN - 1] = Int64GetDatum(token);
	values[COLUMN_RAISED_AT - 1] = TimestampTzGetDatum(dlock_clock_wall());
	values[COLUMN_RAISED_BY - 1] = NameGetDatum(&role);
	new = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	if (HeapTupleIsValid(old))
		CatalogTupleUpdate(rel, &old->t_self, new);
	else
		CatalogTupleInsert(rel, new);
	systable_endscan(scan);
	table_close(rel, NoLock);

	/* The same statement may raise it once more. */
	CommandCounterIncrement();
}
