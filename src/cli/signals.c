/*-------------------------------------------------------------------------
 *
 * signals.c
 *	  Signals as events.
 *
 * NOTES
 *	  A handler writes the signal's number to a pipe, which event loops read.
 *	  A signal that was ignored when this process began, as nohup and shells
 *	  without job control arrange for, stays ignored.  One that was blocked does not
 *	  stay blocked: without it, the end of a command would not be noticed.
 *
 *	  A message that nobody can read, or that has to wait for the terminal, must
 *	  not end or stop the process that keeps a lease, so the signals that come of
 *	  it are ignored.  The command that is run finds all of this as it was.
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

#include "pipe.h"
#include "signals.h"

static const int caught[] =
{
	SIGCHLD, SIGCONT, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH
};

/* Ignored, if they have their default action. */
static const int unwanted[] = {SIGPIPE, SIGTTOU};

static bool ignoring[CLI_LENGTH(unwanted)];
static sigset_t inherited;		/* signals that were blocked */
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

/* Ignore what a message to the wrong place would bring about.  May be called again. */
void
signals_ignore_unwanted(void)
{
	for (size_t i = 0; i < CLI_LENGTH(unwanted); i++)
	{
		struct sigaction old;

		if (sigaction(unwanted[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
			ignoring[i] = signal(unwanted[i], SIG_IGN) != SIG_ERR;
	}
}

/* From now on signals are events.  May be called again. */
void
signals_catch(void)
{
	struct sigaction action;
	sigset_t	set;

	if (ends[0] < 0)
	{
		if (!pipe_open(ends))
			return;
		for (int i = 0; i < 2; i++)
			(void) fcntl(ends[i], F_SETFL, O_NONBLOCK);
		sigprocmask(SIG_SETMASK, NULL, &inherited);
	}
	signals_ignore_unwanted();
	memset(&action, 0, sizeof(action));
	action.sa_handler = handle;
	action.sa_flags = SA_RESTART;
	sigfillset(&action.sa_mask);
	sigemptyset(&set);
	for (size_t i = 0; i < CLI_LENGTH(caught); i++)
	{
		struct sigaction old;

		if (sigaction(caught[i], NULL, &old) == 0 &&
			(old.sa_handler != SIG_IGN || caught[i] == SIGCHLD))
			sigaction(caught[i], &action, NULL);
		sigaddset(&set, caught[i]);
	}
	sigprocmask(SIG_UNBLOCK, &set, NULL);
}

/* Signals do again what they did when this process began. */
void
signals_reset(void)
{
	if (ends[0] >= 0)
		sigprocmask(SIG_SETMASK, &inherited, NULL);
	for (size_t i = 0; i < CLI_LENGTH(caught); i++)
	{
		struct sigaction old;

		if (sigaction(caught[i], NULL, &old) == 0 && old.sa_handler == handle)
			signal(caught[i], SIG_DFL);
	}
	for (size_t i = 0; i < CLI_LENGTH(unwanted); i++)
	{
		if (ignoring[i])
			signal(unwanted[i], SIG_DFL);
		ignoring[i] = false;
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
