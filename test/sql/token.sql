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

-- a new database begins at 1
SELECT dlock_acquire('token-first', 'alice', '1 h');
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
DO $$
DECLARE
	token bigint;
	last bigint := 0;
BEGIN
	FOR i IN 1 .. 20000 LOOP
		token := dlock_acquire('token-c', 'alice', '1 h');
		IF token <= last THEN
			RAISE WARNING 'token % after %', token, last;
		END IF;
		last := token;
		PERFORM dlock_release_token('token-c', token);
	END LOOP;
	INSERT INTO highest VALUES (2, last);
END $$;
CALL grant_some(3);

-- the sequence is set back, to its beginning, forward, restarted, advanced by hand
SELECT setval('dlock_token_seq', 1, false) > 0 AS set;
CALL grant_some(10);
SELECT setval('dlock_token_seq', 5) > 0 AS set;
DO $$ BEGIN FOR i IN 1 .. 20000 LOOP PERFORM dlock_release_token('token-d', dlock_acquire('token-d', 'alice', '1 h')); END LOOP; END $$;
CALL grant_some(11);
SELECT setval('dlock_token_seq', (SELECT max(token) + 1000000 FROM highest)) > 0 AS set;
DO $$ BEGIN FOR i IN 1 .. 20000 LOOP PERFORM dlock_release_token('token-d', dlock_acquire('token-d', 'alice', '1 h')); END LOOP; END $$;
CALL grant_some(12);
ALTER SEQUENCE dlock_token_seq RESTART;
DO $$ BEGIN FOR i IN 1 .. 20000 LOOP PERFORM dlock_release_token('token-d', dlock_acquire('token-d', 'alice', '1 h')); END LOOP; END $$;
CALL grant_some(13);
BEGIN;
ALTER SEQUENCE dlock_token_seq RESTART WITH 1;
ROLLBACK;
CALL grant_some(14);
SELECT count(nextval('dlock_token_seq')) FROM generate_series(1, 10);
DO $$ BEGIN FOR i IN 1 .. 20000 LOOP PERFORM dlock_release_token('token-d', dlock_acquire('token-d', 'alice', '1 h')); END LOOP; END $$;
CALL grant_some(15);

-- an operator moves on to the next epoch; every later token is above its answer
SELECT dlock_bump_epoch('restored a snapshot') AS bumped \gset
SELECT :bumped >= (SELECT max(token) FROM highest) AS not_below;
CALL grant_some(20);
SELECT min(token) > :bumped AS above FROM highest WHERE step = 20;
SELECT dlock_bump_epoch('and another one') > :bumped AS larger;
CALL grant_some(21);

-- no more tokens, since somebody has set the sequence to its end: an error, until it is set back
SELECT last_value AS before FROM dlock_token_seq \gset
SELECT setval('dlock_token_seq', 9223372036854775807) > 0 AS set;
\set SHOW_CONTEXT never
DO $$ BEGIN FOR i IN 1 .. 20000 LOOP PERFORM dlock_release_token('token-e', dlock_acquire('token-e', 'alice', '1 h')); END LOOP; END $$;
\set SHOW_CONTEXT errors
SELECT dlock_acquire('token-e', 'alice', '1 h');
SELECT count(*) FROM dlock_leases WHERE name = 'token-e';
SELECT dlock_renew('token-first', 'alice');
SELECT setval('dlock_token_seq', :before) > 0 AS set;
CALL grant_some(30);

-- leases were not touched by any of this
SELECT token FROM dlock_leases WHERE name = 'token-first';

\c :home
DROP DATABASE regress_dlock_token;
