/*-------------------------------------------------------------------------
 *
 * dlock_rule.h
 *	  The rules of leases, as pure functions on values.
 *
 * IDENTIFICATION
 *	  src/dlock_rule.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_RULE_H
#define DLOCK_RULE_H

#include "dlock_types.h"

/* What a renewal does to a term. */
typedef struct DLockRuleRenewal
{
	DLockTerm	term;			/* the term from now on */
	bool		must_log;		/* the record on disk no longer vouches for it */
} DLockRuleRenewal;

extern bool dlock_rule_is_live(DLockTime deadline, DLockTime now);
extern DLockTerm dlock_rule_grant(DLockTime ttl, DLockTime now, TimestampTz wall);
extern DLockRuleRenewal dlock_rule_renew(const DLockTerm *term, DLockTime ttl,
										 DLockTime now, TimestampTz wall);
extern DLockTime dlock_rule_remaining(const DLockTerm *logged, bool same_boot,
									  DLockTime now, TimestampTz wall,
									  DLockTime max_skew);
extern DLockToken dlock_rule_next_epoch(DLockToken token, uint32 timeline);

/*
 * The low bits of a token count grants, the middle ones epochs, the high ones
 * timelines of the server.  A timeline has room for 2^47 grants, or 44 years
 * of 100 000 a second; running over into the next range breaks nothing by
 * itself.
 */
#define DLOCK_RULE_EPOCH_SHIFT		39
#define DLOCK_RULE_TIMELINE_SHIFT	47

#endif							/* DLOCK_RULE_H */
