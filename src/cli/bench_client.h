/*-------------------------------------------------------------------------
 *
 * bench_client.h
 *	  One of the clients of dlock bench, a process of its own.
 *
 * IDENTIFICATION
 *	  src/cli/bench_client.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef BENCH_CLIENT_H
#define BENCH_CLIENT_H

#include <sys/types.h>

#include "bench_histogram.h"
#include "conn.h"

typedef enum BenchKind
{
	BENCH_STATEMENT,			/* one that does nothing */
	BENCH_PAIR,					/* acquire and release */
	BENCH_RENEW,
	BENCH_REFUSED,				/* acquire what somebody else holds */
	BENCH_HANDOFF				/* from a release to the grant of who waits */
} BenchKind;

/* What a client is to do, and what came of it; in shared memory. */
typedef struct BenchClient
{
	pid_t		pid;
	int			number;
	bool		is_done;		/* its results are whole */
	int			code;			/* how it failed, and why */
	char		error[512];
	char		hint[256];
	BenchHistogram latencies;
} BenchClient;

typedef struct BenchTeam
{
	const char *conninfo;
	const char *prefix;			/* of names and owners */
	BenchKind	kind;
	bool		durable;
	CliTime		end;
	volatile bool stop;

	/* The last hand-off; written by whoever holds the lock. */
	volatile int holder;
	volatile CliTime released;

	int			count;
	BenchClient clients[];
} BenchTeam;

/* Leases of a client that cannot release them end by themselves soon. */
#define BENCH_TTL	"10 s"

extern void bench_client_name(const BenchTeam *team, int number, char *owner, size_t size);
extern void bench_client_main(BenchTeam *team, int number, int ready, int go);

#endif							/* BENCH_CLIENT_H */
