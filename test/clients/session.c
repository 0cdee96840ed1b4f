/*
 * A program of test/lib/DLockScenario.pm in C: reads commands, a line of JSON each, and prints
 * what comes of them, "ID EVENT...".  Its argument is a connection string.
 */
#define _GNU_SOURCE

#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dlock.h"

#define POOL	20
#define WORDS	200

/* A command under way, which may be told something. */
typedef struct Thing
{
	struct Thing *next;
	char	   *id;
	char	   *line;
	int			give_up[2];
	dlock_lease *lease;
	bool		lost;
	int			told_end;
	int			told_fail;
	int			told_go;
	int			concurrency;	/* of a worker */
} Thing;

/* A lease among many. */
typedef struct Item
{
	dlock_lease *lease;
	bool		answered;
	char		result[WORDS];
} Item;

static const char *conninfo = "";
static dlock_session *session;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Thing *things;
static bool closing;
static char client[300];
static pthread_t events;
static int	stall;				/* the longest time that this process did not
								 * run */

/* ---- JSON ---- */

static const char *
skip_blank(const char *c)
{
	return c + strspn(c, " \t\r\n");
}

/* The end of a value. */
static const char *
end_of(const char *c)
{
	int			depth = 0;

	for (;; c++)
	{
		if (*c == '"')
		{
			for (c++; *c != '"'; c++)
				if (*c == '\\')
					c++;
		}
		else if (*c == '{' || *c == '[')
			depth++;
		else if (*c == '}' || *c == ']')
		{
			if (depth == 0)
				return c;
			depth--;
		}
		else if (*c == '\0' || (*c == ',' && depth == 0))
			return c;
		if (depth == 0 && (*c == '"' || *c == '}' || *c == ']'))
			return c + 1;
	}
}

/* A value as text: the contents of a string, or else as it is. */
static char *
text_of(const char *from, const char *to)
{
	char	   *text = strndup(from, (size_t) (to - from));
	char	   *out = text;

	if (*from != '"')
		return text;
	for (const char *c = from + 1; c < to - 1; c++)
	{
		if (*c == '\\')
			c++;
		*out++ = *c;
	}
	*out = '\0';
	return text;
}

/* A member of an object, or NULL. */
static char *
get(const char *object, const char *key)
{
	const char *c = (object != NULL) ? skip_blank(object + 1) : "";

	while (*c == '"')
	{
		const char *end = end_of(c);
		char	   *found = text_of(c, end);
		bool		is = strcmp(found, key) == 0;

		free(found);
		c = skip_blank(skip_blank(end) + 1);
		end = end_of(c);
		if (is)
			return text_of(c, end);
		c = skip_blank(end);
		c = skip_blank(c + (*c == ','));
	}
	return NULL;
}

static int64_t
number(const char *object, const char *key, int64_t otherwise)
{
	char	   *text = get(object, key);
	int64_t		value = (text == NULL) ? otherwise : (strcmp(text, "true") == 0) ? 1 : atoll(text);

	free(text);
	return value;
}

/* Spans are milliseconds, or texts. */
static int64_t
span(const char *object, const char *key)
{
	static const char *const units[] = {" s", " min", " h", " d"};
	static const int64_t factors[] = {1000, 60000, 3600000, 86400000};
	char	   *text = get(object, key);
	int64_t		value = (text != NULL) ? atoll(text) : 0;

	for (int i = 0; text != NULL && i < 4; i++)
		if (strchr(text, ' ') != NULL && strcmp(strchr(text, ' '), units[i]) == 0)
			value *= factors[i];
	free(text);
	return value;
}

/* The texts of an array, up to a NULL. */
static char **
list(const char *object, const char *key, int *count)
{
	char	   *array = get(object, key);
	char	  **all = calloc(64, sizeof(char *));
	const char *c = (array != NULL) ? skip_blank(array + 1) : "]";

	for (*count = 0; *c != ']'; c = skip_blank(c + (*c == ',')))
	{
		const char *end = end_of(c);

		all[(*count)++] = text_of(c, end);
		c = skip_blank(end);
	}
	free(array);
	return all;
}

static void
free_list(char **all)
{
	for (char **one = all; *one != NULL; one++)
		free(*one);
	free(all);
}

/* ---- words ---- */

static int64_t
clock_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void
__attribute__((format(printf, 2, 3)))
say(const char *id, const char *format,...)
{
	char		line[3000];
	va_list		args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	printf("%s %s\n", id, line);
	fflush(stdout);
}

static const char *
outcome(const dlock_error *error, char words[WORDS])
{
	static const char *const names[] = {
		[DLOCK_OK] = "ok",[DLOCK_WAITING] = "waiting",[DLOCK_LOST] = "LeaseLost",[DLOCK_DEADLOCK] = "LeaseDeadlock",
		[DLOCK_UNREACHABLE] = "ServerUnreachable",[DLOCK_CANCELED] = "gave up",[DLOCK_TOKEN_STALE] = "TokenStale",
		[DLOCK_TOKEN_MISSING] = "TokenMissing",[DLOCK_UNSUPPORTED] = "ServerUnsupported",[DLOCK_CLOSED] = "SessionClosed"
	};

	if (error->status == DLOCK_REFUSED)
		snprintf(words, WORDS, "refused %.150s", strncmp(error->holder, client, strlen(client)) == 0 ? "self" : error->holder);
	else if (error->status == DLOCK_ERROR)
		snprintf(words, WORDS, "error %.150s", error->sqlstate[0] != '\0' ? error->sqlstate : error->message);
	else
		snprintf(words, WORDS, "%s", names[error->status]);
	return words;
}

static void
ended(const Thing *it, const dlock_error *error)
{
	char		words[WORDS];

	if (error->status != DLOCK_OK)
		fprintf(stderr, "%s %s\n", it->id, error->message);
	say(it->id, "ended %s", outcome(error, words));
}

/* ---- things ---- */

static Thing *
find(const char *id)
{
	Thing	   *it;

	pthread_mutex_lock(&lock);
	for (it = things; it != NULL && strcmp(it->id, id) != 0;)
		it = it->next;
	pthread_mutex_unlock(&lock);
	return it;
}

static Thing *
find_member(const Thing *it, const char *key)
{
	char	   *id = get(it->line, key);
	Thing	   *found = (id != NULL) ? find(id) : NULL;

	free(id);
	return found;
}

/* Wait to be told to go on, or to end; false if the lease is lost, or it is not to go on. */
static bool
wait_told(int *told, const bool *lost)
{
	bool		good;

	pthread_mutex_lock(&lock);
	while (*told == 0 && !(lost != NULL && *lost))
		pthread_cond_wait(&changed, &lock);
	good = *told > 0;
	*told -= good;
	pthread_mutex_unlock(&lock);
	return good;
}

/* What others may change meanwhile. */
static int
exchange(int *number, int other)
{
	int			value;

	pthread_mutex_lock(&lock);
	value = *number;
	*number = other;
	pthread_mutex_unlock(&lock);
	return value;
}

static void
on_lost(dlock_lease *lease, void *argument)
{
	(void) lease;
	pthread_mutex_lock(&lock);
	((Thing *) argument)->lost = true;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

/* The strings are the caller's to free, which are two. */
static dlock_options
options_of(Thing *it, char *strings[2])
{
	char	   *given = get(it->line, "options");
	char	   *reentry = get(given, "reentry");
	dlock_options o = {
		.ttl_ms = span(given, "ttl"),.wait_ms = span(given, "wait"),.permits = (int) number(given, "permits", 0),
		.reenter = reentry != NULL && strcmp(reentry, "count") == 0,.give_up_fd = it->give_up[0]
	};

	o.mode = strings[0] = get(given, "mode");
	o.payload = strings[1] = get(given, "payload");
	free(reentry);
	free(given);
	return o;
}

/* ---- commands ---- */

/* A lease, until it is told to end, or to fail; in the task of another one. */
static void
do_lease(Thing *it)
{
	Thing	   *outer = find_member(it, "in");
	char	   *strings[2];
	dlock_options o = options_of(it, strings);
	char	   *path = get(it->line, "path");
	char	   *name = get(it->line, "name");
	char	   *task = get(it->line, "task");
	int			count;
	char	  **names = list(it->line, "names", &count);
	dlock_lease *lease;
	dlock_error error;
	bool		failed = false;

	o.task = (outer != NULL) ? dlock_lease_task(outer->lease) : task;
	o.on_lost = on_lost;
	o.argument = it;
	if (path != NULL)
		(void) dlock_acquire_path(session, path, &o, &lease, &error);
	else if (name == NULL)
		(void) dlock_acquire_all(session, (const char *const *) names, count, &o, &lease, &error);
	else
		(void) dlock_acquire(session, name, &o, &lease, &error);
	free(strings[0]);
	free(strings[1]);
	free(task);
	free(path);
	free(name);
	free_list(names);
	if (error.status != DLOCK_OK)
	{
		ended(it, &error);
		return;
	}
	pthread_mutex_lock(&lock);
	stall = 0;
	it->lease = lease;
	pthread_mutex_unlock(&lock);
	say(it->id, "held %" PRId64, dlock_lease_token(lease));
	if (!wait_told(&it->told_end, &it->lost))
		say(it->id, "stopped %s", dlock_lease_remaining(lease) > 0 ? "early" : (exchange(&stall, 0) > 300) ? "stalled" : "late");
	failed = it->told_fail > 0;
	(void) dlock_lease_release(lease, &error);
	if (error.status == DLOCK_OK && failed)
		say(it->id, "ended error failed");
	else
		ended(it, &error);
	/* Others may ask for it still, so it is not freed. */
}

/* The program's own loop: answers to asynchronous requests. */
static void *
run_events(void *argument)
{
	struct pollfd ready = {dlock_event_fd(session), POLLIN, 0};
	dlock_lease *lease;

	(void) argument;
	for (bool more = true; more;)
	{
		(void) poll(&ready, 1, 100);
		pthread_mutex_lock(&lock);
		more = !closing;
		while (more && (lease = dlock_next_event(session)) != NULL)
			((Item *) dlock_lease_argument(lease))->answered = true;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

/* Ask for all at once. */
static void
start_items(Thing *it, Item *items, char **names, int count)
{
	char	   *strings[2];
	dlock_options o = options_of(it, strings);
	char	   *common = get(it->line, "name");
	int			some = (names == NULL) ? (int) number(it->line, "names", 0) : 0;
	char		own[WORDS];
	dlock_error error;

	o.async = true;
	for (int i = 0; i < count; i++)
	{
		bool		is_own = common == NULL || some > 0;

		snprintf(own, sizeof(own), "%.100s:%d", (common != NULL) ? common : it->id, (some > 0) ? i % some : i);
		o.argument = &items[i];
		if (dlock_acquire(session, (names != NULL) ? names[i] : is_own ? own : common, &o, &items[i].lease, &error) !=
			DLOCK_WAITING)
		{
			outcome(&error, items[i].result);
			items[i].answered = true;
		}
	}
	free(strings[0]);
	free(strings[1]);
	free(common);
}

/* Release each as soon as it was granted, unless all are to be held; true if all were. */
static bool
finish_items(Item *items, int count, bool hold)
{
	bool		good = true;

	for (int left = count; left > 0; left--)
	{
		Item	   *one = NULL;
		dlock_error error;

		pthread_mutex_lock(&lock);
		while (one == NULL)
		{
			for (int i = 0; i < count && one == NULL; i++)
				if (items[i].answered)
					one = &items[i];
			if (one == NULL)
				pthread_cond_wait(&changed, &lock);
		}
		one->answered = false;
		pthread_mutex_unlock(&lock);
		if (one->lease == NULL)
		{
			good = false;
			continue;
		}
		if (dlock_lease_wait(one->lease, &error) == DLOCK_OK && !hold)
			(void) dlock_lease_release(one->lease, &error);
		outcome(&error, one->result);
		good &= error.status == DLOCK_OK;
		if (!hold)
			dlock_lease_free(one->lease);
	}
	return good;
}

/* So many leases at once: held together, or one after the other on one lock, or on some. */
static void
do_many(Thing *it)
{
	int			count = (int) number(it->line, "count", 0);
	bool		hold = number(it->line, "hold", 0) != 0;
	Item	   *items = calloc((size_t) count, sizeof(Item));
	bool		good;

	start_items(it, items, NULL, count);
	if (number(it->line, "tells", 0) != 0)
		say(it->id, "asked %d", count);
	good = finish_items(items, count, hold);
	if (hold)
	{
		say(it->id, "held %d", count);
		(void) wait_told(&it->told_end, NULL);
		for (int i = 0; i < count; i++)
		{
			good &= dlock_lease_release(items[i].lease, NULL) == DLOCK_OK;
			dlock_lease_free(items[i].lease);
		}
	}
	say(it->id, good ? "ended ok" : "ended badly");
	free(items);
}

/* Each name as a lease of its own, at once: what comes of each. */
static void
do_each(Thing *it)
{
	int			count;
	char	  **names = list(it->line, "names", &count);
	Item	   *items = calloc((size_t) count, sizeof(Item));
	char		all[3000] = "";

	start_items(it, items, names, count);
	(void) finish_items(items, count, false);
	for (int i = 0; i < count; i++)
	{
		strcat(all, (i > 0) ? ", " : "");
		strcat(all, items[i].result);
	}
	say(it->id, "ended %s", all);
	free_list(names);
	free(items);
}

/* ---- work under load ---- */

typedef struct Load
{
	int			workflows;
	int			next;
	int			done;
	int			locks;
	int			names;
	char	   *query;
	PGconn	   *pool[POOL];
	int			pooled;
} Load;

static bool
query_pooled(Load *all)
{
	PGconn	   *conn;
	PGresult   *result;
	bool		good;

	pthread_mutex_lock(&lock);
	while (all->pooled == 0)
		pthread_cond_wait(&changed, &lock);
	conn = all->pool[--all->pooled];
	pthread_mutex_unlock(&lock);
	result = PQexec(conn, all->query);
	good = PQresultStatus(result) == PGRES_TUPLES_OK;
	PQclear(result);
	pthread_mutex_lock(&lock);
	all->pool[all->pooled++] = conn;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return good;
}

/* Some leases, one within the other, and work in the pool. */
static bool
flow(Load *all, int which, int depth, const char *task)
{
	dlock_options o = {.wait_ms = 120000,.task = task};
	char		name[WORDS];
	dlock_lease *lease;
	dlock_error error;
	bool		good;

	if (depth == all->locks)
		return query_pooled(all);
	snprintf(name, sizeof(name), "load:%d:%d", depth, (which * 7 + depth) % all->names);
	if (dlock_acquire(session, name, &o, &lease, &error) != DLOCK_OK)
	{
		fprintf(stderr, "%s: %s\n", name, error.message);
		return false;
	}
	good = flow(all, which, depth + 1, dlock_lease_task(lease));
	good &= dlock_lease_release(lease, NULL) == DLOCK_OK;
	dlock_lease_free(lease);
	return good;
}

static void *
run_load(void *argument)
{
	Load	   *all = argument;

	for (;;)
	{
		int			which;
		bool		good;

		pthread_mutex_lock(&lock);
		which = all->next++;
		pthread_mutex_unlock(&lock);
		if (which >= all->workflows)
			return NULL;
		good = flow(all, which, 0, NULL);
		pthread_mutex_lock(&lock);
		all->done += good;
		pthread_mutex_unlock(&lock);
	}
}

static void
do_load(Thing *it)
{
	int			concurrency = (int) number(it->line, "concurrency", 1);
	pthread_t  *threads = calloc((size_t) concurrency, sizeof(pthread_t));
	Load		all = {
		.workflows = (int) number(it->line, "workflows", 0),.locks = (int) number(it->line, "locks", 1),
		.names = (int) number(it->line, "names", 1),.query = get(it->line, "query")
	};

	for (; all.pooled < POOL; all.pooled++)
		all.pool[all.pooled] = PQconnectdb("");
	for (int i = 0; i < concurrency; i++)
		pthread_create(&threads[i], NULL, run_load, &all);
	for (int i = 0; i < concurrency; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < POOL; i++)
		PQfinish(all.pool[i]);
	say(it->id, "ended %d", all.done);
	free(all.query);
	free(threads);
}

/* ---- around leases ---- */

static void
do_once(Thing *it)
{
	char	   *name = get(it->line, "name");
	int64_t		token;
	dlock_error error;

	if (dlock_once(session, name, span(it->line, "every"), &token, &error) != DLOCK_OK)
		ended(it, &error);
	else
		say(it->id, "ended %s", (token > 0) ? "won" : "no");
	free(name);
}

static bool
lead(dlock_lease *lease, void *argument)
{
	Thing	   *it = argument;
	char		words[WORDS];
	dlock_error error;

	say(it->id, "gained");
	it->lost = false;
	(void) wait_told(&it->told_end, &it->lost);
	(void) dlock_lease_status(lease, &error);
	say(it->id, "resigned %s", outcome(&error, words));
	return true;
}

static void
do_elect(Thing *it)
{
	char	   *name = get(it->line, "name");
	char	   *strings[2];
	dlock_options o = options_of(it, strings);
	dlock_error error;

	o.on_lost = on_lost;
	o.argument = it;
	(void) dlock_elect(session, name, &o, lead, it, &error);
	ended(it, &error);
	free(name);
}

static bool
see(int64_t token, const char *owner, const char *payload, void *argument)
{
	(void) payload;
	say(((Thing *) argument)->id, "sees %s", (token > 0) ? owner : "nobody");
	return true;
}

static void
do_watch(Thing *it)
{
	char	   *name = get(it->line, "name");
	dlock_error error;

	(void) dlock_watch(session, name, 50, it->give_up[0], see, it, &error);
	ended(it, &error);
	free(name);
}

static int	running;
static int	most;
static char at_work[100][WORDS];

/* Work that waits to be told. */
static const char *
wait_in_task(Thing *it, dlock_task *task)
{
	bool		goes = false;

	say(it->id, "works %s %d", task->key, task->attempts);
	pthread_mutex_lock(&lock);
	while (!goes && dlock_lease_held(task->lease))
	{
		struct timespec soon;

		clock_gettime(CLOCK_REALTIME, &soon);
		soon.tv_sec += soon.tv_nsec / 990000000;
		soon.tv_nsec = (soon.tv_nsec + 10000000) % 1000000000;
		if (it->told_go == 0)
			pthread_cond_timedwait(&changed, &lock, &soon);
		goes = it->told_go > 0;
	}
	it->told_go -= goes;
	pthread_mutex_unlock(&lock);
	if (goes)
		return NULL;
	say(it->id, "stopped %s", dlock_lease_remaining(task->lease) > 0 ? "early" : "late");
	return "stopped";
}

/* In a transaction of the task; a failure is told. */
static const char *
write_for(Thing *it, dlock_task *task, const char *sql)
{
	PGconn	   *conn = PQconnectdb("");
	char		words[WORDS];
	dlock_error error;

	if (dlock_lease_begin(task->lease, conn, &error) == DLOCK_OK)
	{
		PQclear(PQexec(conn, sql));
		(void) dlock_lease_commit(task->lease, conn, &error);
	}
	PQfinish(conn);
	if (error.status == DLOCK_OK)
		return NULL;
	say(it->id, "not committed %s", outcome(&error, words));
	return "not committed";
}

static const char *
work_on(Thing *it, dlock_task *task)
{
	char	   *sql = get(task->payload, "sql");
	const char *failed = NULL;

	if (number(task->payload, "wait", 0) != 0)
		failed = wait_in_task(it, task);
	usleep(2000);
	if (failed == NULL && task->attempts <= number(task->payload, "fail", 0))
		failed = "as told";
	if (failed == NULL && sql != NULL)
		failed = write_for(it, task, sql);
	if (failed == NULL && number(task->payload, "again", 0) != 0)
		failed = write_for(it, task, sql);
	free(sql);
	return failed;
}

static const char *
handle(dlock_task *task, void *argument)
{
	Thing	   *it = argument;
	const char *failed;
	int			place = 0;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < 100; i++)
	{
		if (strcmp(at_work[i], task->key) == 0)
			say(it->id, "twice at a time %s", task->key);
		if (at_work[i][0] == '\0')
			place = i;
	}
	snprintf(at_work[place], WORDS, "%s", task->key);
	most = (++running > most) ? running : most;
	/* On a slow machine one would end before the next begins. */
	for (int i = 0; i < 10000 && most < it->concurrency; i++)
	{
		pthread_mutex_unlock(&lock);
		usleep(1000);
		pthread_mutex_lock(&lock);
	}
	pthread_mutex_unlock(&lock);
	failed = work_on(it, task);
	pthread_mutex_lock(&lock);
	at_work[place][0] = '\0';
	running--;
	pthread_mutex_unlock(&lock);
	return failed;
}

/* A task fails if its payload says so, writes if its payload says what, or waits to be told. */
static void
do_worker(Thing *it)
{
	char	   *queue = get(it->line, "queue");
	char	   *given = get(it->line, "options");
	dlock_work_options o = {
		.concurrency = (int) number(given, "concurrency", 1),.ttl_ms = span(given, "ttl"),
		.give_up_fd = it->give_up[0],.grace_ms = span(it->line, "grace")
	};
	dlock_error error;

	(void) exchange(&most, 0);
	it->concurrency = o.concurrency;
	if (dlock_work(session, queue, &o, handle, it, &error) != DLOCK_OK)
		ended(it, &error);
	else
		say(it->id, "ended %d", exchange(&most, 0));
	free(queue);
	free(given);
}

/* ---- tokens ---- */

static void
run_sql(PGconn *conn, const char *sql, dlock_error *error)
{
	PGresult   *result = PQexec(conn, sql);
	const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	memset(error, 0, sizeof(*error));
	error->status = dlock_result_status(result);
	snprintf(error->sqlstate, sizeof(error->sqlstate), "%s", (sqlstate != NULL) ? sqlstate : "");
	snprintf(error->message, sizeof(error->message), "%s", PQresultErrorMessage(result));
	PQclear(result);
}

/* A transaction of the lease; with "also", it presents the tokens of another one, too. */
static void
do_write(Thing *it)
{
	Thing	   *also = find_member(it, "also");
	dlock_lease *lease = find_member(it, "lease")->lease;
	char	   *sql = get(it->line, "sql");
	PGconn	   *conn = PQconnectdb("");
	dlock_error error;

	if (dlock_lease_begin(lease, conn, &error) == DLOCK_OK)
	{
		if (also != NULL)
			(void) dlock_present(conn, &also->lease, 1, &error);
		if (error.status == DLOCK_OK)
			run_sql(conn, sql, &error);
		if (error.status == DLOCK_OK)
			(void) dlock_lease_commit(lease, conn, &error);
		else
			dlock_lease_rollback(lease, conn);
	}
	if (error.status == DLOCK_OK)
		say(it->id, "ended written");
	else
		ended(it, &error);
	PQfinish(conn);
	free(sql);
}

/* In a transaction of somebody else. */
static void
do_build(Thing *it)
{
	int			count;
	char	  **ids = list(it->line, "leases", &count);
	char	   *sql = get(it->line, "sql");
	dlock_lease *leases[10];
	PGconn	   *conn = PQconnectdb("");
	dlock_error error;

	for (int i = 0; i < count; i++)
		leases[i] = find(ids[i])->lease;
	PQclear(PQexec(conn, "BEGIN"));
	if (dlock_present(conn, leases, count, &error) == DLOCK_OK)
		run_sql(conn, sql, &error);
	PQclear(PQexec(conn, "COMMIT"));
	if (error.status == DLOCK_OK)
		say(it->id, "ended written");
	else
		ended(it, &error);
	PQfinish(conn);
	free_list(ids);
	free(sql);
}

/* ---- misuse ---- */

/* The process does not get to run. */
static void
do_block(Thing *it)
{
	char		command[WORDS];

	snprintf(command, sizeof(command), "kill -STOP $PPID; sleep %f; kill -CONT $PPID", (double) number(it->line, "ms", 0) / 1000);
	if (system(command) == 0)
		say(it->id, "ended %s", dlock_lease_held(find_member(it, "lease")->lease) ? "false" : "true");
}

/* A child has neither the lease nor the session, and its end is not theirs. */
static void
do_fork(Thing *it)
{
	dlock_lease *lease = find_member(it, "lease")->lease;
	dlock_lease *other;
	int			status;
	pid_t		child = fork();

	if (child == 0)
	{
		bool		good = !dlock_lease_held(lease) && dlock_lease_remaining(lease) == 0 &&
			dlock_lease_release(lease, NULL) == DLOCK_CLOSED &&
			dlock_acquire(session, "other", NULL, &other, NULL) == DLOCK_CLOSED && other == NULL;

		dlock_lease_free(lease);
		dlock_close(session);
		_exit(good ? 0 : 1);
	}
	waitpid(child, &status, 0);
	say(it->id, "ended %s, %s", status == 0 ? "none" : "wrong", dlock_lease_held(lease) ? "held" : "lost");
}

static bool
see_once(int64_t token, const char *owner, const char *payload, void *argument)
{
	(void) owner;
	(void) payload;
	*(int64_t *) argument = token;
	return false;
}

static bool
lead_once(dlock_lease *lease, void *argument)
{
	*(int64_t *) argument = dlock_lease_token(lease);
	return false;
}

/* End a lease; the server that has granted it does all else with the lock, too. */
static bool
end_in_shard(dlock_shards *shards, const char *name, dlock_lease *lease, dlock_error *error)
{
	int64_t		seen = 0;
	int64_t		led = 0;
	int64_t		won = 0;

	return dlock_shards_watch(shards, name, 1000, 0, see_once, &seen, error) == DLOCK_OK && seen == dlock_lease_token(lease) &&
		dlock_lease_release(lease, error) == DLOCK_OK &&
		dlock_shards_elect(shards, name, NULL, lead_once, &led, error) == DLOCK_OK && led > seen &&
		dlock_shards_once(shards, name, 1, &won, error) == DLOCK_OK && won > led;
}

/* The locks of two servers, of which one is down. */
static void
do_shards(Thing *it)
{
	const char *servers[] = {conninfo, conninfo};
	int			count;
	char	  **names = list(it->line, "names", &count);
	char		all[3000] = "";
	dlock_shards *shards;

	servers[number(it->line, "down", 0)] = "host=/nonexistent";
	shards = dlock_open_shards(servers, 2, NULL, NULL);
	if (strcmp(dlock_client(dlock_shards_session(shards, 0)), dlock_client(dlock_shards_session(shards, 1))) != 0 ||
		dlock_open_shards(servers, 0, NULL, NULL) != NULL)
		strcat(all, "wrong ");
	for (int i = 0; i < count; i++)
	{
		dlock_lease *lease;
		dlock_error error;
		char		result[WORDS];

		if (dlock_shards_acquire(shards, names[i], NULL, &lease, &error) == DLOCK_OK && !end_in_shard(shards, names[i], lease, &error))
			strcat(all, "wrong ");
		strcat(strcat(all, outcome(&error, result)), (i < count - 1) ? ", " : "");
		dlock_lease_free(lease);
	}
	say(it->id, "ended %s", all);
	free_list(names);
	dlock_close_shards(shards);
}

/* Which of so many servers has each of the locks. */
static void
do_shard(Thing *it)
{
	int			count;
	char	  **names = list(it->line, "names", &count);
	unsigned int servers = (unsigned int) number(it->line, "count", 1);
	char		all[WORDS] = "";
	char	   *at = all;

	for (int i = 0; i < count; i++)
		at += sprintf(at, "%s%u", (i > 0) ? ", " : "", dlock_shard_of(names[i], servers));
	say(it->id, "ended %s", all);
	free_list(names);
}

/* What waits is told so. */
static void
close_session(void)
{
	pthread_mutex_lock(&lock);
	closing = true;
	pthread_mutex_unlock(&lock);
	pthread_join(events, NULL);
	dlock_close(session);
}

static void
do_close(Thing *it)
{
	close_session();
	say(it->id, "ended ok");
}

/* The deadline is not later than that of the server, nor far from it. */
static void
do_deadline(Thing *it)
{
	PGconn	   *conn = PQconnectdb("");
	PGresult   *result = PQexec(conn, "SELECT extract(epoch FROM expires_at - clock_timestamp()) * 1000 FROM dlock_leases");
	double		of_server = atof(PQgetvalue(result, 0, 0));
	double		ours = (double) dlock_lease_remaining(find_member(it, "lease")->lease);

	say(it->id, "ended %s", (ours > of_server + 1) ? "late" : (ours < of_server - 60000) ? "early" : "ok");
	PQclear(result);
	PQfinish(conn);
}

/* A transaction that outlives the work, and one that comes after it. */
static void
do_outlive(Thing *it)
{
	char	   *sql = get(it->line, "sql");
	PGconn	   *conn = PQconnectdb("");
	char		words[2][WORDS];
	dlock_error errors[2];
	dlock_lease *lease;

	(void) dlock_acquire(session, "job", NULL, &lease, NULL);
	(void) dlock_lease_begin(lease, conn, NULL);
	PQclear(PQexec(conn, sql));
	(void) dlock_lease_release(lease, NULL);
	(void) dlock_lease_commit(lease, conn, &errors[0]);
	(void) dlock_lease_begin(lease, conn, &errors[1]);
	dlock_lease_free(lease);
	say(it->id, "ended %s, %s", outcome(&errors[0], words[0]), outcome(&errors[1], words[1]));
	PQfinish(conn);
	free(sql);
}

/* Freed while it is held, and while it is waited for. */
static void
do_free(Thing *it)
{
	dlock_options o = {.wait_ms = DLOCK_FOREVER,.async = true};
	dlock_lease *lease;

	(void) dlock_acquire(session, "job", NULL, &lease, NULL);
	dlock_lease_free(lease);
	(void) dlock_acquire(session, "hot", &o, &lease, NULL);
	dlock_lease_free(lease);
	say(it->id, "ended ok");
}

/* A release within on_lost returns at once, another one waits for that. */
static void
tell_slowly(dlock_lease *lease, void *argument)
{
	Thing	   *it = argument;
	dlock_error error;
	char		words[WORDS];

	(void) dlock_lease_release(lease, &error);
	on_lost(lease, it);
	usleep(200000);
	say(it->id, "told %s", outcome(&error, words));
}

static void
do_told(Thing *it)
{
	dlock_options o = {.ttl_ms = 120000,.on_lost = tell_slowly,.argument = it};
	dlock_lease *lease;
	dlock_error error;

	(void) dlock_acquire(session, "job", &o, &lease, &error);
	say(it->id, "held");
	(void) wait_told(&it->told_end, &it->lost);
	(void) dlock_lease_release(lease, &error);
	ended(it, &error);
	dlock_lease_free(lease);
}

/* At a loss, a connection that is gone is left alone, and what has taken its number. */
static void
do_gone(Thing *it)
{
	dlock_options o = {.ttl_ms = 3000,.on_lost = on_lost,.argument = it};
	PGconn	   *conn = PQconnectdb("");
	dlock_lease *lease;
	dlock_error error;

	(void) dlock_acquire(session, "job", &o, &lease, NULL);
	(void) dlock_lease_begin(lease, conn, NULL);
	PQfinish(conn);
	conn = PQconnectdb("");
	run_sql(conn, "SELECT dlock_force_release('job', 'test')", &error);
	(void) wait_told(&it->told_end, &it->lost);
	run_sql(conn, "SELECT 1", &error);
	ended(it, &error);
	PQfinish(conn);
	dlock_lease_free(lease);
}

/* Lost, and waited for again by the same task before it is released. */
static void
do_anew(Thing *it)
{
	dlock_options o = {.ttl_ms = 3000,.wait_ms = 60000,.on_lost = on_lost,.argument = it};
	PGconn	   *conn = PQconnectdb("");
	dlock_lease *leases[2];
	dlock_error error;

	(void) dlock_acquire(session, "job", &o, &leases[0], NULL);
	run_sql(conn, "SELECT dlock_force_release('job', 'test')", &error);
	(void) wait_told(&it->told_end, &it->lost);
	o.task = dlock_lease_task(leases[0]);
	(void) dlock_acquire(session, "job", &o, &leases[1], &error);
	ended(it, &error);
	dlock_lease_free(leases[1]);
	dlock_lease_free(leases[0]);
	PQfinish(conn);
}

/* Two leases that are lost together: on_lost of the one frees the other. */
typedef struct Pair
{
	dlock_lease *leases[2];
	int			left;
	int			told;
} Pair;

static void
free_other(dlock_lease *lease, void *argument)
{
	Pair	   *it = argument;
	bool		first;

	pthread_mutex_lock(&lock);
	it->left = lease == it->leases[1];
	first = it->told++ == 0;
	pthread_mutex_unlock(&lock);
	if (first)
		dlock_lease_free(it->leases[!it->left]);
	pthread_cond_broadcast(&changed);
}

static void
do_pair(Thing *it)
{
	dlock_session *own = dlock_open(conninfo, NULL, NULL);
	Pair		pair = {.told = 0};
	dlock_options o = {.ttl_ms = 3000,.on_lost = free_other,.argument = &pair};
	PGconn	   *conn = PQconnectdb("");

	(void) dlock_acquire(own, "one", &o, &pair.leases[0], NULL);
	(void) dlock_acquire(own, "two", &o, &pair.leases[1], NULL);
	PQclear(PQexec(conn, "SELECT dlock_force_release(n, 'test') FROM (VALUES ('one'), ('two')) AS v(n)"));
	PQfinish(conn);
	pthread_mutex_lock(&lock);
	while (pair.told == 0)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	dlock_lease_free(pair.leases[pair.left]);
	dlock_close(own);
	say(it->id, "ended told %d", pair.told);
}

/* What TCP does about a server that has gone without a word. */
static void
do_keepalives(Thing *it)
{
	dlock_lease *lease;
	char		words[WORDS];
	dlock_error error;

	if (dlock_acquire(session, "job", NULL, &lease, &error) != DLOCK_OK)
		say(it->id, "%s", outcome(&error, words));
	for (int fd = 3; fd < 100; fd++)
	{
		int			idle = 0;
		int			interval = 0;
		int			count = 0;
		socklen_t	size = sizeof(int);

		if (getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, &size) == 0 &&
			getsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, &size) == 0 &&
			getsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, &size) == 0)
			say(it->id, "keepalives %d %d %d", idle, interval, count);
	}
	dlock_lease_free(lease);
}

/* ---- the program ---- */

static const struct
{
	const char *name;
	void		(*run) (Thing *it);
}			commands[] = {
	{"lease", do_lease}, {"many", do_many}, {"each", do_each}, {"load", do_load}, {"once", do_once}, {"elect", do_elect},
	{"watch", do_watch}, {"worker", do_worker}, {"write", do_write}, {"build", do_build}, {"block", do_block}, {"fork", do_fork},
	{"close", do_close}, {"shards", do_shards}, {"shard", do_shard}, {"deadline", do_deadline}, {"outlive", do_outlive}, {"free", do_free}, {"told", do_told},
	{"keepalives", do_keepalives}, {"gone", do_gone}, {"anew", do_anew}, {"pair", do_pair}
};

static void *
run_thing(void *argument)
{
	Thing	   *it = argument;
	char	   *what = get(it->line, "do");

	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (strcmp(commands[i].name, what) == 0)
			commands[i].run(it);
	free(what);
	return NULL;
}

static void *
run_beat(void *argument)
{
	bool		more = true;

	(void) argument;
	for (int64_t last = clock_ms(); more;)
	{
		int64_t		lag;

		usleep(20000);
		lag = clock_ms() - last;
		pthread_mutex_lock(&lock);
		stall = (lag > stall) ? (int) lag : stall;
		more = !closing;
		pthread_mutex_unlock(&lock);
		last += lag;
	}
	return NULL;
}

/* A word to a thing: elections, watches and workers end by giving up. */
static void
tell(Thing *it, const char *word)
{
	char	   *what = get(it->line, "do");
	bool		ends = strcmp(word, "end") == 0;

	pthread_mutex_lock(&lock);
	it->told_end += ends || strcmp(word, "fail") == 0;
	it->told_fail += strcmp(word, "fail") == 0;
	it->told_go += strcmp(word, "go") == 0;
	if (strcmp(word, "cancel") == 0 ||
		(ends && (strcmp(what, "elect") == 0 || strcmp(what, "watch") == 0 || strcmp(what, "worker") == 0)))
		(void) !write(it->give_up[1], ".", 1);
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	free(what);
}

static void
on_trouble(const char *message, void *argument)
{
	(void) argument;
	say("session", "trouble %s", message);
}

int
main(int argc, char **argv)
{
	dlock_session_options o = {.on_trouble = on_trouble};
	dlock_error error;
	pthread_t	thread;
	bool		closed;
	char	   *line = NULL;
	size_t		size = 0;

	if (argc > 1)
		conninfo = argv[1];
	session = dlock_open(conninfo, &o, &error);
	if (session == NULL)
	{
		fprintf(stderr, "%s\n", error.message);
		return 1;
	}
	pthread_create(&thread, NULL, run_beat, NULL);
	pthread_create(&events, NULL, run_events, NULL);
	snprintf(client, sizeof(client), "%s", dlock_client(session));
	say("session", "is %s", client);
	while (getline(&line, &size, stdin) > 0)
	{
		char	   *what = get(line, "do");
		char	   *id = get(line, "id");
		Thing	   *it = NULL;

		for (size_t i = 0; it == NULL && i < sizeof(commands) / sizeof(commands[0]); i++)
			if (strcmp(commands[i].name, what) == 0)
				it = calloc(1, sizeof(*it));
		if (it == NULL)
			tell(find(id), what);
		else
		{
			it->id = strdup(id);
			it->line = strdup(line);
			if (pipe(it->give_up) != 0)
				return 1;
			pthread_mutex_lock(&lock);
			it->next = things;
			things = it;
			pthread_mutex_unlock(&lock);
			if (strcmp(what, "keepalives") == 0)
				run_thing(it);
			else if (pthread_create(&thread, NULL, run_thing, it) != 0 || pthread_detach(thread) != 0)
				return 1;
		}
		free(what);
		free(id);
	}
	pthread_mutex_lock(&lock);
	closed = closing;
	pthread_mutex_unlock(&lock);
	if (!closed)
		close_session();
	_exit(0);
}
