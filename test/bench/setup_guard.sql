-- Tables that are guarded in different ways, with the rows of each.  psql
-- variables: module, the path of the no-op module; rows, how many rows a large
-- table has.

CREATE FUNCTION noop_trigger() RETURNS trigger
    AS :'module', 'dlock_noop_trigger'
    LANGUAGE C;

ALTER DATABASE bench SET dlock.tokens = '*=1';

SELECT format('CREATE TABLE %s_%s (id integer PRIMARY KEY, tenant integer NOT NULL, n integer NOT NULL, token bigint)
               WITH (fillfactor = 50)', size, kind),
       format('INSERT INTO %s_%s SELECT i, i %% 100, 0, 1 FROM generate_series(1, %s) i', size, kind, rows),
       format('VACUUM ANALYZE %s_%s', size, kind),
       CASE WHEN action IS NOT NULL
            THEN format('CREATE TRIGGER guard BEFORE UPDATE ON %s_%s FOR EACH %s', size, kind, action) END
  FROM (VALUES ('guard', 100000), ('bulk', :rows)) s (size, rows),
       (VALUES ('plain', NULL),
               ('noop', 'ROW EXECUTE FUNCTION noop_trigger()'),
               ('statement', 'STATEMENT EXECUTE FUNCTION dlock_guard(''r'')'),
               ('row', 'ROW EXECUTE FUNCTION dlock_guard(''r'')'),
               ('column', 'ROW EXECUTE FUNCTION dlock_guard(''r'', ''token_column=token'')'),
               ('tenant', 'ROW EXECUTE FUNCTION dlock_guard(''tenant/'', ''resource_column=tenant'')'),
               ('mark', 'ROW EXECUTE FUNCTION dlock_guard(''token_column=token'')')) k (kind, action)
\gexec
