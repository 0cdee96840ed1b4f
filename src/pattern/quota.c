/*-------------------------------------------------------------------------
 *
 * quota.c
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
 *	  src/pattern/quota.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pattern/quota.h"

/* Which place in "order" the parts begin at: the index, who asks, the remainder, who has. */
#define ORDER_ASKS		30
#define ORDER_REMAINDER	31
#define ORDER_HAS		63

/* The order of a member that gets no more than its share rounded down. */
#define NO_MORE			PG_UINT64_MAX

/*
 * Where the member with this index stands among those that may be given one more:
 * a number of its own, the lower the sooner.
 */
static uint64
order_of(const DLockQuotaMember *member, int index, int64 remainder)
{
	bool		has = member->owned > member->quota;

	return (uint64) !has << ORDER_HAS |
		(uint64) (PG_INT32_MAX - remainder) << ORDER_REMAINDER |
		(uint64) (has || !member->asks) << ORDER_ASKS |
		(uint64) index;
}

/* How many members stand at this place or before it? */
static int
count_to(const DLockQuotaMember *members, int count, uint64 place)
{
	int			found = 0;

	for (int i = 0; i < count; i++)
		found += members[i].order <= place;
	return found;
}

/*
 * Set the quotas of "count" members, fewer than 2^30, whose weights add up to less
 * than 2^31; they add up to "partitions".  All who ask must give the members in the
 * same order.
 *
 * It takes time in proportion to the count.
 */
void
dlock_quota_compute(DLockQuotaMember *members, int count, int partitions)
{
	int64		weights = 0;
	int			left = partitions;
	uint64		low = NO_MORE;
	uint64		high = 0;

	for (int i = 0; i < count; i++)
		weights += members[i].weight;
	Assert(count < (1 << ORDER_ASKS) && weights <= PG_INT32_MAX);
	for (int i = 0; i < count; i++)
	{
		int64		share = (int64) partitions * members[i].weight;

		members[i].quota = (int) (share / weights);
		left -= members[i].quota;

		/* Nobody gets two more; a member with a whole share gets none. */
		members[i].order = NO_MORE;
		if (share % weights == 0)
			continue;
		members[i].order = order_of(&members[i], i, share % weights);
		low = Min(low, members[i].order);
		high = Max(high, members[i].order);
	}
	if (left == 0)
		return;

	/* Fewer are left than remainders: find the last member to get one. */
	while (low < high)
	{
		uint64		middle = low + (high - low) / 2;

		if (count_to(members, count, middle) < left)
			low = middle + 1;
		else
			high = middle;
	}
	for (int i = 0; i < count; i++)
		members[i].quota += members[i].order <= low;
}
