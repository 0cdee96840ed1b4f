-- Proves: no function on tasks reads the table or an index as a whole, or more of it than it needs, whatever the planner knows: nothing, that the table is empty, or what it was before thousands of tasks came.  A capture makes no entry in an index.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
ALTER TABLE _dlock.task SET (autovacuum_enabled = false);

-- What a run of all functions reads: whole tables, and rows by index for each call.
CREATE FUNCTION task_plan_run(calls int, OUT seq_scans int8, OUT reads_a_call int8) LANGUAGE plpgsql AS $$
DECLARE
	before record;
	after record;
	t record;
	n int := 0;
BEGIN
	SELECT * INTO before FROM pg_stat_xact_all_tables WHERE relid = '_dlock.task'::regclass;
	FOR i IN 1 .. calls LOOP
		PERFORM dlock_task_put('task-plan', 'run' || i);
		FOR t IN SELECT * FROM dlock_task_capture('task-plan', 1 + i % 2, ttl => '1 h') LOOP
			n := n + 6;
			PERFORM dlock_task_renew('task-plan', t.key, t.token), dlock_task_set('task-plan', t.key, t.token, 'half');
			IF i % 3 = 0 THEN
				PERFORM dlock_task_release('task-plan', t.key, t.token);
			ELSIF i % 3 = 1 THEN
				PERFORM dlock_task_fail('task-plan', t.key, t.token);
			ELSE
				PERFORM dlock_task_finish('task-plan', t.key, t.token), dlock_task_finish('task-plan', t.key, t.token);
			END IF;
		END LOOP;
	END LOOP;
	PERFORM dlock_task_purge('task-plan', '0', 10);
	SELECT * INTO after FROM pg_stat_xact_all_tables WHERE relid = '_dlock.task'::regclass;
	seq_scans := after.seq_scan - before.seq_scan;
	reads_a_call := (after.idx_tup_fetch - before.idx_tup_fetch) / n;
END $$;

-- Pages that put, capture, finish and a capture of an empty queue visit, if these are more than a few.  Of three
-- rounds the least counts: a look into a catalog after an invalidation is no part of what a call costs.
CREATE FUNCTION task_plan_pages(OUT step text, OUT pages int) RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
	plan json;
	call text;
BEGIN
	CREATE TEMP TABLE captured (key text, token int8) ON COMMIT DROP;
	CREATE TEMP TABLE visited (step text, pages int) ON COMMIT DROP;
	FOR round IN 1 .. 3 LOOP
		FOREACH call IN ARRAY ARRAY[
			'SELECT dlock_task_put(''task-plan'', ''p'' || clock_timestamp(), priority => -1)',
			'INSERT INTO captured SELECT key, token FROM dlock_task_capture(''task-plan'')',
			'SELECT dlock_task_finish(''task-plan'', key, token) FROM captured',
			'SELECT dlock_task_capture(''task-plan-empty'')']
		LOOP
			EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ' || call INTO plan;
			INSERT INTO visited VALUES (substring(call from 'dlock_task_\w+.*plan[-a-z]*'),
				(plan -> 0 -> 'Plan' ->> 'Shared Hit Blocks')::int + (plan -> 0 -> 'Plan' ->> 'Shared Read Blocks')::int);
		END LOOP;
		DELETE FROM captured;
	END LOOP;
	RETURN QUERY SELECT v.step, min(v.pages) FROM visited v GROUP BY v.step HAVING min(v.pages) > 20;
END $$;

SELECT dlock_queue_create('task-plan', max_attempts => NULL);
SELECT dlock_queue_create('task-plan-empty');

-- never vacuumed; plans are made while it is nearly empty, and kept
SELECT seq_scans, reads_a_call <= 2 AS few FROM task_plan_run(20);
SELECT * FROM task_plan_pages();
SELECT count(dlock_task_put('task-plan', 'more' || i)) FROM generate_series(1, 5000) i;
SELECT seq_scans, reads_a_call <= 2 AS few FROM task_plan_run(20);
SELECT * FROM task_plan_pages();

-- vacuumed and analyzed when it is empty: new plans, kept while the table grows
DELETE FROM _dlock.task;
VACUUM ANALYZE _dlock.task;
SELECT relpages >= 50 AS has_pages, reltuples FROM pg_class WHERE oid = '_dlock.task'::regclass;
\c -
SELECT seq_scans, reads_a_call <= 2 AS few FROM task_plan_run(20);
SELECT * FROM task_plan_pages();
SELECT count(dlock_task_put('task-plan', 'more' || i)) FROM generate_series(1, 5000) i;
SELECT seq_scans, reads_a_call <= 2 AS few FROM task_plan_run(20);
SELECT * FROM task_plan_pages();
-- and of many rows
VACUUM ANALYZE _dlock.task;
SELECT seq_scans, reads_a_call <= 2 AS few FROM task_plan_run(20);
SELECT * FROM task_plan_pages();
SELECT dlock_queue_drop('task-plan');

-- a capture changes a row in its place
SELECT dlock_queue_create('task-plan');
BEGIN;
SELECT count(dlock_task_put('task-plan', 'hot' || i)) FROM generate_series(1, 3) i;
SELECT n_tup_upd AS updates, n_tup_hot_upd AS hot FROM pg_stat_xact_all_tables WHERE relid = '_dlock.task'::regclass \gset
SELECT count(*) FROM dlock_task_capture('task-plan', 3);
SELECT n_tup_upd - :updates AS updates, n_tup_hot_upd - :hot AS hot FROM pg_stat_xact_all_tables WHERE relid = '_dlock.task'::regclass;
ROLLBACK;
SELECT dlock_queue_drop('task-plan'), dlock_queue_drop('task-plan-empty');
ALTER TABLE _dlock.task RESET (autovacuum_enabled);
DROP FUNCTION task_plan_run, task_plan_pages;
