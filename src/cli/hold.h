/*-------------------------------------------------------------------------
 *
 * hold.h
 *	  Acquire a lease, give it back, and keep it while a command runs.
 *
 *-------------------------------------------------------------------------
 */
#ifndef HOLD_H
#define HOLD_H

#include <sys/types.h>
#include <termios.h>

#include "lease.h"
#include "loop.h"
#include "options.h"

/* ---- the lease: grant.c ---- */

/* How long a request may take that does not wait for anybody. */
#define GRANT_WITHIN	(10 * CLI_SECOND)

/* Which lease, and what it is asked for with. */
typedef struct GrantRequest
{
	const char *name;
	const char *owner;
	bool		is_unique;		/* no other process uses this owner */
	CliTime		ttl;
	CliTime		lock_delay;
	const Options *options;
} GrantRequest;

typedef struct Grant
{
	char		token[24];
	CliTime		sent;			/* before the request that was answered */
	int			signal;
} Grant;

extern AskVerdict grant_acquire(Conn *conn, const GrantRequest *request, Grant *grant);
extern bool grant_release(Conn *conn, const char *name, const char *token, bool *was_held);
extern int	grant_explain(Conn *conn, const GrantRequest *request, const Grant *grant,
						  AskVerdict verdict);

/* ---- the process: child.c ---- */

typedef enum ChildState
{
	CHILD_RUNS,
	CHILD_STOPPED,				/* by its terminal: see child_suspend() */
	CHILD_ENDED					/* see "exit_code" */
} ChildState;

typedef struct Child
{
	pid_t		pid;			/* and its process group */
	bool		ended;
	int			exit_code;
	int			signal;			/* that ended it; zero: none did */

	int			terminal;		/* negative: there is none */
	bool		has_modes;
	struct termios modes;		/* of the terminal, as they were at first */
	bool		had_terminal;	/* it was given to it at least once */
} Child;

extern int	child_start(Child *child, char *const *argv, char *const *variables);
extern void child_kill_at(const Child *child, CliTime at);
extern ChildState child_check(Child *child);
extern void child_signal(Child *child, int signo);
extern bool child_group_lives(const Child *child);
extern void child_suspend(Child *child);
extern void child_resume(Child *child);
extern void child_finish(Child *child);

/* ---- the command: hold.c ---- */

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

extern int	hold_prepare(HoldCommand *command, GrantRequest *request, char **arguments);
extern AskVerdict hold_acquire(Conn *conn, const GrantRequest *request, Grant *grant,
							   const HoldCommand *command);
extern HoldEnd hold_run(Conn *conn, const GrantRequest *request, const Grant *grant,
						const HoldCommand *command);

#endif							/* HOLD_H */
