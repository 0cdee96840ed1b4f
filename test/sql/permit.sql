-- Proves: a semaphore has as many holders as permits, each with a lease of its own; the number is kept with the lock while anybody holds it, and another one is an error that names both.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'

-- so many, and no more
SELECT i, dlock_acquire('permit-1', 'permit-' || i, '1 h', permits => 3) > 0 AS granted FROM generate_series(1, 5) i;
SELECT owner, mode, permits, holds, state FROM dlock_leases WHERE name = 'permit-1' ORDER BY owner;
SELECT count(DISTINCT token), min(token) AS least, max(token) AS greatest FROM dlock_leases WHERE name = 'permit-1' \gset permit_
SELECT :permit_count AS tokens, dlock_check('permit-1', :permit_least) AS first, dlock_check('permit-1', :permit_greatest) AS last;

-- one permit an owner, though there are others
SELECT dlock_release('permit-1', 'permit-3');
SELECT dlock_acquire('permit-1', 'permit-1', '1 h', permits => 3) AS refused;

-- what one gives back another gets, with a larger token
SELECT dlock_acquire('permit-1', 'permit-4', '1 h', permits => 3) > :permit_greatest AS granted;
SELECT dlock_acquire('permit-1', 'permit-5', '1 h', permits => 3) AS refused;

-- renewed and released one by one, by owner and by token
SELECT dlock_renew('permit-1', 'permit-2', '2 h'), dlock_renew_token('permit-1', :permit_least, '3 h');
SELECT owner, ttl FROM dlock_leases WHERE name = 'permit-1' ORDER BY owner;
SELECT dlock_release_token('permit-1', :permit_least) AS released, dlock_check('permit-1', :permit_least) AS live,
       dlock_release('permit-1', 'permit-1') AS again;
SELECT owner FROM dlock_leases WHERE name = 'permit-1' ORDER BY owner;

-- another number, no number
SELECT dlock_acquire('permit-1', 'permit-5', '1 h', permits => 5);
SELECT dlock_acquire('permit-1', 'permit-5', '1 h', permits => 2);
SELECT dlock_acquire('permit-1', 'permit-5', '1 h', permits => 1, wait => '1 h');
SELECT dlock_acquire('permit-1', 'permit-2', '1 h', permits => 5, reentry => 'count');
\set VERBOSITY sqlstate
SELECT dlock_acquire('permit-1', 'permit-5', '1 h');
SELECT dlock_acquire('permit-1', 'permit-5', '1 h', mode => 'NL');
SELECT dlock_acquire('permit-1', 'permit-5', '1 h', mode => 'shared', wait => NULL);
SELECT dlock_acquire_all('{permit-free,permit-1}', 'permit-5', '1 h');
SELECT dlock_acquire_path('permit-1', 'permit-5', '1 h');
SELECT dlock_acquire_path('permit-1/x', 'permit-5', '1 h');
\set VERBOSITY default
SELECT name, owner, permits FROM dlock_leases WHERE name LIKE 'permit-%' ORDER BY name, owner;

-- nobody holds it: the number is free again, and so is the kind
SELECT dlock_release('permit-1', 'permit-2'), dlock_release('permit-1', 'permit-4');
SELECT dlock_acquire('permit-1', 'permit-5', '1 h', permits => 5) > 0 AS granted;
SELECT permits FROM dlock_leases WHERE name = 'permit-1';
SELECT dlock_force_release('permit-1', 'test');
SELECT dlock_acquire('permit-1', 'permit-5', '1 h', mode => 'shared') > 0 AS granted;

-- a lock that is held in a mode is no semaphore, whatever the mode
SELECT dlock_acquire('permit-1', 'permit-6', '1 h', permits => 5);
SELECT dlock_convert('permit-1', token, 'NL') = token AS converted FROM dlock_leases WHERE name = 'permit-1';
\set VERBOSITY sqlstate
SELECT dlock_acquire('permit-1', 'permit-6', '1 h', permits => 1);
SELECT dlock_acquire('permit-1', 'permit-5', '1 h', permits => 1, reentry => 'return');
\set VERBOSITY default
SELECT dlock_release('permit-1', 'permit-5');

-- expired holders set no number
SELECT dlock_acquire('permit-2', 'permit-1', '1 ms', permits => 2) > 0 AS granted;
SELECT pg_sleep(0.002);
SELECT dlock_acquire('permit-2', 'permit-2', '1 h', permits => 7) > 0 AS granted;
SELECT owner, permits FROM dlock_leases WHERE name = 'permit-2';

-- nor take a permit
SELECT count(dlock_acquire('permit-2', 'permit-short-' || i, '1 h', permits => 7)) FROM generate_series(1, 10) i;
SELECT count(*) FROM generate_series(1, 10) i WHERE dlock_renew('permit-2', 'permit-short-' || i, '1 ms');
SELECT pg_sleep(0.002);
SELECT count(dlock_acquire('permit-2', 'permit-long-' || i, '1 h', permits => 7)) FROM generate_series(1, 10) i;
SELECT dlock_force_release('permit-2', 'test');

-- the default mode may be named; the least and the largest number
SELECT dlock_acquire('permit-3', 'permit-1', '1 h', mode => 'exclusive', permits => 1) > 0 AS granted;
SELECT dlock_acquire('permit-3', 'permit-2', '1 h', permits => 1) AS refused;
SELECT count(dlock_acquire('permit-4', 'permit-' || i, '1 h', permits => 2147483647)) FROM generate_series(1, 1000) i;
SELECT count(*), min(permits), max(permits) FROM dlock_leases WHERE name = 'permit-4';
SELECT dlock_force_release('permit-4', 'test');

-- a permit cannot be converted
SELECT dlock_convert('permit-3', token, 'shared') FROM dlock_leases WHERE name = 'permit-3';
SELECT dlock_release('permit-3', 'permit-1');

-- a permit that is not given back before its time is over is not free earlier
SELECT count(dlock_acquire('permit-5', 'permit-' || i, '1 h', permits => 2, min_hold => '1 h')) FROM generate_series(1, 2) i;
SELECT dlock_release('permit-5', 'permit-1');
SELECT owner, permits, state FROM dlock_leases WHERE name = 'permit-5' ORDER BY owner;
SELECT dlock_acquire('permit-5', 'permit-3', '1 h', permits => 2) AS refused;
\set VERBOSITY sqlstate
SELECT dlock_acquire('permit-5', 'permit-3', '1 h', permits => 3);
\set VERBOSITY default
SELECT dlock_force_release('permit-5', 'test');
SELECT count(*) FROM dlock_leases WHERE name LIKE 'permit-%';
