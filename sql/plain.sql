/* sql/plain.sql */

-- complain if script is sourced in psql, rather than made into dlock_plain.sql
\echo Use "make plain" to make dlock_plain.sql of this file and patterns.sql. \quit

-- The plain edition's engine: that of engine.sql as far as tables can have it, for servers that load no
-- library.  doc/reference/plain.md says what differs.
--
-- A lock is a row of _dlock.lease, with slot 1, and as many more as it has had holders at a time.  A row
-- is free at "free_at", and held up to "expires_at"; between them the lock is closed.  Rows are changed in
-- place, and no index has a column that a grant changes: updates are HOT.
--
-- Exclusion: a grant changes a free row.  Where slot 1 is the only row, one UPDATE does all of it.  Elsewhere
-- the grant holds slot 1 locked, so nobody adds a row meanwhile, and each row that it takes for free, so no
-- renewal that is not committed yet can make it a held one.  A snapshot that is too old gives 40001: whoever
-- grants changes one of these rows, and slot 1 if it adds one.
--
-- Order: kept places are rows.  Calls that wait hold the advisory locks of their names, which makes a queue;
-- others do not go before them.
--
-- Who holds several row locks has taken them in the order of (name, slot).  Advisory locks come first, in the
-- order of their keys.
--
-- Functions that every call passes through set no search_path, as that would cost as much as their UPDATE; so
-- they name the schema of everything.  What they call otherwise sets it, or runs with it: only declarations keep
-- the types that the first call in a session has found, so they name their schema wherever it is not set.

CREATE SEQUENCE _dlock.token_seq AS pg_catalog.int8 MINVALUE 1 START WITH 1 NO CYCLE;

CREATE TABLE _dlock.lease (
    name pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    slot pg_catalog.int4 NOT NULL DEFAULT 1,
    is_single pg_catalog.bool NOT NULL DEFAULT true,        -- of slot 1: there is no other
    holds pg_catalog.int8 NOT NULL DEFAULT 0,               -- zero after a release
    token pg_catalog.int8 NOT NULL DEFAULT 0,
    granted_at pg_catalog.timestamptz,
    expires_at pg_catalog.timestamptz NOT NULL DEFAULT '-infinity',
    free_at pg_catalog.timestamptz NOT NULL,
    role pg_catalog.regrole,
    permits pg_catalog.int4,
    ttl pg_catalog.interval,
    lock_delay pg_catalog.interval,
    min_hold pg_catalog.interval,
    mode pg_catalog.text,
    owner pg_catalog.text COLLATE pg_catalog."C",
    payload pg_catalog.jsonb,
    PRIMARY KEY (name, slot))
    WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

-- Of a request, and kept places.
CREATE TABLE _dlock.place (
    id pg_catalog.int8,
    name pg_catalog.text COLLATE pg_catalog."C",
    since pg_catalog.timestamptz,
    until pg_catalog.timestamptz,
    role pg_catalog.regrole,
    owner pg_catalog.text COLLATE pg_catalog."C",
    ttl pg_catalog.interval,
    mode pg_catalog.text,
    permits pg_catalog.int4,
    reentry pg_catalog.text,
    lock_delay pg_catalog.interval,
    min_hold pg_catalog.interval,
    payload pg_catalog.jsonb,
    PRIMARY KEY (name, owner, role))
    WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE _dlock.fence_mark (
    resource pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    token pg_catalog.int8 NOT NULL,
    is_live pg_catalog.bool NOT NULL,                       -- was the last one to raise or confirm it live?
    raised_at pg_catalog.timestamptz NOT NULL,
    raised_by pg_catalog.name NOT NULL)
    WITH (fillfactor = 50);
-- Of no row, and locked by whoever moves the sequence.
CREATE TABLE _dlock.token_lock ();
REVOKE ALL ON _dlock.token_seq, _dlock.token_lock, _dlock.lease, _dlock.place, _dlock.fence_mark FROM PUBLIC;

----------------------------------------------------------------------------
-- What is not interface
----------------------------------------------------------------------------

CREATE FUNCTION _dlock.clock() RETURNS pg_catalog.timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
    RETURN pg_catalog.clock_timestamp();
CREATE FUNCTION _dlock.max_ttl() RETURNS pg_catalog.interval LANGUAGE sql STABLE PARALLEL SAFE
    RETURN coalesce(nullif(pg_catalog.current_setting('dlock.max_ttl', true), ''), '1 day')::pg_catalog.interval;
CREATE FUNCTION _dlock.bad_ttl(ttl pg_catalog.interval) RETURNS pg_catalog.interval LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF ttl <= '0' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'ttl must be greater than zero', HINT = 'To end a lease, use dlock_release().';
    END IF;
    RAISE invalid_parameter_value USING MESSAGE = 'ttl is longer than "dlock.max_ttl"',
        DETAIL = format('The limit is %s seconds.', extract(epoch FROM _dlock.max_ttl())::int8), HINT = 'Pass a shorter ttl, and renew the lease while it is needed.';
END $$;
CREATE FUNCTION _dlock.ttl(ttl pg_catalog.interval) RETURNS pg_catalog.interval LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN ttl IS NULL THEN coalesce(nullif(pg_catalog.current_setting('dlock.default_ttl', true), ''), '30 s')::pg_catalog.interval
                WHEN ttl > '0' AND ttl <= _dlock.max_ttl() THEN ttl ELSE _dlock.bad_ttl(ttl) END;
CREATE FUNCTION _dlock.is_transactional() RETURNS pg_catalog.bool LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN true;
CREATE FUNCTION _dlock.session() RETURNS pg_catalog.text LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT to_hex(floor(extract(epoch FROM a.backend_start))::int8) || '.' || to_hex(a.pid) FROM pg_stat_get_activity(pg_backend_pid()) a);
END $$;
-- For functions that run as the owner of the tables: the role that has logged in, or that SET ROLE has set.
CREATE FUNCTION _dlock.caller() RETURNS pg_catalog.regrole LANGUAGE sql STABLE PARALLEL RESTRICTED
    RETURN pg_catalog.quote_ident(CASE pg_catalog.current_setting('role') WHEN 'none' THEN session_user ELSE pg_catalog.current_setting('role') END)::pg_catalog.regrole;

-- A sequence is set back if two sessions set it: the error that ends the block frees its lock before the transaction ends.
CREATE FUNCTION _dlock.move_tokens(above pg_catalog.int8) RETURNS pg_catalog.int8 LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOCK TABLE _dlock.token_lock IN EXCLUSIVE MODE;
    PERFORM setval('_dlock.token_seq', b.base) FROM _dlock.token_seq s, greatest(above, (date_part('epoch', clock_timestamp())::int8 - 1767225600) << 22) b (base) WHERE s.last_value < b.base;
    RAISE SQLSTATE 'LK000';
EXCEPTION WHEN SQLSTATE 'LK000' THEN
    RETURN nextval('_dlock.token_seq');
END $$;
-- Above all tokens before, what a row has seen, and the seconds since 2026-01-01 times 2^22.  So it is above all
-- tokens from before a dump, a standby or a backup was taken into use, whatever they know of them.
CREATE FUNCTION _dlock.next_token(above pg_catalog.int8) RETURNS pg_catalog.int8 LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN CASE WHEN pg_catalog.nextval('_dlock.token_seq') > greatest(above, (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())::pg_catalog.int8 - 1767225600) << 22)
                THEN pg_catalog.currval('_dlock.token_seq') ELSE _dlock.move_tokens(above) END;
CREATE FUNCTION _dlock.token(above pg_catalog.int8) RETURNS pg_catalog.int8
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    token int8 := _dlock.next_token(0);
BEGIN
    IF token <= above THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('a task has seen token %s, which is above those of this database', above),
            DETAIL = 'Its row was copied from another database.', HINT = 'Call dlock_bump_epoch() with that number as "above".';
    END IF;
    RETURN token;
END $$;

-- Whoever waits for tasks looks each second.
CREATE FUNCTION _dlock.signal(queue_id pg_catalog.int4) RETURNS pg_catalog.bool LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN true;
CREATE FUNCTION _dlock.signals(queue_id pg_catalog.int4) RETURNS pg_catalog.int8 LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN 0::pg_catalog.int8;
CREATE FUNCTION _dlock.signal_wait(queue_id pg_catalog.int4, seen pg_catalog.int8, until pg_catalog.timestamptz) RETURNS pg_catalog.void LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN pg_catalog.pg_sleep(least(greatest(pg_catalog.date_part('epoch', until - pg_catalog.clock_timestamp()), 0.01), 0.2));

CREATE VIEW _dlock.held_lock AS
    SELECT l.name, l.owner, l.role, l.token, l.expires_at > c.now AS is_held, l.granted_at, l.expires_at, l.ttl, l.payload
      FROM _dlock.lease l, LATERAL (SELECT _dlock.clock() AS now OFFSET 0) c WHERE l.free_at > c.now;
GRANT SELECT ON _dlock.held_lock TO PUBLIC;
CREATE FUNCTION _dlock.names_held(names pg_catalog.text[]) RETURNS SETOF _dlock.held_lock LANGUAGE sql VOLATILE STRICT PARALLEL RESTRICTED
BEGIN ATOMIC
    SELECT h.* FROM pg_catalog.unnest(names) WITH ORDINALITY n (name, i) JOIN _dlock.held_lock h ON h.name = n.name ORDER BY n.i, h.token;
END;
CREATE FUNCTION _dlock.owner_held(owner pg_catalog.text) RETURNS SETOF _dlock.held_lock LANGUAGE sql VOLATILE STRICT PARALLEL RESTRICTED
BEGIN ATOMIC
    SELECT h.* FROM _dlock.held_lock h WHERE h.owner = $1 ORDER BY h.name;
END;

CREATE FUNCTION _dlock.refuse(what pg_catalog.text) RETURNS pg_catalog.int8 LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RAISE feature_not_supported USING MESSAGE = pg_catalog.format('%s needs the extension dlock', what),
        DETAIL = 'This is the plain edition, which keeps leases in a table.', HINT = 'The extension can be created beside it, on a server that loads its library.';
END $$;

-- At the commit a grant or renewal begins to count.  It should not be older than others wait for it, and must not have ended before.
CREATE FUNCTION _dlock.at_commit() RETURNS pg_catalog.trigger LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER AS $$
DECLARE
    now pg_catalog.timestamptz := _dlock.clock();
    age pg_catalog.interval := now OPERATOR(pg_catalog.-) (new.expires_at OPERATOR(pg_catalog.-) new.ttl);
BEGIN
    IF age OPERATOR(pg_catalog.<) '5 s' THEN
        RETURN NULL;
    ELSIF NOT EXISTS (SELECT FROM _dlock.lease l WHERE ROW(l.name, l.slot, l.token, l.expires_at) OPERATOR(pg_catalog.=) ROW(new.name, new.slot, new.token, new.expires_at)) THEN
        RETURN NULL;                                        -- released since, or renewed
    ELSIF now OPERATOR(pg_catalog.>=) new.expires_at THEN
        RAISE EXCEPTION USING ERRCODE = 'LK002', MESSAGE = pg_catalog.format('lease on lock "%s" with token %s has ended before its transaction', new.name, new.token),
            DETAIL = 'A grant or a renewal counts from the commit on.', HINT = 'Acquire and renew leases in transactions of their own.';
    END IF;
    RAISE WARNING USING ERRCODE = '25001', MESSAGE = pg_catalog.format('lease on lock "%s" is committed %s s after its grant or renewal', new.name, pg_catalog.date_part('epoch', age)::pg_catalog.int8),
        DETAIL = 'Until now others waited, and did not see it.', HINT = 'Acquire and renew leases in transactions of their own.';
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER at_commit AFTER UPDATE OF ttl ON _dlock.lease DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (old.expires_at OPERATOR(pg_catalog.<>) new.expires_at) EXECUTE FUNCTION _dlock.at_commit();

----------------------------------------------------------------------------
-- Requests
----------------------------------------------------------------------------

CREATE FUNCTION _dlock.key(name pg_catalog.text) RETURNS pg_catalog.int8 LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN pg_catalog.hashtextextended(name, 1701602316);
-- Does no call wait for this lock?  Not to be asked by one that does: it keeps its place in "since".
CREATE FUNCTION _dlock.is_first(name pg_catalog.text) RETURNS pg_catalog.bool LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN CASE WHEN pg_catalog.pg_try_advisory_lock_shared(_dlock.key(name)) THEN pg_catalog.pg_advisory_unlock_shared(_dlock.key(name)) ELSE false END;

-- Whether a request is valid, and of the kind that does not wait.
CREATE FUNCTION _dlock.is_usual(name pg_catalog.text, owner pg_catalog.text, wait pg_catalog.interval, mode pg_catalog.text, permits pg_catalog.int4, reentry pg_catalog.text,
    bind pg_catalog.text, lock_delay pg_catalog.interval, min_hold pg_catalog.interval, payload pg_catalog.jsonb, keep pg_catalog.interval) RETURNS pg_catalog.bool
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN pg_catalog.octet_length(name) BETWEEN 1 AND 255 AND pg_catalog.octet_length(owner) BETWEEN 1 AND 255 AND wait = '0' AND mode = 'exclusive'
       AND permits IS NULL AND reentry IN ('deny', 'count', 'return') AND bind = 'none' AND lock_delay = '0' AND min_hold = '0' AND payload IS NULL AND keep = '0';

-- Make a free row a lease.  "is_sure": the caller has found out that nothing is in the way; else this is the only row of a lock that nobody waits for, or nothing happens.
CREATE FUNCTION _dlock.hold(r _dlock.place, slot pg_catalog.int4, is_sure pg_catalog.bool) RETURNS pg_catalog.int8 LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
#variable_conflict use_variable
DECLARE
    now pg_catalog.timestamptz := _dlock.clock();
    got pg_catalog.int8;
BEGIN
    UPDATE _dlock.lease x
       SET holds = 1, token = _dlock.next_token(x.token), granted_at = now, expires_at = now OPERATOR(pg_catalog.+) r.ttl,
           free_at = now OPERATOR(pg_catalog.+) r.ttl OPERATOR(pg_catalog.+) r.lock_delay, role = r.role, permits = r.permits, ttl = r.ttl,
           lock_delay = r.lock_delay, min_hold = r.min_hold, mode = r.mode, owner = r.owner, payload = r.payload
     WHERE x.name OPERATOR(pg_catalog.=) r.name AND x.slot OPERATOR(pg_catalog.=) slot AND x.free_at OPERATOR(pg_catalog.<=) now
       AND (is_sure OR x.is_single AND NOT EXISTS (SELECT FROM _dlock.place p WHERE p.name OPERATOR(pg_catalog.=) x.name)
                        AND (r.since IS NOT NULL OR _dlock.is_first(x.name)))
    RETURNING x.token INTO got;
    RETURN got;
END $$;

-- Names that are no longer used go: each new one looks at some block of the table.
CREATE FUNCTION _dlock.sweep() RETURNS pg_catalog.void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    block pg_catalog.int8 := floor(random() * pg_relation_size('_dlock.lease') / current_setting('block_size')::int8);
    l _dlock.lease;
BEGIN
    -- Row by row: for one DELETE the planner has scanned the whole table.
    FOR l IN SELECT * FROM _dlock.lease x WHERE x.ctid >= format('(%s,0)', block)::tid AND x.ctid < format('(%s,0)', block + 1)::tid
               AND x.free_at < _dlock.clock() - interval '1 h' AND current_setting('transaction_isolation') = 'read committed' FOR UPDATE SKIP LOCKED LOOP
        DELETE FROM _dlock.lease x WHERE x.name = l.name AND x.slot = l.slot AND (l.slot > 1 OR NOT EXISTS (SELECT FROM _dlock.lease o WHERE o.name = l.name AND o.slot > 1));
    END LOOP;
END $$;

-- Grant a lease, or enter one again; NULL if it is refused.  Then the request has a place, if it is to keep one.
CREATE FUNCTION _dlock.grant(r _dlock.place, keep pg_catalog.interval) RETURNS pg_catalog.int8 LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now timestamptz := _dlock.clock();
    is_locked bool := false;
    got int8;
    l record;
BEGIN
    SELECT p.id, coalesce(p.since, r.since) INTO r.id, r.since
      FROM (VALUES (1)) one LEFT JOIN _dlock.place p ON p.name = r.name AND p.owner = r.owner AND p.role = r.role AND p.until > now;
    WHILE got IS NULL LOOP
        SELECT count(*) FILTER (WHERE is_busy) AS holders, bool_and(x.mode = 'shared') FILTER (WHERE is_busy) AS all_shared,
               max(x.permits) FILTER (WHERE is_busy) AS permits, bool_or(is_own) AS is_own, max(x.token) FILTER (WHERE is_own AND x.expires_at > now) AS held,
               max(x.mode) FILTER (WHERE is_own) AS held_mode, min(x.slot) FILTER (WHERE NOT is_busy) AS free, max(x.slot) AS slots
          INTO l FROM _dlock.lease x, LATERAL (SELECT x.free_at > now AS is_busy, x.free_at > now AND x.owner = r.owner AND x.role = r.role AS is_own) b
         WHERE x.name = r.name;
        IF l.holders > 0 AND l.permits IS DISTINCT FROM r.permits THEN
            RAISE invalid_parameter_value USING MESSAGE = format('lock "%s" has %s permits, not %s', r.name, coalesce(l.permits::text, 'no'), coalesce(r.permits::text, 'none')),
                DETAIL = 'The first request sets the number, which stays as long as the lock is held.', HINT = 'Ask for it in the same way, or wait until it is free.';
        ELSIF l.held IS NOT NULL AND r.reentry <> 'deny' THEN
            IF l.held_mode NOT IN (r.mode, 'exclusive') THEN
                RAISE object_not_in_prerequisite_state USING MESSAGE = format('lease on lock "%s" does not cover the mode "%s"', r.name, r.mode),
                    HINT = 'Release the lease, and acquire the lock in the stronger mode.';
            END IF;
            now := _dlock.clock();
            UPDATE _dlock.lease x
               SET holds = x.holds + (r.reentry = 'count')::int4, ttl = CASE WHEN now + r.ttl > x.expires_at THEN r.ttl ELSE x.ttl END,
                   expires_at = greatest(x.expires_at, now + r.ttl), free_at = greatest(x.expires_at, now + r.ttl) + x.lock_delay,
                   payload = CASE WHEN r.reentry = 'return' THEN coalesce(r.payload, x.payload) ELSE x.payload END
             WHERE x.name = r.name AND x.token = l.held AND x.expires_at > _dlock.clock() AND x.holds > 0 RETURNING x.token INTO got;
        ELSIF l.is_own OR l.holders > 0 AND NOT (r.mode = 'shared' AND l.all_shared OR coalesce(l.holders < r.permits, false))
            OR EXISTS (SELECT FROM _dlock.place p WHERE p.name = r.name AND p.until > now AND p.id < coalesce(r.id, p.id + 1) AND NOT (r.mode = 'shared' AND p.mode = 'shared'))
            OR r.since IS NULL AND NOT _dlock.is_first(r.name) THEN
            EXIT;
        ELSIF is_locked THEN
            IF l.free IS NULL THEN
                INSERT INTO _dlock.lease (name, slot, free_at) VALUES (r.name, l.slots + 1, now);
                UPDATE _dlock.lease x SET is_single = false WHERE x.name = r.name AND x.slot = 1;
            END IF;
            got := _dlock.hold(r, coalesce(l.free, l.slots + 1), true);
        ELSE
            -- Slot 1 first: then nobody adds another.  From here on "now" is the time at which these were free.
            IF l.slots IS NULL THEN
                PERFORM _dlock.sweep();
                INSERT INTO _dlock.lease (name, free_at) VALUES (r.name, now) ON CONFLICT ON CONSTRAINT _dlock_lease_pkey DO NOTHING;
            END IF;
            PERFORM FROM _dlock.lease x WHERE x.name = r.name AND x.slot = 1 FOR UPDATE;
            is_locked := FOUND;
            now := _dlock.clock();
            PERFORM FROM _dlock.lease x WHERE x.name = r.name AND x.free_at <= now ORDER BY x.slot FOR UPDATE;
        END IF;
    END LOOP;
    DELETE FROM _dlock.place p WHERE p.name = r.name AND (p.id = r.id OR p.until <= now);
    IF got IS NULL AND keep > '0' THEN
        r.id := coalesce(r.id, nextval('_dlock.token_seq'));
        r.since := coalesce(r.since, now);
        r.until := now + keep;
        INSERT INTO _dlock.place VALUES (r.*) ON CONFLICT DO NOTHING;
    END IF;
    RETURN got;
END $$;

-- A try that was in vain is rolled back: an UPDATE that has waited for another transaction keeps its row locked, whether it changes it or not.
CREATE FUNCTION _dlock.try(names pg_catalog.text[], owners pg_catalog.text[], r _dlock.place, keep pg_catalog.interval, all_or_none pg_catalog.bool) RETURNS pg_catalog.int8[]
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    n pg_catalog.record;
    got pg_catalog.int8[] := '{}';
BEGIN
    FOR n IN SELECT x.name, coalesce(x.owner, r.owner) AS owner, x.i FROM unnest(names, owners) WITH ORDINALITY x (name, owner, i) ORDER BY x.name COLLATE "C", x.i LOOP
        r.name := n.name;
        r.owner := n.owner;
        got[n.i] := coalesce(_dlock.hold(r, 1, false), _dlock.grant(r, keep));
        IF all_or_none AND got[n.i] IS NULL THEN
            RAISE SQLSTATE 'LK000';
        END IF;
    END LOOP;
    RETURN got;
EXCEPTION WHEN SQLSTATE 'LK000' THEN
    RETURN NULL;                                            -- and no row is locked
END $$;

CREATE FUNCTION _dlock.check_arrays(names pg_catalog.text[], count pg_catalog.int4) RETURNS pg_catalog.void LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF names IS NULL OR count IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'arrays must not be null';
    ELSIF array_ndims(names) > 1 OR cardinality(names) <> count THEN
        RAISE invalid_parameter_value USING MESSAGE = 'invalid array of lock names', DETAIL = format('It has %s names, for %s entries.', cardinality(names), count),
            HINT = 'Pass one-dimensional arrays of the same length, with each name once if all are to be acquired.';
    END IF;
END $$;

-- Until when a call may wait; NULL: it does not.
CREATE FUNCTION _dlock.wait_until(wait pg_catalog.interval) RETURNS pg_catalog.timestamptz LANGUAGE plpgsql VOLATILE PARALLEL SAFE AS $$
BEGIN
    IF _dlock.check_span(coalesce(wait, '36500 days'), 'wait', '36500 days') = interval '0' THEN
        RETURN NULL;
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE feature_not_supported USING MESSAGE = format('cannot wait for a lock at isolation level "%s"', current_setting('transaction_isolation')),
            DETAIL = 'The transaction does not see what others commit meanwhile.', HINT = 'Use READ COMMITTED, or call again in another transaction.';
    END IF;
    RETURN _dlock.clock() + coalesce(wait, '36500 days');
END $$;

CREATE FUNCTION _dlock.request(names pg_catalog.text[], owners pg_catalog.text[], r _dlock.place, wait pg_catalog.interval, bind pg_catalog.text, keep pg_catalog.interval, is_all pg_catalog.bool)
    RETURNS pg_catalog.int8[] LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
DECLARE
    until timestamptz := _dlock.wait_until(wait);
    got int8[];
    nap float8 := 0.002;
BEGIN
    r.role := _dlock.caller();
    r.since := NULL;
    r.ttl := _dlock.ttl(r.ttl);
    r.owner := coalesce(r.owner, _dlock.session());
    PERFORM _dlock.check_arrays(names, CASE WHEN is_all THEN (SELECT greatest(1, count(DISTINCT x)) FROM unnest(names) x)::int4 ELSE cardinality(owners) END);
    PERFORM _dlock.check_text(x.name, 'lock name', 255), _dlock.check_text(coalesce(x.owner, r.owner), 'lease owner', 255) FROM unnest(names, owners) x (name, owner);
    PERFORM _dlock.check_span(keep, 'keep', _dlock.max_ttl()), _dlock.check_span(r.lock_delay, 'lock_delay', _dlock.max_ttl()), _dlock.check_span(r.min_hold, 'min_hold', _dlock.max_ttl());
    PERFORM _dlock.refuse(format('%s "%s"', x.what, x.value)) FROM (VALUES ('mode', r.mode), ('bind', bind)) x (what, value)
      WHERE x.value IN ('NL', 'CR', 'CW', 'PR', 'PW', 'EX', 'session', 'transaction');
    IF r.mode IS NULL OR r.reentry IS NULL OR bind IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'parameters "mode", "reentry" and "bind" must not be null';
    ELSIF r.mode NOT IN ('exclusive', 'shared') OR r.reentry NOT IN ('deny', 'count', 'return') OR bind <> 'none' THEN
        RAISE invalid_parameter_value USING MESSAGE = format('invalid value among mode "%s", reentry "%s" and bind "%s"', r.mode, r.reentry, bind),
            HINT = 'Valid are the modes "exclusive" and "shared", "deny", "count" and "return", and "none".';
    ELSIF r.permits < 1 OR r.permits IS NOT NULL AND r.mode = 'shared' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'permits must be greater than zero, and the mode "exclusive"',
            DETAIL = format('The number given is %s, and the mode "%s".', r.permits, r.mode);
    ELSIF pg_column_size(r.payload) > 1028 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'payload is too long', DETAIL = format('It has %s bytes; the limit is 1024.', pg_column_size(r.payload) - 4);
    END IF;
    r.mode := CASE WHEN r.permits IS NULL THEN r.mode ELSE 'permit' END;

    IF until IS NOT NULL THEN
        IF r.reentry = 'deny' AND EXISTS (SELECT FROM _dlock.lease l WHERE l.name = ANY (names) AND l.owner = r.owner AND l.role = r.role AND l.expires_at > _dlock.clock()) THEN
            RAISE deadlock_detected USING MESSAGE = 'deadlock detected', DETAIL = format('Owner "%s" waits for a lock that it holds.', r.owner),
                HINT = 'Let it enter its lease again with reentry => ''count'' or ''return''.';
        END IF;
        BEGIN
            PERFORM set_config('lock_timeout', least(ceil(extract(epoch FROM greatest(until - _dlock.clock(), '1 ms')) * 1000), 2147483647)::text, true);
            PERFORM pg_advisory_xact_lock(x.key) FROM (SELECT DISTINCT _dlock.key(x) AS key FROM unnest(names) x ORDER BY 1) x;
            r.since := _dlock.clock();
            LOOP
                got := _dlock.try(names, owners, r, '0', true);
                IF got IS NOT NULL THEN
                    RETURN got;
                ELSIF _dlock.clock() >= until THEN
                    RAISE lock_not_available;
                END IF;
                PERFORM pg_sleep(greatest(0.001, least(nap, extract(epoch FROM until - _dlock.clock()), extract(epoch FROM
                    (SELECT min(l.free_at) FROM _dlock.lease l WHERE l.name = ANY (names) AND l.free_at > _dlock.clock()) - _dlock.clock()))));
                nap := least(nap * 1.5, 0.05);
            END LOOP;
        EXCEPTION WHEN lock_not_available THEN
            IF keep = '0' THEN
                DELETE FROM _dlock.place p WHERE p.name = ANY (names) AND p.owner = r.owner AND p.role = r.role;
                RETURN NULL;
            END IF;
            r.since := NULL;
        END;
    END IF;
    RETURN _dlock.try(names, owners, r, keep, is_all AND cardinality(names) > 1);
END $$;

CREATE FUNCTION @extschema@.dlock_acquire(name pg_catalog.text, owner pg_catalog.text DEFAULT NULL, ttl pg_catalog.interval DEFAULT NULL, wait pg_catalog.interval DEFAULT '0',
    mode pg_catalog.text DEFAULT 'exclusive', permits pg_catalog.int4 DEFAULT NULL, reentry pg_catalog.text DEFAULT 'deny', bind pg_catalog.text DEFAULT 'none',
    lock_delay pg_catalog.interval DEFAULT '0', min_hold pg_catalog.interval DEFAULT '0', payload pg_catalog.jsonb DEFAULT NULL, keep pg_catalog.interval DEFAULT '0')
    RETURNS pg_catalog.int8 LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET lock_timeout = '5 s' AS $$
DECLARE
    r _dlock.place := ROW(NULL, name, NULL, NULL, _dlock.caller(), owner, _dlock.ttl(ttl), mode, permits, reentry, lock_delay, min_hold, payload);
BEGIN
    IF _dlock.is_usual(name, owner, wait, mode, permits, reentry, bind, lock_delay, min_hold, payload, keep) THEN
        RETURN coalesce(_dlock.hold(r, 1, false), _dlock.grant(r, keep));
    END IF;
    RETURN (_dlock.request(ARRAY[name], NULL, r, wait, bind, keep, true))[1];
END $$;
CREATE FUNCTION @extschema@.dlock_acquire_all(names pg_catalog.text[], owner pg_catalog.text DEFAULT NULL, ttl pg_catalog.interval DEFAULT NULL,
    wait pg_catalog.interval DEFAULT '0', mode pg_catalog.text DEFAULT 'exclusive', reentry pg_catalog.text DEFAULT 'deny', bind pg_catalog.text DEFAULT 'none',
    lock_delay pg_catalog.interval DEFAULT '0', min_hold pg_catalog.interval DEFAULT '0', payload pg_catalog.jsonb DEFAULT NULL)
    RETURNS pg_catalog.int8[] LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN _dlock.request(names, NULL, ROW(NULL, NULL, NULL, NULL, NULL, owner, ttl, mode, NULL, reentry, lock_delay, min_hold, payload)::_dlock.place, wait, bind, '0', true);
CREATE FUNCTION @extschema@.dlock_acquire_each(names pg_catalog.text[], owners pg_catalog.text[], ttl pg_catalog.interval DEFAULT NULL,
    mode pg_catalog.text DEFAULT 'exclusive', permits pg_catalog.int4 DEFAULT NULL, reentry pg_catalog.text DEFAULT 'deny',
    lock_delay pg_catalog.interval DEFAULT '0', min_hold pg_catalog.interval DEFAULT '0', keep pg_catalog.interval DEFAULT '0')
    RETURNS pg_catalog.int8[] LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN _dlock.request(names, owners, ROW(NULL, NULL, NULL, NULL, NULL, NULL, ttl, mode, permits, reentry, lock_delay, min_hold, NULL)::_dlock.place, '0', 'none', keep, false);

CREATE FUNCTION _dlock.is_of(owner pg_catalog.text, client pg_catalog.text) RETURNS pg_catalog.bool LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN owner = client OR pg_catalog.starts_with(owner, client || '#');
-- The places of a client that have their turn.  The call does not wait for longer than they are kept already.
CREATE FUNCTION @extschema@.dlock_take(client pg_catalog.text, wait pg_catalog.interval, keep pg_catalog.interval,
    OUT name pg_catalog.text, OUT owner pg_catalog.text, OUT token pg_catalog.int8) RETURNS SETOF pg_catalog.record
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 10 SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
#variable_conflict use_column
DECLARE
    until timestamptz := _dlock.wait_until(wait);
    me regrole := _dlock.caller();
    r _dlock.place;
    found_any bool := until IS NULL;
    found_now bool;
    nap float8 := 0.002;
BEGIN
    PERFORM _dlock.check_text(client, 'client', 255), _dlock.check_span(keep, 'keep', _dlock.max_ttl());
    until := least(until, (SELECT min(p.until) - interval '1 s' FROM _dlock.place p WHERE _dlock.is_of(p.owner, client) AND p.role = me));
    LOOP
        found_now := false;
        FOR r IN SELECT DISTINCT ON (p.name) * FROM _dlock.place p WHERE _dlock.is_of(p.owner, client) AND p.role = me AND p.until > _dlock.clock() ORDER BY p.name, p.id LOOP
            token := (_dlock.try(ARRAY[r.name], NULL, r, '0', true))[1];
            IF token IS NOT NULL THEN
                name := r.name;
                owner := r.owner;
                found_now := true;
                RETURN NEXT;
            END IF;
        END LOOP;
        found_any := found_any OR found_now;
        EXIT WHEN NOT found_now AND (found_any OR _dlock.clock() >= until);
        PERFORM pg_sleep(nap) WHERE NOT found_now;
        nap := least(nap * 1.5, 0.05);
    END LOOP;
    UPDATE _dlock.place p SET until = _dlock.clock() + keep WHERE _dlock.is_of(p.owner, client) AND p.role = me AND p.until > _dlock.clock();
END $$;

----------------------------------------------------------------------------
-- Renewals and releases
----------------------------------------------------------------------------

-- May a role change the leases of another one?  No superuser: one is the caller in maintenance, too, which runs functions of others.
CREATE FUNCTION _dlock.is_member(me pg_catalog.regrole, role pg_catalog.regrole) RETURNS pg_catalog.bool LANGUAGE sql STABLE PARALLEL SAFE
    RETURN pg_catalog.pg_has_role(me, role, 'USAGE') AND NOT (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.oid = me);
-- A lease is meant by its token, or by the caller's own owner.
CREATE FUNCTION _dlock.is_meant(lease _dlock.lease, token pg_catalog.int8, owner pg_catalog.text, me pg_catalog.regrole) RETURNS pg_catalog.bool LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN token IS NULL THEN lease.owner = owner AND lease.role = me ELSE lease.token = token AND (lease.role = me OR _dlock.is_member(me, lease.role)) END;
-- What a release leaves of the holds.
CREATE FUNCTION _dlock.holds_left(lease _dlock.lease, act pg_catalog.text, now pg_catalog.timestamptz) RETURNS pg_catalog.int8 LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN act = 'end' OR lease.expires_at <= now THEN 0 ELSE lease.holds - 1 END;
-- Until when it is renewed: never for less, unless it gets another ttl.
CREATE FUNCTION _dlock.renewed_to(lease _dlock.lease, ttl pg_catalog.interval, now pg_catalog.timestamptz) RETURNS pg_catalog.timestamptz LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN ttl IS NULL THEN greatest(lease.expires_at, now + lease.ttl) ELSE now + ttl END;

-- "renew" a lease, "release" it, or "end" all its holds.  False if there is none that the caller may change, or, if the caller asks for this one alone, an error.
CREATE FUNCTION _dlock.change(name pg_catalog.text, token pg_catalog.int8, owner pg_catalog.text, act pg_catalog.text, ttl pg_catalog.interval, is_alone pg_catalog.bool) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET lock_timeout = '5 s' AS $$
#variable_conflict use_variable
DECLARE
    me pg_catalog.regrole := _dlock.caller();
    now pg_catalog.timestamptz := _dlock.clock();
    done pg_catalog.bool;
BEGIN
    IF act OPERATOR(pg_catalog.=) 'renew' THEN
        UPDATE _dlock.lease x
           SET ttl = coalesce(ttl, x.ttl), expires_at = _dlock.renewed_to(x, ttl, now), free_at = _dlock.renewed_to(x, ttl, now) OPERATOR(pg_catalog.+) x.lock_delay
         -- Not "now": who has waited for a release must not go by a time before it.
         WHERE x.name OPERATOR(pg_catalog.=) name AND x.expires_at OPERATOR(pg_catalog.>) _dlock.clock() AND x.holds OPERATOR(pg_catalog.>) 0 AND _dlock.is_meant(x, token, owner, me);
        done := FOUND;
    ELSE
        -- What an unclean end has closed is opened; that is no release.
        UPDATE _dlock.lease x
           SET holds = _dlock.holds_left(x, act, now),
               expires_at = CASE WHEN _dlock.holds_left(x, act, now) OPERATOR(pg_catalog.>) 0 THEN x.expires_at ELSE least(x.expires_at, now) END,
               free_at = CASE WHEN _dlock.holds_left(x, act, now) OPERATOR(pg_catalog.>) 0 THEN x.free_at
                              WHEN x.expires_at OPERATOR(pg_catalog.>) now THEN greatest(now, x.granted_at OPERATOR(pg_catalog.+) x.min_hold) ELSE now END
         WHERE x.name OPERATOR(pg_catalog.=) name AND x.free_at OPERATOR(pg_catalog.>) now AND x.holds OPERATOR(pg_catalog.>) 0 AND _dlock.is_meant(x, token, owner, me)
        RETURNING x.holds OPERATOR(pg_catalog.>) 0 OR x.expires_at OPERATOR(pg_catalog.=) now INTO done;
    END IF;
    RETURN coalesce(done OR is_alone AND _dlock.change_other(name, token, owner, act, ttl), false);
END $$;
-- With bad arguments, with a lease of a role that the caller is a member of, or with nothing to change.
CREATE FUNCTION _dlock.change_other(name pg_catalog.text, token pg_catalog.int8, owner pg_catalog.text, act pg_catalog.text, ttl pg_catalog.interval) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM _dlock.check_text(name, 'lock name', 255);
    IF owner IS NOT NULL THEN
        PERFORM _dlock.check_text(owner, 'lease owner', 255);
        RETURN _dlock.change(name, x.token, NULL, act, ttl, false) FROM _dlock.lease x
                WHERE x.name = name AND x.owner = owner AND x.free_at > _dlock.clock() AND x.role <> _dlock.caller() AND _dlock.is_member(_dlock.caller(), x.role) ORDER BY x.expires_at DESC LIMIT 1;
    ELSIF _dlock.check_token(token) IN (SELECT x.token FROM _dlock.lease x WHERE x.name = name AND x.free_at > _dlock.clock() AND x.role <> _dlock.caller() AND NOT _dlock.is_member(_dlock.caller(), x.role)) THEN
        RAISE insufficient_privilege USING MESSAGE = format('permission denied for the lease on lock "%s" with token %s', name, token),
            HINT = 'Only the role that acquired it and its members can renew or release it; a superuser can call dlock_force_release().';
    END IF;
    RETURN false;
END $$;

CREATE FUNCTION @extschema@.dlock_renew(name pg_catalog.text, owner pg_catalog.text DEFAULT NULL, ttl pg_catalog.interval DEFAULT NULL) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
    RETURN _dlock.change(name, NULL, coalesce(owner, _dlock.session()), 'renew', CASE WHEN ttl IS NOT NULL THEN _dlock.ttl(ttl) END, true);
END $$;
CREATE FUNCTION @extschema@.dlock_renew_token(name pg_catalog.text, token pg_catalog.int8, ttl pg_catalog.interval DEFAULT NULL) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
    RETURN _dlock.change(name, token, NULL, 'renew', CASE WHEN ttl IS NOT NULL THEN _dlock.ttl(ttl) END, true);
END $$;
CREATE FUNCTION @extschema@.dlock_release(name pg_catalog.text, owner pg_catalog.text DEFAULT NULL) RETURNS pg_catalog.bool LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
    RETURN _dlock.change(name, NULL, coalesce(owner, _dlock.session()), 'release', NULL, true);
END $$;
CREATE FUNCTION @extschema@.dlock_release_token(name pg_catalog.text, token pg_catalog.int8) RETURNS pg_catalog.bool LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
    RETURN _dlock.change(name, token, NULL, 'release', NULL, true);
END $$;

-- Many, in the order of names, so that two calls do not wait for each other.
CREATE FUNCTION _dlock.each(names pg_catalog.text[], tokens pg_catalog.int8[], act pg_catalog.text, ttl pg_catalog.interval) RETURNS pg_catalog.bool[]
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    n record;
    done bool[] := '{}';
BEGIN
    PERFORM _dlock.check_arrays(names, cardinality(tokens));
    PERFORM _dlock.check_text(x.name, 'lock name', 255), _dlock.check_token(x.token) FROM unnest(names, tokens) x (name, token);
    FOR n IN SELECT x.name, x.token, x.i FROM unnest(names, tokens) WITH ORDINALITY x (name, token, i) ORDER BY x.name COLLATE "C", x.i LOOP
        done[n.i] := _dlock.change(n.name, n.token, NULL, act, CASE WHEN ttl IS NOT NULL THEN _dlock.ttl(ttl) END, false);
    END LOOP;
    RETURN done;
END $$;
CREATE FUNCTION @extschema@.dlock_renew_each(names pg_catalog.text[], tokens pg_catalog.int8[], ttl pg_catalog.interval DEFAULT NULL) RETURNS pg_catalog.bool[] LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN _dlock.each(names, tokens, 'renew', ttl);
CREATE FUNCTION @extschema@.dlock_release_each(names pg_catalog.text[], tokens pg_catalog.int8[]) RETURNS pg_catalog.bool[] LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN _dlock.each(names, tokens, 'release', NULL);
-- All leases of an owner: the caller's own, or else those of roles that the caller is a member of.  With "end" its places go, too.
CREATE FUNCTION _dlock.of_owner(owner pg_catalog.text, act pg_catalog.text, ttl pg_catalog.interval) RETURNS pg_catalog.int4
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM _dlock.check_text(owner, 'lease owner', 255), _dlock.ttl(ttl);
    DELETE FROM _dlock.place p WHERE act = 'end' AND _dlock.is_of(p.owner, of_owner.owner) AND p.role = _dlock.caller();
    RETURN (SELECT cardinality(array_remove(_dlock.each(coalesce(array_agg(x.name), '{}'), coalesce(array_agg(x.token), '{}'), act, ttl), false))
              FROM (SELECT h.name, h.token, rank() OVER (ORDER BY h.role <> _dlock.caller()) FROM _dlock.held_lock h
                     WHERE _dlock.is_of(h.owner, of_owner.owner) AND h.is_held AND (h.role = _dlock.caller() OR _dlock.is_member(_dlock.caller(), h.role))) x WHERE x.rank = 1);
END $$;
CREATE FUNCTION @extschema@.dlock_renew_all(owner pg_catalog.text DEFAULT NULL, ttl pg_catalog.interval DEFAULT NULL) RETURNS pg_catalog.int4 LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN _dlock.of_owner(coalesce(owner, _dlock.session()), 'renew', ttl);
CREATE FUNCTION @extschema@.dlock_release_all(owner pg_catalog.text DEFAULT NULL) RETURNS pg_catalog.int4 LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN _dlock.of_owner(coalesce(owner, _dlock.session()), 'end', NULL);
CREATE FUNCTION @extschema@.dlock_force_release(name pg_catalog.text, reason pg_catalog.text) RETURNS pg_catalog.int4
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
DECLARE
    l _dlock.lease;
    now timestamptz := _dlock.clock();
    done int4 := 0;
BEGIN
    PERFORM _dlock.check_text(name, 'lock name', 255), _dlock.check_text(trim(reason), 'reason', 10000);
    FOR l IN SELECT * FROM _dlock.lease x WHERE x.name = dlock_force_release.name AND x.free_at > now ORDER BY x.slot FOR UPDATE LOOP
        UPDATE _dlock.lease x SET expires_at = least(x.expires_at, now), free_at = now + CASE WHEN x.expires_at > now THEN x.lock_delay ELSE '0' END WHERE x.name = l.name AND x.slot = l.slot;
        RAISE LOG 'lease on lock "%" was released by force', name
            USING DETAIL = format('Owner "%s", role "%s", token %s; by role "%s": %s', l.owner, l.role, l.token, _dlock.caller(), reason);
        done := done + 1;
    END LOOP;
    RETURN done;
END $$;
REVOKE ALL ON FUNCTION @extschema@.dlock_force_release(pg_catalog.text, pg_catalog.text) FROM PUBLIC;
CREATE FUNCTION @extschema@.dlock_bump_epoch(reason pg_catalog.text, above pg_catalog.int8 DEFAULT NULL) RETURNS pg_catalog.int8
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM _dlock.check_text(trim(reason), 'reason', 10000);
    IF above >= 9007199254740992 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'tokens must remain below 2^53', DETAIL = format('The number given is %s.', above);
    END IF;
    RAISE LOG 'fencing tokens were moved forward' USING DETAIL = format('Above %s, by role "%s": %s', above, _dlock.caller(), reason);
    RETURN _dlock.next_token(above);
END $$;
REVOKE ALL ON FUNCTION @extschema@.dlock_bump_epoch(pg_catalog.text, pg_catalog.int8) FROM PUBLIC;
CREATE FUNCTION @extschema@.dlock_acquire_path(path pg_catalog.text, owner pg_catalog.text DEFAULT NULL, ttl pg_catalog.interval DEFAULT NULL,
    wait pg_catalog.interval DEFAULT '0', mode pg_catalog.text DEFAULT 'exclusive', reentry pg_catalog.text DEFAULT 'deny', bind pg_catalog.text DEFAULT 'none',
    lock_delay pg_catalog.interval DEFAULT '0', min_hold pg_catalog.interval DEFAULT '0', payload pg_catalog.jsonb DEFAULT NULL) RETURNS pg_catalog.int8
    LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN _dlock.refuse('dlock_acquire_path()');
CREATE FUNCTION @extschema@.dlock_convert(name pg_catalog.text, token pg_catalog.int8, mode pg_catalog.text, wait pg_catalog.interval DEFAULT '0')
    RETURNS pg_catalog.int8 LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN _dlock.refuse('dlock_convert()');

----------------------------------------------------------------------------
-- Looking
----------------------------------------------------------------------------

CREATE VIEW @extschema@.dlock_leases AS
    SELECT l.name, l.owner, l.token, l.mode, l.permits, l.holds, CASE WHEN l.expires_at OPERATOR(pg_catalog.>) c.now THEN 'held' ELSE 'closed' END AS state,
           'none'::pg_catalog.text AS bind, NULL::pg_catalog.int4 AS pid, l.role, l.granted_at, l.expires_at,
           greatest(l.expires_at OPERATOR(pg_catalog.-) c.now, '0') AS remaining, l.ttl, l.payload
      FROM _dlock.lease l, LATERAL (SELECT _dlock.clock() AS now OFFSET 0) c WHERE l.free_at OPERATOR(pg_catalog.>) c.now;
GRANT SELECT ON @extschema@.dlock_leases TO PUBLIC;
CREATE FUNCTION @extschema@.dlock_lease(name pg_catalog.text) RETURNS SETOF @extschema@.dlock_leases
    LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM _dlock.check_text(name, 'lock name', 255);
    RETURN QUERY SELECT * FROM @extschema@.dlock_leases l WHERE l.name = dlock_lease.name;
END $$;
CREATE FUNCTION @extschema@.dlock_check(name pg_catalog.text, token pg_catalog.int8) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM _dlock.check_text(name, 'lock name', 255), _dlock.check_token(token);
    RETURN EXISTS (SELECT FROM _dlock.held_lock l WHERE l.name = dlock_check.name AND l.token = dlock_check.token AND l.is_held);
END $$;
CREATE FUNCTION @extschema@.dlock_watch(name pg_catalog.text, seen pg_catalog.int8, wait pg_catalog.interval DEFAULT NULL, OUT token pg_catalog.int8,
    OUT owner pg_catalog.text, OUT mode pg_catalog.text, OUT granted_at pg_catalog.timestamptz, OUT expires_at pg_catalog.timestamptz, OUT payload pg_catalog.jsonb)
    RETURNS pg_catalog.record LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    until timestamptz := _dlock.wait_until(wait);
BEGIN
    PERFORM _dlock.check_text(name, 'lock name', 255);
    LOOP
        SELECT l.token, l.owner, l.mode, l.granted_at, l.expires_at, l.payload INTO token, owner, mode, granted_at, expires_at, payload
          FROM @extschema@.dlock_leases l WHERE l.name = dlock_watch.name AND l.state = 'held' ORDER BY l.token DESC LIMIT 1;
        EXIT WHEN token IS DISTINCT FROM seen OR (_dlock.clock() < until) IS NOT TRUE;
        PERFORM pg_sleep(0.1);
    END LOOP;
END $$;
-- Kept places, and calls that wait.  Of these the owner is not known.
CREATE VIEW @extschema@.dlock_waiters AS
    SELECT w.name, w.owner, w.mode, w.permits, w.request, pg_catalog.row_number() OVER (PARTITION BY w.name ORDER BY w.request DESC, w.since)::pg_catalog.int4 AS "position",
           w.since, _dlock.clock() OPERATOR(pg_catalog.-) w.since AS waited, w.pid, w.role,
           ARRAY(SELECT l.owner FROM _dlock.lease l WHERE l.name OPERATOR(pg_catalog.=) w.name AND l.free_at OPERATOR(pg_catalog.>) _dlock.clock()) AS blocked_by, w.kept_until
      FROM (SELECT p.name, p.owner, p.mode, p.permits, 'place' AS request, p.since, NULL::pg_catalog.int4 AS pid, p.role, p.until AS kept_until
              FROM _dlock.place p WHERE p.until OPERATOR(pg_catalog.>) _dlock.clock()
            UNION ALL
            SELECT l.name, NULL, NULL, NULL, 'call', a.query_start, k.pid, a.usesysid::pg_catalog.regrole, NULL
              FROM pg_catalog.pg_locks k
              JOIN _dlock.lease l ON l.slot OPERATOR(pg_catalog.=) 1
               AND (k.classid::pg_catalog.int8 OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.|) k.objid::pg_catalog.int8 OPERATOR(pg_catalog.=) _dlock.key(l.name)
              LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) k.pid
             WHERE k.locktype OPERATOR(pg_catalog.=) 'advisory' AND k.objsubid OPERATOR(pg_catalog.=) 1 AND k.mode OPERATOR(pg_catalog.=) 'ExclusiveLock'
               AND k.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())) w;
GRANT SELECT ON @extschema@.dlock_waiters TO PUBLIC;

----------------------------------------------------------------------------
-- Fencing
----------------------------------------------------------------------------

CREATE VIEW @extschema@.dlock_fences AS SELECT m.resource, m.token, m.raised_at, m.raised_by FROM _dlock.fence_mark m;
GRANT SELECT ON @extschema@.dlock_fences TO PUBLIC;

-- The row of the mark is locked up to the end of the transaction: shared by those whose token is the mark, and by
-- whoever raises it for itself.  A pass that is live changes the row in any case, and is checked again at the commit.
CREATE FUNCTION _dlock.pass(resource pg_catalog.text, token pg_catalog.int8, live pg_catalog.bool) RETURNS pg_catalog.void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
#variable_conflict use_variable
DECLARE
    mark pg_catalog.int8 := (SELECT m.token FROM _dlock.fence_mark m WHERE m.resource = resource);
BEGIN
    PERFORM _dlock.check_text(resource, 'resource name', 255), _dlock.check_token(token);
    IF mark IS NULL OR mark < token THEN
        IF token > (SELECT s.last_value FROM _dlock.token_seq s) THEN
            IF token > (date_part('epoch', clock_timestamp())::int8 - 1767225590) << 22 THEN
                RAISE invalid_parameter_value USING MESSAGE = format('fencing token %s for resource "%s" has never been granted', token, resource),
                    DETAIL = 'No database has granted a token that is above its clock.', HINT = 'If the clock of the other server was ahead, call dlock_bump_epoch() here first.';
            END IF;
            PERFORM _dlock.next_token(token);               -- it is of another database: those to come are above it
        END IF;
        INSERT INTO _dlock.fence_mark AS m VALUES (resource, token, live, _dlock.clock(), _dlock.caller()::text) ON CONFLICT ON CONSTRAINT _dlock_fence_mark_pkey
            DO UPDATE SET token = token, is_live = live, raised_at = excluded.raised_at, raised_by = excluded.raised_by WHERE m.token < token;
    ELSIF live THEN
        UPDATE _dlock.fence_mark m SET is_live = true WHERE m.resource = resource AND m.token = token;
    END IF;
    SELECT m.token INTO mark FROM _dlock.fence_mark m WHERE m.resource = resource FOR SHARE;
    IF token < mark THEN
        RAISE EXCEPTION USING ERRCODE = 'LK001', MESSAGE = format('fencing token %s for resource "%s" is stale', token, resource),
            DETAIL = format('The resource has been fenced with token %s since.', mark), HINT = 'Stop the work, and acquire the lock again.';
    END IF;
    PERFORM _dlock.check_live(resource, token) WHERE live;
END $$;
CREATE FUNCTION _dlock.check_live(name pg_catalog.text, token pg_catalog.int8) RETURNS pg_catalog.void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM _dlock.lease l WHERE l.name = check_live.name AND l.token = check_live.token AND l.expires_at > _dlock.clock()) THEN
        RAISE EXCEPTION USING ERRCODE = 'LK002', MESSAGE = format('lease on lock "%s" with token %s is not held', name, token),
            DETAIL = 'It has expired, has been released, or was never granted.', HINT = 'Stop the work under this lease, and acquire the lock again.';
    END IF;
END $$;
CREATE FUNCTION _dlock.mark_at_commit() RETURNS pg_catalog.trigger LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM _dlock.check_live(new.resource, new.token) WHERE EXISTS (SELECT FROM _dlock.fence_mark m WHERE m.resource = new.resource AND m.token = new.token);
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT OR UPDATE ON _dlock.fence_mark DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (new.is_live)
    EXECUTE FUNCTION _dlock.mark_at_commit();

CREATE FUNCTION @extschema@.dlock_fence(resource pg_catalog.text, token pg_catalog.int8, live pg_catalog.bool DEFAULT false) RETURNS pg_catalog.void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM _dlock.pass(resource, token, live), set_config('dlock.tokens', concat_ws(',', format('"%s"=%s', replace(resource, '"', '""'), token),
        nullif(current_setting('dlock.tokens', true), '')), true);
END $$;
REVOKE ALL ON FUNCTION @extschema@.dlock_fence(pg_catalog.text, pg_catalog.int8, pg_catalog.bool) FROM PUBLIC;

-- The token that dlock.tokens has for a resource, or for * ; the first one counts.
CREATE FUNCTION _dlock.presented(resource pg_catalog.text) RETURNS pg_catalog.int8 LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
    setting pg_catalog.text := current_setting('dlock.tokens', true);
    item pg_catalog.text := '\s*(?:"((?:[^"]|"")*)"|([^\s,"=]+))\s*=\s*(\d+)\s*';
BEGIN
    IF setting !~ format('^(?:%s(?:,%s)*|\s*)$', item, item) THEN
        RAISE invalid_parameter_value USING MESSAGE = format('invalid value for parameter "dlock.tokens": "%s"', setting),
            HINT = 'Write it as "name=token, ...", a name with a space, a comma, a quote or an equals sign in double quotes.';
    END IF;
    RETURN (SELECT t[3]::int8 FROM regexp_matches(setting, item, 'g') WITH ORDINALITY m (t, i)
             WHERE coalesce(replace(t[1], '""', '"'), t[2]) = resource OR t[2] = '*' ORDER BY coalesce(t[2], '') = '*' AND resource <> '*', i LIMIT 1);
END $$;
CREATE FUNCTION @extschema@.dlock_guard() RETURNS pg_catalog.trigger
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    prefix text := '';
    by_column text;
    live bool := false;
    word text;
    resource text;
    presented int8;
BEGIN
    FOREACH word IN ARRAY coalesce(TG_ARGV, '{}') LOOP
        CASE WHEN word LIKE 'resource_column=%' THEN by_column := substr(word, 17);
             WHEN word LIKE 'resource=%' THEN prefix := substr(word, 10);
             WHEN word IN ('mode=live', 'mode=fence') THEN live := word = 'mode=live';
             WHEN word LIKE 'token_column=%' OR word LIKE 'tokens=%' THEN PERFORM _dlock.refuse(format('a guard with "%s"', word));
             ELSE prefix := word;
        END CASE;
    END LOOP;
    IF TG_WHEN <> 'BEFORE' OR (prefix = '' AND by_column IS NULL) OR (TG_LEVEL = 'STATEMENT' AND by_column IS NOT NULL) THEN
        RAISE trigger_protocol_violated USING MESSAGE = format('trigger "%s" on table "%s" is no valid guard', TG_NAME, TG_TABLE_NAME),
            DETAIL = 'It is not BEFORE, names no resource, or names a column but is not FOR EACH ROW.';
    END IF;
    FOR resource IN SELECT DISTINCT prefix || coalesce(CASE WHEN by_column IS NULL THEN '' ELSE r ->> by_column END, '')
                      FROM unnest(ARRAY[CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(old) END, CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(new) END, CASE WHEN TG_LEVEL = 'STATEMENT' THEN '{}'::jsonb END]) r
                     WHERE r IS NOT NULL AND r <> 'null' ORDER BY 1 LOOP
        presented := _dlock.presented(resource);
        IF presented IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'LK003', MESSAGE = format('no fencing token presented for resource "%s"', resource),
                DETAIL = format('Table "%s" takes writes only from the holder of a lease.', TG_TABLE_NAME),
                HINT = 'Acquire the lock, and present its token by the setting "dlock.tokens" or, if you may call it, by dlock_fence().';
        END IF;
        PERFORM _dlock.pass(resource, presented, live);
    END LOOP;
    RETURN CASE WHEN TG_LEVEL = 'STATEMENT' THEN NULL WHEN TG_OP = 'DELETE' THEN old ELSE new END;
END $$;
REVOKE ALL ON FUNCTION @extschema@.dlock_guard() FROM PUBLIC;

-- What only functions that run as the owner of the tables call, and trigger functions, which would read what the table of a trigger has.
REVOKE ALL ON FUNCTION _dlock.caller, _dlock.move_tokens, _dlock.next_token, _dlock.at_commit, _dlock.is_first, _dlock.is_usual, _dlock.hold, _dlock.sweep, _dlock.grant,
    _dlock.try, _dlock.is_of, _dlock.is_meant, _dlock.holds_left, _dlock.renewed_to, _dlock.change_other, _dlock.pass, _dlock.check_live, _dlock.mark_at_commit,
    _dlock.presented FROM PUBLIC;
