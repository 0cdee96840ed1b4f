/*-------------------------------------------------------------------------
 *
 * follow.c
 *	  Time slots, elections, and following who holds a lock.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static const Kind once_kind = {.sql = "SELECT @dlock_once($1, $2::interval)",.shared = 2};
static const Kind watch_kind = {
	.sql = "SELECT l.token, l.owner, l.payload FROM (VALUES (1)) AS always LEFT JOIN @dlock_watch($1, NULL, '0') AS l ON true",
	.shared = 1
};

/* An answer's token, or 0. */
static int64_t
token_of(const Answer *a)
{
	const char *value = answer_text(a, 0);

	return (value != NULL) ? strtoll(value, NULL, 10) : 0;
}

dlock_status
dlock_once(dlock_session *session, const char *name, int64_t every_ms, int64_t *token, dlock_error *error)
{
	char		span[SPAN_SIZE];
	const char *params[] = {name, span_text(every_ms, span)};
	Request		r = {.kind = &once_kind,.shared = params};
	Answer		a;

	*token = 0;
	if (!enter(session, error))
		return DLOCK_CLOSED;
	if (ask(session, NULL, &r, &a) == DLOCK_OK)
		*token = token_of(&a);
	PQclear(a.result);
	leave(session);
	return tell(error, &a.error);
}

dlock_status
dlock_elect(dlock_session *session, const char *name, const dlock_options *options,
			bool (*lead) (dlock_lease *lease, void *argument), void *argument, dlock_error *error)
{
	dlock_options o = {0};
	bool		candidate = true;

	if (options != NULL)
		o = *options;
	o.wait_ms = DLOCK_FOREVER;
	o.async = false;
	if (!enter(session, error))
		return DLOCK_CLOSED;
	unlock(session);
	while (candidate && nap(session, o.give_up_fd, 0))
	{
		dlock_lease *lease;
		dlock_error trouble;
		dlock_status status = dlock_acquire(session, name, &o, &lease, &trouble);

		if (status == DLOCK_OK)
		{
			/* The end of the session ends a term, or keeps it away. */
			lock(session);
			lease->elected = true;
			unlock(session);
			candidate = nap(session, 0, 0) && lead(lease, argument);
			(void) dlock_lease_release(lease, NULL);
			dlock_lease_free(lease);
		}
		else if (status != DLOCK_CANCELED && status != DLOCK_CLOSED)
		{
			lock(session);
			tell_trouble(session, trouble.message);
			unlock(session);
			(void) nap(session, o.give_up_fd, RETRY_EVERY);
		}
	}
	lock(session);
	leave(session);
	return DLOCK_OK;
}

dlock_status
dlock_watch(dlock_session *session, const char *name, int64_t every_ms, int give_up_fd,
			bool (*see) (int64_t token, const char *owner, const char *payload, void *argument), void *argument,
			dlock_error *error)
{
	dlock_session *s = session;
	int64_t		seen = -1;
	bool		watching = true;
	dlock_status status = DLOCK_OK;

	if (every_ms < 1)
		return fail(error, DLOCK_ERROR, "the interval must be a millisecond at least");
	if (!enter(s, error))
		return DLOCK_CLOSED;
	while (watching)
	{
		Request		r = {.kind = &watch_kind,.shared = &name};
		Answer		a;

		status = ask(s, NULL, &r, &a);
		unlock(s);
		if (status == DLOCK_OK)
		{
			if (token_of(&a) != seen)
				watching = see(token_of(&a), answer_text(&a, 1), answer_text(&a, 2), argument);
			seen = token_of(&a);
		}
		else if (status != DLOCK_UNREACHABLE)
		{
			watching = false;
			(void) tell(error, &a.error);
		}
		PQclear(a.result);
		watching = watching && nap(s, give_up_fd, every_ms);
		lock(s);
	}
	leave(s);
	return (status == DLOCK_UNREACHABLE) ? DLOCK_OK : status;
}
