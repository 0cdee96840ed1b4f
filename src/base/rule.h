/*-------------------------------------------------------------------------
 *
 * rule.h
 *	  The rules of leases, as pure functions on values.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_RULE_H
#define DLOCK_RULE_H

#include "base/types.h"

/* The result of a renewal. */
typedef struct DLockRuleRenewal
{
	DLockTerm	term;			/* the term from now on */
	bool		must_log;		/* the record on disk does not cover it */
} DLockRuleRenewal;

/* What a request for a lock finds there. */
typedef struct DLockRuleCase
{
	DLockMode	mode;			/* requested */
	DLockReentry reentry;
	bool		may_wait;
	bool		held_by_owner;	/* this owner holds the lock ... */
	DLockMode	held;			/* ... in this mode */
	bool		blocked;		/* by other holders or earlier requests */
} DLockRuleCase;

typedef enum DLockRuleVerdict
{
	DLOCK_RULE_GRANT,
	DLOCK_RULE_REENTER,			/* enter the owner's lease */
	DLOCK_RULE_REFUSE,
	DLOCK_RULE_QUEUE,
	DLOCK_RULE_SELF,			/* the owner would wait for itself */
	DLOCK_RULE_WEAKER			/* the owner's lease does not cover it */
} DLockRuleVerdict;

/* The effect of a release on a lease. */
typedef enum DLockRuleEnd
{
	DLOCK_RULE_END,
	DLOCK_RULE_COUNT_DOWN,		/* the owner holds it more than once */
	DLOCK_RULE_CLOSE			/* over for the owner, not yet for others */
} DLockRuleEnd;

/* Where the record of a lease was written. */
typedef enum DLockRuleOrigin
{
	DLOCK_RULE_SAME_SERVER,		/* here, on this boot and timeline */
	DLOCK_RULE_SAME_BOOT,		/* on this machine, not booted since */
	DLOCK_RULE_ELSEWHERE		/* elsewhere, before a boot, or unknown */
} DLockRuleOrigin;

/* modes */
extern uint32 dlock_rule_conflicts(DLockMode mode);
extern bool dlock_rule_waits_behind(DLockMode mode, uint32 ahead);
extern bool dlock_rule_is_compatible(DLockMode a, DLockMode b);
extern bool dlock_rule_is_upgrade(DLockMode from, DLockMode to);
extern DLockMode dlock_rule_intent(DLockMode mode);
extern DLockLeaseValue dlock_rule_intent_of(const DLockLeaseValue *path, DLockBytes ancestor);

/* decisions */
extern DLockRuleVerdict dlock_rule_decide(const DLockRuleCase *asked);
extern DLockRuleEnd dlock_rule_release(uint32 holds, DLockTime min_until, DLockTime now);

/* time */
extern bool dlock_rule_is_live(DLockTime deadline, DLockTime now);
extern DLockTime dlock_rule_blocks_until(DLockTime deadline, DLockTime delay);
extern DLockTerm dlock_rule_grant(DLockTime ttl, DLockTime now, TimestampTz wall);
extern DLockRuleRenewal dlock_rule_renew(const DLockTerm *term, DLockTime ttl,
										 DLockTime now, TimestampTz wall);
extern DLockRuleRenewal dlock_rule_reenter(const DLockTerm *term, DLockTime ttl,
										   DLockTime now, TimestampTz wall);
extern uint64 dlock_rule_record_origin(const DLockTerm *term, uint64 here, DLockTime now);
extern DLockTerm dlock_rule_record_term(const DLockTerm *term, DLockTime now, TimestampTz wall);
extern DLockRuleOrigin dlock_rule_origin(uint64 record, uint64 here);
extern DLockTime dlock_rule_remaining(const DLockTerm *logged, DLockRuleOrigin origin,
									  DLockTime now, TimestampTz wall,
									  DLockTime max_skew);

/* tokens */
extern DLockToken dlock_rule_token_clock(TimestampTz wall);
extern DLockToken dlock_rule_token_base(TimestampTz wall, DLockToken reserved,
										DLockToken value);

/* The clock of the tokens counts 2^22 a second: more grants than a server makes. */
#define DLOCK_RULE_TOKEN_CLOCK_SHIFT	22

/* Tokens start so far above a sequence that is ahead of the clock: by 256 s of it. */
#define DLOCK_RULE_TOKEN_STEP	(INT64CONST(1) << 30)

/* A mode as an element of a set of modes. */
#define DLOCK_RULE_BIT(mode)		(UINT32_C(1) << (mode))

#endif							/* DLOCK_RULE_H */
