/*-------------------------------------------------------------------------
 *
 * guard.c
 *	  The trigger that refuses writes without a good token.
 *
 * NOTES
 *	  The arguments of the trigger say what guards its table:
 *
 *		'NAME', 'resource=NAME'		the resource
 *		'resource_column=COLUMN'	... or the column that names it, after NAME
 *		'token_column=COLUMN'		the column that may carry the token
 *		'mode=live'					the token's lease must be live; default 'fence'
 *
 *	  With a resource, a write passes the resource's fence (fence/fence.c).  The
 *	  token is the value to which the statement sets the token column; else the
 *	  token with which the transaction has passed before; else the token in
 *	  dlock.tokens.  In the latter cases the trigger sets the column.  An update
 *	  that moves a row from one resource to another passes both fences, that of
 *	  the old resource without the column.
 *
 *	  With a token column alone, the row is its own mark: the trigger refuses a
 *	  token below the one in the row.
 *
 *	  The server tells the trigger which columns an UPDATE sets.  For a MERGE
 *	  these are the columns that any of its UPDATE actions sets, so if one sets the
 *	  token column, all must.  An INSERT sets all columns; null and zero are no
 *	  tokens there.
 *
 *	  An UPDATE that moves a row to another partition fires the triggers for
 *	  UPDATE and DELETE in the old partition, and those for INSERT in the new one.
 *	  These do not learn that an UPDATE has fired them.  If all partitions have the
 *	  guard, it has seen the row in the old partition, so the column holds a token
 *	  that was presented there, and presents it for the new row.  If some partition may
 *	  lack the guard, the column of an inserted row presents nothing.
 *
 *	  The arguments of a trigger are parsed once in a statement.  A trigger that cannot
 *	  guard refuses each write.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "catalog/partition.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "parser/parse_relation.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "base/error.h"
#include "base/name.h"
#include "base/stat.h"
#include "fence/fence.h"
#include "fence/guard.h"
#include "session/session.h"

/* A trigger, and its state during a statement. */
typedef struct DLockGuard
{
	const char *trigger;
	const char *table;
	DLockBytes	prefix;			/* the resource, or what its name begins with */
	const char *resource_column;
	const char *token_column;
	AttrNumber	resource_attr;	/* zero if there is no such column */
	AttrNumber	token_attr;
	bool		live;
	bool		inserts_present;	/* does an inserted row present its token? */
	FmgrInfo	output;			/* of the resource column's type */
} DLockGuard;

/* ---- what a trigger was created with ---- */

/* The trigger cannot guard: "detail" says why, "hint" what to write. */
pg_noreturn static void
refuse_guard(const DLockGuard *guard, const char *detail, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
			 errmsg("trigger \"%s\" cannot guard table \"%s\"", guard->trigger, guard->table),
			 errdetail("%s", detail),
			 errhint("%s", hint)));
}

/* An argument is "option=value", or the value of the first option alone. */
enum
{
	OPTION_RESOURCE, OPTION_RESOURCE_COLUMN, OPTION_TOKEN_COLUMN, OPTION_MODE
};
static const char *const options[] = {"resource", "resource_column", "token_column", "mode"};

/* Parse the arguments, which must live as long as the result. */
static void
parse_arguments(DLockGuard *guard, int count, char *const *arguments)
{
	const char *values[lengthof(options)] = {NULL};
	const char *resource;
	const char *mode;

	for (int i = 0; i < count; i++)
	{
		const char *sign = strchr(arguments[i], '=');
		const char *value = (sign != NULL) ? sign + 1 : arguments[i];
		size_t		option = OPTION_RESOURCE;

		while (sign != NULL && option < lengthof(options) &&
			   (strlen(options[option]) != sign - arguments[i] ||
				memcmp(options[option], arguments[i], sign - arguments[i]) != 0))
			option++;
		if (option == lengthof(options))
			refuse_guard(guard, psprintf("It has the unknown option \"%s\".", arguments[i]),
						 "Options are resource, resource_column, token_column and mode. Write a resource with \"=\" in its name as 'resource=...'.");
		if (values[option] != NULL)
			refuse_guard(guard, "It has an option twice.", "Write each option once.");
		if (*value == '\0')
			refuse_guard(guard, "It has an option without a value.",
						 "Write an option as 'name=value'.");
		values[option] = value;
	}

	resource = (values[OPTION_RESOURCE] != NULL) ? values[OPTION_RESOURCE] : "";
	guard->prefix = dlock_bytes(resource, strlen(resource));
	if (guard->prefix.len > 0)
		dlock_name_check("resource", guard->prefix.len);
	guard->resource_column = values[OPTION_RESOURCE_COLUMN];
	guard->token_column = values[OPTION_TOKEN_COLUMN];
	mode = values[OPTION_MODE];
	guard->live = mode != NULL && strcmp(mode, "live") == 0;
	if (mode != NULL && !guard->live && strcmp(mode, "fence") != 0)
		refuse_guard(guard, psprintf("It has the unknown mode \"%s\".", mode),
					 "Modes are \"fence\" and \"live\".");
}

/*
 * Is the text of a value of this type independent of settings?  Otherwise a
 * session could choose the name of the resource.
 */
static bool
is_name_type(Oid type)
{
	switch (getBaseType(type))
	{
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
		case NAMEOID:
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case OIDOID:
		case UUIDOID:
			return true;
		default:
			return false;
	}
}

/* The number of a column of names of resources, or of tokens; zero if "column" is NULL. */
static AttrNumber
find_column(const DLockGuard *guard, Relation rel, const char *column, bool of_tokens)
{
	AttrNumber	number;
	Form_pg_attribute attr;

	if (column == NULL)
		return InvalidAttrNumber;
	number = attnameAttNum(rel, column, false);
	if (number == InvalidAttrNumber)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of relation \"%s\" does not exist", column, guard->table),
				 errdetail("Guard \"%s\" names it.", guard->trigger),
				 errhint("Name a column of the table; if the column was renamed, create the trigger again.")));
	attr = TupleDescAttr(RelationGetDescr(rel), number - 1);
	if (of_tokens && (attr->atttypid != INT8OID || attr->attgenerated != '\0'))
		refuse_guard(guard, psprintf("Column \"%s\" is generated, or not of type bigint.", column),
					 "Name an ordinary column of type bigint.");
	if (!of_tokens && (!is_name_type(attr->atttypid) || attr->attgenerated != '\0'))
		refuse_guard(guard, psprintf("Column \"%s\" is generated, or its text depends on settings.", column),
					 "Name an ordinary column of a character, integer or uuid type.");
	return number;
}

/* Check that the kind and the arguments of a trigger make sense. */
static void
check_guard(DLockGuard *guard, Relation rel, int16 type)
{
	bool		has_resource = guard->prefix.len > 0 || guard->resource_column != NULL;

	/*
	 * Statements on an updatable view fire the triggers of its table, not its
	 * own.
	 */
	if (rel->rd_rel->relkind == RELKIND_VIEW)
		refuse_guard(guard, "Statements on a view do not fire guards of the view.",
					 "Guard the tables that the view writes to.");
	if (!TRIGGER_FOR_BEFORE(type))
		refuse_guard(guard, "It is not a BEFORE trigger.",
					 "Write CREATE TRIGGER ... BEFORE INSERT OR UPDATE OR DELETE ON ....");
	if (!has_resource && guard->token_column == NULL)
		refuse_guard(guard, "It names no resource.",
					 "Write dlock_guard('resource'), 'resource_column=...', or, for rows that are their own marks, 'token_column=...'.");
	if (!TRIGGER_FOR_ROW(type) && (guard->resource_column != NULL || guard->token_column != NULL))
		refuse_guard(guard, "It names a column, but is not FOR EACH ROW.",
					 "Write FOR EACH ROW, or guard the whole table by one resource.");
	if (guard->live && !has_resource)
		refuse_guard(guard, "It has the mode \"live\", but names no resource.",
					 "Name the lock of the lease by 'resource=...' or 'resource_column=...'.");

	if (!has_resource && rel->rd_rel->relkind == RELKIND_FOREIGN_TABLE)
		refuse_guard(guard, "Rows of a foreign table are not locked here, and cannot be their own marks.",
					 "Name a resource.");

	guard->resource_attr = find_column(guard, rel, guard->resource_column, false);
	guard->token_attr = find_column(guard, rel, guard->token_column, true);
}

/* ---- when it fires ---- */

/*
 * Does an inserted row present the token in its column?  In a partition, only if the guard
 * sees all updates and is a clone of one on a table that is no partition, so that all
 * partitions have it.  In a partition of a partition it is unknown where the original of a
 * clone is, so other partitions may lack it.
 */
static bool
is_insert_presenting(Relation rel, const Trigger *trigger)
{
	if (!rel->rd_rel->relispartition)
		return true;
	return trigger->tgisclone && TRIGGER_FOR_UPDATE(trigger->tgtype) && trigger->tgnattr == 0 &&
		trigger->tgqual == NULL && !get_rel_relispartition(get_partition_parent(RelationGetRelid(rel), true));
}

/* Set up the state of a trigger for a statement. */
static DLockGuard *
set_up(TriggerData *data, FmgrInfo *flinfo)
{
	MemoryContext old = MemoryContextSwitchTo(flinfo->fn_mcxt);
	DLockGuard *guard = palloc0(sizeof(DLockGuard));

	guard->trigger = data->tg_trigger->tgname;
	guard->table = pstrdup(RelationGetRelationName(data->tg_relation));
	parse_arguments(guard, data->tg_trigger->tgnargs, data->tg_trigger->tgargs);
	check_guard(guard, data->tg_relation, data->tg_trigger->tgtype);
	if (guard->token_attr != InvalidAttrNumber)
		guard->inserts_present = is_insert_presenting(data->tg_relation, data->tg_trigger);
	if (guard->resource_attr != InvalidAttrNumber)
	{
		Oid			function;
		bool		isvarlena;

		getTypeOutputInfo(TupleDescAttr(RelationGetDescr(data->tg_relation),
										guard->resource_attr - 1)->atttypid,
						  &function, &isvarlena);
		fmgr_info(function, &guard->output);
	}
	MemoryContextSwitchTo(old);

	dlock_session_attach();
	flinfo->fn_extra = guard;
	return guard;
}

/* ---- tokens ---- */

/* Read the token column of a row; false if it is null. */
static bool
read_column(const DLockGuard *guard, TriggerData *data, HeapTuple row, DLockToken *token)
{
	bool		isnull;
	Datum		value = heap_getattr(row, guard->token_attr, RelationGetDescr(data->tg_relation),
									 &isnull);

	*token = isnull ? DLOCK_TOKEN_NONE : DatumGetInt64(value);
	return !isnull;
}

/*
 * The token to which a statement sets the column of a row; DLOCK_TOKEN_NONE if it
 * does not set it.  An update that does not name the column presents nothing,
 * though the row has a token.
 */
static DLockToken
token_of_column(DLockGuard *guard, TriggerData *data, HeapTuple new)
{
	bool		is_insert = TRIGGER_FIRED_BY_INSERT(data->tg_event);
	DLockToken	token;

	if (guard->token_attr == InvalidAttrNumber || new == NULL)
		return DLOCK_TOKEN_NONE;
	if (!is_insert &&
		!bms_is_member(guard->token_attr - FirstLowInvalidHeapAttributeNumber,
					   data->tg_updatedcols))
		return DLOCK_TOKEN_NONE;
	if (!read_column(guard, data, new, &token))
		return DLOCK_TOKEN_NONE;

	/* A new row has zero by default, if its column must not be null. */
	if (is_insert && (token == 0 || !guard->inserts_present))
		return DLOCK_TOKEN_NONE;
	if (token <= DLOCK_TOKEN_NONE)
		dlock_error_token(token);
	return token;
}

/* Put the token into the column of a row. */
static HeapTuple
stamp(const DLockGuard *guard, TriggerData *data, HeapTuple row, DLockToken token)
{
	int			attr = guard->token_attr;
	Datum		value = Int64GetDatum(token);
	bool		isnull = false;
	DLockToken	held;

	if (attr == InvalidAttrNumber || (read_column(guard, data, row, &held) && held == token))
		return row;
	return heap_modify_tuple_by_cols(row, RelationGetDescr(data->tg_relation), 1, &attr, &value,
									 &isnull);
}

/* ---- resources ---- */

/*
 * Pass the fence of a resource with the given token; without one, with the token
 * that the transaction or the setting presents.  Returns the token.
 */
static DLockToken
pass(DLockGuard *guard, const DLockBytes *resource, DLockToken token)
{
	token = dlock_fence_pass(resource, token, guard->live, false);
	if (token == DLOCK_TOKEN_NONE)
	{
		dlock_stat_count(DLOCK_STAT_FENCE_MISSING, 1);
		ereport(ERROR,
				(errcode(ERRCODE_DLOCK_NO_TOKEN),
				 errmsg("no fencing token presented for resource \"%.*s\"",
						resource->len, resource->data),
				 errdetail("Table \"%s\" takes writes only from the holder of a lease.", guard->table),
				 errhint("Acquire the lock, and present its token by the setting \"dlock.tokens\" or, if you may call it, by dlock_fence().")));
	}
	return token;
}

/*
 * The name of a row's resource; false if the row names none.  Throws 22023 if a new row has
 * a name that cannot be one.
 */
static bool
find_resource(DLockGuard *guard, TriggerData *data, HeapTuple row, bool is_new, DLockBytes *name)
{
	bool		isnull;
	Datum		value;
	char	   *suffix;
	char	   *buf;
	int			len;

	*name = guard->prefix;
	if (guard->resource_attr == InvalidAttrNumber)
		return true;

	value = heap_getattr(row, guard->resource_attr, RelationGetDescr(data->tg_relation), &isnull);
	if (isnull)
		return false;
	suffix = OutputFunctionCall(&guard->output, value);
	len = guard->prefix.len + strlen(suffix);
	if (!is_new && (len == 0 || len > DLOCK_NAME_MAX))
		return false;
	dlock_name_check("resource", len);
	buf = palloc(len);
	memcpy(buf, guard->prefix.data, guard->prefix.len);
	memcpy(buf + guard->prefix.len, suffix, len - guard->prefix.len);
	*name = dlock_bytes(buf, len);
	return true;
}

/* Guard a row that belongs to a resource. */
static HeapTuple
guard_resource(DLockGuard *guard, TriggerData *data, HeapTuple old, HeapTuple new)
{
	DLockBytes	old_name;
	DLockBytes	new_name;

	/* A row from before the trigger may name none; an update can repair it. */
	bool		had_name = old != NULL && find_resource(guard, data, old, false, &old_name);

	if (new != NULL && !find_resource(guard, data, new, true, &new_name))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("column \"%s\" of a row of table \"%s\" must not be null",
						guard->resource_column, guard->table),
				 errdetail("It names the resource that guards the row."),
				 errhint("Declare the column NOT NULL.")));
	if (had_name && (new == NULL || !dlock_name_equal(&old_name, &new_name)))
		(void) pass(guard, &old_name, DLOCK_TOKEN_NONE);
	if (new == NULL)
		return old;
	return stamp(guard, data, new,
				 pass(guard, &new_name, token_of_column(guard, data, new)));
}

/* Guard a row that is its own mark. */
static HeapTuple
guard_row(DLockGuard *guard, TriggerData *data, HeapTuple old, HeapTuple new)
{
	DLockToken	written = token_of_column(guard, data, new);
	DLockToken	token = written;
	DLockToken	mark = DLOCK_TOKEN_NONE;

	if (token == DLOCK_TOKEN_NONE)
		token = dlock_fence_presented();
	if (token == DLOCK_TOKEN_NONE)
	{
		dlock_stat_count(DLOCK_STAT_FENCE_MISSING, 1);
		ereport(ERROR,
				(errcode(ERRCODE_DLOCK_NO_TOKEN),
				 errmsg("no fencing token, or more than one, presented for a row of table \"%s\"",
						guard->table),
				 errdetail("The row is fenced by its column \"%s\", which names no resource.",
						   guard->token_column),
				 errhint("Set the column to the token of the lease, or name the token for \"*\" in \"dlock.tokens\".")));
	}

	/*
	 * Rows from before the trigger have no mark.  An inserted row whose
	 * column presents nothing may have been moved, with its mark.
	 */
	if (old != NULL || written == DLOCK_TOKEN_NONE)
		(void) read_column(guard, data, (old != NULL) ? old : new, &mark);
	if (token < mark)
		dlock_fence_refuse("a row of table", guard->table, token, mark);
	if (old == NULL || token > mark)
		dlock_fence_check_known("a row of table", guard->table, token);
	if (written != DLOCK_TOKEN_NONE)
		dlock_fence_note_row(written);
	return (new != NULL) ? stamp(guard, data, new, token) : old;
}

/*
 * The trigger: let a statement or a row pass, or throw.
 *
 * Returns the row to be written; NULL for a statement.  Throws LK001, LK003, what
 * dlock_fence_pass() throws, 42703 or 42P17 if the trigger cannot guard, and 22004
 * for a row that names no resource.
 */
HeapTuple
dlock_guard_fire(TriggerData *data, FmgrInfo *flinfo)
{
	DLockGuard *guard = flinfo->fn_extra;
	HeapTuple	old = NULL;
	HeapTuple	new = NULL;

	if (guard == NULL)
		guard = set_up(data, flinfo);
	if (!TRIGGER_FIRED_FOR_ROW(data->tg_event))
	{
		(void) pass(guard, &guard->prefix, DLOCK_TOKEN_NONE);
		return NULL;
	}

	if (TRIGGER_FIRED_BY_INSERT(data->tg_event))
		new = data->tg_trigtuple;
	else
		old = data->tg_trigtuple;
	if (TRIGGER_FIRED_BY_UPDATE(data->tg_event))
		new = data->tg_newtuple;

	if (guard->prefix.len > 0 || guard->resource_attr != InvalidAttrNumber)
		return guard_resource(guard, data, old, new);
	return guard_row(guard, data, old, new);
}
