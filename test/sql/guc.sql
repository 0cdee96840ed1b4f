-- Proves: the settings have the ranges, units, defaults and privileges that the reference states, and no others exist.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
SELECT dlock_acquire('guc-load', 'alice', '1 ms') > 0 AS loaded;

SELECT name, boot_val, unit, min_val, max_val, context, vartype FROM pg_settings WHERE name LIKE 'dlock.%' ORDER BY name COLLATE "C";

-- out of range
\set VERBOSITY sqlstate
SET dlock.default_ttl = 0;
SET dlock.default_ttl = '-1s';
SET dlock.max_ttl = 0;
\set VERBOSITY default

-- in their units
SET dlock.default_ttl = '90s';
SHOW dlock.default_ttl;
SET dlock.default_ttl = 1;
SHOW dlock.default_ttl;
RESET dlock.default_ttl;

-- the default ttl obeys the longest
SET dlock.default_ttl = '2 h';
SET dlock.max_ttl = '1 h';
SELECT dlock_acquire('guc-1', 'alice') > 0 AS granted;
SELECT ttl FROM dlock_leases WHERE name = 'guc-1';
RESET dlock.max_ttl;
RESET dlock.default_ttl;

-- a lease outlives the limit that it was granted under, and keeps its ttl
SELECT dlock_acquire('guc-2', 'alice', '20 h') > 0 AS granted;
SET dlock.max_ttl = '1 h';
SELECT dlock_renew('guc-2', 'alice');
SELECT ttl FROM dlock_leases WHERE name = 'guc-2';
RESET dlock.max_ttl;
SET dlock.max_ttl = '30 d';
SELECT dlock_renew('guc-2', 'alice', '29 d');
RESET dlock.max_ttl;
SELECT ttl FROM dlock_leases WHERE name = 'guc-2';

-- for whom and when
\set VERBOSITY sqlstate
SET dlock.max_memory = '1GB';
SET dlock.max_clock_skew = '1s';
CREATE ROLE regress_dlock_guc;
SET ROLE regress_dlock_guc;
SET dlock.max_ttl = '2 d';
SET dlock.grants = off;
SET dlock.default_ttl = '2 s';
SHOW dlock.default_ttl;
RESET dlock.default_ttl;

-- the prefix is taken
SET dlock.nonsense = 1;
RESET ROLE;
DROP ROLE regress_dlock_guc;
\set VERBOSITY default

-- a server that grants nothing answers nothing about leases, and shows what it has
SELECT dlock_acquire('guc-4', 'alice') AS token \gset
SET dlock.grants = off;
SELECT dlock_acquire('guc-5', 'alice');
\set VERBOSITY sqlstate
SELECT dlock_acquire('guc-4', 'alice', reentry => 'return');
SELECT dlock_acquire_all('{guc-5}', 'alice');
SELECT dlock_acquire_each('{guc-5}', '{alice}');
SELECT dlock_acquire_path('guc/5', 'alice');
SELECT dlock_take('alice', '0', '0');
SELECT dlock_convert('guc-4', :token, 'shared');
SELECT dlock_check('guc-4', :token);
SELECT dlock_watch('guc-4', NULL, '0');
SELECT dlock_fence('guc-4', :token, live => true);
SELECT dlock_renew('guc-4', 'alice');
SELECT dlock_renew_token('guc-4', :token);
SELECT dlock_renew_each('{guc-4}', ARRAY[:token]);
SELECT dlock_renew_all('alice');
SELECT dlock_release('guc-4', 'alice');
SELECT dlock_release_token('guc-4', :token);
SELECT dlock_release_each('{guc-4}', ARRAY[:token]);
SELECT dlock_release_all('alice');
SELECT dlock_once('guc-6', '1 h');
\set VERBOSITY default
SELECT name, state FROM dlock_leases WHERE name = 'guc-4';
SELECT dlock_fence('guc-4', :token);
RESET dlock.grants;
SELECT dlock_release_token('guc-4', :token);

-- a setting of a role, of a function
CREATE FUNCTION guc_acquire() RETURNS bigint LANGUAGE sql SET dlock.default_ttl = '13 min'
	AS $$ SELECT dlock_acquire('guc-3', 'alice') $$;
SELECT guc_acquire() > 0 AS granted;
SELECT ttl FROM dlock_leases WHERE name = 'guc-3';
DROP FUNCTION guc_acquire();

SELECT dlock_release('guc-1', 'alice'), dlock_release('guc-2', 'alice'), dlock_release('guc-3', 'alice');
