/*-------------------------------------------------------------------------
 *
 * tokens.h
 *	  The setting dlock.tokens, and PGOPTIONS that carries it.
 *
 * IDENTIFICATION
 *	  src/cli/tokens.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef TOKENS_H
#define TOKENS_H

#include "cli.h"

extern char *tokens_extend(const char *outer, const char *name, const char *token);
extern char *tokens_options(const char *options, const char *outer, const char *tokens);

#endif							/* TOKENS_H */
