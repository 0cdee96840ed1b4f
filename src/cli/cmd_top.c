/*-------------------------------------------------------------------------
 *
 * cmd_top.c
 *	  dlock top: watch locks on the screen.
 *
 * NOTES
 *	  One loop waits for the connection, the keyboard, signals and the time of
 *	  the next look.  A connection that is lost is made anew by itself, a look
 *	  that was cancelled, or met a deadlock with a change of the extension, is
 *	  repeated, and the screen keeps what was seen last; only a refusal that
 *	  will not pass, such as of a password, ends the command.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_top.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "commands.h"
#include "output.h"
#include "screen.h"
#include "signals.h"
#include "top_draw.h"

#define INTERVAL	CLI_SECOND

/* More leases than anybody looks through on a screen are not fetched. */
#define MOST_LEASES	"1000"

typedef struct Top
{
	const Options *options;
	Conn		conn;
	TopLook		look;
	TopView		view;
	bool		batch;
	CliTime		interval;
	CliTime		next;			/* when to look again */
	int			looks;			/* so far */
	bool		is_drawn;		/* the screen shows the state of affairs */
	char	   *title;
	char	   *trouble;
	bool		is_over;
	int			code;
} Top;

static void
end(Top *top, int code)
{
	top->is_over = true;
	top->code = code;
}

static const char *
limit(const Top *top)
{
	return top->batch ? NULL : MOST_LEASES;
}

/* ---- the screen ---- */

static void
set_title(Top *top)
{
	PGconn	   *pg = top->conn.pg;

	free(top->title);
	top->title = text_print("dlock %s: %s on %s:%s", DLOCK_VERSION, PQdb(pg), PQhost(pg), PQport(pg));
	top->view.title = top->title;
}

static void
set_trouble(Top *top, char *trouble)
{
	free(top->trouble);
	top->trouble = trouble;
	top->view.trouble = trouble;
	top->is_drawn = false;
}

/* The screen has another size, or somebody else has written to it. */
static void
begin_view(Top *top)
{
	memset(&top->view.leases, 0, sizeof(top->view.leases));
	memset(&top->view.waiters, 0, sizeof(top->view.waiters));
	screen_size(&top->view.columns, &top->view.lines);
	top->is_drawn = false;
}

static void
draw(Top *top)
{
	Text	   *lines = text_alloc((size_t) top->view.lines * sizeof(*lines));

	top_draw_screen(&top->look, &top->view, lines);
	top->is_drawn = screen_show(lines, top->view.lines);
	for (int i = 0; i < top->view.lines; i++)
		text_free(&lines[i]);
	free(lines);
}

/* What a key does; all but scrolling asks for a new look. */
static void
press(Top *top, int key)
{
	TopView    *view = &top->view;

	top->is_drawn = false;
	if (view->help && key != 'q' && key != 'Q' && key != SCREEN_GONE && key != SCREEN_SUSPEND)
	{
		view->help = false;
		return;
	}
	switch (key)
	{
		case '?':
			view->help = true;
			break;
		case 'q':
		case 'Q':
			end(top, CLI_EXIT_OK);
			break;
		case SCREEN_GONE:
			end(top, CLI_EXIT_SIGNAL + SIGHUP);
			break;
		case SCREEN_SUSPEND:
			screen_suspend();
			begin_view(top);
			break;
		case SCREEN_UP:
		case 'k':
			view->first--;
			break;
		case SCREEN_DOWN:
		case 'j':
			view->first++;
			break;
		case SCREEN_PAGE_UP:
			view->first -= view->page;
			break;
		case SCREEN_PAGE_DOWN:
			view->first += view->page;
			break;
		case SCREEN_HOME:
			view->first = 0;
			break;
		case SCREEN_END:
			view->first = top_look_rows(&top->look, TOP_LEASES);
			break;
		case 'o':
			view->order = (TopOrder) ((view->order + 1) % TOP_NORDERS);
			view->first = 0;
			top->next = clock_now();
			break;
		case ' ':
			top->next = clock_now();
			break;
		default:
			break;
	}
	view->first = CLI_MAX(view->first, 0);
}

/* ---- the server ---- */

static void
begin_look(Top *top)
{
	top->next = CLI_FOREVER;
	top_look_begin(&top->look, &top->conn, top->view.order, limit(top));
}

/* All has been answered.  A server that takes long for it is not kept busy with it. */
static void
end_look(Top *top)
{
	CliTime		now = clock_now();
	int			code;

	top->next = CLI_MAX(top->look.began + top->interval, now + (now - top->look.began));
	top->looks++;
	top->is_drawn = false;
	if (top->trouble != NULL)
		set_trouble(top, NULL);
	if (top->batch)
	{
		if (output_is_json())
			top_look_print_json(&top->look);
		else
			top_draw_plain(&top->look, stdout);
		code = output_finish();
		if (code != CLI_EXIT_OK)
			end(top, code);
	}
	if (top->options->count > 0 && top->looks >= top->options->count)
		end(top, CLI_EXIT_OK);
}

/* May the next look succeed, after this trouble? */
static bool
may_pass(ConnTrouble trouble)
{
	return trouble == CONN_UNREACHABLE || trouble == CONN_STARTING ||
		trouble == CONN_INTERRUPTED || trouble == CONN_DEADLOCK;
}

/* The connection, or a statement, has failed. */
static void
fail(Top *top)
{
	bool		is_connected = top->conn.state == CONN_IDLE;

	top_look_forget(&top->look);
	if (!may_pass(top->conn.error.trouble))
	{
		screen_end();
		end(top, conn_report(&top->conn));
		return;
	}
	if (top->batch && top->trouble == NULL)
	{
		output_warning("%s", top->conn.error.message);
		output_detail("%s", is_connected ? "The look is repeated." : "The connection is being made anew.");
	}
	set_trouble(top, text_print("Old, for %s: %s", is_connected ? "the last look failed" : "there is no connection",
								top->conn.error.message));
	top->next = clock_now() + top->interval;
}

static void
happen(Top *top, ConnEvent event)
{
	switch (event)
	{
		case CONN_NOTHING:
			break;
		case CONN_UP:
			set_title(top);
			top->next = clock_now();
			break;
		case CONN_FAILED:
		case CONN_LATE:
			fail(top);
			break;
		case CONN_ANSWERED:
			if (top->conn.answer == NULL)
				fail(top);
			else if (top_look_continue(&top->look, &top->conn, top->view.order, limit(top)))
				end_look(top);
			break;
	}
}

/* ---- the loop ---- */

static void
take_signal(Top *top, int signo)
{
	if (signals_is_fatal(signo))
	{
		screen_end();
		end(top, signals_die(signo));
	}
	else if (!top->batch && signo == SIGCONT)
	{
		screen_enter();
		begin_view(top);
	}
	else if (!top->batch && signo == SIGWINCH)
		begin_view(top);
}

static void
wait_and_act(Top *top)
{
	struct pollfd fds[3];
	int			nconn = conn_events(&top->conn, &fds[0]);
	int			count = nconn;
	CliTime		until = conn_wake(&top->conn);
	int			key;

	if (top->conn.state == CONN_IDLE)
		until = CLI_MIN(until, top->next);
	fds[count].fd = signals_fd();
	fds[count++].events = POLLIN;
	if (!top->batch)
	{
		fds[count].fd = screen_fd();
		fds[count++].events = POLLIN;
	}
	output_flush();
	if (clock_poll(fds, count, until) < 0)
		return;

	if (fds[nconn].revents != 0)
		take_signal(top, signals_next());
	while (!top->is_over && !top->batch && (key = screen_key()) != SCREEN_NO_KEY)
		press(top, key);
	if (!top->is_over)
		happen(top, conn_step(&top->conn, (nconn > 0) ? fds[0].revents : 0));
}

static void
loop(Top *top)
{
	while (!top->is_over)
	{
		if (top->conn.state == CONN_IDLE && clock_now() >= top->next)
			begin_look(top);
		if (!top->batch && !top->is_drawn)
			draw(top);
		wait_and_act(top);
	}
}

static int
run(const Options *options, int argc, char **argv)
{
	Top			top = {
		.options = options,
		.batch = options->batch || options->json,
		.interval = (options->interval > 0) ? options->interval : INTERVAL
	};

	(void) argc, (void) argv;
	if (!top.batch && !screen_is_there())
	{
		output_error(CLI_EXIT_USAGE, "there is no terminal to use as a screen");
		output_hint("Use \"dlock top --batch\" to print plain lines.");
		return CLI_EXIT_USAGE;
	}
	conn_init(&top.conn, options->conninfo);
	if (!conn_open(&top.conn))
	{
		top.code = conn_report(&top.conn);
		conn_close(&top.conn);
		return top.code;
	}
	set_title(&top);
	top.view.interval = top.interval;
	signals_catch();
	if (top.batch || screen_begin())
	{
		if (!top.batch)
			begin_view(&top);
		loop(&top);
	}
	else
	{
		output_error(CLI_EXIT_SYSTEM, "could not use the terminal: %s", strerror(errno));
		top.code = CLI_EXIT_SYSTEM;
	}
	if (!top.batch)
		screen_end();
	top_look_free(&top.look);
	conn_close(&top.conn);
	free(top.title);
	free(top.trouble);
	return top.code;
}

const Command cmd_top = {
	.name = "top",
	.bit = CMD_TOP,
	.arguments = "",
	.summary = "watch locks on the screen",
	.text =
	"Shows the leases of this database, the requests that wait and what happens a\n"
	"second, and looks again every --interval (1s).  Locks that somebody waits for\n"
	"come first, in bold.\n"
	"Keys: ? tells all of them, q quits, arrows and page keys scroll.\n"
	"With --batch or --json each look is printed, without a terminal or keys.\n",
	.least = 0,
	.most = 0,
	.run = run
};
