/*-------------------------------------------------------------------------
 *
 * history_client.c
 *	  A client that does what clients do, and writes down each call and answer.
 *
 *		history_client LOG TARGET SEED work|haste|listen|watch|flush [OPTIONS [alone [direct]]]
 *
 * LOG gets the history (DLockHistory.pm tells the format).  TARGET is a file
 * whose first line is a connection string; it is read for each new connection,
 * so the test changes it after a failover.  OPTIONS become those of the server
 * process.  With "alone" no call is in a transaction, whose end takes it back in the
 * plain edition; with "direct" no places are kept.  "work" acquires, renews, converts and
 * releases leases, and "haste" does so as fast as it can; some keep places, and come back,
 * give them up, or stay away.  "listen" takes what others have kept places for: they find
 * its name in the file TARGET.client.  "watch" looks at queues and leases; "flush" now
 * and then commits a transaction.  None ends by itself: the test kills them, as
 * it may at any other moment.
 *
 * The line of a call is in the file before the call is sent, with a time read
 * before that; the line of an answer has a time read after it arrived.  So the
 * call was made between the two times, wherever this process was stopped.  The
 * clock is the one that deadlines of leases run on.
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "libpq-fe.h"

#define MAX_NAMES	3			/* of one call */
#define NAMES		10

typedef enum Outcome
{
	LOST,						/* the connection broke: nobody knows */
	FAILED,						/* an error */
	NOTHING,					/* NULL or false */
	DONE
} Outcome;

/* What this client holds, or would like to hold. */
typedef struct Lease
{
	char		function[32];
	char		owner[64];
	char		mode[16];
	int			names;
	char		name[MAX_NAMES][8];
	char		token[MAX_NAMES][32];
	int			ttl;			/* milliseconds */
	int			keep;			/* the place, milliseconds; or 0 */
	bool		path;
} Lease;

static int	log_fd;
static const char *target;
static const char *options = "";
static PGconn *conn;
static bool warned;				/* since the last call */
static long calls;
static long owners;
static bool in_haste;			/* leases are short, or released soon */
static bool alone;				/* no transactions around calls */
static bool direct;				/* no places */

/* What the last call that succeeded has answered. */
static char *answer;

/* ---- small things ---- */

static void
fail(const char *what)
{
	perror(what);
	exit(1);
}

/* A number of 0 to limit - 1. */
static int
pick(int limit)
{
	return random() % limit;
}

static bool
chance(int percent)
{
	return pick(100) < percent;
}

static void
nap(int milliseconds)
{
	struct timespec ts = {milliseconds / 1000, milliseconds % 1000 * 1000000L};

	nanosleep(&ts, NULL);
}

static long long
now(void)
{
	struct timespec ts;

	if (clock_gettime(CLOCK_BOOTTIME, &ts) != 0)
		fail("clock_gettime");
	return (long long) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

/* Write a line at once: it must be there if this process is killed. */
static void
write_line(const char *format,...)
{
	char	   *line;
	va_list		arguments;
	int			length;

	va_start(arguments, format);
	length = vasprintf(&line, format, arguments);
	va_end(arguments);
	if (length < 0 || write(log_fd, line, length) != length)
		fail("history");
	free(line);
}

static void
notice(void *arg, const PGresult *result)
{
	warned = true;
}

static void
disconnect(void)
{
	PQfinish(conn);
	conn = NULL;
}

/* ---- calls ---- */

/* Connect, however often it takes. */
static void
connect_server(void)
{
	while (conn == NULL)
	{
		char		conninfo[1024] = "";
		FILE	   *file = fopen(target, "r");
		PGresult   *result;

		if (file == NULL || fgets(conninfo, sizeof(conninfo), file) == NULL)
			fail(target);
		fclose(file);
		conninfo[strcspn(conninfo, "\n")] = '\0';
		snprintf(conninfo + strlen(conninfo), sizeof(conninfo) - strlen(conninfo),
				 " connect_timeout=10 application_name=history options='%s'", options);

		conn = PQconnectdb(conninfo);
		PQsetNoticeReceiver(conn, notice, NULL);
		result = PQexec(conn, "SELECT current_setting('port') || '-' || extract(epoch FROM pg_catalog.pg_postmaster_start_time())");
		if (PQresultStatus(result) == PGRES_TUPLES_OK)
			write_line("server %lld %s\n", now(), PQgetvalue(result, 0, 0));
		else
		{
			disconnect();
			nap(50);
		}
		PQclear(result);
	}
}

/* The rows of an answer in one word; those of one column are separated by commas. */
static void
keep_answer(const PGresult *result)
{
	size_t		size = 1;
	char	   *end;

	for (int row = 0; row < PQntuples(result); row++)
		for (int column = 0; column < PQnfields(result); column++)
			size += PQgetlength(result, row, column) + 1;
	free(answer);
	answer = end = malloc(size);
	if (answer == NULL)
		fail("malloc");
	*end = '\0';
	for (int row = 0; row < PQntuples(result); row++)
		for (int column = 0; column < PQnfields(result); column++)
			end += sprintf(end, "%s%s", PQgetvalue(result, row, column),
						   column + 1 < PQnfields(result) ? ":" : row + 1 < PQntuples(result) ? "," : "");
}

/*
 * Make a call: "what" is what the history says, "sql" how the server is asked.
 * A look is an answer even if there is nothing to be seen.
 */
static Outcome
call(bool look, const char *what, const char *sql)
{
	PGresult   *result;
	Outcome		outcome = LOST;
	const char *state;

	connect_server();
	calls++;
	warned = false;
	write_line("call %ld %lld %s\n", calls, now(), what);
	result = PQexec(conn, sql);
	state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	if (PQresultStatus(result) == PGRES_TUPLES_OK)
	{
		long long	arrived = now();

		if (!look && (PQgetisnull(result, 0, 0) || strcmp(PQgetvalue(result, 0, 0), "f") == 0))
		{
			outcome = NOTHING;
			write_line("done %ld %lld none\n", calls, arrived);
		}
		else
		{
			outcome = DONE;
			keep_answer(result);
			write_line("done %ld %lld %s %s\n", calls, arrived, warned ? "part" : "ok", answer);
		}
	}
	else if (PQstatus(conn) == CONNECTION_OK && state != NULL)
	{
		outcome = FAILED;
		write_line("done %ld %lld error %s\n", calls, now(), state);
	}
	else
		write_line("done %ld %lld lost %s\n", calls, now(), state ? state : "-----");
	PQclear(result);
	if (outcome == LOST)
		disconnect();
	return outcome;
}

/* ---- what a client does with leases ---- */

/* A name that a client listens for, which places are to be of; false if there is none. */
static bool
read_client(char *client, int size)
{
	char		path[1024];
	FILE	   *file;
	bool		found;

	snprintf(path, sizeof(path), "%s.client", target);
	file = fopen(path, "r");
	if (file == NULL)
		return false;
	found = fgets(client, size, file) != NULL;
	fclose(file);
	return found;
}

/* Choose what to ask for. */
static void
choose_lease(Lease *lease)
{
	static const char *const modes[] = {"exclusive", "exclusive", "exclusive", "shared"};
	static const char *const places[] = {"p", "p/x", "p/y", "p/x", "p/y"};
	int			kind = pick(100);

	memset(lease, 0, sizeof(*lease));
	snprintf(lease->owner, sizeof(lease->owner), "%d-%ld", (int) getpid(), ++owners);
	strcpy(lease->mode, modes[pick(4)]);
	if (in_haste)
		lease->ttl = chance(15) ? 20 + pick(100) : 60000;
	else
		lease->ttl = chance(60) ? 200 + pick(800) : 1500 + pick(3000);
	lease->names = 1;
	strcpy(lease->function, "acquire");
	if (kind < 25)
	{
		int			from = pick(NAMES);

		/* Different names, in no order. */
		strcpy(lease->function, "acquire_all");
		lease->names = 2 + pick(MAX_NAMES - 1);
		for (int i = 0; i < lease->names; i++)
			snprintf(lease->name[i], sizeof(lease->name[i]), "n%d", (from + i * 7) % NAMES);
	}
	else if (kind < 40)
	{
		strcpy(lease->function, "acquire_path");
		strcpy(lease->name[0], places[pick(5)]);
		lease->path = true;
	}
	else if (kind < 50)
	{
		strcpy(lease->name[0], "s");
		strcpy(lease->mode, "permit");
	}
	else
		/* Some locks are asked for more often than others. */
		snprintf(lease->name[0], sizeof(lease->name[0]), "n%d", pick(2 + pick(NAMES - 1)));
}

/*
 * Begin a transaction, which is rolled back after the call.  Its isolation must
 * not matter, nor its end.  Half of them end the call at any moment.
 */
static void
begin(void)
{
	static const char *const levels[] = {"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"};
	char		sql[128];

	connect_server();
	snprintf(sql, sizeof(sql), "BEGIN ISOLATION LEVEL %s; SET LOCAL statement_timeout = %d",
			 levels[pick(3)], chance(50) ? 0 : 20 + pick(300));
	PQclear(PQexec(conn, sql));
}

/* The time-out may end this, too. */
static void
roll_back(void)
{
	while (conn != NULL && PQstatus(conn) == CONNECTION_OK && PQtransactionStatus(conn) != PQTRANS_IDLE)
		PQclear(PQexec(conn, "ROLLBACK"));
}

/*
 * Ask for it: "first"; "again", which gets what an attempt before it may have been granted;
 * or "back", for a place that is kept.
 */
static Outcome
acquire(Lease *lease, const char *attempt)
{
	bool		retry = strcmp(attempt, "again") == 0;
	char		names[64] = "";
	char		what[256];
	char		sql[512];
	char		how[32];
	char	   *token;
	char		keep[32] = "";
	int			wait = chance(lease->keep > 0 ? 80 : 30) ? 0 :
		chance(80) ? 50 + pick(in_haste ? 200 : 1000) : 2000 + pick(3000);
	Outcome		outcome;

	if (lease->keep > 0)
		snprintf(keep, sizeof(keep), ", keep => '%d ms'", lease->keep);

	snprintf(how, sizeof(how), strcmp(lease->mode, "permit") == 0 ? "permits => 2" : "mode => '%s'", lease->mode);
	for (int i = 0; i < lease->names; i++)
		sprintf(names + strlen(names), "%s%s", i > 0 ? "," : "", lease->name[i]);
	snprintf(what, sizeof(what), "%s %s %s %s %d %d %s %d", lease->function, names, lease->owner,
			 lease->mode, lease->ttl, wait, attempt, lease->keep);
	snprintf(sql, sizeof(sql), "SELECT %sdlock_%s('%s%s%s', '%s', '%d ms', '%d ms', %s, reentry => '%s'%s)%s",
			 lease->names > 1 ? "array_to_string(" : "", lease->function,
			 lease->names > 1 ? "{" : "", names, lease->names > 1 ? "}" : "",
			 lease->owner, lease->ttl, wait, how,
			 retry ? "return" : "deny", keep, lease->names > 1 ? ", ',')" : "");
	if (!alone && chance(20))
		begin();
	outcome = call(false, what, sql);
	roll_back();
	if (outcome == DONE)
	{
		token = strtok(answer, ",");
		for (int i = 0; i < lease->names && token != NULL; i++, token = strtok(NULL, ","))
			snprintf(lease->token[i], sizeof(lease->token[i]), "%s", token);
	}
	return outcome;
}

/* Check or release. */
static Outcome
tell(const Lease *lease, int i, const char *verb, bool by_token)
{
	char		what[256];
	char		sql[256];

	snprintf(what, sizeof(what), "%s %s %s %s", verb, lease->name[i], lease->owner, lease->token[i]);
	if (by_token)
		snprintf(sql, sizeof(sql), "SELECT dlock_%s('%s', %s)", verb, lease->name[i], lease->token[i]);
	else
		snprintf(sql, sizeof(sql), "SELECT dlock_%s('%s', '%s')", verb, lease->name[i], lease->owner);
	return call(false, what, sql);
}

/* Without a ttl the lease keeps its own. */
static Outcome
renew(Lease *lease, int i)
{
	char		what[256];
	char		sql[256];
	bool		by_token = chance(50);
	int			ttl = chance(70) ? 0 : 200 + pick(2500);
	int			n;

	snprintf(what, sizeof(what), "renew %s %s %s %d", lease->name[i], lease->owner, lease->token[i], ttl);
	n = snprintf(sql, sizeof(sql), by_token ? "SELECT dlock_renew_token('%s', %s" : "SELECT dlock_renew('%s', '%s'",
				 lease->name[i], by_token ? lease->token[i] : lease->owner);
	snprintf(sql + n, sizeof(sql) - n, ttl > 0 ? ", '%d ms')" : ")", ttl);
	return call(false, what, sql);
}

/* Returns whether it is known how the lease is held. */
static bool
convert(Lease *lease)
{
	const char *mode = strcmp(lease->mode, "shared") == 0 ? "exclusive" : "shared";
	int			wait = chance(50) ? 0 : 50 + pick(500);
	char		what[256];
	char		sql[256];
	Outcome		outcome;

	snprintf(what, sizeof(what), "convert %s %s %s %s %s %d", lease->name[0], lease->owner, lease->token[0],
			 lease->mode, mode, wait);
	snprintf(sql, sizeof(sql), "SELECT dlock_convert('%s', %s, '%s', '%d ms')", lease->name[0], lease->token[0],
			 mode, wait);
	outcome = call(false, what, sql);
	if (outcome == DONE)
	{
		strcpy(lease->mode, mode);
		snprintf(lease->token[0], sizeof(lease->token[0]), "%s", answer);
	}
	return outcome == DONE || outcome == NOTHING;
}

/*
 * Ask for another lock with the lease held.  Owners do so in the order of the
 * names, so none of them is ever in a deadlock.
 */
static void
climb(Lease *lease)
{
	Lease		more = *lease;
	int			number = atoi(lease->name[0] + 1);

	if (number == NAMES - 1)
		return;
	snprintf(more.name[0], sizeof(more.name[0]), "n%d", number + 1 + pick(NAMES - 1 - number));
	more.keep = 0;
	if (acquire(&more, "first") != DONE)
		return;
	strcpy(lease->name[1], more.name[0]);
	strcpy(lease->token[1], more.token[0]);
	lease->names = 2;
}

/* What a client does with a lease that it has. */
static void
live(Lease *lease)
{
	bool		known = true;

	for (int steps = pick(5); steps > 0 && known; steps--)
	{
		int			i = pick(lease->names);

		nap(in_haste ? pick(4) : chance(95) ? pick(20) : pick(lease->ttl / 2));
		if (chance(60))
			known = renew(lease, i) != NOTHING;
		else if (chance(50))
			known = tell(lease, i, "check", true) != NOTHING;
		else if (lease->names == 1 && !lease->path && strcmp(lease->mode, "permit") != 0)
			known = convert(lease);
	}

	/* The others expire.  The release of what is lost has to say so. */
	for (int i = 0; i < lease->names; i++)
		if (chance(lease->ttl < 1000 ? 80 : in_haste ? 100 : 94))
		{
			bool		by_token = chance(50);

			tell(lease, i, by_token ? "release_token" : "release", by_token);
		}
}

/* Ask until the outcome is known, most of the time. */
static Outcome
ask(Lease *lease, const char *attempt)
{
	Outcome		outcome = acquire(lease, attempt);

	while ((outcome == LOST || outcome == FAILED) && chance(70))
		outcome = acquire(lease, "again");
	return outcome;
}

/*
 * A place is kept: come back to it, late now and then, on any connection, until it is granted
 * or given up; or stay away.
 */
static Outcome
come_back(Lease *lease)
{
	Outcome		outcome = NOTHING;

	while (outcome == NOTHING && lease->keep > 0 && chance(90))
	{
		nap(chance(80) ? pick(50) : pick(lease->keep * 5 / 4));
		if (chance(30))
			disconnect();
		if (chance(15))
			lease->keep = 0;
		outcome = ask(lease, "back");
	}
	return outcome;
}

/* The life of a lease. */
static void
work(void)
{
	Lease		lease;
	Outcome		outcome;
	char		client[32];
	int			dice = pick(100);

	choose_lease(&lease);
	if (lease.names == 1 && !lease.path && !direct && dice < 45)
	{
		lease.keep = in_haste ? 20 + pick(500) : 200 + pick(2500);
		if (dice < 20 && read_client(client, sizeof(client)))
		{
			/* It is for the client that listens to come back. */
			snprintf(lease.owner, sizeof(lease.owner), "%s#%d-%ld", client, (int) getpid(), owners);
			if (acquire(&lease, "first") == DONE)
				live(&lease);
			return;
		}
	}
	outcome = ask(&lease, "first");
	if (outcome == NOTHING && lease.keep > 0)
		outcome = come_back(&lease);
	if (outcome == DONE)
	{
		if (lease.names == 1 && lease.name[0][0] == 'n' && chance(40))
			climb(&lease);
		live(&lease);
	}
	else if (outcome == NOTHING)
		nap(pick(20));
}

/*
 * Take what the places of a client can be granted.  Its name is that of the client before this
 * one, or that before, at first; a new name leaves the places of the old one to themselves.
 */
static void
take_turns(void)
{
	static char client[32] = "";
	int			wait = chance(50) ? pick(100) : pick(1500);
	int			keep = 500 + pick(2000);
	char		what[128];
	char		sql[256];
	char	   *rest;
	char	   *row;

	if (client[0] == '\0' ? chance(50) || !read_client(client, sizeof(client)) : chance(3))
	{
		char		path[1024];
		char		new_path[1024 + 4];
		FILE	   *file;

		snprintf(client, sizeof(client), "c%d-%d", (int) getpid(), (int) ++owners);
		snprintf(path, sizeof(path), "%s.client", target);
		snprintf(new_path, sizeof(new_path), "%s.new", path);
		file = fopen(new_path, "w");
		if (file == NULL || fputs(client, file) < 0 || fclose(file) != 0 || rename(new_path, path) != 0)
			fail(path);
	}
	snprintf(what, sizeof(what), "take %s %d %d", client, wait, keep);
	snprintf(sql, sizeof(sql), "SELECT name, owner, token FROM dlock_take('%s', '%d ms', '%d ms')", client, wait, keep);
	if (call(true, what, sql) != DONE)
		return;
	rest = strdup(answer);
	for (char *next = rest; (row = strsep(&next, ",")) != NULL;)
	{
		/* It converts none, for it does not know the mode. */
		Lease		lease = {.mode = "permit",.names = 1,.ttl = 500};

		if (sscanf(row, "%7[^:]:%63[^:]:%31s", lease.name[0], lease.owner, lease.token[0]) == 3)
			live(&lease);
	}
	free(rest);
}

/* Look at the queues and at the leases. */
static void
watch(void)
{
	call(true, "waiters", "SELECT name, owner FROM dlock_waiters");
	call(true, "leases", "SELECT name, owner, token FROM dlock_leases WHERE state <> 'closed'");
	nap(10);
}

/* Whatever was answered before is on the disk after this. */
static void
flush(void)
{
	call(true, "flush", "SELECT pg_catalog.pg_logical_emit_message(true, 'flush', '')");
	nap(pick(1000));
}

int
main(int argc, char **argv)
{
	void		(*task) (void);

	if (argc < 5)
	{
		fprintf(stderr, "usage: history_client LOG TARGET SEED work|haste|listen|watch|flush [OPTIONS [alone [direct]]]\n");
		return 64;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGPIPE, SIG_IGN);
	log_fd = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (log_fd < 0)
		fail(argv[1]);
	target = argv[2];
	srandom(atol(argv[3]));
	task = strcmp(argv[4], "watch") == 0 ? watch : strcmp(argv[4], "flush") == 0 ? flush :
		strcmp(argv[4], "listen") == 0 ? take_turns : work;
	in_haste = strcmp(argv[4], "haste") == 0;
	if (argc > 5)
		options = argv[5];
	alone = argc > 6;
	direct = argc > 7;
	for (;;)
		task();
}
