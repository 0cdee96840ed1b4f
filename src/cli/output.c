/*-------------------------------------------------------------------------
 *
 * output.c
 *	  What the command says: messages, tables, JSON.
 *
 * NOTES
 *	  Names, owners and messages come from others, so nothing of them reaches
 *	  a terminal that could move its cursor or turn its writing round: such
 *	  characters are written as escapes.  All text is UTF-8, whatever the
 *	  locale: a lock must not have another name when cron asks for it.
 *
 *	  Results go to stdout, all else to stderr.  With --json both are objects, a
 *	  line each.  What belongs to a message, its detail and its hint, comes after
 *	  it, so its object stays open until output_flush() or the next message.
 *
 *	  A process that keeps a lease must not wait for the reader of its messages, be
 *	  it a pager that shows another page or a terminal that was stopped by ^S.  It
 *	  drops what would have to wait.  A pipe or a terminal that is opened once more
 *	  can be written to without waiting, while other users of our standard error
 *	  find it unchanged.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "output.h"

/* In an answer that is shown as a table. */
#define MOST_COLUMNS	16

/* As in pg_type. */
#define TYPE_BOOL	16
#define TYPE_JSON	114
#define TYPE_JSONB	3802

static OutputLevel level = OUTPUT_NORMAL;
static bool json = false;
static bool was_said = true;	/* the message that a detail or hint belongs
								 * to */
static PQExpBufferData open_object; /* of that message; empty if there is none */
static bool has_hint;			/* it has one */
static int	messages = STDERR_FILENO;
static bool may_wait = true;	/* for their reader */

void
output_init(OutputLevel new_level, bool as_json)
{
	static bool at_exit = false;

	level = new_level;
	json = as_json;
	if (!at_exit)
	{
		initPQExpBuffer(&open_object);
		at_exit = atexit(output_flush) == 0;
	}
}

bool
output_is_json(void)
{
	return json;
}

/* ---- text ---- */

/*
 * Decode the character at the start of a text.  Returns how many bytes it has; zero
 * if it is not well formed.  Arguments may be anything, and readers of JSON are
 * strict: no longer form than needed, no surrogates, nothing beyond the last code point.
 */
static int
decode(const char *text, unsigned *code)
{
	static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
	unsigned	first = (unsigned char) text[0];
	int			length = (first < 0x80) ? 1 : (first < 0xC0) ? 0 : (first < 0xE0) ? 2 : (first < 0xF0) ? 3 :
		(first < 0xF8) ? 4 : 0;

	*code = (length == 1) ? first : first & (0xFFu >> (length + 1));
	for (int i = 1; i < length; i++)
	{
		if (((unsigned char) text[i] & 0xC0) != 0x80)
			return 0;
		*code = *code << 6 | ((unsigned char) text[i] & 0x3F);
	}
	return (*code < least[length] || *code > 0x10FFFF || (*code >= 0xD800 && *code <= 0xDFFF)) ? 0 : length;
}

/* Does a character change how others are shown?  Marks of direction do. */
static bool
is_hostile(unsigned code)
{
	return code == 0x061C || code == 0x200E || code == 0x200F || code == 0x2028 || code == 0x2029 ||
		(code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069) || code == 0xFEFF;
}

/*
 * The character at the start of a text as it may be shown: "shown" has room for
 * 12 bytes.  Returns how many bytes of the text that is, and in "width" how many
 * columns it takes.
 */
static int
show_char(const char *text, char *shown, int *width)
{
	unsigned	code;
	int			length = decode(text, &code);

	*width = (length > 0 && !is_hostile(code)) ? PQdsplen(text, pg_char_to_encoding("UTF8")) : -1;
	if (*width >= 0)
		sprintf(shown, "%.*s", length, text);
	else if (length == 0 || code < 0x100)
		*width = sprintf(shown, "\\x%02x", (length == 0) ? (unsigned char) text[0] : code);
	else
		*width = sprintf(shown, "\\u%04x", code);
	return CLI_MAX(length, 1);
}

/* How many columns a text takes on a terminal, as output_append_safe() writes it. */
static int
width_of(const char *text)
{
	char		shown[12];
	int			total = 0;

	while (*text != '\0')
	{
		int			width;

		text += show_char(text, shown, &width);
		total += width;
	}
	return total;
}

/* Append a text such that it does no harm to a terminal. */
void
output_append_safe(PQExpBuffer to, const char *text)
{
	while (*text != '\0')
	{
		char		shown[12];
		int			width;

		text += show_char(text, shown, &width);
		appendPQExpBufferStr(to, shown);
	}
}

/* ---- JSON ---- */

/*
 * Append the character at the start of a text, which belongs into a string; returns
 * its length.  What a terminal would obey becomes an escape, as it is for JSON either way.
 */
static int
append_json_char(PQExpBuffer to, const char *text)
{
	unsigned	code;
	int			length = decode(text, &code);

	if (length == 0)
	{
		appendPQExpBufferStr(to, "\\ufffd");
		return 1;
	}
	if (code < 0x20 || (code >= 0x7F && code < 0xA0) || is_hostile(code))
		appendPQExpBuffer(to, "\\u%04x", code);
	else
		appendBinaryPQExpBuffer(to, text, (size_t) length);
	return length;
}

static void
append_json_string(PQExpBuffer to, const char *text)
{
	appendPQExpBufferChar(to, '"');
	while (*text != '\0')
	{
		if (*text == '"' || *text == '\\')
			appendPQExpBufferChar(to, '\\');
		text += append_json_char(to, text);
	}
	appendPQExpBufferChar(to, '"');
}

static void
append_key(PQExpBuffer to, const char *key)
{
	if (to->len > 0 && to->data[to->len - 1] != '{')
		appendPQExpBufferChar(to, ',');
	append_json_string(to, key);
	appendPQExpBufferChar(to, ':');
}

/* A member that is a string; NULL becomes null. */
void
output_json_text(PQExpBuffer to, const char *key, const char *value)
{
	append_key(to, key);
	if (value == NULL)
		appendPQExpBufferStr(to, "null");
	else
		append_json_string(to, value);
}

/*
 * Append JSON: a number, a word, what a jsonb prints.  It does no harm to a terminal,
 * and is JSON still: beyond ASCII, what is not in a string is none.
 */
void
output_append_json(PQExpBuffer to, const char *value)
{
	while (*value != '\0')
	{
		if ((unsigned char) *value < 0x7F)
			appendPQExpBufferChar(to, *value++);
		else
			value += append_json_char(to, value);
	}
}

/* A member whose value is JSON already. */
void
output_json_raw(PQExpBuffer to, const char *key, const char *value)
{
	append_key(to, key);
	output_append_json(to, (value != NULL) ? value : "null");
}

/* ---- messages ---- */

/* From now on messages that would have to wait for their reader are dropped. */
void
output_never_wait(void)
{
	struct stat status;

	if (!may_wait)
		return;
	may_wait = false;
	if (fstat(STDERR_FILENO, &status) == 0 && (S_ISFIFO(status.st_mode) || isatty(STDERR_FILENO)))
		messages = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (messages < 0)
		messages = STDERR_FILENO;
}

/* Write a message, in pieces that a pipe that takes anything takes as a whole. */
static void
write_message(const PQExpBufferData *line)
{
	const char *at = line->data;
	size_t		left = line->len;

	while (left > 0)
	{
		struct pollfd fd = {messages, POLLOUT, 0};
		ssize_t		written;

		if (poll(&fd, 1, may_wait ? -1 : 0) == 0)
			return;
		written = write(messages, at, CLI_MIN(left, PIPE_BUF));
		if (written < 0 && errno != EINTR && (errno != EAGAIN || !may_wait))
			return;
		if (written < 0)
			continue;
		at += written;
		left -= (size_t) written;
	}
}

/* Write the object that is open.  To be called before waiting for anything. */
void
output_flush(void)
{
	if (open_object.len == 0)
		return;
	output_json_end(&open_object);
	/* At once, so that lines of several processes do not mix. */
	write_message(&open_object);
	resetPQExpBuffer(&open_object);
}

static void
say(const char *kind, const char *format, va_list args)
{
	char	   *text = text_printv(format, args);
	PQExpBufferData line;

	if (json)
	{
		if (open_object.len == 0)
			output_json_begin(&open_object);
		output_json_text(&open_object, kind, text);
	}
	else
	{
		initPQExpBuffer(&line);
		appendPQExpBuffer(&line, "dlock: %s: ", kind);
		output_append_safe(&line, text);
		appendPQExpBufferChar(&line, '\n');
		write_message(&line);
		termPQExpBuffer(&line);
	}
	free(text);
}

/* Write a message, if as much as that is to be said. */
void
output_message(OutputLevel least, const char *kind, const char *format,...)
{
	va_list		args;

	output_flush();
	has_hint = false;
	was_said = level >= least;
	if (!was_said)
		return;
	va_start(args, format);
	say(kind, format, args);
	va_end(args);
}

/* What programs tell the last message, an error, by; the SQLSTATE may be NULL. */
void
output_codes(int code, const char *sqlstate)
{
	char		number[16];

	if (!json || !was_said)
		return;
	snprintf(number, sizeof(number), "%d", code);
	output_json_raw(&open_object, "code", number);
	output_json_text(&open_object, "sqlstate", sqlstate);
}

/* More about the last message, if that was said; its object has room for one hint. */
void
output_more(const char *kind, const char *format,...)
{
	bool		is_hint = strcmp(kind, "hint") == 0;
	va_list		args;

	if (!was_said || (json && is_hint && has_hint))
		return;
	has_hint |= is_hint;
	va_start(args, format);
	say(kind, format, args);
	va_end(args);
}

/* ---- answers of the server ---- */

static bool
is_number(const PGresult *result, int column)
{
	Oid			type = PQftype(result, column);

	return type == 20 || type == 21 || type == 23 || type == 1700;
}

static void
append_objects(PQExpBuffer to, const PGresult *result, const char *kind)
{
	for (int row = 0; row < PQntuples(result); row++)
	{
		output_json_begin(to);
		if (kind != NULL)
			output_json_text(to, "kind", kind);
		for (int i = 0; i < PQnfields(result); i++)
		{
			const char *value = PQgetisnull(result, row, i) ? NULL : PQgetvalue(result, row, i);
			Oid			type = PQftype(result, i);

			if (type == TYPE_BOOL && value != NULL)
				value = (*value == 't') ? "true" : "false";
			if (is_number(result, i) || type == TYPE_BOOL || type == TYPE_JSON || type == TYPE_JSONB)
				output_json_raw(to, PQfname(result, i), value);
			else
				output_json_text(to, PQfname(result, i), value);
		}
		output_json_end(to);
	}
}

/* What a table shows: the title (row -1) or a value; NULL is shown as "-". */
static const char *
shown(const PGresult *result, const char *const *titles, int row, int column)
{
	if (row < 0)
		return titles[column];
	return PQgetisnull(result, row, column) ? "-" : PQgetvalue(result, row, column);
}

/* Append rows under titles, aligned; numbers to the right. */
static void
append_table(PQExpBuffer to, const PGresult *result, const char *const *titles)
{
	int			ncolumns = PQnfields(result);
	int			widths[MOST_COLUMNS] = {0};
	int			last = 0;

	for (int i = 0; i < ncolumns; i++)
	{
		if (titles[i] == NULL)
			continue;
		last = i;
		for (int row = -1; row < PQntuples(result); row++)
			widths[i] = CLI_MAX(widths[i], width_of(shown(result, titles, row, i)));
	}
	for (int row = -1; row < PQntuples(result); row++)
	{
		for (int i = 0; i <= last; i++)
		{
			bool		right = is_number(result, i);
			int			pad;

			if (titles[i] == NULL)
				continue;
			pad = widths[i] - width_of(shown(result, titles, row, i));
			appendPQExpBuffer(to, "%*s", right ? pad : 0, "");
			output_append_safe(to, shown(result, titles, row, i));
			if (i < last)
				appendPQExpBuffer(to, "%*s", right ? 2 : pad + 2, "");
		}
		appendPQExpBufferChar(to, '\n');
	}
}

/*
 * Append an answer: as a table of the columns with a title, one of the titles for each
 * column, or with --json as an object a row, with the columns' names as keys, which
 * begins with its kind (NULL: none).
 */
void
rows_append(PQExpBuffer to, const PGresult *result, const char *kind, const char *const *titles)
{
	if (output_is_json())
		append_objects(to, result, kind);
	else if (PQntuples(result) > 0)
		append_table(to, result, titles);
}

/* Print an answer to stdout.  Returns an exit code. */
int
rows_print(const PGresult *result, const char *kind, const char *const *titles)
{
	PQExpBufferData text;

	initPQExpBuffer(&text);
	rows_append(&text, result, kind, titles);
	return output_print(&text);
}

/* ---- standard output ---- */

/* Print a text to stdout, at once, and free it.  Returns an exit code. */
int
output_print(PQExpBuffer text)
{
	fputs(text_take(text), stdout);
	termPQExpBuffer(text);
	return output_finish();
}

/*
 * Has all that was printed to stdout got there?  Returns an exit code.  A reader
 * that has gone is no reason for a message; usually SIGPIPE has ended us by then.
 */
int
output_finish(void)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return CLI_EXIT_OK;
	if (errno == EPIPE)
		return CLI_EXIT_SIGNAL + SIGPIPE;
	output_error(CLI_EXIT_SYSTEM, "could not write to standard output: %s", strerror(errno));
	return CLI_EXIT_SYSTEM;
}
