/*-------------------------------------------------------------------------
 *
 * dlock_memory.c
 *	  The shared memory that locks and leases are made of.
 *
 * NOTES
 *	  It is a DSA dlock_memory_mapped, created in place in the server's main shared memory
 *	  segment, that never grows.  So memory is bounded by dlock.max_memory to
 *	  the byte, running out of it is an answer and not an exception, and
 *	  nothing depends on the size of /dev/shm.
 *
 *	  A chunk is allocated before the partition lock of its lock is taken
 *	  (dlock_memory_prepare), and is this backend's until it takes it
 *	  (dlock_memory_take), so that a change under the lock cannot fail.  What is
 *	  given back becomes the next change's chunk, if none is kept: a backend
 *	  that acquires and releases in turn does not visit the allocator at all.
 *
 *	  Lock rules.  dsa.c has locks of its own inside; otherwise all state here
 *	  is this backend's.
 *
 * IDENTIFICATION
 *	  src/dlock_memory.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

#include "dlock_exit.h"
#include "dlock_guc.h"
#include "dlock_memory.h"

/* Where the area lies in shared memory; set once, in the postmaster. */
static void *area_place = NULL;

dsa_area   *dlock_memory_mapped = NULL;

/*
 * Sizes of chunks, smallest first, up to zero.  They are few, since the area
 * takes 64 kB at a time for each of its size classes and returns them late;
 * and they are classes of dsa.c, so as to waste nothing.
 */
static const int entry_sizes[] = {64, 96, DLOCK_MEMORY_MAX_ENTRY, 0};
static const int lease_sizes[] = {160, 384, 768, DLOCK_MEMORY_MAX_LEASE, 0};
static const int *const sizes_of[DLOCK_MEMORY_KINDS] = {entry_sizes, lease_sizes};

/* Chunks that this backend has for itself, all of a kind of the same size. */
typedef struct DLockMemoryKept
{
	int			count;
	int			room;
	int			size;
	dsa_pointer *chunks;		/* in TopMemoryContext */
} DLockMemoryKept;

static DLockMemoryKept kept[DLOCK_MEMORY_KINDS];

/* The area is asked for, and left, as a whole. */
static Size
area_size(void)
{
	return (Size) dlock_guc_max_memory_kb * 1024;
}

/* Ask for the shared memory. */
void
dlock_memory_request(void)
{
	RequestAddinShmemSpace(area_size());
	RequestNamedLWLockTranche("dlock_memory", 1);
}

/*
 * Create the area in shared memory, or find it there; with AddinShmemInitLock
 * held.
 */
void
dlock_memory_startup(void)
{
	bool		found;

	area_place = ShmemInitStruct("dlock memory", area_size(), &found);
	if (!found)
	{
		int			tranche = GetNamedLWLockTranche("dlock_memory")->lock.tranche;
		dsa_area   *created;

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

/* Was the memory laid out when the server started? */
bool
dlock_memory_is_ready(void)
{
	return area_place != NULL;
}

/* Free all but "left" of the chunks of a kind that this backend keeps. */
static void
trim_kept(DLockMemoryKept *chunks, int left)
{
	while (chunks->count > left)
		dsa_free(dlock_memory_mapped, chunks->chunks[--chunks->count]);
}

/* Give back at exit what this backend kept, and its mapping. */
static void
detach_area(int code, Datum arg)
{
	for (int kind = 0; kind < DLOCK_MEMORY_KINDS; kind++)
		trim_kept(&kept[kind], 0);
	dsa_detach(dlock_memory_mapped);
	dsa_release_in_place(area_place);
	dlock_memory_mapped = NULL;
}

/*
 * The area that the leases of all databases lie in.  Maps it into this backend
 * at the first call, which may throw; what works with chunks relies on that
 * having been done.
 */
dsa_area *
dlock_memory_area(void)
{
	if (dlock_memory_mapped == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		for (int kind = 0; kind < DLOCK_MEMORY_KINDS; kind++)
		{
			if (kept[kind].chunks == NULL)
				kept[kind].chunks = palloc(sizeof(dsa_pointer));
			kept[kind].room = Max(1, kept[kind].room);
			kept[kind].size = sizes_of[kind][0];
		}
		dlock_memory_mapped = dsa_attach_in_place(area_place, NULL);
		dsa_pin_mapping(dlock_memory_mapped);
		MemoryContextSwitchTo(old);
		dlock_exit_on_shmem(detach_area, (Datum) 0);
	}
	return dlock_memory_mapped;
}

/* Does this backend have "count" chunks of at least "size" bytes? */
bool
dlock_memory_is_prepared(DLockMemoryKind kind, int size, int count)
{
	return kept[kind].count >= count && kept[kind].size >= size;
}

/*
 * See to it that this backend has "count" chunks of at least "size" bytes.
 *
 * False if memory is full.  No partition lock may be held.
 */
bool
dlock_memory_prepare(DLockMemoryKind kind, int size, int count)
{
	DLockMemoryKept *chunks = &kept[kind];

	if (chunks->room < count)
	{
		chunks->chunks = repalloc(chunks->chunks, count * sizeof(dsa_pointer));
		chunks->room = count;
	}
	if (chunks->size < size || chunks->count == 0)
	{
		const int  *fitting = sizes_of[kind];

		while (*fitting < size)
			fitting++;
		trim_kept(chunks, 0);
		chunks->size = *fitting;
	}
	while (chunks->count < count)
	{
		dsa_pointer dp = dsa_allocate_extended(dlock_memory_mapped, chunks->size, DSA_ALLOC_NO_OOM);

		if (!DsaPointerIsValid(dp))
		{
			trim_kept(chunks, 0);
			return false;
		}
		chunks->chunks[chunks->count++] = dp;
	}
	return true;
}

/*
 * Take a chunk that was prepared; its size in "size".  Cannot fail.
 */
dsa_pointer
dlock_memory_take(DLockMemoryKind kind, int *size)
{
	DLockMemoryKept *chunks = &kept[kind];

	Assert(chunks->count > 0);
	*size = chunks->size;
	return chunks->chunks[--chunks->count];
}

/*
 * Free a chunk of the size that it was taken with, or keep it for the next
 * change.  Cannot fail.
 */
void
dlock_memory_give_back(DLockMemoryKind kind, dsa_pointer dp, int size)
{
	DLockMemoryKept *chunks = &kept[kind];

	/* The smallest size fits most. */
	if (chunks->count == 0 && size == sizes_of[kind][0])
	{
		chunks->size = size;
		chunks->chunks[chunks->count++] = dp;
	}
	else
		dsa_free(dlock_memory_mapped, dp);
}

/* Free what was prepared beyond what is worth keeping. */
void
dlock_memory_trim(void)
{
	for (int kind = 0; kind < DLOCK_MEMORY_KINDS; kind++)
		trim_kept(&kept[kind], 1);
}
