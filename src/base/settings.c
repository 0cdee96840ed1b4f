/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  The settings of dlock and their ranges.
 *
 * NOTES
 *	  There are no settings for what synchronous_commit and wal_writer_delay
 *	  already control.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "parser/scansup.h"
#include "utils/guc.h"

#include "base/compat.h"
#include "base/name.h"
#include "base/settings.h"

int			dlock_settings_default_ttl_ms = 30 * 1000;
int			dlock_settings_max_ttl_s = 24 * 60 * 60;
int			dlock_settings_max_memory_kb = 64 * 1024;
int			dlock_settings_max_leases = -1;
int			dlock_settings_max_clock_skew_ms = 10 * 1000;
bool		dlock_settings_log_expirations = false;
bool		dlock_settings_grants = true;

/* ---- dlock.tokens ----
 *
 * The setting is a list of name=token, separated by commas, such as
 *
 *	nightly-report=42, "eu, berlin"=17, *=40
 *
 * A name in double quotes may have any bytes; a quote in it is doubled.  Without
 * quotes it ends at white space, a comma, a quote, or an equals sign.  The name *
 * without quotes stands for all other names.
 *
 * The check hook parses the setting; the result is the "extra" of the setting.
 */

/* The parsed setting.  The bytes of the names follow the pairs. */
typedef struct TokenList
{
	int			count;
	DLockSettingsToken pairs[FLEXIBLE_ARRAY_MEMBER];
} TokenList;

static char *tokens_setting = NULL;
static TokenList *tokens = NULL;

static const char *
skip_space(const char *p)
{
	while (scanner_isspace(*p))
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
parse_name(const char *p, DLockSettingsToken *pair, char *buf, const char **problem)
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
		while (*p != '\0' && strchr(",=\"", *p) == NULL && !scanner_isspace(*p))
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

/* Parse a list.  Returns NULL, or a sentence that says what is wrong. */
static const char *
parse_list(const char *value, TokenList *found, char *buf)
{
	const char *problem = NULL;
	const char *p = skip_space(value);

	found->count = 0;
	while (*p != '\0' || found->count > 0)
	{
		DLockSettingsToken *pair = &found->pairs[found->count];

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
			if (found->pairs[i].any == pair->any && dlock_name_equal(&found->pairs[i].name, &pair->name))
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
check_tokens(char **newval, void **extra, GucSource source)
{
	const char *value = *newval;
	int			room = 1;
	TokenList  *found;
	const char *problem;

	for (const char *c = value; *c != '\0' && room < DLOCK_NAMES_MAX; c++)
		room += (*c == ',');
	found = guc_malloc(LOG, offsetof(TokenList, pairs) + room * sizeof(DLockSettingsToken) +
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
assign_tokens(const char *newval, void *extra)
{
	tokens = extra;
}

/* The token presented for a name; DLOCK_TOKEN_NONE if there is none. */
DLockToken
dlock_settings_token(const DLockBytes *name)
{
	DLockToken	token = DLOCK_TOKEN_NONE;

	for (int i = 0; i < tokens->count; i++)
	{
		const DLockSettingsToken *pair = &tokens->pairs[i];

		if (pair->any)
			token = pair->token;
		else if (dlock_name_equal(&pair->name, name))
			return pair->token;
	}
	return token;
}

/* All pairs of the setting; returns their number. */
int
dlock_settings_tokens(const DLockSettingsToken **pairs)
{
	*pairs = tokens->pairs;
	return tokens->count;
}

/* ---- all settings ---- */

/*
 * Define the settings while shared_preload_libraries is processed; a
 * PGC_POSTMASTER setting cannot be defined later.
 */
void
dlock_settings_define(void)
{
	DefineCustomIntVariable("dlock.default_ttl",
							"Time to live of a lease that is acquired without a ttl.",
							NULL,
							&dlock_settings_default_ttl_ms,
							30 * 1000, 1, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("dlock.max_ttl",
							"Longest time to live that a lease may ask for.",
							NULL,
							&dlock_settings_max_ttl_s,
							24 * 60 * 60, 1, INT_MAX,
							PGC_SUSET, GUC_UNIT_S,
							NULL, NULL, NULL);

	DefineCustomIntVariable("dlock.max_memory",
							"Shared memory for the leases of all databases.",
							"A lease with a short name and owner takes less than 256 bytes.",
							&dlock_settings_max_memory_kb,
							64 * 1024, 1024, DLOCK_SETTINGS_MAX_MEMORY_KB,
							PGC_POSTMASTER, GUC_UNIT_KB,
							NULL, NULL, NULL);

	DefineCustomIntVariable("dlock.max_leases",
							"Most leases of a role in a database, waiting requests included.",
							"-1 means no limit.",
							&dlock_settings_max_leases,
							-1, -1, INT_MAX,
							PGC_SUSET, 0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("dlock.max_clock_skew",
							"How far wall clocks may disagree when leases are loaded on another boot or machine.",
							"A lease loaded so is kept longer by this, but never for more than two ttl.",
							&dlock_settings_max_clock_skew_ms,
							10 * 1000, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomBoolVariable("dlock.log_expirations",
							 "Logs each lease that has expired.",
							 "The line is written when the lease is removed.",
							 &dlock_settings_log_expirations,
							 false,
							 PGC_SIGHUP, 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("dlock.grants",
							 "Grants leases.",
							 "Off for a server that hands calls over to others and must not answer them itself.",
							 &dlock_settings_grants,
							 true,
							 PGC_SUSET, 0,
							 NULL, NULL, NULL);

	DefineCustomStringVariable("dlock.tokens",
							   "Fencing tokens that are presented to dlock_guard(), as \"name=token, ...\".",
							   "The name * stands for all others.",
							   &tokens_setting,
							   "",
							   PGC_USERSET, 0,
							   check_tokens, assign_tokens, NULL);

	MarkGUCPrefixReserved("dlock");
}
