/*-------------------------------------------------------------------------
 *
 * cmd_lease.c
 *	  dlock acquire, renew, release, check and force-release: a lease that the
 *	  caller keeps.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_lease.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hold.h"
#include "loop.h"
#include "output.h"

/* A ttl, if none is given. */
#define ACQUIRE_TTL		(30 * CLI_SECOND)

/* How long an answer may take. */
#define WITHIN			(30 * CLI_SECOND)

/* ---- acquire ---- */

static int
print_grant(const GrantRequest *request, const Grant *grant)
{
	Text		line;
	int			code;

	text_init(&line);
	if (output_is_json())
	{
		char		seconds[DURATION_SIZE];

		snprintf(seconds, sizeof(seconds), "%.3f", (double) request->ttl / (double) CLI_SECOND);
		output_json_begin(&line);
		output_json_text(&line, "name", request->name);
		output_json_raw(&line, "token", grant->token);
		output_json_text(&line, "owner", request->owner);
		output_json_raw(&line, "ttl", seconds);
		output_json_end(&line);
	}
	else
		text_addf(&line, "%s\n", grant->token);
	code = output_print(line.data);
	text_free(&line);
	return code;
}

static int
run_acquire(const Options *options, int argc, char **argv)
{
	char	   *owner = (options->owner != NULL) ? text_copy(options->owner) : process_owner(NULL);
	GrantRequest request = {
		.name = argv[0],
		.owner = owner,
		.is_unique = options->owner == NULL,
		.ttl = (options->ttl > 0) ? options->ttl : ACQUIRE_TTL,
		.lock_delay = CLI_MAX(options->lock_delay, 0),
		.options = options
	};
	GrantVerdict verdict;
	Grant		grant = {0};
	Conn		conn;
	int			code;

	(void) argc;
	signals_catch();
	conn_init(&conn, options->conninfo);
	verdict = grant_acquire(&conn, &request, &grant);
	if (verdict != GRANT_OURS)
		code = grant_explain(&conn, &request, &grant, verdict);
	else
	{
		bool		was_held;

		/* What nobody learns the token of must not stay locked. */
		code = print_grant(&request, &grant);
		if (code != CLI_EXIT_OK)
			(void) grant_release(&conn, request.name, grant.token, &was_held);
	}
	conn_close(&conn);
	free(owner);
	return code;
}

const Command cmd_acquire = {
	.name = "acquire",
	.bit = CMD_ACQUIRE,
	.arguments = "NAME",
	.summary = "get a lease and print its fencing token",
	.text =
	"Acquires a lease on lock NAME and prints its fencing token.  Nobody renews it:\n"
	"it ends after --ttl, unless \"dlock renew\" or \"dlock release\" is called in time.\n"
	"To hold a lock while a command runs, use \"dlock run\".\n",
	.least = 1,
	.most = 1,
	.run = run_acquire
};

/* ---- a lease that is named by its token or its owner ---- */

/* Print {"name": NAME, key: value}; returns an exit code. */
static int
print_object(const char *name, const char *key, const char *value)
{
	Text		line;
	int			code;

	text_init(&line);
	output_json_begin(&line);
	output_json_text(&line, "name", name);
	output_json_raw(&line, key, value);
	output_json_end(&line);
	code = output_print(line.data);
	text_free(&line);
	return code;
}

/*
 * Ask whether something has been done to the lease that NAME and a token, or the
 * owner, tell of: by_token or by_owner (NULL: the token has to be told), with
 * ttl as $3 if they have that.  "done" is what has been done.  Returns an exit code.
 */
static int
run_on_lease(const Command *command, const char *by_token, const char *by_owner, const char *done,
			 const Options *options, int argc, char **argv)
{
	const char *token = (argc > 1) ? argv[1] : NULL;
	char		ttl[DURATION_SIZE];
	const ConnParam params[] = {
		CONN_TEXT(argv[0]),
		(token != NULL) ? CONN_BIGINT(token) : CONN_TEXT(options->owner),
		CONN_INTERVAL((options->ttl >= 0) ? duration_sql(options->ttl, ttl) : NULL)
	};
	int			code = CLI_EXIT_OK;
	bool		was_held;
	Conn		conn;

	if ((token != NULL) == (options->owner != NULL))
	{
		output_error(CLI_EXIT_USAGE, "which lease on \"%s\" is meant has to be said by its token or by --owner", argv[0]);
		return options_usage(command->name);
	}
	if (token != NULL && (*token == '\0' || token[strspn(token, "0123456789")] != '\0'))
	{
		output_error(CLI_EXIT_USAGE, "\"%s\" is not a token", token);
		return options_usage(command->name);
	}

	conn_init(&conn, options->conninfo);
	if (conn_open(&conn) &&
		conn_ask(&conn, WITHIN, (token != NULL) ? by_token : by_owner,
				 (strstr(by_token, "$3") != NULL) ? 3 : 2, params) != NULL)
	{
		was_held = conn_is_true(&conn, 0);
		if (output_is_json())
			code = print_object(argv[0], done, was_held ? "true" : "false");
		if (!was_held)
		{
			code = CLI_EXIT_LOST;
			output_refusal(code, "the lease on \"%s\" is not held (any more)", argv[0]);
		}
	}
	else
		code = conn_report(&conn);
	conn_close(&conn);
	return code;
}

static int
run_renew(const Options *options, int argc, char **argv)
{
	return run_on_lease(&cmd_renew, "SELECT @dlock_renew_token($1, $2, $3)",
						"SELECT @dlock_renew($1, $2, $3)", "renewed", options, argc, argv);
}

static int
run_release(const Options *options, int argc, char **argv)
{
	return run_on_lease(&cmd_release, "SELECT @dlock_release_token($1, $2)",
						"SELECT @dlock_release($1, $2)", "released", options, argc, argv);
}

static int
run_check(const Options *options, int argc, char **argv)
{
	return run_on_lease(&cmd_check, "SELECT @dlock_check($1, $2)", NULL, "held", options, argc, argv);
}

const Command cmd_renew = {
	.name = "renew",
	.bit = CMD_RENEW,
	.arguments = "NAME [TOKEN]",
	.summary = "extend a lease that \"dlock acquire\" got",
	.text =
	"Extends the lease with this token, or of this --owner, on lock NAME.  Without\n"
	"--ttl it keeps its own.  Exits with 76 if the lease is not held any more: it\n"
	"has expired, was released, or is somebody else's.\n",
	.least = 1,
	.most = 2,
	.run = run_renew
};

const Command cmd_release = {
	.name = "release",
	.bit = CMD_RELEASE,
	.arguments = "NAME [TOKEN]",
	.summary = "end a lease that \"dlock acquire\" got",
	.text =
	"Ends the lease with this token, or of this --owner, on lock NAME.  Exits with\n"
	"76 if it was not held any more; a lease that somebody else has is never touched.\n",
	.least = 1,
	.most = 2,
	.run = run_release
};

const Command cmd_check = {
	.name = "check",
	.bit = CMD_CHECK,
	.arguments = "NAME TOKEN",
	.summary = "ask whether a lease is still held",
	.text =
	"Exits with 0 if the lease with this token on lock NAME is held now, and with 76\n"
	"if it is not.  The lease may end right after the answer; what must not happen\n"
	"without it has to be fenced by the token.\n",
	.least = 2,
	.most = 2,
	.run = run_check
};

/* ---- leases of others ---- */

static int
run_force_release(const Options *options, int argc, char **argv)
{
	const ConnParam params[] = {CONN_TEXT(argv[0]), CONN_TEXT(options->reason)};
	int			code;
	Conn		conn;

	(void) argc;
	if (options->reason == NULL)
	{
		output_error(CLI_EXIT_USAGE, "no --reason is given");
		return options_usage(cmd_force_release.name);
	}
	conn_init(&conn, options->conninfo);
	if (!conn_open(&conn) ||
		conn_ask(&conn, WITHIN, "SELECT @dlock_force_release($1, $2)", 2, params) == NULL)
		code = conn_report(&conn);
	else if (output_is_json())
		code = print_object(argv[0], "released", conn_value(&conn, 0));
	else
	{
		printf("%s\n", conn_value(&conn, 0));
		code = output_finish();
	}
	conn_close(&conn);
	return code;
}

const Command cmd_force_release = {
	.name = "force-release",
	.bit = CMD_FORCE,
	.arguments = "NAME --reason TEXT",
	.summary = "end leases of others",
	.text =
	"Ends all leases on lock NAME, of all owners, and prints how many there were.\n"
	"The server's log tells who did it and why.  A lease with a lock delay, as\n"
	"\"dlock run\" has, keeps the lock closed while its command is being stopped; once\n"
	"more opens it at once.\n",
	.least = 1,
	.most = 1,
	.run = run_force_release
};
