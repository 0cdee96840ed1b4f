/*-------------------------------------------------------------------------
 *
 * bench_histogram.h
 *	  Many latencies in little memory.
 *
 * IDENTIFICATION
 *	  src/cli/bench_histogram.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef BENCH_HISTOGRAM_H
#define BENCH_HISTOGRAM_H

#include "cli.h"

/*
 * Each power of two is cut into so many steps, so a percentile is exact to the
 * step: less than one per cent.
 */
#define BENCH_STEPS		128
#define BENCH_POWERS	34
#define BENCH_BUCKETS	(BENCH_STEPS * BENCH_POWERS)

/* All zero to begin with.  Microseconds. */
typedef struct BenchHistogram
{
	uint64_t	count;
	CliTime		most;
	uint32_t	buckets[BENCH_BUCKETS];
} BenchHistogram;

extern void bench_histogram_add(BenchHistogram *to, CliTime latency);
extern void bench_histogram_merge(BenchHistogram *to, const BenchHistogram *from);
extern CliTime bench_histogram_percentile(const BenchHistogram *of, double percent);

#endif							/* BENCH_HISTOGRAM_H */
