/*-------------------------------------------------------------------------
 *
 * clock.h
 *	  The clock that deadlines are kept by, and waiting on it.
 *
 * IDENTIFICATION
 *	  src/cli/clock.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef CLOCK_H
#define CLOCK_H

#include <poll.h>

#include "cli.h"

extern CliTime clock_now(void);
extern CliTime clock_add(CliTime a, CliTime b);
extern int	clock_poll(struct pollfd *fds, int count, CliTime until);

#endif							/* CLOCK_H */
