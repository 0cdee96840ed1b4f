/*-------------------------------------------------------------------------
 *
 * group.c
 *	  Spread the partitions of a group over its members.
 *
 * NOTES
 *	  The state of a group is nothing but leases.  A membership is a lease on a
 *	  lock that is named after group and member.  Its owner is the group, so the
 *	  members of a group are the leases of an owner.  A partition is a lock, and
 *	  its lease belongs to the member that runs it.  So a partition never has
 *	  two owners, and a member without heartbeats loses its membership and its
 *	  partitions when they expire.
 *
 *	  No member is in charge.  At each heartbeat a member reads the members and
 *	  the owners of the partitions, and computes all quotas (base/rule.c).
 *	  If it owns fewer partitions than its quota, it acquires free ones.  If it
 *	  owns more, the heartbeat tells it which to yield.  It owns these until it
 *	  says that it has stopped working on them.  Then they are free, and other
 *	  members acquire them at their heartbeats.  The quotas add up to the number
 *	  of partitions, so while one is free, some member owns too few.
 *
 *	  Heartbeats of a group run one after the other, under a heavyweight lock of
 *	  the group.  A heartbeat gives that lock up before it flushes anything.  The
 *	  lock only serves to spread partitions evenly; their leases keep two members
 *	  from owning one.  Only roles that may use the group, or have a member in
 *	  it, get this lock or wait for it, and the limits in pattern/group.h bound
 *	  the work under it.  A heartbeat looks at each member and each partition
 *	  once, each under its partition lock, and can be canceled in between.
 *
 *	  pattern/owned.c has the definitions of groups, and their roles.
 *
 *	  Lock order: open the store first, then take the group's lock, which is of
 *	  the first kind in the order of lock/step.c.
 *
 * IDENTIFICATION
 *	  src/pattern/group.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/lock.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"
#include "utils/resowner.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/name.h"
#include "base/rule.h"
#include "lock/held.h"
#include "lock/queue.h"
#include "pattern/group.h"
#include "session/grants.h"
#include "space/holder.h"
#include "space/memory.h"
#include "space/slot.h"
#include "store/flush.h"

#define MEMBERS_PREFIX		DLOCK_NAME_RESERVED "members/"
#define MEMBER_PREFIX		DLOCK_NAME_RESERVED "member/"
#define PARTITION_PREFIX	DLOCK_NAME_RESERVED "partition/"

StaticAssertDecl(sizeof(PARTITION_PREFIX) + 2 * DLOCK_GROUP_NAME_MAX <= DLOCK_NAME_MAX,
				 "the longest name of a partition's lock does not fit");

/* ---- names and locks ---- */

/* A reserved name: prefix, group, and, unless NULL, a member or partition. */
static DLockBytes
make_name(const char *prefix, const DLockBytes *group, const DLockBytes *in)
{
	char	   *name = (in == NULL) ? psprintf("%s%.*s", prefix, group->len, group->data) :
		psprintf("%s%.*s/%.*s", prefix, group->len, group->data, in->len, in->data);

	return dlock_bytes(name, strlen(name));
}

/* The group that a reserved name of a lock or an owner is of; empty if it is of none. */
DLockBytes
dlock_group_of_name(const DLockBytes *name)
{
	static const char *const prefixes[] = {MEMBERS_PREFIX, MEMBER_PREFIX, PARTITION_PREFIX};

	for (size_t i = 0; i < lengthof(prefixes); i++)
	{
		int			len = strlen(prefixes[i]);
		const char *group = name->data + len;
		const char *end;

		if (name->len <= len || memcmp(name->data, prefixes[i], len) != 0)
			continue;
		end = memchr(group, '/', name->len - len);
		return dlock_bytes(group, (end == NULL) ? name->len - len : end - group);
	}
	return dlock_bytes(NULL, 0);
}

static LOCKTAG
group_lock_tag(const DLockGroup *group)
{
	uint64		hash = dlock_name_stable_hash(&group->name);
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash,
						 DLOCK_LOCK_CLASS_GROUP);
	return tag;
}

/* Take the lock of a group, waiting for it; freed by an abort. */
static void
lock_group(const DLockGroup *group)
{
	LOCKTAG		tag = group_lock_tag(group);

	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

static void
unlock_group(const DLockGroup *group)
{
	LOCKTAG		tag = group_lock_tag(group);

	LockRelease(&tag, ExclusiveLock, false);
}

/* ---- looking ---- */

/* Copy bytes to where there is room for them. */
static DLockBytes
put_bytes(DLockBytes bytes, char *place)
{
	memmove(place, bytes.data, bytes.len);
	return dlock_bytes(place, bytes.len);
}

/* The weight in the payload of a membership. */
static int
weight_of(const DLockBytes *payload)
{
	Jsonb	   *value = DatumGetJsonbP(dlock_name_to_jsonb(*payload));
	JsonbValue	weight;

	if (getKeyJsonValueFromContainer(&value->root, "weight", strlen("weight"), &weight) == NULL ||
		weight.type != jbvNumeric)
		elog(ERROR, "the payload of a membership has no weight");
	return DatumGetInt32(DirectFunctionCall1(numeric_int4, NumericGetDatum(weight.val.numeric)));
}

static int
compare_refs(const void *a, const void *b)
{
	DLockToken	left = ((const DLockSpaceRef *) a)->token;
	DLockToken	right = ((const DLockSpaceRef *) b)->token;

	return (left > right) - (left < right);
}

/* Copy the membership of a reference, if it is held. */
static bool
copy_member(DLockDatabase *db, const DLockGroup *group, const DLockSpaceRef *ref,
			DLockGroupMember *member)
{
	int			before = strlen(MEMBER_PREFIX) + group->name.len + 1;
	char		name[DLOCK_NAME_MAX];
	char		payload[DLOCK_PAYLOAD_MAX];
	char	   *data;
	DLockSpaceLease *lease;
	bool		live;

	/* Do not allocate under the lock. */
	dlock_partition_lock(ref->hash, LW_SHARED);
	lease = dlock_space_find_token(db->shared->oid, ref->hash, ref->token);
	live = lease != NULL && dlock_rule_is_live(lease->deadline, group->now);
	if (live)
	{
		member->lock_name = put_bytes(dlock_space_entry_name(dlock_space_entry_of(lease), name), name);
		member->hash = ref->hash;
		member->token = lease->token;
		member->role = lease->role;
		member->payload = put_bytes(dlock_space_lease_payload(lease, payload), payload);
		member->ttl = lease->ttl;
		member->told_until = dlock_holder_told_until(lease);
		member->joined_at = lease->granted_at;
	}
	dlock_partition_unlock(ref->hash);
	if (!live)
		return false;

	data = palloc(member->lock_name.len + member->payload.len);
	member->lock_name = put_bytes(member->lock_name, data);
	member->payload = put_bytes(member->payload, data + member->lock_name.len);
	member->name = dlock_bytes(data + before, member->lock_name.len - before);
	return true;
}

/* Find the memberships of a group, expired ones too, and note the time. */
static DLockSpaceRef *
find_memberships(DLockDatabase *db, DLockGroup *group, int *count)
{
	DLockBytes	owner = make_name(MEMBERS_PREFIX, &group->name, NULL);
	DLockSpaceRef *refs = dlock_holder_list(db->shared->oid, &owner, NULL, count);

	group->now = dlock_clock_now();
	return refs;
}

/* Read the members of the group. */
static void
look_at_members(DLockDatabase *db, DLockGroup *group)
{
	int			count;
	DLockSpaceRef *refs = find_memberships(db, group, &count);
	DLockGroupMember *last = NULL;
	int			weight = 0;

	qsort(refs, count, sizeof(DLockSpaceRef), compare_refs);
	group->member_count = 0;
	group->members = palloc(Max(count, 1) * sizeof(DLockGroupMember));
	group->shares = palloc0(Max(count, 1) * sizeof(DLockRuleMember));
	for (int i = 0; i < count; i++)
	{
		DLockGroupMember *member = &group->members[group->member_count];

		CHECK_FOR_INTERRUPTS();
		if (!copy_member(db, group, &refs[i], member))
			continue;

		/* Most payloads are equal to the last one. */
		if (last == NULL || !dlock_name_equal(&last->payload, &member->payload))
			weight = weight_of(&member->payload);
		last = member;
		group->shares[group->member_count++].weight = weight;
	}
}

/* Read only the member with this token; false if there is none. */
static bool
look_at_member(DLockDatabase *db, DLockGroup *group, DLockToken token, DLockGroupMember *member)
{
	int			count;
	DLockSpaceRef *refs = find_memberships(db, group, &count);
	bool		found = false;

	for (int i = 0; i < count && !found; i++)
		found = refs[i].token == token && copy_member(db, group, &refs[i], member);
	return found;
}

/* A hash table of members by their locks' names: indexes, or -1. */
typedef struct Roster
{
	uint32		mask;
	int		   *places;
} Roster;

static Roster
make_roster(const DLockGroup *group)
{
	uint32		size = pg_nextpower2_32(2 * group->member_count + 1);
	Roster		roster = {size - 1, palloc(size * sizeof(int))};

	memset(roster.places, -1, size * sizeof(int));
	for (int i = 0; i < group->member_count; i++)
	{
		uint32		place = group->members[i].hash & roster.mask;

		while (roster.places[place] >= 0)
			place = (place + 1) & roster.mask;
		roster.places[place] = i;
	}
	return roster;
}

/* The index of the member that is this owner of leases, or -1. */
static int
find_owner(DLockDatabase *db, const DLockGroup *group, const Roster *roster,
		   const DLockOwner *owner)
{
	uint32		hash = dlock_name_hash(db->shared->oid, &owner->name);
	uint32		place = hash & roster->mask;

	for (; roster->places[place] >= 0; place = (place + 1) & roster->mask)
	{
		const DLockGroupMember *member = &group->members[roster->places[place]];

		if (member->hash == hash && dlock_name_equal(&member->lock_name, &owner->name))
			return (member->role == owner->role) ? roster->places[place] : -1;
	}
	return -1;
}

/* Read the owners of the partitions. */
static void
look_at_partitions(DLockDatabase *db, DLockGroup *group)
{
	Roster		roster = make_roster(group);

	for (int i = 0; i < group->partition_count; i++)
	{
		DLockGroupPartition *partition = &group->partitions[i];
		char		buffer[DLOCK_OWNER_MAX];
		DLockOwner	owner;
		DLockSpaceEntry *entry;
		DLockSpaceLease *lease;

		CHECK_FOR_INTERRUPTS();
		partition->lock_name = make_name(PARTITION_PREFIX, &group->name, &partition->name);
		partition->hash = dlock_name_hash(db->shared->oid, &partition->lock_name);
		partition->token = DLOCK_TOKEN_NONE;
		partition->member = -1;
		partition->action = DLOCK_GROUP_NONE;

		dlock_partition_lock(partition->hash, LW_SHARED);
		entry = dlock_space_find(db->shared->oid, partition->hash, &partition->lock_name);
		lease = (entry != NULL) ? dlock_space_holders(entry) : NULL;
		if (lease != NULL && dlock_rule_is_live(lease->deadline, dlock_clock_now()))
		{
			owner = dlock_space_lease_owner(lease, buffer);
			owner.name = put_bytes(owner.name, buffer);
			partition->token = lease->token;
			partition->told_until = dlock_holder_told_until(lease);
			partition->since = lease->granted_at;
		}
		dlock_partition_unlock(partition->hash);
		if (partition->token != DLOCK_TOKEN_NONE)
			partition->member = find_owner(db, group, &roster, &owner);
	}
}

/*
 * Count the partitions of each member, and compute the quotas.  "me" is the index
 * of the calling member, or -1.
 */
static void
set_quotas(DLockGroup *group, int me)
{
	for (int i = 0; i < group->partition_count; i++)
	{
		if (group->partitions[i].member >= 0)
			group->shares[group->partitions[i].member].owned++;
	}
	if (me >= 0)
		group->shares[me].asks = true;
	dlock_rule_quotas(group->shares, group->member_count, group->partition_count);
}

/*
 * Read the members and partitions of a group.  This is no snapshot.
 */
void
dlock_group_look(DLockDatabase *db, DLockGroup *group)
{
	look_at_members(db, group);
	look_at_partitions(db, group);
	set_quotas(group, -1);
}

/* ---- acting ---- */

pg_noreturn static void
report_lost(const DLockGroup *group, DLockToken token)
{
	ereport(ERROR,
			(errcode(ERRCODE_DLOCK_LEASE_LOST),
			 errmsg("membership in group \"%.*s\" with token %lld is not held",
					group->name.len, group->name.data, (long long) token),
			 errdetail("It has expired, has been left or taken over, or was never granted."),
			 errhint("Stop the work on all partitions, and join the group again.")));
}

/* Throw 42501 if a membership belongs to another role. */
static void
check_role(const DLockGroupMember *member)
{
	if (!has_privs_of_role(GetUserId(), member->role))
		dlock_error_not_owner(&member->lock_name, member->role);
}

static int
compare_tokens(const void *a, const void *b)
{
	DLockToken	left = *(const DLockToken *) a;
	DLockToken	right = *(const DLockToken *) b;

	return (left > right) - (left < right);
}

/*
 * Sort tokens, and release the leases of a member that have one of them; returns
 * their number.  A late call does no harm, since its tokens are not held any more.
 */
static int
release_partitions(DLockDatabase *db, const DLockGroupMember *member,
				   DLockToken *tokens, int token_count)
{
	int			count;
	DLockSpaceRef *refs;
	int			released = 0;

	if (token_count == 0)
		return 0;
	qsort(tokens, token_count, sizeof(DLockToken), compare_tokens);

	refs = dlock_holder_list(db->shared->oid, &member->lock_name, NULL, &count);
	for (int i = 0; i < count; i++)
	{
		DLockHolderTarget target = dlock_holder_target(refs[i].hash, refs[i].token);

		CHECK_FOR_INTERRUPTS();
		target.name = member->lock_name;
		if (bsearch(&refs[i].token, tokens, token_count, sizeof(DLockToken), compare_tokens) != NULL)
			released += dlock_held_release(db, &target);
	}
	return released;
}

/* End a membership, and release the member's partitions. */
static void
remove_member(DLockDatabase *db, const DLockGroupMember *member)
{
	DLockHolderTarget target = {
		.by = DLOCK_BY_TOKEN,
		.hash = member->hash,
		.name = member->lock_name,
		.token = member->token
	};

	/* First what can be refused. */
	(void) dlock_held_release(db, &target);
	(void) dlock_held_release_all(db, &member->lock_name);
}

/*
 * End the membership of this name, if there is one, before it joins again.  Throws
 * 42501 if it belongs to another role, 54000 if the group is full.
 */
static void
make_way(DLockDatabase *db, DLockGroup *group, const DLockBytes *name)
{
	uint32		hash = dlock_name_hash(db->shared->oid, name);
	int			count;
	DLockSpaceRef *refs = find_memberships(db, group, &count);
	bool		may_be_full = count >= DLOCK_GROUP_MEMBERS_MAX;
	int			others = 0;

	for (int i = 0; i < count; i++)
	{
		DLockGroupMember member;

		if (!may_be_full && refs[i].hash != hash)
			continue;
		CHECK_FOR_INTERRUPTS();
		if (!copy_member(db, group, &refs[i], &member))
			continue;
		if (dlock_name_equal(&member.lock_name, name))
			remove_member(db, &member);
		else
			others++;
	}
	if (others >= DLOCK_GROUP_MEMBERS_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("group \"%.*s\" has too many members", group->name.len, group->name.data),
				 errdetail("The limit is %d.", DLOCK_GROUP_MEMBERS_MAX),
				 errhint("Let members leave, or wait until their memberships expire.")));
	(void) dlock_held_release_all(db, name);
}

/*
 * Join a group for "ttl" microseconds from now.  The payload is a jsonb without
 * its header that has a weight.  Returns the token of the membership.
 *
 * A present member of this name counts as an earlier run of the same member: its
 * membership and its leases end.  Throws 42501 if it belongs to another role, and
 * 53400.
 */
DLockToken
dlock_group_join(DLockDatabase *db, DLockGroup *group, const DLockBytes *member,
				 DLockTime ttl, const DLockBytes *payload)
{
	DLockBytes	name = make_name(MEMBER_PREFIX, &group->name, member);
	DLockAcquireRequest request = {
		.count = 1,
		.names = &name,
		.owner = make_name(MEMBERS_PREFIX, &group->name, NULL),
		.payload = *payload,
		.ttl = ttl,
		.mode = DLOCK_MODE_EX,
		.reentry = DLOCK_REENTRY_DENY,
		.bind = DLOCK_BIND_NONE,
		.role = GetUserId()
	};
	DLockAcquireGranted granted;

	lock_group(group);
	do
	{
		CHECK_FOR_INTERRUPTS();
		make_way(db, group, &name);
		dlock_grants_prepare(1, DLOCK_BIND_NONE);
	} while (dlock_acquire_locks(db, &request, &granted) != DLOCK_ANSWER_GRANTED);
	dlock_grants_add(db, &request, &granted);
	unlock_group(group);

	dlock_flush_commit(granted.lsn, dlock_clock_now());
	dlock_process_tell_observers(db->shared->oid, &name, 1);
	return granted.token;
}

/* Youngest lease first. */
static int
compare_ages(const void *a, const void *b)
{
	DLockToken	left = (*(DLockGroupPartition *const *) a)->token;
	DLockToken	right = (*(DLockGroupPartition *const *) b)->token;

	return (left < right) - (left > right);
}

/*
 * Renew the partitions of a member, and set their actions: it yields the youngest
 * ones above its quota, and runs the others.  Returns the number of its
 * partitions.
 */
static int
keep_partitions(DLockDatabase *db, DLockGroup *group, int me, XLogRecPtr *lsn)
{
	int			quota = group->shares[me].quota;
	DLockGroupPartition **mine = palloc((group->partition_count + 1) * sizeof(*mine));
	DLockSpaceRef *refs;
	int			count = 0;
	int			kept;
	int			surplus;

	for (int i = 0; i < group->partition_count; i++)
	{
		if (group->partitions[i].member == me)
			mine[count++] = &group->partitions[i];
	}
	qsort(mine, count, sizeof(*mine), compare_ages);

	refs = palloc0((count + 1) * sizeof(DLockSpaceRef));
	for (int i = 0; i < count; i++)
	{
		refs[i].hash = mine[i]->hash;
		refs[i].token = mine[i]->token;
	}

	/* With the member's ttl, so that they do not outlive the member. */
	kept = dlock_held_renew_refs(db, refs, count, group->members[me].ttl, lsn);
	surplus = kept - quota;
	for (int i = 0; i < count; i++)
	{
		/* It was lost meanwhile. */
		if (refs[i].token == DLOCK_TOKEN_NONE)
			continue;
		mine[i]->action = (surplus-- > 0) ? DLOCK_GROUP_YIELD : DLOCK_GROUP_RUN;
	}
	return kept;
}

/* Acquire these partitions for a member: all, or none if another member interferes. */
static void
acquire_partitions(DLockDatabase *db, const DLockGroupMember *member,
				   DLockGroupPartition **wanted, int count, XLogRecPtr *lsn)
{
	DLockBytes *names = palloc(count * sizeof(DLockBytes));
	DLockAcquireRequest request = {
		.count = count,
		.names = names,
		.owner = member->lock_name,
		.ttl = member->ttl,
		.mode = DLOCK_MODE_EX,
		.reentry = DLOCK_REENTRY_DENY,
		.bind = DLOCK_BIND_NONE,
		.role = member->role
	};
	DLockAcquireGranted granted;

	for (int i = 0; i < count; i++)
		names[i] = wanted[i]->lock_name;
	dlock_grants_prepare(count, DLOCK_BIND_NONE);
	if (dlock_acquire_locks(db, &request, &granted) != DLOCK_ANSWER_GRANTED)
		return;
	dlock_grants_add(db, &request, &granted);
	for (int i = 0; i < count; i++)
	{
		wanted[i]->token = granted.token + i;
		wanted[i]->action = DLOCK_GROUP_RUN;
	}
	*lsn = Max(*lsn, granted.lsn);
}

/* Acquire up to "count" free partitions. */
static void
take_partitions(DLockDatabase *db, DLockGroup *group, int me, int count, XLogRecPtr *lsn)
{
	DLockGroupPartition **wanted = palloc(count * sizeof(*wanted));
	DLockBytes *names = palloc(count * sizeof(DLockBytes));
	int			found = 0;

	for (int i = 0; i < group->partition_count && found < count; i++)
	{
		if (group->partitions[i].token != DLOCK_TOKEN_NONE)
			continue;
		wanted[found] = &group->partitions[i];
		names[found++] = group->partitions[i].name;
	}

	/* A row that was written by hand may have a name twice. */
	dlock_name_check_different(names, found, DLOCK_GROUP_INVALID_NAMES);

	for (int i = 0; i < found; i += DLOCK_NAMES_MAX)
		acquire_partitions(db, &group->members[me], wanted + i,
						   Min(found - i, DLOCK_NAMES_MAX), lsn);
}

/*
 * The same, but if there is no room for more leases, only warn: the member must
 * learn which partitions were renewed.
 */
static void
try_to_take(DLockDatabase *db, DLockGroup *group, int me, int count, XLogRecPtr *lsn)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		take_partitions(db, group, me, count, lsn);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		dlock_memory_trim();
		dlock_slot_trim();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;

	if (error == NULL)
		return;
	if (ERRCODE_TO_CATEGORY(error->sqlerrcode) != ERRCODE_INSUFFICIENT_RESOURCES)
		ReThrowError(error);
	ereport(WARNING,
			(errcode(error->sqlerrcode),
			 errmsg("could not acquire partitions of group \"%.*s\": %s",
					group->name.len, group->name.data, error->message),
			 errdetail("The member keeps the partitions that it has."),
			 errhint("The next heartbeat tries again.")));
}

/*
 * The heartbeat of the member with this token: release the partitions that it
 * yields, by their tokens, which get sorted; renew the others, and acquire free
 * ones up to its quota.  The actions of the partitions say what the member must do.
 *
 * When this returns, the leases are as durable as synchronous_commit asks for.
 * Throws LK002 if the membership is lost, 42501 if it belongs to another role.
 */
void
dlock_group_beat(DLockDatabase *db, DLockGroup *group, DLockToken token,
				 DLockToken *yielded, int yielded_count)
{
	XLogRecPtr	lsn = InvalidXLogRecPtr;
	DLockSpaceRef ref = {.token = token};
	int			me = 0;
	int			short_of;

	lock_group(group);
	look_at_members(db, group);
	while (me < group->member_count && group->members[me].token != token)
		me++;
	if (me == group->member_count)
		report_lost(group, token);
	check_role(&group->members[me]);
	ref.hash = group->members[me].hash;
	if (dlock_held_renew_refs(db, &ref, 1, 0, &lsn) == 0)
		report_lost(group, token);

	(void) release_partitions(db, &group->members[me], yielded, yielded_count);
	look_at_partitions(db, group);
	set_quotas(group, me);
	short_of = group->shares[me].quota - keep_partitions(db, group, me, &lsn);
	if (short_of > 0)
		try_to_take(db, group, me, short_of, &lsn);
	unlock_group(group);

	dlock_flush_commit(lsn, dlock_clock_now());
	for (int i = 0; i < group->partition_count && short_of > 0; i++)
		dlock_process_tell_observers(db->shared->oid, &group->partitions[i].lock_name, 1);
}

/*
 * Release partitions that the member with this token has stopped working on,
 * given by the tokens of their leases, which get sorted.  Returns how many of them
 * were released: none if the membership is lost.  Throws 42501.
 */
int
dlock_group_yield(DLockDatabase *db, DLockGroup *group, DLockToken token,
				  DLockToken *yielded, int yielded_count)
{
	DLockGroupMember member;

	if (!look_at_member(db, group, token, &member))
		return 0;
	check_role(&member);
	return release_partitions(db, &member, yielded, yielded_count);
}

/*
 * End the membership with this token, and release its partitions; false if there
 * is none.  Throws 42501.
 */
bool
dlock_group_leave(DLockDatabase *db, DLockGroup *group, DLockToken token)
{
	DLockGroupMember member;
	bool		found;

	/* First without the lock: a caller outside the group must not block it. */
	if (!look_at_member(db, group, token, &member))
		return false;
	check_role(&member);

	lock_group(group);
	found = look_at_member(db, group, token, &member);
	if (found)
		remove_member(db, &member);
	unlock_group(group);
	return found;
}
