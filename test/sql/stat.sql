-- Proves: dlock_stats counts what happens, once.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
CREATE TEMP TABLE before AS SELECT * FROM dlock_stats;

SELECT dlock_acquire('stat-1', 'stat-a', '1 h') > 0 AS granted;
SELECT dlock_acquire('stat-1', 'stat-b') IS NULL AS refused;
SELECT dlock_acquire('stat-1', 'stat-b', wait => '5 ms') IS NULL AS timed_out;
SELECT dlock_acquire('stat-1', 'stat-a', reentry => 'count') > 0 AS entered;
SELECT dlock_acquire('stat-1', 'stat-a', wait => '5 ms');
SELECT dlock_renew('stat-1', 'stat-a');
SELECT dlock_convert('stat-1', token, 'shared') = token AS converted FROM dlock_leases WHERE name = 'stat-1';
SELECT dlock_release('stat-1', 'stat-a'), dlock_release('stat-1', 'stat-a'), dlock_release('stat-1', 'stat-a');
SELECT cardinality(dlock_acquire_all('{stat-2,stat-3}', 'stat-a', '1 h'));
SELECT dlock_acquire_path('stat/4/5', 'stat-a', '1 h') > 0 AS granted;
SELECT dlock_release_all('stat-a');
SELECT dlock_acquire('stat-6', 'stat-a', '1 ms') > 0 AS granted;
SELECT pg_sleep(0.01);
SELECT dlock_acquire('stat-6', 'stat-b', '1 h') > 0 AS taken_over;
SELECT dlock_release('stat-6', 'stat-b');

SELECT a.grants - b.grants AS grants, a.handoffs - b.handoffs AS handoffs, a.reentries - b.reentries AS reentries,
       a.refusals - b.refusals AS refusals, a.timeouts - b.timeouts AS timeouts, a.deadlocks - b.deadlocks AS deadlocks,
       a.renewals - b.renewals AS renewals, a.conversions - b.conversions AS conversions, a.releases - b.releases AS releases
  FROM dlock_stats a, before b;
SELECT a.expiries > b.expiries AS expired, a.waits - b.waits AS waits,
       a.wait_time - b.wait_time >= '5 ms' AS waited, cardinality(a.wait_histogram) AS buckets,
       (SELECT sum(n) FROM unnest(a.wait_histogram) n) = a.waits AS histogram_is_of_them
  FROM dlock_stats a, before b;

-- the leases in memory, and what they take of it; those of other tests do not end meanwhile
DO $$
BEGIN
	FOR i IN 1 .. 2 LOOP
		PERFORM dlock_force_release(name, 'test') FROM dlock_leases;
	END LOOP;
END $$;
SELECT leases AS l, memory_used AS m FROM dlock_stats \gset
SELECT count(dlock_acquire('stat-' || i, 'stat-a', '1 h')) FROM generate_series(1, 100) i;
SELECT leases - :l AS leases, memory_used - :m BETWEEN 95 * 232 AND 100 * 232 AS memory, memory_limit > memory_used AS limited
  FROM dlock_stats;
SELECT dlock_release_all('stat-a');
SELECT leases - :l AS leases FROM dlock_stats;

-- what a session has counted stays when it is gone
SELECT grants FROM dlock_stats \gset
\c -
SELECT grants = :grants AS kept FROM dlock_stats;
