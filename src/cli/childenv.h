/*-------------------------------------------------------------------------
 *
 * childenv.h
 *	  The environment of the command that is run.
 *
 * IDENTIFICATION
 *	  src/cli/childenv.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef CHILDENV_H
#define CHILDENV_H

#include "cli.h"

extern char **childenv_make(const char *name, const char *token, const char *owner,
							CliTime expires_in, bool with_options);
extern void childenv_free(char **environment);

#endif							/* CHILDENV_H */
