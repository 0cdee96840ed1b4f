/*-------------------------------------------------------------------------
 *
 * group.h
 *	  Spread the partitions of a group over its members.
 *
 * IDENTIFICATION
 *	  src/pattern/group.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_GROUP_H
#define DLOCK_GROUP_H

#include "base/rule.h"
#include "base/types.h"
#include "space/database.h"

/* Limits of names of groups, members and partitions, in bytes. */
#define DLOCK_GROUP_NAME_MAX	100

/*
 * The most partitions and members of a group, and tokens of one call: all of them
 * are looked at under the lock of the group.
 */
#define DLOCK_GROUP_PARTITIONS_MAX	10000
#define DLOCK_GROUP_MEMBERS_MAX		10000

/* The error about names of partitions that will not do. */
#define DLOCK_GROUP_INVALID_NAMES	gettext_noop("invalid array of partition names")

/* A live member. */
typedef struct DLockGroupMember
{
	DLockBytes	lock_name;		/* of its membership, owner of its partitions */
	DLockBytes	name;			/* of the member, a part of lock_name */
	uint32		hash;			/* of lock_name */
	DLockToken	token;
	Oid			role;
	DLockBytes	payload;		/* weight and payload, a jsonb without header */
	DLockTime	ttl;
	DLockTime	told_until;
	TimestampTz joined_at;
} DLockGroupMember;

typedef enum DLockGroupAction
{
	DLOCK_GROUP_NONE,			/* of another member, or free */
	DLOCK_GROUP_RUN,
	DLOCK_GROUP_YIELD			/* to be given up */
} DLockGroupAction;

/* A partition. */
typedef struct DLockGroupPartition
{
	DLockBytes	name;
	DLockBytes	lock_name;
	uint32		hash;			/* of lock_name */
	DLockToken	token;			/* of its lease; DLOCK_TOKEN_NONE: free */
	int			member;			/* index of its owner, or -1 */
	DLockTime	told_until;
	TimestampTz since;
	DLockGroupAction action;	/* of the calling member */
} DLockGroupPartition;

/*
 * A group.  The caller sets the name.  The names of its partitions come from the
 * table (pattern/owned.c), the rest from its leases.
 */
typedef struct DLockGroup
{
	DLockBytes	name;
	int			partition_count;
	DLockGroupPartition *partitions;
	int			member_count;
	DLockGroupMember *members;	/* in the order of their tokens */
	DLockRuleMember *shares;	/* of each, its weight and quota */
	DLockTime	now;			/* when they were read */
} DLockGroup;

extern DLockBytes dlock_group_of_name(const DLockBytes *name);
extern DLockToken dlock_group_join(DLockDatabase *db, DLockGroup *group, const DLockBytes *member,
								   DLockTime ttl, const DLockBytes *payload);
extern void dlock_group_beat(DLockDatabase *db, DLockGroup *group, DLockToken token,
							 DLockToken *yielded, int yielded_count);
extern int	dlock_group_yield(DLockDatabase *db, DLockGroup *group, DLockToken token,
							  DLockToken *yielded, int yielded_count);
extern bool dlock_group_leave(DLockDatabase *db, DLockGroup *group, DLockToken token);
extern void dlock_group_look(DLockDatabase *db, DLockGroup *group);

#endif							/* DLOCK_GROUP_H */
