/*-------------------------------------------------------------------------
 *
 * guardian.c
 *	  The process that ends the command if this one cannot.
 *
 * NOTES
 *	  Should this process be killed, stopped, or stuck in a call that blocks,
 *	  the command that it runs must not outlive the lease.  So a small process
 *	  stands by.  It is told the process group of the command and until when the
 *	  lease is good, again after each renewal, over a socket; it kills the
 *	  group when that time has come, and when the socket is closed from the
 *	  other end, as the kernel does for a process that dies.
 *
 *	  It lives in a session of its own, so that what is done to our process
 *	  group, or to the terminal's, does not concern it; ignores what signals it
 *	  can; and keeps nothing open.  If it is killed all the same, there will be
 *	  another one; if it is stopped, it is continued.
 *
 *	  Both may be stopped.  So we have a fuse: a timer of the kernel that sends KILL
 *	  to this process, which ends a stopped process, too.  It is set for a moment
 *	  after the guardian's time.  Our death makes the kernel kill the command, and
 *	  continue the guardian, which kills the rest of the group.  If only we are
 *	  stopped, the guardian does its work and then continues us, so that we can put
 *	  the fuse out and end with an exit code.
 *
 * IDENTIFICATION
 *	  src/cli/guardian.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "clock.h"
#include "guardian.h"
#include "process.h"

/* What it is told. */
typedef struct GuardianOrder
{
	pid_t		group;			/* zero: nobody is to be killed any more */
	CliTime		kill_at;
	bool		has_fuse;		/* continue us then, to put it out */
} GuardianOrder;

/* The kernel ends this process at that time; CLI_FOREVER: it does not. */
static void
set_fuse(CliTime at)
{
#ifdef __linux__
	static timer_t timer;
	static bool is_there = false;
	struct sigevent event;
	struct itimerspec when;

	if (!is_there)
	{
		memset(&event, 0, sizeof(event));
		event.sigev_notify = SIGEV_SIGNAL;
		event.sigev_signo = SIGKILL;
		is_there = timer_create(CLOCK_BOOTTIME, &event, &timer) == 0;
	}
	memset(&when, 0, sizeof(when));
	if (at < CLI_FOREVER)
	{
		when.it_value.tv_sec = (time_t) (at / CLI_SECOND);
		when.it_value.tv_nsec = (long) (at % CLI_SECOND) * 1000;
	}
	if (is_there)
		(void) timer_settime(timer, TIMER_ABSTIME, &when, NULL);
#else
	(void) at;
#endif
}

static void
ignore_signals(void)
{
	static const int ignored[] = {
		SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGPIPE, SIGALRM,
		SIGTSTP, SIGTTIN, SIGTTOU, SIGWINCH
	};

	for (size_t i = 0; i < CLI_LENGTH(ignored); i++)
		signal(ignored[i], SIG_IGN);
}

static void CLI_NORETURN
stand_by(int fd, pid_t parent, GuardianOrder order)
{
	bool		is_time = false;

	for (;;)
	{
		struct pollfd pollfd = {fd, POLLIN, 0};
		GuardianOrder next;
		ssize_t		got;

		is_time = clock_now() >= order.kill_at;
		if (is_time)
			break;
		if (clock_poll(&pollfd, 1, order.kill_at) <= 0 || pollfd.revents == 0)
			continue;
		got = recv(fd, &next, sizeof(next), 0);
		if (got == (ssize_t) sizeof(next))
			order = next;
		else if (got >= 0 || (errno != EINTR && errno != EAGAIN))
			break;
	}
	if (order.group > 0)
		kill(-order.group, SIGKILL);
	if (is_time && order.has_fuse && getppid() == parent)
		kill(parent, SIGCONT);
	_exit(0);
}

/*
 * Start one that has this order from the beginning: should we be killed before we
 * can send one, it knows what to do.  False, and errno, if that fails.
 */
static bool
start(Guardian *guardian, GuardianOrder order)
{
	pid_t		parent = getpid();
	int			ends[2];

	memset(guardian, 0, sizeof(*guardian));
	guardian->group = order.group;
	guardian->kill_at = order.kill_at;
	guardian->has_fuse = order.has_fuse;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
		return false;
	guardian->pid = fork();
	if (guardian->pid == 0)
	{
		ignore_signals();
		setsid();
		process_detach(ends[1]);
		if (chdir("/") < 0)
			_exit(1);
#ifdef __linux__
		prctl(PR_SET_NAME, "dlock-guardian");
		prctl(PR_SET_PDEATHSIG, SIGCONT);
#endif
		stand_by(ends[1], parent, order);
	}
	close(ends[1]);
	guardian->fd = ends[0];
	if (guardian->pid > 0)
		return true;
	guardian->pid = 0;
	close(ends[0]);
	return false;
}

/* Start one.  It has nobody to kill yet.  False, and errno, if that fails. */
bool
guardian_start(Guardian *guardian)
{
	GuardianOrder order = {0, CLI_FOREVER, false};

	return start(guardian, order);
}

static bool
send_order(const Guardian *guardian)
{
	GuardianOrder order;

	memset(&order, 0, sizeof(order));
	order.group = guardian->group;
	order.kill_at = guardian->kill_at;
	order.has_fuse = guardian->has_fuse;
	return send(guardian->fd, &order, sizeof(order), MSG_NOSIGNAL | MSG_DONTWAIT) ==
		(ssize_t) sizeof(order);
}

static void
reap(Guardian *guardian)
{
	close(guardian->fd);
	while (waitpid(guardian->pid, NULL, 0) < 0 && errno == EINTR)
		;
	guardian->pid = 0;
}

/* Somebody has killed it: have another one. */
static void
replace(Guardian *guardian)
{
	GuardianOrder order = {guardian->group, guardian->kill_at, guardian->has_fuse};

	(void) start(guardian, order);
}

/*
 * The process group that must not live longer than until then, and when the fuse
 * goes off, which is later; CLI_FOREVER: it does not.
 */
void
guardian_tell(Guardian *guardian, pid_t group, CliTime kill_at, CliTime fuse_at)
{
	set_fuse(fuse_at);
	guardian->group = group;
	guardian->kill_at = kill_at;
	guardian->has_fuse = fuse_at < CLI_FOREVER;
	if (guardian->pid == 0)
		replace(guardian);
	else if (!send_order(guardian) && errno != EAGAIN)
	{
		reap(guardian);
		replace(guardian);
	}
}

/* Is it well?  To be called when there was a SIGCHLD. */
void
guardian_look(Guardian *guardian)
{
	int			status;

	if (guardian->pid == 0 ||
		waitpid(guardian->pid, &status, WNOHANG | WUNTRACED) != guardian->pid)
		return;
	if (WIFSTOPPED(status))
	{
		kill(guardian->pid, SIGCONT);
		return;
	}
	close(guardian->fd);
	guardian->pid = 0;
	replace(guardian);
}

/* All that could be done has been done by this process: put the fuse out. */
void
guardian_defuse(void)
{
	set_fuse(CLI_FOREVER);
}

/* It is not needed any more. */
void
guardian_dismiss(Guardian *guardian)
{
	guardian_defuse();
	if (guardian->pid == 0)
		return;

	/* It may be stopped, and is not waited for. */
	kill(guardian->pid, SIGKILL);
	reap(guardian);
}
