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
    raised_by pg_catalog.name NOT NULL);
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
    is_foreign pg_catalog.bool NOT NULL);
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
    AS 'MODULE_PATHNAME', 'dlock_sql_lease_list'
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
    OUT fence_rejections pg_catalog.int8,
    OUT waits pg_catalog.int8,
    OUT wait_time pg_catalog.interval,
    OUT wait_histogram pg_catalog.int8[],
    OUT reaper_lag pg_catalog.interval,
    OUT leases pg_catalog.int8,
    OUT memory_used pg_catalog.int8,
    OUT memory_limit pg_catalog.int8)
    RETURNS SETOF pg_catalog.record
    AS 'MODULE_PATHNAME', 'dlock_sql_stat_row'
    LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 1;
COMMENT ON FUNCTION @extschema@.dlock_stat_row()
    IS 'counters of this database since the start of the server';

CREATE VIEW @extschema@.dlock_stats AS
    SELECT grants, handoffs, reentries, refusals, timeouts, deadlocks, renewals, conversions,
           releases, expiries, fence_rejections, waits, wait_time, wait_histogram, reaper_lag,
           leases, memory_used, memory_limit
      FROM @extschema@.dlock_stat_row();
GRANT SELECT ON @extschema@.dlock_stats TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_stats
    IS 'counters of this database since the start of the server, the leases in memory now, and the bytes of memory that all databases use; the histogram counts waits of up to 1 ms, 10 ms, 100 ms, 1 s, 10 s, 100 s, and longer ones';

----------------------------------------------------------------------------
-- Tasks
----------------------------------------------------------------------------

-- Only the functions below get at these tables.
CREATE TABLE @extschema@.dlock_task_queue (
    queue_id pg_catalog.int4 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue pg_catalog.text COLLATE pg_catalog."C" NOT NULL UNIQUE,
    role pg_catalog.regrole NOT NULL,
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

CREATE FUNCTION @extschema@.dlock_task_create_queue(
    queue pg_catalog.text,
    transitions pg_catalog.text[] DEFAULT NULL,
    initial pg_catalog.text DEFAULT 'ready',
    done pg_catalog.text DEFAULT 'done',
    parked pg_catalog.text DEFAULT 'parked',
    max_attempts pg_catalog.int4 DEFAULT NULL)
    RETURNS pg_catalog.void
    AS 'MODULE_PATHNAME', 'dlock_sql_task_create_queue'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_task_create_queue(pg_catalog.text, pg_catalog.text[], pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.int4)
    IS 'create a task queue that belongs to the current role; transitions are texts like ''from -> to''';

CREATE FUNCTION @extschema@.dlock_task_drop_queue(
    queue pg_catalog.text)
    RETURNS pg_catalog.int8
    AS 'MODULE_PATHNAME', 'dlock_sql_task_drop_queue'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
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
    AS 'MODULE_PATHNAME', 'dlock_sql_task_put'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_task_put(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.int4, pg_catalog.text, pg_catalog.interval)
    IS 'put a task into a queue, to be captured after the delay; false, and nothing changes, if its key is there already';

CREATE FUNCTION @extschema@.dlock_task_set(
    queue pg_catalog.text,
    key pg_catalog.text,
    state pg_catalog.text,
    token pg_catalog.int8 DEFAULT NULL)
    RETURNS pg_catalog.text
    AS 'MODULE_PATHNAME', 'dlock_sql_task_set'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
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
    OUT key pg_catalog.text,
    OUT token pg_catalog.int8,
    OUT payload pg_catalog.jsonb,
    OUT priority pg_catalog.int4,
    OUT attempts pg_catalog.int4,
    OUT from_state pg_catalog.text,
    OUT expires_at pg_catalog.timestamptz)
    RETURNS SETOF pg_catalog.record
    AS 'MODULE_PATHNAME', 'dlock_sql_task_capture'
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION @extschema@.dlock_task_capture(pg_catalog.text, pg_catalog.int4, pg_catalog.text[], pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.text)
    IS 'capture up to so many tasks in one of from_states for a ttl, each with a fencing token, and move them to to_state';

CREATE FUNCTION @extschema@.dlock_task_extend(
    queue pg_catalog.text,
    key pg_catalog.text,
    token pg_catalog.int8,
    ttl pg_catalog.interval DEFAULT NULL)
    RETURNS pg_catalog.bool
    AS 'MODULE_PATHNAME', 'dlock_sql_task_extend'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_task_extend(pg_catalog.text, pg_catalog.text, pg_catalog.int8, pg_catalog.interval)
    IS 'extend the capture of a task; false if it is no longer held';

CREATE FUNCTION @extschema@.dlock_task_finish(
    queue pg_catalog.text,
    key pg_catalog.text,
    token pg_catalog.int8,
    state pg_catalog.text DEFAULT NULL)
    RETURNS pg_catalog.bool
    AS 'MODULE_PATHNAME', 'dlock_sql_task_finish'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
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
    AS 'MODULE_PATHNAME', 'dlock_sql_task_fail'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_task_fail(pg_catalog.text, pg_catalog.text, pg_catalog.int8, pg_catalog.text, pg_catalog.text, pg_catalog.interval)
    IS 'give a captured task up; returns the state that it is in then, that of parked tasks if its attempts are used up';

CREATE FUNCTION @extschema@.dlock_task_release(
    queue pg_catalog.text,
    key pg_catalog.text,
    token pg_catalog.int8,
    state pg_catalog.text DEFAULT NULL,
    delay pg_catalog.interval DEFAULT NULL)
    RETURNS pg_catalog.text
    AS 'MODULE_PATHNAME', 'dlock_sql_task_release'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_task_release(pg_catalog.text, pg_catalog.text, pg_catalog.int8, pg_catalog.text, pg_catalog.interval)
    IS 'give a captured task back, without counting an attempt, or hand it on to another state; returns the state that it is in then';

CREATE FUNCTION @extschema@.dlock_task_purge(
    queue pg_catalog.text,
    older_than pg_catalog.interval,
    count pg_catalog.int4 DEFAULT 10000)
    RETURNS pg_catalog.int8
    AS 'MODULE_PATHNAME', 'dlock_sql_task_purge'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
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
    LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF pg_catalog.pg_is_in_recovery() THEN
        SELECT l.owner, l.granted_at, l.token, l.payload, l.expires_at
          INTO leader, since, token, payload, expires_at
          FROM @extschema@.dlock_lease(election) l
         WHERE l.state = 'held'
         ORDER BY l.token DESC
         LIMIT 1;
    ELSE
        SELECT w.owner, w.granted_at, w.token, w.payload, w.expires_at
          INTO leader, since, token, payload, expires_at
          FROM @extschema@.dlock_watch(election, NULL, '0') w;
    END IF;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_leader(pg_catalog.text)
    IS 'the leader, since when, with its token and payload; NULLs if there is none';

-- The definitions of groups; memberships and partitions are leases.  Only the
-- functions below write it.
CREATE TABLE @extschema@.dlock_groups (
    name pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    role pg_catalog.regrole NOT NULL,
    partitions pg_catalog.text[] NOT NULL);
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
