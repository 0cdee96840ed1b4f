-- Proves: dlock_check says whether a token is that of the live lease of its name now, to anybody, and changes nothing.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

SELECT dlock_acquire('check-1', 'alice', '1 h') AS token \gset
SELECT dlock_acquire('check-2', 'alice', '1 h') AS other \gset
SELECT dlock_check('check-1', :token) AS live, dlock_check('check-1', :other) AS other_lock,
       dlock_check('check-1', :other + 1000000) AS not_given, dlock_check('check-nobody', :token) AS no_lock,
       dlock_check('check-1', 9223372036854775807) AS largest;

-- it does not extend
SELECT expires_at AS before FROM dlock_leases WHERE name = 'check-1' \gset
SELECT pg_sleep(0.2);
SELECT dlock_check('check-1', :token);
SELECT abs(extract(epoch FROM expires_at - :'before')) < 0.1 AS same FROM dlock_leases WHERE name = 'check-1';

-- renewed: still; released: no longer; granted again: the new token only
SELECT dlock_renew('check-1', 'alice'), dlock_check('check-1', :token);
SELECT dlock_release('check-1', 'alice'), dlock_check('check-1', :token);
SELECT dlock_acquire('check-1', 'alice', '1 h') AS next \gset
SELECT dlock_check('check-1', :token) AS old, dlock_check('check-1', :next) AS new;

-- expired: no longer
SELECT dlock_acquire('check-3', 'alice', '5 ms') AS token \gset
SELECT pg_sleep(0.006);
SELECT dlock_check('check-3', :token);

-- forced: no longer
SELECT dlock_force_release('check-2', 'test of dlock_check'), dlock_check('check-2', :other);

-- any role may ask, also in a read-only transaction
CREATE ROLE regress_dlock_check;
SET ROLE regress_dlock_check;
BEGIN READ ONLY;
SELECT dlock_check('check-1', :next);
COMMIT;
RESET ROLE;
DROP ROLE regress_dlock_check;

SELECT dlock_release('check-1', 'alice');
