-- Proves: dlock_guards tells which commands on which tables no guard fires for, also in partitions and child tables, and
-- after each ALTER TABLE.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
CREATE VIEW guard_view AS
	SELECT relation, guards, uncovered FROM dlock_guards WHERE relation::text ~ '^(guard_view_|"?Guard)' ORDER BY relation::text;
CREATE VIEW guard_view_uncovered AS SELECT relation, cardinality(guards) AS guards, uncovered FROM guard_view;

-- one table: by statement, by row, by several triggers
CREATE TABLE guard_view_a (id int, body text, token bigint);
TABLE guard_view;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON guard_view_a EXECUTE FUNCTION dlock_guard('x', 'mode=live');
TABLE guard_view;
DROP TRIGGER guard ON guard_view_a;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_view_a FOR EACH ROW EXECUTE FUNCTION dlock_guard('x');
TABLE guard_view_uncovered;
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON guard_view_a EXECUTE FUNCTION dlock_guard('x');
TABLE guard_view_uncovered;
-- triggers of others do not count
CREATE FUNCTION guard_view_other() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE OR REPLACE TRIGGER guard_truncate BEFORE TRUNCATE ON guard_view_a EXECUTE FUNCTION guard_view_other();
TABLE guard_view_uncovered;
-- WHEN covers nothing, and UPDATE OF no UPDATE
CREATE OR REPLACE TRIGGER guard BEFORE INSERT OR UPDATE ON guard_view_a FOR EACH ROW WHEN (NEW.id > 1) EXECUTE FUNCTION dlock_guard('x');
TABLE guard_view_uncovered;
CREATE OR REPLACE TRIGGER guard BEFORE INSERT OR UPDATE OF body ON guard_view_a FOR EACH ROW EXECUTE FUNCTION dlock_guard('x');
TABLE guard_view_uncovered;
CREATE TRIGGER more BEFORE UPDATE OR DELETE OR TRUNCATE ON guard_view_a EXECUTE FUNCTION dlock_guard('x');
TABLE guard_view_uncovered;
-- after ALTER TABLE
ALTER TABLE guard_view_a DISABLE TRIGGER more;
TABLE guard_view_uncovered;
ALTER TABLE guard_view_a ENABLE ALWAYS TRIGGER more;
TABLE guard_view_uncovered;
ALTER TABLE guard_view_a ENABLE REPLICA TRIGGER more;
TABLE guard_view_uncovered;
ALTER TABLE guard_view_a DISABLE TRIGGER ALL;
TABLE guard_view_uncovered;
ALTER TABLE guard_view_a RENAME TO "Guard A";
TABLE guard_view_uncovered;
DROP TABLE "Guard A";

-- partitions: rows are guarded in all of them, statements and TRUNCATE only where they name the table
CREATE TABLE guard_view_b (part int, id int, token bigint) PARTITION BY LIST (part);
CREATE TABLE guard_view_b1 PARTITION OF guard_view_b FOR VALUES IN (1);
CREATE TABLE guard_view_b2 PARTITION OF guard_view_b FOR VALUES IN (2) PARTITION BY LIST (id);
CREATE TABLE guard_view_b21 PARTITION OF guard_view_b2 FOR VALUES IN (1);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON guard_view_b EXECUTE FUNCTION dlock_guard('x');
TABLE guard_view_uncovered;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON guard_view_b1 EXECUTE FUNCTION dlock_guard('x');
TABLE guard_view_uncovered;
DROP TRIGGER guard ON guard_view_b1;
DROP TRIGGER guard ON guard_view_b;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_view_b FOR EACH ROW EXECUTE FUNCTION dlock_guard('x');
TABLE guard_view_uncovered;
-- one that is added is guarded, one that is detached is not
CREATE TABLE guard_view_b22 PARTITION OF guard_view_b2 FOR VALUES IN (2);
ALTER TABLE guard_view_b DETACH PARTITION guard_view_b1;
TABLE guard_view_uncovered;
-- what is open in one is open in those above it
ALTER TABLE guard_view_b21 DISABLE TRIGGER guard;
TABLE guard_view_uncovered;
-- a guard of a part of the partitions
DROP TRIGGER guard ON guard_view_b;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_view_b2 FOR EACH ROW EXECUTE FUNCTION dlock_guard('x');
TABLE guard_view_uncovered;

-- child tables get nothing; what their parent's rows need is not what theirs do
CREATE TABLE guard_view_c (id int);
CREATE TABLE guard_view_c1 () INHERITS (guard_view_c);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_view_c FOR EACH ROW EXECUTE FUNCTION dlock_guard('x');
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON guard_view_c EXECUTE FUNCTION dlock_guard('x');
SELECT * FROM guard_view_uncovered WHERE relation::text LIKE '%c%';
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON guard_view_c1 EXECUTE FUNCTION dlock_guard('x');
SELECT * FROM guard_view_uncovered WHERE relation::text LIKE '%c%';
CREATE OR REPLACE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_view_c1 FOR EACH ROW EXECUTE FUNCTION dlock_guard('x');
SELECT * FROM guard_view_uncovered WHERE relation::text LIKE '%c%';

-- a guard of a view sees no statement
CREATE VIEW guard_view_v AS SELECT * FROM guard_view_c;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_view_v EXECUTE FUNCTION dlock_guard('x');
SELECT * FROM guard_view_uncovered WHERE relation::text LIKE '%v';

-- for every role, with all that it would see anyway
CREATE ROLE guard_view_user;
SET ROLE guard_view_user;
SELECT count(*) > 0 AS seen FROM dlock_guards;
RESET ROLE;

DROP VIEW guard_view_v;
DROP TABLE guard_view_b, guard_view_b1, guard_view_c, guard_view_c1;
DROP VIEW guard_view_uncovered, guard_view;
DROP FUNCTION guard_view_other;
DROP ROLE guard_view_user;
