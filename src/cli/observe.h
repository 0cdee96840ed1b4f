/*-------------------------------------------------------------------------
 *
 * observe.h
 *	  Watching who holds a lock.
 *
 * IDENTIFICATION
 *	  src/cli/observe.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef OBSERVE_H
#define OBSERVE_H

#include "conn.h"
#include "options.h"

/* Who holds a lock; nobody, if the token is NULL. */
typedef struct ObserveHolder
{
	const char *token;
	const char *owner;
	const char *mode;
	const char *granted_at;
	const char *expires_at;
	const char *payload;
} ObserveHolder;

/* Is told of each holder; false: that is enough. */
typedef bool (*ObserveTell) (const ObserveHolder *holder, void *arg);

typedef enum ObserveVerdict
{
	OBSERVE_ENOUGH,
	OBSERVE_TIMED_OUT,
	OBSERVE_FAILED				/* see the connection's error */
} ObserveVerdict;

extern ObserveVerdict observe(Conn *conn, const char *name, CliTime until,
							  ObserveTell tell, void *arg);
extern int	observe_print(const Options *options, const char *name, const char *held,
						  const char *nobody);

#endif							/* OBSERVE_H */
