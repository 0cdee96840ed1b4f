-- one flushed WAL record + one trivial statement
\set name 1000000000000 + random(1, :names)
\set owner 2000000000 + :client_id
SELECT pg_logical_emit_message(true, 'bench', :name::text);
SELECT 1;
