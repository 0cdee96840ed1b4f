/*-------------------------------------------------------------------------
 *
 * cli.c
 *	  What all parts of the dlock command use: strings, spans of time, the clock,
 *	  names of owners.
 *
 * NOTES
 *	  Without memory the command ends there and then.  Should another one run
 *	  under it, the kernel sees to that (child.c).
 *
 *	  The clock does not step and goes on while the machine is suspended, as
 *	  that of the server does.  The timeout of poll() stands still then, so no wait
 *	  lasts longer than a second before it reads the clock again.
 *
 *	  In a build for tests ("make FAULTS=1") a test can set the clock, and
 *	  that wakes no process; so a wait reads such a clock more often.
 *
 *-------------------------------------------------------------------------
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "pqexpbuffer.h"
#ifdef DLOCK_FAULTS
#include "test_clock.h"
#endif

/* Spans that are longer are mistakes: a hundred years. */
#define LONGEST_SPAN	(INT64_C(36525) * 86400 * CLI_SECOND)

/* How long a wait lasts before it reads the clock, and one that tests set. */
#define LONGEST_NAP		CLI_SECOND
#define TEST_NAP		(2 * CLI_MS)

#ifdef CLOCK_BOOTTIME
#define CLOCK_ID	CLOCK_BOOTTIME
#else
#define CLOCK_ID	CLOCK_MONOTONIC
#endif

/* ---- strings ---- */

static void CLI_NORETURN
fail(void)
{
	fputs("dlock: error: out of memory\n", stderr);
	exit(CLI_EXIT_SYSTEM);
}

/* A copy of a string; of NULL, NULL. */
char *
text_copy(const char *text)
{
	char	   *copy;

	if (text == NULL)
		return NULL;
	copy = strdup(text);
	if (copy == NULL)
		fail();
	return copy;
}

char *
text_printv(const char *format, va_list args)
{
	char	   *text;

	if (vasprintf(&text, format, args) < 0)
		fail();
	return text;
}

char *
text_print(const char *format,...)
{
	char	   *text;
	va_list		args;

	va_start(args, format);
	text = text_printv(format, args);
	va_end(args);
	return text;
}

/* What a string has grown to, to be freed by the caller. */
char *
text_take(PQExpBuffer text)
{
	if (PQExpBufferBroken(text))
		fail();
	return text->data;
}

/* ---- spans of time ---- */

static const struct
{
	const char *name;
	CliTime		span;
}			units[] =

{
	{"", CLI_SECOND},
	{"ms", CLI_MS},
	{"s", CLI_SECOND},
	{"m", 60 * CLI_SECOND},
	{"min", 60 * CLI_SECOND},
	{"h", 3600 * CLI_SECOND},
	{"d", 86400 * CLI_SECOND},
};

/*
 * Read a span: digits, perhaps with a decimal fraction, and a unit; seconds if
 * there is none.  The decimal sign is a point, as this program sets no locale.
 * False if the text is anything else or the span too long.
 */
bool
duration_parse(const char *text, CliTime *span)
{
	size_t		length = strspn(text, "0123456789.");
	char	   *end;
	double		number = strtod(text, &end);

	if (length == 0 || end != text + length)
		return false;
	for (size_t i = 0; i < CLI_LENGTH(units); i++)
	{
		if (strcmp(end, units[i].name) != 0)
			continue;
		number *= (double) units[i].span;
		if (number > (double) LONGEST_SPAN)
			return false;
		*span = (CliTime) (number + 0.5);
		return true;
	}
	return false;
}

/* Write a span so that people can read it and duration_parse() too. */
const char *
duration_print(CliTime span, char *buffer)
{
	bool		in_ms = span < CLI_SECOND && span % CLI_MS == 0 && span > 0;
	size_t		length = (size_t) snprintf(buffer, DURATION_SIZE, "%.6f",
										   (double) span / (double) (in_ms ? CLI_MS : CLI_SECOND));

	while (buffer[length - 1] == '0')
		length--;
	length -= (buffer[length - 1] == '.');
	strcpy(buffer + length, in_ms ? "ms" : "s");
	return buffer;
}

/* Write a span as the input of type interval. */
const char *
duration_sql(CliTime span, char *buffer)
{
	snprintf(buffer, DURATION_SIZE, "%" PRId64 ".%06" PRId64 " seconds",
			 span / CLI_SECOND, span % CLI_SECOND);
	return buffer;
}

/* ---- the clock ---- */

#ifdef DLOCK_FAULTS

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

#else
#define test_clock()	NULL
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

/*
 * Wait until something happens to one of the descriptors or the time has come.
 * Returns what poll() does: how many are ready, or -1 with errno, among others EINTR.
 */
int
clock_poll(struct pollfd *fds, int count, CliTime until)
{
	const CliTime nap = (test_clock() != NULL) ? TEST_NAP : LONGEST_NAP;
	CliTime		left;
	int			ready;

	if (until == CLI_FOREVER)
		return poll(fds, (nfds_t) count, -1);
	do
	{
		left = CLI_MAX(until - clock_now(), 0);
		ready = poll(fds, (nfds_t) count, (int) ((CLI_MIN(left, nap) + CLI_MS - 1) / CLI_MS));
	} while (ready == 0 && left > 0);
	return ready;
}

/* Write the time by the wall clock a span from now, in UTC, into DURATION_SIZE bytes. */
void
clock_print_utc(CliTime from_now, char *buffer)
{
	struct timespec now;
	struct tm	utc;
	CliTime		time;
	time_t		seconds;
	size_t		length;

	clock_gettime(CLOCK_REALTIME, &now);
	time = (CliTime) now.tv_sec * CLI_SECOND + now.tv_nsec / 1000 + from_now;
	seconds = (time_t) (time / CLI_SECOND);
	gmtime_r(&seconds, &utc);
	length = strftime(buffer, DURATION_SIZE, "%Y-%m-%dT%H:%M:%S", &utc);
	snprintf(buffer + length, DURATION_SIZE - length, ".%03dZ", (int) (time % CLI_SECOND / CLI_MS));
}

/* ---- owners ---- */

/* A random number, from the kernel; without that, a number that differs. */
uint64_t
process_random(void)
{
	uint64_t	number;

	if (getentropy(&number, sizeof(number)) != 0)
		number = (uint64_t) clock_now() * UINT64_C(2654435761) + (uint64_t) getpid();
	return number;
}

/*
 * A name for the owner of a lease that no other process, here or elsewhere, and
 * no other call has: the prefix (NULL: the host's name and the process id), and
 * a random number.
 */
char *
process_owner(const char *prefix)
{
	char		host[64] = "localhost";
	uint32_t	number = (uint32_t) process_random();

	if (prefix != NULL)
		return text_print("%s/%08" PRIx32, prefix, number);
	if (gethostname(host, sizeof(host)) == 0)
		host[sizeof(host) - 1] = '\0';
	return text_print("%s/%ld/%08" PRIx32, host, (long) getpid(), number);
}
