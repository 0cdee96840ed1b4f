-- Proves: where library and SQL objects are of different versions, a function with other columns than the library fills raises an error.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\set SHOW_CONTEXT never
SELECT dlock_acquire('columns', 'columns-a', '1 h') > 0 AS granted;
SELECT dlock_group_create('columns', 2), dlock_group_join('columns', 'columns-a', '1 h') AS member \gset

-- Copies of the functions, with a column less and with one more.
DO $$
DECLARE
    f record;
BEGIN
    CREATE SCHEMA narrow;
    CREATE SCHEMA wide;
    FOR f IN
        SELECT p.*, s.nspname, (SELECT string_agg(CASE mode WHEN 'i' THEN 'IN ' WHEN 'b' THEN 'INOUT ' ELSE 'OUT ' END
                        || quote_ident(arg) || ' ' || format_type(type, NULL), ', ' ORDER BY n)
                  FROM unnest(proallargtypes, proargmodes, proargnames) WITH ORDINALITY a (type, mode, arg, n)
                 WHERE s.nspname = 'wide' OR n < cardinality(proallargtypes)) AS arguments
          FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
               JOIN pg_extension e ON e.oid = d.refobjid AND extname = 'dlock'
               CROSS JOIN pg_namespace s
         WHERE prorettype = 'record'::regtype AND probin IS NOT NULL AND s.nspname IN ('narrow', 'wide')
    LOOP
        EXECUTE format('CREATE FUNCTION %I.%I(%s%s) RETURNS %s record LANGUAGE c AS %L, %L', f.nspname, f.proname, f.arguments,
                       CASE f.nspname WHEN 'wide' THEN ', OUT another text' END, CASE WHEN f.proretset THEN 'SETOF' END, f.probin, f.prosrc);
    END LOOP;
END $$;
SELECT proname FROM pg_proc WHERE pronamespace = 'narrow'::regnamespace ORDER BY proname COLLATE "C";

SELECT * FROM narrow.dlock_lease('columns');
\set VERBOSITY sqlstate
SELECT * FROM wide.dlock_lease('columns');
SELECT * FROM narrow.dlock_watch('columns', NULL, '0');
SELECT * FROM wide.dlock_watch('columns-free', NULL, '0');
SELECT dlock_acquire('columns-taken', o, '1 h', keep => '1 h') > 0 AS granted FROM unnest('{a,b,c}'::text[]) o;
SELECT dlock_release('columns-taken', 'a');
SELECT * FROM wide.dlock_take('b', '0', '0');
SELECT name, owner FROM narrow.dlock_take('c', '0', '0');
SELECT dlock_release('columns-taken', 'b'), dlock_release('columns-taken', 'c');
SELECT * FROM narrow.dlock_group_renew('columns', :member, NULL);
\set VERBOSITY default

SET client_min_messages = warning;
DROP SCHEMA narrow, wide CASCADE;
RESET client_min_messages;
SELECT dlock_group_leave('columns', :member), dlock_group_drop('columns');
SELECT dlock_release_all('columns-a');
