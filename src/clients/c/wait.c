/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  Places in queues, and the turns that come.
 *
 * NOTES
 *	  A request keeps its place in the queue of the lock, and one connection, there
 *	  only while something waits, takes the turns of all.  After an outage, or if places may
 *	  have run out as this process did not get to run, all ask again.
 *
 *	  Paths and several locks at once have no place, and ask again in intervals that grow.
 *
 *	  The table has the locks that are held or asked for, by owner and name.
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "internal.h"

#define LONGEST_POLL	500

/*
 * How long a place is kept between calls, which is how long a program that dies holds others up;
 * and how long a call waits, for it keeps a snapshot.  It goes on when nothing waits any more:
 * the turn of a request to come may be in its answer.
 */
#define KEEP_PLACE_FOR	10000
#define TAKE_FOR		5000

static const Kind take_kind = {
	.sql = "SELECT name, owner, token FROM @dlock_take($1, '5 seconds', '10 seconds')",
	.columns = 1,.alone = true,.within = TAKE_FOR + ANSWER_WITHIN
};

/* ---- the table ---- */

static Row **
bucket_of(dlock_session *s, const char *owner, const char *name)
{
	uint32_t	hash = 2166136261u;

	for (; *owner != '\0'; owner++)
		hash = (hash ^ (unsigned char) *owner) * 16777619u;
	for (; *name != '\0'; name++)
		hash = (hash ^ (unsigned char) *name) * 16777619u;
	return &s->table[(hash ^ hash >> 16) % BUCKETS];
}

void
table_remove(Row *entry)
{
	Row		  **at = bucket_of(entry->lease->session, entry->lease->owner, entry->name);

	if (entry->in == ROW_OUT)
		return;
	while (*at != entry)
		at = &(*at)->next;
	*at = entry->next;
	entry->lease->session->places -= entry->in == ROW_PLACE;
	entry->in = ROW_OUT;
}

/* Places are found in the order in which they were asked for. */
void
table_put(Row *entry, RowState in)
{
	dlock_session *s = entry->lease->session;
	Row		  **at = bucket_of(s, entry->lease->owner, entry->name);

	if (entry->in == ROW_OUT || in == ROW_PLACE)
	{
		table_remove(entry);
		while (*at != NULL)
			at = &(*at)->next;
		entry->next = NULL;
		*at = entry;
	}
	s->places += (in == ROW_PLACE) - (entry->in == ROW_PLACE);
	entry->in = in;
}

static bool
is_of(const Row *entry, RowState from, RowState to, const char *owner, const char *name)
{
	return entry->in >= from && entry->in <= to && strcmp(entry->lease->owner, owner) == 0 && strcmp(entry->name, name) == 0;
}

/* How many leases on the lock the owner has. */
int
held_by(dlock_session *s, const char *owner, const char *name)
{
	int			count = 0;

	for (Row *entry = *bucket_of(s, owner, name); entry != NULL; entry = entry->next)
		count += is_of(entry, ROW_HELD, ROW_HELD, owner, name);
	return count;
}

/* Has the task no other request or, up to this state, lease on these locks, which might be meant instead? */
bool
is_alone(dlock_lease *lease, RowState last)
{
	bool		alone = true;

	for (int i = 0; i < lease->count; i++)
		for (Row *entry = *bucket_of(lease->session, lease->owner, lease->rows[i].name); entry != NULL; entry = entry->next)
			alone &= entry->lease == lease || !is_of(entry, ROW_WANTED, last, lease->owner, lease->rows[i].name);
	return alone;
}

bool
holds_token(dlock_session *s, const char *owner, const char *name, const char *token)
{
	bool		found = false;

	for (Row *entry = *bucket_of(s, owner, name); entry != NULL; entry = entry->next)
		found |= is_of(entry, ROW_HELD, ROW_HELD, owner, name) && strcmp(entry->token, token) == 0;
	return found;
}

/* ---- places ---- */

/* A place is about to be asked for: a turn may come before the answer. */
void
expect(dlock_lease *lease)
{
	if (lease->rows[0].in != ROW_PLACE)
		table_put(&lease->rows[0], ROW_PLACE);
}

/* A turn that it has not taken is given back. */
void
forget(dlock_lease *lease)
{
	if (lease->turn == TURN_COME)
		decline(lease->session, lease->owner, lease->rows[0].name, lease->turn_token);
	lease->turn = TURN_NONE;
}

/* Wait for a turn, or until it is time to ask again. */
void
wait_for_turn(dlock_lease *lease)
{
	dlock_session *s = lease->session;

	if (lease->turn != TURN_NONE || lease->in_doubt || lease->gave_up)
	{
		go_on(lease);
		return;
	}
	lease->phase = PHASE_TURN;
	lease->wake_at = lease->wait_until;
	if (!lease->placed)
	{
		lease->wake_at = MIN(lease->wake_at, now_ms() + lease->delay);
		lease->delay = MIN(2 * lease->delay, LONGEST_POLL);
	}
	else if (!s->taking)
	{
		s->taking = true;
		s->take_at = 0;
		arm(s, 0);
	}
	arm(s, lease->wake_at);
}

/* ---- turns ---- */

static void
turn_has_come(dlock_session *s, const Answer *a)
{
	const char *name = answer_text(a, 0);
	const char *owner = answer_text(a, 1);
	const char *token = answer_text(a, 2);
	Row		   *entry = *bucket_of(s, owner, name);

	while (entry != NULL && !(is_of(entry, ROW_PLACE, ROW_PLACE, owner, name) && entry->lease->turn == TURN_NONE))
		entry = entry->next;
	if (entry != NULL)
	{
		dlock_lease *lease = entry->lease;

		lease->turn = (token != NULL) ? TURN_COME : TURN_NEVER;
		lease->turn_sent = a->sent;
		strncpy(lease->turn_token, (token != NULL) ? token : "", TOKEN_SIZE - 1);
		if (lease->phase == PHASE_TURN)
			go_on(lease);
	}
	else if (token != NULL)
		decline(s, owner, name, token);
}

static void
then_taken(Request *r, Answer *a)
{
	dlock_session *s = r->whose;
	bool		answered = a->error.status == DLOCK_OK;
	dlock_lease *next;

	for (int i = 0; answered && i < PQntuples(a->result); i++)
	{
		a->row = i;
		turn_has_come(s, a);
	}
	if (!answered || a->sent - s->take_asked > KEEP_PLACE_FOR / 2)
	{
		for (dlock_lease *lease = s->leases; lease != NULL; lease = next)
		{
			next = lease->next;
			if (lease->rows[0].in != ROW_PLACE)
				continue;
			lease->in_doubt = true;
			if (lease->phase == PHASE_TURN)
				go_on(lease);
		}
	}
	s->take_at = (answered || s->places == 0) ? 0 : now_ms() + LONGEST_POLL;
	arm(s, s->take_at);
}

/* Take turns, as long as there are places. */
void
take_tick(dlock_session *s, int64_t now)
{
	if (s->taking && s->take_at != NEVER && now >= s->take_at)
	{
		s->taking = s->places > 0;
		s->take_at = NEVER;
		if (!s->taking)
			line_drop(&s->taker);
		else
		{
			s->take_asked = now;
			s->take.kind = &take_kind;
			s->take.row[0] = s->client;
			s->take.then = then_taken;
			s->take.whose = s;
			line_ask(s, &s->taker, &s->take);
		}
	}
	arm(s, s->take_at);
}
