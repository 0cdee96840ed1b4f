/*-------------------------------------------------------------------------
 *
 * loop.h
 *	  Waiting for the connection, signals and the clock at a time, and requests
 *	  that wait.
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
extern int	loop_pause(Conn *conn, CliTime until, bool for_connection);

/* How long to try to undo what may have been granted, before leaving. */
#define ASK_UNDO_WITHIN	(3 * CLI_SECOND)

typedef enum AskVerdict
{
	ASK_GRANTED,
	ASK_AGAIN,					/* only between the loop and what it calls */
	ASK_REFUSED,				/* the time is up */
	ASK_DOUBTFUL,				/* the answer was lost; of leases only */
	ASK_SIGNALLED,				/* see "signal" */
	ASK_FAILED					/* see the connection's error */
} AskVerdict;

typedef struct Ask Ask;

/* What differs between a lease, tasks and a holder. */
typedef struct AskKind
{
	CliTime		longest;		/* that one statement waits */
	CliTime		grace;			/* how long after the end it is asked again
								 * over another connection */
	void		(*send) (Ask *ask, CliTime wait);
	void		(*note) (Ask *ask); /* remember what an answer grants; or NULL */
	AskVerdict	(*take) (Ask *ask); /* an answer that was in time */
	void		(*give_back) (Ask *ask, CliTime end);	/* or NULL */
} AskKind;

/*
 * A request under way.  Its first statement does not wait: that has to be answered
 * soon, so a server that confirms nothing is told from a lock that is held.
 */
struct Ask
{
	const AskKind *kind;
	Conn	   *conn;
	CliTime		end;			/* when the time is up */
	bool		was_up;			/* there was a connection once */
	bool		was_answered;	/* it was not always a standby */
	bool		in_doubt;		/* something may have been granted unheard */
	int			signal;
};

extern AskVerdict loop_ask(Ask *ask);
extern bool loop_insist(Conn *conn, CliTime within, const char *sql,
						int count, const ConnParam *params);

/* signals as events */
extern void signals_ignore_unwanted(void);
extern void signals_catch(void);
extern void signals_reset(void);
extern bool signals_is_fatal(int signo);
extern int	signals_die(int signo);
extern int	signals_interrupt(void);

#endif							/* LOOP_H */
