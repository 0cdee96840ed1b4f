-- Proves: dlock_grant_count counts each grant of a lock, also of one that has been free between, and nothing else; a
-- lock that is granted often keeps its count, whatever else is granted, and another one begins anew.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

SELECT * FROM dlock_grant_count('grant_count-never');
SELECT * FROM dlock_grant_count('');
SELECT * FROM dlock_grant_count(NULL);

-- one more with each grant; the time at which counting began stays
SELECT clock_timestamp() AS start \gset
SELECT dlock_acquire('grant_count', 'alice', '1 h') AS token \gset
SELECT grants, since BETWEEN :'start' AND clock_timestamp() AS since FROM dlock_grant_count('grant_count');
SELECT since FROM dlock_grant_count('grant_count') \gset
SELECT dlock_release('grant_count', 'alice');
SELECT count(dlock_release_token('grant_count', dlock_acquire('grant_count', 'o' || i, '1 h'))) FROM generate_series(1, 1000) i;
SELECT grants, since = :'since' AS same FROM dlock_grant_count('grant_count');

-- neither a renewal, nor a re-entry, a conversion, a refusal or a look
SELECT dlock_acquire('grant_count', 'alice', '1 h') AS token \gset
SELECT grants FROM dlock_grant_count('grant_count');
SELECT dlock_renew('grant_count', 'alice'), dlock_acquire('grant_count', 'alice', reentry => 'return') = :token AS again;
SELECT dlock_acquire('grant_count', 'bob', '1 h') AS refused;
SELECT dlock_convert('grant_count', :token, 'shared') > 0 AS converted;
SELECT grants FROM dlock_grant_count('grant_count');

-- shared leases, permits, several locks, slots of time, and each part of a path
SELECT count(dlock_acquire('grant_count', 'reader' || i, '1 h', mode => 'shared')) FROM generate_series(1, 10) i;
SELECT count(dlock_acquire('grant_count-permits', 'o' || i, '1 h', permits => 3)) FROM generate_series(1, 3) i;
-- first two grants of each in a row, so that no two can drive each other out
SELECT count(dlock_release_token(n, dlock_acquire(n, 'alice', '1 h')))
  FROM unnest('{grant_count-1,grant_count-1,grant_count-2,grant_count-2,grant_count-path,grant_count-path,grant_count-path/a,grant_count-path/a}'::text[]) n;
SELECT array_length(dlock_acquire_all('{grant_count-1,grant_count-2}', 'alice', '1 h'), 1);
SELECT dlock_acquire_path('grant_count-path/a', 'alice', '1 h') > 0 AS path;
SELECT n, grants FROM unnest('{grant_count,grant_count-permits,grant_count-1,grant_count-2,grant_count-path,grant_count-path/a}'::text[]) n,
	dlock_grant_count(n);

SELECT count(*) > 0 AS cleaned FROM (SELECT dlock_release_token(name, token) FROM dlock_leases WHERE name LIKE 'grant_count%') s;

-- each slot of time that is won
DO $$
BEGIN
	FOR i IN 1 .. 3 LOOP
		PERFORM dlock_release_token(name, token) FROM dlock_leases WHERE name LIKE '%grant_count-once';
		ASSERT dlock_once('grant_count-once', '1 day') IS NOT NULL;
	END LOOP;
END $$;
SELECT grants FROM dlock_leases l, dlock_grant_count(l.name) WHERE l.name LIKE '%grant_count-once';
SELECT dlock_release_token(name, token) AS open_again FROM dlock_leases WHERE name LIKE '%grant_count-once';

-- a crowd of others
SELECT dlock_acquire('grant_count-seldom', 'alice', bind => 'session') AS token \gset
SELECT dlock_release_token('grant_count-seldom', :token);
SELECT since AS seldom_since FROM dlock_grant_count('grant_count-seldom') \gset
SELECT count(dlock_release_token('grant_count-often', dlock_acquire('grant_count-often', 'alice', bind => 'session'))) FROM generate_series(1, 10);
SELECT since FROM dlock_grant_count('grant_count-often') \gset
SELECT count(dlock_release_token(n, dlock_acquire(n, 'alice', bind => 'session')))
  FROM generate_series(1, 60000) i, unnest(ARRAY['grant_count-' || i, CASE WHEN i % 100 = 0 THEN 'grant_count-often' END]) n WHERE n IS NOT NULL;
SELECT grants, since = :'since' AS same FROM dlock_grant_count('grant_count-often');
SELECT * FROM dlock_grant_count('grant_count-seldom');
SELECT dlock_acquire('grant_count-seldom', 'alice', bind => 'session') AS token \gset
SELECT grants, since > :'seldom_since' AS later FROM dlock_grant_count('grant_count-seldom');
SELECT dlock_release_token('grant_count-seldom', :token);
