/*-------------------------------------------------------------------------
 *
 * cmd_renew.c
 *	  dlock renew: extend a lease.
 *
 * IDENTIFICATION
 *	  src/cli/cmd_renew.c
 *
 *-------------------------------------------------------------------------
 */
#include "commands.h"
#include "target.h"

static int
run(const Options *options, int argc, char **argv)
{
	static const TargetSql sql = {
		.by_token = "SELECT @dlock_renew_token($1, $2, $3)",
		.by_owner = "SELECT @dlock_renew($1, $2, $3)",
		.takes_ttl = true,
		.done = "renewed"
	};

	return target_run(&sql, cmd_renew.name, options, argc, argv);
}

const Command cmd_renew = {
	.name = "renew",
	.bit = CMD_RENEW,
	.arguments = "NAME [TOKEN]",
	.summary = "extend a lease that \"dlock acquire\" got",
	.text =
	"Extends the lease with this token, or of this --owner, on lock NAME.  Without\n"
	"--ttl it keeps its own.  Exits with 76 if the lease is not held any more: it\n"
	"has expired, was released, or is somebody else's.\n",
	.least = 1,
	.most = 2,
	.run = run
};
