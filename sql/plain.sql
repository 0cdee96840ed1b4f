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
-- Exclusion: a grant changes a free row.  It holds slot 1 locked, so nobody adds a row meanwhile, and each
-- row that it takes for free, so no renewal that is not committed yet can make it a held one.  Where slot 1
-- is the only row, one UPDATE does all of it.  A snapshot that is too old gives 40001, as each grant
-- changes what others lock.
--
-- Who holds several row locks has taken them in the order of (name, slot).

CREATE SEQUENCE _dlock.token_seq AS pg_catalog.int8 MINVALUE 1 START WITH 1 NO CYCLE;

CREATE TABLE _dlock.lease (
    name pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    slot pg_catalog.int4 NOT NULL DEFAULT 1,
    is_single pg_catalog.bool NOT NULL DEFAULT true,        -- of slot 1: there is no other
    holds pg_catalog.int4 NOT NULL DEFAULT 1,               -- zero after a release
    token pg_catalog.int8 NOT NULL,
    granted_at pg_catalog.timestamptz NOT NULL,
    told_at pg_catalog.timestamptz NOT NULL,                -- of the grant or the last renewal
    expires_at pg_catalog.timestamptz NOT NULL,
    free_at pg_catalog.timestamptz NOT NULL,
    role pg_catalog.regrole NOT NULL,
    permits pg_catalog.int4,
    ttl pg_catalog.interval NOT NULL,
    lock_delay pg_catalog.interval NOT NULL,
    min_hold pg_catalog.interval NOT NULL,
    mode pg_catalog.text NOT NULL,
    owner pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    payload pg_catalog.jsonb,
    PRIMARY KEY (name, slot))
    WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE _dlock.place (
    id pg_catalog.int8 GENERATED ALWAYS AS IDENTITY,
    name pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    owner pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    role pg_catalog.regrole NOT NULL,
    since pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    until pg_catalog.timestamptz NOT NULL,
    permits pg_catalog.int4,
    ttl pg_catalog.interval NOT NULL,
    lock_delay pg_catalog.interval NOT NULL,
    min_hold pg_catalog.interval NOT NULL,
    mode pg_catalog.text NOT NULL,
    reentry pg_catalog.text NOT NULL,
    payload pg_catalog.jsonb,
    PRIMARY KEY (name, owner, role));

CREATE TABLE _dlock.fence_mark (
    resource pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    token pg_catalog.int8 NOT NULL,
    is_live pg_catalog.bool NOT NULL,                       -- was the last one to raise or confirm it live?
    raised_at pg_catalog.timestamptz NOT NULL,
    raised_by pg_catalog.name NOT NULL)
    WITH (fillfactor = 50);
REVOKE ALL ON _dlock.token_seq, _dlock.lease, _dlock.place, _dlock.fence_mark FROM PUBLIC;

----------------------------------------------------------------------------
-- What is not interface
----------------------------------------------------------------------------

CREATE FUNCTION _dlock.clock() RETURNS pg_catalog.timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
BEGIN ATOMIC
    SELECT pg_catalog.clock_timestamp();
END;
CREATE FUNCTION _dlock.default_ttl() RETURNS pg_catalog.interval LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT coalesce(nullif(pg_catalog.current_setting('dlock.default_ttl', true), ''), '30 s')::pg_catalog.interval;
END;
CREATE FUNCTION _dlock.max_ttl() RETURNS pg_catalog.interval LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT coalesce(nullif(pg_catalog.current_setting('dlock.max_ttl', true), ''), '1 day')::pg_catalog.interval;
END;
CREATE FUNCTION _dlock.ttl(ttl pg_catalog.interval) RETURNS pg_catalog.interval
    LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
    IF ttl IS NULL THEN
        RETURN _dlock.default_ttl();
    ELSIF ttl <= interval '0' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'ttl must be greater than zero', HINT = 'To end a lease, use dlock_release().';
    ELSIF ttl > _dlock.max_ttl() THEN
        RAISE invalid_parameter_value USING MESSAGE = 'ttl is longer than "dlock.max_ttl"',
            DETAIL = format('The limit is %s seconds.', extract(epoch FROM _dlock.max_ttl())::int8),
            HINT = 'Pass a shorter ttl, and renew the lease while it is needed.';
    END IF;
    RETURN ttl;
END $$;
CREATE FUNCTION _dlock.is_transactional() RETURNS pg_catalog.bool LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT true;
END;
CREATE FUNCTION _dlock.session() RETURNS pg_catalog.text LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT to_hex(floor(extract(epoch FROM a.backend_start))::int8) || '.' || to_hex(a.pid) FROM pg_stat_get_activity(pg_backend_pid()) a);
END $$;

-- For functions that run as the owner of the tables: the role that has logged in, or that SET ROLE has set.
CREATE FUNCTION _dlock.caller() RETURNS pg_catalog.regrole LANGUAGE sql STABLE PARALLEL RESTRICTED
BEGIN ATOMIC
    SELECT pg_catalog.quote_ident(CASE pg_catalog.current_setting('role') WHEN 'none' THEN session_user ELSE pg_catalog.current_setting('role') END)::pg_catalog.regrole;
END;

-- Above all tokens before, what a row has seen, and the seconds since 2026-01-01 times 2^22.  So it is above all
-- tokens from before a dump, a standby or a backup was taken into use, whatever they know of them.  A sequence
-- is set back if two sessions set it: the error that ends the block frees its lock before the transaction ends.
CREATE FUNCTION _dlock.next_token(above pg_catalog.int8) RETURNS pg_catalog.int8 LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    base int8 := greatest((floor(extract(epoch FROM clock_timestamp()))::int8 - 1767225600) << 22, above);
    token int8 := nextval('_dlock.token_seq');
BEGIN
    IF token <= base THEN
        BEGIN
            PERFORM pg_advisory_xact_lock('_dlock.token_seq'::regclass::oid::int4, 0);
            PERFORM setval('_dlock.token_seq', base) FROM _dlock.token_seq WHERE last_value < base;
            RAISE SQLSTATE 'LK000';
        EXCEPTION WHEN SQLSTATE 'LK000' THEN NULL;
        END;
        token := nextval('_dlock.token_seq');
    END IF;
    RETURN token;
END $$;
CREATE FUNCTION _dlock.token(above pg_catalog.int8) RETURNS pg_catalog.int8
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN _dlock.next_token(above);
END $$;

-- Whoever waits for tasks looks each second.
CREATE FUNCTION _dlock.signal(queue_id pg_catalog.int4) RETURNS pg_catalog.bool LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC
    SELECT true;
END;
CREATE FUNCTION _dlock.signals(queue_id pg_catalog.int4) RETURNS pg_catalog.int8 LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC
    SELECT 0::pg_catalog.int8;
END;
CREATE FUNCTION _dlock.signal_wait(queue_id pg_catalog.int4, seen pg_catalog.int8, until pg_catalog.timestamptz) RETURNS pg_catalog.void
    LANGUAGE sql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_sleep(least(greatest(extract(epoch FROM until - clock_timestamp()), 0.01), 0.2))
$$;

CREATE TYPE _dlock.held_lock AS (name pg_catalog.text, owner pg_catalog.text, role pg_catalog.regrole, token pg_catalog.int8, is_held pg_catalog.bool,
    granted_at pg_catalog.timestamptz, expires_at pg_catalog.timestamptz, ttl pg_catalog.interval, payload pg_catalog.jsonb);
CREATE FUNCTION _dlock.names_held(names pg_catalog.text[]) RETURNS SETOF _dlock.held_lock
    LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT l.name, l.owner, l.role, l.token, l.expires_at > _dlock.clock(), l.granted_at, l.expires_at, l.ttl, l.payload
      FROM unnest(names) WITH ORDINALITY n (name, i) JOIN _dlock.lease l ON l.name = n.name AND l.free_at > _dlock.clock() ORDER BY n.i, l.token;
END $$;
CREATE FUNCTION _dlock.owner_held(owner pg_catalog.text) RETURNS SETOF _dlock.held_lock
    LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT l.name, l.owner, l.role, l.token, l.expires_at > _dlock.clock(), l.granted_at, l.expires_at, l.ttl, l.payload
      FROM _dlock.lease l WHERE l.owner = owner_held.owner AND l.free_at > _dlock.clock() ORDER BY l.name;
END $$;

CREATE FUNCTION _dlock.refuse(what pg_catalog.text) RETURNS pg_catalog.void LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RAISE feature_not_supported USING MESSAGE = pg_catalog.format('%s needs the extension dlock', what),
        DETAIL = 'This is the plain edition, which keeps leases in a table.', HINT = 'The extension can be created beside it, on a server that loads its library.';
END $$;

-- Called when an argument is not the usual one.
CREATE FUNCTION _dlock.check_request(name pg_catalog.text, owner pg_catalog.text, ttl pg_catalog.interval, wait pg_catalog.interval, mode pg_catalog.text,
    permits pg_catalog.int4, reentry pg_catalog.text, bind pg_catalog.text, lock_delay pg_catalog.interval, min_hold pg_catalog.interval,
    payload pg_catalog.jsonb, keep pg_catalog.interval) RETURNS pg_catalog.void LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
    PERFORM _dlock.check_text(name, 'lock name', 255), _dlock.check_text(coalesce(owner, '-'), 'lease owner', 255), _dlock.ttl(ttl),
        _dlock.check_span(coalesce(wait, '0'), 'wait', '36500 days'), _dlock.check_span(keep, 'keep', _dlock.max_ttl()),
        _dlock.check_span(lock_delay, 'lock_delay', _dlock.max_ttl()), _dlock.check_span(min_hold, 'min_hold', _dlock.max_ttl());
    IF mode = ANY ('{NL,CR,CW,PR,PW,EX}') THEN
        PERFORM _dlock.refuse(format('mode "%s"', mode));
    ELSIF bind = ANY ('{session,transaction}') THEN
        PERFORM _dlock.refuse(format('bind "%s"', bind));
    ELSIF mode IS NULL OR reentry IS NULL OR bind IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'parameters "mode", "reentry" and "bind" must not be null';
    ELSIF mode <> ALL ('{exclusive,shared}') OR reentry <> ALL ('{deny,count,return}') OR bind <> 'none' THEN
        RAISE invalid_parameter_value USING MESSAGE = format('invalid value among mode "%s", reentry "%s" and bind "%s"', mode, reentry, bind),
            HINT = 'Valid are the modes "exclusive" and "shared", "deny", "count" and "return", and "none".';
    ELSIF permits < 1 OR permits IS NOT NULL AND mode = 'shared' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'permits must be greater than zero, and the mode "exclusive"',
            DETAIL = format('The number given is %s, and the mode "%s".', permits, mode);
    ELSIF pg_column_size(payload) > 1028 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'payload is too long', DETAIL = format('It has %s bytes; the limit is 1024.', pg_column_size(payload) - 4);
    END IF;
END $$;
CREATE FUNCTION _dlock.check_arrays(one pg_catalog.anycompatiblearray, other pg_catalog.anycompatiblearray) RETURNS pg_catalog.void
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF one IS NULL OR other IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'arrays must not be null';
    ELSIF array_ndims(one) > 1 OR array_ndims(other) > 1 OR cardinality(one) <> cardinality(other) OR cardinality(one) > 1000 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'invalid array of lock names', DETAIL = format('It has %s names, for %s entries.', cardinality(one), cardinality(other)),
            HINT = 'Pass one-dimensional arrays of the same length, up to 1000.';
    END IF;
END $$;

-- A grant in a transaction that has written something else would be taken back with that, and others would wait for
-- that.  A transaction that has written nothing at the first call gets a mark.
CREATE FUNCTION _dlock.begin_change(grants pg_catalog.bool) RETURNS pg_catalog.bool LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
    IF pg_current_xact_id_if_assigned() IS NULL THEN
        RETURN set_config('dlock_plain.is_first', 'on', true);
    ELSIF grants AND current_setting('dlock_plain.is_first', true) IS DISTINCT FROM 'on' THEN
        RAISE active_sql_transaction USING MESSAGE = 'cannot acquire a lease in a transaction that has written something else',
            DETAIL = 'Others would not see the lease before the commit, and a rollback would take it back.',
            HINT = 'Acquire it in a transaction of its own, before that one.';
    END IF;
    RETURN true;
END $$;

-- At the commit a grant or renewal begins to count.  It must not have ended before, and should not be old.
CREATE FUNCTION _dlock.at_commit() RETURNS pg_catalog.trigger LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now timestamptz := _dlock.clock();
BEGIN
    IF now < new.expires_at AND now < new.told_at + interval '1 s'
        OR NOT EXISTS (SELECT FROM _dlock.lease l WHERE l.name = new.name AND l.token = new.token AND l.expires_at = new.expires_at AND l.holds > 0) THEN
        RETURN NULL;
    ELSIF now >= new.expires_at THEN
        RAISE EXCEPTION USING ERRCODE = 'LK002', MESSAGE = format('lease on lock "%s" with token %s has ended before its transaction', new.name, new.token),
            DETAIL = 'A grant or a renewal counts from the commit on.', HINT = 'Acquire and renew leases in transactions of their own.';
    END IF;
    RAISE WARNING USING ERRCODE = '25001', MESSAGE = format('lease on lock "%s" is committed %s s after its grant or renewal', new.name, floor(extract(epoch FROM now - new.told_at))),
        DETAIL = 'Until now others waited, and did not see it.', HINT = 'Acquire and renew leases in transactions of their own.';
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT OR UPDATE OF told_at ON _dlock.lease DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (pg_catalog.statement_timestamp() OPERATOR(pg_catalog.<>) pg_catalog.transaction_timestamp())
    EXECUTE FUNCTION _dlock.at_commit();

-- Names that are no longer used go: each new one looks at some block of the table.
CREATE FUNCTION _dlock.sweep() RETURNS pg_catalog.void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    block int8 := floor(random() * pg_relation_size('_dlock.lease') / current_setting('block_size')::int8);
    at tid;
BEGIN
    FOR at IN SELECT l.ctid FROM _dlock.lease l
         WHERE l.ctid >= format('(%s,0)', block)::tid AND l.ctid < format('(%s,0)', block + 1)::tid AND l.free_at < _dlock.clock() - interval '1 h'
           AND (l.slot > 1 OR NOT EXISTS (SELECT FROM _dlock.lease o WHERE o.name = l.name AND o.slot > 1))
           AND current_setting('transaction_isolation') = 'read committed' FOR UPDATE SKIP LOCKED LOOP
        DELETE FROM _dlock.lease l WHERE l.ctid = at;
    END LOOP;
END $$;

-- Calls that wait hold the advisory lock of the name, one after the other.  Others do not go before them.
CREATE FUNCTION _dlock.key(name pg_catalog.text) RETURNS pg_catalog.int8 LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT pg_catalog.hashtextextended(name, 1701602316);
END;

-- Grant a lease, or enter one again; NULL if it is refused.  Then the request has a place, if it is to keep one.
-- "is_front": the caller holds the advisory lock.
CREATE FUNCTION _dlock.grant(name pg_catalog.text, owner pg_catalog.text, role pg_catalog.regrole, ttl pg_catalog.interval, mode pg_catalog.text,
    permits pg_catalog.int4, reentry pg_catalog.text, lock_delay pg_catalog.interval, min_hold pg_catalog.interval, payload pg_catalog.jsonb, keep pg_catalog.interval, is_front pg_catalog.bool)
    RETURNS pg_catalog.int8 LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
#variable_conflict use_variable
DECLARE
    kind text := CASE WHEN permits IS NULL THEN mode ELSE 'permit' END;
    now timestamptz := _dlock.clock();
    got int8;
    mine int8;
    l record;
    is_locked bool := false;
BEGIN
    UPDATE _dlock.lease x
       SET holds = 1, token = _dlock.next_token(x.token), granted_at = now, told_at = now, expires_at = now + ttl, free_at = now + ttl + lock_delay,
           role = role, permits = permits, ttl = ttl, lock_delay = lock_delay, min_hold = min_hold, mode = kind, owner = owner, payload = payload
     WHERE x.name = name AND x.slot = 1 AND x.is_single AND x.free_at <= _dlock.clock() AND NOT EXISTS (SELECT FROM _dlock.place p WHERE p.name = x.name)
       AND CASE WHEN is_front THEN true WHEN pg_try_advisory_lock_shared(_dlock.key(x.name)) THEN pg_advisory_unlock_shared(_dlock.key(x.name)) ELSE false END
    RETURNING x.token INTO got;
    IF FOUND THEN
        RETURN got;
    END IF;

    SELECT p.id INTO mine FROM _dlock.place p WHERE p.name = name AND p.owner = owner AND p.role::oid = role::oid AND p.until > now;
    LOOP
        SELECT count(*) FILTER (WHERE is_busy) AS holders, bool_and(x.mode = 'shared') FILTER (WHERE is_busy) AS all_shared,
               max(x.permits) FILTER (WHERE is_busy) AS permits, bool_or(is_own) AS is_own, max(x.token) FILTER (WHERE is_own AND x.expires_at > now) AS held,
               min(x.slot) FILTER (WHERE NOT is_busy) AS free, max(x.slot) AS slots
          INTO l FROM _dlock.lease x, LATERAL (SELECT x.free_at > now AS is_busy, x.free_at > now AND x.owner = owner AND x.role::oid = role::oid AS is_own) b
         WHERE x.name = name;
        IF l.holders > 0 AND l.permits IS DISTINCT FROM permits THEN
            RAISE invalid_parameter_value USING MESSAGE = format('lock "%s" has %s permits, not %s', name, coalesce(l.permits::text, 'no'), coalesce(permits::text, 'none')),
                DETAIL = 'The first request sets the number, which stays as long as the lock is held.', HINT = 'Ask for it in the same way, or wait until it is free.';
        ELSIF l.held IS NOT NULL AND reentry <> 'deny' THEN
            UPDATE _dlock.lease x
               SET holds = x.holds + (reentry = 'count')::int4, told_at = now, ttl = CASE WHEN now + ttl > x.expires_at THEN ttl ELSE x.ttl END,
                   expires_at = greatest(x.expires_at, now + ttl), free_at = greatest(x.expires_at, now + ttl) + x.lock_delay,
                   payload = CASE WHEN reentry = 'return' THEN coalesce(payload, x.payload) ELSE x.payload END
             WHERE x.name = name AND x.token = l.held AND x.expires_at > _dlock.clock() AND (x.mode = kind OR x.mode = 'exclusive');
            EXIT WHEN FOUND;
            IF EXISTS (SELECT FROM _dlock.lease x WHERE x.name = name AND x.token = l.held AND x.expires_at > _dlock.clock()) THEN
                RAISE object_not_in_prerequisite_state USING MESSAGE = format('lease on lock "%s" does not cover the mode "%s"', name, mode),
                    HINT = 'Release the lease, and acquire the lock in the stronger mode.';
            END IF;
            now := _dlock.clock();
        ELSIF l.is_own OR l.holders > 0 AND NOT (mode = 'shared' AND l.all_shared OR coalesce(l.holders < permits, false))
            OR EXISTS (SELECT FROM _dlock.place p WHERE p.name = name AND p.until > now AND p.id < coalesce(mine, p.id + 1) AND NOT (mode = 'shared' AND p.mode = 'shared'))
            OR mine IS NULL AND NOT is_front AND NOT (CASE WHEN pg_try_advisory_lock_shared(_dlock.key(name)) THEN pg_advisory_unlock_shared(_dlock.key(name)) ELSE false END) THEN
            IF keep > interval '0' THEN
                DELETE FROM _dlock.place p WHERE p.name = name AND p.until <= now;
                INSERT INTO _dlock.place AS p (name, owner, role, until, permits, ttl, lock_delay, min_hold, mode, reentry, payload)
                    VALUES (name, owner, role, now + keep, permits, ttl, lock_delay, min_hold, mode, reentry, payload)
                    ON CONFLICT ON CONSTRAINT _dlock_place_pkey DO UPDATE SET until = excluded.until, permits = permits, ttl = ttl, lock_delay = lock_delay,
                        min_hold = min_hold, mode = mode, reentry = reentry, payload = payload;
                RETURN NULL;
            END IF;
            l.held := NULL;
            EXIT;
        ELSIF is_locked OR l.slots IS NULL THEN
            now := _dlock.clock();
            l.held := _dlock.next_token(0);
            INSERT INTO _dlock.lease AS x (name, slot, token, granted_at, told_at, expires_at, free_at, role, permits, ttl, lock_delay, min_hold, mode, owner, payload)
                VALUES (name, coalesce(l.free, l.slots + 1, 1), l.held, now, now, now + ttl, now + ttl + lock_delay, role, permits, ttl, lock_delay, min_hold, kind, owner, payload)
                ON CONFLICT ON CONSTRAINT _dlock_lease_pkey DO UPDATE SET holds = 1, token = l.held, granted_at = now, told_at = now, expires_at = now + ttl, free_at = now + ttl + lock_delay,
                    role = role, permits = permits, ttl = ttl, lock_delay = lock_delay, min_hold = min_hold, mode = kind, owner = owner, payload = payload WHERE is_locked;
            IF FOUND THEN
                UPDATE _dlock.lease x SET is_single = false WHERE x.name = name AND x.slot = 1 AND x.is_single AND l.free IS NULL AND l.slots >= 1;
                PERFORM _dlock.sweep() WHERE l.slots IS NULL;
                EXIT;
            END IF;
        ELSE
            -- Slot 1 first: then nobody adds another.  From here on "now" is the time at which these were free.
            PERFORM FROM _dlock.lease x WHERE x.name = name AND x.slot = 1 FOR UPDATE;
            is_locked := FOUND;
            now := _dlock.clock();
            PERFORM FROM _dlock.lease x WHERE x.name = name AND x.free_at <= now ORDER BY x.slot FOR UPDATE;
        END IF;
    END LOOP;
    DELETE FROM _dlock.place p WHERE p.name = name AND (p.id = mine OR p.until <= now);
    RETURN l.held;
END $$;

-- Until when a call may wait; NULL: it does not.
CREATE FUNCTION _dlock.wait_until(wait pg_catalog.interval) RETURNS pg_catalog.timestamptz LANGUAGE plpgsql VOLATILE PARALLEL SAFE AS $$
BEGIN
    IF wait = interval '0' THEN
        RETURN NULL;
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE feature_not_supported USING MESSAGE = format('cannot wait for a lock at isolation level "%s"', current_setting('transaction_isolation')),
            DETAIL = 'The transaction does not see what others commit meanwhile.', HINT = 'Use READ COMMITTED, or call again in another transaction.';
    END IF;
    RETURN _dlock.clock() + coalesce(wait, '36500 days');
END $$;

CREATE FUNCTION _dlock.check_self(names pg_catalog.text[], owner pg_catalog.text, me pg_catalog.regrole) RETURNS pg_catalog.void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
    IF EXISTS (SELECT FROM _dlock.lease l WHERE l.name = ANY (names) AND l.owner = check_self.owner AND l.role = me AND l.expires_at > _dlock.clock()) THEN
        RAISE deadlock_detected USING MESSAGE = 'deadlock detected', DETAIL = format('Owner "%s" waits for a lock that it holds.', owner),
            HINT = 'Let it enter its lease again with reentry => ''count'' or ''return''.';
    END IF;
END $$;

CREATE FUNCTION @extschema@.dlock_acquire(name pg_catalog.text, owner pg_catalog.text DEFAULT NULL, ttl pg_catalog.interval DEFAULT NULL, wait pg_catalog.interval DEFAULT '0',
    mode pg_catalog.text DEFAULT 'exclusive', permits pg_catalog.int4 DEFAULT NULL, reentry pg_catalog.text DEFAULT 'deny', bind pg_catalog.text DEFAULT 'none',
    lock_delay pg_catalog.interval DEFAULT '0', min_hold pg_catalog.interval DEFAULT '0', payload pg_catalog.jsonb DEFAULT NULL, keep pg_catalog.interval DEFAULT '0')
    RETURNS pg_catalog.int8 LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
DECLARE
    me regrole := _dlock.caller();
    until timestamptz;
    got int8;
    nap float8 := 0.002;
BEGIN
    IF (octet_length(name) BETWEEN 1 AND 255 AND octet_length(owner) BETWEEN 1 AND 255 AND wait = '0' AND mode = 'exclusive' AND permits IS NULL AND reentry = 'deny'
        AND bind = 'none' AND lock_delay = '0' AND min_hold = '0' AND payload IS NULL AND keep = '0' AND (ttl > '0' AND ttl <= _dlock.max_ttl())) IS NOT TRUE THEN
        PERFORM _dlock.check_request(name, owner, ttl, wait, mode, permits, reentry, bind, lock_delay, min_hold, payload, keep);
        owner := coalesce(owner, _dlock.session());
        ttl := coalesce(ttl, _dlock.default_ttl());
        until := _dlock.wait_until(wait);
    END IF;
    IF _dlock.begin_change(true) AND until IS NULL THEN
        RETURN _dlock.grant(name, owner, me, ttl, mode, permits, reentry, lock_delay, min_hold, payload, keep, false);
    END IF;
    PERFORM _dlock.check_self(ARRAY[name], owner, me) WHERE reentry = 'deny';
    -- What a try has locked is freed if it was in vain.  Those that wait are woken up one by one, in their order.
    BEGIN
        PERFORM set_config('lock_timeout', least(ceil(extract(epoch FROM greatest(until - _dlock.clock(), '1 ms')) * 1000), 2147483647)::text, true);
        PERFORM pg_advisory_xact_lock(_dlock.key(name));
        LOOP
            BEGIN
                got := _dlock.grant(name, owner, me, ttl, mode, permits, reentry, lock_delay, min_hold, payload, '0', true);
                IF got IS NULL THEN
                    RAISE SQLSTATE 'LK000';
                END IF;
                RETURN got;
            EXCEPTION WHEN SQLSTATE 'LK000' THEN NULL;
            END;
            IF _dlock.clock() >= until THEN
                RAISE lock_not_available;
            END IF;
            PERFORM pg_sleep(greatest(0.001, least(nap, extract(epoch FROM until - _dlock.clock()), extract(epoch FROM
                (SELECT min(l.free_at) FROM _dlock.lease l WHERE l.name = dlock_acquire.name AND l.free_at > _dlock.clock()) - _dlock.clock()))));
            nap := least(nap * 1.5, 0.05);
        END LOOP;
    EXCEPTION WHEN lock_not_available THEN NULL;
    END;
    RETURN CASE WHEN keep > '0' THEN _dlock.grant(name, owner, me, ttl, mode, permits, reentry, lock_delay, min_hold, payload, keep, false) END;
END $$;

CREATE FUNCTION @extschema@.dlock_acquire_all(names pg_catalog.text[], owner pg_catalog.text DEFAULT NULL, ttl pg_catalog.interval DEFAULT NULL,
    wait pg_catalog.interval DEFAULT '0', mode pg_catalog.text DEFAULT 'exclusive', reentry pg_catalog.text DEFAULT 'deny', bind pg_catalog.text DEFAULT 'none',
    lock_delay pg_catalog.interval DEFAULT '0', min_hold pg_catalog.interval DEFAULT '0', payload pg_catalog.jsonb DEFAULT NULL)
    RETURNS pg_catalog.int8[] LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
DECLARE
    me regrole := _dlock.caller();
    until timestamptz := _dlock.wait_until(wait);
    n record;
    got int8[];
BEGIN
    PERFORM _dlock.check_arrays(names, names);
    PERFORM _dlock.check_request(x, owner, ttl, wait, mode, NULL, reentry, bind, lock_delay, min_hold, payload, '0') FROM unnest(names) x;
    IF cardinality(names) = 0 OR cardinality(names) > (SELECT count(DISTINCT x) FROM unnest(names) x) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'invalid array of lock names', DETAIL = 'It is empty, or has a name more than once.';
    END IF;
    owner := coalesce(owner, _dlock.session());
    PERFORM _dlock.begin_change(true);
    PERFORM _dlock.check_self(names, owner, me) WHERE until IS NOT NULL AND reentry = 'deny';
    LOOP
        BEGIN
            FOR n IN SELECT x.name, x.i FROM unnest(names) WITH ORDINALITY x (name, i) ORDER BY x.name COLLATE "C" LOOP
                got[n.i] := _dlock.grant(n.name, owner, me, coalesce(ttl, _dlock.default_ttl()), mode, NULL, reentry, lock_delay, min_hold, payload, '0', false);
                IF got[n.i] IS NULL THEN
                    RAISE SQLSTATE 'LK000';
                END IF;
            END LOOP;
            RETURN got;
        EXCEPTION WHEN SQLSTATE 'LK000' THEN NULL;
        END;
        IF _dlock.clock() < until THEN
            PERFORM pg_sleep(0.02);
        ELSE
            RETURN NULL;
        END IF;
    END LOOP;
END $$;

CREATE FUNCTION @extschema@.dlock_acquire_each(names pg_catalog.text[], owners pg_catalog.text[], ttl pg_catalog.interval DEFAULT NULL,
    mode pg_catalog.text DEFAULT 'exclusive', permits pg_catalog.int4 DEFAULT NULL, reentry pg_catalog.text DEFAULT 'deny',
    lock_delay pg_catalog.interval DEFAULT '0', min_hold pg_catalog.interval DEFAULT '0', keep pg_catalog.interval DEFAULT '0')
    RETURNS pg_catalog.int8[] LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
DECLARE
    me regrole := _dlock.caller();
    n record;
    got int8[] := '{}';
BEGIN
    PERFORM _dlock.check_arrays(names, owners);
    PERFORM _dlock.check_request(x.name, x.owner, ttl, '0', mode, permits, reentry, 'none', lock_delay, min_hold, NULL, keep) FROM unnest(names, owners) x (name, owner);
    PERFORM _dlock.begin_change(true);
    FOR n IN SELECT x.name, x.owner, x.i FROM unnest(names, owners) WITH ORDINALITY x (name, owner, i) ORDER BY x.name COLLATE "C", x.i LOOP
        got[n.i] := _dlock.grant(n.name, coalesce(n.owner, _dlock.session()), me, coalesce(ttl, _dlock.default_ttl()), mode, permits, reentry, lock_delay, min_hold, NULL, keep, false);
    END LOOP;
    RETURN got;
END $$;

-- The places of a client that have their turn.  The call does not wait for longer than they are kept already.
CREATE FUNCTION @extschema@.dlock_take(client pg_catalog.text, wait pg_catalog.interval, keep pg_catalog.interval,
    OUT name pg_catalog.text, OUT owner pg_catalog.text, OUT token pg_catalog.int8) RETURNS SETOF pg_catalog.record
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 10 SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
#variable_conflict use_column
DECLARE
    me regrole := _dlock.caller();
    until timestamptz := _dlock.wait_until(wait);
    p _dlock.place;
    is_last bool := until IS NULL;
    found_any bool := false;
BEGIN
    PERFORM _dlock.check_text(client, 'client', 255), _dlock.check_span(wait, 'wait', '36500 days') WHERE wait IS NOT NULL;
    keep := _dlock.check_span(keep, 'keep', _dlock.max_ttl());
    PERFORM _dlock.begin_change(true);
    until := least(until, (SELECT min(x.until) - interval '1 s' FROM _dlock.place x WHERE (x.owner = client OR starts_with(x.owner, client || '#')) AND x.role = me));
    LOOP
        is_last := is_last OR _dlock.clock() >= until;
        FOR p IN SELECT * FROM _dlock.place x WHERE (x.owner = client OR starts_with(x.owner, client || '#')) AND x.role = me AND x.until > _dlock.clock()
                  ORDER BY x.name, x.id LOOP
            name := p.name;
            owner := p.owner;
            BEGIN
                token := _dlock.grant(p.name, p.owner, me, p.ttl, p.mode, p.permits, p.reentry, p.lock_delay, p.min_hold, p.payload, CASE WHEN is_last THEN keep ELSE '0' END, false);
                IF token IS NULL AND NOT is_last THEN
                    RAISE SQLSTATE 'LK000';
                END IF;
            EXCEPTION WHEN SQLSTATE 'LK000' THEN NULL;
            END;
            IF token IS NOT NULL THEN
                found_any := true;
                RETURN NEXT;
            END IF;
        END LOOP;
        EXIT WHEN is_last;
        is_last := found_any;
        PERFORM pg_sleep(0.02) WHERE NOT found_any;
    END LOOP;
END $$;

-- Renew a lease, or release it, by its token, or by the caller's own owner.  NULL if there is none that the caller may change.
CREATE FUNCTION _dlock.renew(name pg_catalog.text, token pg_catalog.int8, owner pg_catalog.text, me pg_catalog.regrole, ttl pg_catalog.interval) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := _dlock.clock();
BEGIN
    UPDATE _dlock.lease x
       SET ttl = coalesce(ttl, x.ttl), told_at = now, expires_at = CASE WHEN ttl IS NULL THEN greatest(x.expires_at, now + x.ttl) ELSE now + ttl END,
           free_at = CASE WHEN ttl IS NULL THEN greatest(x.expires_at, now + x.ttl) ELSE now + ttl END + x.lock_delay
     WHERE x.name = name AND x.expires_at > _dlock.clock()
       AND CASE WHEN owner IS NOT NULL THEN x.owner = owner AND x.role = me ELSE x.token = token AND (x.role = me OR pg_has_role(me, x.role, 'USAGE')) END;
    RETURN CASE WHEN FOUND THEN true END;
END $$;
CREATE FUNCTION _dlock.release(name pg_catalog.text, token pg_catalog.int8, owner pg_catalog.text, me pg_catalog.regrole, all_holds pg_catalog.bool) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := _dlock.clock();
BEGIN
    UPDATE _dlock.lease x
       SET holds = CASE WHEN all_holds THEN 0 ELSE x.holds - 1 END, expires_at = CASE WHEN x.holds > 1 AND NOT all_holds THEN x.expires_at ELSE now END,
           free_at = CASE WHEN x.holds > 1 AND NOT all_holds THEN x.free_at ELSE greatest(now, x.granted_at + x.min_hold) END
     WHERE x.name = name AND x.expires_at > _dlock.clock()
       AND CASE WHEN owner IS NOT NULL THEN x.owner = owner AND x.role = me ELSE x.token = token AND (x.role = me OR pg_has_role(me, x.role, 'USAGE')) END;
    IF FOUND THEN
        RETURN true;
    END IF;
    -- What an unclean end has closed is opened.
    UPDATE _dlock.lease x SET free_at = now, holds = 0
     WHERE x.name = name AND x.free_at > now AND x.expires_at <= now AND x.holds > 0
       AND CASE WHEN owner IS NOT NULL THEN x.owner = owner AND x.role = me ELSE x.token = token AND pg_has_role(me, x.role, 'USAGE') END;
    RETURN CASE WHEN FOUND THEN false END;
END $$;
-- The token of a lease under this owner of a role that the caller is a member of.
CREATE FUNCTION _dlock.find_token(name pg_catalog.text, owner pg_catalog.text) RETURNS pg_catalog.int8 LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
    PERFORM _dlock.check_text(name, 'lock name', 255), _dlock.check_text(owner, 'lease owner', 255);
    RETURN (SELECT x.token FROM _dlock.lease x WHERE x.name = find_token.name AND x.owner = find_token.owner AND x.free_at > _dlock.clock()
               AND pg_has_role(_dlock.caller(), x.role, 'USAGE') ORDER BY x.expires_at DESC LIMIT 1);
END $$;
CREATE FUNCTION _dlock.check_others(name pg_catalog.text, token pg_catalog.int8) RETURNS pg_catalog.bool LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
    PERFORM _dlock.check_text(name, 'lock name', 255), _dlock.check_token(token);
    IF EXISTS (SELECT FROM _dlock.lease x WHERE x.name = check_others.name AND x.token = check_others.token AND x.free_at > _dlock.clock()
                  AND NOT pg_has_role(_dlock.caller(), x.role, 'USAGE')) THEN
        RAISE insufficient_privilege USING MESSAGE = format('permission denied for the lease on lock "%s" with token %s', name, token),
            HINT = 'Only the role that acquired it, its members and superusers can renew or release it.';
    END IF;
    RETURN false;
END $$;

CREATE FUNCTION @extschema@.dlock_renew(name pg_catalog.text, owner pg_catalog.text DEFAULT NULL, ttl pg_catalog.interval DEFAULT NULL) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
BEGIN
    owner := coalesce(owner, _dlock.session());
    RETURN _dlock.ttl(ttl) IS NOT NULL AND _dlock.begin_change(false)
       AND coalesce(_dlock.renew(name, NULL, owner, _dlock.caller(), ttl), _dlock.renew(name, _dlock.find_token(name, owner), NULL, _dlock.caller(), ttl), false);
END $$;
CREATE FUNCTION @extschema@.dlock_renew_token(name pg_catalog.text, token pg_catalog.int8, ttl pg_catalog.interval DEFAULT NULL) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
BEGIN
    RETURN _dlock.ttl(ttl) IS NOT NULL AND _dlock.begin_change(false) AND coalesce(_dlock.renew(name, token, NULL, _dlock.caller(), ttl), _dlock.check_others(name, token));
END $$;
CREATE FUNCTION @extschema@.dlock_release(name pg_catalog.text, owner pg_catalog.text DEFAULT NULL) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
BEGIN
    owner := coalesce(owner, _dlock.session());
    RETURN _dlock.begin_change(false)
       AND coalesce(_dlock.release(name, NULL, owner, _dlock.caller(), false), _dlock.release(name, _dlock.find_token(name, owner), NULL, _dlock.caller(), false), false);
END $$;
CREATE FUNCTION @extschema@.dlock_release_token(name pg_catalog.text, token pg_catalog.int8) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
BEGIN
    RETURN _dlock.begin_change(false) AND coalesce(_dlock.release(name, token, NULL, _dlock.caller(), false), _dlock.check_others(name, token));
END $$;

-- Many, in the order of names, so that two calls do not wait for each other.
CREATE FUNCTION _dlock.each(names pg_catalog.text[], tokens pg_catalog.int8[], renews pg_catalog.bool, ttl pg_catalog.interval) RETURNS pg_catalog.bool[]
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    me regrole := _dlock.caller();
    n record;
    done bool[] := '{}';
BEGIN
    PERFORM _dlock.check_arrays(names, tokens::text[]), _dlock.ttl(ttl), _dlock.begin_change(false);
    PERFORM _dlock.check_text(x.name, 'lock name', 255), _dlock.check_token(x.token) FROM unnest(names, tokens) x (name, token);
    FOR n IN SELECT x.name, x.token, x.i FROM unnest(names, tokens) WITH ORDINALITY x (name, token, i) ORDER BY x.name COLLATE "C", x.i LOOP
        done[n.i] := coalesce(CASE WHEN renews THEN _dlock.renew(n.name, n.token, NULL, me, ttl) ELSE _dlock.release(n.name, n.token, NULL, me, false) END, false);
    END LOOP;
    RETURN done;
END $$;
CREATE FUNCTION @extschema@.dlock_renew_each(names pg_catalog.text[], tokens pg_catalog.int8[], ttl pg_catalog.interval DEFAULT NULL) RETURNS pg_catalog.bool[]
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
BEGIN
    RETURN _dlock.each(names, tokens, true, ttl);
END $$;
CREATE FUNCTION @extschema@.dlock_release_each(names pg_catalog.text[], tokens pg_catalog.int8[]) RETURNS pg_catalog.bool[]
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
BEGIN
    RETURN _dlock.each(names, tokens, false, NULL);
END $$;
CREATE FUNCTION _dlock.of_owner(owner pg_catalog.text, renews pg_catalog.bool, ttl pg_catalog.interval) RETURNS pg_catalog.int4
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    me regrole := _dlock.caller();
    n record;
    done int4 := 0;
BEGIN
    PERFORM _dlock.check_text(coalesce(owner, '-'), 'lease owner', 255), _dlock.ttl(ttl), _dlock.begin_change(false);
    owner := coalesce(owner, _dlock.session());
    FOR n IN SELECT x.name, x.token FROM (SELECT l.*, rank() OVER (ORDER BY l.role <> me) FROM _dlock.lease l
                    WHERE (l.owner = of_owner.owner OR starts_with(l.owner, of_owner.owner || '#')) AND l.expires_at > _dlock.clock() AND pg_has_role(me, l.role, 'USAGE')) x
              WHERE x.rank = 1 ORDER BY x.name, x.slot LOOP
        done := done + coalesce(CASE WHEN renews THEN _dlock.renew(n.name, n.token, NULL, me, ttl) ELSE _dlock.release(n.name, n.token, NULL, me, true) END, false)::int4;
    END LOOP;
    RETURN done;
END $$;
CREATE FUNCTION @extschema@.dlock_renew_all(owner pg_catalog.text DEFAULT NULL, ttl pg_catalog.interval DEFAULT NULL) RETURNS pg_catalog.int4
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
BEGIN
    RETURN _dlock.of_owner(owner, true, ttl);
END $$;
CREATE FUNCTION @extschema@.dlock_release_all(owner pg_catalog.text DEFAULT NULL) RETURNS pg_catalog.int4
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
BEGIN
    RETURN _dlock.of_owner(owner, false, NULL);
END $$;
CREATE FUNCTION @extschema@.dlock_force_release(name pg_catalog.text, reason pg_catalog.text) RETURNS pg_catalog.int4
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
DECLARE
    l record;
    done int4 := 0;
BEGIN
    PERFORM _dlock.check_text(name, 'lock name', 255), _dlock.check_text(trim(reason), 'reason', 10000), _dlock.begin_change(false);
    FOR l IN SELECT x.slot, x.owner, x.role, x.token, x.expires_at > _dlock.clock() AS is_held FROM _dlock.lease x
              WHERE x.name = dlock_force_release.name AND x.free_at > _dlock.clock() ORDER BY x.slot FOR UPDATE LOOP
        UPDATE _dlock.lease x SET holds = l.is_held::int4, expires_at = least(x.expires_at, _dlock.clock()), free_at = _dlock.clock() + CASE WHEN l.is_held THEN x.lock_delay ELSE '0' END
         WHERE x.name = dlock_force_release.name AND x.slot = l.slot;
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
    RAISE LOG 'fencing tokens were moved on' USING DETAIL = format('Above %s, by role "%s": %s', above, _dlock.caller(), reason);
    RETURN _dlock.next_token(above);
END $$;
REVOKE ALL ON FUNCTION @extschema@.dlock_bump_epoch(pg_catalog.text, pg_catalog.int8) FROM PUBLIC;
CREATE FUNCTION @extschema@.dlock_acquire_path(path pg_catalog.text, owner pg_catalog.text DEFAULT NULL, ttl pg_catalog.interval DEFAULT NULL,
    wait pg_catalog.interval DEFAULT '0', mode pg_catalog.text DEFAULT 'exclusive', reentry pg_catalog.text DEFAULT 'deny', bind pg_catalog.text DEFAULT 'none',
    lock_delay pg_catalog.interval DEFAULT '0', min_hold pg_catalog.interval DEFAULT '0', payload pg_catalog.jsonb DEFAULT NULL) RETURNS pg_catalog.int8
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
    PERFORM _dlock.refuse('dlock_acquire_path()');
END $$;
CREATE FUNCTION @extschema@.dlock_convert(name pg_catalog.text, token pg_catalog.int8, mode pg_catalog.text, wait pg_catalog.interval DEFAULT '0')
    RETURNS pg_catalog.int8 LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
    PERFORM _dlock.refuse('dlock_convert()');
END $$;

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
    LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED ROWS 1 SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM _dlock.check_text(name, 'lock name', 255);
    RETURN QUERY SELECT * FROM @extschema@.dlock_leases l WHERE l.name = dlock_lease.name;
END $$;
CREATE FUNCTION @extschema@.dlock_check(name pg_catalog.text, token pg_catalog.int8) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM _dlock.check_text(name, 'lock name', 255), _dlock.check_token(token);
    RETURN EXISTS (SELECT FROM _dlock.lease l WHERE l.name = dlock_check.name AND l.token = dlock_check.token AND l.expires_at > _dlock.clock());
END $$;
CREATE FUNCTION @extschema@.dlock_watch(name pg_catalog.text, seen pg_catalog.int8, wait pg_catalog.interval DEFAULT NULL, OUT token pg_catalog.int8,
    OUT owner pg_catalog.text, OUT mode pg_catalog.text, OUT granted_at pg_catalog.timestamptz, OUT expires_at pg_catalog.timestamptz, OUT payload pg_catalog.jsonb)
    RETURNS pg_catalog.record LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    until timestamptz := _dlock.wait_until(wait);
BEGIN
    PERFORM _dlock.check_text(name, 'lock name', 255), _dlock.check_span(coalesce(wait, '0'), 'wait', '36500 days');
    LOOP
        SELECT l.token, l.owner, l.mode, l.granted_at, l.expires_at, l.payload INTO token, owner, mode, granted_at, expires_at, payload
          FROM _dlock.lease l WHERE l.name = dlock_watch.name AND l.expires_at > _dlock.clock() ORDER BY l.token DESC LIMIT 1;
        EXIT WHEN token IS DISTINCT FROM seen OR (_dlock.clock() < until) IS NOT TRUE;
        PERFORM pg_sleep(0.1);
    END LOOP;
END $$;
-- Kept places, and calls that wait.  Of these the owner is not known.
CREATE VIEW @extschema@.dlock_waiters AS
    SELECT w.name, w.owner, w.mode, w.permits, w.request, pg_catalog.row_number() OVER (PARTITION BY w.name ORDER BY w.request DESC, w.since)::pg_catalog.int4 AS "position",
           w.since, _dlock.clock() OPERATOR(pg_catalog.-) w.since AS waited, w.pid, w.role,
           ARRAY(SELECT l.owner FROM _dlock.lease l WHERE l.name OPERATOR(pg_catalog.=) w.name AND l.free_at OPERATOR(pg_catalog.>) _dlock.clock()) AS blocked_by
      FROM (SELECT p.name, p.owner, p.mode, p.permits, 'place' AS request, p.since, NULL::pg_catalog.int4 AS pid, p.role
              FROM _dlock.place p WHERE p.until OPERATOR(pg_catalog.>) _dlock.clock()
            UNION ALL
            SELECT l.name, NULL, NULL, NULL, 'call', a.query_start, k.pid, a.usesysid::pg_catalog.regrole
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
    mark int8 := (SELECT m.token FROM _dlock.fence_mark m WHERE m.resource = resource);
BEGIN
    PERFORM _dlock.check_text(resource, 'resource name', 255), _dlock.check_token(token);
    IF mark IS NULL OR mark < token THEN
        IF token > (SELECT s.last_value FROM _dlock.token_seq s) THEN
            RAISE invalid_parameter_value USING MESSAGE = format('fencing token %s for resource "%s" has never been granted', token, resource),
                HINT = 'Pass the token of a lease of this schema.';
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
            DETAIL = 'It has expired, has been released, or was never granted.', HINT = 'Stop the work that it was to protect, and acquire the lock anew.';
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
    setting text := current_setting('dlock.tokens', true);
    item text := '\s*(?:"((?:[^"]|"")*)"|([^\s,"=]+))\s*=\s*(\d+)\s*';
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
                HINT = 'Acquire the lock, and call dlock_fence() with its token in this transaction or set "dlock.tokens".';
        END IF;
        PERFORM _dlock.pass(resource, presented, live);
    END LOOP;
    RETURN CASE WHEN TG_LEVEL = 'STATEMENT' THEN NULL WHEN TG_OP = 'DELETE' THEN old ELSE new END;
END $$;
REVOKE ALL ON FUNCTION @extschema@.dlock_guard() FROM PUBLIC;
