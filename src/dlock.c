/*-------------------------------------------------------------------------
 *
 * dlock.c
 *	  Lease locks with fencing tokens: the module's entry points.
 *
 * NOTES
 *	  README in this directory has the map of the files and the theory of operation.
 *
 * IDENTIFICATION
 *	  src/dlock.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/extension.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/fault.h"
#include "base/settings.h"
#include "base/stat.h"
#include "hooks.h"
#include "lock/queue.h"
#include "session/taskwait.h"
#include "space/database.h"
#include "space/limit.h"
#include "space/memory.h"
#include "space/space.h"
#include "store/am.h"
#include "store/flush.h"
#include "worker/launcher.h"

PG_MODULE_MAGIC_EXT(
					.name = "dlock",
					.version = "1.0"
);

void		_PG_init(void);

PG_FUNCTION_INFO_V1(dlock_sql_store_handler);

/*
 * The modules that have shared memory.
 */
typedef struct DLockModule
{
	void		(*request) (void);
	void		(*startup) (void);
} DLockModule;

static const DLockModule modules[] =
{
	{dlock_memory_request, dlock_memory_startup},
	{dlock_space_request, dlock_space_startup},
	{dlock_queue_request, dlock_queue_startup},
	{dlock_taskwait_request, dlock_taskwait_startup},
	{dlock_stat_request, dlock_stat_startup},
	{dlock_limit_request, dlock_limit_startup},
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

/*
 * Set everything up, if the library is in shared_preload_libraries.
 *
 * A library that is loaded later gets no shared memory.  Then only the access
 * method works, so that a server without the setting can be started, vacuumed
 * and dumped, and the extension dropped; all other functions throw 55000.
 */
void
_PG_init(void)
{
	dlock_clock_init();
	if (!process_shared_preload_libraries_in_progress)
	{
		if (creating_extension)
			ereport(WARNING,
					(errmsg("dlock is not preloaded, so its functions cannot be used yet"),
					 errhint("Add \"shared_preload_libraries = 'dlock'\" to postgresql.conf and restart the server.")));
		return;
	}

	dlock_settings_define();
	dlock_hooks_install();
	dlock_launcher_register();

	next_request_hook = shmem_request_hook;
	shmem_request_hook = request_hook;
	next_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_hook;
}

/* The handler of access method dlock_store. */
Datum
dlock_sql_store_handler(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(dlock_am_routine());
}
