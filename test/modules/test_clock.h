/*-------------------------------------------------------------------------
 *
 * test_clock.h
 *	  A clock that tests set: the file that servers and commands read it from.
 *
 * NOTES
 *	  The library and the command read it in their builds for tests only ("make
 *	  FAULTS=1").  The environment variable DLOCK_TEST_CLOCK names a file with
 *	  the structure below, which all that take part map; so a server has the
 *	  same time before and after a crash, and two servers and a command have
 *	  one time.  Without the variable time is what the machine says.
 *
 *	  The file has one writer at a time, the test (test/lib/DLockClock.pm) or a
 *	  server on its behalf.  Readers need no lock.
 *
 *-------------------------------------------------------------------------
 */
#ifndef TEST_CLOCK_H
#define TEST_CLOCK_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* All times are in microseconds. */
typedef struct TestClock
{
	int64_t		frozen;			/* the time, if it stands still; zero: it runs */
	int64_t		skipped;		/* what is added to a running clock */
	int64_t		wall_ahead;		/* wall clock (since 1970) minus a frozen one */
	int64_t		boots;			/* how often the machine was booted anew */
} TestClock;

/* Map the file; NULL if there is none. */
static inline TestClock *
test_clock_map(void)
{
	const char *path = getenv("DLOCK_TEST_CLOCK");
	void	   *map;
	int			fd;

	if (path == NULL || (fd = open(path, O_RDWR | O_CLOEXEC)) < 0)
		return NULL;
	map = mmap(NULL, sizeof(TestClock), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return (map == MAP_FAILED) ? NULL : (TestClock *) map;
}

/* The time on this clock, for what the machine's says. */
static inline int64_t
test_clock_time(const TestClock *clock, int64_t machine)
{
	int64_t		frozen = __atomic_load_n(&clock->frozen, __ATOMIC_SEQ_CST);

	return (frozen != 0) ? frozen : machine + __atomic_load_n(&clock->skipped, __ATOMIC_SEQ_CST);
}

/* The wall clock likewise, since 1970. */
static inline int64_t
test_clock_wall(const TestClock *clock, int64_t machine)
{
	int64_t		frozen = __atomic_load_n(&clock->frozen, __ATOMIC_SEQ_CST);

	return (frozen != 0) ?
		frozen + __atomic_load_n(&clock->wall_ahead, __ATOMIC_SEQ_CST) :
		machine + __atomic_load_n(&clock->skipped, __ATOMIC_SEQ_CST);
}

/* Let time pass at once. */
static inline void
test_clock_advance(TestClock *clock, int64_t span)
{
	(void) __atomic_fetch_add(__atomic_load_n(&clock->frozen, __ATOMIC_SEQ_CST) != 0 ?
							  &clock->frozen : &clock->skipped, span, __ATOMIC_SEQ_CST);
}

#endif							/* TEST_CLOCK_H */
