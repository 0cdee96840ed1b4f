/*-------------------------------------------------------------------------
 *
 * zookeeper.c
 *	  ZooKeeper: ephemeral nodes.
 *
 * NOTES
 *	  Acquire creates an ephemeral node of the lock's name, which fails if
 *	  there is one, and release deletes it.
 *
 *	  The hand-off is the recipe for locks of ZooKeeper's documentation
 *	  (https://zookeeper.apache.org/doc/current/recipes.html): each one that
 *	  wants the lock has an ephemeral sequential node and watches the one
 *	  before its own; when that goes, it looks whether its own is the first.
 *
 *	  A request is a number, a type and arguments, all of them big-endian, after
 *	  the length of the whole; an answer is the number, a zxid, an error, and
 *	  results.  An answer of number -1 is a watch that has fired.
 *
 * IDENTIFICATION
 *	  test/bench/peers/zookeeper.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peers.h"

/* types of requests */
#define CONNECT			0
#define CREATE			1
#define DELETE			2
#define EXISTS			3
#define GET_CHILDREN	8
#define CLOSE_SESSION	(-11)

#define FIRED			(-1)	/* instead of the number of a request */

/* errors */
#define NO_NODE			(-101)
#define NODE_EXISTS		(-110)

/* kinds of nodes */
#define PERSISTENT		0
#define EPHEMERAL		1
#define SEQUENTIAL		2

#define ALL_RIGHTS		31
#define ANY_VERSION		(-1)
#define SESSION_TIMEOUT	40000	/* ms; the longest that the server grants */

#define ANSWER_HEAD		16		/* number, zxid, error */

#define LOCKS			"/bench"
#define QUEUE			"/handoff"

/* ---- requests ---- */

static void
put_text(Connection *c, const char *text)
{
	put_int(c, strlen(text), 4);
	put_string(c, text);
}

static void
begin_request(Connection *c, int type)
{
	c->request = type;
	put_int(c, 0, 4);
	put_int(c, ++c->xid, 4);
	put_int(c, type, 4);
}

/* The only one in the buffer. */
static void
end_request(Connection *c)
{
	set_int(c, 0, c->out_length - 4, 4);
}

static void
put_create(Connection *c, const char *path, int kind)
{
	begin_request(c, CREATE);
	put_text(c, path);
	put_text(c, c->owner);
	put_int(c, 1, 4);			/* so many rights */
	put_int(c, ALL_RIGHTS, 4);
	put_text(c, "world");
	put_text(c, "anyone");
	put_int(c, kind, 4);
	end_request(c);
}

static void
put_delete(Connection *c, const char *path)
{
	begin_request(c, DELETE);
	put_text(c, path);
	put_int(c, ANY_VERSION, 4);
	end_request(c);
}

static void
put_look(Connection *c, int type, const char *path, bool watch)
{
	begin_request(c, type);
	put_text(c, path);
	put_int(c, watch, 1);
	end_request(c);
}

/* ---- answers ---- */

/*
 * The children of the queue: where does this session's node stand, and which
 * one is before it?  The names sort as they were made.
 */
static void
read_children(Connection *c, const char *body, const char *end)
{
	const char *own = strrchr(c->node, '/');
	int			number = get_int(body, 4);

	c->number_answered = number;
	c->ahead[0] = '\0';
	body += 4;
	for (int i = 0; i < number; i++)
	{
		int			length = get_int(body, 4);
		char		child[64];

		body += 4;
		if (length < 0 || length > end - body)
			fail("ZooKeeper: an answer that is not understood");
		snprintf(child, sizeof(child), "%.*s", length, body);
		body += length;
		if (own != NULL && strcmp(child, own + 1) < 0 && strcmp(child, c->ahead) > 0)
			strcpy(c->ahead, child);
	}
}

static Answer
read_answer(Connection *c, const char *answer, size_t length)
{
	int			error;

	if (c->request == CONNECT)
	{
		if (get_int(answer + 4, 4) <= 0)
			fail("ZooKeeper: no session");
		return ANSWER_YES;
	}
	error = get_int(answer + 12, 4);
	if (error == NO_NODE || error == NODE_EXISTS)
		return ANSWER_NO;
	if (error != 0)
		fail("ZooKeeper: error %d", error);
	if (c->request == GET_CHILDREN)
		read_children(c, answer + ANSWER_HEAD, answer + length);
	if (c->request == CREATE)
	{
		int			size = get_int(answer + ANSWER_HEAD, 4);

		if (size < 0 || size >= (int) sizeof(c->text))
			fail("ZooKeeper: a path is too long");
		memcpy(c->text, answer + ANSWER_HEAD + 4, size);
		c->text[size] = '\0';
	}
	return ANSWER_YES;
}

static Answer
take(Connection *c)
{
	while (c->in_length >= 4)
	{
		size_t		length = get_int(c->in, 4);
		const char *message = c->in + 4;
		Answer		answer = ANSWER_NONE;

		if (4 + length > IN_SIZE)
			fail("ZooKeeper: an answer is too long");
		if (4 + length > c->in_length)
			return ANSWER_NONE;
		if (length < ANSWER_HEAD)
			fail("ZooKeeper: an answer that is not understood");
		if (c->request != CONNECT && get_int(message, 4) == FIRED)
			c->events++;
		else
			answer = read_answer(c, message, length);
		connection_consume(c, 4 + length);
		if (answer != ANSWER_NONE)
			return answer;
	}
	return ANSWER_NONE;
}

/* ---- the lock ---- */

static void
open_session(Connection *c)
{
	char		password[16] = "";

	connection_connect(c);
	c->request = CONNECT;
	put_int(c, 0, 4);
	put_int(c, 0, 4);			/* version of the protocol */
	put_int(c, 0, 8);			/* the last zxid seen */
	put_int(c, SESSION_TIMEOUT, 4);
	put_int(c, 0, 8);			/* a new session */
	put_int(c, sizeof(password), 4);
	put_bytes(c, password, sizeof(password));
	put_int(c, 0, 1);			/* not one that only reads */
	end_request(c);
	connection_call(c);

	put_create(c, LOCKS, PERSISTENT);
	connection_call(c);
	put_create(c, QUEUE, PERSISTENT);
	connection_call(c);
}

static void
acquire(Connection *c)
{
	char		path[64];

	snprintf(path, sizeof(path), LOCKS "/%s", c->name);
	put_create(c, path, EPHEMERAL);
}

static void
release(Connection *c)
{
	char		path[64];

	snprintf(path, sizeof(path), LOCKS "/%s", c->name);
	put_delete(c, path);
}

static int64_t
count(Connection *c)
{
	put_look(c, GET_CHILDREN, LOCKS, false);
	connection_call(c);
	return c->number_answered;
}

static void
close_session(Connection *c)
{
	begin_request(c, CLOSE_SESSION);
	end_request(c);
	connection_call(c);
}

/* Take a place in the queue; true if it is the first one. */
static bool
enqueue(Connection *c)
{
	put_create(c, QUEUE "/lock-", EPHEMERAL | SEQUENTIAL);
	connection_call(c);
	snprintf(c->node, sizeof(c->node), "%.127s", c->text);
	put_look(c, GET_CHILDREN, QUEUE, false);
	connection_call(c);
	return c->ahead[0] == '\0';
}

static void
handoff_begin(Connection *holder, Connection *next)
{
	(void) next;
	if (!enqueue(holder))
		fail("ZooKeeper: the lock is not free");
}

static void
handoff_wait(Connection *next)
{
	char		path[256];

	if (enqueue(next))
		fail("ZooKeeper: the lock is not held");
	snprintf(path, sizeof(path), QUEUE "/%s", next->ahead);
	next->events = 0;
	put_look(next, EXISTS, path, true);
	if (connection_call(next) != ANSWER_YES)
		fail("ZooKeeper: the lock is not held");
}

static void
handoff_release(Connection *holder)
{
	put_delete(holder, holder->node);
	connection_send(holder);
}

static bool
handoff_got(Connection *next)
{
	if (take(next) == ANSWER_YES)
	{
		if (next->ahead[0] != '\0')
			fail("ZooKeeper: the lock was not handed over");
		return true;
	}
	if (next->events > 0)
	{
		next->events = 0;
		put_look(next, GET_CHILDREN, QUEUE, false);
		connection_send(next);
	}
	return false;
}

static void
handoff_end(Connection *holder, Connection *next)
{
	(void) next;
	if (connection_answer(holder) != ANSWER_YES)
		fail("ZooKeeper: the lock was not held");
}

const Peer	zookeeper_peer = {
	.name = "zookeeper",
	.owner_matters = false,
	.open = open_session,
	.acquire = acquire,
	.release = release,
	.take = take,
	.count = count,
	.close = close_session,
	.handoff_begin = handoff_begin,
	.handoff_wait = handoff_wait,
	.handoff_release = handoff_release,
	.handoff_got = handoff_got,
	.handoff_end = handoff_end,
};
