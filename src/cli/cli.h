/*-------------------------------------------------------------------------
 *
 * cli.h
 *	  What all parts of the dlock command speak of: exit codes, strings, spans of
 *	  time, the clock.
 *
 *-------------------------------------------------------------------------
 */
#ifndef CLI_H
#define CLI_H

#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * How the command ends, unless with the status of the command that it ran.
 * The numbers are those of sysexits.h and of the shells.
 */
typedef enum CliExit
{
	CLI_EXIT_OK = 0,
	CLI_EXIT_USAGE = 64,		/* EX_USAGE */
	CLI_EXIT_NO_QUEUE = 66,		/* EX_NOINPUT */
	CLI_EXIT_UNREACHABLE = 69,	/* EX_UNAVAILABLE */
	CLI_EXIT_SERVER = 70,		/* EX_SOFTWARE: an error that is not expected */
	CLI_EXIT_SYSTEM = 71,		/* EX_OSERR */
	CLI_EXIT_REFUSED = 75,		/* EX_TEMPFAIL: the lock was not acquired */
	CLI_EXIT_LOST = 76,			/* the lease is not held any more */
	CLI_EXIT_PERMISSION = 77,	/* EX_NOPERM */
	CLI_EXIT_NOT_EXECUTABLE = 126,
	CLI_EXIT_NOT_FOUND = 127,
	CLI_EXIT_SIGNAL = 128		/* plus the number of the signal */
} CliExit;

/* A time on the clock of clock_now(), or a span of it, in microseconds. */
typedef int64_t CliTime;

#define CLI_FOREVER		INT64_MAX
#define CLI_MS			INT64_C(1000)
#define CLI_SECOND		INT64_C(1000000)

#define CLI_MIN(a, b)	((a) < (b) ? (a) : (b))
#define CLI_MAX(a, b)	((a) > (b) ? (a) : (b))
#define CLI_LENGTH(a)	(sizeof(a) / sizeof((a)[0]))

#if defined(__GNUC__)
#define CLI_PRINTF(f, a)	__attribute__((format(printf, f, a)))
#define CLI_NORETURN		__attribute__((noreturn))
#else
#define CLI_PRINTF(f, a)
#define CLI_NORETURN
#endif

/* Strings that grow are libpq's: pqexpbuffer.h, which needs this of its includer. */
#define pg_attribute_printf CLI_PRINTF
struct PQExpBufferData;

extern char *text_copy(const char *text);
extern char *text_print(const char *format,...) CLI_PRINTF(1, 2);
extern char *text_printv(const char *format, va_list args);
extern char *text_take(struct PQExpBufferData *text);

/* Room for what duration_print() and duration_sql() write. */
#define DURATION_SIZE	40

extern bool duration_parse(const char *text, CliTime *span);
extern const char *duration_print(CliTime span, char *buffer);
extern const char *duration_sql(CliTime span, char *buffer);

extern CliTime clock_now(void);
extern CliTime clock_add(CliTime a, CliTime b);
extern int	clock_poll(struct pollfd *fds, int count, CliTime until);
extern void clock_print_utc(CliTime from_now, char *buffer);

extern uint64_t process_random(void);
extern char *process_owner(const char *prefix);

#endif							/* CLI_H */
