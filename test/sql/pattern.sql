-- Proves: time slots, elections and groups say what is wrong with what they are given, and change nothing then.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'
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
\pset format unaligned
\pset tuples_only on

-- time slots
SELECT pg_temp.raised($$ SELECT dlock_once(NULL, '1 h') $$);
SELECT pg_temp.raised($$ SELECT dlock_once('', '1 h') $$);
SELECT pg_temp.raised($$ SELECT dlock_once(repeat('x', 241), '1 h') $$);
SELECT pg_temp.raised($$ SELECT dlock_once('pattern', NULL) $$);
SELECT pg_temp.raised($$ SELECT dlock_once('pattern', '0') $$);
SELECT pg_temp.raised($$ SELECT dlock_once('pattern', '-1 s') $$);
SELECT pg_temp.raised($$ SELECT dlock_once('pattern', '1 day 1 us') $$);
SELECT pg_temp.raised($$ SELECT dlock_once('pattern', '100 years') $$);
SET dlock.max_ttl = '7 d';
SELECT pg_temp.raised($$ SELECT dlock_once('pattern', '8 days') $$);
SELECT dlock_once(repeat('x', 240), '7 days') > 0 AS won, dlock_once(repeat('x', 240), '7 days') AS again;
RESET dlock.max_ttl;
SELECT length(name) AS length, mode, state, bind, remaining <= '7 days' AS within_max_ttl FROM dlock_leases WHERE name LIKE 'once:%';
BEGIN READ ONLY;
SELECT pg_temp.raised($$ SELECT dlock_once('pattern', '1 h') $$);
ROLLBACK;
SELECT dlock_force_release('once:' || repeat('x', 240), 'test'), dlock_force_release('once:' || repeat('x', 240), 'test');
SELECT dlock_once(repeat('x', 240), '1 day') > 0 AS won, dlock_once(repeat('x', 240), '1 day') AS again;
SELECT dlock_force_release('once:' || repeat('x', 240), 'test') + dlock_force_release('once:' || repeat('x', 240), 'test');

-- elections
SELECT pg_temp.raised($$ SELECT dlock_campaign(NULL, 'a') $$);
SELECT pg_temp.raised($$ SELECT dlock_campaign('', 'a') $$);
SELECT pg_temp.raised($$ SELECT dlock_campaign('pattern', '') $$);
SELECT pg_temp.raised($$ SELECT dlock_campaign('pattern', 'a', '0') $$);
SELECT pg_temp.raised($$ SELECT dlock_campaign('pattern', 'a', wait => '-1 s') $$);
SELECT dlock_campaign('pattern', NULL) > 0 AS session, dlock_resign('pattern', NULL) AS resigned;
SELECT pg_temp.raised($$ SELECT dlock_resign(NULL, 'a') $$);
SELECT pg_temp.raised($$ SELECT dlock_leader(NULL) $$);
SELECT * FROM dlock_leader('pattern');
SELECT dlock_resign('pattern', 'a');

-- neither an error nor another payload changes a term
SELECT dlock_campaign('pattern', 'a', '1 h', payload => '1') AS term \gset
SELECT pg_temp.raised($$ SELECT dlock_campaign('pattern', 'a', '0', payload => '2') $$);
SELECT pg_temp.raised($$ SELECT dlock_campaign('pattern', 'a', '2 d', payload => '2') $$);
SELECT pg_temp.raised($$ SELECT dlock_campaign('pattern', 'a', wait => '-1 s', payload => '2') $$);
SELECT pg_temp.raised($$ SELECT dlock_campaign('pattern', 'a', payload => to_jsonb(repeat('x', 2000))) $$);
SELECT token = :term AS same_term, payload FROM dlock_leader('pattern');
SELECT dlock_campaign('pattern', 'a', '1 h') = :term AS same_term, dlock_campaign('pattern', 'a', '1 h', payload => '1') = :term AS same_term;
SELECT dlock_campaign('pattern', 'a', '2 h', payload => '2') = :term AS same_term;
SELECT token = :term AS same_term, payload FROM dlock_leader('pattern');
SELECT dlock_campaign('pattern', 'b', payload => '3') AS refused;

-- of any length, each of which has its own kind of slot and of memory
CREATE TEMP TABLE pattern_size AS SELECT pg_relation_size('_dlock.store') AS bytes;
DO $$
DECLARE
	term bigint;
	wanted jsonb;
BEGIN
	FOR i IN 0 .. 1010 LOOP
		wanted := to_jsonb(repeat('x', i));
		PERFORM dlock_resign('pattern', 'a');
		term := dlock_campaign('pattern', 'a', '1 h', payload => wanted);
		IF NOT EXISTS (SELECT FROM dlock_leases l WHERE l.name = 'pattern' AND l.owner = 'a' AND l.token = term AND l.payload = wanted) THEN
			RAISE EXCEPTION 'length %', i;
		END IF;
	END LOOP;
END $$;
SELECT pg_relation_size('_dlock.store') - bytes <= 4 * 8192 AS not_grown FROM pattern_size;
SELECT dlock_resign('pattern', 'a');
SELECT count(*) FROM dlock_leases WHERE name = 'pattern';

-- of a lease that was acquired otherwise, too
SELECT dlock_acquire('pattern', 'a', '1 h', lock_delay => '1 h', min_hold => '1 min') AS term \gset
SELECT dlock_campaign('pattern', 'a') = :term AS same_term;
SELECT dlock_resign('pattern', 'a');
SELECT state, remaining BETWEEN '50 s' AND '1 min' AS least FROM dlock_leases WHERE name = 'pattern';
SELECT dlock_force_release('pattern', 'test');
BEGIN;
SELECT dlock_acquire('pattern', 'a', bind => 'transaction') AS term \gset
SELECT dlock_campaign('pattern', 'a') = :term AS same_term;
SELECT bind, pid = pg_backend_pid() AS mine FROM dlock_leases WHERE name = 'pattern';
ROLLBACK;
SELECT count(*) FROM dlock_leases WHERE name = 'pattern';

-- groups
SELECT pg_temp.raised($$ SELECT dlock_group_create(NULL, 1) $$);
SELECT pg_temp.raised($$ SELECT dlock_group_create('', 1) $$);
SELECT pg_temp.raised($$ SELECT dlock_group_create(repeat('x', 101), 1) $$);
SELECT pg_temp.raised($$ SELECT dlock_group_create('pattern/x', 1) $$);
SELECT pg_temp.raised($$ SELECT dlock_group_create('pattern') $$);
SELECT pg_temp.raised($$ SELECT dlock_group_create('pattern', 1, '{a}') $$);
SELECT pg_temp.raised($$ SELECT dlock_group_create('pattern', 0) $$);
SELECT pg_temp.raised($$ SELECT dlock_group_create('pattern', 10001) $$);
SELECT pg_temp.raised($$ SELECT dlock_group_create('pattern', names => '{}') $$);
SELECT pg_temp.raised($$ SELECT dlock_group_create('pattern', names => '{a,NULL}') $$);
SELECT pg_temp.raised($$ SELECT dlock_group_create('pattern', names => '{a,""}') $$);
SELECT pg_temp.raised($$ SELECT dlock_group_create('pattern', names => '{a,b,a}') $$);
SELECT pg_temp.raised($$ SELECT dlock_group_create('pattern', names => '{{a,b},{c,d}}') $$);
SELECT pg_temp.raised($$ SELECT dlock_group_create('pattern', names => ARRAY[repeat('x', 101)]) $$);
SELECT pg_temp.raised($$ SELECT dlock_group_create('pattern', names => (SELECT array_agg(i::text) FROM generate_series(1, 10001) i)) $$);
SELECT pg_temp.raised($$ SELECT dlock_group_alter('pattern', 1) $$);
SELECT dlock_group_drop('pattern');
SELECT pg_temp.raised($$ SELECT dlock_group_drop(NULL) $$);
SELECT * FROM dlock_groups;

SELECT dlock_group_create('pattern', names => '{eu/1,us/1}');
SELECT pg_temp.raised($$ SELECT dlock_group_create('pattern', 1) $$);
SELECT pg_temp.raised($$ SELECT dlock_group_alter('pattern', 0) $$);
SELECT pg_temp.raised($$ SELECT dlock_group_join(NULL, 'a') $$);
SELECT pg_temp.raised($$ SELECT dlock_group_join('other', 'a') $$);
SELECT pg_temp.raised($$ SELECT dlock_group_join('pattern', NULL) $$);
SELECT pg_temp.raised($$ SELECT dlock_group_join('pattern', '') $$);
SELECT pg_temp.raised($$ SELECT dlock_group_join('pattern', repeat('x', 101)) $$);
SELECT pg_temp.raised($$ SELECT dlock_group_join('pattern', 'a', '0') $$);
SELECT pg_temp.raised($$ SELECT dlock_group_join('pattern', 'a', '2 d') $$);
SELECT pg_temp.raised($$ SELECT dlock_group_join('pattern', 'a', weight => 0) $$);
SELECT pg_temp.raised($$ SELECT dlock_group_join('pattern', 'a', weight => 1001) $$);
SELECT pg_temp.raised($$ SELECT dlock_group_join('pattern', 'a', weight => NULL) $$);
SELECT pg_temp.raised($$ SELECT dlock_group_join('pattern', 'a', payload => to_jsonb(repeat('x', 1024))) $$);
SELECT pg_temp.raised($$ SELECT * FROM dlock_group_renew('pattern', NULL) $$);
SELECT pg_temp.raised($$ SELECT * FROM dlock_group_renew('pattern', 0) $$);
SELECT pg_temp.raised($$ SELECT * FROM dlock_group_renew('pattern', 1) $$);
SELECT pg_temp.raised($$ SELECT * FROM dlock_group_renew('other', 1) $$);
SELECT dlock_group_yield('pattern', 1, '{1}');
SELECT pg_temp.raised($$ SELECT dlock_group_yield('pattern', 1, NULL) $$);
SELECT dlock_group_leave('pattern', 1);
SELECT dlock_group_leave('other', 1);
SELECT count(*) FROM dlock_leases WHERE name LIKE 'group:%';

-- a member
SELECT dlock_group_join('pattern', 'a/b', '1 h', 1000, '{"host": "10.0.0.1"}') AS token \gset
SELECT partition, token > :token AS above, action FROM dlock_group_renew('pattern', :token);
SELECT partition, action FROM dlock_group_renew('pattern', :token, ARRAY[0, 1, :token]);
SELECT token AS us FROM dlock_group_partitions WHERE partition = 'us/1' \gset
SELECT partition, token > :us AS later, action FROM dlock_group_renew('pattern', :token, ARRAY[:us]);
SELECT partition, token > :us AS later, action FROM dlock_group_renew('pattern', :token, ARRAY[:us]);
SELECT pg_temp.raised($$ SELECT * FROM dlock_group_renew('pattern', 1, '{NULL}') $$);
SELECT bool_and(dlock_renew_token('group:pattern/' || partition, token, '1 day')) FROM dlock_group_partitions;
SELECT partition, action FROM dlock_group_renew('pattern', :token);
SELECT DISTINCT ttl, expires_at < now() + interval '2 h' AS ends_with_membership FROM dlock_leases WHERE name LIKE 'group:pattern%';
SELECT group_name, member, token = :token AS token, weight, owned, due, ttl, payload FROM dlock_group_members;
SELECT group_name, partition, member, token > :token AS above, since < expires_at AS times FROM dlock_group_partitions;
SELECT name, owner FROM dlock_leases WHERE name LIKE 'group:pattern%' ORDER BY name;
SELECT dlock_group_yield('pattern', :token, ARRAY(SELECT token FROM dlock_group_partitions WHERE partition = 'eu/1'));
SELECT dlock_group_yield('pattern', :token, ARRAY[:us, :token]), dlock_group_yield('pattern', :token, '{}');
SELECT partition, member, token, since, expires_at FROM dlock_group_partitions ORDER BY partition LIMIT 1;
BEGIN READ ONLY;
SELECT pg_temp.raised($$ SELECT dlock_group_join('pattern', 'x') $$);
ROLLBACK;
BEGIN READ ONLY;
SELECT pg_temp.raised($$ SELECT * FROM dlock_group_renew('pattern', 1) $$);
ROLLBACK;
BEGIN READ ONLY;
SELECT pg_temp.raised($$ SELECT dlock_group_yield('pattern', 1, '{1}') $$);
ROLLBACK;
BEGIN READ ONLY;
SELECT pg_temp.raised($$ SELECT dlock_group_leave('pattern', 1) $$);
ROLLBACK;
BEGIN READ ONLY;
SELECT member, owned FROM dlock_group_members;
ROLLBACK;
SELECT dlock_group_leave('pattern', :token), dlock_group_leave('pattern', :token);

-- whatever the payload is, the weight is that which was asked for
SELECT dlock_group_join('pattern', 'null', '1 h') > 0, dlock_group_join('pattern', 'zero', '1 h', 2, '{"weight": 0}') > 0,
	dlock_group_join('pattern', 'scalar', '1 h', 3, '"weight"') > 0, dlock_group_join('pattern', 'empty', '1 h', 4, 'null') > 0,
	dlock_group_join('pattern', 'array', '1 h', 5, '[["weight"], {"a": 1.5}]') > 0;
SELECT member, weight, payload FROM dlock_group_members ORDER BY weight;
SELECT bool_and(dlock_group_leave('pattern', token)) FROM dlock_group_members;

-- the partitions are what the table says, in any transaction and cursor
BEGIN;
DECLARE c CURSOR FOR SELECT partition FROM dlock_group_partitions;
FETCH 1 FROM c;
SELECT dlock_group_alter('pattern', names => '{only}');
FETCH 1 FROM c;
SELECT partition FROM dlock_group_partitions;
ROLLBACK;
SELECT partition FROM dlock_group_partitions ORDER BY partition;

-- operators that somebody else has put in the way are not used
CREATE SCHEMA pattern_evil;
CREATE FUNCTION pattern_evil.equal(a text, b text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'called as %', current_user; END $$;
CREATE OPERATOR pattern_evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = pattern_evil.equal);
SET search_path = pattern_evil, pg_catalog, public;
SELECT dlock_group_alter('pattern', 1), dlock_group_drop('none'), dlock_campaign('pattern', 'a', payload => '1') IS NULL, dlock_resign('pattern', 'a');
SELECT dlock_group_join('pattern', 'a') AS token \gset
SELECT partition FROM dlock_group_renew('pattern', :token);
SELECT dlock_group_leave('pattern', :token);
RESET search_path;
DROP OPERATOR pattern_evil.= (text, text);
DROP FUNCTION pattern_evil.equal;
DROP SCHEMA pattern_evil;

-- a row that was written by hand, and not as it has to be
SELECT dlock_group_join('pattern', 'a') AS token \gset
SELECT pg_temp.raised($$ UPDATE dlock_groups SET partitions = '{a,b,a}' $$);
SELECT pg_temp.raised($$ UPDATE dlock_groups SET partitions = '{a,NULL}' $$);
SELECT pg_temp.raised($$ UPDATE dlock_groups SET partitions = '{}' $$);
SELECT dlock_group_leave('pattern', :token);
SELECT dlock_group_drop('pattern');
SELECT count(*) FROM dlock_leases WHERE name LIKE 'group:%';
