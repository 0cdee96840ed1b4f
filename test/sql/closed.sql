-- Proves: a lease that ends by expiry or by force, with a lock delay, and one that is released before its least time, is dead for its owner and goes on blocking as its mode does; what opens the lock, and when.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'

-- What an expression says, or its SQLSTATE; "$t" is a token.
CREATE FUNCTION closed_says(expression text, token bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	EXECUTE 'SELECT ' || replace(expression, '$t', token::text) INTO answer;
	RETURN coalesce(answer, 'null');
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;

-- The leases, with the minutes that are left and the payload.
CREATE FUNCTION closed_leases() RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg(concat_ws(' ', name, owner, mode, permits, state, ceil(extract(epoch FROM remaining) / 60), payload), ', ' ORDER BY name COLLATE "C", owner), 'open')
		FROM dlock_leases WHERE name ~ '^closed'
$$;

-- Owner "a" acquires, and its lease ends.  What each of the endings says, what is
-- left, which modes others get, what "a" is told about its lease, and what is left
-- when "a" has released it and once more.
CREATE FUNCTION closed_case(acquire text, VARIADIC endings text[], OUT ended text, OUT leases text, OUT lets_in text, OUT owner text, OUT released text, OUT after text)
LANGUAGE plpgsql AS $$
DECLARE
	token bigint := closed_says(acquire, 0);
	lock text := substring(acquire FROM '''(closed[^'']*)''');
BEGIN
	ended := string_agg(closed_says(ending, token), ' ' ORDER BY i) FROM unnest(endings) WITH ORDINALITY e(ending, i);
	leases := closed_leases();
	FOREACH lets_in IN ARRAY '{NL,CR,CW,PR,PW,EX}'::text[] LOOP
		owner := concat_ws(' ', owner, CASE WHEN closed_says(format('dlock_acquire(''closed'', ''b'', ''1 h'', mode => %L) > $t', lets_in), token) = 'true' THEN lets_in END);
		PERFORM dlock_release('closed', 'b');
	END LOOP;
	lets_in := owner;
	owner := concat_ws(' ', dlock_check(lock, token), dlock_renew_token(lock, token), dlock_renew(lock, 'a', '1 h'), dlock_renew_all('a'),
		closed_says(format('dlock_convert(%L, $t, ''NL'')', lock), token), closed_says(format('dlock_acquire(%L, ''a'', ''1 h'', reentry => ''return'') > $t', lock), token),
		dlock_release(lock, 'b'), dlock_release_token(lock, token + 1000), dlock_release_all('a'),
		(SELECT count(*) FROM dlock_leases l WHERE l.name = lock AND state = 'closed'));
	released := concat_ws(' ', dlock_release_token(lock, token), dlock_release(lock, 'a'));
	after := closed_leases();
	PERFORM dlock_force_release(l.name, 'test') FROM dlock_leases l WHERE l.name ~ '^closed';
	PERFORM dlock_force_release(l.name, 'test') FROM dlock_leases l WHERE l.name ~ '^closed';
END $$;

-- What an expiry is, here.
\set expire '\'\'\'later\'\' WHERE pg_sleep(0.002) IS NOT NULL\''
\x on
\pset format unaligned

-- the lock delay: after expiry, by a token, by force, and once more
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 ms', lock_delay => '1 h', payload => '1')$$, :expire);
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 h', lock_delay => '30 min')$$, $$dlock_force_release('closed', 'test')$$);
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 h', lock_delay => '30 min')$$, $$dlock_force_release('closed', 'test')$$, $$dlock_force_release('closed', 'test')$$, $$dlock_force_release('closed', 'test')$$);
-- not after a release, in time or late, nor when it is over
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 h', lock_delay => '1 h')$$, $$dlock_release('closed', 'a')$$);
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 ms', lock_delay => '1 h')$$, :expire, $$dlock_release('closed', 'a')$$);
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 ms', lock_delay => '1 h')$$, :expire, $$dlock_release_token('closed', $t)$$);
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 ms', lock_delay => '1 ms')$$, :expire);
-- as the mode is, and as it was converted
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 ms', mode => 'shared', lock_delay => '1 h')$$, :expire);
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 ms', mode => 'NL', lock_delay => '1 h')$$, :expire);
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 h', lock_delay => '1 h')$$, $$dlock_convert('closed', $t, 'CW') = $t$$, $$dlock_renew_token('closed', $t, '1 ms')$$, :expire);
-- with several holders each as it has asked for; a lease that is held beside it cannot be converted
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 h', mode => 'shared', lock_delay => '30 min')$$, $$dlock_acquire('closed', 'c', '1 h', mode => 'shared') > $t$$, $$dlock_force_release('closed', 'test')$$);
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 ms', mode => 'shared', lock_delay => '1 h')$$, :expire, $$dlock_convert('closed', dlock_acquire('closed', 'c', '1 h', mode => 'shared'), 'exclusive')$$);
-- an owner that has two of them
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 ms', mode => 'shared', lock_delay => '1 h')$$, :expire, $$dlock_acquire('closed', 'a', '1 ms', mode => 'shared', lock_delay => '1 h') > $t$$, :expire);
-- a permit
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 ms', permits => 2, lock_delay => '1 h')$$, :expire, $$dlock_acquire('closed', 'c', '1 h', permits => 2) > $t$$, $$dlock_acquire('closed', 'd', '1 h', permits => 2)$$, $$dlock_acquire('closed', 'd', '1 h', permits => 3)$$);
-- a path: its ancestors are as closed, for what is beside it, and by force
SELECT * FROM closed_case($$dlock_acquire_path('closed/a/b', 'a', '1 ms', lock_delay => '1 h')$$, :expire, $$dlock_acquire_path('closed/a', 'c', '1 h')$$, $$dlock_acquire_path('closed/a/c', 'c', '1 h') > $t$$);
SELECT * FROM closed_case($$dlock_acquire_path('closed/a/b', 'a', '1 h', lock_delay => '1 h')$$, $$dlock_force_release('closed', 'test')$$);

-- the least time: released early, by force, and late
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '2 h', min_hold => '1 h', payload => '1')$$, $$dlock_release_token('closed', $t)$$);
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '2 h', min_hold => '1 h')$$, $$dlock_release('closed', 'a')$$, $$dlock_force_release('closed', 'test')$$);
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '2 h', min_hold => '1 h')$$, $$dlock_force_release('closed', 'test')$$);
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '2 h', min_hold => '1 ms')$$, :expire, $$dlock_release('closed', 'a')$$);
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 h', min_hold => '1 ms')$$, $$dlock_release('closed', 'a')$$, :expire);
-- expiry ends it before that
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 h', min_hold => '1 h')$$, $$dlock_renew('closed', 'a', '1 ms')$$, :expire);
-- as the mode is; at the last of several holds; a path
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 h', mode => 'shared', min_hold => '1 h')$$, $$dlock_release('closed', 'a')$$);
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 h', min_hold => '1 h')$$, $$dlock_acquire('closed', 'a', '1 h', reentry => 'count') = $t$$, $$dlock_release('closed', 'a')$$, $$dlock_check('closed', $t)$$, $$dlock_release('closed', 'a')$$);
SELECT * FROM closed_case($$dlock_acquire_path('closed/a', 'a', '1 h', min_hold => '1 h')$$, $$dlock_release('closed/a', 'a')$$, $$dlock_acquire_path('closed/b', 'c', '1 h') > $t$$);

-- both: a release has the least time, force has the delay
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 h', min_hold => '30 min', lock_delay => '50 min')$$, $$dlock_release('closed', 'a')$$);
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 h', min_hold => '30 min', lock_delay => '50 min')$$, $$dlock_force_release('closed', 'test')$$);
SELECT * FROM closed_case($$dlock_acquire('closed', 'a', '1 h', min_hold => '1 ms', lock_delay => '50 min')$$, $$dlock_release('closed', 'a')$$, :expire);
\x off
\pset format aligned

-- all that an owner holds
SELECT count(dlock_acquire('closed-' || i, 'a', '1 h', min_hold => CASE WHEN i % 2 = 0 THEN '1 h' ELSE '0' END::interval)) FROM generate_series(1, 10) i;
SELECT dlock_release_all('a') AS once, dlock_release_all('a') AS again;
SELECT count(*), min(state) FROM dlock_leases WHERE name ~ '^closed';
SELECT sum(dlock_force_release('closed-' || i, 'test')) FROM generate_series(1, 10) i;

-- of another role
CREATE ROLE regress_dlock_other;
SELECT dlock_acquire('closed', 'a', '1 ms', lock_delay => '1 h') AS token \gset
SELECT pg_sleep(0.002) \gset
SET ROLE regress_dlock_other;
SELECT closed_says('dlock_release_token(''closed'', $t)', :token) AS token, dlock_release('closed', 'a') AS owner;
RESET ROLE;
DROP ROLE regress_dlock_other;
SELECT closed_leases(), dlock_release('closed', 'a');

-- the end of a transaction is in good order: no delay, and a least time
BEGIN;
SELECT dlock_acquire('closed', 'a', bind => 'transaction', lock_delay => '1 h') > 0 AS granted;
COMMIT;
SELECT closed_leases();
BEGIN;
SAVEPOINT s;
SELECT dlock_acquire('closed', 'a', bind => 'transaction', lock_delay => '1 h') > 0 AS granted;
ROLLBACK TO s;
SELECT closed_leases();
SELECT dlock_acquire('closed', 'a', bind => 'transaction', min_hold => '1 h') > 0 AS granted;
ROLLBACK;
SELECT closed_leases(), dlock_force_release('closed', 'test');
-- its expiry is not
BEGIN;
SELECT dlock_acquire('closed', 'a', '1 ms', bind => 'transaction', lock_delay => '1 h') > 0 AS granted;
SELECT pg_sleep(0.002) \gset
COMMIT;
SELECT closed_leases(), dlock_force_release('closed', 'test');

-- a least time is as long as the ttl, and no longer
SELECT closed_says('dlock_acquire(''closed'', ''a'', ' || arguments || ') > 0', 0), dlock_force_release('closed', 'test'), arguments
  FROM (VALUES ($$'1 min', min_hold => '1 min'$$), ($$'1 min', min_hold => '1 min 1 ms'$$), ($$min_hold => '31 s'$$), ($$bind => 'session', min_hold => '31 s'$$)) v(arguments);
\set VERBOSITY default
SELECT dlock_acquire('closed', 'a', '1 min', min_hold => '1 min 1 ms');
SELECT closed_leases();
DROP FUNCTION closed_case, closed_leases, closed_says;
