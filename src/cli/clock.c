/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  The clock that deadlines are kept by, and waiting on it.
 *
 * NOTES
 *	  The clock does not step and goes on while the machine is suspended, as
 *	  that of the server does.  poll() alone would not do: its timeout stands
 *	  still during a suspension, so a deadline that has passed meanwhile would
 *	  be noticed late.
 *
 *	  In a build for tests ("make FAULTS=1") a test can set the clock, and
 *	  nobody is woken when it does; so there a wait looks at it again and again.
 *
 * IDENTIFICATION
 *	  src/cli/clock.c
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/timerfd.h>
#endif

#include "clock.h"
#ifdef DLOCK_FAULTS
#include "test_clock.h"
#endif

#ifdef CLOCK_BOOTTIME
#define CLOCK_ID	CLOCK_BOOTTIME
#else
#define CLOCK_ID	CLOCK_MONOTONIC
#endif

/* The most descriptors that anybody here waits for. */
#define MAX_FDS		8

/* Without a timer on that clock, how long a suspension may go unnoticed. */
#define LONGEST_NAP	CLI_SECOND

#ifdef DLOCK_FAULTS

/* How long a wait looks away from a clock that tests set. */
#define TEST_NAP	(2 * CLI_MS)

static TestClock *
test_clock(void)
{
	static TestClock *clock = NULL;
	static bool is_mapped = false;

	if (!is_mapped)
		clock = test_clock_map();
	is_mapped = true;
	return clock;
}

#endif

CliTime
clock_now(void)
{
	struct timespec now;
	CliTime		time;

	clock_gettime(CLOCK_ID, &now);
	time = (CliTime) now.tv_sec * CLI_SECOND + now.tv_nsec / 1000;
#ifdef DLOCK_FAULTS
	if (test_clock() != NULL)
		time = test_clock_time(test_clock(), time);
#endif
	return time;
}

/* The sum of a time and a span that is not negative; either may be CLI_FOREVER. */
CliTime
clock_add(CliTime a, CliTime b)
{
	return (a > CLI_FOREVER - b) ? CLI_FOREVER : a + b;
}

/* poll() with a timeout in whole milliseconds, rounded up. */
static int
poll_for(struct pollfd *fds, int count, CliTime span)
{
	CliTime		ms = (CLI_MIN(span, CLI_SECOND * 3600) + CLI_MS - 1) / CLI_MS;

	return poll(fds, (nfds_t) count, (int) CLI_MAX(ms, 0));
}

#ifdef __linux__

/* A descriptor that becomes readable at a time; -1 if there is none to be had. */
static int
arm_timer(CliTime until)
{
	static int	timer = -1;
	static pid_t owner = 0;
	struct itimerspec at;

	/* A process that was forked shares the timer with its parent. */
	if (owner != getpid())
	{
		owner = getpid();
		timer = timerfd_create(CLOCK_ID, TFD_CLOEXEC | TFD_NONBLOCK);
	}
	if (timer < 0)
		return -1;
	memset(&at, 0, sizeof(at));
	at.it_value.tv_sec = (time_t) (until / CLI_SECOND);
	at.it_value.tv_nsec = (long) (until % CLI_SECOND) * 1000;
	return (timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL) == 0) ? timer : -1;
}

#else

static int
arm_timer(CliTime until)
{
	(void) until;
	return -1;
}

#endif

/*
 * Wait until something happens to one of the descriptors, at most MAX_FDS - 1,
 * or the time has come.  Returns what poll() does: how many are ready, or -1
 * with errno, among others EINTR.
 */
int
clock_poll(struct pollfd *fds, int count, CliTime until)
{
	struct pollfd all[MAX_FDS];
	CliTime		now = clock_now();
	int			ready;
	int			timer;

	if (until <= now)
		return poll_for(fds, count, 0);
	if (until == CLI_FOREVER)
		return poll(fds, (nfds_t) count, -1);
#ifdef DLOCK_FAULTS
	if (test_clock() != NULL)
	{
		do
			ready = poll_for(fds, count, TEST_NAP);
		while (ready == 0 && clock_now() < until);
		return ready;
	}
#endif
	timer = arm_timer(until);
	if (timer < 0)
		return poll_for(fds, count, CLI_MIN(until - now, LONGEST_NAP));

	memcpy(all, fds, (size_t) count * sizeof(all[0]));
	all[count].fd = timer;
	all[count].events = POLLIN;
	ready = poll(all, (nfds_t) count + 1, -1);
	memcpy(fds, all, (size_t) count * sizeof(all[0]));
	if (ready > 0 && all[count].revents != 0)
		ready--;
	return ready;
}
