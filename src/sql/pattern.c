/*-------------------------------------------------------------------------
 *
 * pattern.c
 *	  What patterns in SQL need beside leases: arguments in, results out.
 *
 * IDENTIFICATION
 *	  src/sql/pattern.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"

#include "base/clock.h"
#include "base/name.h"
#include "fence/fence.h"
#include "session/session.h"
#include "session/signal.h"
#include "sql/value.h"

PG_FUNCTION_INFO_V1(dlock_sql_token);
PG_FUNCTION_INFO_V1(dlock_sql_clock);
PG_FUNCTION_INFO_V1(dlock_sql_session);
PG_FUNCTION_INFO_V1(dlock_sql_ttl);
PG_FUNCTION_INFO_V1(dlock_sql_signal);
PG_FUNCTION_INFO_V1(dlock_sql_signals);
PG_FUNCTION_INFO_V1(dlock_sql_signal_wait);

/*
 * _dlock.token(above) -> a new token, above one that a row has seen
 *
 * A row that was copied from another database may have seen a later token than
 * this one has granted.
 */
Datum
dlock_sql_token(PG_FUNCTION_ARGS)
{
	DLockToken	above = PG_ARGISNULL(0) ? DLOCK_TOKEN_NONE : PG_GETARG_INT64(0);
	DLockToken	token;

	dlock_session_check_writable("dlock_task_capture");
	token = dlock_fence_take_above(above);
	if (token <= above)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a task has seen token %lld, which is above those of this database",
						(long long) above),
				 errdetail("Its row was copied from another database."),
				 errhint("Call dlock_bump_epoch() with that number as \"above\".")));
	PG_RETURN_INT64(token);
}

/* _dlock.clock() -> the wall clock */
Datum
dlock_sql_clock(PG_FUNCTION_ARGS)
{
	PG_RETURN_TIMESTAMPTZ(dlock_clock_wall());
}

/* _dlock.session() -> the default owner */
Datum
dlock_sql_session(PG_FUNCTION_ARGS)
{
	PG_RETURN_DATUM(dlock_name_to_text(dlock_name_session()));
}

/* _dlock.ttl(ttl) -> the ttl, or the default one */
Datum
dlock_sql_ttl(PG_FUNCTION_ARGS)
{
	return dlock_value_of_span(dlock_value_get_ttl(fcinfo, 0, true));
}

/* _dlock.signal(queue_id) -> true */
Datum
dlock_sql_signal(PG_FUNCTION_ARGS)
{
	dlock_signal_at_commit(PG_GETARG_INT32(0));
	PG_RETURN_BOOL(true);
}

/* _dlock.signals(queue_id) -> how many so far */
Datum
dlock_sql_signals(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64((int64) dlock_signal_seen(PG_GETARG_INT32(0)));
}

/* _dlock.signal_wait(queue_id, seen, until) */
Datum
dlock_sql_signal_wait(PG_FUNCTION_ARGS)
{
	dlock_signal_wait(PG_GETARG_INT32(0), (uint64) PG_GETARG_INT64(1),
					  TimestampDifferenceMilliseconds(dlock_clock_wall(), PG_GETARG_TIMESTAMPTZ(2)));
	PG_RETURN_VOID();
}
