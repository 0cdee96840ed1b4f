/*-------------------------------------------------------------------------
 *
 * place.c
 *	  Places in queues that are kept between calls, by client, and the processes
 *	  that listen for them.
 *
 * NOTES
 *	  A place is a request for one lock that no call waits for.  It stands in the queue
 *	  of its lock as any request (lock/queue.c), and in a bucket of its client, where
 *	  a process finds all places of a client.
 *
 *	  A process listens for a client while dlock_take() waits.  It says so in an entry of
 *	  its own, and each place of the client has its number, as a request has that of the
 *	  call that waits for it.  Without a process nobody is woken for a place.
 *
 *	  Lock rules.  A bucket is protected by one of a set of LWLocks, and so are the
 *	  entries of the processes that listen for a client in that bucket.  One of these
 *	  is taken after partition locks or without any, never before, and never together
 *	  with an owner's lock.  A place leaves its bucket before its memory is given back,
 *	  so a process that finds a place there may read what never changes as long as it
 *	  holds the lock; whether the place is to be looked at is a hint then, that the
 *	  latch of the process makes good.  The process of a place changes only under its
 *	  partition lock.
 *
 *	  So no place is missed.  It enters the bucket, and gets the process that listens,
 *	  under one lock.  A process that begins to listen takes this lock first, and goes
 *	  through the bucket later; one that ends does likewise (lock/queue.c).
 *
 * IDENTIFICATION
 *	  src/space/place.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/name.h"
#include "space/place.h"

#define PLACE_LOCKS		32
#define BUCKETS			16384
#define CLIENT_NODE		offsetof(DLockSpaceLease, u.client)

/* A process that listens, or does not. */
typedef struct DLockPlaceListener
{
	pg_atomic_uint32 hash;		/* of the client, zero if it does not; if not,
								 * only the process itself changes the rest */
	Oid			database;
	Oid			role;
	int			len;
	char		client[DLOCK_OWNER_MAX];
} DLockPlaceListener;

typedef struct DLockPlaceShared
{
	pg_atomic_uint64 latest;	/* time of the last place that was asked for */
	pg_atomic_uint32 listening; /* processes */
	pg_atomic_uint32 count;		/* of places */
	DLockMemoryRef buckets[BUCKETS];
	DLockPlaceListener listeners[FLEXIBLE_ARRAY_MEMBER];
} DLockPlaceShared;

static DLockPlaceShared *shared = NULL;
static LWLockPadded *locks = NULL;

static Size
shared_size(void)
{
	return add_size(offsetof(DLockPlaceShared, listeners),
					mul_size(sizeof(DLockPlaceListener), MaxBackends));
}

void
dlock_place_request(void)
{
	RequestAddinShmemSpace(shared_size());
	RequestNamedLWLockTranche("dlock_place", PLACE_LOCKS);
}

/* Create what there is, or find it; with AddinShmemInitLock held. */
void
dlock_place_startup(void)
{
	bool		found;

	shared = ShmemInitStruct("dlock places", shared_size(), &found);
	locks = GetNamedLWLockTranche("dlock_place");
	if (found)
		return;
	memset(shared, 0, shared_size());
	pg_atomic_init_u64(&shared->latest, 0);
	pg_atomic_init_u32(&shared->listening, 0);
	pg_atomic_init_u32(&shared->count, 0);
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u32(&shared->listeners[i].hash, 0);
}

/* The hash by which a client, or the client of an owner, is found; never zero. */
static uint32
client_hash(Oid database, const DLockBytes *name)
{
	DLockBytes	client = dlock_name_client(name);

	return Max(1, dlock_name_hash(database, &client));
}

static uint32
hash_of(const DLockSpaceLease *place)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(place, buffer);

	return client_hash(dlock_space_entry_of(place)->database, &owner.name);
}

static inline DLockMemoryRef *
bucket_of(uint32 hash)
{
	return &shared->buckets[hash % BUCKETS];
}

static inline LWLock *
lock_of(uint32 hash)
{
	return &locks[hash % BUCKETS % PLACE_LOCKS].lock;
}

/* Is a place one of a client's? */
static bool
is_of(const DLockSpaceLease *place, Oid database, Oid role, const DLockBytes *client)
{
	return place->role == role && dlock_space_entry_of(place)->database == database &&
		dlock_space_is_of(place, client);
}

/*
 * Does a process listen for a place?  One with the same hash can neither begin nor end
 * to: its lock is held.
 */
static bool
hears(int process, const DLockSpaceLease *place, uint32 hash)
{
	const DLockPlaceListener *listener = &shared->listeners[process];
	DLockBytes	client = {listener->client, listener->len};

	return pg_atomic_read_u32(&shared->listeners[process].hash) == hash &&
		is_of(place, listener->database, listener->role, &client);
}

/* Have a process that listens attend to a place, if there is one, and look at it. */
static void
attend(DLockSpaceLease *place, uint32 hash)
{
	place->process = -1;
	place->called = false;
	if (pg_atomic_read_u32(&shared->listening) == 0)
		return;
	for (int process = 0; process < MaxBackends && place->process < 0; process++)
	{
		if (hears(process, place, hash))
			place->process = process;
	}
	if (place->process < 0)
		return;
	dlock_space_entry_of(place)->attended = true;
	place->called = true;
	dlock_space_wake(place->process);
}

/*
 * A request for a lease that stands in its queue becomes a place that is kept until some
 * time; "since" is when it was asked for.  Its partition must be locked exclusively.
 * Cannot fail.
 */
void
dlock_place_add(DLockSpaceLease *request, DLockTime since, DLockTime until)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(request);
	uint32		hash = hash_of(request);
	uint64		latest = pg_atomic_read_u64(&shared->latest);

	Assert(dlock_partition_is_mine(entry->hash));
	Assert(request->kind == DLOCK_SPACE_ASKED && !request->placed);
	while (request->token == DLOCK_TOKEN_NONE)
	{
		uint64		own = Max(latest + 1, (uint64) since);

		if (pg_atomic_compare_exchange_u64(&shared->latest, &latest, own))
			request->token = (DLockToken) own;
	}
	request->placed = true;
	request->confirmed = until;
	request->deadline = DLOCK_TIME_FOREVER;
	entry->places = true;
	LWLockAcquire(lock_of(hash), LW_EXCLUSIVE);
	dlock_memory_list_insert(bucket_of(hash), dlock_memory_ref(request), DLOCK_MEMORY_NONE, CLIENT_NODE);
	attend(request, hash);
	LWLockRelease(lock_of(hash));
	(void) pg_atomic_fetch_add_u32(&shared->count, 1);
}

/* A place is none any more.  Likewise. */
void
dlock_place_remove(DLockSpaceLease *request)
{
	uint32		hash = hash_of(request);

	Assert(dlock_partition_is_mine(dlock_space_entry_of(request)->hash));
	Assert(request->placed);
	LWLockAcquire(lock_of(hash), LW_EXCLUSIVE);
	dlock_memory_list_delete(bucket_of(hash), dlock_memory_ref(request), CLIENT_NODE);
	LWLockRelease(lock_of(hash));
	(void) pg_atomic_fetch_sub_u32(&shared->count, 1);
	request->placed = false;
}

/*
 * The place of an owner in the queue of a lock, be it over; NULL if there is none.  Goes
 * through the queue and through the bucket of the client beside it, so that the shorter
 * one decides how long it takes.  The partition must be locked.
 */
DLockSpaceLease *
dlock_place_find(DLockSpaceEntry *entry, const DLockOwner *owner)
{
	uint32		hash = client_hash(entry->database, &owner->name);
	DLockSpaceLease *found = NULL;
	DLockSpaceLease *queued = dlock_space_queue(entry);
	DLockSpaceLease *place;

	LWLockAcquire(lock_of(hash), LW_SHARED);
	place = dlock_space_lease_at(*bucket_of(hash));
	while (queued != NULL && place != NULL && found == NULL)
	{
		if (place->entry == dlock_memory_ref(entry) && dlock_space_is_owned(place, owner))
			found = place;
		else if (queued->placed && dlock_space_is_owned(queued, owner))
			found = queued;
		queued = dlock_space_next(queued);
		place = dlock_space_next_place(place);
	}
	LWLockRelease(lock_of(hash));
	return found;
}

/*
 * All places in a database; palloc'd, with their number in "count".  Nothing is allocated
 * under a lock: a place that is made meanwhile may be missing.
 */
DLockPlaceRef *
dlock_place_list(Oid database, int *count)
{
	int			room = (int) pg_atomic_read_u32(&shared->count);
	DLockPlaceRef *refs = palloc((room + 1) * sizeof(DLockPlaceRef));

	*count = 0;
	for (int bucket = 0; bucket < BUCKETS && *count < room; bucket++)
	{
		if (*(volatile DLockMemoryRef *) &shared->buckets[bucket] == DLOCK_MEMORY_NONE)
			continue;
		LWLockAcquire(lock_of(bucket), LW_SHARED);
		for (DLockSpaceLease *place = dlock_space_lease_at(shared->buckets[bucket]); place != NULL && *count < room;
			 place = dlock_space_next_place(place))
		{
			DLockSpaceEntry *entry = dlock_space_entry_of(place);
			char		buffer[DLOCK_OWNER_MAX];
			DLockOwner	owner = dlock_space_lease_owner(place, buffer);

			if (entry->database == database)
				refs[(*count)++] = (DLockPlaceRef)
			{
				dlock_name_hash(owner.role, &owner.name), entry->hash
			};
		}
		LWLockRelease(lock_of(bucket));
	}
	return refs;
}

/*
 * The hashes of the locks for which a client has places with this process, or with any
 * (-1), no more than there is room for; returns how many.  Cannot fail.
 */
int
dlock_place_hashes(Oid database, Oid role, const DLockBytes *client, int process,
				   uint32 *hashes, int room)
{
	uint32		hash = client_hash(database, client);
	int			count = 0;

	LWLockAcquire(lock_of(hash), LW_SHARED);
	for (DLockSpaceLease *place = dlock_space_lease_at(*bucket_of(hash)); place != NULL && count < room;
		 place = dlock_space_next_place(place))
	{
		if ((process < 0 || place->process == process) && is_of(place, database, role, client))
			hashes[count++] = dlock_space_entry_of(place)->hash;
	}
	LWLockRelease(lock_of(hash));
	return count;
}

/* ---- listening ---- */

/*
 * This process listens for the places of a client from now on, which it has to look at
 * next, with dlock_place_due().  No partition lock may be held.
 */
void
dlock_place_listen(Oid database, Oid role, const DLockBytes *client)
{
	DLockPlaceListener *mine = &shared->listeners[MyProcNumber];
	uint32		hash = client_hash(database, client);

	Assert(pg_atomic_read_u32(&mine->hash) == 0);
	mine->database = database;
	mine->role = role;
	mine->len = client->len;
	memcpy(mine->client, client->data, client->len);
	LWLockAcquire(lock_of(hash), LW_EXCLUSIVE);
	(void) pg_atomic_fetch_add_u32(&shared->listening, 1);
	pg_atomic_write_u32(&mine->hash, hash);
	LWLockRelease(lock_of(hash));
}

/* It does so no longer; places may have its number still.  Cannot fail. */
void
dlock_place_end_listening(void)
{
	DLockPlaceListener *mine = &shared->listeners[MyProcNumber];
	uint32		hash = pg_atomic_read_u32(&mine->hash);

	if (hash == 0)
		return;
	LWLockAcquire(lock_of(hash), LW_EXCLUSIVE);
	pg_atomic_write_u32(&mine->hash, 0);
	(void) pg_atomic_fetch_sub_u32(&shared->listening, 1);
	LWLockRelease(lock_of(hash));
}

/* Does the process of a place listen for it?  For tests; the partition must be locked. */
bool
dlock_place_is_heard(const DLockSpaceLease *place)
{
	uint32		hash = hash_of(place);
	bool		heard;

	LWLockAcquire(lock_of(hash), LW_SHARED);
	heard = place->process >= 0 && hears(place->process, place, hash);
	LWLockRelease(lock_of(hash));
	return heard;
}

/*
 * A place is left by the process that attended to it: have another one do so that
 * listens for it, if there is one.  The partition must be locked exclusively.
 */
void
dlock_place_attend(DLockSpaceLease *place)
{
	uint32		hash = hash_of(place);

	Assert(dlock_partition_is_mine(dlock_space_entry_of(place)->hash));
	LWLockAcquire(lock_of(hash), LW_SHARED);
	attend(place, hash);
	LWLockRelease(lock_of(hash));
}

static void
copy_place(const DLockSpaceLease *place, DLockPlaceCopy *copy)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(place);
	char		buffer[DLOCK_NAME_MAX];
	DLockBytes	name = dlock_space_entry_name(entry, buffer);

	copy->mode = (DLockMode) place->mode;
	copy->permits = (copy->mode == DLOCK_MODE_PERMIT) ? entry->permits : 0;
	copy->reentry = (DLockReentry) place->reentry;
	copy->ttl = place->ttl;
	copy->delay = place->delay;
	copy->min_hold = place->min_until;
	copy->name_len = name.len;
	copy->owner_len = place->owner_len;
	copy->payload_len = place->payload_len;
	memcpy(copy->name, name.data, name.len);
	dlock_space_copy_text(place, 0, place->owner_len, copy->owner);
	dlock_space_copy_text(place, place->owner_len, place->payload_len, copy->payload);
}

/*
 * The places that this process, which listens, has to ask for: copies, no more than there
 * is room for; returns how many.  "until" is when it has to do so for one of the others.
 * No partition lock may be held.
 */
int
dlock_place_due(DLockTime now, DLockPlaceCopy *copies, int room, DLockTime *until)
{
	DLockPlaceListener *mine = &shared->listeners[MyProcNumber];
	uint32		hash = pg_atomic_read_u32(&mine->hash);
	DLockBytes	client = {mine->client, mine->len};
	int			count = 0;

	Assert(hash != 0);
	Assert(!dlock_partition_is_any_held());
	*until = DLOCK_TIME_FOREVER;
	LWLockAcquire(lock_of(hash), LW_SHARED);
	for (volatile DLockSpaceLease *at = dlock_space_lease_at(*bucket_of(hash)); at != NULL && count < room;
		 at = dlock_space_next_place((DLockSpaceLease *) at))
	{
		DLockSpaceLease *place = (DLockSpaceLease *) at;
		bool		mute = at->process != MyProcNumber;

		if (!is_of(place, mine->database, mine->role, &client) ||
			(at->process < 0 && at->confirmed <= now))
			continue;
		if (mute || at->called || at->deadline <= now)
			copy_place(place, &copies[count++]);
		else
			*until = Min(*until, at->deadline);
	}
	LWLockRelease(lock_of(hash));
	return count;
}

/* Have the processes that listen in a database find out that the extension is gone. */
void
dlock_place_wake_listeners(Oid database)
{
	if (pg_atomic_read_u32(&shared->listening) == 0)
		return;
	for (int process = 0; process < MaxBackends; process++)
	{
		if (pg_atomic_read_u32(&shared->listeners[process].hash) != 0 &&
			shared->listeners[process].database == database)
			SetLatch(&GetPGProcByNumber(process)->procLatch);
	}
}
