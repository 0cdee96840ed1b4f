/*-------------------------------------------------------------------------
 *
 * duration.h
 *	  Spans of time as people write them, and as SQL does.
 *
 * IDENTIFICATION
 *	  src/cli/duration.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DURATION_H
#define DURATION_H

#include "cli.h"

/* Room for what duration_print() and duration_sql() write. */
#define DURATION_SIZE	40

extern bool duration_parse(const char *text, CliTime *span);
extern const char *duration_print(CliTime span, char *buffer);
extern const char *duration_sql(CliTime span, char *buffer);

#endif							/* DURATION_H */
