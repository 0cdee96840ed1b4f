/*-------------------------------------------------------------------------
 *
 * hold.h
 *	  Run a command, and keep the lease that it runs under.
 *
 * IDENTIFICATION
 *	  src/cli/hold.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef HOLD_H
#define HOLD_H

#include "grant.h"
#include "lease.h"

/* The command that is to be run under a lease. */
typedef struct HoldCommand
{
	char	   *words[4];		/* of sh -c STRING */
	char	  **argv;
	LeasePlan	plan;
} HoldCommand;

/* How it came to an end. */
typedef struct HoldEnd
{
	int			code;			/* exit code */
	bool		lost;			/* the lease was lost, or could not be kept */
	int			signal;			/* that asked us to end, and was passed on; or
								 * zero */
	bool		interrupted;	/* the terminal's user has ended it */
} HoldEnd;

extern int	hold_prepare(HoldCommand *command, GrantRequest *request, const char *of,
						 int argc, char **argv);
extern GrantVerdict hold_acquire(Conn *conn, const GrantRequest *request, Grant *grant,
								 const HoldCommand *command);
extern HoldEnd hold_run(Conn *conn, const GrantRequest *request, const Grant *grant,
						const HoldCommand *command);

#endif							/* HOLD_H */
