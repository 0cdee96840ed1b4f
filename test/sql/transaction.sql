-- Proves: grants, renewals and releases take effect at once and are not undone, under every isolation level, whatever becomes of the transaction or subtransaction that made them.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'

CREATE TEMP VIEW mine AS SELECT name, owner, ttl FROM dlock_leases WHERE name LIKE 'transaction-%' ORDER BY name;

-- READ COMMITTED: a rollback undoes nothing
BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT dlock_acquire('transaction-rc', 'alice', '1 h') > 0 AS granted;
SELECT dlock_acquire('transaction-rc-released', 'alice', '1 h') > 0 AS granted;
SELECT dlock_release('transaction-rc-released', 'alice');
SELECT dlock_renew('transaction-rc', 'alice', '2 h');
SELECT * FROM mine;
ROLLBACK;
SELECT * FROM mine;
SELECT dlock_acquire('transaction-rc', 'bob', '1 h') AS refused;

-- REPEATABLE READ: what others did after the snapshot is seen, since it is no matter of snapshots
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM mine;
SELECT dlock_acquire('transaction-rr', 'alice', '1 h') > 0 AS granted;
SELECT dlock_acquire('transaction-rr', 'alice', '1 h') AS refused;
SELECT * FROM mine;
ROLLBACK;
SELECT * FROM mine;

-- SERIALIZABLE
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT dlock_acquire('transaction-s', 'alice', '1 h') > 0 AS granted;
SELECT dlock_renew('transaction-s', 'alice', '3 h'), dlock_release('transaction-rr', 'alice');
SELECT * FROM mine;
ROLLBACK;
SELECT * FROM mine;
BEGIN ISOLATION LEVEL SERIALIZABLE, READ WRITE, NOT DEFERRABLE;
SELECT dlock_release('transaction-s', 'alice'), dlock_release('transaction-rc', 'alice');
COMMIT;
SELECT * FROM mine;

-- ROLLBACK TO undoes neither a grant nor a release
BEGIN;
SELECT dlock_acquire('transaction-before', 'alice', '1 h') > 0 AS granted;
SAVEPOINT s;
SELECT dlock_release('transaction-before', 'alice');
SELECT dlock_acquire('transaction-inside', 'alice', '1 h') AS token \gset
ROLLBACK TO s;
SELECT * FROM mine;
SELECT dlock_check('transaction-inside', :token);
SAVEPOINT t;
SELECT dlock_renew_token('transaction-inside', :token, '5 h');
RELEASE t;
COMMIT;
SELECT * FROM mine;
SELECT dlock_release_token('transaction-inside', :token);

-- an exception block in plpgsql
DO $$
DECLARE
	token bigint;
BEGIN
	BEGIN
		token := dlock_acquire('transaction-plpgsql', 'alice', '1 h');
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		IF NOT dlock_check('transaction-plpgsql', token) THEN
			RAISE EXCEPTION 'undone by the exception';
		END IF;
	END;
END $$;
SELECT * FROM mine;
SELECT dlock_release('transaction-plpgsql', 'alice');

-- a statement that fails after the grant, alone and in a transaction
SELECT dlock_acquire('transaction-failed', 'alice', '1 h') / 0;
SELECT * FROM mine;
BEGIN;
SELECT dlock_release('transaction-failed', 'alice');
SELECT dlock_acquire('transaction-failed-2', 'alice', '1 h') / 0;
\set VERBOSITY sqlstate
SELECT dlock_release('transaction-failed-2', 'alice');
\set VERBOSITY default
COMMIT;
SELECT * FROM mine;
SELECT dlock_release('transaction-failed-2', 'alice');

-- a procedure that commits and rolls back between its steps
CREATE PROCEDURE steps() LANGUAGE plpgsql AS $$
BEGIN
	PERFORM dlock_acquire('transaction-p1', 'alice', '1 h');
	ROLLBACK;
	PERFORM dlock_acquire('transaction-p2', 'alice', '1 h');
	COMMIT;
	PERFORM dlock_release('transaction-p1', 'alice');
	ROLLBACK;
END $$;
CALL steps();
SELECT * FROM mine;
SELECT dlock_release('transaction-p2', 'alice');
DROP PROCEDURE steps();

-- a deferred trigger at commit, and one in a transaction that then fails
CREATE TABLE transaction_t (name text);
CREATE FUNCTION take() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM dlock_acquire(NEW.name, 'trigger', '1 h');
	IF NEW.name LIKE '%fail' THEN
		RAISE EXCEPTION 'too late';
	END IF;
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER take AFTER INSERT ON transaction_t DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION take();
BEGIN;
INSERT INTO transaction_t VALUES ('transaction-d1');
SELECT * FROM mine;
COMMIT;
\set SHOW_CONTEXT never
INSERT INTO transaction_t VALUES ('transaction-d2-fail');
\set SHOW_CONTEXT errors
SELECT * FROM mine;
SELECT dlock_release_all('trigger');
DROP TABLE transaction_t;
DROP FUNCTION take();

-- no lock of the store's table is kept to the end of the transaction, and no transaction id is taken
BEGIN;
SELECT dlock_acquire('transaction-locks', 'alice', '1 h') AS token \gset
SELECT dlock_renew_token('transaction-locks', :token, '2 h'), dlock_check('transaction-locks', :token);
SELECT count(*) > 0 AS seen FROM dlock_leases;
SELECT dlock_release_token('transaction-locks', :token);
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND relation IN ('_dlock.store'::regclass, '_dlock.token_seq'::regclass);
SELECT pg_current_xact_id_if_assigned() IS NULL AS none;
COMMIT;
