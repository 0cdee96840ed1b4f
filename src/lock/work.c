/*-------------------------------------------------------------------------
 *
 * work.c
 *	  A piece of work on leases: what it has, and what it lacks.
 *
 * NOTES
 *	  Under a partition lock nothing may be waited for.  So a step that finds
 *	  a page not pinned, or no token at hand, notes that here and fails; the
 *	  locks are given up, what is missing is fetched, and it is tried again.
 *
 *	  Pins are kept from one attempt to the next.
 *
 * IDENTIFICATION
 *	  src/lock/work.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/bufmgr.h"

#include "lock/work.h"
#include "space/slot.h"
#include "store/store.h"
#include "store/token.h"

/* Begin a piece of work on the leases of a database. */
void
dlock_work_begin(DLockWork *work, DLockDatabase *db)
{
	work->db = db;
	work->lsn = InvalidXLogRecPtr;
	work->npins = work->oldest_pin = 0;
	work->pin_room = DLOCK_WORK_PINS;
	work->pins = work->few_pins;
	work->missing_slot = DLOCK_SLOT_NONE;
	work->missing_tokens = 0;
	work->missing_path = DLOCK_TOKEN_NONE;
}

/* Give up all pins.  No partition lock needs to be held. */
void
dlock_work_end(DLockWork *work)
{
	while (work->npins > 0)
		dlock_store_unpin(work->pins[--work->npins].buffer);
	work->oldest_pin = 0;
}

/* Give up all pins, and what there was to keep them in. */
void
dlock_work_finish(DLockWork *work)
{
	dlock_work_end(work);
	if (work->pins == work->few_pins)
		return;
	pfree(work->pins);
	work->pins = work->few_pins;
	work->pin_room = DLOCK_WORK_PINS;
}

/* Have room for so many pins at a time; false if there is no memory for that. */
bool
dlock_work_need_pins(DLockWork *work, int count)
{
	DLockWorkPin *pins;

	if (count <= work->pin_room)
		return true;
	pins = palloc_extended(count * sizeof(DLockWorkPin), MCXT_ALLOC_NO_OOM);
	if (pins == NULL)
		return false;
	dlock_work_finish(work);
	work->pins = pins;
	work->pin_room = count;
	return true;
}

/*
 * See to it that none of the next "count" pins makes way for another.  There
 * must be room for so many.
 */
void
dlock_work_make_room(DLockWork *work, int count)
{
	if (work->npins + count > work->pin_room)
		dlock_work_end(work);
}

static void
add_pin(DLockWork *work, DLockSlot slot, Buffer buffer)
{
	DLockWorkPin *pin;

	if (work->npins < work->pin_room)
		pin = &work->pins[work->npins++];
	else
	{
		pin = &work->pins[work->oldest_pin];
		work->oldest_pin = (work->oldest_pin + 1) % work->pin_room;
		dlock_store_unpin(pin->buffer);
	}
	pin->block = dlock_slot_block(slot);
	pin->buffer = buffer;
}

/* The buffer with the page of a slot; InvalidBuffer if it is not pinned. */
Buffer
dlock_work_page(DLockWork *work, DLockSlot slot)
{
	for (int i = 0; i < work->npins; i++)
	{
		if (work->pins[i].block == dlock_slot_block(slot))
			return work->pins[i].buffer;
	}
	return InvalidBuffer;
}

/*
 * Fetch what the last step lacked, waiting for it if need be.  No partition
 * lock may be held.
 */
void
dlock_work_fetch(DLockWork *work)
{
	DLockDatabase *db = work->db;
	DLockSlot	slot = work->missing_slot;

	if (slot != DLOCK_SLOT_NONE)
	{
		Buffer		buffer = dlock_store_pin(db->rel, slot);

		*dlock_slot_hint(&db->shared->slots, slot) = buffer;
		add_pin(work, slot, buffer);
	}
	if (work->missing_tokens > 0)
		dlock_database_fetch_tokens(db, work->missing_tokens);
	work->missing_slot = DLOCK_SLOT_NONE;
	work->missing_tokens = 0;
}

/* Have the page of a slot pinned. */
bool
dlock_work_pin(DLockWork *work, DLockSlot slot)
{
	DLockDatabase *db = work->db;
	Buffer		buffer;

	if (BufferIsValid(dlock_work_page(work, slot)))
		return true;
	if (db->rel == NULL)
		return false;
	buffer = dlock_store_pin_cached(db->rel, slot,
									*dlock_slot_hint(&db->shared->slots, slot));
	if (!BufferIsValid(buffer))
	{
		work->missing_slot = slot;
		return false;
	}
	add_pin(work, slot, buffer);
	return true;
}

/* Take so many tokens, which follow each other. */
bool
dlock_work_tokens(DLockWork *work, int count, DLockToken *first)
{
	bool		may_fetch = work->db->rel != NULL;

	if (dlock_token_take(&work->db->shared->tokens, count, may_fetch, first))
		return true;
	if (may_fetch)
		work->missing_tokens = count;
	return false;
}
