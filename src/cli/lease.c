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
 *	  differ by, and for the time that killing takes.  Of that, the guardian has
 *	  one half before the fuse goes off, and what the fuse sets going the other.
 *
 *		sent         renew_at              term_at      kill_at guard_at, fuse_at, deadline
 *		 |- renew_every -|- outage budget ----|- kill_after -|-----|-----|
 *												             |- margin --|
 *
 * IDENTIFICATION
 *	  src/cli/lease.c
 *
 *-------------------------------------------------------------------------
 */
#include "lease.h"

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
	lease->guard_at = lease->deadline - plan->margin * 3 / 4;
	lease->fuse_at = lease->deadline - plan->margin * 3 / 8;
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
