/*-------------------------------------------------------------------------
 *
 * expiry.c
 *	  Many leases that expire together: how long until all are removed, and
 *	  what do others notice?
 *
 * NOTES
 *	  The others are sessions that acquire and release locks of their own, one
 *	  after the other, from some seconds before the deadline until the removal
 *	  is done.  What they acquired while it took place is told apart from what
 *	  they acquired before, and from what they acquired, before that, while a
 *	  process that has nothing to do with dlock kept a processor busy: the
 *	  removal does that, too, and where processors are few they notice.
 *
 *	  The removal is the work of the worker.  dlock_stats says how many leases are
 *	  left; it is read every LOOK_INTERVAL, which is as exact as the result is.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "probe.h"

/* From the end of the acquiring to the deadline, at least. */
#define LEAST_REST		(3 * SEC)
/* For the sessions to be at full speed, at the beginning of that. */
#define WARM_UP			(SEC / 2)
/* In the end of it a processor is kept busy, from and until so long before. */
#define BUSY_FROM		(SEC + SEC / 4)
#define BUSY_UNTIL		(SEC / 4)
/* How often the leases are counted, and how often they must have been gone. */
#define LOOK_INTERVAL	(10 * MSEC)
#define GONE_LOOKS		4
/* When to give up. */
#define LONGEST			(60 * SEC)

/* An acquire of one of the others. */
typedef struct Sample
{
	Time		sent_at;
	Time		answered_at;
} Sample;

typedef struct Expiry
{
	const Options *options;
	Session		filler;			/* acquires the leases that expire */
	Session    *others;
	bool	   *holds;			/* which of them have a lock */
	Session		watcher;		/* counts the leases */
	Sample	   *samples;
	int			count;
	int			room;
	Time		deadline;		/* on the monotonic clock */
	pid_t		busy;			/* the process that keeps a processor busy; or
								 * 0 */
	Time		next_look;
	int			gone_looks;
	Time		reaped_at;
	Time		wall_ahead;		/* of the wall clock to the monotonic one */
} Expiry;

static void
open_filler(Expiry *expiry)
{
	Session    *filler = &expiry->filler;

	session_open(filler);
	session_do(filler, "SET synchronous_commit = off");
	session_prepare(filler, "fill",
					"SELECT count(dlock_acquire(($1::bigint + i)::text, $1::text,"
					" to_timestamp($3::float8) - clock_timestamp()))"
					" FROM generate_series(1, $2::int) i");
	session_prepare(filler, "empty", "SELECT dlock_release_all($1::text)");
	session_prepare(filler, "size", "SELECT pg_relation_size('_dlock.store')");
}

/*
 * Acquire so many leases that end at a moment of the monotonic clock, under
 * names above a number that is also their owner.
 */
static void
acquire_leases(Expiry *expiry, const char *owner, Time end)
{
	Session    *filler = &expiry->filler;
	char		count[16];
	char		seconds[32];
	const char *values[] = {owner, count, seconds};

	snprintf(count, sizeof(count), "%d", expiry->options->leases);
	snprintf(seconds, sizeof(seconds), "%.6f", (double) (end + expiry->wall_ahead) / SEC);
	session_call(filler, "fill", 3, values);
	if (now_monotonic() < end && session_number(filler) != expiry->options->leases)
		fail("%s of %s leases were acquired", filler->value, count);
}

static void
release_leases(Expiry *expiry, const char *owner)
{
	session_call(&expiry->filler, "empty", 1, &owner);
}

/* Acquire the leases that expire, in time. */
static void
fill(Expiry *expiry)
{
	Time		lead = LEAST_REST + SEC + expiry->options->leases * (Time) 20;

	for (; lead <= LONGEST; lead *= 2)
	{
		expiry->deadline = now_monotonic() + lead;
		acquire_leases(expiry, "7000000000000", expiry->deadline);
		if (expiry->deadline - now_monotonic() >= LEAST_REST)
			return;
		release_leases(expiry, "7000000000000");
	}
	fail("cannot acquire %d leases in time", expiry->options->leases);
}

/*
 * Are they gone?  Then there is room for as many others, and the store need
 * not grow for these.
 */
static void
check_removed(Expiry *expiry)
{
	Session    *filler = &expiry->filler;
	Time		before;

	session_call(filler, "size", 0, NULL);
	before = session_number(filler);
	acquire_leases(expiry, "8000000000000", now_monotonic() + 10 * LONGEST);
	session_call(filler, "size", 0, NULL);
	if (session_number(filler) > before + before / 20)
		fail("the leases have not been removed: the store grew from %lld to %s bytes",
			 (long long) before, filler->value);
	release_leases(expiry, "8000000000000");
}

static void
open_others(Expiry *expiry)
{
	expiry->others = calloc(expiry->options->clients, sizeof(Session));
	expiry->holds = calloc(expiry->options->clients, sizeof(bool));
	for (int i = 0; i < expiry->options->clients; i++)
	{
		session_open(&expiry->others[i]);
		session_prepare(&expiry->others[i], "acquire", "SELECT dlock_acquire($1::text, $2::text)");
		session_prepare(&expiry->others[i], "release", "SELECT dlock_release($1::text, $2::text)");
	}
}

/* ---- the others ---- */

static void
remember(Expiry *expiry, const Session *session)
{
	if (expiry->count == expiry->room)
	{
		expiry->room = expiry->room * 2 + 1024;
		expiry->samples = realloc(expiry->samples, expiry->room * sizeof(Sample));
		if (expiry->samples == NULL)
			fail("out of memory");
	}
	expiry->samples[expiry->count].sent_at = session->sent_at;
	expiry->samples[expiry->count++].answered_at = session->answered_at;
}

/* Each has names of its own, so that nobody is refused. */
static void
go_on(Expiry *expiry, int number)
{
	static char names[MAX_SESSIONS][32];
	Session    *session = &expiry->others[number];
	char		owner[16];
	const char *values[] = {names[number], owner};

	snprintf(owner, sizeof(owner), "%d", 2000000000 + number);
	if (expiry->holds[number])
		session_send(session, "release", 2, values);
	else
	{
		snprintf(names[number], sizeof(names[number]), "%lld",
				 1000000000000 + number * 1000000LL + random_span(1, expiry->options->names));
		session_send(session, "acquire", 2, values);
	}
	expiry->holds[number] = !expiry->holds[number];
}

static void
see_answer(Expiry *expiry, int number)
{
	Session    *session = &expiry->others[number];

	if (!expiry->holds[number])
		return;
	if (session->is_null)
		fail("an acquire was refused");
	remember(expiry, session);
}

/* ---- a processor that is busy ---- */

static void
keep_busy(Expiry *expiry)
{
	Time		until = expiry->deadline - BUSY_UNTIL;

	fflush(stdout);
	expiry->busy = fork();
	if (expiry->busy < 0)
		fail("cannot start a process");
	if (expiry->busy == 0)
	{
		while (now_monotonic() < until)
			;
		_exit(0);
	}
}

/* ---- the removal ---- */

/* Act on how many leases are left, and count again when it is time. */
static void
watch(Expiry *expiry, Time now)
{
	static bool asked = false;
	Session    *watcher = &expiry->watcher;

	if (watcher->busy || now < expiry->next_look)
		return;
	if (asked)
	{
		/* The answer is the time if they are gone, or null. */
		if (watcher->is_null)
			expiry->gone_looks = 0;
		else if (++expiry->gone_looks == 1)
			expiry->reaped_at = session_number(watcher) - expiry->wall_ahead;
	}
	if (now > expiry->deadline + LONGEST)
		fail("the leases are not removed in %d s", (int) (LONGEST / SEC));
	expiry->next_look = now + LOOK_INTERVAL;
	session_send(watcher, "gone", 0, NULL);
	asked = true;
}

static void
open_watcher(Expiry *expiry)
{
	char		sql[512];

	snprintf(sql, sizeof(sql),
			 "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM dlock_stats WHERE leases <= %d",
			 expiry->options->clients);
	session_open(&expiry->watcher);
	session_prepare(&expiry->watcher, "gone", sql);
	expiry->next_look = expiry->deadline;
}

/* ---- the whole ---- */

static bool
is_done(const Expiry *expiry)
{
	if (expiry->gone_looks < GONE_LOOKS || expiry->watcher.busy)
		return false;
	for (int i = 0; i < expiry->options->clients; i++)
	{
		if (expiry->others[i].busy)
			return false;
	}
	return true;
}

static void
run(Expiry *expiry)
{
	Session    *all[MAX_SESSIONS];
	int			clients = expiry->options->clients;

	for (int i = 0; i < clients; i++)
	{
		all[i] = &expiry->others[i];
		go_on(expiry, i);
	}
	all[clients] = &expiry->watcher;
	while (!is_done(expiry))
	{
		bool		ending = expiry->gone_looks >= GONE_LOOKS;

		sessions_wait(all, clients + 1,
					  expiry->watcher.busy || ending ? FOREVER : expiry->next_look);
		for (int i = 0; i < clients; i++)
		{
			if (expiry->others[i].busy)
				continue;
			if (expiry->others[i].answered_at > expiry->others[i].sent_at && !ending)
				see_answer(expiry, i);
			if (!ending || expiry->holds[i])
				go_on(expiry, i);
		}
		if (expiry->busy == 0 && now_monotonic() >= expiry->deadline - BUSY_FROM)
			keep_busy(expiry);
		if (!ending)
			watch(expiry, now_monotonic());
	}
	(void) waitpid(expiry->busy, NULL, 0);
}

static void
tell(const Expiry *expiry, Time began)
{
	for (int i = 0; i < expiry->count; i++)
	{
		Sample	   *sample = &expiry->samples[i];
		const char *when;

		if (sample->sent_at >= began && sample->answered_at < expiry->deadline - BUSY_FROM)
			when = "before";
		else if (sample->sent_at >= expiry->deadline - BUSY_FROM &&
				 sample->answered_at < expiry->deadline - BUSY_UNTIL)
			when = "busy";
		else if (sample->answered_at >= expiry->deadline && sample->sent_at < expiry->reaped_at)
			when = "meanwhile";
		else
			continue;
		printf("%s %lld\n", when, (long long) (sample->answered_at - sample->sent_at));
	}
	printf("reaped %lld\n", (long long) (expiry->reaped_at - expiry->deadline));
}

void
expiry(const Options *options)
{
	static Expiry expiry;
	Time		began;

	if (options->clients >= MAX_SESSIONS)
		fail("too many clients");
	expiry.options = options;
	expiry.wall_ahead = now_wall() - now_monotonic();
	open_others(&expiry);
	open_filler(&expiry);
	fill(&expiry);
	open_watcher(&expiry);
	began = now_monotonic() + WARM_UP;
	run(&expiry);
	check_removed(&expiry);
	tell(&expiry, began);
}
