/*-------------------------------------------------------------------------
 *
 * hold.c
 *	  Run a command, and keep the lease that it runs under.
 *
 * NOTES
 *	  A renewal every second keeps the lease, and tells within a second that it
 *	  was taken away.  The connection is idle in between, so the end of the command
 *	  has nothing to cancel, and a pooler can lend the server's session to others.
 *	  Most renewals write nothing.
 *
 *	  There are two ways to lose it, and they are told apart.  If the server says
 *	  that it is not ours any more, the command is stopped there and then; after a
 *	  release by force the lease's lock delay keeps others out meanwhile.  If the
 *	  server cannot be asked, the command is stopped so that it is gone before the end.
 *
 *	  "Gone" means all of its process group.  When it is, a lease that was taken
 *	  away is released all the same: nothing was held, but the lock need not stay
 *	  closed any longer.
 *
 *-------------------------------------------------------------------------
 */
#include <ctype.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "hold.h"
#include "output.h"

/*
 * If nothing is said: the time to live, and from the first signal to KILL.  With
 * these the command outlasts a failover as Patroni does it by default, in up to 40 s.
 */
#define HOLD_TTL		(60 * CLI_SECOND)
#define KILL_AFTER		(5 * CLI_SECOND)

/* Added to kill_after: the lock delay, and the wait after KILL. */
#define DELAY_MARGIN	(2 * CLI_SECOND)

/* From one attempt at something to the next. */
#define RETRY_NAP		(500 * CLI_MS)
#define GROUP_NAP		(20 * CLI_MS)

/* Attempts to connect, at first, in a ttl. */
#define ATTEMPTS		10

/* How long an answer may take, and the release at the end. */
#define SLOWEST			(5 * CLI_SECOND)
#define RELEASE_WITHIN	(3 * CLI_SECOND)

/* What a renewal under way gets of that. */
#define HURRY_WITHIN	CLI_SECOND

static const char renew_sql[] = "SELECT @dlock_renew_token($1, $2)";

typedef struct Hold
{
	Conn	   *conn;
	const GrantRequest *request;
	const Options *options;
	const char *token;
	Lease		lease;
	Child		child;
	CliTime		sent;			/* the renewal that the connection is busy
								 * with */
	char	   *trouble;		/* why the last renewal failed; NULL: it did
								 * not */

	bool		lost;			/* the server says so, or it has expired */
	bool		not_kept;		/* not renewed before term_at */
	bool		stopping;
	bool		killed;
	CliTime		kill_at;
	int			signal;
} Hold;

/* ---- before ---- */

/* See what is to be run; false after a message. */
static bool
take_words(HoldCommand *command, const Options *options, char **words)
{
	const char *shell = options->shell;

	/* As flock(1) has it: -c behind the name, and one argument. */
	if (shell == NULL && *words != NULL && (strcmp(*words, "-c") == 0 || strcmp(*words, "--command") == 0))
	{
		if (words[1] == NULL || words[2] != NULL)
		{
			output_error(CLI_EXIT_USAGE, "option \"%s\" needs one argument, the command", *words);
			return false;
		}
		shell = words[1];
		words += 2;
	}
	else if (*words != NULL && strcmp(*words, "--") == 0)
		words++;

	if (shell != NULL && *shell == '\0')
		output_error(CLI_EXIT_USAGE, "the command of -c is empty");
	else if (shell == NULL && *words == NULL)
		output_error(CLI_EXIT_USAGE, "no command was given");
	else if (shell != NULL && *words != NULL)
		output_error(CLI_EXIT_USAGE, "a command is given twice, once by -c");
	else
	{
		command->words[0] = (char *) "/bin/sh";
		command->words[1] = (char *) "-c";
		command->words[2] = (char *) shell;
		command->words[3] = NULL;
		command->argv = (shell != NULL) ? command->words : words;
		return true;
	}
	return false;
}

/*
 * Read from the arguments what to run and how to keep the lease; complete the request.
 * Returns an exit code, after a message if it is not zero.
 */
int
hold_prepare(HoldCommand *command, GrantRequest *request, char **arguments)
{
	const Options *options = request->options;
	bool		may_shorten = options->kill_after < 0;
	CliTime		kill_after = (options->kill_after >= 0) ? options->kill_after : KILL_AFTER;
	LeasePlan  *plan = &command->plan;
	char		spans[4][DURATION_SIZE];

	request->ttl = (options->ttl > 0) ? options->ttl : HOLD_TTL;
	if (!lease_plan(plan, request->ttl, kill_after, may_shorten))
	{
		output_error(CLI_EXIT_USAGE, "a ttl of %s leaves no time to stop the command before the lease ends",
					 duration_print(request->ttl, spans[0]));
		output_hint("Use --ttl %s or more.", duration_print(lease_least_ttl(may_shorten ? 0 : kill_after), spans[0]));
		return options_usage(options->command);
	}
	request->lock_delay = (options->lock_delay >= 0) ? options->lock_delay :
		plan->kill_after + DELAY_MARGIN;
	output_info("outage budget: %s (ttl %s, renewed every %s, kill-after %s)",
				duration_print(lease_outage(plan), spans[0]), duration_print(plan->ttl, spans[1]),
				duration_print(plan->renew_every, spans[2]), duration_print(plan->kill_after, spans[3]));
	return take_words(command, options, arguments + 1) ? CLI_EXIT_OK : options_usage(options->command);
}

/*
 * Acquire the lease, with enough of it left to begin.  A grant that took long is
 * renewed first; if that takes long as well, it is accepted.
 */
AskVerdict
hold_acquire(Conn *conn, const GrantRequest *request, Grant *grant, const HoldCommand *command)
{
	Lease		lease = {.plan = command->plan};
	AskVerdict	verdict;

	output_never_wait();
	memset(grant, 0, sizeof(*grant));
	verdict = grant_acquire(conn, request, grant);
	for (bool again = false; verdict == ASK_GRANTED; again = true)
	{
		CliTime		now = clock_now();
		const ConnParam params[] = {CONN_TEXT(request->name), CONN_BIGINT(grant->token)};

		lease_extend(&lease, grant->sent);
		if (lease_is_fresh(&lease, now) || (again && now < lease.term_at))
			break;
		grant->sent = now;
		if (conn_ask(conn, GRANT_WITHIN, renew_sql, 2, params) == NULL || !conn_is_true(conn, 0))
			verdict = grant_acquire(conn, request, grant);
	}
	return verdict;
}

/* ---- stopping the command ---- */

/* Have the command killed in time though this process may be in a call that blocks. */
static void
kill_in_time(const Hold *hold)
{
	if (hold->options->on_lost == ON_LOST_KILL)
		child_kill_at(&hold->child, hold->lease.kill_at);
}

static void
kill_child(Hold *hold)
{
	child_signal(&hold->child, SIGKILL);
	hold->kill_at = clock_now();
	hold->stopping = hold->killed = true;
}

/* Have the command end, and kill it if it has not after a while; "is_asked": it has had a signal. */
static void
stop_child(Hold *hold, bool is_asked)
{
	if (hold->stopping)
		return;
	hold->stopping = true;
	hold->kill_at = clock_now() + hold->lease.plan.kill_after;
	if (is_asked)
		return;
	child_signal(&hold->child, hold->options->signal);
	child_signal(&hold->child, SIGCONT);
}

/* The lease is lost, or cannot be kept: end the command, and say so. */
static void
end_without_lease(Hold *hold, const char *what)
{
	bool		warn = hold->options->on_lost == ON_LOST_WARN;

	if (!warn && clock_now() >= hold->lease.kill_at)
		kill_child(hold);
	else if (!warn)
		stop_child(hold, false);
	output_warning("the lease on \"%s\" %s; %s", hold->request->name, what,
				   !warn ? "stopping the command" : "the command goes on without it");
}

/* The server says that the lease is not ours. */
static void
lose(Hold *hold)
{
	hold->lost = true;
	end_without_lease(hold, "is lost");
	if (clock_now() < hold->lease.deadline)
		output_detail("It ended before its deadline, as after a release by force.");
	else
		output_detail("It has expired.");
}

/* Do what the clock says is due for the command. */
static void
keep_time(Hold *hold)
{
	CliTime		now = clock_now();

	if (hold->stopping && !hold->killed && (now >= hold->kill_at || now >= hold->lease.kill_at))
		kill_child(hold);
	if (hold->lost || hold->not_kept || now < hold->lease.term_at || hold->stopping)
		return;
	hold->not_kept = true;
	end_without_lease(hold, "could not be renewed in time");
	if (hold->trouble == NULL)
		output_detail("This process was stopped, or did not get to run.");
	else
		output_detail("%c%s", toupper((unsigned char) hold->trouble[0]), hold->trouble + 1);
}

/* ---- asking the server ---- */

/* If the connection is idle and a renewal is due, ask for it. */
static void
ask(Hold *hold)
{
	const ConnParam params[] = {CONN_TEXT(hold->request->name), CONN_BIGINT(hold->token)};
	CliTime		now = clock_now();

	if (hold->conn->state != CONN_IDLE || hold->lost || now < hold->lease.renew_at)
		return;
	hold->sent = now;
	conn_send(hold->conn, CLI_MIN(SLOWEST, hold->lease.plan.ttl / 6), renew_sql, 2, params);
}

/* Note why a renewal failed; NULL: it did not.  Warn of the first failure alone. */
static void
set_trouble(Hold *hold, const char *what)
{
	char	   *trouble = (what != NULL) ? text_print("%s: %s", what, hold->conn->error.message) : NULL;

	if (trouble == NULL && hold->trouble != NULL)
		output_warning("the lease on \"%s\" is renewed again", hold->request->name);
	else if (trouble != NULL && hold->trouble == NULL && !hold->lost)
		output_warning("%s; trying again", trouble);
	else if (trouble != NULL)
		output_info("%s; trying again", trouble);
	free(hold->trouble);
	hold->trouble = trouble;
}

static void
take_event(Hold *hold, ConnEvent event)
{
	Conn	   *conn = hold->conn;
	bool		is_answer = event == CONN_ANSWERED && conn->answer != NULL;

	if (event == CONN_NOTHING)
		return;
	if (event == CONN_UP)
		hold->lease.renew_at = clock_now(); /* what happened meanwhile is not
											 * known */
	else if (event == CONN_FAILED)
		set_trouble(hold, "the server cannot be reached");
	else if (is_answer && conn_is_true(conn, 0))
	{
		lease_extend(&hold->lease, hold->sent);
		if (!hold->killed)
			kill_in_time(hold);
		set_trouble(hold, NULL);
	}
	else if (is_answer || (event == CONN_ANSWERED && conn->error.trouble == CONN_LOST))
		lose(hold);
	else
	{
		hold->lease.renew_at = clock_now() + RETRY_NAP;
		set_trouble(hold, "the server did not renew the lease");
		if (event == CONN_LATE)
			(void) conn_drop(conn);
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
			if (child_check(&hold->child) != CHILD_STOPPED)
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

/*
 * Get the connection idle, however that goes; false if that takes too long, or a signal
 * comes while there is no server.  Signals often come twice, as from timeout(1).
 */
static bool
settle(Hold *hold, CliTime end)
{
	Conn	   *conn = hold->conn;

	if (conn->state == CONN_BUSY)
		conn->at = CLI_MIN(conn->at, clock_now() + HURRY_WITHIN);
	while ((conn->state != CONN_IDLE || conn->canceller != 0) && clock_now() < end)
	{
		LoopEvent	event = loop_wait(conn, end);

		if (!signals_is_fatal(event.signal))
			continue;
		hold->signal = event.signal;
		if (conn->state != CONN_BUSY && conn->state != CONN_IDLE)
			return false;
	}
	return conn->state == CONN_IDLE;
}

/* A connection that breaks is made anew.  What was asked before may have been done unheard. */
static void
release(Hold *hold)
{
	const char *name = hold->request->name;
	CliTime		ended = clock_now();
	CliTime		end = ended + RELEASE_WITHIN;
	bool		was_held;
	bool		in_doubt = false;

	while (settle(hold, end))
	{
		if (grant_release(hold->conn, name, hold->token, &was_held))
		{
			/* What the command did not outlast has ended since, or by this. */
			if (was_held || hold->lost || hold->not_kept ||
				(ended < hold->lease.deadline && (in_doubt || clock_now() >= hold->lease.deadline)))
				return;
			hold->lost = true;
			output_warning("the lease on \"%s\" was lost before the command had ended", name);
			return;
		}
		if (hold->conn->state == CONN_IDLE)
			break;
		in_doubt = true;
	}
	if (hold->lost || hold->not_kept)
		return;
	output_warning("the lease on \"%s\" could not be released, and ends by itself", name);
	if (hold->conn->error.message != NULL)
		output_detail("%s", hold->conn->error.message);
	hold->lost = ended >= hold->lease.deadline;
}

/*
 * Is all over that has to be waited for?  After an end that the command chose, what it has
 * started in the background may go on.  After a signal the rest of the group may still be
 * at work, and the lock is not for others before that is over.
 */
static bool
is_over(Hold *hold)
{
	Child	   *child = &hold->child;

	if (!child->ended)
		return false;
	if ((!hold->stopping && child->signal == 0 && hold->signal == 0) || !child_group_lives(child))
		return true;

	/* A signal for all of the group has reached the rest, too. */
	stop_child(hold, hold->signal != 0 || child->had_terminal);

	/* What is still there waits for its parent, or is not ours to kill. */
	return hold->killed && clock_now() >= hold->kill_at + DELAY_MARGIN;
}

/* When something is to be done though nothing happens. */
static CliTime
next_time(const Hold *hold)
{
	CliTime		next = CLI_FOREVER;

	if (hold->conn->state == CONN_IDLE && !hold->lost)
		next = hold->lease.renew_at;
	if (hold->child.ended)
		return CLI_MIN(next, clock_now() + GROUP_NAP);
	if (hold->stopping && !hold->killed)
		next = CLI_MIN(next, CLI_MIN(hold->kill_at, hold->lease.kill_at));
	else if (!hold->lost && !hold->not_kept)
		next = CLI_MIN(next, hold->lease.term_at);
	return next;
}

/* Run a command under the lease that has just been granted, and release it. */
HoldEnd
hold_run(Conn *conn, const GrantRequest *request, const Grant *grant, const HoldCommand *command)
{
	Hold		hold = {
		.conn = conn,
		.request = request,
		.options = request->options,
		.token = grant->token,
		.lease.plan = command->plan
	};
	HoldEnd		end = {0};
	LeaseVariables variables;

	conn->patience = command->plan.ttl / ATTEMPTS;
	lease_extend(&hold.lease, grant->sent);
	lease_environment(variables, request->name, grant->token, request->owner,
					  hold.lease.deadline - clock_now(), conn->takes_tokens && !request->options->no_tokens);
	end.code = child_start(&hold.child, command->argv, variables);
	for (char **variable = variables; *variable != NULL; variable++)
		free(*variable);
	if (end.code == CLI_EXIT_OK)
	{
		kill_in_time(&hold);
		while (!is_over(&hold))
		{
			LoopEvent	event;

			ask(&hold);
			event = loop_wait(conn, next_time(&hold));
			take_event(&hold, event.conn);
			take_signal(&hold, event.signal);
			keep_time(&hold);
		}
		end.code = hold.child.exit_code;
		child_finish(&hold.child);
	}

	release(&hold);
	free(hold.trouble);
	conn->patience = 0;
	end.lost = hold.lost || hold.not_kept;
	end.signal = hold.signal;
	end.interrupted = hold.child.signal == SIGINT && hold.child.had_terminal;
	if (end.lost)
		end.code = CLI_EXIT_LOST;
	return end;
}
