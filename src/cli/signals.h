/*-------------------------------------------------------------------------
 *
 * signals.h
 *	  Signals as events.
 *
 * IDENTIFICATION
 *	  src/cli/signals.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef SIGNALS_H
#define SIGNALS_H

#include "cli.h"

extern void signals_ignore_unwanted(void);
extern void signals_catch(void);
extern void signals_reset(void);
extern int	signals_fd(void);
extern int	signals_next(void);
extern bool signals_is_fatal(int signo);
extern int	signals_die(int signo);
extern int	signals_interrupt(void);

#endif							/* SIGNALS_H */
