/*-------------------------------------------------------------------------
 *
 * dlock_manager.h
 *	  Acquire, renew, release, expire, check.
 *
 * IDENTIFICATION
 *	  src/dlock_manager.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_MANAGER_H
#define DLOCK_MANAGER_H

#include "dlock_database.h"
#include "dlock_types.h"

/* What a caller asks for. */
typedef struct DLockManagerRequest
{
	DLockBytes	name;
	DLockBytes	owner;
	DLockBytes	payload;
	DLockTime	ttl;
	Oid			role;
} DLockManagerRequest;

/* How a lease is named. */
typedef enum DLockManagerBy
{
	DLOCK_BY_OWNER,				/* name and owner */
	DLOCK_BY_TOKEN,				/* name and token */
	DLOCK_BY_REF,				/* hash of the name, and token */
	DLOCK_BY_NAME				/* name alone: whoever holds it */
} DLockManagerBy;

typedef struct DLockManagerTarget
{
	DLockManagerBy by;
	uint32		hash;			/* of the name */
	DLockBytes	name;
	DLockBytes	owner;
	DLockToken	token;
} DLockManagerTarget;

/* On whose account a lease is renewed or released. */
typedef enum DLockManagerRight
{
	DLOCK_RIGHT_ROLE,			/* the current user's; throw if it may not */
	DLOCK_RIGHT_ROLE_SKIP,		/* the current user's; leave it if it may not */
	DLOCK_RIGHT_FORCE			/* anybody's */
} DLockManagerRight;

/* What is known of a lease that was ended, for a log line. */
typedef struct DLockManagerEnded
{
	DLockToken	token;
	Oid			role;
	int			owner_len;
	char		owner[DLOCK_OWNER_MAX];
} DLockManagerEnded;

extern DLockToken dlock_manager_acquire(DLockDatabase *db,
										const DLockManagerRequest *request);
extern bool dlock_manager_renew(DLockDatabase *db, const DLockManagerTarget *target,
								DLockTime ttl);
extern int	dlock_manager_renew_all(DLockDatabase *db, const DLockBytes *owner,
									DLockTime ttl);
extern bool dlock_manager_release(DLockDatabase *db, const DLockManagerTarget *target,
								  DLockManagerRight right, DLockManagerEnded *ended);
extern int	dlock_manager_release_all(DLockDatabase *db, const DLockBytes *owner);
extern bool dlock_manager_check(DLockDatabase *db, const DLockManagerTarget *target);
extern DLockTime dlock_manager_expire(DLockDatabase *db, uint32 hash, DLockToken token);

#endif							/* DLOCK_MANAGER_H */
