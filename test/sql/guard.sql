-- Proves: a guarded table takes writes only with a good token, from wherever it may come, for statements, rows, and rows
-- that are their own marks; a trigger that cannot work is refused when it is created.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
SELECT fence_rejections AS before FROM dlock_stats \gset

-- a whole table, by statement
CREATE TABLE guard_a (id int PRIMARY KEY, body text);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON guard_a
	EXECUTE FUNCTION dlock_guard('guard-a');
INSERT INTO guard_a VALUES (1, 'a');
BEGIN;
SELECT dlock_fence('guard-a', 10);
INSERT INTO guard_a VALUES (1, 'a'), (2, 'b');
COMMIT;
UPDATE guard_a SET body = 'x';
DELETE FROM guard_a;
TRUNCATE guard_a;
-- even one that would change nothing
DELETE FROM guard_a WHERE false;
-- the setting
SET dlock.tokens = 'other=1, guard-a=11';
UPDATE guard_a SET body = 'c' WHERE id = 1;
SELECT token FROM dlock_fences WHERE resource = 'guard-a';
SET dlock.tokens = 'guard-a=10';
UPDATE guard_a SET body = 'stale';
SET dlock.tokens = '*=12';
UPDATE guard_a SET body = 'd' WHERE id = 1;
-- a transaction that has passed does not ask the setting
BEGIN;
SELECT dlock_fence('guard-a', 13);
UPDATE guard_a SET body = 'e' WHERE id = 1;
COMMIT;
UPDATE guard_a SET body = 'stale';
-- its own, before that of *
SET dlock.tokens = '*=1, "guard-a=14"';
DELETE FROM guard_a WHERE id = 2;
BEGIN;
TRUNCATE guard_a;
ROLLBACK;
-- for a transaction
RESET dlock.tokens;
BEGIN;
SET LOCAL dlock.tokens = 'guard-a=14';
UPDATE guard_a SET body = 'f';
COMMIT;
UPDATE guard_a SET body = 'g';
-- nothing is left of a savepoint's pass
BEGIN;
SAVEPOINT a;
SELECT dlock_fence('guard-a', 15);
UPDATE guard_a SET body = 'h';
ROLLBACK TO a;
UPDATE guard_a SET body = 'i';
ROLLBACK;
SELECT * FROM guard_a;

-- a resource for each tenant, by row; a column may bring the token, and gets it
CREATE TABLE guard_b (tenant int, id int, body text, token bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_b
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('tenant/', 'resource_column=tenant', 'token_column=token');
INSERT INTO guard_b VALUES (1, 1, 'a', 20), (2, 1, 'b', 21), (1, 2, 'c', 20);
INSERT INTO guard_b VALUES (1, 3, 'd', 19);
INSERT INTO guard_b VALUES (1, 3, 'd', 0);
INSERT INTO guard_b VALUES (1, 3, 'd');
INSERT INTO guard_b VALUES (NULL, 3, 'd', 20);
SELECT resource, token FROM dlock_fences WHERE resource LIKE 'tenant/%' ORDER BY resource;
-- what the row holds is not presented by an update that does not set it
UPDATE guard_b SET body = 'x' WHERE tenant = 1;
UPDATE guard_b SET body = 'x', token = 20 WHERE tenant = 1;
UPDATE guard_b SET body = 'y', token = 22 WHERE tenant = 1 AND id = 2;
UPDATE guard_b SET body = 'z', token = 21 WHERE tenant = 1;
SET dlock.tokens = 'tenant/1=23, tenant/2=21';
UPDATE guard_b SET body = 'w';
SELECT * FROM guard_b ORDER BY tenant, id;
-- from one tenant to another, with a token for each
UPDATE guard_b SET tenant = 3 WHERE tenant = 2;
UPDATE guard_b SET tenant = 3, token = 30 WHERE tenant = 2;
UPDATE guard_b SET tenant = 2, token = 21 WHERE tenant = 3;
SET dlock.tokens = 'tenant/1=23, tenant/2=21, tenant/3=30';
UPDATE guard_b SET tenant = 2 WHERE tenant = 3;
SELECT * FROM guard_b ORDER BY tenant, id;
-- a row that names none, from before the guard
ALTER TABLE guard_b DISABLE TRIGGER guard;
INSERT INTO guard_b VALUES (NULL, 8, 'nobody''s', 1), (NULL, 9, 'nobody''s', 1);
ALTER TABLE guard_b ENABLE TRIGGER guard;
UPDATE guard_b SET body = 'still nobody''s' WHERE id = 8;
UPDATE guard_b SET tenant = 4 WHERE id = 8;
UPDATE guard_b SET tenant = 1 WHERE id = 8;
DELETE FROM guard_b WHERE id IN (8, 9);
DELETE FROM guard_b WHERE tenant = 1 AND id = 2;
RESET dlock.tokens;
DELETE FROM guard_b WHERE tenant = 1;
COPY guard_b FROM stdin;
1	4	copied	23
2	4	copied	20
\.
COPY guard_b FROM stdin;
1	4	copied	23
2	4	copied	21
\.
INSERT INTO guard_b VALUES (2, 4, 'merged', 24) ON CONFLICT DO NOTHING;
SELECT * FROM guard_b ORDER BY tenant, id, body;

-- rows that are their own marks
CREATE TABLE guard_c (id int PRIMARY KEY, body text, token bigint);
INSERT INTO guard_c VALUES (0, 'from before');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_c
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('token_column=token');
INSERT INTO guard_c VALUES (1, 'a', 10), (2, 'b', 20);
INSERT INTO guard_c VALUES (3, 'c');
UPDATE guard_c SET body = 'x';
UPDATE guard_c SET body = 'x', token = 10 WHERE id IN (0, 1);
UPDATE guard_c SET body = 'y', token = 11 WHERE id = 1;
UPDATE guard_c SET body = 'z', token = 10 WHERE id = 1;
INSERT INTO guard_c VALUES (1, 'a', 10) ON CONFLICT (id) DO UPDATE SET body = excluded.body, token = excluded.token;
INSERT INTO guard_c VALUES (1, 'a', 12) ON CONFLICT (id) DO UPDATE SET body = excluded.body, token = excluded.token;
UPDATE guard_c SET token = NULL;
MERGE INTO guard_c c USING (VALUES (1, 11), (4, 30)) v (id, token) ON c.id = v.id
	WHEN MATCHED THEN UPDATE SET token = v.token WHEN NOT MATCHED THEN INSERT VALUES (v.id, 'merged', v.token);
MERGE INTO guard_c c USING (VALUES (1, 13), (4, 30)) v (id, token) ON c.id = v.id
	WHEN MATCHED THEN UPDATE SET token = v.token WHEN NOT MATCHED THEN INSERT VALUES (v.id, 'merged', v.token);
SELECT * FROM guard_c ORDER BY id;
-- a deletion brings no column
DELETE FROM guard_c WHERE id = 4;
SET dlock.tokens = 'what=29';
DELETE FROM guard_c WHERE id = 4;
SET dlock.tokens = 'what=30';
DELETE FROM guard_c WHERE id = 4;
UPDATE guard_c SET body = 'by setting' WHERE id = 0;
SET dlock.tokens = 'what=30, ever=31';
DELETE FROM guard_c WHERE id = 2;
SET dlock.tokens = 'what=30, ever=31, *=20';
DELETE FROM guard_c WHERE id = 2;
RESET dlock.tokens;
BEGIN;
SELECT dlock_fence('guard-c', 32);
DELETE FROM guard_c WHERE id = 0;
ROLLBACK;
BEGIN;
UPDATE guard_c SET token = 33 WHERE id = 0;
DELETE FROM guard_c WHERE id = 1;
COMMIT;
SELECT * FROM guard_c ORDER BY id;

-- the last one written counts; nothing is left of what was rolled back, or refused
TRUNCATE guard_c;
INSERT INTO guard_c VALUES (1, 'a', 10), (2, 'b', 20), (3, 'c', 30);
BEGIN;
UPDATE guard_c SET token = 15 WHERE id = 1;
SAVEPOINT a;
UPDATE guard_c SET token = 500 WHERE id = 2;
DELETE FROM guard_c WHERE id = 3;
ROLLBACK TO a;
DELETE FROM guard_c WHERE id = 2;
ROLLBACK TO a;
UPDATE guard_c SET token = 29 WHERE id = 3;
ROLLBACK TO a;
UPDATE guard_c SET body = 'x' WHERE id = 2;
ROLLBACK TO a;
DELETE FROM guard_c WHERE id = 1;
COMMIT;
-- what a later pass of the same resource has taken the place of is not presented
BEGIN;
SELECT dlock_fence('guard-c', 35);
SELECT dlock_fence('guard-c', 36);
DELETE FROM guard_c WHERE id = 2;
SELECT dlock_fence('guard-c-2', 37);
DELETE FROM guard_c WHERE id = 3;
ROLLBACK;
SELECT * FROM guard_c ORDER BY id;

-- partitions: by the column's name, and over a move
CREATE TABLE guard_d (part int, id int, token bigint) PARTITION BY LIST (part);
CREATE TABLE guard_d1 PARTITION OF guard_d FOR VALUES IN (1);
CREATE TABLE guard_d2 (token bigint, gone int, id int, part int);
ALTER TABLE guard_d2 DROP COLUMN gone;
ALTER TABLE guard_d ATTACH PARTITION guard_d2 FOR VALUES IN (2);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_d
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('token_column=token');
INSERT INTO guard_d VALUES (1, 1, 10), (2, 2, 20);
UPDATE guard_d SET part = 2, token = 11 WHERE id = 1;
UPDATE guard_d SET part = 1, token = 19 WHERE id = 2;
SET dlock.tokens = 'other=5, *=6';
UPDATE guard_d SET part = 1, token = 12 WHERE id = 1;
RESET dlock.tokens;
UPDATE guard_d SET token = 20;
SELECT tableoid::regclass, part, id, token FROM guard_d ORDER BY id;

-- rows from before the trigger, whose names cannot be those of resources, can be mended and removed
CREATE TABLE guard_n (id int, resource text);
INSERT INTO guard_n VALUES (1, ''), (2, repeat('x', 300)), (3, NULL), (4, '');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guard_n FOR EACH ROW EXECUTE FUNCTION dlock_guard('resource_column=resource');
SELECT dlock_acquire('guard-n', 'a', '1 h') AS token \gset
SELECT format('"guard-n=%s"', :token) AS setting \gset
SET dlock.tokens = :'setting';
UPDATE guard_n SET resource = 'guard-n' WHERE id < 4;
DELETE FROM guard_n;
RESET dlock.tokens;
\set VERBOSITY sqlstate
INSERT INTO guard_n VALUES (5, '');
\set VERBOSITY default
SELECT dlock_release('guard-n', 'a');
DROP TABLE guard_n;

-- live: each token that a statement presents must be that of the lease
CREATE TABLE guard_l (id int, token bigint);
INSERT INTO guard_l VALUES (1), (2);
CREATE TRIGGER guard BEFORE UPDATE ON guard_l FOR EACH ROW EXECUTE FUNCTION dlock_guard('resource=guard-l', 'token_column=token', 'mode=live');
SELECT dlock_acquire('guard-l', 'a', '1 h') AS held, dlock_acquire('guard-other', 'a', '1 h') AS other \gset
\set VERBOSITY sqlstate
BEGIN;
UPDATE guard_l SET token = CASE id WHEN 1 THEN :held ELSE :other END;
ROLLBACK;
\set VERBOSITY default
UPDATE guard_l SET token = :held;
SELECT dlock_release('guard-l', 'a'), dlock_release('guard-other', 'a');
DROP TABLE guard_l;

-- live: the lease must be, too, when the transaction first presents the token and at its commit
CREATE TABLE guard_e (body text);
CREATE TRIGGER guard BEFORE INSERT ON guard_e FOR EACH ROW EXECUTE FUNCTION dlock_guard('resource=guard=e', 'mode=live');
SELECT dlock_acquire('guard=e', 'a', '1 h') AS token \gset
SELECT format('"guard=e=%s"', :token) AS setting \gset
SET dlock.tokens = :'setting';
INSERT INTO guard_e VALUES ('a');
\set VERBOSITY sqlstate
BEGIN;
INSERT INTO guard_e VALUES ('b');
SELECT dlock_release('guard=e', 'a');
INSERT INTO guard_e VALUES ('c');
COMMIT;
INSERT INTO guard_e VALUES ('d');
\set VERBOSITY default
RESET dlock.tokens;
SELECT * FROM guard_e;

-- a role that may write the table, and no more, is guarded
CREATE ROLE guard_user;
GRANT SELECT, INSERT, UPDATE ON guard_a TO guard_user;
SET ROLE guard_user;
UPDATE guard_a SET body = 'x';
SET dlock.tokens = 'guard-a=40';
UPDATE guard_a SET body = 'by user';
SET dlock.tokens = 'guard-a=39';
UPDATE guard_a SET body = 'by user';
RESET dlock.tokens;
RESET ROLE;
SELECT token, raised_by FROM dlock_fences WHERE resource = 'guard-a';

SELECT fence_rejections - :before AS refused FROM dlock_stats;

-- a column that must not be null: in a new row zero is not a token, and is stamped
CREATE TABLE guard_g (id int PRIMARY KEY, token bigint NOT NULL DEFAULT 0);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON guard_g FOR EACH ROW EXECUTE FUNCTION dlock_guard('guard-g', 'token_column=token');
\set VERBOSITY sqlstate
INSERT INTO guard_g VALUES (1);
\set VERBOSITY default
SET dlock.tokens = 'guard-g=7';
INSERT INTO guard_g (id) VALUES (1);
INSERT INTO guard_g VALUES (2, 0), (3, 7);
INSERT INTO guard_g VALUES (1) ON CONFLICT (id) DO UPDATE SET id = 4;
UPDATE guard_g SET token = 0;
INSERT INTO guard_g VALUES (5, -1);
RESET dlock.tokens;
SELECT * FROM guard_g ORDER BY id;

-- a trigger that cannot work refuses each write
CREATE TABLE guard_f (id int, token bigint, day date, twice int GENERATED ALWAYS AS (id * 2) STORED, stamp bigint GENERATED ALWAYS AS (id::bigint) STORED);
CREATE VIEW guard_v AS SELECT id FROM guard_f;
CREATE FUNCTION guard_bad(relation regclass, created text, arguments text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE %s INSERT ON %s FOR EACH %s EXECUTE FUNCTION dlock_guard(%s)', split_part(created, ',', 1), relation, split_part(created, ',', 2), arguments);
	EXECUTE format('INSERT INTO %s (id) VALUES (1)', relation);
END $$;
\set SHOW_CONTEXT never
SET dlock.tokens = '*=1';
SELECT guard_bad('guard_f', 'TRIGGER bad AFTER,ROW', $$'x'$$);
SELECT guard_bad('guard_f', 'CONSTRAINT TRIGGER bad AFTER,ROW', $$'x'$$);
SELECT guard_bad('guard_v', 'TRIGGER bad INSTEAD OF,ROW', $$'x'$$);
SELECT guard_bad('guard_f', 'TRIGGER bad BEFORE,ROW', $$$$);
SELECT guard_bad('guard_f', 'TRIGGER bad BEFORE,ROW', $$'mode=live'$$);
SELECT guard_bad('guard_f', 'TRIGGER bad BEFORE,ROW', $$'x', 'mode=alive'$$);
SELECT guard_bad('guard_f', 'TRIGGER bad BEFORE,ROW', $$'x', 'y'$$);
SELECT guard_bad('guard_f', 'TRIGGER bad BEFORE,ROW', $$'x', 'resource_column='$$);
SELECT guard_bad('guard_f', 'TRIGGER bad BEFORE,ROW', $$'x', 'tokn_column=id'$$);
SELECT guard_bad('guard_f', 'TRIGGER bad BEFORE,ROW', $$'x', 'token_column=gone'$$);
SELECT guard_bad('guard_f', 'TRIGGER bad BEFORE,ROW', $$'x', 'token_column=id'$$);
SELECT guard_bad('guard_f', 'TRIGGER bad BEFORE,ROW', $$'resource_column=gone'$$);
SELECT guard_bad('guard_f', 'TRIGGER bad BEFORE,STATEMENT', $$'resource_column=id'$$);
SELECT guard_bad('guard_f', 'TRIGGER bad BEFORE,STATEMENT', $$'token_column=token'$$);
SELECT guard_bad('guard_f', 'TRIGGER bad BEFORE,ROW', $$'token_column=token', 'mode=live'$$);
SELECT guard_bad('guard_f', 'TRIGGER bad BEFORE,ROW', $$'resource_column=day'$$);
SELECT guard_bad('guard_f', 'TRIGGER bad BEFORE,ROW', $$'resource_column=twice'$$);
SELECT guard_bad('guard_f', 'TRIGGER bad BEFORE,ROW', $$'x', 'token_column=stamp'$$);
RESET dlock.tokens;
\unset SHOW_CONTEXT
SELECT count(*) FROM guard_f;
DROP FUNCTION guard_bad;
SELECT dlock_guard();

-- one that has come to
ALTER TABLE guard_c RENAME COLUMN token TO fence;
UPDATE guard_c SET fence = 100;

-- bad settings
SET dlock.tokens = 'x';
SET dlock.tokens = 'x=';
SET dlock.tokens = 'x=0';
SET dlock.tokens = 'x=-1';
SET dlock.tokens = 'x=1,';
SET dlock.tokens = 'x=1 y=2';
SET dlock.tokens = '=1';
SET dlock.tokens = 'x = 1';
SET dlock.tokens = 'x=1=';
SET dlock.tokens = '"x=1';
SET dlock.tokens = '""=1';
SET dlock.tokens = 'x=1, x=2';
SET dlock.tokens = 'x=9223372036854775808';
SET dlock.tokens = 'x=1a';
SELECT set_config('dlock.tokens', repeat('x', 256) || '=1', false);
\set VERBOSITY sqlstate
SELECT set_config('dlock.tokens', string_agg(i || '=1', ','), false) FROM generate_series(1, 1001) i;
SELECT length(set_config('dlock.tokens', string_agg(i || '=1', ','), false)) FROM generate_series(1, 1000) i;
\set VERBOSITY default
SET dlock.tokens = ' x=9223372036854775807 , "a ""b"", c=2","*=3" ';
SHOW dlock.tokens;
RESET dlock.tokens;

DROP VIEW guard_v;
DROP TABLE guard_a, guard_b, guard_c, guard_d, guard_e, guard_f, guard_g;
DROP ROLE guard_user;
SELECT dlock_release('guard=e', 'a');
DELETE FROM _dlock.fence_mark WHERE resource ~ '^(guard|tenant)';
