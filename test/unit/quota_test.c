/* link: src/base/rule.o */
/*
 * quota_test.c
 *	  Who is due how many partitions, for all small groups there are and for random
 *	  large ones.
 *
 * For every combination of up to four members, their weights, and who has how
 * many of up to seven partitions: the quotas add up, round the shares up or
 * down, and let as little move as any such quotas could, which is found by
 * trying all; and if each member in turn does what its quota says, all are
 * content after two turns, without having moved more than that.
 *
 * Random groups of up to 300 members: the quotas are those of a calculation that
 * picks one member after the other, as the rule is told in base/rule.c.  The
 * largest group that there can be is calculated within the time that 1000 looks at
 * each member take: picking one after the other takes 10 000.
 */
#include "postgres.h"

#include <stdio.h>
#include <time.h>

#include "base/rule.h"

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

#define MAX_MEMBERS		4
#define MAX_PARTITIONS	7

static long checks = 0;
static bool ok = true;

static int	count;
static int	partitions;
static int	weights[MAX_MEMBERS];
static int	owned[MAX_MEMBERS];

static void
check(bool condition, const char *what)
{
	checks++;
	if (condition || !ok)
		return;
	ok = false;
	printf("# %s: %d partitions;", what, partitions);
	for (int i = 0; i < count; i++)
		printf(" weight %d has %d;", weights[i], owned[i]);
	printf("\n");
}

static void
ask(const int *has, int who, int *quotas)
{
	DLockRuleMember members[MAX_MEMBERS] = {{0}};

	for (int i = 0; i < count; i++)
	{
		members[i].weight = weights[i];
		members[i].owned = has[i];
		members[i].asks = (i == who);
	}
	dlock_rule_quotas(members, count, partitions);
	for (int i = 0; i < count; i++)
		quotas[i] = members[i].quota;
}

static int
total_weight(void)
{
	int			total = 0;

	for (int i = 0; i < count; i++)
		total += weights[i];
	return total;
}

static int
surplus(const int *has, const int *quotas)
{
	int			sum = 0;

	for (int i = 0; i < count; i++)
		sum += Max(0, has[i] - quotas[i]);
	return sum;
}

/* Less than what must move with any quotas that round shares up or down? */
static int
least_surplus(void)
{
	int			least = partitions + 1;

	for (int set = 0; set < (1 << count); set++)
	{
		int			quotas[MAX_MEMBERS];
		int			sum = 0;
		bool		fair = true;

		for (int i = 0; i < count; i++)
		{
			int			up = (set >> i) & 1;

			quotas[i] = partitions * weights[i] / total_weight() + up;
			sum += quotas[i];
			if (up && partitions * weights[i] % total_weight() == 0)
				fair = false;
		}
		if (fair && sum == partitions)
			least = Min(least, surplus(owned, quotas));
	}
	return least;
}

static void
check_quotas(int who)
{
	int			quotas[MAX_MEMBERS];
	int			sum = 0;

	ask(owned, who, quotas);
	for (int i = 0; i < count; i++)
	{
		int			share = partitions * weights[i];

		sum += quotas[i];
		check(abs(quotas[i] * total_weight() - share) < total_weight(), "a quota is off the share by one");
	}
	check(sum == partitions, "the quotas do not add up");
	check(surplus(owned, quotas) == least_surplus(), "more moves than has to");
}

/* Each in turn gives up what it has too many of, or takes what is free. */
static void
check_turns(int first)
{
	int			has[MAX_MEMBERS];
	int			quotas[MAX_MEMBERS];
	int			free = partitions;
	int			moved = 0;

	for (int i = 0; i < count; i++)
		free -= has[i] = owned[i];
	for (int turn = 0; turn < 2 * count; turn++)
	{
		int			who = (first + turn) % count;
		int			change;

		ask(has, who, quotas);
		change = Min(quotas[who] - has[who], free);
		moved += Max(0, -change);
		has[who] += change;
		free -= change;
	}
	check(free == 0, "one is free after two turns");
	check(moved == least_surplus(), "more moves in two turns than has to");
	for (int who = 0; who < count; who++)
	{
		ask(has, who, quotas);
		for (int i = 0; i < count; i++)
			check(has[i] == quotas[i], "somebody is not content after two turns");
	}
}

/* All ways to own, for the members from "from" on. */
static void
over_owned(int from, int left)
{
	if (from < count)
	{
		for (owned[from] = 0; owned[from] <= left; owned[from]++)
			over_owned(from + 1, left - owned[from]);
		return;
	}
	for (int who = -1; who < count; who++)
		check_quotas(who);
	for (int first = 0; first < count; first++)
		check_turns(first);
}

static void
over_weights(int from)
{
	static const int some[] = {1, 2, 3, 5};

	if (from == count)
	{
		for (partitions = 1; partitions <= MAX_PARTITIONS; partitions++)
			over_owned(0, partitions);
		return;
	}
	for (int i = 0; i < (int) lengthof(some); i++)
	{
		weights[from] = some[i];
		over_weights(from + 1);
	}
}

/* ---- large groups ---- */

#define MANY_MEMBERS	10000

static DLockRuleMember many[MANY_MEMBERS];
static int	picked[MANY_MEMBERS];
static int64 remainders[MANY_MEMBERS];

static uint32 seed = 1;

/* A number from 0 to limit - 1; the same ones in each run. */
static int
some(int limit)
{
	seed = seed * 1664525 + 1013904223;
	return (int) ((seed >> 8) % (uint32) limit);
}

/* Is "a" to be given one more before "b", which stands behind it? */
static bool
comes_first(int a, int b)
{
	bool		a_has = many[a].owned > picked[a];
	bool		b_has = many[b].owned > picked[b];

	if (a_has != b_has)
		return a_has;
	if (remainders[a] != remainders[b])
		return remainders[a] > remainders[b];
	return a_has || !many[b].asks;
}

/* The quotas by picking one after the other. */
static void
pick_quotas(int members, int of)
{
	int64		sum = 0;
	int			left = of;

	for (int i = 0; i < members; i++)
		sum += many[i].weight;
	for (int i = 0; i < members; i++)
	{
		picked[i] = (int) ((int64) of * many[i].weight / sum);
		remainders[i] = (int64) of * many[i].weight % sum;
		left -= picked[i];
	}
	for (; left > 0; left--)
	{
		int			next = -1;

		for (int i = 0; i < members; i++)
		{
			if (remainders[i] > 0 && (next < 0 || !comes_first(next, i)))
				next = i;
		}
		picked[next]++;
		remainders[next] = 0;
	}
}

static void
set_many(int members, int of, int heaviest)
{
	int			asks = some(2 * members);
	int			most = 1 + 2 * of / members;

	for (int i = 0; i < members; i++)
	{
		many[i].weight = 1 + some(heaviest);
		many[i].owned = some(most + 1);
		many[i].asks = (i == asks);
	}
}

static bool
check_random(void)
{
	static const int heaviest[] = {1, 2, 7, DLOCK_RULE_WEIGHT_MAX};

	for (int round = 0; round < 20000; round++)
	{
		int			members = 1 + some(round % 100 == 0 ? 300 : 30);
		int			of = 1 + some(round % 3 == 0 ? 10000 : 2 * members);

		set_many(members, of, heaviest[round % lengthof(heaviest)]);
		pick_quotas(members, of);
		dlock_rule_quotas(many, members, of);
		for (int i = 0; i < members; i++)
		{
			if (many[i].quota == picked[i])
				continue;
			printf("# round %d: %d members, %d partitions: %d is due %d, not %d\n",
				   round, members, of, i, many[i].quota, picked[i]);
			return false;
		}
	}
	return true;
}

/* What 1000 looks at each member take; the answer is of no interest. */
static int
look_often(void)
{
	volatile int sum = 0;

	for (int round = 0; round < 1000; round++)
	{
		for (int i = 0; i < MANY_MEMBERS; i++)
			sum += many[i].owned > round;
	}
	return sum;
}

/* The least processor time of some calls, in clock ticks. */
static clock_t
least_time(bool compute)
{
	clock_t		least = 0;

	for (int i = 0; i < 5; i++)
	{
		clock_t		began = clock();
		clock_t		took;

		if (compute)
			dlock_rule_quotas(many, MANY_MEMBERS, MANY_MEMBERS - 1);
		else
			(void) look_often();
		took = clock() - began;
		least = (i == 0) ? took : Min(least, took);
	}
	return least;
}

static bool
check_largest(void)
{
	clock_t		took;
	clock_t		limit;

	set_many(MANY_MEMBERS, MANY_MEMBERS - 1, 1);
	took = least_time(true);
	limit = least_time(false);
	printf("# the largest group: %.2f ms, limit %.2f ms\n",
		   took * 1000.0 / CLOCKS_PER_SEC, limit * 1000.0 / CLOCKS_PER_SEC);
	return took < limit;
}

static void
report(int number, bool passed, const char *what)
{
	printf("%s %d - %s\n", passed ? "ok" : "not ok", number, what);
	ok = ok && passed;
}

int
main(void)
{
	bool		all = true;

	printf("1..%d\n", MAX_MEMBERS + 2);
	for (count = 1; count <= MAX_MEMBERS; count++)
	{
		ok = true;
		checks = 0;
		over_weights(0);
		printf("%s %d - groups of %d (%ld checks)\n", ok ? "ok" : "not ok", count, count, checks);
		all = all && ok;
	}
	ok = all;
	report(MAX_MEMBERS + 1, check_random(), "random groups: as picked one after the other");
	report(MAX_MEMBERS + 2, check_largest(), "the largest group: no square of its members");
	return !ok;
}
