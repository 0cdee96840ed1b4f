/*-------------------------------------------------------------------------
 *
 * cmd_top.c
 *	  dlock top: watch locks on the screen.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_top.c
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

const Command cmd_top = {
	.name = "top",
	.bit = CMD_TOP,
	.arguments = "",
	.summary = "watch locks on the screen",
	.text = "",
	.least = 0,
	.most = 0,
	.run = run
};
