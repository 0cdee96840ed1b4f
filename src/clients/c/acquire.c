/*-------------------------------------------------------------------------
 *
 * acquire.c
 *	  A request for a lease, up to its answer.
 *
 * NOTES
 *	  It asks, waits for its turn, and asks again, until it is granted, or asks for the last
 *	  time.  No thread stands for it: its phase says what its one request to the server is for, and
 *	  what comes of the answer.
 *
 *	  A request that waits keeps its place in the queue of the lock, and one connection, there
 *	  only while something waits, takes the turns of all.  After an outage, or if places may
 *	  have run out as this process did not get to run, all ask again.  Paths and several locks at
 *	  once have no place, and ask again in intervals that grow.
 *
 *	  A caller that gives up is told at once.  The request goes on without it: it
 *	  gives up its place, and releases what it was granted all the same (undo.c).
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

#define SHORTEST_POLL	10
#define LONGEST_POLL	500

/* How soon a request that waits is sent again to a server that is away. */
#define RETRY_AFTER		200

/*
 * How long a place is kept between calls, which is how long a program that dies holds others up;
 * and how long a call waits, for it keeps a snapshot.  It goes on when nothing waits any more:
 * the turn of a request to come may be in its answer.
 */
#define KEEP_PLACE_FOR	10000
#define TAKE_FOR		5000
#define KEEP_PLACE		"10 seconds"

/* The parameters of a lease, after which those are that not all kinds have. */
enum
{
	NAME, OWNER, PAYLOAD, TTL, MODE, REENTRY, LOCK_DELAY, MIN_HOLD, PERMITS, KEEP
};

const Kind	acquire_kind = {
	.sql = "SELECT unnest(@dlock_acquire_each(names => $1::text[], owners => $2::text[], ttl => $3::interval, mode => $4,"
	" reentry => $5, lock_delay => $6::interval, min_hold => $7::interval, permits => $8::integer, keep => $9::interval))",
	.columns = 2,.shared = 7
};

/* What cannot go with others. */
#define ALONE_PARAMS	"owner => $2, payload => $3::jsonb, ttl => $4::interval, mode => $5, reentry => $6," \
	" lock_delay => $7::interval, min_hold => $8::interval"
static const Kind alone_kinds[] = {
	[CALL_SINGLE] = {
		.sql = "SELECT @dlock_acquire($1, " ALONE_PARAMS ", permits => $9::integer, keep => $10::interval)",.shared = 10
	},
	[CALL_ALL] = {.sql = "SELECT unnest(@dlock_acquire_all($1::text[], " ALONE_PARAMS "))",.shared = 8},
	[CALL_PATH] = {.sql = "SELECT @dlock_acquire_path($1, " ALONE_PARAMS ")",.shared = 8}
};

const Kind	renew_kind = {.sql = "SELECT unnest(@dlock_renew_each($1::text[], $2::bigint[]))",.columns = 2,.urgent = true};
const Kind	release_kind = {.sql = "SELECT unnest(@dlock_release_each($1::text[], $2::bigint[]))",.columns = 2,.urgent = true};

/* The holder of the first of some locks that is held; or of the first part of a path. */
static const Kind holder_kind = {
	.sql = "SELECT (SELECT owner FROM unnest(a::text[]) WITH ORDINALITY AS e(n, i), @dlock_lease(n) ORDER BY i LIMIT 1)"
	" FROM unnest($1::text[]) WITH ORDINALITY AS r(a, j) ORDER BY j",
	.columns = 1
};
static const Kind path_holder_kind = {
	.sql = "SELECT (SELECT owner FROM string_to_array($1, '/') AS p, generate_series(1, cardinality(p)) AS i,"
	" @dlock_lease(array_to_string(p[1:i], '/')) ORDER BY i LIMIT 1)",
	.shared = 1
};

static const Kind take_kind = {
	.sql = "SELECT name, owner, token FROM @dlock_take($1, '5 seconds', '10 seconds')",
	.shared = 1,.within = TAKE_FOR + ANSWER_WITHIN
};

static void answered(Request *r, Answer *a);
static void ask_server(dlock_lease *lease);
static void ask_again(dlock_session *s, const dlock_lease *ended);

/* ---- the lease as an object ---- */

void
ref_lease(dlock_lease *lease)
{
	lease->refs++;
}

/* With the mutex; the session outlives this call, as its caller uses it. */
void
unref_lease(dlock_lease *lease)
{
	if (--lease->refs > 0)
		return;
	for (Transaction *t = lease->transactions, *next; t != NULL; t = next)
	{
		next = t->next;
		close(t->socket);
		free(t);
	}
	lease->session->refs--;
	free(lease);
}

/* Put a text, or NULL, where there is room, and go behind it. */
static const char *
put_text(char **at, const char *text)
{
	char	   *start = *at;

	if (text == NULL)
		return NULL;
	*at = stpcpy(start, text) + 1;
	return start;
}

/* What the options say.  Their texts are put there. */
static void
set_options(dlock_lease *lease, const dlock_options *o, char *at)
{
	dlock_session *s = lease->session;
	char		text[SPAN_SIZE];

	lease->ttl = (o->ttl_ms != 0) ? MIN(o->ttl_ms, NEVER / 2) : DEFAULT_TTL;
	lease->every = MIN(lease->ttl / 6, RENEW_EVERY);
	lease->margin = MIN(lease->ttl / 6, STOP_BEFORE);
	lease->waits = o->wait_ms > 0;
	lease->wait_until = (o->wait_ms < NEVER - now_ms()) ? now_ms() + o->wait_ms : NEVER;
	lease->reenter = o->reenter;
	lease->async = o->async;
	lease->give_up_fd = o->give_up_fd;
	lease->on_lost = o->on_lost;
	lease->argument = o->argument;

	lease->owner = at;
	at += sprintf(at, "%s#", s->client);
	/* Programs number their own tasks, too. */
	snprintf(text, sizeof(text), ":%" PRId64, ++s->tasks);
	lease->named = o->task != NULL;
	lease->task = put_text(&at, lease->named ? o->task : text);
	lease->params[NAME] = (lease->call == CALL_ALL) ? lease->array : lease->names[0];
	lease->params[OWNER] = lease->owner;
	lease->params[PAYLOAD] = put_text(&at, o->payload);
	lease->params[TTL] = put_text(&at, span_text(lease->ttl, text));
	lease->params[MODE] = put_text(&at, (o->mode != NULL) ? o->mode : "exclusive");
	lease->params[LOCK_DELAY] = put_text(&at, span_text(o->lock_delay_ms, text));
	lease->params[MIN_HOLD] = put_text(&at, span_text(o->min_hold_ms, text));
	snprintf(text, sizeof(text), "%d", o->permits);
	lease->params[PERMITS] = (o->permits > 0) ? put_text(&at, text) : NULL;
}

static size_t
size_of(const char *text)
{
	return (text != NULL) ? strlen(text) + 1 : 0;
}

/*
 * A lease in the list of the session, with a reference of the caller's; NULL if there is no memory.  All
 * that belongs to it is in one piece.
 */
dlock_lease *
new_lease(dlock_session *s, Call what, const char *const *names, int count, const dlock_options *o)
{
	size_t		n = (size_t) MAX(count, 1);
	size_t		size = n * (sizeof(char *) * (1 + MOST_COLUMNS) + TOKEN_SIZE) + array_size(names, count);
	dlock_lease *lease;
	char	   *at;

	for (int i = 0; i < count; i++)
		size += 2 * strlen(names[i]) + 4;
	size += strlen(s->client) + size_of(o->task) + size_of(o->mode) + size_of(o->payload) + 6 * SPAN_SIZE;
	lease = calloc(1, sizeof(*lease) + size);
	if (lease == NULL)
		return NULL;
	lease->session = s;
	s->refs++;
	lease->refs = 2;
	lease->call = what;
	lease->count = count;
	lease->names = (const char **) (lease + 1);
	lease->values = lease->names + n;
	lease->tokens = (char (*)[TOKEN_SIZE]) (lease->values + n * MOST_COLUMNS);
	at = (char *) (lease->tokens + n);
	for (int i = 0; i < count; i++)
		lease->names[i] = put_text(&at, names[i]);
	lease->label = at;
	for (int i = 0; i < count; i++)
		at += sprintf(at, "%s%s", (i > 0) ? ", " : "", names[i]);
	*at++ = '\0';
	lease->array = at;
	at = put_array(at, names, count);
	set_options(lease, o, at);
	lease->delay = SHORTEST_POLL;
	lease->wake_at = NEVER;
	lease->error.status = DLOCK_WAITING;
	lease->heard_at = 1;
	lease->end_by = now_ms() + DOUBT_WITHIN;
	lease->request.whose = lease;
	lease->request.then = answered;
	lease->ends_with = &release_kind;
	lease->previous = s->newest;
	*(s->newest != NULL ? &s->newest->next : &s->leases) = lease;
	s->newest = lease;
	return lease;
}

/* Have the server asked for something; the lease stays until that is answered.  False: there is nothing to ask for. */
bool
lease_submit(dlock_lease *lease, const Kind *kind)
{
	Request    *r = &lease->request;

	r->kind = kind;
	r->values = lease->values;
	r->shared = lease->params;
	r->rows = 0;
	if (kind == &acquire_kind)
	{
		r->rows = 1;
		r->values = lease->params;
		r->shared = lease->params + TTL;
	}
	else if (kind == &holder_kind)
	{
		r->rows = 1;
		lease->values[0] = lease->array;
	}
	else if (lease->call == CALL_TASK)
	{
		r->rows = 1;
		lease->values[2] = lease->tokens[0];
	}
	else
		for (int i = 0; kind->columns == 2 && i < lease->count; i++)
			if (kind == &find_kind || lease->tokens[i][0] != '\0')
			{
				lease->values[2 * r->rows] = lease->names[i];
				lease->values[2 * r->rows++ + 1] = (kind == &find_kind) ? lease->owner : lease->tokens[i];
			}
	if (kind->columns > 0 && r->rows == 0)
		return false;
	lease->asked = true;
	ref_lease(lease);
	submit(lease->session, r);
	return true;
}

/* ---- the end ---- */

/* The program is told, once. */
void
settle(dlock_lease *lease, const dlock_error *error)
{
	dlock_session *s = lease->session;

	if (lease->answered)
		return;
	lease->answered = true;
	lease->error = *error;
	if (lease->give_up_fd > 0)
		s->give_ups--;
	wake_waiters(s, &lease->waiters);
	wake(s);
	if (lease->async)
		add_event(lease);
}

/* Nothing goes on with it any more. */
void
over(dlock_lease *lease)
{
	dlock_session *s = lease->session;

	settle(lease, &lease->failure);
	lease->phase = PHASE_OVER;
	*(lease->previous != NULL ? &lease->previous->next : &s->leases) = lease->next;
	*(lease->next != NULL ? &lease->next->previous : &s->newest) = lease->previous;
	end_failing(lease);
	if (lease->failing)
		ask_again(s, lease);
	wake_waiters(s, &lease->waiters);
	wake(s);
	unref_lease(lease);
}

/* The caller does not wait any longer. */
void
give_up(dlock_lease *lease, dlock_status status)
{
	dlock_error error;

	if (lease->answered)
		return;
	fail(&error, status, "%s for \"%.400s\"", (status == DLOCK_CLOSED) ? "the session was closed during the wait" : "given up waiting", lease->label);
	lease->gave_up = true;
	set_failing(lease);
	settle(lease, &error);
	if (lease->phase == PHASE_NEW || lease->phase == PHASE_WAITING)
		go(lease);
}

/* ---- the answer ---- */

/*
 * It was granted, by a request that was sent then, or some time after that.  If that is long ago it
 * asks again, which extends the lease; and gives it back if the answer to that is late, too.
 */
static void
granted(dlock_lease *lease, int64_t sent)
{
	dlock_error good = {.status = DLOCK_OK};
	int64_t		now = now_ms();
	bool		fresh = now - sent <= MIN(lease->ttl / 12, 1000);
	bool		asks = !lease->answered && !fresh && !lease->late && is_alone(lease, PHASE_RELEASING);

	if (lease->turn[0] != '\0' && strcmp(lease->turn, lease->tokens[0]) != 0)
		give_back(lease->session, lease->owner, lease->names[0], lease->turn);
	lease->turn[0] = '\0';
	lease->phase = PHASE_WAITING;
	if (asks)
	{
		lease->late = lease->tried = true;
		lease->doubt_at = now;
		lease->doubt_until = now + DOUBT_WITHIN;
		ask_server(lease);
	}
	else if (!lease->answered && now - sent < lease->ttl - lease->margin)
	{
		hold(lease, sent);
		settle(lease, &good);
		ask_again(lease->session, lease);
	}
	else
	{
		fail(&lease->failure, DLOCK_UNREACHABLE, "the grant of \"%.400s\" was heard of too late", lease->label);
		begin_end(lease, PHASE_RELEASING);
	}
}

/* Wait for a turn, or until it is time to ask again. */
static void
wait_for_turn(dlock_lease *lease)
{
	dlock_session *s = lease->session;

	lease->phase = PHASE_WAITING;
	if (lease->turn[0] != '\0' || lease->never || lease->gave_up || is_in_doubt(lease))
	{
		go(lease);
		return;
	}
	lease->wake_at = lease->wait_until;
	if (!lease->placed)
	{
		lease->wake_at = MIN(lease->wake_at, now_ms() + lease->delay);
		lease->delay = MIN(2 * lease->delay, LONGEST_POLL);
	}
	else if (!s->taking)
	{
		s->taking = true;
		s->take_at = 0;
		s->take_sent = lease->heard_at;
		arm(s, 0);
	}
	arm(s, lease->wake_at);
}

/* It was not granted.  The error is that of the last attempt. */
static void
not_granted(dlock_lease *lease, const Answer *a)
{
	dlock_status status = a->error.status;
	bool		has_answer = status == DLOCK_OK;
	bool		has_turn = lease->turn[0] != '\0' && !lease->gave_up;
	int64_t		now = now_ms();

	lease->phase = PHASE_WAITING;
	if (has_answer && !lease->last)
		wait_for_turn(lease);
	else if (has_answer && lease->gave_up)
		end_request(lease, &lease->error);
	else if (has_answer && lease->never)
		end_with(lease, DLOCK_DEADLOCK, "the wait for \"%.400s\" would never have ended");
	else if (((has_answer || status == DLOCK_DEADLOCK) && has_turn) || (has_answer && is_in_doubt(lease)))
		go(lease);				/* a turn may have come just before */
	else if (has_answer)
	{
		lease->phase = PHASE_NAMING;
		lease_submit(lease, (lease->call == CALL_PATH) ? &path_holder_kind : &holder_kind);
	}
	else if ((status != DLOCK_UNREACHABLE && !(status == DLOCK_DEADLOCK && is_blocked(lease))) || (lease->last && (lease->gave_up || now >= lease->doubt_until)))
	{
		lease->doubt_at = lease->placed ? now : lease->doubt_at;
		end_request(lease, &a->error);
	}
	else
	{
		lease->wake_at = lease->gave_up ? now : now + RETRY_AFTER;
		if (!lease->last)
			lease->wake_at = MIN(lease->wake_at, lease->wait_until);
		arm(lease->session, lease->wake_at);
	}
}

/* Say who holds it, or something above it, if somebody still does. */
static void
named(dlock_lease *lease, const Answer *a)
{
	const char *holder = (a->error.status == DLOCK_OK) ? answer_text(a, 0) : NULL;
	dlock_error error;

	if (holder != NULL)
		fail(&error, DLOCK_REFUSED, "lock \"%.100s\" is held by \"%.350s\"", lease->label, holder);
	else
		fail(&error, DLOCK_REFUSED, "lock \"%.400s\" is held", lease->label);
	if (holder != NULL)
		snprintf(error.holder, sizeof(error.holder), "%s", holder);
	end_request(lease, &error);
}

/* What it asked for is there, or not. */
static void
heard(dlock_lease *lease, const Answer *a)
{
	bool		has_answer = a->error.status == DLOCK_OK;
	bool		is_granted = has_answer && answer_text(a, 0) != NULL;
	bool		keeps = !lease->last && lease->call == CALL_SINGLE;

	if (a->doubt)
	{
		lease->doubt_at = now_ms();
		lease->tried = true;
		if (lease->doubt_until == 0)
			lease->doubt_until = lease->doubt_at + DOUBT_WITHIN;
	}
	lease->placed = has_answer ? keeps && !is_granted : lease->placed || (keeps && a->doubt);
	lease->tried |= lease->placed;
	lease->refused = !(has_answer && lease->alone) && (lease->refused || (has_answer && is_in_doubt(lease)));
	if (has_answer)
		lease->heard_at = a->sent;
	for (int i = 0; is_granted && i < lease->count; i++)
		snprintf(lease->tokens[i], TOKEN_SIZE, "%s", PQgetvalue(a->result, a->row + i, 0));
	if (is_granted)
		granted(lease, a->sent);
	else
		not_granted(lease, a);
}

static void
answered(Request *r, Answer *a)
{
	dlock_lease *lease = r->whose;

	lease->asked = false;
	if (lease->phase <= PHASE_WAITING)
		heard(lease, a);
	else if (lease->phase == PHASE_NAMING)
		named(lease, a);
	else if (lease->phase == PHASE_FINDING)
		found(lease, a);
	else if (lease->phase == PHASE_HELD)
		renewed(lease, a);
	else if (lease->phase == PHASE_RELEASING)
		released(lease, a);
	unref_lease(lease);
}

/* ---- what is next ---- */

/* Ask, for the last time if there is nothing to wait for. */
static void
ask_server(dlock_lease *lease)
{
	bool		alone = lease->call != CALL_SINGLE || lease->params[PAYLOAD] != NULL;

	lease->last = lease->never || lease->gave_up || !lease->waits || now_ms() >= lease->wait_until;
	lease->params[KEEP] = lease->last ? "0" : KEEP_PLACE;
	lease->alone = lease->tried && is_alone(lease, PHASE_RELEASING);
	lease->params[REENTRY] = lease->alone ? "return" : lease->reenter ? "count" : "deny";
	lease->phase = PHASE_ASKING;
	lease_submit(lease, alone ? &alone_kinds[lease->call] : &acquire_kind);
}

/* Do what its phase is for, unless that is under way. */
void
go(dlock_lease *lease)
{
	int64_t		now = now_ms();

	lease->wake_at = NEVER;
	if (lease->asked)
		return;
	switch (lease->phase)
	{
		case PHASE_NEW:
		case PHASE_WAITING:
			if (lease->gave_up && !lease->placed)
				end_request(lease, &lease->error);
			else if (lease->phase == PHASE_NEW && now < lease->end_by && is_blocked(lease))
			{
				lease->wake_at = lease->end_by;
				arm(lease->session, lease->wake_at);
			}
			else if (lease->turn[0] != '\0')
			{
				memcpy(lease->tokens[0], lease->turn, TOKEN_SIZE);
				lease->placed = false;
				granted(lease, lease->turn_sent);
			}
			else
				ask_server(lease);
			break;
		case PHASE_FINDING:
			if (!may_undo(lease, now) || !(is_in_doubt(lease) || lease->refused))
				over(lease);
			else if (is_alone(lease, PHASE_WAITING))
				lease_submit(lease, &find_kind);
			else
			{
				settle(lease, &lease->failure);
				undo_later(lease);
			}
			break;
		case PHASE_RELEASING:
			if (lease->ends_with == NULL || !may_undo(lease, now) || !lease_submit(lease, lease->ends_with))
				over(lease);
			break;
		default:
			break;
	}
}

/* ---- turns ---- */

/* May a turn be meant for it?  It may come before the answer that there is a place. */
static bool
expects_turn(const dlock_lease *lease)
{
	bool		asks = lease->phase == PHASE_ASKING && lease->call == CALL_SINGLE && !lease->last;

	return lease->turn[0] == '\0' && !lease->never && (asks || (lease->placed && lease->phase <= PHASE_WAITING));
}

/*
 * Have those ask again that have a place, or expect one: all, after an outage; or others of the task
 * of a request that has ended, perhaps with the place that they share.
 */
static void
ask_again(dlock_session *s, const dlock_lease *ended)
{
	for (dlock_lease *lease = s->taking ? s->leases : NULL, *next; lease != NULL; lease = next)
	{
		next = lease->next;
		if (!expects_turn(lease) || (ended != NULL && !meets(ended, lease)))
			continue;
		lease->doubt_at = now_ms();
		lease->tried = true;
		if (lease->phase == PHASE_WAITING)
			go(lease);
	}
}

static void
turn_has_come(dlock_session *s, const Answer *a)
{
	const char *name = answer_text(a, 0);
	const char *owner = answer_text(a, 1);
	const char *token = answer_text(a, 2);
	dlock_lease *lease = s->leases;

	while (lease != NULL && !(expects_turn(lease) && strcmp(lease->names[0], name) == 0 && strcmp(lease->owner, owner) == 0))
		lease = lease->next;
	if (lease == NULL && token != NULL)
		give_back(s, owner, name, token);
	if (lease == NULL)
		return;
	lease->never = token == NULL;
	/* If it comes late, it is of an earlier request of the task, perhaps. */
	if (token != NULL && lease->named && is_alone(lease, PHASE_RELEASING))
		lease->doubt_at = now_ms();
	else
		snprintf(lease->turn, TOKEN_SIZE, "%s", (token != NULL) ? token : "");
	lease->turn_sent = a->sent;
	if (lease->phase == PHASE_WAITING)
		go(lease);
}

/* A call may end at once, and keeps places from then on: if the next one is late, they have run out, perhaps. */
static void
then_taken(Request *r, Answer *a)
{
	dlock_session *s = r->whose;
	bool		has_answer = a->error.status == DLOCK_OK;
	int64_t		now = now_ms();

	for (int i = 0; has_answer && i < PQntuples(a->result); i++)
	{
		a->row = i;
		turn_has_come(s, a);
	}
	if (has_answer && MAX(a->sent - s->take_sent, now - a->sent) < KEEP_PLACE_FOR * 3 / 4)
		now = a->sent;
	else
		ask_again(s, NULL);
	s->take_sent = now;
	s->take_at = has_answer ? 0 : now + LONGEST_POLL;
	arm(s, s->take_at);
}

/* Take turns, as long as there are places. */
void
take_tick(dlock_session *s, int64_t now)
{
	const dlock_lease *lease = s->leases;

	if (s->taking && now >= s->take_at)
	{
		while (lease != NULL && !expects_turn(lease))
			lease = lease->next;
		s->taking = lease != NULL;
		s->take_at = NEVER;
		if (!s->taking)
			line_drop(&s->taker);
		else
		{
			s->take_client = s->client;
			s->take = (Request)
			{
				.kind = &take_kind,.shared = &s->take_client,.then = then_taken,.whose = s
			};
			line_ask(s, &s->taker, &s->take);
		}
	}
	arm(s, s->take_at);
}

/* ---- for programs ---- */

static bool
is_answered(const void *lease)
{
	return ((const dlock_lease *) lease)->answered;
}

static dlock_status
begin(dlock_session *s, Call what, const char *const *names, int count, const dlock_options *options,
	  dlock_lease **lease, dlock_error *error)
{
	static const dlock_options defaults = {0};
	const dlock_options *o = (options != NULL) ? options : &defaults;
	dlock_lease *it;
	dlock_status status;

	*lease = NULL;
	if (count < 1 || o->ttl_ms < 0 || o->wait_ms < 0 || o->lock_delay_ms < 0 || o->min_hold_ms < 0 || o->permits < 0)
		return fail(error, DLOCK_ERROR, "a lease wants a name, and spans and permits that are not negative");
	for (int i = 0; i < count; i++)
		if (names[i] == NULL)
			return fail(error, DLOCK_ERROR, "a name is missing");
	if (!enter(s, error))
		return DLOCK_CLOSED;
	it = new_lease(s, what, names, count, o);
	if (it == NULL)
	{
		leave(s);
		return fail(error, DLOCK_ERROR, "out of memory");
	}
	if (it->give_up_fd > 0)
	{
		s->give_ups++;
		wake(s);
	}
	for (dlock_lease *other = (it->waits && !it->reenter) ? s->leases : NULL; other != NULL; other = other->next)
		if (other->phase == PHASE_HELD && meets(it, other) && !has_ended(other))
		{
			end_with(it, DLOCK_DEADLOCK, "the task would wait for its own lease on \"%.400s\"");
			break;
		}
	if (!it->answered)
		go(it);
	if (!it->async)
		await(s, &it->waiters, is_answered, it);
	status = it->async ? DLOCK_WAITING : tell(error, &it->error);
	if (status == DLOCK_OK || status == DLOCK_WAITING)
		*lease = it;
	else
		unref_lease(it);
	leave(s);
	return status;
}

dlock_status
dlock_acquire(dlock_session *session, const char *name, const dlock_options *options, dlock_lease **lease, dlock_error *error)
{
	return begin(session, CALL_SINGLE, &name, 1, options, lease, error);
}

dlock_status
dlock_acquire_all(dlock_session *session, const char *const *names, int count, const dlock_options *options,
				  dlock_lease **lease, dlock_error *error)
{
	return begin(session, CALL_ALL, names, count, options, lease, error);
}

dlock_status
dlock_acquire_path(dlock_session *session, const char *path, const dlock_options *options, dlock_lease **lease, dlock_error *error)
{
	return begin(session, CALL_PATH, &path, 1, options, lease, error);
}

dlock_status
dlock_lease_wait(dlock_lease *lease, dlock_error *error)
{
	dlock_session *s = lease->session;
	dlock_status status;

	if (!begin_call(lease->session, error))
		return DLOCK_CLOSED;
	await(s, &lease->waiters, is_answered, lease);
	remove_event(lease);
	(void) has_ended(lease);
	status = tell(error, &lease->error);
	leave(s);
	return status;
}

void
dlock_lease_cancel(dlock_lease *lease)
{
	if (!begin_call(lease->session, NULL))
		return;
	give_up(lease, DLOCK_CANCELED);
	leave(lease->session);
}
