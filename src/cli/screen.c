/*-------------------------------------------------------------------------
 *
 * screen.c
 *	  The terminal as a screen.
 *
 * NOTES
 *	  The sequences are those that all terminals of today understand, so no
 *	  terminal library is needed.  The other screen is used, and lines do not
 *	  wrap, for terminals disagree about the width of some characters.
 *
 *	  The terminal is opened once more, so that it can be written to without
 *	  waiting: other users of our standard output must not find it changed,
 *	  and a terminal that takes nothing must not keep us from ending.
 *
 * IDENTIFICATION
 *	  src/cli/screen.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "clock.h"
#include "screen.h"
#include "signals.h"

/* The other screen, without cursor and wrapping; and back. */
#define ENTER	"\033[?1049h\033[?25l\033[?7l\033[H\033[2J"
#define LEAVE	"\033[0m\033[?7h\033[?25h\033[?1049l"

/* How long a terminal may take nothing before it is left as it is. */
#define LEAVE_WITHIN	CLI_SECOND

static int	terminal = -1;
static bool is_own = false;		/* nobody else has this descriptor */
static bool is_entered = false;
static bool is_away = false;	/* in the background; not to be entered yet */
static struct termios saved;

static char keys[64];			/* that were read, but not taken yet */
static size_t nkeys = 0;
static bool is_gone = false;

static const struct
{
	const char *sequence;
	ScreenKey	key;
}			sequences[] =

{
	{"\033[A", SCREEN_UP}, {"\033OA", SCREEN_UP}, {"\033[B", SCREEN_DOWN}, {"\033OB", SCREEN_DOWN},
	{"\033[5~", SCREEN_PAGE_UP}, {"\033[6~", SCREEN_PAGE_DOWN},
	{"\033[H", SCREEN_HOME}, {"\033OH", SCREEN_HOME}, {"\033[1~", SCREEN_HOME}, {"\033[7~", SCREEN_HOME},
	{"\033[F", SCREEN_END}, {"\033OF", SCREEN_END}, {"\033[4~", SCREEN_END}, {"\033[8~", SCREEN_END},
};

/* Are there a keyboard and a terminal that can be used as a screen? */
bool
screen_is_there(void)
{
	const char *term = getenv("TERM");

	return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) &&
		term != NULL && *term != '\0' && strcmp(term, "dumb") != 0;
}

/*
 * Write, until a time, or CLI_FOREVER: until a signal comes.  False if not all
 * has been written.
 */
static bool
write_until(const char *data, size_t len, CliTime until)
{
	while (len > 0)
	{
		struct pollfd fds[2] = {
			{terminal, POLLOUT, 0},
			{signals_fd(), POLLIN, 0}
		};
		ssize_t		written = write(terminal, data, len);

		if (written > 0)
		{
			data += written;
			len -= (size_t) written;
			continue;
		}
		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0 && errno != EAGAIN)
			return false;
		(void) clock_poll(fds, (until == CLI_FOREVER) ? 2 : 1, until);
		if (fds[1].revents != 0 || clock_now() >= until)
			return false;
	}
	return true;
}

/*
 * In the background stop, as the kernel stops who changes the terminal from there.
 * True if a signal is to be looked at first, such as the one that has continued us.
 * A group that no shell looks after is not stopped.
 */
static bool
stop_in_background(void)
{
	struct pollfd fd = {signals_fd(), POLLIN, 0};
	pid_t		foreground = tcgetpgrp(terminal);

	if (foreground < 0 || foreground == getpgrp())
		return false;
	if (poll(&fd, 1, 0) == 0)
	{
		signal(SIGTTOU, SIG_DFL);
		kill(0, SIGTTOU);
		signal(SIGTTOU, SIG_IGN);
	}
	return poll(&fd, 1, 0) > 0;
}

/*
 * Make the terminal a screen; again after somebody else may have used it, and
 * whenever we are continued.
 */
void
screen_enter(void)
{
	struct termios raw = saved;

	is_away = stop_in_background();
	if (is_away)
		return;

	/* Control and c is a signal still; control and s would stop us. */
	raw.c_lflag &= ~(tcflag_t) (ICANON | ECHO);
	raw.c_iflag &= ~(tcflag_t) IXON;
	raw.c_cc[VSUSP] = _POSIX_VDISABLE;
#ifdef VDSUSP
	raw.c_cc[VDSUSP] = _POSIX_VDISABLE;
#endif
	raw.c_cc[VMIN] = 1;
	raw.c_cc[VTIME] = 0;
	is_entered = true;
	(void) tcsetattr(terminal, TCSADRAIN, &raw);
	(void) write_until(ENTER, strlen(ENTER), clock_now() + LEAVE_WITHIN);
}

static void
leave(void)
{
	if (!is_entered)
		return;
	is_entered = false;
	(void) write_until(LEAVE, strlen(LEAVE), clock_now() + LEAVE_WITHIN);

	/*
	 * Keys that were meant for us are none for the shell.  Not TCSAFLUSH: it
	 * would wait for output that the terminal may never take.
	 */
	(void) tcflush(terminal, TCIFLUSH);
	(void) tcsetattr(terminal, TCSANOW, &saved);
}

/* Begin to use the screen; it is left at exit at the latest.  False: see errno. */
bool
screen_begin(void)
{
	const char *name = ttyname(STDOUT_FILENO);

	if (tcgetattr(STDIN_FILENO, &saved) < 0)
		return false;
	if (name != NULL)
		terminal = open(name, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	is_own = (terminal >= 0);
	if (!is_own)
		terminal = STDOUT_FILENO;
	atexit(screen_end);
	screen_enter();
	return true;
}

/* Give the terminal back as it was. */
void
screen_end(void)
{
	leave();
	if (is_own)
		close(terminal);
	is_own = false;
	terminal = -1;
}

/* Stop this process and its group, as the terminal would; come back when it goes on. */
void
screen_suspend(void)
{
	leave();
	kill(0, SIGTSTP);
	screen_enter();
}

/* The descriptor that is readable when a key was pressed. */
int
screen_fd(void)
{
	return is_own ? terminal : STDIN_FILENO;
}

static int
number_of(const char *variable, int otherwise)
{
	const char *text = getenv(variable);
	int			number = (text != NULL) ? atoi(text) : 0;

	return (number > 0 && number < 10000) ? number : otherwise;
}

void
screen_size(int *columns, int *lines)
{
	struct winsize size;

	memset(&size, 0, sizeof(size));
	(void) ioctl(terminal, TIOCGWINSZ, &size);
	*columns = (size.ws_col > 0) ? size.ws_col : number_of("COLUMNS", 80);
	*lines = (size.ws_row > 0) ? size.ws_row : number_of("LINES", 24);
}

/* How many bytes at the start of "keys" are one key, and which one. */
static size_t
parse_key(int *key)
{
	size_t		len = 1;

	for (size_t i = 0; i < CLI_LENGTH(sequences); i++)
	{
		size_t		n = strlen(sequences[i].sequence);

		if (nkeys >= n && memcmp(keys, sequences[i].sequence, n) == 0)
		{
			*key = sequences[i].key;
			return n;
		}
	}
	*key = (unsigned char) keys[0];
	if (keys[0] != '\033')
		return 1;

	/* Of an unknown sequence nothing must be taken for a key. */
	*key = SCREEN_OTHER;
	if (nkeys > 1 && (keys[1] == '[' || keys[1] == 'O'))
	{
		for (len = 2; len < nkeys && !(keys[len] >= 0x40 && keys[len] <= 0x7E); len++)
			;
		len++;
	}
	return CLI_MIN(len, nkeys);
}

/* The next key that was pressed; SCREEN_NO_KEY if there is none. */
int
screen_key(void)
{
	struct pollfd fd = {screen_fd(), POLLIN, 0};
	int			key;
	size_t		len;

	if (nkeys < sizeof(keys) && !is_gone && poll(&fd, 1, 0) > 0)
	{
		ssize_t		got = read(fd.fd, keys + nkeys, sizeof(keys) - nkeys);

		if (got > 0)
			nkeys += (size_t) got;
		else if (got == 0 || (errno != EAGAIN && errno != EINTR))
			is_gone = true;
	}
	if (nkeys == 0)
		return is_gone ? SCREEN_GONE : SCREEN_NO_KEY;
	len = parse_key(&key);
	nkeys -= len;
	memmove(keys, keys + len, nkeys);
	return key;
}

/* Go on in a column, counted from zero, wherever the terminal thinks that it is. */
void
screen_goto(Text *line, int column)
{
	text_addf(line, "\033[%dG", column + 1);
}

/*
 * Show as many lines as the screen has.  False if a signal came first, which is
 * to be looked at before trying again.
 */
bool
screen_show(const Text *lines, int count)
{
	Text		frame;
	bool		done;

	if (is_away)
		screen_enter();
	if (is_away)
		return false;
	text_init(&frame);
	for (int i = 0; i < count; i++)
		text_addf(&frame, SCREEN_PLAIN "\033[%d;1H\033[K%s", i + 1, lines[i].data);
	done = write_until(frame.data, frame.len, CLI_FOREVER);
	text_free(&frame);
	return done;
}
