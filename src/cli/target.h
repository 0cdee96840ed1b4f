/*-------------------------------------------------------------------------
 *
 * target.h
 *	  A lease that is named by its token or its owner.
 *
 * IDENTIFICATION
 *	  src/cli/target.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef TARGET_H
#define TARGET_H

#include "conn.h"
#include "options.h"

/* Statements that answer true if there is such a lease. */
typedef struct TargetSql
{
	const char *by_token;
	const char *by_owner;		/* NULL: the token has to be told */
	bool		takes_ttl;		/* as $3 */
	const char *done;			/* the key in JSON of what has been done */
} TargetSql;

extern int	target_run(const TargetSql *sql, const char *command, const Options *options,
					   int argc, char **argv);

#endif							/* TARGET_H */
