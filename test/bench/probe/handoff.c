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
 *	  notify	it listens, is notified, and tries dlock_acquire; the
 *				notification is sent by the very statement that releases, so
 *				that it costs no round trip of its own
 *	  notify2	the same, but NOTIFY is a statement of its own, after the
 *				release
 *	  polling	it tries dlock_acquire every 10 ms; the release comes at a
 *				random moment between two tries
 *
 *	  They take turns of a few hand-offs each, so that whatever else goes on
 *	  in the machine meets all of them.
 *
 * IDENTIFICATION
 *	  test/bench/probe/handoff.c
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
	session_prepare(&party->session, "release", "SELECT dlock_release('handoff', $1::text)");
	session_prepare(&party->session, "release_notify",
					"SELECT dlock_release('handoff', $1::text), pg_notify('handoff', '')");
	session_prepare(&party->session, "notify", "NOTIFY handoff");
	session_do(&party->session, "LISTEN handoff");
}

static Time
by_waiting(Handoff *handoff, Party *holder, Party *next)
{
	Session    *both[] = {&next->session, &holder->session};

	session_send(&next->session, "wait", 1, next->owner);
	do
	{
		nap(MSEC / 10);
		session_call(&handoff->observer, "waiters", 0, NULL);
	} while (session_number(&handoff->observer) == 0);
	nap(random_span(LEAST_HOLD, MOST_HOLD));

	session_send(&holder->session, "release", 1, holder->owner);
	while (next->session.busy || holder->session.busy)
		sessions_wait(both, 2, FOREVER);
	return holder->session.sent_at;
}

/* The session that listens gets the lock when it has been notified. */
static void
take_when_notified(Party *holder, Party *next)
{
	Session    *both[] = {&next->session, &holder->session};

	do
	{
		while (next->session.notified == 0)
			sessions_wait(both, 2, FOREVER);
		next->session.notified = 0;
		session_send(&next->session, "try", 1, next->owner);
		while (next->session.busy || holder->session.busy)
			sessions_wait(both, 2, FOREVER);
	} while (next->session.is_null);
}

static void
listen_for(Party *next)
{
	session_call(&next->session, "try", 1, next->owner);
	want(&next->session, false);
	nap(random_span(LEAST_HOLD, MOST_HOLD));
	next->session.notified = 0;
}

static Time
by_notify(Handoff *handoff, Party *holder, Party *next)
{
	listen_for(next);
	session_send(&holder->session, "release_notify", 1, holder->owner);
	take_when_notified(holder, next);
	return holder->session.sent_at;
}

static Time
by_notify_of_its_own(Handoff *handoff, Party *holder, Party *next)
{
	Time		released;

	listen_for(next);
	session_call(&holder->session, "release", 1, holder->owner);
	released = holder->session.sent_at;
	session_send(&holder->session, "notify", 0, NULL);
	take_when_notified(holder, next);
	return released;
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
	return holder->session.sent_at;
}

/* ---- the whole ---- */

static const struct Way
{
	const char *name;
	Time		(*hand_over) (Handoff *handoff, Party *holder, Party *next);	/* when was the release sent? */
	int			turn;			/* hand-offs in a turn */
}			ways[] = {
	{"dlock", by_waiting, 10},
	{"notify", by_notify, 10},
	{"notify2", by_notify_of_its_own, 10},
	{"polling", by_polling, 3},
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
					"SELECT count(*) FROM dlock_waiters WHERE name = 'handoff'");
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
				Time		released = ways[w].hand_over(&handoff, holder, next);
				Party	   *before = holder;

				want(&next->session, true);
				/* The first ones of a session are slower. */
				if (warm)
					printf("%s %lld\n", ways[w].name,
						   (long long) (next->session.answered_at - released));
				holder = next;
				next = before;
			}
		}
	}
	session_call(&holder->session, "release", 1, holder->owner);
}
