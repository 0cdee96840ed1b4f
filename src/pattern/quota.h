/*-------------------------------------------------------------------------
 *
 * quota.h
 *	  How many partitions of a group each member gets; pure.
 *
 * IDENTIFICATION
 *	  src/pattern/quota.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_QUOTA_H
#define DLOCK_QUOTA_H

/* The heaviest member that there can be. */
#define DLOCK_QUOTA_WEIGHT_MAX	1000

typedef struct DLockQuotaMember
{
	int			weight;			/* 1 to DLOCK_QUOTA_WEIGHT_MAX */
	int			owned;			/* partitions that it has */
	bool		asks;			/* it is the calling member */
	int			quota;			/* result: partitions that it should own */

	/* for the calculation */
	uint64		order;			/* rank among those that may get one more */
} DLockQuotaMember;

extern void dlock_quota_compute(DLockQuotaMember *members, int count, int partitions);

#endif							/* DLOCK_QUOTA_H */
