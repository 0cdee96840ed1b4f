/*-------------------------------------------------------------------------
 *
 * child.c
 *	  The command that is run.
 *
 * NOTES
 *	  It is executed in a process group of its own, which is what is signalled,
 *	  so that what it has started itself is reached, too.
 *
 *	  It must not outlive its lease.  A timer kills the group should this process
 *	  be in a call that blocks just then, such as of the name resolver.  If this
 *	  process is killed, the kernel kills the child (PR_SET_PDEATHSIG, on Linux),
 *	  but not what the child has started, nor a child that has changed its user or
 *	  has executed a file that does so.  A process that is stopped does nothing in
 *	  time.  What fencing tokens protect needs none of this.
 *
 *	  A shell or an editor can use the terminal only if its group is the terminal's
 *	  foreground group, as a shell makes it for its jobs.  It is, from the
 *	  beginning, if both ends of the command are the terminal.  In
 *	  "dlock run x gen | less" the terminal has to stay with the group that we share
 *	  with less.  A command that needs it all the same, say for a password, is
 *	  stopped by the kernel when it uses it, and gets it then.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "hold.h"
#include "output.h"

/* How often to kill a group that should be dead, in microseconds. */
#define KILL_AGAIN	100000

/* What the timer kills, and when; zero: nothing. */
static volatile pid_t doomed = 0;
static volatile CliTime doomed_at;
static struct sigaction old_alarm;

/* ---- the terminal ---- */

/* Is our process group the one in the foreground? */
static bool
has_terminal(const Child *child)
{
	return child->terminal >= 0 && tcgetpgrp(child->terminal) == getpgrp();
}

/*
 * Make a process group the one in the foreground.  A process that does
 * that from the background would be stopped, hence the blocked signal.
 */
static void
give_terminal(int fd, pid_t group)
{
	sigset_t	set;
	sigset_t	old;

	sigemptyset(&set);
	sigaddset(&set, SIGTTOU);
	sigprocmask(SIG_BLOCK, &set, &old);
	(void) tcsetpgrp(fd, group);
	sigprocmask(SIG_SETMASK, &old, NULL);
}

/* Give the terminal to a child that needs it, if it is ours to give. */
static bool
lend_terminal(Child *child)
{
	if (!has_terminal(child))
		return false;
	give_terminal(child->terminal, child->pid);
	child->had_terminal = true;
	return true;
}

/* Take the terminal back; false if the child did not have it. */
static bool
take_terminal(const Child *child)
{
	if (child->terminal < 0 || tcgetpgrp(child->terminal) != child->pid)
		return false;
	give_terminal(child->terminal, getpgrp());
	return true;
}

/* ---- the beginning ---- */

/* In the new process.  Does not return. */
static void CLI_NORETURN
execute(int report, pid_t parent, int terminal, char *const *argv, char *const *variables)
{
	int			error;

	signals_reset();
	if (doomed_at != 0)
		sigaction(SIGALRM, &old_alarm, NULL);
	setpgid(0, 0);
	if (terminal >= 0)
		give_terminal(terminal, getpgrp());
#ifdef __linux__
	prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
	/* The parent may have died before that. */
	if (getppid() != parent)
		_exit(CLI_EXIT_SYSTEM);

	for (; *variables != NULL; variables++)
		putenv(*variables);
	execvp(argv[0], argv);
	error = errno;
	(void) !write(report, &error, sizeof(error));
	_exit(CLI_EXIT_NOT_FOUND);
}

/* What has become of the exec?  Zero, or an exit code. */
static int
await_exec(Child *child, int report, const char *name)
{
	int			error = 0;
	int			code;
	ssize_t		got;

	do
		got = read(report, &error, sizeof(error));
	while (got < 0 && errno == EINTR);
	if (got != (ssize_t) sizeof(error))
		return 0;
	code = (error == ENOENT || error == ENOTDIR) ?
		CLI_EXIT_NOT_FOUND : CLI_EXIT_NOT_EXECUTABLE;
	output_error(code, "could not execute \"%s\": %s", name, strerror(error));
	if (name[0] == '-')
		output_hint("Options come before NAME.");
	while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR)
		;
	child->ended = true;
	return code;
}

/*
 * Execute a command, with variables, "NAME=value", in its environment.  Returns zero
 * when it runs; otherwise the exit code that tells why not, after a message.
 */
int
child_start(Child *child, char *const *argv, char *const *variables)
{
	int			report[2] = {-1, -1};	/* errno; closed by a successful exec */
	pid_t		parent = getpid();
	int			terminal = -1;
	int			code;

	/* Nothing that is to be written must be in two processes. */
	output_flush();
	memset(child, 0, sizeof(*child));
	child->terminal = open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);
	child->has_modes = child->terminal >= 0 && tcgetattr(child->terminal, &child->modes) == 0;
	if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && has_terminal(child))
		terminal = child->terminal;
	child->had_terminal = terminal >= 0;

	if (!loop_pipe(report) || (child->pid = fork()) < 0)
	{
		output_error(CLI_EXIT_SYSTEM, "could not start a process: %s", strerror(errno));
		child->ended = true;
		code = CLI_EXIT_SYSTEM;
	}
	else
	{
		if (child->pid == 0)
			execute(report[1], parent, terminal, argv, variables);

		/* The child does the same; the first of the two counts. */
		setpgid(child->pid, child->pid);
		if (terminal >= 0)
			give_terminal(terminal, child->pid);
		close(report[1]);
		report[1] = -1;
		code = await_exec(child, report[0], argv[0]);
	}
	for (int i = 0; i < 2; i++)
	{
		if (report[i] >= 0)
			close(report[i]);
	}
	if (code != 0)
		child_finish(child);
	return code;
}

/* ---- the timer ---- */

static void
kill_doomed(int signo)
{
	int			saved = errno;

	(void) signo;
	if (doomed > 0 && clock_now() >= doomed_at)
		kill(-doomed, SIGKILL);
	errno = saved;
}

/*
 * Kill the child and its group at that time, whatever this process is doing then;
 * CLI_FOREVER: do not.
 */
void
child_kill_at(const Child *child, CliTime at)
{
	struct itimerval timer = {{0, KILL_AGAIN}, {0, 0}};
	CliTime		span = CLI_MAX(at - clock_now(), CLI_MS);
	struct sigaction action;
	sigset_t	set;

	doomed = 0;
	if (at == CLI_FOREVER)
	{
		memset(&timer, 0, sizeof(timer));
		(void) setitimer(ITIMER_REAL, &timer, NULL);
		return;
	}
	if (doomed_at == 0)
	{
		memset(&action, 0, sizeof(action));
		action.sa_handler = kill_doomed;
		action.sa_flags = SA_RESTART;
		sigaction(SIGALRM, &action, &old_alarm);
		sigemptyset(&set);
		sigaddset(&set, SIGALRM);
		sigprocmask(SIG_UNBLOCK, &set, NULL);
	}
	doomed_at = at;
	doomed = child->pid;
	timer.it_value.tv_sec = (time_t) (span / CLI_SECOND);
	timer.it_value.tv_usec = (suseconds_t) (span % CLI_SECOND);
	(void) setitimer(ITIMER_REAL, &timer, NULL);
}

/* ---- while it runs ---- */

static ChildState
take_stop(Child *child, int signo)
{
	if ((signo == SIGTTIN || signo == SIGTTOU) && lend_terminal(child))
	{
		child_signal(child, SIGCONT);
		return CHILD_RUNS;
	}
	/* Any other stop is the business of its sender. */
	return (child->terminal >= 0 && (signo == SIGTSTP || signo == SIGTTIN || signo == SIGTTOU)) ?
		CHILD_STOPPED : CHILD_RUNS;
}

/* What has become of it?  To be called when there was a SIGCHLD. */
ChildState
child_check(Child *child)
{
	int			status;

	if (child->ended)
		return CHILD_ENDED;
	if (waitpid(child->pid, &status, WNOHANG | WUNTRACED) != child->pid)
		return CHILD_RUNS;
	if (WIFSTOPPED(status))
		return take_stop(child, WSTOPSIG(status));

	child->ended = true;
	child->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	child->exit_code = WIFSIGNALED(status) ?
		CLI_EXIT_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
	return CHILD_ENDED;
}

/* Send a signal to the child and all that it has started in its group. */
void
child_signal(Child *child, int signo)
{
	kill(-child->pid, signo);
}

/*
 * Does a process of its group live still?  To be called after its end.  Processes
 * that were left to us, as to the first one of a container, are dead only when
 * we have waited for them.
 */
bool
child_group_lives(const Child *child)
{
	while (waitpid(-child->pid, NULL, WNOHANG) > 0)
		;
	return kill(-child->pid, 0) == 0 || errno == EPERM;
}

/*
 * The terminal has stopped the child: stop with it, so that the shell that has
 * started us notices.  Returns when we are continued; child_resume() has to follow.
 * In a group without a shell this does nothing.
 */
void
child_suspend(Child *child)
{
	(void) take_terminal(child);
	kill(0, SIGTSTP);
}

/* We have been continued: let the child go on, in the foreground if we are there. */
void
child_resume(Child *child)
{
	if (child->had_terminal)
		(void) lend_terminal(child);
	child_signal(child, SIGCONT);
}

/* The child is gone, or was never there. */
void
child_finish(Child *child)
{
	child_kill_at(child, CLI_FOREVER);

	/* What a command that was killed may have left behind. */
	if (child->pid > 0 && take_terminal(child) && child->signal != 0 && child->has_modes)
		(void) tcsetattr(child->terminal, TCSADRAIN, &child->modes);
	if (child->terminal >= 0)
		close(child->terminal);
	child->terminal = -1;
}
