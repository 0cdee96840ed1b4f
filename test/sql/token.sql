-- Proves: every grant's token is larger than all before it, whatever the lock, the transaction's fate, or what is done to the sequence by hand.
\set home :DBNAME
SET client_min_messages = warning;
DROP DATABASE IF EXISTS regress_dlock_token;
CREATE DATABASE regress_dlock_token;
\c regress_dlock_token
SET client_min_messages = warning;
CREATE EXTENSION dlock;

CREATE TABLE highest (step int, token bigint);

-- Grant under many names and in many ways; note the highest token after each
-- step, and complain if one was not above all those of the steps before.
CREATE PROCEDURE grant_some(step int) LANGUAGE plpgsql AS $$
DECLARE
	token bigint;
	floor bigint := coalesce((SELECT max(h.token) FROM highest h), 0);
	last bigint := floor;
BEGIN
	FOR i IN 1 .. 100 LOOP
		token := dlock_acquire('token-' || i % 7, 'alice', '1 h');
		IF token <= last THEN
			RAISE WARNING 'step %: token % after %', step, token, last;
		END IF;
		last := token;
		PERFORM dlock_release('token-' || i % 7, 'alice');
	END LOOP;
	INSERT INTO highest VALUES (step, last);
END $$;

-- a new database begins at what the clock shows: 2^22 for each second since 2026
SELECT dlock_acquire('token-first', 'alice', '1 h') AS first \gset
SELECT abs((:first >> 22) - extract(epoch FROM clock_timestamp() - '2026-01-01 00:00 UTC')) < 60 AS at_the_clock;
CALL grant_some(1);

-- a renewal keeps the token, the next grant does not
SELECT dlock_acquire('token-a', 'alice', '1 h') AS before \gset
SELECT dlock_renew('token-a', 'alice'), dlock_check('token-a', :before), dlock_release('token-a', 'alice');
SELECT dlock_acquire('token-a', 'bob', '1 h') > :before AS larger;

-- a rollback gives none back
BEGIN;
SELECT dlock_acquire('token-b', 'alice', '1 h') AS before \gset
ROLLBACK;
SELECT dlock_release('token-b', 'alice');
SELECT dlock_acquire('token-b', 'alice', '1 h') > :before AS larger;

-- more grants than a block holds
CREATE PROCEDURE grant_many(step int) LANGUAGE plpgsql AS $$
DECLARE
	token bigint;
	last bigint := (SELECT max(h.token) FROM highest h);
BEGIN
	FOR i IN 1 .. 100000 LOOP
		token := dlock_acquire('token-c', 'alice', '1 h');
		IF token <= last THEN
			RAISE WARNING 'step %: token % after %', step, token, last;
		END IF;
		last := token;
		PERFORM dlock_release('token-c', 'alice');
	END LOOP;
	INSERT INTO highest VALUES (step, last);
END $$;
SET synchronous_commit = off;
CALL grant_many(2);

-- they follow each other without gaps, over the ends of blocks, whatever is done to other sequences
CREATE SEQUENCE token_other;
DO $$
DECLARE
	first bigint := dlock_acquire('token-d', 'alice', '1 h');
	token bigint;
BEGIN
	PERFORM dlock_release('token-d', 'alice');
	FOR i IN 1 .. 70000 LOOP
		PERFORM setval('token_other', i);
		token := dlock_acquire('token-d', 'alice', '1 h');
		PERFORM dlock_release('token-d', 'alice');
	END LOOP;
	RAISE WARNING '% tokens are skipped', token - first - 70000;
END $$;
CALL grant_some(3);

-- the sequence is set back, to its beginning, restarted, advanced by hand
SELECT setval('_dlock.token_seq', 1, false) > 0 AS set;
CALL grant_some(10);
SELECT setval('_dlock.token_seq', 5) > 0 AS set;
CALL grant_many(11);
ALTER SEQUENCE _dlock.token_seq RESTART;
CALL grant_some(12);
BEGIN;
ALTER SEQUENCE _dlock.token_seq RESTART WITH 1;
ROLLBACK;
CALL grant_some(13);
SELECT count(nextval('_dlock.token_seq')) FROM generate_series(1, 10);
CALL grant_many(14);

-- or forward, as when a dump is restored: tokens of the next block but one are above that
SELECT setval('_dlock.token_seq', (SELECT max(token) + 1000000000 FROM highest)) AS forward \gset
CALL grant_many(15);
SELECT max(token) - :forward BETWEEN 1 << 30 AND (1 << 30) + 100000 AS above FROM highest;

-- an operator moves on; every later token is above the answer, and above what was asked for
SELECT dlock_bump_epoch('restored a snapshot') AS bumped \gset
SELECT :bumped >= (SELECT max(token) FROM highest) AS not_below;
CALL grant_some(20);
SELECT min(token) > :bumped AS above FROM highest WHERE step = 20;
SELECT dlock_bump_epoch('and another one') > :bumped AS larger;
CALL grant_some(21);
SELECT max(token) + 5000000000 AS known FROM highest \gset
SELECT dlock_bump_epoch('seen elsewhere', :known) = :known AS as_asked;
CALL grant_some(22);
SELECT dlock_bump_epoch('seen elsewhere, lower', 1) > :known AS larger;
CALL grant_some(23);
SELECT last_value AS before FROM _dlock.token_seq \gset
SELECT dlock_bump_epoch('mistaken', -1);
SELECT dlock_bump_epoch('mistaken', 9007199254740991);
SELECT dlock_bump_epoch('mistaken', 9223372036854775807);
SELECT last_value - :before AS reserved FROM _dlock.token_seq;

-- no more tokens, since somebody has set the sequence to its end: an error, once those in memory
-- are used up, until it is set back
SELECT setval('_dlock.token_seq', 9223372036854775807) > 0 AS set;
\set SHOW_CONTEXT never
DO $$ BEGIN FOR i IN 1 .. 100000 LOOP PERFORM dlock_acquire('token-e', 'alice', '1 h'); PERFORM dlock_release('token-e', 'alice'); END LOOP; END $$;
\set SHOW_CONTEXT errors
SELECT dlock_acquire('token-e', 'alice', '1 h');
SELECT dlock_bump_epoch('does not help');
SELECT count(*) FROM dlock_leases WHERE name = 'token-e';
SELECT dlock_renew('token-first', 'alice');
SELECT setval('_dlock.token_seq', :before) > 0 AS set;
CALL grant_some(30);

-- leases were not touched by any of this
SELECT token = :first AS same FROM dlock_leases WHERE name = 'token-first';

\c :home
DROP DATABASE regress_dlock_token;
