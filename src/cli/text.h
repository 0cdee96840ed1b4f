/*-------------------------------------------------------------------------
 *
 * text.h
 *	  Strings that grow.
 *
 * IDENTIFICATION
 *	  src/cli/text.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef TEXT_H
#define TEXT_H

#include <stdarg.h>

#include "cli.h"

/* "data" always ends in a zero byte, which "len" does not count. */
typedef struct Text
{
	char	   *data;
	size_t		len;
	size_t		size;
} Text;

extern void *text_alloc(size_t size);
extern char *text_copy(const char *text);
extern char *text_print(const char *format,...) CLI_PRINTF(1, 2);

extern void text_init(Text *text);
extern void text_free(Text *text);
extern void text_add(Text *to, const char *from);
extern void text_add_char(Text *to, char c);
extern void text_add_bytes(Text *to, const char *from, size_t len);
extern void text_addf(Text *to, const char *format,...) CLI_PRINTF(2, 3);
extern void text_addv(Text *to, const char *format, va_list args);

#endif							/* TEXT_H */
