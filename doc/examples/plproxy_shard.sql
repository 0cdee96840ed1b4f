-- Locks spread over servers by PL/Proxy: what each server needs.
--
--   CREATE EXTENSION dlock;
--   \i plproxy_shard.sql
--
-- PL/Proxy calls a function of the same name with the same arguments.

CREATE SCHEMA IF NOT EXISTS locks;
GRANT USAGE ON SCHEMA locks TO PUBLIC;

CREATE FUNCTION locks.acquire(name text, owner text, ttl interval, wait interval DEFAULT '0')
RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT dlock_acquire(name, owner => owner, ttl => ttl, wait => wait) $$;

CREATE FUNCTION locks.renew(name text, token bigint)
RETURNS boolean LANGUAGE sql VOLATILE
AS $$ SELECT dlock_renew_token(name, token) $$;

CREATE FUNCTION locks.release(name text, token bigint)
RETURNS boolean LANGUAGE sql VOLATILE
AS $$ SELECT dlock_release_token(name, token) $$;

CREATE FUNCTION locks.is_held(name text, token bigint)
RETURNS boolean LANGUAGE sql VOLATILE
AS $$ SELECT dlock_check(name, token) $$;
