/*-------------------------------------------------------------------------
 *
 * terminal.h
 *	  Whose the terminal is: ours or the command's.
 *
 * IDENTIFICATION
 *	  src/cli/terminal.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef TERMINAL_H
#define TERMINAL_H

#include <sys/types.h>
#include <termios.h>

#include "cli.h"

typedef struct Terminal
{
	int			fd;				/* negative: there is none */
	bool		has_modes;
	struct termios modes;		/* as they were at first */
} Terminal;

extern void terminal_open(Terminal *terminal);
extern void terminal_close(Terminal *terminal);
extern bool terminal_is_ours(const Terminal *terminal);
extern void terminal_give(int fd, pid_t group);
extern bool terminal_take_back(const Terminal *terminal, pid_t from);
extern void terminal_restore(const Terminal *terminal);

#endif							/* TERMINAL_H */
