/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  The only reader of time.
 *
 * NOTES
 *	  Deadlines run on CLOCK_BOOTTIME where there is one: like
 *	  CLOCK_MONOTONIC it never steps, and it goes on while the machine is
 *	  suspended, as the clocks of other machines do.  Its values can be compared
 *	  between processes, and between two runs of the server on one boot of the
 *	  machine.  The boot id tells boots apart.  A time namespace
 *	  (time_namespaces(7)) shifts the clock, so its offsets are part of that id.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "common/hashfn.h"
#include "utils/timestamp.h"

#include "base/clock.h"
#include "base/fault.h"

#ifdef CLOCK_BOOTTIME
#define LEASE_CLOCK		CLOCK_BOOTTIME
#else
#define LEASE_CLOCK		CLOCK_MONOTONIC
#endif

/* Set when the library is loaded; all processes of a server inherit it. */
static uint32 boot_id = 0;

/*
 * Fold the content of a small file of /proc into a hash; false if it cannot
 * be read.
 */
static bool
hash_file(const char *path, uint64 *hash)
{
	char		buf[256];
	ssize_t		len;
	int			fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	len = read(fd, buf, sizeof(buf));
	close(fd);
	if (len <= 0)
		return false;
	*hash = hash_bytes_extended((unsigned char *) buf, (int) len, *hash);
	return true;
}

/*
 * Read the boot id.  Called once, when the library is loaded.
 *
 * Without a boot id recovery always goes by the wall clock: zero, the unknown
 * boot, equals no boot, not even itself.
 */
void
dlock_clock_init(void)
{
	uint64		hash = 0;

	DLOCK_FAULT_CLOCK_INIT();
	if (!hash_file("/proc/sys/kernel/random/boot_id", &hash))
		return;
	(void) hash_file("/proc/self/timens_offsets", &hash);
	boot_id = DLOCK_FAULT_BOOT((uint32) (hash ^ (hash >> 32)));
	if (boot_id == 0)
		boot_id = 1;
}

/* Microseconds on the monotonic clock. */
DLockTime
dlock_clock_now(void)
{
	struct timespec ts;

	(void) clock_gettime(LEASE_CLOCK, &ts);
	return DLOCK_FAULT_TIME((DLockTime) ts.tv_sec * USECS_PER_SEC + ts.tv_nsec / 1000);
}

/* Wall-clock time, never that of the transaction's start. */
TimestampTz
dlock_clock_wall(void)
{
	return DLOCK_FAULT_WALL(GetCurrentTimestamp());
}

/*
 * Identify the boot and the timeline, for records.  The upper half has the boot
 * that dlock_clock_now() counts in, the lower half the server's timeline, which
 * is zero on a standby.  Zero if the boot is unknown.
 */
uint64
dlock_clock_origin(void)
{
	if (boot_id == 0)
		return 0;
	return ((uint64) boot_id << 32) | (RecoveryInProgress() ? 0 : GetWALInsertionTimeLine());
}

/*
 * Milliseconds to sleep from "now" until "until", at least one and at most
 * "at_most" (a span in microseconds, below 24 days).  Rounds up, so that the
 * sleeper does not wake just before its time.
 *
 * "at_most" is a last resort, in case "until" is wrong or a wake-up is lost.  It is ignored
 * where tests have stopped the clock.
 */
long
dlock_clock_nap_ms(DLockTime now, DLockTime until, DLockTime at_most)
{
	DLockTime	span = Min(until - now, at_most);

	return DLOCK_FAULT_NAP(until, Max(1L, (long) ((span + 999) / 1000)));
}
