/*-------------------------------------------------------------------------
 *
 * dlock.c
 *	  Lease locks with fencing tokens: the module's entry points and hooks.
 *
 * NOTES
 *	  README in this directory has the map of the files and the theory of operation.
 *
 *	  The hooks notice
 *
 *	  - DROP DATABASE and DROP EXTENSION, so that requests stop waiting for the locks,
 *		and the leases are purged;
 *	  - DROP ROLE, so that its places are removed;
 *	  - commands that may move the pages of a store (src/README, "The worker");
 *	  - DISCARD ALL, with which a pooler resets a session for another client.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "tcop/utility.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/error.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/settings.h"
#include "lock/queue.h"
#include "session/grants.h"
#include "space/database.h"
#include "space/count.h"
#include "space/memory.h"
#include "space/place.h"
#include "space/signal.h"
#include "space/space.h"
#include "store/flush.h"
#include "store/store.h"
#include "worker/worker.h"

PG_MODULE_MAGIC_EXT(
					.name = "dlock",
					.version = "1.0"
);

void		_PG_init(void);

PG_FUNCTION_INFO_V1(dlock_sql_store_handler);

/* ---- shared memory ---- */

/* The modules that have shared memory. */
typedef struct DLockModule
{
	void		(*request) (void);
	void		(*startup) (void);
} DLockModule;

static const DLockModule modules[] =
{
	{dlock_memory_request, dlock_memory_startup},
	{dlock_space_request, dlock_space_startup},
	{dlock_place_request, dlock_place_startup},
	{dlock_process_request, dlock_process_startup},
	{dlock_signal_request, dlock_signal_startup},
	{dlock_count_request, dlock_count_startup},
	{dlock_flush_request, dlock_flush_startup},
	{dlock_database_request, dlock_database_startup},
#ifdef DLOCK_FAULTS
	{dlock_fault_request, dlock_fault_startup},
#endif
};

static shmem_request_hook_type next_request_hook = NULL;
static shmem_startup_hook_type next_startup_hook = NULL;

static void
request_hook(void)
{
	if (next_request_hook != NULL)
		next_request_hook();
	for (size_t i = 0; i < lengthof(modules); i++)
		modules[i].request();
}

static void
startup_hook(void)
{
	if (next_startup_hook != NULL)
		next_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	for (size_t i = 0; i < lengthof(modules); i++)
		modules[i].startup();
	LWLockRelease(AddinShmemInitLock);
}

/* ---- hooks into commands and transactions ---- */

static ProcessUtility_hook_type next_utility_hook = NULL;
static object_access_hook_type next_access_hook = NULL;

/* The extension that this transaction dropped first; InvalidOid if none. */
static Oid	extension_dropped = InvalidOid;

/* The database that this transaction drops; InvalidOid if none. */
static Oid	database_dropped = InvalidOid;

/* The roles that it drops, in the memory of the transaction. */
static List *roles_dropped = NIL;

static void
utility_hook(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
			 ProcessUtilityContext context, ParamListInfo params,
			 QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *command = pstmt->utilityStmt;

	/* A ROLLBACK may free the command. */
	bool		discards = IsA(command, DiscardStmt) && ((DiscardStmt *) command)->target == DISCARD_ALL;

	next_utility_hook(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);

	/* As the server does with advisory locks. */
	if (discards)
		dlock_grants_discard();
}

static void
access_hook(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (next_access_hook != NULL)
		next_access_hook(access, classId, objectId, subId, arg);

	if (access == OAT_DROP && classId == ExtensionRelationId && !OidIsValid(extension_dropped) &&
		objectId == get_extension_oid("dlock", true))
		extension_dropped = objectId;
	if (access == OAT_DROP && classId == DatabaseRelationId)
		database_dropped = objectId;
	if (access == OAT_DROP && classId == AuthIdRelationId)
	{
		MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

		roles_dropped = lappend_oid(roles_dropped, objectId);
		MemoryContextSwitchTo(old);
	}

	/* Its pages may have moved; then it is locked exclusively. */
	if (access == OAT_POST_ALTER && classId == DatabaseRelationId)
		dlock_database_moved(objectId, InvalidOid);
	if (access == OAT_POST_ALTER && classId == RelationRelationId)
		dlock_database_moved(MyDatabaseId, objectId);
}

static void
end_transaction(bool committed)
{
	ListCell   *cell;

	if (OidIsValid(extension_dropped) && committed)
	{
		dlock_queue_dismiss(MyDatabaseId);
		dlock_database_abandoned(MyDatabaseId, false);
	}
	dlock_signal_end_transaction(committed);
	if (OidIsValid(database_dropped) && committed)
		dlock_database_abandoned(database_dropped, true);
	if (committed)
	{
		/* Places go now; leases end at their deadlines. */
		foreach(cell, roles_dropped)
			dlock_queue_give_up(InvalidOid, lfirst_oid(cell), NULL);
	}
	extension_dropped = database_dropped = InvalidOid;
	roles_dropped = NIL;
}

/* A rollback to a savepoint can have undone the drop of the extension, or of a role. */
static void
check_dropped(void)
{
	ListCell   *cell;

	foreach(cell, roles_dropped)
	{
		if (SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(lfirst_oid(cell))))
			roles_dropped = foreach_delete_current(roles_dropped, cell);
	}
	if (OidIsValid(extension_dropped) && get_extension_name(extension_dropped) != NULL)
		extension_dropped = InvalidOid;
}

static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			check_dropped();
			break;

		case XACT_EVENT_PRE_PREPARE:
			check_dropped();
			if (OidIsValid(extension_dropped))
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction that drops extension \"dlock\""),
						 errdetail("Calls that wait for its locks would not learn of the drop."),
						 errhint("Use COMMIT instead.")));
			break;

		case XACT_EVENT_COMMIT:
			end_transaction(true);
			break;

		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			end_transaction(false);
			break;

		default:
			break;
	}
}

/* ---- entry points ---- */

/*
 * Set everything up, if the library is in shared_preload_libraries.
 *
 * A library that is loaded later gets no shared memory.  Then only the access
 * method works, so that a server without the setting can be started, vacuumed
 * and dumped, and the extension dropped; functions that need leases throw 55000.
 */
void
_PG_init(void)
{
	dlock_clock_init();
	if (!process_shared_preload_libraries_in_progress)
	{
		if (creating_extension)
			ereport(WARNING,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("dlock is not preloaded, so its functions cannot be used yet"),
					 errhint("Add \"shared_preload_libraries = 'dlock'\" to postgresql.conf and restart the server.")));
		return;
	}

	dlock_name_init();
	dlock_settings_define();
	dlock_worker_register();

	next_request_hook = shmem_request_hook;
	shmem_request_hook = request_hook;
	next_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_hook;
	next_utility_hook = (ProcessUtility_hook != NULL) ? ProcessUtility_hook : standard_ProcessUtility;
	ProcessUtility_hook = utility_hook;
	next_access_hook = object_access_hook;
	object_access_hook = access_hook;
	RegisterXactCallback(xact_callback, NULL);
}

/* The handler of access method dlock_store. */
Datum
dlock_sql_store_handler(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(dlock_store_routine());
}
