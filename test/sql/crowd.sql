-- Proves: a lock with many holders counts them as one with few does, in whatever order they come and go; each is found by owner and by token, and no owner gets a second lease.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'

-- many readers; none of them twice, and no writer among them
SELECT count(dlock_acquire('crowd-1', 'crowd-' || i, '1 h', mode => 'shared')) FROM generate_series(1, 100) i;
SELECT count(dlock_acquire('crowd-1', 'crowd-' || i, '1 h', mode => 'shared')) AS twice FROM generate_series(1, 100) i;
SELECT dlock_acquire('crowd-1', 'crowd-w', '1 h') AS refused;
SELECT bool_and(dlock_acquire('crowd-1', 'crowd-' || i, '1 h', mode => 'shared', reentry => 'return') > 0) AS again FROM generate_series(1, 100) i;
SELECT count(*) FROM dlock_leases WHERE name = 'crowd-1';

-- by token and by owner, from both ends and from the middle
SELECT count(*) FILTER (WHERE dlock_renew_token(name, token, '2 h')) AS renewed FROM dlock_leases WHERE name = 'crowd-1';
SELECT count(*) FILTER (WHERE dlock_release_token(name, token)) AS released
  FROM (SELECT name, token, row_number() OVER (ORDER BY token) AS n FROM dlock_leases WHERE name = 'crowd-1') l
 WHERE n % 3 = 0;
SELECT count(*) AS left FROM dlock_leases WHERE name = 'crowd-1';
SELECT count(*) FILTER (WHERE dlock_release('crowd-1', 'crowd-' || i)) AS released FROM generate_series(1, 99) i;
SELECT dlock_acquire('crowd-1', 'crowd-w', '1 h') AS refused;
SELECT dlock_release('crowd-1', owner) FROM dlock_leases WHERE name = 'crowd-1';
SELECT dlock_acquire('crowd-1', 'crowd-w', '1 h') > 0 AS granted;
SELECT dlock_release('crowd-1', 'crowd-w');

-- a lock that has many, then few, then many: each lease is found by its token, wherever it stands
SELECT count(dlock_acquire('crowd-4', 'crowd-a' || i, '1 h', mode => 'shared')) FROM generate_series(1, 20) i;
SELECT count(*) FILTER (WHERE dlock_release('crowd-4', 'crowd-a' || i)) AS released FROM generate_series(1, 14) i;
SELECT count(dlock_acquire('crowd-4', 'crowd-b' || i, '1 h', mode => 'shared')) FROM generate_series(1, 20) i;
SELECT count(*) FILTER (WHERE dlock_check(name, token)) AS found, count(*) FILTER (WHERE dlock_check(name, token + 1000000)) AS wrong FROM dlock_leases WHERE name = 'crowd-4';
SELECT count(dlock_convert(name, token, 'exclusive')) AS alone FROM dlock_leases WHERE name = 'crowd-4';
SELECT count(*) FILTER (WHERE dlock_release_token(name, token)) AS released
  FROM (SELECT name, token, row_number() OVER (ORDER BY token) AS n FROM dlock_leases WHERE name = 'crowd-4' OFFSET 0) l
 WHERE n % 2 = 0;
SELECT dlock_release('crowd-4', owner) FROM (SELECT owner FROM dlock_leases WHERE name = 'crowd-4' ORDER BY token OFFSET 1) l;
SELECT dlock_convert(name, token, 'exclusive') > token AS upgraded FROM dlock_leases WHERE name = 'crowd-4';
SELECT dlock_check(name, token) AS found, dlock_release_token(name, token) FROM dlock_leases WHERE name = 'crowd-4';

-- a strong mode among weak ones opens the lock when its last holder goes, and not before
SELECT count(dlock_acquire('crowd-2', 'crowd-r' || i, '1 h', mode => 'CR')) FROM generate_series(1, 20) i;
SELECT dlock_acquire('crowd-2', 'crowd-n', '1 h', mode => 'NL') > 0 AS granted;
SELECT dlock_acquire('crowd-2', 'crowd-w', '1 h', mode => 'CW') > 0 AS granted, dlock_acquire('crowd-2', 'crowd-v', '1 h', mode => 'CW') > 0 AS beside;
SELECT dlock_acquire('crowd-2', 'crowd-s', '1 h', mode => 'PR') AS refused;
SELECT dlock_release('crowd-2', 'crowd-w');
SELECT dlock_acquire('crowd-2', 'crowd-s', '1 h', mode => 'PR') AS refused;
SELECT dlock_release('crowd-2', 'crowd-v');
SELECT dlock_acquire('crowd-2', 'crowd-s', '1 h', mode => 'PR') AS token \gset
SELECT dlock_acquire('crowd-2', 'crowd-w', '1 h', mode => 'CW') AS refused;

-- conversions count, too
SELECT dlock_convert('crowd-2', :token, 'CR') = :token AS weaker;
SELECT dlock_acquire('crowd-2', 'crowd-w', '1 h', mode => 'CW') AS token_w \gset
SELECT dlock_convert('crowd-2', :token, 'PR') AS refused;
SELECT dlock_convert('crowd-2', :token_w, 'NL') = :token_w AS weaker;
SELECT dlock_convert('crowd-2', :token, 'PR') > :token AS stronger;
SELECT dlock_acquire('crowd-2', 'crowd-x', '1 h') AS refused;
SELECT count(*) FILTER (WHERE dlock_release('crowd-2', owner)) FROM (SELECT owner FROM dlock_leases WHERE name = 'crowd-2' AND mode IN ('CR', 'shared')) l;
SELECT dlock_acquire('crowd-2', 'crowd-x', '1 h') > 0 AS beside_null_leases;
SELECT dlock_release_all(owner) FROM (SELECT DISTINCT owner FROM dlock_leases WHERE name = 'crowd-2') l ORDER BY 1;

-- holders that expire at different times make room as they do
SELECT count(dlock_acquire('crowd-3', 'crowd-' || i, CASE WHEN i % 2 = 0 THEN '1 ms' ELSE '1 h' END::interval, permits => 40)) FROM generate_series(1, 40) i;
SELECT pg_sleep(0.02);
SELECT count(dlock_acquire('crowd-3', 'crowd-late-' || i, '1 h', permits => 40)) FROM generate_series(1, 40) i;
SELECT count(*) FROM dlock_leases WHERE name = 'crowd-3';
SELECT dlock_force_release('crowd-3', 'test');

-- siblings of a path: each ends with its own intents alone
SELECT count(dlock_acquire_path('crowd/a/' || i, 'crowd-p' || i, '1 h')) FROM generate_series(1, 50) i;
SELECT dlock_acquire('crowd/a', 'crowd-w', '1 h') AS refused, dlock_acquire('crowd', 'crowd-w', '1 h', mode => 'shared') AS refused_too;
SELECT count(*) FILTER (WHERE dlock_release('crowd/a/' || i, 'crowd-p' || i)) FROM generate_series(50, 2, -1) i;
SELECT dlock_acquire('crowd/a', 'crowd-w', '1 h') AS refused;
SELECT dlock_release('crowd/a/1', 'crowd-p1');
SELECT dlock_acquire('crowd/a', 'crowd-w', '1 h') > 0 AS granted;
SELECT dlock_release('crowd/a', 'crowd-w');
SELECT count(*) FROM dlock_leases WHERE name LIKE 'crowd%';
