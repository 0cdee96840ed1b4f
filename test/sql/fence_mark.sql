-- Proves: a mark is read as it is and where it is now, whoever has written or moved it; and each of few or many
-- resources of a transaction has its own token.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
TRUNCATE _dlock.fence_mark;

-- A mark that stands is found in its place again, and again after others.
SELECT dlock_fence('place-1', 5);
SELECT dlock_fence('place-1', 5);
SELECT dlock_fence('place-2', 7);
SELECT dlock_fence('place-2', 7), dlock_fence('place-1', 5);

-- It is changed by a statement.
UPDATE _dlock.fence_mark SET token = 6 WHERE resource = 'place-1';
SELECT dlock_fence('place-1', 5);
SELECT dlock_fence('place-1', 6);
BEGIN;
UPDATE _dlock.fence_mark SET token = 8 WHERE resource = 'place-1';
ROLLBACK;
SELECT dlock_fence('place-1', 6);
DELETE FROM _dlock.fence_mark WHERE resource = 'place-1';
SELECT dlock_fence('place-1', 4);
SELECT dlock_fence('place-1', 4);

-- The table has become shorter than the place says.
TRUNCATE _dlock.fence_mark;
SELECT dlock_fence('place-1', 3);
SELECT dlock_fence('place-1', 3);

-- Another resource is in that place.
SELECT ctid, resource, token FROM _dlock.fence_mark;
TRUNCATE _dlock.fence_mark;
SELECT dlock_fence('place-other', 9);
SELECT ctid, resource, token FROM _dlock.fence_mark;
SELECT dlock_fence('place-1', 2);
SELECT dlock_fence('place-other', 8);

-- The rows have moved.
SELECT dlock_fence('place-1', 2);
DELETE FROM _dlock.fence_mark WHERE resource = 'place-other';
VACUUM FULL _dlock.fence_mark;
SELECT dlock_fence('place-1', 1);
SELECT dlock_fence('place-1', 2);

-- Few resources, and more, in one transaction: the one passed last counts for each.
CREATE TABLE many (resource text, token bigint);
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON many EXECUTE FUNCTION dlock_guard('many');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON many
    FOR EACH ROW EXECUTE FUNCTION dlock_guard('resource_column=resource', 'token_column=token');
BEGIN;
SELECT count(dlock_fence('many-' || i, i)) FROM generate_series(1, 3) i;
SAVEPOINT s;
SELECT count(dlock_fence('many-' || i, 20 + i)) FROM generate_series(2, 7) i;
INSERT INTO many SELECT 'many-' || i FROM generate_series(1, 7) i;
TABLE many;
ROLLBACK TO s;
SELECT count(dlock_fence('many-' || i, 10 + i)) FROM generate_series(6, 9) i;
INSERT INTO many SELECT 'many-' || i FROM unnest('{1, 2, 3, 6, 7, 8, 9}'::int[]) i;
TABLE many;
INSERT INTO many VALUES ('many-4');
ROLLBACK TO s;
INSERT INTO many VALUES ('many-6');
ROLLBACK TO s;
INSERT INTO many VALUES ('many');
ROLLBACK TO s;
INSERT INTO many VALUES ('many-10');
ROLLBACK TO s;
INSERT INTO many VALUES ('many-3');
COMMIT;
INSERT INTO many VALUES ('many-3');
TABLE many;
DROP TABLE many;
