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
 *	  An error of many is traced to those whose it is, by asking for halves: a statement
 *	  that fails changes nothing.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* ---- texts ---- */

typedef struct Text
{
	char	   *data;			/* NULL: there is no memory */
	size_t		length;
	size_t		size;
} Text;

static void
add_text(Text *t, const char *data, size_t length)
{
	if (t->data != NULL && t->length + length >= t->size)
	{
		size_t		size = 2 * (t->size + length);
		char	   *larger = realloc(t->data, size);

		if (larger == NULL)
			free(t->data);
		t->data = larger;
		t->size = size;
	}
	if (t->data == NULL)
		return;
	memcpy(t->data + t->length, data, length);
	t->length += length;
	t->data[t->length] = '\0';
}

static Text
new_text(void)
{
	Text		t = {malloc(256), 0, 256};

	if (t.data != NULL)
		t.data[0] = '\0';
	return t;
}

/* An element of an array. */
static void
add_element(Text *t, const char *value)
{
	if (t->length > 1)
		add_text(t, ",", 1);
	if (value == NULL)
	{
		add_text(t, "NULL", 4);
		return;
	}
	add_text(t, "\"", 1);
	for (; *value != '\0'; value++)
	{
		if (*value == '"' || *value == '\\')
			add_text(t, "\\", 1);
		add_text(t, value, 1);
	}
	add_text(t, "\"", 1);
}

char *
array_text(const char *const *texts, int count)
{
	Text		t = new_text();

	add_text(&t, "{", 1);
	for (int i = 0; i < count; i++)
		add_element(&t, texts[i]);
	add_text(&t, "}", 1);
	return t.data;
}

/* A statement with the schema in it. */
char *
statement_of(const char *sql, const char *schema)
{
	Text		t = new_text();

	for (const char *c = sql; *c != '\0'; c++)
	{
		if (*c == '@')
			add_text(&t, schema, strlen(schema));
		else
			add_text(&t, c, 1);
	}
	return t.data;
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
	l->unflushed = false;
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
		wake_thread(s);
}

static void
send_batch(dlock_session *s, Line *l)
{
	const Kind *kind = l->batch->kind;
	char	   *statement = statement_of(kind->sql, s->schema);
	char	   *arrays[MOST_COLUMNS] = {NULL};
	const char *values[MOST_COLUMNS + MOST_SHARED];
	bool		ready = statement != NULL;

	for (int i = 0; i < kind->columns; i++)
	{
		if (!kind->alone)
		{
			Text		t = new_text();

			add_text(&t, "{", 1);
			for (Request *r = l->batch; r != NULL; r = r->last ? NULL : r->next)
				add_element(&t, r->row[i]);
			add_text(&t, "}", 1);
			arrays[i] = t.data;
			ready &= t.data != NULL;
		}
		values[i] = kind->alone ? l->batch->row[i] : arrays[i];
	}
	for (int i = 0; i < kind->shared; i++)
		values[kind->columns + i] = l->batch->shared[i];
	l->state = LINE_BUSY;
	l->sent = now_ms();
	if (ready && PQsendQueryParams(l->conn, statement, kind->columns + kind->shared, NULL, values, NULL, NULL, 0))
		flush_line(s, l);
	else
	{
		l->state = LINE_BROKEN;
		fail(&l->error, DLOCK_UNREACHABLE, "%s", ready ? PQerrorMessage(l->conn) : "out of memory");
		wake_thread(s);
	}
	free(statement);
	for (int i = 0; i < kind->columns; i++)
		free(arrays[i]);
}

static void
start_batch(dlock_session *s, Line *l, Request *batch)
{
	int64_t		within = batch->kind->urgent ? MIN(URGENT_WITHIN, s->margin) : batch->kind->within;

	l->batch = batch;
	l->sent = 0;
	l->until = now_ms() + ((within > 0) ? within : ANSWER_WITHIN);
	arm(s, l->until);
	if (l->conn != NULL && s->schema != NULL)
		send_batch(s, l);
	else
	{
		line_drop(l);
		connect_line(s, l);
	}
}

/* ---- queues ---- */

static bool
go_together(const Request *a, const Request *b)
{
	if (a->kind != b->kind || a->kind->alone)
		return false;
	for (int i = 0; a->shared != b->shared && i < a->kind->shared; i++)
	{
		const char *one = a->shared[i];
		const char *other = b->shared[i];

		if ((one == NULL) != (other == NULL) || (one != NULL && strcmp(one, other) != 0))
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
	Request    *rest = NULL;
	int			count = 1;

	if (batch == NULL)
		return NULL;
	q->first = NULL;
	for (Request *r = batch->next, *next; r != NULL; r = next)
	{
		next = r->next;
		if (count < MOST_IN_BATCH && go_together(batch, r))
		{
			tail = tail->next = r;
			count++;
		}
		else
		{
			if (rest == NULL)
				q->first = r;
			else
				rest->next = r;
			rest = r;
		}
	}
	q->tail = rest;
	if (rest != NULL)
		rest->next = NULL;
	tail->next = NULL;
	for (Request *r = batch; r != NULL; r = r->next)
	{
		r->queued = false;
		r->last = r->next == NULL;
	}
	return batch;
}

/* The next one of what a failed batch was divided into. */
static Request *
next_todo(Line *l)
{
	Request    *batch = l->todo;
	Request    *r = batch;

	while (r != NULL && !r->last)
		r = r->next;
	if (r != NULL)
	{
		l->todo = r->next;
		r->next = NULL;
	}
	return batch;
}

/* Give free lines something to do. */
void
pump(dlock_session *s)
{
	for (int i = 0; i < 2; i++)
	{
		Line	   *l = &s->shared[i];
		Request    *batch = (l->state == LINE_FREE) ? next_todo(l) : NULL;

		if (l->state != LINE_FREE)
			continue;
		if (batch == NULL && (i == 0 || s->shared[0].batch == NULL || !s->shared[0].batch->kind->urgent))
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
	Queue	   *q = &s->queues[r->kind->urgent ? 0 : 1];

	r->next = NULL;
	r->queued = true;
	if (q->first == NULL)
		q->first = r;
	else
		q->tail->next = r;
	q->tail = r;
	arm(s, r->until);
	if (!s->corked)
		pump(s);
}

/* One that is alone, on a free line of its own. */
void
line_ask(dlock_session *s, Line *l, Request *r)
{
	r->next = NULL;
	r->queued = false;
	r->last = true;
	start_batch(s, l, r);
}

/* Take a request out of the queue, if it is there still, and answer it. */
bool
withdraw(dlock_session *s, Request *r, dlock_status status)
{
	Queue	   *q = &s->queues[r->kind->urgent ? 0 : 1];
	Request    *previous = NULL;
	Answer		a = {.sent = 0};

	if (!r->queued)
		return false;
	for (Request *other = q->first; other != r; other = other->next)
		previous = other;
	if (previous == NULL)
		q->first = r->next;
	else
		previous->next = r->next;
	if (q->tail == r)
		q->tail = previous;
	r->queued = false;
	fail(&a.error, status, "the server did not get to answer in time");
	r->then(r, &a);
	return true;
}

void
queue_tick(dlock_session *s, int64_t now)
{
	for (int i = 0; i < 2; i++)
	{
		bool		again = true;

		/* What comes of one may take out others. */
		while (again)
		{
			Request    *r = s->queues[i].first;

			while (r != NULL && r->until > now)
				r = r->next;
			again = r != NULL && withdraw(s, r, DLOCK_UNREACHABLE);
		}
		for (Request *r = s->queues[i].first; r != NULL; r = r->next)
			arm(s, r->until);
	}
}

/* ---- answers ---- */

/* Could this error be of one request among many? */
static bool
is_of_one(const dlock_error *error)
{
	static const char *const prefixes[] = {"42883", "42501", "57", "0A", "25"};
	bool		found = error->sqlstate[0] != '\0';

	for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
		found &= strncmp(error->sqlstate, prefixes[i], strlen(prefixes[i])) != 0;
	return found && error->status != DLOCK_UNREACHABLE;
}

static void
answer_all(Request *batch, Answer *a)
{
	for (Request *r = batch, *next; r != NULL; r = next)
	{
		next = r->next;
		r->then(r, a);
		a->row++;
	}
}

/* The batch under way has failed. */
static void
fail_batch(Line *l, const dlock_error *error)
{
	Request    *batch = l->batch;
	Request    *rest = NULL;
	Answer		a = {.error = *error,.sent = l->sent};
	bool		outage = error->status == DLOCK_UNREACHABLE;

	/* Nothing happens on a standby. */
	a.doubt = outage && l->sent != 0 && strcmp(error->sqlstate, "25006") != 0;
	l->batch = NULL;
	l->state = LINE_FREE;
	l->idle_since = now_ms();
	if (l->sent != 0 && !batch->last && is_of_one(error))
	{
		Request    *middle = batch;
		Request    *end = batch;

		while (!end->last && !end->next->last)
		{
			middle = middle->next;
			end = end->next->next;
		}
		while (!end->last)
			end = end->next;
		middle->last = true;
		end->next = l->todo;
		l->todo = batch;
		return;
	}

	/* Perhaps the extension has been created anew. */
	if (outage || l->sent == 0 || strcmp(error->sqlstate, "42883") == 0)
		line_drop(l);
	if (outage)
	{
		rest = l->todo;
		l->todo = NULL;
	}
	answer_all(batch, &a);
	a.doubt = false;
	answer_all(rest, &a);
}

static void
finish_batch(Line *l)
{
	Request    *batch = l->batch;
	int			count = 0;
	Answer		a = {.sent = l->sent,.result = l->result};
	dlock_error error;

	l->result = NULL;
	for (Request *r = batch; r != NULL; r = r->next)
		count++;
	if (PQresultStatus(a.result) != PGRES_TUPLES_OK)
	{
		const char *primary = PQresultErrorField(a.result, PG_DIAG_MESSAGE_PRIMARY);

		fail_by_state(&error, PQresultErrorField(a.result, PG_DIAG_SQLSTATE),
					  (primary != NULL) ? primary : PQerrorMessage(l->conn));
		fail_batch(l, &error);
	}
	else if (!batch->kind->alone && PQntuples(a.result) != count)
	{
		fail(&error, DLOCK_ERROR, "the server answered %d of %d requests", PQntuples(a.result), count);
		fail_batch(l, &error);
	}
	else
	{
		l->batch = NULL;
		l->state = LINE_FREE;
		l->idle_since = now_ms();
		answer_all(batch, &a);
	}
	PQclear(a.result);
}

/* Read what has come. */
static void
read_line(dlock_session *s, Line *l)
{
	PGresult   *result;
	bool		good = PQconsumeInput(l->conn) != 0;

	if (good && l->unflushed)
		flush_line(s, l);
	while (l->state == LINE_BUSY && !PQisBusy(l->conn))
	{
		result = PQgetResult(l->conn);
		if (result == NULL && l->result != NULL)
		{
			finish_batch(l);
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
		finish_batch(l);
	else if (l->state == LINE_BUSY)
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
	if (l->state == LINE_READY)
		send_batch(s, l);
	if (l->conn != NULL && l->revents != 0 && l->state != LINE_BROKEN)
		read_line(s, l);
	l->revents = 0;
	if (l->state == LINE_BROKEN)
		fail_batch(l, &l->error);
	if (l->state == LINE_FREE && l->conn != NULL)
		arm(s, l->idle_since + IDLE_WITHIN);
}

/* What has taken too long ends. */
void
line_tick(dlock_session *s, Line *l, int64_t now)
{
	if (l->state == LINE_FREE)
	{
		if (l->conn != NULL && l->todo == NULL && now >= l->idle_since + IDLE_WITHIN)
			line_drop(l);
		else if (l->conn != NULL)
			arm(s, l->idle_since + IDLE_WITHIN);
	}
	else if (now < l->until)
		arm(s, l->until);
	else
	{
		dlock_error error;

		fail(&error, DLOCK_UNREACHABLE, "the server does not answer");
		fail_batch(l, &error);
	}
}

/* ---- asking, and waiting for it ---- */

typedef struct Asked
{
	Answer	   *answer;
	bool		done;
	pthread_cond_t changed;
} Asked;

/* The row of one among many. */
static Answer
own_row(const Answer *a)
{
	Answer		own = *a;

	own.row = 0;
	own.result = PQcopyResult(a->result, PG_COPYRES_ATTRS);
	for (int i = 0; own.result != NULL && i < PQnfields(own.result); i++)
		if (!PQsetvalue(own.result, 0, i, PQgetvalue(a->result, a->row, i),
						PQgetisnull(a->result, a->row, i) ? -1 : PQgetlength(a->result, a->row, i)))
		{
			PQclear(own.result);
			own.result = NULL;
		}
	if (own.result == NULL)
		fail(&own.error, DLOCK_ERROR, "out of memory");
	return own;
}

static void
then_wake(Request *r, Answer *a)
{
	Asked	   *it = r->whose;

	*it->answer = *a;
	if (r->kind->alone)
		a->result = NULL;
	else if (a->result != NULL)
		*it->answer = own_row(a);
	it->done = true;
	pthread_cond_signal(&it->changed);
}

/*
 * Ask for something alone, over a line of its own or any, with the mutex held but for the
 * wait.  The caller clears the result.
 */
dlock_status
ask(dlock_session *s, Line *l, Request *r, Answer *a)
{
	Asked		it = {.answer = a};

	pthread_cond_init(&it.changed, NULL);
	r->whose = &it;
	r->then = then_wake;
	if (l != NULL)
		line_ask(s, l, r);
	else
		submit(s, r);
	while (!it.done)
		pthread_cond_wait(&it.changed, &s->lock);
	pthread_cond_destroy(&it.changed);
	return a->error.status;
}
