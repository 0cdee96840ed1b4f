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
-- Make calls, a line each or with a semicolon between, with each of the arguments in
-- the place of the question mark; tell which raised what.
CREATE FUNCTION pg_temp.errors(calls text, VARIADIC arguments text[] = '{""}') RETURNS SETOF text LANGUAGE sql AS $$
	SELECT string_agg(trim(call), ' ; ' ORDER BY i, j) || E':\n' || error
	  FROM (SELECT i, j, replace(call, '?', argument) AS call, pg_temp.raised('SELECT ' || replace(call, '?', argument)) AS error
	          FROM regexp_split_to_table(trim(calls, E'\n'), E'[\n;]') WITH ORDINALITY c(call, i), unnest(arguments) WITH ORDINALITY a(argument, j)) made
	 GROUP BY error ORDER BY min(i), min(j)
$$;

SELECT dlock_acquire('error-held', 'alice', '1 h') AS token \gset
SELECT dlock_acquire('error-shared', 'alice', '1 h', mode => 'shared') AS shared \gset
SELECT dlock_acquire('error-permits', 'alice', '1 h', permits => 3) AS permit \gset
SELECT dlock_acquire_path('error-path/x', 'alice', '1 h') AS path \gset
CREATE TEMP TABLE before AS SELECT name, owner, token, mode, permits, holds, state, ttl, granted_at FROM dlock_leases WHERE name LIKE 'error-%';
\pset format unaligned
\pset tuples_only on

-- names
SELECT pg_temp.errors($$
dlock_acquire(?, 'alice'); dlock_renew(?, 'alice'); dlock_renew_token(?, 1); dlock_release(?, 'alice'); dlock_release_token(?, 1)
dlock_check(?, 1); dlock_force_release(?, 'reason'); dlock_convert(?, 1, 'shared'); * FROM dlock_watch(?, NULL, '0')
$$, 'NULL', '''''', 'repeat(''x'', 256)');
SELECT pg_temp.errors($$ dlock_acquire(?, 'alice') $$, 'repeat(''error-'', 50)', 'repeat(''x'', 100000000)');

-- owners
SELECT pg_temp.errors($$
dlock_acquire('error-1', ?); dlock_renew('error-held', ?); dlock_release('error-held', ?); dlock_renew_all(?); dlock_release_all(?)
dlock_acquire_all('{error-1}', ?); dlock_acquire_path('error-1/x', ?)
$$, '''''', 'repeat(''x'', 256)');

-- ttl
SELECT pg_temp.errors($$ dlock_acquire('error-1', 'alice', ?) $$, '''1 day -24 h''', '''1 day 1 microsecond''', '''1 month''',
	'''178000000 years''', '''2000000000 days''', '''2562047788 h''', '''-2562047788 h''');
SELECT pg_temp.errors($$
dlock_acquire('error-1', 'alice', ?); dlock_renew('error-held', 'alice', ?); dlock_renew_token('error-held', 1, ?)
dlock_renew('error-nobody', 'alice', ?); dlock_renew_all('alice', ?); dlock_renew_all('nobody', ?)
dlock_acquire_all('{error-1}', 'alice', ?); dlock_acquire_path('error-1/x', 'alice', ?)
$$, '''0''', '''-1 s''', '''25 h''');

-- tokens
SELECT pg_temp.errors($$
dlock_renew_token('error-held', ?); dlock_release_token('error-held', ?); dlock_check('error-held', ?); dlock_convert('error-held', ?, 'shared')
$$, '0', '-1', '-9223372036854775808', 'NULL::bigint');

-- payload
SELECT pg_temp.errors($$
dlock_acquire('error-1', 'alice', payload => ?); dlock_acquire_path('error-1/x', 'alice', payload => ?)
$$, 'to_jsonb(repeat(''x'', 1017))', 'to_jsonb(repeat(''x'', 10000000))', '(SELECT jsonb_agg(i) FROM generate_series(1, 200) i)');
SELECT pg_temp.errors($$ dlock_acquire('error-1', 'alice', payload => to_jsonb(repeat('x', 1016))) $$), dlock_release('error-1', 'alice');
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', payload => '{not json') $$) LIKE '22P02: %';
SELECT pg_temp.raised($$ SELECT dlock_acquire('error-1', 'alice', payload => '') $$) LIKE '22P02: %';

-- reasons
SELECT pg_temp.errors($$ dlock_force_release('error-held', ?); dlock_bump_epoch(?) $$, '''''', 'NULL');

-- words that are not known
SELECT pg_temp.errors($$
dlock_acquire('error-1', 'alice', mode => ?); dlock_acquire_all('{error-1}', 'alice', mode => ?); dlock_acquire_path('error-1/x', 'alice', mode => ?)
dlock_convert('error-held', 1, ?)
$$, '''exclusiv''', '''''', '''ex''', '''Shared''', '''permit''', '''EX ''', 'NULL');
SELECT pg_temp.errors($$ dlock_acquire('error-1', 'alice', reentry => ?); dlock_acquire_path('error-1/x', 'alice', reentry => ?) $$, '''yes''', '''Count''', 'NULL');
SELECT pg_temp.errors($$ dlock_acquire('error-1', 'alice', bind => ?); dlock_acquire_path('error-1/x', 'alice', bind => ?) $$, '''backend''', '''''', 'NULL');

-- permits
SELECT pg_temp.errors($$ dlock_acquire('error-1', 'alice', permits => ?) $$, '0', '-1', '-2147483648', '3, mode => ''shared''', '3, mode => ''NL''');
SELECT pg_temp.errors($$
dlock_acquire('error-held', 'bob', permits => 3); dlock_acquire('error-permits', 'bob', permits => 4); dlock_acquire('error-permits', 'bob')
dlock_acquire_all('{error-1,error-permits}', 'bob'); dlock_acquire_path('error-permits/x', 'bob')
$$);

-- spans
SELECT pg_temp.errors($$
dlock_acquire('error-1', 'alice', wait => ?); dlock_acquire_all('{error-1}', 'alice', wait => ?); dlock_acquire_path('error-1/x', 'alice', wait => ?)
dlock_convert('error-held', 1, 'shared', ?); * FROM dlock_watch('error-held', NULL, ?)
$$, '''-1 s''', '''-1 microsecond''', '''1 h -1 day''');
SELECT pg_temp.errors($$
dlock_acquire('error-1', 'alice', lock_delay => ?); dlock_acquire_path('error-1/x', 'alice', lock_delay => ?)
dlock_acquire('error-1', 'alice', min_hold => ?); dlock_acquire_path('error-1/x', 'alice', min_hold => ?)
dlock_acquire('error-1', 'alice', min_hold => ?, bind => 'session')
$$, '''-1 s''', 'NULL', '''1 day 1 ms''', '''178000000 years''');
SELECT pg_temp.errors($$ dlock_acquire('error-1', 'alice', '1 s', min_hold => ?); dlock_acquire_path('error-1/x', 'alice', '1 s', min_hold => ?) $$, '''1001 ms''');

-- a mode that the owner's own does not cover; waiting for oneself
SELECT pg_temp.errors($$
dlock_acquire('error-shared', 'alice', reentry => 'count'); dlock_acquire('error-shared', 'alice', reentry => 'return')
dlock_acquire('error-held', 'alice', wait => '1 h'); dlock_acquire_all('{error-1,error-held}', 'alice', wait => '1 h')
$$);

-- two-phase commit has no savepoint to run in, so this stands alone
BEGIN;
SELECT dlock_acquire('error-1', 'alice', bind => 'transaction') > 0 AS granted;
PREPARE TRANSACTION 'error';

-- conversions
SELECT pg_temp.errors($$
dlock_convert('error-held', 9223372036854775807, 'shared'); dlock_convert('error-nobody', 9223372036854775807, 'shared')
$$);
SELECT pg_temp.raised(format($$ SELECT dlock_convert('error-permits', %s, 'shared') $$, :permit));
SELECT pg_temp.raised(format($$ SELECT dlock_convert('error-path/x', %s, 'shared') $$, :path));
SELECT pg_temp.raised(format($$ SELECT dlock_convert('error-path', %s, 'shared') $$, :path)) LIKE 'LK002: %';

-- several names
SELECT pg_temp.errors($$ dlock_acquire_all(?, 'alice') $$, 'NULL', '''{}''', '''{error-1,NULL}''', '''{error-1,""}''', '''{error-1,error-2,error-1}''',
	'ARRAY[''error-1'', repeat(''x'', 256)]', '(SELECT array_agg(''error-'' || i) FROM generate_series(1, 1001) i)');

-- paths
SELECT pg_temp.errors($$ dlock_acquire_path(?, 'alice') $$, 'NULL', '''''', '''/''', '''/error-1''', '''error-1/''', '''error-1//error-2''',
	'''error-1'' || repeat(''/x'', 32)', '''error-1/'' || repeat(''x'', 248)');
SELECT pg_temp.raised($$ SELECT dlock_acquire_path(repeat('x/', 100000) || 'x', 'alice') $$) LIKE '22023: %';

-- a read-only transaction
SET default_transaction_read_only = on;
SELECT pg_temp.errors($$
dlock_acquire('error-1', 'alice'); dlock_acquire('error-held', 'bob'); dlock_renew('error-held', 'alice'); dlock_renew_token('error-held', 1)
dlock_release('error-held', 'alice'); dlock_release_token('error-held', 1); dlock_renew_all('alice'); dlock_release_all('alice')
dlock_force_release('error-held', 'reason'); dlock_bump_epoch('reason'); dlock_convert('error-held', 1, 'shared')
dlock_acquire('error-1', 'alice', bind => 'transaction'); dlock_acquire_all('{error-1}', 'alice'); dlock_acquire_path('error-1/x', 'alice')
$$);
RESET default_transaction_read_only;

-- dlock.max_ttl as it stands at the call
SET dlock.max_ttl = '1 min';
SELECT pg_temp.errors($$
dlock_acquire('error-1', 'alice', ?); dlock_renew('error-held', 'alice', ?); dlock_acquire('error-1', 'alice', '1 min', lock_delay => ?)
dlock_acquire('error-1', 'alice', bind => 'session', min_hold => ?); dlock_acquire_all('{error-1}', 'alice', ?); dlock_acquire_path('error-1/x', 'alice', ?)
$$, '''1 min 1 ms''', '''61 s''');
RESET dlock.max_ttl;

-- nothing changed
SELECT 'changed', * FROM (SELECT name, owner, token, mode, permits, holds, state, ttl, granted_at FROM dlock_leases WHERE name LIKE 'error-%' EXCEPT ALL TABLE before) s;
SELECT 'gone', * FROM (TABLE before EXCEPT ALL SELECT name, owner, token, mode, permits, holds, state, ttl, granted_at FROM dlock_leases) s;
SELECT count(*) FROM dlock_leases WHERE name LIKE 'error-%' OR name LIKE 'xxx%';
SELECT count(*) FROM dlock_waiters WHERE name LIKE 'error-%';
SELECT dlock_release_token('error-held', :token), dlock_release_token('error-shared', :shared), dlock_release_token('error-permits', :permit), dlock_release_token('error-path/x', :path);
