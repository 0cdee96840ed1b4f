/*-------------------------------------------------------------------------
 *
 * renew.h
 *	  Renew leases.
 *
 * IDENTIFICATION
 *	  src/lock/renew.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_RENEW_H
#define DLOCK_RENEW_H

#include "lock/find.h"

extern bool dlock_renew_lease(DLockDatabase *db, const DLockFindTarget *target,
							  DLockTime ttl);
extern int	dlock_renew_refs(DLockDatabase *db, DLockSpaceRef *refs, int count,
							 DLockTime ttl, XLogRecPtr *lsn);
extern int	dlock_renew_all(DLockDatabase *db, const DLockBytes *owner_name,
							DLockTime ttl);

#endif							/* DLOCK_RENEW_H */
