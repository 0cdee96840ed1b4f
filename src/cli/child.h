/*-------------------------------------------------------------------------
 *
 * child.h
 *	  The command that is run.
 *
 * IDENTIFICATION
 *	  src/cli/child.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef CHILD_H
#define CHILD_H

#include <sys/types.h>
#include <termios.h>

#include "cli.h"

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

extern int	child_start(Child *child, char *const *argv, char *const *environment);
extern void child_kill_at(const Child *child, CliTime at);
extern ChildState child_look(Child *child);
extern void child_signal(Child *child, int signo);
extern bool child_group_lives(const Child *child);
extern void child_suspend(Child *child);
extern void child_resume(Child *child);
extern void child_finish(Child *child);

#endif							/* CHILD_H */
