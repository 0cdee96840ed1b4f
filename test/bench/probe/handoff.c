/*-------------------------------------------------------------------------
 *
 * handoff.c
 *	  From the release being sent to the next holder having its answer.
 *
 * NOTES
 *	  Of two sessions one holds the lock and the other wants it; then they
 *	  change places.  What differs is how the other gets to know:
 *
 *	  - it waits in dlock_acquire;
 *	  - it listens, is notified, and tries dlock_acquire.  The notification
 *		is sent by the very statement that releases, so that this costs no
 *		round trip of its own;
 *	  - it tries dlock_acquire every 10 ms, and the release comes at a random
 *		moment between two tries.
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

/* One hand-off; returns when the release was sent. */
typedef Time (*Way) (Handoff *handoff, Party *holder, Party *next);

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
}

static void
hand_over(const Options *options, Way way, const char *setup)
{
	static Handoff handoff;
	Time		end;

	session_open(&handoff.observer);
	session_prepare(&handoff.observer, "waiters",
					"SELECT count(*) FROM dlock_waiters WHERE name = 'handoff'");
	open_party(&handoff.parties[0], "2000000000");
	open_party(&handoff.parties[1], "2000000001");
	for (int i = 0; i < 2 && setup != NULL; i++)
		session_do(&handoff.parties[i].session, setup);

	session_call(&handoff.parties[0].session, "try", 1, handoff.parties[0].owner);
	want(&handoff.parties[0].session, true);
	end = now_monotonic() + options->seconds * SEC;
	for (int i = 0; now_monotonic() < end; i++)
	{
		Party	   *holder = &handoff.parties[i % 2];
		Party	   *next = &handoff.parties[(i + 1) % 2];
		Time		released = way(&handoff, holder, next);

		want(&next->session, true);
		/* The first ones of a session are slower. */
		if (i >= 10)
			printf("handoff %lld\n", (long long) (next->session.answered_at - released));
	}
	for (int i = 0; i < 2; i++)
		session_call(&handoff.parties[i].session, "release", 1, handoff.parties[i].owner);
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

static Time
by_notify(Handoff *handoff, Party *holder, Party *next)
{
	Session    *both[] = {&next->session, &holder->session};

	session_call(&next->session, "try", 1, next->owner);
	want(&next->session, false);
	nap(random_span(LEAST_HOLD, MOST_HOLD));
	next->session.notified = 0;

	session_send(&holder->session, "release_notify", 1, holder->owner);
	do
	{
		while (next->session.notified == 0)
			sessions_wait(both, 2, FOREVER);
		next->session.notified = 0;
		session_send(&next->session, "try", 1, next->owner);
		while (next->session.busy || holder->session.busy)
			sessions_wait(both, 2, FOREVER);
	} while (next->session.is_null);
	return holder->session.sent_at;
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

void
handoff_by_waiting(const Options *options)
{
	hand_over(options, by_waiting, NULL);
}

void
handoff_by_notify(const Options *options)
{
	hand_over(options, by_notify, "LISTEN handoff");
}

void
handoff_by_polling(const Options *options)
{
	hand_over(options, by_polling, NULL);
}
