/*-------------------------------------------------------------------------
 *
 * takeover.c
 *	  From the deadline of a lease to the answer of the one who waits.
 *
 * NOTES
 *	  Two sessions in turn let a short lease expire while the other waits.
 *	  The deadline is what dlock_leases says, on the wall clock of the machine
 *	  that this process and the server share.  The view reads the monotonic
 *	  clock and the wall clock, and if it is interrupted between the two, it
 *	  shows a moment that is too late, but never one that is too early; so it
 *	  is asked several times and the earliest answer counts.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>

#include "probe.h"

#define SHORTEST_TTL	(20 * MSEC)
#define LONGEST_TTL		(40 * MSEC)
#define READINGS		3

/* What the clocks may disagree by while the machine slews one of them. */
#define TOLERANCE		(MSEC / 10)

/*
 * The deadline of the lease while somebody waits for it.  False if it cannot
 * be said.
 */
static bool
read_deadline(Session *observer, Time *deadline)
{
	*deadline = FOREVER;
	for (int readings = 0; readings < READINGS;)
	{
		session_call(observer, "deadline", 0, NULL);
		if (observer->is_null)
			return false;
		if (session_number(observer) == 0)
			continue;			/* nobody waits yet */
		if (session_number(observer) < *deadline)
			*deadline = session_number(observer);
		readings++;
	}
	return true;
}

static void
ask(Session *session, int owner)
{
	char		name[16];
	char		ttl[32];
	const char *values[] = {name, ttl};

	snprintf(name, sizeof(name), "%d", 2000000000 + owner);
	snprintf(ttl, sizeof(ttl), "%lld us", (long long) random_span(SHORTEST_TTL, LONGEST_TTL));
	session_send(session, "wait", 2, values);
}

static void
open_all(Session *sessions, Session *observer)
{
	session_open(observer);
	session_prepare(observer, "deadline",
					"SELECT CASE WHEN EXISTS (SELECT FROM dlock_waiters WHERE name = 'takeover')"
					" THEN (extract(epoch FROM expires_at) * 1000000)::bigint ELSE 0 END"
					" FROM dlock_leases WHERE name = 'takeover'");
	for (int i = 0; i < 2; i++)
	{
		session_open(&sessions[i]);
		session_prepare(&sessions[i], "wait",
						"SELECT dlock_acquire('takeover', $1::text, $2::interval, NULL)");
		session_prepare(&sessions[i], "end", "SELECT dlock_force_release('takeover', 'end of the run')");
	}
}

void
takeover(const Options *options)
{
	static Session sessions[2];
	static Session observer;
	int			missed = 0;

	open_all(sessions, &observer);
	ask(&sessions[0], 0);
	session_answer(&sessions[0]);
	for (int i = 1, samples = 0; samples < options->samples; i++)
	{
		Session    *next = &sessions[i % 2];
		Time		deadline;
		bool		known;
		Time		delay;

		ask(next, i % 2);
		known = read_deadline(&observer, &deadline);
		session_answer(next);
		delay = next->answered_at + (now_wall() - now_monotonic()) - deadline;
		if (next->is_null)
			fail("the lock was not taken over");
		if (known && delay < -TOLERANCE)
			fail("taken over %lld us before the deadline", (long long) -delay);
		if (known)
		{
			printf("takeover %lld\n", (long long) delay);
			samples++;
		}
		else if (++missed > options->samples)
			fail("leases expire before anybody waits for them");
	}
	session_call(&sessions[0], "end", 0, NULL);
}
