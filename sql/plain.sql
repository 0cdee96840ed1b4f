/* sql/plain.sql */

-- complain if script is sourced in psql, rather than made into dlock_plain.sql
\echo Use "make plain" to make dlock_plain.sql of this file and patterns.sql. \quit

-- The plain edition's engine: that of engine.sql as far as tables can have it, for servers that load no
-- library.  doc/reference/plain.md says what differs.
--
-- A lock is a row of _dlock.lock, with all its leases.  Rows are changed in place, and no index has a column that
-- a grant changes: updates are HOT.
--
-- Exclusion: whatever happens to a lock changes its row, or locks it at least, and goes by the version of the row that
-- it changes.  So all of it comes one after the other; a snapshot that is too old gives 40001.  What is in vain keeps no
-- lock, but for a release that has waited for another transaction.
--
-- Order: kept places are rows.  Calls that wait hold the advisory locks of their names, which makes a queue;
-- others do not go before them.
--
-- Who locks several rows of locks does it in the order of names; the places of a lock come after its row.  Advisory locks come
-- before, in the order of their keys; marks after, but for those that are looked at once more at a commit.

CREATE SEQUENCE _dlock.token_seq AS pg_catalog.int8 MINVALUE 1 START WITH 1 NO CYCLE;

CREATE TYPE _dlock.lease AS (
    token pg_catalog.int8,
    owner pg_catalog.text COLLATE pg_catalog."C",
    role pg_catalog.regrole,
    mode pg_catalog.text,
    holds pg_catalog.int8,
    granted_at pg_catalog.timestamptz,
    expires_at pg_catalog.timestamptz,
    free_at pg_catalog.timestamptz,                         -- up to then others are refused
    ttl pg_catalog.interval,
    lock_delay pg_catalog.interval,
    min_hold pg_catalog.interval,
    payload pg_catalog.jsonb);

CREATE TABLE _dlock.lock (
    name pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    leases _dlock.lease[] NOT NULL DEFAULT '{}',            -- the newest first, which stays when it has ended
    permits pg_catalog.int4,
    free_at pg_catalog.timestamptz NOT NULL DEFAULT '-infinity',        -- not before the last one of the leases; from then on none of them counts
    places_until pg_catalog.timestamptz NOT NULL DEFAULT '-infinity')   -- not before the end of any place
    WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

-- Kept places.  Functions pass a request on as such a row, too.
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
    raised_at pg_catalog.timestamptz NOT NULL,
    raised_by pg_catalog.name NOT NULL)
    WITH (fillfactor = 50);
-- Passes that are to be live at the commit, which removes them.
CREATE UNLOGGED TABLE _dlock.live_pass (resource pg_catalog.text COLLATE pg_catalog."C", token pg_catalog.int8);
CREATE INDEX ON _dlock.live_pass (resource, token);
-- Of no row, and locked by whoever moves the sequence.
CREATE TABLE _dlock.token_lock ();
REVOKE ALL ON _dlock.token_seq, _dlock.token_lock, _dlock.lock, _dlock.place, _dlock.fence_mark, _dlock.live_pass FROM PUBLIC;

----------------------------------------------------------------------------
-- What is not interface
----------------------------------------------------------------------------

CREATE FUNCTION _dlock.clock() RETURNS pg_catalog.timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
    RETURN pg_catalog.clock_timestamp();
-- A setting, or what it is without one; as for the extension, in milliseconds if it has no unit.
CREATE FUNCTION _dlock.span(setting pg_catalog.text, usual pg_catalog.interval) RETURNS pg_catalog.interval LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN coalesce(setting, '') = '' THEN usual WHEN setting ~ '^[0-9]+$' THEN setting::pg_catalog.int8 * interval '1 ms' ELSE greatest(setting::pg_catalog.interval, '1 ms') END;
CREATE FUNCTION _dlock.max_ttl() RETURNS pg_catalog.interval LANGUAGE sql STABLE PARALLEL SAFE
    RETURN _dlock.span(pg_catalog.current_setting('dlock.max_ttl', true), '1 day');
CREATE FUNCTION _dlock.bad_ttl(ttl pg_catalog.interval) RETURNS pg_catalog.interval LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF ttl <= '0' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'ttl must be greater than zero', HINT = 'To end a lease, use dlock_release().';
    END IF;
    RAISE invalid_parameter_value USING MESSAGE = 'ttl is longer than "dlock.max_ttl"',
        DETAIL = format('The limit is %s seconds.', extract(epoch FROM _dlock.max_ttl())::int8), HINT = 'Pass a shorter ttl, and renew the lease while it is needed.';
END $$;
-- A day has 24 hours, whatever the time zone of the session says.
CREATE FUNCTION _dlock.exact(span pg_catalog.interval) RETURNS pg_catalog.interval LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN pg_catalog.make_interval(secs => pg_catalog.date_part('epoch', span));
CREATE FUNCTION _dlock.ttl(ttl pg_catalog.interval) RETURNS pg_catalog.interval LANGUAGE sql STABLE PARALLEL SAFE
    RETURN _dlock.exact(CASE WHEN ttl IS NULL THEN least(_dlock.span(pg_catalog.current_setting('dlock.default_ttl', true), '30 s'), _dlock.max_ttl()) WHEN ttl > '0' AND ttl <= _dlock.max_ttl() THEN ttl ELSE _dlock.bad_ttl(ttl) END);
CREATE FUNCTION _dlock.is_transactional() RETURNS pg_catalog.bool LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN true;
-- The default owner, which ends with the session.
CREATE FUNCTION _dlock.session() RETURNS pg_catalog.text LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN coalesce(nullif(pg_catalog.current_setting('dlock.session', true), ''), pg_catalog.set_config('dlock.session',
        pg_catalog.to_hex((pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::pg_catalog.int8) || '.' || pg_catalog.to_hex(pg_catalog.pg_backend_pid()), false));
-- For functions that run as the owner of the tables: the role that has logged in, or that SET ROLE has set.  If that was renamed since,
-- another one may have its name: then this fails, unless the session may set that one, too.
CREATE FUNCTION _dlock.caller() RETURNS pg_catalog.regrole LANGUAGE sql STABLE PARALLEL RESTRICTED
    RETURN pg_catalog.quote_ident(CASE WHEN pg_catalog.current_setting('role') = 'none' THEN session_user
        WHEN pg_catalog.pg_has_role(session_user, pg_catalog.current_setting('role'), 'MEMBER') THEN pg_catalog.current_setting('role') ELSE '' END)::pg_catalog.regrole;

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
    SELECT k.name, l.owner, l.token, l.mode, k.permits, l.holds, CASE WHEN l.expires_at > c.now THEN 'held' ELSE 'closed' END AS state,
           'none'::pg_catalog.text AS bind, NULL::pg_catalog.int4 AS pid, l.role, l.granted_at, l.expires_at,
           greatest(l.expires_at - c.now, '0') AS remaining, l.ttl, l.payload
      FROM _dlock.lock k, LATERAL (SELECT _dlock.clock() AS now OFFSET 0) c, LATERAL pg_catalog.unnest(k.leases) l WHERE k.free_at > c.now AND l.free_at > c.now;
GRANT SELECT ON _dlock.held_lock TO PUBLIC;
CREATE FUNCTION _dlock.names_held(names pg_catalog.text[]) RETURNS SETOF _dlock.held_lock LANGUAGE sql VOLATILE STRICT PARALLEL RESTRICTED
BEGIN ATOMIC
    SELECT h.* FROM pg_catalog.unnest(names) WITH ORDINALITY n (name, i) JOIN _dlock.held_lock h ON h.name = n.name ORDER BY n.i, h.token;
END;
CREATE FUNCTION _dlock.owner_held(owner pg_catalog.text) RETURNS SETOF _dlock.held_lock LANGUAGE sql VOLATILE STRICT PARALLEL RESTRICTED
BEGIN ATOMIC
    SELECT h.* FROM _dlock.held_lock h WHERE h.owner = $1 ORDER BY h.name;
END;

-- What is done to leases counts from the commit on, and others wait until then.
CREATE FUNCTION _dlock.elapsed() RETURNS pg_catalog.interval LANGUAGE sql STABLE PARALLEL SAFE
    RETURN pg_catalog.statement_timestamp() - pg_catalog.transaction_timestamp();
CREATE FUNCTION _dlock.warn_late() RETURNS pg_catalog.void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
    RAISE WARNING USING ERRCODE = '25001', MESSAGE = format('call in a transaction that began %s s before', extract(epoch FROM _dlock.elapsed())::int8),
        DETAIL = 'Until it ends, others wait for its locks, and do not see what it does to leases.', HINT = 'Acquire, renew and release leases in transactions of their own.';
END $$;
-- Is the call in a transaction of its own, by all that can be seen of that?  With the extended protocol a statement begins a little later than its transaction.
CREATE FUNCTION _dlock.is_alone() RETURNS pg_catalog.bool LANGUAGE sql STABLE PARALLEL SAFE
    RETURN _dlock.elapsed() < '1 ms';
CREATE FUNCTION _dlock.refuse(what pg_catalog.text) RETURNS pg_catalog.int8 LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RAISE feature_not_supported USING MESSAGE = pg_catalog.format('%s needs the extension dlock', what),
        DETAIL = 'This is the plain edition, which keeps leases in a table.', HINT = 'The extension can be created beside it, on a server that loads its library.';
END $$;

-- As names come, others go that are no longer used, of some block of the table; at a commit, as their rows are locked in no order.
CREATE FUNCTION _dlock.sweep() RETURNS pg_catalog.trigger LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    block int8 := floor(random() * pg_relation_size(TG_RELID) / current_setting('block_size')::int8);
BEGIN
    IF current_setting('transaction_isolation') = 'read committed' THEN
        WITH gone AS (DELETE FROM _dlock.lock x WHERE x.ctid = ANY (ARRAY(
            SELECT y.ctid FROM _dlock.lock y WHERE y.ctid >= format('(%s,0)', block)::tid AND y.ctid < format('(%s,0)', block + 1)::tid
               AND greatest(y.free_at, y.places_until, (y.leases[1]).granted_at) < _dlock.clock() - interval '1 h' FOR UPDATE SKIP LOCKED)) RETURNING x.name)
        DELETE FROM _dlock.place p USING gone WHERE p.name = gone.name;
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER sweep AFTER INSERT ON _dlock.lock DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (pg_catalog.random() < 0.2) EXECUTE FUNCTION _dlock.sweep();

----------------------------------------------------------------------------
-- Requests
----------------------------------------------------------------------------

CREATE FUNCTION _dlock.key(name pg_catalog.text) RETURNS pg_catalog.int8 LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN pg_catalog.hashtextextended(name, 1701602316);
-- Does no call wait for this lock?  Not to be asked by one that does: it keeps its place in "since".
CREATE FUNCTION _dlock.is_first(name pg_catalog.text) RETURNS pg_catalog.bool LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN CASE WHEN pg_catalog.pg_try_advisory_lock_shared(_dlock.key(name)) THEN pg_catalog.pg_advisory_unlock_shared(_dlock.key(name)) ELSE false END;

CREATE FUNCTION _dlock.live(leases _dlock.lease[], now pg_catalog.timestamptz) RETURNS _dlock.lease[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ARRAY(SELECT l FROM pg_catalog.unnest(leases) l WHERE l.free_at > now);
-- Nothing of a lock is in the way of a request.
CREATE FUNCTION _dlock.is_open(k _dlock.lock, r _dlock.place, now pg_catalog.timestamptz) RETURNS pg_catalog.bool LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    l _dlock.lease;
    free pg_catalog.int4 := r.permits;
    own pg_catalog.int8;
BEGIN
    FOREACH l IN ARRAY k.leases LOOP
        IF k.free_at > now AND l.free_at > now THEN
            free := free - 1;
            IF free <= 0 OR k.permits IS DISTINCT FROM r.permits OR l.owner = r.owner AND l.role = r.role OR free IS NULL AND 'exclusive' IN (l.mode, r.mode) THEN
                RETURN false;
            END IF;
        END IF;
    END LOOP;
    own := (SELECT p.id FROM _dlock.place p WHERE p.name = k.name AND p.owner = r.owner AND p.role = r.role AND p.until > now);
    RETURN (own IS NOT NULL OR r.since IS NOT NULL OR _dlock.is_first(k.name))
       AND NOT EXISTS (SELECT FROM _dlock.place p WHERE p.name = k.name AND p.until > now AND p.id < coalesce(own, p.id + 1) AND NOT (r.mode = 'shared' AND p.mode = 'shared'));
END $$;

-- Grant a lease, or enter one again; NULL if it is refused.  Then the request has a place, if it is to keep one; 0 if it has given one up.
CREATE FUNCTION _dlock.grant(r _dlock.place, keep pg_catalog.interval) RETURNS pg_catalog.int8 LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
#variable_conflict use_variable
DECLARE
    is_locked pg_catalog.bool := false;
    now pg_catalog.timestamptz;
    got pg_catalog.int8;
    until pg_catalog.timestamptz;
    k _dlock.lock;
    p _dlock.place;
    l _dlock.lease;
    own pg_catalog.int4;
BEGIN
    LOOP
        now := _dlock.clock();
        UPDATE _dlock.lock x
           SET leases = ROW(_dlock.next_token((x.leases[1]).token), r.owner, r.role, r.mode, 1, now, now + r.ttl, now + r.ttl + r.lock_delay, r.ttl, r.lock_delay, r.min_hold, r.payload)::_dlock.lease
                        || CASE WHEN x.free_at > now THEN _dlock.live(x.leases, now) END,
               permits = r.permits, free_at = greatest(x.free_at, now + r.ttl + r.lock_delay)
         WHERE x.name = r.name AND (x.free_at <= now AND x.places_until <= now AND (r.since IS NOT NULL OR _dlock.is_first(x.name)) OR _dlock.is_open(x, r, now))
        RETURNING (x.leases[1]).token, x.places_until INTO got, until;
        IF got IS NOT NULL THEN
            -- An UPDATE that has waited for a transaction that was rolled back then does what it had made up before.
            IF _dlock.clock() > now + interval '0.1 s' THEN
                now := _dlock.clock();
                UPDATE _dlock.lock x SET leases[1].granted_at = now, leases[1].expires_at = now + r.ttl, leases[1].free_at = now + r.ttl + r.lock_delay, free_at = greatest(x.free_at, now + r.ttl + r.lock_delay)
                 WHERE x.name = r.name;
            END IF;
            EXIT;
        END IF;
        SELECT * INTO k FROM _dlock.lock x WHERE x.name = r.name;
        IF NOT FOUND THEN
            INSERT INTO _dlock.lock (name) VALUES (r.name) ON CONFLICT DO NOTHING;
            CONTINUE;
        END IF;
        own := (SELECT x.ordinality FROM unnest(k.leases) WITH ORDINALITY x
                 WHERE k.free_at > now AND x.expires_at > now AND x.holds > 0 AND x.owner = r.owner AND x.role = r.role AND r.reentry <> 'deny' AND r.id IS NULL);
        l := k.leases[own];
        SELECT * INTO p FROM _dlock.place x WHERE x.name = r.name AND x.owner = r.owner AND x.role = r.role AND x.until > now;
        IF k.permits IS DISTINCT FROM r.permits AND r.id IS NULL AND k.free_at > now AND _dlock.live(k.leases, now) <> '{}' THEN
            RAISE invalid_parameter_value USING MESSAGE = format('lock "%s" has %s permits, not %s', r.name, coalesce(k.permits::text, 'no'), coalesce(r.permits::text, 'none')),
                DETAIL = 'The first request sets the number, which stays as long as the lock is held.', HINT = 'Ask for it in the same way, or wait until it is free.';
        ELSIF l.mode NOT IN (r.mode, 'exclusive') THEN
            RAISE object_not_in_prerequisite_state USING MESSAGE = format('lease on lock "%s" does not cover the mode "%s"', r.name, r.mode),
                HINT = 'Release the lease, and acquire the lock in the stronger mode.';
        ELSIF own IS NULL AND keep = '0' AND (p.id IS NULL OR r.since IS NOT NULL) THEN
            RETURN NULL;
        ELSIF NOT is_locked THEN
            PERFORM FROM _dlock.lock x WHERE x.name = r.name FOR UPDATE;
            is_locked := FOUND;
            CONTINUE;                                       -- of what was looked at before, something may have changed
        ELSIF own IS NOT NULL THEN
            l.holds := l.holds + (r.reentry = 'count')::int4;
            l.ttl := CASE WHEN now + r.ttl > l.expires_at THEN r.ttl ELSE l.ttl END;
            l.expires_at := greatest(l.expires_at, now + r.ttl);
            l.free_at := l.expires_at + l.lock_delay;
            k.leases[own] := l;
            UPDATE _dlock.lock x SET leases = k.leases, free_at = greatest(x.free_at, l.free_at) WHERE x.name = r.name;
        ELSIF keep > '0' THEN
            r.id := coalesce(p.id, nextval('_dlock.token_seq'));
            r.since := coalesce(p.since, now);
            r.until := now + keep;
            INSERT INTO _dlock.place VALUES (r.*) ON CONFLICT (name, owner, role) DO UPDATE
               SET (id, since, until, ttl, mode, permits, reentry, lock_delay, min_hold, payload) = (r.id, r.since, r.until, r.ttl, r.mode, r.permits, r.reentry, r.lock_delay, r.min_hold, r.payload);
            UPDATE _dlock.lock x SET places_until = greatest(x.places_until, r.until) WHERE x.name = r.name;
            RETURN NULL;
        END IF;
        got := coalesce(l.token, 0);
        until := k.places_until;
        EXIT;
    END LOOP;
    IF until > now THEN
        DELETE FROM _dlock.place x WHERE x.name = r.name AND (x.until <= now OR x.owner = r.owner AND x.role = r.role);
    END IF;
    RETURN got;
END $$;

-- If "all_or_none", or the transaction may stay open, what was in vain is rolled back: an UPDATE that has waited for another transaction keeps its row locked, whether it changes it or not.
CREATE FUNCTION _dlock.try(names pg_catalog.text[], owners pg_catalog.text[], r _dlock.place, keep pg_catalog.interval, all_or_none pg_catalog.bool) RETURNS pg_catalog.int8[]
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    n pg_catalog.record;
    token pg_catalog.int8;
    got pg_catalog.int8[] := '{}';
BEGIN
    FOR n IN SELECT x.name, coalesce(x.owner, r.owner) AS owner, x.i FROM unnest(names, owners) WITH ORDINALITY x (name, owner, i) ORDER BY x.name COLLATE "C", x.i LOOP
        r.name := n.name;
        r.owner := n.owner;
        token := CASE WHEN all_or_none OR keep > '0' OR _dlock.is_alone() THEN _dlock.grant(r, keep) ELSE (_dlock.try(ARRAY[r.name], NULL, r, keep, true))[1] END;
        IF all_or_none AND (token IS NULL OR token = 0 AND cardinality(names) > 1) THEN
            RAISE SQLSTATE 'LK000';
        END IF;
        got[n.i] := nullif(token, 0);
    END LOOP;
    RETURN CASE WHEN token > 0 OR NOT all_or_none THEN got END;
EXCEPTION
    WHEN SQLSTATE 'LK000' THEN
        RETURN NULL;
    WHEN lock_not_available THEN
        IF r.since IS NULL THEN
            RAISE;
        END IF;
        RETURN NULL;                                        -- who waits tries again, and locks none meanwhile
END $$;

CREATE FUNCTION _dlock.check_arrays(names pg_catalog.text[], count pg_catalog.int4) RETURNS pg_catalog.void LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF names IS NULL OR count IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'arrays must not be null';
    ELSIF array_ndims(names) > 1 OR cardinality(names) <> count OR count > 1000 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'invalid array of lock names', DETAIL = format('It has %s names, for %s entries.', cardinality(names), count),
            HINT = 'Pass one-dimensional arrays of the same length, of at most 1000 names, with each name once if all are to be acquired.';
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

-- For how long a call waits for another transaction: to its end at most.
CREATE FUNCTION _dlock.limit_waits(until pg_catalog.timestamptz, longest pg_catalog.interval) RETURNS pg_catalog.text LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
    RETURN set_config('lock_timeout', ceil(extract(epoch FROM least(greatest(until - _dlock.clock(), '1 ms'), longest)) * 1000)::text, true);
END $$;
CREATE FUNCTION _dlock.request(names pg_catalog.text[], owners pg_catalog.text[], r _dlock.place, wait pg_catalog.interval, bind pg_catalog.text, keep pg_catalog.interval, is_all pg_catalog.bool)
    RETURNS pg_catalog.int8[] LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
DECLARE
    until timestamptz := _dlock.wait_until(wait);
    got int8[];
    nap float8 := 0.002;
BEGIN
    PERFORM _dlock.warn_late() WHERE _dlock.elapsed() > '5 s';
    r.id := NULL;
    r.since := NULL;
    r.role := _dlock.caller();
    r.ttl := _dlock.ttl(r.ttl);
    r.owner := coalesce(r.owner, _dlock.session());
    PERFORM _dlock.check_arrays(names, CASE WHEN is_all THEN (SELECT greatest(1, count(DISTINCT x)) FROM unnest(names) x)::int4 ELSE cardinality(owners) END);
    PERFORM _dlock.check_text(x.name, 'lock name', 255), _dlock.check_text(coalesce(x.owner, r.owner), 'lease owner', 255) FROM unnest(names, owners) x (name, owner);
    keep := _dlock.exact(_dlock.check_span(keep, 'keep', _dlock.max_ttl()));
    r.lock_delay := _dlock.exact(_dlock.check_span(r.lock_delay, 'lock_delay', _dlock.max_ttl()));
    r.min_hold := _dlock.exact(_dlock.check_span(r.min_hold, 'min_hold', _dlock.max_ttl()));
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
    ELSIF r.min_hold > r.ttl THEN
        RAISE invalid_parameter_value USING MESSAGE = 'parameter "min_hold" must not be longer than the ttl', HINT = 'Pass a longer ttl; a release can end the lease earlier.';
    ELSIF pg_column_size(r.payload::text::jsonb) > 1028 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'payload is too long', DETAIL = format('It has %s bytes; the limit is 1024.', pg_column_size(r.payload::text::jsonb) - 4);
    END IF;
    r.mode := CASE WHEN r.permits IS NULL THEN r.mode ELSE 'permit' END;

    IF until IS NOT NULL THEN
        IF r.reentry = 'deny' AND EXISTS (SELECT FROM _dlock.names_held(names) h WHERE h.owner = r.owner AND h.role = r.role AND h.state = 'held') THEN
            RAISE deadlock_detected USING MESSAGE = 'deadlock detected', DETAIL = format('Owner "%s" waits for a lock that it holds.', r.owner),
                HINT = 'Let it enter its lease again with reentry => ''count'' or ''return''.';
        END IF;
        BEGIN
            -- Not for one that is to enter its lease again, or has a place: these go before those that wait.
            PERFORM _dlock.limit_waits(until, '24 d'), pg_advisory_xact_lock(x.key)
               FROM (SELECT _dlock.key(x) AS key FROM unnest(names) x
                      WHERE NOT EXISTS (SELECT FROM _dlock.place p WHERE p.name = x AND p.owner = r.owner AND p.role = r.role AND p.until > _dlock.clock())
                        AND NOT EXISTS (SELECT FROM _dlock.names_held(ARRAY[x]) h WHERE h.owner = r.owner AND h.role = r.role AND h.state = 'held')
                      GROUP BY 1 ORDER BY 1) x;
            r.since := _dlock.clock();
            LOOP
                PERFORM _dlock.limit_waits(until, '1 s');
                got := _dlock.try(names, owners, r, '0', true);
                IF got IS NOT NULL THEN
                    RETURN got;
                ELSIF _dlock.clock() >= until THEN
                    RAISE lock_not_available;
                END IF;
                PERFORM pg_sleep(greatest(0.001, least(nap, extract(epoch FROM until - _dlock.clock()), extract(epoch FROM
                    (SELECT min(x.free_at) FROM _dlock.lock x WHERE x.name = ANY (names) AND x.free_at > _dlock.clock()) - _dlock.clock()))));
                nap := least(nap * 1.5, 0.05);
            END LOOP;
        EXCEPTION WHEN lock_not_available THEN
            r.since := NULL;
            IF keep = '0' AND NOT EXISTS (SELECT FROM _dlock.place p WHERE p.name = ANY (names) AND p.owner = r.owner AND p.role = r.role) THEN
                RETURN NULL;
            END IF;
        END;
    END IF;
    RETURN _dlock.try(names, owners, r, keep, is_all AND keep = '0');
END $$;

CREATE FUNCTION @extschema@.dlock_acquire(name pg_catalog.text, owner pg_catalog.text DEFAULT NULL, ttl pg_catalog.interval DEFAULT NULL, wait pg_catalog.interval DEFAULT '0',
    mode pg_catalog.text DEFAULT 'exclusive', permits pg_catalog.int4 DEFAULT NULL, reentry pg_catalog.text DEFAULT 'deny', bind pg_catalog.text DEFAULT 'none',
    lock_delay pg_catalog.interval DEFAULT '0', min_hold pg_catalog.interval DEFAULT '0', payload pg_catalog.jsonb DEFAULT NULL, keep pg_catalog.interval DEFAULT '0')
    RETURNS pg_catalog.int8 LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
BEGIN
    -- In the usual case, what the others check is so, and nothing has to be rolled back.
    IF octet_length(name) BETWEEN 1 AND 255 AND octet_length(coalesce(owner, '-')) BETWEEN 1 AND 255 AND wait = '0' AND mode = 'exclusive' AND permits IS NULL AND reentry IN ('deny', 'count', 'return')
       AND bind = 'none' AND lock_delay = '0' AND min_hold = '0' AND payload IS NULL AND keep = '0' AND _dlock.is_alone() THEN
        RETURN nullif(_dlock.grant(ROW(NULL, name, NULL, NULL, _dlock.caller(), coalesce(owner, _dlock.session()), _dlock.ttl(ttl), mode, permits, reentry, lock_delay, min_hold, payload), keep), 0);
    END IF;
    RETURN (_dlock.request(ARRAY[name], NULL, ROW(NULL, NULL, NULL, NULL, NULL, owner, ttl, mode, permits, reentry, lock_delay, min_hold, payload)::_dlock.place, wait, bind, keep, true))[1];
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
-- The places of a client that have their turn.  The call does not wait for longer than they are kept already, nor for other transactions: what these have locked has no turn.
CREATE FUNCTION @extschema@.dlock_take(client pg_catalog.text, wait pg_catalog.interval, keep pg_catalog.interval,
    OUT name pg_catalog.text, OUT owner pg_catalog.text, OUT token pg_catalog.int8) RETURNS SETOF pg_catalog.record
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 10 SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    until timestamptz := _dlock.wait_until(wait);
    began timestamptz := _dlock.clock();
    me regrole := _dlock.caller();
    locked text[];
    r _dlock.place;
    refused text;
    nap float8 := 0.002;
BEGIN
    PERFORM _dlock.warn_late() WHERE _dlock.elapsed() > '5 s';
    PERFORM _dlock.check_text(client, 'client', 255);
    keep := _dlock.exact(_dlock.check_span(keep, 'keep', _dlock.max_ttl()));
    LOOP
        PERFORM FROM _dlock.place p JOIN _dlock.lock k ON k.name = p.name
          WHERE _dlock.is_of(p.owner, client) AND p.role = me AND p.until > _dlock.clock() AND _dlock.is_open(k, p, _dlock.clock()) LIMIT 1 FOR UPDATE OF k SKIP LOCKED;
        EXIT WHEN FOUND OR until IS NULL
            OR _dlock.clock() >= least(until, (SELECT min(p.until) - interval '1 s' FROM _dlock.place p WHERE _dlock.is_of(p.owner, client) AND p.role = me AND p.until > began));
        PERFORM pg_sleep(nap);
        nap := least(nap * 1.5, 0.05);
    END LOOP;
    locked := ARRAY(SELECT k.name FROM _dlock.lock k
                     WHERE k.name IN (SELECT p.name FROM _dlock.place p WHERE _dlock.is_of(p.owner, client) AND p.role = me) ORDER BY k.name FOR UPDATE SKIP LOCKED);
    FOR r IN SELECT * FROM _dlock.place p WHERE p.name = ANY (locked) AND _dlock.is_of(p.owner, client) AND p.role = me AND p.until > _dlock.clock() ORDER BY p.name, p.id LOOP
        CONTINUE WHEN r.name = refused;                     -- its other places are behind that one
        token := _dlock.grant(r, keep);
        IF token IS NULL THEN
            refused := r.name;
            UPDATE _dlock.place p SET until = least(k.places_until, _dlock.clock() + keep) FROM _dlock.lock k
             WHERE k.name = r.name AND p.name = k.name AND _dlock.is_of(p.owner, client) AND p.role = me AND p.until > _dlock.clock();
        ELSE
            name := r.name;
            owner := r.owner;
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

----------------------------------------------------------------------------
-- Renewals and releases
----------------------------------------------------------------------------

-- May a role change the leases of another one?  No superuser: one is the caller in maintenance, too, which runs functions of others.
CREATE FUNCTION _dlock.is_member(me pg_catalog.regrole, role pg_catalog.regrole) RETURNS pg_catalog.bool LANGUAGE sql STABLE PARALLEL SAFE
    RETURN pg_catalog.pg_has_role(me, role, 'USAGE') AND NOT (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.oid = me);
-- "renew" a lease, "release" it, or "end" all its holds: that with a token, or the caller's own of an owner.  False if there is none that the caller may change, or,
-- if the caller asks for this one alone, an error.
CREATE FUNCTION _dlock.change(name pg_catalog.text, token pg_catalog.int8, owner pg_catalog.text, act pg_catalog.text, ttl pg_catalog.interval, is_alone pg_catalog.bool) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := _dlock.clock();
    me regrole := _dlock.caller();
    leases _dlock.lease[];
    l _dlock.lease;
    i int4;
    is_live bool;
BEGIN
    IF is_alone AND _dlock.elapsed() > '5 s' THEN
        PERFORM _dlock.warn_late();
    END IF;
    -- In the usual case the lease is the only one, and ends.
    IF act <> 'renew' THEN
        UPDATE _dlock.lock x SET free_at = '-infinity'
         WHERE x.name = name AND x.free_at > now AND cardinality(x.leases) = 1 AND (x.leases[1]).expires_at > now AND (x.leases[1]).holds = 1 AND (x.leases[1]).min_hold = '0'
           AND (x.leases[1]).role = me AND CASE WHEN token IS NULL THEN (x.leases[1]).owner = owner ELSE (x.leases[1]).token = token END;
        IF FOUND THEN
            RETURN true;
        END IF;
    END IF;
    SELECT CASE WHEN x.free_at > now THEN x.leases END INTO leases FROM _dlock.lock x
     WHERE x.name = name AND (x.free_at > now AND EXISTS (SELECT FROM unnest(x.leases) y WHERE (y.token = token OR y.owner = owner) AND (y.role = me OR _dlock.is_member(me, y.role)))
                              OR current_setting('transaction_isolation') <> 'read committed') FOR UPDATE;
    now := _dlock.clock();                                  -- who has waited for a release must not go by a time before it
    i := (SELECT y.ordinality FROM unnest(leases) WITH ORDINALITY y
           WHERE (y.token = token OR y.owner = owner) AND (y.role = me OR _dlock.is_member(me, y.role)) AND y.holds > 0 AND y.free_at > now AND (y.expires_at > now OR act <> 'renew')
           ORDER BY y.role = me DESC, y.expires_at DESC LIMIT 1);
    IF i IS NOT NULL THEN
        l := leases[i];
        is_live := l.expires_at > now;
        IF act = 'renew' THEN
            l.expires_at := CASE WHEN ttl IS NULL THEN greatest(l.expires_at, now + l.ttl) ELSE now + ttl END;
            l.ttl := coalesce(ttl, l.ttl);
            l.free_at := l.expires_at + l.lock_delay;
        ELSIF act = 'release' AND is_live AND l.holds > 1 THEN
            l.holds := l.holds - 1;
        ELSE
            -- What an unclean end has closed is opened; that is no release.
            l.holds := 0;
            l.free_at := CASE WHEN is_live AND l.min_hold > '0' THEN l.granted_at + l.min_hold ELSE '-infinity' END;
            l.expires_at := least(l.expires_at, now);
        END IF;
        leases[i] := l;
        UPDATE _dlock.lock x SET leases = leases, free_at = (SELECT max(y.free_at) FROM unnest(leases) y) WHERE x.name = name;
        RETURN is_live;
    ELSIF is_alone THEN
        PERFORM _dlock.check_text(name, 'lock name', 255), _dlock.check_text(coalesce(owner, '-'), 'lease owner', 255);
        IF owner IS NULL AND EXISTS (SELECT FROM _dlock.names_held(ARRAY[name]) h WHERE h.token = _dlock.check_token(token) AND h.role <> me AND NOT _dlock.is_member(me, h.role)) THEN
            RAISE insufficient_privilege USING MESSAGE = format('permission denied for the lease on lock "%s" with token %s', name, token),
                HINT = 'Only the role that acquired it and its members can renew or release it; a superuser can call dlock_force_release().';
        END IF;
    END IF;
    RETURN false;
END $$;

CREATE FUNCTION @extschema@.dlock_renew(name pg_catalog.text, owner pg_catalog.text DEFAULT NULL, ttl pg_catalog.interval DEFAULT NULL) RETURNS pg_catalog.bool LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN _dlock.change(name, NULL, coalesce(owner, _dlock.session()), 'renew', CASE WHEN ttl IS NOT NULL THEN _dlock.ttl(ttl) END, true);
CREATE FUNCTION @extschema@.dlock_renew_token(name pg_catalog.text, token pg_catalog.int8, ttl pg_catalog.interval DEFAULT NULL) RETURNS pg_catalog.bool LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN _dlock.change(name, token, NULL, 'renew', CASE WHEN ttl IS NOT NULL THEN _dlock.ttl(ttl) END, true);
CREATE FUNCTION @extschema@.dlock_release(name pg_catalog.text, owner pg_catalog.text DEFAULT NULL) RETURNS pg_catalog.bool LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN _dlock.change(name, NULL, coalesce(owner, _dlock.session()), 'release', NULL, true);
CREATE FUNCTION @extschema@.dlock_release_token(name pg_catalog.text, token pg_catalog.int8) RETURNS pg_catalog.bool LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN _dlock.change(name, token, NULL, 'release', NULL, true);

-- Many, in the order of names, so that two calls do not wait for each other.
CREATE FUNCTION _dlock.each(names pg_catalog.text[], tokens pg_catalog.int8[], act pg_catalog.text, ttl pg_catalog.interval) RETURNS pg_catalog.bool[]
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    n record;
    done bool[] := '{}';
BEGIN
    PERFORM _dlock.warn_late() WHERE _dlock.elapsed() > '5 s';
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
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
#variable_conflict use_variable
DECLARE
    me regrole := _dlock.caller();
    placed text[] := ARRAY(SELECT p.name FROM _dlock.place p WHERE act = 'end' AND _dlock.is_of(p.owner, owner) AND p.role = me);
    names text[];
    tokens int8[];
BEGIN
    PERFORM _dlock.warn_late() WHERE _dlock.elapsed() > '5 s';
    PERFORM _dlock.check_text(owner, 'lease owner', 255), _dlock.ttl(ttl);
    SELECT coalesce(array_agg(x.name), '{}'), coalesce(array_agg(x.token), '{}') INTO names, tokens
      FROM (SELECT h.name, h.token, rank() OVER (ORDER BY h.role <> me) FROM _dlock.held_lock h
             WHERE _dlock.is_of(h.owner, owner) AND h.state = 'held' AND (h.role = me OR _dlock.is_member(me, h.role))) x WHERE x.rank = 1;
    PERFORM FROM _dlock.lock x WHERE x.name = ANY (placed || names) AND placed <> '{}' ORDER BY x.name FOR UPDATE;
    DELETE FROM _dlock.place p WHERE p.name = ANY (placed) AND _dlock.is_of(p.owner, owner) AND p.role = me;
    RETURN (SELECT count(*) FILTER (WHERE _dlock.change(x.name, x.token, NULL, act, CASE WHEN ttl IS NOT NULL THEN _dlock.ttl(ttl) END, false))
              FROM (SELECT * FROM unnest(names, tokens) x (name, token) ORDER BY x.name COLLATE "C" OFFSET 0) x);
END $$;
CREATE FUNCTION @extschema@.dlock_renew_all(owner pg_catalog.text DEFAULT NULL, ttl pg_catalog.interval DEFAULT NULL) RETURNS pg_catalog.int4 LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN _dlock.of_owner(coalesce(owner, _dlock.session()), 'renew', ttl);
CREATE FUNCTION @extschema@.dlock_release_all(owner pg_catalog.text DEFAULT NULL) RETURNS pg_catalog.int4 LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN _dlock.of_owner(coalesce(owner, _dlock.session()), 'end', NULL);
CREATE FUNCTION @extschema@.dlock_force_release(name pg_catalog.text, reason pg_catalog.text) RETURNS pg_catalog.int4
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
DECLARE
    k _dlock.lock;
    l _dlock.lease;
    now timestamptz;
    done int4 := 0;
BEGIN
    PERFORM _dlock.warn_late() WHERE _dlock.elapsed() > '5 s';
    PERFORM _dlock.check_text(name, 'lock name', 255), _dlock.check_text(trim(reason), 'reason', 10000);
    SELECT * INTO k FROM _dlock.lock x WHERE x.name = dlock_force_release.name COLLATE "C" FOR UPDATE;
    now := _dlock.clock();
    FOR i IN 1 .. coalesce(cardinality(k.leases), 0) LOOP
        l := k.leases[i];
        CONTINUE WHEN least(k.free_at, l.free_at) <= now;
        l.free_at := CASE WHEN l.expires_at > now THEN now + l.lock_delay ELSE now END;
        l.expires_at := least(l.expires_at, now);
        k.leases[i] := l;
        RAISE LOG 'lease on lock "%" was released by force', name
            USING DETAIL = format('Owner "%s", role "%s", token %s; by role "%s": %s', l.owner, l.role, l.token, _dlock.caller(), reason);
        done := done + 1;
    END LOOP;
    UPDATE _dlock.lock x SET leases = k.leases, free_at = (SELECT max(y.free_at) FROM unnest(k.leases) y) WHERE x.name = k.name AND done > 0;
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
    SELECT name, owner, token, mode, permits, holds, state, bind, pid, role, granted_at, expires_at, remaining, ttl, payload FROM _dlock.held_lock;
GRANT SELECT ON @extschema@.dlock_leases TO PUBLIC;
CREATE FUNCTION @extschema@.dlock_lease(name pg_catalog.text) RETURNS SETOF @extschema@.dlock_leases
    LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM _dlock.check_text(name, 'lock name', 255);
    RETURN QUERY SELECT * FROM @extschema@.dlock_leases l WHERE l.name = dlock_lease.name COLLATE "C";
END $$;
CREATE FUNCTION @extschema@.dlock_check(name pg_catalog.text, token pg_catalog.int8) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM _dlock.check_text(name, 'lock name', 255), _dlock.check_token(token);
    RETURN EXISTS (SELECT FROM _dlock.held_lock l WHERE l.name = dlock_check.name COLLATE "C" AND l.token = dlock_check.token AND l.state = 'held');
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
          FROM @extschema@.dlock_leases l WHERE l.name = dlock_watch.name COLLATE "C" AND l.state = 'held' ORDER BY l.token DESC LIMIT 1;
        EXIT WHEN token IS DISTINCT FROM seen OR (_dlock.clock() < until) IS NOT TRUE;
        PERFORM pg_sleep(0.1);
    END LOOP;
END $$;
-- Kept places, and calls that wait.  Of these the owner is not known, and of the first one only its role sees when it began.
CREATE VIEW @extschema@.dlock_waiters AS
    SELECT w.name, w.owner, w.mode, w.permits, w.request, pg_catalog.row_number() OVER (PARTITION BY w.name ORDER BY w.request DESC, w.since NULLS FIRST)::pg_catalog.int4 AS "position",
           w.since, _dlock.clock() OPERATOR(pg_catalog.-) w.since AS waited, w.pid, w.role,
           ARRAY(SELECT h.owner FROM _dlock.held_lock h WHERE h.name OPERATOR(pg_catalog.=) w.name) AS blocked_by, w.kept_until
      FROM (SELECT p.name, p.owner, p.mode, p.permits, 'place' AS request, p.since, NULL::pg_catalog.int4 AS pid, p.role, p.until AS kept_until
              FROM _dlock.place p WHERE p.until OPERATOR(pg_catalog.>) _dlock.clock()
            UNION ALL
            SELECT l.name, NULL, NULL, NULL, 'call', coalesce(a.query_start, k.waitstart), k.pid, a.usesysid::pg_catalog.regrole, NULL
              FROM pg_catalog.pg_locks k
              JOIN _dlock.lock l ON (k.classid::pg_catalog.int8 OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.|) k.objid::pg_catalog.int8 OPERATOR(pg_catalog.=) _dlock.key(l.name)
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
-- whoever raises it for itself.  A pass that is live is checked again at the commit.
CREATE FUNCTION _dlock.pass(resource pg_catalog.text, token pg_catalog.int8, live pg_catalog.bool) RETURNS pg_catalog.void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
#variable_conflict use_variable
DECLARE
    mark pg_catalog.int8 := (SELECT m.token FROM _dlock.fence_mark m WHERE m.resource = resource COLLATE "C");
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
        INSERT INTO _dlock.fence_mark AS m VALUES (resource, token, _dlock.clock(), pg_get_userbyid(_dlock.caller())) ON CONFLICT ON CONSTRAINT _dlock_fence_mark_pkey
            DO UPDATE SET token = token, raised_at = excluded.raised_at, raised_by = excluded.raised_by WHERE m.token < token;
    END IF;
    SELECT m.token INTO mark FROM _dlock.fence_mark m WHERE m.resource = resource COLLATE "C" FOR SHARE;
    IF token < mark THEN
        RAISE EXCEPTION USING ERRCODE = 'LK001', MESSAGE = format('fencing token %s for resource "%s" is stale', token, resource),
            DETAIL = format('Token %s has been presented since.', mark), HINT = 'Stop the work, and acquire the lock again.';
    ELSIF live THEN
        PERFORM _dlock.check_live(resource, token);
        INSERT INTO _dlock.live_pass SELECT resource, token WHERE NOT EXISTS (SELECT FROM _dlock.live_pass p WHERE p.resource = resource COLLATE "C" AND p.token = token);
    END IF;
END $$;
CREATE FUNCTION _dlock.check_live(name pg_catalog.text, token pg_catalog.int8) RETURNS pg_catalog.void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM _dlock.names_held(ARRAY[name]) h WHERE h.token = check_live.token AND h.state = 'held') THEN
        RAISE EXCEPTION USING ERRCODE = 'LK002', MESSAGE = format('lease on lock "%s" with token %s is not held', name, token),
            DETAIL = 'It has expired, has been released, or was never granted.', HINT = 'Stop the work under this lease, and acquire the lock again.';
    END IF;
END $$;
-- Only the last one of a resource has to be live.
CREATE FUNCTION _dlock.live_at_commit() RETURNS pg_catalog.trigger LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5 s' AS $$
BEGIN
    DELETE FROM _dlock.live_pass p WHERE p.resource = new.resource AND p.token = new.token;
    PERFORM FROM _dlock.lock x WHERE x.name = new.resource FOR SHARE;       -- fails if it has changed since an old snapshot
    PERFORM _dlock.check_live(new.resource, new.token) WHERE EXISTS (SELECT FROM _dlock.fence_mark m WHERE m.resource = new.resource AND m.token = new.token);
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON _dlock.live_pass DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION _dlock.live_at_commit();

CREATE FUNCTION @extschema@.dlock_fence(resource pg_catalog.text, token pg_catalog.int8, live pg_catalog.bool DEFAULT false) RETURNS pg_catalog.void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF live IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'parameter "live" must not be null';
    END IF;
    PERFORM _dlock.pass(resource, token, live), set_config('dlock.tokens', concat_ws(',', format('"%s=%s"', replace(resource, '"', '""'), token),
        nullif(current_setting('dlock.tokens', true), '')), true);
END $$;
REVOKE ALL ON FUNCTION @extschema@.dlock_fence(pg_catalog.text, pg_catalog.int8, pg_catalog.bool) FROM PUBLIC;

-- The token that dlock.tokens has for a resource, or for * ; the first one counts.
CREATE FUNCTION _dlock.presented(resource pg_catalog.text) RETURNS pg_catalog.int8 LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
    setting pg_catalog.text := current_setting('dlock.tokens', true);
    item pg_catalog.text := '[[:space:]]*(?:"((?:[^"]|"")+)=([0-9]+)"|([^[:space:],"][^[:space:],]*)=([0-9]+))[[:space:]]*';
BEGIN
    IF setting !~ format('^(?:%s(?:,%s)*|[[:space:]]*)$', item, item) THEN
        RAISE invalid_parameter_value USING MESSAGE = format('invalid value for parameter "dlock.tokens": "%s"', setting),
            HINT = 'Write it as "name=token, ...", and in double quotes what has a space, a comma or a quote in it.';
    END IF;
    RETURN (SELECT coalesce(t[2], t[4])::int8 FROM regexp_matches(setting, item, 'g') WITH ORDINALITY m (t, i), coalesce(replace(t[1], '""', '"'), t[3]) name
             WHERE name IN (resource, '*') ORDER BY name <> resource, i LIMIT 1);
END $$;
CREATE FUNCTION @extschema@.dlock_guard() RETURNS pg_catalog.trigger
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    prefix text := '';
    by_column text;
    live bool := false;
    word text;
    problem text;
    is_name bool;
    value text;
    resource text;
    resources text[];
    presented int8;
BEGIN
    FOREACH word IN ARRAY coalesce(TG_ARGV, '{}') LOOP
        CASE WHEN word LIKE 'resource_column=%' THEN by_column := substr(word, 17);
             WHEN word LIKE 'resource=%' THEN prefix := substr(word, 10);
             WHEN word IN ('mode=live', 'mode=fence') THEN live := word = 'mode=live';
             WHEN word LIKE 'token_column=%' OR word LIKE 'tokens=%' THEN PERFORM _dlock.refuse(format('a guard with "%s"', word));
             WHEN word LIKE '%=%' THEN problem := format('It has the unknown option "%s".', word);
             ELSE prefix := word;
        END CASE;
    END LOOP;
    -- By a type whose text depends on settings a session could choose the name of the resource.
    is_name := (SELECT a.attgenerated = '' AND coalesce(nullif(t.typbasetype, 0), t.oid) = ANY ('{text,varchar,bpchar,name,int2,int4,int8,oid,uuid}'::regtype[])
                  FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = TG_RELID AND a.attname = by_column AND a.attnum > 0 AND NOT a.attisdropped);
    IF is_name IS NULL AND by_column IS NOT NULL THEN
        RAISE undefined_column USING MESSAGE = format('column "%s" of relation "%s" does not exist', by_column, TG_TABLE_NAME);
    ELSIF NOT is_name THEN
        problem := format('Column "%s" is generated, or its text depends on settings.', by_column);
    ELSIF TG_WHEN <> 'BEFORE' OR (prefix = '' AND by_column IS NULL) OR (TG_LEVEL = 'STATEMENT' AND by_column IS NOT NULL) THEN
        problem := 'It is not BEFORE, names no resource, or names a column but is not FOR EACH ROW.';
    END IF;
    IF problem IS NOT NULL THEN
        RAISE invalid_object_definition USING MESSAGE = format('trigger "%s" cannot guard table "%s"', TG_NAME, TG_TABLE_NAME), DETAIL = problem;
    ELSIF by_column IS NULL THEN
        resources := ARRAY[prefix];
    ELSE
        word := format('SELECT CASE WHEN ($1).%1$I IS DISTINCT FROM NULL THEN format(''%%s'', ($1).%1$I) END', by_column);
        IF TG_OP <> 'INSERT' THEN
            EXECUTE word INTO value USING old;
            resources := ARRAY[prefix || value];
        END IF;
        IF TG_OP <> 'DELETE' THEN
            EXECUTE word INTO value USING new;
            IF value IS NULL THEN
                RAISE null_value_not_allowed USING MESSAGE = format('column "%s" of a row of table "%s" must not be null', by_column, TG_TABLE_NAME),
                    DETAIL = 'It names the resource that guards the row.', HINT = 'Declare the column NOT NULL.';
            END IF;
            resources := resources || (prefix || value);
        END IF;
    END IF;
    FOR resource IN SELECT DISTINCT x FROM unnest(resources) x WHERE x IS NOT NULL ORDER BY 1 LOOP
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

-- What only functions that run as the owner of the tables call; and the trigger function, which would believe rows of any table.
REVOKE ALL ON FUNCTION _dlock.caller, _dlock.move_tokens, _dlock.next_token, _dlock.is_first, _dlock.is_open, _dlock.sweep, _dlock.grant,
    _dlock.try, _dlock.limit_waits, _dlock.is_of, _dlock.pass, _dlock.check_live, _dlock.live_at_commit, _dlock.presented FROM PUBLIC;
