/*-------------------------------------------------------------------------
 *
 * bench_team.h
 *	  Clients of dlock bench that measure something together.
 *
 * IDENTIFICATION
 *	  src/cli/bench_team.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef BENCH_TEAM_H
#define BENCH_TEAM_H

#include "bench_client.h"

/* What is measured. */
typedef struct BenchTask
{
	BenchKind	kind;
	bool		durable;
	int			clients;
	CliTime		span;
} BenchTask;

typedef struct BenchResult
{
	double		rate;			/* a second */
	BenchHistogram latencies;
} BenchResult;

extern int	bench_team_run(const BenchTask *task, const char *conninfo, const char *prefix,
						   BenchResult *result, int *signo);

#endif							/* BENCH_TEAM_H */
