/* sql/privileges.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION dlock" to load this file. \quit

-- Default privileges may have granted more than this script says.  What is in the schema _dlock has names that begin so in the
-- plain edition; either is written so here.
DO $$
DECLARE
    command pg_catalog.text;
BEGIN
    FOR command IN
        SELECT pg_catalog.format('REVOKE ALL ON SCHEMA _dlock FROM %s', a.grantee::pg_catalog.regrole)
          FROM pg_catalog.pg_namespace n, pg_catalog.aclexplode(n.nspacl) a
         WHERE n.nspname OPERATOR(pg_catalog.=) '_dlock' AND a.grantee OPERATOR(pg_catalog.<>) ALL (ARRAY[0::pg_catalog.oid, n.nspowner])
        UNION
        SELECT pg_catalog.format('REVOKE ALL ON TABLE %s FROM %s', c.oid::pg_catalog.regclass, a.grantee::pg_catalog.regrole)
          FROM pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) a
         WHERE pg_catalog.starts_with(c.oid::pg_catalog.regclass::pg_catalog.text, '_dlock')
           AND a.grantee OPERATOR(pg_catalog.<>) ALL (ARRAY[0::pg_catalog.oid, c.relowner])
    LOOP
        EXECUTE command;
    END LOOP;
END $$;
