/*-------------------------------------------------------------------------
 *
 * output.h
 *	  What the command says: messages, tables, JSON.
 *
 * IDENTIFICATION
 *	  src/cli/output.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTPUT_H
#define OUTPUT_H

#include "libpq-fe.h"

#include "cli.h"

/* How much is said on stderr. */
typedef enum OutputLevel
{
	OUTPUT_QUIET,				/* only what went wrong and has no exit code
								 * of its own */
	OUTPUT_NORMAL,
	OUTPUT_VERBOSE
} OutputLevel;

extern void output_init(OutputLevel level, bool json);
extern bool output_is_json(void);

/* messages, on stderr */
extern void output_error(int code, const char *format,...) CLI_PRINTF(2, 3);
extern void output_server_error(int code, const char *sqlstate, const char *format,...) CLI_PRINTF(3, 4);
extern void output_refusal(int code, const char *format,...) CLI_PRINTF(2, 3);
extern void output_warning(const char *format,...) CLI_PRINTF(1, 2);
extern void output_info(const char *format,...) CLI_PRINTF(1, 2);
extern void output_detail(const char *format,...) CLI_PRINTF(1, 2);
extern void output_hint(const char *format,...) CLI_PRINTF(1, 2);
extern void output_flush(void);
extern void output_never_wait(void);

/* text */
extern void output_append_safe(Text *to, const char *text);

/* JSON, an object a line */
extern void output_json_begin(Text *to);
extern void output_json_text(Text *to, const char *key, const char *value);
extern void output_json_raw(Text *to, const char *key, const char *value);
extern void output_append_json(Text *to, const char *value);
extern void output_json_end(Text *to);

/* answers of the server */
extern void rows_append(Text *to, const PGresult *result, const char *kind, const char *const *titles);
extern int	rows_print(const PGresult *result, const char *kind, const char *const *titles);

extern int	output_print(const char *text);
extern int	output_finish(void);

#endif							/* OUTPUT_H */
