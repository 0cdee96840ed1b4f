/*-------------------------------------------------------------------------
 *
 * flush.h
 *	  When the store's WAL records become durable.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_FLUSH_H
#define DLOCK_FLUSH_H

#include "access/xlogdefs.h"
#include "storage/latch.h"

#include "base/types.h"

extern void dlock_flush_request(void);
extern void dlock_flush_startup(void);

extern void dlock_flush_commit(XLogRecPtr lsn);
extern void dlock_flush_later(XLogRecPtr lsn, DLockTime now);

extern bool dlock_flush_is_confirmed(int level, XLogRecPtr lsn);
extern void dlock_flush_confirm_reported(void);

extern void dlock_flush_set_worker(Latch *latch);
extern bool dlock_flush_wake_worker(void);
extern DLockTime dlock_flush_pending(DLockTime now);

#endif							/* DLOCK_FLUSH_H */
