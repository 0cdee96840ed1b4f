/*-------------------------------------------------------------------------
 *
 * pipe.c
 *	  Pipes that no program that is run inherits.
 *
 * NOTES
 *	  As pipe2() makes them, which macOS does not have.  Between the two calls
 *	  nothing is executed, as this process has one thread.
 *
 * IDENTIFICATION
 *	  src/cli/pipe.c
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <unistd.h>

#include "pipe.h"

/* Open a pipe whose ends close when a program is executed; false with errno. */
bool
pipe_open(int ends[2])
{
	if (pipe(ends) < 0)
		return false;
	for (int i = 0; i < 2; i++)
		(void) fcntl(ends[i], F_SETFD, FD_CLOEXEC);
	return true;
}
