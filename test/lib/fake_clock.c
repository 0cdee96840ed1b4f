/*
 * fake_clock.c
 *	  Lies to a server about the time and about the boot of its machine.
 *
 * For LD_PRELOAD.  The file named by FAKE_CLOCK_FILE holds "WALL BOOTTIME
 * BOOTID": seconds to add to the wall clock, seconds to add to the clock that
 * counts from the boot, and what the kernel's boot id shall be ("-": the true
 * one).  It is read anew each time, so the clocks of a server that runs can be
 * made to jump; replace it by rename, never write into it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define BOOT_ID_PATH "/proc/sys/kernel/random/boot_id"

struct lie
{
	long		wall;
	long		boottime;
	char		boot_id[64];
};

static struct lie
read_lie(void)
{
	struct lie	lie = {0, 0, "-"};
	const char *path = getenv("FAKE_CLOCK_FILE");
	char		buf[256];
	ssize_t		len = 0;
	int			fd;

	if (path == NULL)
		return lie;
	fd = (int) syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return lie;
	len = read(fd, buf, sizeof(buf) - 1);
	close(fd);
	if (len > 0)
	{
		buf[len] = '\0';
		(void) sscanf(buf, "%ld %ld %63s", &lie.wall, &lie.boottime, lie.boot_id);
	}
	return lie;
}

int
clock_gettime(clockid_t clock, struct timespec *ts)
{
	int			result = (int) syscall(SYS_clock_gettime, clock, ts);

	if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		ts->tv_sec += read_lie().wall;
	else if (result == 0 && clock == CLOCK_BOOTTIME)
		ts->tv_sec += read_lie().boottime;
	return result;
}

int
gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
	struct timespec ts;
	int			result = clock_gettime(CLOCK_REALTIME, &ts);

	(void) tz;
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return result;
}

time_t
time(time_t *t)
{
	struct timespec ts;

	(void) clock_gettime(CLOCK_REALTIME, &ts);
	if (t != NULL)
		*t = ts.tv_sec;
	return ts.tv_sec;
}

/* An open file that holds the boot id of the lie, or -1 to tell the truth. */
static int
open_boot_id(const char *path)
{
	struct lie	lie;
	int			fd;

	if (strcmp(path, BOOT_ID_PATH) != 0)
		return -1;
	lie = read_lie();
	if (strcmp(lie.boot_id, "-") == 0)
		return -1;
	fd = memfd_create("boot_id", MFD_CLOEXEC);
	if (fd >= 0 &&
		(dprintf(fd, "%s\n", lie.boot_id) < 0 || lseek(fd, 0, SEEK_SET) != 0))
	{
		close(fd);
		fd = -1;
	}
	return fd;
}

#define DEFINE_OPEN(name) \
int \
name(const char *path, int flags, ...) \
{ \
	int			fd = open_boot_id(path); \
	mode_t		mode = 0; \
\
	if (fd >= 0) \
		return fd; \
	if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) \
	{ \
		va_list		args; \
\
		va_start(args, flags); \
		mode = va_arg(args, mode_t); \
		va_end(args); \
	} \
	return (int) syscall(SYS_openat, AT_FDCWD, path, flags, mode); \
}

DEFINE_OPEN(open)
DEFINE_OPEN(open64)

#define DEFINE_FOPEN(name) \
FILE * \
name(const char *restrict path, const char *restrict mode) \
{ \
	static FILE *(*real) (const char *, const char *); \
	int			fd = open_boot_id(path); \
\
	if (fd >= 0) \
		return fdopen(fd, mode); \
	if (real == NULL) \
		real = (FILE *(*) (const char *, const char *)) dlsym(RTLD_NEXT, #name); \
	return real(path, mode); \
}

DEFINE_FOPEN(fopen)
DEFINE_FOPEN(fopen64)
