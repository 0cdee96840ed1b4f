/*-------------------------------------------------------------------------
 *
 * conn.h
 *	  The connection to the server, which may come and go.
 *
 *-------------------------------------------------------------------------
 */
#ifndef CONN_H
#define CONN_H

#include <poll.h>
#include <sys/types.h>

#include "libpq-fe.h"

#include "cli.h"

/* What an error means for the caller. */
typedef enum ConnTrouble
{
	CONN_FINE,
	CONN_UNREACHABLE,			/* it may be there again in a moment */
	CONN_READ_ONLY,				/* the same, if it was not so before */
	CONN_STARTING,				/* the same, and the server says so itself */
	CONN_UNAVAILABLE,			/* what was asked for is not there */
	CONN_NO_QUEUE,
	CONN_FORBIDDEN,
	CONN_INVALID,				/* the request is wrong */
	CONN_INTERRUPTED,			/* cancelled, or a timeout of the server's */
	CONN_DEADLOCK,
	CONN_LOST,					/* the lease is not held */
	CONN_UNEXPECTED
} ConnTrouble;

typedef struct ConnError
{
	ConnTrouble trouble;
	char		state[6];		/* SQLSTATE; empty if the server told none */
	char	   *message;
	char	   *detail;
	char	   *hint;
} ConnError;

typedef enum ConnState
{
	CONN_DOWN,					/* the next attempt comes at "at" */
	CONN_CONNECTING,
	CONN_SETTING,				/* connected, and finding the extension */
	CONN_IDLE,
	CONN_BUSY					/* with a request */
} ConnState;

typedef enum ConnEvent
{
	CONN_NOTHING,
	CONN_UP,					/* it is idle now */
	CONN_FAILED,				/* an attempt, or the connection; see "error" */
	CONN_ANSWERED,				/* see "answer", which is NULL after an error */
	CONN_LATE					/* cancelled, for it took too long; see both */
} ConnEvent;

typedef struct Conn
{
	const char *conninfo;		/* may be NULL */
	ConnState	state;
	PGconn	   *pg;
	CliTime		at;				/* DOWN: when to try; otherwise: when to give
								 * up */
	int			failures;		/* attempts in a row */
	int			timeouts;		/* that came to nothing within their time */
	CliTime		patience;		/* how long the first one may take; zero: long */
	PostgresPollingStatusType wants;
	bool		flushing;
	char	   *schema;			/* of the extension, quoted, with a point */
	bool		takes_tokens;	/* the server knows the setting dlock.tokens */
	bool		is_late;		/* BUSY: the request has been cancelled */
	PGresult   *answer;
	ConnError	error;
	pid_t		canceller;		/* zero: none */
} Conn;

/* A parameter of a statement.  The types make overloaded functions unambiguous. */
typedef struct ConnParam
{
	Oid			type;
	const char *value;
} ConnParam;

#define CONN_TEXT(v)		((ConnParam) {25, (v)})
#define CONN_BIGINT(v)		((ConnParam) {20, (v)})
#define CONN_INT(v)			((ConnParam) {23, (v)})
#define CONN_INTERVAL(v)	((ConnParam) {1186, (v)})
#define CONN_JSONB(v)		((ConnParam) {3802, (v)})

/* A time as programs read it, and a span in seconds, in SQL. */
#define UTC(t) \
	"pg_catalog.to_char(pg_catalog.timezone('UTC', " t "), 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')"
#define SECONDS(s) \
	"pg_catalog.round(extract(epoch FROM " s ")::pg_catalog.numeric, 3)"

#define CONN_MAX_PARAMS		16

extern void conn_init(Conn *conn, const char *conninfo);
extern void conn_close(Conn *conn);

/* for event loops */
extern int	conn_events(Conn *conn, struct pollfd *fd);
extern CliTime conn_wake(const Conn *conn);
extern ConnEvent conn_step(Conn *conn, short revents);
extern ConnEvent conn_drop(Conn *conn);
extern void conn_send(Conn *conn, CliTime within, const char *sql,
					  int count, const ConnParam *params);
extern void conn_cancel(Conn *conn);

/* for those that do nothing else meanwhile */
extern bool conn_open(Conn *conn);
extern PGresult *conn_ask(Conn *conn, CliTime within, const char *sql,
						  int count, const ConnParam *params);

/* answers and errors */
extern const char *conn_value(const Conn *conn, int column);
extern bool conn_is_true(const Conn *conn, int column);
extern void conn_set_late(Conn *conn);
extern bool conn_may_pass(const Conn *conn, bool was_up);
extern int	conn_exit_code(const Conn *conn);
extern int	conn_report(const Conn *conn);
extern int	conn_report_as(const Conn *conn, int code);

#endif							/* CONN_H */
