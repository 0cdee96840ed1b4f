/*-------------------------------------------------------------------------
 *
 * bench_histogram.c
 *	  Many latencies in little memory.
 *
 * IDENTIFICATION
 *	  src/cli/bench_histogram.c
 *
 *-------------------------------------------------------------------------
 */
#include "bench_histogram.h"

/* Values below BENCH_STEPS have a bucket each; from there on the steps double. */
static int
bucket_of(CliTime latency)
{
	uint64_t	value = (uint64_t) CLI_MAX(latency, 0);
	int			power = 0;
	int			bucket;

	for (; value >> power >= 2 * BENCH_STEPS; power++)
		;
	bucket = (int) (value >> power) + power * BENCH_STEPS;
	return CLI_MIN(bucket, BENCH_BUCKETS - 1);
}

/* The largest value of a bucket. */
static CliTime
value_of(int bucket)
{
	int			power = (bucket < 2 * BENCH_STEPS) ? 0 : bucket / BENCH_STEPS - 1;
	CliTime		value = bucket - (CliTime) power * BENCH_STEPS;

	return ((value + 1) << power) - 1;
}

void
bench_histogram_add(BenchHistogram *to, CliTime latency)
{
	to->buckets[bucket_of(latency)]++;
	to->count++;
	to->most = CLI_MAX(to->most, latency);
}

void
bench_histogram_merge(BenchHistogram *to, const BenchHistogram *from)
{
	for (int i = 0; i < BENCH_BUCKETS; i++)
		to->buckets[i] += from->buckets[i];
	to->count += from->count;
	to->most = CLI_MAX(to->most, from->most);
}

/* The value that so many per cent do not exceed; zero if there is none. */
CliTime
bench_histogram_percentile(const BenchHistogram *of, double percent)
{
	double		wanted = (double) of->count * percent / 100;
	uint64_t	seen = 0;

	for (int i = 0; i < BENCH_BUCKETS; i++)
	{
		seen += of->buckets[i];
		if (seen > 0 && (double) seen >= wanted)
			return CLI_MIN(value_of(i), of->most);
	}
	return of->most;
}
