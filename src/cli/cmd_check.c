/*-------------------------------------------------------------------------
 *
 * cmd_check.c
 *	  dlock check: is a lease still held?
 *
 * IDENTIFICATION
 *	  src/cli/cmd_check.c
 *
 *-------------------------------------------------------------------------
 */
#include "commands.h"
#include "target.h"

static int
run(const Options *options, int argc, char **argv)
{
	static const TargetSql sql = {
		.by_token = "SELECT @dlock_check($1, $2)",
		.takes_ttl = false,
		.done = "held"
	};

	return target_run(&sql, cmd_check.name, options, argc, argv);
}

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
	.run = run
};
