/*-------------------------------------------------------------------------
 *
 * probe.h
 *	  What the parts of the program that measures latencies share.
 *
 * NOTES
 *	  main.c		which measurement, and with what options
 *	  session.c		sessions of the server, and the clocks
 *	  handoff.c		from a release to the next holder's answer
 *	  takeover.c	from a deadline to the next holder's answer
 *	  expiry.c		many leases that expire together
 *	  crowd.c		many sessions that want one lock, many leases on one
 *
 *	  A process drives all the sessions of a measurement and sleeps until one
 *	  of them has something for it, so that the moments it notes are on one
 *	  clock and nothing but the server and the kernel lies between them.
 *
 *	  What is measured goes to the standard output, a line each: a word that
 *	  says what it is, and microseconds.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PROBE_H
#define PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "libpq-fe.h"

/* Microseconds: a moment or a span. */
typedef int64_t Time;

#define MSEC		((Time) 1000)
#define SEC			((Time) 1000000)
#define FOREVER		INT64_MAX

#define MAX_SESSIONS	2048

typedef struct Session
{
	PGconn	   *conn;
	bool		busy;			/* its statement is not answered yet */
	int			notified;		/* notifications since the caller cleared it */
	Time		sent_at;
	Time		answered_at;
	bool		is_null;		/* the first value of the answer, or no row */
	char		value[64];
} Session;

/* The options of the command line. */
typedef struct Options
{
	int			seconds;
	int			samples;
	int			leases;
	int			clients;
	int			names;
	char	  **command;		/* what to run beside a crowd */
} Options;

/* session.c */
extern void fail(const char *format,...)
			__attribute__((noreturn, format(printf, 1, 2)));
extern Time now_monotonic(void);
extern Time now_wall(void);
extern void nap(Time span);
extern Time random_span(Time from, Time to);
extern void session_open(Session *session);
extern void sessions_open(Session *sessions, int count, const char *conninfo);
extern void session_do(Session *session, const char *sql);
extern void session_prepare(Session *session, const char *name, const char *sql);
extern void session_send(Session *session, const char *name, int count,
						 const char *const *values);
extern void session_call(Session *session, const char *name, int count,
						 const char *const *values);
extern void session_take_in(Session *session);
extern void sessions_wait(Session *const *sessions, int count, Time until);
extern void session_answer(Session *session);
extern Time session_number(const Session *session);

/* the measurements */
extern void handoff(const Options *options);
extern void takeover(const Options *options);
extern void expiry(const Options *options);
extern void crowd_waiters(const Options *options);
extern void crowd_owners(const Options *options);
extern void crowd_idle(const Options *options);
extern void crowd_holders(const Options *options);
extern void crowd_sharers(const Options *options);
extern void crowd_siblings(const Options *options);
extern void crowd_places(const Options *options);
extern void crowd_leases(const Options *options);
extern void crowd_contenders(const Options *options);
extern void crowd_advisory(const Options *options);
extern void crowd_expiry(const Options *options);

#endif							/* PROBE_H */
