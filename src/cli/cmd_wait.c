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
#include "observe.h"
#include "output.h"

/* Is there somebody to wait for? */
static bool
is_held(const ObserveHolder *holder, void *arg)
{
	(void) arg;
	return holder->token != NULL;
}

static int
run(const Options *options, int argc, char **argv)
{
	int			code = CLI_EXIT_OK;
	Conn		conn;

	(void) argc;
	conn_init(&conn, options->conninfo);
	switch (observe(&conn, argv[0], clock_add(clock_now(), options->wait), is_held, NULL))
	{
		case OBSERVE_ENOUGH:
			break;
		case OBSERVE_TIMED_OUT:
			output_refusal(options->refused_exit, "lock \"%s\" is still held", argv[0]);
			code = options->refused_exit;
			break;
		case OBSERVE_FAILED:
			code = conn_report(&conn);
			break;
	}
	conn_close(&conn);
	return code;
}

const Command cmd_wait = {
	.name = "wait",
	.bit = CMD_WAIT,
	.arguments = "NAME",
	.summary = "wait until nobody holds a lock",
	.text =
	"Waits until nobody holds lock NAME, without acquiring it or standing in its\n"
	"queue.  Exits with 75 if that has not come about within --wait.\n",
	.least = 1,
	.most = 1,
	.run = run
};
