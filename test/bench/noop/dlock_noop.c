/*-------------------------------------------------------------------------
 *
 * dlock_noop.c
 *	  C functions that do nothing, for the benchmark.
 *
 * NOTES
 *	  Declared with the argument lists of dlock_acquire, dlock_renew and
 *	  dlock_release (see ../setup.sql), a call of them costs what a call of
 *	  those would cost if locking were free: protocol, plan, argument
 *	  passing, result.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(dlock_noop_token);
PG_FUNCTION_INFO_V1(dlock_noop_true);
PG_FUNCTION_INFO_V1(dlock_noop_trigger);

Datum
dlock_noop_token(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(1);
}

Datum
dlock_noop_true(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(true);
}

/* A row trigger BEFORE UPDATE that leaves the row as it is. */
Datum
dlock_noop_trigger(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(((TriggerData *) fcinfo->context)->tg_newtuple);
}
