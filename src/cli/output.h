/*-------------------------------------------------------------------------
 *
 * output.h
 *	  What the command says: messages, tables, JSON.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTPUT_H
#define OUTPUT_H

#include "libpq-fe.h"

#include "cli.h"
#include "pqexpbuffer.h"

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
extern void output_message(OutputLevel least, const char *kind, const char *format,...) CLI_PRINTF(3, 4);
extern void output_codes(int code, const char *sqlstate);
extern void output_more(const char *kind, const char *format,...) CLI_PRINTF(2, 3);

#define output_info(...)	output_message(OUTPUT_VERBOSE, "info", __VA_ARGS__)
#define output_warning(...) output_message(OUTPUT_NORMAL, "warning", __VA_ARGS__)
#define output_detail(...)	output_more("detail", __VA_ARGS__)
#define output_hint(...)	output_more("hint", __VA_ARGS__)

/* What keeps the command from doing what it was asked to, with its exit code. */
#define output_error(code, ...) \
	(output_message(OUTPUT_QUIET, "error", __VA_ARGS__), output_codes(code, NULL))

/* The same, where the exit code says it as well. */
#define output_refusal(code, ...) \
	(output_message(OUTPUT_NORMAL, "error", __VA_ARGS__), output_codes(code, NULL))

extern void output_flush(void);
extern void output_never_wait(void);

/* text */
extern void output_append_safe(PQExpBuffer to, const char *text);

/* JSON, an object a line */
#define output_json_begin(to)	appendPQExpBufferChar(to, '{')
#define output_json_end(to)		appendPQExpBufferStr(to, "}\n")
extern void output_json_text(PQExpBuffer to, const char *key, const char *value);
extern void output_json_raw(PQExpBuffer to, const char *key, const char *value);
extern void output_append_json(PQExpBuffer to, const char *value);

/* answers of the server */
extern void rows_append(PQExpBuffer to, const PGresult *result, const char *kind, const char *const *titles);
extern int	rows_print(const PGresult *result, const char *kind, const char *const *titles);

extern int	output_print(PQExpBuffer text);
extern int	output_finish(void);

#endif							/* OUTPUT_H */
