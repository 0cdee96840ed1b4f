/*-------------------------------------------------------------------------
 *
 * main.c
 *	  dlock_peers rate|handoff|check PEER ADDRESS [-c CLIENTS] [-j THREADS]
 *	  [-s SECONDS] [-w MILLISECONDS] [-k NAMES] [-p PATIENCE]
 *	  dlock_peers ports COUNT
 *
 * NOTES
 *	  rate		pairs a second: acquire and release of names chosen at random.
 *				Prints "rate", "pairs", "refused" and "left", a line each.
 *	  handoff	a line "handoff MICROSECONDS" for each
 *	  check		does the peer grant, refuse, and hand over, as it should?
 *	  ports		so many free ports of 127.0.0.1, on a line
 *
 *	  ADDRESS is a port of 127.0.0.1, or the path of a Unix socket; for Redlock
 *	  five of these, with commas between.  What is measured begins after the
 *	  warm-up (-w).  An answer that takes longer than the patience, in seconds,
 *	  is an error.  The options of a session of PostgreSQL come from PGOPTIONS.
 *
 * IDENTIFICATION
 *	  test/bench/peers/main.c
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "peers.h"

#define MOST_PORTS	64

Options		options = {
	.seconds = 1,
	.warm_up = 500,
	.clients = 1,
	.threads = 1,
	.names = 100000,
	.patience = 180
};

static const Peer *const peers[] = {
	&dlock_peer, &table_peer, &advisory_peer, &redis_peer, &redlock_peer, &etcd_peer, &zookeeper_peer
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

/* All of them are bound before the first one is closed, so that none repeats. */
static void
print_ports(int count)
{
	int			fds[MOST_PORTS];

	if (count > MOST_PORTS)
		fail("too many ports");
	for (int i = 0; i < count; i++)
	{
		struct sockaddr_in address = {.sin_family = AF_INET};
		socklen_t	length = sizeof(address);

		address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		fds[i] = socket(AF_INET, SOCK_STREAM, 0);
		if (fds[i] < 0 || bind(fds[i], (struct sockaddr *) &address, length) != 0 ||
			getsockname(fds[i], (struct sockaddr *) &address, &length) != 0)
			fail("cannot find a free port: %s", strerror(errno));
		printf(i == 0 ? "%d" : " %d", ntohs(address.sin_port));
	}
	printf("\n");
	for (int i = 0; i < count; i++)
		close(fds[i]);
}

static const Peer *
find_peer(const char *name)
{
	for (size_t i = 0; i < sizeof(peers) / sizeof(peers[0]); i++)
	{
		if (strcmp(name, peers[i]->name) == 0)
			return peers[i];
	}
	fail("there is no peer \"%s\"", name);
}

static void
read_options(int argc, char **argv)
{
	int			option;

	optind = 4;
	while ((option = getopt(argc, argv, "c:j:s:w:k:p:")) != -1)
	{
		switch (option)
		{
			case 'c':
				options.clients = number(optarg);
				break;
			case 'j':
				options.threads = number(optarg);
				break;
			case 's':
				options.seconds = number(optarg);
				break;
			case 'w':
				options.warm_up = number(optarg);
				break;
			case 'k':
				options.names = number(optarg);
				break;
			case 'p':
				options.patience = number(optarg);
				break;
			default:
				exit(1);
		}
	}
	if (options.threads > options.clients)
		options.threads = options.clients;
}

int
main(int argc, char **argv)
{
	const Peer *peer;

	if (argc == 3 && strcmp(argv[1], "ports") == 0)
	{
		print_ports(number(argv[2]));
		return 0;
	}
	if (argc < 4)
		fail("what is to be measured, of which peer, and where is it?");
	peer = find_peer(argv[2]);
	options.address = argv[3];
	read_options(argc, argv);
	if (strcmp(argv[1], "rate") == 0)
		measure_rate(peer);
	else if (strcmp(argv[1], "handoff") == 0)
		measure_handoff(peer);
	else if (strcmp(argv[1], "check") == 0)
		check_peer(peer);
	else
		fail("there is no measurement \"%s\"", argv[1]);
	return 0;
}
