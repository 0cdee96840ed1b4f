/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  What a lease means for the command that runs under it: its deadline, and
 *	  what it finds in its environment.
 *
 * NOTES
 *	  The server counts the ttl from the moment at which it grants or renews,
 *	  which is after the request was sent.  So a holder that counts from
 *	  before it sent the request that was answered has a deadline that is never
 *	  later than the server's, whatever the network does, provided that the
 *	  two clocks go at the same pace.  The margin is for what their paces
 *	  differ by, and for the time that killing takes.
 *
 *		sent         renew_at              term_at      kill_at  deadline
 *		 |- renew_every -|- outage budget ----|- kill_after -|- margin -|
 *
 *	  The setting dlock.tokens is a list of pairs, name=token, separated by commas.
 *	  A pair whose name has anything but letters, digits and a few signs in it stands in
 *	  double quotes, and a quote in it is doubled.  A command that is run under a
 *	  lease may run another one under another, so the list grows inward, in a
 *	  variable of its own.  Of several settings in PGOPTIONS the last one counts.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "lease.h"
#include "pqexpbuffer.h"

/* From KILL to the deadline. */
#define SHORTEST_MARGIN		(100 * CLI_MS)
#define LONGEST_MARGIN		CLI_SECOND

/* How often to renew, at least: that is also how a loss is learned of. */
#define RENEW_EVERY			CLI_SECOND

/* ---- the deadline ---- */

static CliTime
margin_of(CliTime ttl)
{
	return CLI_MIN(CLI_MAX(ttl / 20, SHORTEST_MARGIN), LONGEST_MARGIN);
}

/*
 * Make a plan; false if the ttl is too short, for any command or for this
 * kill_after.  With "may_shorten" kill_after is cut to what there is room for.
 *
 * Half of the ttl is left to renewing: to what passes before the first attempt, and
 * to further ones.
 */
bool
lease_plan(LeasePlan *plan, CliTime ttl, CliTime kill_after, bool may_shorten)
{
	if (ttl < LEASE_SHORTEST)
		return false;
	plan->ttl = ttl;
	plan->margin = margin_of(ttl);
	plan->renew_every = CLI_MIN(ttl / 3, RENEW_EVERY);
	plan->kill_after = may_shorten ? CLI_MIN(kill_after, ttl / 3) : kill_after;
	return plan->kill_after <= ttl / 2 - plan->margin;
}

/*
 * The outage budget: how long the server may be away, from just before a renewal is
 * due, before the command has to be told to end.
 */
CliTime
lease_outage(const LeasePlan *plan)
{
	return plan->ttl - plan->renew_every - plan->kill_after - plan->margin;
}

/* A ttl that has room for this kill_after, in whole seconds. */
CliTime
lease_least_ttl(CliTime kill_after)
{
	LeasePlan	plan;
	CliTime		ttl = CLI_SECOND * (2 * kill_after / CLI_SECOND + 1);

	while (!lease_plan(&plan, ttl, kill_after, false))
		ttl += CLI_SECOND;
	return ttl;
}

/* The request that was sent then has been answered: the lease is ours. */
void
lease_extend(Lease *lease, CliTime sent)
{
	const LeasePlan *plan = &lease->plan;

	lease->deadline = sent + plan->ttl;
	lease->kill_at = lease->deadline - plan->margin;
	lease->term_at = lease->kill_at - plan->kill_after;
	lease->renew_at = sent + plan->renew_every;
}

/*
 * Is there enough left of it to begin something?  Not after a grant that came
 * long after it was asked for: that has to be renewed first.
 */
bool
lease_is_fresh(const Lease *lease, CliTime now)
{
	return now < lease->deadline - lease->plan.ttl + lease->plan.renew_every / 2;
}

/* ---- the environment ---- */

/* Needs a name no quotes? */
static bool
is_plain(const char *name)
{
	return *name != '\0' && name[strspn(name, "abcdefghijklmnopqrstuvwxyz"
										"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:")] == '\0';
}

/* Append a pair without its token. */
static void
append_name(PQExpBuffer to, const char *name, const char *quote)
{
	appendPQExpBufferStr(to, quote);
	for (const char *p = name; *p != '\0'; p++)
	{
		if (*p == '"')
			appendPQExpBufferChar(to, '"');
		appendPQExpBufferChar(to, *p);
	}
	appendPQExpBufferChar(to, '=');
}

/* Where the pair that begins here ends: at a comma outside quotes, or the end. */
static const char *
end_of_pair(const char *pair)
{
	bool		quoted = false;

	for (; *pair != '\0' && (quoted || *pair != ','); pair++)
	{
		if (*pair == '"')
			quoted = !quoted;
	}
	return pair;
}

/*
 * The list "outer" (may be NULL) with a pair added, instead of one with the same
 * name, whose token is put into "old" (may be NULL).  To be freed by the caller.
 */
char *
lease_tokens(const char *outer, const char *name, const char *token, char **old)
{
	const char *quote = is_plain(name) ? "" : "\"";
	PQExpBufferData list;
	PQExpBufferData own;

	initPQExpBuffer(&list);
	initPQExpBuffer(&own);
	append_name(&own, name, quote);

	for (const char *pair = (outer != NULL) ? outer : ""; *pair != '\0';)
	{
		const char *end = end_of_pair(pair);
		bool		is_own = strncmp(pair, own.data, own.len) == 0;
		int			digits = is_own ? (int) strspn(pair + own.len, "0123456789") : 0;

		/* The name in a pair ends at the last equals sign. */
		is_own = is_own && pair + own.len + digits + strlen(quote) == end;
		if (is_own && old != NULL)
			*old = text_print("%.*s", digits, pair + own.len);
		else if (!is_own && end > pair)
		{
			appendBinaryPQExpBuffer(&list, pair, (size_t) (end - pair));
			appendPQExpBufferChar(&list, ',');
		}
		pair = (*end == ',') ? end + 1 : end;
	}
	appendPQExpBuffer(&list, "%s%s%s", own.data, token, quote);

	termPQExpBuffer(&own);
	return text_take(&list);
}

/*
 * PGOPTIONS (may be NULL) with the setting added, as one word of those, which are
 * split at white space.  To be freed by the caller.
 */
char *
lease_pgoptions(const char *options, const char *tokens)
{
	PQExpBufferData all;

	initPQExpBuffer(&all);
	if (options != NULL && *options != '\0')
		appendPQExpBuffer(&all, "%s ", options);
	appendPQExpBufferStr(&all, "-c dlock.tokens=");
	for (const char *p = tokens; *p != '\0'; p++)
	{
		if (strchr(" \t\n\r\v\f\\", *p) != NULL)
			appendPQExpBufferChar(&all, '\\');
		appendPQExpBufferChar(&all, *p);
	}
	return text_take(&all);
}

/*
 * The variables that tell the command of a lease, which ends in "expires_in" unless
 * it is renewed: PGOPTIONS, too, if "with_options".  Whatever was inherited, the inner
 * lease is to be seen.  There is a NULL at the end.
 */
void
lease_environment(LeaseVariables own, const char *name, const char *token, const char *owner,
				  CliTime expires_in, bool with_options)
{
	char	   *tokens = lease_tokens(getenv("DLOCK_TOKENS"), name, token, NULL);
	char		end[DURATION_SIZE];
	int			n = 0;

	clock_print_utc(expires_in, end);
	own[n++] = text_print("DLOCK_NAME=%s", name);
	own[n++] = text_print("DLOCK_TOKEN=%s", token);
	own[n++] = text_print("DLOCK_OWNER=%s", owner);
	own[n++] = text_print("DLOCK_EXPIRES_AT=%s", end);
	own[n++] = text_print("DLOCK_HELD=1");
	own[n++] = text_print("DLOCK_TOKENS=%s", tokens);
	if (with_options)
	{
		char	   *options = lease_pgoptions(getenv("PGOPTIONS"), tokens);

		own[n++] = text_print("PGOPTIONS=%s", options);
		free(options);
	}
	own[n] = NULL;
	free(tokens);
}
