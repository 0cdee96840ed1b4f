-- Proves: what an owner gets that asks again for what it holds: nothing, the same token with one more release to make, or the same token; and that re-entry never brings the deadline nearer.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'
-- What must not wait would be seen to.
SET statement_timeout = '20 s';
SET deadlock_timeout = '1 h';

-- deny: as held by anybody, even if the modes are compatible
SELECT dlock_acquire('reentry-1', 'reentry-a', '1 h') AS token \gset
SELECT dlock_acquire('reentry-1', 'reentry-a', '1 h') AS refused;
SELECT dlock_acquire('reentry-1', 'reentry-a', '1 h', reentry => 'deny') AS refused;
SELECT dlock_acquire('reentry-2', 'reentry-a', '1 h', mode => 'shared') > 0 AS granted;
SELECT dlock_acquire('reentry-2', 'reentry-a', '1 h', mode => 'shared') AS refused;
SELECT dlock_acquire('reentry-2', 'reentry-a', '1 h', mode => 'NL') AS refused;
SELECT dlock_acquire('reentry-2', 'reentry-b', '1 h', mode => 'shared') > 0 AS granted_to_another;
SELECT owner, mode, holds, ttl FROM dlock_leases WHERE name LIKE 'reentry-%' ORDER BY name, owner;

-- waiting for oneself is a deadlock, at once
SELECT dlock_acquire('reentry-1', 'reentry-a', '1 h', wait => '1 h');
SELECT dlock_acquire('reentry-1', 'reentry-a', '1 h', wait => NULL);
SELECT dlock_acquire('reentry-2', 'reentry-a', '1 h', wait => '1 h', mode => 'shared');
\set VERBOSITY sqlstate
SELECT dlock_acquire_all('{reentry-free,reentry-1}', 'reentry-a', '1 h', wait => '1 h');
\set VERBOSITY default
SELECT dlock_acquire_all('{reentry-free,reentry-1}', 'reentry-a', '1 h') AS refused;
SELECT owner, mode, holds, ttl FROM dlock_leases WHERE name LIKE 'reentry-%' ORDER BY name, owner;
SELECT dlock_check('reentry-1', :token);
SELECT dlock_release_all('reentry-a'), dlock_release_all('reentry-b');

-- count: the same token, and as many releases
SELECT dlock_acquire('reentry-3', 'reentry-a', '1 h', reentry => 'count') AS token \gset
SELECT holds FROM dlock_leases WHERE name = 'reentry-3';
SELECT dlock_acquire('reentry-3', 'reentry-a', '1 h', reentry => 'count') = :token AS same;
SELECT dlock_acquire('reentry-3', 'reentry-a', '1 h', reentry => 'count', wait => '1 h') = :token AS same;
SELECT dlock_acquire('reentry-3', 'reentry-b', '1 h', reentry => 'count') AS refused;
SELECT owner, holds FROM dlock_leases WHERE name = 'reentry-3';
SELECT dlock_renew('reentry-3', 'reentry-a'), dlock_check('reentry-3', :token);
SELECT dlock_release('reentry-3', 'reentry-a') AS released, dlock_check('reentry-3', :token) AS live;
SELECT dlock_release_token('reentry-3', :token) AS released, dlock_check('reentry-3', :token) AS live;
SELECT owner, holds FROM dlock_leases WHERE name = 'reentry-3';
SELECT dlock_acquire('reentry-3', 'reentry-b', '1 h') AS refused;
SELECT dlock_release('reentry-3', 'reentry-a') AS released, dlock_check('reentry-3', :token) AS live;
SELECT dlock_release('reentry-3', 'reentry-a') AS released;
SELECT dlock_acquire('reentry-3', 'reentry-b', '1 h') > :token AS granted;
SELECT dlock_release('reentry-3', 'reentry-b');

-- what was acquired in another way can be counted as well
SELECT dlock_acquire('reentry-4', 'reentry-a', '1 h') AS token \gset
SELECT dlock_acquire('reentry-4', 'reentry-a', '1 h', reentry => 'count') = :token AS same;
SELECT dlock_acquire('reentry-4', 'reentry-a', '1 h') AS refused;

-- return: the same token, and no count
SELECT dlock_acquire('reentry-4', 'reentry-a', '1 h', reentry => 'return') = :token AS same;
SELECT holds FROM dlock_leases WHERE name = 'reentry-4';
SELECT dlock_release('reentry-4', 'reentry-a'), dlock_release('reentry-4', 'reentry-a'), dlock_release('reentry-4', 'reentry-a');
SELECT dlock_acquire('reentry-4', 'reentry-a', '1 h', reentry => 'return') AS token \gset
SELECT dlock_acquire('reentry-4', 'reentry-a', '1 h', reentry => 'return') = :token AS same;
SELECT dlock_acquire('reentry-4', 'reentry-b', '1 h', reentry => 'return') AS refused;
SELECT dlock_release('reentry-4', 'reentry-a'), dlock_release('reentry-4', 'reentry-a');

-- the deadline: as far as the ttl asked for, and never nearer
SELECT dlock_acquire('reentry-5', 'reentry-a', '1 h') AS token \gset
SELECT dlock_acquire('reentry-5', 'reentry-a', '1 ms', reentry => 'count') = :token AS same;
SELECT pg_sleep(0.002);
SELECT dlock_check('reentry-5', :token), remaining BETWEEN '59 min' AND '1 h' AS an_hour FROM dlock_leases WHERE name = 'reentry-5';
SELECT dlock_acquire('reentry-5', 'reentry-a', '1 ms', reentry => 'return') = :token AS same;
SELECT pg_sleep(0.002);
SELECT dlock_check('reentry-5', :token), remaining BETWEEN '59 min' AND '1 h' AS an_hour FROM dlock_leases WHERE name = 'reentry-5';
SELECT dlock_acquire('reentry-5', 'reentry-a', '2 h', reentry => 'return') = :token AS same;
SELECT remaining BETWEEN '1:59' AND '2:00' AS two_hours FROM dlock_leases WHERE name = 'reentry-5';
SELECT dlock_acquire('reentry-5', 'reentry-a', '3 h', reentry => 'count') = :token AS same;
SELECT remaining BETWEEN '2:59' AND '3:00' AS three_hours, holds FROM dlock_leases WHERE name = 'reentry-5';
SELECT dlock_release('reentry-5', 'reentry-a'), dlock_release('reentry-5', 'reentry-a');
SELECT remaining BETWEEN '2:59' AND '3:00' AS three_hours, holds FROM dlock_leases WHERE name = 'reentry-5';

-- release_all and a forced release do not count
SELECT dlock_release_all('reentry-a'), dlock_check('reentry-5', :token);
SELECT count(dlock_acquire('reentry-5', 'reentry-a', '1 h', reentry => 'count')) FROM generate_series(1, 5) i;
SELECT holds FROM dlock_leases WHERE name = 'reentry-5';
SELECT dlock_release_all('reentry-a'), dlock_release('reentry-5', 'reentry-a');
SELECT count(dlock_acquire('reentry-5', 'reentry-a', '1 h', reentry => 'count')) FROM generate_series(1, 5) i;
SELECT dlock_force_release('reentry-5', 'test'), dlock_release('reentry-5', 'reentry-a');

-- after its end there is nothing to enter again: another token, counted from one
SELECT dlock_acquire('reentry-6', 'reentry-a', '1 h', reentry => 'count') AS old \gset
SELECT dlock_acquire('reentry-6', 'reentry-a', '1 h', reentry => 'count') = :old AS same;
SELECT dlock_renew('reentry-6', 'reentry-a', '1 ms');
SELECT pg_sleep(0.002);
SELECT dlock_acquire('reentry-6', 'reentry-a', '1 h', reentry => 'count') AS new \gset
SELECT :new > :old AS larger, holds FROM dlock_leases WHERE name = 'reentry-6';
SELECT dlock_renew_token('reentry-6', :new, '1 ms');
SELECT pg_sleep(0.002);
SELECT dlock_acquire('reentry-6', 'reentry-a', '1 h', reentry => 'return') > :new AS larger;
SELECT dlock_release('reentry-6', 'reentry-a');

-- a lease that is closed is not its owner's any more
SELECT dlock_acquire('reentry-7', 'reentry-a', '1 h', min_hold => '1 h') > 0 AS granted;
SELECT dlock_release('reentry-7', 'reentry-a');
SELECT dlock_acquire('reentry-7', 'reentry-a', '1 h', reentry => 'count') AS refused, dlock_acquire('reentry-7', 'reentry-a', '1 h', reentry => 'return') AS refused_too;
SELECT dlock_force_release('reentry-7', 'test');

-- the mode held must cover the one asked for: "same" is the token held
CREATE FUNCTION pg_temp.again(held text, asked text, how text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	first bigint := dlock_acquire('reentry-8', 'reentry-a', '1 h', mode => held);
	second bigint;
	result text;
BEGIN
	BEGIN
		second := dlock_acquire('reentry-8', 'reentry-a', '2 h', mode => asked, reentry => how);
		result := CASE WHEN second = first THEN 'same' ELSE 'odd' END;
	EXCEPTION WHEN object_not_in_prerequisite_state THEN
		result := '55000';
	END;
	IF (SELECT array_agg((mode, holds, remaining > '90 min')::text) FROM dlock_leases WHERE name = 'reentry-8') IS DISTINCT FROM
	   ARRAY[(CASE held WHEN 'EX' THEN 'exclusive' WHEN 'PR' THEN 'shared' ELSE held END,
	          CASE WHEN result = 'same' AND how = 'count' THEN 2 ELSE 1 END, result = 'same')::text] THEN
		result := 'changed ' || (SELECT array_agg((mode, holds, remaining)::text) FROM dlock_leases WHERE name = 'reentry-8')::text;
	END IF;
	PERFORM dlock_release_all('reentry-a');
	RETURN result;
END $$;
SELECT how, mode AS held, pg_temp.again(mode, 'NL', how) AS "NL", pg_temp.again(mode, 'CR', how) AS "CR", pg_temp.again(mode, 'CW', how) AS "CW",
       pg_temp.again(mode, 'PR', how) AS "PR", pg_temp.again(mode, 'PW', how) AS "PW", pg_temp.again(mode, 'EX', how) AS "EX"
  FROM unnest('{count,return}'::text[]) how, unnest('{NL,CR,CW,PR,PW,EX}'::text[]) WITH ORDINALITY m(mode, n) ORDER BY how, n;
SELECT dlock_acquire('reentry-8', 'reentry-a', '1 h', mode => 'shared') > 0 AS granted;
SELECT dlock_acquire('reentry-8', 'reentry-a', '1 h', reentry => 'count');
SELECT dlock_acquire('reentry-8', 'reentry-a', '1 h', reentry => 'return', wait => '1 h');
SELECT dlock_release('reentry-8', 'reentry-a');

-- re-entry goes past others who hold it too
SELECT dlock_acquire('reentry-9', 'reentry-' || o, '1 h', mode => 'shared') > 0 AS granted FROM unnest('{a,b,c}'::text[]) o;
SELECT dlock_acquire('reentry-9', 'reentry-b', '1 h', mode => 'shared', reentry => 'count') > 0 AS again;
SELECT owner, holds FROM dlock_leases WHERE name = 'reentry-9' ORDER BY owner;
SELECT dlock_release('reentry-9', 'reentry-' || o) FROM unnest('{a,b,c}'::text[]) o;
SELECT owner, holds FROM dlock_leases WHERE name = 'reentry-9';
SELECT dlock_release('reentry-9', 'reentry-b');

-- a permit held is not a second one
SELECT dlock_acquire('reentry-10', 'reentry-a', '1 h', permits => 2) AS token \gset
SELECT dlock_acquire('reentry-10', 'reentry-a', '1 h', permits => 2, reentry => 'count') = :token AS same;
SELECT dlock_acquire('reentry-10', 'reentry-a', '1 h', permits => 2, reentry => 'return') = :token AS same;
SELECT dlock_acquire('reentry-10', 'reentry-b', '1 h', permits => 2) > :token AS granted;
SELECT owner, holds, permits FROM dlock_leases WHERE name = 'reentry-10' ORDER BY owner;
SELECT dlock_acquire('reentry-10', 'reentry-a', '1 h', permits => 2, wait => '1 h');
SELECT dlock_release('reentry-10', 'reentry-a');
SELECT dlock_acquire('reentry-10', 'reentry-c', '1 h', permits => 2) AS refused;
SELECT dlock_release('reentry-10', 'reentry-a');
SELECT dlock_acquire('reentry-10', 'reentry-c', '1 h', permits => 2) > 0 AS granted;
SELECT dlock_force_release('reentry-10', 'test');

-- the name of an owner is no key to another role's lease
CREATE ROLE regress_dlock_reentry;
SELECT dlock_acquire('reentry-11', 'reentry-a', '1 h') AS token \gset
SET ROLE regress_dlock_reentry;
\set VERBOSITY sqlstate
SELECT dlock_acquire('reentry-11', 'reentry-a', '2 h', reentry => 'count');
SELECT dlock_acquire('reentry-11', 'reentry-a', '2 h', reentry => 'return');
\set VERBOSITY default
RESET ROLE;
SELECT owner, holds, ttl FROM dlock_leases WHERE name = 'reentry-11';
SELECT dlock_release_token('reentry-11', :token);
DROP ROLE regress_dlock_reentry;
SELECT count(*) FROM dlock_leases WHERE name LIKE 'reentry-%';
