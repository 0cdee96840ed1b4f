/*-------------------------------------------------------------------------
 *
 * connerror.h
 *	  What an error of the server, or of the connection, means.
 *
 * IDENTIFICATION
 *	  src/cli/connerror.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef CONNERROR_H
#define CONNERROR_H

#include "libpq-fe.h"

#include "cli.h"

/* What an error means for the caller. */
typedef enum ConnTrouble
{
	CONN_FINE,
	CONN_UNREACHABLE,			/* it may be there again in a moment */
	CONN_READ_ONLY,				/* the same, if it was not so before */
	CONN_STARTING,				/* the same, and the server says so itself */
	CONN_UNAVAILABLE,			/* what was asked for is not there */
	CONN_FORBIDDEN,
	CONN_INVALID,				/* the request is wrong */
	CONN_INTERRUPTED,			/* cancelled, or a timeout of the server's */
	CONN_DEADLOCK,
	CONN_LOST,					/* the lease is not held */
	CONN_UNEXPECTED
} ConnTrouble;

typedef struct ConnError
{
	ConnTrouble trouble;
	char		state[6];		/* SQLSTATE; empty if the server told none */
	char	   *message;
	char	   *detail;
	char	   *hint;
} ConnError;

extern void connerror_clear(ConnError *error);
extern bool connerror_of_result(ConnError *error, const PGresult *result);
extern void connerror_of_connection(ConnError *error, const PGconn *pg);
extern void connerror_no_extension(ConnError *error, const char *database);
extern void connerror_timeout(ConnError *error);
extern void connerror_late(ConnError *error);
extern bool connerror_may_pass(const ConnError *error, bool was_up);
extern int	connerror_exit_code(const ConnError *error);

#endif							/* CONNERROR_H */
