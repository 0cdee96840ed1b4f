/*-------------------------------------------------------------------------
 *
 * memory.c
 *	  The shared memory that locks and leases are made of.
 *
 * NOTES
 *	  It is an array of dlock.max_memory bytes in the server's main shared
 *	  memory segment, cut into cells of one size (src/README, "Shared memory", says
 *	  why).  A cell is a lock with its first lease, a further lease, a request, a
 *	  piece of a text that did not fit there, or a part of a stack of free slots.
 *
 *	  Free cells hang in lists, one for each stripe of backends.  A backend
 *	  takes cells from its own stripe, then cells that were never used, then
 *	  those of the other stripes, and gives them back to its own.
 *
 *	  A change under a partition lock reserves its cells first (dlock_memory_prepare),
 *	  so that it cannot fail half made.  What it does not take is freed at the end of
 *	  the step, or when the call fails (dlock_memory_trim).
 *
 *	  A text begins in a field of what it belongs to.  If it is longer than that, the
 *	  last four bytes of the field refer to the cell with the next piece, and each
 *	  cell refers to the next one.
 *
 *	  Lock rules.  A stripe's list is protected by the stripe's mutex, and
 *	  nothing else is locked while it is held.  A text is protected as what it
 *	  belongs to.  All other state is this backend's, or atomic.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/shmem.h"
#include "storage/spin.h"

#include "base/fault.h"
#include "base/settings.h"
#include "space/memory.h"

StaticAssertDecl(DLOCK_MEMORY_CELL % DLOCK_MEMORY_UNIT == 0,
				 "a cell is no multiple of the unit of references");

/* Backends spread over so many lists of free cells. */
#define STRIPES			16

/* The distance between two cells. */
#define STEP			((DLockMemoryRef) DLOCK_MEMORY_CELL / DLOCK_MEMORY_UNIT)

/* Free cells of one stripe. */
typedef struct DLockMemoryStripe
{
	slock_t		mutex;
	DLockMemoryRef head;		/* first free cell; protected by mutex */
	uint32		count;			/* of them; likewise, and read without it */
	char		pad[PG_CACHE_LINE_SIZE - sizeof(slock_t) - 2 * sizeof(uint32) - 3];
} DLockMemoryStripe;

typedef struct DLockMemoryShared
{
	pg_atomic_uint32 fresh;		/* first cell that was never used */
	char		pad[PG_CACHE_LINE_SIZE - sizeof(uint32)];
	DLockMemoryStripe stripes[STRIPES];
} DLockMemoryShared;

/* A free cell, or one with a piece of a text. */
typedef struct DLockMemoryPiece
{
	DLockMemoryRef next;		/* or none */
	char		data[DLOCK_MEMORY_CELL - sizeof(DLockMemoryRef)];
} DLockMemoryPiece;

/* Set once, in the postmaster. */
static DLockMemoryShared *memory = NULL;
char	   *dlock_memory_cells = NULL;

/* Cells that this backend has reserved, a list like those of the stripes. */
static DLockMemoryRef reserved = DLOCK_MEMORY_NONE;
static int	nreserved = 0;

static uint32
cell_count(void)
{
	return (Size) dlock_settings_max_memory_kb * 1024 / DLOCK_MEMORY_CELL;
}

/* There is no cell zero, but room for it. */
static Size
cells_size(void)
{
	return ((Size) cell_count() + 1) * DLOCK_MEMORY_CELL;
}

static inline DLockMemoryPiece *
piece_at(DLockMemoryRef cell)
{
	return dlock_memory_at(cell);
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
		pg_atomic_init_u32(&memory->fresh, STEP);
		for (int i = 0; i < STRIPES; i++)
		{
			SpinLockInit(&memory->stripes[i].mutex);
			memory->stripes[i].head = DLOCK_MEMORY_NONE;
			memory->stripes[i].count = 0;
		}
	}
}

/* The bytes that there are. */
uint64
dlock_memory_limit(void)
{
	return (uint64) cell_count() * DLOCK_MEMORY_CELL;
}

/* The bytes in use, as of one moment or another. */
uint64
dlock_memory_used(void)
{
	int64		cells = pg_atomic_read_u32(&memory->fresh) / STEP - 1;

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

/* Take a cell from the list of a stripe; none if it is empty. */
static DLockMemoryRef
take_from(DLockMemoryStripe *stripe)
{
	DLockMemoryRef cell;

	/* A glance without the mutex can only miss what was just put there. */
	if (*(volatile uint32 *) &stripe->count == 0)
		return DLOCK_MEMORY_NONE;

	SpinLockAcquire(&stripe->mutex);
	cell = stripe->head;
	if (cell != DLOCK_MEMORY_NONE)
	{
		stripe->head = piece_at(cell)->next;
		stripe->count--;
	}
	SpinLockRelease(&stripe->mutex);
	return cell;
}

/* Take a cell that was never used; none if all were. */
static DLockMemoryRef
take_fresh(void)
{
	uint32		cell = pg_atomic_read_u32(&memory->fresh);

	while (cell <= cell_count() * STEP)
	{
		if (pg_atomic_compare_exchange_u32(&memory->fresh, &cell, cell + STEP))
			return cell;
	}
	return DLOCK_MEMORY_NONE;
}

/* Take a cell from wherever there is one; none if memory is full. */
static DLockMemoryRef
take_any(void)
{
	DLockMemoryRef cell = take_from(&memory->stripes[own_stripe()]);

	if (cell == DLOCK_MEMORY_NONE)
		cell = take_fresh();
	for (int i = 1; i < STRIPES && cell == DLOCK_MEMORY_NONE; i++)
		cell = take_from(&memory->stripes[(own_stripe() + i) % STRIPES]);
	return cell;
}

/*
 * See to it that this backend has reserved so many cells.  False if memory is full; then it
 * has none.  Neither waits nor throws.
 */
bool
dlock_memory_prepare(int count)
{
	while (nreserved < count)
	{
		DLockMemoryRef cell = DLOCK_FAULT_FAILS("cells") ? DLOCK_MEMORY_NONE : take_any();

		if (cell == DLOCK_MEMORY_NONE)
		{
			dlock_memory_trim();
			return false;
		}
		piece_at(cell)->next = reserved;
		reserved = cell;
		nreserved++;
	}
	return true;
}

/* Take a cell that was reserved.  Cannot fail. */
DLockMemoryRef
dlock_memory_take(void)
{
	DLockMemoryRef cell = reserved;

	Assert(nreserved > 0);
	reserved = piece_at(cell)->next;
	nreserved--;
	return cell;
}

/* Free a cell.  Cannot fail. */
void
dlock_memory_give_back(DLockMemoryRef cell)
{
	DLockMemoryStripe *stripe = &memory->stripes[own_stripe()];

	Assert(cell % STEP == 0 && cell > 0 && cell < pg_atomic_read_u32(&memory->fresh));
	SpinLockAcquire(&stripe->mutex);
	piece_at(cell)->next = stripe->head;
	stripe->head = cell;
	stripe->count++;
	SpinLockRelease(&stripe->mutex);
}

/* Free what was reserved and not taken. */
void
dlock_memory_trim(void)
{
	while (nreserved > 0)
		dlock_memory_give_back(dlock_memory_take());
}

/* ---- texts ---- */

/* The cell in which a text goes on; none if it has none. */
static DLockMemoryRef
next_cell(const char *field, int room, int total)
{
	DLockMemoryRef cell = DLOCK_MEMORY_NONE;

	/* The field of a text is not aligned. */
	if (total > room)
		memcpy(&cell, field + dlock_memory_text_here(room, total), sizeof(cell));
	return cell;
}

/* How many cells does a text take, besides its field, which has "room" bytes? */
int
dlock_memory_text_cells(int len, int room)
{
	int			size = sizeof(((DLockMemoryPiece *) NULL)->data);

	return (len - dlock_memory_text_here(room, len) + size - 1) / size;
}

/*
 * Write the parts of a text one behind the other into its field, and what does
 * not fit there into cells, which must be prepared.  Cannot fail.
 */
void
dlock_memory_text_put(char *field, int room, const DLockBytes *parts, int count)
{
	int			total = 0;
	char	   *to = field;
	int			left;
	char	   *link = NULL;
	DLockMemoryRef end = DLOCK_MEMORY_NONE;

	for (int i = 0; i < count; i++)
		total += parts[i].len;
	left = dlock_memory_text_here(room, total);
	if (total > room)
		link = field + left;

	for (int i = 0; i < count; i++)
	{
		const char *from = parts[i].data;
		int			len = parts[i].len;

		while (len > 0)
		{
			int			fits = Min(len, left);

			if (left == 0)
			{
				DLockMemoryRef cell = dlock_memory_take();

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

/* Copy the first "len" bytes of a text of "total" bytes. */
void
dlock_memory_text_get(const char *field, int room, int total, int len, char *into)
{
	const char *data = field;
	int			here = dlock_memory_text_here(room, total);
	DLockMemoryRef next = next_cell(field, room, total);

	Assert(len <= total);
	while (len > here)
	{
		memcpy(into, data, here);
		into += here;
		len -= here;
		data = piece_at(next)->data;
		here = sizeof(piece_at(next)->data);
		next = piece_at(next)->next;
	}
	memcpy(into, data, len);
}

/* Free the cells that a text has besides its field.  Cannot fail. */
void
dlock_memory_text_free(const char *field, int room, int total)
{
	DLockMemoryRef cell = next_cell(field, room, total);

	while (cell != DLOCK_MEMORY_NONE)
	{
		DLockMemoryRef next = piece_at(cell)->next;

		dlock_memory_give_back(cell);
		cell = next;
	}
}
