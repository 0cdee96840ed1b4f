-- Proves: a queue is for its role, its members and superusers, by the functions as by hand; the functions work in any schema, on any search path, also one that means harm, and under any isolation level; default privileges give nobody more.
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
CREATE ROLE regress_dlock_monitor IN ROLE pg_monitor;
CREATE SCHEMA "Own schema";
ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO PUBLIC, regress_dlock_other;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC, regress_dlock_other;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO PUBLIC, regress_dlock_other;
CREATE EXTENSION dlock SCHEMA "Own schema";
ALTER DEFAULT PRIVILEGES REVOKE ALL ON SCHEMAS FROM PUBLIC, regress_dlock_other;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM PUBLIC, regress_dlock_other;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON SEQUENCES FROM PUBLIC, regress_dlock_other;
GRANT USAGE ON SCHEMA "Own schema" TO PUBLIC;
GRANT CREATE ON SCHEMA public TO PUBLIC;
SET search_path = "Own schema";

SELECT has_schema_privilege('regress_dlock_other', '_dlock', 'CREATE') AS create;
SELECT c.relname, has_table_privilege('regress_dlock_other', c.oid, 'SELECT') AS read, has_table_privilege('regress_dlock_other', c.oid, 'TRUNCATE, REFERENCES, TRIGGER, UPDATE') AS more
  FROM pg_class c WHERE c.relnamespace = '_dlock'::regnamespace AND c.relkind = 'r' ORDER BY c.relname;
SELECT has_sequence_privilege('regress_dlock_other', '_dlock.token_seq', 'USAGE, SELECT, UPDATE') AS sequence;

SET ROLE regress_dlock_queue;
SELECT dlock_queue_create('role-1', max_attempts => 2, retry_delay => '0'), dlock_task_put('role-1', 'a');
SET ROLE regress_dlock_worker;
SELECT dlock_task_put('role-1', 'b');
SELECT key, current_user FROM dlock_task_capture('role-1');
SELECT queue, key, state FROM dlock_tasks ORDER BY key;

-- others, also by the plans that this session has kept
SET ROLE regress_dlock_other;
SELECT dlock_task_put('role-1', 'c');
SELECT * FROM dlock_task_capture('role-1');
SELECT dlock_task_set('role-1', 'b', NULL, 'x');
SELECT dlock_task_finish('role-1', 'a', 1);
SELECT dlock_task_purge('role-1', '0');
SELECT dlock_queue_drop('role-1');
SELECT dlock_queue_create('role-1');
SELECT count(*) FROM dlock_tasks;
SELECT count(*) FROM dlock_task_state;
SELECT count(*) FROM _dlock.task;
UPDATE _dlock.task SET state = 'x';
DELETE FROM _dlock.task;
DELETE FROM _dlock.task_queue;
INSERT INTO _dlock.task (queue_id, role, key, state) SELECT queue_id, role, 'x', 'ready' FROM _dlock.task_queue;
INSERT INTO _dlock.task (queue_id, role, key, state) SELECT queue_id, current_user::regrole, 'x', 'ready' FROM _dlock.task_queue;
INSERT INTO _dlock.task_queue (queue, role, retry_delay) VALUES ('x', 'regress_dlock_queue', '0');
UPDATE _dlock.task_queue SET role = current_user::regrole;
SELECT dlock_queue_create('role-o'), dlock_task_put('role-o', 'c');
UPDATE _dlock.task SET role = 'regress_dlock_queue';
SELECT key FROM dlock_task_capture('role-o');
SET ROLE regress_dlock_heir;
SELECT dlock_task_put('role-1', 'c');
SELECT count(*) FROM dlock_tasks;
SET ROLE regress_dlock_monitor;
SELECT queue, ready, captured FROM dlock_task_state ORDER BY queue;
SELECT count(*) FROM dlock_tasks;

-- by hand
SET ROLE regress_dlock_worker;
UPDATE _dlock.task SET priority = -1 WHERE key = 'b';
SELECT key, priority FROM dlock_task_capture('role-1');

-- a queue that gets another role, with its tasks
RESET ROLE;
UPDATE _dlock.task_queue SET role = 'regress_dlock_queue' WHERE queue = 'role-o';
SET ROLE regress_dlock_other;
SELECT count(*) FROM dlock_tasks;
SET ROLE regress_dlock_queue;
SELECT key, state FROM dlock_tasks WHERE queue = 'role-o';
SELECT dlock_queue_drop('role-o');

-- a path that leads to operators and functions of somebody else
SET ROLE regress_dlock_other;
-- each operator and each function that tasks may need, of arguments that fit as well
DO $$
DECLARE
	types regtype[] := '{text,int4,int8,tid,oid,bool,float8,interval,timestamptz}';
	l regtype;
	r regtype;
	o text;
	f regprocedure;
BEGIN
	FOREACH l IN ARRAY types LOOP
		FOREACH r IN ARRAY types LOOP
			EXECUTE format('CREATE FUNCTION public.harm(%s, %s) RETURNS bool LANGUAGE plpgsql AS ''BEGIN RAISE EXCEPTION $m$as %%$m$, current_user; END''', l, r);
			FOREACH o IN ARRAY '{=,<>,<,<=,>,>=,+,-,*,||,~}'::text[] LOOP
				EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.harm)', o, l, r);
			END LOOP;
		END LOOP;
	END LOOP;
	FOR f IN SELECT oid FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f' AND proname = ANY (
		'{clock_timestamp,pg_has_role,octet_length,cardinality,current_setting,power,now,unnest,left,float8,interval}') LOOP
		EXECUTE format('CREATE FUNCTION public.%s RETURNS %s LANGUAGE plpgsql AS ''BEGIN RAISE EXCEPTION $m$as %%$m$, current_user; END''',
			f, pg_get_function_result(f));
	END LOOP;
END $$;
SELECT count(*) > 700 AS many FROM pg_operator WHERE oprnamespace = 'public'::regnamespace;
CREATE DOMAIN public.text AS int4;
CREATE DOMAIN public.timestamptz AS int4;
CREATE DOMAIN public.tid AS int4;
CREATE DOMAIN public."interval" AS int4;
SET ROLE regress_dlock_worker;
CREATE TEMP TABLE task (a int);
SET search_path = public, pg_temp, pg_catalog, "Own schema";
SELECT dlock_task_put('role-1', 'd'), dlock_task_put('role-1', 'd', delay => '1 s');
SELECT key, dlock_task_renew('role-1', key, token), dlock_task_set('role-1', key, token, 'half'), dlock_task_release('role-1', key, token) FROM dlock_task_capture('role-1');
SELECT key, dlock_task_fail('role-1', key, token) FROM dlock_task_capture('role-1', 1, '{ready}', on_timeout => 'ready');
SELECT key, dlock_task_finish('role-1', key, token) FROM dlock_task_capture('role-1', 1);
SELECT dlock_task_put('role-1', 'e', state => 'ready');
SELECT key FROM dlock_task_capture('role-1', 2, owner => 'w', ttl => '1 min', wait => '1 ms');
SELECT state, error FROM dlock_tasks WHERE key OPERATOR(pg_catalog.=) 'd';
SELECT ready, captured FROM dlock_task_state;
SELECT dlock_task_purge('role-1', '0');
SET search_path = "Own schema";
DROP TABLE pg_temp.task;
RESET ROLE;
DROP OWNED BY regress_dlock_other;

-- every level; in one transaction what was done before is seen, and one that keeps its snapshot does not wait
SET ROLE regress_dlock_queue;
SELECT dlock_queue_create('role-2', retry_delay => '0');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT dlock_task_put('role-2', 'a'), dlock_task_put('role-2', 'a');
SELECT dlock_task_finish('role-2', key, token) FROM dlock_task_capture('role-2');
SELECT state FROM dlock_tasks WHERE queue = 'role-2';
SELECT key FROM dlock_task_capture('role-2', wait => NULL);
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT dlock_task_put('role-2', 'b');
SELECT dlock_task_fail('role-2', key, token) FROM dlock_task_capture('role-2');
SELECT dlock_task_set('role-2', 'b', NULL, 'done');
COMMIT;
SELECT key, state FROM dlock_tasks WHERE queue = 'role-2' ORDER BY key;

-- the schema gets another name
RESET ROLE;
ALTER SCHEMA "Own schema" RENAME TO other;
SET search_path = other;
SELECT dlock_task_put('role-2', 'c');
SELECT key, state FROM dlock_tasks WHERE queue = 'role-2' ORDER BY key;
DROP EXTENSION dlock;
CREATE EXTENSION dlock;
SELECT dlock_queue_create('role-2'), dlock_task_put('role-2', 'c');
SELECT key FROM dlock_task_capture('role-2');

-- a role whose name has to be quoted
CREATE ROLE "regress_dlock Odd";
SET ROLE "regress_dlock Odd";
SELECT dlock_queue_create('odd'), dlock_group_create('odd', 2), dlock_group_join('odd', 'm') > 0 AS joined;
SELECT dlock_group_join('odd', 'm#1');
RESET ROLE;
SELECT q.role, g.role FROM _dlock.task_queue q, dlock_groups g WHERE q.queue = 'odd';

\c :home
DROP DATABASE regress_dlock_task;
DROP ROLE "regress_dlock Odd";
DROP ROLE regress_dlock_queue, regress_dlock_worker, regress_dlock_other, regress_dlock_heir, regress_dlock_monitor;
