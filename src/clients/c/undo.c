/*-------------------------------------------------------------------------
 *
 * undo.c
 *	  A request that ends without a lease: what it was granted all the same.
 *
 * NOTES
 *	  A request is in doubt if it may have been granted what it has not heard of: its answer
 *	  was lost, or perhaps a turn was.  Then it asks for just that, as it does whenever it had a
 *	  place.  If it is given up, what its owner holds is looked up, and released by its
 *	  token, unless another request of the task is under way that may have been granted it.
 *	  Requests of the same task for the same lock, and callers, wait for that, but not for ever; it is
 *	  tried as long as the lease may last.  So an undo
 *	  that comes late ends no lease with a newer token.  It may end one with the same token: if
 *	  a release stalls on its way for longer than the undo is tried, and meanwhile a request
 *	  of the task gets back what it releases.  Its owner learns of that by the next renewal.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <stdio.h>
#include <string.h>

#include "internal.h"

/* What an owner has been granted. */
const Kind	find_kind = {
	.sql = "SELECT (SELECT token FROM @dlock_lease(n) WHERE owner = o ORDER BY token DESC LIMIT 1)"
	" FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS e(n, o, i) ORDER BY i",
	.columns = 2,.urgent = true
};

/* ---- others of the same task ---- */

/* Is this another lease of the task, on one of these locks? */
bool
meets(const dlock_lease *lease, const dlock_lease *other)
{
	bool		found = false;

	if (other == lease || strcmp(lease->task, other->task) != 0 || other->call == CALL_TASK)
		return false;
	for (int i = 0; i < lease->count; i++)
		for (int j = 0; j < other->count; j++)
			found |= strcmp(lease->names[i], other->names[j]) == 0;
	return found;
}

/* Is another one of the task about to end?  It could be granted the same. */
bool
is_blocked(const dlock_lease *lease)
{
	const dlock_session *s = lease->session;
	const dlock_lease *other = (s->failing > 0) ? s->leases : NULL;

	while (other != NULL && !(other->failing && meets(lease, other)))
		other = other->next;
	return other != NULL;
}

/* Has the task no other request for these locks or, up to this phase, lease on them, that could be granted the same? */
bool
is_alone(const dlock_lease *lease, Phase last)
{
	bool		alone = true;

	for (const dlock_lease *other = lease->session->leases; other != NULL && alone; other = other->next)
		if (other->phase != PHASE_NEW && other->phase <= last && !(lease->failing && other->failing))
			alone = !meets(lease, other);
	return alone;
}

/* Does one that is held have this token, too? */
bool
shares_token(const dlock_lease *lease, const char *name, const char *token)
{
	for (const dlock_lease *other = lease->session->leases; other != NULL; other = other->next)
		if (other != lease && other->phase == PHASE_HELD)
			for (int i = 0; i < other->count; i++)
				if (strcmp(other->tokens[i], token) == 0 && strcmp(other->names[i], name) == 0)
					return true;
	return false;
}

/* ---- the end ---- */

void
set_failing(dlock_lease *lease)
{
	lease->session->failing += !lease->failing;
	lease->failing = true;
}

/* It ends: requests that wait for that may go on. */
void
end_failing(dlock_lease *lease)
{
	dlock_session *s = lease->session;

	s->failing -= lease->failing;
	for (dlock_lease *other = lease->failing ? s->leases : NULL; other != NULL; other = other->next)
		if (other->phase == PHASE_NEW)
			go(other);
}

/* May it have been granted what it has not heard of? */
bool
is_in_doubt(const dlock_lease *lease)
{
	return lease->doubt_at >= lease->heard_at;
}

void
begin_end(dlock_lease *lease, Phase phase)
{
	set_failing(lease);
	lease->end_by = now_ms() + DOUBT_WITHIN;
	lease->phase = phase;
	go(lease);
}

/* May it be held still at that moment?  The end of a session does not wait for that. */
bool
may_undo(const dlock_lease *lease, int64_t at)
{
	int64_t		deadline = (lease->deadline > 0) ? lease->deadline : lease->end_by + lease->ttl;
	bool		stays = lease->call != CALL_TASK && !lease->session->closed;

	return at < (stays ? MAX(lease->end_by, deadline) : lease->end_by);
}

/* Try it again, but have the caller wait no longer if that takes too long. */
void
undo_later(dlock_lease *lease)
{
	if (now_ms() >= lease->end_by)
	{
		set_failing(lease);
		settle(lease, &lease->failure);
		wake_waiters(lease->session, &lease->waiters);
	}
	lease->wake_at = now_ms() + UNDO_EVERY;
	arm(lease->session, lease->wake_at);
}

/* The request is to end with this, once what it was granted all the same has been released. */
void
end_request(dlock_lease *lease, const dlock_error *error)
{
	lease->failure = *error;
	if (lease->turn[0] != '\0')
		memcpy(lease->tokens[0], lease->turn, TOKEN_SIZE);
	begin_end(lease, (lease->turn[0] != '\0') ? PHASE_RELEASING : PHASE_FINDING);
}

/* The message has the name of the lock. */
void
end_with(dlock_lease *lease, dlock_status status, const char *format)
{
	dlock_error error;

	fail(&error, status, format, lease->label);
	end_request(lease, &error);
}

/*
 * It is known what the owner holds: release that, if no other lease is meant, and no request, which
 * may have been sent after the question, and granted before its answer.
 */
void
found(dlock_lease *lease, const Answer *a)
{
	bool		alone = is_alone(lease, PHASE_WAITING);

	if (a->error.status != DLOCK_OK)
	{
		undo_later(lease);
		return;
	}
	for (int i = 0; i < lease->count; i++)
	{
		const char *token = PQgetvalue(a->result, a->row + i, 0);

		snprintf(lease->tokens[i], TOKEN_SIZE, "%s", (!alone || shares_token(lease, lease->names[i], token)) ? "" : token);
	}
	lease->phase = PHASE_RELEASING;
	go(lease);
}

/* Release what a lease that is not there any more was granted: it may have been told twice. */
void
give_back(dlock_session *s, const char *owner, const char *name, const char *token)
{
	const char *task = strchr(owner, '#');
	dlock_options o = {.task = (task != NULL) ? task + 1 : ""};
	dlock_lease *lease = new_lease(s, CALL_SINGLE, &name, 1, &o);

	/* Without memory, it lasts for its ttl. */
	if (lease == NULL)
		return;
	lease->answered = lease->tried = true;
	snprintf(lease->tokens[0], TOKEN_SIZE, "%s", shares_token(lease, name, token) ? "" : token);
	begin_end(lease, PHASE_RELEASING);
	unref_lease(lease);
}
