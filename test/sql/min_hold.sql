-- Proves: a lease that is released before it was held for its least time is dead for its owner and blocks until that time, and no longer than to its deadline.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'

-- released early: true, and closed for the rest of the time
SELECT dlock_acquire('hold-1', 'hold-a', '2 h', min_hold => '1 h', payload => '[1]') AS token \gset
SELECT state, remaining BETWEEN '1:59' AND '2:00' AS two_hours FROM dlock_leases WHERE name = 'hold-1';
SELECT dlock_check('hold-1', :token) AS live, dlock_renew_token('hold-1', :token) AS renewed;
SELECT dlock_release_token('hold-1', :token) AS released;
SELECT name, owner, token = :token AS token, mode, holds, state, bind, payload, remaining BETWEEN '59 min' AND '1 h' AS an_hour,
       abs(extract(epoch FROM expires_at - granted_at) - 3600) < 1 AS from_grant
  FROM dlock_leases WHERE name = 'hold-1';
SELECT dlock_check('hold-1', :token) AS "check", dlock_renew_token('hold-1', :token) AS renew, dlock_renew('hold-1', 'hold-a', '1 h') AS renew_owner,
       dlock_release_token('hold-1', :token) AS release, dlock_release('hold-1', 'hold-a') AS release_owner,
       dlock_renew_all('hold-a') AS renew_all, dlock_release_all('hold-a') AS release_all;
SELECT dlock_acquire('hold-1', 'hold-b', '1 h') AS refused, dlock_acquire('hold-1', 'hold-a', '1 h') AS refused_too;

-- a forced release does not care
SELECT dlock_force_release('hold-1', 'test');
SELECT dlock_acquire('hold-1', 'hold-b', '1 h', min_hold => '1 h') > :token AS granted;
SELECT dlock_force_release('hold-1', 'test');
SELECT dlock_acquire('hold-1', 'hold-b', '1 h') > :token AS granted;
SELECT dlock_release('hold-1', 'hold-b');

-- released after that time: free at once
SELECT dlock_acquire('hold-2', 'hold-a', '1 h', min_hold => '5 ms') > 0 AS granted;
SELECT pg_sleep(0.006);
SELECT dlock_release('hold-2', 'hold-a');
SELECT dlock_acquire('hold-2', 'hold-b', '1 h') > 0 AS granted;
SELECT dlock_release('hold-2', 'hold-b');

-- the rest of the time passes
SELECT dlock_acquire('hold-3', 'hold-a', '1 h', min_hold => '30 ms') > 0 AS granted;
SELECT dlock_release('hold-3', 'hold-a');
SELECT pg_sleep(0.032);
SELECT count(*) FROM dlock_leases WHERE name = 'hold-3';
SELECT dlock_acquire('hold-3', 'hold-b', '1 h') > 0 AS granted;
SELECT dlock_release('hold-3', 'hold-b');

-- expiry ends it before that time
SELECT dlock_acquire('hold-4', 'hold-a', '1 h', min_hold => '1 h') > 0 AS granted;
SELECT dlock_renew('hold-4', 'hold-a', '1 ms');
SELECT pg_sleep(0.002);
SELECT count(*) FROM dlock_leases WHERE name = 'hold-4';
SELECT dlock_acquire('hold-4', 'hold-b', '1 h') > 0 AS granted;
SELECT dlock_release('hold-4', 'hold-b');

-- also if it was released before its deadline
SELECT dlock_acquire('hold-5', 'hold-a', '1 h', min_hold => '1 h') > 0 AS granted;
SELECT dlock_renew('hold-5', 'hold-a', '500 ms'), dlock_release('hold-5', 'hold-a');
SELECT pg_sleep(0.502);
SELECT dlock_acquire('hold-5', 'hold-b', '1 h') > 0 AS granted;
SELECT dlock_release('hold-5', 'hold-b');

-- all that an owner holds
SELECT count(dlock_acquire('hold-all-' || i, 'hold-a', '1 h', min_hold => CASE WHEN i % 2 = 0 THEN '1 h' ELSE '0' END::interval)) FROM generate_series(1, 10) i;
SELECT dlock_release_all('hold-a');
SELECT dlock_release_all('hold-a');
SELECT count(*), min(state) FROM dlock_leases WHERE name LIKE 'hold-all-%';
SELECT sum(dlock_force_release('hold-all-' || i, 'test')) FROM generate_series(1, 10) i;

-- it blocks as its mode does
SELECT dlock_acquire('hold-6', 'hold-a', '1 h', mode => 'shared', min_hold => '1 h') > 0 AS granted;
SELECT dlock_release('hold-6', 'hold-a');
SELECT dlock_acquire('hold-6', 'hold-b', '1 h', mode => 'shared') > 0 AS granted, dlock_acquire('hold-6', 'hold-c', '1 h') AS refused;
SELECT owner, state FROM dlock_leases WHERE name = 'hold-6' ORDER BY owner;
SELECT dlock_force_release('hold-6', 'test');

-- the last of several holds is the release
SELECT dlock_acquire('hold-7', 'hold-a', '1 h', min_hold => '1 h') AS token \gset
SELECT dlock_acquire('hold-7', 'hold-a', '1 h', reentry => 'count') = :token AS same;
SELECT dlock_release('hold-7', 'hold-a'), dlock_check('hold-7', :token);
SELECT dlock_release('hold-7', 'hold-a'), dlock_check('hold-7', :token);
SELECT state FROM dlock_leases WHERE name = 'hold-7';
SELECT dlock_force_release('hold-7', 'test');

-- a path
SELECT dlock_acquire_path('hold-8/a', 'hold-a', '1 h', min_hold => '1 h') AS token \gset
SELECT dlock_release_token('hold-8/a', :token);
SELECT name, mode, state, token = :token AS token FROM dlock_leases WHERE name LIKE 'hold-8%' ORDER BY name COLLATE "C";
SELECT dlock_acquire('hold-8', 'hold-b', '1 h') AS refused, dlock_acquire_path('hold-8/b', 'hold-b', '1 h') > 0 AS sibling;
SELECT dlock_force_release('hold-8/a', 'test'), dlock_release('hold-8/b', 'hold-b');

-- bound: the end of the transaction is a release
BEGIN;
SELECT dlock_acquire('hold-9', 'hold-a', bind => 'transaction', min_hold => '1 h') AS token \gset
COMMIT;
SELECT owner, state, remaining BETWEEN '59 min' AND '1 h' AS an_hour FROM dlock_leases WHERE name = 'hold-9';
SELECT dlock_acquire('hold-9', 'hold-b', '1 h') AS refused;
SELECT dlock_force_release('hold-9', 'test');

-- with a lock delay: an early release keeps the name closed for its least time only
SELECT dlock_acquire('hold-10', 'hold-a', '1 h', min_hold => '20 ms', lock_delay => '1 h') > 0 AS granted;
SELECT dlock_release('hold-10', 'hold-a');
SELECT pg_sleep(0.022);
SELECT dlock_acquire('hold-10', 'hold-b', '1 h') > 0 AS granted;
SELECT dlock_release('hold-10', 'hold-b');

-- as long as the ttl, and no longer
SELECT dlock_acquire('hold-11', 'hold-a', '1 min', min_hold => '1 min') > 0 AS granted;
SELECT dlock_force_release('hold-11', 'test');
SELECT dlock_acquire('hold-11', 'hold-a', '1 min', min_hold => '1 min 1 ms');
SELECT dlock_acquire('hold-11', 'hold-a', min_hold => '31 s');
SELECT dlock_acquire('hold-11', 'hold-a', bind => 'session', min_hold => '31 s') > 0 AS granted;
SELECT dlock_force_release('hold-11', 'test');
SELECT count(*) FROM dlock_leases WHERE name LIKE 'hold-%';
