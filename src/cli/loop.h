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

extern bool loop_pipe(int pair[2]);
extern LoopEvent loop_wait(Conn *conn, CliTime until);
extern int	loop_connect(Conn *conn, CliTime until);

/* signals as events */
extern void signals_ignore_unwanted(void);
extern void signals_catch(void);
extern void signals_reset(void);
extern bool signals_is_fatal(int signo);
extern int	signals_die(int signo);
extern int	signals_interrupt(void);

#endif							/* LOOP_H */
