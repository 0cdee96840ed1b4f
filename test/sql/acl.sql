-- Proves: only the role that acquired a lease, its members and superusers renew or release it; force-release and the tables are not for everybody.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'

CREATE ROLE regress_dlock_holder;
CREATE ROLE regress_dlock_member IN ROLE regress_dlock_holder;
CREATE ROLE regress_dlock_stranger;

SET ROLE regress_dlock_holder;
SELECT dlock_acquire('acl-1', 'acl-alice', '1 h') AS token \gset
SELECT role, owner FROM dlock_leases WHERE name = 'acl-1';

-- a stranger may not, though it knows the owner or the token
SET ROLE regress_dlock_stranger;
SELECT dlock_acquire('acl-1', 'acl-alice', '1 h') AS refused;
SELECT dlock_renew('acl-1', 'acl-alice');
SELECT dlock_release('acl-1', 'acl-alice');
\set VERBOSITY sqlstate
SELECT dlock_renew_token('acl-1', :token, '1 ms');
SELECT dlock_release_token('acl-1', :token);
\set VERBOSITY default
SELECT dlock_check('acl-1', :token);

-- what a stranger asks for by an owner's name goes past leases that are not its own
SELECT dlock_acquire('acl-2', 'acl-alice', '1 h') > 0 AS granted;
SELECT dlock_renew_all('acl-alice', '2 h');
SELECT name, ttl FROM dlock_leases WHERE name LIKE 'acl-%' ORDER BY name;
SELECT dlock_release_all('acl-alice');
SELECT name FROM dlock_leases WHERE name LIKE 'acl-%' ORDER BY name;

-- a stranger may have what has expired or is free
SET ROLE regress_dlock_holder;
SELECT dlock_acquire('acl-3', 'acl-alice', '1 ms') AS old \gset
SELECT pg_sleep(0.002);
SET ROLE regress_dlock_stranger;
SELECT dlock_renew('acl-3', 'acl-alice') AS renewed, dlock_release_token('acl-3', :old) AS released;
SELECT dlock_acquire('acl-3', 'acl-alice', '1 h') > :old AS granted;
SET ROLE regress_dlock_holder;
\set VERBOSITY sqlstate
SELECT dlock_release('acl-3', 'acl-alice');
\set VERBOSITY default
SELECT dlock_release_token('acl-3', :old) AS old_token;
SET ROLE regress_dlock_stranger;
SELECT dlock_release('acl-3', 'acl-alice');

-- a member may, and so may a superuser
SET ROLE regress_dlock_member;
SELECT dlock_renew('acl-1', 'acl-alice'), dlock_renew_token('acl-1', :token), dlock_renew_all('acl-alice');
RESET ROLE;
SELECT dlock_renew('acl-1', 'acl-alice'), dlock_renew_token('acl-1', :token), dlock_renew_all('acl-alice');
SET ROLE regress_dlock_member;
SELECT dlock_release_token('acl-1', :token);

-- not the other way round: a member's lease is not its group's
SELECT dlock_acquire('acl-4', 'acl-alice', '1 h') > 0 AS granted;
SET ROLE regress_dlock_holder;
\set VERBOSITY sqlstate
SELECT dlock_release('acl-4', 'acl-alice');
\set VERBOSITY default
SELECT dlock_release_all('acl-alice');
RESET ROLE;
SELECT dlock_release('acl-4', 'acl-alice');

-- the role that counts is the current one: a SECURITY DEFINER function lends its owner's
CREATE FUNCTION acl_acquire(name text) RETURNS bigint LANGUAGE sql SECURITY DEFINER
	AS $$ SELECT dlock_acquire(name, 'definer', '1 h') $$;
CREATE FUNCTION acl_release(name text) RETURNS boolean LANGUAGE sql SECURITY DEFINER
	AS $$ SELECT dlock_release(name, 'definer') $$;
ALTER FUNCTION acl_acquire(text) OWNER TO regress_dlock_holder;
ALTER FUNCTION acl_release(text) OWNER TO regress_dlock_holder;
SET ROLE regress_dlock_stranger;
SELECT acl_acquire('acl-5') > 0 AS granted;
SELECT role FROM dlock_leases WHERE name = 'acl-5';
\set VERBOSITY sqlstate
SELECT dlock_release('acl-5', 'definer');
\set VERBOSITY default
SELECT acl_release('acl-5');
RESET ROLE;
DROP FUNCTION acl_acquire(text), acl_release(text);

-- leases of every kind are the role's that acquired them
SET ROLE regress_dlock_holder;
SELECT dlock_acquire_path('acl-path/x', 'acl-alice', '1 h') AS path \gset
SELECT dlock_acquire('acl-shared', 'acl-alice', '1 h', mode => 'shared') AS shared \gset
SELECT dlock_acquire('acl-permit', 'acl-alice', '1 h', permits => 2, bind => 'session') AS permit \gset
SELECT cardinality(dlock_acquire_all('{acl-all-1,acl-all-2}', 'acl-alice', '1 h')) AS n;
SET ROLE regress_dlock_stranger;
\set VERBOSITY sqlstate
SELECT dlock_release_token('acl-path/x', :path);
SELECT dlock_release('acl-shared', 'acl-alice');
SELECT dlock_renew_token('acl-permit', :permit, '1 ms');
SELECT dlock_convert('acl-shared', :shared, 'NL');
SELECT dlock_acquire('acl-shared', 'acl-alice', '2 h', mode => 'shared', reentry => 'count') <> :shared AS its_own;
SELECT dlock_release('acl-all-1', 'acl-alice');
\set VERBOSITY default
SELECT dlock_release_all('acl-alice'), dlock_renew_all('acl-alice', '1 ms');
SELECT dlock_check('acl-path/x', :path), dlock_check('acl-shared', :shared), dlock_check('acl-permit', :permit);
SET ROLE regress_dlock_member;
SELECT dlock_convert('acl-shared', :shared, 'NL') = :shared AS converted, dlock_release_token('acl-shared', :shared), dlock_release('acl-path/x', 'acl-alice');
SELECT dlock_release_all('acl-alice');
SELECT name FROM dlock_leases WHERE name LIKE 'acl-%' ORDER BY name;
RESET ROLE;

-- force-release and the epoch: nobody but a superuser, until granted
SELECT dlock_acquire('acl-6', 'acl-alice', '1 h') > 0 AS granted;
SET ROLE regress_dlock_stranger;
\set VERBOSITY sqlstate
SELECT dlock_force_release('acl-6', 'because');
SELECT dlock_bump_epoch('because');
RESET ROLE;
GRANT EXECUTE ON FUNCTION dlock_force_release(text, text) TO regress_dlock_stranger;
SET ROLE regress_dlock_stranger;
SELECT dlock_release('acl-6', 'acl-alice');
\set VERBOSITY default
SELECT dlock_force_release('acl-6', 'because');
SELECT count(*) FROM dlock_leases WHERE name = 'acl-6';
RESET ROLE;
REVOKE EXECUTE ON FUNCTION dlock_force_release(text, text) FROM regress_dlock_stranger;

-- the store and the sequence cannot be touched or read
SET ROLE regress_dlock_stranger;
\set VERBOSITY sqlstate
SELECT * FROM _dlock.store;
TRUNCATE _dlock.store;
DELETE FROM _dlock.store;
BEGIN;
LOCK TABLE _dlock.store IN ACCESS EXCLUSIVE MODE;
ROLLBACK;
BEGIN;
LOCK TABLE _dlock.store IN ACCESS SHARE MODE;
ROLLBACK;
DO $$ BEGIN ALTER TABLE _dlock.store SET ACCESS METHOD heap; EXCEPTION WHEN insufficient_privilege OR feature_not_supported THEN NULL; END $$;
VACUUM FULL _dlock.store;
SELECT nextval('_dlock.token_seq');
SELECT setval('_dlock.token_seq', 1);
SELECT last_value FROM _dlock.token_seq;
ALTER SEQUENCE _dlock.token_seq RESTART;
SET dlock.max_ttl = '2 d';
DROP EXTENSION dlock;
\set VERBOSITY default
RESET ROLE;

-- all that PUBLIC may do; what is not listed is not granted
SELECT p.oid::regprocedure FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
 WHERE d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'dlock') AND d.deptype = 'e'
   AND has_function_privilege('regress_dlock_stranger', p.oid, 'EXECUTE') ORDER BY p.oid::regprocedure::text COLLATE "C";
SELECT c.oid::regclass, c.relkind, has_table_privilege('regress_dlock_stranger', c.oid, 'SELECT') AS "select",
       has_table_privilege('regress_dlock_stranger', c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER') AS other
  FROM pg_class c JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
 WHERE d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'dlock') AND d.deptype = 'e'
 ORDER BY c.oid::regclass::text COLLATE "C";

-- the lease of a role that is gone: a superuser can still end it
SET ROLE regress_dlock_stranger;
SELECT dlock_acquire('acl-7', 'acl-alice', '1 h') > 0 AS granted;
RESET ROLE;
DROP ROLE regress_dlock_stranger;
SET ROLE regress_dlock_holder;
SELECT dlock_release('acl-7', 'acl-alice');
SELECT dlock_release_all('acl-alice');
RESET ROLE;
SELECT dlock_release('acl-7', 'acl-alice');
DROP ROLE regress_dlock_member, regress_dlock_holder;
