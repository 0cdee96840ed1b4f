/*-------------------------------------------------------------------------
 *
 * graph.h
 *	  A copy of who waits for whom.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_GRAPH_H
#define DLOCK_GRAPH_H

#include "lock/process.h"
#include "space/place.h"

#define DLOCK_GRAPH_NONE	(-1)	/* instead of a node or of an index */

/* A request in the queue of a lock, copied. */
typedef struct DLockGraphItem
{
	int			process;
	DLockMode	mode;
	DLockToken	converted;		/* of a conversion: the token of its lease */
	DLockOwner	owner;
} DLockGraphItem;

/* A live lease whose owner may be waiting, copied. */
typedef struct DLockGraphHolder
{
	DLockOwner	owner;
	int			candidate;		/* first process that may wait for this owner;
								 * or NONE */
	int			process;		/* that it is bound to; or NONE */
	DLockMode	mode;
	DLockToken	token;
} DLockGraphHolder;

/* A lock that a backend of interest waits for, copied. */
typedef struct DLockGraphLock
{
	uint32		hash;
	DLockBytes	name;
	int			next;			/* copied with the same hash bucket, or NONE */
	int			nitems;
	DLockGraphItem *items;		/* in the order of the queue */
	int			nholders;
	DLockGraphHolder *holders;
	bool		has_free_permit;	/* that nobody has, or whose holder goes
									 * on */
	uint32		reached;		/* modes whose blockers among the holders were
								 * visited, in the copy and then in the search */
	int			reached_items[DLOCK_MODES]; /* and how far those in the queue */
	uint32		noted_modes;	/* of the leases of the waiter that was noted */
	int			noted_item;		/* and its position in the queue; or the end */
} DLockGraphLock;

/* A position in a queue. */
typedef struct DLockGraphPosition
{
	int			lock;			/* index of the lock, and of the item there */
	int			item;
	struct DLockGraphPosition *next;	/* of the same process */
} DLockGraphPosition;

/* How the search got to a waiter: from which one, and what is in the way of that. */
typedef struct DLockGraphEdge
{
	int			from;
	const DLockGraphPosition *at;
	DLockOwner	blocker;
	bool		is_place;		/* a request in front of it, and not a lease */
} DLockGraphEdge;

/* A backend that waits, and that this one waits for at some remove. */
typedef struct DLockGraphWaiter
{
	int			process;
	DLockPartitionSet set;
	DLockOwner	owner;
	bool		is_root;		/* the search begins here, and comes back */
	bool		stuck;
	bool		blocked;		/* by stuck ones, in the pass at hand */
	bool		found;
	int			root;			/* of the search that has found it */
	DLockGraphEdge edge;
	bool		in_circle;
	int			next;			/* in it */
} DLockGraphWaiter;

/*
 * A copy of who waits for whom in a database, as far as it can be reached from one
 * backend, with room for a search in it.
 */
typedef struct DLockGraph
{
	MemoryContext context;		/* of the copy, which has all of it */
	Oid			database;
	int			me;				/* the backend that the search is for; or */
	const DLockOwner *my_owner; /* unless NULL, the places of this owner ... */
	DLockBytes	my_name;		/* ... on this lock, if it has a name */
	DLockTime	now;
	const DLockPartitionSet *locked;	/* exclusively; NULL in the first copy */
	int			nkept;			/* places in the database, those that are in
								 * the circle in the second copy ... */
	DLockPlaceRef *kept;		/* ... whose nodes follow MaxBackends */
	int		   *candidates;		/* by hash of the owner: the first process of
								 * all that wait in the database, or NONE */
	int		   *next_candidate; /* by process: the next with this hash */
	int		   *place_nodes;	/* by hash of the owner and the lock: the
								 * first node that is a place, or NONE */
	int		   *next_place_node;	/* of those: the next with this hash */
	int		   *waiter_of;		/* by process: index of the waiter, or NONE */
	int			nwaiters;
	DLockGraphWaiter *waiters;
	int			victim;			/* the waiter from which a circle was found;
								 * or NONE */
	bool		has_permit;		/* that a waiter in the circle waits for */
	DLockGraphPosition **positions; /* by process, in copied locks; perhaps
									 * also of an earlier request, until all
									 * are locked */
	int			nlocks;
	DLockGraphLock *locks;
	int		   *buckets;		/* by hash: index of a lock, or NONE */
	int			nreached;
	int		   *reached;		/* processes, in the copy; then waiters */
	bool	   *is_reached;		/* by process, in the copy */
} DLockGraph;

extern void dlock_graph_copy(DLockGraph *graph, const DLockPartitionSet *locked);
extern const DLockPlaceRef *dlock_graph_place(const DLockGraph *graph, int node);

#endif							/* DLOCK_GRAPH_H */
