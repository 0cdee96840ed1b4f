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
 *	  3	loop.c			waiting for the connection, signals and the clock; requests
 *						that wait
 *	  4	child.c			the command that is run
 *		grant.c			acquire and give back
 *	  5	hold.c			run a command and keep its lease
 *	  6	cmd_*.c			the commands
 *	  7	main.c			this file: the table of commands
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "options.h"
#include "output.h"

static const Command commands[] = {
	{
		"run", CMD_RUN, "NAME [--] COMMAND [ARGUMENT]...", "run a command while holding a lock",
		"Acquires a lease on lock NAME, runs COMMAND, and releases the lease.  The lease\n"
		"is renewed while the command runs.  If the lease is lost, dlock stops the\n"
		"command and exits with 76.  If the server cannot be reached, dlock stops the\n"
		"command before the lease ends.  Otherwise the exit code is the command's.\n\n"
		"With --once-per 1d, one of the machines runs it each day; the others exit with\n"
		"75.\n\n"
		"DLOCK_NAME, DLOCK_TOKEN, DLOCK_OWNER and DLOCK_EXPIRES_AT are in the command's\n"
		"environment.  PGOPTIONS presents the token in the sessions that it opens.\n",
		1, -1, run_command
	},
	{
		"acquire", CMD_ACQUIRE, "NAME", "acquire a lease and print its fencing token",
		"Acquires a lease on lock NAME and prints its fencing token.  The lease ends\n"
		"after --ttl, unless you call \"dlock renew\" or \"dlock release\" in time.\n"
		"To hold a lock while a command runs, use \"dlock run\".\n",
		1, 1, acquire
	},
	{
		"renew", CMD_RENEW, "NAME [TOKEN]", "extend a lease of \"dlock acquire\"",
		"Extends the lease on lock NAME with this token, or of this --owner.  Without\n"
		"--ttl it keeps its own.  Exits with 76 if the lease is no longer held.\n",
		1, 2, call_function
	},
	{
		"release", CMD_RELEASE, "NAME [TOKEN]", "end a lease of \"dlock acquire\"",
		"Ends the lease on lock NAME with this token, or of this --owner.  Exits with 76\n"
		"if it was no longer held.  The lease of another owner is never touched.\n",
		1, 2, call_function
	},
	{
		"check", CMD_CHECK, "NAME TOKEN", "ask whether a lease is still held",
		"Exits with 0 if the lease with this token on lock NAME is held now, and with 76\n"
		"if it is not.  The lease may end right after the answer: protect data by the\n"
		"fencing token.\n",
		2, 2, call_function
	},
	{
		"status", CMD_STATUS, "[NAME]", "show who holds locks, and who waits for them",
		"Shows the leases of this database and the calls that wait, of all locks or of\n"
		"one.  The lock that has been waited for longest comes first.  LEFT and WAITED\n"
		"are in seconds.  With --watch they are shown again and again.\n",
		0, 1, show_status
	},
	{
		"wait", CMD_WAIT, "NAME", "wait until nobody holds a lock",
		"Waits until nobody holds lock NAME, without acquiring it or standing in its\n"
		"queue.  Exits with 75 if the lock is still held after --wait.\n",
		1, 1, wait_free
	},
	{
		"watch", CMD_WATCH, "NAME", "print each change of the holder of a lock",
		"Prints the holder of lock NAME, and another line at each change: the time, the\n"
		"token, the owner and the payload, or \"free\".  Of several holders it prints the\n"
		"latest.\n",
		1, 1, watch_holder
	},
	{
		"elect", CMD_ELECT, "NAME [--] COMMAND [ARGUMENT]...", "run a command while it is the leader",
		"Waits to be the leader, that is, the holder of lock NAME, and runs COMMAND while\n"
		"it leads.  When the command has ended, or was stopped because the lease was\n"
		"lost, it campaigns again.  A signal such as TERM is passed on to the command,\n"
		"and ends the campaign.\n\n"
		"dlock elect --observe NAME prints the leader, and each change.  With --wait it\n"
		"ends after that time, and exits with 75 if nobody leads.\n",
		1, -1, run_command
	},
	{
		"force-release", CMD_FORCE, "NAME --reason TEXT", "end leases of others",
		"Ends all leases on lock NAME, of all owners, and prints how many there were.\n"
		"The server logs the role and the reason.  A lease with a lock delay, such as\n"
		"that of \"dlock run\", keeps the lock closed while its command is being stopped;\n"
		"a second call opens it.\n",
		1, 1, call_function
	},
	{
		"task put", CMD_PUT, "QUEUE KEY", "put a task into a queue",
		"Puts task KEY into QUEUE, which \"SELECT dlock_queue_create('QUEUE')\" creates.\n"
		"Nothing changes if the queue has an unfinished task of this key; --json tells.\n",
		2, 2, call_function
	},
	{
		"task capture", CMD_CAPTURE, "QUEUE", "take tasks from a queue, to work on them",
		"Captures the first task of QUEUE and prints its key, token and payload,\n"
		"separated by tabs.  After --ttl the capture ends, and another worker can capture\n"
		"the task.  Exits with 75 if there is no task, or none within --wait=SPAN.\n",
		1, 1, capture
	},
	{
		"task finish", CMD_FINISH, "QUEUE KEY TOKEN", "end a task that was captured",
		"Finishes the task that was captured with this token.  Exits with 76 if the\n"
		"capture has ended.\n",
		3, 3, call_function
	},
	{
		"task fail", CMD_FAIL, "QUEUE KEY TOKEN", "give a captured task back, as failed",
		"Gives back the task that was captured with this token, and prints its new state:\n"
		"the one before the capture, or \"parked\" if its attempts are used up.  Exits with\n"
		"76 if the capture has ended.\n",
		3, 3, call_function
	},
	{
		"task list", CMD_LIST, "[QUEUE]", "show the tasks of queues",
		"Shows the tasks of all queues that this role may use, or of one.  Finished tasks\n"
		"come last.\n",
		0, 1, call_function
	},
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

/* Print the commands whose names begin so, after "before" each. */
static void
print_commands(const char *prefix, const char *before)
{
	for (size_t i = 0; i < CLI_LENGTH(commands); i++)
	{
		if (strncmp(commands[i].name, prefix, strlen(prefix)) == 0)
			printf("  %s%-14s %s\n", before, commands[i].name, commands[i].summary);
	}
}

static int
print_help(void)
{
	printf("dlock holds lease locks in a PostgreSQL server.\n\n"
		   "Usage: dlock COMMAND [OPTION]... [ARGUMENT]...\n\nCommands:\n");
	print_commands("", "");
	printf("\n\"dlock COMMAND --help\" tells more about each.  dlock connects as psql does:\n"
		   "with -d CONNINFO, or the variables PGHOST, PGPORT, PGDATABASE, PGUSER and so on.\n\n"
		   "Exit codes, except that of the command that is run (128+N: signal N ended it):\n"
		   "  0    done\n"
		   "  64   wrong usage, or a value that the server does not accept\n"
		   "  66   there is no such task queue\n"
		   "  69   the server cannot be reached, is too slow, lacks dlock, or has no room\n"
		   "  70   an unexpected error of the server\n"
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
		const char *name = commands[i].name;
		size_t		first = strcspn(name, " ");

		*count = (name[first] == '\0') ? 1 : 2;
		if (argc >= *count && strlen(argv[0]) == first && strncmp(argv[0], name, first) == 0 &&
			(*count == 1 || strcmp(argv[1], name + first + 1) == 0))
			return &commands[i];
	}
	return NULL;
}

static bool
is_help(const char *argument)
{
	return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
}

/* There is no such command, or only the first of its two words.  Returns an exit code. */
static int
miss_command(int argc, char **argv, bool wants_help)
{
	bool		is_task = strcmp(argv[0], "task") == 0;

	if (is_task && ((wants_help && argc == 1) || (argc > 1 && is_help(argv[1]))))
	{
		print_commands("task ", "dlock ");
		return output_finish();
	}
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
		output_error(CLI_EXIT_USAGE, "no command was given");
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
	return (first < 0) ? -1 - first : command->run(&options, argv + first);
}
