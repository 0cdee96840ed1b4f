/*-------------------------------------------------------------------------
 *
 * signals.c
 *	  Signals as events.
 *
 * NOTES
 *	  A handler writes the signal's number to a pipe, which event loops read.
 *	  A signal that was ignored when this process began, as nohup and shells
 *	  without job control arrange for, stays ignored.
 *
 * IDENTIFICATION
 *	  src/cli/signals.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "signals.h"

static const int caught[] =
{
	SIGCHLD, SIGCONT, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH
};

static int	ends[2] = {-1, -1};

static void
handle(int signo)
{
	unsigned char number = (unsigned char) signo;
	int			saved = errno;

	/* Should the pipe be full, there is enough to wake up for. */
	if (write(ends[1], &number, 1) < 0)
		errno = saved;
	errno = saved;
}

/* From now on signals are events.  May be called again. */
void
signals_catch(void)
{
	struct sigaction action;

	if (ends[0] < 0 && pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
		return;
	memset(&action, 0, sizeof(action));
	action.sa_handler = handle;
	action.sa_flags = SA_RESTART;
	sigfillset(&action.sa_mask);
	for (size_t i = 0; i < CLI_LENGTH(caught); i++)
	{
		struct sigaction old;

		if (sigaction(caught[i], NULL, &old) == 0 &&
			(old.sa_handler != SIG_IGN || caught[i] == SIGCHLD))
			sigaction(caught[i], &action, NULL);
	}
}

/* Signals do again what they do by default, unless they are ignored. */
void
signals_reset(void)
{
	for (size_t i = 0; i < CLI_LENGTH(caught); i++)
	{
		struct sigaction old;

		if (sigaction(caught[i], NULL, &old) == 0 && old.sa_handler == handle)
			signal(caught[i], SIG_DFL);
	}
}

/* The descriptor that is readable when a signal has come; -1 if none is caught. */
int
signals_fd(void)
{
	return ends[0];
}

/* The next signal that has come; zero if there is none. */
int
signals_next(void)
{
	unsigned char number;

	if (ends[0] < 0 || read(ends[0], &number, 1) != 1)
		return 0;
	return number;
}

/* Is this one that asks a process to end? */
bool
signals_is_fatal(int signo)
{
	return signo == SIGINT || signo == SIGTERM || signo == SIGHUP || signo == SIGQUIT;
}

/*
 * End as a signal asked for: by SIGINT itself, so that a shell that waits for
 * this process can tell; otherwise with an exit code, which is returned.
 */
int
signals_die(int signo)
{
	if (signo == SIGINT)
	{
		signals_reset();
		raise(SIGINT);
	}
	return CLI_EXIT_SIGNAL + signo;
}

/*
 * The terminal's user has interrupted the command that we have lent the terminal
 * to.  Without us, all of our process group would have got the signal, such as
 * the script that has called us.  Ends this process, or returns an exit code.
 */
int
signals_interrupt(void)
{
	signals_reset();
	kill(0, SIGINT);
	return CLI_EXIT_SIGNAL + SIGINT;
}
