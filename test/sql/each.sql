-- Proves: dlock_acquire_each, dlock_renew_each and dlock_release_each answer for each entry as the single call would, in the order of the arguments.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'
SET statement_timeout = '60 s';

-- a token or NULL for each; a name twice goes to the first
SELECT dlock_acquire('each-b', 'other', '1 h') AS other \gset
SELECT dlock_acquire_each('{each-a,each-b,each-c,each-a}', '{p#1,p#2,p#3,p#4}', '1 h') AS tokens \gset
SELECT i, (:'tokens'::bigint[])[i] > :other AS granted FROM generate_series(1, 4) i;
SELECT name, owner, mode, holds, state, bind, ttl, token = ANY (:'tokens') AS told FROM dlock_leases WHERE name LIKE 'each-%' ORDER BY name;

-- each by its own token; one of nobody and one of another lock are lost
SELECT dlock_renew_each('{each-c,each-b,each-a,each-a}', ARRAY[(:'tokens'::bigint[])[3], 1, (:'tokens'::bigint[])[3], (:'tokens'::bigint[])[1]], '2 h');
SELECT name, ttl FROM dlock_leases WHERE name LIKE 'each-%' ORDER BY name;
SELECT dlock_renew_each('{each-c,each-a}', ARRAY[(:'tokens'::bigint[])[3], (:'tokens'::bigint[])[1]]);
SELECT name, ttl FROM dlock_leases WHERE name LIKE 'each-%' ORDER BY name;
SELECT dlock_release_each('{each-a,each-c,each-a}', ARRAY[(:'tokens'::bigint[])[1], 1, (:'tokens'::bigint[])[1]]);
SELECT name, owner FROM dlock_leases WHERE name LIKE 'each-%' ORDER BY name;
SELECT dlock_release_each('{each-c,each-b}', ARRAY[(:'tokens'::bigint[])[3], :other]);

-- modes, permits, re-entry
SELECT cardinality(array_remove(dlock_acquire_each('{each-a,each-a,each-a}', '{a,b,c}', '1 h', mode => 'shared'), NULL)) AS granted;
SELECT dlock_acquire_each('{each-a}', '{d}') AS refused;
SELECT dlock_release_all('a'), dlock_release_all('b'), dlock_release_all('c');
SELECT array_position(dlock_acquire_each('{each-p,each-p,each-p}', '{a,b,c}', '1 h', permits => 2), NULL) AS no_permit_left;
SELECT dlock_acquire_each('{each-p,each-p}', '{a,c}', '1 h', permits => 2, reentry => 'return')
     = ARRAY[(SELECT token FROM dlock_leases WHERE name = 'each-p' AND owner = 'a'), NULL] AS entered;
SELECT dlock_acquire_each('{each-q,each-q}', '{a,a}', '1 h', reentry => 'count') AS entered \gset
SELECT (:'entered'::bigint[])[1] = (:'entered'::bigint[])[2] AS is_one_lease;
SELECT name, owner, holds, permits FROM dlock_leases WHERE name IN ('each-p', 'each-q') ORDER BY 1, 2;
SELECT dlock_release_each('{each-q,each-q,each-q}', ARRAY[(:'entered'::bigint[])[1], (:'entered'::bigint[])[2], (:'entered'::bigint[])[2]]);
SELECT dlock_release_all('a'), dlock_release_all('b');

-- kept by min_hold
SELECT (dlock_acquire_each('{each-d}', '{a}', '1 h', min_hold => '1 h'))[1] AS held \gset
SELECT dlock_release_each('{each-d}', ARRAY[:held]::bigint[]), dlock_acquire('each-d', 'b') AS closed;
SET client_min_messages = error;
SELECT dlock_force_release('each-d', 'a test');
RESET client_min_messages;

-- this session; no entries; as many as may be
SELECT cardinality(dlock_acquire_each('{each-a,each-b}', '{NULL,b}', '1 h')) AS n;
SELECT dlock_release('each-a'), dlock_release('each-b', 'b');
SELECT dlock_acquire_each('{}', '{}'), dlock_renew_each('{}', '{}'), dlock_release_each('{}', '{}');
SELECT array_agg('each-' || i) AS names, array_agg('many#' || i) AS owners FROM generate_series(1, 1000) i \gset
SELECT dlock_acquire_each(:'names', :'owners', '1 h') AS tokens \gset
SELECT count(DISTINCT t) AS granted, bool_and(dlock_check(n, t)) AS held FROM unnest(:'names'::text[], :'tokens'::bigint[]) u(n, t);
SELECT array_agg(DISTINCT b) AS renewed FROM unnest(dlock_renew_each(:'names', :'tokens')) b;
SELECT array_agg(DISTINCT b) AS released FROM unnest(dlock_release_each(:'names', :'tokens')) b;

-- what no single call accepts fails the whole call, before anything is done
SELECT dlock_acquire_each(NULL, '{a}');
SELECT dlock_acquire_each('{a}', NULL);
SELECT dlock_acquire_each('{each-a,NULL}', '{a,b}');
SELECT dlock_acquire_each('{each-a,""}', '{a,b}');
SELECT dlock_acquire_each('{each-a,each-b}', '{a,""}');
SELECT dlock_acquire_each('{each-a,each-b}', '{a}');
SELECT dlock_acquire_each('{{each-a},{each-b}}', '{{a},{b}}');
SELECT dlock_acquire_each(:'names'::text[] || 'one more'::text, :'owners'::text[] || 'one more'::text);
SELECT dlock_acquire_each('{each-a}', '{a}', '-1 s');
SELECT dlock_acquire_each('{each-a}', '{a}', '1 s', 'odd');
SELECT dlock_acquire_each('{each-a}', '{a}', '1 s', 'shared', 3);
SELECT dlock_acquire_each('{each-a}', '{a}', '1 s', min_hold => '2 s');
SELECT dlock_renew_each('{each-a}', '{NULL}');
SELECT dlock_renew_each('{each-a}', '{0}');
SELECT dlock_renew_each('{each-a,each-b}', '{1}');
SELECT dlock_release_each('{each-a}', '{-1}');
SELECT dlock_release_each('{each-a,each-b}', '{1,2,3}');
SELECT name FROM dlock_leases WHERE name LIKE 'each-%';

-- an entry that fails in its turn undoes all grants of the call
SELECT dlock_acquire('each-p', 'a', '1 h', permits => 2) > 0 AS granted;
SELECT dlock_acquire_each('{each-a,each-p,each-b}', '{a,b,c}', '1 h');
SELECT name FROM dlock_leases WHERE name LIKE 'each-%' AND state = 'held';
SELECT dlock_release('each-p', 'a');

-- leases of a role that the caller does not belong to are not its to renew or to release
SELECT dlock_acquire('each-s', 'a', '1 h') AS token \gset
CREATE ROLE regress_dlock_each;
SET ROLE regress_dlock_each;
SELECT dlock_renew_each('{each-s}', ARRAY[:token]::bigint[]), dlock_release_each('{each-s}', ARRAY[:token]::bigint[]);
SELECT dlock_release_token('each-s', :token);
RESET ROLE;
DROP ROLE regress_dlock_each;
SELECT dlock_release('each-s', 'a');
BEGIN READ ONLY;
SELECT dlock_acquire_each('{each-a}', '{a}');
ROLLBACK;
