/*-------------------------------------------------------------------------
 *
 * space.c
 *	  The lock space: the live truth about all leases, in shared memory.
 *
 * NOTES
 *	  Locks (DLockSpaceEntry) hang in a hash table, by database and name; the
 *	  leases on a lock hang on it, and so does the queue of those who wait for
 *	  it.  A second hash table of the same build finds leases by the name of the
 *	  owner.  The role is no part of that key, since a caller that asks for the
 *	  leases of a name may be a member of several roles.  A third one finds
 *	  leases by their token.  It has only those on locks with many: most locks
 *	  have one, which is found with its lock, and what is not touched costs no
 *	  cache miss.
 *
 *	  The tables are bucket arrays of a fixed size, so no operation ever has to
 *	  resize one under everybody's feet; what hangs on them is made of the
 *	  cells of space/memory.c.
 *
 *	  Lock rules.  The buckets are cut into DLOCK_SPACE_PARTITIONS contiguous
 *	  partitions, each with an LWLock that protects its buckets and all that
 *	  hangs on them.  A backend that needs several takes them all at once
 *	  (dlock_space_lock_set), and waits for one with none of the others held.
 *	  The owners' buckets are protected by another, smaller set of
 *	  LWLocks, one of which is taken after partition locks or without any,
 *	  never before.  A lease leaves its owner's bucket before its memory is
 *	  given back, so a process that finds a lease there may look at it as long
 *	  as it holds the owner's lock.
 *
 *	  A backend that is stopped under a partition lock makes those wait that
 *	  need this partition, and no others: what wants to see partitions that it
 *	  can do without, such as a view, a reaper or a search for deadlocks, leaves
 *	  them out after DLOCK_SPACE_PATIENCE.
 *
 * IDENTIFICATION
 *	  src/space/space.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#include "base/clock.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/settings.h"
#include "base/stat.h"
#include "space/space.h"

/* The buckets; the pointers are set once, in the postmaster. */
static DLockMemoryRef *buckets = NULL;
static DLockMemoryRef *token_buckets = NULL;
static DLockMemoryRef *owner_buckets = NULL;
static LWLockPadded *partition_locks = NULL;
static LWLockPadded *owner_locks = NULL;
static uint32 bucket_bits = 0;
static uint32 owner_bits = 0;

/* Buckets are no fewer than this, so that each partition has some. */
#define MIN_BUCKET_BITS		12

/* A bucket for each so many bytes of dlock.max_memory. */
#define BYTES_PER_BUCKET	256

/* So many leases on a lock are looked through before an index is asked. */
#define FEW_HOLDERS			8

/* There are fewer owners than leases. */
#define OWNER_BITS_LESS		2

/* How many buckets a walk looks at before it lets others have the lock; a power of 2. */
#define VISIT_BUCKETS		32

/* How often dlock_space_lock_set() begins again before it insists. */
#define LOCK_SET_ATTEMPTS	10

/* How long to sleep between two looks at a lock that is not free, in microseconds. */
#define PATIENCE_STEP		100

#define NONE			DLOCK_MEMORY_NONE
#define ENTRY_AT(ref)	((DLockSpaceEntry *) dlock_memory_at(ref))
#define LEASE_AT(ref)	((DLockSpaceLease *) dlock_memory_at(ref))

/*
 * The modes that leases may have beside those in another mode.  Of the others,
 * live leases on a lock have one and the same (see the matrix in base/rule.c).
 */
#define WEAK_MODES \
	(DLOCK_RULE_BIT(DLOCK_MODE_NL) | DLOCK_RULE_BIT(DLOCK_MODE_CR))

static Size
all_buckets_size(void)
{
	return sizeof(DLockMemoryRef) * (((Size) 2 << bucket_bits) + ((Size) 1 << owner_bits));
}

/* Ask for the shared memory and the locks of the space. */
void
dlock_space_request(void)
{
	Size		memory = (Size) dlock_settings_max_memory_kb * 1024;

	bucket_bits = Max(MIN_BUCKET_BITS, pg_ceil_log2_64(memory / BYTES_PER_BUCKET));
	owner_bits = bucket_bits - OWNER_BITS_LESS;
	RequestAddinShmemSpace(all_buckets_size());
	RequestNamedLWLockTranche("dlock_space", DLOCK_SPACE_PARTITIONS);
	RequestNamedLWLockTranche("dlock_owner", DLOCK_SPACE_OWNER_LOCKS);
}

/*
 * Create the space in shared memory, or find it there; with AddinShmemInitLock
 * held.
 */
void
dlock_space_startup(void)
{
	bool		found;
	char	   *place = ShmemInitStruct("dlock space", all_buckets_size(), &found);

	buckets = (DLockMemoryRef *) place;
	token_buckets = buckets + (1U << bucket_bits);
	owner_buckets = token_buckets + (1U << bucket_bits);
	partition_locks = GetNamedLWLockTranche("dlock_space");
	owner_locks = GetNamedLWLockTranche("dlock_owner");

	if (!found)
		memset(place, 0, all_buckets_size());
}

static inline uint32
bucket_of(uint32 hash)
{
	return hash & ((1U << bucket_bits) - 1);
}

static inline int
partition_of(uint32 hash)
{
	return bucket_of(hash) / ((1U << bucket_bits) / DLOCK_SPACE_PARTITIONS);
}

/*
 * The bucket of a token, on a lock with this hash.  It lies in the partition of
 * the lock, whose lock so protects it.
 */
static inline uint32
token_bucket_of(uint32 hash, DLockToken token)
{
	uint32		per_partition = (1U << bucket_bits) / DLOCK_SPACE_PARTITIONS;

	return partition_of(hash) * per_partition + murmurhash32((uint32) token) % per_partition;
}

static inline LWLock *
partition_lock(uint32 hash)
{
	return &partition_locks[partition_of(hash)].lock;
}

static inline uint32
owner_bucket_of(Oid database, const DLockBytes *owner_name)
{
	return dlock_name_hash(database, owner_name) & ((1U << owner_bits) - 1);
}

static inline LWLock *
owner_lock(uint32 owner_bucket)
{
	return &owner_locks[owner_bucket % DLOCK_SPACE_OWNER_LOCKS].lock;
}

/*
 * Take the partition lock of a lock's hash.  No other partition lock may be
 * held.
 */
void
dlock_space_lock(uint32 hash, LWLockMode mode)
{
	LWLockAcquire(partition_lock(hash), mode);
}

void
dlock_space_unlock(uint32 hash)
{
	LWLockRelease(partition_lock(hash));
}

/* Add the partition of a lock's hash to a set. */
void
dlock_space_set_add(DLockSpaceSet *set, uint32 hash)
{
	int			partition = partition_of(hash);

	set->bits[partition / 64] |= UINT64CONST(1) << (partition % 64);
}

/* Add the partitions of another set to a set. */
void
dlock_space_set_join(DLockSpaceSet *set, const DLockSpaceSet *other)
{
	for (int word = 0; word < (int) lengthof(set->bits); word++)
		set->bits[word] |= other->bits[word];
}

/* Are all partitions of another set in a set? */
bool
dlock_space_set_contains(const DLockSpaceSet *set, const DLockSpaceSet *other)
{
	for (int word = 0; word < (int) lengthof(set->bits); word++)
	{
		if (other->bits[word] & ~set->bits[word])
			return false;
	}
	return true;
}

/* Is the partition of a lock's hash in the set? */
bool
dlock_space_set_has(const DLockSpaceSet *set, uint32 hash)
{
	int			partition = partition_of(hash);

	return (set->bits[partition / 64] & (UINT64CONST(1) << (partition % 64))) != 0;
}

/* Do two sets have a partition in common? */
static bool
sets_meet(const DLockSpaceSet *a, const DLockSpaceSet *b)
{
	for (int word = 0; word < (int) lengthof(a->bits); word++)
	{
		if (a->bits[word] & b->bits[word])
			return true;
	}
	return false;
}

/* How many partitions are in the set? */
int
dlock_space_set_count(const DLockSpaceSet *set)
{
	int			count = 0;

	for (int word = 0; word < (int) lengthof(set->bits); word++)
		count += pg_popcount64(set->bits[word]);
	return count;
}

#define NO_PARTITION	(-1)

/*
 * Take the locks of all partitions of a set, of which this backend holds that of
 * "held" already, without waiting.  Returns NO_PARTITION, or else, with none of
 * them held, a partition whose lock is not free.
 */
static int
take_set(const DLockSpaceSet *set, LWLockMode mode, int held)
{
	DLockSpaceSet taken = {{0}};

	if (held != NO_PARTITION)
		taken.bits[held / 64] |= UINT64CONST(1) << (held % 64);
	for (int word = 0; word < (int) lengthof(set->bits); word++)
	{
		for (uint64 bits = set->bits[word]; bits != 0; bits &= bits - 1)
		{
			int			partition = word * 64 + pg_rightmost_one_pos64(bits);

			if (partition == held)
				continue;
			if (!LWLockConditionalAcquire(&partition_locks[partition].lock, mode))
			{
				dlock_space_unlock_set(&taken);
				return partition;
			}
			taken.bits[word] |= bits & -bits;
		}
	}
	return NO_PARTITION;
}

/*
 * Take the locks of all partitions of a set.  No other partition lock may be
 * held.
 *
 * Wait for a lock with no other lock held, so that a backend that is stopped
 * under one lock keeps only those waiting that need this one.  With many
 * partitions on a busy server that might never come to an end, so finally take
 * them in ascending order, holding those before.  Both can go on side by side
 * without a deadlock: a backend that waits with locks held waits for a higher one.
 */
void
dlock_space_lock_set(const DLockSpaceSet *set, LWLockMode mode)
{
	int			held = NO_PARTITION;

	for (int attempt = 0; attempt < LOCK_SET_ATTEMPTS; attempt++)
	{
		held = take_set(set, mode, held);
		if (held == NO_PARTITION)
			return;
		LWLockAcquire(&partition_locks[held].lock, mode);
	}
	LWLockRelease(&partition_locks[held].lock);
	for (int word = 0; word < (int) lengthof(set->bits); word++)
	{
		for (uint64 bits = set->bits[word]; bits != 0; bits &= bits - 1)
			LWLockAcquire(&partition_locks[word * 64 + pg_rightmost_one_pos64(bits)].lock,
						  mode);
	}
}

/*
 * The same, unless a lock is not free for DLOCK_SPACE_PATIENCE, as it happens if
 * a backend is stopped under it: then add that partition to "skipped", and
 * return false.  Do not even wait if one of them is in "skipped" already.
 */
bool
dlock_space_try_lock_set(const DLockSpaceSet *set, LWLockMode mode, DLockSpaceSet *skipped)
{
	DLockTime	give_up = dlock_clock_now() + DLOCK_SPACE_PATIENCE;
	int			busy;

	if (sets_meet(set, skipped))
		return false;
	while ((busy = take_set(set, mode, NO_PARTITION)) != NO_PARTITION)
	{
		if (dlock_clock_now() >= give_up)
		{
			skipped->bits[busy / 64] |= UINT64CONST(1) << (busy % 64);
			return false;
		}
		pg_usleep(PATIENCE_STEP);
	}
	return true;
}

void
dlock_space_unlock_set(const DLockSpaceSet *set)
{
	for (int word = 0; word < (int) lengthof(set->bits); word++)
	{
		for (uint64 bits = set->bits[word]; bits != 0; bits &= bits - 1)
			LWLockRelease(&partition_locks[word * 64 + pg_rightmost_one_pos64(bits)].lock);
	}
}

/* Where in the cell of an entry a lease lies: behind the name. */
static inline int
lodging_offset(int name_len)
{
	return MAXALIGN(offsetof(DLockSpaceEntry, name) + Min(name_len, DLOCK_SPACE_NAME_ROOM));
}

/* How much room for its texts has a lease that lies in the cell of an entry? */
static inline int
room_beside(int name_len)
{
	return DLOCK_MEMORY_CELL - lodging_offset(name_len) - (int) offsetof(DLockSpaceLease, data);
}

/*
 * The most cells that "count" insertions take, each for a name of "name_len"
 * bytes, and an owner and a payload of "data_len" bytes together: a cell for
 * the entry or for the lease, and what the texts need more.
 */
static inline int
cells_for(int name_len, int data_len, int count)
{
	return count * (1 + dlock_memory_text_cells(name_len, DLOCK_SPACE_NAME_ROOM) +
					dlock_memory_text_cells(data_len, room_beside(name_len)));
}

/* Do the next "count" insertions have memory?  Lengths as for cells_for(). */
bool
dlock_space_is_prepared(int name_len, int data_len, int count)
{
	return dlock_memory_is_prepared(cells_for(name_len, data_len, count));
}

/*
 * See to it that they have.  False if memory is full.  No partition lock may
 * be held.
 */
bool
dlock_space_prepare(int name_len, int data_len, int count)
{
	return dlock_memory_prepare(cells_for(name_len, data_len, count));
}

static inline DLockSpaceEntry *
entry_or_null(DLockMemoryRef ref)
{
	return (ref != NONE) ? ENTRY_AT(ref) : NULL;
}

static inline DLockSpaceLease *
lease_or_null(DLockMemoryRef ref)
{
	return (ref != NONE) ? LEASE_AT(ref) : NULL;
}

static inline bool
is_entry_of(const DLockSpaceEntry *entry, Oid database, uint32 hash, const DLockBytes *name)
{
	return entry->hash == hash && entry->database == database &&
		entry->name_len == name->len &&
		dlock_memory_text_begins(entry->name, DLOCK_SPACE_NAME_ROOM,
								 name->len, name);
}

/*
 * Find the entry of a name; NULL if there is none.  The partition lock must be
 * held in either mode.
 */
DLockSpaceEntry *
dlock_space_find(Oid database, uint32 hash, const DLockBytes *name)
{
	for (DLockMemoryRef ref = buckets[bucket_of(hash)]; ref != NONE; ref = ENTRY_AT(ref)->next)
	{
		if (is_entry_of(ENTRY_AT(ref), database, hash, name))
			return ENTRY_AT(ref);
	}
	return NULL;
}

/*
 * The lease with a token on a lock; NULL if there is none.  Lock as for find.
 */
DLockSpaceLease *
dlock_space_find_part(const DLockSpaceEntry *entry, DLockToken token)
{
	DLockMemoryRef ref = entry->holders;

	for (; ref != NONE && !LEASE_AT(ref)->indexed; ref = LEASE_AT(ref)->next)
	{
		if (LEASE_AT(ref)->token == token)
			return LEASE_AT(ref);
	}
	if (ref == NONE)
		return NULL;

	ref = token_buckets[token_bucket_of(entry->hash, token)];
	while (ref != NONE && (LEASE_AT(ref)->token != token ||
						   LEASE_AT(ref)->entry != dlock_memory_ref(entry)))
		ref = LEASE_AT(ref)->token_next;
	return lease_or_null(ref);
}

/*
 * Find the lease with a token, by the hash of its lock, an intent only if there
 * is no other; NULL if there is none.
 * The partition lock must be held in either mode.
 */
DLockSpaceEntry *
dlock_space_find_token(Oid database, uint32 hash, DLockToken token,
					   DLockSpaceLease **lease)
{
	DLockSpaceEntry *found = NULL;

	for (DLockSpaceEntry *entry = dlock_space_bucket(hash); entry != NULL;
		 entry = dlock_space_next_entry(entry))
	{
		DLockSpaceLease *holder;

		if (entry->hash != hash || entry->database != database)
			continue;
		holder = dlock_space_find_part(entry, token);
		if (holder == NULL)
			continue;
		*lease = holder;
		found = entry;

		/* A path and its ancestors have one token, and might have one hash. */
		if (holder->part != DLOCK_PART_INTENT)
			break;
	}
	return found;
}

static bool
is_live_of(const DLockSpaceLease *lease, const DLockSpaceEntry *entry,
		   const DLockOwner *owner, DLockTime now)
{
	return lease->entry == dlock_memory_ref(entry) && lease->part != DLOCK_PART_INTENT &&
		dlock_rule_is_live(lease->deadline, now) && dlock_space_is_owned(lease, owner);
}

/*
 * The live lease of an owner on a lock; NULL if it has none.  Intents do not
 * count: an owner may have many.  Lock as for find.
 *
 * Goes along the leases on the lock and those of the owner side by side: the
 * shorter list decides how long it takes.
 */
DLockSpaceLease *
dlock_space_find_owned(DLockSpaceEntry *entry, const DLockOwner *owner, DLockTime now)
{
	uint32		bucket = owner_bucket_of(entry->database, &owner->name);
	DLockMemoryRef held = entry->holders;
	DLockMemoryRef owned = NONE;
	DLockSpaceLease *found = NULL;

	/* Most locks have few holders; no need for another lock. */
	for (int i = 0; i < FEW_HOLDERS && held != NONE; i++)
	{
		if (is_live_of(LEASE_AT(held), entry, owner, now))
			return LEASE_AT(held);
		held = LEASE_AT(held)->next;
	}
	if (held == NONE)
		return NULL;

	LWLockAcquire(owner_lock(bucket), LW_SHARED);
	for (owned = owner_buckets[bucket]; held != NONE && owned != NONE && found == NULL;)
	{
		if (is_live_of(LEASE_AT(held), entry, owner, now))
			found = LEASE_AT(held);
		else if (is_live_of(LEASE_AT(owned), entry, owner, now))
			found = LEASE_AT(owned);
		held = LEASE_AT(held)->next;
		owned = LEASE_AT(owned)->owner_next;
	}
	LWLockRelease(owner_lock(bucket));
	return found;
}

/* The first entry of the bucket that a hash falls into.  Lock as for find. */
DLockSpaceEntry *
dlock_space_bucket(uint32 hash)
{
	return entry_or_null(buckets[bucket_of(hash)]);
}

/* The next entry of the same bucket; NULL at the end.  Lock as for find. */
DLockSpaceEntry *
dlock_space_next_entry(DLockSpaceEntry *entry)
{
	return entry_or_null(entry->next);
}

/* The first lease on a lock; NULL if there is none.  Lock as for find. */
DLockSpaceLease *
dlock_space_holders(DLockSpaceEntry *entry)
{
	return lease_or_null(entry->holders);
}

/* The first request in the queue of a lock.  Lock as for find. */
DLockSpaceLease *
dlock_space_queue(DLockSpaceEntry *entry)
{
	return lease_or_null(entry->queue);
}

/* The next lease or request of the same lock.  Lock as for find. */
DLockSpaceLease *
dlock_space_next(DLockSpaceLease *lease)
{
	return lease_or_null(lease->next);
}

/*
 * Is a request for a lease the first one in its queue, conversions and requests
 * that only watch aside?  Lock as for find.
 */
bool
dlock_space_is_first(const DLockSpaceLease *request)
{
	return dlock_space_entry_of(request)->queue == dlock_memory_ref(request) ||
		LEASE_AT(request->prev)->kind != DLOCK_SPACE_ASKED;
}

/*
 * A request that waits, by the place that dlock_space_enqueue() told; and its
 * next part.  Their partition locks must be held.
 */
DLockSpaceLease *
dlock_space_request_first(DLockMemoryRef first)
{
	return lease_or_null(first);
}

DLockSpaceLease *
dlock_space_request_next(DLockSpaceLease *lease)
{
	Assert(lease->kind != DLOCK_SPACE_HELD);
	return lease_or_null(lease->owner_next);
}

/* ---- lists: the last one is found in the first one's "prev" ---- */

/* Link a lease into a list in front of another; DLOCK_MEMORY_NONE: at the end. */
static void
link_before(DLockMemoryRef *first, DLockSpaceLease *lease, DLockMemoryRef before)
{
	DLockMemoryRef ref = dlock_memory_ref(lease);
	DLockMemoryRef head = *first;

	lease->next = before;
	if (head == NONE)
		lease->prev = ref;
	else
	{
		DLockMemoryRef follower = (before != NONE) ? before : head;

		lease->prev = LEASE_AT(follower)->prev;
		LEASE_AT(follower)->prev = ref;
	}
	if (before == head)
		*first = ref;
	else
		LEASE_AT(lease->prev)->next = ref;
}

static void
unlink_from(DLockMemoryRef *first, DLockSpaceLease *lease)
{
	DLockMemoryRef ref = dlock_memory_ref(lease);

	if (*first == ref)
		*first = lease->next;
	else
		LEASE_AT(lease->prev)->next = lease->next;
	if (lease->next != NONE)
		LEASE_AT(lease->next)->prev = lease->prev;
	else if (*first != NONE)
		LEASE_AT(*first)->prev = lease->prev;
}

/* ---- what hangs on a lock ---- */

/* Hang a lease into the bucket of its owner. */
static void
link_owner(DLockSpaceLease *lease)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(lease, buffer);
	uint32		bucket = owner_bucket_of(dlock_space_entry_of(lease)->database, &owner.name);

	LWLockAcquire(owner_lock(bucket), LW_EXCLUSIVE);
	lease->owner_prev = NONE;
	lease->owner_next = owner_buckets[bucket];
	owner_buckets[bucket] = dlock_memory_ref(lease);
	if (lease->owner_next != NONE)
		LEASE_AT(lease->owner_next)->owner_prev = owner_buckets[bucket];
	LWLockRelease(owner_lock(bucket));
}

static void
unlink_owner(DLockSpaceLease *lease)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(lease, buffer);
	uint32		bucket = owner_bucket_of(dlock_space_entry_of(lease)->database, &owner.name);

	LWLockAcquire(owner_lock(bucket), LW_EXCLUSIVE);
	if (lease->owner_prev != NONE)
		LEASE_AT(lease->owner_prev)->owner_next = lease->owner_next;
	else
		owner_buckets[bucket] = lease->owner_next;
	if (lease->owner_next != NONE)
		LEASE_AT(lease->owner_next)->owner_prev = lease->owner_prev;
	LWLockRelease(owner_lock(bucket));
}

/* Hang a lease that is held into the bucket of its token, if it is indexed. */
static void
link_token(DLockSpaceLease *lease)
{
	DLockMemoryRef *bucket;

	if (!lease->indexed)
		return;
	bucket = &token_buckets[token_bucket_of(dlock_space_entry_of(lease)->hash, lease->token)];
	lease->token_next = *bucket;
	*bucket = dlock_memory_ref(lease);
}

static void
unlink_token(DLockSpaceLease *lease)
{
	DLockMemoryRef *link;

	if (!lease->indexed)
		return;
	link = &token_buckets[token_bucket_of(dlock_space_entry_of(lease)->hash, lease->token)];
	while (LEASE_AT(*link) != lease)
		link = &LEASE_AT(*link)->token_next;
	*link = lease->token_next;
}

/*
 * When a lease stops blocking has changed: see to it that "earliest" is not
 * after that.  Lock as for dlock_space_hold().
 */
void
dlock_space_note_end(const DLockSpaceLease *lease)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(lease);
	DLockTime	until = dlock_rule_blocks_until(lease->deadline, lease->delay);

	Assert(LWLockHeldByMeInMode(partition_lock(entry->hash), LW_EXCLUSIVE));
	entry->earliest = Min(entry->earliest, until);
}

/*
 * Make exact what an entry says of the leases on its lock.  Lock as for
 * dlock_space_hold().
 */
void
dlock_space_refresh(DLockSpaceEntry *entry)
{
	Assert(LWLockHeldByMeInMode(partition_lock(entry->hash), LW_EXCLUSIVE));
	entry->earliest = DLOCK_TIME_FOREVER;
	entry->held_modes = 0;
	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL;
		 lease = dlock_space_next(lease))
	{
		entry->held_modes |= DLOCK_RULE_BIT(lease->mode);
		dlock_space_note_end(lease);
	}
}

/* A lock has one lease more in a mode. */
static void
add_mode(DLockSpaceEntry *entry, DLockMode mode)
{
	entry->held_modes |= DLOCK_RULE_BIT(mode);
	entry->nstrong += (DLOCK_RULE_BIT(mode) & WEAK_MODES) == 0;
}

/*
 * A lock has one lease less in a mode, and "nholders" says so already.  A walk
 * is needed only if there are null leases, or dead ones beside live ones.
 */
static void
drop_mode(DLockSpaceEntry *entry, DLockMode mode)
{
	uint32		kin = WEAK_MODES;
	uint32		left;

	if ((DLOCK_RULE_BIT(mode) & WEAK_MODES) == 0)
	{
		kin = ~kin;
		entry->nstrong--;
	}
	left = (kin == WEAK_MODES) ? entry->nholders - entry->nstrong : entry->nstrong;
	if (left == 0)
		entry->held_modes &= ~kin;
	else if ((entry->held_modes & kin) != DLOCK_RULE_BIT(mode))
		dlock_space_refresh(entry);
}

/* The entry of a name, which is made if there is none. */
static DLockSpaceEntry *
find_or_make_entry(Oid database, uint32 hash, const DLockBytes *name)
{
	DLockSpaceEntry *entry = dlock_space_find(database, hash, name);

	if (entry != NULL)
		return entry;
	entry = ENTRY_AT(dlock_memory_take());
	entry->holders = entry->queue = NONE;
	entry->earliest = DLOCK_TIME_FOREVER;
	entry->nholders = entry->nstrong = 0;
	entry->held_modes = entry->asked_modes = 0;
	entry->database = database;
	entry->hash = hash;
	entry->permits = 0;
	entry->lodges = false;
	entry->name_len = name->len;
	dlock_memory_text_put(entry->name,
						  DLOCK_SPACE_NAME_ROOM, name, 1);
	entry->next = buckets[bucket_of(hash)];
	buckets[bucket_of(hash)] = dlock_memory_ref(entry);
	return entry;
}

/* The place for a lease in the cell of an entry. */
static DLockSpaceLease *
lodging_of(DLockSpaceEntry *entry)
{
	return (DLockSpaceLease *) ((char *) entry + lodging_offset(entry->name_len));
}

/* Make a lease in memory of a value, in the entry's own cell if that is free. */
static DLockSpaceLease *
make_lease(DLockSpaceEntry *entry, const DLockLeaseValue *value,
		   DLockSlot slot, int process, DLockSpaceKind kind)
{
	DLockBytes	texts[] = {value->owner, value->payload};
	DLockSpaceLease *lease;

	if (entry->lodges)
	{
		lease = LEASE_AT(dlock_memory_take());
		lease->room = DLOCK_MEMORY_CELL - offsetof(DLockSpaceLease, data);
	}
	else
	{
		lease = lodging_of(entry);
		lease->room = room_beside(entry->name_len);
		entry->lodges = true;
	}
	lease->token = value->token;
	lease->ttl = value->term.ttl;
	lease->deadline = value->term.deadline;
	lease->bound_mono = value->term.bound_mono;
	lease->delay = value->delay;
	lease->min_until = value->min_hold;
	lease->granted_at = value->granted_at;
	lease->lsn = InvalidXLogRecPtr;
	lease->entry = dlock_memory_ref(entry);
	lease->slot = slot;
	lease->role = value->role;
	lease->process = process;
	lease->holds = value->holds;
	lease->kind = kind;
	lease->counter = (kind == DLOCK_SPACE_HELD || kind == DLOCK_SPACE_ASKED) ?
		dlock_limit_enter(entry->database, value->role) : 0;
	lease->mode = value->mode;
	lease->bind = value->bind;
	lease->part = value->part;
	lease->stopped = false;
	lease->unwritten = false;
	lease->indexed = false;
	lease->owner_len = value->owner.len;
	lease->payload_len = value->payload.len;
	dlock_memory_text_put(lease->data, lease->room, texts, lengthof(texts));
	return lease;
}

/* Free the memory of a lease that hangs on nothing any more. */
static void
free_lease(DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	dlock_limit_leave(lease->counter);
	dlock_memory_text_free(lease->data, lease->room, lease->owner_len + lease->payload_len);
	if (lease == lodging_of(entry))
		entry->lodges = false;
	else
		dlock_memory_give_back(dlock_memory_ref(lease));
}

/*
 * Hang a lease on its lock, as one that is held.  If there are a few already, it
 * is found by its token, too, and comes last, so that the leases that are not
 * come first.  They are never more than a few.
 */
static void
link_holder(DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	lease->kind = DLOCK_SPACE_HELD;
	lease->indexed = entry->nholders >= FEW_HOLDERS;
	link_before(&entry->holders, lease, lease->indexed ? NONE : entry->holders);
	entry->nholders++;
	add_mode(entry, (DLockMode) lease->mode);
	dlock_space_note_end(lease);
	link_token(lease);

	if (entry->database == MyDatabaseId)
		dlock_stat_count_lease(1);

	/* An intent is found through the lock of its path. */
	if (lease->part != DLOCK_PART_INTENT)
		link_owner(lease);
}

/*
 * Add a lease to its lock, and the lock itself if it has no entry yet.
 *
 * The partition lock must be held exclusively, and dlock_space_prepare() must
 * have promised the memory.  "slot" is the lease's home on disk, "process" the
 * number of the process that it is bound to or -1, "lsn" the end of the record
 * that put it on disk.  min_until is left to the caller.  Cannot fail.
 */
DLockSpaceLease *
dlock_space_hold(Oid database, uint32 hash, const DLockLeaseValue *value,
				 DLockSlot slot, int process, XLogRecPtr lsn)
{
	DLockSpaceEntry *entry;
	DLockSpaceLease *lease;

	Assert(LWLockHeldByMeInMode(partition_lock(hash), LW_EXCLUSIVE));
	entry = find_or_make_entry(database, hash, &value->name);
	lease = make_lease(entry, value, slot, process, DLOCK_SPACE_HELD);
	entry->permits = value->permits;
	lease->lsn = lsn;
	lease->min_until = 0;
	link_holder(entry, lease);
	return lease;
}

/* The first request of a queue that comes after all those of these kinds. */
static DLockMemoryRef
first_after(const DLockSpaceEntry *entry, uint32 kinds)
{
	DLockMemoryRef ref = entry->queue;

	while (ref != NONE && (kinds & (UINT32_C(1) << LEASE_AT(ref)->kind)) != 0)
		ref = LEASE_AT(ref)->next;
	return ref;
}

/*
 * Put a request into the queue of a lock, which gets an entry if it has none.
 * Conversions come first, then requests that only watch, then all others: so
 * whoever serves the queue need not go through all of it.
 *
 * Conditions as for dlock_space_hold(); "process" is the one that waits.
 * "place" is where the request can be found, and the head of the list of the
 * requests that it waits for as well: the caller calls for the last of them
 * first.  Cannot fail.
 */
DLockSpaceLease *
dlock_space_enqueue(Oid database, uint32 hash, const DLockLeaseValue *value,
					DLockSlot slot, int process, DLockSpaceKind kind,
					DLockMemoryRef *place)
{
	DLockSpaceEntry *entry;
	DLockSpaceLease *lease;
	DLockMemoryRef before = NONE;

	Assert(LWLockHeldByMeInMode(partition_lock(hash), LW_EXCLUSIVE));
	entry = find_or_make_entry(database, hash, &value->name);
	lease = make_lease(entry, value, slot, process, kind);
	if (kind == DLOCK_SPACE_ASKED)
	{
		entry->permits = value->permits;
		entry->asked_modes |= DLOCK_RULE_BIT(value->mode);
	}
	else if (kind == DLOCK_SPACE_CONVERT)
		before = first_after(entry, UINT32_C(1) << DLOCK_SPACE_CONVERT);
	else
		before = first_after(entry, (UINT32_C(1) << DLOCK_SPACE_CONVERT) |
							 (UINT32_C(1) << DLOCK_SPACE_WATCH));
	link_before(&entry->queue, lease, before);
	lease->owner_next = *place;
	*place = dlock_memory_ref(lease);
	return lease;
}

/* Take a request out of its queue. */
static void
unlink_request(DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	unlink_from(&entry->queue, lease);
	if (entry->queue == NONE)
		entry->asked_modes = 0;
}

/*
 * Make a request the lease that it asks for; the caller has filled in what
 * comes with the grant.  Lock as for dlock_space_hold().  Cannot fail.
 */
void
dlock_space_promote(DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	Assert(LWLockHeldByMeInMode(partition_lock(entry->hash), LW_EXCLUSIVE));
	Assert(lease->kind == DLOCK_SPACE_ASKED);
	unlink_request(entry, lease);
	link_holder(entry, lease);
}

/* Move a request to the end of its queue.  Lock as for dlock_space_hold(). */
void
dlock_space_requeue(DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	Assert(LWLockHeldByMeInMode(partition_lock(entry->hash), LW_EXCLUSIVE));
	unlink_from(&entry->queue, lease);
	link_before(&entry->queue, lease, NONE);
}

/*
 * Give a lease that is held another token, and with it to a role.  Lock as for
 * dlock_space_hold().
 */
void
dlock_space_succeed(DLockSpaceLease *lease, Oid role, DLockToken token)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(lease, buffer);
	LWLock	   *lock = owner_lock(owner_bucket_of(dlock_space_entry_of(lease)->database,
												  &owner.name));

	LWLockAcquire(lock, LW_EXCLUSIVE);
	unlink_token(lease);
	dlock_limit_leave(lease->counter);
	lease->counter = dlock_limit_enter(dlock_space_entry_of(lease)->database, role);
	lease->role = role;
	lease->token = token;
	link_token(lease);
	LWLockRelease(lock);
}

/* Give a lease that is held another mode.  Lock as for dlock_space_hold(). */
void
dlock_space_set_mode(DLockSpaceLease *lease, DLockMode mode)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(lease);
	DLockMode	old = (DLockMode) lease->mode;

	lease->mode = mode;
	entry->nholders++;
	add_mode(entry, mode);
	entry->nholders--;
	drop_mode(entry, old);
}

/*
 * Take a lease or a request off its lock, and the entry away when nobody is
 * left; both pointers are invalid afterwards, then.  Lock as for
 * dlock_space_hold().  Cannot fail.
 */
void
dlock_space_remove(DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	DLockMemoryRef *link;

	Assert(LWLockHeldByMeInMode(partition_lock(entry->hash), LW_EXCLUSIVE));
	if (lease->kind == DLOCK_SPACE_HELD)
	{
		if (lease->part != DLOCK_PART_INTENT)
			unlink_owner(lease);
		if (entry->database == MyDatabaseId)
			dlock_stat_count_lease(-1);
		unlink_token(lease);
		unlink_from(&entry->holders, lease);
		entry->nholders--;
		drop_mode(entry, (DLockMode) lease->mode);
		if (entry->nholders == 0)
			entry->earliest = DLOCK_TIME_FOREVER;
	}
	else
		unlink_request(entry, lease);
	free_lease(entry, lease);

	if (entry->holders != NONE || entry->queue != NONE)
		return;

	link = &buckets[bucket_of(entry->hash)];
	while (ENTRY_AT(*link) != entry)
		link = &ENTRY_AT(*link)->next;
	*link = entry->next;
	dlock_memory_text_free(entry->name, DLOCK_SPACE_NAME_ROOM, entry->name_len);
	dlock_memory_give_back(dlock_memory_ref(entry));
}

/*
 * Call "look" for every entry of a database, or of all (InvalidOid), under its
 * partition lock in "mode".
 * The lock is given up between groups of buckets, so the walk as a whole is no
 * snapshot.
 *
 * Partitions whose locks are not free are put off.  When for DLOCK_SPACE_PATIENCE
 * none of those that are left can be locked, leave them out; returns their set.
 */
static DLockSpaceSet
walk(Oid database, LWLockMode mode, void (*look) (DLockSpaceEntry *entry, void *arg), void *arg)
{
	uint32		per_partition = (1U << bucket_bits) / DLOCK_SPACE_PARTITIONS;
	uint32		next[DLOCK_SPACE_PARTITIONS];	/* bucket to look at */
	DLockTime	give_up = 0;
	bool		progress = true;

	for (uint32 partition = 0; partition < DLOCK_SPACE_PARTITIONS; partition++)
		next[partition] = partition * per_partition;
	for (;;)
	{
		DLockSpaceSet left = {{0}};

		for (uint32 partition = 0; partition < DLOCK_SPACE_PARTITIONS; partition++)
		{
			LWLock	   *lock = &partition_locks[partition].lock;

			while (next[partition] < (partition + 1) * per_partition)
			{
				CHECK_FOR_INTERRUPTS();
				if (!LWLockConditionalAcquire(lock, mode))
				{
					left.bits[partition / 64] |= UINT64CONST(1) << (partition % 64);
					break;
				}
				for (int i = 0; i < Min(VISIT_BUCKETS, per_partition); i++)
				{
					for (DLockSpaceEntry *entry = entry_or_null(buckets[next[partition]]);
						 entry != NULL; entry = dlock_space_next_entry(entry))
					{
						if (!OidIsValid(database) || entry->database == database)
							look(entry, arg);
					}
					next[partition]++;
				}
				LWLockRelease(lock);
				progress = true;
			}
		}
		if (dlock_space_set_count(&left) == 0)
			return left;
		if (progress)
			give_up = dlock_clock_now() + DLOCK_SPACE_PATIENCE;
		else if (dlock_clock_now() >= give_up)
			return left;
		progress = false;
		pg_usleep(PATIENCE_STEP);
	}
}

typedef struct VisitState
{
	DLockSpaceVisitor visitor;
	void	   *arg;
} VisitState;

static void
visit_entry(DLockSpaceEntry *entry, void *arg)
{
	VisitState *state = arg;

	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL;
		 lease = dlock_space_next(lease))
		state->visitor(entry, lease, state->arg);
}

/*
 * Call "visitor" for every lease of a database, or of all (InvalidOid), expired
 * ones too; returns the partitions that were left out, see walk().
 *
 * The visitor runs under the partition lock in shared mode and must neither
 * change anything nor wait; it may allocate local memory.
 */
DLockSpaceSet
dlock_space_visit(Oid database, DLockSpaceVisitor visitor, void *arg)
{
	VisitState	state = {visitor, arg};

	return walk(database, LW_SHARED, visit_entry, &state);
}

/*
 * The leases of the owners of a name, whatever their role, expired ones too, in
 * no order; palloc'd, with their number in "count".  No partition lock may be
 * held.
 */
DLockSpaceRef *
dlock_space_owned(Oid database, const DLockBytes *owner_name, int *count)
{
	uint32		bucket = owner_bucket_of(database, owner_name);
	int			room = 64;
	DLockSpaceRef *refs = palloc(room * sizeof(DLockSpaceRef));

	*count = 0;
	LWLockAcquire(owner_lock(bucket), LW_SHARED);
	for (DLockSpaceLease *lease = lease_or_null(owner_buckets[bucket]); lease != NULL;
		 lease = lease_or_null(lease->owner_next))
	{
		DLockSpaceEntry *entry = dlock_space_entry_of(lease);

		if (entry->database != database || !dlock_space_is_owner_name(lease, owner_name))
			continue;
		if (*count == room)
		{
			room *= 2;
			refs = repalloc_huge(refs, room * sizeof(DLockSpaceRef));
		}

		/* The partition lock, not ours, protects the deadline: leave it out. */
		refs[(*count)++] = (DLockSpaceRef) {entry->hash, lease->role, lease->token, 0};
	}
	LWLockRelease(owner_lock(bucket));
	return refs;
}

/* Count a lease or a request, unless it is counted or not of this role. */
static void
count_lease(DLockSpaceEntry *entry, DLockSpaceLease *lease, Oid role)
{
	if (lease->role == role && lease->counter == 0 &&
		(lease->kind == DLOCK_SPACE_HELD || lease->kind == DLOCK_SPACE_ASKED))
		lease->counter = dlock_limit_enter(entry->database, role);
}

static void
count_entry(DLockSpaceEntry *entry, void *arg)
{
	Oid			role = *(Oid *) arg;

	for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL;
		 lease = dlock_space_next(lease))
		count_lease(entry, lease, role);
	for (DLockSpaceLease *lease = dlock_space_queue(entry); lease != NULL;
		 lease = dlock_space_next(lease))
		count_lease(entry, lease, role);
}

/*
 * Count all leases and requests of a role that are not counted yet; false if
 * partitions were left out, see walk().  The role has a counter.  No partition
 * lock may be held.
 */
bool
dlock_space_count(Oid database, Oid role)
{
	DLockSpaceSet left = walk(database, LW_EXCLUSIVE, count_entry, &role);

	return dlock_space_set_count(&left) == 0;
}

/*
 * Does an owner hold a live lease?  No partition lock may be held.
 *
 * The deadlines are read without the partition locks that protect them, so the
 * answer may be that of a moment ago.
 */
bool
dlock_space_owner_is_live(Oid database, const DLockOwner *owner, DLockTime now)
{
	uint32		bucket = owner_bucket_of(database, &owner->name);
	bool		live = false;

	LWLockAcquire(owner_lock(bucket), LW_SHARED);
	for (DLockSpaceLease *lease = lease_or_null(owner_buckets[bucket]); lease != NULL && !live;
		 lease = lease_or_null(lease->owner_next))
	{
		live = dlock_space_entry_of(lease)->database == database &&
			dlock_space_is_owned(lease, owner) &&
			*(volatile DLockTime *) &lease->deadline > now;
	}
	LWLockRelease(owner_lock(bucket));
	return live;
}

/*
 * Forget every lease of a database.  Nobody else may be using that database's
 * leases meanwhile.
 */
void
dlock_space_purge(Oid database)
{
	for (uint32 bucket = 0; bucket < (1U << bucket_bits); bucket++)
	{
		LWLock	   *lock = partition_lock(bucket);
		DLockSpaceEntry *entry;
		DLockSpaceEntry *next;

		/* Most buckets of most servers are empty; a glance needs no lock. */
		if (*(volatile DLockMemoryRef *) &buckets[bucket] == NONE)
			continue;

		LWLockAcquire(lock, LW_EXCLUSIVE);
		for (entry = entry_or_null(buckets[bucket]); entry != NULL; entry = next)
		{
			uint32		left = entry->nholders;

			next = dlock_space_next_entry(entry);

			/* The entry goes with its last lease. */
			while (entry->database == database && left-- > 0)
				dlock_space_remove(entry, dlock_space_holders(entry));
		}
		LWLockRelease(lock);
	}
}
