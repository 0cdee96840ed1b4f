-- Proves: a lease bound to a transaction or a session ends with it, savepoints and failures included, and not before; it has no deadline unless it was given one.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'
CREATE TEMP VIEW held AS
	SELECT name, owner, bind, pid = pg_backend_pid() AS mine, ttl, remaining, expires_at FROM dlock_leases
	 WHERE name LIKE 'bind-%' ORDER BY name COLLATE "C";

-- transaction: until COMMIT, until ROLLBACK, until the end of the statement
BEGIN;
SELECT dlock_acquire('bind-1', 'bind-a', bind => 'transaction') AS token \gset
SELECT * FROM held;
SELECT dlock_check('bind-1', :token), dlock_acquire('bind-1', 'bind-b', '1 h') IS NULL AS refused;
COMMIT;
SELECT * FROM held;
SELECT dlock_check('bind-1', :token), dlock_release_token('bind-1', :token), dlock_renew('bind-1', 'bind-a');
BEGIN;
SELECT dlock_acquire('bind-1', 'bind-b', bind => 'transaction') > :token AS granted;
ROLLBACK;
SELECT * FROM held;
SELECT dlock_acquire('bind-1', 'bind-a', bind => 'transaction') > :token AS granted;
SELECT * FROM held;

-- in a transaction that fails: at once
BEGIN;
SELECT dlock_acquire('bind-1', 'bind-a', bind => 'transaction') > 0 AS granted;
SELECT 1 / 0;
COMMIT;
SELECT * FROM held;
SELECT dlock_acquire('bind-1', 'bind-a', bind => 'transaction') / 0;
SELECT * FROM held;

-- savepoints: what was acquired since is gone, what was held before is not
BEGIN;
SELECT dlock_acquire('bind-before', 'bind-a', bind => 'transaction') > 0 AS granted;
SAVEPOINT one;
SELECT dlock_acquire('bind-one', 'bind-a', bind => 'transaction') > 0 AS granted;
SAVEPOINT two;
SELECT dlock_acquire('bind-two', 'bind-a', bind => 'transaction') > 0 AS granted;
ROLLBACK TO two;
SELECT name FROM held;
SELECT dlock_acquire('bind-two', 'bind-a', bind => 'transaction') > 0 AS granted;
RELEASE two;
SELECT name FROM held;
ROLLBACK TO one;
SELECT name FROM held;
SELECT dlock_acquire('bind-one', 'bind-a', bind => 'transaction') > 0 AS granted;
RELEASE one;
SELECT name FROM held;
SAVEPOINT three;
SELECT dlock_acquire('bind-three', 'bind-a', bind => 'transaction') > 0 AS granted;
SELECT 1 / 0;
ROLLBACK TO three;
SELECT name FROM held;
COMMIT;
SELECT name FROM held;

-- a savepoint that is released and then undone with the one around it; released and committed
BEGIN;
SAVEPOINT outside;
SAVEPOINT inside;
SELECT dlock_acquire('bind-inside', 'bind-a', bind => 'transaction') > 0 AS granted;
RELEASE inside;
SELECT name FROM held;
ROLLBACK TO outside;
SELECT name FROM held;
SAVEPOINT inside;
SELECT dlock_acquire('bind-inside', 'bind-a', bind => 'transaction') > 0 AS granted;
RELEASE inside;
RELEASE outside;
SELECT name FROM held;
COMMIT;
SELECT name FROM held;
BEGIN;
SAVEPOINT s;
SELECT dlock_acquire('bind-inside', 'bind-a', bind => 'transaction') > 0 AS granted;
RELEASE s;
ROLLBACK;
SELECT name FROM held;

-- a release is not undone, and frees the name for others at once
BEGIN;
SELECT dlock_acquire('bind-released', 'bind-a', bind => 'transaction') > 0 AS granted;
SAVEPOINT s;
SELECT dlock_release('bind-released', 'bind-a');
SELECT dlock_acquire('bind-released', 'bind-b', '1 h') AS other \gset
ROLLBACK TO s;
SELECT name, owner FROM held;
COMMIT;
SELECT name, owner FROM held;
SELECT dlock_check('bind-released', :other), dlock_release('bind-released', 'bind-b');

-- a block with an exception handler is a savepoint
BEGIN;
DO $$
BEGIN
	BEGIN
		PERFORM dlock_acquire('bind-block-1', 'bind-a', bind => 'transaction');
		PERFORM dlock_acquire('bind-block-2', 'bind-a', '1 h');
		PERFORM dlock_acquire('bind-block-3', 'bind-a', bind => 'session');
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		NULL;
	END;
	BEGIN
		PERFORM dlock_acquire('bind-block-4', 'bind-a', bind => 'transaction');
	EXCEPTION WHEN division_by_zero THEN
		NULL;
	END;
END $$;
SELECT name, bind FROM held;
COMMIT;
SELECT name, bind FROM held;
SELECT dlock_release_all('bind-a');

-- a procedure that commits and rolls back
CREATE PROCEDURE pg_temp.steps() LANGUAGE plpgsql AS $$
DECLARE
	seen text := '';
BEGIN
	PERFORM dlock_acquire('bind-p1', 'bind-a', bind => 'transaction');
	seen := seen || (SELECT count(*) FROM dlock_leases WHERE name LIKE 'bind-p%');
	COMMIT;
	seen := seen || (SELECT count(*) FROM dlock_leases WHERE name LIKE 'bind-p%');
	PERFORM dlock_acquire('bind-p2', 'bind-a', bind => 'transaction');
	seen := seen || (SELECT count(*) FROM dlock_leases WHERE name LIKE 'bind-p%');
	ROLLBACK;
	seen := seen || (SELECT count(*) FROM dlock_leases WHERE name LIKE 'bind-p%');
	RAISE WARNING 'seen: %', seen;
END $$;
CALL pg_temp.steps();

-- two-phase commit
BEGIN;
SELECT dlock_acquire('bind-2pc', 'bind-a', bind => 'transaction') > 0 AS granted;
PREPARE TRANSACTION 'bind';
SELECT * FROM held;
BEGIN;
SAVEPOINT s;
SELECT dlock_acquire('bind-2pc', 'bind-a', bind => 'transaction') > 0 AS granted;
RELEASE s;
\set VERBOSITY sqlstate
PREPARE TRANSACTION 'bind';
\set VERBOSITY default
SELECT * FROM held;

-- many at once, of all kinds, out of order
BEGIN;
SELECT count(dlock_acquire('bind-many-' || i, 'bind-a', bind => 'transaction')) FROM generate_series(1, 1000) i;
SAVEPOINT s;
SELECT count(dlock_acquire('bind-some-' || i, 'bind-a', bind => (ARRAY['transaction', 'session', 'none'])[1 + i % 3], ttl => '1 h')) FROM generate_series(1, 999) i;
SELECT count(*) FILTER (WHERE dlock_release('bind-many-' || i, 'bind-a')) FROM generate_series(1, 1000, 2) i;
SELECT count(*), count(ttl) FROM held;
ROLLBACK TO s;
SELECT bind, count(*) FROM held GROUP BY bind ORDER BY bind;
COMMIT;
SELECT bind, count(*) FROM held GROUP BY bind ORDER BY bind;
SELECT dlock_release_all('bind-a');

-- session: longer than any transaction
BEGIN;
SAVEPOINT s;
SELECT dlock_acquire('bind-session', 'bind-a', bind => 'session') AS token \gset
ROLLBACK TO s;
SELECT name, bind FROM held;
ROLLBACK;
SELECT * FROM held;
SELECT state, holds, permits, mode FROM dlock_leases WHERE name = 'bind-session';
BEGIN;
SELECT dlock_check('bind-session', :token), dlock_acquire('bind-session', 'bind-b') AS refused;
COMMIT;
SELECT 1 / 0;
SELECT name, bind FROM held;
SELECT dlock_release_token('bind-session', :token), dlock_check('bind-session', :token);
SELECT name FROM held;

-- modes, permits, paths, conversions and re-entry are the same as without
BEGIN;
SELECT dlock_acquire('bind-mode', 'bind-a', mode => 'shared', bind => 'transaction') AS token \gset
SELECT dlock_acquire('bind-mode', 'bind-b', '1 h', mode => 'shared') > 0 AS granted;
SELECT dlock_convert('bind-mode', :token, 'exclusive') AS refused;
SELECT dlock_release('bind-mode', 'bind-b');
SELECT dlock_convert('bind-mode', :token, 'exclusive') AS token \gset
SELECT dlock_acquire('bind-mode', 'bind-a', bind => 'transaction', reentry => 'count') = :token AS same;
SELECT dlock_acquire('bind-permit', 'bind-a', permits => 1, bind => 'transaction') > 0 AS granted;
SELECT dlock_acquire('bind-permit', 'bind-b', permits => 1, bind => 'transaction') AS refused;
SELECT dlock_acquire_path('bind-path/a/b', 'bind-a', bind => 'transaction') > 0 AS granted;
SELECT l.name, l.mode, l.bind, l.holds, l.pid = pg_backend_pid() AS mine, l.ttl FROM dlock_leases l WHERE name LIKE 'bind-%' ORDER BY name COLLATE "C";
COMMIT;
SELECT name FROM held;

-- a deadline of its own ends it too
BEGIN;
SELECT dlock_acquire('bind-ttl-1', 'bind-a', '1 h', bind => 'transaction') > 0 AS granted;
SELECT dlock_acquire('bind-ttl-2', 'bind-a', '1 ms', bind => 'transaction') > 0 AS granted;
SELECT dlock_acquire('bind-ttl-3', 'bind-a', '1 ms', bind => 'session') > 0 AS granted;
SELECT pg_sleep(0.002);
SELECT name, bind, ttl, remaining BETWEEN '59 min' AND '1 h' AS an_hour FROM held;
SELECT dlock_acquire('bind-ttl-2', 'bind-b', '1 h') > 0 AS granted, dlock_acquire('bind-ttl-3', 'bind-b', '1 h') > 0 AS granted;
COMMIT;
SELECT name, owner FROM held;
SELECT dlock_release_all('bind-b');

-- renewals: without a ttl there is nothing to extend; with one it gets a deadline
BEGIN;
SELECT dlock_acquire('bind-renew', 'bind-a', bind => 'transaction') AS token \gset
SELECT dlock_renew('bind-renew', 'bind-a'), dlock_renew_token('bind-renew', :token), dlock_renew_all('bind-a');
SELECT ttl, remaining, expires_at FROM held;
SELECT dlock_renew('bind-renew', 'bind-a', '2 h');
SELECT ttl, remaining BETWEEN '1:59' AND '2:00' AS two_hours, expires_at - clock_timestamp() BETWEEN '1:59' AND '2:00' AS expires FROM held;
COMMIT;
SELECT name FROM held;

-- the settings for time do not matter to it
SET dlock.default_ttl = '1 ms';
BEGIN;
SELECT dlock_acquire('bind-default', 'bind-a', bind => 'transaction') AS token \gset
SELECT pg_sleep(0.002);
SELECT dlock_check('bind-default', :token);
ROLLBACK;
RESET dlock.default_ttl;

-- release_all and forced releases end it
BEGIN;
SELECT count(dlock_acquire('bind-all-' || i, 'bind-a', bind => (ARRAY['transaction', 'session'])[1 + i % 2])) FROM generate_series(1, 10) i;
SELECT dlock_force_release('bind-all-1', 'test'), dlock_force_release('bind-all-2', 'test');
SELECT dlock_release_all('bind-a');
COMMIT;
SELECT name FROM held;

-- what others acquired under the same name meanwhile is not touched at the end
BEGIN;
SELECT dlock_acquire('bind-other', 'bind-a', bind => 'transaction') > 0 AS granted;
SELECT dlock_release('bind-other', 'bind-a');
SELECT dlock_acquire('bind-other', 'bind-a', '1 h') AS token \gset
COMMIT;
SELECT dlock_check('bind-other', :token), dlock_release('bind-other', 'bind-a');

-- one that is not bound stays so when it is entered again in a transaction, and one that is bound stays bound
SELECT dlock_acquire('bind-again-1', 'bind-a', '1 h') AS token \gset
BEGIN;
SELECT dlock_acquire('bind-again-1', 'bind-a', '1 h', reentry => 'return', bind => 'transaction') = :token AS same;
COMMIT;
SELECT name, bind, holds FROM dlock_leases WHERE name = 'bind-again-1';
BEGIN;
SELECT dlock_acquire('bind-again-1', 'bind-a', '1 h', reentry => 'count', bind => 'transaction') = :token AS same;
ROLLBACK;
SELECT dlock_check('bind-again-1', :token), dlock_release_all('bind-a');
BEGIN;
SELECT dlock_acquire('bind-again-2', 'bind-a', bind => 'transaction') AS token \gset
SELECT dlock_acquire('bind-again-2', 'bind-a', '1 h', reentry => 'count') = :token AS same;
SELECT name, bind, holds, ttl FROM dlock_leases WHERE name = 'bind-again-2';
SAVEPOINT s;
SELECT dlock_acquire('bind-again-2', 'bind-a', reentry => 'return', bind => 'transaction') = :token AS same;
ROLLBACK TO s;
SELECT dlock_check('bind-again-2', :token);
COMMIT;
SELECT dlock_check('bind-again-2', :token);

-- a deferred trigger acquires at the very end
CREATE TEMP TABLE bind_t (name text);
CREATE FUNCTION pg_temp.take() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM dlock_acquire(NEW.name, 'bind-a', bind => 'transaction');
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER take AFTER INSERT ON bind_t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pg_temp.take();
INSERT INTO bind_t VALUES ('bind-deferred');
SELECT name FROM held;
SELECT count(*) FROM dlock_leases WHERE name LIKE 'bind-%';
