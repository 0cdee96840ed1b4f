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
 *	  A name that has anything but letters, digits and a few marks in it stands in
 *	  double quotes, and a quote in it is doubled.  A command that is run under a
 *	  lease may run another one under another, so the list grows inward.  It is
 *	  kept in the environment as it is, besides in PGOPTIONS, where it would have
 *	  to be told from what the user put there.
 *
 *	  What tells of the lease comes from this process, whatever was inherited:
 *	  in a run inside another one the inner lease is to be seen.
 *
 * IDENTIFICATION
 *	  src/cli/lease.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "lease.h"

extern char **environ;

#define TOKENS_PREFIX	"-c dlock.tokens="

/* The most variables that tell of a lease. */
#define MOST_OWN	8

/* ---- the deadline ---- */

#define SHORTEST_MARGIN		(100 * CLI_MS)
#define LONGEST_MARGIN		CLI_SECOND

/* How often to renew, at least: that is also how a loss is learned of. */
#define RENEW_EVERY			CLI_SECOND

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

/* A ttl that has room for this kill_after and this outage, in whole seconds. */
CliTime
lease_least_ttl(CliTime kill_after, CliTime outage)
{
	LeasePlan	plan;
	CliTime		ttl = CLI_SECOND * ((kill_after + CLI_MAX(kill_after, outage)) / CLI_SECOND + 1);

	while (!lease_plan(&plan, ttl, kill_after, false) || lease_outage(&plan) < outage)
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

LeaseDue
lease_due(const Lease *lease, CliTime now)
{
	if (now >= lease->kill_at)
		return LEASE_KILL;
	if (now >= lease->term_at)
		return LEASE_TERM;
	return (now >= lease->renew_at) ? LEASE_RENEW : LEASE_FINE;
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

/* ---- tokens ---- */

/* Need a name with this character no quotes? */
static bool
is_mark(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		(c != '\0' && strchr("_-./:", c) != NULL);
}

static bool
is_plain(const char *name)
{
	for (const char *p = name; *p != '\0'; p++)
	{
		if (!is_mark(*p))
			return false;
	}
	return *name != '\0';
}

static void
append_name(Text *to, const char *name)
{
	if (is_plain(name))
	{
		text_add(to, name);
		return;
	}
	text_add_char(to, '"');
	for (const char *p = name; *p != '\0'; p++)
	{
		if (*p == '"')
			text_add_char(to, '"');
		text_add_char(to, *p);
	}
	text_add_char(to, '"');
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
 * Is this a pair that the server understands?  The list may come from anybody, and
 * one that it does not understand would keep every session from beginning.
 */
static bool
is_pair(const char *pair, const char *end)
{
	const char *p = pair;
	size_t		digits;
	unsigned long long token;

	if (*p == '"')
	{
		for (p++; p < end && (*p != '"' || p[1] == '"'); p++)
			p += (*p == '"');
		if (p == pair + 1 || p++ >= end)
			return false;
	}
	else
	{
		while (p < end && is_mark(*p))
			p++;
		if (p == pair)
			return false;
	}
	if (p >= end || *p++ != '=')
		return false;
	digits = strspn(p, "0123456789");
	if (digits == 0 || digits > 19 || p + digits != end)
		return false;
	token = strtoull(p, NULL, 10);
	return token > 0 && token <= INT64_MAX;
}

/*
 * The list "outer" (may be NULL) with a pair added.  What it says of the same
 * name goes, and what is no pair.  To be freed by the caller.
 */
char *
tokens_extend(const char *outer, const char *name, const char *token)
{
	Text		list;
	Text		own;

	text_init(&list);
	text_init(&own);
	append_name(&own, name);
	text_add_char(&own, '=');

	for (const char *pair = (outer != NULL) ? outer : ""; *pair != '\0';)
	{
		const char *end = end_of_pair(pair);

		if (is_pair(pair, end) && strncmp(pair, own.data, own.len) != 0)
		{
			text_add_bytes(&list, pair, (size_t) (end - pair));
			text_add_char(&list, ',');
		}
		pair = (*end == ',') ? end + 1 : end;
	}
	text_add(&list, own.data);
	text_add(&list, token);

	text_free(&own);
	return list.data;
}

/* Append the setting as one word of PGOPTIONS, which are split at white space. */
static void
append_setting(Text *to, const char *tokens)
{
	text_add(to, TOKENS_PREFIX);
	for (const char *p = tokens; *p != '\0'; p++)
	{
		if (strchr(" \t\n\r\v\f\\", *p) != NULL)
			text_add_char(to, '\\');
		text_add_char(to, *p);
	}
}

/*
 * PGOPTIONS (may be NULL) with the setting added.  The one that an outer run
 * has put at its end, for its list "outer", is replaced.  To be freed by the
 * caller.
 */
char *
tokens_options(const char *options, const char *outer, const char *tokens)
{
	Text		all;
	Text		old;
	size_t		length = (options != NULL) ? strlen(options) : 0;

	text_init(&all);
	text_init(&old);
	if (outer != NULL)
		append_setting(&old, outer);
	if (old.len > 0 && length >= old.len &&
		strcmp(options + length - old.len, old.data) == 0 &&
		(length == old.len || options[length - old.len - 1] == ' '))
		length -= old.len;
	while (length > 0 && options[length - 1] == ' ' &&
		   (length < 2 || options[length - 2] != '\\'))
		length--;

	if (length > 0)
	{
		text_add_bytes(&all, options, length);
		text_add_char(&all, ' ');
	}
	append_setting(&all, tokens);

	text_free(&old);
	return all.data;
}

/* ---- the environment ---- */

/* Does an entry set one of the same variables as ours do? */
static bool
is_replaced(const char *entry, char *const *own, int nown)
{
	size_t		length = strcspn(entry, "=");

	for (int i = 0; i < nown; i++)
	{
		if (strncmp(entry, own[i], length + 1) == 0)
			return true;
	}
	return false;
}

/*
 * Our environment with what tells of a lease, which ends in "expires_in" unless
 * it is renewed; with PGOPTIONS too, if "with_options".  To be freed by
 * lease_free_environment().
 */
char	  **
lease_environment(const char *name, const char *token, const char *owner,
			  CliTime expires_in, bool with_options)
{
	const char *outer = getenv("DLOCK_TOKENS");
	char	   *tokens = tokens_extend(outer, name, token);
	char	   *own[MOST_OWN];
	char		end[DURATION_SIZE];
	int			nown = 0;
	int			ninherited = 0;
	int			n = 0;
	char	  **made;

	own[nown++] = text_print("DLOCK_NAME=%s", name);
	own[nown++] = text_print("DLOCK_TOKEN=%s", token);
	own[nown++] = text_print("DLOCK_OWNER=%s", owner);
	clock_print_utc(expires_in, end);
	own[nown++] = text_print("DLOCK_EXPIRES_AT=%s", end);
	own[nown++] = text_copy("DLOCK_HELD=1");
	own[nown++] = text_print("DLOCK_TOKENS=%s", tokens);
	if (with_options)
	{
		char	   *options = tokens_options(getenv("PGOPTIONS"), outer, tokens);

		own[nown++] = text_print("PGOPTIONS=%s", options);
		free(options);
	}
	free(tokens);

	while (environ[ninherited] != NULL)
		ninherited++;
	made = text_alloc((size_t) (ninherited + nown + 1) * sizeof(*made));
	for (int i = 0; i < ninherited; i++)
	{
		if (!is_replaced(environ[i], own, nown))
			made[n++] = text_copy(environ[i]);
	}
	for (int i = 0; i < nown; i++)
		made[n++] = own[i];
	return made;
}

void
lease_free_environment(char **environment)
{
	for (char **entry = environment; *entry != NULL; entry++)
		free(*entry);
	free(environment);
}
