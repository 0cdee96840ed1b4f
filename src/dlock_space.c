/*-------------------------------------------------------------------------
 *
 * dlock_space.c
 *	  The lock space: the live truth about all leases, in shared memory.
 *
 * NOTES
 *	  Locks (DLockSpaceEntry) hang in a hash table, by database and name; the
 *	  leases on a lock hang on it.  A second hash table of the same build finds
 *	  the leases of an owner.  Everything lies in the server's main shared
 *	  memory segment: two bucket arrays of a fixed size, and a DSA area that
 *	  was created in place and never grows.  So memory is bounded by
 *	  dlock.max_memory to the byte, running out of it is an answer and not an
 *	  exception, no operation ever has to resize a table under everybody's
 *	  feet, and nothing depends on the size of /dev/shm.
 *
 *	  Lock rules.  The buckets are cut into DLOCK_SPACE_PARTITIONS contiguous
 *	  partitions, each with an LWLock that protects its buckets and all that
 *	  hangs on them.  The owners' buckets are protected by another, smaller
 *	  set of LWLocks, taken after a partition lock or without one, never
 *	  before.  Only one partition lock and one owner lock is ever held at a
 *	  time.  A lease leaves its owner's bucket before its memory is given
 *	  back, so whoever finds a lease there may look at it as long as he holds
 *	  the owner's lock.
 *
 *	  Memory is allocated before the partition lock is taken
 *	  (dlock_space_prepare) and kept by the backend until an insertion uses it,
 *	  so that an insertion cannot fail.  What a removal frees becomes the next
 *	  insertion's memory, if none is kept: a backend that acquires and
 *	  releases in turn does not visit the allocator at all.
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
#include "utils/memutils.h"

#include "dlock_guc.h"
#include "dlock_name.h"
#include "dlock_space.h"

/*
 * The space itself is laid out as the buckets, the owners' buckets, and the
 * DSA area, each aligned to a cache line.  What is in them is protected as
 * told above; the pointers are set once, in the postmaster.
 */
static dsa_pointer *buckets = NULL;
static dsa_pointer *owner_buckets = NULL;
static void *area_place = NULL;
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

/* How many buckets a walk looks at before it lets others have the lock. */
#define VISIT_BUCKETS		64

/*
 * Sizes of entries and leases, smallest first.  They are few, since the area
 * takes 64 kB at a time for each of its size classes and returns them late;
 * and they are classes of dsa.c, so as to waste nothing.  A backend keeps one
 * of the smallest size for its next insertion; it fits most leases.
 */
static const int entry_sizes[] = {64, 320};
static const int lease_sizes[] = {128, 384, 768, 1560};

StaticAssertDecl(offsetof(DLockSpaceEntry, name) + DLOCK_NAME_MAX <= 320,
				 "an entry with the longest name does not fit");
StaticAssertDecl(offsetof(DLockSpaceLease, data) + DLOCK_OWNER_MAX +
				 DLOCK_PAYLOAD_MAX <= 1560,
				 "a lease with the longest owner and payload does not fit");

#define KEEP_NAME_LEN		(64 - offsetof(DLockSpaceEntry, name))
#define KEEP_DATA_LEN		(128 - offsetof(DLockSpaceLease, data))

/* This backend's mapping of the area. */
static dsa_area *area = NULL;

/* Memory that this backend keeps for its next insertion. */
static dsa_pointer kept_entry = InvalidDsaPointer;
static dsa_pointer kept_lease = InvalidDsaPointer;

#define ENTRY_AT(dp)	((DLockSpaceEntry *) dsa_get_address(area, (dp)))
#define LEASE_AT(dp)	((DLockSpaceLease *) dsa_get_address(area, (dp)))

static Size
area_size(void)
{
	return (Size) dlock_guc_max_memory_kb * 1024;
}

static Size
bucket_array_size(uint32 bits)
{
	return CACHELINEALIGN(sizeof(dsa_pointer) << bits);
}

static void
choose_bucket_bits(void)
{
	bucket_bits = Max(MIN_BUCKET_BITS,
					  pg_ceil_log2_64(area_size() / BYTES_PER_BUCKET));
	owner_bits = bucket_bits - OWNER_BITS_LESS;
}

/* Ask for the shared memory and the locks of the space. */
void
dlock_space_request(void)
{
	choose_bucket_bits();
	RequestAddinShmemSpace(add_size(add_size(bucket_array_size(bucket_bits),
											 bucket_array_size(owner_bits)),
									area_size()));
	RequestNamedLWLockTranche("dlock_space", DLOCK_SPACE_PARTITIONS);
	RequestNamedLWLockTranche("dlock_owner", DLOCK_SPACE_OWNER_LOCKS);
	RequestNamedLWLockTranche("dlock_memory", 1);
}

/*
 * Create the space in shared memory, or find it there.  To be called by the
 * shmem_startup_hook with AddinShmemInitLock held.
 */
void
dlock_space_startup(void)
{
	Size		size = bucket_array_size(bucket_bits) +
		bucket_array_size(owner_bits) + area_size();
	bool		found;
	char	   *place = ShmemInitStruct("dlock space", size, &found);

	buckets = (dsa_pointer *) place;
	owner_buckets = (dsa_pointer *) (place + bucket_array_size(bucket_bits));
	area_place = place + bucket_array_size(bucket_bits) + bucket_array_size(owner_bits);
	partition_locks = GetNamedLWLockTranche("dlock_space");
	owner_locks = GetNamedLWLockTranche("dlock_owner");

	if (!found)
	{
		int			tranche = GetNamedLWLockTranche("dlock_memory")->lock.tranche;
		dsa_area   *created;

		for (uint32 i = 0; i < (1U << bucket_bits); i++)
			buckets[i] = InvalidDsaPointer;
		for (uint32 i = 0; i < (1U << owner_bits); i++)
			owner_buckets[i] = InvalidDsaPointer;

		/*
		 * The area may hold as much as was laid out and no more: growing would
		 * take dynamic shared memory, which an operator has not asked for.
		 */
		created = dsa_create_in_place(area_place, area_size(), tranche, NULL);
		dsa_pin(created);
		dsa_set_size_limit(created, area_size());
		dsa_detach(created);
	}
}

/* Was the space laid out when the server started? */
bool
dlock_space_is_ready(void)
{
	return area_place != NULL;
}

/* Give back at exit what this backend kept, and its mapping. */
static void
detach_area(int code, Datum arg)
{
	if (DsaPointerIsValid(kept_entry))
		dsa_free(area, kept_entry);
	if (DsaPointerIsValid(kept_lease))
		dsa_free(area, kept_lease);
	kept_entry = kept_lease = InvalidDsaPointer;
	dsa_detach(area);
	dsa_release_in_place(area_place);
	area = NULL;
}

/*
 * The area that the leases of all databases lie in, for those who keep more in
 * it.  Maps it into this backend at the first call, which may throw; all other
 * functions but those of set-up rely on that having been done.
 */
dsa_area *
dlock_space_area(void)
{
	if (area == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		area = dsa_attach_in_place(area_place, NULL);
		dsa_pin_mapping(area);
		MemoryContextSwitchTo(old);
		on_shmem_exit(detach_area, (Datum) 0);
	}
	return area;
}

static inline uint32
bucket_of(uint32 hash)
{
	return hash & ((1U << bucket_bits) - 1);
}

static inline LWLock *
partition_lock(uint32 bucket)
{
	return &partition_locks[bucket / ((1U << bucket_bits) / DLOCK_SPACE_PARTITIONS)].lock;
}

static inline uint32
owner_bucket_of(Oid database, const DLockBytes *owner)
{
	return dlock_name_hash(database, owner) & ((1U << owner_bits) - 1);
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
	LWLockAcquire(partition_lock(bucket_of(hash)), mode);
}

void
dlock_space_unlock(uint32 hash)
{
	LWLockRelease(partition_lock(bucket_of(hash)));
}

/* Free memory of the space, or keep it for the next insertion. */
static void
give_back_entry(dsa_pointer dp)
{
	if (!DsaPointerIsValid(kept_entry) && ENTRY_AT(dp)->capacity == KEEP_NAME_LEN)
		kept_entry = dp;
	else
		dsa_free(area, dp);
}

static void
give_back_lease(dsa_pointer dp)
{
	if (!DsaPointerIsValid(kept_lease) && LEASE_AT(dp)->capacity == KEEP_DATA_LEN)
		kept_lease = dp;
	else
		dsa_free(area, dp);
}

/* The first size that fits; the last one always does. */
static int
choose_size(const int *sizes, int needed)
{
	while (*sizes < needed)
		sizes++;
	return *sizes;
}

/* Does the next dlock_space_insert() have memory for so many bytes? */
bool
dlock_space_is_prepared(int name_len, int data_len)
{
	return DsaPointerIsValid(kept_entry) && ENTRY_AT(kept_entry)->capacity >= name_len &&
		DsaPointerIsValid(kept_lease) && LEASE_AT(kept_lease)->capacity >= data_len;
}

/*
 * See to it that the next dlock_space_insert() has memory: for a name of
 * "name_len" bytes, and an owner and a payload of "data_len" bytes together.
 *
 * False if there is none.  No partition lock may be held.
 */
bool
dlock_space_prepare(int name_len, int data_len)
{
	if (DsaPointerIsValid(kept_entry) && ENTRY_AT(kept_entry)->capacity < name_len)
	{
		dsa_free(area, kept_entry);
		kept_entry = InvalidDsaPointer;
	}
	if (!DsaPointerIsValid(kept_entry))
	{
		int			size = choose_size(entry_sizes,
									   offsetof(DLockSpaceEntry, name) + name_len);

		kept_entry = dsa_allocate_extended(area, size, DSA_ALLOC_NO_OOM);
		if (!DsaPointerIsValid(kept_entry))
			return false;
		ENTRY_AT(kept_entry)->capacity = size - offsetof(DLockSpaceEntry, name);
	}

	if (DsaPointerIsValid(kept_lease) && LEASE_AT(kept_lease)->capacity < data_len)
	{
		dsa_free(area, kept_lease);
		kept_lease = InvalidDsaPointer;
	}
	if (!DsaPointerIsValid(kept_lease))
	{
		int			size = choose_size(lease_sizes,
									   offsetof(DLockSpaceLease, data) + data_len);

		kept_lease = dsa_allocate_extended(area, size, DSA_ALLOC_NO_OOM);
		if (!DsaPointerIsValid(kept_lease))
			return false;
		LEASE_AT(kept_lease)->capacity = size - offsetof(DLockSpaceLease, data);
	}
	return true;
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

		if (entry->hash == hash && entry->database == database &&
			entry->name_len == name->len &&
			memcmp(entry->name, name->data, name->len) == 0)
			return entry;
		dp = entry->next;
	}
	return NULL;
}

/*
 * Find the lease with a token, by the hash of its lock; NULL if there is none.
 * The partition lock must be held in either mode.
 */
DLockSpaceEntry *
dlock_space_find_token(Oid database, uint32 hash, DLockToken token,
					   DLockSpaceLease **lease)
{
	dsa_pointer dp = buckets[bucket_of(hash)];

	while (DsaPointerIsValid(dp))
	{
		DLockSpaceEntry *entry = ENTRY_AT(dp);

		if (entry->hash == hash && entry->database == database)
		{
			DLockSpaceLease *holder = dlock_space_holders(entry);

			for (; holder != NULL; holder = dlock_space_next_holder(holder))
			{
				if (holder->token == token)
				{
					*lease = holder;
					return entry;
				}
			}
		}
		dp = entry->next;
	}
	return NULL;
}

/* The first lease on a lock; NULL if there is none.  Lock as for find. */
DLockSpaceLease *
dlock_space_holders(DLockSpaceEntry *entry)
{
	return DsaPointerIsValid(entry->holders) ? LEASE_AT(entry->holders) : NULL;
}

/* The next lease on the same lock; NULL at the end.  Lock as for find. */
DLockSpaceLease *
dlock_space_next_holder(DLockSpaceLease *lease)
{
	return DsaPointerIsValid(lease->next_holder) ? LEASE_AT(lease->next_holder) : NULL;
}

/* Hang a lease into the bucket of its owner. */
static void
link_owner(dsa_pointer dp, DLockSpaceLease *lease)
{
	DLockBytes	owner = dlock_space_lease_owner(lease);
	uint32		bucket = owner_bucket_of(lease->database, &owner);
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
	DLockBytes	owner = dlock_space_lease_owner(lease);
	uint32		bucket = owner_bucket_of(lease->database, &owner);

	LWLockAcquire(owner_lock(bucket), LW_EXCLUSIVE);
	if (DsaPointerIsValid(lease->owner_prev))
		LEASE_AT(lease->owner_prev)->owner_next = lease->owner_next;
	else
		owner_buckets[bucket] = lease->owner_next;
	if (DsaPointerIsValid(lease->owner_next))
		LEASE_AT(lease->owner_next)->owner_prev = lease->owner_prev;
	LWLockRelease(owner_lock(bucket));
}

/*
 * Add a lease to its lock, and the lock itself if it has no entry yet.
 *
 * The partition lock must be held exclusively, and dlock_space_prepare() must
 * have promised the memory since the last insertion.  "slot" is the lease's
 * home on disk, "lsn" the end of the record that put it there.  Cannot fail.
 */
DLockSpaceLease *
dlock_space_insert(Oid database, uint32 hash, const DLockLeaseValue *value,
				   DLockSlot slot, XLogRecPtr lsn)
{
	DLockSpaceEntry *entry = dlock_space_find(database, hash, &value->name);
	dsa_pointer dp = kept_lease;
	DLockSpaceLease *lease = LEASE_AT(dp);

	Assert(LWLockHeldByMeInMode(partition_lock(bucket_of(hash)), LW_EXCLUSIVE));
	Assert(lease->capacity >= value->owner.len + value->payload.len);

	if (entry == NULL)
	{
		entry = ENTRY_AT(kept_entry);
		Assert(entry->capacity >= value->name.len);
		entry->holders = InvalidDsaPointer;
		entry->database = database;
		entry->hash = hash;
		entry->name_len = value->name.len;
		memcpy(entry->name, value->name.data, value->name.len);
		entry->next = buckets[bucket_of(hash)];
		buckets[bucket_of(hash)] = kept_entry;
		kept_entry = InvalidDsaPointer;
	}

	lease->token = value->token;
	lease->ttl = value->term.ttl;
	lease->deadline = value->term.deadline;
	lease->bound_mono = value->term.bound_mono;
	lease->granted_at = value->granted_at;
	lease->lsn = lsn;
	lease->database = database;
	lease->hash = hash;
	lease->slot = slot;
	lease->role = value->role;
	lease->mode = value->mode;
	lease->owner_len = value->owner.len;
	lease->payload_len = value->payload.len;
	memcpy(lease->data, value->owner.data, value->owner.len);
	if (value->payload.len > 0)
		memcpy(lease->data + value->owner.len, value->payload.data, value->payload.len);

	lease->next_holder = entry->holders;
	entry->holders = dp;
	kept_lease = InvalidDsaPointer;
	link_owner(dp, lease);
	return lease;
}

/*
 * Take a lease off its lock, and the entry away when it was the last; both
 * pointers are invalid afterwards.  The partition lock must be held
 * exclusively.  Cannot fail.
 */
void
dlock_space_remove(DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	dsa_pointer *link = &entry->holders;
	dsa_pointer dp;

	Assert(LWLockHeldByMeInMode(partition_lock(bucket_of(entry->hash)), LW_EXCLUSIVE));

	while (LEASE_AT(*link) != lease)
		link = &LEASE_AT(*link)->next_holder;
	dp = *link;
	*link = lease->next_holder;
	unlink_owner(lease);
	give_back_lease(dp);

	if (DsaPointerIsValid(entry->holders))
		return;

	link = &buckets[bucket_of(entry->hash)];
	while (ENTRY_AT(*link) != entry)
		link = &ENTRY_AT(*link)->next;
	dp = *link;
	*link = entry->next;
	give_back_entry(dp);
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
					for (; lease != NULL; lease = dlock_space_next_holder(lease))
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
 * The leases of an owner, expired ones too, in no order; palloc'd, with their
 * number in "count".  No partition lock may be held.
 */
DLockSpaceRef *
dlock_space_owned(Oid database, const DLockBytes *owner, int *count)
{
	uint32		bucket = owner_bucket_of(database, owner);
	int			room = 64;
	DLockSpaceRef *refs = palloc(room * sizeof(DLockSpaceRef));
	dsa_pointer dp;

	*count = 0;
	LWLockAcquire(owner_lock(bucket), LW_SHARED);
	for (dp = owner_buckets[bucket]; DsaPointerIsValid(dp);)
	{
		DLockSpaceLease *lease = LEASE_AT(dp);
		DLockBytes	lease_owner = dlock_space_lease_owner(lease);

		dp = lease->owner_next;
		if (lease->database != database || !dlock_name_equal(&lease_owner, owner))
			continue;
		if (*count == room)
		{
			room *= 2;
			refs = repalloc_huge(refs, room * sizeof(DLockSpaceRef));
		}

		/* The partition lock, not ours, protects the deadline: leave it out. */
		refs[(*count)++] = (DLockSpaceRef) {lease->hash, lease->token, 0};
	}
	LWLockRelease(owner_lock(bucket));
	return refs;
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
					 lease != NULL; lease = dlock_space_next_holder(lease))
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
