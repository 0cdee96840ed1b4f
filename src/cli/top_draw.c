/*-------------------------------------------------------------------------
 *
 * top_draw.c
 *	  What dlock top shows, as lines.
 *
 * NOTES
 *	  No line is longer than the screen is wide.  Each cell begins in a column
 *	  that it names, so that one that the terminal finds wider or narrower than
 *	  we do does not move the others.
 *
 * IDENTIFICATION
 *	  src/cli/top_draw.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "duration.h"
#include "output.h"
#include "screen.h"
#include "top_draw.h"

#define GAP		2				/* between columns */

/* How a value is written. */
typedef enum Format
{
	AS_IS,
	AS_SPAN,					/* seconds */
	AS_RATE,
	AS_MODE,					/* followed by the permits */
	AS_LEASE_MODE				/* the same, and then the state */
} Format;

typedef struct Column
{
	const char *title;
	int			value;			/* which one of the answer */
	Format		format;
	bool		right;			/* aligned to the right */
	bool		cut;			/* may be cut off if there is no room */
	int			least;			/* columns that it takes at any rate */
	int			from;			/* width of the screen from which on it is
								 * shown */
} Column;

static const Column lease_columns[] = {
	{"NAME", LEASE_NAME, AS_IS, false, true, 12, 0},
	{"OWNER", LEASE_OWNER, AS_IS, false, true, 12, 0},
	{"MODE", LEASE_MODE, AS_LEASE_MODE, false, false, 9, 50},
	{"LEFT", LEASE_LEFT, AS_SPAN, true, false, 6, 0},
	{"WAIT", LEASE_WAITERS, AS_IS, true, false, 4, 40},
	{"GRANTS/S", LEASE_RATE, AS_RATE, true, false, 8, 90},
	{"HELD", LEASE_HELD, AS_SPAN, true, false, 6, 100},
	{"TOKEN", LEASE_TOKEN, AS_IS, true, false, 15, 80},
	{"ROLE", LEASE_ROLE, AS_IS, false, true, 8, 120}
};
static const Column waiter_columns[] = {
	{"WAITING FOR", WAITER_NAME, AS_IS, false, true, 12, 0},
	{"WAITER", WAITER_OWNER, AS_IS, false, true, 12, 0},
	{"MODE", WAITER_MODE, AS_MODE, false, false, 9, 60},
	{"POS", WAITER_POSITION, AS_IS, true, false, 3, 40},
	{"WAITED", WAITER_WAITED, AS_SPAN, true, false, 6, 0},
	{"BLOCKED BY", WAITER_BLOCKED_BY, AS_IS, false, true, 12, 70}
};

#define NLEASE_COLUMNS	((int) CLI_LENGTH(lease_columns))
#define NWAITER_COLUMNS	((int) CLI_LENGTH(waiter_columns))

/* ---- values ---- */

/* Write seconds such that six columns are enough, up to 999 days. */
static void
add_span(Text *to, const char *seconds)
{
	double		span = strtod(seconds, NULL);
	long		whole = (long) span;

	if (span < 9.95)
		text_addf(to, "%.1fs", CLI_MAX(span, 0));
	else if (whole < 60)
		text_addf(to, "%lds", whole);
	else if (whole < 3600)
		text_addf(to, "%ldm%02lds", whole / 60, whole % 60);
	else if (whole < 86400)
		text_addf(to, "%ldh%02ldm", whole / 3600, whole / 60 % 60);
	else
		text_addf(to, "%ldd%02ldh", whole / 86400, whole / 3600 % 24);
}

/* A rate in six columns. */
static void
add_per_second(Text *to, double rate)
{
	text_addf(to, (rate < 100) ? "%6.1f" : "%6.0f", rate);
}

static void
add_value(Text *to, const TopLook *look, TopPart part, int row, const Column *column)
{
	const char *value = top_look_value(look, part, row, column->value);

	if (value == NULL)
	{
		text_add_char(to, '-');
		return;
	}
	switch (column->format)
	{
		case AS_IS:
			text_add(to, value);
			break;
		case AS_SPAN:
			add_span(to, value);
			break;
		case AS_RATE:
			add_per_second(to, strtod(value, NULL));
			break;
		case AS_LEASE_MODE:
			if (strcmp(top_look_value(look, part, row, column->value + 2), "closed") == 0)
			{
				text_add(to, "(closed)");
				break;
			}
			/* FALLTHROUGH */
		case AS_MODE:
			text_add(to, value);
			value = top_look_value(look, part, row, column->value + 1);
			if (value != NULL)
				text_addf(to, "/%s", value);
			break;
	}
}

/* ---- tables ---- */

/* What each column of a table would like to have. */
static void
widen(const TopLook *look, TopPart part, const Column *columns, int count, TopTable *table)
{
	for (int i = 0; i < count; i++)
	{
		int			width = CLI_MAX(columns[i].least, (int) strlen(columns[i].title));

		for (int row = 0; row < top_look_rows(look, part); row++)
		{
			Text		value;

			text_init(&value);
			add_value(&value, look, part, row, &columns[i]);
			width = CLI_MAX(width, output_width(value.data));
			text_free(&value);
		}
		table->widths[i] = CLI_MAX(table->widths[i], width);
	}
}

/*
 * What each column gets; zero: it is not shown.  Those that may be cut share
 * what the others leave, and no one gets more than it needs.
 */
static void
fit(const Column *columns, int count, const TopTable *table, int room, int *widths)
{
	int			shares = 0;

	for (int i = 0; i < count; i++)
	{
		widths[i] = 0;
		if (room < columns[i].from)
			continue;
		widths[i] = table->widths[i];
		shares += columns[i].cut;
	}
	room += GAP;
	for (int i = 0; i < count; i++)
	{
		if (widths[i] > 0)
			room -= GAP + (columns[i].cut ? 0 : widths[i]);
	}
	for (bool changed = true; changed && shares > 0;)
	{
		int			share = CLI_MAX(room, 0) / shares;

		changed = false;
		for (int i = 0; i < count; i++)
		{
			/* Negative: it has what it needs. */
			if (columns[i].cut && widths[i] > 0 && widths[i] <= share)
			{
				room -= widths[i];
				widths[i] = -widths[i];
				shares--;
				changed = true;
			}
		}
	}
	for (int i = 0; i < count; i++)
	{
		if (columns[i].cut && widths[i] > 0)
		{
			int			share = CLI_MAX(room, 0) / shares;

			room -= share;
			shares--;
			widths[i] = share;
		}
		widths[i] = abs(widths[i]);
	}
}

/* Add a text at a column, of which the screen has so many. */
static void
add_cell(Text *line, const char *text, int at, int width, bool right, int columns)
{
	int			natural = output_width(text);

	width = CLI_MIN(width, columns - at);
	if (width <= 0)
		return;
	if (right && natural < width)
		at += width - natural;
	screen_goto(line, at);
	output_append_safe(line, text, width);
}

static void
add_row(Text *line, const TopLook *look, TopPart part, int row,
		const Column *columns, int count, const int *widths, int room)
{
	int			at = 0;

	for (int i = 0; i < count; i++)
	{
		Text		value;

		if (widths[i] == 0)
			continue;
		text_init(&value);
		if (row < 0)
			text_add(&value, columns[i].title);
		else
			add_value(&value, look, part, row, &columns[i]);
		add_cell(line, value.data, at, widths[i], columns[i].right, room);
		text_free(&value);
		at += widths[i] + GAP;
	}
}

/* A whole line in reverse. */
static void
begin_bar(Text *line, int columns)
{
	text_addf(line, SCREEN_REVERSE "%*s", columns, "");
}

/* Draw a table with its titles into so many lines, from a row on. */
static void
draw_table(const TopLook *look, TopPart part, const Column *columns, int count,
		   TopTable *table, int room, int first, Text *lines, int nlines)
{
	int			widths[TOP_MAX_COLUMNS];

	if (nlines <= 0)
		return;
	widen(look, part, columns, count, table);
	fit(columns, count, table, room, widths);
	begin_bar(&lines[0], room);
	add_row(&lines[0], look, part, -1, columns, count, widths, room);
	for (int i = 1; i < nlines && first + i - 1 < top_look_rows(look, part); i++)
	{
		int			row = first + i - 1;

		if (part == TOP_LEASES)
		{
			if (strcmp(top_look_value(look, part, row, LEASE_WAITERS), "0") != 0)
				text_add(&lines[i], SCREEN_BOLD);
			else if (strcmp(top_look_value(look, part, row, LEASE_STATE), "closed") == 0)
				text_add(&lines[i], SCREEN_DIM);
		}
		add_row(&lines[i], look, part, row, columns, count, widths, room);
	}
}

/* ---- totals ---- */

static const char *
total(const TopLook *look, int column)
{
	const char *value = top_look_value(look, TOP_TOTALS, 0, column);

	return (value != NULL) ? value : "-";
}

static void
add_rate(Text *line, const TopLook *look, const char *name, TopRate rate)
{
	text_addf(line, "  %s ", name);
	if (look->has_rates)
		add_per_second(line, look->rates[rate]);
	else
		text_add(line, "     -");
}

/* The lines above the tables; returns how many. */
static int
describe_totals(const TopLook *look, Text *lines)
{
	const char *standby = top_look_value(look, TOP_TOTALS, 0, TOP_STANDBY);
	const char *longest = top_look_value(look, TOP_TOTALS, 0, TOP_LONGEST_WAIT);

	text_addf(&lines[0], "%s lease%s", total(look, TOP_NLEASES),
			  (strcmp(total(look, TOP_NLEASES), "1") == 0) ? "" : "s");
	if (strcmp(total(look, TOP_NCLOSED), "0") != 0)
		text_addf(&lines[0], ", %s of them closed", total(look, TOP_NCLOSED));
	text_addf(&lines[0], "; %s waiting", total(look, TOP_NWAITERS));
	if (longest != NULL)
	{
		text_add(&lines[0], ", the longest for ");
		add_span(&lines[0], longest);
	}
	if (standby != NULL && *standby == 't')
		text_add(&lines[0], "; a standby");

	text_add(&lines[1], "a second:");
	add_rate(&lines[1], look, "grants", TOP_GRANTS);
	add_rate(&lines[1], look, "releases", TOP_RELEASES);
	add_rate(&lines[1], look, "renewals", TOP_RENEWALS);
	add_rate(&lines[1], look, "refusals", TOP_REFUSALS);
	text_add(&lines[2], "         ");
	add_rate(&lines[2], look, "handed", TOP_HANDOFFS);
	add_rate(&lines[2], look, "expiries", TOP_EXPIRIES);
	add_rate(&lines[2], look, "timeouts", TOP_TIMEOUTS);
	text_add(&lines[2], "  mean wait ");
	if (look->has_rates && look->rates[TOP_WAITS] > 0)
		text_addf(&lines[2], "%.1f ms", look->rates[TOP_WAIT_TIME] * 1000);
	else
		text_add_char(&lines[2], '-');
	return 3;
}

/* ---- the screen ---- */

static void
draw_title(const TopView *view, Text *line)
{
	char		now[16];
	char		span[DURATION_SIZE];
	time_t		t = time(NULL);
	struct tm	tm;
	Text		right;

	text_init(&right);
	strftime(now, sizeof(now), "%H:%M:%S", localtime_r(&t, &tm));
	text_addf(&right, "%s, every %s", now, duration_print(view->interval, span));
	text_add(line, SCREEN_BOLD);
	add_cell(line, view->title, 0, CLI_MAX(view->columns - (int) right.len - GAP, view->columns / 2),
			 false, view->columns);
	add_cell(line, right.data, CLI_MAX(view->columns - (int) right.len, view->columns / 2 + GAP),
			 (int) right.len, false, view->columns);
	text_free(&right);
}

static void
draw_footer(const TopLook *look, const TopView *view, Text *line)
{
	int			leases = top_look_rows(look, TOP_LEASES);
	Text		text;

	text_init(&text);
	text_addf(&text, "q quit  ? help  up/down scroll  o order: %s", top_order_names[view->order]);
	if (view->page > 0 && leases > view->page)
		text_addf(&text, "  leases %d to %d of %s", view->first + 1,
				  CLI_MIN(view->first + view->page, leases), total(look, TOP_NLEASES));
	begin_bar(line, view->columns);
	add_cell(line, text.data, 0, view->columns, false, view->columns);
	text_free(&text);
}

/* How many lines the waiters get, of those that the tables have. */
static int
lines_of_waiters(const TopLook *look, int room)
{
	int			leases = top_look_rows(look, TOP_LEASES) + 2;	/* title and empty line */
	int			waiters = top_look_rows(look, TOP_WAITERS) + 1;

	if (waiters == 1 || room < 6)
		return 0;
	return CLI_MIN(waiters, CLI_MAX(room / 3, room - leases));
}

static void
draw_tables(const TopLook *look, TopView *view, Text *lines, int room)
{
	int			leases = top_look_rows(look, TOP_LEASES);
	int			for_waiters = lines_of_waiters(look, room);
	int			for_leases = room - for_waiters - (for_waiters > 0);

	view->page = CLI_MAX(for_leases - 1, 0);
	view->first = CLI_MAX(CLI_MIN(view->first, leases - view->page), 0);
	draw_table(look, TOP_LEASES, lease_columns, NLEASE_COLUMNS, &view->leases, view->columns,
			   view->first, lines, for_leases);
	if (leases == 0 && for_leases > 1 && look->shown[TOP_LEASES] != NULL)
		add_cell(&lines[1], "No lock is held.", 0, view->columns, false, view->columns);

	/* Below the leases, and not at the bottom of an empty screen. */
	lines += CLI_MIN(for_leases, CLI_MAX(leases, 1) + 1) + 1;
	if (for_waiters > 0)
		draw_table(look, TOP_WAITERS, waiter_columns, NWAITER_COLUMNS, &view->waiters, view->columns,
				   0, lines, for_waiters);
}

/* What the keys do, and the columns mean. */
static void
draw_help(const TopView *view, Text *lines, int room)
{
	static const char *const help[] = {
		"q               quit",
		"?               this help; any key ends it",
		"space           look now",
		"o               change the order: by waiters, time left, name",
		"up, down, k, j  scroll the leases; also page up, page down, home, end",
		"",
		"LEFT            time until the lease ends, or the closed lock opens",
		"WAIT            calls that wait for the lock; locks with waiters are bold",
		"GRANTS/S        grants of the lock a second, between the last two looks; -: not known",
		"HELD            time since the lease was granted",
		"(closed)        the lease is over, and the lock opens after LEFT",
		"POS             place in the queue",
		"BLOCKED BY      owners that this call waits for",
	};

	for (int i = 0; i < CLI_MIN(room, (int) CLI_LENGTH(help)); i++)
		add_cell(&lines[i], help[i], 0, view->columns, false, view->columns);
}

/* Draw the whole screen, into as many lines as it has. */
void
top_draw_screen(const TopLook *look, TopView *view, Text *lines)
{
	int			columns = view->columns;
	int			at = 0;

	for (int i = 0; i < view->lines; i++)
		text_init(&lines[i]);
	draw_title(view, &lines[at++]);
	if (view->lines >= 8)
	{
		Text		totals[4];
		int			count;

		for (int i = 0; i < (int) CLI_LENGTH(totals); i++)
			text_init(&totals[i]);
		count = describe_totals(look, totals);
		for (int i = 0; i < (int) CLI_LENGTH(totals); i++)
		{
			if (i < count)
				add_cell(&lines[at++], totals[i].data, 0, columns, false, columns);
			text_free(&totals[i]);
		}
	}
	if (view->trouble != NULL && at < view->lines)
	{
		text_add(&lines[at], SCREEN_REVERSE);
		add_cell(&lines[at], view->trouble, 0, columns, false, columns);
	}
	at++;
	if (view->lines - 1 > at && view->help)
		draw_help(view, lines + at, view->lines - 1 - at);
	else if (view->lines - 1 > at)
		draw_tables(look, view, lines + at, view->lines - 1 - at);
	if (view->lines > at)
		draw_footer(look, view, &lines[view->lines - 1]);
}

/* ---- plain lines ---- */

static void
print_table(const TopLook *look, TopPart part, const Column *columns, int count, FILE *out)
{
	int			rows = top_look_rows(look, part);
	size_t		ncells = (size_t) rows * (size_t) count;
	OutputColumn titles[TOP_MAX_COLUMNS];
	char	  **cells = text_alloc((ncells + 1) * sizeof(*cells));

	if (rows > 0)
	{
		for (int i = 0; i < count; i++)
		{
			OutputColumn title = {columns[i].title, columns[i].right};

			titles[i] = title;
		}
		for (size_t i = 0; i < ncells; i++)
		{
			Text		value;

			text_init(&value);
			add_value(&value, look, part, (int) i / count, &columns[i % (size_t) count]);
			cells[i] = value.data;
		}
		output_table(out, titles, count, (const char *const *) cells, rows);
		for (size_t i = 0; i < ncells; i++)
			free(cells[i]);
		fputc('\n', out);
	}
	free(cells);
}

/* Print a look as lines as long as they have to be, with an empty one at the end. */
void
top_draw_plain(const TopLook *look, FILE *out)
{
	Text		totals[4];
	int			count;

	for (int i = 0; i < (int) CLI_LENGTH(totals); i++)
		text_init(&totals[i]);
	count = describe_totals(look, totals);
	fprintf(out, "%s\n", total(look, TOP_TIME));
	for (int i = 0; i < (int) CLI_LENGTH(totals); i++)
	{
		if (i < count)
			fprintf(out, "%s\n", totals[i].data);
		text_free(&totals[i]);
	}
	fputc('\n', out);
	print_table(look, TOP_LEASES, lease_columns, NLEASE_COLUMNS, out);
	print_table(look, TOP_WAITERS, waiter_columns, NWAITER_COLUMNS, out);
}
