/*-------------------------------------------------------------------------
 *
 * dlock_guc.h
 *	  The settings of dlock.
 *
 * IDENTIFICATION
 *	  src/dlock_guc.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_GUC_H
#define DLOCK_GUC_H

/* What references of 32 bits to units of 8 bytes reach (dlock_memory.h). */
#define DLOCK_GUC_MAX_MEMORY_KB		(32 * 1024 * 1024 - 1)

extern int	dlock_guc_default_ttl_ms;
extern int	dlock_guc_max_ttl_s;
extern int	dlock_guc_max_memory_kb;
extern int	dlock_guc_max_leases;	/* negative: no limit */
extern int	dlock_guc_max_marks;	/* likewise */
extern int	dlock_guc_reap_interval_ms;
extern int	dlock_guc_max_reapers;
extern int	dlock_guc_max_clock_skew_ms;

extern void dlock_guc_define(void);

#endif							/* DLOCK_GUC_H */
