-- Proves: the store cannot be changed, rewritten or indexed, and maintenance loses no lease; with another access method it is not used.
\set home :DBNAME
SET client_min_messages = warning;
DROP DATABASE IF EXISTS regress_dlock_ddl;
CREATE DATABASE regress_dlock_ddl;
\c regress_dlock_ddl
SET client_min_messages = warning;
\pset null '(null)'

-- in a schema of its own, which need not be in the search path
CREATE SCHEMA "Own schema";
CREATE EXTENSION dlock SCHEMA "Own schema";
SELECT "Own schema".dlock_acquire('ddl-own', 'alice', '1 h') > 0 AS granted;
SELECT name, owner FROM "Own schema".dlock_leases;

ALTER SCHEMA "Own schema" RENAME TO "Other schema";
SELECT "Other schema".dlock_acquire('ddl-own', 'bob', '1 h') AS refused;
SELECT leader, since IS NOT NULL AS since FROM "Other schema".dlock_leader('ddl-own');
SELECT p.proname AS knows_the_old_name
  FROM pg_depend d JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
 WHERE d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'dlock')
   AND (p.prosrc || coalesce(p.proconfig::text, '')) LIKE '%Own schema%';
ALTER SCHEMA "Other schema" RENAME TO "Own schema";
SELECT "Own schema".dlock_release_all('alice');

-- its own schema is closed, and counts under its name alone; another of that name does not
SELECT nspowner = extowner AS of_the_owner, (SELECT string_agg(privilege_type, ' ') FROM aclexplode(nspacl) WHERE grantee <> nspowner) AS others
  FROM pg_namespace, pg_extension WHERE nspname = '_dlock' AND extname = 'dlock';
ALTER SCHEMA _dlock RENAME TO ddl_other;
CREATE SCHEMA _dlock;
CREATE TABLE _dlock.store () USING dlock_store;
CREATE SEQUENCE _dlock.token_seq;
\c
SET client_min_messages = warning;
\set VERBOSITY sqlstate
SELECT "Own schema".dlock_acquire('ddl-own', 'alice', '1 h');
DROP SCHEMA _dlock CASCADE;
ALTER SCHEMA ddl_other RENAME TO _dlock;
\set VERBOSITY default
SELECT "Own schema".dlock_acquire('ddl-own', 'alice', '1 h') > 0 AS granted, "Own schema".dlock_release_all('alice');

-- the schema is chosen once
\set VERBOSITY sqlstate
ALTER EXTENSION dlock SET SCHEMA public;
\set VERBOSITY default
DROP EXTENSION dlock;
DROP SCHEMA "Own schema";

-- nor is the extension created where a schema has that name
CREATE SCHEMA _dlock;
\set VERBOSITY sqlstate
CREATE EXTENSION dlock;
\set VERBOSITY default
SELECT count(*) AS extensions FROM pg_extension WHERE extname = 'dlock';
DROP SCHEMA _dlock;
CREATE EXTENSION dlock;
SELECT dlock_acquire('ddl-1', 'alice', '1 h', payload => '{"a": 1}') AS t1, dlock_acquire('ddl-2', repeat('o', 255), '1 h') AS t2 \gset

-- Are the leases as they were, and can they be used?
CREATE PROCEDURE still_held(t1 bigint, t2 bigint) LANGUAGE plpgsql AS $$
BEGIN
	IF NOT (dlock_check('ddl-1', t1) AND dlock_check('ddl-2', t2)) THEN
		RAISE WARNING 'lost';
	END IF;
	IF dlock_acquire('ddl-1', 'mallory', '1 h') IS NOT NULL THEN
		RAISE WARNING 'granted twice';
	END IF;
	IF NOT (dlock_renew_token('ddl-1', t1, '2 h') AND dlock_renew('ddl-1', 'alice', '1 h')) THEN
		RAISE WARNING 'not renewed';
	END IF;
	IF dlock_acquire('ddl-3', 'alice', '1 h') IS NULL OR NOT dlock_release('ddl-3', 'alice') THEN
		RAISE WARNING 'not acquired and released';
	END IF;
	IF (SELECT array_agg(name ORDER BY name) FROM dlock_leases) <> '{ddl-1,ddl-2}' THEN
		RAISE WARNING 'others held';
	END IF;
END $$;
CALL still_held(:t1, :t2);

-- DML, and what else the table access method has no answer to
INSERT INTO _dlock.store DEFAULT VALUES;
TRUNCATE _dlock.store;
CREATE INDEX ON _dlock.store ((1));
BEGIN;
ALTER TABLE _dlock.store SET ACCESS METHOD heap;
SELECT dlock_check('ddl-1', :t1);
ROLLBACK;
\set VERBOSITY sqlstate
COPY _dlock.store FROM PROGRAM 'echo';
MERGE INTO _dlock.store USING (VALUES (1)) v ON false WHEN NOT MATCHED THEN INSERT DEFAULT VALUES;
ALTER TABLE _dlock.store SET UNLOGGED;
ALTER TABLE _dlock.store ADD COLUMN a serial;
TRUNCATE _dlock.store RESTART IDENTITY CASCADE;
DROP TABLE _dlock.store;
DROP SEQUENCE _dlock.token_seq;
DROP ACCESS METHOD dlock_store CASCADE;
DROP FUNCTION _dlock.store_handler(internal) CASCADE;
DROP SCHEMA _dlock CASCADE;

-- who waits would not learn of a drop that another session commits
BEGIN;
DROP EXTENSION dlock CASCADE;
PREPARE TRANSACTION 'ddl';
ROLLBACK PREPARED 'ddl';
-- nor if a later drop is rolled back
BEGIN;
DROP EXTENSION dlock CASCADE;
CREATE EXTENSION dlock;
SAVEPOINT later;
DROP EXTENSION dlock CASCADE;
ROLLBACK TO later;
PREPARE TRANSACTION 'ddl';
ROLLBACK PREPARED 'ddl';
\set VERBOSITY default
CALL still_held(:t1, :t2);

-- nothing is left behind by those attempts
SELECT count(*) AS indexes FROM pg_index WHERE indrelid = '_dlock.store'::regclass;
SELECT relpersistence, amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE c.oid = '_dlock.store'::regclass;
SELECT count(*) AS columns FROM pg_attribute WHERE attrelid = '_dlock.store'::regclass AND attnum > 0 AND NOT attisdropped;

-- it scans as empty
SELECT count(*) FROM _dlock.store;
SELECT FROM _dlock.store FOR UPDATE;
SELECT FROM _dlock.store TABLESAMPLE SYSTEM (100);
SELECT FROM _dlock.store WHERE ctid = '(1,1)';
SELECT FROM _dlock.store WHERE ctid > '(0,1)';
SELECT count(*) FROM generate_series(1, 3) LEFT JOIN _dlock.store ON true;
DELETE FROM _dlock.store;
COPY _dlock.store TO stdout;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SELECT count(*) FROM _dlock.store;
SET enable_parallel_append = off;
CREATE TABLE ddl_rows AS SELECT i FROM generate_series(1, 10000) i;
SELECT count(*) FROM (SELECT 1 FROM ddl_rows UNION ALL SELECT 1 FROM _dlock.store) all_rows;
DROP TABLE ddl_rows;
SET enable_seqscan = off;
SELECT FROM _dlock.store WHERE ctid = '(1,1)';
SELECT FROM _dlock.store WHERE ctid > '(0,1)';
RESET enable_seqscan;
\set VERBOSITY sqlstate
SELECT currtid2('_dlock.store', '(1,1)');
\set VERBOSITY default
COPY _dlock.store FROM PROGRAM 'true';
CALL still_held(:t1, :t2);

-- maintenance
VACUUM _dlock.store;
VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) _dlock.store;
ANALYZE _dlock.store;
VACUUM (FULL, ANALYZE) _dlock.store;
CALL still_held(:t1, :t2);
VACUUM FULL _dlock.store, pg_class;
CALL still_held(:t1, :t2);
VACUUM;
ANALYZE;
REINDEX TABLE _dlock.store;
REINDEX SCHEMA _dlock;
CALL still_held(:t1, :t2);
SELECT age(relfrozenxid) < 1000000 AS young, mxid_age(relminmxid) < 1000000 AS multi_young FROM pg_class WHERE oid = '_dlock.store'::regclass;

-- moved to another tablespace, and back
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE regress_dlock_space LOCATION '';
ALTER TABLE _dlock.store SET TABLESPACE regress_dlock_space;
CALL still_held(:t1, :t2);
VACUUM FULL _dlock.store;
CALL still_held(:t1, :t2);
ALTER TABLE _dlock.store SET TABLESPACE pg_default;
CALL still_held(:t1, :t2);
BEGIN;
ALTER TABLE _dlock.store SET TABLESPACE regress_dlock_space;
ROLLBACK;
CALL still_held(:t1, :t2);
DROP TABLESPACE regress_dlock_space;

-- under another name it is no store; under its own it is again
ALTER TABLE _dlock.store RENAME TO other;
\set VERBOSITY sqlstate
SELECT dlock_acquire('ddl-3', 'alice', '1 h');
\set VERBOSITY default
ALTER TABLE _dlock.other RENAME TO store;
CALL still_held(:t1, :t2);

-- dlock writes these tables directly, so they are heaps, whatever the default is
CREATE ACCESS METHOD ddl_heap TYPE TABLE HANDLER heap_tableam_handler;
BEGIN;
DROP EXTENSION dlock;
SET LOCAL default_table_access_method = ddl_heap;
CREATE EXTENSION dlock;
SELECT relname, amname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relnamespace = '_dlock'::regnamespace AND relkind = 'r' AND relname !~ '^task' ORDER BY relname COLLATE "C";
ROLLBACK;
DROP ACCESS METHOD ddl_heap;

-- not in the transaction that creates or rewrites the store, since a rollback would take the lease along
DROP EXTENSION dlock;
BEGIN;
CREATE EXTENSION dlock;
SELECT dlock_acquire('ddl-4', 'alice', '1 h');
ROLLBACK;
BEGIN;
CREATE EXTENSION dlock;
SAVEPOINT s;
\set VERBOSITY sqlstate
SELECT dlock_renew('ddl-4', 'alice');
ROLLBACK TO s;
SELECT dlock_release_all('alice');
ROLLBACK TO s;
SELECT count(*) FROM dlock_leases;
ROLLBACK TO s;
\set VERBOSITY default
COMMIT;
SELECT count(*) FROM dlock_leases;
SELECT dlock_acquire('ddl-4', 'alice', '1 h') AS token \gset

-- a drop that is rolled back
BEGIN;
DROP EXTENSION dlock;
ROLLBACK;
SELECT dlock_check('ddl-4', :token), dlock_release_token('ddl-4', :token);

-- dropped and created: nothing of the past
SELECT dlock_acquire('ddl-5', 'alice', '1 h') > 0 AS granted;
DROP EXTENSION dlock;
CREATE EXTENSION dlock;
SELECT count(*) FROM dlock_leases;
SELECT dlock_acquire('ddl-5', 'bob', '1 h') > 0 AS granted;
SELECT name, owner FROM dlock_leases;

-- other tables cannot use the access method to any end
\set VERBOSITY sqlstate
CREATE TABLE ddl_t (a int) USING dlock_store;
INSERT INTO ddl_t VALUES (1);
CREATE INDEX ON ddl_t (a);
ALTER TABLE ddl_t SET UNLOGGED;
CREATE UNLOGGED TABLE ddl_t_unlogged (a int) USING dlock_store;
CREATE TEMP TABLE ddl_t_temp (a int) USING dlock_store;
BEGIN;
CREATE TABLE ddl_t_new (a int) USING dlock_store;
TRUNCATE ddl_t_new;
ROLLBACK;
CREATE TABLE ddl_u USING dlock_store AS SELECT 1 AS a;
CREATE MATERIALIZED VIEW ddl_v USING dlock_store AS SELECT 1 AS a;
CREATE TABLE ddl_w (a int);
INSERT INTO ddl_w VALUES (1);
ALTER TABLE ddl_w SET ACCESS METHOD dlock_store;
\set VERBOSITY default
SELECT * FROM ddl_w;
DROP TABLE ddl_w;

\c :home
DROP DATABASE regress_dlock_ddl;
