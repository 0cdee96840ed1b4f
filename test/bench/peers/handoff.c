/*-------------------------------------------------------------------------
 *
 * handoff.c
 *	  From the release being sent to the next holder having its answer, and
 *	  whether a peer does at all what is measured.
 *
 * NOTES
 *	  Of two connections one holds the lock and the other waits for it, in the
 *	  way that the peer has for that; then they change places.  The lock is
 *	  held for some milliseconds, so that the one that waits is asleep.
 *
 * IDENTIFICATION
 *	  test/bench/peers/handoff.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "peers.h"

#define LEAST_HOLD		(2 * MSEC)
#define MOST_HOLD		(4 * MSEC)

/* How many are not counted: the first ones are slower. */
#define COLD			5

static Connection *
open_two(const Peer *peer)
{
	Connection *both = calloc(2, sizeof(Connection));
	char		name[32];

	if (both == NULL)
		fail("out of memory");

	/*
	 * A number, as all names are, and not that of a check that was broken
	 * off.
	 */
	snprintf(name, sizeof(name), "%lld", 2000000000000LL + getpid());
	for (int i = 0; i < 2; i++)
	{
		connection_init(&both[i], peer, i);
		peer->open(&both[i]);
		connection_name(&both[i], name);
	}
	return both;
}

static void
close_two(Connection *both)
{
	for (int i = 0; i < 2; i++)
		connection_close(&both[i]);
	free(both);
}

/* The microseconds that it took. */
static Time
hand_over(Connection *holder, Connection *next)
{
	const Peer *peer = holder->peer;
	Time		hold = peer->fall_asleep * MSEC + LEAST_HOLD + connection_random(holder) % (MOST_HOLD - LEAST_HOLD);
	Time		sent_at;
	Time		answered_at;

	peer->handoff_wait(next);
	usleep(hold);
	sent_at = now_monotonic();
	peer->handoff_release(holder);
	while (!peer->handoff_got(next))
	{
		if (!connection_wait(next, sent_at + PATIENCE) && now_monotonic() >= sent_at + PATIENCE)
			fail("%s: the lock was not handed over", peer->name);
	}
	answered_at = now_monotonic();
	peer->handoff_end(holder, next);
	return answered_at - sent_at;
}

void
measure_handoff(const Peer *peer)
{
	Connection *both;
	Connection *holder;
	Connection *next;
	Time		end;

	if (peer->handoff_begin == NULL)
		fail("%s has no hand-off", peer->name);
	both = open_two(peer);
	holder = &both[0];
	next = &both[1];
	peer->handoff_begin(holder, next);
	end = now_monotonic() + options.seconds * SEC;
	for (int i = 0; now_monotonic() < end; i++)
	{
		Connection *before = holder;
		Time		latency = hand_over(holder, next);

		if (i >= COLD)
			printf("handoff %lld\n", (long long) latency);
		holder = next;
		next = before;
	}
	peer->handoff_release(holder);
	peer->handoff_end(holder, next);
	close_two(both);
}

static Answer
call(Connection *c, void (*request) (Connection *c))
{
	request(c);
	return connection_call(c);
}

/* How many locks are held once all is answered? */
static int64_t
count_held(Connection *both)
{
	const Peer *peer = both[0].peer;

	for (int i = 0; i < 2 && peer->settle != NULL; i++)
		peer->settle(&both[i]);
	return peer->count(&both[0]);
}

/* Does the peer grant, refuse and release, and hand over if it can? */
void
check_peer(const Peer *peer)
{
	Connection *both = open_two(peer);
	int64_t		held;

	if (call(&both[0], peer->acquire) != ANSWER_YES)
		fail("%s does not grant a lock that is free", peer->name);
	if (call(&both[1], peer->acquire) != ANSWER_NO)
		fail("%s grants a lock that is held", peer->name);
	held = count_held(both);
	if (held != 1 && held != -1)
		fail("%s has %lld locks and not one", peer->name, (long long) held);
	if (peer->owner_matters && call(&both[1], peer->release) != ANSWER_NO)
		fail("%s lets another one release a lock", peer->name);
	if (call(&both[0], peer->release) != ANSWER_YES)
		fail("%s does not release a lock", peer->name);
	held = count_held(both);
	if (held > 0)
		fail("%s keeps a lock", peer->name);
	if (call(&both[1], peer->acquire) != ANSWER_YES)
		fail("%s does not grant a lock again", peer->name);
	if (call(&both[1], peer->release) != ANSWER_YES)
		fail("%s does not release a lock again", peer->name);
	if (peer->handoff_begin != NULL)
	{
		peer->handoff_begin(&both[0], &both[1]);
		for (int i = 0; i < 4; i++)
			hand_over(&both[i % 2], &both[1 - i % 2]);
		peer->handoff_release(&both[0]);
		peer->handoff_end(&both[0], &both[1]);
	}
	close_two(both);
	printf("ok\n");
}
