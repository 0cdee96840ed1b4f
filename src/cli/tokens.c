/*-------------------------------------------------------------------------
 *
 * tokens.c
 *	  The setting dlock.tokens, and PGOPTIONS that carries it.
 *
 * NOTES
 *	  The setting is a list of pairs, name=token, separated by commas.  A name
 *	  that has anything but letters, digits and a few marks in it stands in
 *	  double quotes, and a quote in it is doubled.
 *
 *	  A command that is run under a lease may run another one under another, so
 *	  the list grows inward.  It is kept in the environment as it is, besides
 *	  in PGOPTIONS, where it would have to be told from what the user put there.
 *
 * IDENTIFICATION
 *	  src/cli/tokens.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"
#include "tokens.h"

#define PREFIX		"-c dlock.tokens="

/* Need a name with this character no quotes? */
static bool
is_mark(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		(c != '\0' && strchr("_-./:", c) != NULL);
}

static bool
is_plain(const char *name)
{
	for (const char *p = name; *p != '\0'; p++)
	{
		if (!is_mark(*p))
			return false;
	}
	return *name != '\0';
}

static void
append_name(Text *to, const char *name)
{
	if (is_plain(name))
	{
		text_add(to, name);
		return;
	}
	text_add_char(to, '"');
	for (const char *p = name; *p != '\0'; p++)
	{
		if (*p == '"')
			text_add_char(to, '"');
		text_add_char(to, *p);
	}
	text_add_char(to, '"');
}

/* Where the pair that begins here ends: at a comma outside quotes, or the end. */
static const char *
end_of_pair(const char *pair)
{
	bool		quoted = false;

	for (; *pair != '\0' && (quoted || *pair != ','); pair++)
	{
		if (*pair == '"')
			quoted = !quoted;
	}
	return pair;
}

/*
 * Is this a pair that the server understands?  The list may come from anybody, and
 * one that it does not understand would keep every session from beginning.
 */
static bool
is_pair(const char *pair, const char *end)
{
	const char *p = pair;
	size_t		digits;
	unsigned long long token;

	if (*p == '"')
	{
		for (p++; p < end && (*p != '"' || p[1] == '"'); p++)
			p += (*p == '"');
		if (p == pair + 1 || p++ >= end)
			return false;
	}
	else
	{
		while (p < end && is_mark(*p))
			p++;
		if (p == pair)
			return false;
	}
	if (p >= end || *p++ != '=')
		return false;
	digits = strspn(p, "0123456789");
	if (digits == 0 || digits > 19 || p + digits != end)
		return false;
	token = strtoull(p, NULL, 10);
	return token > 0 && token <= INT64_MAX;
}

/*
 * The list "outer" (may be NULL) with a pair added.  What it says of the same
 * name goes, and what is no pair.  To be freed by the caller.
 */
char *
tokens_extend(const char *outer, const char *name, const char *token)
{
	Text		list;
	Text		own;

	text_init(&list);
	text_init(&own);
	append_name(&own, name);
	text_add_char(&own, '=');

	for (const char *pair = (outer != NULL) ? outer : ""; *pair != '\0';)
	{
		const char *end = end_of_pair(pair);

		if (is_pair(pair, end) && strncmp(pair, own.data, own.len) != 0)
		{
			text_add_bytes(&list, pair, (size_t) (end - pair));
			text_add_char(&list, ',');
		}
		pair = (*end == ',') ? end + 1 : end;
	}
	text_add(&list, own.data);
	text_add(&list, token);

	text_free(&own);
	return list.data;
}

/* Append the setting as one word of PGOPTIONS, which are split at white space. */
static void
append_setting(Text *to, const char *tokens)
{
	text_add(to, PREFIX);
	for (const char *p = tokens; *p != '\0'; p++)
	{
		if (strchr(" \t\n\r\v\f\\", *p) != NULL)
			text_add_char(to, '\\');
		text_add_char(to, *p);
	}
}

/*
 * PGOPTIONS (may be NULL) with the setting added.  The one that an outer run
 * has put at its end, for its list "outer", is replaced.  To be freed by the
 * caller.
 */
char *
tokens_options(const char *options, const char *outer, const char *tokens)
{
	Text		all;
	Text		old;
	size_t		length = (options != NULL) ? strlen(options) : 0;

	text_init(&all);
	text_init(&old);
	if (outer != NULL)
		append_setting(&old, outer);
	if (old.len > 0 && length >= old.len &&
		strcmp(options + length - old.len, old.data) == 0 &&
		(length == old.len || options[length - old.len - 1] == ' '))
		length -= old.len;
	while (length > 0 && options[length - 1] == ' ' &&
		   (length < 2 || options[length - 2] != '\\'))
		length--;

	if (length > 0)
	{
		text_add_bytes(&all, options, length);
		text_add_char(&all, ' ');
	}
	append_setting(&all, tokens);

	text_free(&old);
	return all.data;
}
