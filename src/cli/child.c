/*-------------------------------------------------------------------------
 *
 * child.c
 *	  The command that is run.
 *
 * NOTES
 *	  It is executed in a process group of its own, which is what is signalled,
 *	  so that what it has started itself is reached too.  It does not begin
 *	  before the guardian knows of it: until then it waits for a word from us,
 *	  and ends if we are gone instead.  Afterwards the kernel kills it when we
 *	  die, and the guardian kills the rest of the group.
 *
 * IDENTIFICATION
 *	  src/cli/child.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "child.h"
#include "output.h"
#include "pipe.h"
#include "signals.h"

extern char **environ;

/* The pipes between a child and us before it is executed. */
typedef struct ChildPipes
{
	int			go[2];			/* a byte: go on */
	int			error[2];		/* errno; closed by a successful exec */
} ChildPipes;

static void
close_pipe(int *pipe)
{
	for (int i = 0; i < 2; i++)
	{
		if (pipe[i] >= 0)
			close(pipe[i]);
		pipe[i] = -1;
	}
}

static ssize_t
read_all(int fd, void *buffer, size_t size)
{
	ssize_t		got;

	do
		got = read(fd, buffer, size);
	while (got < 0 && errno == EINTR);
	return got;
}

/* In the new process.  Does not return. */
static void CLI_NORETURN
execute(ChildPipes *pipes, pid_t parent, int terminal, char *const *argv, char *const *environment)
{
	char		byte;
	int			error;

	signals_reset();
	setpgid(0, 0);
	if (terminal >= 0)
		terminal_give(terminal, getpgrp());
#ifdef __linux__
	prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
	close(pipes->go[1]);
	if (getppid() != parent || read_all(pipes->go[0], &byte, 1) != 1)
		_exit(CLI_EXIT_SYSTEM);

	environ = (char **) environment;
	execvp(argv[0], argv);
	error = errno;
	if (write(pipes->error[1], &error, sizeof(error)) < 0)
		_exit(CLI_EXIT_SYSTEM);
	_exit(CLI_EXIT_NOT_FOUND);
}

/* What has become of the exec?  Zero, or an exit code. */
static int
await_exec(Child *child, ChildPipes *pipes, const char *name)
{
	int			error = 0;
	int			code;

	close(pipes->error[1]);
	pipes->error[1] = -1;
	if (read_all(pipes->error[0], &error, sizeof(error)) != (ssize_t) sizeof(error))
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
 * Execute a command that is not to live longer than until "kill_at", for which the
 * guardian sees, or until the fuse goes off (guardian.c).  Returns zero
 * when it runs; otherwise the exit code that tells why not, after a message.
 */
int
child_start(Child *child, char *const *argv, char *const *environment,
			CliTime kill_at, CliTime fuse_at)
{
	ChildPipes	pipes = {{-1, -1}, {-1, -1}};
	pid_t		parent = getpid();
	int			terminal = -1;
	int			code;

	/* Nothing that is to be written must be in two processes. */
	output_flush();
	memset(child, 0, sizeof(*child));
	terminal_open(&child->terminal);
	if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && terminal_is_ours(&child->terminal))
		terminal = child->terminal.fd;
	child->had_terminal = terminal >= 0;

	if (!pipe_open(pipes.go) || !pipe_open(pipes.error) ||
		!guardian_start(&child->guardian) || (child->pid = fork()) < 0)
	{
		output_error(CLI_EXIT_SYSTEM, "could not start a process: %s", strerror(errno));
		child->ended = true;
		code = CLI_EXIT_SYSTEM;
	}
	else
	{
		if (child->pid == 0)
			execute(&pipes, parent, terminal, argv, environment);

		/* The child does the same; the first of the two counts. */
		setpgid(child->pid, child->pid);
		if (terminal >= 0)
			terminal_give(terminal, child->pid);
		guardian_tell(&child->guardian, child->pid, kill_at, fuse_at);
		(void) !write(pipes.go[1], "", 1);
		code = await_exec(child, &pipes, argv[0]);
	}
	close_pipe(pipes.go);
	close_pipe(pipes.error);
	if (code != 0)
		child_finish(child);
	return code;
}

/* Give the terminal to a child that needs it, if it is ours to give. */
static bool
lend_terminal(Child *child)
{
	if (!terminal_is_ours(&child->terminal))
		return false;
	terminal_give(child->terminal.fd, child->pid);
	child->had_terminal = true;
	return true;
}

static ChildState
look_at_stop(Child *child, int signo)
{
	if ((signo == SIGTTIN || signo == SIGTTOU) && lend_terminal(child))
	{
		child_signal(child, SIGCONT);
		return CHILD_RUNS;
	}
	/* Any other stop is the business of its sender. */
	return (child->terminal.fd >= 0 && (signo == SIGTSTP || signo == SIGTTIN || signo == SIGTTOU)) ?
		CHILD_STOPPED : CHILD_RUNS;
}

/* What has become of it?  To be called when there was a SIGCHLD. */
ChildState
child_look(Child *child)
{
	int			status;

	guardian_look(&child->guardian);
	if (child->ended)
		return CHILD_ENDED;
	if (waitpid(child->pid, &status, WNOHANG | WUNTRACED) != child->pid)
		return CHILD_RUNS;
	if (WIFSTOPPED(status))
		return look_at_stop(child, WSTOPSIG(status));

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
 * we have looked at them.
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
 */
void
child_suspend(Child *child)
{
	(void) terminal_take_back(&child->terminal, child->pid);

	/* This is a stop that the user knows of, and looks for the job after it. */
	guardian_tell(&child->guardian, child->pid, child->guardian.kill_at, CLI_FOREVER);

	/* In a group that no shell looks after this does nothing. */
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

/* The child is gone, or was never there.  Its guardian is not needed any more. */
void
child_finish(Child *child)
{
	guardian_dismiss(&child->guardian);
	if (child->pid > 0 && terminal_take_back(&child->terminal, child->pid) && child->signal != 0)
		terminal_restore(&child->terminal);
	terminal_close(&child->terminal);
}
