/*-------------------------------------------------------------------------
 *
 * dlock_store.h
 *	  The durable home of the leases: slots on pages, written in place.
 *
 * IDENTIFICATION
 *	  src/dlock_store.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_STORE_H
#define DLOCK_STORE_H

#include "access/xlogdefs.h"
#include "storage/buf.h"
#include "storage/spin.h"
#include "utils/dsa.h"

#include "dlock_compat.h"
#include "dlock_page.h"
#include "dlock_types.h"

/* Backends spread over so many groups of pages, to keep out of each other's way. */
#define DLOCK_STORE_STRIPES			16

/* The directory of pages grows in segments, each twice as large as the last. */
#define DLOCK_STORE_FIRST_SEGMENT	64
#define DLOCK_STORE_SEGMENTS		21

/* Pages of one class that have free slots, for the backends of one stripe. */
typedef struct DLockStoreStripe
{
	slock_t		mutex;
	BlockNumber head;			/* first page; protected by mutex */
} DLockStoreStripe;

/* What is known in memory of the store of one database. */
typedef struct DLockStoreShared
{
	/*
	 * Written only while the database is being loaded, or, for a store that was
	 * rewritten as it is, under its load lock; read by whoever has the
	 * relation open.
	 */
	RelFileLocator locator;
	uint64		incarnation;
	uint32		generation;		/* counts loads; what was kept before is void */

	/* Protected by the relation's extension lock. */
	BlockNumber nblocks;		/* blocks that the directory covers */
	BlockNumber blank;			/* first page of no class, by next */

	/* An element is set once, under the extension lock, and stays. */
	dsa_pointer segments[DLOCK_STORE_SEGMENTS];

	DLockStoreStripe stripes[DLOCK_PAGE_CLASSES][DLOCK_STORE_STRIPES];
} DLockStoreShared;

/* What the scan of the store is to do with a lease. */
typedef enum DLockStoreVerdict
{
	DLOCK_STORE_KEEP,
	DLOCK_STORE_ERASE
} DLockStoreVerdict;

typedef DLockStoreVerdict (*DLockStoreVisitor) (const DLockLeaseValue *lease,
												DLockSlot slot, void *arg);

/* the store as a whole */
extern void dlock_store_init(DLockStoreShared *store);
extern void dlock_store_reset(DLockStoreShared *store, Relation rel,
							  uint64 incarnation);
extern void dlock_store_release(DLockStoreShared *store, dsa_area *area);
extern bool dlock_store_is_current(const DLockStoreShared *store, Relation rel);
extern void dlock_store_adopt(DLockStoreShared *store, Relation rel);
extern bool dlock_store_read_meta(Relation rel, DLockPageMeta *meta);
extern XLogRecPtr dlock_store_write_meta(Relation rel, const DLockPageMeta *meta);
extern void dlock_store_load(DLockStoreShared *store, dsa_area *area, Relation rel,
							 DLockStoreVisitor visitor, void *arg);
extern void dlock_store_visit(Relation rel, uint64 incarnation,
							  DLockStoreVisitor visitor, void *arg);

/* tokens */
extern XLogRecPtr dlock_store_reserve_tokens(Relation rel, Relation sequence,
											 DLockToken floor, int count,
											 bool jump,
											 DLockToken *first, DLockToken *last);

/* slots */
extern DLockSlot dlock_store_reserved(DLockStoreShared *store, int slot_class);
extern DLockSlot dlock_store_reserve(DLockStoreShared *store, dsa_area *area,
									 Relation rel, int slot_class);
extern void dlock_store_use(int slot_class);
extern void dlock_store_free(DLockStoreShared *store, dsa_area *area,
							 DLockSlot slot);
extern Buffer dlock_store_pin(DLockStoreShared *store, dsa_area *area,
							  Relation rel, DLockSlot slot);
extern Buffer dlock_store_pin_cached(DLockStoreShared *store, dsa_area *area,
									 Relation rel, DLockSlot slot);
extern void dlock_store_unpin(Buffer buffer);

/* records */
extern XLogRecPtr dlock_store_write(Buffer buffer, DLockSlot slot,
									const DLockLeaseValue *lease);
extern XLogRecPtr dlock_store_erase(Buffer buffer, DLockSlot slot);
extern XLogRecPtr dlock_store_set_term(Buffer buffer, DLockSlot slot,
									   const DLockTerm *term, uint64 boot);

#endif							/* DLOCK_STORE_H */
