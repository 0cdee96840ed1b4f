/*-------------------------------------------------------------------------
 *
 * holder.c
 *	  The leases that are held: found by their owner and by their token, and what
 *	  blocks a request.
 *
 * NOTES
 *	  The index of owners has all leases but the intents of paths, by the client
 *	  of the owner.  The role is no part of the key, since a caller that asks
 *	  for the leases of a name may be a member of several roles.
 *
 *	  The index of tokens has the leases on a lock after the first few, which stand in
 *	  front.  Most locks have one lease, which is found with its lock: the index is not
 *	  touched, and costs no cache miss.
 *
 *	  Lock rules.  The buckets of tokens are protected by the lock of their partition,
 *	  those of owners by a set of LWLocks of their own.  One of these is taken after
 *	  partition locks or without any, never before, and never two.  A lease leaves its
 *	  owner's bucket before its memory is given back, so a process that finds a lease
 *	  there may read it as long as it holds the owner's lock.
 *
 *	  The functions on what blocks a request change nothing but what a lock says of its
 *	  holders (dlock_holder_survey).  They want the partitions of what they read locked,
 *	  but for paths below (find_in_way).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"

#include "base/clock.h"
#include "base/name.h"
#include "base/rule.h"
#include "space/holder.h"
#include "store/flush.h"

#define OWNER_LOCKS			32

/* There are fewer owners than leases. */
#define OWNER_BITS_LESS		2

/* So many leases on a lock are scanned before an index is used. */
#define FEW					8

#define OWNER_NODE			offsetof(DLockSpaceLease, u.owner)

/* The buckets, and numbers of them as powers of 2; set once, in the postmaster. */
DLockMemoryRef *dlock_holder_tokens = NULL;
static DLockMemoryRef *owner_buckets = NULL;
static uint32 token_bits = 0;
static uint32 owner_bits = 0;
static LWLockPadded *owner_locks = NULL;

/* The bytes that the indexes take in a space with 2^bits buckets. */
Size
dlock_holder_size(uint32 bits)
{
	return sizeof(DLockMemoryRef) *
		(((Size) 1 << bits) + ((Size) 1 << (bits - OWNER_BITS_LESS)));
}

/* Ask for the locks. */
void
dlock_holder_request(void)
{
	RequestNamedLWLockTranche("dlock_owner", OWNER_LOCKS);
}

/* Where the indexes are: dlock_holder_size() bytes, all zero at first. */
void
dlock_holder_startup(DLockMemoryRef *place, uint32 bits)
{
	token_bits = bits;
	owner_bits = bits - OWNER_BITS_LESS;
	dlock_holder_tokens = place;
	owner_buckets = place + ((Size) 1 << token_bits);
	owner_locks = GetNamedLWLockTranche("dlock_owner");
}

/* The bucket of a token, in the partition of its lock. */
static inline DLockMemoryRef *
token_bucket(uint32 hash, DLockToken token)
{
	uint32		per_partition = (1U << token_bits) / DLOCK_PARTITION_COUNT;

	return &dlock_holder_tokens[dlock_partition_of(hash) * per_partition +
								murmurhash32((uint32) token) % per_partition];
}

static inline uint32
owner_bucket_of(Oid database, const DLockBytes *owner_name)
{
	DLockBytes	client = dlock_name_client(owner_name);

	return dlock_name_hash(database, &client) & ((1U << owner_bits) - 1);
}

static inline uint32
owner_bucket_of_lease(const DLockSpaceLease *lease)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(lease, buffer);

	return owner_bucket_of(dlock_space_entry_of(lease)->database, &owner.name);
}

static inline LWLock *
owner_lock(uint32 owner_bucket)
{
	return &owner_locks[owner_bucket % OWNER_LOCKS].lock;
}

static void
link_token(DLockSpaceLease *lease)
{
	DLockMemoryRef *bucket = token_bucket(dlock_space_entry_of(lease)->hash, lease->token);

	lease->token_next = *bucket;
	*bucket = dlock_memory_ref(lease);
}

static void
unlink_token(DLockSpaceLease *lease)
{
	DLockMemoryRef *link = token_bucket(dlock_space_entry_of(lease)->hash, lease->token);

	while (*link != dlock_memory_ref(lease))
		link = &dlock_space_lease_at(*link)->token_next;
	*link = lease->token_next;
}

/*
 * A lease is held from now on.  Its partition lock must be held exclusively.
 * Cannot fail.
 */
void
dlock_holder_add(DLockSpaceLease *lease)
{
	Assert(dlock_partition_is_mine(dlock_space_entry_of(lease)->hash));
	if (lease->indexed)
		link_token(lease);

	/* An intent is found from its path. */
	if (lease->part != DLOCK_PART_INTENT)
	{
		uint32		bucket = owner_bucket_of_lease(lease);

		LWLockAcquire(owner_lock(bucket), LW_EXCLUSIVE);
		dlock_memory_list_insert(&owner_buckets[bucket], dlock_memory_ref(lease),
								 owner_buckets[bucket], OWNER_NODE);
		LWLockRelease(owner_lock(bucket));
	}
}

/* It is held no longer.  Likewise. */
void
dlock_holder_remove(DLockSpaceLease *lease)
{
	Assert(dlock_partition_is_mine(dlock_space_entry_of(lease)->hash));
	if (lease->indexed)
		unlink_token(lease);
	if (lease->part != DLOCK_PART_INTENT)
	{
		uint32		bucket = owner_bucket_of_lease(lease);

		LWLockAcquire(owner_lock(bucket), LW_EXCLUSIVE);
		dlock_memory_list_delete(&owner_buckets[bucket], dlock_memory_ref(lease), OWNER_NODE);
		LWLockRelease(owner_lock(bucket));
	}
}

/* It gets another token.  Likewise. */
void
dlock_holder_change(DLockSpaceLease *lease, DLockToken token)
{
	LWLock	   *lock = owner_lock(owner_bucket_of_lease(lease));

	Assert(dlock_partition_is_mine(dlock_space_entry_of(lease)->hash));
	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (lease->indexed)
		unlink_token(lease);
	lease->token = token;
	if (lease->indexed)
		link_token(lease);
	LWLockRelease(lock);
}

/*
 * Of the leases on a lock that are told to be held, intents aside, the one with the latest
 * token; NULL if there is none.  "pending": there may be a newer one, told of once it is
 * confirmed.  The partition must be locked.
 */
DLockSpaceLease *
dlock_holder_newest(DLockSpaceEntry *entry, DLockTime now, bool *pending)
{
	DLockSpaceLease *newest = NULL;

	*pending = false;
	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL;
		 lease = dlock_space_next(lease))
	{
		/* Only intents follow. */
		if (lease->indexed && lease->part == DLOCK_PART_INTENT)
			break;
		if (lease->part == DLOCK_PART_INTENT || (newest != NULL && lease->token < newest->token))
			continue;
		if (dlock_rule_is_live(dlock_holder_told_until(lease), now))
			newest = lease;
		else if (lease->confirmed == 0 && dlock_rule_is_live(lease->deadline, now))
			*pending = true;
	}
	return newest;
}

/* Has a lease a token?  Its intents have it, too, but are no leases of their own. */
static inline bool
has_token(const DLockSpaceLease *lease, DLockToken token)
{
	return lease->token == token && lease->part != DLOCK_PART_INTENT;
}

/* The lease with a token on a lock; NULL if there is none.  Lock as for newest. */
DLockSpaceLease *
dlock_holder_find_token(DLockSpaceEntry *entry, DLockToken token)
{
	DLockSpaceLease *lease = dlock_space_holders(entry);

	while (lease != NULL && !lease->indexed && !has_token(lease, token))
		lease = dlock_space_next(lease);
	if (lease == NULL || !lease->indexed)
		return lease;
	lease = dlock_space_lease_at(*token_bucket(entry->hash, token));
	while (lease != NULL && (!has_token(lease, token) || lease->entry != dlock_memory_ref(entry)))
		lease = dlock_space_lease_at(lease->token_next);
	return lease;
}

/* Has a lock fewer leases than FEW?  Lock as for newest. */
bool
dlock_holder_are_few(DLockSpaceEntry *entry)
{
	DLockSpaceLease *lease = dlock_space_holders(entry);

	for (int i = 1; i < FEW && lease != NULL; i++)
		lease = dlock_space_next(lease);
	return lease == NULL;
}

/* A search for a lease of an owner on a lock. */
typedef struct DLockHolderSearch
{
	DLockSpaceEntry *entry;
	const DLockBytes *name;		/* of the owner */
	Oid			role;			/* of the owner ... */
	bool		any_role;		/* ... or, if it has no lease, any but these */
	const List *strangers;
	bool		closed;			/* see DLockHolderTarget */
	DLockMode	mode;			/* that is_own_way() asks about */
	DLockTime	now;
	DLockSpaceLease *found;
} DLockHolderSearch;

/*
 * Visit the leases on a lock, and side by side those in the owners' bucket of a name, until
 * the visitor is done or one list ends: the shorter one decides how long it takes.  So each
 * lease on the lock of an owner with that name is visited, some twice, and others with
 * them.  Returns what has been found.
 */
static pg_attribute_always_inline DLockSpaceLease *
visit_owned(DLockHolderSearch *search, bool (*visit) (DLockHolderSearch *search, DLockSpaceLease *lease))
{
	uint32		bucket;
	DLockSpaceLease *held = dlock_space_holders(search->entry);
	DLockSpaceLease *owned;
	bool		done = false;

	/* Most locks have few holders; no need for another lock. */
	for (int i = 0; i < FEW && held != NULL && !done; i++)
	{
		done = visit(search, held);
		held = dlock_space_next(held);
	}
	if (held == NULL || done)
		return search->found;

	bucket = owner_bucket_of(search->entry->database, search->name);
	LWLockAcquire(owner_lock(bucket), LW_SHARED);
	owned = dlock_space_lease_at(owner_buckets[bucket]);
	while (held != NULL && owned != NULL && !done)
	{
		done = visit(search, held) || visit(search, owned);
		held = dlock_space_next(held);
		owned = dlock_space_lease_at(owned->u.owner.next);
	}
	LWLockRelease(owner_lock(bucket));
	return search->found;
}

/*
 * Is a lease live; or, if "closed", over, and its lock closed by its lock delay?  The
 * partition lock must be held.
 */
bool
dlock_holder_is_wanted(const DLockSpaceLease *lease, bool closed, DLockTime now)
{
	if (dlock_rule_is_live(lease->deadline, now))
		return !closed;
	return closed && now >= lease->min_until && dlock_holder_blocks_until(lease) > now;
}

/* A visitor: find the lease that the name stands for.  One of the role ends the search. */
static bool
find_wanted(DLockHolderSearch *search, DLockSpaceLease *lease)
{
	bool		own = lease->role == search->role;

	if (lease->entry != dlock_memory_ref(search->entry) || lease->part == DLOCK_PART_INTENT ||
		!dlock_holder_is_wanted(lease, search->closed, search->now) ||
		!dlock_space_is_owner_name(lease, search->name))
		return false;
	if (own || (search->any_role && search->found == NULL && !list_member_oid(search->strangers, lease->role)))
		search->found = lease;
	return own;
}

/*
 * The live lease of an owner on a lock; NULL if it has none.  Intents do not
 * count: an owner may have many.  Lock as for newest.
 */
DLockSpaceLease *
dlock_holder_find_owned(DLockSpaceEntry *entry, const DLockOwner *owner, DLockTime now)
{
	DLockHolderSearch search = {.entry = entry,.name = &owner->name,.role = owner->role,.now = now};

	return visit_owned(&search, find_wanted);
}

/*
 * The lease on a lock that an owner's name stands for: that of the current user,
 * else the first that is not a stranger's; NULL if there is none.  An owner may have
 * leases that are closed beside its live one.  Lock as for newest.
 */
DLockSpaceLease *
dlock_holder_find_named(DLockSpaceEntry *entry, const DLockHolderTarget *target,
						const List *strangers)
{
	DLockHolderSearch search = {
		.entry = entry,.name = &target->owner,.role = GetUserId(),.any_role = true,
		.strangers = strangers,.closed = target->closed,.now = dlock_clock_now()
	};

	return visit_owned(&search, find_wanted);
}

/* The leases for dlock_holder_list(), no more than "room"; returns how many there are. */
static int
list_leases(Oid database, const DLockBytes *owner_name, DLockSpaceRef *refs, int room, int *own)
{
	uint32		bucket = owner_bucket_of(database, owner_name);
	int			count = 0;

	*own = 0;
	LWLockAcquire(owner_lock(bucket), LW_SHARED);
	for (DLockSpaceLease *lease = dlock_space_lease_at(owner_buckets[bucket]); lease != NULL;
		 lease = dlock_space_lease_at(lease->u.owner.next))
	{
		DLockSpaceEntry *entry = dlock_space_entry_of(lease);
		int			place = count;

		if (entry->database != database || !dlock_space_is_of(lease, owner_name))
			continue;
		if (count++ >= room)
			continue;
		if (lease->role == GetUserId())
		{
			refs[place] = refs[*own];
			place = (*own)++;
		}
		refs[place] = (DLockSpaceRef)
		{
			entry->hash, lease->token
		};
	}
	LWLockRelease(owner_lock(bucket));
	return count;
}

/*
 * The leases of the owners of a name, and of the tasks of a client of that name,
 * whatever their role, expired ones too; palloc'd, with their number in "count".  The
 * current user's come first; "own" is how many these are, unless NULL.  No partition
 * lock may be held.
 *
 * Grants may wait for the owner's lock, so nothing is allocated under it: where the
 * room is too small, the list is begun again with more.
 */
DLockSpaceRef *
dlock_holder_list(Oid database, const DLockBytes *owner_name, int *own, int *count)
{
	int			room = 64;
	int			nown;
	DLockSpaceRef *refs = palloc(room * sizeof(DLockSpaceRef));

	Assert(!dlock_partition_is_any_held());
	while ((*count = list_leases(database, owner_name, refs, room, &nown)) > room)
	{
		room = *count + *count / 4;
		refs = repalloc_huge(refs, room * sizeof(DLockSpaceRef));
	}
	if (own != NULL)
		*own = nown;
	return refs;
}

/* ---- a lease as a value, and what blocks a request ---- */

/*
 * A lease as a value.  What only a record has is left empty: the boot, the bound
 * on the wall clock, and min_hold.  Long texts are put together in "texts".
 */
DLockLeaseValue
dlock_holder_value(const DLockSpaceLease *lease, DLockHolderTexts *texts)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(lease);

	Assert(dlock_partition_is_held(entry->hash));
	return (DLockLeaseValue)
	{
		.token = lease->token,
			.mode = (DLockMode) lease->mode,
			.bind = (DLockBind) lease->bind,
			.part = (DLockPart) lease->part,
			.role = lease->role,
			.holds = lease->holds,
			.permits = entry->permits,
			.granted_at = lease->granted_at,
			.term = dlock_space_lease_term(lease),
			.delay = dlock_space_whole(lease)->delay,
			.name = dlock_space_entry_name(entry, texts->name),
			.owner = dlock_space_lease_owner(lease, texts->owner).name,
			.payload = dlock_space_lease_payload(lease, texts->payload)
	};
}

/* Until when a lease blocks others. */
DLockTime
dlock_holder_blocks_until(const DLockSpaceLease *lease)
{
	Assert(dlock_partition_is_held(dlock_space_entry_of(lease)->hash));
	lease = dlock_space_whole(lease);
	return dlock_rule_blocks_until(lease->deadline, lease->delay);
}

/* Up to when the confirmed records about a lease vouch for it. */
DLockTime
dlock_holder_vouched_until(const DLockSpaceLease *lease)
{
	Assert(dlock_partition_is_held(dlock_space_entry_of(lease)->hash));
	lease = dlock_space_whole(lease);
	return dlock_flush_is_confirmed(lease->level, lease->lsn) ?
		Max(lease->bound_mono, lease->deadline) : lease->confirmed;
}

/*
 * Until when a lease is held, as far as that is confirmed: what its holder, and any
 * other that asks, is told.  Its deadline, which may be later, blocks others.
 */
DLockTime
dlock_holder_told_until(const DLockSpaceLease *lease)
{
	return Min(dlock_space_whole(lease)->deadline, dlock_holder_vouched_until(lease));
}

/*
 * Was a lease loaded, and none of its records confirmed since?  An answer other than "not
 * confirmed" has to wait for its last record.
 */
bool
dlock_holder_is_unknown(const DLockSpaceLease *lease)
{
	return dlock_holder_vouched_until(lease) == DLOCK_SPACE_UNKNOWN;
}

/* When the worker has something to do about a lease: erase it, or write it. */
DLockTime
dlock_holder_due_at(const DLockSpaceLease *lease)
{
	Assert(dlock_partition_is_held(dlock_space_entry_of(lease)->hash));
	return lease->unwritten ? 0 : dlock_holder_blocks_until(lease);
}

/*
 * The leases that block others on a lock, taken together.  The partition must be locked
 * exclusively.
 *
 * Before "earliest" no walk is needed: the entry has the sums, and "until" may be earlier than
 * the first lease stops blocking.  A walk sets "earliest" anew, unless a lease is dead.
 */
DLockHolderCrowd
dlock_holder_survey(DLockSpaceEntry *entry, DLockTime now)
{
	DLockHolderCrowd crowd = {.until = DLOCK_TIME_FOREVER};
	bool		any_dead = false;

	Assert(dlock_partition_is_mine(entry->hash));
	if (now < entry->earliest)
		return (DLockHolderCrowd)
	{
		entry->held_modes, entry->ncr, entry->nstrong, entry->earliest
	};

	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL;
		 lease = dlock_space_next(lease))
	{
		uint32		mode = DLOCK_RULE_BIT(lease->mode);
		DLockTime	until = dlock_holder_blocks_until(lease);

		any_dead |= until <= now;
		if (until <= now)
			continue;
		crowd.modes |= mode;
		crowd.ncr += lease->mode == DLOCK_MODE_CR;
		crowd.nstrong += (mode & DLOCK_SPACE_WEAK_MODES) == 0;
		crowd.until = Min(crowd.until, until);
	}
	if (!any_dead)
	{
		entry->earliest = crowd.until;
		entry->held_modes = crowd.modes;
	}
	return crowd;
}

/*
 * A survey without one of its leases, which may be NULL; "until" stays.  "now" must be
 * that of the survey, which counts the lease only if it still blocks then.
 */
DLockHolderCrowd
dlock_holder_without(DLockHolderCrowd crowd, const DLockSpaceLease *own, DLockTime now)
{
	if (own == NULL || dlock_holder_blocks_until(own) <= now)
		return crowd;
	if (own->mode == DLOCK_MODE_CR)
	{
		if (--crowd.ncr == 0)
			crowd.modes &= ~DLOCK_RULE_BIT(DLOCK_MODE_CR);
	}
	else if (own->mode != DLOCK_MODE_NL && --crowd.nstrong == 0)
		crowd.modes &= DLOCK_SPACE_WEAK_MODES;
	return crowd;
}

/*
 * Is a mode blocked: by the crowd, or by requests in front, in the modes "ahead"?  The
 * strong leases of a semaphore are its permits.
 */
bool
dlock_holder_is_in_way(const DLockHolderCrowd *crowd, uint32 ahead, DLockMode mode, uint32 permits)
{
	return (dlock_rule_conflicts(mode) & crowd->modes) != 0 ||
		dlock_rule_waits_behind(mode, ahead) ||
		(mode == DLOCK_MODE_PERMIT && crowd->nstrong >= permits);
}

/* The lease that a conversion is to change; NULL if it has ended. */
DLockSpaceLease *
dlock_holder_converted(DLockSpaceEntry *entry, const DLockSpaceLease *request, DLockTime now)
{
	DLockSpaceLease *lease = dlock_holder_find_token(entry, request->token);

	return (lease != NULL && dlock_rule_is_live(lease->deadline, now)) ? lease : NULL;
}

/*
 * Does a request in the queue count for those behind it?  Not a conversion whose lease
 * has ended, a request whose turn is over (its process finds that when it runs), or a
 * place that is over.  The partition must be locked.
 */
bool
dlock_holder_is_waiting(DLockSpaceEntry *entry, const DLockSpaceLease *request, DLockTime now)
{
	Assert(dlock_partition_is_held(entry->hash));
	if (request->kind == DLOCK_SPACE_ASKED)
		return (request->bound_mono == 0 || request->bound_mono > now) &&
			!dlock_space_is_over(request, now);
	return dlock_holder_converted(entry, request, now) != NULL;
}

/*
 * Would a lease in this mode conflict with the holders of the lock, apart from
 * "own", or with the requests in the queue that are in front of "before" (NULL:
 * all of them)?  "until" is the first moment when time alone may change that: a holder stops
 * blocking, a turn ends, or a place is over.  The partition must be locked exclusively.
 */
bool
dlock_holder_is_blocked(DLockSpaceEntry *entry, DLockMode mode, uint32 permits,
						const DLockSpaceLease *own, const DLockSpaceLease *before,
						DLockTime now, DLockTime *until)
{
	DLockHolderCrowd crowd = dlock_holder_without(dlock_holder_survey(entry, now), own, now);

	*until = crowd.until;
	if (dlock_holder_is_in_way(&crowd, 0, mode, permits))
		return true;
	for (DLockSpaceLease *request = dlock_space_queue(entry);
		 request != NULL && request != before; request = dlock_space_next(request))
	{
		/* From here on nothing but requests for leases follows. */
		if (request->kind == DLOCK_SPACE_ASKED &&
			!dlock_rule_waits_behind(mode, entry->asked_modes))
			break;
		if (!dlock_rule_waits_behind(mode, DLOCK_RULE_BIT(request->mode)) ||
			!dlock_holder_is_waiting(entry, request, now))
			continue;
		if (request->placed && request->process < 0)
			*until = Min(*until, request->confirmed);
		if (request->kind == DLOCK_SPACE_ASKED && request->bound_mono != 0)
		{
			*until = Min(*until, request->bound_mono);

			/* It is about to take a permit, and there may be more. */
			if (mode == DLOCK_MODE_PERMIT && ++crowd.nstrong < permits)
				continue;
		}
		return true;
	}
	return false;
}

/*
 * A visitor: is this a live lease of the owner, on the lock or on a path below it, that
 * conflicts with the mode?  A lease below is in another partition.  What is read of it is
 * safe: its term changes only under the partition locks of all its parts.  The rest never
 * changes: the lease on a path is not converted.
 */
static bool
find_in_way(DLockHolderSearch *search, DLockSpaceLease *lease)
{
	const DLockSpaceEntry *entry = search->entry;
	DLockMode	held = (DLockMode) lease->mode;

	if (lease->entry != dlock_memory_ref(entry))
	{
		const DLockSpaceEntry *at = dlock_space_entry_of(lease);
		char		buffers[2][DLOCK_NAME_MAX];
		DLockBytes	path;
		DLockBytes	above;

		if (lease->part != DLOCK_PART_PATH || at->database != entry->database)
			return false;
		path = dlock_space_entry_name(at, buffers[0]);
		above = dlock_space_entry_name(entry, buffers[1]);
		if (!dlock_name_is_below(&path, &above))
			return false;
		held = dlock_rule_intent(held);
	}
	if (lease->role != search->role || !dlock_space_is_owner_name(lease, search->name) ||
		!dlock_rule_is_live(dlock_space_whole(lease)->deadline, search->now) ||
		dlock_rule_is_compatible(held, search->mode))
		return false;
	search->found = lease;
	return true;
}

/*
 * Does an owner block itself, by any live lease that it has on a lock, be it an
 * intent?  The partition must be locked.
 */
bool
dlock_holder_is_own_way(DLockSpaceEntry *entry, const DLockOwner *owner, DLockMode mode,
						DLockTime now)
{
	DLockHolderSearch search = {
		.entry = entry,.name = &owner->name,.role = owner->role,.mode = mode,.now = now
	};

	return visit_owned(&search, find_in_way) != NULL;
}
