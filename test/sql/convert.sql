-- Proves: a conversion changes the mode of the lease that is named and nothing else; a stronger mode comes with a new token; a lease that is not held is told apart from one that must wait.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'
SET statement_timeout = '20 s';

-- up: a new token, and the old one is dead; down: the token stays
SELECT dlock_acquire('convert-1', 'convert-a', '1 h', mode => 'shared', payload => '{"p": 1}') AS t1 \gset
SELECT dlock_convert('convert-1', :t1, 'exclusive') AS t2 \gset
SELECT :t2 > :t1 AS larger, dlock_check('convert-1', :t1) AS old, dlock_check('convert-1', :t2) AS new;
SELECT owner, token = :t2 AS token, mode, holds, ttl, payload FROM dlock_leases WHERE name = 'convert-1';
SELECT dlock_renew_token('convert-1', :t1) AS old_renewed, dlock_release_token('convert-1', :t1) AS old_released;
SELECT dlock_convert('convert-1', :t2, 'CR') = :t2 AS same;
SELECT dlock_acquire('convert-1', 'convert-b', '1 h', mode => 'PW') > :t2 AS granted_to_another;
SELECT dlock_convert('convert-1', :t2, 'CW') AS refused;
SELECT owner, mode FROM dlock_leases WHERE name = 'convert-1' ORDER BY owner;
SELECT dlock_check('convert-1', :t2);
SELECT dlock_release('convert-1', 'convert-b');
SELECT dlock_convert('convert-1', :t2, 'CW') AS t3 \gset
SELECT :t3 > :t2 AS larger;
SELECT dlock_convert('convert-1', :t3, 'shared') AS t4 \gset
SELECT :t4 > :t3 AS larger_sideways;
SELECT dlock_convert('convert-1', :t4, 'PR') = :t4 AS same_mode, dlock_convert('convert-1', :t4, 'shared') = :t4 AS same_word;
SELECT dlock_release_token('convert-1', :t4);

-- the deadline, the count, and min_hold stay
SELECT dlock_acquire('convert-2', 'convert-a', '1 h', mode => 'shared') AS token \gset
SELECT dlock_acquire('convert-2', 'convert-a', '1 h', mode => 'shared', reentry => 'count') = :token AS same;
SELECT expires_at AS before FROM dlock_leases WHERE name = 'convert-2' \gset
SELECT pg_sleep(0.2);
SELECT dlock_convert('convert-2', :token, 'exclusive') AS token \gset
SELECT abs(extract(epoch FROM expires_at - :'before')) < 0.1 AS same_deadline, holds, ttl FROM dlock_leases WHERE name = 'convert-2';
SELECT dlock_release_token('convert-2', :token), dlock_check('convert-2', :token);
SELECT dlock_release_token('convert-2', :token), dlock_check('convert-2', :token);
SELECT dlock_acquire('convert-3', 'convert-a', '1 h', mode => 'shared', min_hold => '1 h') AS token \gset
SELECT dlock_convert('convert-3', :token, 'exclusive') > :token AS larger;
SELECT dlock_release('convert-3', 'convert-a');
SELECT dlock_acquire('convert-3', 'convert-b', '1 h', mode => 'shared') AS refused;
SELECT mode, state FROM dlock_leases WHERE name = 'convert-3';
SELECT dlock_force_release('convert-3', 'test');

-- it takes effect at once and is not undone
SELECT dlock_acquire('convert-4', 'convert-a', '1 h') AS token \gset
BEGIN;
SELECT dlock_convert('convert-4', :token, 'shared') = :token AS same;
SAVEPOINT s;
SELECT dlock_convert('convert-4', :token, 'PW') AS next \gset
ROLLBACK TO s;
SELECT mode, token = :next AS token FROM dlock_leases WHERE name = 'convert-4';
ROLLBACK;
SELECT mode, token = :next AS token FROM dlock_leases WHERE name = 'convert-4';

-- not held: never, by another name, no longer
\set VERBOSITY sqlstate
SELECT dlock_convert('convert-4', :token, 'shared');
SELECT dlock_convert('convert-4', :next + 1000000, 'shared');
SELECT dlock_convert('convert-5', :next, 'shared');
SELECT dlock_convert('convert-4', :token, 'exclusive', '1 h');
SELECT dlock_release('convert-4', 'convert-a');
SELECT dlock_convert('convert-4', :next, 'PW');
SELECT dlock_acquire('convert-4', 'convert-a', '1 ms') AS token \gset
SELECT pg_sleep(0.002);
SELECT dlock_convert('convert-4', :token, 'exclusive');
SELECT dlock_convert('convert-4', :token, 'NL', NULL);
SELECT dlock_acquire('convert-4', 'convert-a', '1 h', min_hold => '1 h') AS token \gset
SELECT dlock_release_token('convert-4', :token);
SELECT dlock_convert('convert-4', :token, 'NL');
\set VERBOSITY default
SELECT dlock_force_release('convert-4', 'test');

-- an expired holder is in nobody's way
SELECT dlock_acquire('convert-6', 'convert-a', '1 ms', mode => 'shared') > 0 AS granted;
SELECT dlock_acquire('convert-6', 'convert-b', '1 h', mode => 'shared') AS token \gset
SELECT pg_sleep(0.002);
SELECT dlock_convert('convert-6', :token, 'exclusive') > :token AS larger;
SELECT dlock_release('convert-6', 'convert-b');

-- a wait that is over: the lease is as it was
SELECT dlock_acquire('convert-7', 'convert-a', '1 h', mode => 'shared') > 0 AS granted;
SELECT dlock_acquire('convert-7', 'convert-b', '1 h', mode => 'shared') AS token \gset
SELECT dlock_convert('convert-7', :token, 'exclusive', '20 ms') AS refused;
SELECT owner, mode, holds FROM dlock_leases WHERE name = 'convert-7' ORDER BY owner;
SELECT dlock_check('convert-7', :token), dlock_renew_token('convert-7', :token), dlock_release_token('convert-7', :token);
SELECT dlock_release('convert-7', 'convert-a');

-- a semaphore, a path
SELECT dlock_acquire('convert-8', 'convert-a', '1 h', permits => 2) AS token \gset
SELECT dlock_convert('convert-8', :token, 'shared');
SELECT dlock_release_token('convert-8', :token);
SELECT dlock_acquire_path('convert-9/x', 'convert-a', '1 h') AS token \gset
SELECT dlock_convert('convert-9/x', :token, 'shared');
SELECT dlock_release_token('convert-9/x', :token);

-- another role's lease
CREATE ROLE regress_dlock_convert;
CREATE ROLE regress_dlock_convert_member IN ROLE regress_dlock_convert;
CREATE ROLE regress_dlock_convert_stranger;
SET ROLE regress_dlock_convert;
SELECT dlock_acquire('convert-10', 'convert-a', '1 h') AS token \gset
SET ROLE regress_dlock_convert_stranger;
\set VERBOSITY sqlstate
SELECT dlock_convert('convert-10', :token, 'shared');
SELECT dlock_convert('convert-10', :token, 'exclusive');
\set VERBOSITY default
SELECT mode FROM dlock_leases WHERE name = 'convert-10';
SET ROLE regress_dlock_convert_member;
SELECT dlock_convert('convert-10', :token, 'shared') = :token AS by_a_member;
RESET ROLE;
SELECT dlock_convert('convert-10', :token, 'NL') = :token AS by_a_superuser;
SELECT dlock_release_token('convert-10', :token);
DROP ROLE regress_dlock_convert_stranger, regress_dlock_convert_member, regress_dlock_convert;
SELECT count(*) FROM dlock_leases WHERE name LIKE 'convert-%';
