/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  The settings of dlock and their ranges.
 *
 * NOTES
 *	  There are no settings for what synchronous_commit and wal_writer_delay
 *	  already control.
 *
 * IDENTIFICATION
 *	  src/base/settings.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "utils/guc.h"

#include "base/settings.h"

int			dlock_settings_default_ttl_ms = 30 * 1000;
int			dlock_settings_max_ttl_s = 24 * 60 * 60;
int			dlock_settings_max_memory_kb = 64 * 1024;
int			dlock_settings_max_leases = -1;
int			dlock_settings_max_marks = -1;
int			dlock_settings_reap_interval_ms = 10 * 1000;
int			dlock_settings_max_reapers = 3;
int			dlock_settings_max_clock_skew_ms = 10 * 1000;
bool		dlock_settings_log_expirations = false;

/*
 * Define the settings while shared_preload_libraries is processed; a
 * PGC_POSTMASTER setting cannot be defined later.  The prefix is not reserved
 * here, since dlock.tokens is defined elsewhere.
 */
void
dlock_settings_define(void)
{
	DefineCustomIntVariable("dlock.default_ttl",
							"Time to live of a lease that is acquired without a ttl.",
							NULL,
							&dlock_settings_default_ttl_ms,
							30 * 1000, 1, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("dlock.max_ttl",
							"Longest time to live that a lease may ask for.",
							NULL,
							&dlock_settings_max_ttl_s,
							24 * 60 * 60, 1, INT_MAX,
							PGC_SUSET, GUC_UNIT_S,
							NULL, NULL, NULL);

	DefineCustomIntVariable("dlock.max_memory",
							"Shared memory for the leases of all databases.",
							"A lease with a short name and owner takes less than 256 bytes.",
							&dlock_settings_max_memory_kb,
							64 * 1024, 1024, DLOCK_SETTINGS_MAX_MEMORY_KB,
							PGC_POSTMASTER, GUC_UNIT_KB,
							NULL, NULL, NULL);

	DefineCustomIntVariable("dlock.max_leases",
							"Most leases of a role in a database, waiting requests included.",
							"-1 means no limit.",
							&dlock_settings_max_leases,
							-1, -1, INT_MAX,
							PGC_SUSET, 0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("dlock.max_marks",
							"Most resources whose fence a role has passed last with a higher token.",
							"-1 means no limit.",
							&dlock_settings_max_marks,
							-1, -1, INT_MAX,
							PGC_SUSET, 0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("dlock.reap_interval",
							"Longest nap of a worker that removes expired leases.",
							"After six of these without work, or after a minute, it leaves.  A lease ends at its deadline whatever this says.",
							&dlock_settings_reap_interval_ms,
							10 * 1000, 10, 60 * 60 * 1000,
							PGC_SIGHUP, GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("dlock.max_reapers",
							"How many workers remove expired leases at the same time.",
							"A lease ends at its deadline even if there is none.",
							&dlock_settings_max_reapers,
							3, 0, 1024,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("dlock.max_clock_skew",
							"How far wall clocks may disagree when leases are loaded on another boot or machine.",
							"A lease loaded so is kept longer by this, but never for more than two ttl.",
							&dlock_settings_max_clock_skew_ms,
							10 * 1000, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomBoolVariable("dlock.log_expirations",
							 "Logs each lease that has expired.",
							 "The line is written when the lease is removed.",
							 &dlock_settings_log_expirations,
							 false,
							 PGC_SIGHUP, 0,
							 NULL, NULL, NULL);
}
