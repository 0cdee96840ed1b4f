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
 *	  call that waits for it.  Why no place is missed, and what comes of several that
 *	  listen, is argued in src/README ("Places").
 *
 *	  Lock rules.  A bucket is protected by one of a set of LWLocks: its list of places,
 *	  and the processes that listen.  It is taken after partition locks or without any,
 *	  never before, and never together with an owner's lock.  All fields of a place but its
 *	  links in the bucket change under its partition lock.  A process that is looked up
 *	  among those that listen is set while the bucket is locked, too.  A place leaves its
 *	  bucket before its memory is given back, so a process that finds it there may read what
 *	  never changes as long as it holds the bucket's lock.  All else that it reads is a hint:
 *	  it locks the partition and reads again.
 *
 *	  A place that is asked for goes to the end of its bucket, so a process that asks for
 *	  one after the other finds the next one in front.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "base/compat.h"
#include "base/name.h"
#include "space/place.h"

#define PLACE_LOCKS		32
#define BUCKETS			16384
#define CLIENT_NODE		offsetof(DLockSpaceLease, u.client)

/* A process that listens, or does not. */
typedef struct DLockPlaceListener
{
	uint32		hash;			/* of the client; zero: it does not listen,
								 * and it alone changes the rest */
	int			next;			/* process that listens in the same bucket,
								 * and began earlier; or -1 */
	Oid			database;
	Oid			role;
	int			len;
	char		client[DLOCK_OWNER_MAX];
} DLockPlaceListener;

/* The clients whose hashes fall into one bucket; protected by lock_of(). */
typedef struct DLockPlaceBucket
{
	DLockMemoryRef places;
	int			newest;			/* process that listens; or -1 */
} DLockPlaceBucket;

typedef struct DLockPlaceShared
{
	pg_atomic_uint64 latest;	/* id of the newest place */
	pg_atomic_uint32 count;		/* of places */
	DLockPlaceBucket buckets[BUCKETS];
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
	pg_atomic_init_u32(&shared->count, 0);
	for (int i = 0; i < BUCKETS; i++)
		shared->buckets[i].newest = -1;
}

/* The hash by which a client, or the client of an owner, is found; never zero. */
uint32
dlock_place_client(Oid database, const DLockBytes *name)
{
	DLockBytes	client = dlock_name_client(name);

	return Max(1, dlock_name_hash(database, &client));
}

static uint32
hash_of(const DLockSpaceLease *place)
{
	char		buffer[DLOCK_OWNER_MAX];
	DLockOwner	owner = dlock_space_lease_owner(place, buffer);

	return dlock_place_client(dlock_space_entry_of(place)->database, &owner.name);
}

static inline DLockPlaceBucket *
bucket_of(uint32 hash)
{
	return &shared->buckets[hash % BUCKETS];
}

static inline LWLock *
lock_of(uint32 hash)
{
	return &locks[hash % BUCKETS % PLACE_LOCKS].lock;
}

/*
 * A request for a lease gets a process, another one, or none (-1).  The partition must be
 * locked exclusively.
 */
void
dlock_place_set_process(DLockSpaceLease *request, int process)
{
	DLockSpaceEntry *entry = dlock_space_entry_of(request);

	Assert(dlock_partition_is_mine(entry->hash));
	Assert(request->kind == DLOCK_SPACE_ASKED);
	entry->nattended += (process >= 0) - (request->process >= 0);
	request->process = process;
}

/* Is a place one of a client's? */
static bool
is_of(const DLockSpaceLease *place, Oid database, Oid role, const DLockBytes *client)
{
	return place->role == role && dlock_space_entry_of(place)->database == database &&
		dlock_space_is_of(place, client);
}

/*
 * The process that listens for a place, of several the one that began last; -1 if there is
 * none.  The bucket must be locked.
 */
static int
listener_of(const DLockSpaceLease *place, uint32 hash)
{
	int			process = bucket_of(hash)->newest;

	while (process >= 0)
	{
		const DLockPlaceListener *listener = &shared->listeners[process];
		DLockBytes	client = {listener->client, listener->len};

		if (is_of(place, listener->database, listener->role, &client))
			break;
		process = listener->next;
	}
	return process;
}

/*
 * A place gets the process that listens for it, or none.  Its partition must be locked
 * exclusively, and its bucket.
 */
static void
attend(DLockSpaceLease *place, uint32 hash)
{
	dlock_place_set_process(place, listener_of(place, hash));
	place->called = place->process >= 0;
	if (place->called)
		dlock_partition_wake(place->process);
}

/* Move a place to the front of its bucket, or to the end. */
static void
move(DLockMemoryRef *places, DLockSpaceLease *place, bool front)
{
	dlock_memory_list_delete(places, dlock_memory_ref(place), CLIENT_NODE);
	dlock_memory_list_insert(places, dlock_memory_ref(place), front ? *places : DLOCK_MEMORY_NONE, CLIENT_NODE);
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
	request->placed = request->kept = true;
	request->confirmed = until;
	request->deadline = DLOCK_TIME_FOREVER;
	entry->places = true;
	LWLockAcquire(lock_of(hash), LW_EXCLUSIVE);
	dlock_memory_list_insert(&bucket_of(hash)->places, dlock_memory_ref(request), DLOCK_MEMORY_NONE, CLIENT_NODE);
	attend(request, hash);
	LWLockRelease(lock_of(hash));
	(void) pg_atomic_fetch_add_u32(&shared->count, 1);
}

/* A request is a place no longer.  Likewise. */
void
dlock_place_remove(DLockSpaceLease *request)
{
	uint32		hash = hash_of(request);

	Assert(dlock_partition_is_mine(dlock_space_entry_of(request)->hash));
	Assert(request->placed);
	LWLockAcquire(lock_of(hash), LW_EXCLUSIVE);
	dlock_memory_list_delete(&bucket_of(hash)->places, dlock_memory_ref(request), CLIENT_NODE);
	LWLockRelease(lock_of(hash));
	(void) pg_atomic_fetch_sub_u32(&shared->count, 1);
	request->placed = false;
}

/*
 * The place of an owner, or else with an id, in the queue of a lock; it goes to the end of its
 * bucket.  Goes through the queue and the bucket side by side, so that the shorter one decides
 * how long it takes.
 */
static DLockSpaceLease *
find(DLockSpaceEntry *entry, uint32 client, const DLockOwner *owner, DLockToken id)
{
	DLockMemoryRef *places = &bucket_of(client)->places;
	DLockSpaceLease *found = NULL;
	DLockSpaceLease *queued = dlock_space_queue(entry);
	DLockSpaceLease *place;

	LWLockAcquire(lock_of(client), LW_EXCLUSIVE);
	place = dlock_space_lease_at(*places);
	while (queued != NULL && place != NULL && found == NULL)
	{
		if (place->entry == dlock_memory_ref(entry) &&
			(owner != NULL ? dlock_space_is_owned(place, owner) : place->token == id))
			found = place;
		else if (queued->placed && (owner != NULL ? dlock_space_is_owned(queued, owner) : queued->token == id))
			found = queued;
		queued = dlock_space_next(queued);
		place = dlock_space_lease_at(place->u.client.next);
	}
	if (found != NULL)
		move(places, found, false);
	LWLockRelease(lock_of(client));
	return found;
}

/*
 * The place of an owner in the queue of a lock, over or not; NULL if there is none.  The
 * partition must be locked exclusively.
 */
DLockSpaceLease *
dlock_place_find(DLockSpaceEntry *entry, const DLockOwner *owner)
{
	Assert(dlock_partition_is_mine(entry->hash));
	if (!entry->places)
		return NULL;
	return find(entry, dlock_place_client(entry->database, &owner->name), owner, DLOCK_TOKEN_NONE);
}

/* The place with an id, by the hash of its client.  Likewise. */
DLockSpaceLease *
dlock_place_find_id(DLockSpaceEntry *entry, uint32 client, DLockToken id)
{
	Assert(dlock_partition_is_mine(entry->hash));
	return entry->places ? find(entry, client, NULL, id) : NULL;
}

/*
 * The lock of each place in a database, some more than once; palloc'd, with their number in
 * "count".  All partitions must be locked, so no place comes or goes.
 */
DLockSpaceEntry **
dlock_place_locks(Oid database, int *count)
{
	int			room = (int) pg_atomic_read_u32(&shared->count);
	DLockSpaceEntry **entries = palloc((room + 1) * sizeof(DLockSpaceEntry *));

	*count = 0;
	for (int bucket = 0; bucket < BUCKETS && room > 0; bucket++)
	{
		if (*(volatile DLockMemoryRef *) &shared->buckets[bucket].places == DLOCK_MEMORY_NONE)
			continue;
		LWLockAcquire(lock_of(bucket), LW_SHARED);
		for (DLockSpaceLease *place = dlock_space_lease_at(shared->buckets[bucket].places); place != NULL;
			 place = dlock_space_lease_at(place->u.client.next))
		{
			DLockSpaceEntry *entry = dlock_space_entry_of(place);

			Assert(dlock_partition_is_held(entry->hash) && *count < room);
			if (entry->database == database)
				entries[(*count)++] = entry;
		}
		LWLockRelease(lock_of(bucket));
	}
	return entries;
}

/* ---- all places of a client, or of a role ---- */

/* Is a place in a set?  Without its partition locked this is a hint. */
static bool
is_in(const DLockSpaceLease *place, const DLockPlaceSet *set)
{
	int			process = *(volatile int *) &place->process;
	DLockTime	until = *(volatile DLockTime *) &place->confirmed;

	if (set->process >= 0 && process != set->process &&
		(process >= 0 || until <= set->now || until >= set->until))
		return false;
	return place->role == set->role && (set->client == NULL || is_of(place, set->database, set->role, set->client));
}

/* The last place of a bucket; NULL if there is none. */
static DLockSpaceLease *
last_of(DLockMemoryRef places)
{
	return (places == DLOCK_MEMORY_NONE) ? NULL :
		dlock_space_lease_at(dlock_memory_list_node(places, CLIENT_NODE)->prev);
}

/*
 * Turn a bucket until its last place is in a set, and on a lock with this hash unless NULL.
 * False if none is.  The bucket must be locked exclusively.
 */
static bool
rotate(DLockMemoryRef *places, const DLockPlaceSet *set, const uint32 *hash)
{
	DLockSpaceLease *begin = NULL;
	DLockSpaceLease *place;

	while ((place = last_of(*places)) != NULL && place != begin)
	{
		if (is_in(place, set) && (hash == NULL || dlock_space_entry_of(place)->hash == *hash))
			return true;
		move(places, place, true);
		begin = (begin == NULL) ? place : begin;
	}
	return false;
}

/*
 * Find a place of a set, from the end of the bucket: "hash" is that of its lock.  False
 * if there is none.  No partition lock may be held.
 */
bool
dlock_place_seek(DLockPlaceSet *set, uint32 *hash)
{
	int			last = BUCKETS - 1;
	bool		found = false;

	Assert(!dlock_partition_is_any_held());
	if (set->client != NULL)
		set->bucket = last = dlock_place_client(set->database, set->client) % BUCKETS;
	for (; set->bucket <= last; set->bucket++)
	{
		DLockMemoryRef *places = &shared->buckets[set->bucket].places;

		if (*(volatile DLockMemoryRef *) places == DLOCK_MEMORY_NONE)
			continue;
		LWLockAcquire(lock_of(set->bucket), LW_EXCLUSIVE);
		found = rotate(places, set, NULL);
		if (found)
			*hash = dlock_space_entry_of(last_of(*places))->hash;
		LWLockRelease(lock_of(set->bucket));
		if (found)
			break;
	}
	return found;
}

/*
 * Gather places of a set that are on one lock with this hash and follow each other from the
 * end of the bucket, "room" at most; returns how many.  First the bucket is turned until such
 * a place is last, as others may have turned it; what is gathered goes to the front.  The
 * partition must be locked exclusively; the places stay what they are until it is unlocked.
 */
int
dlock_place_gather(const DLockPlaceSet *set, uint32 hash, DLockSpaceLease **found, int room)
{
	DLockMemoryRef *places = &shared->buckets[set->bucket].places;
	DLockSpaceLease *place;
	int			count = 0;

	Assert(dlock_partition_is_mine(hash));
	LWLockAcquire(lock_of(set->bucket), LW_EXCLUSIVE);
	(void) rotate(places, set, &hash);
	while (count < room && (place = last_of(*places)) != NULL &&
		   dlock_space_entry_of(place)->hash == hash && is_in(place, set) &&
		   (count == 0 || (place != found[0] && place->entry == found[0]->entry)))
	{
		move(places, place, true);
		found[count++] = place;
	}
	LWLockRelease(lock_of(set->bucket));
	return count;
}

/* ---- listening ---- */

/*
 * This process listens for the places of a client from now on, which it has to scan
 * next, with dlock_place_due().  No partition lock may be held.
 */
void
dlock_place_listen(Oid database, Oid role, const DLockBytes *client)
{
	DLockPlaceListener *mine = &shared->listeners[MyProcNumber];
	uint32		hash = dlock_place_client(database, client);

	Assert(mine->hash == 0);
	mine->database = database;
	mine->role = role;
	mine->len = client->len;
	memcpy(mine->client, client->data, client->len);
	LWLockAcquire(lock_of(hash), LW_EXCLUSIVE);
	mine->hash = hash;
	mine->next = bucket_of(hash)->newest;
	bucket_of(hash)->newest = MyProcNumber;
	LWLockRelease(lock_of(hash));
}

/* Does a process listen for all that another one listens for? */
static bool
covers(const DLockPlaceListener *listener, const DLockPlaceListener *other)
{
	DLockBytes	name = {listener->client, listener->len};
	DLockBytes	covered = {other->client, other->len};
	DLockBytes	client = dlock_name_client(&covered);

	return listener->role == other->role && listener->database == other->database &&
		(dlock_name_equal(&name, &covered) || dlock_name_equal(&name, &client));
}

/*
 * This process listens no longer; places may have its number still.  Unless one that began
 * later listens for all that it did, wake the last one before it that does, and those in
 * between that listen for a part of that, to look for what it has not come to.  Cannot fail.
 */
void
dlock_place_end_listening(void)
{
	DLockPlaceListener *mine = &shared->listeners[MyProcNumber];
	uint32		hash = mine->hash;
	int		   *link;
	bool		covered = false;

	if (hash == 0)
		return;
	link = &bucket_of(hash)->newest;
	LWLockAcquire(lock_of(hash), LW_EXCLUSIVE);
	for (; *link != MyProcNumber; link = &shared->listeners[*link].next)
		covered |= covers(&shared->listeners[*link], mine);
	*link = mine->next;
	mine->hash = 0;
	for (int process = *link; process >= 0 && !covered; process = shared->listeners[process].next)
	{
		covered = covers(&shared->listeners[process], mine);
		if (covered || covers(mine, &shared->listeners[process]))
			SetLatch(&GetPGProcByNumber(process)->procLatch);
	}
	LWLockRelease(lock_of(hash));
}

/* The process that listens for a place; -1 if there is none.  The partition must be locked. */
int
dlock_place_listener(const DLockSpaceLease *place)
{
	uint32		hash = hash_of(place);
	int			process;

	LWLockAcquire(lock_of(hash), LW_SHARED);
	process = listener_of(place, hash);
	LWLockRelease(lock_of(hash));
	return process;
}

/*
 * The process of a place leaves it: the place gets another one that listens for it, or
 * none.  The partition must be locked exclusively.
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
	dlock_space_copy_texts(place, copy->owner, copy->payload);
}

/*
 * The places that this process, which listens, has to ask for: copies, no more than there
 * is room for; returns how many.  "until" is when it has to do so for one of the others.
 * No partition lock may be held.
 */
int
dlock_place_due(DLockTime now, DLockPlaceCopy *copies, int room, DLockTime *until)
{
	uint32		hash = shared->listeners[MyProcNumber].hash;
	int			count = 0;

	Assert(hash != 0);
	Assert(!dlock_partition_is_any_held());
	*until = DLOCK_TIME_FOREVER;
	LWLockAcquire(lock_of(hash), LW_SHARED);
	for (volatile DLockSpaceLease *at = dlock_space_lease_at(bucket_of(hash)->places); at != NULL && count < room;
		 at = dlock_space_lease_at(at->u.client.next))
	{
		DLockSpaceLease *place = (DLockSpaceLease *) at;
		bool		mute = at->process != MyProcNumber;

		if (listener_of(place, hash) != MyProcNumber || (at->process < 0 && at->confirmed <= now))
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
	for (int process = 0; process < MaxBackends; process++)
	{
		volatile DLockPlaceListener *listener = &shared->listeners[process];

		if (listener->hash != 0 && listener->database == database)
			SetLatch(&GetPGProcByNumber(process)->procLatch);
	}
}
