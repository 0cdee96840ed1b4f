-- Proves: bad input is refused with a SQLSTATE and a detail or a hint, and changes nothing.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

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
		CASE WHEN hint <> '' THEN E'\n  ' || hint ELSE '' END || CASE WHEN detail || hint = '' THEN E'\n  NO DETAIL, NO HINT' ELSE '' END;
END $$;

SELECT dlock_acquire('error-held', 'alice', '1 h') AS token \gset
CREATE TEMP TABLE before AS SELECT name, owner, token, ttl, granted_at FROM dlock_leases WHERE name LIKE 'error-%';
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
SELECT pg_temp.raised($$ SELECT dlock_renew(NULL, 1) $$);
SELECT pg_temp.raised($$ SELECT dlock_renew('', 1) $$);
SELECT pg_temp.raised($$ SELECT dlock_release(NULL, 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_release('', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_release(NULL, 1) $$);
SELECT pg_temp.raised($$ SELECT dlock_release(repeat('x', 256), 1) $$);
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
SELECT pg_temp.raised($$ SELECT dlock_renew('error-held', 1, '0') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew('error-nobody', 'alice', '0') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew_all('alice', '0') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew_all('nobody', '1 week') $$);

-- tokens
SELECT pg_temp.raised($$ SELECT dlock_renew('error-held', 0) $$);
SELECT pg_temp.raised($$ SELECT dlock_renew('error-held', -1) $$);
SELECT pg_temp.raised($$ SELECT dlock_renew('error-held', NULL::bigint) $$);
SELECT pg_temp.raised($$ SELECT dlock_release('error-held', 0) $$);
SELECT pg_temp.raised($$ SELECT dlock_release('error-held', -9223372036854775808) $$);
SELECT pg_temp.raised($$ SELECT dlock_release('error-held', NULL::bigint) $$);
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

-- words that are known, and not served yet
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', mode => 'shared') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', mode => 'CW') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', permits => 1) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', reentry => 'count') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', bind => 'session') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', wait => '1 s') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', wait => NULL) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', lock_delay => '1 s') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', min_hold => '1 s') $$);

-- words that are not known
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', mode => 'exclusiv') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', mode => '') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', mode => NULL) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', reentry => 'yes') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', reentry => NULL) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', bind => 'backend') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', bind => NULL) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', permits => 0) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', permits => -1) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', wait => '-1 s') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', lock_delay => '-1 s') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', lock_delay => NULL) $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', min_hold => '-1 s') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', min_hold => NULL) $$);

-- a read-only transaction
SET default_transaction_read_only = on;
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-held', 'bob') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew('error-held', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew('error-held', 1) $$);
SELECT pg_temp.raised($$ SELECT dlock_release('error-held', 'alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_release('error-held', 1) $$);
SELECT pg_temp.raised($$ SELECT dlock_renew_all('alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_release_all('alice') $$);
SELECT pg_temp.raised($$ SELECT dlock_force_release('error-held', 'reason') $$);
SELECT pg_temp.raised($$ SELECT dlock_bump_epoch('reason') $$);
RESET default_transaction_read_only;

-- dlock.max_ttl as it stands at the call
SET dlock.max_ttl = '1 min';
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', '1 min 1 microsecond') $$);
SELECT pg_temp.raised($$ SELECT dlock_renew('error-held', 'alice', '61 s') $$);
RESET dlock.max_ttl;

-- nothing changed
SELECT 'changed', * FROM (SELECT name, owner, token, ttl, granted_at FROM dlock_leases WHERE name LIKE 'error-%' EXCEPT ALL TABLE before) s;
SELECT 'gone', * FROM (TABLE before EXCEPT ALL SELECT name, owner, token, ttl, granted_at FROM dlock_leases) s;
SELECT count(*) FROM dlock_leases WHERE name LIKE 'error-%' OR name LIKE 'xxx%';
SELECT dlock_release('error-held', :token);
