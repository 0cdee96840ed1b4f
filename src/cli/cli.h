/*-------------------------------------------------------------------------
 *
 * cli.h
 *	  What all parts of the dlock command speak of.
 *
 * IDENTIFICATION
 *	  src/cli/cli.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef CLI_H
#define CLI_H

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

/* A time on the clock of clock.c, or a span of it, in microseconds. */
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

#endif							/* CLI_H */
