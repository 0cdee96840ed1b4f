/*-------------------------------------------------------------------------
 *
 * cmd_release.c
 *	  dlock release: end a lease.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_release.c
 *
 *-------------------------------------------------------------------------
 */
#include "commands.h"
#include "target.h"

static int
run(const Options *options, int argc, char **argv)
{
	static const TargetSql sql = {
		.by_token = "SELECT @dlock_release_token($1, $2)",
		.by_owner = "SELECT @dlock_release($1, $2)",
		.takes_ttl = false,
		.done = "released"
	};

	return target_run(&sql, cmd_release.name, options, argc, argv);
}

const Command cmd_release = {
	.name = "release",
	.bit = CMD_RELEASE,
	.arguments = "NAME [TOKEN]",
	.summary = "end a lease that \"dlock acquire\" got",
	.text =
	"Ends the lease with this token, or of this --owner, on lock NAME.  Exits with\n"
	"76 if it was not held any more; a lease that somebody else has is never touched.\n",
	.least = 1,
	.most = 2,
	.run = run
};
