-- Proves: dlock_lease(name) shows what dlock_leases shows of that lock, whatever kinds of leases it has, and no more.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

-- They are looked at one after the other: times left differ by that.
CREATE FUNCTION lease_differs(lock text) RETURNS TABLE (what text, name text, owner text) LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY
	SELECT CASE WHEN f.name IS NULL THEN 'missing' WHEN v.name IS NULL THEN 'too much' ELSE 'times' END,
	       coalesce(f.name, v.name), coalesce(f.owner, v.owner)
	  FROM (SELECT * FROM dlock_leases l WHERE l.name = lock) v FULL JOIN dlock_lease(lock) f
	    ON (v.name, v.owner, v.token, v.mode, v.holds, v.state, v.bind, v.role, v.granted_at) =
	       (f.name, f.owner, f.token, f.mode, f.holds, f.state, f.bind, f.role, f.granted_at)
	   AND (v.permits, v.pid, v.ttl, v.payload) IS NOT DISTINCT FROM (f.permits, f.pid, f.ttl, f.payload)
	 WHERE f.name IS NULL OR v.name IS NULL OR (v.expires_at IS NULL) <> (f.expires_at IS NULL)
	    OR abs(extract(epoch FROM v.expires_at - f.expires_at)) > 10 OR abs(extract(epoch FROM v.remaining - f.remaining)) > 10;
END $$;

-- the same columns
SELECT count(*) FROM (SELECT * FROM dlock_leases UNION ALL SELECT * FROM dlock_lease('lease-none')) s WHERE name = 'lease-none';

SELECT dlock_acquire('lease-plain', 'alice', '2 h', payload => '{"a": 1}') > 0 AS plain;
SELECT count(dlock_acquire('lease-shared', 'owner-' || i, '1 h', mode => 'shared')) FROM generate_series(1, 20) i;
SELECT count(dlock_acquire('lease-permits', 'owner-' || i, '1 h', permits => 5)) FROM generate_series(1, 4) i;
SELECT count(dlock_acquire('lease-counted', 'alice', '1 h', reentry => 'count')) FROM generate_series(1, 3);
SELECT dlock_acquire('lease-bound', 'alice', bind => 'session') > 0 AS bound;
SELECT dlock_acquire_path('lease-path/a/b', 'alice', '1 h', mode => 'shared', payload => '{"b": 1}') > 0 AS path;
SELECT dlock_acquire_path('lease-path/a/c', 'bob', '1 h') > 0 AS path;
SELECT dlock_acquire('lease-closed', 'alice', '1 ms', lock_delay => '1 h') > 0 AS delayed;
SELECT dlock_acquire('lease-early', 'alice', '1 h', min_hold => '1 h') > 0 AS early, dlock_release('lease-early', 'alice');
SELECT dlock_acquire('lease-expired', 'alice', '1 ms') > 0 AS expired;
SELECT dlock_acquire(repeat('n', 255), repeat('o', 255), '1 h', payload => to_jsonb(repeat('p', 1000))) > 0 AS long;
SELECT count(*) FROM (SELECT dlock_watch('lease-free', NULL, '0')) s;
SELECT pg_sleep(0.01);

SELECT d.* FROM (SELECT DISTINCT name FROM dlock_leases) l, lease_differs(l.name) d;
SELECT d.* FROM unnest('{lease-none,lease-free,lease-expired,lease,lease-plain2}'::text[]) n, lease_differs(n) d;
SELECT n, count(f.*), min(f.state) FROM unnest('{lease-plain,lease-shared,lease-permits,lease-counted,lease-bound,lease-path,lease-path/a,lease-path/a/b,lease-closed,lease-early,lease-expired,lease-free,lease-none}'::text[]) n
  LEFT JOIN LATERAL dlock_lease(n) f ON true GROUP BY n ORDER BY n COLLATE "C";
SELECT mode, holds, payload FROM dlock_lease('lease-path/a') ORDER BY token;

-- anybody may call it; names are checked as elsewhere
CREATE ROLE regress_dlock_lease;
SET ROLE regress_dlock_lease;
SELECT owner, payload FROM dlock_lease('lease-plain');
SELECT owner FROM dlock_lease('');
SELECT owner FROM dlock_lease(NULL);
RESET ROLE;
DROP ROLE regress_dlock_lease;
DROP FUNCTION lease_differs;
SELECT sum(dlock_force_release(name, 'test')) > 0 AS released FROM (SELECT DISTINCT name FROM dlock_leases WHERE name LIKE 'lease-%' OR name LIKE 'nnn%') l;
SELECT count(*) FROM dlock_leases WHERE name LIKE 'lease-%' OR name LIKE 'nnn%';
