-- Proves: in a MERGE, the token column presents what each action sets it to, if every UPDATE action sets it, and nothing if
-- none does; an action that leaves it out beside one that sets it presents the token of the row.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

CREATE TABLE guard_merge_row (id int PRIMARY KEY, body text, token bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_merge_row
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('token_column=token');
INSERT INTO guard_merge_row VALUES (1, 'a', 10), (2, 'b', 20);

-- every action sets it
MERGE INTO guard_merge_row t USING (VALUES (1, 11), (2, 21), (3, 30)) v (id, token) ON t.id = v.id
	WHEN MATCHED AND t.id = 1 THEN UPDATE SET token = v.token, body = 'first'
	WHEN MATCHED THEN UPDATE SET body = 'second', token = v.token
	WHEN NOT MATCHED THEN INSERT VALUES (v.id, 'new', v.token);
SELECT * FROM guard_merge_row ORDER BY id;
MERGE INTO guard_merge_row t USING (VALUES (1, 11), (2, 20)) v (id, token) ON t.id = v.id
	WHEN MATCHED AND t.id = 1 THEN UPDATE SET token = v.token, body = 'first'
	WHEN MATCHED THEN UPDATE SET body = 'stale', token = v.token;
MERGE INTO guard_merge_row t USING (VALUES (1)) v (id) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN UPDATE SET token = 12
	WHEN MATCHED THEN UPDATE SET token = NULL;
-- no action sets it: what an INSERT or a DELETE does is for its own rows
MERGE INTO guard_merge_row t USING (VALUES (1)) v (id) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET body = 'stolen';
MERGE INTO guard_merge_row t USING (VALUES (1), (4)) v (id) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN DELETE
	WHEN MATCHED THEN UPDATE SET body = 'stolen'
	WHEN NOT MATCHED THEN INSERT VALUES (v.id, 'new', 40);
MERGE INTO guard_merge_row t USING (VALUES (1)) v (id) ON t.id = v.id
	WHEN MATCHED THEN DELETE;
MERGE INTO guard_merge_row t USING (VALUES (1, 12), (2, 21)) v (id, token) ON t.id = v.id
	WHEN MATCHED AND t.id = 1 THEN DELETE
	WHEN MATCHED THEN UPDATE SET token = v.token;
SET dlock.tokens = '*=25';
MERGE INTO guard_merge_row t USING (VALUES (1), (2), (5)) v (id) ON t.id = v.id
	WHEN MATCHED AND t.id = 1 THEN DELETE
	WHEN MATCHED THEN UPDATE SET body = 'by setting'
	WHEN NOT MATCHED THEN INSERT VALUES (v.id, 'new', NULL);
RESET dlock.tokens;
SELECT * FROM guard_merge_row ORDER BY id;
-- some set it: the others present the token of the row, as if they had set it to that
MERGE INTO guard_merge_row t USING (VALUES (2)) v (id) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN UPDATE SET token = 5
	WHEN MATCHED THEN UPDATE SET body = 'not refused';
SELECT * FROM guard_merge_row ORDER BY id;

-- rows of a resource: the token of the row is refused if the mark is higher
CREATE TABLE guard_merge_res (id int PRIMARY KEY, body text, token bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_merge_res
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('guard-merge', 'token_column=token');
INSERT INTO guard_merge_res VALUES (1, 'a', 10), (2, 'b', 10);
MERGE INTO guard_merge_res t USING (VALUES (1, 11), (2, 11)) v (id, token) ON t.id = v.id
	WHEN MATCHED AND t.id = 1 THEN UPDATE SET token = v.token
	WHEN MATCHED THEN UPDATE SET body = 'set', token = v.token;
MERGE INTO guard_merge_res t USING (VALUES (1)) v (id) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET body = 'stolen';
SELECT dlock_fence('guard-merge', 12);
MERGE INTO guard_merge_res t USING (VALUES (1)) v (id) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN UPDATE SET token = 12
	WHEN MATCHED THEN UPDATE SET body = 'stale';
BEGIN;
SELECT dlock_fence('guard-merge', 13);
MERGE INTO guard_merge_res t USING (VALUES (1), (2)) v (id) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET body = 'fenced';
COMMIT;
SELECT * FROM guard_merge_res ORDER BY id;

-- partitions, whose columns are in another order
CREATE TABLE guard_merge_part (part int, id int, body text, token bigint) PARTITION BY LIST (part);
CREATE TABLE guard_merge_part1 PARTITION OF guard_merge_part FOR VALUES IN (1);
CREATE TABLE guard_merge_part2 (token bigint, gone int, body text, id int, part int);
ALTER TABLE guard_merge_part2 DROP COLUMN gone;
ALTER TABLE guard_merge_part ATTACH PARTITION guard_merge_part2 FOR VALUES IN (2);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_merge_part
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('token_column=token');
INSERT INTO guard_merge_part VALUES (1, 1, 'a', 10), (2, 2, 'b', 20);
MERGE INTO guard_merge_part t USING (VALUES (1), (2)) v (id) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET body = 'stolen';
MERGE INTO guard_merge_part t USING (VALUES (1, 11), (2, 19)) v (id, token) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET body = 'stale', token = v.token;
MERGE INTO guard_merge_part t USING (VALUES (1, 11), (2, 21), (3, 30)) v (id, token) ON t.id = v.id
	WHEN MATCHED AND t.id = 1 THEN UPDATE SET part = 2, token = v.token
	WHEN MATCHED THEN UPDATE SET body = 'set', token = v.token
	WHEN NOT MATCHED THEN INSERT VALUES (2, v.id, 'new', v.token);
SELECT tableoid::regclass, * FROM guard_merge_part ORDER BY id;

DROP TABLE guard_merge_row, guard_merge_res, guard_merge_part;
DELETE FROM _dlock.fence_mark WHERE resource = 'guard-merge';
