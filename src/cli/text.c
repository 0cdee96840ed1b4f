/*-------------------------------------------------------------------------
 *
 * text.c
 *	  Strings that grow.
 *
 * NOTES
 *	  Without memory the command ends there and then.  Should another one run
 *	  under it, its guardian sees to that.
 *
 * IDENTIFICATION
 *	  src/cli/text.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

static void CLI_NORETURN
fail(void)
{
	fputs("dlock: error: out of memory\n", stderr);
	exit(CLI_EXIT_SYSTEM);
}

/* Memory that is set to zero. */
void *
text_alloc(size_t size)
{
	void	   *memory = calloc(1, size);

	if (memory == NULL)
		fail();
	return memory;
}

/* A copy of a string; of NULL, NULL. */
char *
text_copy(const char *text)
{
	char	   *copy;

	if (text == NULL)
		return NULL;
	copy = strdup(text);
	if (copy == NULL)
		fail();
	return copy;
}

char *
text_print(const char *format,...)
{
	Text		text;
	va_list		args;

	text_init(&text);
	va_start(args, format);
	text_addv(&text, format, args);
	va_end(args);
	return text.data;
}

void
text_init(Text *text)
{
	text->size = 64;
	text->len = 0;
	text->data = text_alloc(text->size);
}

void
text_free(Text *text)
{
	free(text->data);
	text->data = NULL;
}

/* Make room for so many bytes more, and a zero byte. */
static void
enlarge(Text *text, size_t more)
{
	if (text->len + more < text->size)
		return;
	while (text->len + more >= text->size)
		text->size *= 2;
	text->data = realloc(text->data, text->size);
	if (text->data == NULL)
		fail();
}

void
text_add_bytes(Text *to, const char *from, size_t len)
{
	enlarge(to, len);
	memcpy(to->data + to->len, from, len);
	to->len += len;
	to->data[to->len] = '\0';
}

void
text_add(Text *to, const char *from)
{
	text_add_bytes(to, from, strlen(from));
}

void
text_add_char(Text *to, char c)
{
	text_add_bytes(to, &c, 1);
}

void
text_addv(Text *to, const char *format, va_list args)
{
	va_list		again;
	int			length;

	va_copy(again, args);
	length = vsnprintf(NULL, 0, format, again);
	va_end(again);
	if (length < 0)
		return;
	enlarge(to, (size_t) length);
	vsnprintf(to->data + to->len, (size_t) length + 1, format, args);
	to->len += (size_t) length;
}

void
text_addf(Text *to, const char *format,...)
{
	va_list		args;

	va_start(args, format);
	text_addv(to, format, args);
	va_end(args);
}
