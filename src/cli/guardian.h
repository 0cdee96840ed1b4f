/*-------------------------------------------------------------------------
 *
 * guardian.h
 *	  The process that ends the command if this one cannot.
 *
 * IDENTIFICATION
 *	  src/cli/guardian.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef GUARDIAN_H
#define GUARDIAN_H

#include <sys/types.h>

#include "cli.h"

typedef struct Guardian
{
	pid_t		pid;			/* zero: none */
	int			fd;				/* what it is told by */
	pid_t		group;			/* what it has been told last */
	CliTime		kill_at;
	bool		has_fuse;
} Guardian;

extern bool guardian_start(Guardian *guardian);
extern void guardian_tell(Guardian *guardian, pid_t group, CliTime kill_at, CliTime fuse_at);
extern void guardian_defuse(void);
extern void guardian_look(Guardian *guardian);
extern void guardian_dismiss(Guardian *guardian);

#endif							/* GUARDIAN_H */
