/*-------------------------------------------------------------------------
 *
 * dlock_rule.c
 *	  The rules of leases, as pure functions on values.
 *
 * NOTES
 *	  Nothing in here takes a lock, allocates, reads a clock or throws, so each
 *	  rule can be tested over all its cases without a server.
 *
 *	  The bound that is logged with a lease is what recovery goes by, so it
 *	  must never be before the deadline that was promised.  A renewal that
 *	  stays inside the bound needs no record.  One that goes past it logs a
 *	  new bound one ttl ahead of the new deadline, so a holder that renews in
 *	  time costs one record a ttl however often it does so; the price is that a
 *	  lease may come back from a crash with up to one ttl more than was
 *	  promised, never with less.
 *
 * IDENTIFICATION
 *	  src/dlock_rule.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "dlock_rule.h"

/*
 * Is a lease with this deadline live?  It is dead the instant its deadline
 * is reached.
 */
bool
dlock_rule_is_live(DLockTime deadline, DLockTime now)
{
	return now < deadline;
}

/* The term of a lease granted now.  "ttl" is positive. */
DLockTerm
dlock_rule_grant(DLockTime ttl, DLockTime now, TimestampTz wall)
{
	DLockTerm	term;

	term.ttl = ttl;
	term.deadline = now + ttl;
	term.bound_mono = now + ttl;
	term.bound_wall = wall + ttl;
	return term;
}

/*
 * Renew a live lease.
 *
 * "ttl" zero keeps the ttl of the lease and never brings its deadline nearer;
 * a positive one becomes the ttl of the lease, whether longer or shorter.
 */
DLockRuleRenewal
dlock_rule_renew(const DLockTerm *term, DLockTime ttl,
				 DLockTime now, TimestampTz wall)
{
	DLockRuleRenewal renewal;
	DLockTerm  *new_term = &renewal.term;

	*new_term = *term;
	if (ttl > 0)
	{
		new_term->ttl = ttl;
		new_term->deadline = now + ttl;
	}
	else
		new_term->deadline = Max(term->deadline, now + term->ttl);

	/* Recovery goes by the ttl too: it caps what a lease comes back with. */
	renewal.must_log = new_term->deadline > term->bound_mono ||
		new_term->ttl != term->ttl;
	if (renewal.must_log)
	{
		new_term->bound_mono = new_term->deadline + new_term->ttl;
		new_term->bound_wall = wall + (new_term->bound_mono - now);
	}
	return renewal;
}

/*
 * What is left of a lease that is found on disk, in microseconds; zero when it
 * has ended.
 *
 * On the boot that granted it the monotonic clock still tells.  Otherwise the
 * wall clocks of then and now are compared, and given "max_skew" in favour of
 * the holder.  In either case no lease comes back with more than its ttl.
 */
DLockTime
dlock_rule_remaining(const DLockTerm *logged, bool same_boot,
					 DLockTime now, TimestampTz wall, DLockTime max_skew)
{
	DLockTime	left;

	if (same_boot)
		left = logged->bound_mono - now;
	else
		left = logged->bound_wall - wall + max_skew;
	return Max(0, Min(left, logged->ttl));
}

/*
 * The number after which tokens continue in a new epoch, on this timeline of
 * the server: above "token", or DLOCK_TOKEN_NONE if there is no epoch left.
 *
 * The first epoch of a timeline comes from the timeline's own number.  So two
 * servers that have gone different ways from one past, and do not know of each
 * other's epochs, do not start the same one.
 */
DLockToken
dlock_rule_next_epoch(DLockToken token, uint32 timeline)
{
	int64		epoch = (token >> DLOCK_RULE_EPOCH_SHIFT) + 1;
	int64		of_timeline = (int64) timeline - 1;

	if (of_timeline <= (PG_INT64_MAX >> DLOCK_RULE_TIMELINE_SHIFT))
		epoch = Max(epoch, of_timeline <<
					(DLOCK_RULE_TIMELINE_SHIFT - DLOCK_RULE_EPOCH_SHIFT));
	if (epoch > (PG_INT64_MAX >> DLOCK_RULE_EPOCH_SHIFT))
		return DLOCK_TOKEN_NONE;
	return epoch << DLOCK_RULE_EPOCH_SHIFT;
}
