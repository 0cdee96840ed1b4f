/*-------------------------------------------------------------------------
 *
 * grant.h
 *	  Acquiring a lease, and giving it back.
 *
 * IDENTIFICATION
 *	  src/cli/grant.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef GRANT_H
#define GRANT_H

#include "conn.h"
#include "options.h"

/* Renew a lease by its name and token. */
#define GRANT_RENEW_SQL	"SELECT @dlock_renew_token($1, $2)"

/* How long a request may take that does not wait for anybody. */
#define GRANT_WITHIN	(10 * CLI_SECOND)

/* Which lease, and what it is asked for with. */
typedef struct GrantRequest
{
	const char *name;
	const char *owner;
	bool		is_unique;		/* nobody else uses this owner */
	CliTime		ttl;
	CliTime		lock_delay;
	const Options *options;
} GrantRequest;

typedef enum GrantVerdict
{
	GRANT_OURS,
	GRANT_REFUSED,
	GRANT_SIGNALLED,			/* see "signal" */
	GRANT_FAILED				/* see the connection's error */
} GrantVerdict;

typedef struct Grant
{
	char		token[24];
	CliTime		sent;			/* before the request that was answered */
	int			signal;
	bool		in_doubt;		/* an answer was lost: a lease of this owner
								 * may be ours */
} Grant;

extern GrantVerdict grant_acquire(Conn *conn, const GrantRequest *request, Grant *grant);
extern GrantVerdict grant_renew(Conn *conn, const GrantRequest *request, Grant *grant);
extern bool grant_release(Conn *conn, const char *name, const char *token, bool *was_held);
extern int	grant_explain(Conn *conn, const GrantRequest *request, const Grant *grant,
						  GrantVerdict verdict);

#endif							/* GRANT_H */
