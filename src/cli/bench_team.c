/*-------------------------------------------------------------------------
 *
 * bench_team.c
 *	  Clients of dlock bench that measure something together.
 *
 * NOTES
 *	  Each client is a process, so that the machine's processors are used and
 *	  one that waits holds up no other.  They begin at a time when all of them
 *	  have connected, and leave their results in memory that is shared.
 *
 * IDENTIFICATION
 *	  src/cli/bench_team.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_team.h"
#include "clock.h"
#include "output.h"
#include "signals.h"

/* How long clients that are to end may take for their last statement. */
#define END_WITHIN	(5 * CLI_SECOND)

static int
system_error(const char *what)
{
	output_error("could not %s: %s", what, strerror(errno));
	return CLI_EXIT_SYSTEM;
}

/* Start the clients; returns how many there are. */
static int
start(BenchTeam *team, const int *ready, const int *go)
{
	for (int i = 0; i < team->count; i++)
	{
		pid_t		pid = fork();

		if (pid < 0)
			return i;
		if (pid == 0)
		{
			close(ready[0]);
			close(go[1]);
			bench_client_main(team, i + 1, ready[1], go[0]);
		}
		team->clients[i].pid = pid;
	}
	return team->count;
}

/* Wait for something in a pipe or a signal; true if it was one that asks for an end. */
static bool
is_interrupted(int fd, CliTime until, int *signo)
{
	struct pollfd fds[2] = {
		{.fd = signals_fd(), .events = POLLIN},
		{.fd = fd, .events = POLLIN}
	};

	if (clock_poll(fds, (fd >= 0) ? 2 : 1, until) > 0 && fds[0].revents != 0)
	{
		int			got = signals_next();

		if (signals_is_fatal(got))
			*signo = got;
	}
	return *signo != 0;
}

/* Wait until all clients have connected, or one has died. */
static void
wait_ready(int running, int fd, int *signo)
{
	char		bytes[64];
	ssize_t		got = 1;

	for (int ready = 0; ready < running && got != 0 && !is_interrupted(fd, CLI_FOREVER, signo);)
	{
		got = read(fd, bytes, sizeof(bytes));
		ready += (int) CLI_MAX(got, 0);
	}
}

/* Collect clients that have ended; returns how many are left. */
static int
collect(BenchTeam *team, int running)
{
	for (int i = 0; i < team->count; i++)
	{
		if (team->clients[i].pid > 0 &&
			waitpid(team->clients[i].pid, NULL, WNOHANG) == team->clients[i].pid)
		{
			team->clients[i].pid = 0;
			running--;
		}
	}
	return running;
}

/*
 * Wait until all clients have ended.  After a failure of one, or a signal, the
 * others are told to stop; and whoever does not in time is killed.
 */
static void
wait_end(BenchTeam *team, int running, int *signo)
{
	CliTime		until = CLI_FOREVER;

	while ((running = collect(team, running)) > 0)
	{
		for (int i = 0; i < team->count; i++)
			team->stop = team->stop || team->clients[i].code != 0;
		if (*signo != 0)
			team->stop = true;
		if (team->stop && until == CLI_FOREVER)
			until = clock_now() + END_WITHIN;
		if (clock_now() >= until)
		{
			for (int i = 0; i < team->count; i++)
			{
				if (team->clients[i].pid > 0)
					kill(team->clients[i].pid, SIGKILL);
			}
			until = CLI_FOREVER;
		}
		/* The end of a client is a signal, too. */
		(void) is_interrupted(-1, CLI_MIN(until, clock_now() + CLI_SECOND), signo);
	}
}

/* Add up what the clients have left.  Returns an exit code. */
static int
sum(const BenchTeam *team, const BenchTask *task, BenchResult *result)
{
	memset(result, 0, sizeof(*result));
	for (int i = 0; i < team->count; i++)
	{
		const BenchClient *client = &team->clients[i];

		if (client->code != 0)
		{
			output_error("client %d: %s", i + 1, client->error);
			if (client->hint[0] != '\0')
				output_hint("%s", client->hint);
			return client->code;
		}
		if (!client->is_done)
		{
			output_error("client %d ended before its time", i + 1);
			return CLI_EXIT_SYSTEM;
		}
		bench_histogram_merge(&result->latencies, &client->latencies);
	}
	result->rate = (double) result->latencies.count / ((double) task->span / CLI_SECOND);
	return CLI_EXIT_OK;
}

/*
 * Measure.  Returns an exit code; if a signal has asked for an end, that is in
 * "signo" and there is no result.
 */
int
bench_team_run(const BenchTask *task, const char *conninfo, const char *prefix,
			   BenchResult *result, int *signo)
{
	size_t		size = sizeof(BenchTeam) + (size_t) task->clients * sizeof(BenchClient);
	BenchTeam  *team = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int			ready[2];
	int			go[2];
	int			running;
	int			code;

	if (team == MAP_FAILED)
		return system_error("get memory");
	if (pipe2(ready, O_CLOEXEC) < 0 || pipe2(go, O_CLOEXEC) < 0)
		return system_error("make a pipe");
	team->conninfo = conninfo;
	team->prefix = prefix;
	team->kind = task->kind;
	team->durable = task->durable;
	team->count = task->clients;
	for (int i = 0; i < task->clients; i++)
		team->clients[i].number = i + 1;

	running = start(team, ready, go);
	close(ready[1]);
	close(go[0]);
	code = (running < task->clients) ? system_error("start a process") : CLI_EXIT_OK;
	team->stop = code != CLI_EXIT_OK;
	wait_ready(running, ready[0], signo);
	team->end = (*signo == 0) ? clock_now() + task->span : 0;
	close(go[1]);
	wait_end(team, running, signo);
	close(ready[0]);

	if (code == CLI_EXIT_OK && *signo == 0)
		code = sum(team, task, result);
	(void) munmap(team, size);
	return code;
}
