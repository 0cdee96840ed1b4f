-- Proves: dlock_watch returns the holder as soon as it is another than the one seen, and otherwise, when its wait is over, what it is then.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'
-- What must not wait would be seen to.
SET statement_timeout = '20 s';

-- nobody holds it
SELECT * FROM dlock_watch('watch-1', NULL, '0');
SELECT * FROM dlock_watch('watch-1', NULL, '20 ms');
SELECT * FROM dlock_watch('watch-1', 1, '1 h');
SELECT * FROM dlock_watch('watch-1', 1);

-- another than the one seen: at once
SELECT clock_timestamp() AS t0 \gset
SELECT dlock_acquire('watch-1', 'watch-a', '1 h', payload => '{"host": "a"}') AS token \gset
SELECT token = :token AS token, owner, mode, granted_at BETWEEN :'t0' AND clock_timestamp() AS granted_at,
       expires_at - clock_timestamp() BETWEEN '59 min' AND '1 h' AS expires_at, payload
  FROM dlock_watch('watch-1', NULL);
SELECT token = :token AS token, owner FROM dlock_watch('watch-1', :token - 1, '1 h');
SELECT token = :token AS token, owner FROM dlock_watch('watch-1', :token + 1, NULL);

-- the one seen: when the wait is over
SELECT token = :token AS token, owner FROM dlock_watch('watch-1', :token, '0');
SELECT token = :token AS token, owner, clock_timestamp() - statement_timestamp() >= '30 ms' AS waited FROM dlock_watch('watch-1', :token, '30 ms');

-- a deadline passes while it looks
SELECT dlock_acquire('watch-2', 'watch-a', '30 ms') AS token \gset
SELECT owner FROM dlock_watch('watch-2', :token, '1 h');
SELECT dlock_acquire('watch-2', 'watch-a', '30 ms', lock_delay => '1 h') AS token \gset
SELECT owner FROM dlock_watch('watch-2', :token, '1 h');
SELECT owner FROM dlock_watch('watch-2', NULL, '0');
SELECT dlock_force_release('watch-2', 'test');

-- of several holders the one with the largest token
SELECT dlock_acquire('watch-3', 'watch-' || o, '1 h', mode => 'shared') > 0 AS granted FROM unnest('{a,b,c}'::text[]) o;
SELECT owner, mode FROM dlock_watch('watch-3', NULL, '0');
SELECT dlock_release('watch-3', 'watch-c');
SELECT owner, mode FROM dlock_watch('watch-3', NULL, '0');
SELECT token AS token FROM dlock_watch('watch-3', NULL, '0') \gset
SELECT dlock_release('watch-3', 'watch-a');
SELECT owner FROM dlock_watch('watch-3', :token, '10 ms');
SELECT dlock_convert('watch-3', :token, 'exclusive') > :token AS converted;
SELECT owner, mode, token > :token AS larger FROM dlock_watch('watch-3', :token, '1 h');
SELECT dlock_release('watch-3', 'watch-b');
SELECT dlock_acquire('watch-3', 'watch-' || o, '1 h', permits => 2) > 0 AS granted FROM unnest('{a,b}'::text[]) o;
SELECT owner, mode FROM dlock_watch('watch-3', NULL, '0');
SELECT dlock_force_release('watch-3', 'test');

-- intents are no holders
SELECT dlock_acquire_path('watch-4/x', 'watch-a', '1 h') > 0 AS granted;
SELECT owner FROM dlock_watch('watch-4', NULL, '0');
SELECT owner FROM dlock_watch('watch-4/x', NULL, '0');
SELECT dlock_acquire('watch-4', 'watch-b', '1 h', mode => 'CR') > 0 AS granted;
SELECT dlock_acquire_path('watch-4/y', 'watch-c', '1 h') > 0 AS granted;
SELECT owner, mode FROM dlock_watch('watch-4', NULL, '0');
SELECT dlock_force_release('watch-4', 'test');

-- bound: no deadline to tell
BEGIN;
SELECT dlock_acquire('watch-5', 'watch-a', bind => 'transaction') > 0 AS granted;
SELECT owner, mode, granted_at IS NOT NULL AS granted_at, expires_at, payload FROM dlock_watch('watch-5', NULL);
COMMIT;
SELECT owner FROM dlock_watch('watch-5', NULL, '0');

-- a counted or returned re-entry is no other holder
SELECT dlock_acquire('watch-6', 'watch-a', '1 h') AS token \gset
SELECT dlock_acquire('watch-6', 'watch-a', '1 h', reentry => 'count') = :token AS same;
SELECT dlock_renew('watch-6', 'watch-a', '2 h');
SELECT token = :token AS same FROM dlock_watch('watch-6', :token, '10 ms');
SELECT dlock_release_all('watch-a');

-- any role, and where nothing may be written
CREATE ROLE regress_dlock_watch;
SET ROLE regress_dlock_watch;
BEGIN READ ONLY;
SELECT owner FROM dlock_watch('watch-1', NULL, '0');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY;
SELECT owner FROM dlock_watch('watch-1', :token, '10 ms');
COMMIT;
RESET ROLE;
DROP ROLE regress_dlock_watch;

-- what is no name and no wait
SELECT * FROM dlock_watch(NULL, NULL, '0');
SELECT * FROM dlock_watch('', NULL, '0');
SELECT * FROM dlock_watch(repeat('x', 256), NULL, '0');
SELECT * FROM dlock_watch('watch-1', NULL, '-1 ms');

-- a statement's own time runs out first
SET statement_timeout = '300 ms';
SELECT * FROM dlock_watch('watch-1', NULL);
RESET statement_timeout;
SELECT count(*) FROM dlock_leases WHERE name LIKE 'watch-%';
