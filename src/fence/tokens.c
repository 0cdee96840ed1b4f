/*-------------------------------------------------------------------------
 *
 * tokens.c
 *	  Fencing tokens that the setting dlock.tokens presents.
 *
 * NOTES
 *	  The setting is a list of name=token, separated by commas, such as
 *
 *		nightly-report=42, "eu, berlin"=17, *=40
 *
 *	  A name in double quotes may have any bytes; a quote in it is doubled.
 *	  Without quotes it ends at white space, a comma, a quote, or an equals
 *	  sign.  The name * without quotes stands for all other names.
 *
 *	  The check hook parses the setting; the result is the "extra" of the setting.
 *
 * IDENTIFICATION
 *	  src/fence/tokens.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/guc.h"

#include "base/compat.h"
#include "fence/tokens.h"

/* The parsed setting.  The bytes of the names follow the pairs. */
typedef struct TokensList
{
	int			count;
	DLockTokensPair pairs[FLEXIBLE_ARRAY_MEMBER];
} TokensList;

static char *setting = NULL;
static TokensList *list = NULL;

static bool
is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

static const char *
skip_space(const char *p)
{
	while (is_space(*p))
		p++;
	return p;
}

/* Add a byte to a name; bytes beyond the limit only count. */
static void
add_byte(DLockBytes *name, char *buf, char byte)
{
	if (name->len < DLOCK_NAME_MAX)
		buf[name->len] = byte;
	name->len++;
}

/*
 * Parse a name, and return what follows it; NULL if it is not well formed.
 * Its bytes are copied to "buf".
 */
static const char *
parse_name(const char *p, DLockTokensPair *pair, char *buf, const char **problem)
{
	bool		quoted = (*p == '"');

	pair->name = dlock_bytes(buf, 0);
	if (quoted)
	{
		for (p++; *p != '\0' && (p[0] != '"' || p[1] == '"'); p++)
		{
			add_byte(&pair->name, buf, *p);
			if (*p == '"')
				p++;
		}
		if (*p++ == '\0')
		{
			*problem = "A quote is not closed.";
			return NULL;
		}
	}
	else
	{
		while (*p != '\0' && strchr(",=\"", *p) == NULL && !is_space(*p))
			add_byte(&pair->name, buf, *p++);
	}

	if (pair->name.len == 0)
		*problem = "A name is missing.";
	else if (pair->name.len > DLOCK_NAME_MAX)
		*problem = "A name is too long.";
	pair->any = !quoted && pair->name.len == 1 && buf[0] == '*';
	return (*problem == NULL) ? p : NULL;
}

/* Parse a token, likewise. */
static const char *
parse_token(const char *p, DLockToken *token, const char **problem)
{
	*token = 0;
	for (; *p >= '0' && *p <= '9'; p++)
	{
		if (*token > (PG_INT64_MAX - (*p - '0')) / 10)
		{
			*problem = "A token is out of range.";
			return NULL;
		}
		*token = *token * 10 + (*p - '0');
	}
	if (*token == DLOCK_TOKEN_NONE)
	{
		*problem = "A name is not followed by \"=\" and a token greater than zero.";
		return NULL;
	}
	return p;
}

static bool
is_same_name(const DLockTokensPair *a, const DLockTokensPair *b)
{
	return a->any == b->any && a->name.len == b->name.len &&
		memcmp(a->name.data, b->name.data, a->name.len) == 0;
}

/* Parse a list.  Returns NULL, or a sentence that says what is wrong. */
static const char *
parse_list(const char *value, TokensList *found, char *buf)
{
	const char *problem = NULL;
	const char *p = skip_space(value);

	found->count = 0;
	while (*p != '\0' || found->count > 0)
	{
		DLockTokensPair *pair = &found->pairs[found->count];

		if (found->count == DLOCK_NAMES_MAX)
			return "There are more than a thousand names.";
		p = parse_name(skip_space(p), pair, buf, &problem);
		if (p == NULL)
			return problem;
		buf += pair->name.len;
		p = skip_space(p);
		p = parse_token((*p == '=') ? skip_space(p + 1) : "", &pair->token, &problem);
		if (p == NULL)
			return problem;

		for (int i = 0; i < found->count; i++)
		{
			if (is_same_name(&found->pairs[i], pair))
				return "A name is given more than once.";
		}
		found->count++;
		p = skip_space(p);
		if (*p == '\0')
			break;
		if (*p++ != ',')
			return "A token is not followed by a comma or the end.";
	}
	return NULL;
}

static bool
check_setting(char **newval, void **extra, GucSource source)
{
	const char *value = *newval;
	int			room = 1;
	TokensList *found;
	const char *problem;

	for (const char *c = value; *c != '\0' && room < DLOCK_NAMES_MAX; c++)
		room += (*c == ',');
	found = guc_malloc(LOG, offsetof(TokensList, pairs) + room * sizeof(DLockTokensPair) +
					   strlen(value));
	if (found == NULL)
		return false;
	problem = parse_list(value, found, (char *) &found->pairs[room]);
	if (problem != NULL)
	{
		guc_free(found);
		GUC_check_errdetail("%s", problem);
		GUC_check_errhint("Write it as \"name=token, ...\", a name with a space, a comma, a quote or an equals sign in double quotes.");
		return false;
	}
	*extra = found;
	return true;
}

static void
assign_setting(const char *newval, void *extra)
{
	list = extra;
}

/* Define the setting; see dlock_settings_define(). */
void
dlock_tokens_define(void)
{
	DefineCustomStringVariable("dlock.tokens",
							   "Fencing tokens that are presented to dlock_guard(), as \"name=token, ...\".",
							   "The name * stands for all others.",
							   &setting,
							   "",
							   PGC_USERSET, 0,
							   check_setting, assign_setting, NULL);
}

/* The token presented for a name; DLOCK_TOKEN_NONE if there is none. */
DLockToken
dlock_tokens_find(const DLockBytes *name)
{
	DLockToken	token = DLOCK_TOKEN_NONE;

	for (int i = 0; i < list->count; i++)
	{
		const DLockTokensPair *pair = &list->pairs[i];

		if (pair->any)
			token = pair->token;
		else if (pair->name.len == name->len &&
				 memcmp(pair->name.data, name->data, name->len) == 0)
			return pair->token;
	}
	return token;
}

/* All pairs of the setting; returns their number. */
int
dlock_tokens_list(const DLockTokensPair **pairs)
{
	*pairs = list->pairs;
	return list->count;
}
