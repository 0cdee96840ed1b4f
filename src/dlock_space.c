/*-------------------------------------------------------------------------
 *
 * dlock_space.c
 *	  The lock space: the live truth about all leases, in shared memory.
 *
 * NOTES
 *	  Locks (DLockSpaceEntry) hang in a hash table, by database and name; the
 *	  leases on a lock hang on it, and so does the queue of those who wait for
 *	  it.  A second hash table of the same build finds leases by the name of the
 *	  owner.  The role is no part of that key, since who asks for the leases of a
 *	  name may be a member of several roles.
 *	  The tables are bucket arrays of a fixed size, so no operation ever has to
 *	  resize one under everybody's feet; what hangs on them is made of the
 *	  cells of dlock_memory.c.
 *
 *	  The cell of an entry lodges a lease or request, too, the first that comes
 *	  when it lodges none.  So a lock with one lease takes one cell, which is
 *	  the common case, and each further lease or request takes one.
 *
 *	  Lock rules.  The buckets are cut into DLOCK_SPACE_PARTITIONS contiguous
 *	  partitions, each with an LWLock that protects its buckets and all that
 *	  hangs on them.  Whoever needs several takes them in ascending order, all
 *	  at once.  The owners' buckets are protected by another, smaller set of
 *	  LWLocks, one of which is taken after partition locks or without any,
 *	  never before.  A lease leaves its owner's bucket before its memory is
 *	  given back, so whoever finds a lease there may look at it as long as he
 *	  holds the owner's lock.
 *
 * IDENTIFICATION
 *	  src/dlock_space.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#include "dlock_guc.h"
#include "dlock_name.h"
#include "dlock_space.h"
#include "dlock_stat.h"

/* The buckets; the pointers are set once, in the postmaster. */
static dsa_pointer *buckets = NULL;
static dsa_pointer *owner_buckets = NULL;
static LWLockPadded *partition_locks = NULL;
static LWLockPadded *owner_locks = NULL;
static uint32 bucket_bits = 0;
static uint32 owner_bits = 0;

/* Buckets are no fewer than this, so that each partition has some. */
#define MIN_BUCKET_BITS		12

/* A bucket for each so many bytes of dlock.max_memory. */
#define BYTES_PER_BUCKET	256

/* There are fewer owners than leases. */
#define OWNER_BITS_LESS		2

/* How many buckets a walk looks at before it lets others have the lock; a power of 2. */
#define VISIT_BUCKETS		32

StaticAssertDecl(DLOCK_SPACE_TEXT_ROOM >= 2 * DLOCK_SPACE_OWNER_ROOM,
				 "a lock with one lease and short texts does not fit into a cell");

#define ENTRY_AT(dp)	((DLockSpaceEntry *) dlock_memory_at(dp))
#define LEASE_AT(dp)	((DLockSpaceLease *) dlock_memory_at(dp))

static Size
bucket_array_size(uint32 bits)
{
	return CACHELINEALIGN(sizeof(dsa_pointer) << bits);
}

/* Ask for the shared memory and the locks of the space. */
void
dlock_space_request(void)
{
	Size		memory = (Size) dlock_guc_max_memory_kb * 1024;

	bucket_bits = Max(MIN_BUCKET_BITS, pg_ceil_log2_64(memory / BYTES_PER_BUCKET));
	Assert(bucket_bits < 32);
	owner_bits = bucket_bits - OWNER_BITS_LESS;
	RequestAddinShmemSpace(add_size(bucket_array_size(bucket_bits),
									bucket_array_size(owner_bits)));
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
	Size		size = bucket_array_size(bucket_bits) + bucket_array_size(owner_bits);
	bool		found;
	char	   *place = ShmemInitStruct("dlock space", size, &found);

	buckets = (dsa_pointer *) place;
	owner_buckets = (dsa_pointer *) (place + bucket_array_size(bucket_bits));
	partition_locks = GetNamedLWLockTranche("dlock_space");
	owner_locks = GetNamedLWLockTranche("dlock_owner");

	if (!found)
	{
		for (uint32 i = 0; i < (1U << bucket_bits); i++)
			buckets[i] = InvalidDsaPointer;
		for (uint32 i = 0; i < (1U << owner_bits); i++)
			owner_buckets[i] = InvalidDsaPointer;
	}
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

/* Make it the set of all partitions. */
void
dlock_space_set_fill(DLockSpaceSet *set)
{
	memset(set, 0xFF, sizeof(*set));
}

/* Is the partition of a lock's hash in the set? */
bool
dlock_space_set_has(const DLockSpaceSet *set, uint32 hash)
{
	int			partition = partition_of(hash);

	return (set->bits[partition / 64] & (UINT64CONST(1) << (partition % 64))) != 0;
}

/*
 * Take the locks of all partitions of a set.  No other partition lock may be
 * held.
 */
void
dlock_space_lock_set(const DLockSpaceSet *set, LWLockMode mode)
{
	for (int word = 0; word < (int) lengthof(set->bits); word++)
	{
		for (uint64 bits = set->bits[word]; bits != 0; bits &= bits - 1)
			LWLockAcquire(&partition_locks[word * 64 + pg_rightmost_one_pos64(bits)].lock,
						  mode);
	}
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

/* How much room for its texts has a lease that lies in the cell of an entry? */
static inline int
room_beside(int name_len)
{
	return DLOCK_SPACE_TEXT_ROOM - Min(name_len, DLOCK_SPACE_NAME_ROOM);
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

static inline bool
is_entry_of(const DLockSpaceEntry *entry, Oid database, uint32 hash, const DLockBytes *name)
{
	return entry->hash == hash && entry->database == database &&
		entry->name_len == name->len &&
		dlock_memory_text_begins(dlock_space_name_place(entry), DLOCK_SPACE_NAME_ROOM,
								 name->len, name);
}

/*
 * Find the entry of a name; NULL if there is none.  The partition lock must be
 * held in either mode.
 */
DLockSpaceEntry *
dlock_space_find(Oid database, uint32 hash, const DLockBytes *name)
{
	dsa_pointer dp = buckets[bucket_of(hash)];

	while (DsaPointerIsValid(dp))
	{
		DLockSpaceEntry *entry = ENTRY_AT(dp);

		if (is_entry_of(entry, database, hash, name))
			return entry;
		dp = entry->next;
	}
	return NULL;
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
	dsa_pointer dp = buckets[bucket_of(hash)];
	DLockSpaceEntry *found = NULL;

	for (; DsaPointerIsValid(dp); dp = ENTRY_AT(dp)->next)
	{
		DLockSpaceEntry *entry = ENTRY_AT(dp);

		if (entry->hash != hash || entry->database != database)
			continue;
		for (DLockSpaceLease *holder = dlock_space_holders(entry); holder != NULL;
			 holder = dlock_space_next(holder))
		{
			if (holder->token != token)
				continue;
			*lease = holder;
			found = entry;

			/* A path and its ancestors have one token, and might have one hash. */
			if (holder->part != DLOCK_PART_INTENT)
				return entry;
		}
	}
	return found;
}

static DLockSpaceEntry *
entry_or_null(dsa_pointer dp)
{
	return DsaPointerIsValid(dp) ? ENTRY_AT(dp) : NULL;
}

static DLockSpaceLease *
lease_or_null(dsa_pointer dp)
{
	return DsaPointerIsValid(dp) ? LEASE_AT(dp) : NULL;
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
 * A request that waits, by the place that dlock_space_enqueue() told; its next
 * part; and the lock that it waits for.  Their partition locks must be held.
 */
DLockSpaceLease *
dlock_space_request_first(dsa_pointer first)
{
	return lease_or_null(first);
}

DLockSpaceLease *
dlock_space_request_next(DLockSpaceLease *lease)
{
	Assert(lease->kind != DLOCK_SPACE_HELD);
	return lease_or_null(lease->owner_next);
}

DLockSpaceEntry *
dlock_space_request_entry(DLockSpaceLease *lease)
{
	Assert(lease->kind != DLOCK_SPACE_HELD);
	return ENTRY_AT(lease->owner_prev);
}

/* Hang a lease into the bucket of its owner. */
static void
link_owner(dsa_pointer dp, DLockSpaceLease *lease)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(lease, buffer);
	uint32		bucket = owner_bucket_of(lease->database, &owner.name);
	dsa_pointer head;

	LWLockAcquire(owner_lock(bucket), LW_EXCLUSIVE);
	head = owner_buckets[bucket];
	lease->owner_prev = InvalidDsaPointer;
	lease->owner_next = head;
	if (DsaPointerIsValid(head))
		LEASE_AT(head)->owner_prev = dp;
	owner_buckets[bucket] = dp;
	LWLockRelease(owner_lock(bucket));
}

static void
unlink_owner(DLockSpaceLease *lease)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(lease, buffer);
	uint32		bucket = owner_bucket_of(lease->database, &owner.name);

	LWLockAcquire(owner_lock(bucket), LW_EXCLUSIVE);
	if (DsaPointerIsValid(lease->owner_prev))
		LEASE_AT(lease->owner_prev)->owner_next = lease->owner_next;
	else
		owner_buckets[bucket] = lease->owner_next;
	if (DsaPointerIsValid(lease->owner_next))
		LEASE_AT(lease->owner_next)->owner_prev = lease->owner_prev;
	LWLockRelease(owner_lock(bucket));
}

/* The entry of a name, which is made if there is none. */
static dsa_pointer
find_or_make_entry(Oid database, uint32 hash, const DLockBytes *name)
{
	dsa_pointer dp = buckets[bucket_of(hash)];
	DLockSpaceEntry *entry;

	for (; DsaPointerIsValid(dp); dp = entry->next)
	{
		entry = ENTRY_AT(dp);
		if (is_entry_of(entry, database, hash, name))
			return dp;
	}

	dp = dlock_memory_take();
	entry = ENTRY_AT(dp);
	entry->holders = entry->queue = InvalidDsaPointer;
	entry->database = database;
	entry->hash = hash;
	entry->permits = 0;
	entry->lodges = false;
	entry->name_len = name->len;
	dlock_memory_text_put(unconstify(char *, dlock_space_name_place(entry)),
						  DLOCK_SPACE_NAME_ROOM, name, 1);
	entry->next = buckets[bucket_of(hash)];
	buckets[bucket_of(hash)] = dp;
	return dp;
}

/* Make a lease in memory of a value, in the entry's own cell if that is free. */
static dsa_pointer
make_lease(DLockSpaceEntry *entry, const DLockLeaseValue *value,
		   DLockSlot slot, int process, DLockSpaceKind kind)
{
	DLockBytes	texts[] = {value->owner, value->payload};
	dsa_pointer dp;
	DLockSpaceLease *lease;

	if (entry->lodges)
	{
		dp = dlock_memory_take();
		lease = LEASE_AT(dp);
		lease->room = DLOCK_MEMORY_CELL - offsetof(DLockSpaceLease, data);
	}
	else
	{
		dp = dlock_memory_pointer(entry) + DLOCK_SPACE_LODGING;
		lease = LEASE_AT(dp);
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
	lease->database = entry->database;
	lease->hash = entry->hash;
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
	lease->owner_len = value->owner.len;
	lease->payload_len = value->payload.len;
	dlock_memory_text_put(lease->data, lease->room, texts, lengthof(texts));
	return dp;
}

/* Free the memory of a lease that hangs on nothing any more. */
static void
free_lease(DLockSpaceEntry *entry, dsa_pointer dp, DLockSpaceLease *lease)
{
	dlock_limit_leave(lease->counter);
	dlock_memory_text_free(lease->data, lease->room, lease->owner_len + lease->payload_len);
	if (dp == dlock_memory_pointer(entry) + DLOCK_SPACE_LODGING)
		entry->lodges = false;
	else
		dlock_memory_give_back(dp);
}

/* Hang a lease on its lock, as one that is held. */
static void
link_holder(DLockSpaceEntry *entry, dsa_pointer dp, DLockSpaceLease *lease)
{
	lease->kind = DLOCK_SPACE_HELD;
	lease->next = entry->holders;
	entry->holders = dp;

	if (entry->database == MyDatabaseId)
		dlock_stat_count_lease(1);

	/* An intent is found through the lock of its path. */
	if (lease->part != DLOCK_PART_INTENT)
		link_owner(dp, lease);
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
	dsa_pointer entry_dp = find_or_make_entry(database, hash, &value->name);
	DLockSpaceEntry *entry = ENTRY_AT(entry_dp);
	dsa_pointer dp = make_lease(entry, value, slot, process, DLOCK_SPACE_HELD);
	DLockSpaceLease *lease = LEASE_AT(dp);

	Assert(LWLockHeldByMeInMode(partition_lock(hash), LW_EXCLUSIVE));
	entry->permits = value->permits;
	lease->lsn = lsn;
	lease->min_until = 0;
	link_holder(entry, dp, lease);
	return lease;
}

/*
 * Put a request into the queue of a lock, which gets an entry if it has none.
 * A conversion goes behind the other conversions, everything else to the end.
 *
 * Conditions as for dlock_space_hold(); "process" is the one that waits.
 * "place" is where the request can be found, and the head of the list of the
 * requests that it waits for as well: the caller calls for the last of them
 * first.  Cannot fail.
 */
DLockSpaceLease *
dlock_space_enqueue(Oid database, uint32 hash, const DLockLeaseValue *value,
					DLockSlot slot, int process, DLockSpaceKind kind,
					dsa_pointer *place)
{
	dsa_pointer entry_dp = find_or_make_entry(database, hash, &value->name);
	DLockSpaceEntry *entry = ENTRY_AT(entry_dp);
	dsa_pointer dp = make_lease(entry, value, slot, process, kind);
	DLockSpaceLease *lease = LEASE_AT(dp);
	dsa_pointer *link = &entry->queue;

	Assert(LWLockHeldByMeInMode(partition_lock(hash), LW_EXCLUSIVE));
	if (kind == DLOCK_SPACE_ASKED)
		entry->permits = value->permits;
	while (DsaPointerIsValid(*link) &&
		   (kind != DLOCK_SPACE_CONVERT || LEASE_AT(*link)->kind == DLOCK_SPACE_CONVERT))
		link = &LEASE_AT(*link)->next;
	lease->next = *link;
	*link = dp;
	lease->owner_prev = entry_dp;
	lease->owner_next = *place;
	*place = dp;
	return lease;
}

/* Take a lease or a request out of a list of its lock. */
static dsa_pointer
unlink_from(dsa_pointer *link, DLockSpaceLease *lease)
{
	dsa_pointer dp;

	while (LEASE_AT(*link) != lease)
		link = &LEASE_AT(*link)->next;
	dp = *link;
	*link = lease->next;
	return dp;
}

/*
 * Make a request the lease that it asks for; the caller has filled in what
 * comes with the grant.  Lock as for dlock_space_hold().  Cannot fail.
 */
void
dlock_space_promote(DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	dsa_pointer dp = unlink_from(&entry->queue, lease);

	Assert(lease->kind == DLOCK_SPACE_ASKED);
	link_holder(entry, dp, lease);
}

/* Move a request to the end of its queue.  Lock as for dlock_space_hold(). */
void
dlock_space_requeue(DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	dsa_pointer dp = unlink_from(&entry->queue, lease);
	dsa_pointer *link = &entry->queue;

	while (DsaPointerIsValid(*link))
		link = &LEASE_AT(*link)->next;
	lease->next = InvalidDsaPointer;
	*link = dp;
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
	LWLock	   *lock = owner_lock(owner_bucket_of(lease->database, &owner.name));

	LWLockAcquire(lock, LW_EXCLUSIVE);
	dlock_limit_leave(lease->counter);
	lease->counter = dlock_limit_enter(lease->database, role);
	lease->role = role;
	lease->token = token;
	LWLockRelease(lock);
}

/*
 * Take a lease or a request off its lock, and the entry away when nobody is
 * left; both pointers are invalid afterwards, then.  Lock as for
 * dlock_space_hold().  Cannot fail.
 */
void
dlock_space_remove(DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	bool		held = lease->kind == DLOCK_SPACE_HELD;
	dsa_pointer dp = unlink_from(held ? &entry->holders : &entry->queue, lease);
	dsa_pointer *link;

	Assert(LWLockHeldByMeInMode(partition_lock(entry->hash), LW_EXCLUSIVE));
	if (held && lease->part != DLOCK_PART_INTENT)
		unlink_owner(lease);
	if (held && entry->database == MyDatabaseId)
		dlock_stat_count_lease(-1);
	free_lease(entry, dp, lease);

	if (DsaPointerIsValid(entry->holders) || DsaPointerIsValid(entry->queue))
		return;

	link = &buckets[bucket_of(entry->hash)];
	while (ENTRY_AT(*link) != entry)
		link = &ENTRY_AT(*link)->next;
	dp = *link;
	*link = entry->next;
	dlock_memory_text_free(dlock_space_name_place(entry), DLOCK_SPACE_NAME_ROOM, entry->name_len);
	dlock_memory_give_back(dp);
}

/*
 * Call "visitor" for every lease of a database, expired ones too.
 *
 * The visitor runs under the partition lock in shared mode and must neither
 * change anything nor wait; it may allocate local memory.  The lock is given up
 * between groups of buckets, so the walk as a whole is no snapshot.
 */
void
dlock_space_visit(Oid database, DLockSpaceVisitor visitor, void *arg)
{
	for (uint32 start = 0; start < (1U << bucket_bits);)
	{
		uint32		per_partition = (1U << bucket_bits) / DLOCK_SPACE_PARTITIONS;
		uint32		end = start + Min(VISIT_BUCKETS, per_partition);
		LWLock	   *lock = partition_lock(start);

		CHECK_FOR_INTERRUPTS();
		LWLockAcquire(lock, LW_SHARED);
		for (uint32 bucket = start; bucket < end; bucket++)
		{
			dsa_pointer dp = buckets[bucket];

			while (DsaPointerIsValid(dp))
			{
				DLockSpaceEntry *entry = ENTRY_AT(dp);
				DLockSpaceLease *lease = dlock_space_holders(entry);

				if (entry->database == database)
				{
					for (; lease != NULL; lease = dlock_space_next(lease))
						visitor(entry, lease, arg);
				}
				dp = entry->next;
			}
		}
		LWLockRelease(lock);
		start = end;
	}
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
	dsa_pointer dp;

	*count = 0;
	LWLockAcquire(owner_lock(bucket), LW_SHARED);
	for (dp = owner_buckets[bucket]; DsaPointerIsValid(dp);)
	{
		DLockSpaceLease *lease = LEASE_AT(dp);

		dp = lease->owner_next;
		if (lease->database != database || !dlock_space_is_owner_name(lease, owner_name))
			continue;
		if (*count == room)
		{
			room *= 2;
			refs = repalloc_huge(refs, room * sizeof(DLockSpaceRef));
		}

		/* The partition lock, not ours, protects the deadline: leave it out. */
		refs[(*count)++] = (DLockSpaceRef) {lease->hash, lease->role, lease->token, 0};
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

/*
 * Count all leases and requests of a role that are not counted yet.  It has a
 * counter.  No partition lock may be held.
 */
void
dlock_space_count(Oid database, Oid role)
{
	for (uint32 bucket = 0; bucket < (1U << bucket_bits); bucket++)
	{
		if (bucket % VISIT_BUCKETS == 0)
		{
			CHECK_FOR_INTERRUPTS();
			dlock_space_lock(bucket, LW_EXCLUSIVE);
		}
		for (DLockSpaceEntry *entry = dlock_space_bucket(bucket); entry != NULL;
			 entry = dlock_space_next_entry(entry))
		{
			if (entry->database != database)
				continue;
			for (DLockSpaceLease *lease = dlock_space_holders(entry); lease != NULL;
				 lease = dlock_space_next(lease))
				count_lease(entry, lease, role);
			for (DLockSpaceLease *lease = dlock_space_queue(entry); lease != NULL;
				 lease = dlock_space_next(lease))
				count_lease(entry, lease, role);
		}
		if (bucket % VISIT_BUCKETS == VISIT_BUCKETS - 1)
			dlock_space_unlock(bucket);
	}
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
		dsa_pointer dp;

		/* Most buckets of most servers are empty; a glance needs no lock. */
		if (!DsaPointerIsValid(*(volatile dsa_pointer *) &buckets[bucket]))
			continue;

		LWLockAcquire(lock, LW_EXCLUSIVE);
		dp = buckets[bucket];
		while (DsaPointerIsValid(dp))
		{
			DLockSpaceEntry *entry = ENTRY_AT(dp);
			dsa_pointer next = entry->next;

			if (entry->database == database)
			{
				int			left = 0;

				for (DLockSpaceLease *lease = dlock_space_holders(entry);
					 lease != NULL; lease = dlock_space_next(lease))
					left++;

				/* The entry goes with its last lease. */
				while (left-- > 0)
					dlock_space_remove(entry, dlock_space_holders(entry));
			}
			dp = next;
		}
		LWLockRelease(lock);
	}
}
