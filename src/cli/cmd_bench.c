/*-------------------------------------------------------------------------
 *
 * cmd_bench.c
 *	  dlock bench: what this server can do.
 *
 * NOTES
 *	  What it makes has names and owners that begin with a prefix of this run
 *	  alone, and is released at the end, also after a signal.  Should this
 *	  process be killed, or the server not be reachable then, the leases end by
 *	  themselves within seconds.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_bench.c
 *
 *-------------------------------------------------------------------------
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench_team.h"
#include "commands.h"
#include "duration.h"
#include "output.h"
#include "process.h"
#include "signals.h"

#define CLIENTS		8
#define SECONDS		(2 * CLI_SECOND)
#define WITHIN		(10 * CLI_SECOND)

#define MAX_TASKS	64

static const struct
{
	const char *name;
	bool		writes;			/* whether it is durable makes a difference */
	int			statements;		/* that one takes; zero: not comparable */
	const char *progress;
}			kinds[] =
{
	[BENCH_STATEMENT] = {"statement", false, 1, "statements that do nothing"},
	[BENCH_PAIR] = {"pair", true, 2, "pairs of acquire and release"},
	[BENCH_RENEW] = {"renew", true, 1, "renewals"},
	[BENCH_REFUSED] = {"refused", false, 1, "refused requests"},
	[BENCH_HANDOFF] = {"handoff", true, 0, "hand-offs to who waits"}
};

typedef struct Bench
{
	const Options *options;
	Conn		conn;			/* for all but the measuring */
	char	   *prefix;
	int			clients;		/* the most */
	CliTime		span;
	BenchTask	tasks[MAX_TASKS];
	BenchResult *results;
	int			ntasks;
	int			ndone;
} Bench;

/* ---- what to measure ---- */

static void
plan(Bench *bench, BenchKind kind, bool durable, int clients)
{
	bench->tasks[bench->ntasks++] = (BenchTask) {kind, durable, clients, bench->span};
}

/* With one client, two, four and so on, up to the most. */
static void
plan_clients(Bench *bench, BenchKind kind, bool durable)
{
	int			clients = 1;

	for (; clients < bench->clients; clients *= 2)
		plan(bench, kind, durable, clients);
	plan(bench, kind, durable, bench->clients);
}

static void
plan_all(Bench *bench)
{
	/* The baseline first: others are compared with it. */
	plan_clients(bench, BENCH_STATEMENT, false);
	plan_clients(bench, BENCH_PAIR, true);
	plan_clients(bench, BENCH_PAIR, false);
	plan(bench, BENCH_RENEW, true, bench->clients);
	plan(bench, BENCH_RENEW, false, bench->clients);
	plan(bench, BENCH_REFUSED, false, bench->clients);
	plan(bench, BENCH_HANDOFF, true, 2);
	plan(bench, BENCH_HANDOFF, false, 2);
	bench->results = text_alloc((size_t) bench->ntasks * sizeof(*bench->results));
}

/* ---- progress, on stderr ---- */

static const char *
commit_of(const BenchTask *task)
{
	return !kinds[task->kind].writes ? NULL : task->durable ? "durable" : "async";
}

static void
show_progress(const Bench *bench, const BenchTask *task)
{
	const char *commit = commit_of(task);
	Text		line;

	if (bench->options->quiet)
		return;
	text_init(&line);
	text_addf(&line, "%d of %d: %s, %s%s%d client%s", bench->ndone + 1, bench->ntasks,
			  kinds[task->kind].progress, (commit != NULL) ? commit : "",
			  (commit != NULL) ? ", " : "", task->clients, (task->clients == 1) ? "" : "s");
	if (output_is_json())
	{
		Text		object;

		text_init(&object);
		output_json_begin(&object);
		output_json_text(&object, "progress", line.data);
		output_json_end(&object);
		fputs(object.data, stderr);
		text_free(&object);
	}
	else if (isatty(STDERR_FILENO))
		fprintf(stderr, "\r%s\033[K", line.data);
	else
		fprintf(stderr, "%s\n", line.data);
	text_free(&line);
}

static void
end_progress(const Bench *bench)
{
	if (!bench->options->quiet && !output_is_json() && isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
}

/* ---- results ---- */

/* Compared with statements that do nothing, as many clients; negative: not at all. */
static double
of_baseline(const Bench *bench, int task)
{
	for (int i = 0; i < bench->ndone && kinds[bench->tasks[task].kind].statements > 0; i++)
	{
		if (bench->tasks[i].kind == BENCH_STATEMENT &&
			bench->tasks[i].clients == bench->tasks[task].clients && bench->results[i].rate > 0)
			return bench->results[task].rate * kinds[bench->tasks[task].kind].statements /
				bench->results[i].rate;
	}
	return -1;
}

/* Milliseconds, or NULL if nothing was measured. */
static char *
latency(const Bench *bench, int task, double percent)
{
	const BenchHistogram *of = &bench->results[task].latencies;

	if (of->count == 0)
		return NULL;
	return text_print("%.3f", (double) bench_histogram_percentile(of, percent) / CLI_MS);
}

/* The cells of a result, in the order of the titles; to be freed. */
static void
make_cells(const Bench *bench, int task, char **cells)
{
	static const double percents[] = {50, 95, 99, 100};
	const BenchTask *what = &bench->tasks[task];
	double		ratio = of_baseline(bench, task);
	int			i = 0;

	cells[i++] = text_copy(kinds[what->kind].name);
	cells[i++] = text_copy(commit_of(what));
	cells[i++] = text_print("%d", what->clients);
	cells[i++] = (what->kind == BENCH_HANDOFF) ? NULL : text_print("%.0f", bench->results[task].rate);
	for (size_t p = 0; p < CLI_LENGTH(percents); p++)
		cells[i++] = latency(bench, task, percents[p]);
	cells[i] = (ratio >= 0) ? text_print("%.0f%%", ratio * 100) : NULL;
}

static const OutputColumn titles[] = {
	{"MEASUREMENT", false}, {"COMMIT", false}, {"CLIENTS", true}, {"A SECOND", true},
	{"P50 MS", true}, {"P95 MS", true}, {"P99 MS", true}, {"MAX MS", true}, {"OF BASE", true}
};

#define NCELLS	((int) CLI_LENGTH(titles))

static void
print_table(const Bench *bench)
{
	size_t		count = (size_t) (bench->ndone * NCELLS);
	char	  **cells = text_alloc((count + 1) * sizeof(*cells));

	for (int task = 0; task < bench->ndone; task++)
		make_cells(bench, task, cells + task * NCELLS);
	if (bench->ndone > 0)
		output_table(stdout, titles, NCELLS, (const char *const *) cells, bench->ndone);
	for (size_t i = 0; i < count; i++)
		free(cells[i]);
	free(cells);
}

static int
print_object(const Bench *bench, int task)
{
	const BenchTask *what = &bench->tasks[task];
	const char *commit = commit_of(what);
	double		ratio = of_baseline(bench, task);
	char	   *cells[NCELLS];
	char	   *number;
	Text		line;
	int			code;

	make_cells(bench, task, cells);
	text_init(&line);
	output_json_begin(&line);
	output_json_text(&line, "kind", "measurement");
	output_json_text(&line, "what", cells[0]);
	output_json_raw(&line, "durable", (commit == NULL) ? NULL : what->durable ? "true" : "false");
	output_json_raw(&line, "clients", cells[2]);
	number = text_print("%.3f", (double) what->span / CLI_SECOND);
	output_json_raw(&line, "seconds", number);
	free(number);
	number = text_print("%" PRIu64, bench->results[task].latencies.count);
	output_json_raw(&line, "count", number);
	free(number);
	output_json_raw(&line, "per_second", cells[3]);
	output_json_raw(&line, "p50_ms", cells[4]);
	output_json_raw(&line, "p95_ms", cells[5]);
	output_json_raw(&line, "p99_ms", cells[6]);
	output_json_raw(&line, "max_ms", cells[7]);
	number = (ratio >= 0) ? text_print("%.3f", ratio) : NULL;
	output_json_raw(&line, "of_baseline", number);
	free(number);
	output_json_end(&line);
	code = output_print(line.data);
	text_free(&line);
	for (int i = 0; i < NCELLS; i++)
		free(cells[i]);
	return code;
}

/* What the figures depend on.  Returns an exit code. */
static int
print_server(Bench *bench)
{
	char		span[DURATION_SIZE];
	Text		line;
	int			code;

	if (conn_ask(&bench->conn, WITHIN,
				 "SELECT pg_catalog.current_setting('server_version'),"
				 " pg_catalog.current_setting('fsync'),"
				 " pg_catalog.current_setting('synchronous_standby_names')", 0, NULL) == NULL)
		return conn_report(&bench->conn);
	text_init(&line);
	if (output_is_json())
	{
		output_json_begin(&line);
		output_json_text(&line, "kind", "server");
		output_json_text(&line, "version", conn_value(&bench->conn, 0));
		output_json_text(&line, "fsync", conn_value(&bench->conn, 1));
		output_json_text(&line, "synchronous_standby_names", conn_value(&bench->conn, 2));
		output_json_end(&line);
	}
	else
	{
		const char *standbys = conn_value(&bench->conn, 2);

		text_addf(&line, "PostgreSQL %s, fsync %s, ", conn_value(&bench->conn, 0),
				  conn_value(&bench->conn, 1));
		if (*standbys == '\0')
			text_add(&line, "no synchronous standby");
		else
		{
			text_add(&line, "synchronous standbys ");
			output_append_safe(&line, standbys, -1);
		}
		text_addf(&line, "; %s for each measurement\n", duration_print(bench->span, span));
	}
	code = output_print(line.data);
	text_free(&line);
	return code;
}

/* ---- the run ---- */

/* Hold the lock that others are to be refused. */
static int
hold(Bench *bench)
{
	char	   *name = text_print("%s/held", bench->prefix);
	char	   *owner = text_print("%s/0", bench->prefix);
	char		ttl[DURATION_SIZE];
	const ConnParam params[] = {
		CONN_TEXT(name), CONN_TEXT(owner), CONN_INTERVAL(duration_sql(bench->span + 60 * CLI_SECOND, ttl))
	};
	int			code = CLI_EXIT_OK;

	if (conn_ask(&bench->conn, WITHIN,
				 "SELECT @dlock_acquire($1, owner => $2, ttl => $3)", 3, params) == NULL)
		code = conn_report(&bench->conn);
	free(name);
	free(owner);
	return code;
}

static int
measure(Bench *bench, int *signo)
{
	int			code = CLI_EXIT_OK;

	for (; bench->ndone < bench->ntasks && code == CLI_EXIT_OK && *signo == 0;)
	{
		const BenchTask *task = &bench->tasks[bench->ndone];

		show_progress(bench, task);
		if (task->kind == BENCH_REFUSED)
			code = hold(bench);
		if (code == CLI_EXIT_OK)
			code = bench_team_run(task, bench->options->conninfo, bench->prefix,
								  &bench->results[bench->ndone], signo);
		if (code != CLI_EXIT_OK || *signo != 0)
			break;
		bench->ndone++;
		if (output_is_json())
			code = print_object(bench, bench->ndone - 1);
	}
	end_progress(bench);
	return code;
}

/* Release whatever clients have left, which is something only if they were ended. */
static int
clean_up(Bench *bench)
{
	char		last[16];
	const ConnParam params[] = {CONN_TEXT(bench->prefix), CONN_INT(last)};

	snprintf(last, sizeof(last), "%d", CLI_MAX(bench->clients, 2));
	if ((bench->conn.state != CONN_IDLE && !conn_open(&bench->conn)) ||
		conn_ask(&bench->conn, WITHIN,
				 "SELECT @dlock_release_all(pg_catalog.concat($1, '/', i))"
				 " FROM pg_catalog.generate_series(0, $2) i", 2, params) == NULL)
	{
		output_warning("leases of \"%s\" may be left over: %s", bench->prefix,
					   bench->conn.error.message);
		output_detail("They end by themselves.");
		return conn_exit_code(&bench->conn);
	}
	return CLI_EXIT_OK;
}

static int
run_bench(Bench *bench)
{
	int			signo = 0;
	int			code;
	int			cleaned;

	if (!conn_open(&bench->conn))
		return conn_report(&bench->conn);
	code = print_server(bench);
	if (code != CLI_EXIT_OK)
		return code;
	signals_catch();
	code = measure(bench, &signo);
	if (!output_is_json())
		print_table(bench);
	cleaned = clean_up(bench);
	if (code == CLI_EXIT_OK)
		code = output_finish();
	if (signo != 0)
		return signals_die(signo);
	return (code != CLI_EXIT_OK) ? code : cleaned;
}

static int
run(const Options *options, int argc, char **argv)
{
	Bench		bench = {
		.options = options,
		.clients = (options->clients > 0) ? options->clients : CLIENTS,
		.span = (options->seconds > 0) ? options->seconds : SECONDS
	};
	int			code;

	(void) argc, (void) argv;
	bench.prefix = process_owner("dlock-bench");
	plan_all(&bench);
	conn_init(&bench.conn, options->conninfo);
	code = run_bench(&bench);
	conn_close(&bench.conn);
	free(bench.results);
	free(bench.prefix);
	return code;
}

const Command cmd_bench = {
	.name = "bench",
	.bit = CMD_BENCH,
	.arguments = "",
	.summary = "measure what the server can do",
	.text =
	"Measures, for --seconds (2s) each and with up to --clients (8) at a time: statements\n"
	"that do nothing, as a base to compare with; pairs of acquire and release; renewals;\n"
	"requests that are refused; and hand-offs, from a release to the answer of who waits.\n"
	"Durable is with synchronous_commit on, async with it off.  Latencies are those of this\n"
	"machine's network, too.  The locks have names of their own and are released at the end.\n"
	"Clients set what they need for their sessions, so this is not for poolers.\n",
	.least = 0,
	.most = 0,
	.run = run
};
