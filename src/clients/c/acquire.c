/*-------------------------------------------------------------------------
 *
 * acquire.c
 *	  A request for a lease, up to its answer.
 *
 * NOTES
 *	  It asks, waits for its turn (wait.c), and asks again, until it is granted, or asks for
 *	  the last time.  Each phase ends in a function that begins the next one; no
 *	  thread stands for it.
 *
 *	  A caller that gives up is told at once.  The request goes on without it: it
 *	  gives up its place, and releases what it was granted all the same.
 *
 *	  A request is in doubt if it may have been granted what it has not heard of: its answer
 *	  was lost, or perhaps a turn was.  Then it asks for just that; and if it is given up,
 *	  that is undone.
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
#define KEEP_PLACE		"10 seconds"

static const Kind acquire_kind = {
	.sql = "SELECT unnest(@dlock_acquire_each(names => $1::text[], owners => $2::text[], ttl => $3::interval, mode => $4,"
	" permits => $5::integer, reentry => $6, lock_delay => $7::interval, min_hold => $8::interval, keep => $9::interval))",
	.columns = 2,.shared = 7
};

/* What cannot go with others has its parameters in its row. */
#define ALONE_PARAMS	"owner => $2, ttl => $3::interval, mode => $4, reentry => $5, lock_delay => $6::interval," \
	" min_hold => $7::interval, payload => $8::jsonb"
static const Kind alone_kinds[] = {
	[CALL_SINGLE] = {
		.sql = "SELECT @dlock_acquire($1, " ALONE_PARAMS ", permits => $9::integer, keep => $10::interval)",
		.columns = 10,.alone = true
	},
	[CALL_ALL] = {
		.sql = "SELECT unnest(@dlock_acquire_all($1::text[], " ALONE_PARAMS "))",
		.columns = 8,.alone = true
	},
	[CALL_PATH] = {
		.sql = "SELECT @dlock_acquire_path($1, " ALONE_PARAMS ")",
		.columns = 8,.alone = true
	}
};

const Kind	renew_kind = {.sql = "SELECT unnest(@dlock_renew_each($1::text[], $2::bigint[]))",.columns = 2,.urgent = true};
const Kind	release_kind = {.sql = "SELECT unnest(@dlock_release_each($1::text[], $2::bigint[]))",.columns = 2,.urgent = true};

/* What an owner may have been granted. */
static const Kind undo_kind = {
	.sql = "SELECT @dlock_release(n, o) FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS e(n, o, i) ORDER BY i",
	.columns = 2,.urgent = true
};

/* The holder of a lock; of the first one that is held; or of the first part of a path. */
static const Kind holder_kinds[] = {
	[CALL_SINGLE] = {
		.sql = "SELECT (SELECT owner FROM @dlock_lease(n) LIMIT 1) FROM unnest($1::text[]) WITH ORDINALITY AS e(n, i) ORDER BY i",
		.columns = 1
	},
	[CALL_ALL] = {
		.sql = "SELECT l.owner FROM unnest($1::text[]) WITH ORDINALITY AS e(n, i), @dlock_lease(n) AS l ORDER BY i LIMIT 1",
		.columns = 1,.alone = true
	},
	[CALL_PATH] = {
		.sql = "SELECT l.owner FROM string_to_array($1, '/') AS p, generate_series(1, cardinality(p)) AS i,"
		" @dlock_lease(array_to_string(p[1:i], '/')) AS l ORDER BY i LIMIT 1",
		.columns = 1,.alone = true
	}
};

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
	for (int i = 0; lease->rows != NULL && i < lease->count; i++)
		free(lease->rows[i].name);
	for (Transaction *t = lease->transactions, *next; t != NULL; t = next)
	{
		next = t->next;
		free(t);
	}
	pthread_cond_destroy(&lease->changed);
	lease->session->refs--;
	free(lease->rows);
	free(lease->label);
	free(lease->owner);
	free(lease->names);
	free(lease->mode);
	free(lease->payload);
	free(lease);
}

/* Nothing goes on with it any more. */
void
over(dlock_lease *lease)
{
	dlock_session *s = lease->session;

	lease->phase = PHASE_OVER;
	for (int i = 0; i < lease->count; i++)
		table_remove(&lease->rows[i]);
	if (lease->previous != NULL)
		lease->previous->next = lease->next;
	else
		s->leases = lease->next;
	if (lease->next != NULL)
		lease->next->previous = lease->previous;
	pthread_cond_broadcast(&lease->changed);
	unref_lease(lease);
}

/* The lease stays until the request is answered. */
void
lease_submit(dlock_lease *lease, Request *r, const Kind *kind, int64_t within, void (*then) (Request *, Answer *))
{
	r->kind = kind;
	r->until = now_ms() + within;
	r->then = then;
	ref_lease(lease);
	submit(lease->session, r);
}

static char *
join(const char *const *names, int count)
{
	size_t		length = 1;
	char	   *all;

	for (int i = 0; i < count; i++)
		length += strlen(names[i]) + 2;
	all = malloc(length);
	if (all != NULL)
		all[0] = '\0';
	for (int i = 0; all != NULL && i < count; i++)
	{
		strcat(all, (i > 0) ? ", " : "");
		strcat(all, names[i]);
	}
	return all;
}

/* The names, and requests about them; false if there is no memory. */
static bool
make_rows(dlock_lease *lease, const char *const *names, int count)
{
	bool		good = true;

	lease->rows = calloc((size_t) MAX(count, 1), sizeof(Row));
	lease->count = (lease->rows != NULL) ? count : 0;
	for (int i = 0; i < lease->count; i++)
	{
		Row		   *entry = &lease->rows[i];

		entry->lease = lease;
		entry->name = strdup(names[i]);
		entry->retry_at = NEVER;
		entry->renewal.kind = &renew_kind;
		entry->renewal.whose = entry->release.whose = entry;
		entry->renewal.row[0] = entry->release.row[0] = entry->name;
		entry->renewal.row[1] = entry->release.row[1] = entry->token;
		good &= entry->name != NULL;
	}
	return good && lease->count == count;
}

/* What the options say; false if there is no memory. */
static bool
set_options(dlock_lease *lease, const dlock_options *o)
{
	dlock_session *s = lease->session;
	char		number[24];
	const char *task = (o->task != NULL) ? o->task : number;
	size_t		length;

	lease->ttl = (o->ttl_ms != 0) ? o->ttl_ms : DEFAULT_TTL;
	lease->waits = o->wait_ms > 0;
	lease->wait_until = (o->wait_ms < NEVER - now_ms()) ? now_ms() + o->wait_ms : NEVER;
	lease->reenter = o->reenter;
	lease->async = o->async;
	lease->give_up_fd = o->give_up_fd;
	lease->on_lost = o->on_lost;
	lease->argument = o->argument;
	snprintf(number, sizeof(number), "%" PRId64, ++s->tasks);
	length = strlen(s->client) + strlen(task) + 2;
	lease->owner = malloc(length);
	lease->mode = strdup((o->mode != NULL) ? o->mode : "exclusive");
	lease->payload = (o->payload != NULL) ? strdup(o->payload) : NULL;
	if (lease->owner == NULL || lease->mode == NULL || (lease->payload == NULL && o->payload != NULL))
		return false;
	snprintf(lease->owner, length, "%s#%s", s->client, task);
	lease->task = lease->owner + strlen(s->client) + 1;
	span_text(lease->ttl, lease->spans[0]);
	span_text(o->lock_delay_ms, lease->spans[1]);
	span_text(o->min_hold_ms, lease->spans[2]);
	snprintf(lease->permits, sizeof(lease->permits), "%d", o->permits);
	lease->shared[0] = lease->spans[0];
	lease->shared[1] = lease->mode;
	lease->shared[2] = (o->permits > 0) ? lease->permits : NULL;
	lease->shared[4] = lease->spans[1];
	lease->shared[5] = lease->spans[2];
	lease->shared[6] = lease->spans[3];
	return true;
}

/* A lease in the list of the session, with a reference of the caller's; NULL if there is no memory. */
dlock_lease *
new_lease(dlock_session *s, Call what, const char *const *names, int count, const dlock_options *o)
{
	dlock_lease *lease = calloc(1, sizeof(*lease));
	bool		good;

	if (lease == NULL)
		return NULL;
	pthread_cond_init(&lease->changed, NULL);
	lease->session = s;
	s->refs++;
	lease->refs = 1;
	lease->call = what;
	lease->delay = SHORTEST_POLL;
	lease->wake_at = NEVER;
	lease->error.status = DLOCK_WAITING;
	lease->request.whose = lease;
	lease->label = join(names, count);
	lease->names = array_text(names, count);
	good = make_rows(lease, names, count) && set_options(lease, o);
	if (!good || lease->label == NULL || lease->names == NULL)
	{
		unref_lease(lease);
		return NULL;
	}
	ref_lease(lease);
	lease->next = s->leases;
	if (s->leases != NULL)
		s->leases->previous = lease;
	s->leases = lease;
	return lease;
}

/* ---- the answer ---- */

/* The program is told, once. */
static void
settle(dlock_lease *lease, const dlock_error *error)
{
	if (lease->answered)
		return;
	lease->answered = true;
	lease->error = *error;
	if (lease->give_up_fd > 0)
		lease->session->give_ups--;
	pthread_cond_broadcast(&lease->changed);
	if (lease->async)
		add_event(lease);
}

static void undo_next(dlock_lease *lease);

static void
then_undone(Request *r, Answer *a)
{
	dlock_lease *lease = r->whose;

	if (a->error.status == DLOCK_OK)
	{
		lease->undoing++;
		undo_next(lease);
	}
	else
	{
		lease->wake_at = now_ms() + UNDO_EVERY;
		arm(lease->session, lease->wake_at);
	}
	unref_lease(lease);
}

/* End what it may have been granted, lock by lock; and then the request. */
static void
undo_next(dlock_lease *lease)
{
	int64_t		now = now_ms();

	lease->wake_at = NEVER;
	if (lease->undoing == lease->count || now >= lease->undo_until || !is_alone(lease, ROW_HELD))
	{
		forget(lease);
		settle(lease, &lease->failure);
		over(lease);
		return;
	}
	lease->request.row[0] = lease->rows[lease->undoing].name;
	lease->request.row[1] = lease->owner;
	lease_submit(lease, &lease->request, &undo_kind, lease->undo_until - now, then_undone);
}

/* The request is to end with this. */
static void
end_request(dlock_lease *lease, const dlock_error *error)
{
	lease->phase = PHASE_UNDOING;
	lease->failure = *error;
	lease->undoing = lease->in_doubt ? 0 : lease->count;
	lease->undo_until = now_ms() + DOUBT_WITHIN;
	undo_next(lease);
}

/* The message has the name of the lock. */
static void
end_with(dlock_lease *lease, dlock_status status, const char *format)
{
	dlock_error error;

	fail(&error, status, format, lease->label);
	end_request(lease, &error);
}

/* It was granted, by a request that was sent then. */
static void
grant(dlock_lease *lease, int64_t sent)
{
	dlock_error good = {.status = DLOCK_OK};
	bool		wanted = !lease->answered;

	hold(lease, sent);
	forget(lease);
	settle(lease, &good);
	if (!wanted)
		let_go(lease);
}

static void
then_free(Request *r, Answer *a)
{
	(void) a;
	free(r->whose);
}

/* Release a turn that was not taken: it may have been told twice. */
void
decline(dlock_session *s, const char *owner, const char *name, const char *token)
{
	size_t		length = strlen(name) + 1;
	char	   *memory = calloc(1, sizeof(Request) + length + TOKEN_SIZE);
	Request    *r = (Request *) memory;

	/* Without memory, it lasts for its ttl. */
	if (memory == NULL || holds_token(s, owner, name, token))
	{
		free(memory);
		return;
	}
	r->kind = &release_kind;
	r->until = now_ms() + ANSWER_WITHIN;
	r->then = then_free;
	r->whose = memory;
	r->row[0] = memcpy(memory + sizeof(Request), name, length);
	r->row[1] = memcpy(memory + sizeof(Request) + length, token, TOKEN_SIZE);
	submit(s, r);
}

/* ---- its phases ---- */

/* Say who holds it, or something above it, if somebody still does. */
static void
then_named(Request *r, Answer *a)
{
	dlock_lease *lease = r->whose;
	const char *holder = (a->error.status == DLOCK_OK) ? answer_text(a, 0) : NULL;
	dlock_error error;

	if (holder != NULL)
		fail(&error, DLOCK_REFUSED, "lock \"%.100s\" is held by \"%.350s\"", lease->label, holder);
	else
		fail(&error, DLOCK_REFUSED, "lock \"%.400s\" is held", lease->label);
	if (holder != NULL)
		snprintf(error.holder, sizeof(error.holder), "%s", holder);
	end_request(lease, &error);
	unref_lease(lease);
}

static void
name_holder(dlock_lease *lease)
{
	lease->phase = PHASE_NAMING;
	lease->request.row[0] = (lease->call == CALL_ALL) ? lease->names : lease->rows[0].name;
	lease_submit(lease, &lease->request, &holder_kinds[lease->call], ANSWER_WITHIN, then_named);
}

/* It was not granted.  The error is that of the last attempt. */
static void
go_on_after(dlock_lease *lease, const Answer *a)
{
	dlock_status status = a->error.status;
	bool		answered = status == DLOCK_OK;
	bool		raised = lease->in_doubt;	/* meanwhile */
	int64_t		now = now_ms();

	lease->in_doubt |= a->doubt || (!answered && lease->asks_in_doubt);
	if (a->doubt && lease->doubt_until == 0)
		lease->doubt_until = now + DOUBT_WITHIN;
	if (answered && !lease->last)
		wait_for_turn(lease);
	else if (answered && lease->gave_up)
		end_request(lease, &lease->error);
	else if (answered && lease->turn == TURN_NEVER)
		end_with(lease, DLOCK_DEADLOCK, "the wait for \"%.400s\" would never have ended");
	else if (answered && (raised || lease->turn == TURN_COME))
		go_on(lease);			/* a turn may have come just before */
	else if (answered)
		name_holder(lease);
	else if (status == DLOCK_CANCELED)
		go_on(lease);
	else if (status == DLOCK_DEADLOCK && (raised || lease->turn == TURN_COME) && !lease->gave_up)
		go_on(lease);			/* perhaps for a lease that it has not heard
								 * of */
	else if (status != DLOCK_UNREACHABLE || (lease->last && (lease->gave_up || now >= lease->doubt_until)))
		end_request(lease, &a->error);
	else
	{
		lease->phase = PHASE_NAPPING;
		lease->wake_at = lease->gave_up ? now : now + RETRY_AFTER;
		if (!lease->last)
			lease->wake_at = MIN(lease->wake_at, lease->wait_until);
		arm(lease->session, lease->wake_at);
	}
}

static void
then_confirmed(Request *r, Answer *a)
{
	dlock_lease *lease = ((Row *) r->whose)->lease;
	const char *value = (a->error.status == DLOCK_OK) ? answer_text(a, 0) : NULL;

	if (a->error.status != DLOCK_OK)
		go_on_after(lease, a);
	else if (value != NULL && value[0] == 't')
		grant(lease, a->sent);
	else
		end_with(lease, DLOCK_LOST, "the lease on \"%.400s\" was lost at once");
	unref_lease(lease);
}

/* A turn may have come some time after it was asked for: when was the lease held for sure? */
static void
take_turn(dlock_lease *lease)
{
	Row		   *entry = &lease->rows[0];

	memcpy(entry->token, lease->turn_token, TOKEN_SIZE);
	lease->phase = PHASE_CONFIRMING;
	if (now_ms() - lease->turn_sent > MIN(lease->ttl / 12, 1000))
		lease_submit(lease, &entry->renewal, &renew_kind, ANSWER_WITHIN, then_confirmed);
	else
		grant(lease, lease->turn_sent);
}

static void
then_asked(Request *r, Answer *a)
{
	dlock_lease *lease = r->whose;
	bool		answered = a->error.status == DLOCK_OK;
	bool		granted = answered && answer_text(a, 0) != NULL;

	for (int i = 0; granted && i < lease->count; i++)
		snprintf(lease->rows[i].token, TOKEN_SIZE, "%s", PQgetvalue(a->result, a->row + i, 0));
	lease->placed |= !lease->last && lease->call == CALL_SINGLE && (answered || a->doubt);
	if (granted)
		grant(lease, a->sent);
	else
		go_on_after(lease, a);
	unref_lease(lease);
}

/* Ask, for the last time if there is nothing to wait for. */
static void
ask_server(dlock_lease *lease)
{
	Request    *r = &lease->request;
	bool		alone = lease->call != CALL_SINGLE || lease->payload != NULL;

	if (lease->last)
		snprintf(lease->spans[3], SPAN_SIZE, "0");
	else
		snprintf(lease->spans[3], SPAN_SIZE, "%s", KEEP_PLACE);
	if (!lease->last && lease->call == CALL_SINGLE)
		expect(lease);
	lease->shared[3] = lease->reenter ? "count" : "deny";
	if (lease->asks_in_doubt && is_alone(lease, ROW_RELEASING))
		lease->shared[3] = "return";
	r->shared = lease->shared;
	r->row[0] = (lease->call == CALL_ALL) ? lease->names : lease->rows[0].name;
	r->row[1] = lease->owner;
	if (alone)
	{
		const char *more[] = {lease->spans[0], lease->mode, lease->shared[3], lease->spans[1], lease->spans[2],
		lease->payload, lease->shared[2], lease->spans[3]};

		memcpy(&r->row[2], more, sizeof(more));
	}
	lease->phase = PHASE_ASKING;
	lease_submit(lease, r, alone ? &alone_kinds[lease->call] : &acquire_kind, ANSWER_WITHIN, then_asked);
}

/* Take the turn that has come, or ask. */
void
go_on(dlock_lease *lease)
{
	lease->wake_at = NEVER;
	if (lease->gave_up && !lease->placed)
	{
		end_request(lease, &lease->error);
		return;
	}
	lease->asks_in_doubt = lease->in_doubt;
	lease->in_doubt = false;
	lease->last = lease->turn == TURN_NEVER || lease->gave_up || !lease->waits || now_ms() >= lease->wait_until;
	if (lease->turn == TURN_COME)
		take_turn(lease);
	else
		ask_server(lease);
}

void
request_tick(dlock_lease *lease, int64_t now)
{
	if (now < lease->wake_at)
		arm(lease->session, lease->wake_at);
	else if (lease->phase == PHASE_TURN || lease->phase == PHASE_NAPPING)
		go_on(lease);
	else if (lease->phase == PHASE_UNDOING)
		undo_next(lease);
}

/* The caller does not wait any longer. */
void
give_up(dlock_lease *lease, dlock_status status)
{
	dlock_error error;

	if (lease->answered)
		return;
	if (status == DLOCK_CLOSED)
		fail(&error, status, "the session is closed");
	else
		fail(&error, status, "given up waiting for \"%.400s\"", lease->label);
	settle(lease, &error);
	lease->gave_up = true;
	if (lease->phase == PHASE_TURN || lease->phase == PHASE_NAPPING)
		go_on(lease);
	else if (lease->phase == PHASE_ASKING && !(lease->last && lease->placed))
		(void) withdraw(lease->session, &lease->request, DLOCK_CANCELED);
}

/* ---- for programs ---- */

static dlock_status
begin(dlock_session *s, Call what, const char *const *names, int count, const dlock_options *options,
	  dlock_lease **lease, dlock_error *error)
{
	static const dlock_options defaults = {0};
	const dlock_options *o = (options != NULL) ? options : &defaults;
	dlock_lease *it;
	dlock_status status;

	*lease = NULL;
	if (count < 1 || o->ttl_ms < 0 || o->wait_ms < 0 || o->lock_delay_ms < 0 || o->min_hold_ms < 0)
		return fail(error, DLOCK_ERROR, "a lease wants a name, and spans that are not negative");
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
		wake_thread(s);
	}
	for (int i = 0; i < count; i++)
		table_put(&it->rows[i], ROW_WANTED);
	for (int i = 0; i < count && it->waits && !it->reenter; i++)
		if (it->phase != PHASE_OVER && held_by(s, it->owner, names[i]) > 0)
			end_with(it, DLOCK_DEADLOCK, "the task would wait for its own lease on \"%.400s\"");
	if (it->phase != PHASE_OVER)
		go_on(it);
	while (!it->async && !it->answered)
		pthread_cond_wait(&it->changed, &s->lock);
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

	if (s->pid != getpid())
		return fail(error, DLOCK_CLOSED, "the lease is of the parent process");
	pthread_mutex_lock(&s->lock);
	s->busy++;
	while (!lease->answered)
		pthread_cond_wait(&lease->changed, &s->lock);
	remove_event(lease);
	(void) has_ended(lease);
	status = tell(error, &lease->error);
	leave(s);
	return status;
}

void
dlock_lease_cancel(dlock_lease *lease)
{
	dlock_session *s = lease->session;

	if (s->pid != getpid())
		return;
	pthread_mutex_lock(&s->lock);
	give_up(lease, DLOCK_CANCELED);
	pthread_mutex_unlock(&s->lock);
}
