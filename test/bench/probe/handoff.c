/*-------------------------------------------------------------------------
 *
 * handoff.c
 *	  From the release being sent to the next holder having its answer.
 *
 * NOTES
 *	  Of two sessions one holds the lock and the other wants it; then they
 *	  change places.  What differs is how the other gets to know:
 *
 *	  dlock		it waits in dlock_acquire
 *	  take		it has a place, and waits in dlock_take
 *	  notify	it listens, is notified, and tries dlock_acquire; the
 *				notification is sent by the very statement that releases, so
 *				that it costs no round trip of its own
 *	  notify2	the same, but NOTIFY is a statement of its own, after the
 *				release
 *	  polling	it tries dlock_acquire every 10 ms; the release comes at a
 *				random moment between two tries
 *
 *	  table		as "notify", but with a hand-made lease table instead of dlock
 *	  advisory	for scale, the lock is an advisory lock of the server's, and it
 *				waits in pg_advisory_lock
 *
 *	  They take turns of a few hand-offs each, so that whatever else goes on
 *	  in the machine meets all of them.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>

#include "probe.h"

#define POLL_INTERVAL	(10 * MSEC)

/* How long the lock is held, to let those who wait fall asleep. */
#define LEAST_HOLD		(1 * MSEC)
#define MOST_HOLD		(3 * MSEC)

typedef struct Party
{
	Session		session;
	const char *owner[1];		/* parameters of the statements */
} Party;

typedef struct Handoff
{
	Party		parties[2];
	Session		observer;
} Handoff;

static void
want(Session *session, bool granted)
{
	if (session->is_null == granted)
		fail(granted ? "the lock was not handed over" : "the lock was not held");
}

static void
open_party(Party *party, const char *owner)
{
	party->owner[0] = owner;
	session_open(&party->session);
	session_prepare(&party->session, "try", "SELECT dlock_acquire('handoff', $1::text)");
	session_prepare(&party->session, "wait", "SELECT dlock_acquire('handoff', $1::text, wait => NULL)");
	session_prepare(&party->session, "place", "SELECT dlock_acquire('handoff', $1::text, keep => '1 min')");
	session_prepare(&party->session, "take", "SELECT token FROM dlock_take($1::text, NULL, '1 min')");
	session_prepare(&party->session, "release", "SELECT dlock_release('handoff', $1::text)");
	session_prepare(&party->session, "release_notify",
					"SELECT dlock_release('handoff', $1::text), pg_notify('handoff', '')");
	session_prepare(&party->session, "notify", "NOTIFY handoff");
	session_prepare(&party->session, "table_try",
					"INSERT INTO lease_delete AS l (name, owner, token, expires_at)"
					" VALUES ('handoff', $1::text, nextval('lease_delete_token'),"
					" clock_timestamp() + interval '30 s')"
					" ON CONFLICT (name) DO UPDATE SET owner = excluded.owner,"
					" token = excluded.token, expires_at = excluded.expires_at"
					" WHERE l.expires_at < clock_timestamp() RETURNING token");
	session_prepare(&party->session, "table_release_notify",
					"WITH gone AS (DELETE FROM lease_delete WHERE name = 'handoff' AND owner = $1::text)"
					" SELECT pg_notify('handoff', '')");
	session_prepare(&party->session, "advisory_lock", "SELECT pg_advisory_lock(1)");
	session_prepare(&party->session, "advisory_unlock", "SELECT pg_advisory_unlock(1)");
	session_do(&party->session, "LISTEN handoff");
}

/* Hold the lock for a while when somebody waits for it. */
static void
let_wait(Handoff *handoff, const char *count)
{
	do
	{
		nap(MSEC / 10);
		session_call(&handoff->observer, count, 0, NULL);
	} while (session_number(&handoff->observer) == 0);
	nap(random_span(LEAST_HOLD, MOST_HOLD));
}

/* Wait for the answers to what both of them were sent. */
static void
answers(Party *next, Party *holder)
{
	Session    *both[] = {&next->session, &holder->session};

	while (next->session.busy || holder->session.busy)
		sessions_wait(both, 2, FOREVER);
}

/* The lock changes hands without anybody waiting for it. */
static void
change_places(Party *holder, Party *next)
{
	session_call(&holder->session, "release", 1, holder->owner);
	session_call(&next->session, "try", 1, next->owner);
}

/* The next one waits in the statement "wait". */
static Time
by_statement(Handoff *handoff, Party *holder, Party *next, const char *wait)
{
	session_send(&next->session, wait, 1, next->owner);
	let_wait(handoff, "waiters");
	session_send(&holder->session, "release", 1, holder->owner);
	answers(next, holder);
	return next->session.answered_at - holder->session.sent_at;
}

static Time
by_waiting(Handoff *handoff, Party *holder, Party *next)
{
	return by_statement(handoff, holder, next, "wait");
}

static Time
by_taking(Handoff *handoff, Party *holder, Party *next)
{
	session_call(&next->session, "place", 1, next->owner);
	want(&next->session, false);
	return by_statement(handoff, holder, next, "take");
}

/* The same with an advisory lock, while the holder has the other lock, too. */
static Time
by_advisory(Handoff *handoff, Party *holder, Party *next)
{
	Time		latency;

	session_call(&holder->session, "advisory_lock", 0, NULL);
	session_send(&next->session, "advisory_lock", 0, NULL);
	let_wait(handoff, "advisory_waiters");
	session_send(&holder->session, "advisory_unlock", 0, NULL);
	answers(next, holder);
	latency = next->session.answered_at - holder->session.sent_at;

	session_call(&next->session, "advisory_unlock", 0, NULL);
	change_places(holder, next);
	return latency;
}

/*
 * One listens, the other releases by the statement "release" and notifies, if
 * need be by the statement "notify".
 */
static Time
by_notification(Party *holder, Party *next, const char *try, const char *release,
				const char *notify)
{
	Session    *both[] = {&next->session, &holder->session};
	Time		released;

	session_call(&next->session, try, 1, next->owner);
	want(&next->session, false);
	nap(random_span(LEAST_HOLD, MOST_HOLD));
	next->session.notified = 0;

	session_send(&holder->session, release, 1, holder->owner);
	released = holder->session.sent_at;
	if (notify != NULL)
	{
		session_answer(&holder->session);
		session_send(&holder->session, notify, 0, NULL);
	}
	do
	{
		while (next->session.notified == 0)
			sessions_wait(both, 2, FOREVER);
		next->session.notified = 0;
		session_send(&next->session, try, 1, next->owner);
		answers(next, holder);
	} while (next->session.is_null);
	return next->session.answered_at - released;
}

static Time
by_notify(Handoff *handoff, Party *holder, Party *next)
{
	return by_notification(holder, next, "try", "release_notify", NULL);
}

static Time
by_notify_of_its_own(Handoff *handoff, Party *holder, Party *next)
{
	return by_notification(holder, next, "try", "release", "notify");
}

/* The same with a lease table, while the holder has the other lock, too. */
static Time
by_table(Handoff *handoff, Party *holder, Party *next)
{
	Time		latency;

	session_call(&holder->session, "table_try", 1, holder->owner);
	want(&holder->session, true);
	latency = by_notification(holder, next, "table_try", "table_release_notify", NULL);

	session_call(&next->session, "table_release_notify", 1, next->owner);
	change_places(holder, next);
	return latency;
}

static Time
by_polling(Handoff *handoff, Party *holder, Party *next)
{
	Session    *both[] = {&next->session, &holder->session};
	Time		release_at;

	session_call(&next->session, "try", 1, next->owner);
	want(&next->session, false);
	release_at = now_monotonic() + random_span(0, POLL_INTERVAL - 1);
	while (now_monotonic() < release_at)
		nap(release_at - now_monotonic());

	session_send(&holder->session, "release", 1, holder->owner);
	do
	{
		Time		again = next->session.answered_at + POLL_INTERVAL;

		while (holder->session.busy || now_monotonic() < again)
			sessions_wait(both, 2, again);
		session_call(&next->session, "try", 1, next->owner);
	} while (next->session.is_null);
	return next->session.answered_at - holder->session.sent_at;
}

/* ---- the whole ---- */

static const struct Way
{
	const char *name;
	int			turn;			/* hand-offs in a turn */
	Time		(*hand_over) (Handoff *handoff, Party *holder, Party *next);
}			ways[] = {
	{"dlock", 10, by_waiting},
	{"take", 10, by_taking},
	{"notify", 10, by_notify},
	{"notify2", 10, by_notify_of_its_own},
	{"polling", 3, by_polling},
	{"table", 10, by_table},
	{"advisory", 10, by_advisory},
};

void
handoff(const Options *options)
{
	static Handoff handoff;
	Party	   *holder = &handoff.parties[0];
	Party	   *next = &handoff.parties[1];
	bool		warm = false;
	Time		end;

	session_open(&handoff.observer);
	session_prepare(&handoff.observer, "waiters",
					"SELECT count(pid) FROM dlock_waiters WHERE name = 'handoff'");
	session_prepare(&handoff.observer, "advisory_waiters",
					"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted");
	open_party(holder, "2000000000");
	open_party(next, "2000000001");
	session_call(&holder->session, "try", 1, holder->owner);
	want(&holder->session, true);

	for (end = now_monotonic() + options->seconds * SEC; now_monotonic() < end; warm = true)
	{
		for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++)
		{
			for (int i = 0; i < ways[w].turn; i++)
			{
				Time		latency = ways[w].hand_over(&handoff, holder, next);
				Party	   *before = holder;

				want(&next->session, true);
				/* The first ones of a session are slower. */
				if (warm)
					printf("%s %lld\n", ways[w].name, (long long) latency);
				holder = next;
				next = before;
			}
		}
	}
	session_call(&holder->session, "release", 1, holder->owner);
}
