/*-------------------------------------------------------------------------
 *
 * fence.c
 *	  The SQL functions that enforce tokens.
 *
 * IDENTIFICATION
 *	  src/sql/fence.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/acl.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "base/error.h"
#include "fence/fence.h"
#include "fence/guard.h"
#include "fence/mark.h"
#include "session/session.h"
#include "sql/argument.h"

PG_FUNCTION_INFO_V1(dlock_sql_fence);
PG_FUNCTION_INFO_V1(dlock_sql_fence_declare);
PG_FUNCTION_INFO_V1(dlock_sql_fence_reset);
PG_FUNCTION_INFO_V1(dlock_sql_guard);

/* dlock_fence(resource, token, live) -> void */
Datum
dlock_sql_fence(PG_FUNCTION_ARGS)
{
	DLockBytes	resource = dlock_argument_name(fcinfo, 0, "resource");
	DLockToken	token = dlock_argument_token(fcinfo, 1);

	dlock_argument_require(fcinfo, 2, "parameter \"live\"");
	dlock_fence_check_right(&resource, false);
	dlock_fence_pass(&resource, token, PG_GETARG_BOOL(2));
	PG_RETURN_VOID();
}

/* dlock_fence_declare(resource, role, is_foreign) -> void */
Datum
dlock_sql_fence_declare(PG_FUNCTION_ARGS)
{
	DLockBytes	resource = dlock_argument_name(fcinfo, 0, "resource");
	Oid			role = InvalidOid;

	dlock_argument_require(fcinfo, 2, "parameter \"is_foreign\"");
	if (!PG_ARGISNULL(1))
		role = get_role_oid(text_to_cstring(PG_GETARG_TEXT_PP(1)), false);
	dlock_session_check_writable("dlock_fence_declare");
	dlock_mark_declare(&resource, role, PG_GETARG_BOOL(2));
	PG_RETURN_VOID();
}

/* dlock_fence_reset(resource, token, reason) -> what the mark was, or null */
Datum
dlock_sql_fence_reset(PG_FUNCTION_ARGS)
{
	DLockBytes	resource = dlock_argument_name(fcinfo, 0, "resource");
	DLockToken	token = PG_ARGISNULL(1) ? DLOCK_TOKEN_NONE : dlock_argument_token(fcinfo, 1);
	char	   *reason = dlock_argument_reason(fcinfo, 2);
	DLockToken	before;

	dlock_session_check_writable("dlock_fence_reset");
	before = dlock_fence_reset(&resource, token);
	ereport(LOG,
			(errmsg("transaction resets the mark of resource \"%.*s\" from %lld to %lld",
					resource.len, resource.data, (long long) before, (long long) token),
			 errdetail("Role \"%s\" requested it. Reason: %s",
					   GetUserNameFromId(GetUserId(), false), reason)));
	if (before == DLOCK_TOKEN_NONE)
		PG_RETURN_NULL();
	PG_RETURN_INT64(before);
}

/* dlock_guard() -> trigger */
Datum
dlock_sql_guard(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("dlock_guard() must be called as a trigger"),
				 errhint("Use it in CREATE TRIGGER ... BEFORE ... EXECUTE FUNCTION dlock_guard('resource').")));
	PG_RETURN_POINTER(dlock_guard_fire((TriggerData *) fcinfo->context, fcinfo->flinfo));
}
