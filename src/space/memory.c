/*-------------------------------------------------------------------------
 *
 * memory.c
 *	  The shared memory that locks and leases are made of.
 *
 * NOTES
 *	  It is an array of dlock.max_memory bytes in the server's main shared
 *	  memory segment, cut into cells of one size (src/README, "Shared memory", says
 *	  why).  A cell is a lock with its first lease, a further lease, a piece of a
 *	  text that was too long for either, or a part of a stack of free slots.
 *
 *	  Free cells hang in lists, one for each stripe of backends.  A backend
 *	  takes cells from its own stripe, then cells that were never used, then
 *	  those of the other stripes, and gives them back to its own.
 *
 *	  A cell is allocated before the partition lock of its lock is taken
 *	  (dlock_memory_prepare), and is this backend's until it takes it
 *	  (dlock_memory_take), so that a change under the lock cannot fail.  What is
 *	  given back becomes the next change's cell, if few are kept: a backend that
 *	  acquires and releases in turn does not visit the lists at all.
 *
 *	  A text stands in a place of its owner's.  If it is longer than that, the
 *	  last four bytes of the place are the number of the cell with the next
 *	  piece, which has the number of the cell after it.
 *
 *	  Lock rules.  A stripe's list is protected by the stripe's mutex, and
 *	  nothing else is locked while it is held.  A text is protected as what it
 *	  belongs to.  All other state is this backend's, or atomic.
 *
 * IDENTIFICATION
 *	  src/space/memory.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/guc.h"

#include "base/fault.h"
#include "base/settings.h"
#include "space/memory.h"
#include "space/partition.h"

StaticAssertDecl(DLOCK_MEMORY_CELL % DLOCK_MEMORY_UNIT == 0,
				 "a cell is no multiple of the unit of references");

/* Backends spread over so many lists of free cells. */
#define STRIPES			16

/* A backend keeps up to so many cells for its next leases. */
#define KEPT_CELLS		1

/* Cells that change places while a mutex is held, or at one go. */
#define BATCH			8

/* At these percentages the operator is warned, ... */
#define WARN_FIRST		80
#define WARN_SECOND		95

/* ... and again only once use has been so many below them. */
#define WARN_DISTANCE	5

/* Free cells of one stripe. */
typedef struct DLockMemoryStripe
{
	slock_t		mutex;
	uint32		head;			/* first free cell; protected by mutex */
	uint32		count;			/* of them; likewise, and read without it */
	char		pad[PG_CACHE_LINE_SIZE - sizeof(slock_t) - 2 * sizeof(uint32) - 3];
} DLockMemoryStripe;

typedef struct DLockMemoryShared
{
	pg_atomic_uint32 fresh;		/* first cell that was never used */
	pg_atomic_uint32 warned;	/* percentage of the last warning; or zero */
	uint32		limit;			/* cells there are, plus one; constant */
	char		pad[PG_CACHE_LINE_SIZE - 3 * sizeof(uint32)];
	DLockMemoryStripe stripes[STRIPES];
} DLockMemoryShared;

/* A free cell, or one with a piece of a text. */
typedef struct DLockMemoryPiece
{
	uint32		next;			/* number of the next one, or zero */
	char		data[DLOCK_MEMORY_CELL - sizeof(uint32)];
} DLockMemoryPiece;

/* Set once, in the postmaster. */
static DLockMemoryShared *memory = NULL;
char	   *dlock_memory_cells = NULL;

/* Cells that this backend has for itself, a list like those of the stripes. */
static struct
{
	uint32		head;
	int			count;
	int			most;			/* kept unasked; 0 before first use, and at
								 * exit */
}			kept;

/* Cells taken from the lists since use was last looked at. */
static int	unwatched = 0;

/* How many cells go by before it is looked at again. */
#define WATCH_DISTANCE	16

StaticAssertDecl(DLOCK_MEMORY_CELL % MAXIMUM_ALIGNOF == 0, "cells are aligned");

static uint32
cell_count(void)
{
	return (Size) dlock_settings_max_memory_kb * 1024 / DLOCK_MEMORY_CELL;
}

/* There is no cell zero, but a place for it. */
static Size
cells_size(void)
{
	return ((Size) cell_count() + 1) * DLOCK_MEMORY_CELL;
}

static inline DLockMemoryPiece *
piece_at(uint32 cell)
{
	return (DLockMemoryPiece *) (dlock_memory_cells + (Size) cell * DLOCK_MEMORY_CELL);
}

/* Ask for the shared memory. */
void
dlock_memory_request(void)
{
	RequestAddinShmemSpace(add_size(sizeof(DLockMemoryShared), cells_size()));
}

/*
 * Create the lists and the cells in shared memory, or find them there; with
 * AddinShmemInitLock held.
 */
void
dlock_memory_startup(void)
{
	bool		found;

	dlock_memory_cells = ShmemInitStruct("dlock memory", cells_size(), &found);
	memory = ShmemInitStruct("dlock memory lists", sizeof(DLockMemoryShared), &found);
	if (!found)
	{
		pg_atomic_init_u32(&memory->fresh, 1);
		pg_atomic_init_u32(&memory->warned, 0);
		memory->limit = cell_count() + 1;
		for (int i = 0; i < STRIPES; i++)
		{
			SpinLockInit(&memory->stripes[i].mutex);
			memory->stripes[i].head = memory->stripes[i].count = 0;
		}
	}
}

/* Was the memory laid out when the server started? */
bool
dlock_memory_is_ready(void)
{
	return memory != NULL;
}

/* The bytes that there are. */
uint64
dlock_memory_limit(void)
{
	return (uint64) (memory->limit - 1) * DLOCK_MEMORY_CELL;
}

/* The bytes in use, as of one moment or another. */
uint64
dlock_memory_used(void)
{
	int64		cells = (int64) pg_atomic_read_u32(&memory->fresh) - 1;

	for (int i = 0; i < STRIPES; i++)
		cells -= *(volatile uint32 *) &memory->stripes[i].count;
	return (uint64) Max(cells, 0) * DLOCK_MEMORY_CELL;
}

/* ---- free cells ---- */

static inline int
own_stripe(void)
{
	return MyProcPid % STRIPES;
}

/* Move the first cell of a list to the head of another. */
static inline void
move_cell(uint32 *from, uint32 *to)
{
	uint32		cell = *from;
	DLockMemoryPiece *piece = piece_at(cell);

	*from = piece->next;
	piece->next = *to;
	*to = cell;
}

/* Free all but "left" of the cells that this backend keeps. */
static void
trim_kept(int left)
{
	while (kept.count > left)
	{
		DLockMemoryStripe *stripe = &memory->stripes[own_stripe()];
		int			count = Min(kept.count - left, BATCH);

		SpinLockAcquire(&stripe->mutex);
		for (int i = 0; i < count; i++)
			move_cell(&kept.head, &stripe->head);
		stripe->count += count;
		SpinLockRelease(&stripe->mutex);
		kept.count -= count;
	}
}

/* Keep cells, up to BATCH and up to "wanted" in all, from a stripe's list; false if it is empty. */
static bool
keep_cells(DLockMemoryStripe *stripe, int wanted)
{
	int			count = 0;

	/* A glance without the mutex can only miss what was just put there. */
	if (*(volatile uint32 *) &stripe->count == 0)
		return false;

	wanted = Min(wanted - kept.count, BATCH);
	SpinLockAcquire(&stripe->mutex);
	for (; count < wanted && stripe->head != 0; count++)
		move_cell(&stripe->head, &kept.head);
	stripe->count -= count;
	SpinLockRelease(&stripe->mutex);
	kept.count += count;
	return count > 0;
}

/*
 * Keep cells that were never used, likewise.  Some more than wanted are taken; what
 * is too much goes to the own stripe.
 */
static bool
keep_fresh_cells(int wanted)
{
	uint32		first = pg_atomic_read_u32(&memory->fresh);
	uint32		count;

	do
	{
		count = Min(BATCH, memory->limit - first);
		if (count == 0)
			return false;
	} while (!pg_atomic_compare_exchange_u32(&memory->fresh, &first, first + count));

	for (uint32 i = 0; i < count; i++)
	{
		piece_at(first + i)->next = kept.head;
		kept.head = first + i;
	}
	kept.count += count;
	trim_kept(wanted);
	return true;
}

/* Keep some more cells from wherever there are some; false if memory is full. */
static bool
keep_any_cells(int wanted)
{
	bool		found = keep_cells(&memory->stripes[own_stripe()], wanted) || keep_fresh_cells(wanted);

	for (int i = 1; i < STRIPES && !found; i++)
		found = keep_cells(&memory->stripes[(own_stripe() + i) % STRIPES], wanted);
	return found;
}

/* Give back at exit what this backend kept. */
static void
give_back_kept(int code, Datum arg)
{
	trim_kept(0);
	kept.most = 0;
}

/* It concerns the operator, and not the role whose call happens to find that out. */
static void
warn_of_use(int percent, uint64 used, uint64 limit)
{
	ereport(LOG_SERVER_ONLY,
			(errmsg("lock space is more than %d%% full", percent),
			 errdetail("The leases of all databases together use " UINT64_FORMAT " of " UINT64_FORMAT " bytes.",
					   used, limit),
			 errhint("Limit roles by \"dlock.max_leases\", or increase \"dlock.max_memory\".")));
}

/*
 * Warn the operator if memory runs short, once for each of two percentages, and
 * again only after use has been clearly below it.
 */
static void
watch_use(void)
{
	uint64		limit = dlock_memory_limit();
	uint32		before = pg_atomic_read_u32(&memory->warned);
	uint32		now = 0;
	uint64		used;
	int			percent;

	/* As long as so many were never used, nothing else can be the case. */
	if (pg_atomic_read_u32(&memory->fresh) < memory->limit / 100 * WARN_FIRST)
		return;
	used = dlock_memory_used();
	percent = (int) (used * 100 / limit);

	if (percent >= WARN_SECOND)
		now = WARN_SECOND;
	else if (percent >= WARN_SECOND - WARN_DISTANCE)
		now = Max(before, WARN_FIRST);
	else if (percent >= WARN_FIRST)
		now = WARN_FIRST;
	else if (percent >= WARN_FIRST - WARN_DISTANCE)
		now = Min(before, WARN_FIRST);
	if (now != before && pg_atomic_compare_exchange_u32(&memory->warned, &before, now) &&
		now > before)
		warn_of_use(now, used, limit);
}

/* Does this backend have so many cells? */
bool
dlock_memory_is_prepared(int count)
{
	return kept.count >= count;
}

/*
 * See to it that this backend has so many cells.  False if memory is full.
 *
 * No partition lock may be held, since this may warn the operator.
 */
bool
dlock_memory_prepare(int count)
{
	Assert(!dlock_partition_is_any_held());
	if (kept.most == 0)
		on_shmem_exit(give_back_kept, (Datum) 0);
	kept.most = KEPT_CELLS;
	while (kept.count < count)
	{
		int			before = kept.count;

		if (DLOCK_FAULT_FAILS("cells") || !keep_any_cells(count))
		{
			trim_kept(0);
			return false;
		}
		unwatched += kept.count - before;
	}
	if (unwatched >= WATCH_DISTANCE)
	{
		unwatched = 0;
		watch_use();
	}
	return true;
}

/* Take a cell that was prepared.  Cannot fail. */
DLockMemoryRef
dlock_memory_take(void)
{
	uint32		cell = kept.head;

	Assert(kept.count > 0);
	kept.head = piece_at(cell)->next;
	kept.count--;
	return dlock_memory_cell(cell);
}

/* Free a cell, or keep it for the next change.  Cannot fail. */
void
dlock_memory_give_back(DLockMemoryRef ref)
{
	uint32		cell = dlock_memory_number(ref);

	Assert(ref == dlock_memory_cell(cell) && cell > 0 && cell < memory->limit);
	piece_at(cell)->next = kept.head;
	kept.head = cell;
	kept.count++;

	/* What was prepared stays. */
	trim_kept(Max(kept.most, kept.count - 1));
}

/* Free what was prepared beyond what is worth keeping. */
void
dlock_memory_trim(void)
{
	trim_kept(KEPT_CELLS);
}

/* ---- texts ---- */

/* The number of the cell in which a text goes on; zero if it has none. */
static uint32
next_cell(const char *place, int room, int total)
{
	uint32		cell = 0;

	/* The place of a text is not aligned. */
	if (total > room)
		memcpy(&cell, place + dlock_memory_text_here(room, total), sizeof(cell));
	return cell;
}

/* How many cells does a text take, besides its place, which has "room" bytes? */
int
dlock_memory_text_cells(int len, int room)
{
	int			size = sizeof(((DLockMemoryPiece *) NULL)->data);

	return (len - dlock_memory_text_here(room, len) + size - 1) / size;
}

/*
 * Write the parts of a text one behind the other into its place, and what does
 * not fit there into cells, which must be prepared.  Cannot fail.
 */
void
dlock_memory_text_put(char *place, int room, const DLockBytes *parts, int count)
{
	int			total = 0;
	char	   *to = place;
	int			left;
	char	   *link = NULL;
	uint32		end = 0;

	for (int i = 0; i < count; i++)
		total += parts[i].len;
	left = dlock_memory_text_here(room, total);
	if (total > room)
		link = place + left;

	for (int i = 0; i < count; i++)
	{
		const char *from = parts[i].data;
		int			len = parts[i].len;

		while (len > 0)
		{
			int			fits = Min(len, left);

			if (left == 0)
			{
				uint32		cell = dlock_memory_number(dlock_memory_take());

				memcpy(link, &cell, sizeof(cell));
				link = (char *) &piece_at(cell)->next;
				to = piece_at(cell)->data;
				left = sizeof(piece_at(cell)->data);
				continue;
			}
			memcpy(to, from, fits);
			to += fits;
			from += fits;
			len -= fits;
			left -= fits;
		}
	}
	if (link != NULL)
		memcpy(link, &end, sizeof(end));
}

/* Copy "len" bytes of a text of "total" bytes, beginning at "from". */
void
dlock_memory_text_get(const char *place, int room, int total, int from, int len, char *into)
{
	const char *data = place;
	int			here = dlock_memory_text_here(room, total);
	uint32		next = next_cell(place, room, total);

	Assert(from + len <= total);
	for (;;)
	{
		int			count = Min(here - from, len);

		if (count > 0)
		{
			memcpy(into, data + from, count);
			into += count;
			len -= count;
		}
		if (len == 0)
			return;
		from = Max(from - here, 0);
		data = piece_at(next)->data;
		here = sizeof(piece_at(next)->data);
		next = piece_at(next)->next;
	}
}

/* Free the cells that a text has besides its place.  Cannot fail. */
void
dlock_memory_text_free(const char *place, int room, int total)
{
	uint32		cell = next_cell(place, room, total);

	while (cell != 0)
	{
		uint32		next = piece_at(cell)->next;

		dlock_memory_give_back(dlock_memory_cell(cell));
		cell = next;
	}
}
