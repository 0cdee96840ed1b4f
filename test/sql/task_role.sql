-- Proves: a queue is for its role, its members and superusers; the functions work in any schema, on any search path, also one that means harm, under any isolation level, and nobody gets at the tables.
\set SHOW_CONTEXT never
\set home :DBNAME
SET client_min_messages = warning;
DROP DATABASE IF EXISTS regress_dlock_task;
CREATE DATABASE regress_dlock_task;
\c regress_dlock_task
SET client_min_messages = warning;
\pset null '(null)'
CREATE ROLE regress_dlock_queue;
CREATE ROLE regress_dlock_worker IN ROLE regress_dlock_queue;
CREATE ROLE regress_dlock_other;
CREATE ROLE regress_dlock_heir NOINHERIT IN ROLE regress_dlock_queue;
CREATE SCHEMA "Own schema";
CREATE EXTENSION dlock SCHEMA "Own schema";
GRANT USAGE ON SCHEMA "Own schema" TO PUBLIC;
GRANT CREATE ON SCHEMA public TO PUBLIC;

SET ROLE regress_dlock_queue;
SELECT "Own schema".dlock_task_create_queue('role-1', max_attempts => 2), "Own schema".dlock_task_put('role-1', 'a');
SET ROLE regress_dlock_worker;
SELECT "Own schema".dlock_task_put('role-1', 'b');
SELECT key, current_user FROM "Own schema".dlock_task_capture('role-1');
SELECT queue, key, state FROM "Own schema".dlock_tasks ORDER BY key;
SELECT current_user, current_setting('search_path'), current_setting('enable_sort');
-- after an error all is as before
SELECT "Own schema".dlock_task_set('role-1', 'none', 'x');
SELECT current_user, current_setting('search_path'), current_setting('enable_sort');

SET ROLE regress_dlock_other;
SELECT "Own schema".dlock_task_put('role-1', 'c');
SELECT * FROM "Own schema".dlock_task_capture('role-1');
SELECT "Own schema".dlock_task_set('role-1', 'b', 'x');
SELECT "Own schema".dlock_task_finish('role-1', 'a', 1);
SELECT "Own schema".dlock_task_purge('role-1', '0');
SELECT "Own schema".dlock_task_drop_queue('role-1');
SELECT count(*) FROM "Own schema".dlock_tasks;
SELECT count(*) FROM "Own schema".dlock_task;
INSERT INTO "Own schema".dlock_task_queue (queue) VALUES ('x');
SET ROLE regress_dlock_heir;
SELECT "Own schema".dlock_task_put('role-1', 'c');
SELECT count(*) FROM "Own schema".dlock_tasks;

-- a path that leads to operators and functions of somebody else
SET ROLE regress_dlock_worker;
CREATE FUNCTION public.harm(text, text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'as %', current_user; END $$;
CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.harm);
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'as %', current_user; END $$;
CREATE TEMP TABLE dlock_task (a int);
SET search_path = public, pg_temp, pg_catalog, "Own schema";
BEGIN;
SELECT dlock_task_put('role-1', 'd'), key FROM dlock_task_capture('role-1', 10, ttl => '1 microsecond');
SELECT key, dlock_task_finish('role-1', key, token) FROM dlock_task_capture('role-1', 1);
COMMIT;
RESET search_path;
DROP TABLE pg_temp.dlock_task;
DROP OPERATOR public.= (text, text);
DROP FUNCTION public.harm, public.clock_timestamp;

-- every level; and in one transaction what was done before is seen
SET ROLE regress_dlock_queue;
SELECT "Own schema".dlock_task_create_queue('role-2');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT "Own schema".dlock_task_put('role-2', 'a'), "Own schema".dlock_task_put('role-2', 'a');
SELECT "Own schema".dlock_task_finish('role-2', key, token) FROM "Own schema".dlock_task_capture('role-2');
SELECT state FROM "Own schema".dlock_tasks WHERE queue = 'role-2';
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT "Own schema".dlock_task_put('role-2', 'b');
SELECT "Own schema".dlock_task_fail('role-2', key, token) FROM "Own schema".dlock_task_capture('role-2');
SELECT "Own schema".dlock_task_set('role-2', 'b', 'done');
COMMIT;
SELECT key, state FROM "Own schema".dlock_tasks WHERE queue = 'role-2' ORDER BY key;

-- the schema gets another name
RESET ROLE;
ALTER SCHEMA "Own schema" RENAME TO other;
SET search_path = other;
SELECT dlock_task_put('role-2', 'c'), dlock_task_finish('role-1', key, token) FROM dlock_task_capture('role-1', 1, '{parked, ready}');
SELECT key, state FROM dlock_tasks WHERE queue = 'role-2' ORDER BY key;
DROP EXTENSION dlock;
CREATE EXTENSION dlock;
SELECT dlock_task_create_queue('role-2'), dlock_task_put('role-2', 'c');
SELECT key FROM dlock_task_capture('role-2');

\c :home
DROP DATABASE regress_dlock_task;
DROP ROLE regress_dlock_queue, regress_dlock_worker, regress_dlock_other, regress_dlock_heir;
