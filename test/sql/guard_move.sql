-- Proves: a row that a statement moves to another partition presents its token there only if the statement sets the token
-- column: for UPDATE and MERGE, for rows of a resource and rows that are their own marks, from a partition with and without
-- a guard, and in nested statements; inserted rows present theirs as ever.
SET client_min_messages = error;
CREATE EXTENSION IF NOT EXISTS dlock;
\set SHOW_CONTEXT never

-- a resource for each of two partitions, whose columns are in another order, and none for the third
CREATE TABLE guard_move (part int, id int, body text, token bigint) PARTITION BY LIST (part);
CREATE TABLE guard_move1 PARTITION OF guard_move FOR VALUES IN (1);
CREATE TABLE guard_move2 (token bigint, gone int, body text, id int, part int) PARTITION BY LIST (id);
ALTER TABLE guard_move2 DROP COLUMN gone;
CREATE TABLE guard_move2a PARTITION OF guard_move2 DEFAULT;
ALTER TABLE guard_move ATTACH PARTITION guard_move2 FOR VALUES IN (2);
CREATE TABLE guard_move3 PARTITION OF guard_move FOR VALUES IN (3);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_move1
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('guard-move-1', 'token_column=token');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_move2
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('guard-move-2', 'token_column=token');
CREATE VIEW guard_move_marks AS
	SELECT resource, token FROM dlock_fences WHERE resource LIKE 'guard-move-%' ORDER BY resource;
CREATE VIEW guard_move_rows AS
	SELECT tableoid::regclass, part, id, body, token FROM guard_move ORDER BY id;
INSERT INTO guard_move VALUES (1, 1, 'a', 40), (2, 2, 'b', 45), (3, 3, 'c', 60);

-- the holder of one resource, with a higher token, has none for the other
SET dlock.tokens = 'guard-move-1=50';
UPDATE guard_move SET part = 2 WHERE part = 1;
UPDATE guard_move SET part = 2, token = NULL WHERE part = 1;
WITH moved AS (UPDATE guard_move SET part = 2 WHERE part = 1) SELECT;
MERGE INTO guard_move t USING (VALUES (1)) v (id) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET part = 2;
MERGE INTO guard_move t USING (VALUES (1)) v (id) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN UPDATE SET token = 50
	WHEN MATCHED THEN UPDATE SET part = 2;
MERGE INTO guard_move t USING (VALUES (1, NULL::bigint)) v (id, token) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET part = 2, token = v.token
	WHEN NOT MATCHED THEN INSERT VALUES (2, v.id, 'new', v.token);
-- nor does what an unguarded row holds present anything
UPDATE guard_move SET part = 2 WHERE part = 3;
PREPARE move (int) AS UPDATE guard_move SET part = 2 WHERE part = $1;
SET plan_cache_mode = force_generic_plan;
EXECUTE move(3);
RESET plan_cache_mode;
SELECT * FROM guard_move_rows;
SELECT * FROM guard_move_marks;

-- with a token for each, the row gets that of its new resource
SET dlock.tokens = 'guard-move-1=50, guard-move-2=45';
BEGIN;
UPDATE guard_move SET part = 2 WHERE part = 1;
UPDATE guard_move SET part = 2, token = NULL WHERE part = 3;
SELECT * FROM guard_move_rows;
UPDATE guard_move SET part = 1 WHERE id = 3;
SELECT * FROM guard_move_rows;
ROLLBACK;
RESET dlock.tokens;
-- one that the statement sets
BEGIN;
UPDATE guard_move SET part = 2, token = 61 WHERE part = 3;
UPDATE guard_move SET part = 3 WHERE id = 3;
MERGE INTO guard_move t USING (VALUES (3, 62)) v (id, token) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET part = 2, token = v.token;
SELECT * FROM guard_move_rows;
SELECT * FROM guard_move_marks;
ROLLBACK;

-- inserted rows present theirs: beside an update of another table, in a MERGE whose updates all set the column
CREATE TABLE guard_move_other (part int, id int, token bigint) PARTITION BY LIST (part);
CREATE TABLE guard_move_other1 PARTITION OF guard_move_other DEFAULT;
INSERT INTO guard_move_other VALUES (1, 1, NULL);
BEGIN;
WITH other AS (UPDATE guard_move_other SET part = part + 1 RETURNING id)
	INSERT INTO guard_move SELECT 2, 4, 'd', 70 FROM other;
MERGE INTO guard_move t USING (VALUES (5, 71)) v (id, token) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET body = 'set', token = v.token
	WHEN NOT MATCHED THEN INSERT VALUES (2, v.id, 'e', v.token);
SELECT * FROM guard_move_rows;
ROLLBACK;
-- but not in one with an update that does not
MERGE INTO guard_move t USING (VALUES (5, 71)) v (id, token) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET body = 'unset'
	WHEN NOT MATCHED THEN INSERT VALUES (2, v.id, 'e', v.token);
-- nor beside an update of the same table that does not, which never lowers the token of an inserted row
SET dlock.tokens = '*=65';
WITH other AS (UPDATE guard_move SET body = 'x' WHERE id = 3 RETURNING id)
	INSERT INTO guard_move SELECT 2, 9, 'new', 70 FROM other;
WITH other AS (UPDATE guard_move SET body = 'x', token = NULL WHERE id = 2 RETURNING id)
	INSERT INTO guard_move2 SELECT 70, 'new', 9, 2 FROM other;
MERGE INTO guard_move t USING (VALUES (5, 71)) v (id, token) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET body = 'unset'
	WHEN NOT MATCHED THEN INSERT VALUES (2, v.id, 'e', v.token);
BEGIN;
WITH other AS (UPDATE guard_move SET body = 'x' WHERE id = 3 RETURNING id)
	INSERT INTO guard_move SELECT 2, 9, 'new', 64 FROM other;
SELECT * FROM guard_move_rows;
ROLLBACK;
-- a row that moves gets the token of its new resource, also if the statement inserts into another table
SET dlock.tokens = '*=50';
BEGIN;
WITH moved AS (UPDATE guard_move SET part = 2 WHERE id = 3 RETURNING id)
	INSERT INTO guard_move_other SELECT 1, id, 60 FROM moved;
SELECT * FROM guard_move_rows;
ROLLBACK;
RESET dlock.tokens;
-- a null that a guard of another table fills in does not count
CREATE TRIGGER guard BEFORE UPDATE ON guard_move_other1
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('guard-move-1', 'token_column=token');
SET dlock.tokens = 'guard-move-1=50';
BEGIN;
WITH other AS (UPDATE guard_move_other SET token = NULL RETURNING id)
	INSERT INTO guard_move SELECT 2, 9, 'new', 70 FROM other;
SELECT * FROM guard_move_rows;
ROLLBACK;
RESET dlock.tokens;
DROP TRIGGER guard ON guard_move_other1;
-- a null in one statement is forgotten in the next, also if the statement fails
SET dlock.tokens = 'guard-move-1=50';
UPDATE guard_move SET part = 2, token = NULL WHERE id = 1;
UPDATE guard_move1 SET part = 2, token = NULL WHERE id = 1;
BEGIN;
COPY guard_move FROM stdin;
2	4	copied	70
\.
SELECT * FROM guard_move_rows;
ROLLBACK;
RESET dlock.tokens;

-- statements within one another: a row inserted in a trigger presents its token, and the row that moves does not
CREATE FUNCTION guard_move_nested() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO guard_move VALUES (2, 6, 'nested', 46);
	RETURN NEW;
END $$;
CREATE TRIGGER nested BEFORE UPDATE ON guard_move3 FOR EACH ROW EXECUTE FUNCTION guard_move_nested();
BEGIN;
UPDATE guard_move SET body = 'outer' WHERE part = 3;
SELECT * FROM guard_move_rows;
SELECT * FROM guard_move_marks;
UPDATE guard_move SET part = 2 WHERE part = 3;
SELECT * FROM guard_move_rows;
ROLLBACK;
CREATE OR REPLACE FUNCTION guard_move_nested() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	BEGIN
		INSERT INTO guard_move VALUES (2, 6, 'nested', 44);
	EXCEPTION WHEN OTHERS THEN
		RAISE WARNING 'nested: %', SQLSTATE;
	END;
	RETURN NEW;
END $$;
SET client_min_messages = warning;
UPDATE guard_move SET part = 2 WHERE part = 3;
DROP TRIGGER nested ON guard_move3;
-- a foreign key that cascades into the partition key
SET dlock.tokens = 'guard-move-2=45';
DELETE FROM guard_move WHERE part = 2;
SET dlock.tokens = 'guard-move-1=50';
CREATE TABLE guard_move_key (part int PRIMARY KEY);
INSERT INTO guard_move_key VALUES (1), (3);
ALTER TABLE guard_move ADD FOREIGN KEY (part) REFERENCES guard_move_key ON UPDATE CASCADE;
UPDATE guard_move_key SET part = 2 WHERE part = 1;
UPDATE guard_move_key SET part = 2 WHERE part = 3;
SELECT * FROM guard_move_rows;
SELECT * FROM guard_move_marks;
ALTER TABLE guard_move DROP CONSTRAINT guard_move_part_fkey;
RESET dlock.tokens;

-- rows that are their own marks
DROP TRIGGER guard ON guard_move1;
DROP TRIGGER guard ON guard_move2;
SET client_min_messages = error;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_move2
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('token_column=token');
RESET client_min_messages;
UPDATE guard_move SET part = 2 WHERE part = 3;
BEGIN;
UPDATE guard_move SET part = 2, token = 61 WHERE part = 3;
DELETE FROM guard_move WHERE part = 2;
ROLLBACK;
SET dlock.tokens = '*=60';
UPDATE guard_move SET part = 2 WHERE id IN (1, 3);
SELECT * FROM guard_move_rows;
-- set to null, and then to a token: the row that follows is inserted, not moved
SET dlock.tokens = '*=90';
MERGE INTO guard_move t USING (VALUES (1, NULL::bigint), (3, 95), (9, 100)) v (id, token) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET token = v.token
	WHEN NOT MATCHED THEN INSERT VALUES (2, v.id, 'merged', v.token);
SELECT * FROM guard_move_rows;
RESET dlock.tokens;

DROP TABLE guard_move_key, guard_move_other;
DROP TABLE guard_move CASCADE;
DROP FUNCTION guard_move_nested;
SELECT count(dlock_fence_reset('guard-move-' || n, NULL, 'end of the test')) FROM generate_series(1, 2) n;
