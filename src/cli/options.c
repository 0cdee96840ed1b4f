/*-------------------------------------------------------------------------
 *
 * options.c
 *	  The options of all commands, and the help that is made of them.
 *
 * NOTES
 *	  One table says of each option which commands take it, how it is written
 *	  and what it means, so the parser and the help cannot differ.  A letter may
 *	  stand in it twice, for different commands.
 *
 * IDENTIFICATION
 *	  src/cli/options.c
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

/* From one look to the next, of status --watch. */
#define WATCH_EVERY		(2 * CLI_SECOND)

typedef enum OptionId
{
	OPT_CONNINFO = 1, OPT_JSON, OPT_QUIET, OPT_VERBOSE, OPT_HELP,
	OPT_NONBLOCK, OPT_WAIT, OPT_SHARED, OPT_EXCLUSIVE, OPT_MODE, OPT_PERMITS, OPT_TTL, OPT_OWNER,
	OPT_LOCK_DELAY, OPT_MIN_HOLD, OPT_PAYLOAD, OPT_PATH, OPT_EXIT,
	OPT_SHELL, OPT_KILL_AFTER, OPT_OUTAGE, OPT_SIGNAL, OPT_ON_LOST, OPT_NO_TOKENS,
	OPT_ONCE_PER, OPT_STATE, OPT_PRIORITY, OPT_DELAY, OPT_ERROR,
	OPT_REASON, OPT_ONCE, OPT_OBSERVE, OPT_COUNT, OPT_WATCH
} OptionId;

static const struct
{
	OptionId	id;
	unsigned	commands;
	char		letter;			/* or zero */
	const char *name;
	const char *argument;		/* NULL: takes none; in brackets: or none */
	const char *help;
}			table[] =

{
	{OPT_NONBLOCK, CMD_RUN | CMD_ACQUIRE, 'n', "nonblock", NULL, "do not wait for the lock"},
	{OPT_WAIT, ACQUIRERS | CMD_WAIT, 'w', "wait", "SPAN", "wait no longer than this; without it, wait\nas long as it takes"},
	{OPT_WAIT, ACQUIRERS | CMD_WAIT, 0, "timeout", "SPAN", "the same as --wait"},
	{OPT_WAIT, CMD_CAPTURE, 0, "wait", "[=SPAN]", "wait for a task, no longer than this if it is\ngiven"},
	{OPT_WAIT, CMD_CAPTURE, 0, "timeout", "SPAN", "the same as --wait=SPAN"},
	{OPT_ONCE_PER, CMD_RUN, 0, "once-per", "SPAN", "run it once in each slot of time so long, of\nall machines"},
	{OPT_EXCLUSIVE, CMD_RUN | CMD_ACQUIRE, 'x', "exclusive", NULL, "an exclusive lock (the default)"},
	{OPT_SHARED, CMD_RUN | CMD_ACQUIRE, 's', "shared", NULL, "a shared lock"},
	{OPT_MODE, CMD_RUN | CMD_ACQUIRE, 0, "mode", "MODE", "exclusive, shared, NL, CR, CW, PR, PW or EX"},
	{OPT_PERMITS, CMD_RUN | CMD_ACQUIRE, 0, "permits", "N", "one permit of a semaphore with N"},
	{OPT_PATH, CMD_RUN | CMD_ACQUIRE, 0, "path", NULL, "NAME is a place in a hierarchy, such as a/b/c"},
	{OPT_TTL, ACQUIRERS | CMD_RENEW, 0, "ttl", "SPAN", "time to live of the lease (60s; of acquire\n30s; of renew the one that it has)"},
	{OPT_TTL, CMD_CAPTURE, 0, "ttl", "SPAN", "how long the task is yours (30s)"},
	{OPT_OWNER, ACQUIRERS | CMD_RENEW | CMD_RELEASE, 0, "owner", "TEXT", "owner of the lease"},
	{OPT_OWNER, CMD_CAPTURE, 0, "owner", "TEXT", "who works on it, for others to see"},
	{OPT_LOCK_DELAY, ACQUIRERS, 0, "lock-delay", "SPAN", "keep the lock closed for so long if the lease\nexpires or is ended by force"},
	{OPT_MIN_HOLD, CMD_RUN | CMD_ACQUIRE, 0, "min-hold", "SPAN", "keep the lock for so long even if it is\nreleased before"},
	{OPT_PAYLOAD, ACQUIRERS, 0, "payload", "JSON", "kept with the lease, for others to see"},
	{OPT_PAYLOAD, CMD_PUT, 0, "payload", "JSON", "what there is to do"},
	{OPT_PRIORITY, CMD_PUT, 0, "priority", "N", "tasks with smaller numbers come first (0)"},
	{OPT_STATE, CMD_PUT | CMD_FINISH | CMD_FAIL, 0, "state", "STATE", "the task's new state, not the queue's own"},
	{OPT_STATE, CMD_CAPTURE | CMD_LIST, 0, "state", "STATE", "only tasks in this state"},
	{OPT_DELAY, CMD_PUT | CMD_FAIL, 0, "delay", "SPAN", "the task cannot be captured for so long"},
	{OPT_ERROR, CMD_FAIL, 0, "error", "TEXT", "what went wrong; it is kept with the task"},
	{OPT_EXIT, CMD_RUN | CMD_ACQUIRE | CMD_WAIT, 'E', "conflict-exit-code", "CODE", "exit code if the lock is not to be had (75)"},
	{OPT_EXIT, CMD_CAPTURE, 'E', "conflict-exit-code", "CODE", "exit code if there is no task (75)"},
	{OPT_SHELL, RUNNERS, 'c', "command", "STRING", "run this by sh -c, instead of COMMAND"},
	{OPT_KILL_AFTER, RUNNERS, 0, "kill-after", "SPAN", "from the first signal to KILL, when the command\nhas to end (5s)"},
	{OPT_OUTAGE, RUNNERS, 0, "outage", "SPAN", "the command has to outlast an outage of the\nserver this long; without --ttl, this chooses\nit (53s with the default ttl)"},
	{OPT_SIGNAL, RUNNERS, 0, "signal", "NAME", "the first signal (TERM)"},
	{OPT_ON_LOST, RUNNERS, 0, "on-lost", "ACTION", "when the lease is lost, kill the command (the\ndefault), or warn"},
	{OPT_NO_TOKENS, RUNNERS, 0, "no-tokens", NULL, "leave PGOPTIONS of the command alone"},
	{OPT_ONCE, CMD_ELECT, 0, "once", NULL, "end when the command has ended, or its lease"},
	{OPT_OBSERVE, CMD_ELECT, 0, "observe", NULL, "print each new leader, and do not campaign"},
	{OPT_REASON, CMD_FORCE, 0, "reason", "TEXT", "why; it is written to the server's log"},
	{OPT_COUNT, CMD_WATCH, 'n', "count", "N", "end after so many"},
	{OPT_COUNT, CMD_CAPTURE, 'n', "count", "N", "capture up to so many (1)"},
	{OPT_WATCH, CMD_STATUS, 0, "watch", "[=SPAN]", "show it again every SPAN (2s)"},
	{OPT_CONNINFO, CMD_ALL, 'd', "dbname", "CONNINFO", "database, connection string or URI; PG*\nvariables otherwise"},
	{OPT_JSON, CMD_ALL, 0, "json", NULL, "print JSON, an object a line, errors too"},
	{OPT_QUIET, CMD_ALL, 'q', "quiet", NULL, "say only what the exit code does not"},
	{OPT_VERBOSE, CMD_ALL, 'v', "verbose", NULL, "say more"},
	{OPT_HELP, CMD_ALL, 'h', "help", NULL, "this help"},
};

/* For what has no letter, getopt_long() answers with the id and this. */
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

/* Where to look after a mistake.  Returns an exit code. */
int
options_usage(const char *command)
{
	if (command != NULL)
		output_hint("Try \"dlock %s --help\".", command);
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

/* A span that must not be zero. */
static bool
parse_some(const char *text, CliTime *span)
{
	return duration_parse(text, span) && *span > 0;
}

static bool
parse_on_lost(const char *text, OptionsOnLost *action)
{
	*action = (strcmp(text, "warn") == 0) ? ON_LOST_WARN : ON_LOST_KILL;
	return strcmp(text, "warn") == 0 || strcmp(text, "kill") == 0;
}

/* Take an option of a task; false if its argument is not understood. */
static bool
take_of_task(Options *options, OptionId id, const char *argument)
{
	int			number;

	if (id == OPT_DELAY)
		return duration_parse(argument, &options->delay);
	if (id == OPT_PRIORITY)
	{
		options->priority = argument;
		return parse_int(argument, INT32_MIN, INT32_MAX, &number);
	}
	if (id == OPT_STATE)
		options->state = argument;
	else
		options->error = argument;
	return true;
}

/* Take an option; false if its argument is not understood. */
static bool
take(Options *options, OptionId id, const char *argument)
{
	int			number;

	switch (id)
	{
		case OPT_CONNINFO:
			options->conninfo = argument;
			return true;
		case OPT_JSON:
			return options->json = true;
		case OPT_QUIET:
			return options->quiet = true;
		case OPT_VERBOSE:
			return options->verbose = true;
		case OPT_NONBLOCK:
			options->wait = 0;
			return true;
		case OPT_WAIT:
			options->wait = CLI_FOREVER;
			return argument == NULL || duration_parse(argument, &options->wait);
		case OPT_SHARED:
			options->mode = "shared";
			return true;
		case OPT_EXCLUSIVE:
			options->mode = "exclusive";
			return true;
		case OPT_MODE:
			options->mode = argument;
			return true;
		case OPT_PERMITS:
			options->permits = argument;
			return parse_int(argument, 1, INT32_MAX, &number);
		case OPT_TTL:
			return parse_some(argument, &options->ttl);
		case OPT_OWNER:
			options->owner = argument;
			return *argument != '\0';
		case OPT_LOCK_DELAY:
			return duration_parse(argument, &options->lock_delay);
		case OPT_MIN_HOLD:
			return duration_parse(argument, &options->min_hold);
		case OPT_PAYLOAD:
			options->payload = argument;
			return true;
		case OPT_PATH:
			return options->path = true;
		case OPT_EXIT:
			return parse_int(argument, 0, 255, &options->refused_exit);
		case OPT_SHELL:
			options->shell = argument;
			return true;
		case OPT_KILL_AFTER:
			return duration_parse(argument, &options->kill_after);
		case OPT_OUTAGE:
			return duration_parse(argument, &options->outage);
		case OPT_SIGNAL:
			return parse_signal(argument, &options->signal);
		case OPT_ON_LOST:
			return parse_on_lost(argument, &options->on_lost);
		case OPT_NO_TOKENS:
			return options->no_tokens = true;
		case OPT_ONCE_PER:
			return parse_some(argument, &options->once_per);
		case OPT_STATE:
		case OPT_PRIORITY:
		case OPT_DELAY:
		case OPT_ERROR:
			return take_of_task(options, id, argument);
		case OPT_REASON:
			options->reason = argument;
			return *argument != '\0';
		case OPT_ONCE:
			return options->once = true;
		case OPT_OBSERVE:
			return options->observe = true;
		case OPT_COUNT:
			return parse_int(argument, 1, INT32_MAX, &options->count);
		case OPT_WATCH:
			options->watch = WATCH_EVERY;
			return argument == NULL || parse_some(argument, &options->watch);
		case OPT_HELP:
			break;
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
		longs->val = (table[i].letter != 0) ? table[i].letter : NO_LETTER + (int) table[i].id;
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
	for (size_t i = 0; i < CLI_LENGTH(table); i++)
	{
		if ((table[i].commands & command->bit) != 0 &&
			found == ((table[i].letter != 0) ? table[i].letter : NO_LETTER + (int) table[i].id))
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
	return options_usage(command->name);
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
 * See how messages are to be printed.  That is done first, and whatever else is
 * wrong, so that messages about the other options obey it.
 */
static void
init_output(const Command *command, int argc, char **argv, const char *letters,
			const struct option *longs)
{
	OutputLevel level = OUTPUT_NORMAL;
	bool		json = false;
	int			found;

	while ((found = getopt_long(argc, argv, letters, longs, NULL)) != -1)
	{
		int			row = find_row(command, found);
		OptionId	id = (row < 0) ? OPT_HELP : table[row].id;

		json |= id == OPT_JSON;
		if (id == OPT_QUIET)
			level = OUTPUT_QUIET;
		else if (id == OPT_VERBOSE && level != OUTPUT_QUIET)
			level = OUTPUT_VERBOSE;
	}
	output_init(level, json);

	/* From the beginning, and with what getopt_long() remembers forgotten. */
	optind = 0;
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
		.outage = -1,
		.once_per = -1,
		.delay = -1,
		.signal = SIGTERM,
		.refused_exit = CLI_EXIT_REFUSED,
		.count = -1,
		.watch = -1
	};

	*options = defaults;
	if (command->bit == CMD_CAPTURE)
		options->wait = 0;
	describe(command, letters, longs);
	opterr = 0;
	init_output(command, argc, argv, letters, longs);
	while ((found = getopt_long(argc, argv, letters, longs, NULL)) != -1)
	{
		int			row = find_row(command, found);

		if (row < 0)
			return -1 - complain(command, found, argv);
		if (table[row].id == OPT_HELP)
		{
			options_help(command);
			return -1 - output_finish();
		}
		if (!take(options, table[row].id, optarg))
		{
			output_error(CLI_EXIT_USAGE, "option \"--%s\" does not take \"%s\"", table[row].name, optarg);
			if (strstr(table[row].argument, "SPAN") != NULL)
				output_hint("A span is a number with a unit: 500ms, 1.5s, 5m, 2h or 1d; without one it means seconds.");
			return -1 - options_usage(command->name);
		}
	}
	if (!check_together(command, options, argc - optind))
		return -1 - options_usage(command->name);
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
