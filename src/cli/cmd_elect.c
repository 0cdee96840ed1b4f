/*-------------------------------------------------------------------------
 *
 * cmd_elect.c
 *	  dlock elect: run a command while being the leader.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_elect.c
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

const Command cmd_elect = {
	.name = "elect",
	.bit = CMD_ELECT,
	.arguments = "NAME [--] COMMAND [ARGUMENT]...",
	.summary = "run a command while being the leader",
	.text = "",
	.least = 2,
	.most = -1,
	.run = run
};
