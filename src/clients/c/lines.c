/*-------------------------------------------------------------------------
 *
 * lines.c
 *	  Connections of a session, and what is asked over them.
 *
 * NOTES
 *	  What comes up while a statement is on its way waits for the next one, which then asks
 *	  for all of its kind at once.  Nothing waits for company: if a line is free, a
 *	  request is sent at once, by whoever asks.
 *
 *	  A statement that fails changes nothing.  So if an error may be of one among many, all go
 *	  back into the queue, and the next statements have half as many rows, in the end one.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* What is asked all the time is prepared, unless a pooler is between. */
static const struct
{
	const char *name;
	const Kind *kind;
}			prepared[] = {{"dlock_acquire", &acquire_kind}, {"dlock_renew", &renew_kind}, {"dlock_release", &release_kind}};

#define PREPARED	((int) (sizeof(prepared) / sizeof(prepared[0])))

/* ---- texts ---- */

size_t
array_size(const char *const *texts, int count)
{
	size_t		size = 3;

	for (int i = 0; i < count; i++)
		size += (texts[i] != NULL) ? 2 * strlen(texts[i]) + 3 : 5;
	return size;
}

/* More elements of an array, of which this is the end so far. */
static char *
put_elements(char *at, const char *const *texts, int step, int count)
{
	for (int i = 0; i < count; i++)
	{
		const char *c = texts[i * step];

		if (at[-1] != '{')
			*at++ = ',';
		if (c == NULL)
		{
			at = stpcpy(at, "NULL");
			continue;
		}
		for (*at++ = '"'; *c != '\0'; *at++ = *c++)
			if (*c == '"' || *c == '\\')
				*at++ = '\\';
		*at++ = '"';
	}
	return at;
}

/* There must be room for it.  Returns what is behind it. */
char *
put_array(char *at, const char *const *texts, int count)
{
	*at++ = '{';
	return stpcpy(put_elements(at, texts, 1, count), "}") + 1;
}

/* A statement with the schema in it. */
char *
statement_of(const char *sql, const char *schema)
{
	size_t		length = strlen(schema);
	size_t		size = strlen(sql) + 1;
	char	   *statement;
	char	   *at;

	for (const char *c = sql; *c != '\0'; c++)
		size += (*c == '@') ? length : 0;
	at = statement = malloc(size);
	for (const char *c = sql; at != NULL && *c != '\0'; c++)
		if (*c == '@')
			at = stpcpy(at, schema);
		else
			*at++ = *c;
	if (at != NULL)
		*at = '\0';
	return statement;
}

const char *
answer_text(const Answer *a, int column)
{
	return PQgetisnull(a->result, a->row, column) ? NULL : PQgetvalue(a->result, a->row, column);
}

/* ---- sending ---- */

/* End the connection, or leave the one that is being made to itself. */
void
line_drop(Line *l)
{
	leave_attempt(l);
	PQclear(l->result);
	l->result = NULL;
	PQfinish(l->conn);
	l->conn = NULL;
	l->prepared = l->unflushed = false;
}

static void
flush_line(dlock_session *s, Line *l)
{
	int			left = PQflush(l->conn);

	l->unflushed = left > 0;
	if (left < 0)
	{
		l->state = LINE_BROKEN;
		fail(&l->error, DLOCK_UNREACHABLE, "%s", PQerrorMessage(l->conn));
	}
	if (left != 0)
		arm(s, 0);
}

/* A statement was sent, or not. */
static void
check_sent(dlock_session *s, Line *l, LineState state, bool good)
{
	l->state = good ? state : LINE_BROKEN;
	if (good)
		flush_line(s, l);
	else
	{
		fail(&l->error, DLOCK_UNREACHABLE, "%s", (l->conn != NULL) ? PQerrorMessage(l->conn) : "out of memory");
		arm(s, 0);
	}
}

/* Ask for something of the line's own. */
void
line_query(dlock_session *s, Line *l, LineState state, const char *sql)
{
	check_sent(s, l, state, sql != NULL && PQsendQuery(l->conn, sql));
}

static void
send_batch(dlock_session *s, Line *l)
{
	const Kind *kind = l->batch->kind;
	const char *values[MOST_COLUMNS + MOST_SHARED];
	int			count = kind->columns + kind->shared;
	size_t		size = 1;
	char	   *arrays;
	char	   *at;
	int			which = 0;
	bool		good;

	for (Request *r = l->batch; r != NULL; r = r->next)
		size += array_size(r->values, r->rows * kind->columns);
	at = arrays = malloc(size + (size_t) kind->columns * 3);
	for (int i = 0; at != NULL && i < kind->columns; i++)
	{
		values[i] = at;
		*at++ = '{';
		for (Request *r = l->batch; r != NULL; r = r->next)
			at = put_elements(at, r->values + i, kind->columns, r->rows);
		at = stpcpy(at, "}") + 1;
	}
	for (int i = 0; i < kind->shared; i++)
		values[kind->columns + i] = l->batch->shared[i];
	while (which < PREPARED && (prepared[which].kind != kind || !l->prepared))
		which++;
	l->sent = now_ms();
	if (arrays != NULL && which < PREPARED)
		good = PQsendQueryPrepared(l->conn, prepared[which].name, count, values, NULL, NULL, 0);
	else
	{
		char	   *statement = (arrays != NULL) ? statement_of(kind->sql, s->schema) : NULL;

		good = statement != NULL && PQsendQueryParams(l->conn, statement, count, NULL, values, NULL, NULL, 0);
		free(statement);
	}
	free(arrays);
	check_sent(s, l, LINE_BUSY, good);
}

/* The connection knows what the server has: prepare statements, and send. */
static void
prepare(dlock_session *s, Line *l)
{
	char		sql[3000] = "";
	char	   *at = sql;
	char	   *statement;

	if (s->pooled)
	{
		send_batch(s, l);
		return;
	}
	for (int i = 0; i < PREPARED; i++)
		at += snprintf(at, sizeof(sql) - (size_t) (at - sql), "PREPARE %s AS %s;", prepared[i].name, prepared[i].kind->sql);
	statement = statement_of(sql, s->schema);
	line_query(s, l, LINE_PREPARING, statement);
	free(statement);
}

static void
start_batch(dlock_session *s, Line *l, Request *batch)
{
	int64_t		within = batch->kind->urgent ? MIN(URGENT_WITHIN, s->margin) : batch->kind->within;
	int64_t		now = now_ms();

	l->batch = batch;
	l->sent = 0;
	l->until = now + ((within > 0) ? within : ANSWER_WITHIN);
	arm(s, l->until);

	/*
	 * Nobody reads an idle connection: has it ended, perhaps with a last
	 * word?
	 */
	if (l->conn != NULL && s->schema != NULL &&
		(now < l->idle_since + UNDO_EVERY || (PQconsumeInput(l->conn) && PQconsumeInput(l->conn))))
		send_batch(s, l);
	else
	{
		line_drop(l);
		l->until = MAX(l->until, now + CONNECT_WITHIN);
		connect_line(s, l);
	}
}

/* ---- queues ---- */

static bool
go_together(const Request *a, const Request *b)
{
	if (a->kind != b->kind || a->kind->columns == 0)
		return false;
	for (int i = 0; a->shared != b->shared && i < a->kind->shared; i++)
	{
		const char *one = a->shared[i];
		const char *other = b->shared[i];

		if (one != other && (one == NULL || other == NULL || strcmp(one, other) != 0))
			return false;
	}
	return true;
}

/* Take the next requests, of one kind; NULL if there are none. */
static Request *
next_batch(Queue *q)
{
	Request    *batch = q->first;
	Request    *tail = batch;
	Request   **rest = &q->first;
	int			rows = (batch != NULL) ? batch->rows : 0;

	if (batch == NULL)
		return NULL;
	*rest = batch->next;
	while (*rest != NULL && rows < q->most)
	{
		Request    *r = *rest;

		if (go_together(batch, r) && rows + r->rows <= q->most)
		{
			*rest = r->next;
			tail = tail->next = r;
			rows += r->rows;
		}
		else
			rest = &r->next;
	}
	if (*rest == NULL)
		q->end = rest;
	tail->next = NULL;
	return batch;
}

static Queue *
queue_of(dlock_session *s, const Request *r)
{
	return &s->queues[r->kind->urgent ? 0 : 1];
}

/* Does what is queued go over this line?  On others each request is asked alone. */
static bool
is_shared(const dlock_session *s, const Line *l)
{
	return l == &s->shared[0] || l == &s->shared[1];
}

/* Put requests into their queue, at its beginning or its end. */
static void
enqueue(Queue *q, Request **at, Request *batch)
{
	Request    *rest = *at;

	*at = batch;
	while (*at != NULL)
		at = &(*at)->next;
	*at = rest;
	if (rest == NULL)
		q->end = at;
}

/* Give free lines something to do. */
void
pump(dlock_session *s)
{
	for (int i = 0; i < 2; i++)
	{
		Line	   *l = &s->shared[i];
		Request    *batch = NULL;

		if (l->state != LINE_FREE)
			continue;
		if (i == 0 || s->shared[0].batch == NULL || !s->shared[0].batch->kind->urgent)
			batch = next_batch(&s->queues[0]);
		if (batch == NULL && i == 0)
			batch = next_batch(&s->queues[1]);
		if (batch != NULL)
			start_batch(s, l, batch);
	}
}

void
submit(dlock_session *s, Request *r)
{
	Queue	   *q = queue_of(s, r);

	r->next = NULL;
	enqueue(q, q->end, r);
	if (!s->corked)
		pump(s);
}

/* One that is alone, on a free line of its own. */
void
line_ask(dlock_session *s, Line *l, Request *r)
{
	r->next = NULL;
	start_batch(s, l, r);
}

/* ---- answers ---- */

static bool
has_prefix(const char *sqlstate, const char *const *prefixes)
{
	while (*prefixes != NULL && strncmp(sqlstate, *prefixes, strlen(*prefixes)) != 0)
		prefixes++;
	return *prefixes != NULL;
}

/* Could this error be of one request among many? */
static bool
is_of_one(const dlock_error *error)
{
	static const char *const of_all[] = {"42883", "42501", "57", "0A", "25", NULL};

	return error->sqlstate[0] != '\0' && error->status != DLOCK_UNREACHABLE && !has_prefix(error->sqlstate, of_all);
}

static void
free_line(Line *l)
{
	l->batch = NULL;
	l->state = LINE_FREE;
	l->idle_since = now_ms();
}

static void
answer_all(Request *batch, Answer *a)
{
	for (Request *r = batch, *next; r != NULL; r = next)
	{
		int			row = a->row + r->rows;

		next = r->next;
		r->then(r, a);
		a->row = row;
	}
}

/* The batch under way has failed. */
static void
fail_batch(dlock_session *s, Line *l, const dlock_error *error)
{
	/*
	 * Perhaps the extension, or what was prepared, is not there any more; a
	 * prepared statement misses its function with an internal error.  What
	 * has a line of its own prepares nothing, and its owner asks again.
	 */
	static const char *const to_look[] = {"42883", "26000", "XX000", NULL};
	Request    *batch = l->batch;
	Queue	   *q = queue_of(s, batch);
	Answer		a = {.error = *error,.sent = l->sent};
	bool		outage = error->status == DLOCK_UNREACHABLE;
	bool		unprepared = is_shared(s, l) && l->prepared && has_prefix(error->sqlstate, to_look);

	/* Nothing happens on a standby. */
	a.doubt = outage && l->sent != 0 && strcmp(error->sqlstate, "25006") != 0;
	free_line(l);
	if (outage || a.sent == 0 || has_prefix(error->sqlstate, to_look))
		line_drop(l);
	s->pooled |= unprepared;
	if (unprepared || (a.sent != 0 && batch->next != NULL && is_of_one(error)))
	{
		int			rows = 0;

		for (Request *r = batch; r != NULL; r = r->next)
			rows += r->rows;
		q->most = unprepared ? q->most : MAX(rows / 2, 1);
		enqueue(q, &q->first, batch);
	}
	else
		answer_all(batch, &a);
}

static void
finish_batch(dlock_session *s, Line *l)
{
	Request    *batch = l->batch;
	int			rows = 0;
	Answer		a = {.sent = l->sent,.result = l->result};
	dlock_error error;

	l->result = NULL;
	for (Request *r = batch; r != NULL; r = r->next)
		rows += r->rows;
	if (PQresultStatus(a.result) != PGRES_TUPLES_OK)
	{
		const char *primary = PQresultErrorField(a.result, PG_DIAG_MESSAGE_PRIMARY);

		fail_by_state(&error, PQresultErrorField(a.result, PG_DIAG_SQLSTATE),
					  (primary != NULL) ? primary : PQerrorMessage(l->conn));
		fail_batch(s, l, &error);
	}
	else if (batch->kind->columns > 0 && PQntuples(a.result) != rows)
	{
		fail(&error, DLOCK_ERROR, "the server answered %d of %d requests", PQntuples(a.result), rows);
		fail_batch(s, l, &error);
	}
	else
	{
		Queue	   *q = queue_of(s, batch);

		if (is_shared(s, l))
			q->most = MIN(2 * q->most, MOST_IN_BATCH);
		free_line(l);
		answer_all(batch, &a);
	}
	PQclear(a.result);
}

/* What was asked for is there, completely. */
static void
finish(dlock_session *s, Line *l)
{
	bool		good = PQresultStatus(l->result) != PGRES_FATAL_ERROR;

	if (l->state == LINE_BUSY)
	{
		finish_batch(s, l);
		return;
	}
	if (l->state == LINE_LOOKING && !look(s, l))
		l->state = LINE_BROKEN;
	else if (l->state == LINE_LOOKING)
		prepare(s, l);
	else
	{
		l->prepared = good;
		send_batch(s, l);
	}
	PQclear(l->result);
	l->result = NULL;
}

/* Read what has come. */
static void
read_line(dlock_session *s, Line *l)
{
	PGresult   *result;
	bool		good = PQconsumeInput(l->conn) != 0;

	if (good && l->unflushed)
		flush_line(s, l);
	while (l->state >= LINE_LOOKING && l->state <= LINE_BUSY && !PQisBusy(l->conn))
	{
		result = PQgetResult(l->conn);
		if (result == NULL && l->result != NULL)
		{
			finish(s, l);
			return;
		}
		if (result == NULL)
			break;
		/* After the rows there may be an error of the commit. */
		if (l->result == NULL || PQresultStatus(result) == PGRES_FATAL_ERROR)
		{
			PQclear(l->result);
			l->result = result;
		}
		else
			PQclear(result);
	}
	if (good && PQstatus(l->conn) == CONNECTION_OK)
		return;
	if (l->state == LINE_BUSY && l->result != NULL && PQresultStatus(l->result) != PGRES_TUPLES_OK)
		finish(s, l);
	else if (l->state != LINE_FREE)
	{
		l->state = LINE_BROKEN;
		fail(&l->error, DLOCK_UNREACHABLE, "%.*s", (int) strcspn(PQerrorMessage(l->conn), "\n"), PQerrorMessage(l->conn));
	}
	if (l->state == LINE_FREE)
		line_drop(l);
}

/* Go on with what has come, or changed. */
void
line_work(dlock_session *s, Line *l)
{
	if (l->conn != NULL && l->revents != 0 && l->state != LINE_BROKEN)
		read_line(s, l);
	l->revents = 0;
	if (l->state == LINE_BROKEN)
		fail_batch(s, l, &l->error);
	if (l->state == LINE_FREE && l->conn != NULL)
		arm(s, l->idle_since + IDLE_WITHIN);
}

/* What has taken too long ends. */
void
line_tick(dlock_session *s, Line *l, int64_t now)
{
	if (l->state == LINE_FREE)
	{
		if (l->conn != NULL && now >= l->idle_since + IDLE_WITHIN)
			line_drop(l);
		else if (l->conn != NULL)
			arm(s, l->idle_since + IDLE_WITHIN);
	}
	else if (now < l->until)
		arm(s, l->until);
	else
	{
		Queue	   *q = queue_of(s, l->batch);
		Request    *rest = NULL;
		Answer		a = {.sent = 0};

		fail(&a.error, DLOCK_UNREACHABLE, "the server does not answer");

		/* What is queued for this line would not fare better. */
		if (is_shared(s, l))
		{
			rest = q->first;
			q->first = NULL;
			q->end = &q->first;
		}
		fail_batch(s, l, &a.error);
		answer_all(rest, &a);
	}
}

/* ---- asking, and waiting for it ---- */

typedef struct Asked
{
	Answer	   *answer;
	bool		done;
	dlock_session *session;
	Waiter	   *waiters;
} Asked;

static void
then_wake(Request *r, Answer *a)
{
	Asked	   *it = r->whose;

	*it->answer = *a;
	a->result = NULL;
	it->done = true;
	wake_waiters(it->session, &it->waiters);
}

static bool
is_done(const void *it)
{
	return ((const Asked *) it)->done;
}

/*
 * Ask for something that goes alone, over a line of its own or any, with the mutex held but for
 * the wait.  The caller clears the result.
 */
dlock_status
ask(dlock_session *s, Line *l, Request *r, Answer *a)
{
	Asked		it = {.answer = a,.session = s};

	r->whose = &it;
	r->then = then_wake;
	if (l != NULL)
		line_ask(s, l, r);
	else
		submit(s, r);
	await(s, &it.waiters, is_done, &it);
	return a->error.status;
}
