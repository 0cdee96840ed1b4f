-- Proves: a request that is not granted keeps its place for its owner; who asks again is granted it, keeps it or gives it up; dlock_take takes the turns of a client.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'
SET statement_timeout = '60 s';
CREATE TEMP VIEW place AS
    SELECT name, owner, mode, permits, "position", pid, blocked_by, kept_until - since < '1 h 1 min' AS soon FROM dlock_waiters WHERE name LIKE 'place-%' ORDER BY name, "position";

-- kept in the order of the first calls, whoever asks again
SELECT dlock_acquire('place-1', 'holder', '1 h') > 0 AS granted;
SELECT dlock_acquire('place-1', 'first', '1 h', keep => '1 h');
SELECT dlock_acquire('place-1', 'second', '1 h', keep => '2 h');
SELECT dlock_acquire('place-1', 'third', '1 h', wait => '1 ms', keep => '1 h');
SELECT dlock_acquire('place-1', 'second', '1 h', keep => '1 h');
SELECT dlock_acquire('place-1', 'second', '1 h', wait => '1 ms', keep => '1 h');
SELECT * FROM place;

-- a release makes it the first one's turn; others are refused
SELECT dlock_release('place-1', 'holder');
SELECT dlock_acquire('place-1', 'other', '1 h') AS refused;
SELECT dlock_acquire('place-1', 'second', '1 h', keep => '1 h') AS refused;
SELECT dlock_acquire('place-1', 'first', '1 h', keep => '1 h') > 0 AS granted;
SELECT owner, ttl, state FROM dlock_leases WHERE name = 'place-1';
SELECT * FROM place;

-- given up
SELECT dlock_acquire('place-1', 'second', '1 h') AS refused;
SELECT * FROM place;
SELECT dlock_release('place-1', 'first');
SELECT dlock_acquire('place-1', 'third', '1 h') > 0 AS granted;
SELECT * FROM place;

-- nobody else's: the same name of another role, another owner
CREATE ROLE regress_dlock_place;
SELECT dlock_acquire('place-1', 'a', '1 h', keep => '1 h');
SET ROLE regress_dlock_place;
SELECT dlock_acquire('place-1', 'a', '1 h', keep => '1 h');
SELECT * FROM dlock_take('a', '0', '0');
SELECT dlock_release_all('a');
RESET ROLE;
SELECT * FROM place;
SELECT dlock_release_all('a');
SELECT * FROM place;
DROP ROLE regress_dlock_place;

-- only for what was asked for
SELECT dlock_acquire('place-1', 'a', '1 h', payload => '1', keep => '1 h');
SELECT dlock_acquire('place-1', 'a', '2 h', payload => '1', keep => '1 h');
SELECT dlock_acquire('place-1', 'a', '1 h', payload => '2', keep => '1 h');
SELECT dlock_acquire('place-1', 'a', '1 h', mode => 'shared', payload => '1', keep => '1 h');
SELECT dlock_acquire('place-1', 'a', '1 h', bind => 'session', payload => '1');
SELECT dlock_acquire('place-1', 'a', '1 h', lock_delay => '1 s', payload => '1', keep => '0');
SELECT dlock_acquire('place-1', 'a', '1 h', min_hold => '1 s', payload => '1', keep => '0');
SELECT dlock_acquire('place-1', 'a', '1 h', permits => 2);
SELECT * FROM place;
SELECT dlock_release('place-1', 'third');
SELECT dlock_acquire('place-1', 'a', '1 h', payload => '1') > 0 AS granted;
SELECT owner, payload FROM dlock_leases WHERE name = 'place-1';
SELECT dlock_release('place-1', 'a');

-- who waits for itself is told, and has no place
SELECT dlock_acquire('place-1', 'a', '1 h') > 0 AS granted;
SELECT dlock_acquire('place-1', 'a', '1 h') AS refused;
SELECT dlock_acquire('place-1', 'a', '1 h', keep => '1 h');
SELECT * FROM place;
SELECT dlock_acquire('place-1', 'b', '1 h', keep => '1 h');
SELECT dlock_release('place-1', 'a');
SELECT dlock_acquire('place-1', 'b', '1 h', keep => '1 h') > 0 AS granted;
SELECT dlock_release('place-1', 'b');

-- a failed wait gives the place up
SELECT dlock_acquire('place-1', 'a', '1 h') > 0 AS granted;
SELECT dlock_acquire('place-1', 'b', '1 h', keep => '1 h');
SET lock_timeout = '10 ms';
\set VERBOSITY sqlstate
SELECT dlock_acquire('place-1', 'b', '1 h', wait => '1 h', keep => '1 h');
\set VERBOSITY default
RESET lock_timeout;
SELECT * FROM place;
SELECT dlock_release('place-1', 'a');

-- permits and modes
SELECT dlock_acquire('place-1', o, '1 h', permits => 2, keep => '1 h') > 0 AS granted FROM unnest('{a,b,c,d}'::text[]) o;
SELECT * FROM place;
SELECT dlock_acquire('place-1', 'e', '1 h', keep => '1 h');
SELECT dlock_release('place-1', 'a');
SELECT dlock_acquire('place-1', 'd', '1 h', permits => 2, keep => '1 h') AS refused;
SELECT dlock_acquire('place-1', 'c', '1 h', permits => 2, keep => '1 h') > 0 AS granted;
SELECT dlock_release('place-1', 'b'), dlock_acquire('place-1', 'd', '1 h', permits => 2) > 0 AS granted;
SELECT dlock_release('place-1', 'c'), dlock_release('place-1', 'd');
SELECT dlock_acquire('place-1', 'a', '1 h', mode => 'shared') > 0 AS granted;
SELECT dlock_acquire('place-1', 'b', '1 h', keep => '1 h');
SELECT dlock_acquire('place-1', 'c', '1 h', mode => 'shared') AS refused;
SELECT dlock_acquire('place-1', 'c', '1 h', mode => 'NL') > 0 AS granted;
SELECT dlock_acquire('place-1', 'b', '1 h');
SELECT dlock_release('place-1', 'a'), dlock_release('place-1', 'c');

-- all turns of a client at once, of all its tasks and of nobody else
SELECT dlock_acquire_each('{place-1,place-2,place-3,place-4}', '{x,x,x,x}', '1 h') IS NOT NULL AS granted;
SELECT dlock_acquire_each('{place-1,place-2,place-3,place-4,place-5}', '{p#1,p#2,p,q,p#5}', '1 h', keep => '1 h') AS tokens \gset
SELECT array_position(:'tokens'::bigint[], NULL), cardinality(array_remove(:'tokens'::bigint[], NULL)) AS granted;
SELECT * FROM place;
SELECT * FROM dlock_take('p', '0', '1 h');
SELECT * FROM dlock_take('p', '1 ms', '1 h');
SELECT * FROM place;
SELECT dlock_release('place-1', 'x'), dlock_release('place-3', 'x'), dlock_release('place-4', 'x');
CREATE TEMP TABLE taken AS SELECT * FROM dlock_take('p', NULL, '1 h');
SELECT name, owner, token = (SELECT token FROM dlock_leases l WHERE l.name = taken.name) AS held FROM taken ORDER BY name;
SELECT * FROM place;
SELECT name, owner, token > 0 AS granted FROM dlock_take('q', NULL, '1 h');

-- one task, and the rest given up
SELECT * FROM dlock_take('p#1', '0', '0');
SELECT * FROM place;
SELECT * FROM dlock_take('p', '0', '0');
SELECT * FROM place;

-- what can never be is a row without a token
SELECT dlock_acquire('place-2', 'p#2', '1 h', keep => '1 h');
SELECT dlock_acquire('place-2', 'p#3', '1 h', keep => '1 h', reentry => 'return');
SELECT cardinality(dlock_acquire_all('{place-2}', 'p#2', '1 h', mode => 'NL')) AS granted;
SELECT * FROM dlock_take('p', '0', '1 h');
SELECT * FROM place;
SELECT dlock_release_all('p'), dlock_release_all('q'), dlock_release_all('x');
SELECT * FROM place;

-- a grant whose answer was lost is found again
SELECT dlock_acquire('place-1', 'x', '1 h') > 0 AS granted;
SELECT dlock_acquire('place-1', 'p#1', '1 h', keep => '1 h');
SELECT dlock_release('place-1', 'x');
SELECT count(*) FROM dlock_take('p', '0', '1 h');
SELECT count(*) FROM dlock_take('p', '0', '1 h');
SELECT dlock_acquire('place-1', 'p#1', '1 h', reentry => 'return', keep => '1 h') = token AS found FROM dlock_lease('place-1');
SELECT owner, holds FROM dlock_leases WHERE name = 'place-1';
SELECT dlock_release('place-1', 'p#1');

-- a name twice in a call: the first owner has it, the second one a place
SELECT token > 0 AS granted FROM unnest(dlock_acquire_each('{place-1,place-1}', '{a,b}', '1 h', keep => '1 h')) token;
SELECT owner FROM dlock_leases WHERE name = 'place-1';
SELECT * FROM place;
SELECT dlock_release('place-1', 'a');
SELECT owner, token > 0 AS granted FROM dlock_take('b', '0', '0');
SELECT dlock_release('place-1', 'b');

-- an entry that fails takes the places of the call with it, and none that was there
SELECT dlock_acquire('place-1', 'a', '1 h') > 0 AND dlock_acquire('place-2', 'a', '1 h', permits => 1) > 0 AS granted;
SELECT dlock_acquire('place-1', 'b', '1 h', keep => '1 h');
SELECT dlock_acquire_each('{place-1,place-1,place-2}', '{b,c,d}', '1 h', keep => '1 h');
SELECT * FROM place;
SELECT dlock_release_all('a'), dlock_release_all('b');

-- a lock and its places are opened with the extension's
SELECT dlock_acquire('place-1', NULL, keep => NULL);
SELECT dlock_acquire('place-1', NULL, keep => '-1 s');
SELECT dlock_acquire('place-1', NULL, keep => '1 h', bind => 'transaction');
SELECT dlock_take(NULL, '0', '0');
SELECT dlock_take('', '0', '0');
SELECT dlock_take('p', '-1 s', '0');
SELECT dlock_take('p', '0', NULL);
BEGIN READ ONLY;
SELECT dlock_take('p', '0', '0');
ROLLBACK;
SELECT * FROM place;
SELECT name FROM dlock_leases WHERE name LIKE 'place-%';
