/*
 * What test/lib/DLockClient.pm has the C client do: client KEY=VALUE...
 */
#define _GNU_SOURCE

#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "dlock.h"

static int64_t least = INT64_MAX;	/* of what was left of the lease when
									 * there was work */
static const char *how = "steady";	/* or the machine stood still for a while */
static int	give_up_pipe[2];
static pthread_t asker;
static volatile bool told;
static volatile bool released;

static char **words;

static const char *
arg(const char *key, const char *otherwise)
{
	for (char **word = words; *word != NULL; word++)
	{
		size_t		length = strlen(key);

		if (strncmp(*word, key, length) == 0 && (*word)[length] == '=')
			return *word + length + 1;
	}
	return otherwise;
}

static bool
may_go(void)
{
	return access(getenv("DLOCK_TEST_GO"), F_OK) == 0;
}

static int64_t
clock_ms(clockid_t id)
{
	struct timespec now;

	clock_gettime(id, &now);
	return (int64_t) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void
on_lost(DlockLease *lease, void *argument)
{
	puts(argument);
	if (strcmp(arg("do", ""), "tidy") == 0 || strcmp(arg("do", ""), "ask") == 0)
		printf("released %d\n", dlock_lease_release(lease));
	if (strcmp(arg("do", ""), "ask") == 0)
	{
		printf("told by %s\n", pthread_equal(asker, pthread_self()) ? "the asker" : "another");
		told = true;
		/* Long enough for a release that does not wait for this. */
		for (int i = 0; i < 50 && !released; i++)
			usleep(10000);
		puts(released ? "released meanwhile" : "not released meanwhile");
	}
}

/* Ask in another thread, and at the moment when the lease is over. */
static void *
ask(void *argument)
{
	DlockLease *lease = argument;

	while (!dlock_lease_is_lost(lease))
	{
		if (dlock_lease_remaining_ms(lease) > atoll(arg("ttl_ms", "0")) / 6 + 20)
			usleep(1000);
	}
	return NULL;
}

static void *
giver(void *argument)
{
	while (!may_go())
		usleep(10000);
	if (write(give_up_pipe[1], ".", 1) != 1)
		perror("write");
	return argument;
}

static void
hold(DlockLease *lease)
{
	int64_t		before = clock_ms(CLOCK_MONOTONIC);

	while (!may_go() && !dlock_lease_is_lost(lease))
	{
		int64_t		left = dlock_lease_remaining_ms(lease);

		if (left < least)
			least = left;
		if (clock_ms(CLOCK_MONOTONIC) - before > atoll(arg("ttl_ms", "0")) / 12)
			how = "stalled";
		before = clock_ms(CLOCK_MONOTONIC);
		usleep(10000);
	}
}

/* What TCP does about a server that has gone without a word. */
static void
tell_keepalives(void)
{
	for (int fd = 3; fd < 100; fd++)
	{
		int			idle = 0;
		int			interval = 0;
		int			count = 0;
		socklen_t	size = sizeof(int);

		if (getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, &size) == 0 &&
			getsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, &size) == 0 &&
			getsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, &size) == 0)
			printf("keepalives %d %d %d\n", idle, interval, count);
	}
}

static void
tell_owner(void)
{
	PGconn	   *conn = PQconnectdb("");
	PGresult   *result = PQexec(conn, "SELECT owner FROM dlock_leases");

	printf("owner %s\n", PQgetvalue(result, 0, 0));
	PQclear(result);
	PQfinish(conn);
}

static void
do_write(DlockLease *lease)
{
	PGconn	   *conn = PQconnectdb("");
	PGresult   *result = NULL;

	while (!may_go())
		usleep(10000);
	if (!dlock_lease_begin(lease, conn))
		printf("error %s\n", PQerrorMessage(conn));
	else
	{
		result = PQexec(conn, arg("sql", ""));
		if (PQresultStatus(result) == PGRES_COMMAND_OK && dlock_lease_commit(lease, conn))
			puts("written");
		else
		{
			const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

			printf("error %s\n", (state != NULL) ? state : "");
			dlock_lease_rollback(lease, conn);
		}
	}
	PQclear(result);
	PQfinish(conn);
}

/* A transaction that outlives the work, and one that comes after it. */
static void
do_late(DlockLease *lease)
{
	PGconn	   *conn = PQconnectdb("");
	bool		begun = dlock_lease_begin(lease, conn);
	DlockStatus status;
	bool		committed;

	PQclear(PQexec(conn, arg("sql", "")));
	status = dlock_lease_release(lease);
	committed = dlock_lease_commit(lease, conn);
	printf("begun %d released %d committed %d begun %d\n", begun, status, committed, dlock_lease_begin(lease, conn));
	PQfinish(conn);
}

/* Leave the lease alone for a while after it was released, or refused. */
static void
do_reuse(DlockLease *lease)
{
	DlockStatus status = dlock_lease_acquire(lease);

	if (status == DLOCK_OK)
		(void) dlock_lease_release(lease);
	printf("first %d\n", status);
	while (!may_go())
		usleep(10000);
}

static void
work(DlockLease *lease)
{
	const char *what = arg("do", "");

	if (strcmp(what, "keepalives") == 0)
		tell_keepalives();
	else if (strcmp(what, "hold") == 0 || strcmp(what, "tidy") == 0)
		hold(lease);
	else if (strcmp(what, "write") == 0)
		do_write(lease);
	else if (strcmp(what, "late") == 0)
		do_late(lease);
	else if (strcmp(what, "ask") == 0)
	{
		pthread_create(&asker, NULL, ask, lease);
		while (!told)
			usleep(1000);
	}
	else if (strcmp(what, "again") == 0)
	{
		tell_owner();
		(void) dlock_lease_release(lease);
		(void) dlock_lease_acquire(lease);
		tell_owner();
	}
}

int
main(int argc, char **argv)
{
	const char *wait;
	const char *payload;
	char	   *owner;
	DlockOptions options = {.on_lost = on_lost,.argument = (char[]) {"on_lost"}};
	DlockLease *lease;
	DlockStatus status;
	pthread_t	thread;

	setvbuf(stdout, NULL, _IOLBF, 0);
	words = argv + (argc > 0);
	wait = arg("wait_ms", "0");
	payload = arg("payload", "null");
	options.ttl_ms = atoll(arg("ttl_ms", "0"));
	options.wait_ms = (strcmp(wait, "none") == 0) ? DLOCK_FOREVER : atoll(wait);
	owner = (arg("owner", NULL) != NULL) ? strdup(arg("owner", NULL)) : NULL;
	options.owner = owner;
	options.payload = (strcmp(payload, "null") == 0) ? NULL : payload;
	if (strcmp(arg("do", ""), "giveup") == 0 && pipe(give_up_pipe) == 0)
	{
		options.give_up_fd = give_up_pipe[0];
		pthread_create(&thread, NULL, giver, NULL);
		pthread_detach(thread);
	}
	lease = dlock_lease_new(arg("conninfo", ""), arg("name", ""), &options);
	free(owner);
	if (strcmp(arg("do", ""), "nothing") == 0)
	{
		bool		lost = dlock_lease_is_lost(lease);

		printf("lost %d released %d\n", lost, dlock_lease_release(lease));
	}
	if (strcmp(arg("do", ""), "reuse") == 0)
		do_reuse(lease);
	status = dlock_lease_acquire(lease);
	if (status == DLOCK_OK)
	{
		int64_t		until = clock_ms(CLOCK_REALTIME) + dlock_lease_remaining_ms(lease);

		printf("token %" PRId64 " until %" PRId64 ".%03d\n", dlock_lease_token(lease), until / 1000, (int) (until % 1000));
		if (strcmp(arg("do", ""), "free") == 0)
		{
			/* Until it would have been renewed. */
			dlock_lease_free(lease);
			sleep(3);
			puts("done");
			return 0;
		}
		work(lease);
		status = dlock_lease_release(lease);
		released = true;
		if (strcmp(arg("do", ""), "ask") == 0)
			pthread_join(asker, NULL);
	}
	if (strcmp(arg("do", ""), "nothing") == 0)
		printf("released %d\n", dlock_lease_release(lease));
	if (status != DLOCK_OK)
		fprintf(stderr, "%s\n", dlock_lease_message(lease));
	switch (status)
	{
		case DLOCK_OK:
			puts("done");
			break;
		case DLOCK_REFUSED:
			puts("refused");
			break;
		case DLOCK_GIVEN_UP:
			puts("gave up");
			break;
		case DLOCK_LOST:
			printf("lost left %" PRId64 " %s\n", least, how);
			break;
		case DLOCK_UNREACHABLE:
			printf("unreachable left %" PRId64 " %s\n", least, how);
			break;
		case DLOCK_ERROR:
			printf("error %s\n", dlock_lease_sqlstate(lease));
			break;
	}
	dlock_lease_free(lease);
	return 0;
}
