/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  The deadline of a lease as its holder keeps it: pure arithmetic.
 *
 * NOTES
 *	  The server counts the ttl from the moment at which it grants or renews,
 *	  which is after the request was sent.  So a holder that counts from
 *	  before it sent the request that was answered has a deadline that is never
 *	  later than the server's, whatever the network does, provided that the
 *	  two clocks go at the same pace.  The margin is for what their paces
 *	  differ by, and for the time that killing takes.
 *
 *		sent         renew_at              term_at      kill_at guard_at deadline
 *		 |---- ttl/3 ----|--------------------|- kill_after -|-----|-----|
 *												             |- margin --|
 *
 * IDENTIFICATION
 *	  src/cli/lease.c
 *
 *-------------------------------------------------------------------------
 */
#include "lease.h"

#define SHORTEST_MARGIN		(50 * CLI_MS)
#define LONGEST_MARGIN		CLI_SECOND

/* How often to renew, if that is also how a loss is learned of. */
#define ASK_EVERY			CLI_SECOND

static CliTime
margin_of(CliTime ttl)
{
	return CLI_MIN(CLI_MAX(ttl / 50, SHORTEST_MARGIN), LONGEST_MARGIN);
}

/*
 * Make a plan; false if the ttl is too short, for any command or for this
 * kill_after.  With "may_shorten" kill_after is cut to what there is room for.
 * With "at_once" renewals come more often, since nothing else tells of a loss.
 *
 * Half of the ttl is left to renewing: to the third of it that passes before
 * the first attempt, and to further ones.
 */
bool
lease_plan(LeasePlan *plan, CliTime ttl, CliTime kill_after, bool may_shorten, bool at_once)
{
	if (ttl < LEASE_SHORTEST)
		return false;
	plan->ttl = ttl;
	plan->margin = margin_of(ttl);
	plan->renew_every = ttl / 3;
	if (at_once)
		plan->renew_every = CLI_MIN(plan->renew_every, ASK_EVERY);
	plan->kill_after = may_shorten ? CLI_MIN(kill_after, ttl / 3) : kill_after;
	return plan->kill_after <= ttl / 2 - plan->margin;
}

/* A ttl that has room for this kill_after, in whole seconds. */
CliTime
lease_least_ttl(CliTime kill_after)
{
	LeasePlan	plan;
	CliTime		ttl = CLI_SECOND * (2 * kill_after / CLI_SECOND + 1);

	while (!lease_plan(&plan, ttl, kill_after, false, false))
		ttl += CLI_SECOND;
	return ttl;
}

/* The request that was sent then has been answered: the lease is ours. */
void
lease_extend(Lease *lease, CliTime sent)
{
	const LeasePlan *plan = &lease->plan;

	lease->deadline = sent + plan->ttl;
	lease->guard_at = lease->deadline - plan->margin / 2;
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
