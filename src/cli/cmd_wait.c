/*-------------------------------------------------------------------------
 *
 * cmd_wait.c
 *	  dlock wait: wait until nobody holds a lock.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_wait.c
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

const Command cmd_wait = {
	.name = "wait",
	.bit = CMD_WAIT,
	.arguments = "NAME",
	.summary = "wait until nobody holds a lock",
	.text = "",
	.least = 1,
	.most = 1,
	.run = run
};
