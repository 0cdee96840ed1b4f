/*-------------------------------------------------------------------------
 *
 * quota.c
 *	  How many partitions of a group each member gets; pure.
 *
 * NOTES
 *	  A member's share is the number of partitions times its part of the
 *	  weights.  Its quota is the share rounded down, and some members get one
 *	  more, so that the quotas add up.  So each quota is less than one away from
 *	  the share, and members of equal weight differ by one at most.
 *
 *	  The choice of the members that get one more decides how many partitions
 *	  move.  First come members that own more than their share rounded down:
 *	  each keeps a partition that would have to move otherwise.  Within both
 *	  groups the larger remainder comes first, and then the order in which the
 *	  members are given, which must be the same for all callers.  There is one
 *	  exception: among members that own no more than their share rounded down,
 *	  the calling member comes first, so that it can take a free partition at
 *	  once.  Members that own more get no such preference, since they must agree
 *	  on which of them gives up a partition.
 *
 *	  This is apportionment by largest remainders (Hamilton), except that it
 *	  prefers the present owners.
 *
 * IDENTIFICATION
 *	  src/pattern/quota.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pattern/quota.h"

/* The first bit of each part of "order", above the index. */
#define ORDER_ASKS		30
#define ORDER_REMAINDER	31
#define ORDER_HAS		63

/* The order of a member that gets no more than its share rounded down. */
#define NO_MORE			PG_UINT64_MAX

/*
 * The rank of a member among those that may get one more: different for each
 * member, lowest first.
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

/* How many members have this rank or a lower one? */
static int
count_to(const DLockQuotaMember *members, int count, uint64 place)
{
	int			found = 0;

	for (int i = 0; i < count; i++)
		found += members[i].order <= place;
	return found;
}

/*
 * Set the quotas of "count" members, fewer than 2^30, whose weights add up to
 * less than 2^31.  The quotas add up to "partitions".  All callers must give the
 * members in the same order.
 *
 * The time is linear in the count.
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

		/* A member gets at most one more, and none if its share is whole. */
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
