/*-------------------------------------------------------------------------
 *
 * rule.c
 *	  The rules of leases, as pure functions on values.
 *
 * NOTES
 *	  Nothing in here takes a lock, allocates, reads a clock or throws, so each
 *	  rule can be tested over all its cases without a server.
 *
 *	  src/README ("Time") says what the bound that is logged with a lease is for.
 *	  A bound is at most two ttl after its record.  A deadline is at most one
 *	  ttl away, or two if the lease was loaded.  A renewal sets the bound one ttl
 *	  past the deadline, but never beyond two ttl from now.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/rule.h"

#define BIT(mode)	DLOCK_RULE_BIT(DLOCK_MODE_##mode)

/*
 * The modes that conflict with each mode: the compatibility matrix of the VMS
 * lock manager (HP OpenVMS System Services Reference Manual, $ENQ).  Permits
 * conflict with all modes; among permits only their number counts.
 */
static const uint32 conflicts[DLOCK_MODES] = {
	[DLOCK_MODE_NL] = BIT(PERMIT),
	[DLOCK_MODE_CR] = BIT(EX) | BIT(PERMIT),
	[DLOCK_MODE_CW] = BIT(PR) | BIT(PW) | BIT(EX) | BIT(PERMIT),
	[DLOCK_MODE_PR] = BIT(CW) | BIT(PW) | BIT(EX) | BIT(PERMIT),
	[DLOCK_MODE_PW] = BIT(CW) | BIT(PR) | BIT(PW) | BIT(EX) | BIT(PERMIT),
	[DLOCK_MODE_EX] = BIT(CR) | BIT(CW) | BIT(PR) | BIT(PW) | BIT(EX) | BIT(PERMIT),
	[DLOCK_MODE_PERMIT] = BIT(NL) | BIT(CR) | BIT(CW) | BIT(PR) | BIT(PW) | BIT(EX),
};

/* The set of modes that conflict with a mode. */
uint32
dlock_rule_conflicts(DLockMode mode)
{
	return conflicts[mode];
}

/*
 * Does a request in this mode wait behind requests in any of these modes (a
 * set)?  Requests for permits do not overtake each other, though leases may
 * stand beside each other.
 */
bool
dlock_rule_waits_behind(DLockMode mode, uint32 ahead)
{
	return ((conflicts[mode] | ((mode == DLOCK_MODE_PERMIT) ? BIT(PERMIT) : 0)) & ahead) != 0;
}

bool
dlock_rule_is_compatible(DLockMode a, DLockMode b)
{
	return (conflicts[a] & DLOCK_RULE_BIT(b)) == 0;
}

/* Does mode "to" conflict with any mode that "from" does not? */
bool
dlock_rule_is_upgrade(DLockMode from, DLockMode to)
{
	return (conflicts[to] & ~conflicts[from]) != 0;
}

/*
 * The mode for the ancestors of a lock that is held in "mode".
 * This is the scheme of Gray et al., "Granularity of Locks in a Shared Data
 * Base" (1975), where CR, CW, PR, PW and EX are called IS, IX, S, SIX and X.
 */
DLockMode
dlock_rule_intent(DLockMode mode)
{
	switch (mode)
	{
		case DLOCK_MODE_NL:
			return DLOCK_MODE_NL;
		case DLOCK_MODE_CR:
		case DLOCK_MODE_PR:
			return DLOCK_MODE_CR;
		default:
			return DLOCK_MODE_CW;
	}
}

/* The intent of a lease on a path for one of the ancestors, as a value. */
DLockLeaseValue
dlock_rule_intent_of(const DLockLeaseValue *path, DLockBytes ancestor)
{
	DLockLeaseValue intent = *path;

	intent.part = DLOCK_PART_INTENT;
	intent.mode = dlock_rule_intent(path->mode);
	intent.name = ancestor;
	intent.holds = 1;
	intent.payload.len = 0;
	return intent;
}

/*
 * Decide on a request for a lock.
 *
 * An owner has at most one lease on a lock, so a request of a holder either
 * enters that lease or is refused.
 */
DLockRuleVerdict
dlock_rule_decide(const DLockRuleCase *asked)
{
	if (asked->held_by_owner)
	{
		if (asked->reentry == DLOCK_REENTRY_DENY)
			return asked->may_wait ? DLOCK_RULE_SELF : DLOCK_RULE_REFUSE;
		if (dlock_rule_is_upgrade(asked->held, asked->mode))
			return DLOCK_RULE_WEAKER;
		return DLOCK_RULE_REENTER;
	}
	if (asked->blocked)
		return asked->may_wait ? DLOCK_RULE_QUEUE : DLOCK_RULE_REFUSE;
	return DLOCK_RULE_GRANT;
}

/*
 * Decide what a release does to a lease that its owner holds "holds" times, and
 * that must last until "min_until" at least.
 */
DLockRuleEnd
dlock_rule_release(uint32 holds, DLockTime min_until, DLockTime now)
{
	if (holds > 1)
		return DLOCK_RULE_COUNT_DOWN;
	return (now < min_until) ? DLOCK_RULE_CLOSE : DLOCK_RULE_END;
}

/*
 * Is a lease with this deadline held?  It ends the instant its deadline is
 * reached.
 */
bool
dlock_rule_is_live(DLockTime deadline, DLockTime now)
{
	return now < deadline;
}

/*
 * Until when a lease blocks others: its deadline, plus the lock delay.
 */
DLockTime
dlock_rule_blocks_until(DLockTime deadline, DLockTime delay)
{
	return (deadline > DLOCK_TIME_FOREVER - delay) ? DLOCK_TIME_FOREVER : deadline + delay;
}

/* A bound on the monotonic clock, by the wall clock. */
static TimestampTz
bound_wall(DLockTime bound, DLockTime now, TimestampTz wall)
{
	return (bound == DLOCK_TIME_FOREVER) ? DT_NOEND : wall + (bound - now);
}

/* The term of a lease granted now. */
DLockTerm
dlock_rule_grant(DLockTime ttl, DLockTime now, TimestampTz wall)
{
	DLockTime	deadline = (ttl == 0) ? DLOCK_TIME_FOREVER : now + ttl;
	DLockTerm	term = {
		.ttl = ttl,
		.deadline = deadline,
		.bound_mono = deadline,
		.bound_wall = bound_wall(deadline, now, wall)
	};

	return term;
}

/*
 * Give a term a new deadline and ttl.  If the bound does not cover them, a new
 * one is set, and has to be logged.
 */
static DLockRuleRenewal
extend(const DLockTerm *term, DLockTime deadline, DLockTime ttl,
	   DLockTime now, TimestampTz wall)
{
	DLockRuleRenewal renewal = {.term = *term};

	renewal.term.deadline = deadline;
	renewal.term.ttl = ttl;

	/* Recovery uses the ttl, too: it limits the time of a loaded lease. */
	renewal.must_log = deadline > term->bound_mono || ttl != term->ttl;
	if (renewal.must_log)
	{
		renewal.term.bound_mono = Max(deadline, Min(deadline, now + ttl) + ttl);
		renewal.term.bound_wall = wall + (renewal.term.bound_mono - now);
	}
	return renewal;
}

/*
 * Renew a live lease.
 *
 * With "ttl" zero the lease keeps its ttl, and its deadline never moves earlier; a
 * positive value becomes the ttl of the lease, longer or shorter.
 */
DLockRuleRenewal
dlock_rule_renew(const DLockTerm *term, DLockTime ttl,
				 DLockTime now, TimestampTz wall)
{
	if (ttl > 0)
		return extend(term, now + ttl, ttl, now, wall);
	return extend(term, Max(term->deadline, now + term->ttl), term->ttl, now, wall);
}

/*
 * Enter a lease again, for at least "ttl"; zero stands for the ttl of the lease.
 * Neither the deadline moves earlier nor the ttl becomes shorter.
 */
DLockRuleRenewal
dlock_rule_reenter(const DLockTerm *term, DLockTime ttl,
				   DLockTime now, TimestampTz wall)
{
	if (ttl == 0)
		ttl = term->ttl;
	return extend(term, Max(term->deadline, now + ttl),
				  (term->ttl == 0) ? 0 : Max(term->ttl, ttl), now, wall);
}

/*
 * The origin of a record that is written "here" (dlock_clock_origin).
 *
 * A lease with more than its ttl left was loaded from another server's record; that
 * server may be cut off and still renew the lease.  So what limits a server's own
 * records must not limit this one: its origin is the boot alone.
 */
uint64
dlock_rule_record_origin(const DLockTerm *term, uint64 here, DLockTime now)
{
	if (term->ttl == 0 || term->deadline <= now + term->ttl)
		return here;
	return here & ~(uint64) PG_UINT32_MAX;
}

/*
 * A term as a record that is written now has it.
 *
 * The bound covers the deadline.  In memory it may not: a lease that was loaded from
 * another boot keeps the bound of its old record, without the skew.
 */
DLockTerm
dlock_rule_record_term(const DLockTerm *term, DLockTime now, TimestampTz wall)
{
	DLockTerm	record = *term;

	record.bound_mono = Max(term->bound_mono, term->deadline);
	record.bound_wall = bound_wall(record.bound_mono, now, wall);
	return record;
}

/* Where a record comes from, as seen from "here". */
DLockRuleOrigin
dlock_rule_origin(uint64 record, uint64 here)
{
	if ((record >> 32) == 0 || (record >> 32) != (here >> 32))
		return DLOCK_RULE_ELSEWHERE;
	return (record == here) ? DLOCK_RULE_SAME_SERVER : DLOCK_RULE_SAME_BOOT;
}

/*
 * The rest of a lease that was found on disk, in microseconds; zero or less if it
 * has ended.
 *
 * On the boot that logged the lease the monotonic clock decides.  On another
 * boot the wall clock does, with "max_skew" in favor of the holder.
 *
 * A server that loads its own record was not running meanwhile, so no promise
 * exceeds one ttl from now.  Any other server may be cut off and still renew the
 * lease up to its bound, without a record, so the lease lasts until the bound.
 * That is at most two ttl from now, whatever a wall clock says.
 */
DLockTime
dlock_rule_remaining(const DLockTerm *logged, DLockRuleOrigin origin,
					 DLockTime now, TimestampTz wall, DLockTime max_skew)
{
	DLockTime	left;

	if (origin == DLOCK_RULE_ELSEWHERE)
		left = logged->bound_wall - wall + max_skew;
	else
		left = logged->bound_mono - now;
	return Min(left, (origin == DLOCK_RULE_SAME_SERVER) ? logged->ttl : 2 * logged->ttl);
}

/* 2026-01-01, UTC, where the clock of the tokens begins. */
#define TOKEN_CLOCK_START	(INT64CONST(9497) * USECS_PER_DAY)

/*
 * What the clock of the tokens shows at a moment of the wall clock: 2^22 for
 * each second since its start, zero before, DLOCK_TOKEN_MAX from 2^31 seconds on.
 */
DLockToken
dlock_rule_token_clock(TimestampTz wall)
{
	int64		seconds;
	int64		rest;

	if (wall < TOKEN_CLOCK_START)
		return 0;
	seconds = (wall - TOKEN_CLOCK_START) / USECS_PER_SEC;
	rest = (wall - TOKEN_CLOCK_START) % USECS_PER_SEC;
	if (seconds > (DLOCK_TOKEN_MAX >> DLOCK_RULE_TOKEN_CLOCK_SHIFT))
		return DLOCK_TOKEN_MAX;
	return (seconds << DLOCK_RULE_TOKEN_CLOCK_SHIFT) +
		(rest << DLOCK_RULE_TOKEN_CLOCK_SHIFT) / USECS_PER_SEC;
}

/*
 * The number above which tokens start, or restart, at a moment of the wall clock:
 * the clock of the tokens, but at least "reserved", the last token that this
 * server has reserved since its start (zero: none).
 *
 * "value" is the value of the sequence.  If it is above both, it comes from an
 * earlier run, from another server, or was set by hand, and more tokens than it
 * covers may have been granted there.  Then tokens start well above it.  At most
 * DLOCK_TOKEN_MAX.
 *
 * This is a hybrid logical clock (Kulkarni et al., "Logical Physical Clocks",
 * 2014): a count that follows physical time where it can.  See src/README for
 * why tokens ascend by it, and for the two constants.
 */
DLockToken
dlock_rule_token_base(TimestampTz wall, DLockToken reserved, DLockToken value)
{
	DLockToken	base = Max(dlock_rule_token_clock(wall), reserved);

	if (value <= base)
		return base;
	if (value > DLOCK_TOKEN_MAX - DLOCK_RULE_TOKEN_STEP)
		return DLOCK_TOKEN_MAX;
	return value + DLOCK_RULE_TOKEN_STEP;
}
