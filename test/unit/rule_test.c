/* link: src/dlock_rule.o */
/*
 * rule_test.c
 *	  The rules of leases, over all combinations of what they depend on.
 *
 * What the rules promise is stated here anew, as invariants, and checked for
 * every term that a grant and up to three renewals can lead to, at every time
 * around the instants that matter.
 */
#include "postgres.h"

#include <stdio.h>

#include "dlock_rule.h"

/* The server's own is in a library that this is not linked with. */
#undef printf

/*
 * Called by objects built with assertions.  Its other arguments depend on the
 * version of PostgreSQL, hence the detour around its declaration.
 */
extern void fail_assertion(const char *condition) __asm__("ExceptionalCondition");

void
fail_assertion(const char *condition)
{
	printf("Bail out! %s\n", condition);
	exit(1);
}

static int	test_count = 0;
static int	failures = 0;
static long checks = 0;
static bool current_ok;

static void
begin_test(void)
{
	current_ok = true;
	checks = 0;
}

static void
end_test(const char *name)
{
	test_count++;
	printf("%s %d - %s (%ld checks)\n", current_ok ? "ok" : "not ok",
		   test_count, name, checks);
	if (!current_ok)
		failures++;
}

#define CHECK(condition, ...) \
	do { \
		checks++; \
		if (!(condition)) \
		{ \
			if (current_ok) \
			{ \
				printf("# line %d: %s\n# ", __LINE__, #condition); \
				printf(__VA_ARGS__); \
				printf("\n"); \
			} \
			current_ok = false; \
		} \
	} while (0)

#define LL(x) ((long long) (x))

/* The two clocks need not agree on anything but their pace. */
#define WALL_OFFSET INT64CONST(800000000000000)
#define YEARS_68 (INT64CONST(2147483647) * 1000000)

static const DLockTime starts[] = {0, 1, 1000000, INT64CONST(4000000000000)};
static const DLockTime ttls[] = {1, 2, 1000, 30000000, YEARS_68};

#define N(array) ((int) (sizeof(array) / sizeof((array)[0])))

/* What must hold of a term at any time "now", at which it was last changed. */
static void
check_term(const DLockTerm *term, DLockTime now)
{
	CHECK(term->ttl > 0, "ttl " INT64_FORMAT, term->ttl);
	CHECK(term->bound_mono >= term->deadline,
		  "record vouches only until " INT64_FORMAT ", promised " INT64_FORMAT,
		  term->bound_mono, term->deadline);
	CHECK(term->deadline > now, "dead on arrival");
	CHECK(term->deadline <= now + term->ttl, "promises more than a ttl");
	CHECK(term->bound_mono - term->deadline <= term->ttl,
		  "record vouches for more than a ttl beyond the promise");
	CHECK(term->bound_wall - term->bound_mono == WALL_OFFSET,
		  "the bounds of the two clocks are different instants");
}

/* What a crash at "now" brings back of a term of which "logged" is on disk. */
static void
check_recovery(const DLockTerm *term, const DLockTerm *logged, DLockTime now)
{
	static const DLockTime skews[] = {0, 1, 10000000, INT64CONST(2147483647) * 1000};
	static const DLockTime jumps[] = {-INT64CONST(3600000000), -1, 0, 1, INT64CONST(3600000000)};
	DLockTime	promised = term->deadline - now;
	DLockTime	left = dlock_rule_remaining(logged, true, now, 0, 0);

	CHECK(left >= promised, "same boot: " INT64_FORMAT " left, promised " INT64_FORMAT,
		  left, promised);
	CHECK(left <= logged->ttl && left >= 0, "same boot: " INT64_FORMAT " left", left);

	for (int s = 0; s < N(skews); s++)
	{
		for (int j = 0; j < N(jumps); j++)
		{
			/* The clock of another boot counts from anywhere. */
			left = dlock_rule_remaining(logged, false, 12345,
										now + WALL_OFFSET + jumps[j], skews[s]);
			CHECK(left <= logged->ttl && left >= 0, "other boot: " INT64_FORMAT " left", left);
			if (jumps[j] <= skews[s])
				CHECK(left >= promised,
					  "other boot: " INT64_FORMAT " left, promised " INT64_FORMAT, left, promised);
		}
	}
}

/* Instants around which something can change for this term. */
static int
instants(const DLockTerm *term, DLockTime now, DLockTime *out)
{
	DLockTime	marks[] = {now, now + 1, term->deadline - term->ttl / 2,
		term->deadline - 1, term->deadline, term->deadline + 1,
	term->bound_mono - 1, term->bound_mono, term->bound_mono + 1};
	int			n = 0;

	for (int i = 0; i < N(marks); i++)
	{
		if (marks[i] >= now)
			out[n++] = marks[i];
	}
	return n;
}

/* All renewals of a term, to some depth.  "logged" is what is on disk. */
static void
check_renewals(DLockTerm term, DLockTerm logged, DLockTime now, int depth)
{
	DLockTime	when[16];
	int			n = instants(&term, now, when);

	for (int i = 0; i < n; i++)
	{
		check_recovery(&term, &logged, when[i]);
		CHECK(dlock_rule_is_live(term.deadline, when[i]) == (when[i] < term.deadline),
			  "live at " INT64_FORMAT ", deadline " INT64_FORMAT, when[i], term.deadline);
		if (depth == 0 || !dlock_rule_is_live(term.deadline, when[i]))
			continue;

		for (int t = -1; t < N(ttls); t++)
		{
			DLockTime	ttl = t < 0 ? 0 : ttls[t];
			DLockRuleRenewal renewal = dlock_rule_renew(&term, ttl, when[i],
														when[i] + WALL_OFFSET);
			DLockTerm	on_disk = renewal.must_log ? renewal.term : logged;

			check_term(&renewal.term, when[i]);
			if (ttl == 0)
			{
				CHECK(renewal.term.deadline >= term.deadline, "shortened unasked");
				CHECK(renewal.term.deadline >= when[i] + term.ttl, "less than a ttl");
				CHECK(renewal.term.ttl == term.ttl, "another ttl unasked");
			}
			else
			{
				CHECK(renewal.term.deadline == when[i] + ttl, "not what was asked for");
				CHECK(renewal.term.ttl == ttl, "not the ttl that was asked for");
			}
			CHECK(on_disk.ttl == renewal.term.ttl, "the record has another ttl");
			CHECK(on_disk.bound_mono >= renewal.term.deadline,
				  "the record does not vouch for the promise");
			if (!renewal.must_log)
				CHECK(renewal.term.bound_mono == logged.bound_mono &&
					  renewal.term.bound_wall == logged.bound_wall,
					  "memory and record differ");

			/* A renewal that was just logged does not have to be again. */
			if (renewal.must_log)
				CHECK(!dlock_rule_renew(&renewal.term, 0, when[i], when[i] + WALL_OFFSET).must_log,
					  "logged twice");
			check_renewals(renewal.term, on_disk, when[i], depth - 1);
		}
	}
}

static void
test_grants_and_renewals(void)
{
	begin_test();
	for (int s = 0; s < N(starts); s++)
	{
		for (int t = 0; t < N(ttls); t++)
		{
			DLockTerm	term = dlock_rule_grant(ttls[t], starts[s], starts[s] + WALL_OFFSET);

			check_term(&term, starts[s]);
			CHECK(term.ttl == ttls[t], "ttl");
			CHECK(term.deadline == starts[s] + ttls[t], "deadline");
			check_renewals(term, term, starts[s], 3);
		}
	}
	end_test("grants, renewals, and what a crash makes of them");
}

static void
test_exact_recovery(void)
{
	begin_test();
	for (int s = 0; s < N(starts); s++)
	{
		for (int t = 0; t < N(ttls); t++)
		{
			DLockTerm	term = dlock_rule_grant(ttls[t], starts[s], starts[s] + WALL_OFFSET);
			DLockTime	when[16];
			int			n = instants(&term, starts[s], when);

			for (int i = 0; i < n; i++)
				CHECK(dlock_rule_remaining(&term, true, when[i], when[i], 10000000) ==
					  Max(0, term.deadline - when[i]),
					  "not to the microsecond");
		}
	}
	end_test("a lease that was not renewed comes back on the same boot to the microsecond");
}

static void
test_heartbeats(void)
{
	const DLockTime ttl = 30000000;

	begin_test();
	for (DLockTime beat = 100000; beat < ttl; beat += 100000)
	{
		DLockTerm	term = dlock_rule_grant(ttl, 0, WALL_OFFSET);
		int			records = 0;
		DLockTime	now;

		for (now = beat; now < 100 * ttl; now += beat)
		{
			DLockRuleRenewal renewal = dlock_rule_renew(&term, 0, now, now + WALL_OFFSET);

			records += renewal.must_log;
			term = renewal.term;
		}
		CHECK(records <= 102, "%d records in 100 ttls with a heartbeat each %lld us",
			  records, LL(beat));
	}
	end_test("heartbeats, however many, cost one record a ttl");
}

static void
test_epochs(void)
{
	const DLockToken step = INT64CONST(1) << DLOCK_RULE_EPOCH_SHIFT;
	const DLockToken range = INT64CONST(1) << DLOCK_RULE_TIMELINE_SHIFT;
	static const uint32 timelines[] = {1, 2, 3, 100, 65535, 65536, 65537, 0x7FFFFFFF, 0xFFFFFFFF};

	begin_test();

	/* From any token on any timeline: up, to a boundary, or cleanly nowhere. */
	for (int t = 0; t < N(timelines); t++)
	{
		for (int shift = 0; shift < 63; shift++)
		{
			for (int64 around = -1; around <= 1; around++)
			{
				DLockToken	token = Max(0, (INT64CONST(1) << shift) + around);
				DLockToken	next = dlock_rule_next_epoch(token, timelines[t]);

				CHECK(next > token, "from %lld on timeline %u to %lld",
					  LL(token), timelines[t], LL(next));
				CHECK(next % step == 0, "not a boundary");
			}
		}
		CHECK(dlock_rule_next_epoch(PG_INT64_MAX, timelines[t]) == DLOCK_TOKEN_NONE,
			  "from the last token");
		CHECK(dlock_rule_next_epoch(PG_INT64_MAX - step + 1, timelines[t]) == DLOCK_TOKEN_NONE,
			  "from the last epoch");
		CHECK(dlock_rule_next_epoch(PG_INT64_MAX - step, timelines[t]) != DLOCK_TOKEN_NONE,
			  "from the last epoch but one");
	}

	/*
	 * Two futures of one past: whatever the one grants, for 2^47 grants less
	 * its epochs, is below what the other grants that has the later timeline.
	 */
	for (uint32 older = 1; older < 300; older++)
	{
		for (uint32 newer = older + 1; newer < older + 5; newer++)
		{
			DLockToken	past = (older - 1) * range / 2 + 12345;
			DLockToken	of_older = dlock_rule_next_epoch(past, older);
			DLockToken	of_newer = dlock_rule_next_epoch(past, newer);

			CHECK(of_newer - of_older >= range - step,
				  "timelines %u and %u begin at %lld and %lld",
				  older, newer, LL(of_older), LL(of_newer));
		}
	}

	/* Epochs on one timeline, until it has used up its range, and beyond. */
	for (int t = 0; t < 3; t++)
	{
		DLockToken	token = 0;

		for (int i = 0; i < 1000; i++)
		{
			DLockToken	next = dlock_rule_next_epoch(token, timelines[t]);

			CHECK(next > token, "goes back");
			token = next + 12345;
		}
	}
	end_test("epochs only grow, differ between timelines, and end cleanly");
}

int
main(void)
{
	printf("1..4\n");
	test_grants_and_renewals();
	test_exact_recovery();
	test_heartbeats();
	test_epochs();
	return failures > 0;
}
