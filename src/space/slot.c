/*-------------------------------------------------------------------------
 *
 * slot.c
 *	  Which slots of the store are free, and whose they are.
 *
 * NOTES
 *	  Free slots are known in memory only, in stacks that are built when the
 *	  database is loaded: one for each class and stripe.  A page belongs to the
 *	  stripe that its block number falls into; a backend takes slots from one
 *	  stripe first, that of the last page that it has added.  take() decides when
 *	  the relation grows.
 *
 *	  A stack is made of cells of the memory that leases are made of.  It has room
 *	  for all slots of its pages from the start, so no memory is needed when a slot
 *	  is freed.
 *
 *	  Pages are initialized, and logged, in the order of their blocks, under the
 *	  extension lock.  So after a crash those to be initialized come after those in
 *	  use; in a copy of another database no page is in use.
 *
 *	  A slot is reserved by taking it from its stack.  It belongs to the backend
 *	  until it is used, or until the call ends or fails (dlock_slot_trim); the call
 *	  has the store open all the time, so the database is not loaded meanwhile.
 *
 *	  Lock rules.  The relation's extension lock (heavyweight) comes before the
 *	  mutex of a stack.  Nothing else is locked while a mutex is held.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lmgr.h"

#include "base/fault.h"
#include "space/memory.h"
#include "space/partition.h"
#include "space/slot.h"
#include "store/store.h"

#define CELL_SLOTS	((int) ((DLOCK_MEMORY_CELL - 2 * sizeof(uint32)) / sizeof(DLockSlot)))

/* A cell of a stack.  Those below the top are full, and those above it empty. */
typedef struct DLockSlotCell
{
	uint32		below;			/* the next cell; zero if there is none */
	uint32		above;			/* likewise */
	DLockSlot	slots[CELL_SLOTS];
} DLockSlotCell;

StaticAssertDecl(sizeof(DLockSlotCell) <= DLOCK_MEMORY_CELL &&
				 CELL_SLOTS >= DLOCK_PAGE_MAX_SLOTS,
				 "a cell has room for the slots of a page");

/* Slots that this backend has reserved, by class. */
static struct
{
	DLockSlotShared *slots;		/* where they are from; NULL until there were
								 * some */
	int			stripe;			/* to take slots from first */
	int			counts[DLOCK_PAGE_CLASSES];
	DLockSlot	of_class[DLOCK_PAGE_CLASSES][DLOCK_NAMES_MAX];
}			reserved;

/* ---- stacks ---- */

static inline DLockSlotCell *
cell_at(uint32 cell)
{
	return dlock_memory_at(dlock_memory_cell(cell));
}

static inline DLockSlotStack *
stack_of(DLockSlotShared *slots, int slot_class, BlockNumber block)
{
	return &slots->stacks[slot_class][block % DLOCK_SLOT_STRIPES];
}

/* Add an empty cell to a stack, whose mutex is held. */
static void
add_cell(DLockSlotStack *stack, uint32 cell)
{
	cell_at(cell)->below = stack->top;
	cell_at(cell)->above = 0;
	if (stack->top == 0)
		stack->top = cell;
	else
	{
		cell_at(cell)->above = cell_at(stack->top)->above;
		cell_at(stack->top)->above = cell;
	}
	if (cell_at(cell)->above != 0)
		cell_at(cell_at(cell)->above)->below = cell;
}

/* Put a free slot on a stack, likewise. */
static inline void
push(DLockSlotStack *stack, DLockSlot slot)
{
	if (stack->count == CELL_SLOTS)
	{
		stack->top = cell_at(stack->top)->above;
		stack->count = 0;
	}
	Assert(stack->top != 0);
	cell_at(stack->top)->slots[stack->count++] = slot;
}

/* Take a slot from a stack; DLOCK_SLOT_NONE if it is empty. */
static DLockSlot
pop(DLockSlotStack *stack)
{
	DLockSlot	slot = DLOCK_SLOT_NONE;

	SpinLockAcquire(&stack->mutex);
	if (stack->count == 0 && stack->top != 0 && cell_at(stack->top)->below != 0)
	{
		stack->top = cell_at(stack->top)->below;
		stack->count = CELL_SLOTS;
	}
	if (stack->count > 0)
		slot = cell_at(stack->top)->slots[--stack->count];
	SpinLockRelease(&stack->mutex);
	return slot;
}

/* Empty a stack, and free its cells. */
static void
clear(DLockSlotStack *stack)
{
	uint32		cell;
	uint32		next;

	SpinLockAcquire(&stack->mutex);
	cell = stack->top;
	stack->top = stack->total = stack->cells = 0;
	stack->count = 0;
	SpinLockRelease(&stack->mutex);

	while (cell != 0 && cell_at(cell)->below != 0)
		cell = cell_at(cell)->below;
	for (; cell != 0; cell = next)
	{
		next = cell_at(cell)->above;
		dlock_memory_give_back(dlock_memory_cell(cell));
	}
}

/* Free a slot, which is empty on disk as well.  Cannot fail. */
void
dlock_slot_free(DLockSlotShared *slots, int slot_class, DLockSlot slot)
{
	DLockSlotStack *stack = stack_of(slots, slot_class, dlock_slot_block(slot));

	SpinLockAcquire(&stack->mutex);
	push(stack, slot);
	SpinLockRelease(&stack->mutex);
}

/* ---- the store as a whole ---- */

/* Set up the free slots, which are all zeros, of a store that has not been loaded yet. */
void
dlock_slot_init(DLockSlotShared *slots)
{
	for (int slot_class = 0; slot_class < DLOCK_PAGE_CLASSES; slot_class++)
	{
		for (int stripe = 0; stripe < DLOCK_SLOT_STRIPES; stripe++)
			SpinLockInit(&slots->stacks[slot_class][stripe].mutex);
	}
}

/* Empty all stacks of a store, and free their cells. */
void
dlock_slot_clear(DLockSlotShared *slots)
{
	for (int slot_class = 0; slot_class < DLOCK_PAGE_CLASSES; slot_class++)
	{
		for (int stripe = 0; stripe < DLOCK_SLOT_STRIPES; stripe++)
			clear(&slots->stacks[slot_class][stripe]);
	}
}

/*
 * Forget all pages; those to come are of this incarnation.  The database must
 * be loading.
 */
void
dlock_slot_reset(DLockSlotShared *slots, uint64 incarnation)
{
	slots->incarnation = incarnation;
	slots->nblocks = 1;
	dlock_slot_clear(slots);
}

/*
 * Enter a page; they come in ascending order.  "taken" has a bit for each of its slots
 * that is not free.  False if memory is full.  The extension lock must be held, or the
 * database be loading.
 */
bool
dlock_slot_add_page(DLockSlotShared *slots,
					BlockNumber block, int slot_class, uint64 taken)
{
	DLockSlotStack *stack = stack_of(slots, slot_class, block);
	int			count = dlock_page_slot_count(slot_class);
	uint32		cell = 0;

	Assert(block >= slots->nblocks);
	if (stack->total + count > stack->cells * CELL_SLOTS)
	{
		if (!dlock_memory_prepare(1))
			return false;
		cell = dlock_memory_number(dlock_memory_take());
		stack->cells++;
	}
	stack->total += count;

	SpinLockAcquire(&stack->mutex);
	if (cell != 0)
		add_cell(stack, cell);
	for (int number = count - 1; number >= 0; number--)
	{
		if ((taken & (UINT64CONST(1) << number)) == 0)
			push(stack, dlock_slot_make(block, number));
	}
	SpinLockRelease(&stack->mutex);
	slots->nblocks = block + 1;
	return true;
}

/* ---- slots of this backend ---- */

/* Free the slots that this backend has reserved and not used. */
void
dlock_slot_trim(void)
{
	for (int slot_class = 0; slot_class < DLOCK_PAGE_CLASSES; slot_class++)
	{
		while (reserved.counts[slot_class] > 0)
			dlock_slot_free(reserved.slots, slot_class,
							reserved.of_class[slot_class][--reserved.counts[slot_class]]);
	}
}

/*
 * Take a free slot; DLOCK_SLOT_NONE if there is none.
 *
 * While the store is small only this backend's stripe is tried, so that each gets pages;
 * later all are tried before the store grows.
 */
static DLockSlot
take(DLockSlotShared *slots, int slot_class)
{
	int			stripes = (slots->nblocks > DLOCK_SLOT_STRIPES) ? DLOCK_SLOT_STRIPES : 1;
	DLockSlot	slot = DLOCK_SLOT_NONE;

	for (int i = 0; i < stripes && slot == DLOCK_SLOT_NONE; i++)
		slot = pop(&slots->stacks[slot_class][(reserved.stripe + i) % DLOCK_SLOT_STRIPES]);
	return slot;
}

/*
 * Reserve free slots of each class, as many as "counts" has for it, at most
 * DLOCK_NAMES_MAX; to be used (dlock_slot_use) or not.  False if there are too few.  May
 * be called under partition locks, with the store open.
 */
bool
dlock_slot_reserve(DLockSlotShared *slots, const int *counts)
{
	if (reserved.slots == NULL)
		reserved.stripe = MyProcPid % DLOCK_SLOT_STRIPES;
	reserved.slots = slots;
	for (int slot_class = 0; slot_class < DLOCK_PAGE_CLASSES; slot_class++)
	{
		Assert(counts[slot_class] <= DLOCK_NAMES_MAX);
		while (reserved.counts[slot_class] < counts[slot_class])
		{
			DLockSlot	slot = take(slots, slot_class);

			if (slot == DLOCK_SLOT_NONE)
				return false;
			reserved.of_class[slot_class][reserved.counts[slot_class]++] = slot;
		}
	}
	return true;
}

/*
 * Reserve likewise; if there are too few, add a page instead.  The caller retries, and may
 * find that more are needed.  False if memory is full.
 *
 * May wait, extend the relation, and throw; what was done by then stands.  No partition
 * lock may be held.
 */
bool
dlock_slot_extend(DLockSlotShared *slots, Relation rel, const int *counts)
{
	bool		done;

	Assert(!dlock_partition_is_any_held());
	Assert(CheckRelationLockedByMe(rel, RowExclusiveLock, true));
	LockRelationForExtension(rel, ExclusiveLock);

	/* The backend that had the lock before may have left some slots. */
	done = dlock_slot_reserve(slots, counts);
	if (!done && slots->nblocks > DLOCK_SLOT_MAX_BLOCK)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("lease store has reached its largest size"),
				 errhint("Release leases that are no longer needed.")));
	if (!done && dlock_memory_prepare(1))
	{
		BlockNumber block = slots->nblocks;
		int			slot_class = 0;

		while (reserved.counts[slot_class] >= counts[slot_class])
			slot_class++;
		DLOCK_FAULT("extend");
		dlock_store_init_page(rel, block, slots->incarnation, slot_class, InvalidOid);
		DLOCK_FAULT("extended");
		done = dlock_slot_add_page(slots, block, slot_class, 0);
		reserved.stripe = block % DLOCK_SLOT_STRIPES;
	}
	UnlockRelationForExtension(rel, ExclusiveLock);
	return done;
}

/* The nth (from zero) slot of its class that this backend has reserved. */
DLockSlot
dlock_slot_reserved(int slot_class, int n)
{
	Assert(n < reserved.counts[slot_class]);
	return reserved.of_class[slot_class][reserved.counts[slot_class] - 1 - n];
}

/* The first reserved slot of this class is in use now.  Cannot fail. */
void
dlock_slot_use(int slot_class)
{
	Assert(reserved.counts[slot_class] > 0);
	reserved.counts[slot_class]--;
}
