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
#include "observe.h"

static int
run(const Options *options, int argc, char **argv)
{
	(void) argc;
	return observe_print(options, argv[0], "held", "free");
}

const Command cmd_watch = {
	.name = "watch",
	.bit = CMD_WATCH,
	.arguments = "NAME",
	.summary = "print each change of the holder of a lock",
	.text =
	"Prints who holds lock NAME, and a line more each time that this changes: the\n"
	"time, the token, the owner and the payload, or \"free\".  Of several holders it is\n"
	"the one that came last.\n",
	.least = 1,
	.most = 1,
	.run = run
};
