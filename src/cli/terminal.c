/*-------------------------------------------------------------------------
 *
 * terminal.c
 *	  Whose the terminal is: ours or the command's.
 *
 * NOTES
 *	  The command has a process group of its own, so a shell or an editor can
 *	  use the terminal only if that group is the terminal's foreground group, as
 *	  a shell makes it for its jobs.
 *
 *	  It is, from the beginning, if both ends of the command are the terminal.
 *	  In "dlock run x gen | less" the terminal has to stay with the group that
 *	  we share with less.  A command that needs the terminal all the same, say
 *	  for a password, is stopped by the kernel when it uses it, and gets it then.
 *
 * IDENTIFICATION
 *	  src/cli/terminal.c
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "terminal.h"

/* The controlling terminal, if there is one. */
void
terminal_open(Terminal *terminal)
{
	terminal->fd = open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);
	terminal->has_modes = terminal->fd >= 0 && tcgetattr(terminal->fd, &terminal->modes) == 0;
}

void
terminal_close(Terminal *terminal)
{
	if (terminal->fd >= 0)
		close(terminal->fd);
	terminal->fd = -1;
}

/* Is our process group the one in the foreground? */
bool
terminal_is_ours(const Terminal *terminal)
{
	return terminal->fd >= 0 && tcgetpgrp(terminal->fd) == getpgrp();
}

/*
 * Make a process group the one in the foreground.  A process that does
 * that from the background would be stopped, hence the blocked signal.
 */
void
terminal_give(int fd, pid_t group)
{
	sigset_t	set;
	sigset_t	old;

	sigemptyset(&set);
	sigaddset(&set, SIGTTOU);
	sigprocmask(SIG_BLOCK, &set, &old);
	(void) tcsetpgrp(fd, group);
	sigprocmask(SIG_SETMASK, &old, NULL);
}

/* Take the terminal back from a process group; false if it did not have it. */
bool
terminal_take_back(const Terminal *terminal, pid_t from)
{
	if (terminal->fd < 0 || tcgetpgrp(terminal->fd) != from)
		return false;
	terminal_give(terminal->fd, getpgrp());
	return true;
}

/* What a command that was killed may have left behind. */
void
terminal_restore(const Terminal *terminal)
{
	if (terminal->has_modes && terminal_is_ours(terminal))
		(void) tcsetattr(terminal->fd, TCSADRAIN, &terminal->modes);
}
