-- Proves: a renewal extends a live lease and only that; it never revives one, never shortens one unasked, and keeps the token.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'

-- by owner, by token; a name nobody holds; a stranger; a token that is not the lease's
SELECT dlock_acquire('renew-1', 'alice', '1 h') AS token \gset
SELECT dlock_renew('renew-1', 'alice') AS by_owner, dlock_renew_token('renew-1', :token) AS by_token;
SELECT dlock_renew('renew-nobody', 'alice') AS by_owner, dlock_renew_token('renew-nobody', :token) AS by_token;
SELECT dlock_renew('renew-1', 'bob') AS by_owner, dlock_renew_token('renew-1', :token + 1) AS by_token;

-- the token stays
SELECT token = :token AS same FROM dlock_leases WHERE name = 'renew-1';

-- without a ttl: now + the lease's ttl
SELECT granted_at, expires_at AS before FROM dlock_leases WHERE name = 'renew-1' \gset
SELECT pg_sleep(0.1);
SELECT dlock_renew('renew-1', 'alice');
SELECT expires_at >= :'before'::timestamptz + '0.05 s' AS extended, remaining <= ttl AS within_ttl, ttl,
       granted_at = :'granted_at' AS same_grant
  FROM dlock_leases WHERE name = 'renew-1';

-- with a ttl: now + that, and it becomes the lease's, longer ...
SELECT dlock_renew('renew-1', 'alice', '2 h');
SELECT ttl, remaining BETWEEN '1:59' AND '2:00' AS about_two_hours FROM dlock_leases WHERE name = 'renew-1';
SELECT dlock_renew('renew-1', 'alice');
SELECT ttl, remaining BETWEEN '1:59' AND '2:00' AS about_two_hours FROM dlock_leases WHERE name = 'renew-1';

-- ... or shorter, since it was asked for
SELECT dlock_renew_token('renew-1', :token, '10 min');
SELECT ttl, remaining BETWEEN '0:09' AND '0:10' AS about_ten_minutes FROM dlock_leases WHERE name = 'renew-1';
SELECT dlock_renew_token('renew-1', :token);
SELECT ttl, remaining BETWEEN '0:09' AND '0:10' AS about_ten_minutes FROM dlock_leases WHERE name = 'renew-1';

-- dlock.default_ttl is for grants only
SET dlock.default_ttl = '1s';
SELECT dlock_renew('renew-1', 'alice');
RESET dlock.default_ttl;
SELECT ttl FROM dlock_leases WHERE name = 'renew-1';

-- a payload and the owner stay
SELECT dlock_acquire('renew-2', 'alice', '1 h', payload => '{"a": 1}') > 0 AS granted;
SELECT dlock_renew('renew-2', 'alice', '2 h');
SELECT owner, payload FROM dlock_leases WHERE name = 'renew-2';

-- an expired lease is not revived, and stays free
SELECT dlock_acquire('renew-3', 'alice', '1 ms') AS token \gset
SELECT pg_sleep(0.002);
SELECT dlock_renew('renew-3', 'alice') AS by_owner, dlock_renew_token('renew-3', :token, '1 h') AS by_token;
SELECT count(*) FROM dlock_leases WHERE name = 'renew-3';

-- the successor is not renewed by the predecessor's token, or under its owner
SELECT dlock_acquire('renew-3', 'bob', '1 h') AS next \gset
SELECT dlock_renew('renew-3', 'alice') AS by_owner, dlock_renew_token('renew-3', :token) AS by_token,
       dlock_renew_token('renew-3', :next) AS by_next;

-- a shortened lease ends when it says
SELECT dlock_renew('renew-3', 'bob', '1 ms');
SELECT pg_sleep(0.002);
SELECT dlock_renew('renew-3', 'bob');

-- all of an owner's leases with one call; not those that ended, not another owner's
SELECT count(dlock_acquire('renew-all-' || i, 'renew-all', '1 h')) FROM generate_series(1, 100) i;
SELECT dlock_acquire('renew-all-dead', 'renew-all', '1 microsecond') > 0 AS granted;
SELECT dlock_acquire('renew-all-other', 'renew-all-other', '1 h') > 0 AS granted;
SELECT pg_sleep(0.001);
SELECT dlock_renew_all('renew-all', '3 h');
SELECT owner, ttl, count(*) FROM dlock_leases WHERE name LIKE 'renew-all-%' GROUP BY 1, 2 ORDER BY 1, 2;
SELECT dlock_renew_all('renew-all'), dlock_renew_all('renew-all-nobody');
SELECT min(remaining) > '2:59' AS renewed FROM dlock_leases WHERE owner = 'renew-all';

SELECT dlock_release_all('renew-all') AS released, dlock_release_all('renew-all-other') AS released;
SELECT dlock_release('renew-1', 'alice'), dlock_release('renew-2', 'alice');
