/* link: src/cli/cli.o src/cli/lease.o -lpq */
/*
 * cli_test.c
 *	  The parts of the dlock command that are pure: spans of time, the deadline
 *	  of a lease, the setting dlock.tokens and PGOPTIONS that carries it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/lease.h"

static int	test_count = 0;
static int	failures = 0;
static bool current_ok = true;

#define CHECK(condition, ...) \
	do { \
		if (!(condition)) \
		{ \
			if (current_ok) \
			{ \
				printf("# line %d: %s: ", __LINE__, #condition); \
				printf(__VA_ARGS__); \
				printf("\n"); \
			} \
			current_ok = false; \
		} \
	} while (0)

static void
end_test(const char *name)
{
	test_count++;
	printf("%s %d - %s\n", current_ok ? "ok" : "not ok", test_count, name);
	failures += !current_ok;
	current_ok = true;
}

static void
test_durations(void)
{
	static const struct
	{
		const char *text;
		CliTime		span;		/* negative: refused */
	}			cases[] =
	{
		{"0", 0}, {"10", 10000000}, {"1.5", 1500000}, {".5", 500000}, {"2.", 2000000},
		{"500ms", 500000}, {"0.5ms", 500}, {"1.25ms", 1250}, {"10s", 10000000}, {"5m", 300000000},
		{"5min", 300000000}, {"2h", INT64_C(7200000000)}, {"1d", INT64_C(86400000000)},
		{"0.1d", INT64_C(8640000000)}, {"1.000000001s", 1000000}, {"0.9999999999d", INT64_C(86399999991)},
		{"36525d", INT64_C(36525) * 86400 * 1000000},
		{"", -1}, {"s", -1}, {".", -1}, {"-1", -1}, {"+1", -1}, {" 1", -1}, {"1 ", -1}, {"1e3", -1},
		{"1.5.2", -1}, {"1x", -1}, {"1S", -1}, {"nan", -1}, {"inf", -1}, {"0x10", -1}, {"1,5", -1},
		{"36526d", -1}, {"99999999999999999999", -1}, {"9999999999999999d", -1}
	};

	for (size_t i = 0; i < CLI_LENGTH(cases); i++)
	{
		CliTime		span = -1;
		bool		taken = duration_parse(cases[i].text, &span);

		CHECK(taken == (cases[i].span >= 0), "\"%s\"", cases[i].text);
		CHECK(!taken || span == cases[i].span, "\"%s\" is %lld", cases[i].text, (long long) span);
	}
	end_test("spans as people write them");

	for (CliTime span = 1; span < INT64_C(40) * 86400 * CLI_SECOND; span = span * 3 + 7)
	{
		char		text[DURATION_SIZE];
		CliTime		again = -1;

		CHECK(duration_parse(duration_print(span, text), &again), "%s", text);
		CHECK(again == span, "%lld: %s", (long long) span, text);
	}
	end_test("spans are read as they are printed");

	{
		char		text[DURATION_SIZE];

		CHECK(strcmp(duration_sql(1500001, text), "1.500001 seconds") == 0, "%s", text);
		CHECK(strcmp(duration_sql(0, text), "0.000000 seconds") == 0, "%s", text);
	}
	end_test("spans as SQL has them");
}

static void
test_lease(void)
{
	int			plans = 0;

	for (CliTime ttl = 500 * CLI_MS; ttl < 100000 * CLI_SECOND; ttl = ttl * 5 / 4 + 1)
	{
		for (CliTime kill_after = 0; kill_after <= ttl * 2; kill_after = kill_after * 3 / 2 + 100 * CLI_MS)
		{
			for (int flags = 0; flags < 2; flags++)
			{
				Lease		lease;
				CliTime		sent = 12345678;
				bool		may = lease_plan(&lease.plan, ttl, kill_after, flags & 1);

				CHECK(may || ttl < LEASE_SHORTEST || !(flags & 1), "ttl %lld", (long long) ttl);
				CHECK(may || ttl < LEASE_SHORTEST || kill_after > ttl / 3, "ttl %lld, kill after %lld",
					  (long long) ttl, (long long) kill_after);
				if (!may)
					continue;
				plans++;
				CHECK((flags & 1) || lease.plan.kill_after == kill_after, "not asked for");
				lease_extend(&lease, sent);
				CHECK(lease.deadline == sent + ttl, "deadline");
				CHECK(sent < lease.renew_at && lease.renew_at < lease.term_at, "renewed in time");
				CHECK(lease.term_at - lease.renew_at >= ttl / 8, "time for a second attempt");
				CHECK(lease.term_at <= lease.kill_at && lease.kill_at < lease.deadline, "order");
				CHECK(lease.term_at - lease.renew_at == lease_outage(&lease.plan), "outage budget");
				CHECK(lease.renew_at - sent <= CLI_SECOND, "a loss is learned of soon");
				CHECK(lease.kill_at - lease.term_at == lease.plan.kill_after, "kill after");
				CHECK(lease_is_fresh(&lease, sent), "fresh");
				CHECK(!lease_is_fresh(&lease, lease.renew_at), "not fresh");
			}
		}
	}
	CHECK(plans > 1000, "%d plans", plans);
	end_test("a command is gone before the deadline, and renewals come before that");

	for (CliTime kill_after = 0; kill_after < 1000 * CLI_SECOND; kill_after = kill_after * 2 + 300 * CLI_MS)
	{
		CliTime		least = lease_least_ttl(kill_after);
		LeasePlan	plan;

		CHECK(lease_plan(&plan, least, kill_after, false), "as told");
		CHECK(least <= 2 * kill_after + 3 * CLI_SECOND, "and not for ever");
	}
	end_test("the ttl that is recommended will do");
}

static void
check_tokens(const char *outer, const char *name, const char *token, const char *expected, const char *replaced)
{
	char	   *old = NULL;
	char	   *list = lease_tokens(outer, name, token, &old);

	CHECK(strcmp(list, expected) == 0, "%s", list);
	CHECK((old != NULL) == (replaced != NULL) && (old == NULL || strcmp(old, replaced) == 0), "%s", (old != NULL) ? old : "none");
	free(old);
	free(list);
}

static void
check_options(const char *options, const char *tokens, const char *expected)
{
	char	   *all = lease_pgoptions(options, tokens);

	CHECK(strcmp(all, expected) == 0, "%s", all);
	free(all);
}

static void
test_tokens(void)
{
	check_tokens(NULL, "a", "1", "a=1", NULL);
	check_tokens("", "a", "1", "a=1", NULL);
	check_tokens(NULL, "A_z-0./:9", "1", "A_z-0./:9=1", NULL);
	check_tokens(NULL, "a b", "1", "\"a b=1\"", NULL);
	check_tokens(NULL, "a,b", "1", "\"a,b=1\"", NULL);
	check_tokens(NULL, "a=b", "1", "\"a=b=1\"", NULL);
	check_tokens(NULL, "a\"b", "1", "\"a\"\"b=1\"", NULL);
	check_tokens(NULL, "\303\244", "1", "\"\303\244=1\"", NULL);
	check_tokens("a=1", "b", "2", "a=1,b=2", NULL);
	check_tokens("a=1,b=2", "a", "3", "b=2,a=3", "1");
	check_tokens("\"x,y=1\",b=2", "x,y", "3", "b=2,\"x,y=3\"", "1");
	check_tokens("\"x y=z=1\",b=2", "x y", "3", "\"x y=z=1\",b=2,\"x y=3\"", NULL);
	check_tokens("\"x,\"\",y=1\",b=2", "c", "3", "\"x,\"\",y=1\",b=2,c=3", NULL);
	check_tokens("ab=1", "a", "2", "ab=1,a=2", NULL);
	check_tokens("a=1,,", "b", "2", "a=1,b=2", NULL);
	end_test("the list of tokens");

	check_options(NULL, "a=1", "-c dlock.tokens=a=1");
	check_options("", "a=1", "-c dlock.tokens=a=1");
	check_options("-c x=1", "a=1", "-c x=1 -c dlock.tokens=a=1");
	check_options("-c x=1\\ ", "a=1", "-c x=1\\  -c dlock.tokens=a=1");
	check_options(NULL, "\"a b\\=1\"", "-c dlock.tokens=\"a\\ b\\\\=1\"");
	check_options("-c dlock.tokens=a=1", "a=1,b=2", "-c dlock.tokens=a=1 -c dlock.tokens=a=1,b=2");
	end_test("PGOPTIONS");
}

int
main(void)
{
	test_durations();
	test_lease();
	test_tokens();
	printf("1..%d\n", test_count);
	return failures > 0;
}
