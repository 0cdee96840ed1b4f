/*-------------------------------------------------------------------------
 *
 * internal.h
 *	  What the files of the library share.
 *
 * NOTES
 *	  session.c	 opens and closes a session; its thread, and its timer
 *	  connect.c	 makes a connection
 *	  lines.c	 connections, and what is asked over them
 *	  acquire.c	 a request for a lease, up to its answer
 *	  wait.c	 places in queues, and the turns that come
 *	  hold.c	 what is held for a time: renewal, loss, release, transactions
 *	  follow.c	 time slots, elections, holders of locks
 *	  worker.c	 tasks of a queue
 *
 *	  The session's mutex protects all of its fields, those of its leases, and its
 *	  connections.  It is never held while something waits, and not while the program's
 *	  functions run.  Any thread may ask for something and, if a line is free, send it; only
 *	  the session's thread reads answers, so only there requests go on and leases end, apart from
 *	  what their caller does.
 *
 *	  Times and spans are in milliseconds.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_INTERNAL_H
#define DLOCK_INTERNAL_H

#include <inttypes.h>
#include <pthread.h>
#include <sys/types.h>

#include "dlock.h"

#define MIN(a, b)	((a) < (b) ? (a) : (b))
#define MAX(a, b)	((a) > (b) ? (a) : (b))

/* A moment that does not come. */
#define NEVER		INT64_MAX

/*
 * How long a statement may take, its connection included, if its kind says nothing; an
 * urgent one; and how long an unused connection stays open.
 */
#define ANSWER_WITHIN	10000
#define URGENT_WITHIN	5000
#define IDLE_WITHIN		10000

/* Most requests in a statement. */
#define MOST_IN_BATCH	1000

/*
 * How long a request whose answer was lost is sent again, even if it was to end; how long to try
 * to undo one, or to give a lease back, and how often.
 */
#define DOUBT_WITHIN	3000
#define UNDO_EVERY		100

/* How soon a request that waits is sent again to a server that is away. */
#define RETRY_AFTER		200

/*
 * How often to renew, which is how a loss is learned of, and how long before its end a
 * lease is given up that was not renewed; both a sixth of the ttl if that is less.
 */
#define RENEW_EVERY		2000
#define STOP_BEFORE		5000

/* How long a lease lasts, unless the program says. */
#define DEFAULT_TTL		60000

#define MOST_COLUMNS	10
#define MOST_SHARED		7
#define BUCKETS			1024
#define TOKEN_SIZE		24
#define SPAN_SIZE		40

typedef struct Request Request;
typedef struct Line Line;

/*
 * A kind of request.  '@' in its statement stands for the schema.  If it is for many, it has an
 * array as parameter for each column of a request's row, then what is shared, and answers a row
 * for each request, in order.
 */
typedef struct Kind
{
	const char *sql;
	int			columns;
	int			shared;
	bool		alone;			/* a statement of its own */
	bool		urgent;			/* goes first, and does not stand behind a
								 * grant: while the first line is busy with
								 * one, there is a second one */
	int64_t		within;
} Kind;

typedef struct Answer
{
	dlock_error error;			/* DLOCK_OK: it was answered */
	bool		doubt;			/* otherwise: has it been done, perhaps? */
	int64_t		sent;
	PGresult   *result;			/* whoever keeps it sets this to NULL */
	int			row;
} Answer;

/* A request is answered once, by then. */
struct Request
{
	Request    *next;
	const Kind *kind;
	const char *row[MOST_COLUMNS];
	const char *const *shared;
	int64_t		until;			/* if no line has got to it */
	bool		queued;
	bool		last;			/* of a batch */
	void		(*then) (Request *r, Answer *a);
	void	   *whose;
};

typedef struct Queue
{
	Request    *first;
	Request    *tail;
} Queue;

typedef enum LineState
{
	LINE_FREE,
	LINE_CONNECTING,
	LINE_READY,					/* connected, to send */
	LINE_BUSY,					/* sent */
	LINE_BROKEN					/* error says why */
} LineState;

struct Line
{
	Line	   *next;
	LineState	state;
	PGconn	   *conn;
	struct Attempt *attempt;	/* to connect */
	Request    *batch;			/* under way */
	Request    *todo;			/* batches after that */
	PGresult   *result;
	int64_t		sent;			/* 0: not */
	int64_t		until;
	int64_t		idle_since;
	dlock_error error;
	bool		unflushed;
	short		revents;
};

/* A lock of a lease, in the session's table from the request to the end of the release. */
typedef enum RowState
{
	ROW_OUT,
	ROW_WANTED,
	ROW_PLACE,					/* wanted, too */
	ROW_HELD,
	ROW_RELEASING
} RowState;

typedef struct Row
{
	struct Row *next;			/* in its bucket */
	dlock_lease *lease;
	char	   *name;
	RowState	in;
	char		token[TOKEN_SIZE];
	Request		renewal;
	Request		release;
	bool		doubt;			/* it may have been released */
	int64_t		retry_at;
} Row;

typedef enum Call
{
	CALL_SINGLE,
	CALL_ALL,
	CALL_PATH,
	CALL_TASK
} Call;

typedef enum Phase
{
	PHASE_ASKING,
	PHASE_TURN,					/* waits for one, or to ask again */
	PHASE_NAPPING,				/* before it asks again */
	PHASE_CONFIRMING,
	PHASE_NAMING,				/* the holder */
	PHASE_UNDOING,				/* what it may have been granted */
	PHASE_HELD,					/* or lost, and not released yet */
	PHASE_RELEASING,
	PHASE_OVER
} Phase;

typedef enum Turn
{
	TURN_NONE,
	TURN_COME,
	TURN_NEVER
} Turn;

/* A connection in a transaction of a lease. */
typedef struct Transaction
{
	struct Transaction *next;
	PGconn	   *conn;
} Transaction;

struct dlock_lease
{
	dlock_lease *next;			/* of the session, until it is over */
	dlock_lease *previous;
	dlock_session *session;
	int			refs;			/* the program's, that of the list, and those
								 * of requests and calls under way */
	pthread_cond_t changed;

	/* What was asked for. */
	Call		call;
	int			count;
	Row		   *rows;
	char	   *label;
	char	   *owner;
	const char *task;			/* within that */
	char	   *names;			/* as an array */
	char	   *mode;
	char	   *payload;		/* of a task: its queue */
	int64_t		ttl;
	int64_t		wait_until;
	bool		waits;
	bool		reenter;
	bool		async;
	bool		elected;
	int			give_up_fd;
	void		(*on_lost) (dlock_lease *, void *);
	void	   *argument;
	char		spans[4][SPAN_SIZE];	/* ttl, lock_delay, min_hold, keep */
	char		permits[16];
	const char *shared[MOST_SHARED];
	Request		request;

	/* How far it is. */
	Phase		phase;
	bool		answered;		/* the program knows */
	dlock_error error;			/* what it knows */
	bool		gave_up;
	bool		placed;			/* may it have a place? */
	bool		last;			/* it asks for the last time */
	Turn		turn;
	char		turn_token[TOKEN_SIZE];
	int64_t		turn_sent;
	bool		in_doubt;		/* it may have been granted what it has not
								 * heard of */
	bool		asks_in_doubt;	/* it was, when it last asked */
	int64_t		doubt_until;	/* how long to ask; 0: it never was */
	int			undoing;		/* which row */
	int64_t		undo_until;
	dlock_error failure;		/* to be told after that */
	int64_t		wake_at;
	int64_t		delay;

	/* What is held. */
	int64_t		every;
	int64_t		margin;
	int64_t		deadline;
	int64_t		renew_at;
	int			renewing;		/* answers to come */
	bool		lost;			/* among those that have: */
	int64_t		oldest;
	dlock_error trouble;
	bool		late;			/* it had ended before its release */
	bool		finished;		/* by a transaction of the task */
	int			releasing;		/* answers to come */
	int64_t		release_until;
	Transaction *transactions;
	bool		telling;		/* on_lost is to run, or does */
	dlock_lease *next_told;
	bool		is_event;
	dlock_lease *next_event;
	struct dlock_task *of;		/* CALL_TASK */
};

struct dlock_session
{
	char	   *conninfo;
	char		client[256];
	pid_t		pid;
	void		(*on_trouble) (const char *, void *);
	void	   *argument;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	pthread_t	thread;
	int			refs;			/* the program's, those of leases, and of
								 * connections that are made */
	int			busy;			/* calls that wait */
	bool		closed;
	bool		ended;			/* no more thread */
	int			wake[2];
	int			event[2];
	int			over[2];		/* readable when the session is closed */
	bool		woken;
	bool		corked;			/* there are answers to come that may ask for
								 * more */
	int64_t		polled_until;
	int64_t		timer_at;

	Line		shared[2];
	Line		taker;
	Line	   *lines;			/* those, and of workers */
	Queue		queues[2];		/* what is urgent, and the usual */
	char	   *schema;			/* quoted, with a dot; NULL: not known yet */

	Row		   *table[BUCKETS];
	dlock_lease *leases;
	dlock_lease *events;
	dlock_lease *told;			/* on_lost is to run */
	int64_t		tasks;
	int64_t		margin;			/* the smallest of what is held */
	int			give_ups;		/* descriptors to poll */
	bool		in_trouble;
	char	   *trouble;		/* to be told */

	/* wait.c */
	int			places;
	bool		taking;
	int64_t		take_at;		/* NEVER: on its way */
	int64_t		take_asked;
	Request		take;
};

/* session.c */
extern int64_t now_ms(void);
extern bool enter(dlock_session *s, dlock_error *error);
extern void leave(dlock_session *s);
extern void unref_session(dlock_session *s);
extern void arm(dlock_session *s, int64_t at);
extern void wake_thread(dlock_session *s);
extern bool make_pipe(int fds[2]);
extern bool start_thread(pthread_t *thread, void *(*run) (void *), void *argument);
extern bool nap(dlock_session *s, int give_up_fd, int other_fd, int64_t span);
extern dlock_status fail(dlock_error *error, dlock_status status, const char *format,...)
			__attribute__((format(printf, 3, 4)));
extern dlock_status fail_by_state(dlock_error *error, const char *sqlstate, const char *message);
extern dlock_status tell(dlock_error *error, const dlock_error *what);
extern char *span_text(int64_t span, char text[SPAN_SIZE]);

/* lines.c */
extern void submit(dlock_session *s, Request *r);
extern bool withdraw(dlock_session *s, Request *r, dlock_status status);
extern void pump(dlock_session *s);
extern void line_ask(dlock_session *s, Line *l, Request *r);
extern void line_work(dlock_session *s, Line *l);
extern void line_tick(dlock_session *s, Line *l, int64_t now);
extern void line_drop(Line *l);
extern void queue_tick(dlock_session *s, int64_t now);
extern dlock_status ask(dlock_session *s, Line *l, Request *r, Answer *a);
extern const char *answer_text(const Answer *a, int column);
extern char *statement_of(const char *sql, const char *schema);
extern char *array_text(const char *const *texts, int count);

/* connect.c */
extern void connect_line(dlock_session *s, Line *l);
extern void leave_attempt(Line *l);

/* acquire.c */
extern const Kind renew_kind;
extern const Kind release_kind;
extern dlock_lease *new_lease(dlock_session *s, Call what, const char *const *names, int count, const dlock_options *o);
extern void request_tick(dlock_lease *lease, int64_t now);
extern void go_on(dlock_lease *lease);
extern void give_up(dlock_lease *lease, dlock_status status);
extern void ref_lease(dlock_lease *lease);
extern void unref_lease(dlock_lease *lease);
extern void over(dlock_lease *lease);
extern void lease_submit(dlock_lease *lease, Request *r, const Kind *kind, int64_t within, void (*then) (Request *, Answer *));
extern void decline(dlock_session *s, const char *owner, const char *name, const char *token);

/* wait.c */
extern void expect(dlock_lease *lease);
extern void forget(dlock_lease *lease);
extern void wait_for_turn(dlock_lease *lease);
extern void take_tick(dlock_session *s, int64_t now);
extern void table_put(Row *entry, RowState in);
extern void table_remove(Row *entry);
extern int	held_by(dlock_session *s, const char *owner, const char *name);
extern bool is_alone(dlock_lease *lease, RowState last);
extern bool holds_token(dlock_session *s, const char *owner, const char *name, const char *token);

/* hold.c */
extern void hold(dlock_lease *lease, int64_t sent);
extern void hold_tick(dlock_lease *lease, int64_t now);
extern bool has_ended(dlock_lease *lease);
extern void stop(dlock_lease *lease, dlock_status status, const char *why);
extern void let_go(dlock_lease *lease);
extern void release_tick(dlock_lease *lease, int64_t now);
extern void tell_program(dlock_session *s);
extern void tell_trouble(dlock_session *s, const char *message);
extern void add_event(dlock_lease *lease);
extern void remove_event(dlock_lease *lease);

/* worker.c */
extern PGresult *finish_task(dlock_lease *lease, PGconn *conn);

#endif							/* DLOCK_INTERNAL_H */
