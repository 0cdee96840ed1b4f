/*-------------------------------------------------------------------------
 *
 * slot.c
 *	  Which slots of the store are free, and whose they are.
 *
 * NOTES
 *	  Free slots are known in memory only, in stacks that are built when the
 *	  database is loaded: one for each class and stripe.  A page belongs to the
 *	  stripe that its block number falls into; a backend takes slots from one
 *	  stripe first, that of the last page that it has added, if any.  take() decides when
 *	  the relation grows.
 *
 *	  A stack is made of cells of the memory that leases are made of.  It has room
 *	  for all slots of its pages from the start, so no memory is needed when a slot
 *	  is freed.
 *
 *	  Pages are initialized, and logged, in the order of their blocks, under the
 *	  extension lock.  So after a crash the pages that are not initialized come after
 *	  those in use; in a copy of another database no page is in use.
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

#define CELL_SLOTS	((int) ((DLOCK_MEMORY_CELL - sizeof(DLockMemoryRef)) / sizeof(DLockSlot)))

/* A cell of a stack. */
typedef struct DLockSlotCell
{
	DLockMemoryRef next;		/* in its list, or none */
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
cell_at(DLockMemoryRef cell)
{
	return dlock_memory_at(cell);
}

static inline DLockSlotStack *
stack_of(DLockSlotShared *slots, int slot_class, BlockNumber block)
{
	return &slots->stacks[slot_class][block % DLOCK_SLOT_STRIPES];
}

/* Move the first cell of a list to another one. */
static inline void
move_cell(DLockMemoryRef *from, DLockMemoryRef *to)
{
	DLockMemoryRef cell = *from;

	Assert(cell != DLOCK_MEMORY_NONE);
	*from = cell_at(cell)->next;
	cell_at(cell)->next = *to;
	*to = cell;
}

/* Put a free slot on a stack, whose mutex is held. */
static inline void
push(DLockSlotStack *stack, DLockSlot slot)
{
	if (stack->top == DLOCK_MEMORY_NONE || stack->count == CELL_SLOTS)
	{
		move_cell(&stack->spare, &stack->top);
		stack->count = 0;
	}
	cell_at(stack->top)->slots[stack->count++] = slot;
}

/* Take a slot from a stack; DLOCK_SLOT_NONE if it is empty. */
static DLockSlot
pop(DLockSlotStack *stack)
{
	DLockSlot	slot = DLOCK_SLOT_NONE;

	SpinLockAcquire(&stack->mutex);
	if (stack->top != DLOCK_MEMORY_NONE)
	{
		slot = cell_at(stack->top)->slots[--stack->count];
		if (stack->count == 0)
		{
			move_cell(&stack->top, &stack->spare);
			stack->count = CELL_SLOTS;
		}
	}
	SpinLockRelease(&stack->mutex);
	return slot;
}

static void
free_cells(DLockMemoryRef *list)
{
	while (*list != DLOCK_MEMORY_NONE)
	{
		DLockMemoryRef cell = *list;

		*list = cell_at(cell)->next;
		dlock_memory_give_back(cell);
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

/* Empty all stacks of a store, and free their cells.  No process may use it. */
void
dlock_slot_clear(DLockSlotShared *slots)
{
	for (int slot_class = 0; slot_class < DLOCK_PAGE_CLASSES; slot_class++)
	{
		for (int stripe = 0; stripe < DLOCK_SLOT_STRIPES; stripe++)
		{
			DLockSlotStack *stack = &slots->stacks[slot_class][stripe];

			free_cells(&stack->top);
			free_cells(&stack->spare);
			stack->room = 0;
		}
	}
}

/*
 * Have no pages; those to come are of this incarnation.  The database must be
 * loading.
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
	DLockMemoryRef cell = DLOCK_MEMORY_NONE;

	Assert(block >= slots->nblocks);
	if (stack->room < count)
	{
		if (!dlock_memory_prepare(1))
			return false;
		cell = dlock_memory_take();
		cell_at(cell)->next = DLOCK_MEMORY_NONE;
		stack->room += CELL_SLOTS;
	}
	stack->room -= count;

	SpinLockAcquire(&stack->mutex);
	if (cell != DLOCK_MEMORY_NONE)
		move_cell(&cell, &stack->spare);
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
