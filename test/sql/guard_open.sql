-- Proves: CREATE TRIGGER names the writes that a guard leaves open, once for each trigger, and says nothing about a table
-- that is guarded as a whole.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;

-- guarded as a whole: by one trigger; by two, the one for TRUNCATE first
CREATE TABLE guard_open_a (id int, body text, token bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON guard_open_a EXECUTE FUNCTION dlock_guard('x');
DROP TRIGGER guard ON guard_open_a;
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON guard_open_a EXECUTE FUNCTION dlock_guard('x');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_open_a FOR EACH ROW EXECUTE FUNCTION dlock_guard('x');
CREATE OR REPLACE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_open_a FOR EACH ROW EXECUTE FUNCTION dlock_guard('y');
-- what is covered already is not open
CREATE TRIGGER other BEFORE UPDATE OF body ON guard_open_a FOR EACH ROW WHEN (NEW.id > 1) EXECUTE FUNCTION dlock_guard('z');
-- that of others does not count
DROP TRIGGER other ON guard_open_a;
DROP TRIGGER guard_truncate ON guard_open_a;
CREATE FUNCTION guard_open() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON guard_open_a EXECUTE FUNCTION guard_open();
CREATE OR REPLACE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_open_a FOR EACH ROW EXECUTE FUNCTION dlock_guard('x');
DROP TRIGGER guard ON guard_open_a;

-- missing events
CREATE TRIGGER guard_insert BEFORE INSERT ON guard_open_a FOR EACH ROW EXECUTE FUNCTION dlock_guard('x');
CREATE TRIGGER guard_update BEFORE UPDATE ON guard_open_a FOR EACH ROW EXECUTE FUNCTION dlock_guard('x');
CREATE TRIGGER guard_delete BEFORE DELETE OR TRUNCATE ON guard_open_a EXECUTE FUNCTION dlock_guard('x');
DROP TRIGGER guard_insert ON guard_open_a;
DROP TRIGGER guard_update ON guard_open_a;

-- WHEN, UPDATE OF, and a guard that is disabled
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON guard_open_a FOR EACH ROW WHEN (NEW.id > 1) EXECUTE FUNCTION dlock_guard('x');
CREATE OR REPLACE TRIGGER guard BEFORE INSERT OR UPDATE OF body ON guard_open_a FOR EACH ROW EXECUTE FUNCTION dlock_guard('x');
ALTER TABLE guard_open_a DISABLE TRIGGER guard_delete;
CREATE OR REPLACE TRIGGER guard BEFORE INSERT OR UPDATE OF body ON guard_open_a FOR EACH ROW WHEN (NEW.id > 1) EXECUTE FUNCTION dlock_guard('x');

-- partitions: rows are guarded in all of them, statements are not
CREATE TABLE guard_open_b (part int, token bigint) PARTITION BY LIST (part);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON guard_open_b EXECUTE FUNCTION dlock_guard('x');
CREATE TABLE guard_open_b1 PARTITION OF guard_open_b FOR VALUES IN (1);
CREATE OR REPLACE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON guard_open_b EXECUTE FUNCTION dlock_guard('x');
-- each partition has its own
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON guard_open_b1 EXECUTE FUNCTION dlock_guard('x');
CREATE OR REPLACE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON guard_open_b EXECUTE FUNCTION dlock_guard('x');
DROP TRIGGER guard ON guard_open_b;
DROP TRIGGER guard ON guard_open_b1;
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON guard_open_b EXECUTE FUNCTION dlock_guard('x');
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON guard_open_b1 EXECUTE FUNCTION dlock_guard('x');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_open_b FOR EACH ROW EXECUTE FUNCTION dlock_guard('x');
-- a partition that is added gets the guard, without a word
CREATE TABLE guard_open_b2 PARTITION OF guard_open_b FOR VALUES IN (2);
CREATE TABLE guard_open_b3 (part int, token bigint);
ALTER TABLE guard_open_b ATTACH PARTITION guard_open_b3 FOR VALUES IN (3);

-- child tables get nothing
CREATE TABLE guard_open_c (id int);
CREATE TABLE guard_open_c1 () INHERITS (guard_open_c);
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON guard_open_c EXECUTE FUNCTION dlock_guard('x');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_open_c FOR EACH ROW EXECUTE FUNCTION dlock_guard('x');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON guard_open_c1 EXECUTE FUNCTION dlock_guard('x');
CREATE OR REPLACE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_open_c FOR EACH ROW EXECUTE FUNCTION dlock_guard('x');

DROP TABLE guard_open_a, guard_open_b, guard_open_c, guard_open_c1;
DROP FUNCTION guard_open;
