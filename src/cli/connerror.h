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

#include "conn.h"

extern void connerror_clear(ConnError *error);
extern bool connerror_of_result(ConnError *error, const PGresult *result);
extern void connerror_of_connection(ConnError *error, const PGconn *pg);
extern void connerror_no_extension(ConnError *error, const char *database);
extern void connerror_timeout(ConnError *error);
extern int	connerror_exit_code(const ConnError *error);

#endif							/* CONNERROR_H */
