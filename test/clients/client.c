/*
 * What test/lib/DLockClient.pm has the C client do: client KEY=VALUE...
 */
#define _GNU_SOURCE

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "dlock.h"

static int64_t least = INT64_MAX;	/* of what was left of the lease when
									 * there was work */
static const char *how = "steady";	/* or the machine stood still for a while */
static int	give_up_pipe[2];

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
	(void) lease;
	puts(argument);
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

int
main(int argc, char **argv)
{
	const char *wait;
	const char *payload;
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
	options.owner = arg("owner", NULL);
	options.payload = (strcmp(payload, "null") == 0) ? NULL : payload;
	if (strcmp(arg("do", ""), "giveup") == 0 && pipe(give_up_pipe) == 0)
	{
		options.give_up_fd = give_up_pipe[0];
		pthread_create(&thread, NULL, giver, NULL);
		pthread_detach(thread);
	}
	lease = dlock_lease_new("", arg("name", ""), &options);
	status = dlock_lease_acquire(lease);
	if (status == DLOCK_OK)
	{
		int64_t		until = clock_ms(CLOCK_REALTIME) + dlock_lease_remaining_ms(lease);

		printf("token %" PRId64 " until %" PRId64 ".%03d\n", dlock_lease_token(lease), until / 1000, (int) (until % 1000));
		if (strcmp(arg("do", ""), "hold") == 0)
			hold(lease);
		else if (strcmp(arg("do", ""), "write") == 0)
			do_write(lease);
		status = dlock_lease_release(lease);
	}
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
