-- Proves: a role that may create objects in the schema of the extension brings nothing of its own into the functions on tasks, calls none of their parts, and gets no rights by them; who calls is told through SET ROLE, views, triggers and functions with rights of others.
\set home :DBNAME
\set SHOW_CONTEXT never
SET client_min_messages = warning;
DROP DATABASE IF EXISTS regress_dlock_harm;
CREATE DATABASE regress_dlock_harm;
\c regress_dlock_harm
SET client_min_messages = warning;
CREATE ROLE regress_dlock_worker;
CREATE ROLE regress_dlock_harmful;
CREATE SCHEMA ext;
CREATE EXTENSION dlock SCHEMA ext;
GRANT USAGE, CREATE ON SCHEMA ext TO PUBLIC;

-- operators of all names that are used, between all types that are, and functions that
-- take nearly the arguments of ours
SET ROLE regress_dlock_harmful;
DO $$
DECLARE
	types text[] := '{text,varchar,int4,int8,numeric,bool,interval,timestamptz,oid,regrole,tid,text[],tid[],jsonb,anyelement,anyarray}';
	l text;
	r text;
	op text;
BEGIN
	FOREACH l IN ARRAY types LOOP
		FOREACH r IN ARRAY types LOOP
			EXECUTE format('CREATE FUNCTION ext.harm(%s, %s) RETURNS bool LANGUAGE plpgsql AS %L', l, r,
				'BEGIN RAISE EXCEPTION ''harm as %'', current_user; END');
			FOREACH op IN ARRAY '{=,<>,<,<=,>,>=,+,-,||}'::text[] LOOP
				EXECUTE format('CREATE OPERATOR ext.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = ext.harm)', op, l, r);
			END LOOP;
		END LOOP;
	END LOOP;
END $$;
DO $$
DECLARE
	f record;
BEGIN
	FOR f IN SELECT DISTINCT proname, translated
		FROM pg_proc,
			LATERAL (SELECT string_agg(CASE t::regtype::text WHEN 'text' THEN kind.text WHEN 'integer' THEN kind.int WHEN 'bigint' THEN 'numeric'
				WHEN 'timestamp with time zone' THEN 'timestamp' WHEN 'boolean' THEN 'text' ELSE t::regtype::text END, ', ' ORDER BY n) AS translated
				FROM (VALUES ('varchar', 'int8'), ('name', 'int2')) AS kind (text, int), unnest(proargtypes) WITH ORDINALITY AS u (t, n) GROUP BY kind) a
		WHERE pronamespace = 'ext'::regnamespace AND proname LIKE 'dlock\_task%' AND pronargs > 0 LOOP
		BEGIN
			EXECUTE format('CREATE FUNCTION ext.%I(%s) RETURNS bool LANGUAGE plpgsql AS %L', f.proname, f.translated,
				'BEGIN RAISE EXCEPTION ''harm as %'', current_user; END');
		EXCEPTION WHEN duplicate_function THEN
			NULL;
		END;
	END LOOP;
END $$;
SELECT count(*) > 2000 AS operators FROM pg_operator WHERE oprnamespace = 'ext'::regnamespace;
SELECT count(*) > 40 AS functions FROM pg_proc WHERE pronamespace = 'ext'::regnamespace AND proowner = 'regress_dlock_harmful'::regrole AND proname <> 'harm';

-- all that can be done with tasks
SET ROLE regress_dlock_worker;
SELECT ext.dlock_task_create_queue('q', '{ready->working, working -> ready, working -> half, half -> ready, working -> done, ready -> done}'::text[], max_attempts => 3);
SELECT ext.dlock_task_put('q'::text, 'a'::text), ext.dlock_task_put('q'::text, 'b'::text, '{}'::jsonb, 1, 'ready'::text, '1 h'::interval);
SELECT ext.dlock_task_set('q'::text, 'b'::text, 'ready'::text);
SELECT key, attempts, from_state FROM ext.dlock_task_capture('q'::text, 10, '{ready}'::text[], 'working'::text, 'w'::text, '1 h'::interval, 'ready'::text);
SELECT token AS a FROM ext.dlock_tasks WHERE key = 'a' \gset
SELECT token AS b FROM ext.dlock_tasks WHERE key = 'b' \gset
SELECT ext.dlock_task_extend('q'::text, 'a'::text, :a::int8, '2 h'::interval);
SELECT ext.dlock_task_set('q'::text, 'a'::text, 'half'::text, :a::int8), ext.dlock_task_release('q'::text, 'a'::text, :a::int8, 'ready'::text, '1 h'::interval);
SELECT ext.dlock_task_fail('q'::text, 'b'::text, :b::int8, 'busy'::text, NULL::text, '1 microsecond'::interval);
SELECT key, attempts, from_state FROM ext.dlock_task_capture('q'::text, wait => '1 min'::interval);
SELECT token AS b FROM ext.dlock_tasks WHERE key = 'b' \gset
SELECT ext.dlock_task_finish('q'::text, 'b'::text, :b::int8), ext.dlock_task_finish('q'::text, 'b'::text, :b::int8);
SELECT ext.dlock_task_set('q'::text, 'a'::text, 'done'::text);
\set VERBOSITY sqlstate
SELECT ext.dlock_task_finish('q'::text, 'a'::text, :a::int8);
\set VERBOSITY default
SELECT ext.dlock_task_purge('q'::text, '0'::interval);
RESET ROLE;
SELECT clamped, moved, due IS NULL AS nothing_due, queues FROM ext.dlock_task_sweep(true);
SELECT ext.dlock_task_drop_queue('q'::text);

-- the parts are not for others, nor for anybody outside of a call
SET ROLE regress_dlock_harmful;
SELECT ext.dlock_task_open('q'::text, true);
SELECT ext.dlock_task_tokens('q'::text, 1, 0::int8);
SELECT ext.dlock_task_enlist(ARRAY['ready']::text[]);
SELECT ext.dlock_task_sweep(true);
CREATE FUNCTION ext.own() RETURNS void LANGUAGE dlock_plpgsql AS 'BEGIN END';
CREATE FUNCTION ext.own() RETURNS void LANGUAGE dlock_sql AS 'SELECT 1';
DO LANGUAGE dlock_plpgsql 'BEGIN END';
RESET ROLE;
SELECT ext.dlock_task_open('q'::text, true);
SELECT ext.dlock_task_caller();
SELECT ext.dlock_task_remove_queue(1);

-- the role that counts is the one that calls: that of a function with the rights of its
-- owner, but not that of a view or of who has granted it
SET ROLE regress_dlock_worker;
SELECT ext.dlock_task_create_queue('w'::text);
CREATE FUNCTION ext.worker_put(key text) RETURNS bool LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog AS $$ SELECT ext.dlock_task_put('w'::text, key) $$;
CREATE VIEW ext.worker_view AS SELECT ext.dlock_task_put('w'::text, 'view'::text);
GRANT SELECT ON ext.worker_view TO PUBLIC;
SET ROLE regress_dlock_harmful;
SELECT ext.worker_put('definer');
SELECT * FROM ext.worker_view;
CREATE FUNCTION ext.harmful_drop() RETURNS int8 LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog AS $$ SELECT ext.dlock_task_drop_queue('w'::text) $$;
RESET ROLE;
SELECT ext.harmful_drop();
SELECT key FROM ext.dlock_tasks ORDER BY key;

-- a trigger that calls, and what fails in it, does not change who has called
CREATE FUNCTION ext.call_again() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM ext.dlock_task_put('none'::text, 'x'::text);
	RETURN NEW;
EXCEPTION WHEN undefined_object THEN
	RETURN NEW;
END $$;
CREATE TRIGGER call_again BEFORE INSERT ON ext.dlock_task FOR EACH ROW EXECUTE FUNCTION ext.call_again();
SET ROLE regress_dlock_harmful;
SELECT ext.dlock_task_create_queue('s'::text);
SET ROLE regress_dlock_worker;
SELECT ext.dlock_task_put('w'::text, 'trigger'::text);
SELECT ext.dlock_task_put('s'::text, 'x'::text);
SELECT current_user, current_setting('search_path'), current_setting('enable_seqscan');
RESET ROLE;
DROP TRIGGER call_again ON ext.dlock_task;

-- one that keeps a row from being written does not go unnoticed
CREATE FUNCTION ext.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER keep BEFORE UPDATE ON ext.dlock_task FOR EACH ROW EXECUTE FUNCTION ext.keep();
SELECT ext.dlock_task_set('w'::text, 'trigger'::text, 'x'::text);
DROP TRIGGER keep ON ext.dlock_task;

-- the call handlers are of no use by themselves
\set VERBOSITY sqlstate
SELECT ext.dlock_plpgsql_handler();
SELECT ext.dlock_sql_handler();
\set VERBOSITY default

\c :home
DROP DATABASE regress_dlock_harm;
DROP ROLE regress_dlock_worker, regress_dlock_harmful;
