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
 *	  lasts longer than a second before the clock is looked at.
 *
 *	  In a build for tests ("make FAULTS=1") a test can set the clock, and
 *	  nobody is woken when it does; so there a wait looks at it more often.
 *
 * IDENTIFICATION
 *	  src/cli/cli.c
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#ifdef DLOCK_FAULTS
#include "test_clock.h"
#endif

/* Spans that are longer are mistakes: a hundred years. */
#define LONGEST_SPAN	(INT64_C(36525) * 86400 * CLI_SECOND)

/* How long a wait looks away from the clock, and from one that tests set. */
#define LONGEST_NAP		CLI_SECOND
#define TEST_NAP		(2 * CLI_MS)

#ifdef CLOCK_BOOTTIME
#define CLOCK_ID	CLOCK_BOOTTIME
#else
#define CLOCK_ID	CLOCK_MONOTONIC
#endif

/* Bytes that an owner may have, less what is put behind the prefix. */
#define LONGEST_PREFIX	200

/* ---- strings ---- */

static void CLI_NORETURN
fail(void)
{
	fputs("dlock: error: out of memory\n", stderr);
	exit(CLI_EXIT_SYSTEM);
}

/* Memory that is set to zero. */
void *
text_alloc(size_t size)
{
	void	   *memory = calloc(1, size);

	if (memory == NULL)
		fail();
	return memory;
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
text_print(const char *format,...)
{
	Text		text;
	va_list		args;

	text_init(&text);
	va_start(args, format);
	text_addv(&text, format, args);
	va_end(args);
	return text.data;
}

void
text_init(Text *text)
{
	text->size = 64;
	text->len = 0;
	text->data = text_alloc(text->size);
}

void
text_free(Text *text)
{
	free(text->data);
	text->data = NULL;
}

/* Make room for so many bytes more, and a zero byte. */
static void
enlarge(Text *text, size_t more)
{
	if (text->len + more < text->size)
		return;
	while (text->len + more >= text->size)
		text->size *= 2;
	text->data = realloc(text->data, text->size);
	if (text->data == NULL)
		fail();
}

void
text_add_bytes(Text *to, const char *from, size_t len)
{
	enlarge(to, len);
	memcpy(to->data + to->len, from, len);
	to->len += len;
	to->data[to->len] = '\0';
}

void
text_add(Text *to, const char *from)
{
	text_add_bytes(to, from, strlen(from));
}

void
text_add_char(Text *to, char c)
{
	text_add_bytes(to, &c, 1);
}

void
text_addv(Text *to, const char *format, va_list args)
{
	va_list		again;
	int			length;

	va_copy(again, args);
	length = vsnprintf(NULL, 0, format, again);
	va_end(again);
	if (length < 0)
		return;
	enlarge(to, (size_t) length);
	vsnprintf(to->data + to->len, (size_t) length + 1, format, args);
	to->len += (size_t) length;
}

void
text_addf(Text *to, const char *format,...)
{
	va_list		args;

	va_start(args, format);
	text_addv(to, format, args);
	va_end(args);
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
 * there is none.  Rounds down to microseconds.  The decimal sign is a point in
 * every locale.  False if the text is anything else or the span too long.
 */
bool
duration_parse(const char *text, CliTime *span)
{
	const char *p = text;
	int64_t		whole = 0;
	int64_t		fraction = 0;
	int64_t		scale = 1;
	int			digits = 0;

	for (; *p >= '0' && *p <= '9'; p++, digits++)
	{
		whole = whole * 10 + (*p - '0');
		if (whole > LONGEST_SPAN)
			return false;
	}
	if (*p == '.')
	{
		/* Nine digits are enough for a microsecond of a day's fraction ... */
		for (p++; *p >= '0' && *p <= '9'; p++, digits++)
		{
			if (scale >= INT64_C(1000000000))
				continue;
			fraction = fraction * 10 + (*p - '0');
			scale *= 10;
		}
	}
	if (digits == 0)
		return false;

	for (size_t i = 0; i < CLI_LENGTH(units); i++)
	{
		CliTime		unit = units[i].span;

		if (strcmp(p, units[i].name) != 0)
			continue;
		if (whole > LONGEST_SPAN / unit)
			return false;
		/* ... and few enough for the product, split in two, to fit. */
		*span = whole * unit + fraction * (unit / CLI_MS) / scale * CLI_MS +
			fraction * (unit / CLI_MS) % scale * CLI_MS / scale;
		return *span <= LONGEST_SPAN;
	}
	return false;
}

/* Write a span so that people can read it and duration_parse() too. */
const char *
duration_print(CliTime span, char *buffer)
{
	char	   *end;

	if (span % CLI_SECOND == 0 || span >= 1000 * CLI_SECOND)
	{
		snprintf(buffer, DURATION_SIZE, "%" PRId64 "s", span / CLI_SECOND);
		return buffer;
	}
	if (span < CLI_SECOND && span % CLI_MS == 0)
	{
		snprintf(buffer, DURATION_SIZE, "%" PRId64 "ms", span / CLI_MS);
		return buffer;
	}
	snprintf(buffer, DURATION_SIZE, "%" PRId64 ".%06" PRId64, span / CLI_SECOND, span % CLI_SECOND);
	for (end = buffer + strlen(buffer) - 1; *end == '0'; end--)
		;
	strcpy(end + 1, "s");
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
	static uint64_t calls = 0;
	uint64_t	number = 0;
	int			fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);

	if (fd < 0 || read(fd, &number, sizeof(number)) != (ssize_t) sizeof(number))
		number = (uint64_t) clock_now() * UINT64_C(2654435761) + (uint64_t) getpid() + ++calls;
	if (fd >= 0)
		close(fd);
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
	{
		size_t		length = strlen(prefix);

		/* Not within a character. */
		if (length > LONGEST_PREFIX)
		{
			length = LONGEST_PREFIX;
			while (length > 0 && ((unsigned char) prefix[length] & 0xC0) == 0x80)
				length--;
		}
		return text_print("%.*s/%08" PRIx32, (int) length, prefix, number);
	}
	if (gethostname(host, sizeof(host)) == 0)
		host[sizeof(host) - 1] = '\0';
	return text_print("%s/%ld/%08" PRIx32, host, (long) getpid(), number);
}
