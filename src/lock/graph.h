/*-------------------------------------------------------------------------
 *
 * graph.h
 *	  The wait-for graph: who waits for whom, copied.
 *
 * IDENTIFICATION
 *	  src/lock/graph.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_GRAPH_H
#define DLOCK_GRAPH_H

#include "base/rule.h"
#include "space/lease.h"

#define DLOCK_GRAPH_NONE	(-1)

/* A request in the queue of a lock, copied. */
typedef struct DLockGraphItem
{
	int			process;
	DLockMode	mode;
	DLockToken	converted;		/* of a conversion: the token of its lease */
} DLockGraphItem;

/* A live lease whose owner may be waiting, copied. */
typedef struct DLockGraphHolder
{
	DLockOwner	owner;
	int			first;			/* candidates that may be of this owner */
	int			ncandidates;
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
	uint32		marked_modes;	/* of the leases of the waiter that is marked */
	int			marked_item;	/* and its place in the queue; or the end */
} DLockGraphLock;

/* A place in a queue. */
typedef struct DLockGraphPlace
{
	int			lock;			/* index of the lock, and of the item there */
	int			item;
	struct DLockGraphPlace *next;	/* of the same process */
} DLockGraphPlace;

/* How the search got to a waiter: from which one, and what is in the way of that. */
typedef struct DLockGraphEdge
{
	int			from;
	const DLockGraphPlace *at;
	DLockOwner	blocker;
	bool		is_place;		/* a request in front of it, and not a lease */
} DLockGraphEdge;

/* A backend that waits, and that this one waits for at some remove. */
typedef struct DLockGraphWaiter
{
	int			process;
	DLockPartitionSet set;
	DLockOwner	owner;
	bool		stuck;
	bool		blocked;		/* by stuck ones, in the pass at hand */
	bool		found;
	DLockGraphEdge edge;
} DLockGraphWaiter;

/* A backend that waits in this database; all of them, by the hash of the owner. */
typedef struct DLockGraphCandidate
{
	uint32		hash;
	int			process;
} DLockGraphCandidate;

/*
 * A copy of who waits for whom in a database, as far as it can be reached from one
 * backend, with room for a search in it.
 */
typedef struct DLockGraph
{
	MemoryContext context;		/* of the copy, which has all of it */
	Oid			database;
	int			me;
	DLockTime	now;
	const DLockPartitionSet *locked;	/* exclusively; NULL in the first copy */
	int			ncandidates;
	DLockGraphCandidate *candidates;
	int		   *waiter_of;		/* by process: index of the waiter, or NONE */
	int			nwaiters;
	DLockGraphWaiter *waiters;	/* the first is me */
	DLockGraphPlace **places;	/* by process, in copied locks; perhaps also
								 * of an earlier request, until all are locked */
	int			nlocks;
	DLockGraphLock *locks;
	int		   *buckets;		/* by hash: index of a lock, or NONE */
	int			nfound;
	int		   *found;			/* waiters that the circle may lead to */
	int			npending;
	int		   *pending;		/* processes to be visited */
	bool	   *is_pending;		/* by process: visited, or to be */
	int			length;
	int		   *circle;			/* waiters, from the one after me to me */
} DLockGraph;

extern bool dlock_graph_copy(DLockGraph *graph, const DLockPartitionSet *locked);

#endif							/* DLOCK_GRAPH_H */
