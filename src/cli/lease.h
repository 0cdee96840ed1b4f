/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  What a lease means for the command that runs under it: its deadline, and
 *	  what it finds in its environment.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_H
#define LEASE_H

#include "cli.h"

/* The shortest ttl under which a command can be run. */
#define LEASE_SHORTEST		CLI_SECOND

/* What is settled before the lease is had. */
typedef struct LeasePlan
{
	CliTime		ttl;
	CliTime		kill_after;		/* from TERM to KILL */
	CliTime		margin;			/* from KILL to the deadline: lease_extend() */
	CliTime		renew_every;
} LeasePlan;

/* The instants that follow from the last answer; in this order. */
typedef struct Lease
{
	LeasePlan	plan;
	CliTime		renew_at;
	CliTime		term_at;		/* the command has to be told to end */
	CliTime		kill_at;		/* it has to be killed */
	CliTime		deadline;		/* others may have the lock */
} Lease;

extern bool lease_plan(LeasePlan *plan, CliTime ttl, CliTime kill_after, bool may_shorten);
extern CliTime lease_outage(const LeasePlan *plan);
extern CliTime lease_least_ttl(CliTime kill_after);
extern void lease_extend(Lease *lease, CliTime sent);
extern bool lease_is_fresh(const Lease *lease, CliTime now);

/* "NAME=value", up to a NULL. */
typedef char *LeaseVariables[8];

extern char *lease_tokens(const char *outer, const char *name, const char *token, char **old);
extern char *lease_pgoptions(const char *options, const char *tokens);
extern void lease_environment(LeaseVariables own, const char *name, const char *token, const char *owner,
							  CliTime expires_in, bool with_options);

#endif							/* LEASE_H */
