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
} GuardianOrder;

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
stand_by(int fd, GuardianOrder order)
{
	for (;;)
	{
		struct pollfd pollfd = {.fd = fd, .events = POLLIN};
		GuardianOrder next;
		ssize_t		got;

		if (clock_now() >= order.kill_at)
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
	_exit(0);
}

/*
 * Start one that has this order from the beginning: should we be killed before we
 * can send one, it knows what to do.  False, and errno, if that fails.
 */
static bool
start(Guardian *guardian, GuardianOrder order)
{
	int			ends[2];

	memset(guardian, 0, sizeof(*guardian));
	guardian->group = order.group;
	guardian->kill_at = order.kill_at;
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
#endif
		stand_by(ends[1], order);
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
	return start(guardian, (GuardianOrder) {0, CLI_FOREVER});
}

static bool
send_order(const Guardian *guardian)
{
	GuardianOrder order;

	memset(&order, 0, sizeof(order));
	order.group = guardian->group;
	order.kill_at = guardian->kill_at;
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
	(void) start(guardian, (GuardianOrder) {guardian->group, guardian->kill_at});
}

/* The process group that must not live longer than until then. */
void
guardian_tell(Guardian *guardian, pid_t group, CliTime kill_at)
{
	guardian->group = group;
	guardian->kill_at = kill_at;
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

/* It is not needed any more. */
void
guardian_dismiss(Guardian *guardian)
{
	if (guardian->pid == 0)
		return;

	/* It may be stopped, and is not waited for. */
	kill(guardian->pid, SIGKILL);
	reap(guardian);
}
