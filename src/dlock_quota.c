/*-------------------------------------------------------------------------
 *
 * dlock_quota.c
 *	  Who is due how many partitions of a group; pure.
 *
 * NOTES
 *	  A member's share is the number of partitions times its part of the
 *	  weights.  It is due the share rounded down, and some are due one more, so
 *	  that it adds up.  So nobody is a whole partition or more away from the
 *	  share, and members of equal weight differ by one at most.
 *
 *	  Who those some are is what decides how much moves.  First come those who
 *	  have more than their share rounded down already: each of them keeps one
 *	  that would have to move otherwise, and nothing could be better than that.
 *	  Among these, and among the others, the larger remainder comes first.  What
 *	  is equal in that, too, is told apart by the order in which the members are
 *	  given, which has to be the same for all who ask.  Only among those who
 *	  have no more than their share rounded down the one who asks comes first:
 *	  whoever comes by takes what is free.  Those who have more must agree on
 *	  who of them gives up, and do.
 *
 *	  The rounding is that of apportionment by largest remainders (Hamilton),
 *	  bent towards those who have.
 *
 * IDENTIFICATION
 *	  src/dlock_quota.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "dlock_quota.h"

/* Is "a" to be given one more before "b", which stands behind it? */
static bool
comes_first(const DLockQuotaMember *a, const DLockQuotaMember *b)
{
	bool		a_has = a->owned > a->quota;
	bool		b_has = b->owned > b->quota;

	if (a_has != b_has)
		return a_has;
	if (a->remainder != b->remainder)
		return a->remainder > b->remainder;
	return a_has || !b->asks;
}

/*
 * Set the quotas of "count" members; they add up to "partitions".  All who ask
 * must give the members in the same order.
 */
void
dlock_quota_compute(DLockQuotaMember *members, int count, int partitions)
{
	int64		weights = 0;
	int			left = partitions;

	for (int i = 0; i < count; i++)
		weights += members[i].weight;
	for (int i = 0; i < count; i++)
	{
		int64		share = (int64) partitions * members[i].weight;

		members[i].quota = (int) (share / weights);
		members[i].remainder = share % weights;
		left -= members[i].quota;
	}

	/*
	 * Fewer than there are remainders, so nobody is due two more, and none whose
	 * share is a whole number.
	 */
	while (left-- > 0)
	{
		DLockQuotaMember *next = NULL;

		for (int i = 0; i < count; i++)
		{
			if (members[i].remainder > 0 &&
				(next == NULL || !comes_first(next, &members[i])))
				next = &members[i];
		}
		next->quota++;
		next->remainder = 0;
	}
}
