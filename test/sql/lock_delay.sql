-- Proves: a lease with a lock delay that ends by expiry or by force goes on blocking as its mode does, and is dead for its owner; a release, also one that comes late, a commit, and a forced release of what is closed open it at once.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'

-- after a release there is no delay
SELECT dlock_acquire('delay-1', 'delay-a', '1 h', lock_delay => '1 h') > 0 AS granted;
SELECT state, remaining BETWEEN '59 min' AND '1 h' AS an_hour FROM dlock_leases WHERE name = 'delay-1';
SELECT dlock_release('delay-1', 'delay-a');
SELECT dlock_acquire('delay-1', 'delay-b', '1 h', lock_delay => '1 h') > 0 AS granted;
SELECT dlock_release_all('delay-b');

-- after expiry there is: closed for others and dead for its owner
SELECT dlock_acquire('delay-2', 'delay-a', '1 ms', lock_delay => '1 h', payload => '{"p": 1}') AS token \gset
SELECT pg_sleep(0.002);
SELECT name, owner, token = :token AS token, mode, holds, state, bind, ttl, payload, remaining BETWEEN '59 min' AND '1 h' AS an_hour,
       abs(extract(epoch FROM expires_at - clock_timestamp() - remaining)) < 1 AS agree
  FROM dlock_leases WHERE name = 'delay-2';
SELECT dlock_acquire('delay-2', 'delay-b', '1 h') AS refused, dlock_acquire('delay-2', 'delay-b', '1 h', mode => 'CR') AS refused_too;
SELECT dlock_acquire('delay-2', 'delay-a', '1 h') AS refused, dlock_acquire('delay-2', 'delay-a', '1 h', reentry => 'return') AS refused_too;
SELECT dlock_check('delay-2', :token) AS "check", dlock_renew_token('delay-2', :token) AS renew, dlock_renew('delay-2', 'delay-a', '1 h') AS renew_owner,
       dlock_release('delay-2', 'delay-b') AS release_other, dlock_release_token('delay-2', :token + 1) AS release_other_token,
       dlock_renew_all('delay-a') AS renew_all, dlock_release_all('delay-a') AS release_all;
\set VERBOSITY sqlstate
SELECT dlock_convert('delay-2', :token, 'NL');
\set VERBOSITY default
SELECT state FROM dlock_leases WHERE name = 'delay-2';

-- a forced release opens and counts it
SELECT dlock_force_release('delay-2', 'test');
SELECT dlock_force_release('delay-2', 'test');
SELECT dlock_acquire('delay-2', 'delay-b', '1 h') > :token AS granted;
SELECT dlock_release('delay-2', 'delay-b');

-- so does the owner, who says that it is done, though it held nothing any more
SELECT dlock_acquire('delay-2', 'delay-a', '1 ms', lock_delay => '1 h') AS token \gset
SELECT pg_sleep(0.002);
SELECT dlock_release_token('delay-2', :token), dlock_release_token('delay-2', :token);
SELECT dlock_acquire('delay-2', 'delay-a', '1 ms', lock_delay => '1 h') > :token AS granted;
SELECT pg_sleep(0.002);
SELECT dlock_release('delay-2', 'delay-a');
SELECT dlock_acquire('delay-2', 'delay-b', '1 h') > :token AS granted;
SELECT dlock_release('delay-2', 'delay-b');
CREATE ROLE regress_dlock_other;
SELECT dlock_acquire('delay-2', 'delay-a', '1 ms', lock_delay => '1 h') AS token \gset
SELECT pg_sleep(0.002);
SET ROLE regress_dlock_other;
\set VERBOSITY sqlstate
SELECT dlock_release_token('delay-2', :token);
SELECT dlock_release('delay-2', 'delay-a');
\set VERBOSITY default
RESET ROLE;
DROP ROLE regress_dlock_other;
SELECT state FROM dlock_leases WHERE name = 'delay-2';
SELECT dlock_release('delay-2', 'delay-a');

-- a forced release of a live one closes it; once more opens it, and so does the owner
SELECT dlock_acquire('delay-11', 'delay-a', '1 h', lock_delay => '30 min') AS token \gset
SELECT dlock_force_release('delay-11', 'test');
SELECT state, remaining BETWEEN '29 min' AND '30 min' AS half_an_hour, dlock_check(name, :token) FROM dlock_leases WHERE name = 'delay-11';
SELECT dlock_acquire('delay-11', 'delay-b', '1 h') AS refused, dlock_renew_token('delay-11', :token) AS renewed;
SELECT dlock_force_release('delay-11', 'test');
SELECT dlock_force_release('delay-11', 'test');
SELECT dlock_acquire('delay-11', 'delay-a', '1 h', lock_delay => '30 min') > :token AS granted;
SELECT dlock_force_release('delay-11', 'test');
SELECT dlock_release('delay-11', 'delay-a');
SELECT dlock_acquire('delay-11', 'delay-b', '1 h') > :token AS granted;
SELECT dlock_release('delay-11', 'delay-b');

-- with several holders each as it has asked for
SELECT dlock_acquire('delay-11', 'delay-a', '1 h', mode => 'shared') > 0 AS granted, dlock_acquire('delay-11', 'delay-b', '1 h', mode => 'shared', lock_delay => '30 min') > 0 AS granted_too;
SELECT dlock_force_release('delay-11', 'test');
SELECT owner, state FROM dlock_leases WHERE name = 'delay-11';
SELECT dlock_acquire('delay-11', 'delay-c', '1 h', mode => 'shared') > 0 AS granted, dlock_acquire('delay-11', 'delay-d', '1 h') AS refused;
SELECT dlock_release('delay-11', 'delay-b'), dlock_release('delay-11', 'delay-c');

-- an owner who has two of them opens both
SELECT dlock_acquire('delay-11', 'delay-a', '1 ms', mode => 'shared', lock_delay => '1 h') > 0 AS granted;
SELECT pg_sleep(0.002);
SELECT dlock_acquire('delay-11', 'delay-a', '1 ms', mode => 'shared', lock_delay => '1 h') > 0 AS granted;
SELECT pg_sleep(0.002);
SELECT count(*) FROM dlock_leases WHERE name = 'delay-11';
SELECT dlock_release('delay-11', 'delay-a');

-- what min_hold keeps closed is not opened by a release, and what it would have is by force
SELECT dlock_acquire('delay-11', 'delay-a', '1 h', min_hold => '30 min', lock_delay => '50 min') > 0 AS granted;
SELECT dlock_release('delay-11', 'delay-a'), dlock_release('delay-11', 'delay-a');
SELECT state, remaining BETWEEN '29 min' AND '30 min' AS half_an_hour FROM dlock_leases WHERE name = 'delay-11';
SELECT dlock_force_release('delay-11', 'test');
SELECT dlock_acquire('delay-11', 'delay-a', '1 h', min_hold => '30 min', lock_delay => '50 min') > 0 AS granted;
SELECT dlock_force_release('delay-11', 'test');
SELECT state, remaining BETWEEN '49 min' AND '50 min' AS for_the_delay FROM dlock_leases WHERE name = 'delay-11';
SELECT dlock_release('delay-11', 'delay-a');
SELECT state FROM dlock_leases WHERE name = 'delay-11';
SELECT dlock_force_release('delay-11', 'test');

-- it blocks as its mode does
SELECT dlock_acquire('delay-3', 'delay-a', '1 ms', mode => 'shared', lock_delay => '1 h') > 0 AS granted;
SELECT pg_sleep(0.002);
SELECT dlock_acquire('delay-3', 'delay-b', '1 h', mode => 'shared') > 0 AS granted;
SELECT dlock_acquire('delay-3', 'delay-c', '1 h', mode => 'CW') AS refused;
SELECT dlock_acquire('delay-3', 'delay-d', '1 h', mode => 'NL') > 0 AS granted;
SELECT owner, mode, state FROM dlock_leases WHERE name = 'delay-3' ORDER BY owner;
SELECT dlock_convert('delay-3', token, 'exclusive') AS refused FROM dlock_leases WHERE name = 'delay-3' AND owner = 'delay-b';
SELECT dlock_force_release('delay-3', 'test');
SELECT dlock_acquire('delay-4', 'delay-a', '1 ms', mode => 'NL', lock_delay => '1 h') > 0 AS granted;
SELECT pg_sleep(0.002);
SELECT dlock_acquire('delay-4', 'delay-b', '1 h') > 0 AS granted;
SELECT dlock_force_release('delay-4', 'test');

-- one whose mode was converted blocks as it is then
SELECT dlock_acquire('delay-5', 'delay-a', '1 h', lock_delay => '1 h') AS token \gset
SELECT dlock_convert('delay-5', :token, 'shared') = :token AS same;
SELECT dlock_renew_token('delay-5', :token, '1 ms');
SELECT pg_sleep(0.002);
SELECT dlock_acquire('delay-5', 'delay-b', '1 h', mode => 'shared') > 0 AS granted, dlock_acquire('delay-5', 'delay-c', '1 h') AS refused;
SELECT dlock_force_release('delay-5', 'test');

-- a permit
SELECT dlock_acquire('delay-6', 'delay-a', '1 ms', permits => 2, lock_delay => '1 h') > 0 AS granted;
SELECT pg_sleep(0.002);
SELECT dlock_acquire('delay-6', 'delay-b', '1 h', permits => 2) > 0 AS granted, dlock_acquire('delay-6', 'delay-c', '1 h', permits => 2) AS refused;
\set VERBOSITY sqlstate
SELECT dlock_acquire('delay-6', 'delay-c', '1 h', permits => 3);
\set VERBOSITY default
SELECT owner, mode, permits, state FROM dlock_leases WHERE name = 'delay-6' ORDER BY owner;
SELECT dlock_force_release('delay-6', 'test');

-- a path: its ancestors stay closed as well
SELECT dlock_acquire_path('delay-7/a/b', 'delay-a', '1 ms', lock_delay => '1 h') > 0 AS granted;
SELECT pg_sleep(0.002);
SELECT name, mode, state FROM dlock_leases WHERE name LIKE 'delay-7%' ORDER BY name COLLATE "C";
SELECT dlock_acquire('delay-7', 'delay-b', '1 h', mode => 'shared') AS refused, dlock_acquire_path('delay-7/a', 'delay-b', '1 h') AS refused_too,
       dlock_acquire_path('delay-7/a/b', 'delay-b', '1 h') AS refused_as_well;
SELECT dlock_acquire_path('delay-7/a/c', 'delay-b', '1 h') > 0 AS sibling;
SELECT dlock_force_release('delay-7/a/b', 'test'), dlock_force_release('delay-7/a/c', 'test');
SELECT dlock_acquire_path('delay-7/a/b', 'delay-a', '1 h', lock_delay => '1 h') > 0 AS granted;
SELECT dlock_force_release('delay-7', 'test');
SELECT name, mode, state FROM dlock_leases WHERE name LIKE 'delay-7%' ORDER BY name COLLATE "C";
SELECT dlock_release('delay-7/a/b', 'delay-a');

-- the end of the transaction, or of the session in good order, is no unclean end
BEGIN;
SELECT dlock_acquire('delay-8', 'delay-a', bind => 'transaction', lock_delay => '1 h') > 0 AS granted;
COMMIT;
SELECT dlock_acquire('delay-8', 'delay-b', '1 h') > 0 AS granted;
SELECT dlock_release('delay-8', 'delay-b');
BEGIN;
SAVEPOINT s;
SELECT dlock_acquire('delay-8', 'delay-a', bind => 'transaction', lock_delay => '1 h') > 0 AS granted;
ROLLBACK TO s;
SELECT dlock_acquire('delay-8', 'delay-a', bind => 'transaction', lock_delay => '1 h') > 0 AS granted;
ROLLBACK;
SELECT dlock_acquire('delay-8', 'delay-b', '1 h') > 0 AS granted;
SELECT dlock_release('delay-8', 'delay-b');

-- a bound one that expires does
BEGIN;
SELECT dlock_acquire('delay-9', 'delay-a', '1 ms', bind => 'transaction', lock_delay => '1 h') > 0 AS granted;
SELECT pg_sleep(0.002);
SELECT dlock_acquire('delay-9', 'delay-b', '1 h') AS refused;
COMMIT;
SELECT dlock_acquire('delay-9', 'delay-b', '1 h') AS refused;
SELECT owner, state FROM dlock_leases WHERE name = 'delay-9';
SELECT dlock_force_release('delay-9', 'test');

-- the end of a short delay
SELECT dlock_acquire('delay-10', 'delay-a', '1 ms', lock_delay => '30 ms') AS token \gset
SELECT pg_sleep(0.032);
SELECT count(*) FROM dlock_leases WHERE name = 'delay-10';
SELECT dlock_acquire('delay-10', 'delay-b', '1 h', lock_delay => '1 day') > :token AS granted;
SELECT dlock_release('delay-10', 'delay-b');
SELECT count(*) FROM dlock_leases WHERE name LIKE 'delay-%';
