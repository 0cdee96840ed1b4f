/*-------------------------------------------------------------------------
 *
 * main.c
 *	  The dlock command: lease locks for shells and scripts.
 *
 * NOTES
 *	  The command speaks to the server in SQL, through libpq, and knows nothing
 *	  of the extension's inside.  The map of the files, lowest layer first; each
 *	  includes only lower ones:
 *
 *	  0	cli.h			exit codes, spans of time
 *	  1	text.c			strings that grow
 *		clock.c			the clock of deadlines
 *		duration.c		spans as people write them
 *		lease.c			the deadline of a lease, pure
 *		pipe.c			pipes for this process only
 *		signals.c		signals as events
 *	  2	tokens.c		the setting dlock.tokens, pure
 *		process.c		owners, random numbers, descriptors
 *		output.c		messages, tables, JSON
 *		terminal.c		whose the terminal is
 *	  3	options.c		options and help
 *		childenv.c		the environment of the command that is run
 *		rows.c			answers as tables or JSON
 *		connparams.c	what is added to the user's connection parameters
 *		connerror.c		what an error means
 *	  4	conn.c			the connection, which may come and go
 *		guardian.c		the process that ends the command if we cannot
 *	  5	loop.c			waiting for all of these
 *		child.c			the command that is run
 *	  6	grant.c			acquire and give back
 *		capture.c		the same for tasks
 *		target.c		a lease by its token or owner
 *		observe.c		watching who holds a lock
 *	  7	hold.c			run a command and keep its lease
 *	  8	cmd_*.c			one for each command
 *	  9	main.c			this file: the table of commands
 *
 * IDENTIFICATION
 *	  src/cli/main.c
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "output.h"

static const Command *const commands[] =
{
	&cmd_run, &cmd_acquire, &cmd_renew, &cmd_release, &cmd_check, &cmd_status, &cmd_wait, &cmd_watch,
	&cmd_elect, &cmd_force_release,
	&cmd_task_put, &cmd_task_capture, &cmd_task_finish, &cmd_task_fail, &cmd_task_list
};

/*
 * See to it that the first three descriptors are in use, so that no socket becomes
 * what messages are written to.  Who uses one that was closed gets an error
 * still, and a command that we execute finds it closed.
 */
static void
fill_standard(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
	{
		if (fcntl(fd, F_GETFD) < 0)
			(void) !open("/dev/null", ((fd == STDIN_FILENO) ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
	}
}

static void
print_help(void)
{
	printf("dlock holds lease locks in a PostgreSQL server.\n\n"
		   "Usage: dlock COMMAND [OPTION]... [ARGUMENT]...\n\nCommands:\n");
	for (size_t i = 0; i < CLI_LENGTH(commands); i++)
		printf("  %-14s %s\n", commands[i]->name, commands[i]->summary);
	printf("\n\"dlock COMMAND --help\" tells more about each.  The server is found as by psql:\n"
		   "with -d CONNINFO, or the variables PGHOST, PGPORT, PGDATABASE, PGUSER and so on.\n\n"
		   "Exit codes, but for that of the command that is run (128+N: signal N ended it):\n"
		   "  0    done\n"
		   "  64   wrong usage, or a value that the server does not accept\n"
		   "  66   there is no such task queue\n"
		   "  69   the server is out of reach, too slow, did not answer, or lacks something\n"
		   "  70   an error of the server that was not expected\n"
		   "  71   an error of this machine\n"
		   "  75   the lock was not acquired (-E CODE: another code)\n"
		   "  76   the lease is lost, or could not be kept\n"
		   "  77   no permission\n"
		   "  126  the command cannot be executed\n"
		   "  127  the command was not found\n");
}

/*
 * The command that the words begin with; "count" is how many words it has, or
 * 1 if there is none.
 */
static const Command *
find_command(int argc, char **argv, int *count)
{
	for (size_t i = 0; i < CLI_LENGTH(commands); i++)
	{
		const char *name = commands[i]->name;
		size_t		first = strcspn(name, " ");
		bool		has_two = name[first] != '\0';

		if (strlen(argv[0]) != first || strncmp(argv[0], name, first) != 0)
			continue;
		if (!has_two || (argc > 1 && strcmp(argv[1], name + first + 1) == 0))
		{
			*count = 1 + has_two;
			return commands[i];
		}
	}
	*count = 1;
	return NULL;
}

/* Print the commands of two words that begin with this one; false if there are none. */
static bool
print_group(const char *first)
{
	size_t		length = strlen(first);
	bool		found = false;

	for (size_t i = 0; i < CLI_LENGTH(commands); i++)
	{
		const char *name = commands[i]->name;

		if (strncmp(name, first, length) != 0 || name[length] != ' ')
			continue;
		printf("  dlock %-14s %s\n", name, commands[i]->summary);
		found = true;
	}
	return found;
}

/* There is no such command, or only the first of its two words. */
static int
complain(int argc, char **argv)
{
	if (strcmp(argv[0], "task") != 0)
		output_error(CLI_EXIT_USAGE, "there is no command \"%s\"", argv[0]);
	else if (argc < 2 || argv[1][0] == '-')
		output_error(CLI_EXIT_USAGE, "\"dlock task\" needs put, capture, finish, fail or list");
	else
		output_error(CLI_EXIT_USAGE, "there is no command \"task %s\"", argv[1]);
	if (argv[0][0] == '-')
		output_hint("Options come after the command.");
	return options_usage(NULL);
}

static bool
is_help(const char *argument)
{
	return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
}

/* Without a command to say which options there are, is --json among them? */
static bool
asks_for_json(int argc, char **argv)
{
	for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
	{
		if (strcmp(argv[i], "--json") == 0)
			return true;
	}
	return false;
}

/* dlock help [COMMAND], or what is an option of no command. */
static int
run_help(int argc, char **argv)
{
	const Command *command = NULL;
	int			words;

	if (argc == 1 && print_group(argv[0]))
		return output_finish();
	if (argc > 0)
	{
		command = find_command(argc, argv, &words);
		if (command == NULL)
			return complain(argc, argv);
	}
	if (command != NULL)
		options_help(command);
	else
		print_help();
	return output_finish();
}

int
main(int argc, char **argv)
{
	const Command *command;
	Options		options;
	int			first;
	int			words;

	fill_standard();
	output_init(OUTPUT_NORMAL, asks_for_json(argc, argv));
	if (argc < 2)
	{
		output_error(CLI_EXIT_USAGE, "no command is given");
		return options_usage(NULL);
	}
	if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0)
	{
		printf("dlock %s\n", DLOCK_VERSION);
		return output_finish();
	}
	if (is_help(argv[1]))
		return run_help(0, NULL);
	if (strcmp(argv[1], "help") == 0)
		return run_help((argc > 2 && !is_help(argv[2])) ? argc - 2 : 0, argv + 2);

	if (argc > 2 && is_help(argv[2]) && print_group(argv[1]))
		return output_finish();

	command = find_command(argc - 1, argv + 1, &words);
	if (command == NULL)
		return complain(argc - 1, argv + 1);
	argc -= words;
	argv += words;
	first = options_parse(command, argc, argv, &options);
	if (first < 0)
		return -1 - first;
	return command->run(&options, argc - first, argv + first);
}
