-- Proves: a release frees the lease it names, at once, and never another one.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'

-- by owner, then by token; the second time there is nothing left
SELECT dlock_acquire('release-1', 'alice', '1 h') > 0 AS granted;
SELECT dlock_release('release-1', 'alice');
SELECT dlock_release('release-1', 'alice');
SELECT dlock_acquire('release-1', 'alice', '1 h') AS token \gset
SELECT dlock_release_token('release-1', :token);
SELECT dlock_release_token('release-1', :token);
SELECT count(*) FROM dlock_leases WHERE name = 'release-1';

-- a stranger's name, another token, the right token under another name: all stay
SELECT dlock_acquire('release-2', 'alice', '1 h') AS token \gset
SELECT dlock_acquire('release-3', 'bob', '1 h') AS other \gset
SELECT dlock_release('release-2', 'bob') AS stranger, dlock_release_token('release-2', :other) AS other_token,
       dlock_release_token('release-3', :token) AS other_name, dlock_release_token('release-2', 9223372036854775807) AS far_token,
       dlock_release('release-nobody', 'alice') AS nobody;
SELECT dlock_check('release-2', :token), dlock_check('release-3', :other);

-- the late release of a holder whose lease ended does not free its successor's: by token ...
SELECT dlock_acquire('release-4', 'alice', '1 ms') AS late \gset
SELECT pg_sleep(0.002);
SELECT dlock_acquire('release-4', 'bob', '1 h') AS token \gset
SELECT dlock_release_token('release-4', :late) AS by_token, dlock_release('release-4', 'alice') AS by_owner;
SELECT dlock_check('release-4', :token);

-- ... even if the successor has the same owner
SELECT dlock_release('release-4', 'bob');
SELECT dlock_acquire('release-4', 'alice', '1 h') AS token \gset
SELECT dlock_release_token('release-4', :late) AS by_token;
SELECT dlock_check('release-4', :token);

-- an expired lease cannot be released: the answer says that it was lost
SELECT dlock_acquire('release-5', 'alice', '1 ms') AS token \gset
SELECT pg_sleep(0.002);
SELECT dlock_release('release-5', 'alice') AS by_owner, dlock_release_token('release-5', :token) AS by_token;

-- all of an owner's leases; not those that ended, not another owner's
SELECT count(dlock_acquire('release-all-' || i, 'release-all', '1 h', payload => to_jsonb(repeat('x', i * 9))))
  FROM generate_series(1, 100) i;
SELECT dlock_acquire('release-all-dead', 'release-all', '1 microsecond') > 0 AS granted;
SELECT dlock_acquire('release-all-other', 'release-all-other', '1 h') > 0 AS granted;
SELECT pg_sleep(0.001);
SELECT dlock_release_all('release-all');
SELECT dlock_release_all('release-all');
SELECT name FROM dlock_leases WHERE name LIKE 'release-all-%';

-- what was released can be had again, by anybody
SELECT count(dlock_acquire('release-all-' || i, 'release-all-other', '1 h')) FROM generate_series(1, 100) i;
SELECT dlock_release_all('release-all-other');

-- force-release ends a lease whoever holds it, and says how many there were
SELECT dlock_acquire('release-6', 'alice', '1 h') AS token \gset
SELECT dlock_force_release('release-6', 'the worker is known to be dead');
SELECT dlock_check('release-6', :token), dlock_renew('release-6', 'alice'), dlock_release('release-6', 'alice');
SELECT dlock_force_release('release-6', 'again'), dlock_force_release('release-nobody', 'nobody');
SELECT dlock_acquire('release-6', 'bob', '1 h') > :token AS larger;

-- pairs in one statement, over and over
SELECT count(token), bool_and(dlock_release_token('release-7', token))
  FROM (SELECT dlock_acquire('release-7', 'alice', '1 h') AS token FROM generate_series(1, 1) i) s;
DO $$
DECLARE
	token bigint;
	last bigint := 0;
BEGIN
	FOR i IN 1 .. 10000 LOOP
		token := dlock_acquire('release-7', 'alice', '1 h');
		IF token IS NULL OR token <= last THEN
			RAISE EXCEPTION 'pair %: token % after %', i, token, last;
		END IF;
		last := token;
		IF NOT dlock_release_token('release-7', token) THEN
			RAISE EXCEPTION 'pair %: not released', i;
		END IF;
	END LOOP;
END $$;

SELECT dlock_release('release-2', 'alice'), dlock_release('release-3', 'bob'), dlock_release('release-4', 'alice'),
       dlock_release('release-6', 'bob');

-- an owner is a text, and a token a bigint, whatever a driver sends: the name of the function tells
SELECT dlock_acquire('release-driver', 'alice', '1 h') AS token \gset
SELECT dlock_renew_token('release-driver', :'token'), dlock_renew_token('release-driver', :'token', '2 h');
SELECT dlock_renew('release-driver', :'token') AS as_owner, dlock_release('release-driver', :'token') AS as_owner;
PREPARE release_driver(unknown, unknown) AS SELECT dlock_release_token($1, $2);
EXECUTE release_driver('release-driver', :'token');

-- so no two functions have one name
SELECT p.proname FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
 WHERE d.refclassid = 'pg_extension'::regclass AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'dlock') AND d.deptype = 'e'
 GROUP BY p.proname HAVING count(*) > 1;

-- without an owner it is this session's
SELECT dlock_acquire('release-session') > 0 AS acquired;
SELECT dlock_renew('release-session'), dlock_renew('release-session', ttl => '1 h'), dlock_renew_all(), dlock_release('release-session'), dlock_release('release-session');
SELECT dlock_acquire('release-session') > 0 AS acquired, dlock_release_all();
