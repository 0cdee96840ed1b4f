-- Proves: a row that an UPDATE moves to another partition presents there what it has presented in its old partition, if the
-- guard is that of all partitions, and nothing if it is not; inserted rows are treated alike.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
\set SHOW_CONTEXT never

CREATE TABLE guard_move (part int, id int, body text, token bigint) PARTITION BY LIST (part);
CREATE TABLE guard_move1 PARTITION OF guard_move FOR VALUES IN (1);
CREATE TABLE guard_move2 (token bigint, gone int, body text, id int, part int);
ALTER TABLE guard_move2 DROP COLUMN gone;
ALTER TABLE guard_move ATTACH PARTITION guard_move2 FOR VALUES IN (2);
CREATE TABLE guard_move3 PARTITION OF guard_move FOR VALUES IN (3);
CREATE VIEW guard_move_marks AS
	SELECT resource, token FROM dlock_fences WHERE resource LIKE 'guard-move-%' ORDER BY resource;
CREATE VIEW guard_move_rows AS
	SELECT tableoid::regclass, part, id, body, token FROM guard_move ORDER BY id;

-- the guard of all partitions, a resource for each
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_move
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('guard-move-', 'resource_column=part', 'token_column=token');
INSERT INTO guard_move VALUES (1, 1, 'a', 40), (2, 2, 'b', 45), (3, 3, 'c', 35);
COPY guard_move FROM stdin;
2	4	copied	45
3	5	stale	34
\.
-- the holder of one resource has no token for the other
SET dlock.tokens = 'guard-move-1=50';
UPDATE guard_move SET part = 2 WHERE part = 1;
UPDATE guard_move SET part = 2, token = NULL WHERE part = 1;
WITH moved AS (UPDATE guard_move SET part = 2 WHERE part = 1) SELECT;
MERGE INTO guard_move t USING (VALUES (1)) v (id) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET part = 2;
SELECT * FROM guard_move_marks;
-- with a token for each, or one that the statement sets
SET dlock.tokens = 'guard-move-1=50, guard-move-2=45';
BEGIN;
UPDATE guard_move SET part = 2 WHERE part = 1;
SELECT * FROM guard_move_rows;
UPDATE guard_move SET part = 1 WHERE id = 1;
SELECT * FROM guard_move_rows;
ROLLBACK;
SET dlock.tokens = 'guard-move-1=50';
BEGIN;
UPDATE guard_move SET part = 2, token = 46 WHERE part = 1;
SELECT * FROM guard_move_rows;
SELECT * FROM guard_move_marks;
ROLLBACK;
UPDATE guard_move SET part = 2, token = 44 WHERE part = 1;
-- beside rows that the same statement inserts
SET dlock.tokens = 'guard-move-1=50, guard-move-2=45';
BEGIN;
WITH moved AS (UPDATE guard_move SET part = 2 WHERE part = 1 RETURNING id)
	INSERT INTO guard_move SELECT 3, 9, 'new', 36 FROM moved;
SELECT * FROM guard_move_rows;
ROLLBACK;
-- a foreign key that cascades into the partition key
CREATE TABLE guard_move_key (part int PRIMARY KEY);
INSERT INTO guard_move_key VALUES (1), (2), (3);
ALTER TABLE guard_move ADD FOREIGN KEY (part) REFERENCES guard_move_key ON UPDATE CASCADE ON DELETE CASCADE;
SET dlock.tokens = 'guard-move-2=45';
DELETE FROM guard_move WHERE part = 2;
DELETE FROM guard_move_key WHERE part = 2;
SET dlock.tokens = 'guard-move-1=50';
UPDATE guard_move_key SET part = 2 WHERE part = 1;
DELETE FROM guard_move_key WHERE part = 3;
SET dlock.tokens = 'guard-move-1=50, guard-move-2=47';
UPDATE guard_move_key SET part = 2 WHERE part = 1;
SELECT * FROM guard_move_rows;
SELECT * FROM guard_move_marks;
RESET dlock.tokens;
DROP TABLE guard_move_key CASCADE;
DROP TRIGGER guard ON guard_move;

-- partitions of a partition: no inserted row presents its token there, wherever the guard was created
CREATE TABLE guard_move4 PARTITION OF guard_move FOR VALUES IN (4) PARTITION BY LIST (id);
CREATE TABLE guard_move4a PARTITION OF guard_move4 DEFAULT;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_move4
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('guard-move-4', 'token_column=token');
INSERT INTO guard_move VALUES (4, 8, 'new', 30);
DROP TRIGGER guard ON guard_move4;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_move
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('guard-move-', 'resource_column=part', 'token_column=token');
INSERT INTO guard_move VALUES (4, 8, 'new', 30);
SET dlock.tokens = 'guard-move-4=31';
INSERT INTO guard_move VALUES (4, 8, 'new', 30);
UPDATE guard_move SET body = 'set', token = 32 WHERE part = 4;
RESET dlock.tokens;
SELECT * FROM guard_move_rows WHERE part = 4;
DROP TRIGGER guard ON guard_move;
DROP TABLE guard_move4;

-- guards of single partitions: neither a moved row nor an inserted one presents its token
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_move1
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('guard-move-1', 'token_column=token');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_move2
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('guard-move-2', 'token_column=token');
INSERT INTO guard_move VALUES (2, 6, 'new', 48);
UPDATE guard_move SET part = 2 WHERE part = 3;
SET dlock.tokens = 'guard-move-1=60';
INSERT INTO guard_move VALUES (1, 6, 'stamped', 50);
UPDATE guard_move SET part = 2 WHERE part = 1;
UPDATE guard_move SET part = 2, token = 61 WHERE part = 1;
MERGE INTO guard_move t USING (VALUES (6)) v (id) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET part = 2, token = 61;
SET dlock.tokens = 'guard-move-1=60, guard-move-2=48';
UPDATE guard_move SET part = 2;
SELECT * FROM guard_move_rows;
UPDATE guard_move SET body = 'set', token = 49 WHERE part = 2;
SELECT * FROM guard_move_marks;
RESET dlock.tokens;
DROP TRIGGER guard ON guard_move1;
DROP TRIGGER guard ON guard_move2;

-- nor does that of a guard that does not see each UPDATE
CREATE TRIGGER guard BEFORE INSERT OR DELETE ON guard_move
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('guard-move-1', 'token_column=token');
INSERT INTO guard_move VALUES (1, 7, 'new', 62);
DROP TRIGGER guard ON guard_move;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OF body OR DELETE ON guard_move
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('guard-move-1', 'token_column=token');
INSERT INTO guard_move VALUES (1, 7, 'new', 62);
DROP TRIGGER guard ON guard_move;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON guard_move
	FOR EACH ROW WHEN (NEW.id > 0) EXECUTE FUNCTION dlock_guard('guard-move-1', 'token_column=token');
INSERT INTO guard_move VALUES (1, 7, 'new', 62);
DROP TRIGGER guard ON guard_move;

-- rows that are their own marks: the guard of all partitions
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_move
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('token_column=token');
TRUNCATE guard_move;
INSERT INTO guard_move VALUES (1, 1, 'a', 10), (2, 2, 'b', 20);
UPDATE guard_move SET part = 2 WHERE id = 1;
UPDATE guard_move SET part = 2, token = 9 WHERE id = 1;
UPDATE guard_move SET part = 2, token = 11 WHERE id = 1;
SET dlock.tokens = '*=12';
UPDATE guard_move SET part = 1 WHERE id = 1;
RESET dlock.tokens;
SELECT * FROM guard_move_rows;
DROP TRIGGER guard ON guard_move;
-- one of a part of them, where a row keeps its mark
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_move2
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('token_column=token');
UPDATE guard_move SET part = 2 WHERE id = 1;
INSERT INTO guard_move VALUES (2, 3, 'c', 30);
BEGIN;
UPDATE guard_move SET token = 20 WHERE id = 2;
UPDATE guard_move SET part = 2 WHERE id = 1;
SELECT * FROM guard_move_rows;
ROLLBACK;
SET dlock.tokens = '*=11';
UPDATE guard_move SET part = 2 WHERE id = 1;
INSERT INTO guard_move VALUES (2, 3, 'c', 30);
-- a token that was never granted is none, though the row has it
SET dlock.tokens = '*=9007199254740991';
\set VERBOSITY sqlstate
INSERT INTO guard_move VALUES (2, 3, 'c', 9007199254740991);
\set VERBOSITY default
RESET dlock.tokens;
SELECT * FROM guard_move_rows;

DROP TABLE guard_move CASCADE;
DELETE FROM _dlock.fence_mark WHERE resource LIKE 'guard-move-%';
