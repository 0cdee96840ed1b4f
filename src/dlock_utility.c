/*-------------------------------------------------------------------------
 *
 * dlock_utility.c
 *	  Hooks into commands of others.
 *
 * NOTES
 *	  Three things are to be noticed: a command that needs a database to
 *	  itself, so that the reaper leaves it for that time; a transaction that
 *	  has created or dropped the extension, so that a reaper comes or goes; and
 *	  the forms of ALTER TABLE that would throw the leases away without asking
 *	  the access method.
 *
 * IDENTIFICATION
 *	  src/dlock_utility.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_extension.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "tcop/utility.h"
#include "utils/memutils.h"

#include "dlock_am.h"
#include "dlock_database.h"
#include "dlock_error.h"
#include "dlock_launcher.h"
#include "dlock_space.h"
#include "dlock_utility.h"

static ProcessUtility_hook_type next_utility_hook = NULL;
static object_access_hook_type next_access_hook = NULL;

/* Has this transaction created or dropped the extension, or some extension? */
static bool extension_changed = false;

/* The databases whose reapers this transaction keeps away. */
static List *held_databases = NIL;

/* The value of an option of a command; NULL if it is not given. */
static const char *
find_option(List *options, const char *name)
{
	ListCell   *cell;

	foreach(cell, options)
	{
		DefElem    *option = lfirst(cell);

		if (strcmp(option->defname, name) == 0 && option->arg != NULL)
			return defGetString(option);
	}
	return NULL;
}

/* The database that a command needs for itself; NULL if none. */
static const char *
database_needed(Node *command)
{
	switch (nodeTag(command))
	{
		case T_DropdbStmt:
			return ((DropdbStmt *) command)->dbname;

		case T_CreatedbStmt:
			{
				const char *template = find_option(((CreatedbStmt *) command)->options,
												   "template");

				return (template != NULL) ? template : "template1";
			}

		case T_RenameStmt:
			if (((RenameStmt *) command)->renameType == OBJECT_DATABASE)
				return ((RenameStmt *) command)->subname;
			return NULL;

		case T_AlterDatabaseStmt:
			if (find_option(((AlterDatabaseStmt *) command)->options, "tablespace") != NULL)
				return ((AlterDatabaseStmt *) command)->dbname;
			return NULL;

		default:
			return NULL;
	}
}

/* What a subcommand of ALTER TABLE must not do to the store; NULL if harmless. */
static const char *
forbidden_change(AlterTableCmd *command)
{
	switch (command->subtype)
	{
		case AT_SetAccessMethod:
			return "change the access method of";
		case AT_SetUnLogged:
			return "change the persistence of";
		default:
			return NULL;
	}
}

/* Refuse what would throw the leases away. */
static void
check_alter_table(AlterTableStmt *command)
{
	ListCell   *cell;

	foreach(cell, command->cmds)
	{
		const char *change = forbidden_change(lfirst(cell));
		Oid			oid;
		Relation	rel;
		bool		is_store;

		if (change == NULL)
			continue;
		oid = RangeVarGetRelid(command->relation, AccessShareLock, true);
		if (!OidIsValid(oid))
			return;
		rel = try_relation_open(oid, NoLock);
		if (rel == NULL)
			return;
		is_store = rel->rd_tableam == dlock_am_routine();
		relation_close(rel, NoLock);
		if (is_store)
			dlock_error_store_operation(command->relation->relname, change);
	}
}

/* Keep the reaper of a database away until this transaction ends. */
static void
hold_reaper(Oid database)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	held_databases = lappend_oid(held_databases, database);
	MemoryContextSwitchTo(old);
	dlock_launcher_hold(database);
}

/* At the end of the transaction, when others see what it did. */
static void
unhold_reapers(void)
{
	ListCell   *cell;

	foreach(cell, held_databases)
		dlock_launcher_unhold(lfirst_oid(cell));
	list_free(held_databases);
	held_databases = NIL;
}

static void
call_next(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
		  ProcessUtilityContext context, ParamListInfo params,
		  QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	if (next_utility_hook != NULL)
		next_utility_hook(pstmt, queryString, readOnlyTree, context, params,
						  queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params,
								queryEnv, dest, qc);
}

static void
utility_hook(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
			 ProcessUtilityContext context, ParamListInfo params,
			 QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *command = pstmt->utilityStmt;
	const char *name = database_needed(command);
	Oid			database = (name != NULL) ? get_database_oid(name, true) : InvalidOid;

	if (IsA(command, AlterTableStmt))
		check_alter_table((AlterTableStmt *) command);

	if (OidIsValid(database))
		hold_reaper(database);
	call_next(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
}

static void
access_hook(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (access == OAT_DROP && classId == ExtensionRelationId)
	{
		/* Now, since it may throw, and a commit must not. */
		(void) dlock_space_area();
		extension_changed = true;
	}
	if (next_access_hook != NULL)
		next_access_hook(access, classId, objectId, subId, arg);
}

/* A store got its storage, most likely since the extension is being created. */
static void
store_created(void)
{
	/* Now, since the registry may be full and a commit must not fail. */
	(void) dlock_database_attach(MyDatabaseId);
	extension_changed = true;
}

static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			if (extension_changed)
				dlock_launcher_extension_changed();
			extension_changed = false;
			unhold_reapers();
			break;

		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			extension_changed = false;
			unhold_reapers();
			break;

		default:
			break;
	}
}

/*
 * Install the hooks.  To be called while shared_preload_libraries is being
 * processed.
 */
void
dlock_utility_install(void)
{
	next_utility_hook = ProcessUtility_hook;
	ProcessUtility_hook = utility_hook;
	next_access_hook = object_access_hook;
	object_access_hook = access_hook;
	dlock_am_created_hook = store_created;
	RegisterXactCallback(xact_callback, NULL);
}
