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
#include "output.h"

static int
run(const Options *options, int argc, char **argv)
{
	(void) options, (void) argc, (void) argv;
	output_error("this command is not there yet");
	return CLI_EXIT_SYSTEM;
}

const Command cmd_force_release = {
	.name = "force-release",
	.bit = CMD_FORCE,
	.arguments = "NAME",
	.summary = "end leases of others",
	.text = "",
	.least = 1,
	.most = 1,
	.run = run
};
