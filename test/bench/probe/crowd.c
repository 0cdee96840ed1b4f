/*-------------------------------------------------------------------------
 *
 * crowd.c
 *	  Crowds: many sessions that wait for one lock, many leases on one.
 *
 * NOTES
 *	  waiters	so many sessions wait for a lock, and nothing else happens to it
 *	  owners	the same, and the first of them for the owners that pgbench's
 *				clients are, too
 *	  idle		so many sessions that do nothing
 *	  holders	so many shared leases on a lock, and a few sessions that wait
 *	  sharers	so many shared leases on a lock
 *	  siblings	so many leases on paths with the same parent
 *	  places	so many kept places of 100 clients in the queues of 50 locks
 *	  leases	so many leases, each on a lock of its own
 *
 *	  These measure nothing by themselves: while the crowd is there, the
 *	  command that follows the options runs, and its exit status counts.
 *
 *	  contenders	hand-offs a second of one lock that so many sessions want.
 *					An epoll set, so that what the client does for a hand-off
 *					does not grow with the crowd.
 *	  advisory		the same with an advisory lock of the server's: what the machine
 *					takes for so many processes
 *	  expiry		how many of so many sessions that wait run when the lease
 *					that all wait for expires and the first of them gets the
 *					lock: their processes' context switches tell
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "probe.h"

/* Sessions that wait beside the holders. */
#define WAITERS_BESIDE	20
/* For all sessions of a crowd to come or to go. */
#define PATIENCE		(60 * SEC)
#define LOOK_INTERVAL	(100 * MSEC)

/* Hand-offs count once each session has had some turns, in this time. */
#define WARM_TURNS		3
#define LEAST_WARM_UP	SEC
#define MOST_WARM_UP	(5 * SEC)

/* The context switches are counted from and until so long around the deadline. */
#define QUIET_BEFORE	(500 * MSEC)
#define QUIET_AFTER		(700 * MSEC)
#define SHORTEST_TTL	(4 * SEC)

#define OWNER_LENGTH	16

/* The first client of pgbench is this owner, see doc/bench/pair.sql. */
#define OTHERS			2000000000
/* The first session of a crowd is this one. */
#define MEMBERS			2100000000

static Session members[MAX_SESSIONS];
static char owners[MAX_SESSIONS][OWNER_LENGTH];
static int	size;
static Session keeper;			/* holds what the members want, and looks at
								 * them */

/* ---- a crowd comes and goes ---- */

static void
open_keeper(void)
{
	session_open(&keeper);
	/* One that has been active for a while sleeps in the queue. */
	session_prepare(&keeper, "asleep",
					"SELECT count(*) FROM pg_stat_activity"
					" WHERE application_name = 'crowd' AND datname = current_database()"
					" AND state = 'active' AND query_start < clock_timestamp() - interval '1 s'");
	session_prepare(&keeper, "present",
					"SELECT count(*) FROM pg_stat_activity"
					" WHERE application_name = 'crowd' AND datname = current_database()");
	session_prepare(&keeper, "end",
					"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
					" WHERE application_name = 'crowd' AND datname = current_database()");
	session_prepare(&keeper, "force", "SELECT dlock_force_release('crowd', 'end of the run')");
	session_prepare(&keeper, "hold",
					"SELECT dlock_acquire('crowd', 'keeper',"
					" $1::float8 * interval '1 us')");
}

#define WAIT	"SELECT dlock_acquire('crowd', $1::text, wait => NULL)"
#define RELEASE	"SELECT dlock_release('crowd', $1::text)"

static void
open_members(int count, int first_owner, const char *wait, const char *release)
{
	if (count > MAX_SESSIONS)
		fail("too many sessions");
	size = count;
	sessions_open(members, size, "application_name=crowd");
	for (int i = 0; i < size; i++)
	{
		snprintf(owners[i], OWNER_LENGTH, "%d", first_owner + i);
		session_prepare(&members[i], "wait", wait);
		session_prepare(&members[i], "release", release);
	}
}

/* The sessions do not wake up to look for deadlocks. */
static void
turn_off_deadlock_checks(void)
{
	for (int i = 0; i < size; i++)
		session_do(&members[i], "SET deadlock_timeout = '1h'");
}

static void
member_send(int number, const char *statement)
{
	const char *values[] = {owners[number]};

	session_send(&members[number], statement, 1, values);
}

/* Until a count that the keeper can ask for is so high; false if in vain. */
static bool
wait_for_count(const char *statement, int count, Time until)
{
	for (;;)
	{
		session_call(&keeper, statement, 0, NULL);
		if (session_number(&keeper) == count)
			return true;
		if (now_monotonic() > until)
			return false;
		nap(LOOK_INTERVAL);
	}
}

static void
hold(Time ttl)
{
	char		span[32];
	const char *values[] = {span};

	snprintf(span, sizeof(span), "%lld", (long long) ttl);
	session_call(&keeper, "hold", 1, values);
	if (keeper.is_null)
		fail("the lock is held already");
}

static void
let_wait(void)
{
	for (int i = 0; i < size; i++)
		member_send(i, "wait");
}

static void
end_members(void)
{
	session_call(&keeper, "end", 0, NULL);
	if (!wait_for_count("present", 0, now_monotonic() + PATIENCE))
		fail("the sessions do not end");
	for (int i = 0; i < size; i++)
		PQfinish(members[i].conn);
	session_call(&keeper, "force", 0, NULL);
}

/* ---- a command beside a crowd ---- */

static void
run_command(char **command)
{
	int			status;
	pid_t		child;

	if (command[0] == NULL)
		fail("which command?");
	fflush(stdout);
	child = fork();
	if (child < 0)
		fail("cannot start a process");
	if (child == 0)
	{
		execv(command[0], command);
		fail("cannot run %s", command[0]);
	}
	if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
		fail("the command beside the crowd failed");
}

/* Nobody has got the lock, nor an error, meanwhile. */
static void
check_still_waiting(void)
{
	for (int i = 0; i < size; i++)
	{
		session_take_in(&members[i]);
		if (!members[i].busy)
			fail("a session of the crowd has an answer");
	}
}

static void
run_beside_waiters(int count, int first_owner, char **command)
{
	open_members(count, first_owner, WAIT, RELEASE);
	let_wait();
	if (!wait_for_count("asleep", size, now_monotonic() + PATIENCE))
		fail("the sessions do not wait");
	run_command(command);
	check_still_waiting();
	end_members();
}

/* What a statement with a count does, so many times. */
static void
call_with_count(const char *sql, int count)
{
	char		number[16];
	const char *values[] = {number};

	snprintf(number, sizeof(number), "%d", count);
	session_prepare(&keeper, "", sql);
	session_call(&keeper, "", 1, values);
	if (session_number(&keeper) != count)
		fail("%s of %d", keeper.value, count);
}

#define SHARE	"SELECT count(dlock_acquire('crowd', i::text, '1 day', mode => 'shared'))" \
	" FROM generate_series(1, $1::int) i"

void
crowd_waiters(const Options *options)
{
	open_keeper();
	hold(24 * 3600 * SEC);
	run_beside_waiters(options->clients, MEMBERS, options->command);
}

void
crowd_owners(const Options *options)
{
	open_keeper();
	hold(24 * 3600 * SEC);
	run_beside_waiters(options->clients, OTHERS, options->command);
}

void
crowd_idle(const Options *options)
{
	open_keeper();
	open_members(options->clients, MEMBERS, WAIT, RELEASE);
	nap(SEC);
	run_command(options->command);
	end_members();
}

void
crowd_holders(const Options *options)
{
	open_keeper();
	call_with_count(SHARE, options->clients);
	run_beside_waiters(WAITERS_BESIDE, MEMBERS, options->command);
}

void
crowd_sharers(const Options *options)
{
	open_keeper();
	call_with_count(SHARE, options->clients);
	run_command(options->command);
	session_call(&keeper, "force", 0, NULL);
}

void
crowd_siblings(const Options *options)
{
	open_keeper();
	call_with_count("SELECT count(dlock_acquire_path('crowd/' || i, i::text, '1 day'))"
					" FROM generate_series(1, $1::int) i", options->clients);
	run_command(options->command);
	call_with_count("SELECT sum(dlock_release_all(i::text)) FROM generate_series(1, $1::int) i",
					options->clients);
}

/* Client i % 100 asks for lock i / 100 % 50. */
#define PLACES(keep) "SELECT count(*) FROM generate_series(1, $1::int) i" \
	" WHERE dlock_acquire('crowd' || i / 100 % 50, 'client' || i % 100 || '#' || i, '1 day'," \
	" keep => '" keep "') IS NULL"

void
crowd_places(const Options *options)
{
	open_keeper();
	call_with_count("SELECT count(dlock_acquire('crowd' || i, 'crowd', '1 day'))"
					" FROM generate_series(0, $1::int - 1) i", 50);
	call_with_count(PLACES("1 day"), options->clients);
	run_command(options->command);
	call_with_count(PLACES("0"), options->clients);
	call_with_count("SELECT dlock_release_all('crowd') WHERE $1::int IS NOT NULL", 50);
}

void
crowd_leases(const Options *options)
{
	open_keeper();
	call_with_count("SELECT count(dlock_acquire((1000000000000 + i)::text, 'crowd', '1 day'))"
					" FROM generate_series(1, $1::int) i", options->clients);
	run_command(options->command);
	call_with_count("SELECT dlock_release_all('crowd') WHERE $1::int IS NOT NULL", options->clients);
}

/* ---- hand-offs ---- */

static void
hand_over(const Options *options, const char *wait, const char *release, bool has_token)
{
	static bool wants[MAX_SESSIONS];
	int			set = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event events[64];
	Time		began;
	Time		from = FOREVER;
	Time		now;
	Time		last_token = 0;
	int			turns = 0;
	int			count = 0;

	open_keeper();
	open_members(options->clients, MEMBERS, wait, release);
	if (!has_token)
		turn_off_deadlock_checks();
	for (int i = 0; i < size; i++)
	{
		struct epoll_event event = {.events = EPOLLIN,.data.u32 = i};

		if (epoll_ctl(set, EPOLL_CTL_ADD, PQsocket(members[i].conn), &event) != 0)
			fail("cannot watch a session");
		wants[i] = true;
	}
	let_wait();
	began = now_monotonic();
	while ((now = now_monotonic()) - from < options->seconds * SEC)
	{
		int			ready = epoll_wait(set, events, 64, 100);

		if (from == FOREVER &&
			now >= began + (turns < WARM_TURNS * size ? MOST_WARM_UP : LEAST_WARM_UP))
			from = now;
		for (int e = 0; e < ready; e++)
		{
			int			i = events[e].data.u32;

			session_take_in(&members[i]);
			if (members[i].busy)
				continue;
			if (wants[i])
			{
				if (has_token && session_number(&members[i]) <= last_token)
					fail("a token that is not above the one before");
				last_token = session_number(&members[i]);
				turns++;
				count += now >= from;
			}
			wants[i] = !wants[i];
			member_send(i, wants[i] ? "wait" : "release");
		}
	}
	printf("rate %.1f\n", (double) count * SEC / (now - from));
	end_members();
}

void
crowd_contenders(const Options *options)
{
	hand_over(options, WAIT, RELEASE, true);
}

void
crowd_advisory(const Options *options)
{
	hand_over(options, "SELECT pg_advisory_lock(1), $1::text",
			  "SELECT pg_advisory_unlock(1), $1::text", false);
}

/* ---- an expiry ---- */

/* How often a process has gone to sleep. */
static long
sleeps_of(int pid)
{
	char		line[256];
	long		sleeps = -1;
	FILE	   *file;

	snprintf(line, sizeof(line), "/proc/%d/status", pid);
	file = fopen(line, "r");
	if (file == NULL)
		fail("cannot open %s", line);
	while (fgets(line, sizeof(line), file) != NULL)
		(void) sscanf(line, "voluntary_ctxt_switches: %ld", &sleeps);
	fclose(file);
	return sleeps;
}

static void
nap_until(Time moment)
{
	Time		now;

	while ((now = now_monotonic()) < moment)
		nap(moment - now);
}

/* How many have gone to sleep anew since the counts were taken; take them again. */
static int
count_woken(long *counts)
{
	int			woken = 0;

	for (int i = 0; i < size; i++)
	{
		long		sleeps = sleeps_of(PQbackendPID(members[i].conn));

		woken += sleeps != counts[i];
		counts[i] = sleeps;
	}
	return woken;
}

/*
 * The keeper's lease ends so soon, and all others wait for it.  False if they
 * did not all sleep quietly in time.
 */
static bool
let_wait_quietly(Time ttl, Time *deadline, long *counts)
{
	hold(ttl);
	*deadline = keeper.answered_at + ttl;
	let_wait();
	if (!wait_for_count("asleep", size, *deadline - QUIET_BEFORE))
		return false;
	while (count_woken(counts) != 0)
	{
		if (now_monotonic() > *deadline - QUIET_BEFORE)
			return false;
		nap(LOOK_INTERVAL);
	}
	nap_until(*deadline - QUIET_BEFORE);
	return count_woken(counts) == 0 && now_monotonic() < *deadline;
}

void
crowd_expiry(const Options *options)
{
	static long counts[MAX_SESSIONS];
	Time		deadline;
	int			woken;
	int			granted = 0;

	open_keeper();
	for (Time ttl = SHORTEST_TTL;; ttl *= 2)
	{
		if (ttl > PATIENCE)
			fail("the sessions do not wait quietly");
		open_members(options->clients, MEMBERS, WAIT, RELEASE);
		turn_off_deadlock_checks();
		if (let_wait_quietly(ttl, &deadline, counts))
			break;
		end_members();
	}
	nap_until(deadline + QUIET_AFTER);
	woken = count_woken(counts);
	for (int i = 0; i < size; i++)
	{
		session_take_in(&members[i]);
		granted += !members[i].busy;
	}
	if (granted != 1)
		fail("%d sessions got the lock", granted);
	printf("rate %d\n", woken);
	end_members();
}
