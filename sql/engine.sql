/* sql/engine.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION dlock" to load this file. \quit

-- The engine: what is written in C, and its views.  The Makefile joins this file and
-- patterns.sql, which uses the engine by its functions alone.

----------------------------------------------------------------------------
-- What is not interface
----------------------------------------------------------------------------

CREATE SCHEMA _dlock;
REVOKE ALL ON SCHEMA _dlock FROM PUBLIC;
GRANT USAGE ON SCHEMA _dlock TO PUBLIC;
COMMENT ON SCHEMA _dlock IS 'internals of the extension dlock';

-- What patterns need beside leases.
CREATE FUNCTION _dlock.token(above pg_catalog.int8) RETURNS pg_catalog.int8
    AS 'MODULE_PATHNAME', 'dlock_sql_token' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION _dlock.token(pg_catalog.int8)
    IS 'a fencing token, larger than all before, and than one that a row has seen';

CREATE FUNCTION _dlock.clock() RETURNS pg_catalog.timestamptz
    AS 'MODULE_PATHNAME', 'dlock_sql_clock' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION _dlock.clock() IS 'the wall clock that leases go by';

CREATE FUNCTION _dlock.max_ttl() RETURNS pg_catalog.interval LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT pg_catalog.current_setting('dlock.max_ttl')::pg_catalog.interval;
END;
COMMENT ON FUNCTION _dlock.max_ttl() IS 'the setting dlock.max_ttl';

CREATE FUNCTION _dlock.is_transactional() RETURNS pg_catalog.bool LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT false;
END;
COMMENT ON FUNCTION _dlock.is_transactional() IS 'whether a rollback takes leases back';

CREATE FUNCTION _dlock.session() RETURNS pg_catalog.text
    AS 'MODULE_PATHNAME', 'dlock_sql_session' LANGUAGE C STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION _dlock.session() IS 'the session, as an owner of leases';

CREATE FUNCTION _dlock.ttl(ttl pg_catalog.interval) RETURNS pg_catalog.interval
    AS 'MODULE_PATHNAME', 'dlock_sql_ttl' LANGUAGE C STABLE PARALLEL SAFE;
COMMENT ON FUNCTION _dlock.ttl(pg_catalog.interval) IS 'the ttl, or the default one, if it is in range';

CREATE FUNCTION _dlock.signal(queue_id pg_catalog.int4) RETURNS pg_catalog.bool
    AS 'MODULE_PATHNAME', 'dlock_sql_signal' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION _dlock.signal(pg_catalog.int4)
    IS 'when this transaction has committed, wake up one session that waits for this queue; true';

CREATE FUNCTION _dlock.signals(queue_id pg_catalog.int4) RETURNS pg_catalog.int8
    AS 'MODULE_PATHNAME', 'dlock_sql_signals' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION _dlock.signals(pg_catalog.int4) IS 'how many signals the queue has had, and others of its hash';

CREATE FUNCTION _dlock.signal_wait(queue_id pg_catalog.int4, seen pg_catalog.int8, until pg_catalog.timestamptz) RETURNS pg_catalog.void
    AS 'MODULE_PATHNAME', 'dlock_sql_signal_wait' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION _dlock.signal_wait(pg_catalog.int4, pg_catalog.int8, pg_catalog.timestamptz)
    IS 'sleep until the queue has had more signals, or until then';

----------------------------------------------------------------------------
-- Storage
----------------------------------------------------------------------------

CREATE FUNCTION _dlock.store_handler(internal)
    RETURNS pg_catalog.table_am_handler
    AS 'MODULE_PATHNAME', 'dlock_sql_store_handler'
    LANGUAGE C STRICT;
REVOKE ALL ON FUNCTION _dlock.store_handler(internal) FROM PUBLIC;
COMMENT ON FUNCTION _dlock.store_handler(internal)
    IS 'table access method handler of the lease store';

CREATE ACCESS METHOD dlock_store TYPE TABLE HANDLER _dlock.store_handler;
COMMENT ON ACCESS METHOD dlock_store
    IS 'pages that hold leases, written in place; scans as empty and refuses DML';

-- The pages of the leases.  The table has no columns; the view dlock_leases shows
-- its leases.
CREATE TABLE _dlock.store () USING dlock_store;
REVOKE ALL ON TABLE _dlock.store FROM PUBLIC;
COMMENT ON TABLE _dlock.store
    IS 'durable pages of the leases; read them through dlock_leases';

-- The source of fencing tokens.  Its value is the end of the block that the server
-- may grant from memory, so it is ahead of the last token.
CREATE SEQUENCE _dlock.token_seq AS pg_catalog.int8 MINVALUE 1 START WITH 1 NO CYCLE;
REVOKE ALL ON SEQUENCE _dlock.token_seq FROM PUBLIC;
COMMENT ON SEQUENCE _dlock.token_seq
    IS 'end of the last block of fencing tokens reserved';
SELECT pg_catalog.pg_extension_config_dump('_dlock.token_seq', '');

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
    payload pg_catalog.jsonb DEFAULT NULL,
    keep pg_catalog.interval DEFAULT '0')
    RETURNS pg_catalog.int8
    AS 'MODULE_PATHNAME', 'dlock_sql_acquire'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_acquire(pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.interval, pg_catalog.text, pg_catalog.int4, pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.interval, pg_catalog.jsonb, pg_catalog.interval)
    IS 'acquire a lease; returns its fencing token, or NULL if it was not granted; keep: how long the request then keeps its place';

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

CREATE FUNCTION @extschema@.dlock_acquire_each(
    names pg_catalog.text[],
    owners pg_catalog.text[],
    ttl pg_catalog.interval DEFAULT NULL,
    mode pg_catalog.text DEFAULT 'exclusive',
    permits pg_catalog.int4 DEFAULT NULL,
    reentry pg_catalog.text DEFAULT 'deny',
    lock_delay pg_catalog.interval DEFAULT '0',
    min_hold pg_catalog.interval DEFAULT '0',
    keep pg_catalog.interval DEFAULT '0')
    RETURNS pg_catalog.int8[]
    AS 'MODULE_PATHNAME', 'dlock_sql_acquire_each'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_acquire_each(pg_catalog.text[], pg_catalog.text[], pg_catalog.interval, pg_catalog.text, pg_catalog.int4, pg_catalog.text, pg_catalog.interval, pg_catalog.interval, pg_catalog.interval)
    IS 'acquire each of these locks for its owner, independently; returns a fencing token, or NULL, for each';

CREATE FUNCTION @extschema@.dlock_take(
    client pg_catalog.text,
    wait pg_catalog.interval,
    keep pg_catalog.interval,
    OUT name pg_catalog.text,
    OUT owner pg_catalog.text,
    OUT token pg_catalog.int8)
    RETURNS SETOF pg_catalog.record
    AS 'MODULE_PATHNAME', 'dlock_sql_take'
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION @extschema@.dlock_take(pg_catalog.text, pg_catalog.interval, pg_catalog.interval)
    IS 'acquire the leases for which this client keeps places and whose turn has come, waiting for the first; keeps the other places';

CREATE FUNCTION @extschema@.dlock_convert(
    name pg_catalog.text,
    token pg_catalog.int8,
    mode pg_catalog.text,
    wait pg_catalog.interval DEFAULT '0')
    RETURNS pg_catalog.int8
    AS 'MODULE_PATHNAME', 'dlock_sql_convert'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_convert(pg_catalog.text, pg_catalog.int8, pg_catalog.text, pg_catalog.interval)
    IS 'change the mode of the lease with this token; returns its token, a new one after an upgrade, or NULL if other leases block it';

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

CREATE FUNCTION @extschema@.dlock_renew_each(
    names pg_catalog.text[],
    tokens pg_catalog.int8[],
    ttl pg_catalog.interval DEFAULT NULL)
    RETURNS pg_catalog.bool[]
    AS 'MODULE_PATHNAME', 'dlock_sql_renew_each'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_renew_each(pg_catalog.text[], pg_catalog.int8[], pg_catalog.interval)
    IS 'extend each lease with one of these tokens, independently; returns whether it is held, for each';

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

CREATE FUNCTION @extschema@.dlock_release_each(
    names pg_catalog.text[],
    tokens pg_catalog.int8[])
    RETURNS pg_catalog.bool[]
    AS 'MODULE_PATHNAME', 'dlock_sql_release_each'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dlock_release_each(pg_catalog.text[], pg_catalog.int8[])
    IS 'release each lease with one of these tokens, independently; returns whether it was held, for each';

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
CREATE TABLE _dlock.fence_mark (
    resource pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    token pg_catalog.int8 NOT NULL CHECK (token OPERATOR(pg_catalog.>) 0),
    raised_at pg_catalog.timestamptz NOT NULL,
    raised_by pg_catalog.name NOT NULL)
    USING heap;
REVOKE ALL ON TABLE _dlock.fence_mark FROM PUBLIC;
COMMENT ON TABLE _dlock.fence_mark
    IS 'the highest fencing token that each resource has seen; read it through dlock_fences';
SELECT pg_catalog.pg_extension_config_dump('_dlock.fence_mark', '');

CREATE VIEW @extschema@.dlock_fences AS
    SELECT resource, token, raised_at, raised_by FROM _dlock.fence_mark;
GRANT SELECT ON @extschema@.dlock_fences TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_fences
    IS 'the highest fencing token that each resource has seen, and the role that presented it';

CREATE FUNCTION @extschema@.dlock_fence(
    resource pg_catalog.text,
    token pg_catalog.int8,
    live pg_catalog.bool DEFAULT false)
    RETURNS pg_catalog.void
    AS 'MODULE_PATHNAME', 'dlock_sql_fence'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION @extschema@.dlock_fence(pg_catalog.text, pg_catalog.int8, pg_catalog.bool) FROM PUBLIC;
COMMENT ON FUNCTION @extschema@.dlock_fence(pg_catalog.text, pg_catalog.int8, pg_catalog.bool)
    IS 'refuse a token below the highest that the resource has seen, and block higher ones until this transaction ends';

CREATE FUNCTION @extschema@.dlock_guard()
    RETURNS pg_catalog.trigger
    AS 'MODULE_PATHNAME', 'dlock_sql_guard'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION @extschema@.dlock_guard() FROM PUBLIC;
COMMENT ON FUNCTION @extschema@.dlock_guard()
    IS 'BEFORE trigger that refuses writes without a valid fencing token';

-- Bits of tgtype: 1 FOR EACH ROW, 4 INSERT, 8 DELETE, 16 UPDATE, 32 TRUNCATE.  A guard
-- with a condition covers no command as a whole, and one of a view none: statements on
-- the view fire the triggers of its tables.
CREATE VIEW @extschema@.dlock_guards AS
    WITH RECURSIVE guard AS (
        SELECT t.tgrelid, t.tgname, pg_catalog.pg_get_triggerdef(t.oid) AS definition, e.fires,
               CASE WHEN NOT e.fires OR t.tgqual IS NOT NULL OR c.relkind OPERATOR(pg_catalog.=) 'v' THEN 0
                    WHEN pg_catalog.array_length(t.tgattr, 1) OPERATOR(pg_catalog.>) 0
                    THEN t.tgtype OPERATOR(pg_catalog.&) (OPERATOR(pg_catalog.~) 16)
                    ELSE t.tgtype END AS covers
          FROM pg_catalog.pg_trigger t
          JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) t.tgrelid,
               LATERAL (SELECT t.tgenabled OPERATOR(pg_catalog.=) ANY ('{O,A}'::pg_catalog."char"[]) AS fires) e
         WHERE t.tgfoid OPERATOR(pg_catalog.=) '@extschema@.dlock_guard()'::pg_catalog.regprocedure
    ), guarded AS (
        SELECT tgrelid AS relid FROM guard
        UNION
        SELECT i.inhrelid
          FROM guarded g
          JOIN pg_catalog.pg_inherits i ON i.inhparent OPERATOR(pg_catalog.=) g.relid
    ), part AS (
        SELECT relid, relid AS part FROM guarded
        UNION
        SELECT p.relid, i.inhrelid
          FROM part p
          JOIN pg_catalog.pg_inherits i ON i.inhparent OPERATOR(pg_catalog.=) p.part
    )
    SELECT g.relid::pg_catalog.regclass AS relation,
           ARRAY(SELECT o.definition
                   FROM guard o
                  WHERE o.tgrelid OPERATOR(pg_catalog.=) g.relid AND o.fires
                  ORDER BY o.tgname) AS guards,
           ARRAY(SELECT e.command
                   FROM (VALUES (1, 'INSERT', 4), (2, 'UPDATE', 16), (3, 'DELETE', 8), (4, 'TRUNCATE', 32))
                            AS e (n, command, bit)
                  WHERE NOT EXISTS (SELECT
                                      FROM guard o
                                     WHERE o.tgrelid OPERATOR(pg_catalog.=) g.relid
                                       AND (o.covers OPERATOR(pg_catalog.&) 1) OPERATOR(pg_catalog.=) 0
                                       AND (o.covers OPERATOR(pg_catalog.&) e.bit) OPERATOR(pg_catalog.<>) 0)
                    AND EXISTS (SELECT
                                  FROM part p
                                  JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) p.part
                                 WHERE p.relid OPERATOR(pg_catalog.=) g.relid
                                   AND (e.bit OPERATOR(pg_catalog.<>) 4 OR c.relispartition
                                        OR p.part OPERATOR(pg_catalog.=) g.relid)
                                   AND NOT EXISTS (SELECT
                                                     FROM guard o
                                                    WHERE o.tgrelid OPERATOR(pg_catalog.=) p.part
                                                      AND (o.covers OPERATOR(pg_catalog.&) 1) OPERATOR(pg_catalog.=) 1
                                                      AND (o.covers OPERATOR(pg_catalog.&) e.bit) OPERATOR(pg_catalog.<>) 0))
                  ORDER BY e.n) AS uncovered
      FROM guarded g;
GRANT SELECT ON @extschema@.dlock_guards TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_guards
    IS 'tables with guards, their partitions and child tables, with the guards that fire and the commands that no guard covers';

----------------------------------------------------------------------------
-- Looking
----------------------------------------------------------------------------

-- Functions that a view calls run as the view's reader, so PUBLIC may execute those of _dlock.

CREATE TYPE _dlock.held_lock AS (
    name pg_catalog.text,
    owner pg_catalog.text,
    token pg_catalog.int8,
    mode pg_catalog.text,
    permits pg_catalog.int4,
    holds pg_catalog.int8,
    state pg_catalog.text,
    bind pg_catalog.text,
    pid pg_catalog.int4,
    role pg_catalog.regrole,
    granted_at pg_catalog.timestamptz,
    expires_at pg_catalog.timestamptz,
    remaining pg_catalog.interval,
    ttl pg_catalog.interval,
    payload pg_catalog.jsonb);
COMMENT ON TYPE _dlock.held_lock IS 'a lock, and a lease on it';

CREATE FUNCTION _dlock.lease_list() RETURNS SETOF _dlock.held_lock
    AS 'MODULE_PATHNAME', 'dlock_sql_lease' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 1000;
COMMENT ON FUNCTION _dlock.lease_list() IS 'the leases of this database';

-- For patterns: the leases on some locks, and those of an owner, at the cost of these alone.
CREATE FUNCTION _dlock.names_held(names pg_catalog.text[]) RETURNS SETOF _dlock.held_lock
    AS 'MODULE_PATHNAME', 'dlock_sql_names_held' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 1000;
COMMENT ON FUNCTION _dlock.names_held(pg_catalog.text[]) IS 'the leases on these locks, in this order; none on a standby';

CREATE FUNCTION _dlock.owner_held(owner pg_catalog.text) RETURNS SETOF _dlock.held_lock
    AS 'MODULE_PATHNAME', 'dlock_sql_owner_held' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 10;
COMMENT ON FUNCTION _dlock.owner_held(pg_catalog.text) IS 'the leases of the owners of this name; none on a standby';

CREATE FUNCTION @extschema@.dlock_lease(
    INOUT name pg_catalog.text,
    OUT owner pg_catalog.text,
    OUT token pg_catalog.int8,
    OUT mode pg_catalog.text,
    OUT permits pg_catalog.int4,
    OUT holds pg_catalog.int8,
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
      FROM _dlock.lease_list();
GRANT SELECT ON @extschema@.dlock_leases TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_leases
    IS 'the leases of this database that are held, or that keep their lock closed';

CREATE FUNCTION _dlock.waiter_list(
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
    OUT blocked_by pg_catalog.text[],
    OUT kept_until pg_catalog.timestamptz)
    RETURNS SETOF pg_catalog.record
    AS 'MODULE_PATHNAME', 'dlock_sql_waiter_list'
    LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 100;
COMMENT ON FUNCTION _dlock.waiter_list()
    IS 'the requests that wait for locks of this database';

CREATE VIEW @extschema@.dlock_waiters AS
    SELECT name, owner, mode, permits, request, "position", since, waited, pid, role, blocked_by, kept_until
      FROM _dlock.waiter_list();
GRANT SELECT ON @extschema@.dlock_waiters TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_waiters
    IS 'the requests that wait for locks of this database, with their position in the queue and the owners that block them';

CREATE FUNCTION _dlock.stats() RETURNS pg_catalog.int8[]
    AS 'MODULE_PATHNAME', 'dlock_sql_stats' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;
COMMENT ON FUNCTION _dlock.stats() IS 'counters of this database since the server started; dlock_stats names them';

CREATE VIEW @extschema@.dlock_stats AS
    SELECT c[1] AS grants, c[2] AS handoffs, c[3] AS reentries, c[4] AS refusals, c[5] AS timeouts, c[6] AS deadlocks,
           c[7] AS renewals, c[8] AS conversions, c[9] AS releases, c[10] AS expiries,
           c[11] OPERATOR(pg_catalog.+) c[12] OPERATOR(pg_catalog.+) c[13] OPERATOR(pg_catalog.+) c[14] AS fence_rejections,
           c[11] AS fence_stale, c[12] AS fence_lost, c[13] AS fence_missing, c[14] AS fence_unknown,
           c[15] AS waits, c[16] OPERATOR(pg_catalog.*) '1 us'::pg_catalog.interval AS wait_time, c[17:23] AS wait_histogram,
           c[25] OPERATOR(pg_catalog.*) '1 us'::pg_catalog.interval AS cleanup_lag, c[24] AS leases,
           c[26] AS memory_used, c[27] AS memory_limit, c[27] OPERATOR(pg_catalog.-) c[26] AS memory_free
      FROM _dlock.stats() c;
GRANT SELECT ON @extschema@.dlock_stats TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_stats
    IS 'counters of this database since the start of the server, the leases in memory now, and the bytes of memory that all databases use; the histogram counts waits of up to 1 ms, 10 ms, 100 ms, 1 s, 10 s, 100 s, and longer ones';
