/*
 * Leases a second that the tasks of one program in C take and release, as main.js has it for Node:
 *
 *	main_c version PEER				the version of libpq
 *	main_c rate PEER KEY=VALUE...	tasks=8 seconds=2 hot=0
 *
 * PEER is c_session or c_connection.  A task is a thread.
 */
#define _GNU_SOURCE

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "dlock.h"

#define LEAD	500

typedef struct Task
{
	pthread_t	thread;
	char		name[30];
	char		owner[30];
	PGconn	   *conn;
	int64_t    *took;			/* microseconds of each pair that counts */
	int			count;
	int			room;
} Task;

static dlock_session *session;	/* NULL: a connection for each task */
static int	tasks = 8;
static int	seconds = 2;
static int	hot;
static pthread_barrier_t ready;
static atomic_int_least64_t start;

static int64_t
now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t) now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void
die(const char *message)
{
	fprintf(stderr, "%s\n", message);
	exit(1);
}

/* The caller's to clear. */
static PGresult *
checked(PGconn *conn, PGresult *result)
{
	if (PQresultStatus(result) != PGRES_TUPLES_OK && PQresultStatus(result) != PGRES_COMMAND_OK)
		die(PQerrorMessage(conn));
	return result;
}

static void
session_pair(const Task *task)
{
	dlock_options options = {.task = task->owner,.wait_ms = hot ? DLOCK_FOREVER : 0};
	dlock_lease *lease;
	dlock_error error;

	if (dlock_acquire(session, task->name, &options, &lease, &error) != DLOCK_OK || dlock_lease_release(lease, &error) != DLOCK_OK)
		die(error.message);
	dlock_lease_free(lease);
}

static void
connection_pair(const Task *task)
{
	const char *params[] = {task->name, task->owner, hot ? NULL : "0"};
	PGresult   *result = checked(task->conn, PQexecPrepared(task->conn, "acquire", 3, params, NULL, NULL, 0));
	char		token[24];

	snprintf(token, sizeof(token), "%s", PQgetvalue(result, 0, 0));
	PQclear(result);
	params[1] = token;
	result = checked(task->conn, PQexecPrepared(task->conn, "release", 2, params, NULL, NULL, 0));
	if (strcmp(PQgetvalue(result, 0, 0), "t") != 0)
		die("a lease was lost");
	PQclear(result);
}

static void
open_connection(Task *task)
{
	task->conn = PQconnectdb("");
	if (PQstatus(task->conn) != CONNECTION_OK)
		die(PQerrorMessage(task->conn));
	PQclear(checked(task->conn, PQprepare(task->conn, "acquire",
										  "SELECT dlock_acquire($1, $2, '60 s', $3::interval)", 0, NULL)));
	PQclear(checked(task->conn, PQprepare(task->conn, "release", "SELECT dlock_release_token($1, $2)", 0, NULL)));
}

static void
add(Task *task, int64_t took)
{
	if (task->count == task->room)
	{
		task->room = 2 * task->room + 1000;
		task->took = realloc(task->took, (size_t) task->room * sizeof(int64_t));
		if (task->took == NULL)
			die("out of memory");
	}
	task->took[task->count++] = took;
}

static void *
run(void *argument)
{
	Task	   *task = argument;
	int64_t		from;
	int64_t		until;
	int64_t		ended;

	if (session == NULL)
		open_connection(task);
	pthread_barrier_wait(&ready);
	pthread_barrier_wait(&ready);
	from = start + LEAD * 1000;
	until = from + (int64_t) seconds * 1000000;
	for (int64_t begun = now_us(); begun < until; begun = ended)
	{
		if (session != NULL)
			session_pair(task);
		else
			connection_pair(task);
		ended = now_us();
		if (begun >= from && ended <= until)
			add(task, ended - begun);
	}
	return NULL;
}

static int
compare(const void *a, const void *b)
{
	int64_t		one = *(const int64_t *) a;
	int64_t		other = *(const int64_t *) b;

	return (one > other) - (one < other);
}

static double
used_us(void)
{
	struct rusage use;

	getrusage(RUSAGE_SELF, &use);
	return (double) (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e6 + (double) (use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

/* All tasks begin together. */
static void
measure(Task *all)
{
	Task		sum = {.count = 0};
	double		used;

	pthread_barrier_init(&ready, NULL, (unsigned int) tasks + 1);
	for (int i = 0; i < tasks; i++)
	{
		if (hot)
			snprintf(all[i].name, sizeof(all[i].name), "hot");
		else
			snprintf(all[i].name, sizeof(all[i].name), "own:%d", i);
		snprintf(all[i].owner, sizeof(all[i].owner), "task %d", i);
		if (pthread_create(&all[i].thread, NULL, run, &all[i]) != 0)
			die("could not create a thread");
	}
	pthread_barrier_wait(&ready);
	start = now_us();
	used = used_us();
	pthread_barrier_wait(&ready);
	for (int i = 0; i < tasks; i++)
	{
		pthread_join(all[i].thread, NULL);
		for (int j = 0; j < all[i].count; j++)
			add(&sum, all[i].took[j]);
	}
	used = used_us() - used;
	if (sum.count == 0)
		die("no pair came to its end in time");
	qsort(sum.took, (size_t) sum.count, sizeof(int64_t), compare);
	printf("rate %.1f\n", (double) sum.count / seconds);
	printf("p50_ms %.3f p99_ms %.3f cpu_us %.1f\n", (double) sum.took[sum.count / 2] / 1000,
		   (double) sum.took[(int) (sum.count * 0.99)] / 1000, used * seconds * 1000 / (seconds * 1000 + LEAD) / sum.count);
}

int
main(int argc, char **argv)
{
	Task	   *all;
	dlock_error error;

	if (argc < 3)
		die("main_c version|rate PEER [KEY=VALUE...]");
	if (strcmp(argv[1], "version") == 0)
	{
		printf("libpq %d.%d\n", PQlibVersion() / 10000, PQlibVersion() % 10000);
		return 0;
	}
	for (int i = 3; i < argc; i++)
		if (sscanf(argv[i], "tasks=%d", &tasks) != 1 && sscanf(argv[i], "seconds=%d", &seconds) != 1 && sscanf(argv[i], "hot=%d", &hot) != 1)
			die("KEY=VALUE: tasks, seconds or hot");
	all = calloc((size_t) tasks, sizeof(Task));
	session = strcmp(argv[2], "c_session") == 0 ? dlock_open("", NULL, &error) : NULL;
	if (all == NULL || (session == NULL && strcmp(argv[2], "c_session") == 0))
		die("could not begin");
	measure(all);
	dlock_close(session);
	return 0;
}
