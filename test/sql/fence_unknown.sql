-- Proves: a token above all that this database has handed out is refused, by whatever way it is presented, and raises no
-- mark; unless the resource is declared to be fenced by tokens of another database.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
\set SHOW_CONTEXT never
\set VERBOSITY sqlstate
SELECT fence_rejections AS before FROM dlock_stats \gset

-- by the function; the next token is unknown too, until it is handed out
SELECT dlock_fence('unknown-1', 9223372036854775807);
SELECT dlock_fence('unknown-1', 9007199254740991);
SELECT dlock_acquire('unknown-1', 'a', '1 h') AS token \gset
SELECT dlock_fence('unknown-1', :token + 1000000);
SELECT count(*) FROM dlock_fences WHERE resource LIKE 'unknown-%';
SELECT dlock_fence('unknown-1', :token);
SELECT dlock_fence('unknown-1', :token + 1000000, true);
SELECT token = :token AS unharmed FROM dlock_fences WHERE resource = 'unknown-1';
-- at the mark, and below it, nothing changes
SELECT dlock_fence('unknown-1', :token);
SELECT dlock_fence('unknown-1', :token - 1);
-- old tokens are known, be they ever so small
SELECT dlock_fence('unknown-2', 1);

-- by a guard
CREATE TABLE unknown_a (id int PRIMARY KEY, token bigint);
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON unknown_a EXECUTE FUNCTION dlock_guard('unknown-1');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON unknown_a
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('unknown-1', 'token_column=token');
INSERT INTO unknown_a VALUES (1, 9223372036854775807);
INSERT INTO unknown_a VALUES (1, :token);
UPDATE unknown_a SET token = 9223372036854775807;
SET dlock.tokens = 'unknown-1=9223372036854775807';
UPDATE unknown_a SET id = 2;
TRUNCATE unknown_a;
RESET dlock.tokens;
SELECT id, token = :token AS unharmed FROM unknown_a;

-- rows that are their own marks
CREATE TABLE unknown_b (id int PRIMARY KEY, token bigint);
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON unknown_b EXECUTE FUNCTION dlock_guard('unknown-1');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON unknown_b
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('token_column=token');
INSERT INTO unknown_b VALUES (1, 9223372036854775807);
INSERT INTO unknown_b VALUES (1, :token);
UPDATE unknown_b SET token = 9223372036854775807;
SET dlock.tokens = '*=9223372036854775807';
UPDATE unknown_b SET id = 2;
DELETE FROM unknown_b;
RESET dlock.tokens;
MERGE INTO unknown_b t USING (VALUES (1), (2)) v (id) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET token = 9223372036854775807
	WHEN NOT MATCHED THEN INSERT VALUES (v.id, 9223372036854775807);
COPY unknown_b FROM stdin;
3	9223372036854775807
\.
SELECT id, token = :token AS unharmed FROM unknown_b;
UPDATE unknown_b SET token = :token;
SELECT fence_rejections - :before AS refused FROM dlock_stats;

-- declared foreign: by name, by what names begin with, and for all
SELECT dlock_fence_declare('unknown-3', is_foreign => true);
SELECT dlock_fence_declare('unknown/*', is_foreign => true);
SELECT dlock_fence('unknown-3', 9223372036854775806);
SELECT dlock_fence('unknown-3', 9223372036854775805);
SELECT dlock_fence('unknown/1', 9223372036854775806);
SELECT dlock_fence('unknown-4', 9223372036854775806);
SELECT resource, is_foreign FROM dlock_fences WHERE resource LIKE 'unknown%' ORDER BY resource;
UPDATE unknown_b SET token = 9223372036854775806;
BEGIN;
SELECT dlock_fence_declare('*', is_foreign => true);
SELECT dlock_fence('unknown-4', 9223372036854775806);
UPDATE unknown_b SET token = 9223372036854775806;
ROLLBACK;
SELECT dlock_fence('unknown-4', 9223372036854775806);
-- what is taken back is looked at again
SELECT dlock_fence_declare('unknown-3');
SELECT dlock_fence('unknown-3', 9223372036854775806);
SELECT dlock_fence('unknown-3', 9223372036854775807);
SELECT dlock_fence_declare('unknown/*');

-- a table whose rows are fenced from elsewhere
CREATE OR REPLACE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON unknown_b
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('token_column=token', 'tokens=foreign');
UPDATE unknown_b SET token = 9223372036854775806;
UPDATE unknown_b SET token = 9223372036854775805;
SELECT * FROM unknown_b;

\set VERBOSITY default
CREATE TRIGGER bad BEFORE INSERT ON unknown_b FOR EACH ROW EXECUTE FUNCTION dlock_guard('x', 'tokens=foreign');
CREATE TRIGGER bad BEFORE INSERT ON unknown_b FOR EACH ROW EXECUTE FUNCTION dlock_guard('token_column=token', 'tokens=other');
DROP TABLE unknown_a, unknown_b;
SELECT dlock_release('unknown-1', 'a');
SELECT count(dlock_fence_reset(resource, NULL, 'end of the test')) FROM dlock_fences WHERE resource LIKE 'unknown%';
SELECT count(*) FROM _dlock.fence_declared;
