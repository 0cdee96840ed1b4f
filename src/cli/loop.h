/*-------------------------------------------------------------------------
 *
 * loop.h
 *	  Waiting for the connection, signals and the clock at a time.
 *
 * IDENTIFICATION
 *	  src/cli/loop.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOOP_H
#define LOOP_H

#include "conn.h"

/* What has happened: perhaps a signal, and perhaps something to the connection. */
typedef struct LoopEvent
{
	int			signal;			/* zero: none */
	ConnEvent	conn;
} LoopEvent;

extern LoopEvent loop_wait(Conn *conn, CliTime until);
extern int	loop_connect(Conn *conn, CliTime until);

#endif							/* LOOP_H */
