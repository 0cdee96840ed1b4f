-- Proves: a path is locked together with intents on its ancestors, by one request and with one token; a lock on an ancestor and locks below keep each other out as multi-granularity locking says; siblings do not disturb each other.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'
CREATE TEMP VIEW held AS
	SELECT name, owner, mode, holds, state, token FROM dlock_leases WHERE name LIKE 'path-%' ORDER BY name COLLATE "C", owner, token;

-- the path and its ancestors, one token
SELECT dlock_acquire_path('path-1/b/c', 'path-a', '1 h', payload => '[1]') AS token \gset
SELECT name, owner, mode, permits, holds, state, bind, ttl, token = :token AS token FROM dlock_leases WHERE name LIKE 'path-%' ORDER BY name COLLATE "C";
SELECT payload FROM dlock_leases WHERE name = 'path-1/b/c';

-- by the path's name it is checked and renewed, by an ancestor's it is not
SELECT dlock_check('path-1/b/c', :token) AS path, dlock_check('path-1/b', :token) AS parent, dlock_check('path-1', :token) AS root;
SELECT dlock_renew_token('path-1/b/c', :token, '2 h') AS path, dlock_renew_token('path-1/b', :token, '3 h') AS parent, dlock_renew('path-1', 'path-a', '3 h') AS root;
SELECT name, ttl FROM dlock_leases WHERE name LIKE 'path-%' ORDER BY name COLLATE "C";
SELECT dlock_release_token('path-1/b', :token) AS parent, dlock_release_token('path-1', :token) AS root, dlock_release('path-1', 'path-a') AS root_by_owner;
\set VERBOSITY sqlstate
SELECT dlock_convert('path-1', :token, 'NL');
SELECT dlock_convert('path-1/b/c', :token, 'NL');
SELECT dlock_convert('path-1/b/c', :token, 'exclusive');
\set VERBOSITY default
SELECT count(*) FROM held;

-- it is not held twice
SELECT dlock_acquire_path('path-1/b/c', 'path-b', '1 h') AS refused, dlock_acquire('path-1/b/c', 'path-b', '1 h') AS refused_too,
       dlock_acquire_path('path-1/b/c', 'path-a', '1 h') AS refused_itself;
SELECT count(*) FROM held;

-- siblings, at each level, by others and by itself
SELECT dlock_acquire_path('path-1/b/d', 'path-b', '1 h') > :token AS granted, dlock_acquire_path('path-1/c', 'path-c', '1 h') > :token AS granted_too,
       dlock_acquire_path('path-1/b/e', 'path-a', '1 h') > :token AS granted_itself;
SELECT name, owner, mode, state FROM held;

-- a lock on an ancestor is kept out, and keeps out
SELECT dlock_acquire('path-1', 'path-d', '1 h') AS refused, dlock_acquire('path-1/b', 'path-d', '1 h', mode => 'shared') AS refused_too,
       dlock_acquire_path('path-1/b', 'path-d', '1 h') AS refused_as_well;
SELECT dlock_acquire('path-1', 'path-d', '1 h', mode => 'CR') > 0 AS granted;
SELECT dlock_release('path-1', 'path-d');

-- the release frees all of it, and of it only
SELECT dlock_release_token('path-1/b/c', :token), dlock_release_token('path-1/b/c', :token);
SELECT name, owner, mode FROM held;
SELECT dlock_release('path-1/b/e', 'path-a'), dlock_release('path-1/b/d', 'path-b');
SELECT name, owner, mode FROM held;
SELECT dlock_acquire('path-1/b', 'path-d', '1 h') > 0 AS granted, dlock_acquire('path-1', 'path-d', '1 h') AS refused;
SELECT dlock_release('path-1/b', 'path-d'), dlock_release_all('path-c');
SELECT name FROM held;
SELECT dlock_acquire('path-1', 'path-d', '1 h') > :token AS granted;
SELECT dlock_acquire_path('path-1/b/c', 'path-a', '1 h') AS refused;
SELECT name, mode FROM held;
SELECT dlock_release('path-1', 'path-d');

-- the intents of each mode
SELECT dlock_acquire_path('path-2-' || mode || '/x', 'path-a', '1 h', mode => mode) > 0 AS granted FROM unnest('{NL,CR,CW,PR,PW,EX,shared,exclusive}'::text[]) mode;
SELECT name, mode FROM held;
SELECT dlock_release_all('path-a');

-- every mode below while the root is held in every mode, and the other way round
CREATE FUNCTION pg_temp.below(root text, leaf text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	down text;
	up text;
BEGIN
	PERFORM dlock_acquire('path-3', 'path-a', '1 h', mode => root);
	down := CASE WHEN dlock_acquire_path('path-3/x/y', 'path-b', '1 h', mode => leaf) IS NULL THEN '-' ELSE 'yes' END;
	IF (SELECT count(*) FROM dlock_leases WHERE name LIKE 'path-3%') <> (CASE down WHEN 'yes' THEN 4 ELSE 1 END) THEN
		RETURN 'not all or none';
	END IF;
	IF dlock_release_all('path-a') <> 1 OR dlock_release_all('path-b') <> (down = 'yes')::int THEN
		RETURN 'not released';
	END IF;
	PERFORM dlock_acquire_path('path-3/x/y', 'path-b', '1 h', mode => leaf);
	up := CASE WHEN dlock_acquire('path-3', 'path-a', '1 h', mode => root) IS NULL THEN '-' ELSE 'yes' END;
	PERFORM dlock_release_all('path-a'), dlock_release_all('path-b');
	RETURN CASE WHEN up = down THEN up ELSE 'down ' || down || ', up ' || up END;
END $$;
SELECT mode AS root, pg_temp.below(mode, 'NL') AS "NL", pg_temp.below(mode, 'CR') AS "CR", pg_temp.below(mode, 'CW') AS "CW",
       pg_temp.below(mode, 'PR') AS "PR", pg_temp.below(mode, 'PW') AS "PW", pg_temp.below(mode, 'EX') AS "EX"
  FROM unnest('{NL,CR,CW,PR,PW,EX}'::text[]) WITH ORDINALITY m(mode, n) ORDER BY n;

-- two paths that meet, one below the other
CREATE FUNCTION pg_temp.nested(outer_mode text, inner_mode text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
BEGIN
	PERFORM dlock_acquire_path('path-4/a', 'path-a', '1 h', mode => outer_mode);
	result := CASE WHEN dlock_acquire_path('path-4/a/b', 'path-b', '1 h', mode => inner_mode) IS NULL THEN '-' ELSE 'yes' END;
	PERFORM dlock_release_all('path-a'), dlock_release_all('path-b');
	RETURN result;
END $$;
SELECT o AS "outer", i AS "inner", pg_temp.nested(o, i) FROM unnest('{shared,exclusive,PW}'::text[]) o, unnest('{shared,exclusive,CR}'::text[]) i ORDER BY 1, 2;
SELECT count(*) FROM held;

-- a reader of all, readers and a writer below
SELECT dlock_acquire('path-5', 'path-a', '1 h', mode => 'shared') > 0 AS granted;
SELECT dlock_acquire_path('path-5/x', 'path-b', '1 h', mode => 'shared') > 0 AS granted, dlock_acquire_path('path-5/x', 'path-c', '1 h', mode => 'shared') > 0 AS granted_too,
       dlock_acquire_path('path-5/y', 'path-d', '1 h') AS refused;
SELECT dlock_release('path-5', 'path-a');
SELECT dlock_acquire_path('path-5/y', 'path-d', '1 h') > 0 AS granted, dlock_acquire_path('path-5/x', 'path-d', '1 h') AS refused;
SELECT dlock_release_all('path-' || o) FROM unnest('{b,c,d}'::text[]) o;

-- re-entry
SELECT dlock_acquire_path('path-6/x', 'path-a', '1 h', reentry => 'count') AS token \gset
SELECT dlock_acquire_path('path-6/x', 'path-a', '2 h', reentry => 'count') = :token AS same;
SELECT dlock_acquire_path('path-6/x', 'path-a', '1 h', reentry => 'return') = :token AS same;
SELECT dlock_acquire_path('path-6/x', 'path-a', '1 h', reentry => 'deny') AS refused;
SELECT name, holds FROM held WHERE name = 'path-6/x';
SELECT min(remaining) > '1:59' AS extended, count(*) FROM dlock_leases WHERE name LIKE 'path-6%';
SELECT dlock_release_token('path-6/x', :token);
SELECT name FROM held;
SELECT dlock_release_token('path-6/x', :token);
SELECT name FROM held;

-- neither of a path and the lock of its name covers the other
SELECT dlock_acquire('path-6/x', 'path-a', '1 h') > 0 AS granted;
SELECT dlock_acquire_path('path-6/x', 'path-a', '1 h', reentry => 'count');
SELECT dlock_release('path-6/x', 'path-a');
SELECT dlock_acquire_path('path-6/x', 'path-a', '1 h') > 0 AS granted;
SELECT dlock_acquire('path-6/x', 'path-a', '1 h', reentry => 'return');
SELECT dlock_release('path-6/x', 'path-a');

-- a forced release of an ancestor ends all that go through it, and counts each once
SELECT dlock_acquire_path('path-7/a/b', 'path-a', '1 h') AS token \gset
SELECT dlock_acquire_path('path-7/a/c', 'path-b', '1 h') > 0 AS granted, dlock_acquire_path('path-7/d', 'path-c', '1 h') > 0 AS granted_too;
SELECT dlock_force_release('path-7/a', 'test');
SELECT name, owner FROM held;
SELECT dlock_check('path-7/a/b', :token), dlock_release_token('path-7/a/b', :token);
SELECT dlock_acquire_path('path-7/a/b', 'path-e', '1 h') > :token AS granted;
SELECT dlock_force_release('path-7', 'test');
SELECT name FROM held;

-- and that of a path ends the path
SELECT dlock_acquire_path('path-7/a/b', 'path-a', '1 h') > 0 AS granted;
SELECT dlock_force_release('path-7/a/b', 'test');
SELECT name FROM held;

-- an expired path is gone as a whole
SELECT dlock_acquire_path('path-8/a/b', 'path-a', '1 ms') > 0 AS granted;
SELECT pg_sleep(0.002);
SELECT name FROM held;
SELECT dlock_acquire('path-8', 'path-b', '1 h') > 0 AS granted;
SELECT dlock_release('path-8', 'path-b');

-- bound to a transaction
BEGIN;
SAVEPOINT s;
SELECT dlock_acquire_path('path-9/a', 'path-a', bind => 'transaction') > 0 AS granted;
SELECT name, bind, pid = pg_backend_pid() AS mine, ttl FROM dlock_leases WHERE name LIKE 'path-9%' ORDER BY name COLLATE "C";
ROLLBACK TO s;
SELECT name FROM held;
SELECT dlock_acquire_path('path-9/a', 'path-a', bind => 'transaction') > 0 AS granted;
COMMIT;
SELECT name FROM held;

-- one part is a lock like others; so is a name with slashes that is no path
SELECT dlock_acquire_path('path-10', 'path-a', '1 h') > 0 AS granted;
SELECT dlock_acquire('path-10', 'path-b', '1 h') AS refused;
SELECT dlock_release('path-10', 'path-a');
SELECT dlock_acquire('path-10//x/', 'path-a', '1 h') > 0 AS granted;
SELECT name FROM held;
SELECT dlock_release('path-10//x/', 'path-a');

-- all of an owner's; renew_all
SELECT dlock_acquire_path('path-11/a/b', 'path-a', '1 h') > 0 AS granted, dlock_acquire('path-11/x', 'path-a', '1 h') > 0 AS granted_too;
SELECT dlock_renew_all('path-a', '2 h');
SELECT name, ttl FROM dlock_leases WHERE name LIKE 'path-11%' ORDER BY name COLLATE "C";
SELECT dlock_release_all('path-a');
SELECT name FROM held;

-- a semaphore is no ancestor
SELECT dlock_acquire('path-12', 'path-a', '1 h', permits => 3) > 0 AS granted;
\set VERBOSITY sqlstate
SELECT dlock_acquire_path('path-12/a', 'path-a', '1 h');
\set VERBOSITY default
SELECT dlock_release('path-12', 'path-a');
SELECT dlock_acquire_path('path-12/a', 'path-a', '1 h') > 0 AS granted;
\set VERBOSITY sqlstate
SELECT dlock_acquire('path-12', 'path-a', '1 h', permits => 3);
\set VERBOSITY default
SELECT dlock_release('path-12/a', 'path-a');

-- an owner's intents are no leases of its own: it may have a lock as well, if that is compatible
SELECT dlock_acquire_path('path-16/x', 'path-a', '1 h') > 0 AS granted;
SELECT dlock_acquire('path-16', 'path-a', '1 h') AS refused, dlock_acquire('path-16', 'path-a', '1 h', mode => 'CR', reentry => 'count') > 0 AS granted;
SELECT dlock_acquire('path-16', 'path-a', '1 h', mode => 'CR') AS refused;
SELECT name, mode, holds FROM held;
SELECT dlock_release('path-16', 'path-a'), dlock_release('path-16', 'path-a');
SELECT name, mode, holds FROM held;
SELECT dlock_release_all('path-a');

-- as deep and as long as a path may be
SELECT dlock_acquire_path('path-13' || repeat('/x', 31), 'path-a', '1 h') AS token \gset
SELECT count(*), count(*) FILTER (WHERE mode = 'CW') AS intents, count(DISTINCT token) AS tokens, max(length(name)) FROM dlock_leases WHERE name LIKE 'path-13%';
SELECT dlock_release_token('path-13' || repeat('/x', 31), :token);
SELECT dlock_acquire_path('path-14' || repeat('/' || repeat('y', 7), 31), 'path-a', '1 h') > 0 AS granted;
SELECT dlock_acquire_path('path-14/' || repeat('z', 247), repeat('o', 255), '1 h', payload => to_jsonb(repeat('p', 1000))) > 0 AS granted;
SELECT count(*), max(length(name)), sum(length(owner)) FROM dlock_leases WHERE name LIKE 'path-14%';
SELECT dlock_force_release('path-14', 'test');

-- what is no path
SELECT dlock_acquire_path('path-15' || repeat('/x', 32), 'path-a');
SELECT dlock_acquire_path('path-15/' || repeat('z', 248), 'path-a');
SELECT dlock_acquire_path('', 'path-a');
SELECT dlock_acquire_path(NULL, 'path-a');
SELECT dlock_acquire_path('/', 'path-a');
SELECT dlock_acquire_path('/path-15', 'path-a');
SELECT dlock_acquire_path('path-15/', 'path-a');
SELECT dlock_acquire_path('path-15//x', 'path-a');
SELECT count(*) FROM dlock_leases WHERE name LIKE '%path-%';
