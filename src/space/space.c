/*-------------------------------------------------------------------------
 *
 * space.c
 *	  The lock space: the live truth about all leases, in shared memory.
 *
 * NOTES
 *	  Locks (DLockSpaceEntry) hang in a hash table, by database and name.  The
 *	  leases on a lock hang on it, and so does the queue of requests that wait
 *	  for it.  The table is an array of buckets of a fixed size, so no operation
 *	  has to resize it while others wait.  What hangs on it is made of the cells of
 *	  space/memory.c.
 *
 *	  Lock rules.  All of a lock is protected by the lock of its partition
 *	  (space/partition.c), the indexes as space/holder.c and space/place.c say.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "base/compat.h"
#include "base/fault.h"
#include "base/name.h"
#include "base/rule.h"
#include "base/settings.h"
#include "base/stat.h"
#include "space/count.h"
#include "space/place.h"
#include "space/signal.h"
#include "space/space.h"

/* One bucket for so many bytes of dlock.max_memory; and how many at least, a power of 2. */
#define BYTES_PER_BUCKET	256
#define MIN_BITS			12

/*
 * How many buckets, a power of 2, or leases a walk visits before it lets others have the
 * partition.  A bucket is visited as a whole; there are about as many as cells.
 */
#define VISIT_BUCKETS		32
#define VISIT_LEASES		64

StaticAssertDecl((1 << MIN_BITS) / DLOCK_PARTITION_COUNT % VISIT_BUCKETS == 0,
				 "a partition is a multiple of what a walk visits at a time");

/* The buckets, and their number as a power of 2; set once, in the postmaster. */
static DLockMemoryRef *buckets = NULL;
static uint32 bucket_bits = 0;

#define NONE			DLOCK_MEMORY_NONE
#define ENTRY_AT(ref)	((DLockSpaceEntry *) dlock_memory_at(ref))
#define LEASE_AT(ref)	((DLockSpaceLease *) dlock_memory_at(ref))
#define LOCK_NODE		offsetof(DLockSpaceLease, on_lock)

static Size
buckets_size(void)
{
	return sizeof(DLockMemoryRef) << bucket_bits;
}

/* Ask for the shared memory and the locks of the space. */
void
dlock_space_request(void)
{
	Size		memory = (Size) dlock_settings_max_memory_kb * 1024;

	bucket_bits = Max(MIN_BITS, pg_ceil_log2_64(memory / BYTES_PER_BUCKET));
	RequestAddinShmemSpace(add_size(buckets_size(), dlock_holder_size(bucket_bits)));
	dlock_partition_request();
	dlock_holder_request();
}

/*
 * Create the space in shared memory, or find it there; with AddinShmemInitLock
 * held.
 */
void
dlock_space_startup(void)
{
	Size		size = buckets_size() + dlock_holder_size(bucket_bits);
	bool		found;

	buckets = ShmemInitStruct("dlock space", size, &found);
	if (!found)
		memset(buckets, 0, size);
	dlock_partition_startup();
	dlock_holder_startup(buckets + ((Size) 1 << bucket_bits), bucket_bits);
}

/* The bucket of a hash.  Those of a partition lie side by side. */
static inline DLockMemoryRef *
bucket_of(uint32 hash)
{
	return &buckets[hash >> (32 - bucket_bits)];
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
 * Reserve memory for the next "count" insertions, each for a name of "name_len" bytes, and
 * an owner and a payload of "data_len" bytes together: a cell for the entry or for the
 * lease, and what the texts need more.  False if memory is full.  Neither waits nor throws.
 */
bool
dlock_space_prepare(int name_len, int data_len, int count)
{
	return dlock_memory_prepare(count * (1 + dlock_memory_text_cells(name_len, DLOCK_SPACE_NAME_ROOM) +
										 dlock_memory_text_cells(data_len, room_beside(name_len))));
}

/*
 * The first lock of the bucket that a hash falls into; NULL if there is none.
 * The partition lock must be held in either mode.
 */
DLockSpaceEntry *
dlock_space_bucket(uint32 hash)
{
	Assert(dlock_partition_is_held(hash));
	return dlock_space_entry_at(*bucket_of(hash));
}

static inline bool
is_entry_of(const DLockSpaceEntry *entry, Oid database, uint32 hash, const DLockBytes *name)
{
	char		buffer[DLOCK_NAME_MAX];
	DLockBytes	own;

	if (entry->hash != hash || entry->database != database)
		return false;
	own = dlock_space_entry_name(entry, buffer);
	return dlock_name_equal(&own, name);
}

/* Find the entry of a name; NULL if there is none.  Lock as for bucket. */
DLockSpaceEntry *
dlock_space_find(Oid database, uint32 hash, const DLockBytes *name)
{
	DLockSpaceEntry *entry = dlock_space_bucket(hash);

	while (entry != NULL && !is_entry_of(entry, database, hash, name))
		entry = dlock_space_next_entry(entry);
	return entry;
}

/*
 * Find the lease with a token, by the hash of its lock; NULL if there is none.  Lock as
 * for bucket.
 */
DLockSpaceLease *
dlock_space_find_token(Oid database, uint32 hash, DLockToken token)
{
	DLockSpaceLease *lease = NULL;

	for (DLockSpaceEntry *entry = dlock_space_bucket(hash); entry != NULL && lease == NULL;
		 entry = dlock_space_next_entry(entry))
	{
		if (entry->hash == hash && entry->database == database)
			lease = dlock_holder_find_token(entry, token);
	}
	return lease;
}

/*
 * Find the lease that a target names; NULL if there is none.  "strangers" are roles
 * whose leases an owner's name does not stand for.  Lock as for bucket.
 */
DLockSpaceLease *
dlock_space_find_target(Oid database, const DLockHolderTarget *target, const List *strangers)
{
	DLockSpaceLease *lease;

	if (target->token == DLOCK_TOKEN_NONE)
	{
		DLockSpaceEntry *entry = dlock_space_find(database, target->hash, &target->name);

		return (entry != NULL) ? dlock_holder_find_named(entry, target, strangers) : NULL;
	}
	lease = dlock_space_find_token(database, target->hash, target->token);
	if (lease != NULL && target->name.len > 0 &&
		!is_entry_of(dlock_space_entry_of(lease), database, target->hash, &target->name))
		return NULL;
	return lease;
}

/*
 * A lease goes, or ends earlier: tell those that watch its lock.  An intent is no holder.
 * Of a grant they are told when it is confirmed (session/wait.c).
 */
static void
tell(const DLockSpaceLease *lease)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(lease);

	Assert(dlock_partition_is_mine(entry->hash));
	if (lease->part != DLOCK_PART_INTENT)
		dlock_signal_tell(entry->hash);
}

/* See to it that "earliest" of a lock is not after the time when this lease stops blocking. */
static void
note_end(const DLockSpaceLease *lease)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(lease);

	Assert(dlock_partition_is_mine(entry->hash));
	entry->earliest = Min(entry->earliest, dlock_holder_blocks_until(lease));
}

/* The end of a lease has changed: see to the locks of all its parts. */
static void
note_ends(const DLockSpaceLease *lease)
{
	for (const DLockSpaceLease *part = lease; part != NULL; part = dlock_space_next_part(part))
		note_end(part);
}

/* A lock has one lease more in a mode. */
static void
add_mode(DLockSpaceEntry *entry, DLockMode mode)
{
	entry->held_modes |= DLOCK_RULE_BIT(mode);
	entry->ncr += mode == DLOCK_MODE_CR;
	entry->nstrong += (DLOCK_RULE_BIT(mode) & DLOCK_SPACE_WEAK_MODES) == 0;
}

/*
 * A lock has one lease less in a mode.  Where dead leases have another strong mode than live
 * ones, the next survey finds out which is left.
 */
static void
drop_mode(DLockSpaceEntry *entry, DLockMode mode)
{
	if (entry->holders == NONE)
		entry->held_modes = entry->ncr = entry->nstrong = 0;
	else if (mode == DLOCK_MODE_CR)
	{
		if (--entry->ncr == 0)
			entry->held_modes &= ~DLOCK_RULE_BIT(mode);
	}
	else if (mode != DLOCK_MODE_NL)
	{
		if (--entry->nstrong == 0)
			entry->held_modes &= DLOCK_SPACE_WEAK_MODES;
		else if ((entry->held_modes & ~DLOCK_SPACE_WEAK_MODES) != DLOCK_RULE_BIT(mode))
			entry->earliest = 0;
	}
}

/* The entry of a name, which is made if there is none. */
static DLockSpaceEntry *
find_or_make_entry(Oid database, uint32 hash, const DLockBytes *name)
{
	DLockSpaceEntry *entry = dlock_space_find(database, hash, name);

	Assert(dlock_partition_is_mine(hash));
	if (entry != NULL)
		return entry;
	entry = ENTRY_AT(dlock_memory_take());
	*entry = (DLockSpaceEntry)
	{
		.earliest = DLOCK_TIME_FOREVER,.next = *bucket_of(hash),.database = database,
			.hash = hash,.name_len = name->len
	};
	dlock_memory_text_put(entry->name, DLOCK_SPACE_NAME_ROOM, name, 1);
	*bucket_of(hash) = dlock_memory_ref(entry);
	return entry;
}

/* The lease in the cell of an entry, or the room for it. */
static DLockSpaceLease *
lodging_of(DLockSpaceEntry *entry)
{
	return (DLockSpaceLease *) ((char *) entry + lodging_offset(entry->name_len));
}

/* Set the fields of a lease or request; texts, "reentry", links to lock and owner stay. */
static void
set_value(DLockSpaceLease *lease, const DLockLeaseValue *value, DLockSlot slot, int process,
		  DLockSpaceKind kind)
{
	lease->token = value->token;
	lease->ttl = value->term.ttl;
	lease->deadline = value->term.deadline;
	lease->bound_mono = value->term.bound_mono;
	lease->delay = value->delay;
	lease->min_until = value->min_hold;
	lease->granted_at = value->granted_at;
	lease->lsn = InvalidXLogRecPtr;
	lease->confirmed = 0;
	lease->level = synchronous_commit;
	lease->slot = slot;
	lease->role = value->role;
	lease->process = process;
	lease->holds = value->holds;
	lease->kind = kind;
	lease->mode = value->mode;
	lease->bind = value->bind;
	lease->part = value->part;
	lease->next_part = NONE;
	lease->stopped = false;
	lease->unwritten = false;
	lease->indexed = false;
	lease->kept = false;
	lease->placed = false;
	lease->called = false;
}

/* Make a lease or request from a value, in the entry's own cell if there is room. */
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
	lease->entry = dlock_memory_ref(entry);
	lease->owner_len = value->owner.len;
	lease->payload_len = value->payload.len;
	set_value(lease, value, slot, process, kind);
	dlock_memory_text_put(lease->data, lease->room, texts, lengthof(texts));
	return lease;
}

/* Free the memory of a lease that hangs on nothing any more. */
static void
free_lease(DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	if (lease->kind != DLOCK_SPACE_CONVERT)
		dlock_count_remove_lease(entry->database, lease->role);
	dlock_memory_text_free(lease->data, lease->room, lease->owner_len + lease->payload_len);
	if (lease == lodging_of(entry))
		entry->lodges = false;
	else
		dlock_memory_give_back(dlock_memory_ref(lease));
}

/* Hang a lease on its lock, as one that is held; as an intent of "path" if there is one. */
static void
link_holder(DLockSpaceEntry *entry, DLockSpaceLease *lease, DLockSpaceLease *path)
{
	DLockSpaceLease *before;

	Assert((path != NULL) == (lease->part == DLOCK_PART_INTENT));
	lease->kind = DLOCK_SPACE_HELD;
	lease->next_part = (path != NULL) ? path->next_part : NONE;
	if (path != NULL)
	{
		lease->u.path = dlock_memory_ref(path);
		path->next_part = dlock_memory_ref(lease);
	}
	/* For the order see space/lease.h. */
	lease->indexed = !dlock_holder_are_few(entry);
	before = (lease->indexed && path != NULL) ? NULL : dlock_space_holders(entry);
	while (lease->indexed && before != NULL && !before->indexed)
		before = dlock_space_next(before);
	dlock_memory_list_insert(&entry->holders, dlock_memory_ref(lease),
							 (before != NULL) ? dlock_memory_ref(before) : NONE, LOCK_NODE);
	add_mode(entry, (DLockMode) lease->mode);
	note_end(lease);
	dlock_holder_add(lease);
	dlock_stat_count(DLOCK_STAT_LEASES, 1);
}

/* The key by which the requests of an owner for a lock are counted. */
static inline uint64
owner_key(const DLockSpaceEntry *entry, const DLockOwner *owner)
{
	return hash_bytes_uint32_extended(dlock_name_hash(owner->role, &owner->name), entry->hash);
}

static uint64
request_key(const DLockSpaceLease *request)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(request, buffer);

	return owner_key(dlock_space_entry_of(request), &owner);
}

/* Take a request out of its queue. */
static void
unlink_request(DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	if (lease->kind == DLOCK_SPACE_ASKED)
	{
		dlock_count_add(DLOCK_COUNT_REQUESTS, request_key(lease), -1);
		dlock_place_set_process(lease, -1);
	}
	if (lease->placed)
		dlock_place_remove(lease);
	dlock_memory_list_delete(&entry->queue, dlock_memory_ref(lease), LOCK_NODE);
	if (entry->queue == NONE)
		entry->asked_modes = entry->places = 0;
}

/*
 * Add a lease to its lock, and the lock itself if it has no entry yet.
 *
 * The partition lock must be held exclusively, the lease be counted for its role
 * (space/count.c), and dlock_space_prepare() have promised the memory.  "slot" is the
 * lease's home on disk, "process" the number of the process that it is bound to or -1,
 * "lsn" the end of the record that put it on disk.  "request", unless NULL, is what asked
 * for the lease, and becomes it: it has the memory, and is counted.  An intent is one of
 * "path", which is held already.  min_until is left to the caller.  Cannot fail.
 */
DLockSpaceLease *
dlock_space_hold(Oid database, uint32 hash, const DLockLeaseValue *value, DLockSlot slot,
				 int process, XLogRecPtr lsn, DLockSpaceLease *request, DLockSpaceLease *path)
{
	DLockSpaceLease *lease = request;
	DLockSpaceEntry *entry = (request != NULL) ? dlock_space_entry_of(request) :
		find_or_make_entry(database, hash, &value->name);

	Assert(dlock_partition_is_mine(hash));
	if (request != NULL)
	{
		unlink_request(entry, request);
		set_value(request, value, slot, process, DLOCK_SPACE_HELD);
	}
	else
		lease = make_lease(entry, value, slot, process, DLOCK_SPACE_HELD);
	entry->permits = value->permits;
	lease->lsn = lsn;
	lease->min_until = 0;
	link_holder(entry, lease, path);
	return lease;
}

/*
 * How many requests for a lease has an owner in the queue of a lock?  May be too high, and
 * takes no search.  The partition lock must be held.
 */
uint32
dlock_space_requests_of(const DLockSpaceEntry *entry, const DLockOwner *owner)
{
	Assert(dlock_partition_is_held(entry->hash));
	return dlock_count_read(DLOCK_COUNT_REQUESTS, owner_key(entry, owner));
}

/*
 * The request in front of which a new one enters a queue; NULL if it goes to the
 * end.  Conversions come first.  The partition lock must be held.
 */
DLockSpaceLease *
dlock_space_behind(DLockSpaceEntry *entry, DLockSpaceKind kind)
{
	DLockSpaceLease *request = (kind == DLOCK_SPACE_ASKED) ? NULL : dlock_space_queue(entry);

	while (request != NULL && request->kind == DLOCK_SPACE_CONVERT)
		request = dlock_space_next(request);
	return request;
}

/*
 * Put a request into the queue of a lock, which gets an entry if it has none.
 *
 * Conditions as for dlock_space_hold(), but a conversion is not counted.  "place" is the head
 * of the list of the requests by which this process waits: the new one goes in front, so the
 * caller enqueues the last of them first.  Cannot fail.
 */
DLockSpaceLease *
dlock_space_enqueue(Oid database, uint32 hash, const DLockLeaseValue *value,
					DLockSpaceKind kind, DLockMemoryRef *place)
{
	DLockSpaceEntry *entry;
	DLockSpaceLease *lease;
	DLockSpaceLease *before;

	Assert(dlock_partition_is_mine(hash));
	entry = find_or_make_entry(database, hash, &value->name);
	lease = make_lease(entry, value, DLOCK_SLOT_NONE,
					   (kind == DLOCK_SPACE_ASKED) ? -1 : MyProcNumber, kind);
	if (kind == DLOCK_SPACE_ASKED)
	{
		entry->permits = value->permits;
		entry->asked_modes |= DLOCK_RULE_BIT(value->mode);
		dlock_count_add(DLOCK_COUNT_REQUESTS, request_key(lease), 1);
		dlock_place_set_process(lease, MyProcNumber);
	}
	before = dlock_space_behind(entry, kind);
	dlock_memory_list_insert(&entry->queue, dlock_memory_ref(lease),
							 (before != NULL) ? dlock_memory_ref(before) : NONE, LOCK_NODE);
	lease->next_part = *place;
	*place = dlock_memory_ref(lease);
	return lease;
}

/* Move a request to the end of its queue.  Lock as for dlock_space_hold(). */
void
dlock_space_requeue(DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	Assert(dlock_partition_is_mine(entry->hash));
	dlock_memory_list_delete(&entry->queue, dlock_memory_ref(lease), LOCK_NODE);
	dlock_memory_list_insert(&entry->queue, dlock_memory_ref(lease), NONE, LOCK_NODE);
}

/*
 * Give a lease that is held another token.  If it is on disk, a record is to follow;
 * until that is confirmed, nobody has this token.  Lock as for dlock_space_hold().
 */
void
dlock_space_succeed(DLockSpaceLease *lease, DLockToken token)
{
	Assert(dlock_partition_is_mine(dlock_space_entry_of(lease)->hash));
	dlock_holder_change(lease, token);
	lease->level = synchronous_commit;
	lease->confirmed = 0;
	if (lease->slot != DLOCK_SLOT_NONE)
		lease->lsn = DLOCK_SPACE_BEING_WRITTEN;
}

/*
 * Give a lease that is held another term; the partitions of all its parts must be locked
 * exclusively.  A new delay must be in place.
 */
void
dlock_space_set_term(DLockSpaceLease *lease, const DLockTerm *term)
{
	if (term->deadline < lease->deadline)
		tell(lease);
	lease->ttl = term->ttl;
	lease->deadline = term->deadline;
	lease->bound_mono = term->bound_mono;
	note_ends(lease);
}

/*
 * End a lease now, unless its time is up; its locks stay closed for "delay" after its
 * end.  Locks as for dlock_space_set_term().
 */
void
dlock_space_stop(DLockSpaceLease *lease, DLockTime delay, DLockTime now)
{
	lease->deadline = Min(lease->deadline, now);
	lease->delay = delay;
	lease->stopped = true;
	tell(lease);
	note_ends(lease);
}

/* Give a lease that is held another mode.  Lock as for dlock_space_hold(). */
void
dlock_space_set_mode(DLockSpaceLease *lease, DLockMode mode)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(lease);
	DLockMode	old = (DLockMode) lease->mode;

	Assert(dlock_partition_is_mine(entry->hash));
	lease->mode = mode;
	add_mode(entry, mode);
	drop_mode(entry, old);
}

/*
 * Remove a lease or a request from its lock, and with the last one the entry; true if the
 * entry stays.  Pointers to what is removed are invalid then.  Lock as for
 * dlock_space_hold().  Cannot fail.
 */
bool
dlock_space_remove(DLockSpaceEntry *entry, DLockSpaceLease *lease)
{
	DLockMemoryRef *link;

	Assert(dlock_partition_is_mine(entry->hash));
	if (lease->kind == DLOCK_SPACE_HELD)
	{
		dlock_stat_count(DLOCK_STAT_LEASES, -1);
		tell(lease);
		dlock_holder_remove(lease);
		dlock_memory_list_delete(&entry->holders, dlock_memory_ref(lease), LOCK_NODE);
		drop_mode(entry, (DLockMode) lease->mode);
		if (entry->holders == NONE)
			entry->earliest = DLOCK_TIME_FOREVER;
	}
	else
		unlink_request(entry, lease);
	free_lease(entry, lease);

	if (entry->holders != NONE || entry->queue != NONE)
		return true;

	link = bucket_of(entry->hash);
	while (dlock_space_entry_at(*link) != entry)
		link = &ENTRY_AT(*link)->next;
	*link = entry->next;
	dlock_memory_text_free(entry->name, DLOCK_SPACE_NAME_ROOM, entry->name_len);
	dlock_memory_give_back(dlock_memory_ref(entry));
	return false;
}

/* ---- all of a database ---- */

/* A walk over the leases and requests of a database, or of all (InvalidOid). */
typedef struct DLockSpaceWalk
{
	Oid			database;
	DLockSpaceVisitor visitor;
	void	   *arg;
	int			visits;			/* under the partition lock that is held */
} DLockSpaceWalk;

/* The first hash of a bucket. */
static inline uint32
hash_of_bucket(uint32 bucket)
{
	return bucket << (32 - bucket_bits);
}

static void
visit(DLockSpaceWalk *walk, DLockSpaceLease *lease)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(lease);

	walk->visits++;
	if (!OidIsValid(walk->database) || entry->database == walk->database)
		walk->visitor(entry, lease, walk->arg);
}

/* Visit a list of leases or requests up to the first one that is indexed.  Is there one? */
static bool
visit_list(DLockSpaceWalk *walk, DLockSpaceLease *lease)
{
	for (; lease != NULL && !lease->indexed; lease = dlock_space_next(lease))
		visit(walk, lease);
	return lease != NULL;
}

/* Visit the indexed leases in buckets before "end"; with "all", other leases and requests, too. */
static void
visit_buckets(DLockSpaceWalk *walk, uint32 bucket, uint32 end, bool all)
{
	while (bucket < end)
	{
		uint32		hash = hash_of_bucket(bucket);
		uint32		stop = (bucket | (VISIT_BUCKETS - 1)) + 1;

		CHECK_FOR_INTERRUPTS();
		dlock_partition_lock(hash, LW_SHARED);
		for (walk->visits = 0; bucket < stop && walk->visits < VISIT_LEASES; bucket++)
		{
			for (DLockSpaceEntry *entry = all ? dlock_space_entry_at(buckets[bucket]) : NULL; entry != NULL;
				 entry = dlock_space_next_entry(entry))
			{
				(void) visit_list(walk, dlock_space_holders(entry));
				(void) visit_list(walk, dlock_space_queue(entry));
			}
			for (DLockSpaceLease *lease = dlock_space_lease_at(dlock_holder_tokens[bucket]); lease != NULL;
				 lease = dlock_space_next_indexed(lease))
				visit(walk, lease);
		}
		dlock_partition_unlock(hash);
	}
}

/*
 * Call "visitor" for every lease of a database, or of all (InvalidOid), expired ones too,
 * and for every request, in the order of its queue, which is visited in one go.  The
 * partition is unlocked after VISIT_BUCKETS or some VISIT_LEASES, so the whole is no
 * snapshot: a lease that is converted meanwhile may be visited twice or not at all.
 *
 * The visitor runs under the partition lock in shared mode and must neither change
 * anything nor wait; it may allocate local memory.
 */
void
dlock_space_visit(Oid database, DLockSpaceVisitor visitor, void *arg)
{
	DLockSpaceWalk walk = {.database = database,.visitor = visitor,.arg = arg};

	visit_buckets(&walk, 0, 1U << bucket_bits, true);
}

/*
 * The same for the leases on one lock.  A few are visited in one go; if there are more,
 * leases on other locks of the database are visited, too.
 */
void
dlock_space_visit_lock(Oid database, const DLockBytes *name, DLockSpaceVisitor visitor, void *arg)
{
	DLockSpaceWalk walk = {.database = database,.visitor = visitor,.arg = arg};
	uint32		hash = dlock_name_hash(database, name);
	uint32		per_partition = 1U << (bucket_bits - DLOCK_PARTITION_BITS);
	uint32		first = dlock_partition_of(hash) * per_partition;
	DLockSpaceEntry *entry;
	bool		more;

	dlock_partition_lock(hash, LW_SHARED);
	entry = dlock_space_find(database, hash, name);
	more = entry != NULL && visit_list(&walk, dlock_space_holders(entry));
	dlock_partition_unlock(hash);
	if (more)
		visit_buckets(&walk, first, first + per_partition, false);
}

/* Remove a lease or place of a database; with "paths", a path alone.  How many: 0 or 1? */
static int
purge(Oid database, DLockSpaceLease *lease, bool paths)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(lease);

	if (entry->database != database ||
		(paths ? lease->part != DLOCK_PART_PATH : lease->kind != DLOCK_SPACE_HELD && !lease->placed))
		return 0;
	(void) dlock_space_remove(entry, lease);
	return 1;
}

/* The same for all of a bucket, or VISIT_LEASES of it; its partition is locked exclusively. */
static int
purge_some(Oid database, uint32 bucket, bool paths)
{
	int			removed = 0;
	DLockSpaceEntry *next_entry;
	DLockSpaceLease *next;

	for (DLockSpaceLease *lease = dlock_space_lease_at(dlock_holder_tokens[bucket]);
		 lease != NULL && removed < VISIT_LEASES; lease = next)
	{
		next = dlock_space_next_indexed(lease);
		removed += purge(database, lease, paths);
	}
	for (DLockSpaceEntry *entry = dlock_space_entry_at(buckets[bucket]); entry != NULL; entry = next_entry)
	{
		DLockSpaceLease *lease = dlock_space_holders(entry);
		DLockSpaceLease *request = paths ? NULL : dlock_space_queue(entry);

		/* It goes with its last lease, unless there are requests. */
		next_entry = dlock_space_next_entry(entry);
		for (; lease != NULL && !lease->indexed && removed < VISIT_LEASES; lease = next)
		{
			next = dlock_space_next(lease);
			removed += purge(database, lease, paths);
		}
		for (; request != NULL && removed < VISIT_LEASES; request = next)
		{
			next = dlock_space_next(request);
			removed += purge(database, request, paths);
		}
	}
	return removed;
}

/*
 * Remove every lease and every place of a database.  No other backend may be using the
 * leases of that database, but a session may end.
 *
 * Paths go first: a session that ends searches for the path that is bound to it, and follows
 * that to its intents.  Once paths are gone nothing follows an intent to its path.
 */
void
dlock_space_purge(Oid database)
{
	uint32		count = 1U << bucket_bits;

	for (uint32 i = 0; i < 2 * count; i++)
	{
		uint32		bucket = i % count;
		int			removed = VISIT_LEASES;

		/* Most buckets of most servers are empty; a glance needs no lock. */
		if (*(volatile DLockMemoryRef *) &buckets[bucket] == NONE &&
			*(volatile DLockMemoryRef *) &dlock_holder_tokens[bucket] == NONE)
			continue;
		while (removed >= VISIT_LEASES)
		{
			dlock_partition_lock(hash_of_bucket(bucket), LW_EXCLUSIVE);
			removed = purge_some(database, bucket, i < count);
			dlock_partition_unlock(hash_of_bucket(bucket));
		}
	}
}
