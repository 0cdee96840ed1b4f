-- Proves: in a MERGE, a token column presents a token only in the action that sets it, for rows of a resource and rows that
-- are their own marks, in partitions, in nested statements, and for prepared and repeated ones.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\set SHOW_CONTEXT never

CREATE TABLE guard_merge_row (id int PRIMARY KEY, body text, token bigint);
CREATE TRIGGER truncate_guard BEFORE TRUNCATE ON guard_merge_row EXECUTE FUNCTION dlock_guard('guard-merge');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_merge_row
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('token_column=token');
INSERT INTO guard_merge_row VALUES (1, 'a', 10), (2, 'b', 20);

-- one action sets it: the other one does not present the row's own token
MERGE INTO guard_merge_row t USING (VALUES (1), (2)) v (id) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN UPDATE SET token = 5
	WHEN MATCHED THEN UPDATE SET body = 'stolen';
-- in whatever order
MERGE INTO guard_merge_row t USING (VALUES (1)) v (id) ON t.id = v.id
	WHEN MATCHED AND t.id = 1 THEN UPDATE SET body = 'stolen'
	WHEN MATCHED THEN UPDATE SET token = 5;
-- nor with a third one, nor together with other kinds of actions
MERGE INTO guard_merge_row t USING (VALUES (1), (3)) v (id) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN UPDATE SET token = 5, body = 'x'
	WHEN MATCHED AND t.id = 98 THEN DELETE
	WHEN MATCHED AND t.id = 97 THEN DO NOTHING
	WHEN MATCHED THEN UPDATE SET body = 'stolen'
	WHEN NOT MATCHED THEN INSERT VALUES (v.id, 'c', 30);
-- an action that sets it presents what it sets it to
MERGE INTO guard_merge_row t USING (VALUES (1, 11), (2, 21)) v (id, token) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN UPDATE SET body = 'x'
	WHEN MATCHED THEN UPDATE SET token = v.token, body = 'set';
MERGE INTO guard_merge_row t USING (VALUES (1, 10)) v (id, token) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN UPDATE SET body = 'x'
	WHEN MATCHED THEN UPDATE SET token = v.token, body = 'stale';
SELECT * FROM guard_merge_row ORDER BY id;

-- all actions set it: the row's own token presents, as in an UPDATE
MERGE INTO guard_merge_row t USING (VALUES (1, 11), (2, 21)) v (id, token) ON t.id = v.id
	WHEN MATCHED AND t.id = 1 THEN UPDATE SET token = v.token, body = 'first'
	WHEN MATCHED THEN UPDATE SET body = 'second', token = v.token;
MERGE INTO guard_merge_row t USING (VALUES (1, 11)) v (id, token) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN DELETE
	WHEN MATCHED THEN UPDATE SET token = v.token, body = 'third'
	WHEN NOT MATCHED THEN INSERT VALUES (v.id, 'new', v.token);
-- no action sets it
MERGE INTO guard_merge_row t USING (VALUES (1)) v (id) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET body = 'stolen';
-- an action that inserts sets it for no other
MERGE INTO guard_merge_row t USING (VALUES (1), (4)) v (id) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET body = 'stolen'
	WHEN NOT MATCHED THEN INSERT VALUES (v.id, 'new', 40);
-- one that sets it to what the row has, beside one that does not, is refused; unless the transaction presents it
MERGE INTO guard_merge_row t USING (VALUES (1, 11)) v (id, token) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN UPDATE SET body = 'x'
	WHEN MATCHED THEN UPDATE SET token = v.token, body = 'fourth';
SET dlock.tokens = '*=12';
MERGE INTO guard_merge_row t USING (VALUES (1, 11)) v (id, token) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN UPDATE SET token = 5
	WHEN MATCHED THEN UPDATE SET body = 'by setting';
SET dlock.tokens = '*=11';
MERGE INTO guard_merge_row t USING (VALUES (1, 11)) v (id, token) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN UPDATE SET token = 5
	WHEN MATCHED THEN UPDATE SET body = 'stale';
RESET dlock.tokens;
SELECT * FROM guard_merge_row ORDER BY id;
-- to nothing is as not set
MERGE INTO guard_merge_row t USING (VALUES (1)) v (id) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN UPDATE SET body = 'x'
	WHEN MATCHED THEN UPDATE SET token = NULL;

-- rows of a resource
CREATE TABLE guard_merge_res (id int PRIMARY KEY, body text, token bigint);
CREATE TRIGGER truncate_guard BEFORE TRUNCATE ON guard_merge_res EXECUTE FUNCTION dlock_guard('guard-merge');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_merge_res
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('guard-merge', 'token_column=token');
INSERT INTO guard_merge_res VALUES (1, 'a', 10), (2, 'b', 10);
MERGE INTO guard_merge_res t USING (VALUES (1), (2)) v (id) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN UPDATE SET token = 10
	WHEN MATCHED THEN UPDATE SET body = 'stolen';
-- once an action has brought the token, the transaction has passed with it
MERGE INTO guard_merge_res t USING (VALUES (1), (2)) v (id) ON t.id = v.id
	WHEN MATCHED AND t.id = 1 THEN UPDATE SET token = 11
	WHEN MATCHED THEN UPDATE SET body = 'passed';
SELECT * FROM guard_merge_res ORDER BY id;
BEGIN;
SELECT dlock_fence('guard-merge', 12);
MERGE INTO guard_merge_res t USING (VALUES (1), (2)) v (id) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN UPDATE SET token = 11
	WHEN MATCHED THEN UPDATE SET body = 'fenced';
COMMIT;
SELECT * FROM guard_merge_res ORDER BY id;

-- partitions, whose columns are in another order
CREATE TABLE guard_merge_part (part int, id int, body text, token bigint) PARTITION BY LIST (part);
CREATE TABLE guard_merge_part1 PARTITION OF guard_merge_part FOR VALUES IN (1);
CREATE TABLE guard_merge_part2 (token bigint, gone int, body text, id int, part int);
ALTER TABLE guard_merge_part2 DROP COLUMN gone;
ALTER TABLE guard_merge_part ATTACH PARTITION guard_merge_part2 FOR VALUES IN (2);
SET client_min_messages = error;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_merge_part
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('token_column=token');
RESET client_min_messages;
INSERT INTO guard_merge_part VALUES (1, 1, 'a', 10), (2, 2, 'b', 20);
MERGE INTO guard_merge_part t USING (VALUES (1)) v (id) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN UPDATE SET token = 5
	WHEN MATCHED THEN UPDATE SET body = 'stolen';
MERGE INTO guard_merge_part t USING (VALUES (2)) v (id) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN UPDATE SET token = 5
	WHEN MATCHED THEN UPDATE SET body = 'stolen';
MERGE INTO guard_merge_part t USING (VALUES (2)) v (id) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN UPDATE SET token = 5
	WHEN MATCHED THEN UPDATE SET part = 1;
MERGE INTO guard_merge_part t USING (VALUES (1, 10), (2, 20)) v (id, token) ON t.id = v.id
	WHEN MATCHED AND t.id = 1 THEN UPDATE SET token = v.token, body = 'own'
	WHEN MATCHED THEN UPDATE SET body = 'own', token = v.token;
SELECT * FROM guard_merge_part ORDER BY id;

-- statements within one another: each is seen for what it is
CREATE FUNCTION guard_merge_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	UPDATE guard_merge_row SET token = token, body = 'nested update' WHERE id = 2;
	RETURN NEW;
END $$;
CREATE TRIGGER nested BEFORE UPDATE ON guard_merge_row FOR EACH ROW WHEN (OLD.id = 1)
	EXECUTE FUNCTION guard_merge_update();
-- an UPDATE within a MERGE presents what it sets
BEGIN;
MERGE INTO guard_merge_row t USING (VALUES (1, 13)) v (id, token) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN UPDATE SET body = 'x'
	WHEN MATCHED THEN UPDATE SET token = v.token, body = 'outer';
ROLLBACK;
CREATE OR REPLACE FUNCTION guard_merge_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.id = 1 THEN
		BEGIN
			UPDATE guard_merge_row SET token = 1 WHERE id = 2;
		EXCEPTION WHEN OTHERS THEN
			RAISE NOTICE 'nested: %', SQLSTATE;
		END;
	END IF;
	RETURN NEW;
END $$;
-- and after it has failed, the MERGE is seen again
MERGE INTO guard_merge_row t USING (VALUES (1), (2)) v (id) ON t.id = v.id
	WHEN MATCHED AND t.id = 1 THEN UPDATE SET token = 13
	WHEN MATCHED THEN UPDATE SET body = 'stolen';
-- a MERGE within an UPDATE
CREATE OR REPLACE FUNCTION guard_merge_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	MERGE INTO guard_merge_row t USING (VALUES (2)) v (id) ON t.id = v.id
		WHEN MATCHED AND t.id = 99 THEN UPDATE SET token = 5
		WHEN MATCHED THEN UPDATE SET body = 'stolen';
	RETURN NEW;
END $$;
UPDATE guard_merge_row SET body = 'outer', token = 13 WHERE id = 1;
DROP TRIGGER nested ON guard_merge_row;
-- an UPDATE is as ever, also after all that failed
UPDATE guard_merge_row SET token = token, body = 'plain' WHERE id = 1;

-- prepared, custom and generic
PREPARE uneven (int) AS MERGE INTO guard_merge_row t USING (VALUES ($1)) v (id) ON t.id = v.id
	WHEN MATCHED AND t.id = 99 THEN UPDATE SET token = 5
	WHEN MATCHED THEN UPDATE SET body = 'stolen';
SET plan_cache_mode = force_generic_plan;
EXECUTE uneven(1);
EXECUTE uneven(2);
RESET plan_cache_mode;
EXECUTE uneven(2);
SELECT * FROM guard_merge_row ORDER BY id;

DROP TABLE guard_merge_row, guard_merge_res, guard_merge_part;
DROP FUNCTION guard_merge_update;
SELECT dlock_fence_reset('guard-merge', NULL, 'end of the test') > 0 AS was_fenced;
