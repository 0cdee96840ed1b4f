/*-------------------------------------------------------------------------
 *
 * cmd_bench.c
 *	  dlock bench: measure how fast the server serves locks.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_bench.c
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

const Command cmd_bench = {
	.name = "bench",
	.bit = CMD_BENCH,
	.arguments = "",
	.summary = "measure how fast the server serves locks",
	.text = "",
	.least = 0,
	.most = 0,
	.run = run
};
