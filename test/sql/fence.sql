-- Proves: a token below the highest that a resource has seen is refused, within a transaction, after it, and after a
-- rollback; a pass holds as long as its savepoint; a mark is lowered by the owner of the extension alone.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

-- the first token makes the mark; the same one passes again, a higher one raises it, a lower one is refused
SELECT dlock_fence('fence-1', 10);
SELECT dlock_fence('fence-1', 10);
SELECT dlock_fence('fence-1', 12);
SELECT dlock_fence('fence-1', 11);
SELECT resource, token, raised_by = current_user AS by_us, clock_timestamp() - raised_at < '1 min' AS now
  FROM dlock_fences WHERE resource = 'fence-1';

-- within one transaction
BEGIN;
SELECT dlock_fence('fence-1', 13);
SELECT dlock_fence('fence-1', 14);
SELECT dlock_fence('fence-1', 14);
SELECT dlock_fence('fence-1', 13);
ROLLBACK;
SELECT token FROM dlock_fences WHERE resource = 'fence-1';

-- nobody can choose a resource that shares the lock of another one: the lock's key is no hash that can be computed
BEGIN;
SELECT dlock_fence('fence-1', 16);
SELECT count(*), bool_or((classid::bigint << 32) + objid::bigint = hashtextextended('fence-1', 0)) AS is_plain
  FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND objsubid NOT IN (1, 2);
ROLLBACK;

-- twice in one statement
SELECT count(dlock_fence('fence-1', t)) FROM generate_series(13, 15) t;
SELECT token FROM dlock_fences WHERE resource = 'fence-1';

-- savepoints: what is rolled back has not passed
BEGIN;
SELECT dlock_fence('fence-1', 16);
SAVEPOINT a;
SELECT dlock_fence('fence-1', 17);
SAVEPOINT b;
SELECT dlock_fence('fence-1', 18);
RELEASE b;
ROLLBACK TO a;
SELECT dlock_fence('fence-1', 16);
SELECT token FROM dlock_fences WHERE resource = 'fence-1';
SELECT mode, count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 25709 GROUP BY mode ORDER BY mode;
SAVEPOINT c;
SELECT dlock_fence('fence-1', 19);
RELEASE c;
SELECT dlock_fence('fence-1', 18);
ROLLBACK;
SELECT token FROM dlock_fences WHERE resource = 'fence-1';

-- the transaction's locks end with it
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 25709;

-- under every isolation level, what counts is the newest mark, and nothing has to be tried again
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT token FROM dlock_fences WHERE resource = 'fence-1';
SELECT dlock_fence('fence-1', 20);
SELECT dlock_fence('fence-2', 20);
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT dlock_fence('fence-1', 21);
SELECT dlock_fence('fence-1', 20);
COMMIT;
SELECT resource, token FROM dlock_fences WHERE resource LIKE 'fence-%' ORDER BY resource;

-- reading under a fence
BEGIN READ ONLY;
SELECT dlock_fence('fence-1', 20);
SELECT dlock_fence('fence-1', 21);
ROLLBACK;

\set VERBOSITY sqlstate
-- live: the token has to be that of the holder, now and at commit
SELECT dlock_acquire('fence-3', 'a', '1 h') AS before \gset
SELECT dlock_release('fence-3', 'a');
SELECT dlock_acquire('fence-3', 'a', '1 h') AS token \gset
SELECT dlock_fence('fence-3', :token, live => true);
BEGIN;
SELECT dlock_fence('fence-3', :token, true);
SELECT dlock_release('fence-3', 'a');
COMMIT;
SELECT dlock_fence('fence-3', :token, true);
SELECT dlock_fence('fence-3', :token);
SELECT dlock_fence('fence-3', :before);

-- a lease that ends with the transaction is live at its commit
BEGIN;
SELECT dlock_fence('fence-4', dlock_acquire('fence-4', bind => 'transaction'), live => true);
COMMIT;
-- a lease that is converted has another token, and the old one is past
SELECT dlock_acquire('fence-4', 'a', '1 h', mode => 'shared') AS token \gset
BEGIN;
SELECT dlock_fence('fence-4', :token, true);
SELECT dlock_fence('fence-4', dlock_convert('fence-4', :token, 'exclusive'), true);
COMMIT;
SELECT dlock_release('fence-4', 'a');
-- what a savepoint has taken back need not be live
SELECT dlock_acquire('fence-4', 'a', '1 h') AS token \gset
BEGIN;
SAVEPOINT a;
SELECT dlock_fence('fence-4', :token, true);
ROLLBACK TO a;
SELECT dlock_release('fence-4', 'a');
COMMIT;

\set VERBOSITY default
-- bad input
SELECT dlock_fence(NULL, 1);
SELECT dlock_fence('', 1);
SELECT dlock_fence(repeat('x', 256), 1);
SELECT dlock_fence('fence-5', NULL);
SELECT dlock_fence('fence-5', 0);
SELECT dlock_fence('fence-5', -1);
SELECT dlock_fence('fence-5', 1, NULL);
SELECT count(*) FROM dlock_fences WHERE resource = 'fence-5';
SELECT dlock_fence(repeat('x', 255), 1);

DELETE FROM _dlock.fence_mark WHERE resource = 'fence-1';

-- a table of marks that was altered: refused
BEGIN;
SELECT dlock_fence('fence-1', 10);
SAVEPOINT a;
ALTER TABLE _dlock.fence_mark ADD COLUMN a text;
SELECT dlock_fence('fence-1', 11);
ROLLBACK TO a;
ALTER TABLE _dlock.fence_mark ADD CONSTRAINT u UNIQUE (token) DEFERRABLE;
SELECT dlock_fence('fence-1', 11);
ROLLBACK TO a;
ALTER TABLE _dlock.fence_mark DROP CONSTRAINT fence_mark_pkey;
SELECT dlock_fence('fence-1', 11);
ROLLBACK TO a;
CREATE INDEX ON _dlock.fence_mark (token);
SELECT dlock_fence('fence-1', 11);
ROLLBACK TO a;
SELECT dlock_fence('fence-1', 11);
ROLLBACK;
BEGIN;
ALTER TABLE _dlock.fence_mark SET UNLOGGED;
SELECT dlock_fence('fence-1', 11);
ROLLBACK;

CREATE ROLE fence_user;
SET ROLE fence_user;
SELECT dlock_fence('fence-2', 30);
RESET ROLE;
GRANT EXECUTE ON FUNCTION dlock_fence TO fence_user;
SET ROLE fence_user;
SELECT dlock_fence('fence-2', 30);
UPDATE _dlock.fence_mark SET token = 1;
UPDATE dlock_fences SET token = 1;
SELECT resource, token, raised_by FROM dlock_fences WHERE resource = 'fence-2';
RESET ROLE;
REVOKE ALL ON FUNCTION dlock_fence FROM fence_user;
DROP ROLE fence_user;

-- by itself
DELETE FROM _dlock.fence_mark WHERE resource LIKE 'fence-%';
