-- Proves: dlock_waiters has columns of plain types, is empty while nobody waits, and may be read by everybody and changed by nobody.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'

SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
 WHERE attrelid = 'dlock_waiters'::regclass AND attnum > 0 ORDER BY attnum;
SELECT * FROM dlock_waiters WHERE name LIKE 'waiter-%';

-- a request that is refused, and one whose wait is over, leave nothing
SELECT dlock_acquire('waiter-1', 'waiter-a', '1 h') > 0 AS granted;
SELECT dlock_acquire('waiter-1', 'waiter-b', '1 h') AS refused;
SELECT dlock_acquire('waiter-1', 'waiter-b', '1 h', wait => '10 ms') AS refused;
SELECT dlock_acquire_all('{waiter-2,waiter-1,waiter-3}', 'waiter-b', '1 h', wait => '10 ms') AS refused;
SELECT dlock_acquire_path('waiter-1/x', 'waiter-b', '1 h', wait => '10 ms') AS refused;
SELECT owner FROM dlock_watch('waiter-1', (SELECT token FROM dlock_leases WHERE name = 'waiter-1'), '10 ms');
SET statement_timeout = '300 ms';
SELECT dlock_acquire('waiter-1', 'waiter-b', '1 h', wait => NULL);
RESET statement_timeout;
SET lock_timeout = '20 ms';
\set VERBOSITY sqlstate
SELECT dlock_acquire('waiter-1', 'waiter-b', '1 h', wait => '1 h');
\set VERBOSITY default
RESET lock_timeout;
SELECT * FROM dlock_waiters WHERE name LIKE 'waiter-%';
SELECT name, owner FROM dlock_leases WHERE name LIKE 'waiter-%';

-- everybody may look, nobody may change anything
CREATE ROLE regress_dlock_waiter;
SET ROLE regress_dlock_waiter;
SELECT count(*) FROM dlock_waiters WHERE name LIKE 'waiter-%';
BEGIN READ ONLY;
SELECT count(*) FROM dlock_waiters WHERE name LIKE 'waiter-%';
COMMIT;
\set VERBOSITY sqlstate
DELETE FROM dlock_waiters;
UPDATE dlock_waiters SET owner = 'mallory';
INSERT INTO dlock_waiters (name) VALUES ('x');
\set VERBOSITY default
RESET ROLE;
DROP ROLE regress_dlock_waiter;
SELECT dlock_release('waiter-1', 'waiter-a');
