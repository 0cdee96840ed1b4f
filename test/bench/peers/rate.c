/*-------------------------------------------------------------------------
 *
 * rate.c
 *	  Pairs a second of many connections.
 *
 * NOTES
 *	  A thread drives its share of the connections from an epoll set.  Each
 *	  connection acquires a lock and releases it, again and again; who is
 *	  refused tries another name.  The pairs count whose release is answered
 *	  after the warm-up and before the end.  Then each connection gets its last
 *	  answer and releases, and nothing may be left.
 *
 * IDENTIFICATION
 *	  test/bench/peers/rate.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "peers.h"

#define MOST_EVENTS	64

typedef struct Share
{
	pthread_t	thread;
	Connection *connections;
	int			count;
	int64_t		pairs;
	int64_t		refused;
} Share;

/* When the warm-up ends, and the run. */
static Time first_moment;
static Time last_moment;

static void
acquire(Connection *c)
{
	connection_random_name(c);
	c->releasing = false;
	c->peer->acquire(c);
	connection_send(c);
}

/* Something has arrived. */
static void
go_on(Share *share, Connection *c, Time now)
{
	Answer		answer;

	while (!c->done && (answer = c->peer->take(c)) != ANSWER_NONE)
	{
		if (!c->releasing && answer == ANSWER_YES)
		{
			c->releasing = true;
			c->peer->release(c);
			connection_send(c);
			return;
		}
		if (c->releasing && answer == ANSWER_NO)
			fail("%s: a lock was not held when it was released", c->peer->name);
		if (now >= first_moment && now < last_moment)
		{
			share->pairs += c->releasing;
			share->refused += !c->releasing;
		}
		if (now >= last_moment)
			c->done = true;
		else
			acquire(c);
	}
}

static void
watch(int set, Connection *c)
{
	struct epoll_event event = {.events = EPOLLIN,.data.ptr = c};

	for (int i = 0; i < c->n_parts; i++)
		watch(set, &c->parts[i]);
	if (c->fd >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, c->fd, &event) != 0)
		fail("cannot watch a socket: %s", strerror(errno));
}

static void *
drive(void *argument)
{
	Share	   *share = argument;
	int			set = epoll_create1(EPOLL_CLOEXEC);
	int			running = share->count;

	if (set < 0)
		fail("cannot make an epoll set: %s", strerror(errno));
	for (int i = 0; i < share->count; i++)
	{
		watch(set, &share->connections[i]);
		acquire(&share->connections[i]);
	}
	while (running > 0)
	{
		struct epoll_event events[MOST_EVENTS];
		int			count = epoll_wait(set, events, MOST_EVENTS, (int) (PATIENCE / MSEC));
		Time		now = now_monotonic();

		if (count == 0)
			fail("no answer in %d s", (int) (PATIENCE / SEC));
		for (int i = 0; i < count; i++)
		{
			Connection *part = events[i].data.ptr;
			Connection *c = part->whole;
			bool		was_done = c->done;

			if (connection_receive(part))
				go_on(share, c, now);
			running -= c->done && !was_done;
		}
	}
	close(set);
	return NULL;
}

/* Every thread has as many connections as any other, or one more. */
static void
drive_all(Connection *connections, Share *shares)
{
	Connection *first = connections;

	for (int t = 0; t < options.threads; t++)
	{
		shares[t].connections = first;
		shares[t].count = options.clients / options.threads + (t < options.clients % options.threads);
		first += shares[t].count;
		if (pthread_create(&shares[t].thread, NULL, drive, &shares[t]) != 0)
			fail("cannot start a thread");
	}
	for (int t = 0; t < options.threads; t++)
		pthread_join(shares[t].thread, NULL);
}

void
measure_rate(const Peer *peer)
{
	Connection *connections = calloc(options.clients, sizeof(Connection));
	Share	   *shares = calloc(options.threads, sizeof(Share));
	int64_t		pairs = 0;
	int64_t		refused = 0;
	int64_t		left;

	if (connections == NULL || shares == NULL)
		fail("out of memory");
	for (int i = 0; i < options.clients; i++)
	{
		connection_init(&connections[i], peer, i);
		peer->open(&connections[i]);
	}
	first_moment = now_monotonic() + options.warm_up * MSEC;
	last_moment = first_moment + options.seconds * SEC;
	drive_all(connections, shares);
	for (int t = 0; t < options.threads; t++)
	{
		pairs += shares[t].pairs;
		refused += shares[t].refused;
	}
	for (int i = 0; i < options.clients && peer->settle != NULL; i++)
		peer->settle(&connections[i]);
	left = peer->count(&connections[0]);
	for (int i = 0; i < options.clients; i++)
		connection_close(&connections[i]);
	printf("rate %.1f\n", (double) pairs / options.seconds);
	printf("pairs %lld\n", (long long) pairs);
	printf("refused %lld\n", (long long) refused);
	printf("left %lld\n", (long long) left);
	if (left > 0)
		fail("%s: %lld locks are left", peer->name, (long long) left);
}
