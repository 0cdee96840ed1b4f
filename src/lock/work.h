/*-------------------------------------------------------------------------
 *
 * work.h
 *	  A piece of work on leases: what it has, and what it lacks.
 *
 * IDENTIFICATION
 *	  src/lock/work.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_WORK_H
#define DLOCK_WORK_H

#include "storage/block.h"
#include "storage/buf.h"

#include "base/types.h"
#include "space/database.h"
#include "space/space.h"

/* Pages that single operations may need pinned at a time. */
#define DLOCK_WORK_PINS	8

typedef struct DLockWorkPin
{
	BlockNumber block;
	Buffer		buffer;
} DLockWorkPin;

/*
 * A piece of work: what it has, what it lacks, and what it has yet to do once
 * its locks are given up.
 */
typedef struct DLockWork
{
	DLockDatabase *db;			/* without db->rel, pages cannot be changed */
	DLockTime	now;			/* read under the partition lock */
	XLogRecPtr	lsn;			/* end of the last record written */

	/* Pinned pages; the oldest makes way when there is no more room. */
	int			npins;
	int			pin_room;
	int			oldest_pin;
	DLockWorkPin *pins;
	DLockWorkPin few_pins[DLOCK_WORK_PINS];

	/* What the last step lacked: see dlock_grant_fetch(). */
	DLockSlot	missing_slot;
	int			missing_tokens;
	DLockToken	missing_path;	/* of a lease on a path that is to be ended ... */
	int			path_len;
	char		path[DLOCK_NAME_MAX];	/* ... and which */
} DLockWork;

/* without partition locks */
extern void dlock_work_begin(DLockWork *work, DLockDatabase *db);
extern void dlock_work_end(DLockWork *work);
extern void dlock_work_finish(DLockWork *work);
extern bool dlock_work_need_pins(DLockWork *work, int count);
extern void dlock_work_fetch(DLockWork *work);

/* under partition locks */
extern void dlock_work_make_room(DLockWork *work, int count);
extern bool dlock_work_pin(DLockWork *work, DLockSlot slot);
extern Buffer dlock_work_page(DLockWork *work, DLockSlot slot);
extern bool dlock_work_tokens(DLockWork *work, int count, DLockToken *first);

#endif							/* DLOCK_WORK_H */
