/*-------------------------------------------------------------------------
 *
 * loop.c
 *	  Waiting for the connection, signals and the clock at a time, and requests
 *	  that wait.
 *
 * NOTES
 *	  A handler writes the signal's number to a pipe, which the loop reads.
 *	  A signal that was ignored when this process began, as nohup and shells
 *	  without job control arrange for, stays ignored.  One that was blocked does not
 *	  stay blocked: without it, the end of a command would not be noticed.
 *
 *	  A message that has no reader, or that has to wait for the terminal, must
 *	  not end or stop the process that keeps a lease, so the signals that come of
 *	  it are ignored.  The command that is run finds all of this as it was.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "loop.h"
#include "output.h"

/* What becomes of signals, unless they were ignored before. */
static struct
{
	int			signo;
	bool		ignored;		/* otherwise it is an event */
	bool		is_set;
	struct sigaction before;
}			table[] =

{
	{.signo = SIGPIPE,.ignored = true},
	{.signo = SIGTTOU,.ignored = true},
	{.signo = SIGCHLD},
	{.signo = SIGCONT},
	{.signo = SIGINT},
	{.signo = SIGTERM},
	{.signo = SIGHUP},
	{.signo = SIGQUIT},
	{.signo = SIGUSR1},
	{.signo = SIGUSR2},
	{.signo = SIGWINCH},
};

static sigset_t inherited;		/* signals that were blocked */
static int	ends[2] = {-1, -1};

/*
 * Open a pipe that no program that is run inherits; false with errno.  As pipe2()
 * does, which macOS does not have.  Between the two calls nothing is executed, as
 * this process has one thread.
 */
bool
loop_pipe(int pair[2])
{
	if (pipe(pair) < 0)
		return false;
	for (int i = 0; i < 2; i++)
		(void) fcntl(pair[i], F_SETFD, FD_CLOEXEC);
	return true;
}

/* ---- signals ---- */

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

static void
set_actions(bool events, sigset_t *set)
{
	struct sigaction action;

	memset(&action, 0, sizeof(action));
	action.sa_flags = SA_RESTART;
	sigfillset(&action.sa_mask);
	for (size_t i = 0; i < CLI_LENGTH(table); i++)
	{
		int			signo = table[i].signo;

		if (table[i].is_set || (!table[i].ignored && !events) || sigaction(signo, NULL, &table[i].before) < 0)
			continue;
		action.sa_handler = table[i].ignored ? SIG_IGN : handle;
		table[i].is_set = (table[i].before.sa_handler != SIG_IGN || signo == SIGCHLD) &&
			sigaction(signo, &action, NULL) == 0;
		if (!table[i].ignored)
			sigaddset(set, signo);
	}
}

/* Ignore what a message to the wrong place would bring about. */
void
signals_ignore_unwanted(void)
{
	set_actions(false, NULL);
}

/* From now on signals are events. */
void
signals_catch(void)
{
	sigset_t	set;

	if (!loop_pipe(ends))
		return;
	for (int i = 0; i < 2; i++)
		(void) fcntl(ends[i], F_SETFL, O_NONBLOCK);
	sigemptyset(&set);
	set_actions(true, &set);
	sigprocmask(SIG_UNBLOCK, &set, &inherited);
}

/* Signals do again what they did when this process began. */
void
signals_reset(void)
{
	for (size_t i = 0; i < CLI_LENGTH(table); i++)
	{
		if (table[i].is_set)
			sigaction(table[i].signo, &table[i].before, NULL);
		table[i].is_set = false;
	}
	if (ends[0] >= 0)
		sigprocmask(SIG_SETMASK, &inherited, NULL);
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

/* ---- waiting ---- */

/*
 * Wait until something happens, or the time has come; an event in which nothing
 * has happened may come earlier.
 */
LoopEvent
loop_wait(Conn *conn, CliTime until)
{
	LoopEvent	event = {0, CONN_NOTHING};
	struct pollfd fds[2];
	int			nconn = conn_events(conn, &fds[0]);
	unsigned char signo;

	/* Those that came before this was called are in the pipe. */
	output_flush();
	fds[nconn].fd = ends[0];
	fds[nconn].events = POLLIN;
	if (clock_poll(fds, nconn + 1, CLI_MIN(until, conn_wake(conn))) < 0)
		return event;

	if (fds[nconn].revents != 0 && read(ends[0], &signo, 1) == 1)
		event.signal = signo;
	event.conn = conn_step(conn, (nconn > 0) ? fds[0].revents : 0);
	return event;
}

/*
 * Wait until the time has come or, "for_connection", the connection is idle.  Returns
 * zero then; otherwise the signal that asked for an end.
 */
int
loop_pause(Conn *conn, CliTime until, bool for_connection)
{
	while (clock_now() < until && !(for_connection && conn->state == CONN_IDLE))
	{
		LoopEvent	event = loop_wait(conn, until);

		if (signals_is_fatal(event.signal))
			return event.signal;
	}
	return 0;
}

/* ---- requests that wait ---- */

/* Remember what the answer grants. */
static void
note(Ask *ask)
{
	if (ask->kind->note != NULL)
		ask->kind->note(ask);
}

/*
 * A signal has come: stop waiting, and give back what may have been granted at that
 * moment.  The answer may even have come together with the signal.
 */
static AskVerdict
undo(Ask *ask, LoopEvent event)
{
	Conn	   *conn = ask->conn;
	CliTime		end = clock_now() + ASK_UNDO_WITHIN;

	ask->signal = event.signal;
	conn_cancel(conn);
	for (;;)
	{
		if (event.conn == CONN_ANSWERED || event.conn == CONN_LATE)
			note(ask);
		if (event.conn == CONN_FAILED && conn->schema != NULL)
			ask->in_doubt = true;

		/* A pooler may not like the canceller to vanish. */
		if ((conn->state != CONN_BUSY && conn->canceller == 0) || clock_now() >= end)
			break;
		event = loop_wait(conn, end);
	}
	if (conn->state == CONN_BUSY)
	{
		ask->in_doubt = true;
		(void) conn_drop(conn);
	}
	if (ask->kind->give_back != NULL)
		ask->kind->give_back(ask, clock_now() + ASK_UNDO_WITHIN);
	return ASK_SIGNALLED;
}

/*
 * The server has not done in time what it was asked to.  It may have granted it, and
 * wait for a standby that is to have that, too: that is no grant.
 */
static AskVerdict
give_up(Ask *ask, ConnEvent event)
{
	if (event == CONN_LATE)
		note(ask);
	else
		ask->in_doubt = true;
	if (ask->kind->give_back != NULL)
		ask->kind->give_back(ask, clock_now() + ASK_UNDO_WITHIN);
	if (event == CONN_LATE)
		conn_set_late(ask->conn);
	return ASK_FAILED;
}

/* Wait for a connection; ASK_AGAIN if there is one. */
static AskVerdict
connect_for(Ask *ask)
{
	Conn	   *conn = ask->conn;

	while (conn->state != CONN_IDLE)
	{
		LoopEvent	event = loop_wait(conn, CLI_FOREVER);

		if (signals_is_fatal(event.signal))
			return undo(ask, event);
		if (event.conn == CONN_FAILED)
		{
			if (!conn_may_pass(conn, ask->was_up) || clock_now() >= ask->end)
				return ASK_FAILED;
			output_info("%s; trying again", conn->error.message);
		}
	}
	ask->was_up = true;
	return ASK_AGAIN;
}

/* Send the statement once, and wait for the answer. */
static AskVerdict
ask_once(Ask *ask)
{
	const AskKind *kind = ask->kind;
	Conn	   *conn = ask->conn;
	CliTime		left = (ask->end < CLI_FOREVER) ? CLI_MAX(ask->end - clock_now(), 0) : CLI_FOREVER;
	LoopEvent	event;

	kind->send(ask, ask->was_answered ? CLI_MIN(left, kind->longest) : 0);
	do
	{
		event = loop_wait(conn, CLI_FOREVER);
		if (signals_is_fatal(event.signal))
			return undo(ask, event);
	} while (event.conn == CONN_NOTHING);

	if (event.conn == CONN_ANSWERED)
	{
		ask->was_answered = true;
		note(ask);
		return kind->take(ask);
	}
	if ((event.conn == CONN_LATE && kind->give_back != NULL) || clock_now() >= clock_add(ask->end, kind->grace))
		return give_up(ask, event.conn);

	/* One that has become a standby may be replaced; one that was, is not. */
	if (conn->error.trouble == CONN_READ_ONLY && !ask->in_doubt && !ask->was_answered)
		return ASK_FAILED;
	/* A watcher has no other sign that it sees nothing. */
	output_message((kind->give_back != NULL) ? OUTPUT_VERBOSE : OUTPUT_NORMAL,
				   (kind->give_back != NULL) ? "info" : "warning", "%s; connecting again", conn->error.message);
	ask->in_doubt = true;
	return ASK_AGAIN;
}

/*
 * Ask until there is an answer that counts, the time is up or a signal comes.  A
 * connection that is lost meanwhile is made anew, but there has to have been one.
 */
AskVerdict
loop_ask(Ask *ask)
{
	AskVerdict	verdict;

	do
	{
		verdict = connect_for(ask);
		if (verdict == ASK_AGAIN)
			verdict = ask_once(ask);
	} while (verdict == ASK_AGAIN);
	return verdict;
}

/*
 * Send what has to be done before we leave, and wait for it.  A cancel that was late for another
 * statement may hit this one, so it is sent three times.  False if it was not done.
 */
bool
loop_insist(Conn *conn, CliTime within, const char *sql, int count, const ConnParam *params)
{
	CliTime		end = clock_now() + within;
	CliTime		left;

	for (int attempt = 0; attempt < 3 && (left = end - clock_now()) > 0; attempt++)
	{
		if (conn_ask(conn, left, sql, count, params) != NULL)
			return true;
		if (conn->state != CONN_IDLE || conn->error.trouble != CONN_INTERRUPTED)
			break;
	}
	return false;
}
