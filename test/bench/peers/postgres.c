/*-------------------------------------------------------------------------
 *
 * postgres.c
 *	  PostgreSQL: dlock, a lease table, advisory locks.
 *
 * NOTES
 *	  The protocol of version 3, with prepared statements: Bind, Execute and
 *	  Sync for each.  The server has to trust the user.
 *
 * IDENTIFICATION
 *	  test/bench/peers/postgres.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peers.h"

enum
{
	ACQUIRE,
	RELEASE,
	WAIT,
	COUNT,
	NUM_STATEMENTS
};

typedef struct Statement
{
	const char *sql;
	int			parameters;		/* the name of the lock, the owner */
} Statement;

typedef struct Statements
{
	const Peer *peer;
	Statement	statement[NUM_STATEMENTS];
} Statements;

static const Statements all_statements[] = {
	{&dlock_peer, {
			{"SELECT dlock_acquire($1::text, $2::text, '10 min')", 2},
			{"SELECT dlock_release($1::text, $2::text)", 2},
			{"SELECT dlock_acquire($1::text, $2::text, '10 min', wait => NULL)", 2},
			{"SELECT count(*) FROM dlock_leases", 0},
	}},
	{&table_peer, {
			{"INSERT INTO lease_delete AS l (name, owner, token, expires_at)"
				" VALUES ($1::text, $2::text, nextval('lease_delete_token'),"
				" clock_timestamp() + interval '10 min')"
				" ON CONFLICT (name) DO UPDATE SET owner = excluded.owner,"
				" token = excluded.token, expires_at = excluded.expires_at"
			" WHERE l.expires_at < clock_timestamp() RETURNING token", 2},
			{"DELETE FROM lease_delete WHERE name = $1::text AND owner = $2::text", 2},
			{NULL, 0},
			{"SELECT count(*) FROM lease_delete", 0},
	}},
	{&advisory_peer, {
			{"SELECT pg_try_advisory_lock($1::bigint)", 1},
			{"SELECT pg_advisory_unlock($1::bigint)", 1},
			{"SELECT pg_advisory_lock($1::bigint)", 1},
			{"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted", 0},
	}},
};

static const Statement *
statements_of(const Connection *c)
{
	for (size_t i = 0; i < sizeof(all_statements) / sizeof(all_statements[0]); i++)
	{
		if (all_statements[i].peer == c->peer)
			return all_statements[i].statement;
	}
	fail("there are no statements for %s", c->peer->name);
}

/* ---- messages ---- */

/* Where the length of a message stands, which is known at its end. */
static size_t
begin_message(Connection *c, char type)
{
	if (type != '\0')
		put_bytes(c, &type, 1);
	put_int(c, 0, 4);
	return c->out_length - 4;
}

static void
end_message(Connection *c, size_t begin)
{
	set_int(c, begin, c->out_length - begin, 4);
}

/* With the zero at its end. */
static void
put_text(Connection *c, const char *text)
{
	put_bytes(c, text, strlen(text) + 1);
}

static void
put_setting(Connection *c, const char *name, const char *value)
{
	if (value != NULL)
	{
		put_text(c, name);
		put_text(c, value);
	}
}

static void
put_value(Connection *c, const char *value)
{
	put_int(c, strlen(value), 4);
	put_string(c, value);
}

static void
put_sync(Connection *c)
{
	end_message(c, begin_message(c, 'S'));
}

static void
put_execute(Connection *c, int number)
{
	int			parameters = statements_of(c)[number].parameters;
	char		name[2] = {(char) ('a' + number), '\0'};
	size_t		begin = begin_message(c, 'B');

	put_text(c, "");			/* the portal */
	put_text(c, name);
	put_int(c, 0, 2);			/* all parameters are text */
	put_int(c, parameters, 2);
	if (parameters > 0)
		put_value(c, c->name);
	if (parameters > 1)
		put_value(c, c->owner);
	put_int(c, 0, 2);			/* and so are the results */
	end_message(c, begin);

	begin = begin_message(c, 'E');
	put_text(c, "");
	put_int(c, 0, 4);			/* all rows */
	end_message(c, begin);
	put_sync(c);
}

static void
complain(const char *fields, size_t length)
{
	for (const char *field = fields; field < fields + length && *field != '\0'; field += strlen(field) + 1)
	{
		if (*field == 'M')
			fail("%s", field + 1);
	}
	fail("an error without a message");
}

/* The first value of a row: neither null nor false is a success. */
static Answer
read_row(Connection *c, const char *body)
{
	int32_t		length = get_int(body + 2, 4);

	if (length < 0 || (length == 1 && body[6] == 'f'))
		return ANSWER_NO;
	if (length >= (int32_t) sizeof(c->text))
		fail("a value is too long");
	memcpy(c->text, body + 6, length);
	c->text[length] = '\0';
	c->number_answered = atoll(c->text);
	return ANSWER_YES;
}

/* Without a row the tag tells, such as "DELETE 1". */
static Answer
read_tag(const char *tag)
{
	const char *number = strrchr(tag, ' ');

	return number != NULL && strcmp(number, " 0") == 0 ? ANSWER_NO : ANSWER_YES;
}

/* Nothing is taken out of the buffer before the server is ready again. */
static Answer
take(Connection *c)
{
	Answer		answer = ANSWER_NONE;
	size_t		offset = 0;

	while (offset + 5 <= c->in_length)
	{
		const char *message = c->in + offset;
		const char *body = message + 5;
		size_t		length = get_int(message + 1, 4) + 1;

		if (length > IN_SIZE)
			fail("a message is too long");
		if (offset + length > c->in_length)
			break;
		offset += length;
		if (message[0] == 'E')
			complain(body, length - 5);
		else if (message[0] == 'R' && get_int(body, 4) != 0)
			fail("the server wants a password");
		else if (message[0] == 'D')
			answer = read_row(c, body);
		else if (message[0] == 'C' && answer == ANSWER_NONE)
			answer = read_tag(body);
		else if (message[0] == 'Z')
		{
			connection_consume(c, offset);
			return answer == ANSWER_NONE ? ANSWER_YES : answer;
		}
	}
	return ANSWER_NONE;
}

/* ---- the peers ---- */

static void
open_session(Connection *c)
{
	const Statement *statements = statements_of(c);
	const char *user = getenv("PGUSER");
	const char *database = getenv("PGDATABASE");
	size_t		begin;

	connection_connect(c);
	begin = begin_message(c, '\0');
	put_int(c, 3 << 16, 4);		/* the version */
	put_setting(c, "user", user != NULL ? user : "bench");
	put_setting(c, "database", database != NULL ? database : "bench");
	put_setting(c, "options", getenv("PGOPTIONS"));
	put_text(c, "");
	end_message(c, begin);
	connection_call(c);

	for (int i = 0; i < NUM_STATEMENTS; i++)
	{
		char		name[2] = {(char) ('a' + i), '\0'};

		if (statements[i].sql == NULL)
			continue;
		begin = begin_message(c, 'P');
		put_text(c, name);
		put_text(c, statements[i].sql);
		put_int(c, 0, 2);		/* the types are in the text */
		end_message(c, begin);
	}
	put_sync(c);
	connection_call(c);
}

static void
acquire(Connection *c)
{
	put_execute(c, ACQUIRE);
}

static void
release(Connection *c)
{
	put_execute(c, RELEASE);
}

static int64_t
count(Connection *c)
{
	put_execute(c, COUNT);
	connection_call(c);
	return c->number_answered;
}

static void
close_session(Connection *c)
{
	end_message(c, begin_message(c, 'X'));
	connection_send(c);
}

static void
handoff_begin(Connection *holder, Connection *next)
{
	(void) next;
	acquire(holder);
	if (connection_call(holder) != ANSWER_YES)
		fail("the lock is not free");
}

static void
handoff_wait(Connection *next)
{
	put_execute(next, WAIT);
	connection_send(next);
}

static void
handoff_release(Connection *holder)
{
	release(holder);
	connection_send(holder);
}

static bool
handoff_got(Connection *next)
{
	return take(next) == ANSWER_YES;
}

static void
handoff_end(Connection *holder, Connection *next)
{
	(void) next;
	if (connection_answer(holder) != ANSWER_YES)
		fail("the lock was not held");
}

const Peer	dlock_peer = {
	.name = "dlock",
	.owner_matters = true,
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

const Peer	table_peer = {
	.name = "table",
	.owner_matters = true,
	.open = open_session,
	.acquire = acquire,
	.release = release,
	.take = take,
	.count = count,
	.close = close_session,
};

const Peer	advisory_peer = {
	.name = "advisory",
	.owner_matters = true,
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
