/*-------------------------------------------------------------------------
 *
 * pipe.h
 *	  Pipes that no program that is run inherits.
 *
 * IDENTIFICATION
 *	  src/cli/pipe.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef PIPE_H
#define PIPE_H

#include "cli.h"

extern bool pipe_open(int ends[2]);

#endif							/* PIPE_H */
