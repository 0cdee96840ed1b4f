-- Proves: dlock_leases shows the live leases of this database and nothing else, to everybody, with columns of plain types.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\set home :DBNAME
\pset null '(null)'

SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
 WHERE attrelid = 'dlock_leases'::regclass AND attnum > 0 ORDER BY attnum;

CREATE ROLE regress_dlock_view;
SET ROLE regress_dlock_view;
SELECT clock_timestamp() AS t0 \gset
SELECT dlock_acquire('view-1', 'alice', '2 h', payload => '{"a": 1}') AS token \gset
SELECT clock_timestamp() AS t1 \gset
RESET ROLE;
SELECT name, owner, token = :token AS token, mode, permits, holds, state, bind, pid, role, ttl, payload FROM dlock_leases WHERE name = 'view-1';

-- times: granted between the two readings, expires one ttl later, the rest is left
SELECT granted_at BETWEEN :'t0' AND :'t1' AS granted_at,
       expires_at BETWEEN :'t0'::timestamptz + '1:59:59' AND :'t1'::timestamptz + '2:00:01' AS expires_at,
       remaining BETWEEN '1:59' AND '2:00' AS remaining,
       abs(extract(epoch FROM expires_at - clock_timestamp() - remaining)) < 1 AS agree
  FROM dlock_leases WHERE name = 'view-1';

-- remaining runs down
SELECT remaining AS before FROM dlock_leases WHERE name = 'view-1' \gset
SELECT pg_sleep(0.01);
SELECT remaining <= :'before'::interval - '0.01 s' AS less FROM dlock_leases WHERE name = 'view-1';

-- expired and released leases are not there
SELECT dlock_acquire('view-2', 'alice', '1 ms') > 0 AS granted;
SELECT dlock_acquire('view-3', 'alice', '1 h') > 0 AS granted;
SELECT dlock_release('view-3', 'alice');
SELECT pg_sleep(0.002);
SELECT name FROM dlock_leases WHERE name LIKE 'view-%' ORDER BY name;

-- one that is bound has a session and may have no deadline; one that is closed shows when it opens
BEGIN;
SELECT dlock_acquire('view-bound', 'alice', bind => 'session') > 0 AS granted, dlock_acquire('view-bound-ttl', 'alice', '1 h', bind => 'transaction') > 0 AS granted_too;
SELECT name, state, bind, pid = pg_backend_pid() AS mine, expires_at IS NULL AS no_end, remaining IS NULL AS no_rest, ttl
  FROM dlock_leases WHERE name LIKE 'view-bound%' ORDER BY name;
COMMIT;
SELECT dlock_release('view-bound', 'alice');
SELECT dlock_acquire('view-closed', 'alice', '3 h', min_hold => '1 h') > 0 AS granted;
SELECT dlock_release('view-closed', 'alice');
SELECT state, expires_at - granted_at BETWEEN '59 min 59 s' AND '60 min 1 s' AS opens, remaining BETWEEN '59 min' AND '1 h' AS an_hour FROM dlock_leases WHERE name = 'view-closed';
SELECT dlock_force_release('view-closed', 'test');

-- everybody may look, and nobody may change anything through it
SET ROLE regress_dlock_view;
SELECT name FROM dlock_leases WHERE name LIKE 'view-%';
\set VERBOSITY sqlstate
DELETE FROM dlock_leases;
UPDATE dlock_leases SET owner = 'mallory';
INSERT INTO dlock_leases (name) VALUES ('x');
\set VERBOSITY default
RESET ROLE;

-- a read-only transaction, a snapshot taken before the grant, a cursor
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT count(*) FROM dlock_leases WHERE name LIKE 'view-%';
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM dlock_leases WHERE name LIKE 'view-%';
SELECT dlock_acquire('view-4', 'alice', '1 h') > 0 AS granted;
SELECT count(*) FROM dlock_leases WHERE name LIKE 'view-%';
DECLARE c CURSOR FOR SELECT name FROM dlock_leases WHERE name LIKE 'view-%' ORDER BY name;
FETCH 1 FROM c;
SELECT dlock_release('view-4', 'alice');
FETCH ALL FROM c;
COMMIT;

-- a thousand of all sizes
SELECT count(dlock_acquire('view-many-' || repeat('n', i % 240) || i, repeat('o', 1 + i % 255), '1 h',
                           payload => CASE WHEN i % 3 > 0 THEN to_jsonb(repeat('p', i % 1000)) END))
  FROM generate_series(1, 1000) i;
SELECT count(*), count(DISTINCT name), sum(length(name)), sum(length(owner)), sum(length(payload #>> '{}'))
  FROM dlock_leases WHERE name LIKE 'view-many-%';
SELECT count(dlock_release_token(name, token)) FROM dlock_leases WHERE name LIKE 'view-many-%';
SELECT count(*) FROM dlock_leases WHERE name LIKE 'view-many-%';

-- another database has its own leases
SET client_min_messages = warning;
DROP DATABASE IF EXISTS regress_dlock_view;
CREATE DATABASE regress_dlock_view;
\c regress_dlock_view
SET client_min_messages = warning;
CREATE EXTENSION dlock;
SELECT count(*) FROM dlock_leases;
SELECT dlock_acquire('view-1', 'bob', '1 h') > 0 AS granted;
SELECT name, owner FROM dlock_leases;
\c :home
SELECT name, owner FROM dlock_leases WHERE name LIKE 'view-%';
DROP DATABASE regress_dlock_view;

-- the role of a lease may go; what is left of it is a number
DROP ROLE regress_dlock_view;
SELECT name, role::text ~ '^\d+$' AS is_number FROM dlock_leases WHERE name = 'view-1';
SELECT dlock_release_token('view-1', :token);

-- what only looks does not keep a query from being parallel
SELECT oid::regproc FROM pg_proc WHERE (proname LIKE 'dlock%' OR pronamespace = '_dlock'::regnamespace) AND proparallel = 'r' ORDER BY oid::regproc::text COLLATE "C";
CREATE TEMP TABLE view_plan (line text);
CREATE TABLE view_job AS SELECT 'view-job-' || i AS name FROM generate_series(1, 1000) i;
SELECT dlock_acquire('view-job-500', 'alice', '1 h') AS token \gset
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET enable_nestloop = off;
DO $$
DECLARE
	line text;
BEGIN
	FOR line IN EXPLAIN SELECT j.name FROM view_job j JOIN dlock_leases l USING (name) LOOP
		INSERT INTO view_plan VALUES (line);
	END LOOP;
END $$;
SELECT count(*) FROM view_plan WHERE line LIKE '%Gather%';
SELECT j.name, l.token = :token AS token, dlock_check(l.name, l.token) FROM view_job j JOIN dlock_leases l USING (name);
RESET ALL;
DROP TABLE view_job;
SELECT dlock_release_token('view-job-500', :token);
