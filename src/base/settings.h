/*-------------------------------------------------------------------------
 *
 * settings.h
 *	  The settings of dlock.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SETTINGS_H
#define DLOCK_SETTINGS_H

#include "base/types.h"

/* What references of 32 bits to units of 8 bytes reach (space/memory.h). */
#define DLOCK_SETTINGS_MAX_MEMORY_KB		(32 * 1024 * 1024 - 1)

extern int	dlock_settings_default_ttl_ms;
extern int	dlock_settings_max_ttl_s;
extern int	dlock_settings_max_memory_kb;
extern int	dlock_settings_max_leases;	/* negative: no limit */
extern int	dlock_settings_max_clock_skew_ms;
extern bool dlock_settings_log_expirations;
extern bool dlock_settings_grants;

/* One "name=token" of dlock.tokens. */
typedef struct DLockSettingsToken
{
	DLockBytes	name;
	bool		any;			/* "*": any name that is not in the list */
	DLockToken	token;
} DLockSettingsToken;

extern void dlock_settings_define(void);
extern DLockToken dlock_settings_token(const DLockBytes *name);
extern int	dlock_settings_tokens(const DLockSettingsToken **pairs);

#endif							/* DLOCK_SETTINGS_H */
