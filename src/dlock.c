/*-------------------------------------------------------------------------
 *
 * dlock.c
 *	  Lease locks with fencing tokens: the module's entry points.
 *
 * NOTES
 *	  README in this directory is the theory of operation.  The map of the
 *	  files, lowest layer first; each includes only lower ones:
 *
 *	  0	dlock_compat.h		differences between PostgreSQL versions
 *		dlock_exit.c		callbacks for the exit of a process
 *		dlock_types.h		the values that all speak of
 *	  1	dlock_error.c		errors that a user can meet
 *		dlock_taskerror.c	and those of task queues
 *		dlock_clock.c		the only reader of time
 *		dlock_merge.c		which columns a running MERGE sets
 *		dlock_present.c		tokens in the setting dlock.tokens
 *		dlock_value.c		our values as values of SQL
 *	  2	dlock_guc.c			settings
 *		dlock_name.c		names, owners, modes, hashes
 *		dlock_rule.c		the rules of leases, pure
 *		dlock_page.c		the format of pages, pure
 *		dlock_quota.c		who is due how many partitions of a group, pure
 *	  3	dlock_memory.c		shared memory for locks and leases
 *		dlock_store.c		leases on pages; the only writer of WAL
 *		dlock_am.c			the table access method of those pages
 *		dlock_token.c		fencing tokens in shared memory
 *		dlock_flush.c		when WAL becomes durable
 *		dlock_stat.c		what has happened, counted
 *		dlock_limit.c		how many leases a role has, where that is limited
 *	  4	dlock_space.c		locks, leases and queues in shared memory
 *		dlock_slot.c		which slots of the store are free
 *	  5	dlock_holder.c		who holds a lock, and who is in the way
 *		dlock_wait.c		who waits, and how to wake it
 *		dlock_database.c	what is shared about one database
 *	  6	dlock_work.c		what an operation has at hand, and what it lacks
 *	  7	dlock_grant.c		grants, ends and hand-offs: what changes who holds
 *	  8	dlock_queue.c		this process in the queue
 *		dlock_force.c		end whatever is held on a lock
 *		dlock_room.c		what to do when memory or a limit leaves no room
 *	  9	dlock_acquire.c		acquire, or go into the queue
 *	 10	dlock_manager.c		renew, release, convert, expire, check
 *		dlock_deadlock.c	owners that wait in a circle
 *		dlock_recover.c		pages to memory, at the first use
 *	 11	dlock_session.c		this backend and its database
 *	 12	dlock_bind.c		leases that end with this session
 *		dlock_launcher.c	the worker that starts reapers
 *		dlock_mark.c		the highest token that a resource has seen
 *		dlock_tasksql.c		SQL on the tables of tasks and groups
 *	 13	dlock_answer.c		a call that is not answered leaves nothing behind
 *		dlock_fence.c		tokens enforced: what a transaction may write to
 *		dlock_taskqueue.c	queues of tasks and their transitions
 *		dlock_tasksweep.c	captures of tasks that have timed out
 *	 14	dlock_waiting.c		calls that may wait
 *		dlock_once.c		who comes first in a time slot
 *		dlock_group.c		partitions that are spread over members
 *		dlock_guard.c		the trigger that refuses writes
 *		dlock_reaper.c		the worker that removes expired leases
 *		dlock_sqlarg.c		arguments of SQL functions
 *		dlock_task.c		tasks: put, set, capture, finish
 *	 15	dlock_groupdef.c	what groups there are, and whose
 *	 16	dlock_sqlfunc.c		SQL functions that act on leases
 *		dlock_sqlfence.c	SQL functions that enforce tokens
 *		dlock_sqltask.c		SQL functions on tasks
 *		dlock_sqlpattern.c	SQL functions of time slots and groups
 *		dlock_sqlview.c		SQL functions behind the views
 *	 17	dlock_utility.c		hooks into commands of others
 *	 18	dlock.c				this file, to tie it all together
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

#include "dlock_am.h"
#include "dlock_answer.h"
#include "dlock_clock.h"
#include "dlock_compat.h"
#include "dlock_database.h"
#include "dlock_flush.h"
#include "dlock_guc.h"
#include "dlock_launcher.h"
#include "dlock_limit.h"
#include "dlock_memory.h"
#include "dlock_space.h"
#include "dlock_stat.h"
#include "dlock_utility.h"
#include "dlock_wait.h"

PG_MODULE_MAGIC_EXT(.name = "dlock", .version = "1.0");

void		_PG_init(void);

PG_FUNCTION_INFO_V1(dlock_sql_store_handler);

/*
 * The modules that have shared memory.
 */
static const struct
{
	void		(*request) (void);
	void		(*startup) (void);
}			modules[] =
{
	{dlock_memory_request, dlock_memory_startup},
	{dlock_space_request, dlock_space_startup},
	{dlock_wait_request, dlock_wait_startup},
	{dlock_stat_request, dlock_stat_startup},
	{dlock_limit_request, dlock_limit_startup},
	{dlock_flush_request, dlock_flush_startup},
	{dlock_database_request, dlock_database_startup},
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
 * Loaded by shared_preload_libraries, set everything up.
 *
 * Loaded later, there is no shared memory to be had.  The access method works
 * nevertheless, so that a server that has lost the setting can be started,
 * vacuumed and dumped, and the extension dropped; all other functions say
 * what is missing.
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

	dlock_guc_define();
	dlock_answer_install();
	dlock_utility_install();
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
