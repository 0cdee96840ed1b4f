/* link: src/base/rule.o */
/*
 * rule_test.c
 *	  The rules of leases, over all combinations of what they depend on.
 *
 * What the rules promise is stated here anew, as invariants, and checked: for
 * each mode against each other, in each way of asking; and for every term that
 * a grant and up to three renewals or re-entries can lead to, at every time
 * around the instants that matter.
 */
#include "postgres.h"

#include <stdio.h>

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
	DLockTime	left = dlock_rule_remaining(logged, DLOCK_RULE_SAME_SERVER, now, 0, 0);

	CHECK(left >= promised, "same server: " INT64_FORMAT " left, promised " INT64_FORMAT,
		  left, promised);
	CHECK(left <= logged->ttl, "same server: " INT64_FORMAT " left", left);

	/*
	 * Another one may have been promised, without a record, all up to the
	 * bound.
	 */
	left = dlock_rule_remaining(logged, DLOCK_RULE_SAME_BOOT, now, 0, 0);
	CHECK(now + left >= logged->bound_mono, "same boot: before the bound");
	CHECK(left <= 2 * logged->ttl, "same boot: " INT64_FORMAT " left", left);

	for (int s = 0; s < N(skews); s++)
	{
		for (int j = 0; j < N(jumps); j++)
		{
			/* The clock of another boot counts from anywhere. */
			left = dlock_rule_remaining(logged, DLOCK_RULE_ELSEWHERE, 12345,
										now + WALL_OFFSET + jumps[j], skews[s]);
			CHECK(left <= 2 * logged->ttl, "elsewhere: " INT64_FORMAT " left", left);
			if (jumps[j] <= skews[s])
				CHECK(now + left >= logged->bound_mono,
					  "elsewhere: " INT64_FORMAT " left, promised " INT64_FORMAT, left, promised);
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

		for (int t = -1; t < N(ttls) * 2 + 1; t++)
		{
			bool		reenter = t >= N(ttls);
			int			which = reenter ? t - N(ttls) - 1 : t;
			DLockTime	ttl = which < 0 ? 0 : ttls[which];
			DLockRuleRenewal renewal = reenter ?
				dlock_rule_reenter(&term, ttl, when[i], when[i] + WALL_OFFSET) :
				dlock_rule_renew(&term, ttl, when[i], when[i] + WALL_OFFSET);
			DLockTerm	on_disk = renewal.must_log ? renewal.term : logged;

			check_term(&renewal.term, when[i]);
			if (reenter)
			{
				CHECK(renewal.term.deadline ==
					  Max(term.deadline, when[i] + (ttl == 0 ? term.ttl : ttl)),
					  "re-entry: not what was asked for, or nearer");
				CHECK(renewal.term.ttl >= term.ttl && renewal.term.ttl >= ttl,
					  "re-entry: a shorter ttl");
			}
			else if (ttl == 0)
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
	end_test("grants, renewals, re-entries, and what a crash makes of them");
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
				CHECK(dlock_rule_remaining(&term, DLOCK_RULE_SAME_SERVER, when[i], when[i], 10000000) ==
					  term.deadline - when[i],
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

/* 2026-01-01 and 2000-01-01, UTC, as seconds since 1970. */
#define TOKEN_START ((INT64CONST(1767225600) - INT64CONST(946684800)) * 1000000)
#define TOKEN_END	((INT64CONST(1) << 53) - 1)

static void
test_token_clock(void)
{
	static const TimestampTz never[] = {PG_INT64_MIN, -1, 0, TOKEN_START - 1};
	static const TimestampTz too_late[] = {
		TOKEN_START + (INT64CONST(1) << 31) * 1000000,
		TOKEN_START + YEARS_68 * 2, PG_INT64_MAX - 1, PG_INT64_MAX
	};

	begin_test();
	for (int i = 0; i < N(never); i++)
		CHECK(dlock_rule_token_clock(never[i]) == 0, "before it starts: %lld", LL(never[i]));
	for (int i = 0; i < N(too_late); i++)
		CHECK(dlock_rule_token_clock(too_late[i]) == TOKEN_END, "after its end: %lld", LL(too_late[i]));
	CHECK(dlock_rule_token_clock(too_late[0] - 1) < TOKEN_END, "at its end");
	CHECK(dlock_rule_token_clock(TOKEN_START + 1000000) == 1 << 22, "its pace");
	CHECK(dlock_rule_token_clock(TOKEN_START + 86400 * INT64CONST(1000000)) == INT64CONST(86400) << 22,
		  "its pace in a day");

	/*
	 * Against the same in wider numbers; it never goes back, nor stands for 1
	 * us.
	 */
	for (int shift = 0; shift < 51; shift++)
	{
		for (int around = -3; around <= 3; around++)
		{
			int64		us = (INT64CONST(1) << shift) + around;
			DLockToken	clock;

			if (us < 0)
				continue;
			clock = dlock_rule_token_clock(TOKEN_START + us);
			CHECK(clock == (int64) (((__int128) us << 22) / 1000000), "%lld us", LL(us));
			CHECK(dlock_rule_token_clock(TOKEN_START + us + 1) > clock, "%lld us", LL(us));
		}
	}
	end_test("the clock of the tokens: its start, pace and end");
}

static void
test_token_base(void)
{
	const int64 step = INT64CONST(1) << 30;

	begin_test();
	for (int v = -1; v < 63; v++)
	{
		for (int around = -1; around <= 1; around++)
		{
			DLockToken	value = (v < 0) ? PG_INT64_MIN + 1 + around : (INT64CONST(1) << v) + around;

			for (int r = -1; r < 53; r++)
			{
				DLockToken	reserved = (r < 0) ? 0 : (INT64CONST(1) << r) - 1;

				for (int w = -1; w < 63; w++)
				{
					TimestampTz wall = (w < 0) ? PG_INT64_MIN : (INT64CONST(1) << w);
					DLockToken	clock = dlock_rule_token_clock(wall);
					DLockToken	base = dlock_rule_token_base(wall, reserved, value);

					CHECK(base >= 0 && base <= TOKEN_END, "out of range: %lld", LL(base));
					CHECK(base >= clock && base >= reserved, "below what is known");
					CHECK(base == TOKEN_END || base >= value, "below the value");
					if (value <= Max(reserved, clock))
						CHECK(base == clock || base == reserved, "ahead of the clock: %lld", LL(base));
					else
						CHECK(base == TOKEN_END || base - value >= step, "too near to %lld", LL(value));
				}
			}
		}
	}
	CHECK(dlock_rule_token_base(0, 0, TOKEN_END) == TOKEN_END, "from the last");
	CHECK(dlock_rule_token_base(0, 0, PG_INT64_MAX) == TOKEN_END, "from beyond the last");
	CHECK(dlock_rule_token_base(0, 5, 5) == 5, "from our own");
	CHECK(dlock_rule_token_base(0, 5, 6) == 6 + step, "from another's");
	CHECK(dlock_rule_token_base(PG_INT64_MAX, 0, 0) == TOKEN_END, "at the end of time");
	end_test("tokens begin at the clock, or well above what it is behind, and end cleanly");
}

/*
 * Servers take turns, each from a past that it may have forgotten: of all that was
 * handed out before, a new turn knows any part.  As long as the clock does not
 * go back, and no server makes 2^22 grants a second, it begins above all of it,
 * however short the turns.  What two blocks are worth goes by between turns.
 */
static void
test_token_histories(void)
{
	const int64 second = 1000000;
	uint64		random = 42;

#define RANDOM(n) ((int64) ((random = random * UINT64CONST(6364136223846793005) + \
							 UINT64CONST(1442695040888963407)) >> 33) % (n))

	begin_test();
	for (int history = 0; history < 2000; history++)
	{
		TimestampTz wall = TOKEN_START + RANDOM(1000000000) * second;
		DLockToken	highest = dlock_rule_token_clock(wall);
		int64		behind = 0;

		for (int turn = 0; turn < 100; turn++)
		{
			int64		uptime = 31250 + RANDOM(turn % 2 ? second : 100000 * second);
			int64		rate = RANDOM(turn % 3 ? 100 : 4000000);
			DLockToken	known = RANDOM(3) ? highest / (1 + RANDOM(4)) : highest * RANDOM(2);
			DLockToken	base = dlock_rule_token_base(wall, 0, known);

			CHECK(base >= highest, "turn %d begins at %lld after %lld", turn, LL(base), LL(highest));
			highest = base + uptime * rate / second;
			wall += uptime;
			CHECK(highest <= dlock_rule_token_clock(wall), "turn %d is ahead of the clock", turn);
		}

		/* A clock that goes back: from what is known, and by a step each. */
		for (int turn = 0; turn < 50; turn++)
		{
			DLockToken	base = dlock_rule_token_base(wall - second * 1000, 0, highest);

			CHECK(base > highest, "turn %d with a clock that is behind", turn);
			highest = base + 131072;
			behind++;
		}
		CHECK(highest <= dlock_rule_token_clock(wall) + behind * ((INT64CONST(1) << 30) + 131072),
			  "too far ahead");
		wall += behind * 257 * second;
		CHECK(dlock_rule_token_base(wall, 0, 0) > highest, "and not caught up with");
	}
	end_test("servers that know nothing of each other begin above each other");
}

/*
 * The compatibility matrix as the OpenVMS manual prints it, rows the mode
 * asked for, columns the one held; permits go with no mode, and with each
 * other as far as this matrix is concerned.
 */
static const char *const mode_names[] = {"NL", "CR", "CW", "PR", "PW", "EX", "permit"};
static const char *const matrix[DLOCK_MODES] = {
	/* NL CR CW PR PW EX permit */
	"YYYYYY.",					/* NL */
	"YYYYY..",					/* CR */
	"YYY....",					/* CW */
	"YY.Y...",					/* PR */
	"YY.....",					/* PW */
	"Y......",					/* EX */
	"......Y"					/* permit */
};

#define FOR_MODES(m) for (int m = 0; m < DLOCK_MODES; m++)

static bool
compatible(int a, int b)
{
	return matrix[a][b] == 'Y';
}

/* Does whoever may not come to "weak" find "strong" in the way, too? */
static bool
covers(int strong, int weak)
{
	FOR_MODES(other)
	{
		if (!compatible(weak, other) && compatible(strong, other))
			return false;
	}
	return true;
}

static void
test_compatibility(void)
{
	begin_test();
	CHECK(DLOCK_MODES == 7, "a mode that this test does not know");
	FOR_MODES(a)
	{
		FOR_MODES(b)
		{
			CHECK(dlock_rule_is_compatible(a, b) == compatible(a, b),
				  "%s asked, %s held", mode_names[a], mode_names[b]);
			CHECK(dlock_rule_is_compatible(a, b) == dlock_rule_is_compatible(b, a),
				  "%s and %s: not the same both ways", mode_names[a], mode_names[b]);
			CHECK(((dlock_rule_conflicts(a) >> b) & 1) == !compatible(a, b),
				  "%s and %s: not in the set", mode_names[a], mode_names[b]);
			CHECK(DLOCK_RULE_BIT(b) == (uint32) 1 << b, "%s: bit", mode_names[b]);
		}
		CHECK(dlock_rule_conflicts(a) >> DLOCK_MODES == 0, "%s: no such modes", mode_names[a]);
	}
	end_test("each mode against each other");
}

/*
 * Why one timer is enough for a queue: a request A is blocked by X; B, behind it, may pass by
 * A, and is blocked by Y, which stands beside X.  Then X blocks B, too.
 */
static void
test_timers(void)
{
	begin_test();
	FOR_MODES(a)
	{
		FOR_MODES(b)
		{
			FOR_MODES(x)
			{
				FOR_MODES(y)
					CHECK(dlock_rule_is_compatible(a, x) || dlock_rule_waits_behind(b, DLOCK_RULE_BIT(a)) ||
						  dlock_rule_is_compatible(b, y) || !dlock_rule_is_compatible(x, y) ||
						  !dlock_rule_is_compatible(b, x),
						  "%s behind %s, beside %s and %s", mode_names[b], mode_names[a], mode_names[x], mode_names[y]);
			}
		}
	}
	end_test("what blocks who passes by a request");
}

static void
test_upgrades(void)
{
	/*
	 * Each covers all before it in a row; what is in no row is an upgrade
	 * both ways.
	 */
	static const int rows[][5] = {
		{DLOCK_MODE_NL, DLOCK_MODE_CR, DLOCK_MODE_CW, DLOCK_MODE_PW, DLOCK_MODE_EX},
		{DLOCK_MODE_NL, DLOCK_MODE_CR, DLOCK_MODE_PR, DLOCK_MODE_PW, DLOCK_MODE_EX}
	};

	begin_test();
	FOR_MODES(from)
	{
		FOR_MODES(to)
		{
			CHECK(dlock_rule_is_upgrade(from, to) == !covers(from, to),
				  "%s to %s", mode_names[from], mode_names[to]);

			/* Whoever holds the lock beside "from" may do so beside "to". */
			if (!dlock_rule_is_upgrade(from, to))
			{
				FOR_MODES(other)
					CHECK(!dlock_rule_is_compatible(from, other) || dlock_rule_is_compatible(to, other),
						  "%s to %s beside %s", mode_names[from], mode_names[to], mode_names[other]);
			}
		}
		CHECK(!dlock_rule_is_upgrade(from, from), "%s to itself", mode_names[from]);
	}
	for (int r = 0; r < N(rows); r++)
	{
		for (int strong = 0; strong < 5; strong++)
		{
			for (int weak = 0; weak < 5; weak++)
				CHECK(dlock_rule_is_upgrade(rows[r][weak], rows[r][strong]) == (weak < strong),
					  "%s to %s", mode_names[rows[r][weak]], mode_names[rows[r][strong]]);
		}
	}
	CHECK(dlock_rule_is_upgrade(DLOCK_MODE_CW, DLOCK_MODE_PR), "CW to PR");
	CHECK(dlock_rule_is_upgrade(DLOCK_MODE_PR, DLOCK_MODE_CW), "PR to CW");
	end_test("from each mode to each other: up, or not");
}

static void
test_intents(void)
{
	static const int intents[] = {
		[DLOCK_MODE_NL] = DLOCK_MODE_NL,
		[DLOCK_MODE_CR] = DLOCK_MODE_CR,
		[DLOCK_MODE_CW] = DLOCK_MODE_CW,
		[DLOCK_MODE_PR] = DLOCK_MODE_CR,
		[DLOCK_MODE_PW] = DLOCK_MODE_CW,
		[DLOCK_MODE_EX] = DLOCK_MODE_CW
	};

	begin_test();
	for (int below = 0; below < N(intents); below++)
	{
		DLockMode	intent = dlock_rule_intent(below);

		CHECK(intent == intents[below], "of %s: %s", mode_names[below], mode_names[intent]);
		CHECK(covers(below, intent), "of %s: more than itself", mode_names[below]);

		/* Siblings do not disturb each other, nor do levels of one path. */
		for (int sibling = 0; sibling < N(intents); sibling++)
			CHECK(compatible(intent, dlock_rule_intent(sibling)),
				  "%s and %s below one lock", mode_names[below], mode_names[sibling]);
		CHECK(dlock_rule_intent(intent) == intent, "of the intent of %s", mode_names[below]);

		/*
		 * A lock on the ancestor counts for all that is below: what is not
		 * compatible with it is kept out.  (PW, SIX of the scheme, protects
		 * as PR does.)
		 */
		CHECK(compatible(intent, DLOCK_MODE_EX) == (below == DLOCK_MODE_NL),
			  "%s below EX", mode_names[below]);
		CHECK(compatible(intent, DLOCK_MODE_PR) == compatible(below, DLOCK_MODE_PR),
			  "%s below PR", mode_names[below]);
		CHECK(compatible(intent, DLOCK_MODE_PW) == compatible(below, DLOCK_MODE_PR),
			  "%s below PW", mode_names[below]);
	}
	end_test("intents for each mode, and what an ancestor keeps out");
}

static void
test_decisions(void)
{
	static const char *const reentries[] = {"deny", "count", "return"};

	begin_test();
	FOR_MODES(mode)
	{
		FOR_MODES(held)
		{
			for (int way = 0; way < 3 * 8; way++)
			{
				DLockRuleCase asked = {
					.mode = mode,
					.held = held,
					.reentry = way / 8,
					.may_wait = way & 1,
					.held_by_owner = (way & 2) != 0,
					.blocked = (way & 4) != 0
				};
				DLockRuleVerdict verdict = dlock_rule_decide(&asked);
				DLockRuleVerdict expected;

				if (!asked.held_by_owner && !asked.blocked)
					expected = DLOCK_RULE_GRANT;
				else if (!asked.held_by_owner)
					expected = asked.may_wait ? DLOCK_RULE_QUEUE : DLOCK_RULE_REFUSE;
				else if (asked.reentry == DLOCK_REENTRY_DENY)
					expected = asked.may_wait ? DLOCK_RULE_SELF : DLOCK_RULE_REFUSE;
				else
					expected = covers(held, mode) ? DLOCK_RULE_REENTER : DLOCK_RULE_WEAKER;
				CHECK(verdict == expected,
					  "%s asked, %s %s, %s, %s, %s: %d, expected %d", mode_names[mode],
					  mode_names[held], asked.held_by_owner ? "held by the owner" : "not held",
					  reentries[asked.reentry], asked.may_wait ? "waiting" : "at once",
					  asked.blocked ? "blocked" : "not blocked", verdict, expected);
			}
		}
	}
	end_test("what to answer: mode, mode held, re-entry, wait, and what is in the way");
}

static void
test_releases(void)
{
	static const uint32 holds[] = {1, 2, 3, 0x7FFFFFFF, 0xFFFFFFFF};
	static const DLockTime times[] = {0, 1, 2, 1000, 1001, INT64CONST(4000000000000), PG_INT64_MAX};

	begin_test();
	for (int h = 0; h < N(holds); h++)
	{
		for (int m = 0; m < N(times); m++)
		{
			for (int n = 0; n < N(times); n++)
			{
				DLockRuleEnd end = dlock_rule_release(holds[h], times[m], times[n]);

				if (holds[h] > 1)
					CHECK(end == DLOCK_RULE_COUNT_DOWN, "held more than once");
				else if (times[n] >= times[m])
					CHECK(end == DLOCK_RULE_END, "held long enough");
				else
					CHECK(end == DLOCK_RULE_CLOSE, "not held long enough");
			}
		}
	}
	for (int d = 0; d < N(times); d++)
	{
		for (int t = 0; t < N(times); t++)
		{
			DLockTime	until = dlock_rule_blocks_until(times[t], times[d]);

			CHECK(until >= times[t], "opens before the deadline");
			if (times[t] < PG_INT64_MAX && times[d] < PG_INT64_MAX)
				CHECK(until == times[t] + times[d], "opens at %lld", LL(until));
			else if (times[d] > 0 || times[t] == PG_INT64_MAX)
				CHECK(until == PG_INT64_MAX, "opens at %lld, never", LL(until));
		}
	}
	end_test("releases and ends: how often held, how long, and how long closed");
}

/* A lease without a deadline stays one, unless a renewal gives it one. */
static void
test_no_deadline(void)
{
	begin_test();
	for (int s = 0; s < N(starts); s++)
	{
		DLockTerm	term = dlock_rule_grant(0, starts[s], starts[s] + WALL_OFFSET);
		DLockTime	now = starts[s] + YEARS_68;

		CHECK(term.ttl == 0 && term.deadline == DLOCK_TIME_FOREVER, "granted with a deadline");
		CHECK(dlock_rule_is_live(term.deadline, now), "ends by itself");
		CHECK(dlock_rule_blocks_until(term.deadline, YEARS_68) == DLOCK_TIME_FOREVER, "opens by itself");
		for (int t = -1; t < N(ttls); t++)
		{
			DLockTime	ttl = t < 0 ? 0 : ttls[t];
			DLockRuleRenewal renewal = dlock_rule_renew(&term, ttl, now, now + WALL_OFFSET);
			DLockRuleRenewal reentry = dlock_rule_reenter(&term, ttl, now, now + WALL_OFFSET);

			CHECK(reentry.term.ttl == 0 && reentry.term.deadline == DLOCK_TIME_FOREVER,
				  "re-entry brings the deadline nearer");
			CHECK(!reentry.must_log, "re-entry changes nothing, and is logged");
			if (ttl == 0)
				CHECK(renewal.term.ttl == 0 && renewal.term.deadline == DLOCK_TIME_FOREVER &&
					  !renewal.must_log,
					  "renewal gives it a deadline unasked");
			else
			{
				CHECK(renewal.term.ttl == ttl && renewal.term.deadline == now + ttl && renewal.must_log,
					  "renewal does not give it the deadline asked for");
				check_term(&renewal.term, now);
			}
		}
	}
	end_test("leases without a deadline");
}

/* Only a boot that is known, and the same, makes times of its clock comparable. */
static void
test_origins(void)
{
	static const uint64 boots[] = {0, 1, 2, PG_UINT32_MAX};
	static const uint64 servers[] = {0, 1, PG_UINT32_MAX};

	begin_test();
	for (int i = 0; i < N(boots) * N(servers); i++)
	{
		uint64		record = boots[i / N(servers)] << 32 | servers[i % N(servers)];

		for (int j = 0; j < N(boots) * N(servers); j++)
		{
			uint64		here = boots[j / N(servers)] << 32 | servers[j % N(servers)];
			bool		elsewhere = i / N(servers) == 0 || i / N(servers) != j / N(servers);

			CHECK(dlock_rule_origin(record, here) ==
				  (elsewhere ? DLOCK_RULE_ELSEWHERE : i == j ? DLOCK_RULE_SAME_SERVER : DLOCK_RULE_SAME_BOOT),
				  "record %llx, here %llx", (unsigned long long) record, (unsigned long long) here);
		}
	}
	end_test("where a record is from");
}

/*
 * A server is promoted, loads a lease that the old one, which is cut off, may still
 * renew, and writes it; then it restarts on the same boot.  It must keep the lock
 * until the old one's bound.
 */
static void
test_restart_after_promotion(void)
{
	const DLockTime ttl = 10000000;
	const uint64 old = (uint64) 7 << 32 | 1;
	const uint64 promoted = (uint64) 8 << 32 | 2;

	begin_test();
	for (DLockTime after = 0; after < 2 * ttl; after += ttl / 10)
	{
		DLockTerm	granted = dlock_rule_grant(ttl, 0, 0);
		DLockTerm	term = dlock_rule_renew(&granted, 0, 1, 1).term;
		DLockTime	promised = term.bound_mono;
		DLockTime	now = 1 + after;
		uint64		origin;

		term.deadline = 1 + dlock_rule_remaining(&term, dlock_rule_origin(old, promoted), 1, 1, 0);
		term = dlock_rule_renew(&term, 0, now, now).term;
		origin = dlock_rule_record_origin(&term, promoted, now);
		now += dlock_rule_remaining(&term, dlock_rule_origin(origin, promoted), now, now, 0);
		CHECK(now >= promised, "free " INT64_FORMAT " us too early", promised - now);
	}

	/*
	 * Its record of the lease is no renewal, and the old one's clock may be
	 * wrong.
	 */
	for (DLockTime skew = 0; skew < 2 * ttl; skew += ttl / 10)
	{
		DLockTerm	term = dlock_rule_grant(ttl, 0, 0);
		DLockTerm	record;
		DLockTime	left;

		term.bound_mono = dlock_rule_remaining(&term, dlock_rule_origin(old, promoted), 0, 0, 0);
		term.deadline = dlock_rule_remaining(&term, dlock_rule_origin(old, promoted), 0, 0, skew);
		record = dlock_rule_record_term(&term, 0, 0);
		left = dlock_rule_remaining(&record, dlock_rule_origin(dlock_rule_record_origin(&term, promoted, 0), promoted), 0, 0, 0);
		CHECK(left == term.deadline, INT64_FORMAT " us are lost", term.deadline - left);
		CHECK(record.bound_wall == term.deadline, "so on the wall clock");
	}
	{
		DLockTerm	term = dlock_rule_grant(ttl, 0, 0);

		CHECK(dlock_rule_record_origin(&term, promoted, 0) == promoted, "an own grant is limited");
		term = dlock_rule_grant(0, 0, 0);
		CHECK(dlock_rule_record_origin(&term, promoted, 0) == promoted, "without a ttl");
	}
	end_test("a restart after a promotion");
}

int
main(void)
{
	printf("1..15\n");
	test_compatibility();
	test_timers();
	test_upgrades();
	test_intents();
	test_decisions();
	test_releases();
	test_grants_and_renewals();
	test_no_deadline();
	test_exact_recovery();
	test_heartbeats();
	test_token_clock();
	test_token_base();
	test_token_histories();
	test_origins();
	test_restart_after_promotion();
	return failures > 0;
}
