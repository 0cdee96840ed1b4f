-- Proves: dlock_acquire_all grants every name or none, each with a token of its own, in the order of the names.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'
SET statement_timeout = '60 s';

-- all, in the order that was asked for
SELECT dlock_acquire_all('{all-c,all-a,all-b}', 'all-1', '1 h') AS tokens \gset
SELECT cardinality(:'tokens'::bigint[]) AS n, array_ndims(:'tokens'::bigint[]) AS dimensions, array_lower(:'tokens'::bigint[], 1) AS first;
SELECT name, owner, mode, holds, state, bind, ttl, array_position(:'tokens', token) AS place FROM dlock_leases WHERE name LIKE 'all-%' ORDER BY name;
SELECT bool_and(dlock_check(name, token)) FROM unnest('{all-c,all-a,all-b}'::text[], :'tokens'::bigint[]) u(name, token);

-- none, whichever of them is held
SELECT dlock_acquire_all('{all-x,all-y,all-a}', 'all-2', '1 h') AS refused;
SELECT dlock_acquire_all('{all-a,all-x,all-y}', 'all-2', '1 h') AS refused;
SELECT dlock_acquire_all('{all-x,all-b,all-y,all-c}', 'all-2', '1 h', wait => '20 ms') AS refused;
SELECT name, owner FROM dlock_leases WHERE name LIKE 'all-%' ORDER BY name;

-- each is a lease like others: released, renewed, converted by itself
SELECT dlock_release_token('all-c', (:'tokens'::bigint[])[1]), dlock_renew_token('all-a', (:'tokens'::bigint[])[2], '2 h'),
       dlock_convert('all-b', (:'tokens'::bigint[])[3], 'shared') = (:'tokens'::bigint[])[3] AS converted;
SELECT name, mode, ttl FROM dlock_leases WHERE name LIKE 'all-%' ORDER BY name;
SELECT cardinality(dlock_acquire_all('{all-c,all-b}', 'all-2', '1 h', mode => 'shared')) AS n;
SELECT dlock_release_all('all-1'), dlock_release_all('all-2');

-- modes
SELECT cardinality(dlock_acquire_all('{all-a,all-b}', 'all-' || i, '1 h', mode => 'shared')) AS n FROM generate_series(1, 3) i;
SELECT dlock_acquire_all('{all-b,all-c}', 'all-4', '1 h') AS refused, dlock_acquire_all('{all-b,all-c}', 'all-4', '1 h', mode => 'CW') AS refused_too;
SELECT cardinality(dlock_acquire_all('{all-b,all-c}', 'all-4', '1 h', mode => 'NL')) AS n;
SELECT name, string_agg(owner || ' ' || mode, ', ' ORDER BY owner) FROM dlock_leases WHERE name LIKE 'all-%' GROUP BY name ORDER BY name;
SELECT dlock_release_all('all-' || i) FROM generate_series(1, 4) i;

-- what the owner holds already is held: refused, or a deadlock when it would wait
SELECT dlock_acquire('all-a', 'all-1', '1 h') > 0 AS granted;
SELECT dlock_acquire_all('{all-b,all-a}', 'all-1', '1 h') AS refused;
\set VERBOSITY sqlstate
SELECT dlock_acquire_all('{all-b,all-a}', 'all-1', '1 h', wait => '1 h');
\set VERBOSITY default
SELECT name FROM dlock_leases WHERE name LIKE 'all-%';
SELECT dlock_release('all-a', 'all-1');

-- defaults: the session, dlock.default_ttl
SET dlock.default_ttl = '17 min';
SELECT cardinality(dlock_acquire_all('{all-a}')) AS n;
RESET dlock.default_ttl;
SELECT l.owner = to_hex(floor(extract(epoch FROM a.backend_start))::bigint) || '.' || to_hex(a.pid) AS is_session, ttl, mode
  FROM dlock_leases l, pg_stat_activity a WHERE l.name = 'all-a' AND a.pid = pg_backend_pid();
SELECT dlock_release_all(NULL);

-- as many as may be; free again by one call
SELECT cardinality(dlock_acquire_all(array_agg('all-many-' || i ORDER BY md5(i::text)), 'all-1', '1 h')) AS n FROM generate_series(1, 1000) i;
SELECT count(*), count(DISTINCT token) FROM dlock_leases WHERE name LIKE 'all-many-%';
SELECT dlock_acquire_all(array_agg('all-many-' || i), 'all-2', '1 h') AS refused FROM generate_series(1000, 1999) i;
SELECT count(*) FROM dlock_leases WHERE name LIKE 'all-many-%';
SELECT dlock_release('all-many-1000', 'all-1');
SELECT cardinality(dlock_acquire_all(array_agg('all-many-' || i), 'all-2', '1 h')) AS n FROM generate_series(1000, 1999) i;
SELECT dlock_release_all('all-1'), dlock_release_all('all-2');

-- an array that does not begin at 1; names that are nearly the same
SELECT cardinality(dlock_acquire_all('[5:6]={all-a,all-b}', 'all-1', '1 h')) AS n;
SELECT cardinality(dlock_acquire_all('{"all-a ",All-a," all-a"}', 'all-1', '1 h')) AS n;
SELECT dlock_release_all('all-1');

-- expired leases are not in the way, their names are granted again
SELECT cardinality(dlock_acquire_all('{all-a,all-b}', 'all-1', '1 ms')) AS n;
SELECT pg_sleep(0.002);
SELECT cardinality(dlock_acquire_all('{all-b,all-a}', 'all-2', '1 h')) AS n;

-- what dlock_acquire takes
SELECT cardinality(dlock_acquire_all('{all-e,all-f}', 'all-1', '1 h', lock_delay => '1 h', min_hold => '1 min', payload => '{"a": 1}')) AS n;
SELECT name, payload FROM dlock_leases WHERE name LIKE 'all-%' ORDER BY name;
SELECT dlock_release_all('all-1');
SELECT name, state, remaining BETWEEN '50 s' AND '1 min' AS least FROM dlock_leases WHERE name LIKE 'all-%' ORDER BY name;
SELECT dlock_force_release('all-e', 'test'), dlock_force_release('all-f', 'test'), dlock_release_all('all-2');
BEGIN;
SELECT cardinality(dlock_acquire_all(array_agg('all-' || i), 'all-1', bind => 'transaction')) AS n FROM generate_series(1, 100) i;
SELECT count(*), bool_and(pid = pg_backend_pid()) AS mine FROM dlock_leases WHERE name LIKE 'all-%' AND bind = 'transaction';
SAVEPOINT s;
SELECT cardinality(dlock_acquire_all('{all-e,all-f,all-g}', 'all-1', bind => 'transaction')) AS n;
ROLLBACK TO s;
SELECT count(*) FROM dlock_leases WHERE name LIKE 'all-%';
COMMIT;
SELECT count(*) FROM dlock_leases WHERE name LIKE 'all-%';
SELECT cardinality(dlock_acquire_all('{all-e,all-f}', 'all-1', bind => 'session')) AS n;
DISCARD ALL;
\pset null '(null)'
SELECT count(*) FROM dlock_leases WHERE name LIKE 'all-%';

-- again, after the answer was lost: the same tokens, or, if not all are held, as if held by anyone
SELECT dlock_acquire_all('{all-c,all-a,all-b}', 'all-1', '1 h', reentry => 'return') AS tokens \gset
SELECT dlock_acquire_all('{all-b,all-c,all-a}', 'all-1', '2 h', reentry => 'return') =
       ARRAY[(:'tokens'::bigint[])[3], (:'tokens'::bigint[])[1], (:'tokens'::bigint[])[2]] AS same;
SELECT dlock_acquire_all('{all-a,all-c}', 'all-1', '1 h', mode => 'shared', reentry => 'return') =
       ARRAY[(:'tokens'::bigint[])[2], (:'tokens'::bigint[])[1]] AS same;
SELECT name, ttl, holds FROM dlock_leases WHERE name LIKE 'all-%' ORDER BY name;
SELECT dlock_acquire_all('{all-a,all-d,all-b}', 'all-1', '1 h', reentry => 'return') AS refused;
SELECT dlock_acquire_all('{all-a,all-b,all-c}', 'all-1', '1 h', reentry => 'deny') AS refused;
SELECT dlock_acquire_all('{all-a,all-b,all-c}', 'all-2', '1 h', reentry => 'return') AS refused;
\set VERBOSITY sqlstate
SELECT dlock_acquire_all('{all-d,all-b}', 'all-1', '1 h', reentry => 'return', wait => '1 h');
\set VERBOSITY default
SELECT dlock_acquire_all('{all-a,all-b}', 'all-1', '1 h', reentry => 'count') = (:'tokens'::bigint[])[2:3] AS same;
SELECT name, holds FROM dlock_leases WHERE name LIKE 'all-%' ORDER BY name;
SELECT dlock_release('all-a', 'all-1'), dlock_release('all-a', 'all-1'), dlock_release('all-a', 'all-1');
SELECT dlock_convert('all-c', (:'tokens'::bigint[])[1], 'shared') = (:'tokens'::bigint[])[1] AS converted;
SELECT dlock_acquire_all('{all-b,all-c}', 'all-1', '1 h', reentry => 'return');
SELECT dlock_acquire_all('{all-b,all-c}', 'all-1', '1 h', reentry => 'never');
SELECT dlock_acquire_all('{all-b,all-c}', 'all-1', '1 h', bind => 'none', lock_delay => '2 days');
SELECT dlock_release_all('all-1');
CREATE TEMP TABLE all_tokens AS
SELECT dlock_acquire_all(array_agg('all-many-' || i), 'all-1', '1 h', reentry => 'return') AS tokens FROM generate_series(1, 1000) i;
SELECT cardinality(tokens) AS n, tokens = dlock_acquire_all((SELECT array_agg('all-many-' || i) FROM generate_series(1, 1000) i), 'all-1', '2 h', reentry => 'return') AS same FROM all_tokens;
SELECT count(*) FROM dlock_leases WHERE name LIKE 'all-many-%' AND ttl = '2 h';
SELECT dlock_release_all('all-1');

-- not undone
BEGIN;
SELECT cardinality(dlock_acquire_all('{all-c,all-d}', 'all-2', '1 h')) AS n;
ROLLBACK;
SELECT dlock_release_all('all-2');

-- what is refused changes nothing
SELECT dlock_acquire_all(NULL, 'all-1', '1 h');
SELECT dlock_acquire_all('{}', 'all-1', '1 h');
SELECT dlock_acquire_all('{all-a,NULL}', 'all-1', '1 h');
SELECT dlock_acquire_all('{all-a,all-b,all-a}', 'all-1', '1 h');
SELECT dlock_acquire_all('{all-a,""}', 'all-1', '1 h');
SELECT dlock_acquire_all(ARRAY['all-a', repeat('x', 256)], 'all-1', '1 h');
SELECT dlock_acquire_all(array_agg('all-' || i), 'all-1', '1 h') FROM generate_series(1, 1001) i;
SELECT count(*) FROM dlock_leases WHERE name LIKE 'all-%';
