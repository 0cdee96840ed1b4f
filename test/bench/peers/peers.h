/*-------------------------------------------------------------------------
 *
 * peers.h
 *	  What the parts of the client share that speaks to dlock and its peers.
 *
 * NOTES
 *	  main.c		which measurement, of which peer, and with what options
 *	  connection.c	a connection, its buffers, and the clock
 *	  rate.c		pairs a second of many connections
 *	  handoff.c		from a release to the next holder's answer
 *	  postgres.c	PostgreSQL: dlock, lease table, advisory lock
 *	  redis.c		Redis: SET NX PX, and a script that compares and deletes
 *	  redlock.c		Redlock: the same at the majority of five servers
 *	  etcd.c		etcd: transactions and its lock service, over gRPC
 *	  zookeeper.c	ZooKeeper: ephemeral nodes
 *
 *	  Each peer is spoken to in its own protocol and without a library, so that
 *	  the client costs the same for all of them: a send, a receive, a wait for
 *	  the socket and some hundred nanoseconds to write and read a message.  A
 *	  connection has one request at a time on its way.  That of Redlock is made
 *	  of parts, one for each of five servers; each has a socket and buffers, and
 *	  costs as much as a connection to another peer.
 *
 *	  Whatever is unexpected ends the program with a message.
 *
 * IDENTIFICATION
 *	  test/bench/peers/peers.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef PEERS_H
#define PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Microseconds: a moment or a span. */
typedef int64_t Time;

#define MSEC		((Time) 1000)
#define SEC			((Time) 1000000)

/* No answer takes as long as this, in a benchmark that works. */
#define PATIENCE	(options.patience * SEC)

/* Longer than any run: no lease expires meanwhile. */
#define TTL_SECONDS	600

#define IN_SIZE		65536
#define OUT_SIZE	4096

/* Of a connection. */
#define MOST_PARTS	8

typedef enum Answer
{
	ANSWER_NONE,				/* not yet, or not all of it */
	ANSWER_YES,
	ANSWER_NO,
} Answer;

struct Peer;

typedef struct Connection
{
	const struct Peer *peer;
	const char *address;		/* until it is open */
	int			number;
	int			fd;				/* -1 if it is made of parts */
	struct Connection *whole;	/* what this is a part of, or itself */
	struct Connection *parts;
	int			n_parts;		/* 0 if it is not made of parts */
	uint64_t	random;
	char		name[32];		/* of the lock */
	char		owner[32];

	/* what is to be sent */
	char		out[OUT_SIZE];
	size_t		out_length;

	/* what has arrived and is not yet understood */
	char		in[IN_SIZE];
	size_t		in_length;

	/* the last answer */
	int64_t		number_answered;
	char		text[512];
	size_t		text_length;

	/* rate.c */
	bool		releasing;
	bool		done;

	/* the peers' own */
	int			request;		/* what was sent last */
	char		script[64];		/* redis.c: digests of the scripts */
	char		notifying_script[64];
	Time		asked_at;		/* redlock.c: when the last request was made, */
	int			yes;			/* and the answers to it */
	int			no;
	int			awaited;		/* answers to a part that are still to come */
	uint32_t	stream;			/* etcd.c: the number of the request */
	int64_t		lease;
	int32_t		xid;			/* zookeeper.c: the number of the request */
	int			events;			/* watches that have fired */
	char		node[128];		/* etcd.c and zookeeper.c: the key of the lock */
	char		ahead[128];		/* zookeeper.c: the node before that */
} Connection;

typedef struct Peer
{
	const char *name;
	bool		owner_matters;	/* nobody else can release */
	/* Connect, and whatever a session does once. */
	void		(*open) (Connection *c);
	/* Write a request into the buffer. */
	void		(*acquire) (Connection *c);
	void		(*release) (Connection *c);
	/* Look whether the answer is there; take it out of the buffer. */
	Answer		(*take) (Connection *c);
	/* Take in answers that were not waited for.  Null: there are none. */
	void		(*settle) (Connection *c);
	/* How many locks are held, or -1 if the peer cannot say. */
	int64_t		(*count) (Connection *c);
	/* What a session does at its end. */
	void		(*close) (Connection *c);

	/* Of one lock that two connections want in turns.  Null: cannot be. */
	void		(*handoff_begin) (Connection *holder, Connection *next);
	/* Let the next one wait, asleep; it takes so many milliseconds at least. */
	int			fall_asleep;
	void		(*handoff_wait) (Connection *next);
	/* Release, until the next one has the lock: false until then. */
	void		(*handoff_release) (Connection *holder);
	bool		(*handoff_got) (Connection *next);
	/* Take in what else has been answered; then the two change places. */
	void		(*handoff_end) (Connection *holder, Connection *next);
} Peer;

/* The options of the command line. */
typedef struct Options
{
	int			seconds;
	int			warm_up;		/* milliseconds */
	int			clients;
	int			threads;
	int			names;
	int			patience;		/* seconds */
	const char *address;		/* a port of 127.0.0.1, or the path of a
								 * socket; with commas between, if the peer
								 * has several servers */
} Options;

extern Options options;

/* connection.c */
extern void fail(const char *format,...)
			__attribute__((noreturn, format(printf, 1, 2)));
extern Time now_monotonic(void);
extern void connection_init(Connection *c, const Peer *peer, int number);
extern void connection_connect(Connection *c);
extern void connection_name(Connection *c, const char *name);
extern void connection_random_name(Connection *c);
extern uint64_t connection_random(Connection *c);
extern void put_bytes(Connection *c, const void *bytes, size_t length);
extern void put_string(Connection *c, const char *string);
extern void put_int(Connection *c, int64_t value, int length);
extern void set_int(Connection *c, size_t offset, int64_t value, int length);
extern int64_t get_int(const char *from, int length);
extern void connection_send(Connection *c);
extern bool connection_receive(Connection *c);
extern void connection_consume(Connection *c, size_t length);
extern bool connection_wait(Connection *c, Time until);
extern Answer connection_answer(Connection *c);
extern Answer connection_call(Connection *c);
extern void connection_close(Connection *c);

/* rate.c */
extern void measure_rate(const Peer *peer);

/* handoff.c */
extern void measure_handoff(const Peer *peer);
extern void check_peer(const Peer *peer);

/* the peers */
extern const Peer dlock_peer;
extern const Peer table_peer;
extern const Peer advisory_peer;
extern const Peer redis_peer;
extern const Peer redlock_peer;
extern const Peer etcd_peer;
extern const Peer zookeeper_peer;

#endif							/* PEERS_H */
