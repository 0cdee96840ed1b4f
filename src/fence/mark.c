/*-------------------------------------------------------------------------
 *
 * mark.c
 *	  The marks of fenced resources, and the declarations about resources.
 *
 * NOTES
 *	  The mark of a resource is the highest token that it has seen.  Marks are
 *	  rows of an ordinary table, so they are transactional, dumped and
 *	  replicated.  They are read and written here as a catalog is, without a
 *	  query: at every isolation level the newest committed mark counts, and
 *	  privileges, constraints and triggers do not.  If a table has been given NOT
 *	  NULL columns, or indexes that no catalog has, it is refused.
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
 *	  so the backend remembers where that was, and reads there first.  It does
 *	  not remember what the mark was, so a write to the table need not be told
 *	  of, be it by a restore or a subscription.
 *
 *	  Declarations are in a second table, by name or, with a * at the end, by
 *	  the beginning of names.  Administrators write them, so there should be few,
 *	  and the table is read as a whole, with the newest snapshot.
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
#include "utils/acl.h"
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

/* Where this backend has read marks last, by the hashes of their resources. */
#define PLACES			1024
static ItemPointerData places[PLACES];

static bool
is_plain_index(Oid oid)
{
	Relation	index = index_open(oid, AccessShareLock);
	bool		plain = index->rd_index->indimmediate && !index->rd_index->indisexclusion &&
		RelationGetIndexExpressions(index) == NIL && RelationGetIndexPredicate(index) == NIL;

	index_close(index, AccessShareLock);
	return plain;
}

static bool
is_usable(Relation rel, const Oid *types, int columns, bool writing)
{
	TupleDesc	desc = RelationGetDescr(rel);
	List	   *indexes = NIL;
	ListCell   *cell;

	/* Making the list of indexes also finds the primary key. */
	if (writing || !rel->rd_indexvalid)
		indexes = RelationGetIndexList(rel);
	if (!OidIsValid(rel->rd_pkindex) || rel->rd_rel->relam != HEAP_TABLE_AM_OID ||
		desc->natts < columns)
		return false;
	for (int i = 0; i < columns; i++)
	{
		if (TupleDescAttr(desc, i)->attisdropped || TupleDescAttr(desc, i)->atttypid != types[i])
			return false;
	}
	if (writing)
	{
		for (int i = columns; i < desc->natts; i++)
		{
			Form_pg_attribute added = TupleDescAttr(desc, i);

			if (!added->attisdropped && (added->attnotnull || added->attgenerated != '\0'))
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

/*
 * Throw 55000 unless a table can be used as a catalog is, with columns of these types
 * first.
 */
static void
check_table(Relation rel, const Oid *types, int columns, bool writing)
{
	if (!is_usable(rel, types, columns, writing))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" has been altered, so dlock cannot use it",
						RelationGetRelationName(rel)),
				 errdetail("It must be a heap with its own columns and its primary key, no other column that is NOT NULL or generated, and no index with an expression, a predicate, or deferrable uniqueness."),
				 errhint("Undo the ALTER TABLE or CREATE INDEX.")));
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

static Relation
open_marks(bool writing)
{
	static const Oid types[COLUMNS] = {TEXTOID, INT8OID, TIMESTAMPTZOID, NAMEOID};
	Relation	rel = dlock_session_open_relation(DLOCK_RELATION_MARKS,
												  writing ? RowExclusiveLock : AccessShareLock);

	check_table(rel, types, COLUMNS, writing);
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
 * Read the mark of a resource at a place where it may be; false if it is not
 * there.
 *
 * The place may be of a table that has been rewritten, truncated or dropped
 * since, or have another row now.  But names are unique, so a valid row with
 * this name is the one that a scan would find.
 */
static bool
read_at(Relation rel, ItemPointer place, const DLockBytes *resource, DLockToken *token)
{
	HeapTupleData tuple;
	Buffer		buffer;
	text	   *name;
	bool		isnull;
	bool		found;

	if (!ItemPointerIsValid(place) ||
		ItemPointerGetBlockNumber(place) >= RelationGetNumberOfBlocks(rel))
		return false;
	tuple.t_self = *place;
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
 * be held.
 */
DLockToken
dlock_mark_read(const DLockBytes *resource)
{
	ItemPointer place = &places[dlock_name_hash(InvalidOid, resource) % PLACES];
	Relation	rel;
	DLockToken	token = DLOCK_TOKEN_NONE;

	Assert(is_fence_locked(resource, false));
	rel = open_marks(false);
	if (!read_at(rel, place, resource, &token))
	{
		SysScanDesc scan;
		HeapTuple	tuple = find_mark(rel, resource, &scan);

		if (HeapTupleIsValid(tuple))
		{
			token = token_of(tuple, rel);
			*place = tuple->t_self;
		}
		systable_endscan(scan);
	}
	table_close(rel, AccessShareLock);
	return token;
}

/* The row of a mark, which keeps what others have added to the old one. */
static HeapTuple
form_mark(Relation rel, const DLockBytes *resource, DLockToken token, Name role, HeapTuple old)
{
	TupleDesc	desc = RelationGetDescr(rel);
	Datum	   *values = palloc0(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));

	memset(nulls, true, desc->natts * sizeof(bool));
	if (HeapTupleIsValid(old))
		heap_deform_tuple(old, desc, values, nulls);
	values[COLUMN_RESOURCE - 1] = dlock_name_to_text(*resource);
	values[COLUMN_TOKEN - 1] = Int64GetDatum(token);
	values[COLUMN_RAISED_AT - 1] = TimestampTzGetDatum(dlock_clock_wall());
	values[COLUMN_RAISED_BY - 1] = NameGetDatum(role);
	memset(nulls, false, COLUMNS * sizeof(bool));
	return heap_form_tuple(desc, values, nulls);
}

/*
 * Set the mark of a resource, or with DLOCK_TOKEN_NONE remove it.  The fence lock must
 * be held exclusively; the table stays locked to the end of the transaction.
 */
void
dlock_mark_write(const DLockBytes *resource, DLockToken token)
{
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	old;
	NameData	role;

	Assert(is_fence_locked(resource, true));
	rel = open_marks(true);
	old = find_mark(rel, resource, &scan);
	namestrcpy(&role, GetUserNameFromId(GetUserId(), false));
	if (token == DLOCK_TOKEN_NONE)
	{
		if (HeapTupleIsValid(old))
			CatalogTupleDelete(rel, &old->t_self);
	}
	else if (HeapTupleIsValid(old))
		CatalogTupleUpdate(rel, &old->t_self, form_mark(rel, resource, token, &role, old));
	else
		CatalogTupleInsert(rel, form_mark(rel, resource, token, &role, NULL));
	systable_endscan(scan);
	table_close(rel, NoLock);

	/* The same statement may raise it once more. */
	CommandCounterIncrement();
}

/* ---- declarations ---- */

/* The columns of the table. */
enum
{
	DECLARED_RESOURCE = 1,
	DECLARED_ROLE,
	DECLARED_FOREIGN,
	DECLARED_COLUMNS = DECLARED_FOREIGN
};

static Relation
open_declared(LOCKMODE lockmode, bool writing)
{
	static const Oid types[DECLARED_COLUMNS] = {TEXTOID, REGROLEOID, BOOLOID};
	Relation	rel = dlock_session_open_relation(DLOCK_RELATION_DECLARED, lockmode);

	check_table(rel, types, DECLARED_COLUMNS, writing);
	return rel;
}

static bool
begins_with(const DLockBytes *name, const DLockBytes *start)
{
	return name->len >= start->len && memcmp(name->data, start->data, start->len) == 0;
}

/* Does a declaration cover the resource; with "is_prefix", one that begins so? */
static bool
matches(const DLockBytes *resource, bool is_prefix, DLockBytes declared)
{
	bool		starred = declared.len > 0 && declared.data[declared.len - 1] == '*';

	declared.len -= starred;
	if (begins_with(resource, &declared) && (starred || declared.len == resource->len))
		return true;
	return is_prefix && begins_with(&declared, resource);
}

/*
 * Find what the declarations say about a resource to the current user; with
 * "is_prefix", about all resources whose names begin so.
 */
void
dlock_mark_find_declared(const DLockBytes *resource, bool is_prefix, DLockMarkDeclared *declared)
{
	Relation	rel = open_declared(AccessShareLock, false);
	TupleDesc	desc = RelationGetDescr(rel);
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		isnull;

	memset(declared, 0, sizeof(DLockMarkDeclared));
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		text	   *name = DatumGetTextPP(heap_getattr(tuple, DECLARED_RESOURCE, desc, &isnull));
		DLockBytes	bytes = {VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name)};
		Oid			role;

		if (!matches(resource, is_prefix, bytes))
			continue;
		declared->is_foreign |= DatumGetBool(heap_getattr(tuple, DECLARED_FOREIGN, desc, &isnull));
		role = DatumGetObjectId(heap_getattr(tuple, DECLARED_ROLE, desc, &isnull));
		if (!isnull && !has_privs_of_role(GetUserId(), role))
		{
			declared->denied = role;
			strlcpy(declared->by, text_to_cstring(name), sizeof(declared->by));
		}
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

/*
 * Replace the declaration about a resource; remove it if there is no role and the
 * resource is not foreign.
 */
void
dlock_mark_declare(const DLockBytes *resource, Oid role, bool is_foreign)
{
	/* Writers run one at a time; readers go on. */
	Relation	rel = open_declared(ShareRowExclusiveLock, true);
	TupleDesc	desc = RelationGetDescr(rel);
	Datum	   *values = palloc0(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	memset(nulls, true, desc->natts * sizeof(bool));
	values[DECLARED_RESOURCE - 1] = dlock_name_to_text(*resource);
	values[DECLARED_ROLE - 1] = ObjectIdGetDatum(role);
	values[DECLARED_FOREIGN - 1] = BoolGetDatum(is_foreign);
	nulls[DECLARED_RESOURCE - 1] = nulls[DECLARED_FOREIGN - 1] = false;
	nulls[DECLARED_ROLE - 1] = !OidIsValid(role);

	ScanKeyInit(&key, DECLARED_RESOURCE, BTEqualStrategyNumber, F_TEXTEQ,
				values[DECLARED_RESOURCE - 1]);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		CatalogTupleDelete(rel, &tuple->t_self);
	systable_endscan(scan);
	if (OidIsValid(role) || is_foreign)
		CatalogTupleInsert(rel, heap_form_tuple(desc, values, nulls));
	table_close(rel, NoLock);
	CommandCounterIncrement();
}
