/*-------------------------------------------------------------------------
 *
 * hold.c
 *	  Run a command, and keep the lease that it runs under.
 *
 * NOTES
 *	  Between renewals the connection waits in dlock_watch, so a lease that is
 *	  taken away is noticed at once.  Where several can hold the lock that does
 *	  not tell of ours, and renewals come more often instead.  Whatever a watch
 *	  says, it is a renewal that decides whether the lease is ours.
 *
 *	  There are two ways to lose it, and they are told apart.  If the server says
 *	  that it is not ours any more, the command is stopped there and then; what
 *	  keeps others from the lock meanwhile is the lease's lock delay.  If the
 *	  server cannot be asked, the command goes on as long as the lease
 *	  surely lasts, and is stopped such that it is gone before the end.
 *
 *	  "Gone" means all of its process group.  When it is, a lease that was taken
 *	  away is released all the same: nothing was held, but the lock need not stay
 *	  closed any longer.
 *
 * IDENTIFICATION
 *	  src/cli/hold.c
 *
 *-------------------------------------------------------------------------
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "child.h"
#include "childenv.h"
#include "clock.h"
#include "duration.h"
#include "hold.h"
#include "loop.h"
#include "output.h"
#include "signals.h"

/* From the first signal to KILL, if nothing is said. */
#define KILL_AFTER		(5 * CLI_SECOND)

/* How much longer than that the lock stays closed, and that KILL is waited for. */
#define DELAY_MARGIN	(2 * CLI_SECOND)

/* A command that ends this soon need not wait for a watch to be cancelled. */
#define WATCH_AFTER		(100 * CLI_MS)

/* From one attempt at something to the next. */
#define RETRY_NAP		(500 * CLI_MS)
#define GROUP_NAP		(20 * CLI_MS)

/* Attempts to connect, at first, in a ttl. */
#define ATTEMPTS		10

/* How long an answer may take, and the release at the end. */
#define SLOWEST			(5 * CLI_SECOND)
#define RELEASE_WITHIN	(3 * CLI_SECOND)

static const char renew_sql[] =
"SELECT @dlock_renew_token($1, $2), w.token, w.owner FROM @dlock_watch($1, NULL, $3) w";
static const char watch_sql[] =
"SELECT w.token FROM @dlock_watch($1, $2, $3) w";

typedef enum HoldAsked
{
	ASKED_RENEW,
	ASKED_WATCH
} HoldAsked;

typedef struct Hold
{
	Conn	   *conn;
	const GrantRequest *request;
	const Options *options;
	const char *token;
	bool		watchable;
	Lease		lease;
	Child		child;

	HoldAsked	asked;			/* what the connection is busy with */
	CliTime		sent;
	CliTime		watch_at;
	char		seen[24];		/* token of the holder that is watched */

	bool		lost;			/* the server says so */
	bool		not_kept;		/* the command had to end before the lease does */
	bool		cut_off;		/* it has been said that the server is not there */
	bool		stopping;
	bool		killed;
	CliTime		kill_at;
	int			signal;
} Hold;

/* ---- before ---- */

/* A lock that only one can hold, so that a watch tells of our lease. */
static bool
is_watchable(const Options *options)
{
	return options->permits == NULL &&
		(options->mode == NULL || strcmp(options->mode, "exclusive") == 0 ||
		 strcmp(options->mode, "EX") == 0);
}

static int
take_words(HoldCommand *command, const Options *options, const char *of, int argc, char **argv)
{
	const char *shell = options->shell;
	int			first = 1;

	/* As flock(1) has it: -c behind the name, and one argument. */
	if (shell == NULL && argc > 1 &&
		(strcmp(argv[1], "-c") == 0 || strcmp(argv[1], "--command") == 0))
	{
		if (argc != 3)
		{
			output_error("option \"%s\" needs one argument, the command", argv[1]);
			return options_usage(of);
		}
		shell = argv[2];
		first = argc;
	}
	else if (argc > 1 && strcmp(argv[1], "--") == 0)
		first = 2;

	if (shell != NULL && *shell == '\0')
	{
		output_error("the command of -c is empty");
		return options_usage(of);
	}
	if ((shell != NULL) == (first < argc))
	{
		output_error((shell != NULL) ? "there is a command besides that of -c" : "no command is given");
		return options_usage(of);
	}
	command->argv = argv + first;
	if (shell != NULL)
	{
		command->words[0] = (char *) "/bin/sh";
		command->words[1] = (char *) "-c";
		command->words[2] = (char *) shell;
		command->words[3] = NULL;
		command->argv = command->words;
	}
	return CLI_EXIT_OK;
}

/*
 * See what is to be run from the arguments of command "of", and how the lease is
 * to be kept; complete the request for it.  Returns an exit code, after a message
 * if it is not zero.
 */
int
hold_prepare(HoldCommand *command, GrantRequest *request, const char *of, int argc, char **argv)
{
	const Options *options = request->options;
	bool		given = options->kill_after >= 0;
	CliTime		kill_after = given ? options->kill_after : KILL_AFTER;
	char		a[DURATION_SIZE];
	char		b[DURATION_SIZE];

	request->ttl = (options->ttl > 0) ? options->ttl : GRANT_TTL;
	if (!lease_plan(&command->plan, request->ttl, kill_after, !given, !is_watchable(options)))
	{
		output_error("a ttl of %s leaves no time to stop the command before the lease ends",
					 duration_print(request->ttl, a));
		if (given)
			output_hint("With --kill-after %s, use --ttl %s or more.", duration_print(kill_after, a),
						duration_print(lease_least_ttl(kill_after), b));
		else
			output_hint("Without --kill-after, use --ttl %s or more.",
						duration_print(lease_least_ttl(0), b));
		return options_usage(of);
	}
	request->lock_delay = (options->lock_delay >= 0) ? options->lock_delay :
		command->plan.kill_after + DELAY_MARGIN;
	return take_words(command, options, of, argc, argv);
}

/*
 * Acquire the lease, with enough of it left to begin.  A grant that is answered
 * long after it was asked for is asked for again: it is ours, and its time
 * begins anew; unless it was lost meanwhile.  If that takes long as well, so does
 * every answer, and it will do.
 */
GrantVerdict
hold_acquire(Conn *conn, const GrantRequest *request, Grant *grant, const HoldCommand *command)
{
	Lease		lease = {.plan = command->plan};
	bool		again = false;
	GrantVerdict verdict;

	memset(grant, 0, sizeof(*grant));
	for (;;)
	{
		CliTime		now;

		verdict = grant_acquire(conn, request, grant);
		if (verdict != GRANT_OURS)
			return verdict;
		lease_extend(&lease, grant->sent);
		now = clock_now();
		if (lease_is_fresh(&lease, now) || (again && lease_due(&lease, now) < LEASE_TERM))
			return verdict;
		again = true;
	}
}

/* ---- stopping the command ---- */

static CliTime
guard_at(const Hold *hold)
{
	return (hold->options->on_lost == ON_LOST_WARN) ? CLI_FOREVER : hold->lease.guard_at;
}

static void
kill_child(Hold *hold)
{
	child_signal(&hold->child, SIGKILL);
	hold->kill_at = clock_now();
	hold->stopping = hold->killed = true;
}

/* Ask the command to end, and kill it if it has not after a while. */
static void
stop_child(Hold *hold)
{
	if (hold->options->on_lost == ON_LOST_WARN || hold->stopping)
		return;
	hold->stopping = true;
	hold->kill_at = clock_now() + hold->lease.plan.kill_after;
	child_signal(&hold->child, hold->options->signal);
	child_signal(&hold->child, SIGCONT);
}

/*
 * If a signal was the end of the command, what it has started may still be at
 * work, or at cleaning up.  The lock is not for others before that is over.
 */
static void
end_rest(Hold *hold)
{
	if (!hold->child.ended || hold->stopping ||
		(hold->child.signal == 0 && hold->signal == 0) || !child_group_lives(&hold->child))
		return;
	hold->stopping = true;
	hold->kill_at = clock_now() + hold->lease.plan.kill_after;

	/* A signal that was not meant for the command alone has reached the rest, too. */
	if (hold->signal == 0 && !hold->child.had_terminal)
	{
		child_signal(&hold->child, hold->options->signal);
		child_signal(&hold->child, SIGCONT);
	}
}

/* The server says that the lease is not ours; its answer tells whose it is. */
static void
tell_lost(Hold *hold, const char *token, const char *owner)
{
	const char *what = (hold->options->on_lost == ON_LOST_WARN) ? "the command goes on without it" :
		"stopping the command";

	hold->lost = true;
	output_warning("the lease on \"%s\" is lost; %s", hold->request->name, what);
	if (token != NULL && strcmp(token, hold->token) != 0 && hold->watchable)
		output_detail("The lock is held by \"%s\" now, with token %s.", owner, token);
	else if (clock_now() < hold->lease.deadline)
		output_detail("It was released by force, or by somebody who knows its token.");
	else
		output_detail("It has expired.");
	stop_child(hold);
}

/* The lease ends soon, and the server could not be asked to renew it. */
static void
tell_not_kept(Hold *hold)
{
	const char *what = (hold->options->on_lost == ON_LOST_WARN) ? "the command goes on" :
		"stopping the command";

	hold->not_kept = true;
	output_warning("the lease on \"%s\" could not be renewed in time; %s", hold->request->name, what);
	if (hold->conn->state == CONN_IDLE || hold->conn->error.message == NULL)
		output_detail("This process was stopped, or did not get to run.");
	else
		output_detail("The server could not be reached: %s", hold->conn->error.message);
}

/* Do what the clock says is due for the command. */
static void
keep_time(Hold *hold)
{
	CliTime		now = clock_now();
	LeaseDue	due = lease_due(&hold->lease, now);

	if (hold->stopping && !hold->killed && (now >= hold->kill_at || (!hold->lost && due == LEASE_KILL)))
		kill_child(hold);
	if (hold->lost || hold->not_kept || due < LEASE_TERM || hold->stopping)
		return;
	tell_not_kept(hold);
	if (due == LEASE_KILL && hold->options->on_lost == ON_LOST_KILL)
		kill_child(hold);
	else
		stop_child(hold);
}

/* ---- asking the server ---- */

static void
send_renew(Hold *hold)
{
	const ConnParam params[] = {
		CONN_TEXT(hold->request->name), CONN_BIGINT(hold->token), CONN_INTERVAL("0")
	};

	hold->asked = ASKED_RENEW;
	hold->sent = clock_now();
	conn_send(hold->conn, CLI_MIN(SLOWEST, hold->lease.plan.ttl / 6), renew_sql, 3, params);
}

static void
send_watch(Hold *hold, CliTime within)
{
	char		wait[DURATION_SIZE];
	const ConnParam params[] = {
		CONN_TEXT(hold->request->name), CONN_BIGINT(hold->seen),
		CONN_INTERVAL(duration_sql(within, wait))
	};

	hold->asked = ASKED_WATCH;
	conn_send(hold->conn, within + CLI_MIN(SLOWEST, hold->lease.plan.ttl / 6), watch_sql, 3, params);
}

/* If the connection has nothing to do, give it something. */
static void
ask(Hold *hold)
{
	CliTime		now = clock_now();

	if (hold->conn->state != CONN_IDLE || hold->lost)
		return;
	if (now >= hold->lease.renew_at)
		send_renew(hold);
	else if (hold->watchable && now >= hold->watch_at)
		send_watch(hold, hold->lease.renew_at - now);
}

static void
take_renewal(Hold *hold)
{
	if (hold->conn->answer == NULL)
	{
		output_warning("the lease on \"%s\" was not renewed: %s", hold->request->name,
					   hold->conn->error.message);
		hold->lease.renew_at = clock_now() + RETRY_NAP;
		return;
	}
	if (!conn_is_true(hold->conn, 0))
	{
		tell_lost(hold, conn_value(hold->conn, 1), conn_value(hold->conn, 2));
		return;
	}
	lease_extend(&hold->lease, hold->sent);
	guardian_tell(&hold->child.guardian, hold->child.pid, guard_at(hold));
	if (hold->cut_off)
		output_warning("the lease on \"%s\" is renewed again", hold->request->name);
	hold->cut_off = false;
}

static void
take_watch(Hold *hold)
{
	const char *token;

	if (hold->conn->answer == NULL)
	{
		hold->watch_at = clock_now() + RETRY_NAP;
		return;
	}
	token = conn_value(hold->conn, 0);
	if (token != NULL && strcmp(token, hold->seen) == 0)
		return;

	/* See whether ours is still among them. */
	hold->lease.renew_at = clock_now();
	snprintf(hold->seen, sizeof(hold->seen), "%s", (token != NULL) ? token : hold->token);
}

static void
take_event(Hold *hold, ConnEvent event)
{
	switch (event)
	{
		case CONN_NOTHING:
			break;
		case CONN_UP:
			/* What happened meanwhile is not known. */
			hold->lease.renew_at = clock_now();
			break;
		case CONN_FAILED:
			if (!hold->cut_off && !hold->lost)
				output_warning("the server cannot be reached, trying again: %s", hold->conn->error.message);
			hold->cut_off = true;
			break;
		case CONN_ANSWERED:
			if (hold->asked == ASKED_RENEW)
				take_renewal(hold);
			else
				take_watch(hold);
			break;
	}
}

/* ---- signals ---- */

static void
take_signal(Hold *hold, int signo)
{
	switch (signo)
	{
		case 0:
			break;
		case SIGCHLD:
			if (child_look(&hold->child) != CHILD_STOPPED)
				break;
			child_suspend(&hold->child);
			/* FALLTHROUGH */
		case SIGCONT:
			/* The lease may be over by now, and then it must not run on. */
			keep_time(hold);
			if (!hold->stopping)
				child_resume(&hold->child);
			break;
		case SIGWINCH:
			/* The terminal has told the group in its foreground itself. */
			if (!hold->child.had_terminal)
				child_signal(&hold->child, signo);
			break;
		default:
			if (signals_is_fatal(signo))
				hold->signal = signo;
			child_signal(&hold->child, signo);
	}
}

/* ---- the end ---- */

/* Get the connection idle, however that goes; false if that takes too long. */
static bool
settle(Hold *hold)
{
	Conn	   *conn = hold->conn;
	CliTime		end = clock_now() + RELEASE_WITHIN;

	if (conn->state == CONN_BUSY && hold->asked == ASKED_WATCH)
		conn_cancel(conn);
	while ((conn->state != CONN_IDLE || conn->canceller != 0) && clock_now() < end)
	{
		LoopEvent	event = loop_wait(conn, end);

		/*
		 * Signals often come twice, as from timeout(1), so one is no reason to
		 * leave the lease behind while the server is there; but it is not waited for.
		 */
		if (signals_is_fatal(event.signal) && conn->state != CONN_BUSY && conn->state != CONN_IDLE)
			return false;
	}
	return conn->state == CONN_IDLE;
}

static void
release(Hold *hold)
{
	const char *name = hold->request->name;
	bool		was_held;

	if (settle(hold) && grant_release(hold->conn, name, hold->token, &was_held))
	{
		if (was_held || hold->lost || hold->not_kept)
			return;
		hold->lost = true;
		output_warning("the lease on \"%s\" was lost before the command had ended", name);
		return;
	}
	if (hold->lost || hold->not_kept)
		return;
	output_warning("the lease on \"%s\" could not be released, and ends by itself", name);
	if (hold->conn->error.message != NULL)
		output_detail("%s", hold->conn->error.message);
	hold->lost = clock_now() >= hold->lease.deadline;
}

/* Is all over that has to be waited for? */
static bool
is_over(const Hold *hold)
{
	if (!hold->child.ended)
		return false;

	/*
	 * What was started in the background may go on after an end that the command
	 * chose itself, but not after another one.
	 */
	if (!hold->stopping || !child_group_lives(&hold->child))
		return true;

	/* Who is not gone by now is dead and waits for a parent, or is not ours to kill. */
	return hold->killed && clock_now() >= hold->kill_at + DELAY_MARGIN;
}

/* When something is to be done though nothing happens. */
static CliTime
next_time(const Hold *hold)
{
	CliTime		next = CLI_FOREVER;

	if (hold->conn->state == CONN_IDLE && !hold->lost)
		next = hold->watchable ? CLI_MIN(hold->lease.renew_at, hold->watch_at) : hold->lease.renew_at;
	if (hold->child.ended)
		return CLI_MIN(next, clock_now() + GROUP_NAP);
	if (hold->stopping && !hold->killed)
		next = CLI_MIN(next, hold->kill_at);
	if (!hold->lost && !hold->not_kept)
		next = CLI_MIN(next, hold->lease.term_at);
	else if (!hold->lost && !hold->killed && hold->options->on_lost == ON_LOST_KILL)
		next = CLI_MIN(next, hold->lease.kill_at);
	return next;
}

/*
 * Run a command under the lease that has just been granted, and release it.
 */
HoldEnd
hold_run(Conn *conn, const GrantRequest *request, const Grant *grant, const HoldCommand *command)
{
	Hold		hold = {
		.conn = conn, .request = request, .options = request->options, .token = grant->token,
		.watchable = is_watchable(request->options),
		.lease.plan = command->plan,
		.watch_at = clock_now() + WATCH_AFTER
	};
	HoldEnd		end = {0};
	char	  **environment;

	conn->patience = command->plan.ttl / ATTEMPTS;
	lease_extend(&hold.lease, grant->sent);
	snprintf(hold.seen, sizeof(hold.seen), "%s", grant->token);
	environment = childenv_make(request->name, grant->token, request->owner,
								hold.lease.deadline - clock_now(),
								conn->takes_tokens && !request->options->no_tokens);
	end.code = child_start(&hold.child, command->argv, environment, guard_at(&hold));
	childenv_free(environment);

	while (end.code == CLI_EXIT_OK && !is_over(&hold))
	{
		LoopEvent	event;

		ask(&hold);
		event = loop_wait(conn, next_time(&hold));
		take_event(&hold, event.conn);
		take_signal(&hold, event.signal);
		keep_time(&hold);
		end_rest(&hold);
	}
	if (end.code == CLI_EXIT_OK)
	{
		end.code = hold.child.exit_code;
		child_finish(&hold.child);
	}

	release(&hold);
	conn->patience = 0;
	end.lost = hold.lost || hold.not_kept;
	end.signal = hold.signal;
	end.interrupted = hold.child.signal == SIGINT && hold.child.had_terminal;
	if (end.lost)
		end.code = CLI_EXIT_LOST;
	return end;
}
