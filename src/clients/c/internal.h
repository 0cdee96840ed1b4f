/*-------------------------------------------------------------------------
 *
 * internal.h
 *	  What the files of the library share.
 *
 * NOTES
 *	  session.c	 opens and closes a session; who does its work, and its timer
 *	  connect.c	 makes a connection
 *	  lines.c	 connections, and what is asked over them
 *	  acquire.c	 a request for a lease, up to its answer: places and turns
 *	  undo.c	 what a request was granted that ends without a lease, and who waits for that
 *	  hold.c	 what is held for a time: renewal, loss, release, transactions
 *	  follow.c	 time slots, elections, holders of locks
 *	  worker.c	 tasks of a queue
 *	  shards.c	 sessions with several servers
 *
 *	  The session's mutex protects all of its fields, those of its leases, and its
 *	  connections.  It is never held while something waits or is woken, and not while the
 *	  program's functions run.  Any thread may ask for something and, if a line is free, send it.
 *	  One thread at a time reads answers, so that requests go on and leases end: a caller that
 *	  waits, if nobody does it yet, or else the session's own thread.
 *
 *	  Times and spans are in milliseconds.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_INTERNAL_H
#define DLOCK_INTERNAL_H

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <sys/types.h>

#include "dlock.h"

#define MIN(a, b)	((a) < (b) ? (a) : (b))
#define MAX(a, b)	((a) > (b) ? (a) : (b))

/* A moment that does not come. */
#define NEVER		INT64_MAX

/*
 * How long a statement may take, its connection included, if its kind says nothing; an
 * urgent one; at least, with its connection; and how long an unused connection stays open.
 */
#define ANSWER_WITHIN	10000
#define URGENT_WITHIN	5000
#define CONNECT_WITHIN	1000
#define IDLE_WITHIN		10000

/* Most rows in a statement. */
#define MOST_IN_BATCH	1000

/*
 * How long a request whose answer was lost is sent again, even if it was to end; how long others, and
 * the caller, wait until one is undone, or a lease given back; and how often that is tried.
 */
#define DOUBT_WITHIN	3000
#define UNDO_EVERY		100

/*
 * How often to renew, which is how a loss is learned of, and how long before its end a
 * lease is given up that was not renewed; both a sixth of the ttl if that is less.
 */
#define RENEW_EVERY		2000
#define STOP_BEFORE		5000

/* How long a lease lasts, unless the program says. */
#define DEFAULT_TTL		60000

/* After errors of what goes on by itself. */
#define RETRY_EVERY		500

#define MOST_COLUMNS	4
#define MOST_SHARED		10
#define TOKEN_SIZE		24
#define SPAN_SIZE		40

typedef struct Request Request;
typedef struct Waiter Waiter;
typedef struct Line Line;

/*
 * A kind of request.  '@' in its statement stands for the schema.  Its parameters are an array for
 * each column of the requests' rows, and then what they share; it answers a row for each row, in
 * order.  Without columns it goes alone, and may answer any rows.
 */
typedef struct Kind
{
	const char *sql;
	int			columns;
	int			shared;
	bool		urgent;			/* goes first, and does not stand behind a
								 * grant: while the first line is busy with
								 * one, there is a second one */
	int64_t		within;
} Kind;

typedef struct Answer
{
	dlock_error error;			/* DLOCK_OK: it was answered */
	bool		doubt;			/* otherwise: has it been done, perhaps? */
	int64_t		sent;			/* 0: not */
	PGresult   *result;			/* whoever keeps it sets this to NULL */
	int			row;			/* the first one of the request */
} Answer;

/* A request is answered once. */
struct Request
{
	Request    *next;
	const Kind *kind;
	int			rows;
	const char *const *values;	/* row by row */
	const char *const *shared;
	void		(*then) (Request *r, Answer *a);
	void	   *whose;
};

typedef struct Queue
{
	Request    *first;
	Request   **end;
	int			most;			/* rows in its next statement */
} Queue;

typedef enum LineState
{
	LINE_FREE,
	LINE_CONNECTING,
	LINE_LOOKING,				/* what the server has */
	LINE_PREPARING,
	LINE_BUSY,
	LINE_BROKEN					/* error says why */
} LineState;

struct Line
{
	Line	   *next;
	LineState	state;
	PGconn	   *conn;
	bool		prepared;
	struct Attempt *attempt;	/* to connect */
	Request    *batch;			/* under way */
	PGresult   *result;
	int64_t		sent;			/* 0: not */
	int64_t		until;
	int64_t		idle_since;
	dlock_error error;
	bool		unflushed;
	short		revents;
};

typedef enum Call
{
	CALL_SINGLE,
	CALL_ALL,
	CALL_PATH,
	CALL_TASK
} Call;

/* What a lease has a request under way for, or is going to have. */
typedef enum Phase
{
	PHASE_NEW,					/* nothing was sent */
	PHASE_ASKING,
	PHASE_WAITING,				/* for a turn, or to ask again */
	PHASE_NAMING,				/* the holder */
	PHASE_FINDING,				/* what it may have been granted */
	PHASE_HELD,					/* or lost, and not released yet */
	PHASE_RELEASING,
	PHASE_OVER
} Phase;

/* A connection in a transaction of a lease. */
typedef struct Transaction
{
	struct Transaction *next;
	PGconn	   *conn;			/* only to be compared */
	int			socket;			/* its, duplicated */
} Transaction;

struct dlock_lease
{
	dlock_lease *next;			/* of the session, in order, until it is over */
	dlock_lease *previous;
	dlock_session *session;
	int			refs;			/* the program's, that of the list, and those
								 * of requests and calls under way */
	Waiter	   *waiters;		/* for a change */

	/* What was asked for.  The texts are behind the lease itself. */
	Call		call;
	int			count;
	const char **names;
	char		(*tokens)[TOKEN_SIZE];	/* "": none */
	const char **values;		/* of the request */
	const char *label;
	const char *owner;
	const char *task;			/* within that */
	const char *array;			/* the names */
	const char *params[MOST_SHARED];	/* of the call */
	int64_t		ttl;
	int64_t		every;
	int64_t		margin;
	int64_t		wait_until;
	bool		waits;
	bool		named;			/* its task, by the program */
	bool		reenter;
	bool		async;
	bool		elected;
	int			give_up_fd;
	void		(*on_lost) (dlock_lease *, void *);
	void	   *argument;

	/* How far it is. */
	Phase		phase;
	Request		request;
	bool		asked;			/* that is under way */
	int64_t		wake_at;
	bool		answered;		/* the program knows */
	dlock_error error;			/* what it knows */
	dlock_error failure;		/* what it is to be told when this is over */
	bool		gave_up;
	bool		failing;		/* nothing but its end is to come */
	bool		placed;			/* it has a place, perhaps */
	bool		tried;			/* it may have been granted before it asks */
	bool		alone;			/* no other request is meant by its answer */
	bool		refused;		/* in doubt and not alone: by itself, perhaps */
	bool		last;			/* it asks for the last time */
	bool		never;			/* its place has ended */
	bool		late;			/* it has heard of its grant too late, once */
	char		turn[TOKEN_SIZE];	/* what its place was granted, not taken
									 * yet */
	int64_t		turn_sent;
	int64_t		doubt_at;		/* since when it may have been granted what it
								 * has not heard of */
	int64_t		heard_at;		/* the last answer is of what was asked then */
	int64_t		doubt_until;	/* how long to ask; 0: it never was in doubt */
	int64_t		end_by;			/* waits for others, or is waited for as it
								 * ends, at most so long */
	int64_t		delay;

	/* What is held. */
	int64_t		deadline;
	int64_t		renew_at;
	dlock_error trouble;
	bool		unsure;			/* it may have been released */
	const Kind *ends_with;		/* how it is released */
	struct dlock_task *of;		/* CALL_TASK */
	bool		finished;		/* by a transaction of the task, perhaps one
								 * that commits: no renewal */
	Transaction *transactions;
	bool		telling;		/* on_lost is to run, or does */
	dlock_lease *next_told;
	bool		is_event;
	dlock_lease *next_event;
};

struct dlock_session
{
	char	   *conninfo;
	char		client[256];
	pid_t		pid;
	void		(*on_trouble) (const char *, void *);
	void	   *argument;

	pthread_mutex_t lock;
	Waiter	   *waiters;		/* for the end of calls, or of all */
	Waiter	   *wakeups;		/* what unlock() is to wake */
	Waiter	  **wakeups_end;
	pthread_cond_t idle;		/* the thread sleeps */
	pthread_t	thread;
	int			refs;			/* the program's, those of leases, and of
								 * connections that are made */
	int			busy;			/* calls, for whose end dlock_close() waits */
	bool		closed;
	bool		ended;			/* no more thread */
	bool		driven;			/* somebody does the work */
	struct pollfd *fds;			/* of whoever does, who alone changes it */
	int			room;			/* in that */
	int			wake[2];
	int			event[2];
	int			over[2];		/* readable when the session is closed */
	bool		woken;
	bool		corked;			/* there are answers to come that may ask for
								 * more */
	int64_t		asleep_until;	/* whoever does the work, in poll() */
	int64_t		idle_until;		/* the thread, because of nothing to do */
	int64_t		timer_at;

	Line		shared[2];
	Line		taker;
	Line	   *lines;			/* those, and of workers */
	int			line_count;
	Queue		queues[2];		/* what is urgent, and the usual */
	char	   *schema;			/* quoted, with a dot; NULL: not known yet */
	bool		pooled;			/* nothing is to be prepared */

	dlock_lease *leases;
	dlock_lease *newest;
	dlock_lease *events;
	dlock_lease *told;			/* on_lost is to run */
	int64_t		tasks;
	int64_t		margin;			/* the smallest of what is held */
	int			failing;		/* leases */
	int			give_ups;		/* descriptors to poll */
	bool		in_trouble;
	char	   *trouble;		/* to be told */

	/* acquire.c */
	bool		taking;
	int64_t		take_at;		/* NEVER: on its way */
	int64_t		take_sent;		/* the places are kept from then on at least */
	const char *take_client;
	Request		take;
};

/* session.c */
extern int64_t now_ms(void);
extern bool enter(dlock_session *s, dlock_error *error);
extern bool begin_call(dlock_session *s, dlock_error *error);
extern void leave(dlock_session *s);
extern void lock(dlock_session *s);
extern void unlock(dlock_session *s);
extern void wake_waiters(dlock_session *s, Waiter **waiters);
extern void await(dlock_session *s, Waiter **waiters, bool (*done) (const void *), const void *what);
extern void unref_session(dlock_session *s);
extern void arm(dlock_session *s, int64_t at);
extern void wake(dlock_session *s);
extern void make_cond(pthread_cond_t *cond);
extern void sleep_on(pthread_cond_t *cond, dlock_session *s, int64_t span);
extern bool start_thread(pthread_t *thread, void *(*run) (void *), void *argument);
extern bool nap(dlock_session *s, int give_up_fd, int64_t span);
extern dlock_status fail(dlock_error *error, dlock_status status, const char *format,...)
			__attribute__((format(printf, 3, 4)));
extern dlock_status fail_by_state(dlock_error *error, const char *sqlstate, const char *message);
extern dlock_status tell(dlock_error *error, const dlock_error *what);
extern const char *span_text(int64_t span, char text[SPAN_SIZE]);

/* lines.c */
extern void submit(dlock_session *s, Request *r);
extern void pump(dlock_session *s);
extern void line_ask(dlock_session *s, Line *l, Request *r);
extern void line_query(dlock_session *s, Line *l, LineState state, const char *sql);
extern void line_work(dlock_session *s, Line *l);
extern void line_tick(dlock_session *s, Line *l, int64_t now);
extern void line_drop(Line *l);
extern dlock_status ask(dlock_session *s, Line *l, Request *r, Answer *a);
extern const char *answer_text(const Answer *a, int column);
extern char *statement_of(const char *sql, const char *schema);
extern size_t array_size(const char *const *texts, int count);
extern char *put_array(char *at, const char *const *texts, int count);

/* connect.c */
extern void connect_line(dlock_session *s, Line *l);
extern void leave_attempt(Line *l);
extern const char look_sql[];
extern bool look(dlock_session *s, Line *l);

/* acquire.c */
extern const Kind acquire_kind;
extern const Kind renew_kind;
extern const Kind release_kind;
extern dlock_lease *new_lease(dlock_session *s, Call what, const char *const *names, int count, const dlock_options *o);
extern void go(dlock_lease *lease);
extern void give_up(dlock_lease *lease, dlock_status status);
extern void ref_lease(dlock_lease *lease);
extern void unref_lease(dlock_lease *lease);
extern void settle(dlock_lease *lease, const dlock_error *error);
extern void over(dlock_lease *lease);
extern bool lease_submit(dlock_lease *lease, const Kind *kind);
extern void take_tick(dlock_session *s, int64_t now);

/* undo.c */
extern const Kind find_kind;
extern bool meets(const dlock_lease *lease, const dlock_lease *other);
extern bool is_blocked(const dlock_lease *lease);
extern bool is_alone(const dlock_lease *lease, Phase last);
extern bool shares_token(const dlock_lease *lease, const char *name, const char *token);
extern void set_failing(dlock_lease *lease);
extern void end_failing(dlock_lease *lease);
extern bool is_in_doubt(const dlock_lease *lease);
extern void begin_end(dlock_lease *lease, Phase phase);
extern bool may_undo(const dlock_lease *lease, int64_t at);
extern void undo_later(dlock_lease *lease);
extern void end_request(dlock_lease *lease, const dlock_error *error);
extern void end_with(dlock_lease *lease, dlock_status status, const char *format);
extern void found(dlock_lease *lease, const Answer *a);
extern void give_back(dlock_session *s, const char *owner, const char *name, const char *token);

/* hold.c */
extern void hold(dlock_lease *lease, int64_t sent);
extern void hold_tick(dlock_lease *lease, int64_t now);
extern void renewed(dlock_lease *lease, const Answer *a);
extern void released(dlock_lease *lease, const Answer *a);
extern bool has_ended(dlock_lease *lease);
extern void stop(dlock_lease *lease, dlock_status status, const char *why);
extern void let_go(dlock_lease *lease);
extern bool is_released(const void *lease);
extern void tell_program(dlock_session *s);
extern void tell_trouble(dlock_session *s, const char *message);
extern void add_event(dlock_lease *lease);
extern void remove_event(dlock_lease *lease);

/* worker.c */
extern const Kind task_renew_kind;
extern PGresult *finish_task(dlock_lease *lease, PGconn *conn);

#endif							/* DLOCK_INTERNAL_H */
