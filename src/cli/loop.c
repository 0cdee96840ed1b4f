/*-------------------------------------------------------------------------
 *
 * loop.c
 *	  Waiting for the connection, signals and the clock at a time.
 *
 * IDENTIFICATION
 *	  src/cli/loop.c
 *
 *-------------------------------------------------------------------------
 */
#include "clock.h"
#include "loop.h"
#include "output.h"
#include "signals.h"

/*
 * Wait until something happens, or the time has come; an event in which nothing
 * has happened may come earlier.  Signals have to be caught (signals.c).
 */
LoopEvent
loop_wait(Conn *conn, CliTime until)
{
	LoopEvent	event = {0, CONN_NOTHING};
	struct pollfd fds[2];
	int			nconn = conn_events(conn, &fds[0]);

	/* Those that came before this was called are in the pipe. */
	output_flush();
	fds[nconn].fd = signals_fd();
	fds[nconn].events = POLLIN;
	if (clock_poll(fds, nconn + 1, CLI_MIN(until, conn_wake(conn))) < 0)
		return event;

	if (fds[nconn].revents != 0)
		event.signal = signals_next();
	event.conn = conn_step(conn, (nconn > 0) ? fds[0].revents : 0);
	return event;
}

/*
 * Wait until the connection is idle.  Returns zero then, or when the time has
 * come; otherwise the signal that asked for an end.
 */
int
loop_connect(Conn *conn, CliTime until)
{
	while (conn->state != CONN_IDLE && clock_now() < until)
	{
		LoopEvent	event = loop_wait(conn, until);

		if (signals_is_fatal(event.signal))
			return event.signal;
	}
	return 0;
}
