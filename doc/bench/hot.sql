-- a hand-off of one lock that all clients want:
-- pgbench -n -M prepared -c 8 -T 10 -f hot.sql
\set owner 2000000000 + :client_id
SELECT dlock_acquire('1', :owner::text, wait => NULL);
SELECT dlock_release('1', :owner::text);
