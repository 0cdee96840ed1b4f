/*-------------------------------------------------------------------------
 *
 * cmd_watch.c
 *	  dlock watch: print each change of the holder of a lock.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_watch.c
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

const Command cmd_watch = {
	.name = "watch",
	.bit = CMD_WATCH,
	.arguments = "NAME",
	.summary = "print each change of the holder of a lock",
	.text = "",
	.least = 1,
	.most = 1,
	.run = run
};
