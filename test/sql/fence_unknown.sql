-- Proves: a token above the clock that this database has not granted is refused, by whatever way it is presented, and raises no
-- mark; one of another database, below the clock, passes, and tokens granted here from then on are above it.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
\set SHOW_CONTEXT never
\set VERBOSITY sqlstate
SELECT fence_rejections AS before FROM dlock_stats \gset

-- by the function
SELECT dlock_fence('unknown-1', 9223372036854775807);
SELECT dlock_fence('unknown-1', 9007199254740991);
SELECT dlock_acquire('unknown-1', 'a', '1 h') AS token \gset
CREATE FUNCTION unknown_clock(seconds int) RETURNS bigint LANGUAGE sql AS $$
	SELECT floor((extract(epoch FROM clock_timestamp() - '2026-01-01 UTC') + seconds) * 4194304)::bigint;
$$;
SELECT dlock_fence('unknown-1', unknown_clock(1000));
SELECT count(*) FROM dlock_fences WHERE resource LIKE 'unknown-%';
SELECT dlock_fence('unknown-1', :token);
SELECT dlock_fence('unknown-1', unknown_clock(1000), true);
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

-- of another database: below the clock; clocks may differ by dlock.max_clock_skew
SELECT unknown_clock(5) AS foreign \gset
SELECT dlock_fence('unknown-3', :foreign - 1);
SELECT dlock_fence('unknown-3', :foreign);
SELECT dlock_fence('unknown-3', :foreign - 1);
UPDATE unknown_b SET token = :foreign;
UPDATE unknown_b SET token = :foreign - 1;
SELECT token = :foreign AS raised FROM unknown_b;

-- a token of this database is below such a mark, and the next one above it
SELECT dlock_acquire('unknown-4', 'a', '1 h') AS token \gset
SELECT unknown_clock(9) AS foreign \gset
SELECT :token < :foreign AS below;
SELECT dlock_fence('unknown-4', :foreign);
SELECT dlock_fence('unknown-4', :token);
SELECT dlock_release('unknown-4', 'a');
SELECT dlock_fence('unknown-4', dlock_acquire('unknown-4', 'a', '1 h'));
SELECT dlock_release('unknown-4', 'a');
DROP TABLE unknown_a, unknown_b;
SELECT dlock_release('unknown-1', 'a');
DELETE FROM _dlock.fence_mark WHERE resource LIKE 'unknown%';
DROP FUNCTION unknown_clock;
