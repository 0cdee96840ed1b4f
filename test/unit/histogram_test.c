/* link: src/cli/bench_histogram.o */
/*
 * histogram_test.c
 *	  Percentiles of dlock bench, compared with those of the values themselves.
 */
#include <stdio.h>
#include <string.h>

#include "cli/bench_histogram.h"

static int	test_count = 0;
static int	failures = 0;

static void
is_ok(bool condition, const char *name)
{
	failures += !condition;
	printf("%sok %d - %s\n", condition ? "" : "not ", ++test_count, name);
}

/* Is a percentile that of the value, or less than one per cent above it? */
static bool
is_near(CliTime found, CliTime value)
{
	return found >= value && (found - value) * 100 <= value;
}

int
main(void)
{
	static BenchHistogram one;
	static BenchHistogram other;
	bool		all = true;

	is_ok(bench_histogram_percentile(&one, 50) == 0, "nothing");

	/* Each value alone, up to an hour, is its own percentile exactly. */
	for (CliTime value = 0; value < INT64_C(3600000000); value += 1 + value / 7)
	{
		memset(&other, 0, sizeof(other));
		bench_histogram_add(&other, value);
		all = all && bench_histogram_percentile(&other, 50) == value;
	}
	is_ok(all, "single values");

	/* A value below a larger one is told to one per cent. */
	all = true;
	for (CliTime value = 1; value < INT64_C(3600000000); value += 1 + value / 7)
	{
		memset(&other, 0, sizeof(other));
		bench_histogram_add(&other, value);
		bench_histogram_add(&other, 3 * value);
		all = all && is_near(bench_histogram_percentile(&other, 50), value) &&
			bench_histogram_percentile(&other, 51) == 3 * value;
	}
	is_ok(all, "two values");

	/* 1 to 100000, half of them in each of two. */
	memset(&other, 0, sizeof(other));
	for (CliTime value = 1; value <= 100000; value++)
		bench_histogram_add((value % 2) ? &one : &other, value);
	bench_histogram_merge(&one, &other);
	is_ok(one.count == 100000 && one.most == 100000, "merged");
	is_ok(is_near(bench_histogram_percentile(&one, 50), 50000), "the median");
	is_ok(is_near(bench_histogram_percentile(&one, 95), 95000), "95 per cent");
	is_ok(is_near(bench_histogram_percentile(&one, 99), 99000), "99 per cent");
	is_ok(bench_histogram_percentile(&one, 100) == 100000, "the most");
	printf("1..%d\n", test_count);
	return failures > 0;
}
