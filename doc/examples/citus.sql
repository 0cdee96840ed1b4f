-- Locks spread by name over the workers of Citus: what the database needs that has the
-- coordinator.  Preload 'citus, dlock' on all nodes, and set dlock.grants = off in the
-- coordinator's postgresql.conf, and only there.
--
--   psql -f citus.sql
--
-- The last statement tells what is wrong; it can be run again at any time.

CREATE EXTENSION IF NOT EXISTS dlock;		-- Citus creates it on the workers, too

-- A call goes to the worker that would have the row of its name.
CREATE TABLE dlock_name (name text PRIMARY KEY);
SELECT create_distributed_table('dlock_name', 'name');

CREATE VIEW dlock_call AS
SELECT p.oid, p.oid::regprocedure AS call
FROM pg_proc p
JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
WHERE e.extname = 'dlock' AND p.proname IN (
	'dlock_acquire', 'dlock_renew', 'dlock_renew_token', 'dlock_release', 'dlock_release_token',
	'dlock_convert', 'dlock_check', 'dlock_watch');

-- Without force_delegation a call within a transaction block is not handed over.
SELECT create_distributed_function(call, distribution_arg_name := 'name', colocate_with := 'dlock_name',
	force_delegation := true)
FROM dlock_call;

SELECT call || ' is not distributed' AS wrong
FROM dlock_call c
WHERE NOT EXISTS (
	SELECT FROM pg_dist_object o
	WHERE o.classid = 'pg_proc'::regclass AND o.objid = c.oid AND o.distribution_argument_index IS NOT NULL)
UNION ALL
SELECT 'the coordinator grants: dlock.grants is on'
WHERE current_setting('dlock.grants')::boolean
UNION ALL
SELECT format('%s:%s does not grant: %s', nodename, nodeport, result)
FROM run_command_on_workers('SHOW dlock.grants')
WHERE result <> 'on'
UNION ALL
SELECT 'shards of dlock_name are on the coordinator'
FROM citus_shards s, pg_dist_node n
WHERE s.table_name = 'dlock_name'::regclass AND n.groupid = 0
	AND (s.nodename, s.nodeport) = (n.nodename, n.nodeport);
