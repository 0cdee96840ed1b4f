/*-------------------------------------------------------------------------
 *
 * cmd_run.c
 *	  dlock run: run a command while holding a lock.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_run.c
 *
 *-------------------------------------------------------------------------
 */
#include "commands.h"
#include "output.h"

static int
run(const Options *options, int argc, char **argv)
{
	(void) options, (void) argc, (void) argv;
	output_error("this command is not there yet");
	return CLI_EXIT_SYSTEM;
}

const Command cmd_run = {
	.name = "run",
	.bit = CMD_RUN,
	.arguments = "NAME [--] COMMAND [ARGUMENT]...",
	.summary = "run a command while holding a lock",
	.text = "",
	.least = 2,
	.most = -1,
	.run = run
};
