-- Proves: what an owner gets that asks again for what it holds: nothing, the same token with one more release to make, or the same token; and that re-entry never brings the deadline nearer.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'
-- What must not wait would be seen to.
SET statement_timeout = '20 s';
SET deadlock_timeout = '1 h';

-- Run steps, one after the other, and tell what each says, or its SQLSTATE.  The first
-- answers a token, for which "$t" stands in the others: "same" is that one, "newer" one
-- that is larger.  "held" is what is held, with the minutes that are left; "later", that
-- a moment has passed.  Nothing is held in the end.
CREATE FUNCTION reentry(steps text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	first bigint;
	step text;
	answer text;
	answers text[];
BEGIN
	FOREACH step IN ARRAY regexp_split_to_array(trim(steps, E' \n'), E'[;\n] *') LOOP
		IF step = 'held' THEN
			SELECT '[' || coalesce(string_agg(concat_ws(' ', owner, mode, permits, state, holds, ceil(extract(epoch FROM remaining) / 60)), ', ' ORDER BY owner), '') || ']'
			  INTO answer FROM dlock_leases WHERE name = 'x';
		ELSIF step = 'later' THEN
			PERFORM pg_sleep(0.002);
			answer := 'later';
		ELSE
			BEGIN
				EXECUTE 'SELECT ' || replace(step, '$t', coalesce(first, 0)::text) INTO answer;
				first := coalesce(first, answer::bigint);
				answer := CASE WHEN answer = first::text THEN 'same' WHEN length(answer) > 9 AND answer::bigint > first THEN 'newer' ELSE coalesce(answer, 'null') END;
			EXCEPTION WHEN OTHERS THEN
				answer := SQLSTATE;
			END;
		END IF;
		answers := answers || answer;
	END LOOP;
	PERFORM dlock_force_release(name, 'test') FROM (SELECT DISTINCT name FROM dlock_leases WHERE name IN ('x', 'free')) held;
	PERFORM dlock_force_release(name, 'test') FROM (SELECT DISTINCT name FROM dlock_leases WHERE name IN ('x', 'free')) held;
	RETURN array_to_string(answers, ' ');
END $$;
\pset tuples_only on
\pset format unaligned

-- deny: as held by anybody, even if the modes are compatible; waiting for oneself is a deadlock, at once
SELECT reentry($$
dlock_acquire('x', 'a', '1 h'); dlock_acquire('x', 'a', '1 h'); dlock_acquire('x', 'a', '1 h', reentry => 'deny')
dlock_acquire('x', 'a', '1 h', wait => '1 h'); dlock_acquire('x', 'a', '1 h', wait => NULL)
dlock_acquire_all('{free,x}', 'a', '1 h'); dlock_acquire_all('{free,x}', 'a', '1 h', wait => '1 h'); held; dlock_check('x', $t)
$$);
SELECT reentry($$
dlock_acquire('x', 'a', '1 h', mode => 'shared'); dlock_acquire('x', 'a', '1 h', mode => 'shared'); dlock_acquire('x', 'a', '1 h', mode => 'NL')
dlock_acquire('x', 'b', '1 h', mode => 'shared'); dlock_acquire('x', 'a', '1 h', wait => '1 h', mode => 'shared'); held
$$);

-- count: the same token, and as many releases
SELECT reentry($$
dlock_acquire('x', 'a', '1 h', reentry => 'count'); held; dlock_acquire('x', 'a', '1 h', reentry => 'count')
dlock_acquire('x', 'a', '1 h', reentry => 'count', wait => '1 h'); dlock_acquire('x', 'b', '1 h', reentry => 'count'); held
dlock_renew('x', 'a'); dlock_release('x', 'a'); dlock_check('x', $t); dlock_release_token('x', $t); dlock_check('x', $t); held
dlock_acquire('x', 'b', '1 h'); dlock_release('x', 'a'); dlock_check('x', $t); dlock_release('x', 'a'); dlock_acquire('x', 'b', '1 h')
$$);

-- what was acquired in another way can be counted as well; return: the same token, and no count
SELECT reentry($$
dlock_acquire('x', 'a', '1 h'); dlock_acquire('x', 'a', '1 h', reentry => 'count'); dlock_acquire('x', 'a', '1 h')
dlock_acquire('x', 'a', '1 h', reentry => 'return'); held; dlock_release('x', 'a'); dlock_release('x', 'a'); dlock_release('x', 'a')
$$);
SELECT reentry($$
dlock_acquire('x', 'a', '1 h', reentry => 'return'); dlock_acquire('x', 'a', '1 h', reentry => 'return')
dlock_acquire('x', 'b', '1 h', reentry => 'return'); dlock_release('x', 'a'); dlock_release('x', 'a')
$$);

-- the deadline: as far as the ttl asked for, and never nearer
SELECT reentry($$
dlock_acquire('x', 'a', '1 h'); dlock_acquire('x', 'a', '1 ms', reentry => 'count'); later; dlock_check('x', $t); held
dlock_acquire('x', 'a', '1 ms', reentry => 'return'); later; dlock_check('x', $t); held
dlock_acquire('x', 'a', '2 h', reentry => 'return'); held; dlock_acquire('x', 'a', '3 h', reentry => 'count'); held
dlock_release('x', 'a'); dlock_release('x', 'a'); held
$$);

-- release_all and a forced release do not count
SELECT reentry($$
dlock_acquire('x', 'a', '1 h'); (SELECT count(dlock_acquire('x', 'a', '1 h', reentry => 'count')) FROM generate_series(1, 4) i); held
dlock_release_all('a'); dlock_check('x', $t); dlock_release('x', 'a')
(SELECT count(dlock_acquire('x', 'a', '1 h', reentry => 'count')) FROM generate_series(1, 5) i); dlock_force_release('x', 'test'); dlock_release('x', 'a')
$$);

-- after its end there is nothing to enter again: another token, counted from one
SELECT reentry($$
dlock_acquire('x', 'a', '1 h', reentry => 'count'); dlock_acquire('x', 'a', '1 h', reentry => 'count'); dlock_renew('x', 'a', '1 ms'); later
dlock_acquire('x', 'a', '1 h', reentry => 'count'); held; dlock_renew('x', 'a', '1 ms'); later; dlock_acquire('x', 'a', '1 h', reentry => 'return')
$$);

-- a lease that is closed is not its owner's any more
SELECT reentry($$
dlock_acquire('x', 'a', '1 h', min_hold => '1 h'); dlock_release('x', 'a')
dlock_acquire('x', 'a', '1 h', reentry => 'count'); dlock_acquire('x', 'a', '1 h', reentry => 'return')
$$);

-- the mode held must cover the one asked for; what is refused changes nothing
SELECT how, held, string_agg(asked || ': ' || reentry(format('dlock_acquire(''x'', ''a'', ''1 h'', mode => %L); dlock_acquire(''x'', ''a'', ''2 h'', mode => %L, reentry => %L); held', held, asked, how)), '; ' ORDER BY n)
  FROM unnest('{count,return}'::text[]) how, unnest('{NL,CR,CW,PR,PW,EX}'::text[]) WITH ORDINALITY h(held, m), unnest('{NL,CR,CW,PR,PW,EX}'::text[]) WITH ORDINALITY a(asked, n)
 GROUP BY how, held, m ORDER BY how, m;
SELECT reentry($$dlock_acquire('x', 'a', '1 h', mode => 'shared'); dlock_acquire('x', 'a', '1 h', reentry => 'return', wait => '1 h')$$);

-- re-entry goes past others who hold it too
SELECT reentry($$
dlock_acquire('x', 'b', '1 h', mode => 'shared'); dlock_acquire('x', 'a', '1 h', mode => 'shared'); dlock_acquire('x', 'c', '1 h', mode => 'shared')
dlock_acquire('x', 'b', '1 h', mode => 'shared', reentry => 'count'); held; dlock_release('x', 'a'); dlock_release('x', 'b'); dlock_release('x', 'c'); held
$$);

-- a permit held is not a second one
SELECT reentry($$
dlock_acquire('x', 'a', '1 h', permits => 2); dlock_acquire('x', 'a', '1 h', permits => 2, reentry => 'count'); dlock_acquire('x', 'a', '1 h', permits => 2, reentry => 'return')
dlock_acquire('x', 'b', '1 h', permits => 2); held; dlock_acquire('x', 'a', '1 h', permits => 2, wait => '1 h')
dlock_release('x', 'a'); dlock_acquire('x', 'c', '1 h', permits => 2); dlock_release('x', 'a'); dlock_acquire('x', 'c', '1 h', permits => 2)
$$);

-- the name of an owner is no key to another role's lease
CREATE ROLE regress_dlock_reentry;
SELECT dlock_acquire('x', 'a', '1 h') AS token \gset
SET ROLE regress_dlock_reentry;
\set VERBOSITY sqlstate
SELECT dlock_acquire('x', 'a', '2 h', reentry => 'count');
SELECT dlock_acquire('x', 'a', '2 h', reentry => 'return');
\set VERBOSITY default
RESET ROLE;
SELECT owner, holds, ttl, dlock_release_token('x', :token) FROM dlock_leases WHERE name = 'x';
DROP ROLE regress_dlock_reentry;
DROP FUNCTION reentry;

-- the payload stays
SELECT dlock_acquire('reentry-payload', 'o', payload => '{"x": 1}') AS token \gset
SELECT dlock_acquire('reentry-payload', 'o', bind => 'session', reentry => 'return', payload => '{"x": 2}') = :token AS same;
SELECT payload FROM dlock_leases WHERE name = 'reentry-payload';
SELECT dlock_release('reentry-payload', 'o');
