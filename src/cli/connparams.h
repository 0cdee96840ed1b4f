/*-------------------------------------------------------------------------
 *
 * connparams.h
 *	  What the command adds to the user's connection parameters.
 *
 * IDENTIFICATION
 *	  src/cli/connparams.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef CONNPARAMS_H
#define CONNPARAMS_H

#include "libpq-fe.h"

extern PGconn *connparams_start(const char *conninfo, int rotate);

#endif							/* CONNPARAMS_H */
