-- Proves: two modes are held together exactly where the matrix of the six modes says so, asked for or converted to, in every order; a lock has as many holders as are compatible.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'

-- The matrix: what may be asked for while something is held.
CREATE TEMP TABLE modes AS
	SELECT * FROM (VALUES ('NL', 1, '{NL,CR,CW,PR,PW,EX}'::text[]), ('CR', 2, '{NL,CR,CW,PR,PW}'), ('CW', 3, '{NL,CR,CW}'),
	                      ('PR', 4, '{NL,CR,PR}'), ('PW', 5, '{NL,CR}'), ('EX', 6, '{NL}')) v(mode, n, compatible);
CREATE FUNCTION pg_temp.compatible(held text, asked text) RETURNS boolean LANGUAGE sql
	AS $$ SELECT asked = ANY (compatible) FROM modes WHERE mode = held $$;
CREATE FUNCTION pg_temp.covers(held text, asked text) RETURNS boolean LANGUAGE sql
	AS $$ SELECT h.compatible <@ a.compatible FROM modes h, modes a WHERE h.mode = held AND a.mode = asked $$;

-- Ask while another owner holds.
CREATE FUNCTION pg_temp.ask(held text, asked text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	holder bigint := dlock_acquire('mode-cell', 'mode-a', '1 h', mode => held);
	token bigint := dlock_acquire('mode-cell', 'mode-b', '1 h', mode => asked);
	result text := CASE WHEN token > holder THEN 'yes' WHEN token IS NULL THEN '-' ELSE 'odd' END;
BEGIN
	IF NOT dlock_check('mode-cell', holder) OR NOT dlock_check('mode-cell', coalesce(token, holder)) THEN
		result := 'lost';
	END IF;
	IF dlock_release_all('mode-a') <> 1 OR dlock_release_all('mode-b') <> (token IS NOT NULL)::int THEN
		result := 'not released';
	END IF;
	RETURN result;
END $$;
SELECT mode AS held, pg_temp.ask(mode, 'NL') AS "NL", pg_temp.ask(mode, 'CR') AS "CR", pg_temp.ask(mode, 'CW') AS "CW",
       pg_temp.ask(mode, 'PR') AS "PR", pg_temp.ask(mode, 'PW') AS "PW", pg_temp.ask(mode, 'EX') AS "EX",
       pg_temp.ask(mode, 'shared') AS shared, pg_temp.ask(mode, 'exclusive') AS exclusive
  FROM (SELECT mode, n FROM modes UNION ALL VALUES ('shared', 7), ('exclusive', 8)) s ORDER BY n;
SELECT count(*) FROM dlock_leases WHERE name = 'mode-cell';

-- the words that are shown
SELECT count(dlock_acquire('mode-shown-' || i, 'mode-a', '1 h', mode => mode))
  FROM unnest('{exclusive,shared,NL,CR,CW,PR,PW,EX}'::text[]) WITH ORDINALITY u(mode, i);
SELECT name, mode, permits, holds, state, bind, pid FROM dlock_leases WHERE name LIKE 'mode-shown-%' ORDER BY name;
SELECT dlock_release_all('mode-a');

-- Convert while another owner holds: "same" or "new" token, "-" where it is refused, nothing where the two cannot
-- meet.  What is refused leaves the lease as it was.
CREATE FUNCTION pg_temp.convert(other text, held text, asked text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	holder bigint := dlock_acquire('mode-cell', 'mode-a', '1 h', mode => other);
	before bigint := dlock_acquire('mode-cell', 'mode-b', '1 h', mode => held);
	after bigint;
	shown text;
	result text;
BEGIN
	IF before IS NULL THEN
		PERFORM dlock_release_all('mode-a');
		RETURN '';
	END IF;
	after := dlock_convert('mode-cell', before, asked);
	result := CASE WHEN after IS NULL THEN '-' WHEN after = before THEN 'same' WHEN after > before THEN 'new' ELSE 'odd' END;
	IF NOT dlock_check('mode-cell', coalesce(after, before)) OR after <> before AND dlock_check('mode-cell', before) THEN
		result := 'wrong token';
	END IF;
	shown := CASE WHEN after IS NULL THEN held ELSE asked END;
	shown := CASE shown WHEN 'EX' THEN 'exclusive' WHEN 'PR' THEN 'shared' ELSE shown END;
	IF (SELECT array_agg(mode) FROM dlock_leases WHERE name = 'mode-cell' AND owner = 'mode-b') IS DISTINCT FROM ARRAY[shown] THEN
		result := 'wrong mode';
	END IF;
	IF NOT dlock_check('mode-cell', holder) OR dlock_release_all('mode-a') <> 1 OR dlock_release_all('mode-b') <> 1 THEN
		result := 'not released';
	END IF;
	RETURN result;
END $$;
SELECT o.mode AS other, h.mode AS held, pg_temp.convert(o.mode, h.mode, 'NL') AS "NL", pg_temp.convert(o.mode, h.mode, 'CR') AS "CR",
       pg_temp.convert(o.mode, h.mode, 'CW') AS "CW", pg_temp.convert(o.mode, h.mode, 'PR') AS "PR",
       pg_temp.convert(o.mode, h.mode, 'PW') AS "PW", pg_temp.convert(o.mode, h.mode, 'EX') AS "EX"
  FROM modes o, modes h WHERE pg_temp.compatible(o.mode, h.mode) ORDER BY o.n, h.n;
SELECT count(*) FROM dlock_leases WHERE name = 'mode-cell';

-- After a conversion, granted or refused, a third owner gets what is compatible with what is held then: every case.
CREATE FUNCTION pg_temp.third(other text, held text, asked text, third text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	now_held text := CASE WHEN pg_temp.compatible(other, asked) OR pg_temp.covers(held, asked) THEN asked ELSE held END;
	token bigint;
	ok boolean;
BEGIN
	PERFORM dlock_acquire('mode-cell', 'mode-a', '1 h', mode => other);
	token := dlock_acquire('mode-cell', 'mode-b', '1 h', mode => held);
	PERFORM dlock_convert('mode-cell', token, asked);
	ok := (dlock_acquire('mode-cell', 'mode-c', '1 h', mode => third) IS NOT NULL) =
		(pg_temp.compatible(other, third) AND pg_temp.compatible(now_held, third));
	PERFORM dlock_force_release('mode-cell', 'test');
	RETURN ok;
END $$;
SET client_min_messages = warning;
SELECT count(*) AS cases, count(*) FILTER (WHERE ok) AS right
  FROM (SELECT pg_temp.third(o.mode, h.mode, a.mode, t.mode) AS ok FROM modes o, modes h, modes a, modes t
         WHERE pg_temp.compatible(o.mode, h.mode)) s;
RESET client_min_messages;

-- the order in which they came does not matter: any three that are held together were compatible by twos
CREATE FUNCTION pg_temp.three(a text, b text, c text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	held text;
BEGIN
	PERFORM dlock_acquire('mode-cell', 'mode-a', '1 h', mode => a);
	PERFORM dlock_acquire('mode-cell', 'mode-b', '1 h', mode => b);
	PERFORM dlock_acquire('mode-cell', 'mode-c', '1 h', mode => c);
	SELECT string_agg(right(owner, 1), '' ORDER BY owner) FROM dlock_leases WHERE name = 'mode-cell' INTO held;
	PERFORM dlock_release('mode-cell', 'mode-' || o) FROM unnest('{b,a,c}'::text[]) o;
	RETURN held;
END $$;
SELECT count(*) AS cases,
       count(*) FILTER (WHERE held = 'a' || CASE WHEN ab THEN 'b' ELSE '' END || CASE WHEN ac AND (bc OR NOT ab) THEN 'c' ELSE '' END) AS right
  FROM (SELECT pg_temp.three(a.mode, b.mode, c.mode) AS held, pg_temp.compatible(a.mode, b.mode) AS ab,
               pg_temp.compatible(a.mode, c.mode) AS ac, pg_temp.compatible(b.mode, c.mode) AS bc
          FROM modes a, modes b, modes c) s;

-- a thousand readers: a writer gets nothing while one of them is left
SELECT count(token), count(DISTINCT token)
  FROM (SELECT dlock_acquire('mode-many', 'mode-' || i, '1 h', mode => 'shared') AS token FROM generate_series(1, 1000) i) s;
SELECT count(*) FROM dlock_leases WHERE name = 'mode-many' AND mode = 'shared';
SELECT dlock_acquire('mode-many', 'mode-writer', '1 h') AS refused;
SELECT count(*) FILTER (WHERE dlock_release('mode-many', 'mode-' || i)) FROM generate_series(1, 1000) i WHERE i <> 500;
SELECT dlock_acquire('mode-many', 'mode-writer', '1 h') AS refused;
SELECT dlock_release('mode-many', 'mode-500');
SELECT dlock_acquire('mode-many', 'mode-writer', '1 h') > 0 AS granted;
SELECT dlock_acquire('mode-many', 'mode-1', '1 h', mode => 'shared') AS refused;
SELECT dlock_release('mode-many', 'mode-writer');

-- readers have deadlines of their own
SELECT dlock_acquire('mode-own', 'mode-a', '1 ms', mode => 'shared') AS a \gset
SELECT dlock_acquire('mode-own', 'mode-b', '1 h', mode => 'shared') AS b \gset
SELECT pg_sleep(0.002);
SELECT dlock_check('mode-own', :a) AS a, dlock_check('mode-own', :b) AS b, dlock_renew('mode-own', 'mode-a') AS late,
       dlock_renew('mode-own', 'mode-b', '2 h') AS renewed;
SELECT owner, ttl FROM dlock_leases WHERE name = 'mode-own';
SELECT dlock_acquire('mode-own', 'mode-c', '1 h') AS refused;
SELECT dlock_release_token('mode-own', :a) AS expired, dlock_release_token('mode-own', :b) AS released;
SELECT dlock_acquire('mode-own', 'mode-c', '1 h') > :b AS granted;
SELECT dlock_release('mode-own', 'mode-c');

-- a forced release ends all of them, and says how many
SELECT count(dlock_acquire('mode-forced', 'mode-' || i, '1 h', mode => 'CW')) FROM generate_series(1, 7) i;
SELECT dlock_force_release('mode-forced', 'test');
SELECT dlock_force_release('mode-forced', 'test');
SELECT dlock_acquire('mode-forced', 'mode-1', '1 h') > 0 AS granted;
SELECT dlock_release('mode-forced', 'mode-1');
SELECT count(*) FROM dlock_leases WHERE name LIKE 'mode-%';
