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
 *	  0	cli.c			exit codes, strings, spans of time, the clock
 *	  1	output.c		messages, tables, JSON
 *		lease.c			the deadline of a lease, and what its command is told; pure
 *	  2	options.c		options and help
 *		conn.c			the connection, which may come and go: all of libpq
 *	  3	loop.c			waiting for the connection, signals and the clock
 *	  4	child.c			the command that is run
 *		grant.c			acquire and give back
 *		capture.c		the same for tasks
 *	  5	hold.c			run a command and keep its lease
 *	  6	cmd_*.c			the commands
 *	  7	main.c			this file: the table of commands
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

#include "options.h"
#include "output.h"

static const Command *const commands[] =
{
	&cmd_run, &cmd_acquire, &cmd_renew, &cmd_release, &cmd_check, &cmd_status, &cmd_wait, &cmd_watch,
	&cmd_elect, &cmd_force_release,
	&cmd_task_put, &cmd_task_capture, &cmd_task_finish, &cmd_task_fail, &cmd_task_list
};

/*
 * See to it that the first three descriptors are in use, so that no socket becomes
 * what messages are written to.  To use one that was closed is an error still, and
 * the command that we execute finds it closed.
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

static int
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
	return output_finish();
}

/*
 * The command that the words begin with, in one word or two; "count" is how many it
 * has.  NULL: there is none.
 */
static const Command *
find_command(int argc, char **argv, int *count)
{
	for (size_t i = 0; i < CLI_LENGTH(commands); i++)
	{
		const char *name = commands[i]->name;
		size_t		first = strcspn(name, " ");

		*count = (name[first] == '\0') ? 1 : 2;
		if (argc >= *count && strlen(argv[0]) == first && strncmp(argv[0], name, first) == 0 &&
			(*count == 1 || strcmp(argv[1], name + first + 1) == 0))
			return commands[i];
	}
	return NULL;
}

static bool
is_help(const char *argument)
{
	return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
}

static int
print_tasks(void)
{
	for (size_t i = 0; i < CLI_LENGTH(commands); i++)
	{
		if (strncmp(commands[i]->name, "task ", 5) == 0)
			printf("  dlock %-14s %s\n", commands[i]->name, commands[i]->summary);
	}
	return output_finish();
}

/* There is no such command, or only the first of its two words.  Returns an exit code. */
static int
miss_command(int argc, char **argv, bool wants_help)
{
	bool		is_task = strcmp(argv[0], "task") == 0;

	if (is_task && ((wants_help && argc == 1) || (argc > 1 && is_help(argv[1]))))
		return print_tasks();
	if (!is_task)
		output_error(CLI_EXIT_USAGE, "there is no command \"%s\"", argv[0]);
	else if (argc < 2 || argv[1][0] == '-')
		output_error(CLI_EXIT_USAGE, "\"dlock task\" needs put, capture, finish, fail or list");
	else
		output_error(CLI_EXIT_USAGE, "there is no command \"task %s\"", argv[1]);
	if (argv[0][0] == '-')
		output_hint("Options come after the command.");
	return options_usage(NULL);
}

/* Is a mistake in the options to be told in JSON? */
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

int
main(int argc, char **argv)
{
	const Command *command;
	Options		options;
	bool		wants_help;
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
	wants_help = strcmp(argv[1], "help") == 0;
	if (is_help(argv[1]) || (wants_help && (argc == 2 || is_help(argv[2]))))
		return print_help();
	argc -= 1 + wants_help;
	argv += 1 + wants_help;

	command = find_command(argc, argv, &words);
	if (command == NULL)
		return miss_command(argc, argv, wants_help);
	if (wants_help)
	{
		options_help(command);
		return output_finish();
	}
	argc -= words - 1;
	argv += words - 1;
	first = options_parse(command, argc, argv, &options);
	return (first < 0) ? -1 - first : command->run(&options, argc - first, argv + first);
}
