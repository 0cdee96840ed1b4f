/* sql/dlock--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION dlock" to load this file. \quit

----------------------------------------------------------------------------
-- Storage
----------------------------------------------------------------------------

CREATE FUNCTION @extschema@.dlock_store_handler(internal)
    RETURNS pg_catalog.table_am_handler
    AS 'MODULE_PATHNAME', 'dlock_sql_store_handler'
    LANGUAGE C STRICT;
COMMENT ON FUNCTION @extschema@.dlock_store_handler(internal)
    IS 'table access method handler of the lease store';

CREATE ACCESS METHOD dlock_store TYPE TABLE HANDLER @extschema@.dlock_store_handler;
COMMENT ON ACCESS METHOD dlock_store
    IS 'pages that hold leases, written in place; scans as empty and refuses DML';

-- The pages of the leases.  The table has no columns; the view dlock_leases shows
-- its leases.
CREATE TABLE @extschema@.dlock_store () USING dlock_store;
REVOKE ALL ON TABLE @extschema@.dlock_store FROM PUBLIC;
COMMENT ON TABLE @extschema@.dlock_store
    IS 'durable pages of the leases; read them through dlock_leases';

-- The source of fencing tokens.  Its value is the end of the block that the server
-- may grant from memory, so it is ahead of the last token.
CREATE SEQUENCE @extschema@.dlock_token_seq AS pg_catalog.int8 MINVALUE 1 START WITH 1 NO CYCLE;
REVOKE ALL ON SEQUENCE @extschema@.dlock_token_seq FROM PUBLIC;
COMMENT ON SEQUENCE @extschema@.dlock_token_seq
    IS 'end of the last block of fencing tokens reserved';
SELECT pg_catalog.pg_extension_config_dump('@extschema@.dlock_token_seq', '');

----------------------------------------------------------------------------
-- Leases
----------------------------------------------------------------------------

CREATE FUNCTION @extschema@.dlock_acquire(
    name pg_catalog.text,
    owner pg_catalog.text DEFAULT NULL,
    ttl pg_catalog.interval DEFAULT NULL,
    wait pg_catalog.interval DEFAULT '0',
    mode pg_catalog.text DEFAULT 'exclusive',
    permits pg_catalog.int4 DEFAULT NULL,
    reentry pg_catalog.text DEFAULT 'deny',
    bind pg_catalog.text DEFAULT 'none',
    lock_delay pg_catalog.interval DEFAULT '0',
    min_hold pg_catalog.interval DEFAULT '0',
    payload pg_catalog.jsonb DEFAULT NULL)
    RETURNS pg_catalog.int8
    AS 'MODULE_PATHNAME', 'dlock_sql_acquire'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_acquire(pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.interval, pg_catalog.text, pg_catalog.int4, pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.interval, pg_catalog.jsonb)
    IS 'acquire a lease; returns its fencing token, or NULL if the lock is held';

CREATE FUNCTION @extschema@.dlock_acquire_all(
    names pg_catalog.text[],
    owner pg_catalog.text DEFAULT NULL,
    ttl pg_catalog.interval DEFAULT NULL,
    wait pg_catalog.interval DEFAULT '0',
    mode pg_catalog.text DEFAULT 'exclusive',
    reentry pg_catalog.text DEFAULT 'deny',
    bind pg_catalog.text DEFAULT 'none',
    lock_delay pg_catalog.interval DEFAULT '0',
    min_hold pg_catalog.interval DEFAULT '0',
    payload pg_catalog.jsonb DEFAULT NULL)
    RETURNS pg_catalog.int8[]
    AS 'MODULE_PATHNAME', 'dlock_sql_acquire_all'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_acquire_all(pg_catalog.text[], pg_catalog.text, pg_catalog.interval, pg_catalog.interval, pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.interval, pg_catalog.jsonb)
    IS 'acquire leases on all of these locks or on none; returns their tokens in the order of the names, or NULL';

CREATE FUNCTION @extschema@.dlock_acquire_path(
    path pg_catalog.text,
    owner pg_catalog.text DEFAULT NULL,
    ttl pg_catalog.interval DEFAULT NULL,
    wait pg_catalog.interval DEFAULT '0',
    mode pg_catalog.text DEFAULT 'exclusive',
    reentry pg_catalog.text DEFAULT 'deny',
    bind pg_catalog.text DEFAULT 'none',
    lock_delay pg_catalog.interval DEFAULT '0',
    min_hold pg_catalog.interval DEFAULT '0',
    payload pg_catalog.jsonb DEFAULT NULL)
    RETURNS pg_catalog.int8
    AS 'MODULE_PATHNAME', 'dlock_sql_acquire_path'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_acquire_path(pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.interval, pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.interval, pg_catalog.jsonb)
    IS 'acquire a lease on a path like a/b/c and intents on its ancestors; returns its fencing token, or NULL if a lock is held';

CREATE FUNCTION @extschema@.dlock_convert(
    name pg_catalog.text,
    token pg_catalog.int8,
    mode pg_catalog.text,
    wait pg_catalog.interval DEFAULT '0')
    RETURNS pg_catalog.int8
    AS 'MODULE_PATHNAME', 'dlock_sql_convert'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_convert(pg_catalog.text, pg_catalog.int8, pg_catalog.text, pg_catalog.interval)
    IS 'change the mode of the lease with this token; returns its token, a new one after an upgrade, or NULL if others are in the way';

CREATE FUNCTION @extschema@.dlock_renew(
    name pg_catalog.text,
    owner pg_catalog.text DEFAULT NULL,
    ttl pg_catalog.interval DEFAULT NULL)
    RETURNS pg_catalog.bool
    AS 'MODULE_PATHNAME', 'dlock_sql_renew'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_renew(pg_catalog.text, pg_catalog.text, pg_catalog.interval)
    IS 'extend the lease that this owner holds; false if it holds none';

CREATE FUNCTION @extschema@.dlock_renew_token(
    name pg_catalog.text,
    token pg_catalog.int8,
    ttl pg_catalog.interval DEFAULT NULL)
    RETURNS pg_catalog.bool
    AS 'MODULE_PATHNAME', 'dlock_sql_renew_token'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_renew_token(pg_catalog.text, pg_catalog.int8, pg_catalog.interval)
    IS 'extend the lease with this token; false if it is no longer held';

CREATE FUNCTION @extschema@.dlock_release(
    name pg_catalog.text,
    owner pg_catalog.text DEFAULT NULL)
    RETURNS pg_catalog.bool
    AS 'MODULE_PATHNAME', 'dlock_sql_release'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_release(pg_catalog.text, pg_catalog.text)
    IS 'release the lease that this owner holds; false if it holds none';

CREATE FUNCTION @extschema@.dlock_release_token(
    name pg_catalog.text,
    token pg_catalog.int8)
    RETURNS pg_catalog.bool
    AS 'MODULE_PATHNAME', 'dlock_sql_release_token'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_release_token(pg_catalog.text, pg_catalog.int8)
    IS 'release the lease with this token; false if it is no longer held';

CREATE FUNCTION @extschema@.dlock_check(
    name pg_catalog.text,
    token pg_catalog.int8)
    RETURNS pg_catalog.bool
    AS 'MODULE_PATHNAME', 'dlock_sql_check'
    LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION @extschema@.dlock_check(pg_catalog.text, pg_catalog.int8)
    IS 'whether the lease with this token is held now';

CREATE FUNCTION @extschema@.dlock_watch(
    name pg_catalog.text,
    seen pg_catalog.int8,
    wait pg_catalog.interval DEFAULT NULL,
    OUT token pg_catalog.int8,
    OUT owner pg_catalog.text,
    OUT mode pg_catalog.text,
    OUT granted_at pg_catalog.timestamptz,
    OUT expires_at pg_catalog.timestamptz,
    OUT payload pg_catalog.jsonb)
    RETURNS pg_catalog.record
    AS 'MODULE_PATHNAME', 'dlock_sql_watch'
    LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION @extschema@.dlock_watch(pg_catalog.text, pg_catalog.int8, pg_catalog.interval)
    IS 'wait until the token of a lock''s holder differs from the token seen; returns the holder, NULLs if there is none';

CREATE FUNCTION @extschema@.dlock_renew_all(
    owner pg_catalog.text DEFAULT NULL,
    ttl pg_catalog.interval DEFAULT NULL)
    RETURNS pg_catalog.int4
    AS 'MODULE_PATHNAME', 'dlock_sql_renew_all'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_renew_all(pg_catalog.text, pg_catalog.interval)
    IS 'extend every lease of an owner; returns how many';

CREATE FUNCTION @extschema@.dlock_release_all(
    owner pg_catalog.text DEFAULT NULL)
    RETURNS pg_catalog.int4
    AS 'MODULE_PATHNAME', 'dlock_sql_release_all'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_release_all(pg_catalog.text)
    IS 'release every lease of an owner; returns how many';

CREATE FUNCTION @extschema@.dlock_force_release(
    name pg_catalog.text,
    reason pg_catalog.text)
    RETURNS pg_catalog.int4
    AS 'MODULE_PATHNAME', 'dlock_sql_force_release'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION @extschema@.dlock_force_release(pg_catalog.text, pg_catalog.text) FROM PUBLIC;
COMMENT ON FUNCTION @extschema@.dlock_force_release(pg_catalog.text, pg_catalog.text)
    IS 'end all leases on a name, and log the reason; returns how many';

CREATE FUNCTION @extschema@.dlock_bump_epoch(
    reason pg_catalog.text,
    above pg_catalog.int8 DEFAULT NULL)
    RETURNS pg_catalog.int8
    AS 'MODULE_PATHNAME', 'dlock_sql_bump_epoch'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION @extschema@.dlock_bump_epoch(pg_catalog.text, pg_catalog.int8) FROM PUBLIC;
COMMENT ON FUNCTION @extschema@.dlock_bump_epoch(pg_catalog.text, pg_catalog.int8)
    IS 'move fencing tokens above those of another server; returns a number below all later tokens';

----------------------------------------------------------------------------
-- Fencing
----------------------------------------------------------------------------

-- The highest token that each fenced resource has seen.  Only dlock_fence() and
-- dlock_guard() write it, for every role.
CREATE TABLE @extschema@.dlock_fence_mark (
    resource pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    token pg_catalog.int8 NOT NULL CHECK (token OPERATOR(pg_catalog.>) 0),
    raised_at pg_catalog.timestamptz NOT NULL,
    raised_by pg_catalog.name NOT NULL)
    USING heap;
CREATE INDEX dlock_fence_mark_raised_by ON @extschema@.dlock_fence_mark (raised_by);
REVOKE ALL ON TABLE @extschema@.dlock_fence_mark FROM PUBLIC;
COMMENT ON TABLE @extschema@.dlock_fence_mark
    IS 'the highest fencing token that each resource has seen; read it through dlock_fences';
SELECT pg_catalog.pg_extension_config_dump('@extschema@.dlock_fence_mark', '');

-- Declarations about resources, by name or, with a * at the end, by the beginning
-- of names.  Only dlock_fence_declare() writes it.
CREATE TABLE @extschema@.dlock_fence_declared (
    resource pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    role pg_catalog.regrole,
    is_foreign pg_catalog.bool NOT NULL)
    USING heap;
REVOKE ALL ON TABLE @extschema@.dlock_fence_declared FROM PUBLIC;
GRANT SELECT ON TABLE @extschema@.dlock_fence_declared TO PUBLIC;
COMMENT ON TABLE @extschema@.dlock_fence_declared
    IS 'which role a fenced resource belongs to, and whether its tokens come from another database; written by dlock_fence_declare()';
SELECT pg_catalog.pg_extension_config_dump('@extschema@.dlock_fence_declared', '');

CREATE VIEW @extschema@.dlock_fences AS
    SELECT m.resource, m.token, m.raised_at, m.raised_by,
           EXISTS (SELECT
                     FROM @extschema@.dlock_fence_declared d
                    WHERE d.is_foreign
                      AND (d.resource OPERATOR(pg_catalog.=) m.resource
                           OR (pg_catalog."right"(d.resource, 1) OPERATOR(pg_catalog.=) '*'
                               AND pg_catalog.starts_with(m.resource, pg_catalog."left"(d.resource, -1))))) AS is_foreign
      FROM @extschema@.dlock_fence_mark m;
GRANT SELECT ON @extschema@.dlock_fences TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_fences
    IS 'the highest fencing token that each resource has seen, the role that presented it, and whether its tokens come from another database';

CREATE FUNCTION @extschema@.dlock_fence(
    resource pg_catalog.text,
    token pg_catalog.int8,
    live pg_catalog.bool DEFAULT false)
    RETURNS pg_catalog.void
    AS 'MODULE_PATHNAME', 'dlock_sql_fence'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION @extschema@.dlock_fence(pg_catalog.text, pg_catalog.int8, pg_catalog.bool) FROM PUBLIC;
COMMENT ON FUNCTION @extschema@.dlock_fence(pg_catalog.text, pg_catalog.int8, pg_catalog.bool)
    IS 'refuse a token below the highest that the resource has seen, and keep higher ones out until this transaction ends';

CREATE FUNCTION @extschema@.dlock_guard()
    RETURNS pg_catalog.trigger
    AS 'MODULE_PATHNAME', 'dlock_sql_guard'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION @extschema@.dlock_guard() FROM PUBLIC;
COMMENT ON FUNCTION @extschema@.dlock_guard()
    IS 'BEFORE trigger that refuses writes without a good fencing token';

CREATE FUNCTION @extschema@.dlock_fence_declare(
    resource pg_catalog.text,
    role pg_catalog.text DEFAULT NULL,
    is_foreign pg_catalog.bool DEFAULT false)
    RETURNS pg_catalog.void
    AS 'MODULE_PATHNAME', 'dlock_sql_fence_declare'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION @extschema@.dlock_fence_declare(pg_catalog.text, pg_catalog.text, pg_catalog.bool) FROM PUBLIC;
COMMENT ON FUNCTION @extschema@.dlock_fence_declare(pg_catalog.text, pg_catalog.text, pg_catalog.bool)
    IS 'declare which role a fenced resource belongs to, and whether its tokens come from another database; neither removes the declaration';

CREATE FUNCTION @extschema@.dlock_fence_reset(
    resource pg_catalog.text,
    token pg_catalog.int8,
    reason pg_catalog.text)
    RETURNS pg_catalog.int8
    AS 'MODULE_PATHNAME', 'dlock_sql_fence_reset'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION @extschema@.dlock_fence_reset(pg_catalog.text, pg_catalog.int8, pg_catalog.text) FROM PUBLIC;
COMMENT ON FUNCTION @extschema@.dlock_fence_reset(pg_catalog.text, pg_catalog.int8, pg_catalog.text)
    IS 'set the mark of a resource, also to a lower token, or remove it (NULL); logs the reason; for the owner of the extension only';

----------------------------------------------------------------------------
-- Looking
----------------------------------------------------------------------------

CREATE FUNCTION @extschema@.dlock_lease_list(
    OUT name pg_catalog.text,
    OUT owner pg_catalog.text,
    OUT token pg_catalog.int8,
    OUT mode pg_catalog.text,
    OUT permits pg_catalog.int4,
    OUT holds pg_catalog.int4,
    OUT state pg_catalog.text,
    OUT bind pg_catalog.text,
    OUT pid pg_catalog.int4,
    OUT role pg_catalog.regrole,
    OUT granted_at pg_catalog.timestamptz,
    OUT expires_at pg_catalog.timestamptz,
    OUT remaining pg_catalog.interval,
    OUT ttl pg_catalog.interval,
    OUT payload pg_catalog.jsonb)
    RETURNS SETOF pg_catalog.record
    AS 'MODULE_PATHNAME', 'dlock_sql_lease'
    LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 1000;
COMMENT ON FUNCTION @extschema@.dlock_lease_list()
    IS 'the leases of this database';

CREATE FUNCTION @extschema@.dlock_lease(
    INOUT name pg_catalog.text,
    OUT owner pg_catalog.text,
    OUT token pg_catalog.int8,
    OUT mode pg_catalog.text,
    OUT permits pg_catalog.int4,
    OUT holds pg_catalog.int4,
    OUT state pg_catalog.text,
    OUT bind pg_catalog.text,
    OUT pid pg_catalog.int4,
    OUT role pg_catalog.regrole,
    OUT granted_at pg_catalog.timestamptz,
    OUT expires_at pg_catalog.timestamptz,
    OUT remaining pg_catalog.interval,
    OUT ttl pg_catalog.interval,
    OUT payload pg_catalog.jsonb)
    RETURNS SETOF pg_catalog.record
    AS 'MODULE_PATHNAME', 'dlock_sql_lease'
    LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 1;
COMMENT ON FUNCTION @extschema@.dlock_lease(pg_catalog.text)
    IS 'the leases on a lock, as dlock_leases shows them';

CREATE VIEW @extschema@.dlock_leases AS
    SELECT name, owner, token, mode, permits, holds, state, bind, pid, role,
           granted_at, expires_at, remaining, ttl, payload
      FROM @extschema@.dlock_lease_list();
GRANT SELECT ON @extschema@.dlock_leases TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_leases
    IS 'the leases of this database that are held, or that keep their lock closed';

CREATE FUNCTION @extschema@.dlock_grant_count(
    INOUT name pg_catalog.text,
    OUT grants pg_catalog.int8,
    OUT since pg_catalog.timestamptz)
    RETURNS pg_catalog.record
    AS 'MODULE_PATHNAME', 'dlock_sql_grant_count'
    LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION @extschema@.dlock_grant_count(pg_catalog.text)
    IS 'how often a lock has been granted, and since when that is counted; NULLs if it is not';

CREATE FUNCTION @extschema@.dlock_waiter_list(
    OUT name pg_catalog.text,
    OUT owner pg_catalog.text,
    OUT mode pg_catalog.text,
    OUT permits pg_catalog.int4,
    OUT request pg_catalog.text,
    OUT "position" pg_catalog.int4,
    OUT since pg_catalog.timestamptz,
    OUT waited pg_catalog.interval,
    OUT pid pg_catalog.int4,
    OUT role pg_catalog.regrole,
    OUT blocked_by pg_catalog.text[])
    RETURNS SETOF pg_catalog.record
    AS 'MODULE_PATHNAME', 'dlock_sql_waiter_list'
    LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 100;
COMMENT ON FUNCTION @extschema@.dlock_waiter_list()
    IS 'the requests that wait for locks of this database';

CREATE VIEW @extschema@.dlock_waiters AS
    SELECT name, owner, mode, permits, request, "position", since, waited, pid, role, blocked_by
      FROM @extschema@.dlock_waiter_list();
GRANT SELECT ON @extschema@.dlock_waiters TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_waiters
    IS 'the requests that wait for locks of this database, with their place in the queue and the owners in their way';

CREATE FUNCTION @extschema@.dlock_stat_row(
    OUT grants pg_catalog.int8,
    OUT handoffs pg_catalog.int8,
    OUT reentries pg_catalog.int8,
    OUT refusals pg_catalog.int8,
    OUT timeouts pg_catalog.int8,
    OUT deadlocks pg_catalog.int8,
    OUT renewals pg_catalog.int8,
    OUT conversions pg_catalog.int8,
    OUT releases pg_catalog.int8,
    OUT expiries pg_catalog.int8,
    OUT fence_stale pg_catalog.int8,
    OUT fence_lost pg_catalog.int8,
    OUT fence_missing pg_catalog.int8,
    OUT fence_unknown pg_catalog.int8,
    OUT waits pg_catalog.int8,
    OUT wait_time pg_catalog.interval,
    OUT wait_histogram pg_catalog.int8[],
    OUT cleanup_lag pg_catalog.interval,
    OUT leases pg_catalog.int8,
    OUT memory_used pg_catalog.int8,
    OUT memory_limit pg_catalog.int8,
    OUT stats_reset pg_catalog.timestamptz)
    RETURNS SETOF pg_catalog.record
    AS 'MODULE_PATHNAME', 'dlock_sql_stat_row'
    LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 1;
COMMENT ON FUNCTION @extschema@.dlock_stat_row()
    IS 'counters of this database since the last reset';

CREATE VIEW @extschema@.dlock_stats AS
    SELECT grants, handoffs, reentries, refusals, timeouts, deadlocks, renewals, conversions,
           releases, expiries,
           fence_stale OPERATOR(pg_catalog.+) fence_lost OPERATOR(pg_catalog.+) fence_missing
               OPERATOR(pg_catalog.+) fence_unknown AS fence_rejections,
           fence_stale, fence_lost, fence_missing, fence_unknown,
           waits, wait_time, wait_histogram, cleanup_lag, leases,
           memory_used, memory_limit, memory_limit OPERATOR(pg_catalog.-) memory_used AS memory_free,
           stats_reset
      FROM @extschema@.dlock_stat_row();
GRANT SELECT ON @extschema@.dlock_stats TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_stats
    IS 'counters of this database since the last reset or the start of the server, the leases in memory now, and the bytes of memory that all databases use; the histogram counts waits of up to 1 ms, 10 ms, 100 ms, 1 s, 10 s, 100 s, and longer ones';

CREATE FUNCTION @extschema@.dlock_stats_reset()
    RETURNS pg_catalog.void
    AS 'MODULE_PATHNAME', 'dlock_sql_stats_reset'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION @extschema@.dlock_stats_reset() FROM PUBLIC;
COMMENT ON FUNCTION @extschema@.dlock_stats_reset()
    IS 'set the counters of this database to zero';

CREATE FUNCTION @extschema@.dlock_state_row(
    OUT held pg_catalog.int8,
    OUT closed pg_catalog.int8,
    OUT expired pg_catalog.int8,
    OUT oldest_expired pg_catalog.interval,
    OUT waiters pg_catalog.int8,
    OUT oldest_wait pg_catalog.interval,
    OUT last_epoch pg_catalog.int8)
    RETURNS SETOF pg_catalog.record
    AS 'MODULE_PATHNAME', 'dlock_sql_state_row'
    LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 1;
COMMENT ON FUNCTION @extschema@.dlock_state_row()
    IS 'how many leases and requests this database has, and how old they are';

CREATE VIEW @extschema@.dlock_state AS
    SELECT held, closed, expired, oldest_expired, waiters, oldest_wait, last_epoch
      FROM @extschema@.dlock_state_row();
GRANT SELECT ON @extschema@.dlock_state TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_state
    IS 'how many leases and requests this database has now, how old the oldest are, and where tokens last restarted';

----------------------------------------------------------------------------
-- Tasks
----------------------------------------------------------------------------

-- Only the functions below get at these tables.
CREATE TABLE @extschema@.dlock_task_queue (
    queue pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    role pg_catalog.regrole NOT NULL,
    queue_id pg_catalog.int4 GENERATED ALWAYS AS IDENTITY UNIQUE,
    initial pg_catalog.text NOT NULL,
    done pg_catalog.text NOT NULL,
    parked pg_catalog.text NOT NULL,
    max_attempts pg_catalog.int4,
    transitions pg_catalog.text[]);
REVOKE ALL ON TABLE @extschema@.dlock_task_queue FROM PUBLIC;
COMMENT ON TABLE @extschema@.dlock_task_queue
    IS 'task queues, their owners and the transitions that they allow';
SELECT pg_catalog.pg_extension_config_dump('@extschema@.dlock_task_queue', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.dlock_task_queue_queue_id_seq', '');

-- The row of a task holds its capture: it is captured while "due" is not null, or
-- if it has no owner, put off.  That ends at "deadline" by the wall clock when it was
-- written, at "ends" by the clock of the boot then: dlock_task_until() tells which
-- counts.  No index has these, so extending a capture changes no index.
CREATE TABLE @extschema@.dlock_task (
    queue_id pg_catalog.int4 NOT NULL,
    attempts pg_catalog.int4 NOT NULL DEFAULT 0,
    id pg_catalog.int8 GENERATED ALWAYS AS IDENTITY,
    token pg_catalog.int8,
    due pg_catalog.timestamptz,
    deadline pg_catalog.timestamptz,
    created_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    changed_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    finished_at pg_catalog.timestamptz,
    ttl pg_catalog.interval,
    ends pg_catalog.interval,
    boot pg_catalog.int4,
    priority pg_catalog.int4 NOT NULL,
    key pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    state pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    owner pg_catalog.text,
    from_state pg_catalog.text,
    timeout_state pg_catalog.text,
    error pg_catalog.text,
    payload pg_catalog.jsonb,
    PRIMARY KEY (queue_id, key))
    WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
          autovacuum_analyze_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);
REVOKE ALL ON TABLE @extschema@.dlock_task FROM PUBLIC;
COMMENT ON TABLE @extschema@.dlock_task
    IS 'tasks with their states and captures; read them through dlock_tasks';
SELECT pg_catalog.pg_extension_config_dump('@extschema@.dlock_task', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.dlock_task_id_seq', '');

-- What can be captured, in the order in which it is.
CREATE INDEX dlock_task_ready ON @extschema@.dlock_task (queue_id, state, priority, id)
    WHERE due IS NULL AND finished_at IS NULL;
COMMENT ON INDEX @extschema@.dlock_task_ready
    IS 'tasks that can be captured';

CREATE INDEX dlock_task_due ON @extschema@.dlock_task (queue_id, due)
    WHERE due IS NOT NULL;
COMMENT ON INDEX @extschema@.dlock_task_due
    IS 'tasks that are captured or put off, by when to look at them';

CREATE INDEX dlock_task_finished ON @extschema@.dlock_task (queue_id, finished_at)
    WHERE finished_at IS NOT NULL;
COMMENT ON INDEX @extschema@.dlock_task_finished
    IS 'tasks that are finished, for dlock_task_purge()';

CREATE FUNCTION @extschema@.dlock_task_until(
    deadline pg_catalog.timestamptz,
    boot pg_catalog.int4,
    ends pg_catalog.interval)
    RETURNS pg_catalog.timestamptz
    AS 'MODULE_PATHNAME', 'dlock_sql_task_until'
    LANGUAGE C VOLATILE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.dlock_task_until(pg_catalog.timestamptz, pg_catalog.int4, pg_catalog.interval)
    IS 'when a capture or a delay ends, by the clock of this server that does not step';

CREATE FUNCTION @extschema@.dlock_task_wall_time(
    deadline pg_catalog.timestamptz)
    RETURNS pg_catalog.timestamptz
    AS 'MODULE_PATHNAME', 'dlock_sql_task_wall_time'
    LANGUAGE C VOLATILE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.dlock_task_wall_time(pg_catalog.timestamptz)
    IS 'when the wall clock, as it goes now, will show the end of a capture or a delay';

CREATE VIEW @extschema@.dlock_tasks WITH (security_barrier) AS
    SELECT q.queue, t.key, t.state, t.priority, t.attempts, t.token,
           CASE WHEN t.due IS NOT NULL THEN t.owner END AS owner,
           CASE WHEN t.due IS NOT NULL AND t.owner IS NOT NULL THEN @extschema@.dlock_task_wall_time(@extschema@.dlock_task_until(t.deadline, t.boot, t.ends)) END AS expires_at,
           CASE WHEN t.due IS NOT NULL AND t.owner IS NULL THEN @extschema@.dlock_task_wall_time(@extschema@.dlock_task_until(t.deadline, t.boot, t.ends)) END AS ready_at,
           t.created_at, t.changed_at, t.finished_at, t.error, t.payload
      FROM @extschema@.dlock_task_queue q
      JOIN @extschema@.dlock_task t USING (queue_id)
     WHERE pg_catalog.pg_has_role(q.role, 'USAGE');
GRANT SELECT ON @extschema@.dlock_tasks TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_tasks
    IS 'the tasks of the queues that the current role may use';

CREATE VIEW @extschema@.dlock_task_state WITH (security_barrier) AS
    SELECT q.queue, q.role,
           pg_catalog.count(*) FILTER (WHERE t.due IS NULL AND t.state OPERATOR(pg_catalog.<>) q.parked) AS ready,
           pg_catalog.count(*) FILTER (WHERE t.due IS NOT NULL AND t.owner IS NULL) AS delayed,
           pg_catalog.count(*) FILTER (WHERE t.due IS NOT NULL AND t.owner IS NOT NULL) AS captured,
           pg_catalog.count(*) FILTER (WHERE t.due IS NULL AND t.state OPERATOR(pg_catalog.=) q.parked) AS parked,
           pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.min(t.created_at)
               FILTER (WHERE t.due IS NULL AND t.state OPERATOR(pg_catalog.<>) q.parked) AS oldest_ready
      FROM @extschema@.dlock_task_queue q
      LEFT JOIN @extschema@.dlock_task t ON t.queue_id OPERATOR(pg_catalog.=) q.queue_id AND t.finished_at IS NULL
     WHERE pg_catalog.pg_has_role(q.role, 'USAGE') OR pg_catalog.pg_has_role('pg_monitor', 'USAGE')
     GROUP BY q.queue, q.role;
GRANT SELECT ON @extschema@.dlock_task_state TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_task_state
    IS 'how many tasks the queues have that the current role may use; a member of pg_monitor sees all queues';

-- Two languages for the functions on tasks.  A function in dlock_plpgsql has a body in
-- PL/pgSQL, and runs as the owner of the extension, who alone gets at the tables;
-- dlock_task_caller() is the role that called it, and its arguments have been checked.  One in
-- dlock_sql is an SQL statement; it sees what is committed now under any isolation level,
-- and returns the first column of its first row, as a set all its rows, or without
-- RETURNING their number.  Both find names in pg_catalog, and in the schema of the
-- extension, whatever its name is now.  There may be objects of others in that, so operators
-- get the very types that they have in pg_catalog, our functions just the types of their
-- parameters, and those of pg_catalog are named with it.
CREATE FUNCTION @extschema@.dlock_plpgsql_handler() RETURNS pg_catalog.language_handler
    AS 'MODULE_PATHNAME', 'dlock_sql_task_handler' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_plpgsql_handler() IS 'call handler of language dlock_plpgsql';
CREATE LANGUAGE dlock_plpgsql HANDLER @extschema@.dlock_plpgsql_handler;
COMMENT ON LANGUAGE dlock_plpgsql IS 'PL/pgSQL, run as the owner of extension dlock';

CREATE FUNCTION @extschema@.dlock_sql_handler() RETURNS pg_catalog.language_handler
    AS 'MODULE_PATHNAME', 'dlock_sql_statement_handler' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_sql_handler() IS 'call handler of language dlock_sql';
CREATE LANGUAGE dlock_sql HANDLER @extschema@.dlock_sql_handler;
COMMENT ON LANGUAGE dlock_sql IS 'one SQL statement, which sees what is committed now';

CREATE TYPE @extschema@.dlock_task_term AS (
    ttl pg_catalog.interval,
    due pg_catalog.timestamptz,
    deadline pg_catalog.timestamptz,
    boot pg_catalog.int4,
    ends pg_catalog.interval);
COMMENT ON TYPE @extschema@.dlock_task_term IS 'how long a capture or a delay lasts, and when it ends, as a row has it';

CREATE TYPE @extschema@.dlock_task_row AS (
    place pg_catalog.tid,
    state pg_catalog.text,
    attempts pg_catalog.int4,
    token pg_catalog.int8,
    owner pg_catalog.text,
    captured pg_catalog.bool,
    until pg_catalog.timestamptz,
    ttl pg_catalog.interval,
    from_state pg_catalog.text,
    timeout_state pg_catalog.text,
    finished pg_catalog.bool);
COMMENT ON TYPE @extschema@.dlock_task_row IS 'a task that is locked; a capture lasts until a time by dlock_task_clock()';

CREATE TYPE @extschema@.dlock_task_place AS (
    priority pg_catalog.int4,
    id pg_catalog.int8,
    due pg_catalog.timestamptz);
COMMENT ON TYPE @extschema@.dlock_task_place IS 'where a look begins: for tasks, or for what is over';

CREATE FUNCTION @extschema@.dlock_task_caller() RETURNS pg_catalog.oid
    AS 'MODULE_PATHNAME', 'dlock_sql_task_caller' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_task_caller() IS 'the role that called the function in dlock_plpgsql that runs';

CREATE FUNCTION @extschema@.dlock_task_open(queue pg_catalog.text, exclusive pg_catalog.bool) RETURNS @extschema@.dlock_task_queue
    AS 'MODULE_PATHNAME', 'dlock_sql_task_open' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_task_open(pg_catalog.text, pg_catalog.bool) IS 'find a queue that the caller may use, and lock it';

CREATE FUNCTION @extschema@.dlock_task_tokens(queue pg_catalog.text, count pg_catalog.int4, seen pg_catalog.int8) RETURNS pg_catalog.int8
    AS 'MODULE_PATHNAME', 'dlock_sql_task_tokens' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_task_tokens(pg_catalog.text, pg_catalog.int4, pg_catalog.int8)
    IS 'take so many tokens, all above one that a task has seen; returns the first';

CREATE FUNCTION @extschema@.dlock_task_clock() RETURNS pg_catalog.timestamptz
    AS 'MODULE_PATHNAME', 'dlock_sql_task_clock' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_task_clock() IS 'the clock of this server that does not step';

CREATE FUNCTION @extschema@.dlock_task_end(ttl pg_catalog.interval) RETURNS @extschema@.dlock_task_term
    AS 'MODULE_PATHNAME', 'dlock_sql_task_end' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_task_end(pg_catalog.interval)
    IS 'the term that begins now, for null of the default ttl; once this transaction has committed, the reaper looks at its end';

CREATE FUNCTION @extschema@.dlock_task_tell(queue_id pg_catalog.int4, state pg_catalog.text, committed pg_catalog.bool) RETURNS pg_catalog.bool
    AS 'MODULE_PATHNAME', 'dlock_sql_task_tell' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_task_tell(pg_catalog.int4, pg_catalog.text, pg_catalog.bool)
    IS 'when this transaction has committed, or has ended in any way, call a process that waits for a task in this state; true';

CREATE FUNCTION @extschema@.dlock_task_enlist(states pg_catalog.text[]) RETURNS pg_catalog.bool
    AS 'MODULE_PATHNAME', 'dlock_sql_task_enlist' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_task_enlist(pg_catalog.text[]) IS 'whether this capture waits if it finds no task; if so, it is called from now on';

CREATE FUNCTION @extschema@.dlock_task_plan(due pg_catalog.timestamptz) RETURNS pg_catalog.void
    AS 'MODULE_PATHNAME', 'dlock_sql_task_plan' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_task_plan(pg_catalog.timestamptz) IS 'this capture has found no task; when it has to look again';

-- A look for tasks begins where an earlier one of this session has found the first, if that
-- had to read over many that are gone (session/capture.c).
CREATE FUNCTION @extschema@.dlock_task_begin(state pg_catalog.text) RETURNS @extschema@.dlock_task_place
    AS 'MODULE_PATHNAME', 'dlock_sql_task_begin' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_task_begin(pg_catalog.text) IS 'where to begin to look for tasks in this state, or for null, for captures and delays that are over';

CREATE FUNCTION @extschema@.dlock_task_looked(count pg_catalog.int4, found pg_catalog.int4, priority pg_catalog.int4, id pg_catalog.int8, due pg_catalog.timestamptz) RETURNS pg_catalog.bool
    AS 'MODULE_PATHNAME', 'dlock_sql_task_looked' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_task_looked(pg_catalog.int4, pg_catalog.int4, pg_catalog.int4, pg_catalog.int8, pg_catalog.timestamptz)
    IS 'the look for up to so many tasks has ended: how many it found, and where the first is; or up to when nothing is over; true';

CREATE FUNCTION @extschema@.dlock_task_look_again() RETURNS pg_catalog.bool
    AS 'MODULE_PATHNAME', 'dlock_sql_task_look_again' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_task_look_again() IS 'this capture found nothing; whether it has to look again for tasks, or if false for what is over; null: no';

CREATE FUNCTION @extschema@.dlock_task_add_queue(queue pg_catalog.text, role pg_catalog.oid, initial pg_catalog.text, done pg_catalog.text, parked pg_catalog.text, max_attempts pg_catalog.int4, transitions pg_catalog.text[])
    RETURNS pg_catalog.int8
    LANGUAGE dlock_sql VOLATILE PARALLEL UNSAFE AS $$
    INSERT INTO dlock_task_queue (queue, role, initial, done, parked, max_attempts, transitions)
    VALUES ($1, $2::pg_catalog.regrole, $3, $4, $5, $6, $7)
        ON CONFLICT (queue) DO NOTHING
$$;
COMMENT ON FUNCTION @extschema@.dlock_task_add_queue(pg_catalog.text, pg_catalog.oid, pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.int4, pg_catalog.text[])
    IS 'write a queue, unless its name is taken';

CREATE FUNCTION @extschema@.dlock_task_remove_queue(queue_id pg_catalog.int4) RETURNS pg_catalog.int8
    LANGUAGE dlock_sql VOLATILE PARALLEL UNSAFE AS $$
    WITH q AS (DELETE FROM dlock_task_queue WHERE queue_id = $1)
    DELETE FROM dlock_task WHERE queue_id = $1
$$;
COMMENT ON FUNCTION @extschema@.dlock_task_remove_queue(pg_catalog.int4) IS 'delete a queue and its tasks; returns how many these were';

CREATE FUNCTION @extschema@.dlock_task_add(queue_id pg_catalog.int4, key pg_catalog.text, payload pg_catalog.jsonb, priority pg_catalog.int4, state pg_catalog.text, finished pg_catalog.bool, delay @extschema@.dlock_task_term)
    RETURNS pg_catalog.int8
    LANGUAGE dlock_sql VOLATILE PARALLEL UNSAFE AS $$
    INSERT INTO dlock_task (queue_id, key, payload, priority, state, finished_at, timeout_state, ttl, due, deadline, boot, ends)
    VALUES ($1, $2, $3, $4, $5, CASE WHEN $6 THEN pg_catalog.clock_timestamp() END,
            CASE WHEN ($7).ttl IS NOT NULL THEN $5 END, ($7).ttl, ($7).due, ($7).deadline, ($7).boot, ($7).ends)
        ON CONFLICT (queue_id, key) DO NOTHING
$$;
COMMENT ON FUNCTION @extschema@.dlock_task_add(pg_catalog.int4, pg_catalog.text, pg_catalog.jsonb, pg_catalog.int4, pg_catalog.text, pg_catalog.bool, @extschema@.dlock_task_term)
    IS 'write a new task, unless its key is taken';

CREATE FUNCTION @extschema@.dlock_task_read(queue_id pg_catalog.int4, key pg_catalog.text) RETURNS @extschema@.dlock_task_row
    LANGUAGE dlock_sql VOLATILE PARALLEL UNSAFE AS $$
    SELECT ROW(ctid, state, attempts, token, owner, due IS NOT NULL AND owner IS NOT NULL,
            dlock_task_until(deadline, boot, ends), ttl, from_state, timeout_state,
            CASE WHEN due IS NULL AND finished_at IS NULL THEN NOT dlock_task_tell(queue_id, state, false) ELSE finished_at IS NOT NULL END)::dlock_task_row
      FROM dlock_task WHERE queue_id = $1 AND key = $2 FOR NO KEY UPDATE
$$;
COMMENT ON FUNCTION @extschema@.dlock_task_read(pg_catalog.int4, pg_catalog.text) IS 'lock a task';

CREATE FUNCTION @extschema@.dlock_task_write(place pg_catalog.tid, state pg_catalog.text, attempts pg_catalog.int4, error pg_catalog.text, captured pg_catalog.bool, owned pg_catalog.bool, finished pg_catalog.bool, delay @extschema@.dlock_task_term)
    RETURNS pg_catalog.int8
    LANGUAGE dlock_sql VOLATILE PARALLEL UNSAFE AS $$
    UPDATE dlock_task
       SET state = $2, attempts = $3, error = $4, changed_at = pg_catalog.clock_timestamp(),
           owner = CASE WHEN $6 THEN owner END,
           finished_at = CASE WHEN $7 THEN pg_catalog.clock_timestamp() END,
           timeout_state = CASE WHEN ($8).ttl IS NULL THEN timeout_state ELSE $2 END,
           due = CASE WHEN $5 THEN due ELSE ($8).due END, ttl = coalesce(($8).ttl, ttl),
           deadline = coalesce(($8).deadline, deadline), boot = coalesce(($8).boot, boot), ends = coalesce(($8).ends, ends)
     WHERE ctid = $1
$$;
COMMENT ON FUNCTION @extschema@.dlock_task_write(pg_catalog.tid, pg_catalog.text, pg_catalog.int4, pg_catalog.text, pg_catalog.bool, pg_catalog.bool, pg_catalog.bool, @extschema@.dlock_task_term)
    IS 'write the state of a locked task, and whether its capture goes on, its owner stays, it is finished, or put off';

-- "due" stays unless it would be too late, so that no index has to change.
CREATE FUNCTION @extschema@.dlock_task_prolong(place pg_catalog.tid, term @extschema@.dlock_task_term) RETURNS pg_catalog.int8
    LANGUAGE dlock_sql VOLATILE PARALLEL UNSAFE AS $$
    UPDATE dlock_task
       SET ttl = ($2).ttl, due = least(due, ($2).due), deadline = ($2).deadline, boot = ($2).boot, ends = ($2).ends
     WHERE ctid = $1
$$;
COMMENT ON FUNCTION @extschema@.dlock_task_prolong(pg_catalog.tid, @extschema@.dlock_task_term) IS 'write a longer capture of a locked task';

CREATE FUNCTION @extschema@.dlock_task_pick(
    queue_id pg_catalog.int4,
    state pg_catalog.text,
    count pg_catalog.int4,
    start @extschema@.dlock_task_place,
    OUT places pg_catalog.tid[],
    OUT seen pg_catalog.int8,
    OUT priority pg_catalog.int4,
    OUT id pg_catalog.int8)
    RETURNS pg_catalog.record
    LANGUAGE dlock_sql VOLATILE PARALLEL UNSAFE AS $$
    SELECT f FROM (
        SELECT pg_catalog.array_agg(p.ctid) AS places, pg_catalog.max(p.token) AS seen,
               (pg_catalog.array_agg(p.priority))[1] AS priority, (pg_catalog.array_agg(p.id))[1] AS id
          FROM (SELECT ctid, token, priority, id FROM dlock_task
                 WHERE queue_id = $1 AND state = $2 AND due IS NULL AND finished_at IS NULL
                   AND (priority, id) >= (($4).priority, ($4).id)
                 ORDER BY priority, id LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED) p) f
$$;
COMMENT ON FUNCTION @extschema@.dlock_task_pick(pg_catalog.int4, pg_catalog.text, pg_catalog.int4, @extschema@.dlock_task_place)
    IS 'lock tasks that can be captured; seen is the largest of their tokens, and the rest says where the first is';

CREATE FUNCTION @extschema@.dlock_task_seize(
    places pg_catalog.tid[],
    first pg_catalog.int8,
    to_state pg_catalog.text,
    owner pg_catalog.text,
    term @extschema@.dlock_task_term,
    on_timeout pg_catalog.text,
    max_attempts pg_catalog.int4,
    parked pg_catalog.text,
    OUT key pg_catalog.text,
    OUT token pg_catalog.int8,
    OUT payload pg_catalog.jsonb,
    OUT priority pg_catalog.int4,
    OUT attempts pg_catalog.int4,
    OUT from_state pg_catalog.text,
    OUT expires_at pg_catalog.timestamptz)
    RETURNS SETOF pg_catalog.record
    LANGUAGE dlock_sql VOLATILE PARALLEL UNSAFE AS $$
    UPDATE dlock_task t
       SET state = $3, attempts = t.attempts + 1, token = $2 + (u.n - 1), owner = $4, ttl = ($5).ttl,
           due = ($5).due, deadline = ($5).deadline, boot = ($5).boot, ends = ($5).ends,
           from_state = t.state, changed_at = pg_catalog.clock_timestamp(),
           timeout_state = CASE WHEN t.attempts + 1 >= $7 THEN $8 ELSE coalesce($6, t.state) END
      FROM pg_catalog.unnest($1) WITH ORDINALITY AS u (place, n)
     WHERE t.ctid = u.place
    RETURNING t.key, t.token, t.payload, t.priority, t.attempts, t.from_state, t.deadline
$$;
COMMENT ON FUNCTION @extschema@.dlock_task_seize(pg_catalog.tid[], pg_catalog.int8, pg_catalog.text, pg_catalog.text, @extschema@.dlock_task_term, pg_catalog.text, pg_catalog.int4, pg_catalog.text)
    IS 'write captures of tasks that are locked';

CREATE FUNCTION @extschema@.dlock_task_remove_finished(queue_id pg_catalog.int4, older_than pg_catalog.interval, count pg_catalog.int4)
    RETURNS pg_catalog.int8
    LANGUAGE dlock_sql VOLATILE PARALLEL UNSAFE AS $$
    DELETE FROM dlock_task WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM dlock_task
         WHERE queue_id = $1 AND finished_at < pg_catalog.clock_timestamp() - $2
         ORDER BY finished_at LIMIT $3 FOR UPDATE SKIP LOCKED))
$$;
COMMENT ON FUNCTION @extschema@.dlock_task_remove_finished(pg_catalog.int4, pg_catalog.interval, pg_catalog.int4)
    IS 'delete tasks that were finished so long ago';

CREATE FUNCTION @extschema@.dlock_task_due_in(queue_id pg_catalog.int4, start pg_catalog.timestamptz, now pg_catalog.timestamptz) RETURNS pg_catalog.tid[]
    LANGUAGE dlock_sql VOLATILE STRICT PARALLEL UNSAFE AS $$
    SELECT pg_catalog.array_agg(d.ctid) FROM
        (SELECT ctid FROM dlock_task WHERE queue_id = $1 AND due >= $2 AND due <= $3
          ORDER BY due LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED) d
$$;
COMMENT ON FUNCTION @extschema@.dlock_task_due_in(pg_catalog.int4, pg_catalog.timestamptz, pg_catalog.timestamptz)
    IS 'lock tasks of a queue that are to be looked at';

-- What a capture that waits writes is rolled back if it finds nothing, so it leaves the rest to others.
CREATE FUNCTION @extschema@.dlock_task_over_in(queue_id pg_catalog.int4, states pg_catalog.text[], start pg_catalog.timestamptz, now pg_catalog.timestamptz) RETURNS pg_catalog.tid[]
    LANGUAGE dlock_sql VOLATILE STRICT PARALLEL UNSAFE AS $$
    SELECT pg_catalog.array_agg(d.ctid) FROM
        (SELECT ctid FROM dlock_task WHERE queue_id = $1 AND due >= $3 AND due <= $4
            AND timeout_state = ANY ($2) AND dlock_task_until(deadline, boot, ends) <= $4
          ORDER BY due LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED) d
$$;
COMMENT ON FUNCTION @extschema@.dlock_task_over_in(pg_catalog.int4, pg_catalog.text[], pg_catalog.timestamptz, pg_catalog.timestamptz)
    IS 'lock tasks of a queue whose captures and delays are over, and that go to one of these states';

CREATE FUNCTION @extschema@.dlock_task_next_in(queue_id pg_catalog.int4, states pg_catalog.text[], now pg_catalog.timestamptz)
    RETURNS pg_catalog.timestamptz
    LANGUAGE dlock_sql VOLATILE STRICT PARALLEL UNSAFE AS $$
    SELECT least(
        (SELECT due FROM dlock_task WHERE queue_id = $1 AND due > $3 ORDER BY due LIMIT 1),
        (SELECT pg_catalog.min(CASE WHEN until > $3 THEN until ELSE $3 + pg_catalog.interval '1 s' END)
           FROM dlock_task t, dlock_task_until(t.deadline, t.boot, t.ends) until
          WHERE t.queue_id = $1 AND t.due <= $3 AND t.timeout_state = ANY ($2)))
$$;
COMMENT ON FUNCTION @extschema@.dlock_task_next_in(pg_catalog.int4, pg_catalog.text[], pg_catalog.timestamptz)
    IS 'when a capture or delay ends that may lead to one of these states; soon, if it has ended and the row is locked';

CREATE FUNCTION @extschema@.dlock_task_due(now pg_catalog.timestamptz) RETURNS pg_catalog.tid[]
    LANGUAGE dlock_sql VOLATILE STRICT PARALLEL UNSAFE AS $$
    SELECT ARRAY(SELECT d.ctid FROM dlock_task_queue q CROSS JOIN LATERAL
        (SELECT t.ctid FROM dlock_task t WHERE t.queue_id = q.queue_id AND t.due <= $1
          ORDER BY t.due LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED) d LIMIT 1000)
$$;
COMMENT ON FUNCTION @extschema@.dlock_task_due(pg_catalog.timestamptz) IS 'lock tasks of all queues that are to be looked at';

-- A capture whose time is over ends; one that was extended, or comes from another
-- clock, gets to its turn at its end by ours; a task that was put off can be captured.
CREATE FUNCTION @extschema@.dlock_task_expire(places pg_catalog.tid[], now pg_catalog.timestamptz) RETURNS pg_catalog.int8
    LANGUAGE dlock_sql VOLATILE STRICT PARALLEL UNSAFE AS $$
    WITH moved AS (
        UPDATE dlock_task t
           SET (state, error, owner, changed_at, due) = (
               SELECT CASE WHEN until <= $2 THEN t.timeout_state ELSE t.state END,
                      CASE WHEN until <= $2 AND t.owner IS NOT NULL THEN 'timed out' ELSE t.error END,
                      CASE WHEN until > $2 THEN t.owner END,
                      CASE WHEN until <= $2 THEN pg_catalog.clock_timestamp() ELSE t.changed_at END,
                      CASE WHEN until > $2 THEN until END
                 FROM dlock_task_until(t.deadline, t.boot, t.ends) until)
         WHERE t.ctid = ANY ($1)
        RETURNING CASE WHEN t.due IS NULL THEN dlock_task_tell(t.queue_id, t.state, true) END)
    SELECT pg_catalog.count(*) FROM moved
$$;
COMMENT ON FUNCTION @extschema@.dlock_task_expire(pg_catalog.tid[], pg_catalog.timestamptz)
    IS 'end captures and delays that are over';

-- Nothing has more left than its ttl, or delay, or is looked at later than at its end.
-- Captures go on while this runs, and theirs may end a little later than what is "now" here.
CREATE FUNCTION @extschema@.dlock_task_clamp(due pg_catalog.timestamptz, deadline pg_catalog.timestamptz, boot pg_catalog.int4, ends pg_catalog.interval)
    RETURNS pg_catalog.int8
    LANGUAGE dlock_sql VOLATILE PARALLEL UNSAFE AS $$
    UPDATE dlock_task t
       SET (due, deadline, boot, ends) = (
           SELECT least(until, $1 + t.ttl),
                  CASE WHEN until > $1 + t.ttl THEN $2 + t.ttl ELSE t.deadline END,
                  CASE WHEN until > $1 + t.ttl THEN $3 ELSE t.boot END,
                  CASE WHEN until > $1 + t.ttl THEN $4 + t.ttl ELSE t.ends END
             FROM dlock_task_until(t.deadline, t.boot, t.ends) until)
     WHERE t.ctid = ANY (ARRAY(
        SELECT c.ctid FROM dlock_task c
         WHERE c.due IS NOT NULL
           AND (c.due > dlock_task_until(c.deadline, c.boot, c.ends) + pg_catalog.interval '1 s'
             OR dlock_task_until(c.deadline, c.boot, c.ends) > $1 + c.ttl + pg_catalog.interval '10 s')
         LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED))
$$;
COMMENT ON FUNCTION @extschema@.dlock_task_clamp(pg_catalog.timestamptz, pg_catalog.timestamptz, pg_catalog.int4, pg_catalog.interval)
    IS 'cut off ends that are too far away';

CREATE FUNCTION @extschema@.dlock_task_next_due(OUT due pg_catalog.timestamptz, OUT queues pg_catalog.int8)
    RETURNS pg_catalog.record
    LANGUAGE dlock_sql VOLATILE PARALLEL UNSAFE AS $$
    SELECT f FROM (
        SELECT pg_catalog.min(d.due) AS due, pg_catalog.count(*) AS queues FROM dlock_task_queue q LEFT JOIN LATERAL
            (SELECT t.due FROM dlock_task t WHERE t.queue_id = q.queue_id AND t.due IS NOT NULL
              ORDER BY t.due LIMIT 1) d ON true) f
$$;
COMMENT ON FUNCTION @extschema@.dlock_task_next_due() IS 'when the next task is to be looked at, and how many queues there are';

CREATE FUNCTION @extschema@.dlock_task_sweep(
    clamp pg_catalog.bool,
    OUT clamped pg_catalog.int8,
    OUT moved pg_catalog.int8,
    OUT due pg_catalog.timestamptz,
    OUT queues pg_catalog.int8)
    RETURNS pg_catalog.record
    LANGUAGE dlock_plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    now dlock_task_term := dlock_task_end('0'::pg_catalog.interval);
    next pg_catalog.record;
BEGIN
    IF clamp THEN
        clamped := dlock_task_clamp(now.due, now.deadline, now.boot, now.ends);
    END IF;
    moved := dlock_task_expire(dlock_task_due(now.due), now.due);
    next := dlock_task_next_due();
    due := next.due;
    queues := next.queues;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_sweep(pg_catalog.bool)
    IS 'for the reaper: end what is over, at most 1000, and tell when the next is due';

-- What raises an error.
CREATE FUNCTION @extschema@.dlock_task_lost(queue pg_catalog.text, key pg_catalog.text, token pg_catalog.int8, t @extschema@.dlock_task_row)
    RETURNS pg_catalog.void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
    IF t.place IS NULL THEN
        RAISE undefined_object USING MESSAGE = pg_catalog.format('task "%s" does not exist in queue "%s"', key, queue),
            HINT = 'Put it there with dlock_task_put().';
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'LK002',
        MESSAGE = pg_catalog.format('capture of task "%s" of queue "%s" with token %s is not held', key, queue, token),
        DETAIL = CASE
            WHEN t.token > token THEN pg_catalog.format('The task has been captured again since, with token %s.', t.token)
            WHEN t.token = token AND t.captured THEN 'It has timed out.'
            WHEN t.token = token THEN pg_catalog.format('It has ended; the task is in state "%s".', t.state)
            ELSE 'The task was not captured with this token, or that was rolled back.' END,
        HINT = 'Stop the work on this task, and undo what was not committed.';
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_lost(pg_catalog.text, pg_catalog.text, pg_catalog.int8, @extschema@.dlock_task_row)
    IS 'say why the capture of a task is not held';

CREATE FUNCTION @extschema@.dlock_task_refuse(state pg_catalog.text, detail pg_catalog.text) RETURNS pg_catalog.void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
    RAISE invalid_parameter_value USING MESSAGE = pg_catalog.format('state "%s" is the one of finished tasks', state),
        DETAIL = detail, HINT = 'Use another state.';
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_refuse(pg_catalog.text, pg_catalog.text) IS 'refuse the state of finished tasks';

-- Transitions are kept as texts like 'from -> to', with one blank on each side.
CREATE FUNCTION @extschema@.dlock_task_known(q @extschema@.dlock_task_queue, state pg_catalog.text) RETURNS pg_catalog.text
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
    IF q.transitions IS NULL OR state = q.parked OR state = ANY (
        pg_catalog.string_to_array(pg_catalog.array_to_string(q.transitions, ' -> '), ' -> ')) THEN
        RETURN state;
    END IF;
    RAISE invalid_parameter_value USING MESSAGE = pg_catalog.format('state "%s" is not declared for task queue "%s"', state, q.queue),
        DETAIL = 'The queue has declared transitions, and none of them leads there or starts there.',
        HINT = 'Use one of the states that are declared.';
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_known(@extschema@.dlock_task_queue, pg_catalog.text) IS 'the state, if the queue has it';

CREATE FUNCTION @extschema@.dlock_task_step(q @extschema@.dlock_task_queue, from_state pg_catalog.text, to_state pg_catalog.text, detail pg_catalog.text)
    RETURNS pg_catalog.text
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    allowed pg_catalog.text;
BEGIN
    IF q.transitions IS NULL OR (from_state || ' -> ' || to_state) = ANY (q.transitions) THEN
        RETURN to_state;
    END IF;
    SELECT pg_catalog.string_agg(pg_catalog.format('"%s"', pg_catalog.substr(w, pg_catalog.length(from_state) + 5)), ', ')
      INTO allowed
      FROM pg_catalog.unnest(q.transitions) w WHERE pg_catalog.starts_with(w, from_state || ' -> ');
    RAISE check_violation USING MESSAGE = pg_catalog.format(
            'task queue "%s" does not allow the transition from state "%s" to "%s"', q.queue, from_state, to_state),
        DETAIL = detail,
        HINT = pg_catalog.format('From "%s" it allows%s.', from_state, coalesce(': ' || allowed, ' none'));
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_step(@extschema@.dlock_task_queue, pg_catalog.text, pg_catalog.text, pg_catalog.text)
    IS 'the second state, if tasks may go there from the first one';

CREATE FUNCTION @extschema@.dlock_task_next(q @extschema@.dlock_task_queue, key pg_catalog.text, from_state pg_catalog.text, to_state pg_catalog.text)
    RETURNS pg_catalog.text
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
    to_state := dlock_task_known(q, to_state);
    IF from_state <> to_state THEN
        to_state := dlock_task_step(q, from_state, to_state, pg_catalog.format('Task "%s" is in the first of these states.', key));
    END IF;
    RETURN to_state;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_next(@extschema@.dlock_task_queue, pg_catalog.text, pg_catalog.text, pg_catalog.text)
    IS 'the second state, if the task may go there';

CREATE FUNCTION @extschema@.dlock_task_check_capture(q @extschema@.dlock_task_queue, from_state pg_catalog.text, to_state pg_catalog.text, on_timeout pg_catalog.text)
    RETURNS pg_catalog.text
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
    IF to_state = q.done THEN
        PERFORM dlock_task_refuse(to_state, 'A capture cannot begin there.'::pg_catalog.text);
    ELSIF on_timeout = q.done THEN
        PERFORM dlock_task_refuse(on_timeout, 'A capture cannot time out to there.'::pg_catalog.text);
    END IF;
    from_state := dlock_task_known(q, from_state);
    to_state := dlock_task_known(q, to_state);
    on_timeout := dlock_task_known(q, on_timeout);
    to_state := dlock_task_step(q, from_state, to_state, 'So the capture would move tasks.'::pg_catalog.text);
    IF to_state <> on_timeout THEN
        on_timeout := dlock_task_step(q, to_state, on_timeout,
            'So tasks would be moved when their capture times out, unless on_timeout names another state.'::pg_catalog.text);
    END IF;
    RETURN to_state;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_check_capture(@extschema@.dlock_task_queue, pg_catalog.text, pg_catalog.text, pg_catalog.text)
    IS 'the state to capture to, if the queue allows what can come of it';

REVOKE ALL ON FUNCTION
    @extschema@.dlock_plpgsql_handler(),
    @extschema@.dlock_sql_handler(),
    @extschema@.dlock_task_caller(),
    @extschema@.dlock_task_open(pg_catalog.text, pg_catalog.bool),
    @extschema@.dlock_task_tokens(pg_catalog.text, pg_catalog.int4, pg_catalog.int8),
    @extschema@.dlock_task_tell(pg_catalog.int4, pg_catalog.text, pg_catalog.bool),
    @extschema@.dlock_task_enlist(pg_catalog.text[]),
    @extschema@.dlock_task_plan(pg_catalog.timestamptz),
    @extschema@.dlock_task_begin(pg_catalog.text),
    @extschema@.dlock_task_looked(pg_catalog.int4, pg_catalog.int4, pg_catalog.int4, pg_catalog.int8, pg_catalog.timestamptz),
    @extschema@.dlock_task_look_again(),
    @extschema@.dlock_task_clock(),
    @extschema@.dlock_task_end(pg_catalog.interval),
    @extschema@.dlock_task_add_queue(pg_catalog.text, pg_catalog.oid, pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.int4, pg_catalog.text[]),
    @extschema@.dlock_task_remove_queue(pg_catalog.int4),
    @extschema@.dlock_task_add(pg_catalog.int4, pg_catalog.text, pg_catalog.jsonb, pg_catalog.int4, pg_catalog.text, pg_catalog.bool, @extschema@.dlock_task_term),
    @extschema@.dlock_task_read(pg_catalog.int4, pg_catalog.text),
    @extschema@.dlock_task_write(pg_catalog.tid, pg_catalog.text, pg_catalog.int4, pg_catalog.text, pg_catalog.bool, pg_catalog.bool, pg_catalog.bool, @extschema@.dlock_task_term),
    @extschema@.dlock_task_prolong(pg_catalog.tid, @extschema@.dlock_task_term),
    @extschema@.dlock_task_pick(pg_catalog.int4, pg_catalog.text, pg_catalog.int4, @extschema@.dlock_task_place),
    @extschema@.dlock_task_seize(pg_catalog.tid[], pg_catalog.int8, pg_catalog.text, pg_catalog.text, @extschema@.dlock_task_term, pg_catalog.text, pg_catalog.int4, pg_catalog.text),
    @extschema@.dlock_task_remove_finished(pg_catalog.int4, pg_catalog.interval, pg_catalog.int4),
    @extschema@.dlock_task_due_in(pg_catalog.int4, pg_catalog.timestamptz, pg_catalog.timestamptz),
    @extschema@.dlock_task_over_in(pg_catalog.int4, pg_catalog.text[], pg_catalog.timestamptz, pg_catalog.timestamptz),
    @extschema@.dlock_task_next_in(pg_catalog.int4, pg_catalog.text[], pg_catalog.timestamptz),
    @extschema@.dlock_task_due(pg_catalog.timestamptz),
    @extschema@.dlock_task_expire(pg_catalog.tid[], pg_catalog.timestamptz),
    @extschema@.dlock_task_clamp(pg_catalog.timestamptz, pg_catalog.timestamptz, pg_catalog.int4, pg_catalog.interval),
    @extschema@.dlock_task_next_due(),
    @extschema@.dlock_task_sweep(pg_catalog.bool),
    @extschema@.dlock_task_lost(pg_catalog.text, pg_catalog.text, pg_catalog.int8, @extschema@.dlock_task_row),
    @extschema@.dlock_task_refuse(pg_catalog.text, pg_catalog.text),
    @extschema@.dlock_task_known(@extschema@.dlock_task_queue, pg_catalog.text),
    @extschema@.dlock_task_step(@extschema@.dlock_task_queue, pg_catalog.text, pg_catalog.text, pg_catalog.text),
    @extschema@.dlock_task_next(@extschema@.dlock_task_queue, pg_catalog.text, pg_catalog.text, pg_catalog.text),
    @extschema@.dlock_task_check_capture(@extschema@.dlock_task_queue, pg_catalog.text, pg_catalog.text, pg_catalog.text)
    FROM PUBLIC;

CREATE FUNCTION @extschema@.dlock_task_create_queue(
    queue pg_catalog.text,
    transitions pg_catalog.text[] DEFAULT NULL,
    initial pg_catalog.text DEFAULT 'ready',
    done pg_catalog.text DEFAULT 'done',
    parked pg_catalog.text DEFAULT 'parked',
    max_attempts pg_catalog.int4 DEFAULT NULL)
    RETURNS pg_catalog.void
    LANGUAGE dlock_plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    q dlock_task_queue;
    sides pg_catalog.text[];
    problem pg_catalog.text;
BEGIN
    IF initial = done OR parked = done THEN
        PERFORM dlock_task_refuse(done, 'The initial state and the one of parked tasks must be others.'::pg_catalog.text);
    ELSIF pg_catalog.cardinality(transitions) = 0 OR pg_catalog.array_ndims(transitions) > 1 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'invalid array of transitions',
            DETAIL = 'It is empty, or has more than one dimension.', HINT = 'Pass texts like "from -> to", or NULL to allow all.';
    END IF;
    FOR i IN 1 .. coalesce(pg_catalog.cardinality(transitions), 0) LOOP
        IF transitions[i] IS NULL THEN
            RAISE null_value_not_allowed USING MESSAGE = 'transition must not be null';
        END IF;
        sides := pg_catalog.regexp_split_to_array(transitions[i], ' *-> *');
        sides[1] := pg_catalog.ltrim(sides[1]);
        sides[2] := pg_catalog.rtrim(sides[2]);
        problem := CASE
            WHEN sides[2] IS NULL THEN 'There is no "->" in it.'
            WHEN sides[1] = '' OR sides[2] = '' THEN 'A state is missing.'
            WHEN sides[3] IS NOT NULL THEN 'There is more than one "->" in it.'
            WHEN pg_catalog.octet_length(sides[1]) > 63 OR pg_catalog.octet_length(sides[2]) > 63
                THEN 'A state has more than 63 bytes.' END;
        IF problem IS NOT NULL THEN
            RAISE invalid_parameter_value USING MESSAGE = pg_catalog.format('invalid transition "%s"', transitions[i]),
                DETAIL = problem, HINT = 'Write a transition as "from -> to".';
        END IF;
        transitions[i] := sides[1] || ' -> ' || sides[2];
    END LOOP;
    q.queue := queue;
    q.transitions := transitions;
    initial := dlock_task_known(q, initial);
    done := dlock_task_known(q, done);
    IF dlock_task_add_queue(queue, dlock_task_caller(), initial, done, parked, max_attempts, transitions) = 0 THEN
        RAISE duplicate_object USING MESSAGE = pg_catalog.format('task queue "%s" already exists', queue),
            HINT = 'Use another name, or drop it with dlock_task_drop_queue().';
    END IF;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_create_queue(pg_catalog.text, pg_catalog.text[], pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.int4)
    IS 'create a task queue that belongs to the current role; transitions are texts like ''from -> to''';

CREATE FUNCTION @extschema@.dlock_task_drop_queue(
    queue pg_catalog.text)
    RETURNS pg_catalog.int8
    LANGUAGE dlock_plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    q dlock_task_queue := dlock_task_open(queue, true);
BEGIN
    RETURN dlock_task_remove_queue(q.queue_id);
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_drop_queue(pg_catalog.text)
    IS 'drop a task queue with all its tasks; returns how many these were';

CREATE FUNCTION @extschema@.dlock_task_put(
    queue pg_catalog.text,
    key pg_catalog.text,
    payload pg_catalog.jsonb DEFAULT NULL,
    priority pg_catalog.int4 DEFAULT 0,
    state pg_catalog.text DEFAULT NULL,
    delay pg_catalog.interval DEFAULT NULL)
    RETURNS pg_catalog.bool
    LANGUAGE dlock_plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    q dlock_task_queue := dlock_task_open(queue, false);
    term dlock_task_term;
BEGIN
    state := coalesce(state, q.initial);
    IF q.transitions IS NOT NULL THEN
        state := dlock_task_known(q, state);
    END IF;
    IF delay IS NOT NULL THEN
        IF state = q.done THEN
            PERFORM dlock_task_refuse(state, 'A task that is finished cannot be put off.'::pg_catalog.text);
        END IF;
        term := dlock_task_end(delay);
    END IF;
    RETURN CASE WHEN dlock_task_add(q.queue_id, key, payload, priority, state, state = q.done, term) = 0 THEN false
        WHEN delay IS NULL AND state <> q.done THEN dlock_task_tell(q.queue_id, state, true)
        ELSE true END;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_put(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.int4, pg_catalog.text, pg_catalog.interval)
    IS 'put a task into a queue, to be captured after the delay; false, and nothing changes, if its key is there already';

CREATE FUNCTION @extschema@.dlock_task_set(
    queue pg_catalog.text,
    key pg_catalog.text,
    state pg_catalog.text,
    token pg_catalog.int8 DEFAULT NULL)
    RETURNS pg_catalog.text
    LANGUAGE dlock_plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    q dlock_task_queue := dlock_task_open(queue, false);
    t dlock_task_row := dlock_task_read(q.queue_id, key);
    live pg_catalog.bool := t.captured AND t.until > dlock_task_clock();
    finished pg_catalog.bool := state = q.done;
    told pg_catalog.bool;
BEGIN
    IF t.place IS NULL OR (live AND t.token = token) IS NOT TRUE AND token IS NOT NULL THEN
        PERFORM dlock_task_lost(queue, key, token, t);
    ELSIF live AND token IS NULL THEN
        RAISE object_in_use USING MESSAGE = pg_catalog.format('task "%s" of queue "%s" is captured', key, queue),
            DETAIL = pg_catalog.format('Owner "%s" holds it under a lease.', t.owner),
            HINT = 'Pass the token of the capture, or wait until it ends.';
    ELSIF t.captured AND NOT live THEN
        t.state := t.timeout_state;
    END IF;
    state := dlock_task_next(q, key, t.state, state);
    IF live AND NOT finished AND t.timeout_state <> q.parked AND t.timeout_state <> state THEN
        t.timeout_state := dlock_task_step(q, state, t.timeout_state, 'There the task would go when its capture times out.'::pg_catalog.text);
    END IF;

    -- A task that is taken up again after it was given up, or done, is tried anew.
    IF t.finished AND NOT finished OR NOT t.finished AND NOT live AND t.state = q.parked AND state <> q.parked THEN
        t.attempts := 0;
    END IF;
    IF dlock_task_write(t.place, state, t.attempts, NULL::pg_catalog.text, live AND NOT finished, live, finished, NULL::dlock_task_term) <> 1 THEN
        RAISE 'task "%" was locked but not written', key;
    ELSIF NOT live AND NOT finished THEN
        told := dlock_task_tell(q.queue_id, state, true);
    END IF;
    RETURN t.state;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_set(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.int8)
    IS 'set the state of a task; returns the one before';

CREATE FUNCTION @extschema@.dlock_task_capture(
    queue pg_catalog.text,
    count pg_catalog.int4 DEFAULT 1,
    from_states pg_catalog.text[] DEFAULT NULL,
    to_state pg_catalog.text DEFAULT 'working',
    owner pg_catalog.text DEFAULT NULL,
    ttl pg_catalog.interval DEFAULT NULL,
    on_timeout pg_catalog.text DEFAULT NULL,
    wait pg_catalog.interval DEFAULT '0',
    OUT key pg_catalog.text,
    OUT token pg_catalog.int8,
    OUT payload pg_catalog.jsonb,
    OUT priority pg_catalog.int4,
    OUT attempts pg_catalog.int4,
    OUT from_state pg_catalog.text,
    OUT expires_at pg_catalog.timestamptz)
    RETURNS SETOF pg_catalog.record
    LANGUAGE dlock_plpgsql VOLATILE PARALLEL UNSAFE ROWS 10 AS $$
DECLARE
    q dlock_task_queue := dlock_task_open(queue, false);
    now pg_catalog.timestamptz;
    start pg_catalog.timestamptz;
    over pg_catalog.tid[];
    picked pg_catalog.record;
    found pg_catalog.int4;
    moved pg_catalog.int8;
    waits pg_catalog.bool;
    captured pg_catalog.bool := false;
    for_tasks pg_catalog.bool;
    told pg_catalog.bool;
BEGIN
    from_states := coalesce(from_states, ARRAY[q.initial]);
    FOREACH from_state IN ARRAY from_states LOOP
        IF q.transitions IS NOT NULL OR to_state = q.done OR coalesce(on_timeout, from_state) = q.done THEN
            to_state := dlock_task_check_capture(q, from_state, to_state, coalesce(on_timeout, from_state));
        END IF;
    END LOOP;

    -- What has timed out may be the next.
    waits := dlock_task_enlist(from_states);
    LOOP
        start := (dlock_task_begin(NULL::pg_catalog.text)).due;
        now := dlock_task_clock();
        over := CASE WHEN waits THEN dlock_task_over_in(q.queue_id, from_states, start, now)
            ELSE dlock_task_due_in(q.queue_id, start, now) END;
        told := dlock_task_looked(0, 0, NULL::pg_catalog.int4, NULL::pg_catalog.int8, CASE WHEN over IS NULL THEN now END);
        moved := dlock_task_expire(over, dlock_task_clock());
        EXIT WHEN NOT for_tasks AND coalesce(moved, 0) = 0;
        FOREACH from_state IN ARRAY from_states LOOP
            picked := dlock_task_pick(q.queue_id, from_state, count, dlock_task_begin(from_state));
            found := pg_catalog.cardinality(picked.places);
            told := dlock_task_looked(count, found, picked.priority, picked.id, NULL::pg_catalog.timestamptz);
            CONTINUE WHEN found IS NULL;
            RETURN QUERY SELECT * FROM dlock_task_seize(picked.places,
                dlock_task_tokens(queue, found, picked.seen),
                to_state, owner, dlock_task_end(ttl), on_timeout, q.max_attempts, q.parked);
            GET DIAGNOSTICS moved = ROW_COUNT;
            IF moved = 0 THEN
                RAISE 'tasks of queue "%" were locked but not written', queue;
            END IF;
            waits := false;
            captured := true;
            count := count - found;
            EXIT WHEN count = 0;
        END LOOP;
        EXIT WHEN captured;
        for_tasks := dlock_task_look_again();
        EXIT WHEN for_tasks IS NULL;
    END LOOP;
    IF waits THEN
        PERFORM dlock_task_plan(dlock_task_next_in(q.queue_id, from_states, dlock_task_clock()));
    END IF;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_capture(pg_catalog.text, pg_catalog.int4, pg_catalog.text[], pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.text, pg_catalog.interval)
    IS 'capture up to so many tasks in one of from_states for a ttl, each with a fencing token, and move them to to_state; if there are none, wait for them';

CREATE FUNCTION @extschema@.dlock_task_extend(
    queue pg_catalog.text,
    key pg_catalog.text,
    token pg_catalog.int8,
    ttl pg_catalog.interval DEFAULT NULL)
    RETURNS pg_catalog.bool
    LANGUAGE dlock_plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    q dlock_task_queue := dlock_task_open(queue, false);
    t dlock_task_row := dlock_task_read(q.queue_id, key);
BEGIN
    IF t.captured AND t.token = token AND t.until > dlock_task_clock() THEN
        IF dlock_task_prolong(t.place, dlock_task_end(coalesce(ttl, t.ttl))) <> 1 THEN
            RAISE 'task "%" was locked but not written', key;
        END IF;
        RETURN true;
    ELSIF t.place IS NULL THEN
        PERFORM dlock_task_lost(queue, key, token, t);
    END IF;
    RETURN false;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_extend(pg_catalog.text, pg_catalog.text, pg_catalog.int8, pg_catalog.interval)
    IS 'extend the capture of a task; false if it is no longer held';

CREATE FUNCTION @extschema@.dlock_task_finish(
    queue pg_catalog.text,
    key pg_catalog.text,
    token pg_catalog.int8,
    state pg_catalog.text DEFAULT NULL)
    RETURNS pg_catalog.bool
    LANGUAGE dlock_plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    q dlock_task_queue := dlock_task_open(queue, false);
    t dlock_task_row := dlock_task_read(q.queue_id, key);
BEGIN
    state := coalesce(state, q.done);

    -- Without an owner, it was not the capture with this token that finished it.
    IF t.finished AND t.owner IS NOT NULL AND t.token = token AND t.state = state THEN
        RETURN false;
    ELSIF (t.captured AND t.token = token AND t.until > dlock_task_clock()) IS NOT TRUE THEN
        PERFORM dlock_task_lost(queue, key, token, t);
    ELSIF state = q.initial OR state = q.parked THEN
        RAISE invalid_parameter_value USING MESSAGE = pg_catalog.format('state "%s" cannot be that of a finished task', state),
            DETAIL = 'It is the initial state of the queue, or the one of parked tasks.',
            HINT = 'Use another state, or hand the task on with dlock_task_release().';
    ELSIF q.transitions IS NOT NULL THEN
        state := dlock_task_next(q, key, t.state, state);
    END IF;
    IF dlock_task_write(t.place, state, t.attempts, NULL::pg_catalog.text, false, true, true, NULL::dlock_task_term) <> 1 THEN
        RAISE 'task "%" was locked but not written', key;
    END IF;
    RETURN true;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_finish(pg_catalog.text, pg_catalog.text, pg_catalog.int8, pg_catalog.text)
    IS 'finish a captured task; false if this token has finished it before';

CREATE FUNCTION @extschema@.dlock_task_fail(
    queue pg_catalog.text,
    key pg_catalog.text,
    token pg_catalog.int8,
    error pg_catalog.text DEFAULT NULL,
    state pg_catalog.text DEFAULT NULL,
    delay pg_catalog.interval DEFAULT NULL)
    RETURNS pg_catalog.text
    LANGUAGE dlock_plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    q dlock_task_queue := dlock_task_open(queue, false);
    t dlock_task_row := dlock_task_read(q.queue_id, key);
    term dlock_task_term;
    told pg_catalog.bool;
BEGIN
    IF (t.captured AND t.token = token AND t.until > dlock_task_clock()) IS NOT TRUE THEN
        PERFORM dlock_task_lost(queue, key, token, t);
    ELSIF t.attempts >= q.max_attempts THEN
        state := q.parked;
    ELSE
        state := coalesce(state, t.from_state);
        IF state = q.done THEN
            PERFORM dlock_task_refuse(state, 'A capture that fails must not end there.'::pg_catalog.text);
        END IF;
        state := dlock_task_next(q, key, t.state, state);
        IF delay IS NOT NULL THEN
            term := dlock_task_end(delay);
        END IF;
    END IF;
    IF dlock_task_write(t.place, state, t.attempts, error, false, false, false, term) <> 1 THEN
        RAISE 'task "%" was locked but not written', key;
    ELSIF term.ttl IS NULL THEN
        told := dlock_task_tell(q.queue_id, state, true);
    END IF;
    RETURN state;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_fail(pg_catalog.text, pg_catalog.text, pg_catalog.int8, pg_catalog.text, pg_catalog.text, pg_catalog.interval)
    IS 'give a captured task up; returns the state that it is in then, that of parked tasks if its attempts are used up';

CREATE FUNCTION @extschema@.dlock_task_release(
    queue pg_catalog.text,
    key pg_catalog.text,
    token pg_catalog.int8,
    state pg_catalog.text DEFAULT NULL,
    delay pg_catalog.interval DEFAULT NULL)
    RETURNS pg_catalog.text
    LANGUAGE dlock_plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    q dlock_task_queue := dlock_task_open(queue, false);
    t dlock_task_row := dlock_task_read(q.queue_id, key);
    term dlock_task_term;
    told pg_catalog.bool;
BEGIN
    state := coalesce(state, t.from_state);
    IF (t.captured AND t.token = token AND t.until > dlock_task_clock()) IS NOT TRUE THEN
        PERFORM dlock_task_lost(queue, key, token, t);
    ELSIF state = q.done THEN
        PERFORM dlock_task_refuse(state, 'A capture is released there only by dlock_task_finish().'::pg_catalog.text);
    END IF;
    state := dlock_task_next(q, key, t.state, state);
    IF delay IS NOT NULL THEN
        term := dlock_task_end(delay);
    END IF;

    -- In another state it is tried anew.
    t.attempts := CASE WHEN state = t.from_state THEN greatest(0, t.attempts - 1) ELSE 0 END;
    IF dlock_task_write(t.place, state, t.attempts, NULL::pg_catalog.text, false, false, false, term) <> 1 THEN
        RAISE 'task "%" was locked but not written', key;
    ELSIF term.ttl IS NULL THEN
        told := dlock_task_tell(q.queue_id, state, true);
    END IF;
    RETURN state;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_release(pg_catalog.text, pg_catalog.text, pg_catalog.int8, pg_catalog.text, pg_catalog.interval)
    IS 'give a captured task back, without counting an attempt, or hand it on to another state; returns the state that it is in then';

CREATE FUNCTION @extschema@.dlock_task_purge(
    queue pg_catalog.text,
    older_than pg_catalog.interval,
    count pg_catalog.int4 DEFAULT 10000)
    RETURNS pg_catalog.int8
    LANGUAGE dlock_plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    q dlock_task_queue := dlock_task_open(queue, false);
BEGIN
    RETURN dlock_task_remove_finished(q.queue_id, older_than, count);
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_purge(pg_catalog.text, pg_catalog.interval, pg_catalog.int4)
    IS 'remove up to so many tasks that were finished so long ago; returns how many';

----------------------------------------------------------------------------
-- Patterns: time slots, election, groups
----------------------------------------------------------------------------

CREATE FUNCTION @extschema@.dlock_once(
    name pg_catalog.text,
    every pg_catalog.interval)
    RETURNS pg_catalog.int8
    AS 'MODULE_PATHNAME', 'dlock_sql_once'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_once(pg_catalog.text, pg_catalog.interval)
    IS 'a fencing token for the first caller in each time slot, NULL for all others';

CREATE FUNCTION @extschema@.dlock_campaign(
    election pg_catalog.text,
    candidate pg_catalog.text,
    ttl pg_catalog.interval DEFAULT NULL,
    wait pg_catalog.interval DEFAULT '0',
    payload pg_catalog.jsonb DEFAULT NULL)
    RETURNS pg_catalog.int8
    AS 'MODULE_PATHNAME', 'dlock_sql_campaign'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_campaign(pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.interval, pg_catalog.jsonb)
    IS 'become or remain the leader; returns the fencing token of the term, or NULL if another candidate leads';

CREATE FUNCTION @extschema@.dlock_resign(
    election pg_catalog.text,
    candidate pg_catalog.text)
    RETURNS pg_catalog.bool
    AS 'MODULE_PATHNAME', 'dlock_sql_resign'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_resign(pg_catalog.text, pg_catalog.text)
    IS 'end the term of a leader; false if it does not lead';

CREATE FUNCTION @extschema@.dlock_leader(
    election pg_catalog.text,
    OUT leader pg_catalog.text,
    OUT since pg_catalog.timestamptz,
    OUT token pg_catalog.int8,
    OUT payload pg_catalog.jsonb,
    OUT expires_at pg_catalog.timestamptz)
    RETURNS pg_catalog.record
    LANGUAGE sql VOLATILE PARALLEL RESTRICTED
BEGIN ATOMIC
    -- One row in any case: without a leader a row of NULLs, and not NULL.
    SELECT l.owner, l.granted_at, l.token, l.payload, l.expires_at
      FROM (SELECT 1 AS one) always
      LEFT JOIN @extschema@.dlock_lease(election) l ON l.state = 'held'
     ORDER BY l.token DESC
     LIMIT 1;
END;
COMMENT ON FUNCTION @extschema@.dlock_leader(pg_catalog.text)
    IS 'the leader, since when, with its token and payload; NULLs if there is none';

-- The definitions of groups; memberships and partitions are leases.  Only the
-- functions below write it.
CREATE TABLE @extschema@.dlock_groups (
    name pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    role pg_catalog.regrole NOT NULL,
    partitions pg_catalog.text[] NOT NULL)
    USING heap;
GRANT SELECT ON @extschema@.dlock_groups TO PUBLIC;
COMMENT ON TABLE @extschema@.dlock_groups
    IS 'groups, their owners and the names of their partitions';
SELECT pg_catalog.pg_extension_config_dump('@extschema@.dlock_groups', '');

CREATE FUNCTION @extschema@.dlock_group_create(
    group_name pg_catalog.text,
    count pg_catalog.int4 DEFAULT NULL,
    names pg_catalog.text[] DEFAULT NULL)
    RETURNS pg_catalog.int4
    AS 'MODULE_PATHNAME', 'dlock_sql_group_create'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_group_create(pg_catalog.text, pg_catalog.int4, pg_catalog.text[])
    IS 'create a group of so many partitions, or of those named, that belongs to the current role; returns their number';

CREATE FUNCTION @extschema@.dlock_group_alter(
    group_name pg_catalog.text,
    count pg_catalog.int4 DEFAULT NULL,
    names pg_catalog.text[] DEFAULT NULL)
    RETURNS pg_catalog.int4
    AS 'MODULE_PATHNAME', 'dlock_sql_group_alter'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_group_alter(pg_catalog.text, pg_catalog.int4, pg_catalog.text[])
    IS 'give a group other partitions; returns their number';

CREATE FUNCTION @extschema@.dlock_group_drop(
    group_name pg_catalog.text)
    RETURNS pg_catalog.bool
    AS 'MODULE_PATHNAME', 'dlock_sql_group_drop'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_group_drop(pg_catalog.text)
    IS 'drop a group; false if there is none of this name';

CREATE FUNCTION @extschema@.dlock_group_join(
    group_name pg_catalog.text,
    member pg_catalog.text,
    ttl pg_catalog.interval DEFAULT NULL,
    weight pg_catalog.int4 DEFAULT 1,
    payload pg_catalog.jsonb DEFAULT NULL)
    RETURNS pg_catalog.int8
    AS 'MODULE_PATHNAME', 'dlock_sql_group_join'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_group_join(pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.int4, pg_catalog.jsonb)
    IS 'join a group; returns the token of the membership';

CREATE FUNCTION @extschema@.dlock_group_heartbeat(
    group_name pg_catalog.text,
    membership pg_catalog.int8,
    yielded pg_catalog.int8[] DEFAULT NULL,
    OUT partition pg_catalog.text,
    OUT token pg_catalog.int8,
    OUT action pg_catalog.text)
    RETURNS SETOF pg_catalog.record
    AS 'MODULE_PATHNAME', 'dlock_sql_group_heartbeat'
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION @extschema@.dlock_group_heartbeat(pg_catalog.text, pg_catalog.int8, pg_catalog.int8[])
    IS 'remain in a group; returns the partitions to run, with their tokens, and those to stop and yield';

CREATE FUNCTION @extschema@.dlock_group_yield(
    group_name pg_catalog.text,
    membership pg_catalog.int8,
    yielded pg_catalog.int8[])
    RETURNS pg_catalog.int4
    AS 'MODULE_PATHNAME', 'dlock_sql_group_yield'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_group_yield(pg_catalog.text, pg_catalog.int8, pg_catalog.int8[])
    IS 'give up partitions that the member has stopped working on, by their tokens; returns how many';

CREATE FUNCTION @extschema@.dlock_group_leave(
    group_name pg_catalog.text,
    membership pg_catalog.int8)
    RETURNS pg_catalog.bool
    AS 'MODULE_PATHNAME', 'dlock_sql_group_leave'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_group_leave(pg_catalog.text, pg_catalog.int8)
    IS 'leave a group and give up all of its partitions; false if it is no member';

CREATE FUNCTION @extschema@.dlock_group_member_list(
    group_name pg_catalog.text,
    OUT member pg_catalog.text,
    OUT token pg_catalog.int8,
    OUT weight pg_catalog.int4,
    OUT owned pg_catalog.int4,
    OUT due pg_catalog.int4,
    OUT role pg_catalog.regrole,
    OUT joined_at pg_catalog.timestamptz,
    OUT expires_at pg_catalog.timestamptz,
    OUT ttl pg_catalog.interval,
    OUT payload pg_catalog.jsonb)
    RETURNS SETOF pg_catalog.record
    AS 'MODULE_PATHNAME', 'dlock_sql_group_member_list'
    LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 10;
COMMENT ON FUNCTION @extschema@.dlock_group_member_list(pg_catalog.text)
    IS 'the members of a group';

CREATE VIEW @extschema@.dlock_group_members AS
    SELECT g.name AS group_name, m.member, m.token, m.weight, m.owned, m.due, m.role,
           m.joined_at, m.expires_at, m.ttl, m.payload
      FROM @extschema@.dlock_groups g
           CROSS JOIN LATERAL @extschema@.dlock_group_member_list(g.name) m;
GRANT SELECT ON @extschema@.dlock_group_members TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_group_members
    IS 'the members of all groups, with the number of partitions that they own and should own';

CREATE FUNCTION @extschema@.dlock_group_partition_list(
    group_name pg_catalog.text,
    OUT partition pg_catalog.text,
    OUT member pg_catalog.text,
    OUT token pg_catalog.int8,
    OUT since pg_catalog.timestamptz,
    OUT expires_at pg_catalog.timestamptz)
    RETURNS SETOF pg_catalog.record
    AS 'MODULE_PATHNAME', 'dlock_sql_group_partition_list'
    LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 100;
COMMENT ON FUNCTION @extschema@.dlock_group_partition_list(pg_catalog.text)
    IS 'the partitions of a group and their owners';

CREATE VIEW @extschema@.dlock_group_partitions AS
    SELECT g.name AS group_name, p.partition, p.member, p.token, p.since, p.expires_at
      FROM @extschema@.dlock_groups g
           CROSS JOIN LATERAL @extschema@.dlock_group_partition_list(g.name) p;
GRANT SELECT ON @extschema@.dlock_group_partitions TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_group_partitions
    IS 'the partitions of all groups and their owners';

CREATE VIEW @extschema@.dlock_group_state AS
    SELECT g.name AS group_name, g.role,
           pg_catalog.cardinality(g.partitions) AS partitions,
           CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN
               (SELECT pg_catalog.count(*) FROM @extschema@.dlock_group_member_list(g.name)) END AS members,
           CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN
               (SELECT pg_catalog.count(*) FROM @extschema@.dlock_group_partition_list(g.name) p
                 WHERE p.member IS NULL) END AS unowned
      FROM @extschema@.dlock_groups g;
GRANT SELECT ON @extschema@.dlock_group_state TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_group_state
    IS 'how many partitions and members each group has, and how many partitions have no owner';
