-- Proves: a column presents a token if, and only if, the statement sets it: in an UPDATE, by what it names; in an INSERT,
-- by a value that is neither null nor zero; whatever runs the statement: a foreign key, a view, a rule, COPY, another trigger.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\set SHOW_CONTEXT never

CREATE TABLE guard_column (id int PRIMARY KEY, body text, token bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_column
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('token_column=token');
INSERT INTO guard_column VALUES (1, 'a', 10), (2, 'b', 20);

-- UPDATE: in whatever way it sets it
UPDATE guard_column SET body = 'unset' WHERE id = 1;
UPDATE guard_column SET (body, token) = (SELECT 'row', 11) WHERE id = 1;
UPDATE guard_column SET body = 'own', token = token WHERE id = 1;
UPDATE guard_column t SET token = v.token FROM (VALUES (1, 9)) v (id, token) WHERE t.id = v.id;
UPDATE guard_column SET token = DEFAULT WHERE id = 1;
PREPARE guard_column (int) AS UPDATE guard_column SET body = 'prepared' WHERE id = $1;
EXECUTE guard_column(1);
WITH changed AS (UPDATE guard_column SET body = 'unset' WHERE id = 1 RETURNING id)
	UPDATE guard_column t SET token = 21 FROM changed WHERE t.id = 2;
SELECT * FROM guard_column ORDER BY id;

-- INSERT: a default counts as what it is
INSERT INTO guard_column (id) VALUES (3);
INSERT INTO guard_column VALUES (3, 'c', DEFAULT);
INSERT INTO guard_column VALUES (3, 'c', 0);
INSERT INTO guard_column VALUES (3, 'c', -1);
ALTER TABLE guard_column ALTER token SET DEFAULT 0;
INSERT INTO guard_column (id) VALUES (3);
ALTER TABLE guard_column ALTER token SET DEFAULT 30;
INSERT INTO guard_column (id) VALUES (3);
UPDATE guard_column SET token = DEFAULT WHERE id = 3;
ALTER TABLE guard_column ALTER token DROP DEFAULT;
COPY guard_column FROM stdin;
4	d	40
\.
COPY guard_column (id, body) FROM stdin;
5	e
\.
SELECT * FROM guard_column ORDER BY id;

-- ON CONFLICT: the row to insert presents its token, and DO UPDATE what it sets
INSERT INTO guard_column VALUES (4, 'd', 41) ON CONFLICT (id) DO UPDATE SET body = 'unset';
BEGIN;
INSERT INTO guard_column VALUES (4, 'd', 39) ON CONFLICT (id) DO NOTHING;
INSERT INTO guard_column VALUES (4, 'd', 39) ON CONFLICT (id) DO UPDATE SET body = 'stale', token = excluded.token;
ROLLBACK;
INSERT INTO guard_column VALUES (4, 'd', 42) ON CONFLICT (id) DO UPDATE SET body = 'set', token = excluded.token;
INSERT INTO guard_column VALUES (4, 'd') ON CONFLICT (id) DO UPDATE SET token = 43;
SELECT * FROM guard_column ORDER BY id;

-- other triggers: what they put into a row that is updated is not set by the statement
CREATE FUNCTION guard_column_put() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.token := 50;
	RETURN NEW;
END $$;
CREATE TRIGGER a_put BEFORE UPDATE ON guard_column FOR EACH ROW EXECUTE FUNCTION guard_column_put();
UPDATE guard_column SET body = 'put' WHERE id = 4;
SET dlock.tokens = '*=44';
UPDATE guard_column SET body = 'by setting' WHERE id = 4;
RESET dlock.tokens;
DROP TRIGGER a_put ON guard_column;
SELECT * FROM guard_column WHERE id = 4;

-- a trigger that runs another statement: each presents its own
CREATE TABLE guard_column_log (id int, token bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_column_log
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('guard-column', 'token_column=token');
CREATE FUNCTION guard_column_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO guard_column_log VALUES (NEW.id, CASE WHEN NEW.body = 'both' THEN 5 END);
	UPDATE guard_column_log SET id = NEW.id;
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER log AFTER UPDATE ON guard_column DEFERRABLE FOR EACH ROW EXECUTE FUNCTION guard_column_write();
UPDATE guard_column SET body = 'alone', token = 45 WHERE id = 4;
UPDATE guard_column SET body = 'both', token = 45 WHERE id = 4;
-- at the commit
BEGIN;
SET CONSTRAINTS log DEFERRED;
UPDATE guard_column SET body = 'alone', token = 46 WHERE id = 4;
COMMIT;
BEGIN;
SET CONSTRAINTS log DEFERRED;
UPDATE guard_column SET body = 'alone', token = 46 WHERE id = 4;
SELECT dlock_fence('guard-column', 6);
COMMIT;
DROP TRIGGER log ON guard_column;
SELECT * FROM guard_column WHERE id = 4;
TABLE guard_column_log;

-- foreign keys: what they change presents nothing, and neither does what they delete
CREATE TABLE guard_column_key (id int PRIMARY KEY);
INSERT INTO guard_column_key SELECT id FROM guard_column;
ALTER TABLE guard_column ADD FOREIGN KEY (id) REFERENCES guard_column_key ON UPDATE CASCADE ON DELETE CASCADE;
UPDATE guard_column_key SET id = 14 WHERE id = 4;
DELETE FROM guard_column_key WHERE id = 4;
SET dlock.tokens = '*=45';
UPDATE guard_column_key SET id = 14 WHERE id = 4;
SET dlock.tokens = '*=46';
UPDATE guard_column_key SET id = 14 WHERE id = 4;
DELETE FROM guard_column_key WHERE id = 14;
RESET dlock.tokens;
ALTER TABLE guard_column DROP CONSTRAINT guard_column_id_fkey;
SELECT * FROM guard_column ORDER BY id;

-- a view: what the user sets through it; a rule or an INSTEAD OF trigger sets what it names
CREATE VIEW guard_column_view AS SELECT token AS t, body AS b, id AS i FROM guard_column;
UPDATE guard_column_view SET b = 'view' WHERE i = 1;
UPDATE guard_column_view SET b = 'view', t = 12 WHERE i = 1;
INSERT INTO guard_column_view VALUES (NULL, 'view', 6);
INSERT INTO guard_column_view VALUES (60, 'view', 6);
CREATE FUNCTION guard_column_instead() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	UPDATE guard_column SET body = NEW.b WHERE id = OLD.i;
	RETURN NEW;
END $$;
CREATE TRIGGER instead INSTEAD OF UPDATE ON guard_column_view FOR EACH ROW EXECUTE FUNCTION guard_column_instead();
UPDATE guard_column_view SET b = 'instead', t = 13 WHERE i = 1;
DROP TRIGGER instead ON guard_column_view;
CREATE RULE instead AS ON UPDATE TO guard_column_view
	DO INSTEAD UPDATE guard_column SET body = NEW.b, token = NEW.t WHERE id = OLD.i;
UPDATE guard_column_view SET b = 'not refused' WHERE i = 1;
SELECT * FROM guard_column ORDER BY id;

DROP TABLE guard_column CASCADE;
DROP TABLE guard_column_key, guard_column_log;
DROP FUNCTION guard_column_put, guard_column_write, guard_column_instead;
DELETE FROM _dlock.fence_mark WHERE resource = 'guard-column';
