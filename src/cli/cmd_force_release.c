/*-------------------------------------------------------------------------
 *
 * cmd_force_release.c
 *	  dlock force-release: end leases of others.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_force_release.c
 *
 *-------------------------------------------------------------------------
 */
#include "commands.h"
#include "conn.h"
#include "output.h"

#define WITHIN	(30 * CLI_SECOND)

static int
tell(const char *name, const char *count)
{
	Text		line;
	int			code;

	text_init(&line);
	if (output_is_json())
	{
		output_json_begin(&line);
		output_json_text(&line, "name", name);
		output_json_raw(&line, "released", count);
		output_json_end(&line);
	}
	else
		text_addf(&line, "%s\n", count);
	code = output_print(line.data);
	text_free(&line);
	return code;
}

static int
run(const Options *options, int argc, char **argv)
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
	if (conn_open(&conn) &&
		conn_ask(&conn, WITHIN, "SELECT @dlock_force_release($1, $2)", 2, params) != NULL)
		code = tell(argv[0], conn_value(&conn, 0));
	else
		code = conn_report(&conn);
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
	.run = run
};
