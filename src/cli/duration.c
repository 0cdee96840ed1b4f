/*-------------------------------------------------------------------------
 *
 * duration.c
 *	  Spans of time as people write them, and as SQL does.
 *
 * IDENTIFICATION
 *	  src/cli/duration.c
 *
 *-------------------------------------------------------------------------
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "duration.h"

/* Longer ones are mistakes: a hundred years. */
#define LONGEST		(INT64_C(36525) * 86400 * CLI_SECOND)

static const struct
{
	const char *name;
	CliTime		span;
}			units[] =

{
	{"", CLI_SECOND},
	{"ms", CLI_MS},
	{"s", CLI_SECOND},
	{"m", 60 * CLI_SECOND},
	{"min", 60 * CLI_SECOND},
	{"h", 3600 * CLI_SECOND},
	{"d", 86400 * CLI_SECOND},
};

/*
 * Read a span: digits, perhaps with a decimal fraction, and a unit; seconds if
 * there is none.  Rounds down to microseconds.  The decimal sign is a point in
 * every locale.  False if the text is anything else or the span too long.
 */
bool
duration_parse(const char *text, CliTime *span)
{
	const char *p = text;
	int64_t		whole = 0;
	int64_t		fraction = 0;
	int64_t		scale = 1;
	int			digits = 0;

	for (; *p >= '0' && *p <= '9'; p++, digits++)
	{
		whole = whole * 10 + (*p - '0');
		if (whole > LONGEST)
			return false;
	}
	if (*p == '.')
	{
		/* Nine digits are enough for a microsecond of a day's fraction ... */
		for (p++; *p >= '0' && *p <= '9'; p++, digits++)
		{
			if (scale >= INT64_C(1000000000))
				continue;
			fraction = fraction * 10 + (*p - '0');
			scale *= 10;
		}
	}
	if (digits == 0)
		return false;

	for (size_t i = 0; i < CLI_LENGTH(units); i++)
	{
		CliTime		unit = units[i].span;

		if (strcmp(p, units[i].name) != 0)
			continue;
		if (whole > LONGEST / unit)
			return false;
		/* ... and few enough for the product, split in two, to fit. */
		*span = whole * unit + fraction * (unit / CLI_MS) / scale * CLI_MS +
			fraction * (unit / CLI_MS) % scale * CLI_MS / scale;
		return *span <= LONGEST;
	}
	return false;
}

/* Write a span so that people can read it and duration_parse() too. */
const char *
duration_print(CliTime span, char *buffer)
{
	char	   *end;

	if (span % CLI_SECOND == 0 || span >= 1000 * CLI_SECOND)
	{
		snprintf(buffer, DURATION_SIZE, "%" PRId64 "s", span / CLI_SECOND);
		return buffer;
	}
	if (span < CLI_SECOND && span % CLI_MS == 0)
	{
		snprintf(buffer, DURATION_SIZE, "%" PRId64 "ms", span / CLI_MS);
		return buffer;
	}
	snprintf(buffer, DURATION_SIZE, "%" PRId64 ".%06" PRId64, span / CLI_SECOND, span % CLI_SECOND);
	for (end = buffer + strlen(buffer) - 1; *end == '0'; end--)
		;
	strcpy(end + 1, "s");
	return buffer;
}

/* Write a span as the input of type interval. */
const char *
duration_sql(CliTime span, char *buffer)
{
	snprintf(buffer, DURATION_SIZE, "%" PRId64 ".%06" PRId64 " seconds",
			 span / CLI_SECOND, span % CLI_SECOND);
	return buffer;
}
