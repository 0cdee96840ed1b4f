/*-------------------------------------------------------------------------
 *
 * options.c
 *	  The options of all commands, and the help that is made of them.
 *
 * NOTES
 *	  One table says of each option which commands take it, how it is written,
 *	  where its argument goes and what it means, so the parser and the help cannot
 *	  differ.  A name or a letter may stand in it twice, for different commands.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "options.h"
#include "output.h"

/* Those that acquire a lease, and those that run a command under it. */
#define ACQUIRERS	(CMD_RUN | CMD_ACQUIRE | CMD_ELECT)
#define RUNNERS		(CMD_RUN | CMD_ELECT)

/* A span that has to be more than zero, if it may be left out and is. */
#define SOME_SPAN	(2 * CLI_SECOND)

/* What kind of argument an option has, and what becomes of it. */
typedef enum OptionKind
{
	OPT_HELP,
	OPT_FLAG,
	OPT_NONBLOCK, OPT_SHARED, OPT_EXCLUSIVE,
	OPT_TEXT,
	OPT_WORD,					/* not empty */
	OPT_NUMBER,					/* of 32 bits; kept as text */
	OPT_COUNT,					/* 1 or more */
	OPT_CODE,					/* an exit code */
	OPT_SPAN,					/* without limit, if it is left out */
	OPT_SOME,					/* more than zero */
	OPT_SIGNAL,
	OPT_ON_LOST
} OptionKind;

#define FIELD(name)	offsetof(Options, name)

static const struct
{
	OptionKind	kind;
	unsigned	commands;
	char		letter;			/* or zero */
	const char *name;
	const char *argument;		/* NULL: takes none; in brackets: or none */
	size_t		field;			/* of Options */
	const char *help;
}			table[] =

{
	{OPT_NONBLOCK, CMD_RUN | CMD_ACQUIRE, 'n', "nonblock", NULL, FIELD(wait), "do not wait for the lock"},
	{OPT_SPAN, ACQUIRERS | CMD_WAIT, 'w', "wait", "SPAN", FIELD(wait), "wait at most this long (default: no limit)"},
	{OPT_SPAN, ACQUIRERS | CMD_WAIT, 0, "timeout", "SPAN", FIELD(wait), "the same as --wait"},
	{OPT_SPAN, CMD_CAPTURE, 0, "wait", "[=SPAN]", FIELD(wait), "wait for a task, at most SPAN if it is given"},
	{OPT_SPAN, CMD_CAPTURE, 0, "timeout", "SPAN", FIELD(wait), "the same as --wait=SPAN"},
	{OPT_SOME, CMD_RUN, 0, "once-per", "SPAN", FIELD(once_per), "run it once in each time slot of this length,\non one of the machines"},
	{OPT_EXCLUSIVE, CMD_RUN | CMD_ACQUIRE, 'x', "exclusive", NULL, FIELD(mode), "an exclusive lock (the default)"},
	{OPT_SHARED, CMD_RUN | CMD_ACQUIRE, 's', "shared", NULL, FIELD(mode), "a shared lock"},
	{OPT_TEXT, CMD_RUN | CMD_ACQUIRE, 0, "mode", "MODE", FIELD(mode), "exclusive, shared, NL, CR, CW, PR, PW or EX"},
	{OPT_NUMBER, CMD_RUN | CMD_ACQUIRE, 0, "permits", "N", FIELD(permits), "one permit of a semaphore with N"},
	{OPT_FLAG, CMD_RUN | CMD_ACQUIRE, 0, "path", NULL, FIELD(path), "NAME is a place in a hierarchy, such as a/b/c"},
	{OPT_SOME, ACQUIRERS | CMD_RENEW, 0, "ttl", "SPAN", FIELD(ttl), "time to live of the lease (60s; acquire: 30s;\nrenew: that of the lease)"},
	{OPT_SOME, CMD_CAPTURE, 0, "ttl", "SPAN", FIELD(ttl), "how long the task is yours (30s)"},
	{OPT_WORD, ACQUIRERS | CMD_RENEW | CMD_RELEASE, 0, "owner", "TEXT", FIELD(owner), "owner of the lease"},
	{OPT_WORD, CMD_CAPTURE, 0, "owner", "TEXT", FIELD(owner), "owner of the capture, shown to others"},
	{OPT_SPAN, ACQUIRERS, 0, "lock-delay", "SPAN", FIELD(lock_delay), "how long the lock stays closed if the lease\nexpires or is released by force"},
	{OPT_SPAN, CMD_RUN | CMD_ACQUIRE, 0, "min-hold", "SPAN", FIELD(min_hold), "keep the lock at least this long, even if it is\nreleased earlier"},
	{OPT_TEXT, ACQUIRERS, 0, "payload", "JSON", FIELD(payload), "stored with the lease, shown to others"},
	{OPT_TEXT, CMD_PUT, 0, "payload", "JSON", FIELD(payload), "what to do"},
	{OPT_NUMBER, CMD_PUT, 0, "priority", "N", FIELD(priority), "tasks with smaller numbers come first (0)"},
	{OPT_TEXT, CMD_PUT | CMD_FINISH | CMD_FAIL, 0, "state", "STATE", FIELD(state), "the task's new state, instead of the default"},
	{OPT_TEXT, CMD_CAPTURE | CMD_LIST, 0, "state", "STATE", FIELD(state), "only tasks in this state"},
	{OPT_SPAN, CMD_PUT | CMD_FAIL, 0, "delay", "SPAN", FIELD(delay), "how long the task cannot be captured"},
	{OPT_TEXT, CMD_FAIL, 0, "error", "TEXT", FIELD(error), "what went wrong; stored with the task"},
	{OPT_CODE, CMD_RUN | CMD_ACQUIRE | CMD_WAIT, 'E', "conflict-exit-code", "CODE", FIELD(refused_exit), "exit code if the lock is not acquired (75)"},
	{OPT_CODE, CMD_CAPTURE, 'E', "conflict-exit-code", "CODE", FIELD(refused_exit), "exit code if there is no task (75)"},
	{OPT_TEXT, RUNNERS, 'c', "command", "STRING", FIELD(shell), "run this by sh -c, instead of COMMAND"},
	{OPT_SPAN, RUNNERS, 0, "kill-after", "SPAN", FIELD(kill_after), "time from the first signal to KILL (5s)"},
	{OPT_SIGNAL, RUNNERS, 0, "signal", "NAME", FIELD(signal), "the first signal (TERM)"},
	{OPT_ON_LOST, RUNNERS, 0, "on-lost", "ACTION", FIELD(on_lost), "when the lease is lost, kill the command (the\ndefault), or warn"},
	{OPT_FLAG, RUNNERS, 0, "no-tokens", NULL, FIELD(no_tokens), "do not change PGOPTIONS of the command"},
	{OPT_FLAG, CMD_ELECT, 0, "once", NULL, FIELD(once), "lead once, and do not campaign again"},
	{OPT_FLAG, CMD_ELECT, 0, "observe", NULL, FIELD(observe), "print each new leader, and do not campaign"},
	{OPT_WORD, CMD_FORCE, 0, "reason", "TEXT", FIELD(reason), "why; logged by the server"},
	{OPT_COUNT, CMD_WATCH, 'n', "count", "N", FIELD(count), "end after N lines"},
	{OPT_COUNT, CMD_CAPTURE, 'n', "count", "N", FIELD(count), "capture up to N tasks (1)"},
	{OPT_SOME, CMD_STATUS, 0, "watch", "[=SPAN]", FIELD(watch), "show them again every SPAN (2s)"},
	{OPT_TEXT, CMD_ALL, 'd', "dbname", "CONNINFO", FIELD(conninfo), "database, connection string or URI; PG*\nvariables otherwise"},
	{OPT_FLAG, CMD_ALL, 0, "json", NULL, FIELD(json), "print JSON, one object a line, also errors"},
	{OPT_FLAG, CMD_ALL, 'q', "quiet", NULL, FIELD(quiet), "print only errors that the exit code does not\nconvey"},
	{OPT_FLAG, CMD_ALL, 'v', "verbose", NULL, FIELD(verbose), "print more"},
	{OPT_HELP, CMD_ALL, 'h', "help", NULL, 0, "this help"},
};

/* getopt_long() answers with a letter, or with this and the row of a long option. */
#define NO_LETTER	256

static const struct
{
	const char *name;
	int			number;
}			signals[] =

{
	{"HUP", SIGHUP}, {"INT", SIGINT}, {"QUIT", SIGQUIT}, {"KILL", SIGKILL}, {"USR1", SIGUSR1},
	{"USR2", SIGUSR2}, {"ALRM", SIGALRM}, {"TERM", SIGTERM}, {"CONT", SIGCONT}, {"WINCH", SIGWINCH},
};

/* Point to the help, after a mistake.  Returns an exit code. */
int
options_usage(const Command *command)
{
	if (command != NULL)
		output_hint("Try \"dlock %s --help\".", command->name);
	else
		output_hint("Try \"dlock --help\".");
	return CLI_EXIT_USAGE;
}

static bool
parse_int(const char *text, int least, int most, int *number)
{
	char	   *end;
	long		value;

	errno = 0;
	value = strtol(text, &end, 10);
	if (errno != 0 || end == text || *end != '\0' || value < least || value > most)
		return false;
	*number = (int) value;
	return true;
}

static bool
parse_signal(const char *text, int *number)
{
	if (strncasecmp(text, "SIG", 3) == 0)
		text += 3;
	for (size_t i = 0; i < CLI_LENGTH(signals); i++)
	{
		if (strcasecmp(text, signals[i].name) == 0)
		{
			*number = signals[i].number;
			return true;
		}
	}
	return parse_int(text, 1, 64, number);
}

/* Take an option; false if its argument is not understood. */
static bool
take(Options *options, OptionKind kind, size_t field, const char *argument)
{
	void	   *at = (char *) options + field;
	int			number;

	switch (kind)
	{
		case OPT_HELP:
			return false;
		case OPT_FLAG:
			return *(bool *) at = true;
		case OPT_NONBLOCK:
			*(CliTime *) at = 0;
			return true;
		case OPT_SHARED:
			*(const char **) at = "shared";
			return true;
		case OPT_EXCLUSIVE:
			*(const char **) at = "exclusive";
			return true;
		case OPT_TEXT:
		case OPT_WORD:
			*(const char **) at = argument;
			return kind == OPT_TEXT || *argument != '\0';
		case OPT_NUMBER:
			*(const char **) at = argument;
			return parse_int(argument, INT32_MIN, INT32_MAX, &number);
		case OPT_COUNT:
			return parse_int(argument, 1, INT32_MAX, at);
		case OPT_CODE:
			return parse_int(argument, 0, 255, at);
		case OPT_SPAN:
			*(CliTime *) at = CLI_FOREVER;
			return argument == NULL || duration_parse(argument, at);
		case OPT_SOME:
			*(CliTime *) at = SOME_SPAN;
			return argument == NULL || (duration_parse(argument, at) && *(CliTime *) at > 0);
		case OPT_SIGNAL:
			return parse_signal(argument, at);
		case OPT_ON_LOST:
			*(OptionsOnLost *) at = (strcmp(argument, "warn") == 0) ? ON_LOST_WARN : ON_LOST_KILL;
			return strcmp(argument, "warn") == 0 || strcmp(argument, "kill") == 0;
	}
	return false;
}

static bool
is_optional(const char *argument)
{
	return argument != NULL && *argument == '[';
}

/* What getopt_long() wants to know about a command's options. */
static void
describe(const Command *command, char *letters, struct option *longs)
{
	/* An option behind NAME belongs to the command that is to be run. */
	*letters++ = (command->most < 0) ? '+' : ':';
	if (command->most < 0)
		*letters++ = ':';
	for (size_t i = 0; i < CLI_LENGTH(table); i++)
	{
		if ((table[i].commands & command->bit) == 0)
			continue;
		memset(longs, 0, sizeof(*longs));
		longs->name = table[i].name;
		longs->has_arg = is_optional(table[i].argument) ? optional_argument :
			(table[i].argument != NULL) ? required_argument : no_argument;
		longs->val = NO_LETTER + (int) i;
		longs++;
		if (table[i].letter == 0)
			continue;
		*letters++ = table[i].letter;
		if (table[i].argument != NULL)
			*letters++ = ':';
	}
	*letters = '\0';
	memset(longs, 0, sizeof(*longs));
}

/* Which row of the table getopt_long() has found; negative if none. */
static int
find_row(const Command *command, int found)
{
	if (found >= NO_LETTER)
		return found - NO_LETTER;
	for (size_t i = 0; i < CLI_LENGTH(table); i++)
	{
		if ((table[i].commands & command->bit) != 0 && table[i].letter == found)
			return (int) i;
	}
	return -1;
}

/* The option that getopt_long() could not make anything of. */
static int
complain(const Command *command, int found, char **argv)
{
	if (found == ':')
		output_error(CLI_EXIT_USAGE, "option \"%s\" needs an argument", argv[optind - 1]);
	else if (optopt > 0 && optopt < NO_LETTER)
		output_error(CLI_EXIT_USAGE, "\"dlock %s\" has no option \"-%c\"", command->name, optopt);
	else
		output_error(CLI_EXIT_USAGE, "\"dlock %s\" has no option \"%s\", or it is ambiguous or takes no argument",
					 command->name, argv[optind - 1]);
	return options_usage(command);
}

static bool
check_together(const Command *command, const Options *options, int arguments)
{
	if (arguments < command->least && !(options->observe && arguments >= 1))
		output_error(CLI_EXIT_USAGE, "too few arguments");
	else if (command->most >= 0 && arguments > command->most)
	{
		output_error(CLI_EXIT_USAGE, "too many arguments");
		if (command->bit == CMD_CAPTURE && options->wait == CLI_FOREVER)
			output_hint("The span of --wait follows an equals sign: --wait=5m.");
	}
	else if (options->permits != NULL && options->mode != NULL)
		output_error(CLI_EXIT_USAGE, "a permit of a semaphore has no mode");
	else if (options->permits != NULL && options->path)
		output_error(CLI_EXIT_USAGE, "a path cannot be a semaphore");
	else
		return true;
	return false;
}

/*
 * Parse the options of a command, whose name is argv[0].  Returns the index of
 * the first argument; or, negative, -1 - an exit code, if there is nothing more
 * to do.
 */
int
options_parse(const Command *command, int argc, char **argv, Options *options)
{
	char		letters[2 * CLI_LENGTH(table) + 4];
	struct option longs[CLI_LENGTH(table) + 1];
	int			found;
	static const Options defaults = {
		.wait = CLI_FOREVER,
		.ttl = -1,
		.lock_delay = -1,
		.min_hold = -1,
		.kill_after = -1,
		.once_per = -1,
		.delay = -1,
		.signal = SIGTERM,
		.refused_exit = CLI_EXIT_REFUSED,
		.count = -1,
		.watch = -1
	};

	*options = defaults;
	options->command = command;
	if (command->bit == CMD_CAPTURE)
		options->wait = 0;
	describe(command, letters, longs);
	opterr = 0;
	while ((found = getopt_long(argc, argv, letters, longs, NULL)) != -1)
	{
		int			row = find_row(command, found);

		if (row < 0)
			return -1 - complain(command, found, argv);
		if (table[row].kind == OPT_HELP)
		{
			options_help(command);
			return -1 - output_finish();
		}
		if (!take(options, table[row].kind, table[row].field, optarg))
		{
			output_error(CLI_EXIT_USAGE, "option \"--%s\" does not take \"%s\"", table[row].name, optarg);
			if (strstr(table[row].argument, "SPAN") != NULL)
				output_hint("A span is a number with a unit: 500ms, 1.5s, 5m, 2h or 1d; without one it means seconds.");
			return -1 - options_usage(command);
		}
	}
	output_init(options->quiet ? OUTPUT_QUIET : options->verbose ? OUTPUT_VERBOSE : OUTPUT_NORMAL, options->json);
	if (!check_together(command, options, argc - optind))
		return -1 - options_usage(command);
	return optind;
}

static void
print_option(char letter, const char *name, const char *argument, const char *help)
{
	char		left[64];

	snprintf(left, sizeof(left), "--%s%s%s", name,
			 (argument != NULL && !is_optional(argument)) ? " " : "", (argument != NULL) ? argument : "");
	if (letter != 0)
		printf("  -%c, %-26s", letter, left);
	else
		printf("      %-26s", left);
	for (; *help != '\0'; help++)
	{
		putchar(*help);
		if (*help == '\n')
			printf("%32s", "");
	}
	putchar('\n');
}

/* Print the help of one command. */
void
options_help(const Command *command)
{
	printf("Usage: dlock %s [OPTION]...%s%s\n\n%s\nOptions:\n", command->name,
		   (*command->arguments != '\0') ? " " : "", command->arguments, command->text);
	for (size_t i = 0; i < CLI_LENGTH(table); i++)
	{
		if ((table[i].commands & command->bit) != 0)
			print_option(table[i].letter, table[i].name, table[i].argument, table[i].help);
	}
}
