/*-------------------------------------------------------------------------
 *
 * list.h
 *	  Doubly linked lists in the shared memory of locks and leases.
 *
 * NOTES
 *	  They are what the server's dlist is for memory that all processes have at
 *	  the same address, with references in place of pointers.  The head is the
 *	  reference to the first member.  "offset" says where in a member its node
 *	  lies.  The first member's "prev" is the last member.
 *
 *	  A list is protected as what it belongs to.
 *
 * IDENTIFICATION
 *	  src/space/list.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LIST_H
#define DLOCK_LIST_H

#include "space/memory.h"

/* The place of a member in a list. */
typedef struct DLockListNode
{
	DLockMemoryRef prev;		/* of the first member: the last */
	DLockMemoryRef next;		/* none after the last */
} DLockListNode;

static inline DLockListNode *
dlock_list_node(DLockMemoryRef member, Size offset)
{
	return (DLockListNode *) ((char *) dlock_memory_at(member) + offset);
}

/* Insert a member in front of another one; DLOCK_MEMORY_NONE: at the end. */
static inline void
dlock_list_insert(DLockMemoryRef *head, DLockMemoryRef member, DLockMemoryRef before,
				  Size offset)
{
	DLockListNode *node = dlock_list_node(member, offset);
	DLockMemoryRef first = *head;

	node->prev = member;
	node->next = before;
	if (first != DLOCK_MEMORY_NONE)
	{
		DLockMemoryRef follower = (before != DLOCK_MEMORY_NONE) ? before : first;

		node->prev = dlock_list_node(follower, offset)->prev;
		dlock_list_node(follower, offset)->prev = member;
	}
	if (before == first)
		*head = member;
	else
		dlock_list_node(node->prev, offset)->next = member;
}

static inline void
dlock_list_delete(DLockMemoryRef *head, DLockMemoryRef member, Size offset)
{
	DLockListNode *node = dlock_list_node(member, offset);

	if (*head == member)
		*head = node->next;
	else
		dlock_list_node(node->prev, offset)->next = node->next;
	if (node->next != DLOCK_MEMORY_NONE)
		dlock_list_node(node->next, offset)->prev = node->prev;
	else if (*head != DLOCK_MEMORY_NONE)
		dlock_list_node(*head, offset)->prev = node->prev;
}

#endif							/* DLOCK_LIST_H */
