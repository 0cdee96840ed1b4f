-- Locks spread over servers by PL/Proxy: what the database needs that clients connect
-- to.  The number of servers has to be a power of two.
--
--   psql -v shard0='host=a dbname=locks' -v shard1='host=b dbname=locks' -f plproxy_proxy.sql

CREATE EXTENSION plproxy;

CREATE SERVER locks FOREIGN DATA WRAPPER plproxy
OPTIONS (connection_lifetime '1800', p0 :'shard0', p1 :'shard1');

-- Each role calls as itself, so it needs to exist on the servers, too.  For a role with a
-- password there, make a mapping of its own, with OPTIONS (user '...', password '...').
CREATE USER MAPPING FOR PUBLIC SERVER locks;
GRANT USAGE ON FOREIGN SERVER locks TO PUBLIC;

CREATE SCHEMA IF NOT EXISTS locks;
GRANT USAGE ON SCHEMA locks TO PUBLIC;

-- The name of the lock chooses the server.
CREATE FUNCTION locks.acquire(name text, owner text, ttl interval, wait interval DEFAULT '0')
RETURNS bigint LANGUAGE plproxy VOLATILE
AS $$ CLUSTER 'locks'; RUN ON hashtext(name); $$;

CREATE FUNCTION locks.renew(name text, token bigint)
RETURNS boolean LANGUAGE plproxy VOLATILE
AS $$ CLUSTER 'locks'; RUN ON hashtext(name); $$;

CREATE FUNCTION locks.release(name text, token bigint)
RETURNS boolean LANGUAGE plproxy VOLATILE
AS $$ CLUSTER 'locks'; RUN ON hashtext(name); $$;

CREATE FUNCTION locks.is_held(name text, token bigint)
RETURNS boolean LANGUAGE plproxy VOLATILE
AS $$ CLUSTER 'locks'; RUN ON hashtext(name); $$;
