/*-------------------------------------------------------------------------
 *
 * main.c
 *	  dlock_probe MEASUREMENT [-s SECONDS] [-n SAMPLES] [-l LEASES]
 *	  [-c CLIENTS] [-k NAMES] [-- COMMAND...]
 *
 * NOTES
 *	  It connects as the environment of libpq says.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "probe.h"

static const struct
{
	const char *name;
	void		(*measure) (const Options *options);
}			measurements[] = {
	{"handoff", handoff},
	{"takeover", takeover},
	{"expiry", expiry},
	{"waiters", crowd_waiters},
	{"owners", crowd_owners},
	{"idle", crowd_idle},
	{"holders", crowd_holders},
	{"sharers", crowd_sharers},
	{"siblings", crowd_siblings},
	{"places", crowd_places},
	{"leases", crowd_leases},
	{"contenders", crowd_contenders},
	{"advisory", crowd_advisory},
	{"crowd_expiry", crowd_expiry},
};

static int
number(const char *text)
{
	char	   *end;
	long		value = strtol(text, &end, 10);

	if (*end != '\0' || value < 1 || value > 1000 * 1000 * 1000)
		fail("\"%s\" is not a number above zero", text);
	return (int) value;
}

int
main(int argc, char **argv)
{
	Options		options = {
		.seconds = 1,
		.samples = 200,
		.leases = 1000,
		.clients = 1,
		.names = 100000
	};
	int			option;

	if (argc < 2)
		fail("which measurement?");
	optind = 2;
	while ((option = getopt(argc, argv, "s:n:l:c:k:")) != -1)
	{
		switch (option)
		{
			case 's':
				options.seconds = number(optarg);
				break;
			case 'n':
				options.samples = number(optarg);
				break;
			case 'l':
				options.leases = number(optarg);
				break;
			case 'c':
				options.clients = number(optarg);
				break;
			case 'k':
				options.names = number(optarg);
				break;
			default:
				return 1;
		}
	}
	options.command = argv + optind;
	for (size_t i = 0; i < sizeof(measurements) / sizeof(measurements[0]); i++)
	{
		if (strcmp(argv[1], measurements[i].name) == 0)
		{
			measurements[i].measure(&options);
			return 0;
		}
	}
	fail("there is no measurement \"%s\"", argv[1]);
}
