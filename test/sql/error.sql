-- Proves: bad input is refused with a SQLSTATE, and changes nothing.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

-- What must not wait would be seen to.
SET statement_timeout = '60 s';
SET deadlock_timeout = '1 h';
-- Run a query and say what it raised.
CREATE FUNCTION pg_temp.raised(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	message text;
	detail text;
	hint text;
BEGIN
	EXECUTE query;
	RETURN 'NO ERROR';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN sqlstate || ': ' || message || CASE WHEN detail <> '' THEN E'\n  ' || detail ELSE '' END ||
		CASE WHEN hint <> '' THEN E'\n  ' || hint ELSE '' END;
END $$;

SELECT dlock_acquire('error-held', 'alice', '1 h') AS token \gset
SELECT dlock_acquire('error-shared', 'alice', '1 h', mode => 'shared') AS shared \gset
SELECT dlock_acquire('error-permits', 'alice', '1 h', permits => 3) AS permit \gset
SELECT dlock_acquire_path('error-path/x', 'alice', '1 h') AS path \gset
CREATE TEMP TABLE before AS SELECT name, owner, token, mode, permits, holds, state, ttl, granted_at FROM dlock_leases WHERE name LIKE 'error-%';
\pset format unaligned
\pset tuples_only on

-- names
SELECT pg_temp.raised($$ SELECT dlock_acquire(NULL, 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire(repeat('error-', 50), 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire(repeat('x', 256), 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire(repeat('x', 100000000), 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew(NULL, 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew('', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew(repeat('x', 256), 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew_token(NULL, 1) $$);
SELECT pg_temp.raised($$ SELECT dlock_renew_token('', 1) $$);
SELECT pg_temp.raised($$ SELECT dlock_release(NULL, 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_release('', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_release_token(NULL, 1) $$);
SELECT pg_temp.raised($$ SELECT dlock_release_token(repeat('x', 256), 1) $$);
SELECT pg_temp.raised($$ SELECT dlock_check(NULL, 1) $$);
SELECT pg_temp.raised($$ SELECT dlock_check('', 1) $$);
SELECT pg_temp.raised($$ SELECT dlock_force_release(NULL, 'reason') $$);
SELECT pg_temp.raised($$ SELECT dlock_force_release('', 'reason') $$);

-- owners
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', '') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', repeat('x', 256)) $$);
SELECT pg_temp.raised($$ SELECT dlock_renew('error-held', '') $$);
SELECT pg_temp.raised($$ SELECT dlock_release('error-held', repeat('x', 256)) $$);
SELECT pg_temp.raised($$ SELECT dlock_renew_all('') $$);
SELECT pg_temp.raised($$ SELECT dlock_release_all(repeat('x', 256)) $$);

-- ttl
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', '0') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', '-1 s') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', '1 day -24 h') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', '1 day 1 microsecond') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', '1 month') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', '178000000 years') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', '2000000000 days') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', '2562047788 h') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', '-2562047788 h') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew('error-held', 'alice', '0') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew('error-held', 'alice', '-1 h') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew('error-held', 'alice', '25 h') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew_token('error-held', 1, '0') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew('error-nobody', 'alice', '0') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew_all('alice', '0') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew_all('nobody', '1 week') $$);

-- tokens
SELECT pg_temp.raised($$ SELECT dlock_renew_token('error-held', 0) $$);
SELECT pg_temp.raised($$ SELECT dlock_renew_token('error-held', -1) $$);
SELECT pg_temp.raised($$ SELECT dlock_renew_token('error-held', NULL::bigint) $$);
SELECT pg_temp.raised($$ SELECT dlock_release_token('error-held', 0) $$);
SELECT pg_temp.raised($$ SELECT dlock_release_token('error-held', -9223372036854775808) $$);
SELECT pg_temp.raised($$ SELECT dlock_release_token('error-held', NULL::bigint) $$);
SELECT pg_temp.raised($$ SELECT dlock_check('error-held', 0) $$);
SELECT pg_temp.raised($$ SELECT dlock_check('error-held', -1) $$);
SELECT pg_temp.raised($$ SELECT dlock_check('error-held', NULL) $$);

-- payload
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', payload => to_jsonb(repeat('x', 1016))) $$) LIKE '%NO ERROR%', dlock_release('error-1', 'alice');
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', payload => to_jsonb(repeat('x', 1017))) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', payload => to_jsonb(repeat('x', 10000000))) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', payload => (SELECT jsonb_agg(i) FROM generate_series(1, 200) i)) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', payload => '{not json') $$) LIKE '22P02: %';
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', payload => '') $$) LIKE '22P02: %';

-- reasons
SELECT pg_temp.raised($$ SELECT dlock_force_release('error-held', '') $$);
SELECT pg_temp.raised($$ SELECT dlock_force_release('error-held', NULL) $$);
SELECT pg_temp.raised($$ SELECT dlock_bump_epoch('') $$);
SELECT pg_temp.raised($$ SELECT dlock_bump_epoch(NULL) $$);

-- words that are not known
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', mode => 'exclusiv') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', mode => '') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', mode => 'ex') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', mode => 'Shared') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', mode => 'permit') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', mode => 'EX ') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', mode => NULL) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', reentry => 'yes') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', reentry => 'Count') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', reentry => NULL) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', bind => 'backend') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', bind => '') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', bind => NULL) $$);

-- permits
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', permits => 0) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', permits => -1) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', permits => -2147483648) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', mode => 'shared', permits => 3) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', mode => 'NL', permits => 3) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-held', 'bob', permits => 3) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-permits', 'bob', permits => 4) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-permits', 'bob') $$);

-- wait
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', wait => '-1 s') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', wait => '-1 microsecond') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', wait => '1 h -1 day') $$);

-- lock_delay and min_hold
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', lock_delay => '-1 s') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', lock_delay => NULL) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', lock_delay => '1 day 1 ms') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', lock_delay => '178000000 years') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', min_hold => '-1 s') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', min_hold => NULL) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', '1 s', min_hold => '1001 ms') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', '1 day', min_hold => '1 day 1 ms') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', min_hold => '1 day 1 ms', bind => 'session') $$);

-- a mode that the owner's own does not cover; waiting for oneself
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-shared', 'alice', reentry => 'count') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-shared', 'alice', reentry => 'return') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-held', 'alice', wait => '1 h') $$);

-- two-phase commit has no savepoint to run in, so this stands alone
BEGIN;
SELECT dlock_acquire('error-1', 'alice', bind => 'transaction') > 0 AS granted;
PREPARE TRANSACTION 'error';

-- conversions
SELECT pg_temp.raised($$ SELECT dlock_convert(NULL, 1, 'shared') $$);
SELECT pg_temp.raised($$ SELECT dlock_convert('', 1, 'shared') $$);
SELECT pg_temp.raised($$ SELECT dlock_convert(repeat('x', 256), 1, 'shared') $$);
SELECT pg_temp.raised($$ SELECT dlock_convert('error-held', NULL, 'shared') $$);
SELECT pg_temp.raised($$ SELECT dlock_convert('error-held', 0, 'shared') $$);
SELECT pg_temp.raised($$ SELECT dlock_convert('error-held', -1, 'shared') $$);
SELECT pg_temp.raised(format($$ SELECT dlock_convert('error-held', %s, NULL) $$, :token));
SELECT pg_temp.raised(format($$ SELECT dlock_convert('error-held', %s, 'share') $$, :token));
SELECT pg_temp.raised(format($$ SELECT dlock_convert('error-held', %s, 'pr') $$, :token));
SELECT pg_temp.raised(format($$ SELECT dlock_convert('error-held', %s, 'shared', '-1 s') $$, :token));
SELECT pg_temp.raised($$ SELECT dlock_convert('error-held', 9223372036854775807, 'shared') $$);
SELECT pg_temp.raised($$ SELECT dlock_convert('error-nobody', 9223372036854775807, 'shared') $$);
SELECT pg_temp.raised(format($$ SELECT dlock_convert('error-permits', %s, 'shared') $$, :permit));
SELECT pg_temp.raised(format($$ SELECT dlock_convert('error-path/x', %s, 'shared') $$, :path));
SELECT pg_temp.raised(format($$ SELECT dlock_convert('error-path', %s, 'shared') $$, :path)) LIKE 'LK002: %';

-- several names
SELECT pg_temp.raised($$ SELECT dlock_acquire_all(NULL, 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_all('{}', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_all('{error-1,NULL}', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_all('{error-1,""}', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_all('{error-1,error-2,error-1}', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_all(ARRAY['error-1', repeat('x', 256)], 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_all((SELECT array_agg('error-' || i) FROM generate_series(1, 1001) i), 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_all('{error-1}', '') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_all('{error-1}', repeat('x', 256)) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_all('{error-1}', 'alice', '0') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_all('{error-1}', 'alice', '25 h') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_all('{error-1}', 'alice', wait => '-1 s') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_all('{error-1}', 'alice', mode => 'none') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_all('{error-1}', 'alice', mode => NULL) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_all('{error-1,error-permits}', 'bob') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_all('{error-1,error-held}', 'alice', wait => '1 h') $$);

-- paths
SELECT pg_temp.raised($$ SELECT dlock_acquire_path(NULL, 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('/', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('/error-1', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1/', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1//error-2', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1' || repeat('/x', 32), 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1/' || repeat('x', 248), 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path(repeat('x/', 100000) || 'x', 'alice') $$) LIKE '22023: %';
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1/x', '') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1/x', 'alice', '0') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1/x', 'alice', wait => '-1 s') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1/x', 'alice', mode => 'IX') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1/x', 'alice', mode => NULL) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1/x', 'alice', reentry => 'again') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1/x', 'alice', reentry => NULL) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1/x', 'alice', bind => 'statement') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1/x', 'alice', bind => NULL) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1/x', 'alice', lock_delay => '-1 s') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1/x', 'alice', lock_delay => NULL) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1/x', 'alice', min_hold => '-1 s') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1/x', 'alice', min_hold => NULL) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1/x', 'alice', '1 s', min_hold => '2 s') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1/x', 'alice', payload => to_jsonb(repeat('x', 1017))) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-permits/x', 'bob') $$);

-- watching
SELECT pg_temp.raised($$ SELECT * FROM dlock_watch(NULL, NULL, '0') $$);
SELECT pg_temp.raised($$ SELECT * FROM dlock_watch('', NULL, '0') $$);
SELECT pg_temp.raised($$ SELECT * FROM dlock_watch(repeat('x', 256), NULL, '0') $$);
SELECT pg_temp.raised($$ SELECT * FROM dlock_watch('error-held', NULL, '-1 s') $$);

-- a read-only transaction
SET default_transaction_read_only = on;
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-held', 'bob') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew('error-held', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew_token('error-held', 1) $$);
SELECT pg_temp.raised($$ SELECT dlock_release('error-held', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_release_token('error-held', 1) $$);
SELECT pg_temp.raised($$ SELECT dlock_renew_all('alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_release_all('alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_force_release('error-held', 'reason') $$);
SELECT pg_temp.raised($$ SELECT dlock_bump_epoch('reason') $$);
SELECT pg_temp.raised(format($$ SELECT dlock_convert('error-held', %s, 'shared') $$, :token));
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', bind => 'transaction') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_all('{error-1}', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1/x', 'alice') $$);
RESET default_transaction_read_only;

-- dlock.max_ttl as it stands at the call
SET dlock.max_ttl = '1 min';
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', '1 min 1 microsecond') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew('error-held', 'alice', '61 s') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', '1 min', lock_delay => '61 s') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', bind => 'session', min_hold => '61 s') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_all('{error-1}', 'alice', '61 s') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire_path('error-1/x', 'alice', '61 s') $$);
RESET dlock.max_ttl;

-- nothing changed
SELECT 'changed', * FROM (SELECT name, owner, token, mode, permits, holds, state, ttl, granted_at FROM dlock_leases WHERE name LIKE 'error-%' EXCEPT ALL TABLE before) s;
SELECT 'gone', * FROM (TABLE before EXCEPT ALL SELECT name, owner, token, mode, permits, holds, state, ttl, granted_at FROM dlock_leases) s;
SELECT count(*) FROM dlock_leases WHERE name LIKE 'error-%' OR name LIKE 'xxx%';
SELECT count(*) FROM dlock_waiters WHERE name LIKE 'error-%';
SELECT dlock_release_token('error-held', :token), dlock_release_token('error-shared', :shared), dlock_release_token('error-permits', :permit), dlock_release_token('error-path/x', :path);
