/*-------------------------------------------------------------------------
 *
 * memory.h
 *	  The shared memory that locks and leases are made of.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_MEMORY_H
#define DLOCK_MEMORY_H

#include "base/types.h"

/* The size of a cell; there is no other. */
#define DLOCK_MEMORY_CELL		232

/*
 * A reference to something in the cells: its distance from the first cell, in units of 8
 * bytes.  Zero: nothing.
 */
typedef uint32 DLockMemoryRef;

#define DLOCK_MEMORY_NONE		((DLockMemoryRef) 0)
#define DLOCK_MEMORY_UNIT		8

/* Where the cells lie; set once, in the postmaster.  NULL if dlock is not preloaded. */
extern char *dlock_memory_cells;

/* The shared memory that a reference leads to. */
static inline void *
dlock_memory_at(DLockMemoryRef ref)
{
	return dlock_memory_cells + (Size) ref * DLOCK_MEMORY_UNIT;
}

/* The reference that leads to a place in the shared memory. */
static inline DLockMemoryRef
dlock_memory_ref(const void *place)
{
	return (DLockMemoryRef) (((const char *) place - dlock_memory_cells) / DLOCK_MEMORY_UNIT);
}

/* set-up */
extern void dlock_memory_request(void);
extern void dlock_memory_startup(void);

/* cells */
extern bool dlock_memory_prepare(int count);
extern DLockMemoryRef dlock_memory_take(void);
extern void dlock_memory_give_back(DLockMemoryRef cell);
extern void dlock_memory_trim(void);
extern uint64 dlock_memory_used(void);
extern uint64 dlock_memory_limit(void);

/* texts that may go on in further cells */
extern int	dlock_memory_text_cells(int len, int room);
extern void dlock_memory_text_put(char *field, int room, const DLockBytes *parts, int count);
extern void dlock_memory_text_get(const char *field, int room, int total, int len, char *into);
extern void dlock_memory_text_free(const char *field, int room, int total);

/* How much of a text of "total" bytes stands in its field itself. */
static inline int
dlock_memory_text_here(int room, int total)
{
	return (total <= room) ? total : room - (int) sizeof(uint32);
}

/* The first bytes of a text; put together in "buffer" if they are not in one piece. */
static inline DLockBytes
dlock_memory_text_begin(const char *field, int room, int total, int len, char *buffer)
{
	if (len <= dlock_memory_text_here(room, total))
		return dlock_bytes(field, len);
	dlock_memory_text_get(field, room, total, len, buffer);
	return dlock_bytes(buffer, len);
}

/*
 * Doubly linked lists of what lies in the cells: like dlist in lib/ilist.h, with
 * references in place of pointers.  The head is the reference to the first member,
 * whose "prev" is the last one.  "offset" says where in a member its node lies.  A
 * list is protected by the lock of what it belongs to.
 */
typedef struct DLockMemoryNode
{
	DLockMemoryRef prev;		/* of the first member: the last */
	DLockMemoryRef next;		/* none after the last */
} DLockMemoryNode;

static inline DLockMemoryNode *
dlock_memory_list_node(DLockMemoryRef member, Size offset)
{
	return (DLockMemoryNode *) ((char *) dlock_memory_at(member) + offset);
}

/* Insert a member in front of another one; DLOCK_MEMORY_NONE: at the end. */
static inline void
dlock_memory_list_insert(DLockMemoryRef *head, DLockMemoryRef member, DLockMemoryRef before,
						 Size offset)
{
	DLockMemoryNode *node = dlock_memory_list_node(member, offset);
	DLockMemoryRef first = *head;

	node->prev = member;
	node->next = before;
	if (first != DLOCK_MEMORY_NONE)
	{
		DLockMemoryRef follower = (before != DLOCK_MEMORY_NONE) ? before : first;

		node->prev = dlock_memory_list_node(follower, offset)->prev;
		dlock_memory_list_node(follower, offset)->prev = member;
	}
	if (before == first)
		*head = member;
	else
		dlock_memory_list_node(node->prev, offset)->next = member;
}

static inline void
dlock_memory_list_delete(DLockMemoryRef *head, DLockMemoryRef member, Size offset)
{
	DLockMemoryNode *node = dlock_memory_list_node(member, offset);

	if (*head == member)
		*head = node->next;
	else
		dlock_memory_list_node(node->prev, offset)->next = node->next;
	if (node->next != DLOCK_MEMORY_NONE)
		dlock_memory_list_node(node->next, offset)->prev = node->prev;
	else if (*head != DLOCK_MEMORY_NONE)
		dlock_memory_list_node(*head, offset)->prev = node->prev;
}

#endif							/* DLOCK_MEMORY_H */
