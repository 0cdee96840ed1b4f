/*-------------------------------------------------------------------------
 *
 * top_look.h
 *	  What dlock top knows of the server.
 *
 * IDENTIFICATION
 *	  src/cli/top_look.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef TOP_LOOK_H
#define TOP_LOOK_H

#include "conn.h"

/* In which order leases are looked at. */
typedef enum TopOrder
{
	TOP_BY_WAITERS,
	TOP_BY_LEFT,
	TOP_BY_NAME,
	TOP_NORDERS
} TopOrder;

/* Counters whose rates are shown; the order is that of the statement. */
typedef enum TopRate
{
	TOP_GRANTS, TOP_HANDOFFS, TOP_RELEASES, TOP_RENEWALS, TOP_REFUSALS,
	TOP_EXPIRIES, TOP_TIMEOUTS, TOP_DEADLOCKS, TOP_CONVERSIONS, TOP_WAITS, TOP_WAIT_TIME,
	TOP_NRATES
} TopRate;

/* The answers, one after the other. */
typedef enum TopPart
{
	TOP_TOTALS, TOP_LEASES, TOP_WAITERS, TOP_NPARTS
} TopPart;

/* Columns of the totals, before and behind the counters. */
enum
{
	TOP_TIME, TOP_STANDBY, TOP_NLEASES, TOP_NCLOSED, TOP_NWAITERS, TOP_LONGEST_WAIT,
	TOP_REAPER_LAG, TOP_COUNTERS
};

enum
{
	LEASE_NAME, LEASE_OWNER, LEASE_MODE, LEASE_PERMITS, LEASE_STATE, LEASE_TOKEN,
	LEASE_LEFT, LEASE_HELD, LEASE_WAITERS, LEASE_ROLE, LEASE_RATE, LEASE_GRANTS, LEASE_SINCE
};

enum
{
	WAITER_NAME, WAITER_POSITION, WAITER_OWNER, WAITER_MODE, WAITER_PERMITS, WAITER_REQUEST,
	WAITER_WAITED, WAITER_ROLE, WAITER_BLOCKED_JSON, WAITER_BLOCKED_BY
};

typedef struct TopLook
{
	PGresult   *shown[TOP_NPARTS];	/* all NULL before the first look */
	PGresult   *fresh[TOP_NPARTS];
	int			part;			/* which one is being asked for */
	CliTime		began;
	CliTime		at;				/* when the counters of "shown" were read */
	CliTime		leases_at;		/* the same of its leases */
	bool		has_rates;
	double		rates[TOP_NRATES];	/* a second; wait time: of a wait that is
									 * over, in seconds */
} TopLook;

extern const char *const top_order_names[TOP_NORDERS];

extern void top_look_begin(TopLook *look, Conn *conn, TopOrder order, const char *limit);
extern bool top_look_continue(TopLook *look, Conn *conn, TopOrder order, const char *limit);
extern void top_look_forget(TopLook *look);
extern void top_look_free(TopLook *look);
extern const char *top_look_value(const TopLook *look, TopPart part, int row, int column);
extern int	top_look_rows(const TopLook *look, TopPart part);
extern void top_look_print_json(const TopLook *look);

#endif							/* TOP_LOOK_H */
