/*-------------------------------------------------------------------------
 *
 * redis.c
 *	  Redis: SET with NX and PX, and a script that compares and deletes.
 *
 * NOTES
 *	  That is the lock for one server that Redis' documentation describes:
 *	  https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
 *
 *	  Redis has no waiting for a lock.  The hand-off is by a list that whoever
 *	  waits blocks on (BLPOP): the script that releases puts an element there,
 *	  and the one that gets it tries SET.  That is two round trips, and better
 *	  than polling can be.
 *
 * IDENTIFICATION
 *	  test/bench/peers/redis.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peers.h"

#define MORE_THAN_A_RUN	"600000"	/* ms */

enum
{
	OTHER,
	BLOCKING,
	TAKING
};

static const char *const release_script =
"if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

static const char *const notifying_release_script =
"if redis.call('get',KEYS[1])==ARGV[1] then redis.call('del',KEYS[1]) "
"redis.call('lpush',KEYS[2],'') return 1 else return 0 end";

/* A request of so many words. */
static void
put_request(Connection *c, int count,...)
{
	va_list		words;
	char		head[32];

	snprintf(head, sizeof(head), "*%d\r\n", count);
	put_string(c, head);
	va_start(words, count);
	for (int i = 0; i < count; i++)
	{
		const char *word = va_arg(words, const char *);

		snprintf(head, sizeof(head), "$%zu\r\n", strlen(word));
		put_string(c, head);
		put_string(c, word);
		put_string(c, "\r\n");
	}
	va_end(words);
}

/*
 * The length of the value that begins there, of the bytes that have arrived; 0
 * if they are not all of it.
 */
static size_t
value_length(const char *value, size_t length)
{
	const char *end = memchr(value, '\n', length);
	size_t		head = end == NULL ? 0 : end - value + 1;
	size_t		whole;
	int			number;

	if (head == 0 || (value[0] != '$' && value[0] != '*'))
		return head;
	number = atoi(value + 1);
	if (number < 0)
		return head;
	if (value[0] == '$')
	{
		whole = head + number + 2;
		return whole <= length ? whole : 0;
	}
	whole = head;
	for (int i = 0; i < number; i++)
	{
		size_t		element = value_length(value + whole, length - whole);

		if (element == 0)
			return 0;
		whole += element;
	}
	return whole;
}

static Answer
take(Connection *c)
{
	size_t		length = value_length(c->in, c->in_length);
	size_t		head;
	Answer		answer;

	if (length == 0)
		return ANSWER_NONE;
	if (c->in[0] == '-')
		fail("Redis: %.*s", (int) length - 2, c->in);
	c->number_answered = c->in[0] == '+' ? 1 : atoll(c->in + 1);
	answer = c->in[0] == '+' || c->number_answered > (c->in[0] == ':' ? 0 : -1) ? ANSWER_YES : ANSWER_NO;
	if (c->in[0] == '$' && c->number_answered >= 0)
	{
		if (c->number_answered >= (int64_t) sizeof(c->text))
			fail("Redis: a value is too long");
		head = length - 2 - c->number_answered;
		memcpy(c->text, c->in + head, c->number_answered);
		c->text[c->number_answered] = '\0';
	}
	connection_consume(c, length);
	return answer;
}

static void
load_script(Connection *c, const char *script, char *digest, size_t size)
{
	put_request(c, 3, "SCRIPT", "LOAD", script);
	connection_call(c);
	snprintf(digest, size, "%.40s", c->text);
}

static void
open_session(Connection *c)
{
	connection_connect(c);
	load_script(c, release_script, c->script, sizeof(c->script));
	load_script(c, notifying_release_script, c->notifying_script, sizeof(c->notifying_script));
}

static void
acquire(Connection *c)
{
	put_request(c, 6, "SET", c->name, c->owner, "NX", "PX", MORE_THAN_A_RUN);
}

static void
release(Connection *c)
{
	put_request(c, 5, "EVALSHA", c->script, "1", c->name, c->owner);
}

static int64_t
count(Connection *c)
{
	put_request(c, 1, "DBSIZE");
	connection_call(c);
	return c->number_answered;
}

/* The list that is blocked on. */
static const char *
list_of(const Connection *c)
{
	static char list[sizeof(c->name) + 8];

	snprintf(list, sizeof(list), "%s:free", c->name);
	return list;
}

static void
delete_list(Connection *c)
{
	put_request(c, 2, "DEL", list_of(c));
	connection_call(c);
}

static void
handoff_begin(Connection *holder, Connection *next)
{
	(void) next;
	delete_list(holder);
	acquire(holder);
	if (connection_call(holder) != ANSWER_YES)
		fail("Redis: the lock is not free");
}

static void
handoff_wait(Connection *next)
{
	next->request = BLOCKING;
	put_request(next, 3, "BLPOP", list_of(next), "0");
	connection_send(next);
}

static void
handoff_release(Connection *holder)
{
	holder->request = OTHER;
	put_request(holder, 6, "EVALSHA", holder->notifying_script, "2", holder->name, list_of(holder), holder->owner);
	connection_send(holder);
}

static bool
handoff_got(Connection *next)
{
	Answer		answer = take(next);

	if (answer == ANSWER_NONE)
		return false;
	if (answer == ANSWER_NO)
		fail("Redis: the lock was not handed over");
	if (next->request == TAKING)
		return true;
	next->request = TAKING;
	acquire(next);
	connection_send(next);
	return false;
}

static void
handoff_end(Connection *holder, Connection *next)
{
	(void) next;
	if (connection_answer(holder) != ANSWER_YES)
		fail("Redis: the lock was not held");
}

const Peer	redis_peer = {
	.name = "redis",
	.owner_matters = true,
	.open = open_session,
	.acquire = acquire,
	.release = release,
	.take = take,
	.count = count,
	.close = delete_list,
	.handoff_begin = handoff_begin,
	.handoff_wait = handoff_wait,
	.handoff_release = handoff_release,
	.handoff_got = handoff_got,
	.handoff_end = handoff_end,
};
