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
 *	  A name in double quotes may hold anything, a quote being written twice.
 *	  Without quotes it ends at white space, a comma, a quote, or an equals
 *	  sign.  The name * without quotes stands for all that the list does not
 *	  name.
 *
 *	  The setting is parsed twice: when it is set, to refuse a bad one, and when
 *	  it is first looked at after that, to be kept.
 *
 * IDENTIFICATION
 *	  src/fence/tokens.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "fence/tokens.h"

/* The setting, and what is in it. */
static const char *setting = NULL;
static bool parsed = false;
static MemoryContext context = NULL;
static DLockTokensPair *pairs = NULL;
static int	count = 0;

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

/* Counts, but does not keep, what is too long. */
static void
add_byte(char *name, int *len, char byte)
{
	if (*len < DLOCK_NAME_MAX)
		name[*len] = byte;
	(*len)++;
}

/*
 * Parse a name, and return what follows it; NULL if it is not well formed.
 * Its bytes are a copy.
 */
static const char *
parse_name(const char *p, DLockTokensPair *pair, const char **problem)
{
	bool		quoted = (*p == '"');
	char	   *copy = palloc(DLOCK_NAME_MAX);
	int			len = 0;

	if (quoted)
	{
		for (p++; *p != '\0' && (p[0] != '"' || p[1] == '"'); p++)
		{
			add_byte(copy, &len, *p);
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
			add_byte(copy, &len, *p++);
	}

	if (len == 0)
		*problem = "A name is missing.";
	else if (len > DLOCK_NAME_MAX)
		*problem = "A name is too long.";
	pair->name = (DLockBytes) {copy, len};
	pair->any = !quoted && len == 1 && copy[0] == '*';
	return (*problem == NULL) ? p : NULL;
}

/* The same with a token. */
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

/*
 * Parse a list.  Returns how many pairs there are and sets "list", palloc'd in
 * the current context; or returns -1 and sets "problem", a sentence.
 */
int
dlock_tokens_parse(const char *value, DLockTokensPair **list, const char **problem)
{
	const char *p = skip_space(value);
	int			room = 1;
	int			found = 0;

	*problem = NULL;
	for (const char *c = value; *c != '\0' && room < DLOCK_NAMES_MAX; c++)
		room += (*c == ',');
	*list = palloc(room * sizeof(DLockTokensPair));
	if (*p == '\0')
		return 0;

	for (;;)
	{
		DLockTokensPair *pair;

		if (found == DLOCK_NAMES_MAX)
		{
			*problem = "There are more than a thousand names.";
			return -1;
		}
		pair = &(*list)[found++];
		p = parse_name(skip_space(p), pair, problem);
		if (p == NULL)
			return -1;
		p = skip_space(p);
		p = parse_token((*p == '=') ? skip_space(p + 1) : "", &pair->token, problem);
		if (p == NULL)
			return -1;

		for (int i = 0; i < found - 1; i++)
		{
			if (is_same_name(&(*list)[i], pair))
				*problem = "A name is given more than once.";
		}
		p = skip_space(p);
		if (*p != '\0' && *p != ',')
			*problem = "A token is not followed by a comma or the end.";
		if (*problem != NULL)
			return -1;
		if (*p++ == '\0')
			return found;
	}
}

/* The setting has this value from now on, which has been checked. */
void
dlock_tokens_assign(const char *value)
{
	setting = value;
	parsed = false;
}

static void
parse_setting(void)
{
	const char *problem;
	MemoryContext old;

	if (parsed)
		return;
	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "dlock tokens presented",
										ALLOCSET_SMALL_SIZES);
	count = 0;
	MemoryContextReset(context);
	old = MemoryContextSwitchTo(context);
	count = dlock_tokens_parse((setting != NULL) ? setting : "", &pairs, &problem);
	MemoryContextSwitchTo(old);
	if (count < 0)
		elog(ERROR, "setting \"dlock.tokens\" is not well formed");
	parsed = true;
}

/* The token presented for a name; DLOCK_TOKEN_NONE if there is none. */
DLockToken
dlock_tokens_find(const DLockBytes *name)
{
	DLockToken	token = DLOCK_TOKEN_NONE;

	parse_setting();
	for (int i = 0; i < count; i++)
	{
		if (pairs[i].any)
			token = pairs[i].token;
		else if (pairs[i].name.len == name->len &&
				 memcmp(pairs[i].name.data, name->data, name->len) == 0)
			return pairs[i].token;
	}
	return token;
}

/* All that is presented.  Returns how many pairs there are. */
int
dlock_tokens_list(const DLockTokensPair **list)
{
	parse_setting();
	*list = pairs;
	return count;
}
