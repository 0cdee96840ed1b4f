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

#include "utils/guc.h"
#include "utils/varlena.h"

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
 *	nightly-report=42, "eu, berlin=17", *=40
 *
 * It is split like the server's own lists.  A pair that has white space or a comma in it, or
 * begins with a quote, is written in double quotes, and quotes in it are doubled.  The token
 * follows the last equals sign.  The name * stands for all other names.
 *
 * The check hook parses the setting; the result is the "extra" of the setting.
 */

/* The parsed setting.  The names, which end at their equals signs, follow the pairs. */
typedef struct TokenList
{
	int			count;
	DLockSettingsToken pairs[FLEXIBLE_ARRAY_MEMBER];
} TokenList;

static char *tokens_setting = NULL;
static TokenList *tokens = NULL;

/* Add a pair, whose text must outlive the list.  Returns NULL, or what is wrong with it. */
static const char *
add_pair(TokenList *list, const char *text)
{
	DLockSettingsToken *pair = &list->pairs[list->count];
	const char *sign = strrchr(text, '=');
	char	   *end;

	if (sign == NULL || sign[1] < '0' || sign[1] > '9')
		return "A name is not followed by \"=\" and a token.";
	errno = 0;
	pair->token = strtoi64(sign + 1, &end, 10);
	if (errno != 0 || *end != '\0' || pair->token == DLOCK_TOKEN_NONE)
		return "A token is not a number, or out of range.";
	pair->name = dlock_bytes(text, (int) (sign - text));
	if (pair->name.len == 0 || pair->name.len > DLOCK_NAME_MAX)
		return "A name is missing, or too long.";
	pair->any = pair->name.len == 1 && *text == '*';
	for (int i = 0; i < list->count; i++)
	{
		if (dlock_name_equal(&list->pairs[i].name, &pair->name))
			return "A name is given more than once.";
	}
	if (++list->count > DLOCK_NAMES_MAX)
		return "There are more than a thousand names.";
	return NULL;
}

static bool
check_tokens(char **newval, void **extra, GucSource source)
{
	const char *problem = NULL;
	int			room = 1;
	TokenList  *found;
	List	   *texts;
	ListCell   *cell;

	for (const char *c = *newval; *c != '\0'; c++)
		room += (*c == ',');
	found = guc_malloc(LOG, offsetof(TokenList, pairs) + room * sizeof(DLockSettingsToken) +
					   strlen(*newval) + 1);
	if (found == NULL)
		return false;
	found->count = 0;
	/* SplitGUCList() splits the string in place. */
	if (!SplitGUCList(strcpy((char *) &found->pairs[room], *newval), ',', &texts))
		problem = "It is not a list.";
	foreach(cell, texts)
	{
		if (problem == NULL)
			problem = add_pair(found, lfirst(cell));
	}
	list_free(texts);
	if (problem != NULL)
	{
		guc_free(found);
		GUC_check_errdetail("%s", problem);
		GUC_check_errhint("Write it as \"name=token, ...\", and in double quotes what has a space, a comma or a quote in it.");
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
