/*-------------------------------------------------------------------------
 *
 * redlock.c
 *	  Redlock: the lock of redis.c, at the majority of five servers.
 *
 * NOTES
 *	  The algorithm is that of Redis' documentation:
 *	  https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
 *
 *	  A client has a connection to each server.  It sends SET with NX and PX to
 *	  all of them at once.  Once a majority has said yes, and the time that is
 *	  left, less an allowance for clocks that drift, is above zero, the lock is
 *	  held.  Once that cannot be any more, the client sends the script that
 *	  compares and deletes to all of them, and is refused.  The release is that
 *	  script at all of them, answered by a majority.
 *
 *	  The answers of the slowest two are not waited for: they are taken in with
 *	  the next ones.  A server answers a connection's requests in their order,
 *	  so counting tells which answer is that to the last request.
 *
 *	  Redlock has no waiting for a lock: a client that is refused tries again
 *	  after a random delay.  So there is no hand-off.
 *
 * IDENTIFICATION
 *	  test/bench/peers/redlock.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "peers.h"

#define SERVERS		5
#define MAJORITY	(SERVERS / 2 + 1)

_Static_assert(SERVERS <= MOST_PARTS, "too many parts");

/* What the clocks of two servers may differ by in a span: 1 % and 2 ms. */
#define DRIFT(span)	((span) / 100 + 2 * MSEC)

enum
{
	ACQUIRING,
	RELEASING,
	UNDOING
};

/* ADDRESS is a list of those of the servers, with commas between. */
static void
open_session(Connection *c)
{
	char	   *list = strdup(options.address);
	char	   *rest = list;

	c->parts = calloc(SERVERS, sizeof(Connection));
	if (list == NULL || c->parts == NULL)
		fail("out of memory");
	for (c->n_parts = 0; c->n_parts < SERVERS; c->n_parts++)
	{
		Connection *part = &c->parts[c->n_parts];

		connection_init(part, &redis_peer, c->number);
		part->whole = c;
		part->address = strsep(&rest, ",");
		if (part->address == NULL)
			fail("Redlock needs the addresses of %d servers", SERVERS);
		part->peer->open(part);
	}
	if (rest != NULL)
		fail("Redlock needs the addresses of %d servers", SERVERS);
	free(list);
}

/* Write the same request for all servers. */
static void
ask(Connection *c, int request, void (*write) (Connection *c))
{
	c->request = request;
	c->asked_at = now_monotonic();
	c->yes = c->no = 0;
	for (int i = 0; i < SERVERS; i++)
	{
		Connection *part = &c->parts[i];

		connection_name(part, c->name);
		write(part);
		part->awaited++;
	}
}

static void
acquire(Connection *c)
{
	ask(c, ACQUIRING, redis_peer.acquire);
}

static void
release(Connection *c)
{
	ask(c, RELEASING, redis_peer.release);
}

/* Count the answers to the last request; those to earlier ones do not matter. */
static void
count_answers(Connection *c)
{
	for (int i = 0; i < SERVERS; i++)
	{
		Connection *part = &c->parts[i];
		Answer		answer;

		while (part->awaited > 0 && (answer = redis_peer.take(part)) != ANSWER_NONE)
		{
			if (--part->awaited > 0)
				continue;
			c->yes += answer == ANSWER_YES;
			c->no += answer == ANSWER_NO;
		}
	}
}

static Answer
take(Connection *c)
{
	Time		ttl = TTL_SECONDS * SEC;

	count_answers(c);
	if (c->request == UNDOING)
		return c->yes + c->no >= MAJORITY ? ANSWER_NO : ANSWER_NONE;
	if (c->yes < MAJORITY && c->no < MAJORITY)
		return ANSWER_NONE;
	if (c->request == RELEASING)
		return c->yes >= MAJORITY ? ANSWER_YES : ANSWER_NO;
	if (c->yes >= MAJORITY && ttl - (now_monotonic() - c->asked_at) - DRIFT(ttl) > 0)
		return ANSWER_YES;
	ask(c, UNDOING, redis_peer.release);
	connection_send(c);
	return ANSWER_NONE;
}

static void
settle(Connection *c)
{
	for (int i = 0; i < SERVERS; i++)
	{
		for (Connection *part = &c->parts[i]; part->awaited > 0; part->awaited--)
			connection_answer(part);
	}
}

/* The most that one server has: nothing is to be left at any. */
static int64_t
count(Connection *c)
{
	int64_t		most = 0;

	for (int i = 0; i < SERVERS; i++)
	{
		int64_t		held = redis_peer.count(&c->parts[i]);

		if (held > most)
			most = held;
	}
	return most;
}

static void
close_session(Connection *c)
{
	for (int i = 0; i < SERVERS; i++)
		connection_close(&c->parts[i]);
	free(c->parts);
}

const Peer	redlock_peer = {
	.name = "redlock",
	.owner_matters = true,
	.open = open_session,
	.acquire = acquire,
	.release = release,
	.take = take,
	.settle = settle,
	.count = count,
	.close = close_session,
};
